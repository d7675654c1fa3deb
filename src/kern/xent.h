/* SPDX-License-Identifier: MIT
 *
 * Softmax cross-entropy of one row of logits.
 */
#ifndef ZB_KERN_XENT_H
#define ZB_KERN_XENT_H

#include "kern/fmath.h"

#define ZB_LABEL_IGNORE (-100)

/* The largest number of x[0..n). */
#if defined(__CUDACC__)
ZB_KERN_FN zb_real zb_row_max(int64_t n, const zb_real *ZB_RESTRICT x)
{
    zb_real top = x[0];

    ZB_EACH(i, n) {
        top = x[i] > top ? x[i] : top;
    }
    return ZB_TEAM_MAX(top);
}
#else
/* Sixteen maxima at a time: compilers take one maximum of floats for a chain
 * that they may not reorder. */
ZB_KERN_FN zb_real zb_row_max(int64_t n, const zb_real *ZB_RESTRICT x)
{
    zb_real part[16], top = x[0];
    int64_t i = 0;

    for (int l = 0; l < 16; l++) {
        part[l] = top;
    }
    for (; i + 16 <= n; i += 16) {
        ZB_EACH(l, 16) {
            part[l] = x[i + l] > part[l] ? x[i + l] : part[l];
        }
    }
    for (; i < n; i++) {
        top = x[i] > top ? x[i] : top;
    }
    for (int l = 0; l < 16; l++) {
        top = part[l] > top ? part[l] : top;
    }
    return top;
}
#endif

/* loss = lse - logits[label]; 0 for the ignored label, NaN for one that is not
 * a column. */
ZB_KERN_FN void zb_xent_row(int64_t n, const zb_real *ZB_RESTRICT logits,
                            int32_t label, zb_real *ZB_RESTRICT loss_out,
                            zb_real *ZB_RESTRICT lse_out)
{
    zb_real top = zb_row_max(n, logits), sum = 0, lse, loss;

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
