/* SPDX-License-Identifier: MIT
 *
 * Forward-only runs, returned outputs, and sizes that change from step to
 * step. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "run_util.h"
#include "zb/mem.h"
#include "zbt.h"

#define N_ROWS 11
#define N_MICRO 4
#define VOCAB 64
#define N_LOGITS ((size_t)N_ROWS * RU_SEQ * VOCAB)
#define ROOM (N_MICRO * N_ROWS) /* a microbatch may have all rows */

static const char *const planner[] = {"zbv", "1f1b", "gpipe",
                                      "interleaved"};

static struct zb_session *new_session(const struct zb_model *m, int n_stages,
                                      const char *name)
{
    struct zb_session_opts o = ru_opts(n_stages, N_MICRO, ROOM);
    struct zb_session *s = NULL;

    o.planner = name;
    ZBT_OK(zb_session_new(m, &o, &s));
    return s;
}

/* ---- any number of microbatches ------------------------------------------ */

/* For each number the loss has the bits of one stage, and the value of one
 * microbatch. */
static void eval_of_any_number_of_microbatches_agrees(void)
{
    struct zb_model *m = ru_gpt2(0.1); /* evaluating knows no dropout */
    struct zb_step_result res = {.loss = 0};
    double want[10];
    struct ru_batch b;

    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    for (int p = 1; p <= 4; p *= 2) {
        for (size_t k = 0; k < ZB_COUNT_OF(planner); k++) {
            struct zb_session *s = new_session(m, p, planner[k]);

            for (int n = 1; n <= 9; n++) {
                ZBT_OK(zb_run_forward_only(s, &b.in, n, ZB_RETURN_LOSS, &res));
                want[n] = p == 1 && k == 0 ? res.loss : want[n];
                CU_ASSERT_EQUAL(res.loss, want[n]);
                CU_ASSERT_DOUBLE_EQUAL(res.loss, want[1], 1e-6 * want[1]);
            }
            /* 0 takes the session's number. */
            ZBT_OK(zb_run_forward_only(s, &b.in, 0, ZB_RETURN_LOSS, &res));
            CU_ASSERT_EQUAL(res.loss, want[N_MICRO]);
            ZBT_OK(zb_execute_pipeline(s, &b.in, 0, ZB_RETURN_LOSS, &res));
            CU_ASSERT_EQUAL(res.loss, want[N_MICRO]);
            zb_session_free(s);
        }
    }
    ru_batch_release(&b);
    zb_model_free(m);
}

/* ---- among training steps ------------------------------------------------ */

struct trained {
    double loss[3], norm[3];
    zb_real *params;
};

static void eval_some(struct zb_session *s, const struct ru_batch *b, int n)
{
    struct zb_step_result res = {.loss = 0};

    for (int i = 0; i < n; i++) {
        ZBT_OK(zb_run_forward_only(s, &b->in, 1 + (n + 4 * i) % 9,
                                   ZB_RETURN_LOSS, &res));
        CU_ASSERT(isfinite(res.loss));
    }
}

/* Three steps, with evaluations before, between and in the middle of them. */
static void train(struct zb_session *s, const struct ru_batch *b,
                  const struct ru_batch *other, int n_evals, struct trained *t)
{
    struct zb_step_result res = {.loss = 0};

    for (int i = 0; i < 3; i++) {
        eval_some(s, other, n_evals);
        ZBT_OK(zb_zero_grad(s));
        ZBT_OK(zb_forward_backward_step(s, &b->in, ZB_RETURN_LOSS, &res));
        t->loss[i] = res.loss;
        eval_some(s, other, n_evals);
        ZBT_OK(zb_optimizer_step(s, 1e-2, &res));
        t->norm[i] = res.grad_norm;
    }
    ru_get_params(s, t->params);
}

