/* SPDX-License-Identifier: MIT
 *
 * The loops of cpu_ew.c. A template of kern/each_storage.h.
 */
#include "kern/ew.h"

static void ZB_AS(act_fwd_part)(const struct zb_device *dev, const void *arg,
                                int64_t begin, int64_t end, int thread)
{
    const struct zb_k_act_fwd *p = arg;
    const ZB_ST *x = (const ZB_ST *)p->x + begin;
    ZB_ST *y = (ZB_ST *)p->y + begin;

    (void)dev;
    (void)thread;
    ZB_AS(zb_act_run)(end - begin, (int)p->act, x, y);
}

static void ZB_AS(act_bwd_part)(const struct zb_device *dev, const void *arg,
                                int64_t begin, int64_t end, int thread)
{
    const struct zb_k_act_bwd *p = arg;
    const ZB_ST *x = (const ZB_ST *)p->x + begin;
    const ZB_ST *dy = (const ZB_ST *)p->dy + begin;
    ZB_ST *dx = (ZB_ST *)p->dx + begin;

    (void)dev;
    (void)thread;
    ZB_AS(zb_act_bwd_run)(end - begin, (int)p->act, dy, x, dx);
}

static void ZB_AS(gated_fwd_part)(const struct zb_device *dev, const void *arg,
                                  int64_t begin, int64_t end, int thread)
{
    const struct zb_k_gated_fwd *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const ZB_ST *gate = (const ZB_ST *)p->gate + r * p->ld_gate;
        const ZB_ST *up = (const ZB_ST *)p->up + r * p->ld_up;
        ZB_ST *y = (ZB_ST *)p->y + r * p->ld_y;

        ZB_AS(zb_gated_run)(p->cols, (int)p->act, gate, up, y);
    }
}

static void ZB_AS(gated_bwd_part)(const struct zb_device *dev, const void *arg,
                                  int64_t begin, int64_t end, int thread)
{
    const struct zb_k_gated_bwd *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const ZB_ST *dy = (const ZB_ST *)p->dy + r * p->ld_dy;
        const ZB_ST *gate = (const ZB_ST *)p->gate + r * p->ld_gate;
        const ZB_ST *up = (const ZB_ST *)p->up + r * p->ld_up;
        ZB_ST *dgate = (ZB_ST *)p->dgate + r * p->ld_dgate;
        ZB_ST *dup = (ZB_ST *)p->dup + r * p->ld_dup;

        ZB_AS(zb_gated_bwd_run)
        (p->cols, (int)p->act, dy, gate, up, dgate, dup);
    }
}

static void ZB_AS(add_part)(const struct zb_device *dev, const void *arg,
                            int64_t begin, int64_t end, int thread)
{
    const struct zb_k_add *p = arg;
    const ZB_ST *a = (const ZB_ST *)p->a + begin;
    const ZB_ST *b = (const ZB_ST *)p->b + begin;
    ZB_ST *y = (ZB_ST *)p->y + begin;

    (void)dev;
    (void)thread;
    ZB_AS(zb_add_run)(end - begin, a, b, y);
}

static void ZB_AS(fill_part)(const struct zb_device *dev, const void *arg,
                             int64_t begin, int64_t end, int thread)
{
    const struct zb_k_fill *p = arg;

    (void)dev;
    (void)thread;
    ZB_AS(zb_fill_run)
    (end - begin, (zb_real)p->value, (ZB_ST *)p->y + begin);
}

static void ZB_AS(scale_part)(const struct zb_device *dev, const void *arg,
                              int64_t begin, int64_t end, int thread)
{
    const struct zb_k_scale *p = arg;
    const ZB_ST *x = (const ZB_ST *)p->x + begin;
    ZB_ST *y = (ZB_ST *)p->y + begin;

    (void)dev;
    (void)thread;
    ZB_AS(zb_scale_run)(end - begin, (zb_real)p->alpha, x, y);
}

