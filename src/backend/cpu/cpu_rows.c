/* SPDX-License-Identifier: MIT
 *
 * Kernels that go row by row: norms, loss, embedding, positions, rope.
 */
#include "config.h"

#include <string.h>

#include "backend/cpu/cpu_int.h"
#include "kern/place.h"

#define ZB_TEMPLATE "backend/cpu/cpu_rows_typed.h"
#include "kern/each_storage.h"

enum zb_status zb_cpu_layernorm_fwd(struct zb_device *dev, const void *params)
{
    static const zb_cpu_part_fn part[] = ZB_CPU_PARTS(norm_fwd_part);
    const struct zb_k_layernorm_fwd *p = params;

    return zb_cpu_for_type(dev, p->dtype, part, p->rows, 1,
                           0.5 * (double)p->cols, p);
}

enum zb_status zb_cpu_layernorm_bwd(struct zb_device *dev, const void *params)
{
    static const zb_cpu_part_fn part[] = ZB_CPU_PARTS(norm_bwd_part);
    const struct zb_k_layernorm_bwd *p = params;

    return zb_cpu_for_type(dev, p->dtype, part, p->rows, 1,
                           0.7 * (double)p->cols, p);
}

enum zb_status zb_cpu_rmsnorm_fwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_rmsnorm_fwd *p = params;
    const struct zb_k_layernorm_fwd as_layernorm = {
        .rows = p->rows,
        .cols = p->cols,
        .eps = p->eps,
        .dtype = p->dtype,
        .x = p->x,
        .gamma = p->gamma,
        .y = p->y,
        .rstd = p->rstd,
    };

    return zb_cpu_layernorm_fwd(dev, &as_layernorm);
}

enum zb_status zb_cpu_rmsnorm_bwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_rmsnorm_bwd *p = params;
    const struct zb_k_layernorm_bwd as_layernorm = {
        .rows = p->rows,
        .cols = p->cols,
        .dtype = p->dtype,
        .dy = p->dy,
        .x = p->x,
        .gamma = p->gamma,
        .addend = p->addend,
        .rstd = p->rstd,
        .dx = p->dx,
    };

    return zb_cpu_layernorm_bwd(dev, &as_layernorm);
}

/* Losses go through rows of logits more than once: rows of 16 bits are
 * converted first. */
static enum zb_status reserve_row(struct zb_device *dev, enum zb_dtype dtype,
                                  int64_t n)
{
    ZB_TRY(zb_cpu_check_type(dtype));
    return dtype == ZB_DTYPE_REAL
               ? ZB_OK
               : zb_cpu_scratch_reserve(dev, (size_t)n * sizeof(zb_real));
}

static const zb_real *load_row(enum zb_dtype dtype, const void *x, int64_t at,
                               int64_t n, void *room)
{
    if (dtype == ZB_DTYPE_REAL) {
        return (const zb_real *)x + at;
    }
    zb_cpu_load(dtype, n,
                (const char *)x + at * (int64_t)zb_dtype_bytes(dtype), room);
    return room;
}

static void xent_fwd_part(const struct zb_device *dev, const void *arg,
                          int64_t begin, int64_t end, int thread)
{
    const struct zb_k_xent_fwd *p = arg;

    for (int64_t r = begin; r < end; r++) {
        const zb_real *x = load_row(p->dtype, p->logits, r * p->ld, p->cols,
                                    dev->scratch[thread].ptr);

        zb_xent_row_real(p->cols, x, p->label[r], p->loss + r, p->lse + r);
    }
}

enum zb_status zb_cpu_xent_fwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_xent_fwd *p = params;

    ZB_TRY(reserve_row(dev, p->dtype, p->cols));
    zb_cpu_for(dev, p->rows, 1, (double)p->cols, xent_fwd_part, p);
    return ZB_OK;
}

