/* SPDX-License-Identifier: MIT
 *
 * Elementwise kernels, losses, sums, random numbers and optimizers, of every
 * backend, against their formulas in double.
 */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kern/philox.h"
#include "ops_rig.h"

static const char *backend;

static const int64_t lengths[] = {1, 3, 7, 13, 56, 1000};

#define LARGE 200003 /* for three threads */

/* ---- activations -------------------------------------------------------- */

static double act_ref(enum zb_act act, double x)
{
    double u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);

    switch (act) {
    case ZB_ACT_RELU:
        return x > 0 ? x : 0;
    case ZB_ACT_SILU:
        return x / (1 + exp(-x));
    case ZB_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(u));
    case ZB_ACT_TANH:
        return tanh(x);
    default:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    }
}

/* By a difference of the formula, which is exact enough for 1e-9. */
static double act_ref_d(enum zb_act act, double x)
{
    double h = 1e-4;

    if (act == ZB_ACT_RELU) {
        return x > 0;
    }
    return (8 * (act_ref(act, x + h) - act_ref(act, x - h)) -
            (act_ref(act, x + 2 * h) - act_ref(act, x - 2 * h))) /
           (12 * h);
}

static void activations_give_published_values(void)
{
    /* at x = -1, -0.5, 0.5, 2 */
    static const struct {
        enum zb_act act;
        double want[4];
    } table[] = {
        {ZB_ACT_GELU_ERF, {-0.15865525, -0.15426877, 0.34573123, 1.95449974}},
        {ZB_ACT_GELU_TANH, {-0.15880801, -0.15428599, 0.34571401, 1.95459769}},
        {ZB_ACT_SILU, {-0.26894142, -0.18877033, 0.31122967, 1.76159416}},
        {ZB_ACT_RELU, {0, 0, 0.5, 2}},
        {ZB_ACT_TANH, {-0.76159416, -0.46211716, 0.46211716, 0.96402758}},
    };
    static const double x[4] = {-1, -0.5, 0.5, 2};

    for (size_t i = 0; i < ZB_COUNT_OF(table); i++) {
        struct zb_k_act_fwd p = {.n = 4, .act = table[i].act};

        ops_open(backend, 1);
        p.x = ops_reals(4, x);
        p.y = ops_blank(4);
        ops_run(ZB_K_act_fwd, &p, OPS_OUT(p.y), OPS_IN(p.x));
        ops_expect("act", p.y, 4, table[i].want, 2e-8 + OPS_TOL(1e-7, 0));
        ops_close();
    }
}

static void check_act(int64_t n, enum zb_act act)
{
    struct zbt_rng rng = {(unsigned long long)n};
    double *x = ops_random(&rng, n, -6, 6), *dy = ops_random(&rng, n, -1, 1);
    double *y = ops_zeros(n), *dx = ops_zeros(n);
    struct zb_k_act_fwd f = {.n = n, .act = act};
    struct zb_k_act_bwd b = {.n = n, .act = act};

    b.x = f.x = ops_reals(n, x);
    f.y = ops_blank(n);
    b.dy = ops_reals(n, dy);
    b.dx = ops_blank(n);
    ops_run(ZB_K_act_fwd, &f, OPS_OUT(f.y), OPS_IN(f.x));
    ops_run(ZB_K_act_bwd, &b, OPS_OUT(b.dx), OPS_IN(b.x, b.dy));
    for (int64_t i = 0; i < n; i++) {
        y[i] = act_ref(act, x[i]);
        dx[i] = dy[i] * act_ref_d(act, x[i]);
    }
    ops_expect("act_fwd", f.y, n, y, OPS_TOL(1e-6, 1e-14));
    ops_expect("act_bwd", b.dx, n, dx, OPS_TOL(1e-6, 1e-9));
}

static void activations_agree_with_formula(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(lengths); i++) {
        for (int act = ZB_ACT_RELU; act < ZB_N_ACTS; act++) {
            ops_open(backend, 1);
            check_act(lengths[i], (enum zb_act)act);
            ops_close();
        }
    }
}

static void activations_of_huge_values_stay_finite(void)
{
    static const double x[6] = {-1e8, -200, -90, 90, 200, 1e8};
    static const double line[6] = {0, 0, 0, 90, 200, 1e8};
    static const double line_dx[6] = {0, 0, 0, 1, 1, 1};
    static const double tanh_y[6] = {-1, -1, -1, 1, 1, 1};
    static const double tanh_dx[6] = {0, 0, 0, 0, 0, 0};
    static const double ones[6] = {1, 1, 1, 1, 1, 1};

    for (int act = ZB_ACT_RELU; act < ZB_N_ACTS; act++) {
        struct zb_k_act_fwd f = {.n = 6, .act = (enum zb_act)act};
        struct zb_k_act_bwd b = {.n = 6, .act = (enum zb_act)act};

        ops_open(backend, 1);
        b.x = f.x = ops_reals(6, x);
        f.y = ops_blank(6);
        b.dy = ops_reals(6, ones);
        b.dx = ops_blank(6);
        ops_run(ZB_K_act_fwd, &f, OPS_OUT(f.y), OPS_IN(f.x));
        ops_run(ZB_K_act_bwd, &b, OPS_OUT(b.dx), OPS_IN(b.x, b.dy));
        ops_expect("act_fwd", f.y, 6, act == ZB_ACT_TANH ? tanh_y : line, 1e-6);
        ops_expect("act_bwd", b.dx, 6, act == ZB_ACT_TANH ? tanh_dx : line_dx,
                   1e-6);
        ops_close();
    }
}

