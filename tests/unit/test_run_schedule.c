/* SPDX-License-Identifier: MIT
 *
 * Schedules from files and schedulers of one's own. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run_util.h"
#include "zb/mem.h"
#include "zbt.h"

#define N_ROWS 7
#define N_MICRO 4
#define N_STAGES 2

static const char *const planner[] = {"zbv", "get_v_schedule", "1f1b", "gpipe"};

/* ---- files --------------------------------------------------------------- */

/* "file:..." of the schedule that a session with these options runs. */
static void write_schedule(const struct zb_model *m,
                           const struct zb_session_opts *o,
                           enum zb_plan_format format, char *planner_out,
                           size_t n)
{
    const char *path = zbt_scratch_path("schedule");
    struct zb_session *s = NULL;
    FILE *f = fopen(path, "w");

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    ZBT_OK(zb_session_new(m, o, &s));
    ZBT_OK(zb_schedule_write(zb_session_schedule(s), format, f));
    fclose(f);
    zb_session_free(s);
    snprintf(planner_out, n, "file:%s", path);
}

static void schedule_from_a_file_gives_the_same_bits(void)
{
    static const enum zb_plan_format format[] = {ZB_PLAN_NODES, ZB_PLAN_JSON,
                                                 ZB_PLAN_TORCH};
    enum { N_FORMATS = ZB_COUNT_OF(format) };
    struct zb_model *m = ru_gpt2(0.1);
    struct ru_result want, have;
    struct ru_batch b;
    char file[1100];

    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    for (size_t k = 0; k < N_FORMATS * ZB_COUNT_OF(planner); k++) {
        struct zb_session_opts o = ru_opts(N_STAGES, N_MICRO, N_ROWS);

        o.planner = planner[k / N_FORMATS];
        ru_train_two_steps(m, &o, &b, &want);
        write_schedule(m, &o, format[k % N_FORMATS], file, sizeof(file));
        o.planner = file;
        ru_train_two_steps(m, &o, &b, &have);
        CU_ASSERT(ru_result_equal(&have, &want));
        ru_result_release(&have);
        ru_result_release(&want);
    }
    ru_batch_release(&b);
    zb_model_free(m);
}

/* Copy the file without its `skip`-th line of those that contain `word`, or,
 * with `into`, with that word replaced there. */
static void damage(const char *from, const char *to, const char *word, int skip,
                   const char *into)
{
    FILE *in = fopen(from, "r"), *out = fopen(to, "w");
    char line[256];

    CU_ASSERT_FATAL(in != NULL && out != NULL);
    while (fgets(line, sizeof(line), in) != NULL) {
        char *at = strstr(line, word);

        if (at == NULL || skip-- != 0) {
            fputs(line, out);
        } else if (into != NULL) {
            fprintf(out, "%.*s%s%s", (int)(at - line), line, into,
                    at + strlen(word));
        }
    }
    fclose(in);
    fclose(out);
}

static void broken_schedule_is_refused_by_name(void)
{
    static const struct {
        const char *word, *into, *say;
    } cases[] = {
        {"1 W 0 2 ", NULL, "W"},            /* a W that never comes */
        {"0 F 0 1 ", "0 F 0 0 ", "F"},      /* one F twice */
        {"1 B 1 0 ", "1 B 1 7 ", "missing"}, /* eight microbatches? */
        {"0 SEND_FORWARD 0 1 ", NULL, "mb 1"},
        {"0 B 1 2 ", "0 X 1 2 ", "X"},
    };
    struct zb_session_opts o = ru_opts(N_STAGES, N_MICRO, N_ROWS);
    struct zb_model *m = ru_llama();
    char whole[1100], broken[1100];

    write_schedule(m, &o, ZB_PLAN_NODES, whole, sizeof(whole));
    for (size_t i = 0; i < ZB_COUNT_OF(cases); i++) {
        struct zb_session *s = NULL;

        snprintf(broken, sizeof(broken), "file:%s", zbt_scratch_path("broken"));
        damage(whole + 5, broken + 5, cases[i].word, 0, cases[i].into);
        o.planner = broken;
        CU_ASSERT_EQUAL(zb_session_new(m, &o, &s), ZB_ECONFIG);
        if (strstr(zb_error_text(), cases[i].say) == NULL) {
            printf("\n%s: %s", cases[i].word, zb_error_text());
            CU_FAIL("the message does not say what is wrong");
        }
    }
    zb_model_free(m);
}

