/* SPDX-License-Identifier: MIT
 *
 * Softmax cross-entropy of one row of logits.
 */
#ifndef ZB_KERN_XENT_H
#define ZB_KERN_XENT_H

#include "kern/fmath.h"

#define ZB_LABEL_IGNORE (-100)

/* loss = lse - logits[label]; 0 for the ignored label, NaN for one that is not
 * a column. */
ZB_KERN_FN void zb_xent_row(int64_t n, const zb_real *ZB_RESTRICT logits,
                            int32_t label, zb_real *ZB_RESTRICT loss_out,
                            zb_real *ZB_RESTRICT lse_out)
{
    zb_real top = logits[0], sum = 0, lse, loss;

    ZB_EACH_MAX(i, n, top) {
        top = logits[i] > top ? logits[i] : top;
    }
    top = ZB_TEAM_MAX(top);
    ZB_EACH_SUM(i, n, sum) {
        sum += zb_exp(logits[i] - top);
    }
    lse = top + zb_log(ZB_TEAM_SUM(sum));
    if (label == ZB_LABEL_IGNORE) {
        loss = 0;
    } else if (label < 0 || label >= n) {
        loss = (zb_real)NAN;
    } else {
        loss = lse - logits[label];
    }
    ZB_ONCE {
        *loss_out = loss;
        *lse_out = lse;
    }
}

/* d = scale (softmax - onehot), 0 for the ignored label. A label that is not a
 * column gives NaN, as its loss is. d may be logits. */
ZB_KERN_FN void zb_xent_bwd_row(int64_t n, zb_real scale, const zb_real *logits,
                                zb_real lse, int32_t label, zb_real *d)
{
    zb_real hit = 0;

    if (label == ZB_LABEL_IGNORE) {
        ZB_EACH(i, n) {
            d[i] = 0;
        }
        return;
    }
    if (label < 0 || label >= n) {
        scale = (zb_real)NAN;
    } else {
        hit = scale * (zb_exp(logits[label] - lse) - ZB_R(1));
    }
    ZB_EACH(i, n) {
        zb_real p = scale * zb_exp(logits[i] - lse);

        d[i] = i == label ? hit : p;
    }
}

#endif