static void ZB_AS(mse_fwd_part)(const struct zb_device *dev, const void *arg,
                                int64_t begin, int64_t end, int thread)
{
    const struct zb_k_mse_fwd *p = arg;
    const ZB_ST *x = (const ZB_ST *)p->x + begin;
    const ZB_ST *target = (const ZB_ST *)p->target + begin;

    (void)dev;
    (void)thread;
    ZB_AS(zb_mse_run)(end - begin, x, target, p->loss + begin);
}

static void ZB_AS(mse_bwd_part)(const struct zb_device *dev, const void *arg,
                                int64_t begin, int64_t end, int thread)
{
    const struct zb_k_mse_bwd *p = arg;
    const ZB_ST *x = (const ZB_ST *)p->x + begin;
    const ZB_ST *target = (const ZB_ST *)p->target + begin;
    ZB_ST *dx = (ZB_ST *)p->dx + begin;
    zb_real factor = (zb_real)(2.0 * p->scale);

    (void)dev;
    (void)thread;
    ZB_AS(zb_mse_bwd_run)(end - begin, factor, x, target, dx);
}

static void ZB_AS(load)(int64_t n, const void *from, zb_real *y)
{
    ZB_AS(zb_load_run)(n, from, y);
}

static void ZB_AS(store)(int64_t n, const zb_real *x, void *to)
{
    ZB_AS(zb_store_run)(n, x, to);
}

/* `n_all` elements from `at` of the tensors on, which in their sample are those
 * from `first` on. */
static void ZB_AS(drop_run)(const struct zb_k_dropout *p, int64_t sample,
                            int64_t at, int64_t first, int64_t n_all)
{
    struct zb_philox_key key =
        zb_philox_site_key(p->philox.seed, p->philox.step, p->philox.site);
    uint32_t limit = zb_drop_limit(p->p);
    zb_real keep = (zb_real)(1.0 / (1.0 - p->p));
    zb_real drawn[4 * DROP_BLOCKS + 4];
    const zb_real *factor = drawn + first % 4;

    for (int64_t i0 = 0; i0 < n_all; i0 += 4 * DROP_BLOCKS) {
        int64_t left = n_all - i0, block = (first + i0) / 4;
        int64_t n = left < 4 * DROP_BLOCKS ? left : 4 * DROP_BLOCKS;
        const ZB_ST *x = (const ZB_ST *)p->x + at + i0;
        ZB_ST *y = (ZB_ST *)p->y + at + i0;

        ZB_EACH(k, (first % 4 + n + 3) / 4) {
            zb_drop_block(key, sample, (uint64_t)(block + k), limit, keep,
                          drawn + 4 * k);
        }
        if (p->addend != NULL) {
            const ZB_ST *addend = (const ZB_ST *)p->addend + at + i0;

            ZB_EACH(i, n) {
                y[i] = ZB_TO(ZB_LD(addend[i]) + ZB_LD(x[i]) * factor[i]);
            }
        } else {
            ZB_EACH(i, n) {
                y[i] = ZB_TO(ZB_LD(x[i]) * factor[i]);
            }
        }
    }
}

static void ZB_AS(dropout_sample)(const struct zb_k_dropout *p, int64_t b)
{
    int64_t at = b * p->per_sample, n0 = p->place.len * p->cols;

    if (n0 > p->per_sample) {
        n0 = p->per_sample;
    }
    ZB_AS(drop_run)
    (p, p->philox.sample[b], at, p->place.first[0] * p->cols, n0);
    ZB_AS(drop_run)
    (p, p->philox.sample[b], at + n0, p->place.first[1] * p->cols,
     p->per_sample - n0);
}

static void ZB_AS(dropout_part)(const struct zb_device *dev, const void *arg,
                                int64_t begin, int64_t end, int thread)
{
    (void)dev;
    (void)thread;
    for (int64_t b = begin; b < end; b++) {
        ZB_AS(dropout_sample)(arg, b);
    }
}