static void evaluating_leaves_training_alone(void)
{
    struct zb_model *m = ru_gpt2(0.1);
    size_t bytes = ru_n_elems(m) * sizeof(zb_real);
    struct trained t[2] = {{.params = zb_alloc(bytes)},
                           {.params = zb_alloc(bytes)}};
    struct ru_batch b, other;

    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    ru_batch_init(&other, 10, 7, 2);
    for (size_t k = 0; k < ZB_COUNT_OF(planner); k++) {
        for (int i = 0; i < 2; i++) {
            struct zb_session *s = new_session(m, 2, planner[k]);

            train(s, &b, &other, 3 * i, &t[i]);
            zb_session_free(s);
        }
        CU_ASSERT_EQUAL(memcmp(t[0].loss, t[1].loss, sizeof(t[0].loss)), 0);
        CU_ASSERT_EQUAL(memcmp(t[0].norm, t[1].norm, sizeof(t[0].norm)), 0);
        CU_ASSERT_EQUAL(memcmp(t[0].params, t[1].params, bytes), 0);
    }
    for (int i = 0; i < 2; i++) {
        zb_free(t[i].params);
    }
    ru_batch_release(&b);
    ru_batch_release(&other);
    zb_model_free(m);
}

/* ---- outputs ------------------------------------------------------------- */

/* The mean negative log-probability of the labels, from the logits. */
static double loss_from(const zb_real *logits, const struct ru_batch *b)
{
    double sum = 0;
    int64_t n = 0;

    for (int64_t i = 0; i < b->n_rows * b->seq_len; i++) {
        const zb_real *row = logits + i * VOCAB;
        double z = 0;

        if (b->labels[i] == -100) {
            continue;
        }
        for (int k = 0; k < VOCAB; k++) {
            z += exp((double)row[k]);
        }
        sum += log(z) - (double)row[b->labels[i]];
        n++;
    }
    return sum / (double)n;
}

static void outputs_are_in_batch_order_on_every_layout(void)
{
    struct zb_model *m = ru_llama();
    zb_real *want = zb_alloc(N_LOGITS * sizeof(zb_real));
    zb_real *have = zb_alloc(N_LOGITS * sizeof(zb_real));
    zb_real *const output[] = {have};
    struct zb_step_result res = {.output = output};
    int flags = ZB_RETURN_LOSS | ZB_RETURN_OUTPUTS;
    struct ru_batch b;

    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    for (int p = 1; p <= 4; p *= 2) {
        for (size_t k = 0; k < ZB_COUNT_OF(planner); k++) {
            struct zb_session *s = new_session(m, p, planner[k]);

            memset(have, 0xff, N_LOGITS * sizeof(zb_real));
            ZBT_OK(zb_run_forward_only(s, &b.in, 0, flags, &res));
            if (p == 1 && k == 0) {
                memcpy(want, have, N_LOGITS * sizeof(zb_real));
            }
            CU_ASSERT_EQUAL(memcmp(have, want, N_LOGITS * sizeof(zb_real)), 0);
            CU_ASSERT_DOUBLE_EQUAL(loss_from(have, &b), res.loss, 1e-5);
            memset(have, 0xff, N_LOGITS * sizeof(zb_real));
            ZBT_OK(zb_forward_backward_step(s, &b.in, flags, &res));
            CU_ASSERT_EQUAL(memcmp(have, want, N_LOGITS * sizeof(zb_real)), 0);
            memset(have, 0xff, N_LOGITS * sizeof(zb_real));
            ZBT_OK(zb_run_forward_only(s, &b.in, 7, flags, &res));
            CU_ASSERT(ru_error(have, want, N_LOGITS) < 1e-6);
            zb_session_free(s);
        }
    }
    ru_batch_release(&b);
    zb_free(want);
    zb_free(have);
    zb_model_free(m);
}