/* Rows of views into wider storage; what lies between them stays. */
static void check_gated(int64_t rows, int64_t cols, enum zb_act act)
{
    struct zbt_rng rng = {(unsigned long long)(rows + cols)};
    int64_t ld = 2 * cols + 3, n = rows * ld;
    double *x = ops_random(&rng, n, -3, 3), *dy = ops_random(&rng, n, -1, 1);
    double *y = ops_random(&rng, n, -1, 1), *dx = ops_random(&rng, n, -1, 1);
    struct zb_k_gated_fwd f = {.rows = rows, .cols = cols, .ld_gate = ld,
                               .ld_up = ld, .ld_y = ld, .act = act};
    struct zb_k_gated_bwd b = {.rows = rows, .cols = cols, .ld_gate = ld,
                               .ld_up = ld, .ld_dy = ld, .ld_dgate = ld,
                               .ld_dup = ld, .act = act};
    zb_real *x_d = ops_reals(n, x), *dx_d = ops_reals(n, dx);

    b.gate = f.gate = x_d;
    b.up = f.up = x_d + cols;
    f.y = ops_reals(n, y);
    b.dy = ops_reals(n, dy);
    b.dgate = dx_d;
    b.dup = dx_d + cols;
    ops_run(ZB_K_gated_fwd, &f, OPS_OUT(f.y), OPS_IN(x_d));
    ops_run(ZB_K_gated_bwd, &b, OPS_OUT(dx_d), OPS_IN(x_d, b.dy));
    for (int64_t i = 0; i < rows * cols; i++) {
        int64_t g = i / cols * ld + i % cols, u = g + cols;

        y[g] = act_ref(act, x[g]) * x[u];
        dx[g] = dy[g] * x[u] * act_ref_d(act, x[g]);
        dx[u] = dy[g] * act_ref(act, x[g]);
    }
    ops_expect("gated_fwd", f.y, n, y, OPS_TOL(1e-6, 1e-14));
    ops_expect("gated_bwd", dx_d, n, dx, OPS_TOL(1e-6, 1e-9));
}

static void gated_views_agree_with_formula(void)
{
    for (int act = ZB_ACT_RELU; act < ZB_N_ACTS; act++) {
        ops_open(backend, 1);
        check_gated(1, 1, (enum zb_act)act);
        check_gated(7, 13, (enum zb_act)act);
        check_gated(5, 56, (enum zb_act)act);
        ops_close();
    }
}

/* ---- add, scale, fill, copy, mse ---------------------------------------- */

static void check_plain(int64_t n)
{
    struct zbt_rng rng = {(unsigned long long)n};
    double *a = ops_random(&rng, n, -1, 1), *b = ops_random(&rng, n, -1, 1);
    double *y = ops_zeros(n);
    struct zb_k_add add = {.n = n};
    struct zb_k_scale scale = {.n = n, .alpha = 0.375};
    struct zb_k_fill fill = {.n = n, .value = -2.5};
    struct zb_k_mse_fwd mse = {.n = n};
    struct zb_k_mse_bwd mse_b = {.n = n, .scale = 0.25};

    mse_b.x = mse.x = add.a = ops_reals(n, a);
    mse_b.target = mse.target = add.b = ops_reals(n, b);
    fill.y = scale.y = mse.loss = mse_b.dx = add.y = ops_blank(n);
    scale.x = add.y;
    ops_run(ZB_K_add, &add, OPS_OUT(add.y), OPS_IN(add.a, add.b));
    ops_run(ZB_K_scale, &scale, OPS_OUT(scale.y), OPS_IN(NULL));
    for (int64_t i = 0; i < n; i++) {
        y[i] = 0.375 * (a[i] + b[i]);
    }
    ops_expect("add, scale", add.y, n, y, OPS_TOL(2e-7, 1e-15));
    ops_run(ZB_K_mse_fwd, &mse, OPS_OUT(mse.loss), OPS_IN(add.a, add.b));
    for (int64_t i = 0; i < n; i++) {
        y[i] = (a[i] - b[i]) * (a[i] - b[i]);
    }
    ops_expect("mse_fwd", mse.loss, n, y, OPS_TOL(2e-7, 1e-15));
    ops_run(ZB_K_mse_bwd, &mse_b, OPS_OUT(mse_b.dx), OPS_IN(add.a, add.b));
    for (int64_t i = 0; i < n; i++) {
        y[i] = 0.5 * (a[i] - b[i]);
    }
    ops_expect("mse_bwd", mse_b.dx, n, y, OPS_TOL(2e-7, 1e-15));
    ops_run(ZB_K_fill, &fill, OPS_OUT(fill.y), OPS_IN(NULL));
    for (int64_t i = 0; i < n; i++) {
        y[i] = -2.5;
    }
    ops_expect("fill", fill.y, n, y, 0);
}

static void plain_elementwise_agrees_with_formula(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(lengths); i++) {
        ops_open(backend, 1);
        check_plain(lengths[i]);
        ops_close();
    }
}

