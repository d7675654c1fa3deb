/* SPDX-License-Identifier: MIT
 *
 * LayerNorm and RMSNorm: one row forward and backward, and the column sums of
 * their parameters' gradients. A template of kern/each_storage.h.
 */
#include "kern/fmath.h"

#ifndef ZB_KERN_NORM_GROUP
#define ZB_KERN_NORM_GROUP
/* Where a row's gamma (and beta) begins. */
ZB_KERN_FN int64_t zb_norm_group_at(int64_t row, int64_t groups, int64_t cols)
{
    return groups > 1 ? row % groups * cols : 0;
}
#endif

/* y = (x - mean) rstd gamma + beta. */
ZB_KERN_FN void ZB_AS(zb_layernorm_row)(int64_t n, zb_real eps,
                                        const ZB_ST *ZB_RESTRICT x,
                                        const ZB_ST *ZB_RESTRICT gamma,
                                        const ZB_ST *ZB_RESTRICT beta,
                                        ZB_ST *ZB_RESTRICT y,
                                        zb_real *ZB_RESTRICT mean_out,
                                        zb_real *ZB_RESTRICT rstd_out)
{
    zb_real sum = 0, var = 0, mean, rstd;

    ZB_EACH_SUM(i, n, sum) {
        sum += ZB_LD(x[i]);
    }
    mean = ZB_TEAM_SUM(sum) / (zb_real)n;
    ZB_EACH_SUM(i, n, var) {
        var += (ZB_LD(x[i]) - mean) * (ZB_LD(x[i]) - mean);
    }
    rstd = ZB_R(1) / zb_sqrt(ZB_TEAM_SUM(var) / (zb_real)n + eps);
    if (beta != NULL) {
        ZB_EACH(i, n) {
            y[i] = ZB_TO((ZB_LD(x[i]) - mean) * rstd * ZB_LD(gamma[i]) +
                         ZB_LD(beta[i]));
        }
    } else {
        ZB_EACH(i, n) {
            y[i] = ZB_TO((ZB_LD(x[i]) - mean) * rstd * ZB_LD(gamma[i]));
        }
    }
    ZB_ONCE {
        *mean_out = mean;
        *rstd_out = rstd;
    }
}

/* With g = dy gamma and xhat = (x - mean) rstd:
 * dx = addend + rstd (g - mean(g) - xhat mean(g xhat)). dx may be addend. */
ZB_KERN_FN void ZB_AS(zb_layernorm_bwd_row)(int64_t n,
                                            const ZB_ST *ZB_RESTRICT dy,
                                            const ZB_ST *ZB_RESTRICT x,
                                            const ZB_ST *ZB_RESTRICT gamma,
                                            zb_real mean, zb_real rstd,
                                            const ZB_ST *addend, ZB_ST *dx)
{
    zb_real sum_g = 0, sum_gx = 0;

    ZB_EACH_SUM(i, n, sum_g) {
        sum_g += ZB_LD(dy[i]) * ZB_LD(gamma[i]);
    }
    ZB_EACH_SUM(i, n, sum_gx) {
        sum_gx +=
            ZB_LD(dy[i]) * ZB_LD(gamma[i]) * ((ZB_LD(x[i]) - mean) * rstd);
    }
    sum_g = ZB_TEAM_SUM(sum_g) / (zb_real)n;
    sum_gx = ZB_TEAM_SUM(sum_gx) / (zb_real)n;
    if (addend != NULL) {
        ZB_EACH(i, n) {
            zb_real xhat = (ZB_LD(x[i]) - mean) * rstd;

            dx[i] = ZB_TO(ZB_LD(addend[i]) +
                          rstd * (ZB_LD(dy[i]) * ZB_LD(gamma[i]) - sum_g -
                                  xhat * sum_gx));
        }
    } else {
        ZB_EACH(i, n) {
            zb_real xhat = (ZB_LD(x[i]) - mean) * rstd;

            dx[i] = ZB_TO(rstd * (ZB_LD(dy[i]) * ZB_LD(gamma[i]) - sum_g -
                                  xhat * sum_gx));
        }
    }
}

/* y = x rstd gamma. */
ZB_KERN_FN void ZB_AS(zb_rmsnorm_row)(int64_t n, zb_real eps,
                                      const ZB_ST *ZB_RESTRICT x,
                                      const ZB_ST *ZB_RESTRICT gamma,
                                      ZB_ST *ZB_RESTRICT y,
                                      zb_real *ZB_RESTRICT rstd_out)
{
    zb_real sum = 0, rstd;

    ZB_EACH_SUM(i, n, sum) {
        sum += ZB_LD(x[i]) * ZB_LD(x[i]);
    }
    rstd = ZB_R(1) / zb_sqrt(ZB_TEAM_SUM(sum) / (zb_real)n + eps);
    ZB_EACH(i, n) {
        y[i] = ZB_TO(ZB_LD(x[i]) * rstd * ZB_LD(gamma[i]));
    }
    ZB_ONCE {
        *rstd_out = rstd;
    }
}

/* dx = addend + rstd (g - xhat mean(g xhat)), xhat = x rstd. */
ZB_KERN_FN void ZB_AS(zb_rmsnorm_bwd_row)(int64_t n,
                                          const ZB_ST *ZB_RESTRICT dy,
                                          const ZB_ST *ZB_RESTRICT x,
                                          const ZB_ST *ZB_RESTRICT gamma,
                                          zb_real rstd, const ZB_ST *addend,
                                          ZB_ST *dx)
{
    zb_real sum = 0;

    ZB_EACH_SUM(i, n, sum) {
        sum += ZB_LD(dy[i]) * ZB_LD(gamma[i]) * ZB_LD(x[i]);
    }
    sum = ZB_TEAM_SUM(sum) * rstd * rstd / (zb_real)n;
    if (addend != NULL) {
        ZB_EACH(i, n) {
            dx[i] = ZB_TO(
                ZB_LD(addend[i]) +
                rstd * (ZB_LD(dy[i]) * ZB_LD(gamma[i]) - ZB_LD(x[i]) * sum));
        }
    } else {
        ZB_EACH(i, n) {
            dx[i] = ZB_TO(rstd *
                          (ZB_LD(dy[i]) * ZB_LD(gamma[i]) - ZB_LD(x[i]) * sum));
        }
    }
}

/* One element's part in dgamma. */
ZB_KERN_FN zb_real ZB_AS(zb_norm_dgamma)(ZB_ST dy, ZB_ST x, zb_real mean,
                                         zb_real rstd)
{
    return ZB_LD(dy) * ((ZB_LD(x) - mean) * rstd);
}

/* acc_g[c] += dy xhat and acc_b[c] += dy, for n columns of one row. acc_b may
 * be NULL. RMSNorm's is the case mean = 0. */
ZB_KERN_FN void ZB_AS(zb_norm_bwd_w_row)(int64_t n, const ZB_ST *ZB_RESTRICT dy,
                                         const ZB_ST *ZB_RESTRICT x,
                                         zb_real mean, zb_real rstd,
                                         zb_real *ZB_RESTRICT acc_g,
                                         zb_real *ZB_RESTRICT acc_b)
{
    ZB_EACH(i, n) {
        acc_g[i] += ZB_AS(zb_norm_dgamma)(dy[i], x[i], mean, rstd);
    }
    if (acc_b != NULL) {
        ZB_EACH(i, n) {
            acc_b[i] += ZB_LD(dy[i]);
        }
    }
}
