/* SPDX-License-Identifier: MIT
 *
 * Kernels on rows and columns, of every backend, against their formulas in
 * double; backward kernels also against central differences.
 */
#include "config.h"

#include <stdlib.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ops_rig.h"

static const char *backend;

struct size {
    int64_t rows, cols;
};

static const struct size sizes[] = {{1, 1},  {3, 7},   {7, 13},  {13, 56},
                                    {56, 3}, {67, 33}, {1, 300}, {200, 24}};

/* Large enough for three threads. */
static const struct size large = {257, 520};

#define EPS 1e-5

/* ---- norms -------------------------------------------------------------- */

struct norm {
    int is_rms;
    int64_t rows, cols, groups;
    double *x, *gamma, *beta, *dy, *addend;       /* host */
    double *y, *dx, *dgamma, *dbeta, *mean, *rstd; /* references */
    zb_real *x_d, *gamma_d, *beta_d, *dy_d, *addend_d, *y_d, *mean_d, *rstd_d;
};

static void norm_make(struct norm *t, const struct size *s, int is_rms,
                      int64_t groups)
{
    struct zbt_rng rng = {(unsigned long long)(s->rows * 100 + s->cols)};
    int64_t n = s->rows * s->cols;

    memset(t, 0, sizeof(*t));
    t->is_rms = is_rms;
    t->rows = s->rows;
    t->cols = s->cols;
    t->groups = groups;
    t->x = ops_random(&rng, n, -1, 2);
    t->gamma = ops_random(&rng, groups * s->cols, 0.5, 1.5);
    t->beta = ops_random(&rng, groups * s->cols, -1, 1);
    t->dy = ops_random(&rng, n, -1, 1);
    t->addend = ops_random(&rng, n, -1, 1);
    t->x_d = ops_reals(n, t->x);
    t->gamma_d = ops_reals(groups * s->cols, t->gamma);
    t->beta_d = ops_reals(groups * s->cols, t->beta);
    t->dy_d = ops_reals(n, t->dy);
    t->addend_d = ops_reals(n, t->addend);
    t->y_d = ops_blank(n);
    t->mean_d = ops_blank(s->rows);
    t->rstd_d = ops_blank(s->rows);
}

static void norm_reference_row(struct norm *t, int64_t r, int has_beta)
{
    int64_t n = t->cols;
    const double *x = t->x + r * n, *dy = t->dy + r * n;
    int64_t first = r % t->groups * n;
    const double *gamma = t->gamma + first, *beta = t->beta + first;
    double mean = 0, var = 0, rstd, sum_g = 0, sum_gx = 0;

    for (int64_t i = 0; i < n && !t->is_rms; i++) {
        mean += x[i] / (double)n;
    }
    for (int64_t i = 0; i < n; i++) {
        var += (x[i] - mean) * (x[i] - mean) / (double)n;
    }
    rstd = 1 / sqrt(var + EPS);
    t->mean[r] = mean;
    t->rstd[r] = rstd;
    for (int64_t i = 0; i < n; i++) {
        double xhat = (x[i] - mean) * rstd;

        t->y[r * n + i] = xhat * gamma[i] + (has_beta ? beta[i] : 0);
        t->dgamma[first + i] += dy[i] * xhat;
        t->dbeta[first + i] += dy[i];
        sum_g += t->is_rms ? 0 : dy[i] * gamma[i] / (double)n;
        sum_gx += dy[i] * gamma[i] * xhat / (double)n;
    }
    for (int64_t i = 0; i < n; i++) {
        double xhat = (x[i] - mean) * rstd;

        t->dx[r * n + i] = rstd * (dy[i] * gamma[i] - sum_g - xhat * sum_gx);
    }
}

