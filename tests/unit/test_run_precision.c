/* SPDX-License-Identifier: MIT
 *
 * Training with tensors in 16 bits: masters, layouts, and the scale of the loss
 * with steps that are left out.
 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/run_int.h"
#include "run_util.h"
#include "zbt.h"

#define N_STEPS 12
#define ROWS 8

struct setup {
    enum zb_dtype storage;
    int pp, dp, tp, sp;
    enum zb_seq_mode mode;
    int zero_stage, post_validation;
    double initial_scale; /* 0: the loss is not scaled */
    double min_scale;
};

struct trained {
    double loss[N_STEPS], norm[N_STEPS];
    size_t n;
    zb_real *params;
};

static struct zb_session_opts opts_of(const struct setup *u)
{
    struct zb_session_opts o = ru_opts(u->pp, 2, ROWS);

    o.n_dp = u->dp;
    o.zero_stage = u->zero_stage;
    o.post_validation = u->post_validation;
    o.optim.eps = 1e-4;
    o.optim.max_norm = 1;
    o.scaler = (struct zb_scaler_opts){
        .initial_scale = u->initial_scale,
        .min_scale = u->min_scale > 0 ? u->min_scale : 1,
        .max_scale = 0x1p60,
        .growth_factor = 2,
        .backoff_factor = 0.5,
        .growth_interval = 1000,
        .hysteresis = 1,
    };
    return o;
}

static struct zb_model *model_of(const struct setup *u)
{
    struct zb_parallel par = {.tp = u->tp > 0 ? u->tp : 1,
                              .sp = u->sp > 0 ? u->sp : 1,
                              .mode = u->mode,
                              .vocab_multiple = 1};

    return ru_llama_as(&par, u->storage);
}

static void open_session(const struct setup *u, struct zb_model **m_out,
                         struct zb_session **s_out)
{
    struct zb_session_opts o = opts_of(u);

    *m_out = model_of(u);
    ZBT_OK(zb_session_new(*m_out, &o, s_out));
}

static void close_session(struct zb_model *m, struct zb_session *s)
{
    zb_session_free(s);
    zb_model_free(m);
}

static void train(const struct setup *u, struct trained *t)
{
    struct zb_model *m;
    struct zb_session *s;
    struct ru_batch b;

    open_session(u, &m, &s);
    ru_batch_init(&b, ROWS, RU_SEQ, 3);
    for (int i = 0; i < N_STEPS; i++) {
        struct zb_step_result res = {.loss = 0};

        ZBT_OK(zb_train_step(s, &b.in, 3e-3, &res));
        t->loss[i] = res.loss;
        t->norm[i] = res.grad_norm;
    }
    t->n = ru_n_elems(m);
    t->params = calloc(t->n, sizeof(*t->params));
    ru_get_params(s, t->params);
    for (int i = 0; i < u->pp; i++) {
        CU_ASSERT_EQUAL(zb_session_planned_bytes(s, i),
                        zb_session_allocated_bytes(s, i));
    }
    ru_batch_release(&b);
    close_session(m, s);
}

static void expect_bits(const struct setup *u, const struct trained *want)
{
    struct trained t;

    train(u, &t);
    CU_ASSERT_EQUAL(memcmp(t.loss, want->loss, sizeof(t.loss)), 0);
    CU_ASSERT_EQUAL(
        memcmp(t.params, want->params, t.n * sizeof(*t.params)), 0);
    free(t.params);
}

static double worst_of(const struct trained *t, const struct trained *want)
{
    double worst = 0;

    for (int i = 0; i < N_STEPS; i++) {
        worst = fmax(worst, fabs(t->loss[i] / want->loss[i] - 1));
    }
    return worst;
}

/* ---- training ------------------------------------------------------------ */

static void training_follows_fp32(void)
{
    static const enum zb_dtype types[] = {ZB_DTYPE_BF16, ZB_DTYPE_F16};
    struct setup u = {.pp = 2, .dp = 1, .zero_stage = 1,
                      .post_validation = 1};
    struct trained real, half;

    train(&u, &real);
    for (size_t k = 0; k < ZB_COUNT_OF(types); k++) {
        double worst;

        u.storage = types[k];
        u.initial_scale = types[k] == ZB_DTYPE_F16 ? 65536 : 0;
        train(&u, &half);
        worst = worst_of(&half, &real);
        printf("\n  %s: %.4f to %.4f, fp32 to %.4f; at most %.2g apart ",
               zb_dtype_str(u.storage), half.loss[0], half.loss[N_STEPS - 1],
               real.loss[N_STEPS - 1], worst);
        CU_ASSERT(half.loss[N_STEPS - 1] < half.loss[0]);
        CU_ASSERT(worst <= 5e-3);
        free(half.params);
    }
    free(real.params);
}