static void check_copy(int64_t rows, int64_t cols, int64_t elem)
{
    struct zbt_rng rng = {9};
    int64_t n_x = rows * (cols + 3) * elem, n_y = rows * (cols + 1) * elem;
    unsigned char x[4096], y[4096], got[4096];
    struct zb_k_copy p = {.rows = rows, .cols = cols, .ldx = cols + 3,
                          .ldy = cols + 1, .elem_bytes = elem};

    CU_ASSERT_FATAL(n_x <= 4096);
    for (int64_t i = 0; i < n_x; i++) {
        x[i] = (unsigned char)zbt_rand(&rng);
        y[i] = 77;
    }
    p.x = ops_bytes((size_t)n_x, x);
    p.y = ops_bytes((size_t)n_y, y);
    ops_run(ZB_K_copy, &p, OPS_OUT(p.y), OPS_IN(p.x));
    for (int64_t r = 0; r < rows; r++) {
        memcpy(y + r * p.ldy * elem, x + r * p.ldx * elem,
               (size_t)(cols * elem));
    }
    ops_get_bytes(p.y, (size_t)n_y, got);
    CU_ASSERT_EQUAL(memcmp(got, y, (size_t)n_y), 0);
}

static void copy_moves_rows_of_any_element_size(void)
{
    ops_open(backend, 1);
    check_copy(1, 1, 1);
    check_copy(7, 13, 4);
    check_copy(5, 56, 8);
    check_copy(3, 7, 2);
    ops_close();
}

/* Blocks of rows, with room between rows and between blocks that stays. */
static void copy_moves_blocks_of_rows(void)
{
    enum { BLOCKS = 3, ROWS = 4, COLS = 5, N = 200 };
    struct zb_k_copy p = {.n_blocks = BLOCKS,
                          .rows = ROWS,
                          .cols = COLS,
                          .block_x = 40,
                          .ldx = 9,
                          .block_y = 61,
                          .ldy = 7,
                          .elem_bytes = sizeof(zb_real)};
    struct zbt_rng rng = {4};
    double *x, *y;

    ops_open(backend, 1);
    x = ops_random(&rng, N, -1, 1);
    y = ops_random(&rng, N, -1, 1);
    p.x = ops_reals(N, x);
    p.y = ops_reals(N, y);
    ops_run(ZB_K_copy, &p, OPS_OUT(p.y), OPS_IN(p.x));
    for (int i = 0; i < BLOCKS * ROWS * COLS; i++) {
        int b = i / COLS / ROWS, r = i / COLS % ROWS, c = i % COLS;

        y[b * 61 + r * 7 + c] = x[b * 40 + r * 9 + c];
    }
    ops_expect("copy", p.y, N, y, 0);
    ops_close();
}

/* ---- reduce ------------------------------------------------------------- */

/* in_place: which source is y, or -1. */
struct sum {
    int n_x, accumulate, in_place;
    int64_t blocks, rows, cols;
};

/* The sum in zb_real in the order of the sources: every bit is determined. */
static void check_reduce(const struct sum *t)
{
    int64_t ldx = t->cols + 2, bx = t->rows * ldx + 1, n_x = t->blocks * bx;
    int64_t ldy = t->in_place < 0 ? t->cols + 1 : ldx;
    int64_t by = t->in_place < 0 ? t->rows * ldy + 3 : bx, n_y = t->blocks * by;
    struct zb_k_reduce p = {.dtype = ZB_DTYPE_REAL,
                            .n_x = t->n_x,
                            .accumulate = t->accumulate,
                            .n_blocks = t->blocks,
                            .rows = t->rows,
                            .cols = t->cols,
                            .block_x = bx,
                            .ldx = ldx,
                            .block_y = by,
                            .ldy = ldy};
    struct zbt_rng rng = {(unsigned long long)(n_x + t->n_x)};
    double *all = ops_random(&rng, t->n_x * n_x, -1, 1);
    double *y = ops_random(&rng, n_y, -1, 1);
    const zb_real *x = ops_reals(t->n_x * n_x, all);

    for (int k = 0; k < t->n_x; k++) {
        p.x[k] = x + k * n_x;
    }
    p.y = ops_reals(n_y, y);
    if (t->in_place >= 0) {
        p.x[t->in_place] = p.y;
        memcpy(all + t->in_place * n_x, y, (size_t)n_x * sizeof(*y));
    }
    ops_run(ZB_K_reduce, &p, OPS_OUT(p.y), OPS_IN(x));
    for (int64_t i = 0; i < t->blocks * t->rows * t->cols; i++) {
        int64_t b = i / t->cols / t->rows, r = i / t->cols % t->rows;
        int64_t c = i % t->cols, from = b * bx + r * ldx + c;
        double *to = &y[b * by + r * ldy + c];
        zb_real sum = t->accumulate ? (zb_real)*to : (zb_real)all[from];

        for (int k = t->accumulate ? 0 : 1; k < t->n_x; k++) {
            sum += (zb_real)all[k * n_x + from];
        }
        *to = (double)sum;
    }
    ops_expect("reduce", p.y, n_y, y, 0);
}