static void norm_reference(struct norm *t, int has_beta)
{
    int64_t n = t->rows * t->cols;

    t->y = ops_zeros(n);
    t->dx = ops_zeros(n);
    t->dgamma = ops_zeros(t->groups * t->cols);
    t->dbeta = ops_zeros(t->groups * t->cols);
    t->mean = ops_zeros(t->rows);
    t->rstd = ops_zeros(t->rows);
    for (int64_t r = 0; r < t->rows; r++) {
        norm_reference_row(t, r, has_beta);
    }
}

static void norm_forward(struct norm *t, int has_beta)
{
    struct zb_k_layernorm_fwd ln = {.rows = t->rows,
                                    .cols = t->cols,
                                    .groups = t->groups,
                                    .eps = EPS,
                                    .x = t->x_d,
                                    .gamma = t->gamma_d,
                                    .beta = has_beta ? t->beta_d : NULL,
                                    .y = t->y_d,
                                    .mean = t->mean_d,
                                    .rstd = t->rstd_d};
    struct zb_k_rmsnorm_fwd rms = {
        .rows = t->rows, .cols = t->cols, .eps = EPS, .x = t->x_d,
        .gamma = t->gamma_d, .y = t->y_d, .rstd = t->rstd_d};

    if (t->is_rms) {
        ops_run(ZB_K_rmsnorm_fwd, &rms, OPS_OUT(t->y_d, t->rstd_d),
                OPS_IN(t->x_d, t->gamma_d));
    } else {
        ops_run(ZB_K_layernorm_fwd, &ln, OPS_OUT(t->y_d, t->mean_d, t->rstd_d),
                OPS_IN(t->x_d, t->gamma_d, t->beta_d));
    }
}

static void norm_forward_of(void *ctx)
{
    norm_forward(ctx, 1);
}

static void norm_backward(struct norm *t, const zb_real *addend, zb_real *dx)
{
    struct zb_k_layernorm_bwd ln = {.rows = t->rows,
                                    .cols = t->cols,
                                    .groups = t->groups,
                                    .dy = t->dy_d,
                                    .x = t->x_d,
                                    .gamma = t->gamma_d,
                                    .mean = t->mean_d,
                                    .rstd = t->rstd_d,
                                    .addend = addend,
                                    .dx = dx};
    struct zb_k_rmsnorm_bwd rms = {
        .rows = t->rows, .cols = t->cols, .dy = t->dy_d, .x = t->x_d,
        .gamma = t->gamma_d, .rstd = t->rstd_d, .addend = addend, .dx = dx};

    ops_run(t->is_rms ? ZB_K_rmsnorm_bwd : ZB_K_layernorm_bwd,
            t->is_rms ? (void *)&rms : (void *)&ln, OPS_OUT(dx),
            OPS_IN(t->dy_d, t->x_d, t->gamma_d, t->mean_d, t->rstd_d,
                   addend == dx ? NULL : addend));
}

static void norm_backward_w(struct norm *t, zb_real *dgamma, zb_real *dbeta)
{
    struct zb_k_layernorm_bwd_w ln = {.rows = t->rows,
                                      .cols = t->cols,
                                      .groups = t->groups,
                                      .dy = t->dy_d,
                                      .x = t->x_d,
                                      .mean = t->mean_d,
                                      .rstd = t->rstd_d,
                                      .dgamma = dgamma,
                                      .dbeta = dbeta};
    struct zb_k_rmsnorm_bwd_w rms = {.rows = t->rows, .cols = t->cols,
                                     .dy = t->dy_d, .x = t->x_d,
                                     .rstd = t->rstd_d, .dgamma = dgamma};

    ops_run(t->is_rms ? ZB_K_rmsnorm_bwd_w : ZB_K_layernorm_bwd_w,
            t->is_rms ? (void *)&rms : (void *)&ln, OPS_OUT(dgamma, dbeta),
            OPS_IN(t->dy_d, t->x_d, t->mean_d, t->rstd_d));
}

static void sum_into(double *y, const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        y[i] += x[i];
    }
}