static void stages_shards_and_validation_keep_bits(void)
{
    struct setup u = {.storage = ZB_DTYPE_BF16, .pp = 1, .dp = 1,
                      .zero_stage = 1, .post_validation = 1};
    struct trained one, two;

    train(&u, &one);
    u.pp = 2;
    expect_bits(&u, &one);
    u.post_validation = 0;
    expect_bits(&u, &one);
    u.dp = 2;
    train(&u, &two);
    u.zero_stage = 0;
    expect_bits(&u, &two);
    u.zero_stage = 1;
    u.post_validation = 1;
    expect_bits(&u, &two);
    free(one.params);
    free(two.params);
}

static const struct grid {
    int pp, tp, sp, dp;
    enum zb_seq_mode mode;
    const char *name;
} grids[] = {
    {2, 1, 1, 2, ZB_SEQ_WHOLE, ""},
    {2, 1, 1, 4, ZB_SEQ_WHOLE, ""},
    {2, 2, 1, 1, ZB_SEQ_WHOLE, ""},
    {2, 2, 1, 1, ZB_SEQ_SPLIT_GATHER, "split_gather"},
    {2, 1, 2, 1, ZB_SEQ_ALL_TO_ALL, "all_to_all"},
    {2, 1, 2, 1, ZB_SEQ_RING, "ring_attn"},
    {1, 2, 2, 2, ZB_SEQ_ALL_TO_ALL, "all_to_all"},
    {1, 2, 2, 2, ZB_SEQ_RING, "ring_attn"},
    {1, 2, 1, 2, ZB_SEQ_SPLIT_GATHER, "split_gather"},
};

static struct setup on_grid(const struct grid *g)
{
    return (struct setup){.pp = g->pp, .tp = g->tp, .sp = g->sp, .dp = g->dp,
                          .mode = g->mode, .zero_stage = 1,
                          .post_validation = 1};
}

/* The loss is a mean of differences of logits, each of which is stored with an
 * error of at most 2^-9 of itself; so two ways of rounding may end twice that
 * apart. What is rounded before the logits adds noise that means nothing on
 * average, and every update reads masters. */
static void ranks_agree_with_one_device(void)
{
    struct setup u = {.storage = ZB_DTYPE_REAL, .pp = 1, .dp = 1,
                      .zero_stage = 1, .post_validation = 1};
    struct trained real, one, t;
    const double most = 0x1p-8;

    train(&u, &real);
    u.storage = ZB_DTYPE_BF16;
    train(&u, &one);
    for (size_t k = 0; k < ZB_COUNT_OF(grids); k++) {
        const struct grid *g = &grids[k];
        double from_one, from_real;

        u = on_grid(g);
        u.storage = ZB_DTYPE_BF16;
        train(&u, &t);
        from_one = worst_of(&t, &one);
        from_real = worst_of(&t, &real);
        printf("\n  (%d,%d,%d,%d) %s: %.2g from one device, %.2g from fp32 ",
               g->pp, g->tp, g->sp, g->dp, g->name, from_one, from_real);
        CU_ASSERT(from_one <= most);
        CU_ASSERT(from_real <= most);
        CU_ASSERT(t.loss[N_STEPS - 1] < 0.95 * t.loss[0]);
        free(t.params);
    }
    free(real.params);
    free(one.params);
}

/* ---- masters -------------------------------------------------------------- */

/* What is set comes back unrounded, from the masters that ranks have parts of;
 * without a step nothing rounds them. */
static void masters_keep_what_was_set(void)
{
    struct setup u = {.storage = ZB_DTYPE_BF16, .pp = 2, .dp = 2,
                      .zero_stage = 1, .post_validation = 1};
    struct zb_model *m;
    struct zb_session *s;
    struct zb_param_info info;
    zb_real *x, *y;
    int64_t n;

    open_session(&u, &m, &s);
    info = zb_graph_param(zb_model_graph(m), 1);
    n = zb_shape_elems(&info.whole);
    x = calloc((size_t)n, sizeof(*x));
    y = calloc((size_t)n, sizeof(*y));
    for (int64_t i = 0; i < n; i++) {
        x[i] = (zb_real)(0.1 + 1e-5 * (double)i);
    }
    ZBT_OK(zb_session_set_param(s, 1, x));
    ZBT_OK(zb_session_get_param(s, 1, y));
    CU_ASSERT_EQUAL(memcmp(x, y, (size_t)n * sizeof(*x)), 0);
    free(x);
    free(y);
    close_session(m, s);
}

