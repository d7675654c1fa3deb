/* SPDX-License-Identifier: MIT
 *
 * Runs on the check backend, which works late and proves the order of every
 * access: the same bits as cpu, no report; and with a wait dropped or a piece
 * of memory given twice, a report. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "run/run_int.h"
#include "run_util.h"
#include "zb/check.h"
#include "zb/mem.h"
#include "zbt.h"

#define N_ROWS 7

static struct zb_session_opts check_opts(int n_stages, const char *planner,
                                         int n_micro, uint64_t seed)
{
    struct zb_session_opts o = ru_opts(n_stages, n_micro, N_ROWS);

    o.backend = "check";
    o.planner = planner;
    o.check_seed = seed;
    o.check_delay_us = 50;
    return o;
}

/* ---- no report, same bits ------------------------------------------------ */

/* What ru_train_two_steps() does, and a forward-only run in the middle; reports
 * are counted up to the end of the workers. */
static void train_checked(const struct zb_model *m,
                          const struct zb_session_opts *o,
                          const struct ru_batch *b, struct ru_result *r)
{
    struct zb_step_result res = {.loss = 0};
    struct zb_session *s = NULL;

    r->n = ru_n_elems(m);
    r->grads = zb_alloc_array(r->n, sizeof(zb_real));
    r->params = zb_alloc_array(r->n, sizeof(zb_real));
    ZBT_OK(zb_session_new(m, o, &s));
    ZBT_OK(zb_forward_backward_step(s, &b->in, ZB_RETURN_LOSS, &res));
    r->loss = res.loss;
    ru_get_grads(s, r->grads);
    ZBT_OK(zb_run_forward_only(s, &b->in, 5, ZB_RETURN_LOSS, &res));
    ZBT_OK(zb_optimizer_step(s, 1e-2, &res));
    r->norm = res.grad_norm;
    ZBT_OK(zb_train_step(s, &b->in, 1e-2, &res));
    ru_get_params(s, r->params);
    zb_session_stop(s);
    CU_ASSERT_EQUAL(zb_check_reports(s->be), 0);
    if (zb_check_reports(s->be) > 0) {
        printf("\n%s\n", zb_check_report_text(s->be, 0));
    }
    zb_session_free(s);
}

static void train_on_delay_seeds(struct zb_model *m)
{
    static const char *const planner[] = {"zbv",         "1f1b",
                                          "gpipe",       "zb-h2",
                                          "interleaved", "dualpipev"};
    int n_seeds = zbt_is_long() ? 20 : 3;
    struct zb_session_opts o = ru_opts(1, 3, N_ROWS);
    struct ru_result want, have;
    struct ru_batch b;

    o.backend = "cpu";
    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    ru_train_two_steps(m, &o, &b, &want);
    for (int seed = 1; seed <= n_seeds; seed++) {
        for (size_t k = 0; k < 2 * ZB_COUNT_OF(planner); k++) {
            o = check_opts(k % 2 ? 4 : 2, planner[k / 2], 3, (uint64_t)seed);
            train_checked(m, &o, &b, &have);
            CU_ASSERT(ru_result_equal(&have, &want));
            ru_result_release(&have);
        }
    }
    ru_result_release(&want);
    ru_batch_release(&b);
    zb_model_free(m);
}

static void llama_is_in_order_and_equal(void)
{
    train_on_delay_seeds(ru_llama());
}

static void tied_gpt2_with_dropout_is_in_order_and_equal(void)
{
    train_on_delay_seeds(ru_gpt2(0.1));
}

/* ---- a wait that is missing ---------------------------------------------- */

/* What to do before and after the fault is set. */
struct scene {
    const char *planner;
    int device;
    const char *node; /* the fault's */
    enum zb_status (*before)(struct zb_session *s, const struct ru_batch *b,
                             struct zb_step_result *res);
    enum zb_status (*after)(struct zb_session *s, const struct ru_batch *b,
                            struct zb_step_result *res);
};

#define SCENE_STAGES 2
#define SCENE_MICRO 4

static enum zb_status nothing(struct zb_session *s, const struct ru_batch *b,
                              struct zb_step_result *res)
{
    (void)s, (void)b, (void)res;
    return ZB_OK;
}

static enum zb_status train(struct zb_session *s, const struct ru_batch *b,
                            struct zb_step_result *res)
{
    return zb_train_step(s, &b->in, 1e-2, res);
}

static enum zb_status evaluate(struct zb_session *s, const struct ru_batch *b,
                               struct zb_step_result *res)
{
    return zb_run_forward_only(s, &b->in, N_ROWS, ZB_RETURN_LOSS, res);
}

enum outcome { NOT_HIT, NO_REPORT, REPORTED };

