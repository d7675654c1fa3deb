/* SPDX-License-Identifier: MIT
 *
 * The loops of cpu_rows.c. A template of kern/each_storage.h.
 */
#include "kern/ew.h"
#include "kern/norm.h"
#include "kern/rope.h"
#include "kern/xent_row.h"

/* LayerNorm's, and with mean NULL RMSNorm's. */
static void ZB_AS(norm_fwd_part)(const struct zb_device *dev, const void *arg,
                                 int64_t begin, int64_t end, int thread)
{
    const struct zb_k_layernorm_fwd *p = arg;
    zb_real eps = (zb_real)p->eps;

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const ZB_ST *x = (const ZB_ST *)p->x + r * p->cols;
        ZB_ST *y = (ZB_ST *)p->y + r * p->cols;
        int64_t at = zb_norm_group_at(r, p->groups, p->cols);
        const ZB_ST *beta = p->beta;

        if (p->mean != NULL) {
            ZB_AS(zb_layernorm_row)
            (p->cols, eps, x, (const ZB_ST *)p->gamma + at,
             beta != NULL ? beta + at : NULL, y, p->mean + r, p->rstd + r);
        } else {
            ZB_AS(zb_rmsnorm_row)(p->cols, eps, x, p->gamma, y, p->rstd + r);
        }
    }
}

static void ZB_AS(norm_bwd_part)(const struct zb_device *dev, const void *arg,
                                 int64_t begin, int64_t end, int thread)
{
    const struct zb_k_layernorm_bwd *p = arg;
    const ZB_ST *dy = p->dy, *x = p->x, *addend = p->addend;
    ZB_ST *dx = p->dx;

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        int64_t at = r * p->cols;
        const ZB_ST *more = addend != NULL ? addend + at : NULL;

        if (p->mean != NULL) {
            ZB_AS(zb_layernorm_bwd_row)
            (p->cols, dy + at, x + at,
             (const ZB_ST *)p->gamma + zb_norm_group_at(r, p->groups, p->cols),
             p->mean[r], p->rstd[r], more, dx + at);
        } else {
            ZB_AS(zb_rmsnorm_bwd_row)
            (p->cols, dy + at, x + at, p->gamma, p->rstd[r], more, dx + at);
        }
    }
}

static void ZB_AS(position_fwd_part)(const struct zb_device *dev,
                                     const void *arg, int64_t begin,
                                     int64_t end, int thread)
{
    const struct zb_k_position_fwd *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const ZB_ST *row = (const ZB_ST *)p->table +
                           zb_place_table_row(p->place.len, p->place.first,
                                              r % p->seq, p->offset, p->n_pos) *
                               p->cols;
        const ZB_ST *x = (const ZB_ST *)p->x + r * p->cols;
        ZB_ST *y = (ZB_ST *)p->y + r * p->cols;

        ZB_AS(zb_add_run)(p->cols, x, row, y);
    }
}

static void ZB_AS(rope_part)(const struct zb_device *dev, const void *arg,
                             int64_t begin, int64_t end, int thread)
{
    const struct zb_k_rope *p = arg;
    const ZB_ST *x = p->x;
    ZB_ST *y = p->y;
    zb_real sign = p->inverse ? ZB_R(-1) : ZB_R(1);

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        int64_t pos = zb_place_table_row(p->place.len, p->place.first,
                                         r % p->seq, 0, p->n_pos);

        for (int64_t h = 0; h < p->heads; h++) {
            ZB_AS(zb_rope_head)
            (p->head_dim, p->half, p->interleaved, p->cos + pos * p->half,
             p->sin + pos * p->half, sign, x + r * p->x_row + h * p->x_head,
             y + r * p->y_row + h * p->y_head);
        }
    }
}

static void ZB_AS(merge_rows)(const struct zb_k_attention_merge *p, int64_t b,
                              int64_t i)
{
    int64_t row = p->heads * p->head_dim;
    ZB_ST *out = (ZB_ST *)p->out + b * p->out_batch + i * row;
    const ZB_ST *more = (const ZB_ST *)p->more + (b * p->seq + i) * row;

    for (int64_t h = 0; h < p->heads; h++) {
        zb_real *lse = p->lse + (b * p->heads + h) * p->lse_row + i;
        zb_real x = p->more_lse[(b * p->heads + h) * p->seq + i];
        zb_real top = *lse > x ? *lse : x;
        zb_real mine = zb_exp(*lse - top), other = zb_exp(x - top);
        zb_real share = ZB_R(1) / (mine + other);

        *lse = top + zb_log(mine + other);
        mine *= share;
        other *= share;
        ZB_EACH(d, p->head_dim) {
            out[d] = ZB_TO(mine * ZB_LD(out[d]) + other * ZB_LD(more[d]));
        }
        out += p->head_dim;
        more += p->head_dim;
    }
}

static void ZB_AS(attention_merge_part)(const struct zb_device *dev,
                                        const void *arg, int64_t begin,
                                        int64_t end, int thread)
{
    const struct zb_k_attention_merge *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        ZB_AS(merge_rows)(p, r / p->seq, r % p->seq);
    }
}
