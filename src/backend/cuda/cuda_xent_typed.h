/* SPDX-License-Identifier: MIT
 *
 * The kernels of cuda_xent.cu. A template of kern/each_storage.h.
 */
#include "kern/ew.h"
#include "kern/xent_row.h"

static __global__ void ZB_AS(xent_fwd)(struct zb_k_xent_fwd p)
{
    ZB_TEAM_EACH(r, p.rows) {
        ZB_AS(zb_xent_row)
        (p.cols, (const ZB_ST *)p.logits + r * p.ld, p.label[r], p.loss + r,
         p.lse + r);
    }
}

static __global__ void ZB_AS(xent_part)(struct zb_k_xent_part p)
{
    ZB_TEAM_EACH(r, p.rows) {
        ZB_AS(zb_xent_part_row)
        (p.cols, p.first, (const ZB_ST *)p.logits + r * p.ld, p.label[r],
         p.stats + 3 * r);
    }
}

/* The largest of x[0..n), n > 0, in room[0], by all lanes of a block. */
ZB_KERN_FN void ZB_AS(long_max)(int64_t n, const ZB_ST *x, zb_real *room)
{
    ZB_BLOCK_EACH(j, ZB_CUDA_BLOCK) {
        zb_real top = ZB_LD(x[0]);

        for (int64_t i = j; i < n; i += ZB_CUDA_BLOCK) {
            top = ZB_LD(x[i]) > top ? ZB_LD(x[i]) : top;
        }
        room[j] = top;
    }
    FOLD(room, a, b, b > a ? b : a);
}

/* The sum of exp(x - top), likewise. */
ZB_KERN_FN void ZB_AS(long_sum)(int64_t n, const ZB_ST *x, zb_real top,
                                zb_real *room)
{
    ZB_BLOCK_EACH(j, ZB_CUDA_BLOCK) {
        zb_real sum = 0;

        for (int64_t i = j; i < n; i += ZB_CUDA_BLOCK) {
            sum += zb_exp(ZB_LD(x[i]) - top);
        }
        room[j] = sum;
    }
    FOLD(room, a, b, a + b);
}

static __global__ void ZB_AS(long_xent_fwd)(struct zb_k_xent_fwd p)
{
    ZB_SHARED zb_real most[ZB_CUDA_BLOCK], sum[ZB_CUDA_BLOCK];

    ZB_ITEM_EACH(r, p.rows) {
        const ZB_ST *x = (const ZB_ST *)p.logits + r * p.ld;

        ZB_AS(long_max)(p.cols, x, most);
        ZB_AS(long_sum)(p.cols, x, most[0], sum);
        ZB_BLOCK_ONCE {
            int32_t label = p.label[r];
            zb_real lse = most[0] + zb_log(sum[0]), loss = 0;

            if (label != ZB_LABEL_IGNORE) {
                loss = label < 0 || label >= p.cols ? (zb_real)NAN
                                                    : lse - ZB_LD(x[label]);
            }
            p.loss[r] = loss;
            p.lse[r] = lse;
        }
        ZB_BLOCK_SYNC();
    }
}

static __global__ void ZB_AS(long_xent_part)(struct zb_k_xent_part p)
{
    ZB_SHARED zb_real most[ZB_CUDA_BLOCK], sum[ZB_CUDA_BLOCK];

    ZB_ITEM_EACH(r, p.rows) {
        const ZB_ST *x = (const ZB_ST *)p.logits + r * p.ld;

        ZB_AS(long_max)(p.cols, x, most);
        ZB_AS(long_sum)(p.cols, x, most[0], sum);
        ZB_BLOCK_ONCE {
            int64_t at = p.label[r] - p.first;

            p.stats[3 * r] = most[0];
            p.stats[3 * r + 1] = sum[0];
            p.stats[3 * r + 2] =
                at >= 0 && at < p.cols ? ZB_LD(x[at]) : ZB_R(0);
        }
        ZB_BLOCK_SYNC();
    }
}

/* Pieces of the columns and, behind them, of what pads a row. */
static __global__ void ZB_AS(xent_bwd)(struct zb_k_xent_bwd p)
{
    ZB_TEAM_EACH(k, p.rows * ZB_CUDA_PIECES(p.cols + p.n_pad)) {
        struct zb_cuda_part part = zb_cuda_part_of(k, p.cols + p.n_pad);
        int64_t left = p.cols - part.at;
        int64_t n = left < 0 ? 0 : left < part.n ? left : part.n;
        ZB_ST *d = (ZB_ST *)p.dlogits + part.row * p.ld_d + part.at;

        ZB_AS(zb_xent_bwd_row)
        (n, p.first + part.at, p.n_class, (zb_real)p.scale,
         (const ZB_ST *)p.logits + part.row * p.ld + part.at, p.lse[part.row],
         p.label[part.row], d);
        ZB_AS(zb_fill_run)(part.n - n, ZB_R(0), d + n);
    }
}