/* Drop the k-th wait of the scene. `loss_out` is that of what ran `after`. */
static enum outcome drop_one(const struct zb_model *m, const struct ru_batch *b,
                             const struct scene *sc, uint64_t k,
                             double *loss_out)
{
    struct zb_session_opts o =
        check_opts(SCENE_STAGES, sc->planner, SCENE_MICRO, k);
    struct zb_check_target target = {k, sc->device, sc->node};
    struct zb_step_result res = {.loss = 0};
    struct zb_session *s = NULL;
    enum outcome out;
    enum zb_status st;

    ZBT_OK(zb_session_new(m, &o, &s));
    ZBT_OK(sc->before(s, b, &res));
    zb_check_drop_wait(s->be, &target);
    st = sc->after(s, b, &res);
    zb_session_stop(s);
    out = zb_check_faults_hit(s->be) == 0 ? NOT_HIT
          : zb_check_reports(s->be) == 0  ? NO_REPORT
                                          : REPORTED;
    CU_ASSERT_EQUAL(st, out == REPORTED ? ZB_EDEVICE : ZB_OK);
    if (out == REPORTED) {
        CU_ASSERT_PTR_NOT_NULL(
            strstr(zb_check_report_text(s->be, 0), "race"));
    }
    zb_session_free(s);
    *loss_out = res.loss;
    return out;
}

/* "RRn.": what becomes of the first, second, ... wait of the scene dropped:
 * R reported, n not, '.' there is none. */
static void expect(const struct scene *sc, const char *want)
{
    struct zb_model *m = ru_gpt2(0); /* tied: stages 0 and 1 share a weight */
    struct ru_batch b;
    char have[64] = "";
    double loss;

    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    for (size_t i = 0; i < strlen(want); i++) {
        have[i] = ".nR"[drop_one(m, &b, sc, i + 1, &loss)];
    }
    if (strcmp(have, want) != 0) {
        printf("\n%s, device %d, %s: %s, not %s ", sc->planner, sc->device,
               sc->node, have, want);
    }
    CU_ASSERT_STRING_EQUAL(have, want);
    ru_batch_release(&b);
    zb_model_free(m);
}

/* Stage 1 reads what stage 0 computed, and back: every F of stage 1 and every B
 * of stage 0 waits once for its message. */
static void missing_wait_for_a_message_is_reported(void)
{
    struct scene forth = {"1f1b", 1, " F ", nothing, train};

    expect(&forth, "RRRR.");
    forth.planner = "gpipe";
    expect(&forth, "RRRR.");
}

static void missing_wait_for_a_gradient_is_reported(void)
{
    struct scene back = {"1f1b", 0, " B", nothing, train};

    expect(&back, "RRRR.");
    back.planner = "gpipe";
    expect(&back, "RRRR.");
}

/* Forward only nothing comes back, so that a buffer's second use is ordered by
 * its `free` event alone. The first uses have nobody to wait for. */
static void missing_wait_for_a_free_buffer_is_reported(void)
{
    struct zb_session_opts o = check_opts(SCENE_STAGES, "1f1b", SCENE_MICRO, 1);
    struct scene sc = {"1f1b", 0, "forward only", nothing, evaluate};
    struct zb_model *m = ru_gpt2(0);
    struct zb_run_plan *p = NULL;
    char want[N_ROWS + 2];

    ZBT_OK(zb_run_plan_new(m, &o, &p));
    for (int i = 0; i < N_ROWS; i++) {
        want[i] = i < p->n_send_bufs[0] + p->n_recv_bufs[0] ? 'n' : 'R';
    }
    memcpy(want + N_ROWS, ".", 2);
    CU_ASSERT_FATAL(strchr(want, 'R') != NULL);
    zb_run_plan_free(p);
    zb_model_free(m);
    expect(&sc, want);
}

/* The embedding's stage adds the head's gradient: it waits for grads_done of
 * both (its own needs no wait), then for sums_done of both. The other stage
 * reads and clears after sums_done of the first. */
static void missing_wait_for_shared_gradients_is_reported(void)
{
    const struct scene owner = {"1f1b", 0, "sum gradients", nothing, train};
    const struct scene other = {"1f1b", 1, "sum gradients", nothing, train};

    expect(&owner, "nRnn.");
    expect(&other, "nnRn.");
}

/* The embedding's stage must not clear what the other still updates from. */
static void missing_wait_for_the_update_is_reported(void)
{
    const struct scene owner = {"1f1b", 0, "zero gradients", train, train};

    expect(&owner, "nR.");
}

static enum zb_status train_and_evaluate(struct zb_session *s,
                                         const struct ru_batch *b,
                                         struct zb_step_result *res)
{
    ZB_TRY(train(s, b, res));
    return evaluate(s, b, res);
}

/* Every wait of a training step and an evaluation: dropped, it is reported, or
 * it was covered by others, and then the loss after the step is right. */

