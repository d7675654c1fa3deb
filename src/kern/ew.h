/* SPDX-License-Identifier: MIT
 *
 * Runs of n elements, each on its own, and sums of runs. Where one array is
 * read and another written they may be the same. A template of
 * kern/each_storage.h; who includes it has enum zb_act of zb/kernel.h.
 */
#include "kern/act.h"

/* y = act(x). */
ZB_KERN_FN void ZB_AS(zb_act_run)(int64_t n, int act, const ZB_ST *x, ZB_ST *y){
#define LOOP(f, d)                                                             \
    ZB_EACH(i, n)                                                              \
    {                                                                          \
        y[i] = ZB_TO(f(ZB_LD(x[i])));                                          \
    }
    ZB_FOR_ACT(act, LOOP)
#undef LOOP
}

/* dx = dy act'(x). */
ZB_KERN_FN void ZB_AS(zb_act_bwd_run)(int64_t n, int act, const ZB_ST *dy,
                                      const ZB_ST *x, ZB_ST *dx){
#define LOOP(f, d)                                                             \
    ZB_EACH(i, n)                                                              \
    {                                                                          \
        dx[i] = ZB_TO(ZB_LD(dy[i]) * d(ZB_LD(x[i])));                          \
    }
    ZB_FOR_ACT(act, LOOP)
#undef LOOP
}

/* y = act(gate) up. */
ZB_KERN_FN void ZB_AS(zb_gated_run)(int64_t n, int act, const ZB_ST *gate,
                                    const ZB_ST *up, ZB_ST *y){
#define LOOP(f, d)                                                             \
    ZB_EACH(i, n)                                                              \
    {                                                                          \
        y[i] = ZB_TO(f(ZB_LD(gate[i])) * ZB_LD(up[i]));                        \
    }
    ZB_FOR_ACT(act, LOOP)
#undef LOOP
}

/* dgate = dy up act'(gate), dup = dy act(gate). */
ZB_KERN_FN void ZB_AS(zb_gated_bwd_run)(int64_t n, int act, const ZB_ST *dy,
                                        const ZB_ST *gate, const ZB_ST *up,
                                        ZB_ST *dgate, ZB_ST *dup){
#define LOOP(f, d)                                                             \
    ZB_EACH(i, n)                                                              \
    {                                                                          \
        zb_real g = ZB_LD(gate[i]), u = ZB_LD(up[i]), dy_i = ZB_LD(dy[i]);     \
                                                                               \
        dgate[i] = ZB_TO(dy_i * u * d(g));                                     \
        dup[i] = ZB_TO(dy_i * f(g));                                           \
    }
    ZB_FOR_ACT(act, LOOP)
#undef LOOP
}

/* y = a + b. */
ZB_KERN_FN
    void ZB_AS(zb_add_run)(int64_t n, const ZB_ST *a, const ZB_ST *b, ZB_ST *y)
{
    ZB_EACH(i, n) {
        y[i] = ZB_TO(ZB_LD(a[i]) + ZB_LD(b[i]));
    }
}

/* sum += x. */
ZB_KERN_FN void ZB_AS(zb_add_to_run)(int64_t n, const ZB_ST *x, zb_real *sum)
{
    ZB_EACH(i, n) {
        sum[i] += ZB_LD(x[i]);
    }
}

ZB_KERN_FN void ZB_AS(zb_fill_run)(int64_t n, zb_real value, ZB_ST *y)
{
    ZB_EACH(i, n) {
        y[i] = ZB_TO(value);
    }
}

/* y = alpha x. */
ZB_KERN_FN void ZB_AS(zb_scale_run)(int64_t n, zb_real alpha, const ZB_ST *x,
                                    ZB_ST *y)
{
    ZB_EACH(i, n) {
        y[i] = ZB_TO(alpha * ZB_LD(x[i]));
    }
}

/* loss = (x - target)^2. */
ZB_KERN_FN void ZB_AS(zb_mse_run)(int64_t n, const ZB_ST *x,
                                  const ZB_ST *target, zb_real *loss)
{
    ZB_EACH(i, n) {
        zb_real d = ZB_LD(x[i]) - ZB_LD(target[i]);

        loss[i] = d * d;
    }
}

/* dx = factor (x - target). */
ZB_KERN_FN void ZB_AS(zb_mse_bwd_run)(int64_t n, zb_real factor, const ZB_ST *x,
                                      const ZB_ST *target, ZB_ST *dx)
{
    ZB_EACH(i, n) {
        dx[i] = ZB_TO(factor * (ZB_LD(x[i]) - ZB_LD(target[i])));
    }
}

/* Numbers to compute with, and back. */
ZB_KERN_FN void ZB_AS(zb_load_run)(int64_t n, const ZB_ST *x, zb_real *y)
{
    ZB_EACH(i, n) {
        y[i] = ZB_LD(x[i]);
    }
}

ZB_KERN_FN void ZB_AS(zb_store_run)(int64_t n, const zb_real *x, ZB_ST *y)
{
    ZB_EACH(i, n) {
        y[i] = ZB_TO(x[i]);
    }
}

/* The sum, in double, of x or of its squares. */
ZB_KERN_FN double ZB_AS(zb_sum_run)(int64_t n, int is_squared, const ZB_ST *x)
{
    double sum = 0;

    if (is_squared) {
        ZB_EACH_SUM(i, n, sum) {
            sum += (double)ZB_LD(x[i]) * (double)ZB_LD(x[i]);
        }
    } else {
        ZB_EACH_SUM(i, n, sum) {
            sum += (double)ZB_LD(x[i]);
        }
    }
    return ZB_TEAM_SUM(sum);
}
