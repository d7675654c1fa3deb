/* SPDX-License-Identifier: MIT
 *
 * Kernels without any sum: elements and rows on their own.
 */
#include "config.h"

#include <string.h>

#include "backend/cpu/cpu_int.h"
#include "kern/philox.h"

/* Parts of element loops end at multiples of this, so that the compiler's
 * vector loop and its remainder see the same elements for every team. */
#define ALIGN 64

/* Random numbers come in blocks of four, so dropout goes through its sample in
 * pieces of whole blocks. */
#define DROP_BLOCKS 64

#define ZB_TEMPLATE "backend/cpu/cpu_ew_typed.h"
#include "kern/each_storage.h"

enum zb_status zb_cpu_act_fwd(struct zb_device *dev, const void *params)
{
    static const zb_cpu_part_fn part[] = ZB_CPU_PARTS(act_fwd_part);
    const struct zb_k_act_fwd *p = params;

    return zb_cpu_for_type(dev, p->dtype, part, p->n, ALIGN, 1.0, p);
}

enum zb_status zb_cpu_act_bwd(struct zb_device *dev, const void *params)
{
    static const zb_cpu_part_fn part[] = ZB_CPU_PARTS(act_bwd_part);
    const struct zb_k_act_bwd *p = params;

    return zb_cpu_for_type(dev, p->dtype, part, p->n, ALIGN, 1.0, p);
}

enum zb_status zb_cpu_gated_fwd(struct zb_device *dev, const void *params)
{
    static const zb_cpu_part_fn part[] = ZB_CPU_PARTS(gated_fwd_part);
    const struct zb_k_gated_fwd *p = params;

    return zb_cpu_for_type(dev, p->dtype, part, p->rows, 1, (double)p->cols, p);
}

enum zb_status zb_cpu_gated_bwd(struct zb_device *dev, const void *params)
{
    static const zb_cpu_part_fn part[] = ZB_CPU_PARTS(gated_bwd_part);
    const struct zb_k_gated_bwd *p = params;

    return zb_cpu_for_type(dev, p->dtype, part, p->rows, 1,
                           2.0 * (double)p->cols, p);
}

enum zb_status zb_cpu_add(struct zb_device *dev, const void *params)
{
    static const zb_cpu_part_fn part[] = ZB_CPU_PARTS(add_part);
    const struct zb_k_add *p = params;

    return zb_cpu_for_type(dev, p->dtype, part, p->n, ALIGN, 0.3, p);
}

enum zb_status zb_cpu_fill(struct zb_device *dev, const void *params)
{
    static const zb_cpu_part_fn part[] = ZB_CPU_PARTS(fill_part);
    const struct zb_k_fill *p = params;

    return zb_cpu_for_type(dev, p->dtype, part, p->n, ALIGN, 0.15, p);
}

enum zb_status zb_cpu_scale(struct zb_device *dev, const void *params)
{
    static const zb_cpu_part_fn part[] = ZB_CPU_PARTS(scale_part);
    const struct zb_k_scale *p = params;

    return zb_cpu_for_type(dev, p->dtype, part, p->n, ALIGN, 0.3, p);
}

void zb_cpu_load(enum zb_dtype dtype, int64_t n, const void *x, zb_real *y)
{
    static void (*const fn[ZB_N_STORAGE])(int64_t, const void *, zb_real *) =
        ZB_CPU_PARTS(load);

    fn[dtype](n, x, y);
}

void zb_cpu_store(enum zb_dtype dtype, int64_t n, const zb_real *x, void *y)
{
    static void (*const fn[ZB_N_STORAGE])(int64_t, const zb_real *, void *) =
        ZB_CPU_PARTS(store);

    fn[dtype](n, x, y);
}

#define CONVERT_BLOCK 1024

static void convert_part(const struct zb_device *dev, const void *arg,
                         int64_t begin, int64_t end, int thread)
{
    const struct zb_k_convert *p = arg;
    int64_t x_bytes = (int64_t)zb_dtype_bytes(p->x_dtype);
    int64_t y_bytes = (int64_t)zb_dtype_bytes(p->y_dtype);
    zb_real block[CONVERT_BLOCK];

    (void)dev;
    (void)thread;
    if (p->x_dtype == p->y_dtype) {
        memcpy((char *)p->y + begin * y_bytes,
               (const char *)p->x + begin * x_bytes,
               (size_t)((end - begin) * x_bytes));
        return;
    }
    for (int64_t i = begin; i < end; i += CONVERT_BLOCK) {
        int64_t n = end - i < CONVERT_BLOCK ? end - i : CONVERT_BLOCK;

        zb_cpu_load(p->x_dtype, n, (const char *)p->x + i * x_bytes, block);
        zb_cpu_store(p->y_dtype, n, block, (char *)p->y + i * y_bytes);
    }
}

enum zb_status zb_cpu_convert(struct zb_device *dev, const void *params)
{
    const struct zb_k_convert *p = params;

    ZB_TRY(zb_cpu_check_type(p->x_dtype));
    ZB_TRY(zb_cpu_check_type(p->y_dtype));
    zb_cpu_for(dev, p->n, ALIGN, 0.3, convert_part, p);
    return ZB_OK;
}

enum zb_status zb_cpu_dropout(struct zb_device *dev, const void *params)
{
    static const zb_cpu_part_fn part[] = ZB_CPU_PARTS(dropout_part);
    const struct zb_k_dropout *p = params;

    return zb_cpu_for_type(dev, p->dtype, part, p->batch, 1,
                           3.0 * (double)p->per_sample, p);
}

enum zb_status zb_cpu_mse_fwd(struct zb_device *dev, const void *params)
{
    static const zb_cpu_part_fn part[] = ZB_CPU_PARTS(mse_fwd_part);
    const struct zb_k_mse_fwd *p = params;

    return zb_cpu_for_type(dev, p->dtype, part, p->n, ALIGN, 0.3, p);
}

enum zb_status zb_cpu_mse_bwd(struct zb_device *dev, const void *params)
{
    static const zb_cpu_part_fn part[] = ZB_CPU_PARTS(mse_bwd_part);
    const struct zb_k_mse_bwd *p = params;

    return zb_cpu_for_type(dev, p->dtype, part, p->n, ALIGN, 0.3, p);
}
