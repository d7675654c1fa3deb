/* SPDX-License-Identifier: MIT
 *
 * What the loss and the gradients are the sum of: ragged microbatches, targets
 * that do not count, averages, accumulation. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "run/run_int.h"
#include "run_util.h"
#include "zb/mem.h"
#include "zbt.h"

#define N_ROWS 11

static int64_t count_valid(const struct ru_batch *b)
{
    int64_t n = 0;

    for (int64_t i = 0; i < b->n_rows * b->seq_len; i++) {
        n += b->labels[i] != -100;
    }
    return n;
}

static zb_real *new_reals(size_t n)
{
    zb_real *x = zb_alloc_array(n, sizeof(*x));

    CU_ASSERT_PTR_NOT_NULL_FATAL(x);
    return x;
}

/* Loss and gradients of one step of a new session. */
static struct zb_step_result one_step(const struct zb_model *m,
                                      const struct zb_session_opts *o,
                                      const struct ru_batch *b, zb_real *grads)
{
    struct zb_step_result res = {.loss = NAN};
    struct zb_session *s = NULL;

    ZBT_OK(zb_session_new(m, o, &s));
    ZBT_OK(zb_forward_backward_step(s, &b->in, ZB_RETURN_LOSS, &res));
    ru_get_grads(s, grads);
    zb_session_free(s);
    return res;
}

/* ---- per token ----------------------------------------------------------- */

static void ragged_microbatches_equal_full_batch(void)
{
    static const int micro[] = {2, 3, 5, 8, 11};
    struct zb_model *m = ru_gpt2(0);
    size_t n = ru_n_elems(m);
    zb_real *full = new_reals(n), *grads = new_reals(n);
    struct zb_session_opts o = ru_opts(2, 1, N_ROWS);
    struct zb_step_result want, res;
    struct ru_batch b;

    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    want = one_step(m, &o, &b, full);
    CU_ASSERT_EQUAL(want.n_counted[0], count_valid(&b));
    for (size_t i = 0; i < ZB_COUNT_OF(micro); i++) {
        o = ru_opts(2, micro[i], N_ROWS);
        res = one_step(m, &o, &b, grads);
        CU_ASSERT_EQUAL(res.n_counted[0], want.n_counted[0]);
        CU_ASSERT_EQUAL(res.loss, res.loss_sum[0] / (double)res.n_counted[0]);
        CU_ASSERT_DOUBLE_EQUAL(res.loss, want.loss, 1e-6 * want.loss);
        CU_ASSERT(ru_error(grads, full, n) < 1e-6);
    }
    ru_batch_release(&b);
    zb_free(grads);
    zb_free(full);
    zb_model_free(m);
}

/* ---- per microbatch ------------------------------------------------------ */

/* The mean of one microbatch, run alone. */
static double mean_of_part(struct zb_session *s, const struct ru_batch *b,
                           int n_micro, int i)
{
    struct zb_step_result res = {.loss = NAN};
    struct ru_batch part;
    int64_t first, rows = zb_micro_rows(b->n_rows, n_micro, i, &first);

    ru_rows(b, first, rows, &part);
    ZBT_OK(zb_run_forward_only(s, &part.in, 1, ZB_RETURN_LOSS, &res));
    return res.loss;
}

static void microbatch_average_is_mean_of_means(void)
{
    static const int micro[] = {1, 4, 5};
    struct zb_session_opts o = ru_opts(1, 1, N_ROWS);
    struct zb_model *m = ru_llama();
    size_t n = ru_n_elems(m);
    zb_real *grads = new_reals(n);
    struct zb_session *alone = NULL;
    struct ru_batch b;

    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    ZBT_OK(zb_session_new(m, &o, &alone));
    for (size_t k = 0; k < ZB_COUNT_OF(micro); k++) {
        struct zb_step_result res;
        double mean = 0;

        for (int i = 0; i < micro[k]; i++) {
            mean += mean_of_part(alone, &b, micro[k], i) / micro[k];
        }
        o = ru_opts(2, micro[k], N_ROWS);
        o.loss_average = ZB_LOSS_PER_MICROBATCH;
        res = one_step(m, &o, &b, grads);
        CU_ASSERT_DOUBLE_EQUAL(res.loss, mean, 1e-6 * mean);
    }
    zb_session_free(alone);
    ru_batch_release(&b);
    zb_free(grads);
    zb_model_free(m);
}

