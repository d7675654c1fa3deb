/* SPDX-License-Identifier: MIT
 *
 * Softmax cross-entropy: what does not depend on how logits are stored. The
 * rest is in kern/xent_row.h.
 */
#ifndef ZB_KERN_XENT_H
#define ZB_KERN_XENT_H

#include "kern/fmath.h"

#define ZB_LABEL_IGNORE (-100)

/* Loss and lse of a row from what its parts told, in their order. */
ZB_KERN_FN void zb_xent_join_row(int64_t n_parts, int64_t n_class,
                                 const zb_real *ZB_RESTRICT stats,
                                 int32_t label, zb_real *ZB_RESTRICT loss_out,
                                 zb_real *ZB_RESTRICT lse_out)
{
    zb_real top = stats[0], sum = 0, hit = 0, loss = 0, lse;

    for (int64_t k = 1; k < n_parts; k++) {
        top = stats[3 * k] > top ? stats[3 * k] : top;
    }
    for (int64_t k = 0; k < n_parts; k++) {
        /* A part without columns has the sum 0. */
        if (stats[3 * k + 1] != 0) {
            sum += stats[3 * k + 1] * zb_exp(stats[3 * k] - top);
        }
        hit += stats[3 * k + 2];
    }
    lse = top + zb_log(sum);
    if (label != ZB_LABEL_IGNORE) {
        loss = label < 0 || label >= n_class ? (zb_real)NAN : lse - hit;
    }
    ZB_ONCE {
        *loss_out = loss;
        *lse_out = lse;
    }
}

#endif
