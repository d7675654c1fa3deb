/* SPDX-License-Identifier: MIT
 *
 * The kernels of cuda_update.cu. A template of kern/each_storage.h.
 */
#include "kern/ew.h"

/* Parameters that were just updated, in the type that other kernels read. Each
 * lane reads what it has written. */
ZB_KERN_FN void ZB_AS(store_param)(const struct zb_cuda_part *at,
                                   const zb_real *param, void *stored)
{
    if (stored != NULL) {
        ZB_AS(zb_store_run)(at->n, param + at->at, (ZB_ST *)stored + at->at);
    }
}

static __global__ void ZB_AS(adamw)(struct zb_k_adamw p,
                                    struct zb_adamw_coef coef)
{
    ZB_TEAM_EACH(k, ZB_CUDA_PIECES(p.n)) {
        struct zb_cuda_part at = zb_cuda_piece(k, p.n);
        const zb_real *grad = p.grad + at.at;
        zb_real *param = p.param + at.at, *m = p.m + at.at, *v = p.v + at.at;

        ZB_EACH(i, at.n) {
            zb_adamw_step(&coef, grad[i], &param[i], &m[i], &v[i]);
        }
        ZB_AS(store_param)(&at, p.param, p.stored);
    }
}

static __global__ void ZB_AS(sgd)(struct zb_k_sgd p, struct zb_sgd_coef coef)
{
    ZB_TEAM_EACH(k, ZB_CUDA_PIECES(p.n)) {
        struct zb_cuda_part at = zb_cuda_piece(k, p.n);
        const zb_real *grad = p.grad + at.at;
        zb_real *param = p.param + at.at;

        if (p.momentum == 0) {
            ZB_EACH(i, at.n) {
                zb_sgd_step(&coef, grad[i], &param[i]);
            }
        } else {
            zb_real *buf = p.buf + at.at;

            ZB_EACH(i, at.n) {
                zb_real b = p.t == 1 ? ZB_R(0) : buf[i];

                zb_sgd_momentum_step(&coef, grad[i], &param[i], &b);
                buf[i] = b;
            }
        }
        ZB_AS(store_param)(&at, p.param, p.stored);
    }
}

/* A lane makes blocks of four numbers and stores those that are asked for. */
static __global__ void ZB_AS(fill_normal)(struct zb_k_fill_normal p)
{
    zb_real mean = (zb_real)p.mean, std = (zb_real)p.std;
    ZB_ST *y = (ZB_ST *)p.y;

    ZB_LANE_EACH(k, (p.first % 4 + p.n + 3) / 4) {
        int64_t block = p.first / 4 + k;
        zb_real z[4];

        zb_normal_block(p.seed, p.key, (uint64_t)block, z);
        for (int j = 0; j < 4; j++) {
            int64_t i = 4 * block + j - p.first;

            if (i >= 0 && i < p.n) {
                y[i] = ZB_TO(mean + std * z[j]);
            }
        }
    }
}