/* Start values are the same numbers, rounded for the model only. */
static void start_values_do_not_depend_on_storage(void)
{
    struct setup u = {.pp = 1, .dp = 1, .zero_stage = 1};
    zb_real *start[2];
    size_t n = 0;

    for (int k = 0; k < 2; k++) {
        struct zb_model *m;
        struct zb_session *s;

        u.storage = k == 0 ? ZB_DTYPE_REAL : ZB_DTYPE_F16;
        u.dp = k + 1;
        open_session(&u, &m, &s);
        n = ru_n_elems(m);
        start[k] = calloc(n, sizeof(*start[k]));
        ru_get_params(s, start[k]);
        close_session(m, s);
    }
    CU_ASSERT_EQUAL(memcmp(start[0], start[1], n * sizeof(*start[0])), 0);
    free(start[0]);
    free(start[1]);
}

/* ---- steps that are left out ---------------------------------------------- */

/* The last device's first gradient becomes infinite. */
static enum zb_status spoil(struct zb_worker *w, void *arg)
{
    const struct zb_run_plan *p = w->s->plan;
    zb_real inf = INFINITY;

    (void)arg;
    for (int u = 0; w->device == p->n_devices - 1 && u < p->n_uses; u++) {
        if (w->grad[u] != NULL) {
            ZB_TRY(w->ops->copy_in(w->stream, w->grad[u], &inf, sizeof(inf),
                                   "spoil"));
            return w->ops->stream_sync(w->stream);
        }
    }
    return ZB_OK;
}

/* Four steps, and before the third one that is spoiled. */
static void check_skip(const struct setup *u, int spoils, zb_real *params)
{
    struct zb_model *m;
    struct zb_session *s;
    struct ru_batch b;
    size_t n;

    open_session(u, &m, &s);
    ru_batch_init(&b, ROWS, RU_SEQ, 3);
    n = ru_n_elems(m);
    for (int i = 0; i < 4; i++) {
        struct zb_step_result res = {.loss = 0};

        if (i == 2 && spoils) {
            zb_real *before = calloc(2 * n, sizeof(*before));

            ru_get_params(s, before);
            ZBT_OK(zb_zero_grad(s));
            ZBT_OK(zb_forward_backward_step(s, &b.in, 0, &res));
            ZBT_OK(zb_session_each(s, spoil, NULL));
            ZBT_OK(zb_optimizer_step(s, 3e-3, &res));
            CU_ASSERT_TRUE(res.is_skipped);
            CU_ASSERT_EQUAL(res.scale, u->initial_scale);
            ru_get_params(s, before + n);
            CU_ASSERT_EQUAL(memcmp(before, before + n, n * sizeof(*before)),
                            0);
            free(before);
        }
        ZBT_OK(zb_train_step(s, &b.in, 3e-3, &res));
        CU_ASSERT_FALSE(res.is_skipped);
        CU_ASSERT_EQUAL(res.scale, i >= 2 && spoils ? u->initial_scale / 2
                                                    : u->initial_scale);
    }
    ru_get_params(s, params);
    ru_batch_release(&b);
    close_session(m, s);
}

/* In zb_real a power of two as a scale changes no bit, so what follows shows
 * whether moments and counts were left alone. */
static void skipped_step_leaves_no_trace(void)
{
    static const struct grid more[] = {
        {1, 1, 1, 1, ZB_SEQ_WHOLE, ""},
        {2, 1, 1, 1, ZB_SEQ_WHOLE, ""},
        {1, 1, 1, 2, ZB_SEQ_WHOLE, ""},
        {2, 2, 2, 1, ZB_SEQ_RING, ""},
    };
    const size_t n_more = ZB_COUNT_OF(more);

    for (size_t k = 0; k < n_more + ZB_COUNT_OF(grids); k++) {
        for (int post = 0; post < 2; post++) {
            struct setup u =
                on_grid(k < n_more ? &more[k] : &grids[k - n_more]);
            struct zb_model *m = model_of(&u);
            size_t n = ru_n_elems(m);
            zb_real *a = calloc(2 * n, sizeof(*a));

            u.post_validation = post;
            u.initial_scale = 65536;
            check_skip(&u, 1, a);
            check_skip(&u, 0, a + n);
            CU_ASSERT_EQUAL(memcmp(a, a + n, n * sizeof(*a)), 0);
            u.storage = ZB_DTYPE_F16;
            check_skip(&u, 1, a);
            free(a);
            zb_model_free(m);
        }
    }
}