static void reduce_adds_sources_in_order(void)
{
    static const int64_t cols[] = {1, 7, 56, 1024, 1025, 3000};

    for (int n_x = 1; n_x <= ZB_REDUCE_MAX; n_x += n_x < 3 ? 1 : 13) {
        for (size_t i = 0; i < ZB_COUNT_OF(cols); i++) {
            struct sum t = {.n_x = n_x,
                            .in_place = -1,
                            .blocks = 2,
                            .rows = 3,
                            .cols = cols[i]};

            ops_open(backend, 1);
            check_reduce(&t);
            t.accumulate = 1;
            check_reduce(&t);
            t.accumulate = 0;
            for (t.in_place = 0; t.in_place < n_x; t.in_place++) {
                check_reduce(&t);
            }
            ops_close();
        }
    }
}

static void reduce_of_what_it_does_not_know_is_refused(void)
{
    struct zb_k_reduce p = {
        .dtype = ZB_DTYPE_I32, .n_x = 1, .n_blocks = 1, .rows = 1, .cols = 1};

    ops_open(ops_one_backend(), 1); /* check would only say so later */
    p.y = ops_blank(1);
    CU_ASSERT_EQUAL(ops_try(ZB_K_reduce, &p, OPS_OUT(p.y), OPS_IN(NULL)),
                    ZB_EUNSUPPORTED);
    p.dtype = ZB_DTYPE_REAL;
    p.n_x = ZB_REDUCE_MAX + 1;
    CU_ASSERT_EQUAL(ops_try(ZB_K_reduce, &p, OPS_OUT(p.y), OPS_IN(NULL)),
                    ZB_EINVAL);
    ops_close();
}

/* ---- cross-entropy ------------------------------------------------------ */

struct xent {
    int64_t rows, cols, ld;
    double *logits, *weight, *d;
    int32_t label[600];
    int32_t *label_d;
    zb_real *logits_d, *loss_d, *lse_d, *d_d;
};

static void xent_forward(void *ctx)
{
    struct xent *t = ctx;
    struct zb_k_xent_fwd p = {.rows = t->rows, .cols = t->cols, .ld = t->ld,
                              .logits = t->logits_d, .label = t->label_d,
                              .loss = t->loss_d, .lse = t->lse_d};

    ops_run(ZB_K_xent_fwd, &p, OPS_OUT(t->loss_d, t->lse_d),
            OPS_IN(t->logits_d, t->label_d));
}

/* Row r of the reference: loss, lse, and the gradient of 0.5 * loss. */
static void xent_reference_row(const struct xent *t, int64_t r, double *loss,
                               double *lse, double *d)
{
    const double *x = t->logits + r * t->ld;
    int32_t label = t->label[r];
    int is_in = label >= 0 && label < t->cols;
    double sum = 0;

    for (int64_t c = 0; c < t->cols; c++) {
        sum += exp(x[c]);
    }
    *lse = log(sum);
    *loss = label == -100 ? 0 : is_in ? *lse - x[label] : NAN;
    for (int64_t c = 0; c < t->cols; c++) {
        d[c] = 0.5 * (exp(x[c]) / sum - (c == label));
        d[c] = label == -100 ? 0 : is_in ? d[c] : NAN;
    }
}

static void xent_make(struct xent *t, int64_t rows, int64_t cols, int has_bad)
{
    struct zbt_rng rng = {(unsigned long long)(rows * cols)};

    t->rows = rows;
    t->cols = cols;
    t->ld = cols + 2;
    t->logits = ops_random(&rng, rows * t->ld, -4, 4);
    for (int64_t r = 0; r < rows; r++) {
        t->label[r] = (int32_t)zbt_rand_in(&rng, 0, cols - 1);
    }
    if (rows > 4) {
        t->label[1] = -100;
        t->label[2] = has_bad ? (int32_t)cols : -100;
        t->label[3] = has_bad ? -1 : -100;
        t->label[4] = has_bad ? INT32_MIN : -100;
    }
    t->label_d = ops_bytes((size_t)rows * 4, t->label);
    t->logits_d = ops_reals(rows * t->ld, t->logits);
    t->loss_d = ops_blank(rows);
    t->lse_d = ops_blank(rows);
}

static void xent_backward(struct xent *t, zb_real *d, int64_t ld_d)
{
    struct zb_k_xent_bwd b = {.rows = t->rows,
                              .cols = t->cols,
                              .ld = t->ld,
                              .ld_d = ld_d,
                              .scale = 0.5,
                              .n_class = t->cols,
                              .logits = t->logits_d,
                              .lse = t->lse_d,
                              .label = t->label_d,
                              .dlogits = d};

    ops_run(ZB_K_xent_bwd, &b, OPS_OUT(d),
            OPS_IN(d == t->logits_d ? NULL : t->logits_d, t->lse_d,
                   t->label_d));
}

static void check_xent(int64_t rows, int64_t cols)
{
    struct xent t;
    double *loss = ops_zeros(rows), *lse = ops_zeros(rows);
    double *d = ops_zeros(rows * cols), *in_place;
    zb_real *d_d;

    xent_make(&t, rows, cols, 1);
    in_place = ops_zeros(rows * t.ld);
    memcpy(in_place, t.logits, (size_t)(rows * t.ld) * sizeof(double));
    xent_forward(&t);
    for (int64_t r = 0; r < rows; r++) {
        xent_reference_row(&t, r, &loss[r], &lse[r], d + r * cols);
        memcpy(in_place + r * t.ld, d + r * cols,
               (size_t)cols * sizeof(double));
    }
    ops_expect("loss", t.loss_d, rows, loss, OPS_TOL(2e-6, 1e-13));
    ops_expect("lse", t.lse_d, rows, lse, OPS_TOL(2e-6, 1e-13));
    d_d = ops_blank(rows * cols);
    xent_backward(&t, d_d, cols);
    ops_expect("dlogits", d_d, rows * cols, d, OPS_TOL(2e-6, 1e-13));
    xent_backward(&t, t.logits_d, t.ld);
    ops_expect("dlogits in place", t.logits_d, rows * t.ld, in_place,
               OPS_TOL(2e-6, 1e-13));
}