/* With as many targets in each microbatch both averages are the same thing. */
static void averages_agree_on_equal_microbatches(void)
{
    struct zb_model *m = ru_llama();
    size_t n = ru_n_elems(m);
    zb_real *grads[2] = {new_reals(n), new_reals(n)};
    struct zb_step_result res[2];
    struct ru_batch b;

    ru_batch_init(&b, 8, RU_SEQ, 1); /* rows 0..3 lose 0..3 targets, as 4..7 */
    for (int i = 0; i < 2; i++) {
        struct zb_session_opts o = ru_opts(2, 2, 8);

        o.loss_average = i ? ZB_LOSS_PER_MICROBATCH : ZB_LOSS_PER_TOKEN;
        res[i] = one_step(m, &o, &b, grads[i]);
    }
    CU_ASSERT_DOUBLE_EQUAL(res[0].loss, res[1].loss, 1e-12);
    CU_ASSERT(ru_error(grads[1], grads[0], n) < 1e-6);
    ru_batch_release(&b);
    zb_free(grads[0]);
    zb_free(grads[1]);
    zb_model_free(m);
}

/* ---- targets that do not count ------------------------------------------- */

static void ignore_rows(struct ru_batch *b, int64_t first, int64_t n)
{
    for (int64_t i = first * b->seq_len; i < (first + n) * b->seq_len; i++) {
        b->labels[i] = -100;
    }
}

/* Rows 0 and 1, one microbatch of four, count nothing: loss and gradient are
 * those of the batch without them. */
static void microbatch_without_targets_adds_nothing(void)
{
    struct zb_model *m = ru_llama();
    size_t n = ru_n_elems(m);
    zb_real *want = new_reals(n), *have = new_reals(n);
    struct zb_session_opts o = ru_opts(1, 1, 6);
    struct zb_step_result full, res;
    struct ru_batch b, rest;

    ru_batch_init(&b, 8, RU_SEQ, 1);
    ignore_rows(&b, 0, 2);
    ru_rows(&b, 2, 6, &rest);
    full = one_step(m, &o, &rest, want);
    o = ru_opts(2, 4, 8);
    res = one_step(m, &o, &b, have);
    CU_ASSERT_EQUAL(res.n_counted[0], full.n_counted[0]);
    CU_ASSERT_DOUBLE_EQUAL(res.loss, full.loss, 1e-6 * full.loss);
    CU_ASSERT(ru_error(have, want, n) < 1e-6);
    /* As a mean of means it counts as a loss of 0. */
    o.loss_average = ZB_LOSS_PER_MICROBATCH;
    res = one_step(m, &o, &b, have);
    CU_ASSERT(isfinite(res.loss));
    CU_ASSERT(res.loss < 0.8 * full.loss);
    ru_batch_release(&b);
    zb_free(have);
    zb_free(want);
    zb_model_free(m);
}

static void batch_without_targets_has_no_gradient(void)
{
    for (int avg = 0; avg < 2; avg++) {
        struct zb_session_opts o = ru_opts(2, 4, 8);
        struct zb_model *m = ru_gpt2(0);
        size_t n = ru_n_elems(m);
        zb_real *have = new_reals(n), *want = new_reals(n);
        struct zb_step_result res = {.loss = NAN, .grad_norm = NAN};
        struct zb_session *s = NULL;
        struct ru_batch b;

        o.loss_average = avg ? ZB_LOSS_PER_MICROBATCH : ZB_LOSS_PER_TOKEN;
        o.optim.weight_decay = 0;
        ru_batch_init(&b, 8, RU_SEQ, 1);
        ignore_rows(&b, 0, 8);
        ZBT_OK(zb_session_new(m, &o, &s));
        ru_get_params(s, want);
        ZBT_OK(zb_train_step(s, &b.in, 1e-2, &res));
        CU_ASSERT_EQUAL(res.loss, 0);
        CU_ASSERT_EQUAL(res.n_counted[0], 0);
        CU_ASSERT_EQUAL(res.grad_norm, 0);
        ru_get_params(s, have);
        CU_ASSERT_EQUAL(memcmp(have, want, n * sizeof(zb_real)), 0);
        ZBT_OK(zb_run_forward_only(s, &b.in, 5, ZB_RETURN_LOSS, &res));
        CU_ASSERT_EQUAL(res.loss, 0);
        zb_session_free(s);
        ru_batch_release(&b);
        zb_free(have);
        zb_free(want);
        zb_model_free(m);
    }
}

