/* SPDX-License-Identifier: MIT
 *
 * Sums over rows: gradients of biases, norms, tables. Each thread has columns
 * of its own and goes through all rows in order. Sums over many rows are kept
 * per group of rows first, which is more exact than one long sum.
 */
#include "config.h"

#include "backend/cpu/cpu_int.h"
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

/* Sums in double, by blocks: a group of blocks is summed in parallel, then
 * added in order. */
#define SUM_BLOCK 4096
#define SUM_GROUP 512

struct sum_group {
    int64_t first, n; /* elements of x */
    const void *x;
    int is_squared;
    double *part; /* [SUM_GROUP] */
};

#define ZB_TEMPLATE "backend/cpu/cpu_cols_typed.h"
#include "kern/each_storage.h"

enum zb_status zb_cpu_col_sum(struct zb_device *dev, const void *params)
{
    static const zb_cpu_part_fn part[] = ZB_CPU_PARTS(col_sum_part);
    const struct zb_k_col_sum *p = params;

    return zb_cpu_for_type(dev, p->dtype, part, p->cols, COL_ALIGN,
                           0.2 * (double)p->rows, p);
}

enum zb_status zb_cpu_layernorm_bwd_w(struct zb_device *dev, const void *params)
{
    static const zb_cpu_part_fn part[] = ZB_CPU_PARTS(norm_bwd_w_part);
    const struct zb_k_layernorm_bwd_w *p = params;
    int64_t groups = p->groups > 1 ? p->groups : 1;

    return zb_cpu_for_type(dev, p->dtype, part, groups * p->cols, COL_ALIGN,
                           0.4 * (double)(p->rows / groups), p);
}

enum zb_status zb_cpu_rmsnorm_bwd_w(struct zb_device *dev, const void *params)
{
    const struct zb_k_rmsnorm_bwd_w *p = params;
    const struct zb_k_layernorm_bwd_w as_layernorm = {
        .rows = p->rows,
        .cols = p->cols,
        .dtype = p->dtype,
        .dy = p->dy,
        .x = p->x,
        .rstd = p->rstd,
        .dgamma = p->dgamma,
    };

    return zb_cpu_layernorm_bwd_w(dev, &as_layernorm);
}

enum zb_status zb_cpu_embedding_bwd_w(struct zb_device *dev, const void *params)
{
    static const zb_cpu_part_fn part[] = ZB_CPU_PARTS(embedding_bwd_w_part);
    const struct zb_k_embedding_bwd_w *p = params;

    return zb_cpu_for_type(dev, p->dtype, part, p->cols, COL_ALIGN,
                           0.4 * (double)p->rows, p);
}

enum zb_status zb_cpu_position_bwd_w(struct zb_device *dev, const void *params)
{
    static const zb_cpu_part_fn part[] = ZB_CPU_PARTS(position_bwd_w_part);
    const struct zb_k_position_bwd_w *p = params;

    return zb_cpu_for_type(dev, p->dtype, part, p->seq, 1,
                           0.3 * (double)(p->batch * p->cols), p);
}

static enum zb_status sum_f64(struct zb_device *dev,
                              const struct zb_k_sum_f64 *p, int is_squared)
{
    static const zb_cpu_part_fn parts[] = ZB_CPU_PARTS(sum_part);
    double part[SUM_GROUP], sum = 0;

    ZB_TRY(zb_cpu_check_type(p->dtype));
    for (int64_t i = 0; i < p->n; i += (int64_t)SUM_GROUP * SUM_BLOCK) {
        int64_t left = p->n - i, most = (int64_t)SUM_GROUP * SUM_BLOCK;
        struct sum_group g = {i, left < most ? left : most, p->x, is_squared,
                              part};
        int64_t n_blocks = (g.n + SUM_BLOCK - 1) / SUM_BLOCK;

        zb_cpu_for(dev, n_blocks, 1, 0.3 * SUM_BLOCK, parts[p->dtype], &g);
        for (int64_t k = 0; k < n_blocks; k++) {
            sum += part[k];
        }
    }
    *p->y = sum;
    return ZB_OK;
}

enum zb_status zb_cpu_sum_f64(struct zb_device *dev, const void *params)
{
    return sum_f64(dev, params, 0);
}

enum zb_status zb_cpu_sumsq_f64(struct zb_device *dev, const void *params)
{
    const struct zb_k_sumsq_f64 *p = params;
    const struct zb_k_sum_f64 as_sum = {p->n, p->dtype, p->x, p->y};

    return sum_f64(dev, &as_sum, 1);
}
