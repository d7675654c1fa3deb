/* SPDX-License-Identifier: MIT
 *
 * Kernels without any sum: elements and rows on their own.
 */
#include "config.h"

#include "backend/cpu/cpu_int.h"
#include "kern/act.h"
#include "kern/philox.h"

/* Parts of element loops end at multiples of this, so that the compiler's
 * vector loop and its remainder see the same elements for every team. */
#define ALIGN 64

/* Run LOOP(function, derivative) for the activation. */
#define FOR_ACT(act, LOOP)                                                     \
    switch (act) {                                                             \
    case ZB_ACT_RELU:                                                          \
        LOOP(zb_relu, zb_relu_d)                                               \
        break;                                                                 \
    case ZB_ACT_SILU:                                                          \
        LOOP(zb_silu, zb_silu_d)                                               \
        break;                                                                 \
    case ZB_ACT_GELU_TANH:                                                     \
        LOOP(zb_gelu_tanh, zb_gelu_tanh_d)                                     \
        break;                                                                 \
    case ZB_ACT_GELU_ERF:                                                      \
        LOOP(zb_gelu_erf, zb_gelu_erf_d)                                       \
        break;                                                                 \
    }

static void act_fwd_part(const struct zb_device *dev, const void *arg,
                         int64_t begin, int64_t end, int thread)
{
    const struct zb_k_act_fwd *p = arg;
    const zb_real *x = p->x + begin;
    zb_real *y = p->y + begin;

    (void)dev;
    (void)thread;
#define LOOP(f, d)                                                             \
    ZB_EACH(i, end - begin) {                                                  \
        y[i] = f(x[i]);                                                        \
    }
    FOR_ACT(p->act, LOOP)
#undef LOOP
}

enum zb_status zb_cpu_act_fwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_act_fwd *p = params;

    zb_cpu_for(dev, p->n, ALIGN, 1.0, act_fwd_part, p);
    return ZB_OK;
}

static void act_bwd_part(const struct zb_device *dev, const void *arg,
                         int64_t begin, int64_t end, int thread)
{
    const struct zb_k_act_bwd *p = arg;
    const zb_real *x = p->x + begin, *dy = p->dy + begin;
    zb_real *dx = p->dx + begin;

    (void)dev;
    (void)thread;
#define LOOP(f, d)                                                             \
    ZB_EACH(i, end - begin) {                                                  \
        dx[i] = dy[i] * d(x[i]);                                               \
    }
    FOR_ACT(p->act, LOOP)
#undef LOOP
}

enum zb_status zb_cpu_act_bwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_act_bwd *p = params;

    zb_cpu_for(dev, p->n, ALIGN, 1.0, act_bwd_part, p);
    return ZB_OK;
}

static void gated_fwd_part(const struct zb_device *dev, const void *arg,
                           int64_t begin, int64_t end, int thread)
{
    const struct zb_k_gated_fwd *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const zb_real *gate = p->gate + r * p->ld_gate;
        const zb_real *up = p->up + r * p->ld_up;
        zb_real *y = p->y + r * p->ld_y;

#define LOOP(f, d)                                                             \
    ZB_EACH(i, p->cols) {                                                      \
        y[i] = f(gate[i]) * up[i];                                             \
    }
        FOR_ACT(p->act, LOOP)
#undef LOOP
    }
}

enum zb_status zb_cpu_gated_fwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_gated_fwd *p = params;

    zb_cpu_for(dev, p->rows, 1, (double)p->cols, gated_fwd_part, p);
    return ZB_OK;
}

static void gated_bwd_part(const struct zb_device *dev, const void *arg,
                           int64_t begin, int64_t end, int thread)
{
    const struct zb_k_gated_bwd *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const zb_real *dy = p->dy + r * p->ld_dy;
        const zb_real *gate = p->gate + r * p->ld_gate;
        const zb_real *up = p->up + r * p->ld_up;
        zb_real *dgate = p->dgate + r * p->ld_dgate;
        zb_real *dup = p->dup + r * p->ld_dup;

#define LOOP(f, d)                                                             \
    ZB_EACH(i, p->cols) {                                                      \
        zb_real g = gate[i], u = up[i], dy_i = dy[i];                          \
                                                                               \
        dgate[i] = dy_i * u * d(g);                                            \
        dup[i] = dy_i * f(g);                                                  \
    }
        FOR_ACT(p->act, LOOP)
#undef LOOP
    }
}

enum zb_status zb_cpu_gated_bwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_gated_bwd *p = params;

    zb_cpu_for(dev, p->rows, 1, 2.0 * (double)p->cols, gated_bwd_part, p);
    return ZB_OK;
}

static void add_part(const struct zb_device *dev, const void *arg,
                     int64_t begin, int64_t end, int thread)
{
    const struct zb_k_add *p = arg;
    const zb_real *a = p->a + begin, *b = p->b + begin;
    zb_real *y = p->y + begin;

    (void)dev;
    (void)thread;
    ZB_EACH(i, end - begin) {
        y[i] = a[i] + b[i];
    }
}

enum zb_status zb_cpu_add(struct zb_device *dev, const void *params)
{
    const struct zb_k_add *p = params;

    zb_cpu_for(dev, p->n, ALIGN, 0.3, add_part, p);
    return ZB_OK;
}