/* ---- gradients stay and add up ------------------------------------------- */

/* gpt2's head is tied: summing its uses must happen once. */
static void reading_gradients_changes_nothing(void)
{
    struct zb_session_opts o = ru_opts(2, 4, N_ROWS);
    struct zb_model *m = ru_gpt2(0);
    size_t n = ru_n_elems(m);
    zb_real *g[2] = {new_reals(n), new_reals(n)};
    zb_real *after[2] = {new_reals(n), new_reals(n)};
    struct zb_step_result res[2];
    struct ru_batch b;

    o.planner = "1f1b";
    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    for (int i = 0; i < 2; i++) {
        struct zb_session *s = NULL;

        ZBT_OK(zb_session_new(m, &o, &s));
        ZBT_OK(zb_forward_backward_step(s, &b.in, 0, &res[i]));
        for (int k = 0; k < 2 * i; k++) {
            ru_get_grads(s, g[k]);
        }
        ZBT_OK(zb_optimizer_step(s, 1e-2, &res[i]));
        ru_get_params(s, after[i]);
        zb_session_free(s);
    }
    CU_ASSERT_EQUAL(memcmp(g[0], g[1], n * sizeof(zb_real)), 0);
    CU_ASSERT_EQUAL(memcmp(after[0], after[1], n * sizeof(zb_real)), 0);
    CU_ASSERT_EQUAL(res[0].grad_norm, res[1].grad_norm);
    ru_batch_release(&b);
    for (int i = 0; i < 2; i++) {
        zb_free(g[i]);
        zb_free(after[i]);
    }
    zb_model_free(m);
}

/* Two steps without zero_grad in between add their gradients, also when
 * somebody looks at them in the middle. */
static void gradients_of_two_steps_add_up(void)
{
    struct zb_session_opts o = ru_opts(2, 3, N_ROWS);
    struct zb_model *m = ru_gpt2(0);
    size_t n = ru_n_elems(m);
    zb_real *one = new_reals(n), *two = new_reals(n), *sum = new_reals(n);
    struct zb_step_result res = {.loss = 0};
    struct zb_session *s = NULL;
    struct ru_batch b[2];

    o.planner = "1f1b";
    for (int i = 0; i < 2; i++) {
        ru_batch_init(&b[i], N_ROWS, RU_SEQ, 1 + (unsigned)i);
    }
    one_step(m, &o, &b[0], one);
    one_step(m, &o, &b[1], two);
    for (size_t i = 0; i < n; i++) {
        two[i] += one[i];
    }
    for (int look = 0; look < 2; look++) {
        ZBT_OK(zb_session_new(m, &o, &s));
        ZBT_OK(zb_forward_backward_step(s, &b[0].in, 0, &res));
        if (look) {
            ru_get_grads(s, sum);
            CU_ASSERT(ru_error(sum, one, n) < 1e-6);
        }
        ZBT_OK(zb_forward_backward_step(s, &b[1].in, 0, &res));
        ru_get_grads(s, sum);
        CU_ASSERT(ru_error(sum, two, n) < 1e-6);
        ZBT_OK(zb_zero_grad(s));
        ZBT_OK(zb_forward_backward_step(s, &b[0].in, 0, &res));
        ru_get_grads(s, sum);
        CU_ASSERT_EQUAL(memcmp(sum, one, n * sizeof(zb_real)), 0);
        zb_session_free(s);
    }
    for (int i = 0; i < 2; i++) {
        ru_batch_release(&b[i]);
    }
    zb_free(one);
    zb_free(two);
    zb_free(sum);
    zb_model_free(m);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(ragged_microbatches_equal_full_batch),
        ZBT_CASE(microbatch_average_is_mean_of_means),
        ZBT_CASE(averages_agree_on_equal_microbatches),
        ZBT_CASE(microbatch_without_targets_adds_nothing),
        ZBT_CASE(batch_without_targets_has_no_gradient),
        ZBT_CASE(reading_gradients_changes_nothing),
        ZBT_CASE(gradients_of_two_steps_add_up),
    };

    return zbt_run("run_loss", cases, ZB_COUNT_OF(cases));
}
