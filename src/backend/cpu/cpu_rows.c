/* SPDX-License-Identifier: MIT
 *
 * Kernels that go row by row: norms, loss, embedding, positions, rope.
 */
#include "config.h"

#include <string.h>

#include "backend/cpu/cpu_int.h"
#include "kern/norm.h"
#include "kern/place.h"
#include "kern/rope.h"
#include "kern/xent.h"

static void layernorm_fwd_part(const struct zb_device *dev, const void *arg,
                               int64_t begin, int64_t end, int thread)
{
    const struct zb_k_layernorm_fwd *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        zb_layernorm_row(p->cols, (zb_real)p->eps, p->x + r * p->cols, p->gamma,
                         p->beta, p->y + r * p->cols, p->mean + r,
                         p->rstd + r);
    }
}

enum zb_status zb_cpu_layernorm_fwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_layernorm_fwd *p = params;

    zb_cpu_for(dev, p->rows, 1, 0.5 * (double)p->cols, layernorm_fwd_part, p);
    return ZB_OK;
}

static void layernorm_bwd_part(const struct zb_device *dev, const void *arg,
                               int64_t begin, int64_t end, int thread)
{
    const struct zb_k_layernorm_bwd *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        int64_t at = r * p->cols;

        zb_layernorm_bwd_row(p->cols, p->dy + at, p->x + at, p->gamma,
                             p->mean[r], p->rstd[r],
                             p->addend != NULL ? p->addend + at : NULL,
                             p->dx + at);
    }
}

enum zb_status zb_cpu_layernorm_bwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_layernorm_bwd *p = params;

    zb_cpu_for(dev, p->rows, 1, 0.7 * (double)p->cols, layernorm_bwd_part, p);
    return ZB_OK;
}

static void rmsnorm_fwd_part(const struct zb_device *dev, const void *arg,
                             int64_t begin, int64_t end, int thread)
{
    const struct zb_k_rmsnorm_fwd *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        zb_rmsnorm_row(p->cols, (zb_real)p->eps, p->x + r * p->cols, p->gamma,
                       p->y + r * p->cols, p->rstd + r);
    }
}

enum zb_status zb_cpu_rmsnorm_fwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_rmsnorm_fwd *p = params;

    zb_cpu_for(dev, p->rows, 1, 0.4 * (double)p->cols, rmsnorm_fwd_part, p);
    return ZB_OK;
}

static void rmsnorm_bwd_part(const struct zb_device *dev, const void *arg,
                             int64_t begin, int64_t end, int thread)
{
    const struct zb_k_rmsnorm_bwd *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        int64_t at = r * p->cols;

        zb_rmsnorm_bwd_row(p->cols, p->dy + at, p->x + at, p->gamma, p->rstd[r],
                           p->addend != NULL ? p->addend + at : NULL,
                           p->dx + at);
    }
}

enum zb_status zb_cpu_rmsnorm_bwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_rmsnorm_bwd *p = params;

    zb_cpu_for(dev, p->rows, 1, 0.5 * (double)p->cols, rmsnorm_bwd_part, p);
    return ZB_OK;
}

static void xent_fwd_part(const struct zb_device *dev, const void *arg,
                          int64_t begin, int64_t end, int thread)
{
    const struct zb_k_xent_fwd *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        zb_xent_row(p->cols, p->logits + r * p->ld, p->label[r], p->loss + r,
                    p->lse + r);
    }
}

enum zb_status zb_cpu_xent_fwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_xent_fwd *p = params;

    zb_cpu_for(dev, p->rows, 1, (double)p->cols, xent_fwd_part, p);
    return ZB_OK;
}

static void xent_part_part(const struct zb_device *dev, const void *arg,
                           int64_t begin, int64_t end, int thread)
{
    const struct zb_k_xent_part *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        zb_xent_part_row(p->cols, p->first, p->logits + r * p->ld, p->label[r],
                         p->stats + 3 * r);
    }
}

enum zb_status zb_cpu_xent_part(struct zb_device *dev, const void *params)
{
    const struct zb_k_xent_part *p = params;

    zb_cpu_for(dev, p->rows, 1, (double)p->cols, xent_part_part, p);
    return ZB_OK;
}

static void xent_join_part(const struct zb_device *dev, const void *arg,
                           int64_t begin, int64_t end, int thread)
{
    const struct zb_k_xent_join *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        zb_xent_join_row(p->n_parts, p->n_class, p->stats + 3 * p->n_parts * r,
                         p->label[r], p->loss + r, p->lse + r);
    }
}

