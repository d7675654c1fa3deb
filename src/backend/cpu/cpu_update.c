/* SPDX-License-Identifier: MIT
 *
 * Start values and optimizer steps.
 */
#include "config.h"

#include "backend/cpu/cpu_int.h"
#include "kern/update.h"

#define ALIGN 64
#define NORMAL_BLOCKS 64

/* Elements [begin, end) of the numbers after `first`; whole blocks of random
 * numbers are made, and those asked for are taken from them. */
static void fill_normal_part(const struct zb_device *dev, const void *arg,
                             int64_t begin, int64_t end, int thread)
{
    const struct zb_k_fill_normal *p = arg;
    int64_t bytes = (int64_t)zb_dtype_bytes(p->dtype);
    zb_real mean = (zb_real)p->mean, std = (zb_real)p->std;
    zb_real z[4 * NORMAL_BLOCKS];

    (void)dev;
    (void)thread;
    for (int64_t i = begin; i < end;) {
        uint64_t block = (uint64_t)(p->first + i) / 4;
        int64_t skip = (p->first + i) % 4;
        int64_t left = end - i, most = 4 * NORMAL_BLOCKS - skip;
        int64_t n = left < most ? left : most;

        ZB_EACH(k, NORMAL_BLOCKS) {
            zb_normal_block(p->seed, p->key, block + (uint64_t)k, z + 4 * k);
        }
        ZB_EACH(k, 4 * NORMAL_BLOCKS)
        {
            z[k] = mean + std * z[k];
        }
        zb_cpu_store(p->dtype, n, z + skip, (char *)p->y + i * bytes);
        i += n;
    }
}

enum zb_status zb_cpu_fill_normal(struct zb_device *dev, const void *params)
{
    const struct zb_k_fill_normal *p = params;

    ZB_TRY(zb_cpu_check_type(p->dtype));
    zb_cpu_for(dev, p->n, ALIGN, 4.0, fill_normal_part, p);
    return ZB_OK;
}

/* Elements that are updated and then stored while they are in the cache. */
#define UPDATE_BLOCK 2048

/* Parameters [begin, end) also in the type that other kernels read. */
static void store_param(enum zb_dtype dtype, const zb_real *param, void *stored,
                        int64_t begin, int64_t end)
{
    size_t at = (size_t)begin * zb_dtype_bytes(dtype);

    if (stored != NULL) {
        zb_cpu_store(dtype, end - begin, param + begin, (char *)stored + at);
    }
}

static void adamw_block(const struct zb_k_adamw *p,
                        const struct zb_adamw_coef *coef, int64_t begin,
                        int64_t end)
{
    const zb_real *grad = p->grad + begin;
    zb_real *param = p->param + begin, *m = p->m + begin, *v = p->v + begin;

    ZB_EACH(i, end - begin) {
        zb_adamw_step(coef, grad[i], &param[i], &m[i], &v[i]);
    }
}

static void adamw_part(const struct zb_device *dev, const void *arg,
                       int64_t begin, int64_t end, int thread)
{
    const struct zb_k_adamw *p = arg;
    const struct zb_adamw_coef coef =
        zb_adamw_coef_of(p->t, p->lr, p->beta1, p->beta2, p->eps,
                         p->weight_decay, p->grad_scale);

    (void)dev;
    (void)thread;
    for (int64_t i = begin; i < end; i += UPDATE_BLOCK) {
        int64_t i_end = end - i < UPDATE_BLOCK ? end : i + UPDATE_BLOCK;

        adamw_block(p, &coef, i, i_end);
        store_param(p->dtype, p->param, p->stored, i, i_end);
    }
}

enum zb_status zb_cpu_adamw(struct zb_device *dev, const void *params)
{
    const struct zb_k_adamw *p = params;

    ZB_TRY(zb_cpu_check_type(p->dtype));
    zb_cpu_for(dev, p->n, ALIGN, 1.0, adamw_part, p);
    return ZB_OK;
}

static void sgd_block(const struct zb_k_sgd *p, int64_t begin, int64_t end)
{
    const zb_real *grad = p->grad + begin;
    zb_real *param = p->param + begin;
    zb_real *buf = p->buf != NULL ? p->buf + begin : NULL;
    const struct zb_sgd_coef coef = zb_sgd_coef_of(
        p->t, p->lr, p->momentum, p->weight_decay, p->grad_scale);

    if (p->momentum == 0) {
        ZB_EACH(i, end - begin) {
            zb_sgd_step(&coef, grad[i], &param[i]);
        }
        return;
    }
    if (p->t == 1) {
        ZB_EACH(i, end - begin) {
            buf[i] = 0;
        }
    }
    ZB_EACH(i, end - begin) {
        zb_sgd_momentum_step(&coef, grad[i], &param[i], &buf[i]);
    }
}

static void sgd_part(const struct zb_device *dev, const void *arg,
                     int64_t begin, int64_t end, int thread)
{
    const struct zb_k_sgd *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t i = begin; i < end; i += UPDATE_BLOCK) {
        int64_t i_end = end - i < UPDATE_BLOCK ? end : i + UPDATE_BLOCK;

        sgd_block(p, i, i_end);
        store_param(p->dtype, p->param, p->stored, i, i_end);
    }
}

enum zb_status zb_cpu_sgd(struct zb_device *dev, const void *params)
{
    const struct zb_k_sgd *p = params;

    ZB_TRY(zb_cpu_check_type(p->dtype));
    zb_cpu_for(dev, p->n, ALIGN, 0.7, sgd_part, p);
    return ZB_OK;
}