static void every_dropped_wait_is_reported_or_covered(void)
{
    static const char *const planner[] = {"zbv", "get_v_schedule", "gpipe"};
    struct zb_model *m = ru_gpt2(0);
    uint64_t stride = zbt_is_long() ? 1 : 5;
    int n[3] = {0, 0, 0};
    struct ru_batch b;

    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    for (size_t i = 0; i < ZB_COUNT_OF(planner); i++) {
        for (int device = 0; device < SCENE_STAGES; device++) {
            struct scene sc = {planner[i], device, NULL, nothing,
                               train_and_evaluate};
            enum outcome out = REPORTED;
            double want, loss;

            CU_ASSERT_EQUAL(drop_one(m, &b, &sc, 1u << 30, &want), NOT_HIT);
            for (uint64_t k = 1 + i; out != NOT_HIT; k += stride) {
                out = drop_one(m, &b, &sc, k, &loss);
                CU_ASSERT(out == REPORTED || loss == want);
                n[out]++;
            }
        }
    }
    printf("\n  %d waits dropped, %d of them reported ",
           n[NO_REPORT] + n[REPORTED], n[REPORTED]);
    CU_ASSERT(n[REPORTED] > n[NO_REPORT] / 5);
    ru_batch_release(&b);
    zb_model_free(m);
}

/* ---- a device that fails ------------------------------------------------- */

static void failing_update_names_its_stage(void)
{
    struct zb_session_opts o = check_opts(2, "zbv", 3, 1);
    struct zb_check_target target = {.k = 1, .device = 1, .node = "update"};
    struct zb_model *m = ru_llama();
    struct zb_step_result res = {.loss = 0};
    struct zb_session *s = NULL;
    struct ru_batch b;

    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    ZBT_OK(zb_session_new(m, &o, &s));
    zb_check_fail_launch(s->be, &target);
    CU_ASSERT_EQUAL(zb_train_step(s, &b.in, 1e-2, &res), ZB_EDEVICE);
    CU_ASSERT_PTR_NOT_NULL(
        strstr(zb_error_text(), "device 1, stage 1, update"));
    zb_session_free(s);
    ru_batch_release(&b);
    zb_model_free(m);
}

/* ---- memory given twice -------------------------------------------------- */

/* Train after `harm` was done to a new session: a report that contains
 * `say`. */
static void expect_report(const char *planner,
                          void (*harm)(struct zb_session *s), const char *say)
{
    struct zb_session_opts o =
        check_opts(SCENE_STAGES, planner, SCENE_MICRO, 1);
    struct zb_model *m = ru_llama();
    struct zb_step_result res;
    struct zb_session *s = NULL;
    struct ru_batch b;

    o.cut = ZB_CUT_UNIFORM; /* a stage without layers reuses nothing */
    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    ZBT_OK(zb_session_new(m, &o, &s));
    harm(s);
    CU_ASSERT_EQUAL(train(s, &b, &res), ZB_EDEVICE);
    zb_session_stop(s);
    CU_ASSERT_FATAL(zb_check_reports(s->be) > 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_check_report_text(s->be, 0), say));
    zb_session_free(s);
    ru_batch_release(&b);
    zb_model_free(m);
}

/* Microbatch 1 of stage 0 gets the memory of microbatch 0, as if that had been
 * let go after its F. */
static void share_fb(struct zb_session *s)
{
    size_t *at = s->plan->layout[0].fb;

    at[1] = at[0];
}

static void share_fw(struct zb_session *s)
{
    size_t *at = s->plan->layout[0].fw;

    at[1] = at[0];
}

/* The pool has one buffer less than it thinks. */
static void share_message(struct zb_session *s)
{
    const struct zb_layout *l = &s->plan->layout[0];

    zb_channel_give_memory(s->chan[0], 1, 1, s->worker[0].arena + l->msg[0],
                           0);
}

static void slot_reused_early_is_reported(void)
{
    expect_report("gpipe", share_fb, "unwritten");
    expect_report("gpipe", share_fw, "unwritten");
    expect_report("zbv", share_fb, "unwritten");
    expect_report("gpipe", share_message, "race");
    expect_report("1f1b", share_message, "race");
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(llama_is_in_order_and_equal),
        ZBT_CASE(tied_gpt2_with_dropout_is_in_order_and_equal),
        ZBT_CASE(missing_wait_for_a_message_is_reported),
        ZBT_CASE(missing_wait_for_a_gradient_is_reported),
        ZBT_CASE(missing_wait_for_a_free_buffer_is_reported),
        ZBT_CASE(missing_wait_for_shared_gradients_is_reported),
        ZBT_CASE(missing_wait_for_the_update_is_reported),
        ZBT_CASE(every_dropped_wait_is_reported_or_covered),
        ZBT_CASE(slot_reused_early_is_reported),
        ZBT_CASE(failing_update_names_its_stage),
    };

    return zbt_run("run_check", cases, ZB_COUNT_OF(cases));
}