enum zb_status zb_cpu_xent_join(struct zb_device *dev, const void *params)
{
    const struct zb_k_xent_join *p = params;

    zb_cpu_for(dev, p->rows, 1, 4.0 * (double)p->n_parts, xent_join_part, p);
    return ZB_OK;
}

static void xent_bwd_part(const struct zb_device *dev, const void *arg,
                          int64_t begin, int64_t end, int thread)
{
    const struct zb_k_xent_bwd *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        zb_real *d = p->dlogits + r * p->ld_d;

        zb_xent_bwd_row(p->cols, p->first, p->n_class, (zb_real)p->scale,
                        p->logits + r * p->ld, p->lse[r], p->label[r], d);
        ZB_EACH(i, p->n_pad) {
            d[p->cols + i] = 0;
        }
    }
}

enum zb_status zb_cpu_xent_bwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_xent_bwd *p = params;

    zb_cpu_for(dev, p->rows, 1, (double)p->cols, xent_bwd_part, p);
    return ZB_OK;
}

static void embedding_fwd_part(const struct zb_device *dev, const void *arg,
                               int64_t begin, int64_t end, int thread)
{
    const struct zb_k_embedding_fwd *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        int64_t id = p->id[r], at = id - p->first;
        int is_row = id >= 0 && id < p->whole;
        zb_real *y = p->y + r * p->ldy;

        if (is_row && at >= 0 && at < p->n_ids) {
            memcpy(y, p->table + at * p->cols,
                   (size_t)p->cols * sizeof(zb_real));
            continue;
        }
        ZB_EACH(i, p->cols) {
            y[i] = is_row ? ZB_R(0) : (zb_real)NAN;
        }
    }
}

enum zb_status zb_cpu_embedding_fwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_embedding_fwd *p = params;

    zb_cpu_for(dev, p->rows, 1, 0.3 * (double)p->cols, embedding_fwd_part, p);
    return ZB_OK;
}

/* Padding may reach past the table. */
static int64_t table_row(const struct zb_k_place *place, int64_t t,
                         int64_t offset, int64_t n_pos)
{
    int64_t row = offset + zb_place_row(place->len, place->first, t);

    return row < n_pos ? row : n_pos - 1;
}

static void position_fwd_part(const struct zb_device *dev, const void *arg,
                              int64_t begin, int64_t end, int thread)
{
    const struct zb_k_position_fwd *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const zb_real *row =
            p->table + table_row(&p->place, r % p->seq, p->offset, p->n_pos) *
                           p->cols;
        const zb_real *x = p->x + r * p->cols;
        zb_real *y = p->y + r * p->cols;

        ZB_EACH(i, p->cols) {
            y[i] = x[i] + row[i];
        }
    }
}

enum zb_status zb_cpu_position_fwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_position_fwd *p = params;

    zb_cpu_for(dev, p->batch * p->seq, 1, 0.3 * (double)p->cols,
               position_fwd_part, p);
    return ZB_OK;
}

/* One head, at row `pos` of its sequence. */
static void rope_head(const struct zb_k_rope *p, int64_t pos, const zb_real *x,
                      zb_real *y)
{
    const zb_real *cosine = p->cos + pos * p->half;
    const zb_real *sine = p->sin + pos * p->half;
    zb_real sign = p->inverse ? ZB_R(-1) : ZB_R(1);

    if (p->interleaved) {
        zb_rope_pairs(p->half, cosine, sine, sign, x, y);
    } else {
        zb_rope_halves(p->half, cosine, sine, sign, x, y);
    }
    if (x != y) {
        for (int64_t i = 2 * p->half; i < p->head_dim; i++) {
            y[i] = x[i];
        }
    }
}

static void rope_part(const struct zb_device *dev, const void *arg,
                      int64_t begin, int64_t end, int thread)
{
    const struct zb_k_rope *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        int64_t pos = table_row(&p->place, r % p->seq, 0, p->n_pos);

        for (int64_t h = 0; h < p->heads; h++) {
            rope_head(p, pos, p->x + r * p->x_row + h * p->x_head,
                      p->y + r * p->y_row + h * p->y_head);
        }
    }
}

enum zb_status zb_cpu_rope(struct zb_device *dev, const void *params)
{
    const struct zb_k_rope *p = params;

    zb_cpu_for(dev, p->batch * p->seq, 1,
               0.5 * (double)(p->heads * p->head_dim), rope_part, p);
    return ZB_OK;
}