static void check_norm(const struct size *s, int is_rms, int has_beta,
                       int64_t groups)
{
    struct norm t;
    int64_t n = s->rows * s->cols, n_w = groups * s->cols;
    double tol = OPS_TOL(s->cols == 1 ? 3e-4 : 3e-6, 1e-11);
    double *old;
    zb_real *dx, *dgamma, *dbeta;

    norm_make(&t, s, is_rms, groups);
    norm_reference(&t, has_beta);
    norm_forward(&t, has_beta);
    ops_expect("y", t.y_d, n, t.y, tol);
    ops_expect("rstd", t.rstd_d, s->rows, t.rstd, tol);
    dx = ops_blank(n);
    norm_backward(&t, NULL, dx);
    if (s->cols > 1) { /* else pure cancellation */
        ops_expect("dx", dx, n, t.dx, OPS_TOL(5e-6, 1e-11));
    }
    old = ops_zeros(n_w);
    sum_into(old, t.gamma, n_w);
    dgamma = ops_reals(n_w, old);
    dbeta = has_beta && !is_rms ? ops_reals(n_w, old) : NULL;
    norm_backward_w(&t, dgamma, dbeta);
    sum_into(t.dgamma, old, n_w);
    sum_into(t.dbeta, old, n_w);
    ops_expect("dgamma", dgamma, n_w, t.dgamma, tol);
    if (dbeta != NULL) {
        ops_expect("dbeta", dbeta, n_w, t.dbeta, tol);
    }
    sum_into(t.dx, t.addend, n);
    norm_backward(&t, t.addend_d, dx);
    ops_expect("dx + addend", dx, n, t.dx, tol);
    norm_backward(&t, t.addend_d, t.addend_d);
    ops_expect("dx into addend", t.addend_d, n, t.dx, tol);
}

static void norms_agree_with_formula(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(sizes); i++) {
        int64_t rows = sizes[i].rows;
        int64_t groups = rows % 5 == 0 ? 5 : rows % 2 == 0 ? 4 : rows;

        for (int form = 0; form < 4; form++) {
            ops_open(backend, 1);
            check_norm(&sizes[i], form == 2, form == 1,
                       form == 3 && groups < 20 ? groups : 1);
            ops_close();
        }
    }
}

static void check_norm_grad(const struct size *s, int is_rms)
{
    struct norm t;
    int64_t n = s->rows * s->cols;
    double *dx = ops_zeros(n), *zero = ops_zeros(s->cols);
    double *dgamma = ops_zeros(s->cols), *dbeta = ops_zeros(s->cols);
    zb_real *dx_d, *dgamma_d, *dbeta_d;
    struct ops_grad g = {.forward = norm_forward_of, .ctx = &t};

    norm_make(&t, s, is_rms, 1);
    dx_d = ops_blank(n);
    dgamma_d = ops_reals(s->cols, zero);
    dbeta_d = is_rms ? NULL : ops_reals(s->cols, zero);
    norm_forward(&t, 1);
    norm_backward(&t, NULL, dx_d);
    norm_backward_w(&t, dgamma_d, dbeta_d);
    ops_get(dx_d, n, dx);
    ops_get(dgamma_d, s->cols, dgamma);
    g.y = t.y_d;
    g.n_y = n;
    g.weight = t.dy;
    g.what = "norm B";
    g.x = t.x_d;
    g.n = n;
    g.values = t.x;
    g.dx = dx;
    ops_expect_grad(&g);
    g.what = "norm W";
    g.x = t.gamma_d;
    g.n = s->cols;
    g.values = t.gamma;
    g.dx = dgamma;
    ops_expect_grad(&g);
    if (!is_rms) {
        ops_get(dbeta_d, s->cols, dbeta);
        g.x = t.beta_d;
        g.values = t.beta;
        g.dx = dbeta;
        ops_expect_grad(&g);
    }
}

static void norm_gradients_agree_with_central_differences(void)
{
    static const struct size some[] = {{5, 13}, {7, 56}};

    for (size_t i = 0; i < ZB_COUNT_OF(some); i++) {
        for (int is_rms = 0; is_rms < 2; is_rms++) {
            ops_open(backend, 1);
            check_norm_grad(&some[i], is_rms);
            ops_close();
        }
    }
}

