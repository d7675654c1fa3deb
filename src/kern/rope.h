/* SPDX-License-Identifier: MIT
 *
 * Rotary position embedding of one head: y may be x. A template of
 * kern/each_storage.h.
 */
#include "kern/kern.h"

/* Pairs (j, j + half). `sign` is -1 to rotate back. */
ZB_KERN_FN void ZB_AS(zb_rope_halves)(int64_t half,
                                      const zb_real *ZB_RESTRICT cosine,
                                      const zb_real *ZB_RESTRICT sine,
                                      zb_real sign, const ZB_ST *x, ZB_ST *y)
{
    ZB_EACH(j, half) {
        zb_real a = ZB_LD(x[j]), b = ZB_LD(x[j + half]), s = sign * sine[j];

        y[j] = ZB_TO(a * cosine[j] - b * s);
        y[j + half] = ZB_TO(b * cosine[j] + a * s);
    }
}

/* Pairs (2 j, 2 j + 1). */
ZB_KERN_FN void ZB_AS(zb_rope_pairs)(int64_t half,
                                     const zb_real *ZB_RESTRICT cosine,
                                     const zb_real *ZB_RESTRICT sine,
                                     zb_real sign, const ZB_ST *x, ZB_ST *y)
{
    ZB_EACH(j, half) {
        zb_real a = ZB_LD(x[2 * j]), b = ZB_LD(x[2 * j + 1]),
                s = sign * sine[j];

        y[2 * j] = ZB_TO(a * cosine[j] - b * s);
        y[2 * j + 1] = ZB_TO(b * cosine[j] + a * s);
    }
}

/* A head of head_dim elements; those past 2 half are copied. */
ZB_KERN_FN void ZB_AS(zb_rope_head)(int64_t head_dim, int64_t half,
                                    int is_interleaved, const zb_real *cosine,
                                    const zb_real *sine, zb_real sign,
                                    const ZB_ST *x, ZB_ST *y)
{
    if (is_interleaved) {
        ZB_AS(zb_rope_pairs)(half, cosine, sine, sign, x, y);
    } else {
        ZB_AS(zb_rope_halves)(half, cosine, sine, sign, x, y);
    }
    if (x != y) {
        ZB_EACH(i, head_dim - 2 * half) {
            y[2 * half + i] = x[2 * half + i];
        }
    }
}
