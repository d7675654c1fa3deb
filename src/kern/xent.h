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

/* What a part of the columns, from `first` on, tells about a row: the largest
 * logit, the sum of exp(logit - largest), and the label's logit or 0. */
ZB_KERN_FN void zb_xent_part_row(int64_t n, int64_t first,
                                 const zb_real *ZB_RESTRICT logits,
                                 int32_t label, zb_real *ZB_RESTRICT stats)
{
    zb_real top = n > 0 ? zb_row_max(n, logits) : -(zb_real)INFINITY, sum = 0;
    int64_t at = label - first;

    ZB_EACH_SUM(i, n, sum) {
        sum += zb_exp(logits[i] - top);
    }
    sum = ZB_TEAM_SUM(sum);
    ZB_ONCE {
        stats[0] = top;
        stats[1] = sum;
        stats[2] = at >= 0 && at < n ? logits[at] : ZB_R(0);
    }
}

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

/* d = scale (softmax - onehot) of the columns from `first` on, 0 for the
 * ignored label. A label that is not one of n_class columns gives NaN, as its
 * loss is. d may be logits. */
ZB_KERN_FN void zb_xent_bwd_row(int64_t n, int64_t first, int64_t n_class,
                                zb_real scale, const zb_real *logits,
                                zb_real lse, int32_t label, zb_real *d)
{
    int64_t at = label - first;
    zb_real hit = 0;

    if (label == ZB_LABEL_IGNORE) {
        ZB_EACH(i, n) {
            d[i] = 0;
        }
        return;
    }
    if (label < 0 || label >= n_class) {
        scale = (zb_real)NAN;
    } else if (at >= 0 && at < n) {
        hit = scale * (zb_exp(logits[at] - lse) - ZB_R(1));
    }
    ZB_EACH(i, n) {
        zb_real p = scale * zb_exp(logits[i] - lse);

        d[i] = i == at ? hit : p;
    }
}

#endif