/* ---- column sums, embedding, positions ---------------------------------- */

static void check_col_sum(const struct size *s)
{
    struct zbt_rng rng = {3};
    int64_t ld = s->cols + 5;
    double *x = ops_random(&rng, s->rows * ld, -1, 1);
    double *y = ops_random(&rng, s->cols, -1, 1);
    struct zb_k_col_sum p = {.rows = s->rows, .cols = s->cols, .ldx = ld};

    p.x = ops_reals(s->rows * ld, x);
    p.y = ops_reals(s->cols, y);
    ops_run(ZB_K_col_sum, &p, OPS_OUT(p.y), OPS_IN(p.x));
    for (int64_t r = 0; r < s->rows; r++) {
        sum_into(y, x + r * ld, s->cols);
    }
    ops_expect("col_sum", p.y, s->cols, y, OPS_TOL(1e-6, 1e-14));
}

static void col_sum_adds_rows_of_view(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(sizes); i++) {
        ops_open(backend, 1);
        check_col_sum(&sizes[i]);
        ops_close();
    }
}

#define N_IDS 11
#define PADDING 4

static void make_ids(int64_t rows, int32_t *id)
{
    struct zbt_rng rng = {17};

    for (int64_t r = 0; r < rows; r++) {
        id[r] = (int32_t)zbt_rand_in(&rng, 0, N_IDS - 1);
    }
    if (rows > 5) {
        id[1] = -1;
        id[2] = N_IDS;
        id[3] = INT32_MIN;
        id[4] = INT32_MAX;
        id[5] = PADDING;
    }
}

/* Of the table [N_IDS] only n_ids rows from `first` on are here; they may reach
 * past its end. */
static void check_embedding(const struct size *s, int64_t padding,
                            int64_t first, int64_t n_ids, int64_t offset)
{
    struct zbt_rng rng = {4};
    int64_t ld = s->cols + 3, n = s->rows * ld;
    int32_t id[300];
    double *table = ops_random(&rng, n_ids * s->cols, -1, 1);
    double *dtable = ops_random(&rng, n_ids * s->cols, -1, 1);
    double *y = ops_random(&rng, n, -1, 1), *dy = ops_random(&rng, n, -1, 1);
    struct zb_k_embedding_fwd f = {
        .rows = s->rows,
        .cols = s->cols,
        .n_ids = n_ids,
        .first = first,
        .whole = N_IDS,
        .offset = offset,
        .ldy = ld,
    };
    struct zb_k_embedding_bwd_w w = {
        .rows = s->rows,
        .cols = s->cols,
        .n_ids = n_ids,
        .first = first,
        .whole = N_IDS,
        .offset = offset,
        .lddy = ld,
        .padding_idx = padding,
    };

    make_ids(s->rows, id);
    w.id = f.id = ops_bytes((size_t)s->rows * 4, id);
    f.table = ops_reals(n_ids * s->cols, table);
    f.y = ops_reals(n, y);
    w.dy = ops_reals(n, dy);
    w.dtable = ops_reals(n_ids * s->cols, dtable);
    ops_run(ZB_K_embedding_fwd, &f, OPS_OUT(f.y), OPS_IN(f.id, f.table));
    ops_run(ZB_K_embedding_bwd_w, &w, OPS_OUT(w.dtable), OPS_IN(w.id, w.dy));
    for (int64_t r = 0; r < s->rows; r++) {
        int64_t row = offset + id[r], at = row - first;
        int is_row = row >= 0 && row < N_IDS;
        int is_in = is_row && at >= 0 && at < n_ids;

        for (int64_t c = 0; c < s->cols; c++) {
            y[r * ld + c] = is_in ? table[at * s->cols + c] : is_row ? 0 : NAN;
        }
        if (is_in && row != padding) {
            sum_into(dtable + at * s->cols, dy + r * ld, s->cols);
        }
    }
    ops_expect("embedding_fwd", f.y, n, y, 0);
    ops_expect("embedding_bwd_w", w.dtable, n_ids * s->cols, dtable,
               OPS_TOL(1e-6, 1e-14));
}