static void xent_agrees_with_formula(void)
{
    static const int64_t shape[][2] = {{1, 1},  {1, 2},   {3, 7},
                                       {13, 56}, {7, 1000}, {5, 50257},
                                       {9, 1024}, {300, 1500}};

    for (size_t i = 0; i < ZB_COUNT_OF(shape); i++) {
        ops_open(backend, 1);
        check_xent(shape[i][0], shape[i][1]);
        ops_close();
    }
}

/* The columns in `n` parts of `width`, the last ones padding: the same loss,
 * lse and gradient as in one piece, and 0 as the gradient of padding. */
static void check_xent_parts(int64_t rows, int64_t cols, int n, int64_t width)
{
    struct xent t;
    double *loss, *lse, *d, *d_part;
    zb_real *part_d, *stats_d, *grad_d;

    ops_open(backend, 1);
    xent_make(&t, rows, cols, 1);
    loss = ops_zeros(rows);
    lse = ops_zeros(rows);
    d = ops_zeros(cols);
    part_d = ops_blank(rows * 3);
    stats_d = ops_blank(rows * n * 3);
    for (int k = 0; k < n; k++) {
        int64_t left = cols - k * width;
        int64_t has = left < 0 ? 0 : left < width ? left : width;
        struct zb_k_xent_part p = {.rows = rows,
                                   .cols = has,
                                   .ld = t.ld,
                                   .first = k * width,
                                   .logits =
                                       t.logits_d + (has > 0 ? k * width : 0),
                                   .label = t.label_d,
                                   .stats = part_d};
        struct zb_k_copy c = {.rows = rows,
                              .cols = 3,
                              .ldx = 3,
                              .ldy = 3 * n,
                              .elem_bytes = sizeof(zb_real),
                              .x = part_d,
                              .y = stats_d + 3 * k};

        ops_run(ZB_K_xent_part, &p, OPS_OUT(part_d),
                OPS_IN(t.logits_d, t.label_d));
        ops_run(ZB_K_copy, &c, OPS_OUT(stats_d), OPS_IN(part_d));
    }
    {
        struct zb_k_xent_join j = {.rows = rows,
                                   .n_parts = n,
                                   .n_class = cols,
                                   .stats = stats_d,
                                   .label = t.label_d,
                                   .loss = t.loss_d,
                                   .lse = t.lse_d};

        ops_run(ZB_K_xent_join, &j, OPS_OUT(t.loss_d, t.lse_d),
                OPS_IN(stats_d, t.label_d));
    }
    for (int k = 0; k < n; k++) {
        int64_t left = cols - k * width;
        int64_t has = left < 0 ? 0 : left < width ? left : width;
        struct zb_k_xent_bwd b = {.rows = rows,
                                  .cols = has,
                                  .ld = t.ld,
                                  .ld_d = width,
                                  .first = k * width,
                                  .n_class = cols,
                                  .n_pad = width - has,
                                  .scale = 0.5,
                                  .logits =
                                      t.logits_d + (has > 0 ? k * width : 0),
                                  .lse = t.lse_d,
                                  .label = t.label_d};

        d_part = ops_zeros(rows * width);
        b.dlogits = grad_d = ops_blank(rows * width);
        ops_run(ZB_K_xent_bwd, &b, OPS_OUT(grad_d),
                OPS_IN(t.logits_d, t.lse_d, t.label_d));
        for (int64_t r = 0; r < rows; r++) {
            xent_reference_row(&t, r, &loss[r], &lse[r], d);
            memcpy(d_part + r * width, d + (has > 0 ? k * width : 0),
                   (size_t)has * sizeof(*d));
        }
        ops_expect("xent_bwd of a part", grad_d, rows * width, d_part,
                   OPS_TOL(2e-6, 1e-13));
    }
    ops_expect("xent_join loss", t.loss_d, rows, loss, OPS_TOL(1e-5, 1e-13));
    ops_expect("xent_join lse", t.lse_d, rows, lse, OPS_TOL(1e-5, 1e-13));
    ops_close();
}

static void xent_of_parts_agrees_with_formula(void)
{
    check_xent_parts(9, 12, 2, 6);
    check_xent_parts(9, 101, 2, 64);
    check_xent_parts(9, 101, 4, 64);
    check_xent_parts(3, 5, 4, 2);
    check_xent_parts(9, 2500, 3, 1200);
}

static void xent_gradient_agrees_with_central_differences(void)
{
    struct xent t;
    struct ops_grad g = {.what = "xent", .forward = xent_forward, .ctx = &t};
    double half[7] = {0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5}, d[7 * 15];
    zb_real *d_d;

    ops_open(backend, 1);
    xent_make(&t, 7, 13, 0);
    xent_forward(&t);
    d_d = ops_reals(7 * 15, t.logits);
    xent_backward(&t, d_d, 15);
    ops_get(d_d, 7 * 15, d);
    for (int64_t r = 0; r < 7; r++) {
        d[r * 15 + 13] = d[r * 15 + 14] = 0;
    }
    g.x = t.logits_d;
    g.n = 7 * 15;
    g.values = t.logits;
    g.dx = d;
    g.y = t.loss_d;
    g.n_y = 7;
    g.weight = half;
    ops_expect_grad(&g);
    ops_close();
}

