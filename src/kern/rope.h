/* SPDX-License-Identifier: MIT
 *
 * Rotary position embedding of one head: y may be x.
 */
#ifndef ZB_KERN_ROPE_H
#define ZB_KERN_ROPE_H

#include "kern/kern.h"

/* Pairs (j, j + half). `sign` is -1 to rotate back. */
ZB_KERN_FN void zb_rope_halves(int64_t half, const zb_real *ZB_RESTRICT cosine,
                               const zb_real *ZB_RESTRICT sine, zb_real sign,
                               const zb_real *x, zb_real *y)
{
    ZB_EACH(j, half) {
        zb_real a = x[j], b = x[j + half], s = sign * sine[j];

        y[j] = a * cosine[j] - b * s;
        y[j + half] = b * cosine[j] + a * s;
    }
}

/* Pairs (2 j, 2 j + 1). */
ZB_KERN_FN void zb_rope_pairs(int64_t half, const zb_real *ZB_RESTRICT cosine,
                              const zb_real *ZB_RESTRICT sine, zb_real sign,
                              const zb_real *x, zb_real *y)
{
    ZB_EACH(j, half) {
        zb_real a = x[2 * j], b = x[2 * j + 1], s = sign * sine[j];

        y[2 * j] = a * cosine[j] - b * s;
        y[2 * j + 1] = b * cosine[j] + a * s;
    }
}

#endif