static void embedding_skips_ids_outside_and_padding(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(sizes); i++) {
        ops_open(backend, 1);
        check_embedding(&sizes[i], i % 2 == 0 ? PADDING : -1, 0, N_IDS, 0);
        check_embedding(&sizes[i], PADDING, 0, N_IDS, 2);
        ops_close();
    }
}

static void embedding_of_a_part_gives_zeros_elsewhere(void)
{
    static const int64_t part[][2] = {{0, 4}, {4, 4}, {N_IDS - 3, 9}};

    for (size_t i = 0; i < ZB_COUNT_OF(part); i++) {
        ops_open(backend, 1);
        check_embedding(&sizes[ZB_COUNT_OF(sizes) - 1], PADDING, part[i][0],
                        part[i][1], 0);
        ops_close();
    }
}

/* Rows of an id are added in order, as one adds them up here. */
static void check_many_rows(int64_t rows, int32_t n_ids)
{
    struct zbt_rng rng = {(unsigned long long)rows};
    int64_t cols = 5, n = n_ids * cols;
    double *dtable = ops_random(&rng, n, -1, 1);
    double *dy = ops_random(&rng, rows * cols, -1, 1);
    int32_t *id = malloc((size_t)rows * sizeof(*id));
    struct zb_k_embedding_bwd_w w = {.rows = rows,
                                     .cols = cols,
                                     .n_ids = n_ids,
                                     .whole = n_ids,
                                     .lddy = cols,
                                     .padding_idx = 1};

    CU_ASSERT_PTR_NOT_NULL_FATAL(id);
    for (int64_t r = 0; r < rows; r++) {
        id[r] = (int32_t)zbt_rand_in(&rng, -1, n_ids);
    }
    w.id = ops_bytes((size_t)rows * sizeof(*id), id);
    w.dy = ops_reals(rows * cols, dy);
    w.dtable = ops_reals(n, dtable);
    ops_run(ZB_K_embedding_bwd_w, &w, OPS_OUT(w.dtable), OPS_IN(w.id, w.dy));
    for (int64_t i = 0; i < n; i++) {
        dtable[i] = (zb_real)dtable[i];
    }
    for (int64_t r = 0; r < rows; r++) {
        double *to = dtable + id[r] * cols;

        for (int64_t c = 0;
             id[r] >= 0 && id[r] < n_ids && id[r] != 1 && c < cols; c++) {
            to[c] = (zb_real)((zb_real)to[c] + (zb_real)dy[r * cols + c]);
        }
    }
    ops_expect("embedding_bwd_w", w.dtable, n, dtable, 0);
    free(id);
}

static void embedding_adds_many_rows_in_order(void)
{
    static const int64_t rows[] = {1024, 1025, 4096, 4097, 9000, 300000};
    static const int32_t n_ids[] = {1, 3, 700, 100000};

    for (size_t i = 0; i < ZB_COUNT_OF(rows); i++) {
        for (size_t k = 0; k < ZB_COUNT_OF(n_ids); k++) {
            ops_open(backend, 2);
            check_many_rows(rows[i], n_ids[k]);
            ops_close();
        }
    }
}

