/* SPDX-License-Identifier: MIT
 *
 * The loops of cpu_cols.c. A template of kern/each_storage.h.
 */
#include "kern/ew.h"
#include "kern/norm.h"

static void ZB_AS(col_sum_part)(const struct zb_device *dev, const void *arg,
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
            const ZB_ST *x = (const ZB_ST *)p->x + r * p->ldx + c;

            ZB_AS(zb_add_to_run)(n, x, group);
            if ((r + 1) % ROW_GROUP == 0 || r + 1 == p->rows) {
                sums_end_group(&s);
            }
        }
        sums_add_to(&s, 0, n, p->y + c);
    }
}

/* LayerNorm's, and with mean and dbeta NULL RMSNorm's. */
static void ZB_AS(norm_bwd_w_part)(const struct zb_device *dev, const void *arg,
                                   int64_t begin, int64_t end, int thread)
{
    const struct zb_k_layernorm_bwd_w *p = arg;
    const ZB_ST *dy = p->dy, *x = p->x;
    int64_t groups = p->groups > 1 ? p->groups : 1, rows = p->rows / groups, n;
    struct col_sums s;

    (void)dev;
    (void)thread;
    for (int64_t c = begin; c < end; c += n) {
        int64_t g = c / p->cols, group_end = (g + 1) * p->cols;

        n = block_at(c, end < group_end ? end : group_end);
        sums_start(&s);
        for (int64_t r = 0; r < rows; r++) {
            int64_t at = r * groups * p->cols + c, row = r * groups + g;

            ZB_AS(zb_norm_bwd_w_row)
            (n, dy + at, x + at, p->mean != NULL ? p->mean[row] : ZB_R(0),
             p->rstd[row], s.group[0], p->dbeta != NULL ? s.group[1] : NULL);
            if ((r + 1) % ROW_GROUP == 0 || r + 1 == rows) {
                sums_end_group(&s);
            }
        }
        sums_add_to(&s, 0, n, p->dgamma + c);
        if (p->dbeta != NULL) {
            sums_add_to(&s, 1, n, p->dbeta + c);
        }
    }
}

static void ZB_AS(sum_part)(const struct zb_device *dev, const void *arg,
                            int64_t begin, int64_t end, int thread)
{
    const struct sum_group *g = arg;

    (void)dev;
    (void)thread;
    for (int64_t k = begin; k < end; k++) {
        int64_t at = g->first + k * SUM_BLOCK, left = g->n - k * SUM_BLOCK;
        int64_t n = left < SUM_BLOCK ? left : SUM_BLOCK;
        const ZB_ST *x = (const ZB_ST *)g->x + at;

        g->part[k] = ZB_AS(zb_sum_run)(n, g->is_squared, x);
    }
}

static void ZB_AS(position_bwd_w_part)(const struct zb_device *dev,
                                       const void *arg, int64_t begin,
                                       int64_t end, int thread)
{
    const struct zb_k_position_bwd_w *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        int64_t row = p->offset + zb_place_row(p->place.len, p->place.first, t);
        zb_real *dtable = p->dtable + row * p->cols;

        for (int64_t b = 0; row < p->n_pos && b < p->batch; b++) {
            const ZB_ST *dy = (const ZB_ST *)p->dy + (b * p->seq + t) * p->cols;

            ZB_AS(zb_add_to_run)(p->cols, dy, dtable);
        }
    }
}

static void ZB_AS(embedding_bwd_w_part)(const struct zb_device *dev,
                                        const void *arg, int64_t begin,
                                        int64_t end, int thread)
{
    const struct zb_k_embedding_bwd_w *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t r = 0; r < p->rows; r++) {
        int64_t id = p->offset + p->id[r], at = id - p->first;
        const ZB_ST *dy = (const ZB_ST *)p->dy + r * p->lddy + begin;
        zb_real *dtable;

        if (at < 0 || at >= p->n_ids || id >= p->whole ||
            id == p->padding_idx) {
            continue;
        }
        dtable = p->dtable + at * p->cols + begin;
        ZB_AS(zb_add_to_run)(end - begin, dy, dtable);
    }
}