static void xent_of_large_logits_does_not_overflow(void)
{
    double x[4] = {5000, -5000, 5001, 0}, want = 1.3132616875182228;
    int32_t label = 0;
    struct zb_k_xent_fwd p = {.rows = 1, .cols = 4, .ld = 4};

    ops_open(backend, 1);
    p.logits = ops_reals(4, x);
    p.label = ops_bytes(4, &label);
    p.loss = ops_blank(1);
    p.lse = ops_blank(1);
    ops_run(ZB_K_xent_fwd, &p, OPS_OUT(p.loss, p.lse),
            OPS_IN(p.logits, p.label));
    ops_expect("loss", p.loss, 1, &want, OPS_TOL(3e-4, 1e-12));
    ops_close();
}

/* ---- sums --------------------------------------------------------------- */

static void check_sums(int64_t n)
{
    struct zbt_rng rng = {(unsigned long long)n};
    double *x = ops_random(&rng, n, -1, 2), sum = 0, sumsq = 0, got;
    struct zb_k_sum_f64 p = {.n = n};
    struct zb_k_sumsq_f64 q = {.n = n};

    q.x = p.x = ops_reals(n, x);
    p.y = ops_bytes(sizeof(double), NULL);
    q.y = ops_bytes(sizeof(double), NULL);
    ops_run(ZB_K_sum_f64, &p, OPS_OUT(p.y), OPS_IN(p.x));
    ops_run(ZB_K_sumsq_f64, &q, OPS_OUT(q.y), OPS_IN(q.x));
    for (int64_t i = 0; i < n; i++) {
        sum += x[i];
        sumsq += x[i] * x[i];
    }
    ops_get_bytes(p.y, sizeof(got), &got);
    CU_ASSERT_DOUBLE_EQUAL(got, sum, 1e-11 * (double)n);
    ops_get_bytes(q.y, sizeof(got), &got);
    CU_ASSERT_DOUBLE_EQUAL(got, sumsq, 1e-11 * (double)n);
}

static void sums_are_kept_in_double(void)
{
    static const int64_t n[] = {1, 3, 4095, 4096, 4097, 20000, 2500000};

    for (size_t i = 0; i < ZB_COUNT_OF(n); i++) {
        ops_open(backend, 1);
        check_sums(n[i]);
        ops_close();
    }
}

/* ---- random numbers ----------------------------------------------------- */

static void check_dropout(int64_t batch, int64_t n, int has_addend)
{
    struct zbt_rng rng = {(unsigned long long)n};
    double p_drop = 0.3, *x = ops_random(&rng, batch * n, 1, 2);
    double *addend = ops_random(&rng, batch * n, -1, 1);
    int64_t sample[8] = {5, 4, 1000000007, 0, 1, 2, 3, 9};
    struct zb_k_dropout p = {.batch = batch, .per_sample = n, .p = p_drop,
                             .philox = {.seed = 11, .step = 2, .site = 3}};
    struct zb_philox_key key = zb_philox_site_key(11, 2, 3);

    p.philox.sample = ops_bytes((size_t)batch * 8, sample);
    p.x = ops_reals(batch * n, x);
    p.addend = has_addend ? ops_reals(batch * n, addend) : NULL;
    p.y = ops_blank(batch * n);
    ops_run(ZB_K_dropout, &p, OPS_OUT(p.y),
            OPS_IN(p.x, p.addend, p.philox.sample));
    for (int64_t i = 0; i < batch * n; i++) {
        struct zb_philox_out r = zb_philox(key, (uint64_t)(i % n / 4),
                                           (uint64_t)sample[i / n]);
        uint32_t u[4] = {r.x0, r.x1, r.x2, r.x3};

        x[i] *= u[i % n % 4] < p_drop * 4294967296.0 ? 0 : 1 / (1 - p_drop);
        x[i] += has_addend ? addend[i] : 0;
    }
    ops_expect("dropout", p.y, batch * n, x, OPS_TOL(2e-7, 1e-15));
}

static void dropout_depends_on_sample_and_element_only(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(lengths); i++) {
        ops_open(backend, 1);
        check_dropout(1, lengths[i], 0);
        check_dropout(3, lengths[i], 1);
        ops_close();
    }
}

/* Parts drop what the whole does: rows of any width, runs that begin anywhere
 * in a block of four numbers. */