static void check_position(int64_t batch, int64_t seq, int64_t cols)
{
    struct zbt_rng rng = {6};
    int64_t n = batch * seq * cols, offset = 2, n_table = (seq + 5) * cols;
    double *x = ops_random(&rng, n, -1, 1), *dy = ops_random(&rng, n, -1, 1);
    double *table = ops_random(&rng, n_table, -1, 1);
    double *dtable = ops_random(&rng, n_table, -1, 1), *y = ops_zeros(n);
    struct zb_k_position_fwd f = {.batch = batch, .seq = seq, .cols = cols,
                                  .offset = offset, .n_pos = seq + 5};
    struct zb_k_position_bwd_w w = {.batch = batch, .seq = seq, .cols = cols,
                                    .offset = offset, .n_pos = seq + 5};

    f.x = ops_reals(n, x);
    f.table = ops_reals(n_table, table);
    f.y = ops_blank(n);
    w.dy = ops_reals(n, dy);
    w.dtable = ops_reals(n_table, dtable);
    ops_run(ZB_K_position_fwd, &f, OPS_OUT(f.y), OPS_IN(f.x, f.table));
    ops_run(ZB_K_position_bwd_w, &w, OPS_OUT(w.dtable), OPS_IN(w.dy));
    for (int64_t i = 0; i < n; i++) {
        int64_t t = (offset + i / cols % seq) * cols + i % cols;

        y[i] = x[i] + table[t];
        dtable[t] += dy[i];
    }
    ops_expect("position_fwd", f.y, n, y, OPS_TOL(1e-7, 1e-15));
    ops_expect("position_bwd_w", w.dtable, n_table, dtable,
               OPS_TOL(1e-6, 1e-14));
}

static void positions_start_at_offset_in_every_row(void)
{
    static const int64_t shape[][3] = {{1, 1, 1}, {3, 7, 13}, {2, 56, 3}};

    for (size_t i = 0; i < ZB_COUNT_OF(shape); i++) {
        ops_open(backend, 1);
        check_position(shape[i][0], shape[i][1], shape[i][2]);
        ops_close();
    }
}

/* ---- rope --------------------------------------------------------------- */

struct rope_shape {
    int64_t batch, seq, heads, dim, half;
    int interleaved;
};

static void rope_reference(const struct zb_k_rope *p, const double *x,
                           double *y)
{
    for (int64_t r = 0; r < p->batch * p->seq * p->heads; r++) {
        int64_t bt = r / p->heads, h = r % p->heads;
        const double *xr = x + bt * p->x_row + h * p->x_head;
        double *yr = y + bt * p->y_row + h * p->y_head;

        memmove(yr, xr, (size_t)p->head_dim * sizeof(*yr));
        for (int64_t j = 0; j < p->half; j++) {
            double angle = 0.3 * (double)(bt % p->seq) / (double)(j + 1);
            int64_t a = p->interleaved ? 2 * j : j;
            int64_t b = p->interleaved ? 2 * j + 1 : j + p->half;
            double c = cos(angle), s = sin(angle) * (p->inverse ? -1 : 1);

            double xa = xr[a], xb = xr[b];

            yr[a] = xa * c - xb * s;
            yr[b] = xb * c + xa * s;
        }
    }
}

static void check_rope(const struct rope_shape *s)
{
    struct zbt_rng rng = {8};
    struct zb_k_rope p = {.batch = s->batch, .seq = s->seq, .heads = s->heads,
                          .head_dim = s->dim, .half = s->half,
                          .n_pos = s->seq, .interleaved = s->interleaved};
    int64_t rows = s->batch * s->seq, n_x, n_y;
    double *x, *y, *c = ops_zeros(s->seq * s->half + 1);
    double *sn = ops_zeros(s->seq * s->half + 1);

    p.x_head = s->dim;
    p.x_row = s->heads * s->dim + 4; /* heads within packed rows */
    p.y_head = s->dim + 1;
    p.y_row = s->heads * p.y_head;
    n_x = rows * p.x_row;
    n_y = rows * p.y_row;
    x = ops_random(&rng, n_x, -1, 1);
    y = ops_random(&rng, n_y, -1, 1);
    for (int64_t i = 0; i < s->seq * s->half; i++) {
        double angle = 0.3 * (double)(i / s->half) / (double)(i % s->half + 1);

        c[i] = cos(angle);
        sn[i] = sin(angle);
    }
    p.cos = ops_reals(s->seq * s->half + 1, c);
    p.sin = ops_reals(s->seq * s->half + 1, sn);
    p.x = ops_reals(n_x, x);
    p.y = ops_reals(n_y, y);
    ops_run(ZB_K_rope, &p, OPS_OUT(p.y), OPS_IN(p.x, p.cos, p.sin));
    rope_reference(&p, x, y);
    ops_expect("rope", p.y, n_y, y, OPS_TOL(3e-7, 1e-15));
    /* back, in place */
    p.inverse = 1;
    p.x = p.y;
    p.x_row = p.y_row;
    p.x_head = p.y_head;
    ops_run(ZB_K_rope, &p, OPS_OUT(p.y), OPS_IN(p.cos, p.sin));
    rope_reference(&p, y, y);
    ops_expect("rope back", p.y, n_y, y, OPS_TOL(3e-7, 1e-15));
}