static void outputs_without_room_are_refused(void)
{
    struct zb_model *m = ru_llama();
    struct zb_session *s = new_session(m, 2, "zbv");
    struct zb_step_result res = {.output = NULL};
    struct ru_batch b;

    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    CU_ASSERT_EQUAL(
        zb_run_forward_only(s, &b.in, 0, ZB_RETURN_OUTPUTS, &res), ZB_EINVAL);
    ZBT_OK(zb_run_forward_only(s, &b.in, 0, ZB_RETURN_LOSS, &res));
    zb_session_free(s);
    ru_batch_release(&b);
    zb_model_free(m);
}

/* ---- changing sizes ------------------------------------------------------ */

static const int64_t length[] = {12, 5, 11, 12};
#define N_LENGTHS ((int)ZB_COUNT_OF(length))

/* Train over batches of these lengths and rows; the stats of the channels. */
static struct zb_session_stats train_lengths(const struct zb_model *m, int p,
                                             const char *name, int has_cache,
                                             int64_t n_rows, double *loss)
{
    struct zb_session_opts o = ru_opts(p, N_MICRO, ROOM);
    struct zb_step_result res = {.loss = 0};
    struct zb_session_stats st;
    struct zb_session *s = NULL;

    o.planner = name;
    o.has_metadata_cache = has_cache;
    ZBT_OK(zb_session_new(m, &o, &s));
    for (int i = 0; i < N_LENGTHS; i++) {
        struct ru_batch b;

        ru_batch_init(&b, n_rows, length[i], 3);
        ZBT_OK(zb_train_step(s, &b.in, 1e-2, &res));
        loss[i] = res.loss;
        ru_batch_release(&b);
    }
    st = zb_session_stats(s);
    zb_session_free(s);
    return st;
}

static void changing_lengths_equal_one_stage(void)
{
    struct zb_model *m = ru_llama();

    for (int64_t rows = 8; rows <= 11; rows += 3) {
        double want[N_LENGTHS];

        train_lengths(m, 1, "1f1b", 1, rows, want);
        for (size_t k = 0; k < 4 * ZB_COUNT_OF(planner); k++) {
            double loss[N_LENGTHS];

            train_lengths(m, k % 2 ? 2 : 4, planner[k / 4], k / 2 % 2, rows,
                          loss);
            CU_ASSERT_EQUAL(memcmp(loss, want, sizeof(want)), 0);
        }
    }
    zb_model_free(m);
}

/* 4 microbatches of 2 rows: sizes change with the length only, each channel
 * writes each of the four once. */
static void metadata_is_written_when_sizes_change(void)
{
    struct zb_model *m = ru_llama();

    for (size_t k = 0; k < ZB_COUNT_OF(planner); k++) {
        int is_two = k == 0 || k == 3; /* chunks on a stage */
        int n_virtual = is_two ? 8 : 4;
        uint64_t n_channels = 2 * ((uint64_t)n_virtual - 1);
        uint64_t n_messages = n_channels * N_MICRO * N_LENGTHS;
        double loss[N_LENGTHS];
        struct zb_session_stats st;

        st = train_lengths(m, 4, planner[k], 1, 8, loss);
        CU_ASSERT_EQUAL(st.n_messages, n_messages);
        CU_ASSERT_EQUAL(st.n_meta_writes, n_channels * N_LENGTHS);
        CU_ASSERT_EQUAL(st.n_meta_reads, st.n_meta_writes);
        st = train_lengths(m, 4, planner[k], 0, 8, loss);
        CU_ASSERT_EQUAL(st.n_messages, n_messages);
        CU_ASSERT_EQUAL(st.n_meta_writes, n_messages);
        CU_ASSERT_EQUAL(st.n_meta_reads, n_messages);
    }
    zb_model_free(m);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(eval_of_any_number_of_microbatches_agrees),
        ZBT_CASE(evaluating_leaves_training_alone),
        ZBT_CASE(outputs_are_in_batch_order_on_every_layout),
        ZBT_CASE(outputs_without_room_are_refused),
        ZBT_CASE(changing_lengths_equal_one_stage),
        ZBT_CASE(metadata_is_written_when_sizes_change),
    };

    return zbt_run("run_eval", cases, ZB_COUNT_OF(cases));
}