/* Far too large at first: steps are left out until gradients fit. */
static void scale_falls_until_gradients_fit(void)
{
    struct setup u = {.storage = ZB_DTYPE_F16, .pp = 2, .dp = 2,
                      .zero_stage = 1, .post_validation = 1,
                      .initial_scale = 0x1p30};
    struct zb_model *m;
    struct zb_session *s;
    struct ru_batch b;
    double first = 0, last = 0;
    int n_skipped = 0;

    open_session(&u, &m, &s);
    ru_batch_init(&b, ROWS, RU_SEQ, 3);
    for (int i = 0; i < 40; i++) {
        struct zb_step_result res = {.loss = 0};

        ZBT_OK(zb_train_step(s, &b.in, 3e-3, &res));
        CU_ASSERT_EQUAL(res.scale, ldexp(1, 30 - n_skipped));
        CU_ASSERT_EQUAL(res.is_skipped, !isfinite(res.grad_norm));
        n_skipped += res.is_skipped;
        first = i == 0 ? res.loss : first;
        last = res.loss;
    }
    printf("\n  %d steps left out, loss %.3f to %.3f ", n_skipped, first,
           last);
    CU_ASSERT(n_skipped > 5 && n_skipped < 25);
    CU_ASSERT(last < first - 0.5);
    ru_batch_release(&b);
    close_session(m, s);
}

static void overflow_at_least_scale_ends_the_run(void)
{
    struct setup u = {.storage = ZB_DTYPE_F16, .pp = 2, .dp = 1,
                      .zero_stage = 1, .post_validation = 1,
                      .initial_scale = 0x1p30, .min_scale = 0x1p29};
    struct zb_model *m;
    struct zb_session *s;
    struct ru_batch b;
    struct zb_step_result res = {.loss = 0};

    open_session(&u, &m, &s);
    ru_batch_init(&b, ROWS, RU_SEQ, 3);
    ZBT_OK(zb_train_step(s, &b.in, 3e-3, &res));
    CU_ASSERT_TRUE(res.is_skipped);
    CU_ASSERT_EQUAL(zb_train_step(s, &b.in, 3e-3, &res), ZB_EDEVICE);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "min_scale"));
    ru_batch_release(&b);
    close_session(m, s);
}

/* Gradients and outputs are given as the numbers they stand for. */
static void gradients_come_without_scale(void)
{
    struct setup u = {.storage = ZB_DTYPE_F16, .pp = 1, .dp = 1,
                      .zero_stage = 1, .initial_scale = 1};
    zb_real *grad[2];
    size_t n = 0;

    for (int k = 0; k < 2; k++) {
        struct zb_model *m;
        struct zb_session *s;
        struct ru_batch b;
        struct zb_step_result res = {.loss = 0};

        u.initial_scale = k == 0 ? 256 : 4096;
        open_session(&u, &m, &s);
        ru_batch_init(&b, ROWS, RU_SEQ, 3);
        n = ru_n_elems(m);
        grad[k] = calloc(n, sizeof(*grad[k]));
        ZBT_OK(zb_forward_backward_step(s, &b.in, 0, &res));
        ru_get_grads(s, grad[k]);
        ru_batch_release(&b);
        close_session(m, s);
    }
    CU_ASSERT(ru_error(grad[0], grad[1], n) <= 1e-2);
    free(grad[0]);
    free(grad[1]);
}

static void bad_scaler_is_refused_by_name(void)
{
    struct setup u = {.storage = ZB_DTYPE_F16, .pp = 1, .dp = 1,
                      .initial_scale = 4, .min_scale = 8};
    struct zb_session_opts o = opts_of(&u);
    struct zb_model *m = model_of(&u);
    struct zb_session *s;

    CU_ASSERT_EQUAL(zb_session_new(m, &o, &s), ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "initial_scale"));
    zb_model_free(m);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(training_follows_fp32),
        ZBT_CASE(stages_shards_and_validation_keep_bits),
        ZBT_CASE(ranks_agree_with_one_device),
        ZBT_CASE(masters_keep_what_was_set),
        ZBT_CASE(start_values_do_not_depend_on_storage),
        ZBT_CASE(skipped_step_leaves_no_trace),
        ZBT_CASE(scale_falls_until_gradients_fit),
        ZBT_CASE(overflow_at_least_scale_ends_the_run),
        ZBT_CASE(gradients_come_without_scale),
        ZBT_CASE(bad_scaler_is_refused_by_name),
    };

    return zbt_run("run_precision", cases, ZB_COUNT_OF(cases));
}