static void fill_part(const struct zb_device *dev, const void *arg,
                      int64_t begin, int64_t end, int thread)
{
    const struct zb_k_fill *p = arg;
    zb_real *y = p->y + begin, value = (zb_real)p->value;

    (void)dev;
    (void)thread;
    ZB_EACH(i, end - begin) {
        y[i] = value;
    }
}

enum zb_status zb_cpu_fill(struct zb_device *dev, const void *params)
{
    const struct zb_k_fill *p = params;

    zb_cpu_for(dev, p->n, ALIGN, 0.15, fill_part, p);
    return ZB_OK;
}

static void scale_part(const struct zb_device *dev, const void *arg,
                       int64_t begin, int64_t end, int thread)
{
    const struct zb_k_scale *p = arg;
    const zb_real *x = p->x + begin;
    zb_real *y = p->y + begin, alpha = (zb_real)p->alpha;

    (void)dev;
    (void)thread;
    ZB_EACH(i, end - begin) {
        y[i] = alpha * x[i];
    }
}

enum zb_status zb_cpu_scale(struct zb_device *dev, const void *params)
{
    const struct zb_k_scale *p = params;

    zb_cpu_for(dev, p->n, ALIGN, 0.3, scale_part, p);
    return ZB_OK;
}

/* Random numbers come in blocks of four, so dropout goes through its sample in
 * pieces of whole blocks. */
#define DROP_BLOCKS 64

/* `n_all` elements from `at` of the tensors on, which in their sample are those
 * from `first` on. */
static void drop_run(const struct zb_k_dropout *p, int64_t sample, int64_t at,
                     int64_t first, int64_t n_all)
{
    struct zb_philox_key key = zb_philox_site_key(
        p->philox.seed, p->philox.step, p->philox.site);
    uint32_t limit = zb_drop_limit(p->p);
    zb_real keep = (zb_real)(1.0 / (1.0 - p->p));
    zb_real drawn[4 * DROP_BLOCKS + 4];
    const zb_real *factor = drawn + first % 4;

    for (int64_t i0 = 0; i0 < n_all; i0 += 4 * DROP_BLOCKS) {
        int64_t left = n_all - i0, block = (first + i0) / 4;
        int64_t n = left < 4 * DROP_BLOCKS ? left : 4 * DROP_BLOCKS;
        const zb_real *x = p->x + at + i0;
        zb_real *y = p->y + at + i0;

        ZB_EACH(k, (first % 4 + n + 3) / 4) {
            zb_drop_block(key, sample, (uint64_t)(block + k), limit, keep,
                          drawn + 4 * k);
        }
        if (p->addend != NULL) {
            const zb_real *addend = p->addend + at + i0;

            ZB_EACH(i, n) {
                y[i] = addend[i] + x[i] * factor[i];
            }
        } else {
            ZB_EACH(i, n) {
                y[i] = x[i] * factor[i];
            }
        }
    }
}

static void dropout_sample(const struct zb_k_dropout *p, int64_t b)
{
    int64_t at = b * p->per_sample, n0 = p->place.len * p->cols;

    if (n0 > p->per_sample) {
        n0 = p->per_sample;
    }
    drop_run(p, p->philox.sample[b], at, p->place.first[0] * p->cols, n0);
    drop_run(p, p->philox.sample[b], at + n0, p->place.first[1] * p->cols,
             p->per_sample - n0);
}

static void dropout_part(const struct zb_device *dev, const void *arg,
                         int64_t begin, int64_t end, int thread)
{
    (void)dev;
    (void)thread;
    for (int64_t b = begin; b < end; b++) {
        dropout_sample(arg, b);
    }
}

enum zb_status zb_cpu_dropout(struct zb_device *dev, const void *params)
{
    const struct zb_k_dropout *p = params;

    zb_cpu_for(dev, p->batch, 1, 3.0 * (double)p->per_sample, dropout_part, p);
    return ZB_OK;
}

static void mse_fwd_part(const struct zb_device *dev, const void *arg,
                         int64_t begin, int64_t end, int thread)
{
    const struct zb_k_mse_fwd *p = arg;
    const zb_real *x = p->x + begin, *target = p->target + begin;
    zb_real *loss = p->loss + begin;

    (void)dev;
    (void)thread;
    ZB_EACH(i, end - begin) {
        loss[i] = (x[i] - target[i]) * (x[i] - target[i]);
    }
}

enum zb_status zb_cpu_mse_fwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_mse_fwd *p = params;

    zb_cpu_for(dev, p->n, ALIGN, 0.3, mse_fwd_part, p);
    return ZB_OK;
}

static void mse_bwd_part(const struct zb_device *dev, const void *arg,
                         int64_t begin, int64_t end, int thread)
{
    const struct zb_k_mse_bwd *p = arg;
    const zb_real *x = p->x + begin, *target = p->target + begin;
    zb_real *dx = p->dx + begin, factor = (zb_real)(2.0 * p->scale);

    (void)dev;
    (void)thread;
    ZB_EACH(i, end - begin) {
        dx[i] = factor * (x[i] - target[i]);
    }
}

enum zb_status zb_cpu_mse_bwd(struct zb_device *dev, const void *params)
{
    const struct zb_k_mse_bwd *p = params;

    zb_cpu_for(dev, p->n, ALIGN, 0.3, mse_bwd_part, p);
    return ZB_OK;
}