static void schedule_of_another_size_is_refused(void)
{
    struct zb_session_opts o = ru_opts(N_STAGES, N_MICRO, N_ROWS);
    struct zb_model *m = ru_llama();
    struct zb_session *s = NULL;
    char file[1100];

    write_schedule(m, &o, ZB_PLAN_NODES, file, sizeof(file));
    o = ru_opts(N_STAGES, N_MICRO + 1, N_ROWS);
    o.planner = file;
    CU_ASSERT_EQUAL(zb_session_new(m, &o, &s), ZB_EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), file + strlen("file:")));
    o = ru_opts(N_STAGES + 1, N_MICRO, N_ROWS);
    o.planner = file;
    CU_ASSERT_EQUAL(zb_session_new(m, &o, &s), ZB_EINVAL);
    o.planner = "file:/nonexistent/schedule";
    CU_ASSERT_NOT_EQUAL(zb_session_new(m, &o, &s), ZB_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "/nonexistent/schedule"));
    zb_model_free(m);
}

/* ---- schedulers of one's own --------------------------------------------- */

/* The worker's own list, node by node through the public parts. */
static enum zb_status by_parts(struct zb_worker *w, const struct zb_node *nd)
{
    switch (nd->type) {
    case ZB_NODE_F:
        return zb_schedule_f(w, nd->chunk, nd->mb);
    case ZB_NODE_B:
        return zb_schedule_b(w, nd->chunk, nd->mb);
    case ZB_NODE_W:
        return zb_schedule_w(w, nd->chunk, nd->mb);
    case ZB_NODE_BW:
        ZB_TRY(zb_schedule_b(w, nd->chunk, nd->mb));
        return zb_schedule_w(w, nd->chunk, nd->mb);
    case ZB_NODE_SEND_FORWARD:
        return zb_send_forward(w, nd->chunk, nd->mb);
    case ZB_NODE_RECV_FORWARD:
        return zb_recv_forward(w, nd->chunk, nd->mb);
    case ZB_NODE_SEND_BACKWARD:
        return zb_send_backward(w, nd->chunk, nd->mb);
    case ZB_NODE_RECV_BACKWARD:
        return zb_recv_backward(w, nd->chunk, nd->mb);
    default:
        return ZB_OK;
    }
}

static enum zb_status run_list(struct zb_worker *w, void *arg)
{
    const struct zb_stage_nodes *nodes = zb_worker_nodes(w);

    ZB_TRY(zb_load_batch(w, arg, N_MICRO, 1));
    for (size_t i = 0; i < nodes->n; i++) {
        ZB_TRY(by_parts(w, &nodes->node[i]));
    }
    return ZB_OK;
}

static enum zb_status run_whole(struct zb_worker *w, void *arg)
{
    ZB_TRY(zb_load_batch(w, arg, N_MICRO, 1));
    return zb_run_forward_backward(w);
}

/* An order that no planner here gives: one microbatch after the other, forth
 * and back, each W at once, for linear placements. */
static enum zb_status one_by_one(struct zb_worker *w, void *arg)
{
    ZB_TRY(zb_load_batch(w, arg, N_MICRO, 1));
    for (int mb = 0; mb < N_MICRO; mb++) {
        ZB_TRY(zb_recv_forward(w, 0, mb));
        ZB_TRY(zb_schedule_f(w, 0, mb));
        ZB_TRY(zb_send_forward(w, 0, mb));
        ZB_TRY(zb_recv_backward(w, 0, mb));
        ZB_TRY(zb_schedule_b(w, 0, mb));
        ZB_TRY(zb_send_backward(w, 0, mb));
        ZB_TRY(zb_schedule_w(w, 0, mb));
    }
    return ZB_OK;
}

/* The same, each node in its smallest parts. */
static enum zb_status by_steps(struct zb_worker *w, void *arg)
{
    ZB_TRY(zb_load_batch(w, arg, N_MICRO, 1));
    for (int mb = 0; mb < N_MICRO; mb++) {
        ZB_TRY(zb_load_micro_batch(w, 0, mb));
        ZB_TRY(zb_recv_forward(w, 0, mb));
        ZB_TRY(zb_forward_step(w, 0, mb));
        ZB_TRY(zb_send_forward(w, 0, mb));
        ZB_TRY(zb_recv_backward(w, 0, mb));
        ZB_TRY(zb_backward_b_step(w, 0, mb));
        ZB_TRY(zb_send_backward(w, 0, mb));
        ZB_TRY(zb_backward_w_step(w, 0, mb));
    }
    return ZB_OK;
}

/* The steps of ru_train_two_steps(), with `fn` as the first thing a new session
 * runs. */
static void train_with(const struct zb_model *m,
                       const struct zb_session_opts *o,
                       const struct ru_batch *b,
                       enum zb_status (*fn)(struct zb_worker *, void *),
                       struct ru_result *r)
{
    struct zb_step_input in = b->in;
    struct zb_step_result res = {.loss = 0};
    struct zb_session *s = NULL;

