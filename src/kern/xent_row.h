/* SPDX-License-Identifier: MIT
 *
 * Softmax cross-entropy of one row of logits. A template of
 * kern/each_storage.h.
 */
#include "kern/xent.h"

/* The largest number of x[0..n). */
#if defined(__CUDACC__)
ZB_KERN_FN zb_real ZB_AS(zb_row_max)(int64_t n, const ZB_ST *ZB_RESTRICT x)
{
    zb_real top = ZB_LD(x[0]);

    ZB_EACH(i, n) {
        top = ZB_LD(x[i]) > top ? ZB_LD(x[i]) : top;
    }
    return ZB_TEAM_MAX(top);
}
#else
/* Sixteen maxima at a time: compilers take one maximum of floats for a chain
 * that they may not reorder. */
ZB_KERN_FN zb_real ZB_AS(zb_row_max)(int64_t n, const ZB_ST *ZB_RESTRICT x)
{
    zb_real part[16], top = ZB_LD(x[0]);
    int64_t i = 0;

    for (int l = 0; l < 16; l++) {
        part[l] = top;
    }
    for (; i + 16 <= n; i += 16) {
        ZB_EACH(l, 16) {
            part[l] = ZB_LD(x[i + l]) > part[l] ? ZB_LD(x[i + l]) : part[l];
        }
    }
    for (; i < n; i++) {
        top = ZB_LD(x[i]) > top ? ZB_LD(x[i]) : top;
    }
    for (int l = 0; l < 16; l++) {
        top = part[l] > top ? part[l] : top;
    }
    return top;
}
#endif

/* loss = lse - logits[label]; 0 for the ignored label, NaN for one that is not
 * a column. */
ZB_KERN_FN void ZB_AS(zb_xent_row)(int64_t n, const ZB_ST *ZB_RESTRICT logits,
                                   int32_t label, zb_real *ZB_RESTRICT loss_out,
                                   zb_real *ZB_RESTRICT lse_out)
{
    zb_real top = ZB_AS(zb_row_max)(n, logits), sum = 0, lse, loss;

    ZB_EACH_SUM(i, n, sum) {
        sum += zb_exp(ZB_LD(logits[i]) - top);
    }
    lse = top + zb_log(ZB_TEAM_SUM(sum));
    if (label == ZB_LABEL_IGNORE) {
        loss = 0;
    } else if (label < 0 || label >= n) {
        loss = (zb_real)NAN;
    } else {
        loss = lse - ZB_LD(logits[label]);
    }
    ZB_ONCE {
        *loss_out = loss;
        *lse_out = lse;
    }
}

/* What a part of the columns, from `first` on, tells about a row: the largest
 * logit, the sum of exp(logit - largest), and the label's logit or 0. */
ZB_KERN_FN void ZB_AS(zb_xent_part_row)(int64_t n, int64_t first,
                                        const ZB_ST *ZB_RESTRICT logits,
                                        int32_t label,
                                        zb_real *ZB_RESTRICT stats)
{
    zb_real top = n > 0 ? ZB_AS(zb_row_max)(n, logits) : -(zb_real)INFINITY,
            sum = 0;
    int64_t at = label - first;

    ZB_EACH_SUM(i, n, sum) {
        sum += zb_exp(ZB_LD(logits[i]) - top);
    }
    sum = ZB_TEAM_SUM(sum);
    ZB_ONCE {
        stats[0] = top;
        stats[1] = sum;
        stats[2] = at >= 0 && at < n ? ZB_LD(logits[at]) : ZB_R(0);
    }
}

/* d = scale (softmax - onehot) of the columns from `first` on, 0 for the
 * ignored label. A label that is not one of n_class columns gives NaN, as its
 * loss is. d may be logits. */
ZB_KERN_FN void ZB_AS(zb_xent_bwd_row)(int64_t n, int64_t first,
                                       int64_t n_class, zb_real scale,
                                       const ZB_ST *logits, zb_real lse,
                                       int32_t label, ZB_ST *d)
{
    int64_t at = label - first;
    zb_real hit = 0;

    if (label == ZB_LABEL_IGNORE) {
        ZB_EACH(i, n) {
            d[i] = ZB_TO(ZB_R(0));
        }
        return;
    }
    if (label < 0 || label >= n_class) {
        scale = (zb_real)NAN;
    } else if (at >= 0 && at < n) {
        hit = scale * (zb_exp(ZB_LD(logits[at]) - lse) - ZB_R(1));
    }
    ZB_EACH(i, n) {
        zb_real p = scale * zb_exp(ZB_LD(logits[i]) - lse);

        d[i] = ZB_TO(i == at ? hit : p);
    }
}