static void rope_turns_pairs_and_back(void)
{
    static const struct rope_shape shape[] = {
        {1, 1, 1, 2, 1, 0},   {2, 7, 3, 8, 4, 0},  {2, 7, 3, 8, 4, 1},
        {1, 13, 2, 12, 3, 0}, {1, 13, 2, 12, 3, 1}, {1, 3, 1, 7, 3, 1},
        {1, 3, 2, 5, 0, 0},   {2, 56, 4, 64, 32, 0},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(shape); i++) {
        ops_open(backend, 1);
        check_rope(&shape[i]);
        ops_close();
    }
}

/* ---- parts of sequences ------------------------------------------------- */

/* Two samples of 5 rows of a sequence of 13: 4, 5, 6 and 11, 12. */
enum { P_BATCH = 2, P_PART = 5, P_WHOLE = 13, P_COLS = 6 };
static const struct zb_k_place place = {3, {4, 11}};
static const int64_t place_row[P_PART] = {4, 5, 6, 11, 12};

/* Every row's own number of table rows: 12 leave the last one past the end. */
static void check_part_position(int64_t n_pos)
{
    struct zbt_rng rng = {16};
    int64_t n = P_BATCH * P_PART * P_COLS, n_table = n_pos * P_COLS;
    double *x = ops_random(&rng, n, -1, 1), *y = ops_zeros(n);
    double *table = ops_random(&rng, n_table, -1, 1);
    double *dtable = ops_random(&rng, n_table, -1, 1);
    struct zb_k_position_fwd f = {.batch = P_BATCH, .seq = P_PART,
                                  .cols = P_COLS, .offset = 1, .n_pos = n_pos,
                                  .place = place};
    struct zb_k_position_bwd_w w = {.batch = P_BATCH, .seq = P_PART,
                                    .cols = P_COLS, .offset = 1,
                                    .n_pos = n_pos, .place = place};

    f.x = ops_reals(n, x);
    f.table = ops_reals(n_table, table);
    f.y = ops_blank(n);
    w.dy = f.x;
    w.dtable = ops_reals(n_table, dtable);
    ops_run(ZB_K_position_fwd, &f, OPS_OUT(f.y), OPS_IN(f.x, f.table));
    ops_run(ZB_K_position_bwd_w, &w, OPS_OUT(w.dtable), OPS_IN(w.dy));
    for (int64_t i = 0; i < n; i++) {
        int64_t row = 1 + place_row[i / P_COLS % P_PART];
        int64_t at = (row < n_pos ? row : n_pos - 1) * P_COLS + i % P_COLS;

        y[i] = x[i] + table[at];
        dtable[at] += row < n_pos ? x[i] : 0;
    }
    ops_expect("position_fwd", f.y, n, y, OPS_TOL(1e-7, 1e-15));
    ops_expect("position_bwd_w", w.dtable, n_table, dtable,
               OPS_TOL(1e-6, 1e-14));
}

static void positions_of_part_are_rows_of_whole(void)
{
    ops_open(backend, 1);
    check_part_position(P_WHOLE + 1);
    check_part_position(P_WHOLE);
    ops_close();
}