    r->n = ru_n_elems(m);
    r->grads = zb_alloc_array(r->n, sizeof(zb_real));
    r->params = zb_alloc_array(r->n, sizeof(zb_real));
    ZBT_OK(zb_session_new(m, o, &s));
    ZBT_OK(zb_session_each(s, fn, &in));
    ZBT_OK(zb_session_loss(s, &in, N_MICRO, &res));
    r->loss = res.loss;
    ru_get_grads(s, r->grads);
    ZBT_OK(zb_optimizer_step(s, 1e-2, &res));
    r->norm = res.grad_norm;
    ZBT_OK(zb_zero_grad(s));
    ZBT_OK(zb_session_each(s, fn, &in));
    ZBT_OK(zb_optimizer_step(s, 1e-2, &res));
    ru_get_params(s, r->params);
    zb_session_free(s);
}

static void own_scheduler_gives_the_same_bits(void)
{
    struct zb_model *m = ru_gpt2(0.1);
    struct ru_result want, have;
    struct ru_batch b;

    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    for (size_t k = 0; k < ZB_COUNT_OF(planner); k++) {
        struct zb_session_opts o = ru_opts(N_STAGES, N_MICRO, N_ROWS);

        o.planner = planner[k];
        ru_train_two_steps(m, &o, &b, &want);
        train_with(m, &o, &b, run_list, &have);
        CU_ASSERT(ru_result_equal(&have, &want));
        ru_result_release(&have);
        train_with(m, &o, &b, run_whole, &have);
        CU_ASSERT(ru_result_equal(&have, &want));
        ru_result_release(&have);
        if (k >= 2) {
            train_with(m, &o, &b, one_by_one, &have);
            CU_ASSERT(ru_result_equal(&have, &want));
            ru_result_release(&have);
            train_with(m, &o, &b, by_steps, &have);
            CU_ASSERT(ru_result_equal(&have, &want));
            ru_result_release(&have);
        }
        ru_result_release(&want);
    }
    ru_batch_release(&b);
    zb_model_free(m);
}

/* The right leg goes back first: forward 0 0 1 1, backward 1 1 0 0. */
static enum zb_status check_chunk_ids(struct zb_worker *w, void *arg)
{
    static const int forward[] = {0, 0, 1, 1, 0, 0, 1, 1};
    int *n_right = arg;

    for (int i = 0; zb_worker_stage(w) == 0 && i < 8; i++) {
        *n_right += zb_get_model_chunk_id(w, i, 1) == forward[i];
        *n_right += zb_get_model_chunk_id(w, i, 0) == 1 - forward[i];
    }
    return ZB_OK;
}

static void chunk_ids_alternate_by_stages(void)
{
    struct zb_session_opts o = ru_opts(N_STAGES, N_MICRO, N_ROWS);
    struct zb_model *m = ru_llama();
    struct zb_session *s = NULL;
    int n_right = 0;

    ZBT_OK(zb_session_new(m, &o, &s));
    ZBT_OK(zb_session_each(s, check_chunk_ids, &n_right));
    CU_ASSERT_EQUAL(n_right, 16);
    zb_session_free(s);
    zb_model_free(m);
}

/* A batch that does not fit, handed to the workers by hand. */
static enum zb_status load_too_much(struct zb_worker *w, void *arg)
{
    return zb_load_batch(w, arg, N_MICRO + 1, 1);
}

static void wrong_batch_in_own_scheduler_is_an_error(void)
{
    struct zb_session_opts o = ru_opts(N_STAGES, N_MICRO, N_ROWS);
    struct zb_model *m = ru_llama();
    struct zb_session *s = NULL;
    struct ru_batch b;

    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    ZBT_OK(zb_session_new(m, &o, &s));
    CU_ASSERT_EQUAL(zb_session_each(s, load_too_much, &b.in), ZB_EINVAL);
    zb_session_free(s);
    b.in.n_rows = 2 * N_ROWS;
    ZBT_OK(zb_session_new(m, &o, &s));
    CU_ASSERT_EQUAL(zb_session_each(s, run_list, &b.in), ZB_ECONFIG);
    zb_session_free(s);
    ru_batch_release(&b);
    zb_model_free(m);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(schedule_from_a_file_gives_the_same_bits),
        ZBT_CASE(broken_schedule_is_refused_by_name),
        ZBT_CASE(schedule_of_another_size_is_refused),
        ZBT_CASE(own_scheduler_gives_the_same_bits),
        ZBT_CASE(chunk_ids_alternate_by_stages),
        ZBT_CASE(wrong_batch_in_own_scheduler_is_an_error),
    };

    return zbt_run("run_schedule", cases, ZB_COUNT_OF(cases));
}
