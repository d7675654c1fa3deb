/* SPDX-License-Identifier: MIT
 *
 * Sums over rows: gradients of biases, norms, tables. Each thread has columns
 * of its own and goes through all rows in order. Sums over many rows are kept
 * per group of rows first, which is more exact than one long sum.
 */
#include "config.h"

#include "backend/cpu/cpu_int.h"
#include "kern/norm.h"
#include "kern/place.h"

#define COL_ALIGN 16
#define COL_BLOCK 256 /* columns that are summed together */
#define ROW_GROUP 64

/* sum[i] += the sums of one group of rows. */
struct col_sums {
    zb_real total[2][COL_BLOCK];
    zb_real group[2][COL_BLOCK];
};

static void sums_clear(zb_real *x)
{
    ZB_EACH(i, COL_BLOCK) {
        x[i] = 0;
    }
}

static void sums_start(struct col_sums *s)
{
    for (int k = 0; k < 2; k++) {
        sums_clear(s->total[k]);
        sums_clear(s->group[k]);
    }
}

static void sums_end_group(struct col_sums *s)
{
    for (int k = 0; k < 2; k++) {
        ZB_EACH(i, COL_BLOCK) {
            s->total[k][i] += s->group[k][i];
        }
        sums_clear(s->group[k]);
    }
}

static void sums_add_to(struct col_sums *s, int k, int64_t n, zb_real *y)
{
    ZB_EACH(i, n) {
        y[i] += s->total[k][i];
    }
}

static int64_t block_at(int64_t c, int64_t end)
{
    return end - c < COL_BLOCK ? end - c : COL_BLOCK;
}

static void col_sum_part(const struct zb_device *dev, const void *arg,
                         int64_t begin, int64_t end, int thread)
{
    const struct zb_k_col_sum *p = arg;
    struct col_sums s;

    (void)dev;
    (void)thread;
    for (int64_t c = begin; c < end; c += COL_BLOCK) {
        int64_t n = block_at(c, end);
        zb_real *group = s.group[0];

        sums_start(&s);
        for (int64_t r = 0; r < p->rows; r++) {
            const zb_real *x = p->x + r * p->ldx + c;

            ZB_EACH(i, n) {
                group[i] += x[i];
            }
            if ((r + 1) % ROW_GROUP == 0 || r + 1 == p->rows) {
                sums_end_group(&s);
            }
        }
        sums_add_to(&s, 0, n, p->y + c);
    }
}

enum zb_status zb_cpu_col_sum(struct zb_device *dev, const void *params)
{
    const struct zb_k_col_sum *p = params;

    zb_cpu_for(dev, p->cols, COL_ALIGN, 0.2 * (double)p->rows, col_sum_part, p);
    return ZB_OK;
}

/* LayerNorm's, and with mean and dbeta NULL RMSNorm's. */
static void norm_bwd_w(const struct zb_k_layernorm_bwd_w *p, int64_t begin,
                       int64_t end)
{
    struct col_sums s;

    for (int64_t c = begin; c < end; c += COL_BLOCK) {
        int64_t n = block_at(c, end);

        sums_start(&s);
        for (int64_t r = 0; r < p->rows; r++) {
            int64_t at = r * p->cols + c;

            zb_norm_bwd_w_row(n, p->dy + at, p->x + at,
                              p->mean != NULL ? p->mean[r] : ZB_R(0),
                              p->rstd[r], s.group[0],
                              p->dbeta != NULL ? s.group[1] : NULL);
            if ((r + 1) % ROW_GROUP == 0 || r + 1 == p->rows) {
                sums_end_group(&s);
            }
        }
        sums_add_to(&s, 0, n, p->dgamma + c);
        if (p->dbeta != NULL) {
            sums_add_to(&s, 1, n, p->dbeta + c);
        }
    }
}

static void norm_bwd_w_part(const struct zb_device *dev, const void *arg,
                            int64_t begin, int64_t end, int thread)
{
    (void)dev;
    (void)thread;
    norm_bwd_w(arg, begin, end);
}

enum zb_status zb_cpu_layernorm_bwd_w(struct zb_device *dev, const void *params)
{
    const struct zb_k_layernorm_bwd_w *p = params;

    zb_cpu_for(dev, p->cols, COL_ALIGN, 0.4 * (double)p->rows, norm_bwd_w_part,
               p);
    return ZB_OK;
}

enum zb_status zb_cpu_rmsnorm_bwd_w(struct zb_device *dev, const void *params)
{
    const struct zb_k_rmsnorm_bwd_w *p = params;
    const struct zb_k_layernorm_bwd_w as_layernorm = {
        .rows = p->rows,
        .cols = p->cols,
        .dy = p->dy,
        .x = p->x,
        .rstd = p->rstd,
        .dgamma = p->dgamma,
    };