static void check_dropout_part(int64_t cols, int64_t len, int64_t first0,
                               int64_t first1, int64_t seq)
{
    enum { WHOLE = 41, BATCH = 2 };
    int64_t n = BATCH * WHOLE * cols, n_part = BATCH * seq * cols;
    double *x = ops_zeros(n), *y = ops_zeros(n), *want = ops_zeros(n_part);
    int64_t sample[BATCH] = {7, 3};
    struct zb_k_dropout p = {.batch = BATCH, .per_sample = WHOLE * cols,
                             .p = 0.4,
                             .philox = {.seed = 5, .step = 1, .site = 8}};

    for (int64_t i = 0; i < n; i++) {
        x[i] = 1;
    }
    p.philox.sample = ops_bytes(sizeof(sample), sample);
    p.x = ops_reals(n, x);
    p.y = ops_blank(n);
    ops_run(ZB_K_dropout, &p, OPS_OUT(p.y), OPS_IN(p.x, p.philox.sample));
    ops_get(p.y, n, y);
    p.per_sample = seq * cols;
    p.cols = cols;
    p.place = (struct zb_k_place){len, {first0, first1}};
    p.x = ops_reals(n_part, x);
    p.y = ops_blank(n_part);
    ops_run(ZB_K_dropout, &p, OPS_OUT(p.y), OPS_IN(p.x, p.philox.sample));
    for (int64_t i = 0; i < n_part; i++) {
        int64_t b = i / cols / seq, t = i / cols % seq;
        int64_t row = t < len ? first0 + t : first1 + t - len;

        want[i] = y[(b * WHOLE + row) * cols + i % cols];
    }
    ops_expect("dropout", p.y, n_part, want, 0);
}

static void dropout_of_part_is_that_of_whole(void)
{
    static const int64_t cols[] = {1, 3, 7, 64, 67};

    for (size_t i = 0; i < ZB_COUNT_OF(cols); i++) {
        ops_open(backend, 1);
        check_dropout_part(cols[i], 5, 10, 30, 10);
        check_dropout_part(cols[i], 0, 13, 13, 13);
        check_dropout_part(cols[i], 9, 3, 31, 12);
        ops_close();
    }
}

static void dropout_keeps_mean_and_share(void)
{
    enum { N = 100000 };
    double *x, *y, sum = 0, n_zero = 0;
    int64_t sample = 1;
    struct zb_k_dropout p = {.batch = 1, .per_sample = N, .p = 0.1,
                             .philox = {.seed = 1}};

    ops_open(backend, 1);
    x = ops_zeros(N);
    y = ops_zeros(N);
    for (int i = 0; i < N; i++) {
        x[i] = 1;
    }
    p.philox.sample = ops_bytes(8, &sample);
    p.x = ops_reals(N, x);
    p.y = ops_blank(N);
    ops_run(ZB_K_dropout, &p, OPS_OUT(p.y), OPS_IN(p.x, p.philox.sample));
    ops_get(p.y, N, y);
    for (int i = 0; i < N; i++) {
        sum += y[i];
        n_zero += y[i] == 0;
    }
    /* five standard deviations */
    CU_ASSERT_DOUBLE_EQUAL(n_zero / N, 0.1, 5 * sqrt(0.09 / N));
    CU_ASSERT_DOUBLE_EQUAL(sum / N, 1, 5 * sqrt(0.09 / N) / 0.9);
    ops_close();
}

static void fill_normal(int64_t n, int64_t first, double *out)
{
    struct zb_k_fill_normal p = {.n = n, .first = first, .seed = 7, .key = 99,
                                 .mean = 0.5, .std = 2};

    p.y = ops_blank(n);
    ops_run(ZB_K_fill_normal, &p, OPS_OUT(p.y), OPS_IN(NULL));
    ops_get(p.y, n, out);
}

static void normal_numbers_have_normal_moments(void)
{
    enum { N = 200000 };
    double *z, m1 = 0, m2 = 0, m3 = 0, m4 = 0;

    ops_open(backend, 1);
    z = ops_zeros(N);
    fill_normal(N, 0, z);
    for (int i = 0; i < N; i++) {
        double x = (z[i] - 0.5) / 2;

        m1 += x / N;
        m2 += x * x / N;
        m3 += x * x * x / N;
        m4 += x * x * x * x / N;
    }
    /* five standard deviations of each */
    CU_ASSERT_DOUBLE_EQUAL(m1, 0, 5 * sqrt(1.0 / N));
    CU_ASSERT_DOUBLE_EQUAL(m2, 1, 5 * sqrt(2.0 / N));
    CU_ASSERT_DOUBLE_EQUAL(m3, 0, 5 * sqrt(15.0 / N));
    CU_ASSERT_DOUBLE_EQUAL(m4, 3, 5 * sqrt(96.0 / N));
    ops_close();
}

static void normal_number_depends_on_element_only(void)
{
    double all[1000], some[600];

    ops_open(backend, 1);
    fill_normal(1000, 0, all);
    for (int64_t first = 0; first < 300; first += 37) {
        fill_normal(600, first, some);
        CU_ASSERT_EQUAL(memcmp(some, all + first, sizeof(some)), 0);
    }
    ops_close();
}

/* ---- optimizers --------------------------------------------------------- */