static void xent_part_part(const struct zb_device *dev, const void *arg,
                           int64_t begin, int64_t end, int thread)
{
    const struct zb_k_xent_part *p = arg;

    for (int64_t r = begin; r < end; r++) {
        const zb_real *x = load_row(p->dtype, p->logits, r * p->ld, p->cols,
                                    dev->scratch[thread].ptr);

        zb_xent_part_row_real(p->cols, p->first, x, p->label[r],
                              p->stats + 3 * r);
    }
}

enum zb_status zb_cpu_xent_part(struct zb_device *dev, const void *params)
{
    const struct zb_k_xent_part *p = params;

    ZB_TRY(reserve_row(dev, p->dtype, p->cols));
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
    int64_t bytes = (int64_t)zb_dtype_bytes(p->dtype);
    void *room = dev->scratch[thread].ptr;

    for (int64_t r = begin; r < end; r++) {
        const zb_real *x =
            load_row(p->dtype, p->logits, r * p->ld, p->cols, room);
        char *to = (char *)p->dlogits + r * p->ld_d * bytes;
        zb_real *d = p->dtype == ZB_DTYPE_REAL ? (zb_real *)(void *)to : room;

        zb_xent_bwd_row_real(p->cols, p->first, p->n_class, (zb_real)p->scale,
                             x, p->lse[r], p->label[r], d);
        if (p->dtype != ZB_DTYPE_REAL) {
            zb_cpu_store(p->dtype, p->cols, d, to);
        }
        if (p->n_pad > 0) {
            memset(to + p->cols * bytes, 0, (size_t)(p->n_pad * bytes));
        }
    }
}

enum zb_status zb_cpu_xent_bwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_xent_bwd *p = params;

    ZB_TRY(reserve_row(dev, p->dtype, p->cols));
    zb_cpu_for(dev, p->rows, 1, (double)p->cols, xent_bwd_part, p);
    return ZB_OK;
}

static void embedding_fwd_part(const struct zb_device *dev, const void *arg,
                               int64_t begin, int64_t end, int thread)
{
    const struct zb_k_embedding_fwd *p = arg;
    int64_t bytes = (int64_t)zb_dtype_bytes(p->dtype);

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        int64_t id = p->offset + p->id[r], at = id - p->first;
        int is_row = id >= 0 && id < p->whole;
        char *y = (char *)p->y + r * p->ldy * bytes;

        if (is_row && at >= 0 && at < p->n_ids) {
            memcpy(y, (const char *)p->table + at * p->cols * bytes,
                   (size_t)(p->cols * bytes));
            continue;
        }
        /* All bits set are a NaN of every type. */
        memset(y, is_row ? 0 : 0xff, (size_t)(p->cols * bytes));
    }
}

enum zb_status zb_cpu_embedding_fwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_embedding_fwd *p = params;

    zb_cpu_for(dev, p->rows, 1, 0.3 * (double)p->cols, embedding_fwd_part, p);
    return ZB_OK;
}

enum zb_status zb_cpu_position_fwd(struct zb_device *dev, const void *params)
{
    static const zb_cpu_part_fn part[] = ZB_CPU_PARTS(position_fwd_part);
    const struct zb_k_position_fwd *p = params;

    return zb_cpu_for_type(dev, p->dtype, part, p->batch * p->seq, 1,
                           0.3 * (double)p->cols, p);
}

enum zb_status zb_cpu_rope(struct zb_device *dev, const void *params)
{
    static const zb_cpu_part_fn part[] = ZB_CPU_PARTS(rope_part);
    const struct zb_k_rope *p = params;

    return zb_cpu_for_type(dev, p->dtype, part, p->batch * p->seq, 1,
                           0.5 * (double)(p->heads * p->head_dim), p);
}

enum zb_status zb_cpu_attention_merge(struct zb_device *dev, const void *params)
{
    static const zb_cpu_part_fn part[] = ZB_CPU_PARTS(attention_merge_part);
    const struct zb_k_attention_merge *p = params;

    return zb_cpu_for_type(dev, p->dtype, part, p->batch * p->seq, 1,
                           (double)p->heads *
                               (10 + 0.4 * (double)p->head_dim),
                           p);
}