    return zb_cpu_layernorm_bwd_w(dev, &as_layernorm);
}

static void embedding_bwd_w_part(const struct zb_device *dev, const void *arg,
                                 int64_t begin, int64_t end, int thread)
{
    const struct zb_k_embedding_bwd_w *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t r = 0; r < p->rows; r++) {
        int64_t id = p->id[r], at = id - p->first;
        const zb_real *dy = p->dy + r * p->lddy + begin;
        zb_real *dtable;

        if (at < 0 || at >= p->n_ids || id >= p->whole ||
            id == p->padding_idx) {
            continue;
        }
        dtable = p->dtable + at * p->cols + begin;
        ZB_EACH(i, end - begin) {
            dtable[i] += dy[i];
        }
    }
}

enum zb_status zb_cpu_embedding_bwd_w(struct zb_device *dev, const void *params)
{
    const struct zb_k_embedding_bwd_w *p = params;

    zb_cpu_for(dev, p->cols, COL_ALIGN, 0.4 * (double)p->rows,
               embedding_bwd_w_part, p);
    return ZB_OK;
}

static void position_bwd_w_part(const struct zb_device *dev, const void *arg,
                                int64_t begin, int64_t end, int thread)
{
    const struct zb_k_position_bwd_w *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        int64_t row =
            p->offset + zb_place_row(p->place.len, p->place.first, t);
        zb_real *dtable = p->dtable + row * p->cols;

        for (int64_t b = 0; row < p->n_pos && b < p->batch; b++) {
            const zb_real *dy = p->dy + (b * p->seq + t) * p->cols;

            ZB_EACH(i, p->cols) {
                dtable[i] += dy[i];
            }
        }
    }
}

enum zb_status zb_cpu_position_bwd_w(struct zb_device *dev, const void *params)
{
    const struct zb_k_position_bwd_w *p = params;

    zb_cpu_for(dev, p->seq, 1, 0.3 * (double)(p->batch * p->cols),
               position_bwd_w_part, p);
    return ZB_OK;
}

/* Sums in double, by blocks: a group of blocks is summed in parallel, then
 * added in order. */
#define SUM_BLOCK 4096
#define SUM_GROUP 512

struct sum_group {
    int64_t n; /* elements */
    const zb_real *x;
    int is_squared;
    double *part; /* [SUM_GROUP] */
};

static void sum_part(const struct zb_device *dev, const void *arg,
                     int64_t begin, int64_t end, int thread)
{
    const struct sum_group *g = arg;

    (void)dev;
    (void)thread;
    for (int64_t k = begin; k < end; k++) {
        const zb_real *x = g->x + k * SUM_BLOCK;
        int64_t left = g->n - k * SUM_BLOCK;
        int64_t n = left < SUM_BLOCK ? left : SUM_BLOCK;
        double sum = 0;

        if (g->is_squared) {
            ZB_EACH_SUM(i, n, sum) {
                sum += (double)x[i] * (double)x[i];
            }
        } else {
            ZB_EACH_SUM(i, n, sum) {
                sum += (double)x[i];
            }
        }
        g->part[k] = sum;
    }
}

static void sum_f64(struct zb_device *dev, int64_t n, const zb_real *x,
                    int is_squared, double *y)
{
    double part[SUM_GROUP], sum = 0;

    for (int64_t i = 0; i < n; i += (int64_t)SUM_GROUP * SUM_BLOCK) {
        int64_t left = n - i, most = (int64_t)SUM_GROUP * SUM_BLOCK;
        struct sum_group g = {left < most ? left : most, x + i, is_squared,
                              part};
        int64_t n_blocks = (g.n + SUM_BLOCK - 1) / SUM_BLOCK;

        zb_cpu_for(dev, n_blocks, 1, 0.3 * SUM_BLOCK, sum_part, &g);
        for (int64_t k = 0; k < n_blocks; k++) {
            sum += part[k];
        }
    }
    *y = sum;
}

enum zb_status zb_cpu_sum_f64(struct zb_device *dev, const void *params)
{
    const struct zb_k_sum_f64 *p = params;

    sum_f64(dev, p->n, p->x, 0, p->y);
    return ZB_OK;
}

enum zb_status zb_cpu_sumsq_f64(struct zb_device *dev, const void *params)
{
    const struct zb_k_sumsq_f64 *p = params;

    sum_f64(dev, p->n, p->x, 1, p->y);
    return ZB_OK;
}