static void check_adamw(int64_t n, int n_steps)
{
    struct zbt_rng rng = {(unsigned long long)n};
    double *w = ops_random(&rng, n, -1, 1);
    double *m = ops_zeros(n), *v = ops_zeros(n);
    struct zb_k_adamw p = {.n = n, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95,
                           .eps = 1e-4, .weight_decay = 0.1, .grad_scale = 0.5};
    zb_real *grad = ops_blank(n);

    p.grad = grad;
    p.param = ops_reals(n, w);
    p.m = ops_reals(n, m);
    p.v = ops_reals(n, v);
    for (p.t = 1; p.t <= n_steps; p.t++) {
        double *g = ops_random(&rng, n, -1, 1);
        double c1 = 1 - pow(p.beta1, (double)p.t);
        double c2 = 1 - pow(p.beta2, (double)p.t);

        ops_set(grad, n, g);
        ops_run(ZB_K_adamw, &p, OPS_OUT(p.param, p.m, p.v), OPS_IN(grad));
        for (int64_t i = 0; i < n; i++) {
            double gi = 0.5 * g[i];

            m[i] = p.beta1 * m[i] + (1 - p.beta1) * gi;
            v[i] = p.beta2 * v[i] + (1 - p.beta2) * gi * gi;
            w[i] -= p.lr * p.weight_decay * w[i];
            w[i] -= p.lr * (m[i] / c1) / (sqrt(v[i] / c2) + p.eps);
        }
    }
    ops_expect("param", p.param, n, w, OPS_TOL(1e-6, 1e-14));
    ops_expect("m", p.m, n, m, OPS_TOL(1e-6, 1e-14));
    ops_expect("v", p.v, n, v, OPS_TOL(1e-6, 1e-14));
}

static void adamw_follows_paper(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(lengths); i++) {
        ops_open(backend, 1);
        check_adamw(lengths[i], 5);
        ops_close();
    }
}

static void check_sgd(int64_t n, double momentum)
{
    struct zbt_rng rng = {(unsigned long long)n};
    double *w = ops_random(&rng, n, -1, 1), *buf = ops_zeros(n);
    struct zb_k_sgd p = {.n = n, .lr = 0.05, .momentum = momentum,
                         .weight_decay = 0.1, .grad_scale = 2};
    zb_real *grad = ops_blank(n);

    p.grad = grad;
    p.param = ops_reals(n, w);
    p.buf = momentum == 0 ? NULL : ops_blank(n);
    for (p.t = 1; p.t <= 4; p.t++) {
        double *g = ops_random(&rng, n, -1, 1);

        ops_set(grad, n, g);
        ops_run(ZB_K_sgd, &p, OPS_OUT(p.param, p.buf), OPS_IN(grad));
        for (int64_t i = 0; i < n; i++) {
            buf[i] = (p.t == 1 ? 0 : momentum * buf[i]) + 2 * g[i];
            w[i] -= p.lr * p.weight_decay * w[i];
            w[i] -= p.lr * buf[i];
        }
    }
    ops_expect("param", p.param, n, w, OPS_TOL(1e-6, 1e-14));
}

static void sgd_starts_its_buffer_at_step_one(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(lengths); i++) {
        ops_open(backend, 1);
        check_sgd(lengths[i], 0.9);
        check_sgd(lengths[i], 0);
        ops_close();
    }
}

/* ---- threads ------------------------------------------------------------ */

static void run_large(int which)
{
    static double z[LARGE];

    switch (which) {
    case 0:
        check_act(LARGE, ZB_ACT_GELU_TANH);
        break;
    case 1:
        check_gated(301, 300, ZB_ACT_SILU);
        break;
    case 2:
        check_plain(LARGE);
        break;
    case 3:
        check_xent(101, 3001);
        break;
    case 4:
        check_sums(2500000);
        break;
    case 5:
        check_dropout(7, 20001, 1);
        break;
    case 6:
        fill_normal(LARGE, 5, z);
        break;
    case 7:
        check_adamw(LARGE, 2);
        break;
    case 8:
        check_reduce(&(struct sum){3, 0, -1, 2, 5, 20001});
        break;
    default:
        check_sgd(LARGE, 0.9);
        break;
    }
}

static void number_of_threads_does_not_change_a_bit(void)
{
    ops_same_bits(backend, run_large, 10);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(activations_give_published_values),
        ZBT_CASE(activations_agree_with_formula),
        ZBT_CASE(activations_of_huge_values_stay_finite),
        ZBT_CASE(gated_views_agree_with_formula),
        ZBT_CASE(plain_elementwise_agrees_with_formula),
        ZBT_CASE(copy_moves_rows_of_any_element_size),
        ZBT_CASE(copy_moves_blocks_of_rows),
        ZBT_CASE(reduce_adds_sources_in_order),
        ZBT_CASE(reduce_of_what_it_does_not_know_is_refused),
        ZBT_CASE(xent_agrees_with_formula),
        ZBT_CASE(xent_of_parts_agrees_with_formula),
        ZBT_CASE(xent_gradient_agrees_with_central_differences),
        ZBT_CASE(xent_of_large_logits_does_not_overflow),
        ZBT_CASE(sums_are_kept_in_double),
        ZBT_CASE(dropout_depends_on_sample_and_element_only),
        ZBT_CASE(dropout_of_part_is_that_of_whole),
        ZBT_CASE(dropout_keeps_mean_and_share),
        ZBT_CASE(normal_numbers_have_normal_moments),
        ZBT_CASE(normal_number_depends_on_element_only),
        ZBT_CASE(adamw_follows_paper),
        ZBT_CASE(sgd_starts_its_buffer_at_step_one),
        ZBT_CASE(number_of_threads_does_not_change_a_bit),
    };
    int bad = 0;

    for (size_t i = 0; (backend = ops_backend(i)) != NULL; i++) {
        printf("backend %s\n", backend);
        bad |= zbt_run("ops_ew", cases, ZB_COUNT_OF(cases));
    }
    return bad;
}