/* Rope over the whole, and over a part of the same rows. */
static void rope_of_part_turns_as_in_whole(void)
{
    struct zbt_rng rng = {17};
    int64_t n = P_BATCH * P_WHOLE * P_COLS, n_part = P_BATCH * P_PART * P_COLS;
    struct zb_k_rope p = {.batch = P_BATCH, .seq = P_WHOLE, .heads = 1,
                          .head_dim = P_COLS, .half = 3, .n_pos = P_WHOLE,
                          .x_row = P_COLS, .x_head = P_COLS, .y_row = P_COLS,
                          .y_head = P_COLS};
    double *x, *y, *part;

    ops_open(backend, 1);
    x = ops_random(&rng, n, -1, 1);
    y = ops_zeros(n);
    part = ops_zeros(n_part);
    p.cos = ops_reals(P_WHOLE * 3, ops_random(&rng, P_WHOLE * 3, -1, 1));
    p.sin = ops_reals(P_WHOLE * 3, ops_random(&rng, P_WHOLE * 3, -1, 1));
    p.x = ops_reals(n, x);
    p.y = ops_blank(n);
    ops_run(ZB_K_rope, &p, OPS_OUT(p.y), OPS_IN(p.x, p.cos, p.sin));
    ops_get(p.y, n, y);
    for (int64_t i = 0; i < n_part; i++) {
        int64_t b = i / P_COLS / P_PART, t = place_row[i / P_COLS % P_PART];

        part[i] = x[(b * P_WHOLE + t) * P_COLS + i % P_COLS];
    }
    p.seq = P_PART;
    p.place = place;
    p.x = ops_reals(n_part, part);
    p.y = ops_blank(n_part);
    ops_run(ZB_K_rope, &p, OPS_OUT(p.y), OPS_IN(p.x, p.cos, p.sin));
    for (int64_t i = 0; i < n_part; i++) {
        int64_t b = i / P_COLS / P_PART, t = place_row[i / P_COLS % P_PART];

        part[i] = y[(b * P_WHOLE + t) * P_COLS + i % P_COLS];
    }
    ops_expect("rope", p.y, n_part, part, 0);
    ops_close();
}

/* ---- threads ------------------------------------------------------------ */

static void run_large(int which)
{
    static const struct rope_shape rope = {2, 160, 4, 64, 32, 0};

    switch (which) {
    case 0:
        check_norm(&large, 0, 1, 1);
        break;
    case 1:
        check_norm(&large, 1, 0, 1);
        break;
    case 2:
        check_col_sum(&large);
        break;
    case 3:
        check_embedding(&large, 1, 0, N_IDS, 0);
        check_embedding(&large, 1, 0, N_IDS, 2);
        break;
    case 4:
        check_position(3, 90, 256);
        break;
    default:
        check_rope(&rope);
        break;
    }
}

static void number_of_threads_does_not_change_a_bit(void)
{
    ops_same_bits(backend, run_large, 6);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(norms_agree_with_formula),
        ZBT_CASE(norm_gradients_agree_with_central_differences),
        ZBT_CASE(col_sum_adds_rows_of_view),
        ZBT_CASE(embedding_skips_ids_outside_and_padding),
        ZBT_CASE(embedding_adds_many_rows_in_order),
        ZBT_CASE(embedding_of_a_part_gives_zeros_elsewhere),
        ZBT_CASE(positions_start_at_offset_in_every_row),
        ZBT_CASE(rope_turns_pairs_and_back),
        ZBT_CASE(positions_of_part_are_rows_of_whole),
        ZBT_CASE(rope_of_part_turns_as_in_whole),
        ZBT_CASE(number_of_threads_does_not_change_a_bit),
    };
    int bad = 0;

    for (size_t i = 0; (backend = ops_backend(i)) != NULL; i++) {
        printf("backend %s\n", backend);
        bad |= zbt_run("ops_rows", cases, ZB_COUNT_OF(cases));
    }
    return bad;
}
