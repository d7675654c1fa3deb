/* SPDX-License-Identifier: MIT
 *
 * The kernels of cuda_move.cu that know what they move. A template of
 * kern/each_storage.h.
 */
#include "kern/ew.h"

static __global__ void ZB_AS(reduce)(struct zb_k_reduce p)
{
    ZB_TEAM_EACH(k, p.n_blocks * p.rows * ZB_CUDA_PIECES(p.cols)) {
        struct zb_cuda_part part = zb_cuda_part_of(k, p.cols);
        int64_t b = part.row / p.rows, r = part.row - b * p.rows;
        int64_t x_at = b * p.block_x + r * p.ldx + part.at;
        ZB_ST *y = (ZB_ST *)p.y + b * p.block_y + r * p.ldy + part.at;
        const ZB_ST *first = p.accumulate ? y : (const ZB_ST *)p.x[0] + x_at;

        ZB_EACH_SCALAR(i, part.n) {
            zb_real sum = ZB_LD(first[i]);

            for (int m = p.accumulate ? 0 : 1; m < p.n_x; m++) {
                sum += ZB_LD(((const ZB_ST *)p.x[m])[x_at + i]);
            }
            y[i] = ZB_TO(sum);
        }
    }
}

static __global__ void ZB_AS(convert)(struct zb_k_convert p)
{
    const ZB_ST *x = (const ZB_ST *)p.x;

    ZB_TEAM_EACH(k, ZB_CUDA_PIECES(p.n)) {
        struct zb_cuda_part at = zb_cuda_piece(k, p.n);

        if (p.y_dtype == ZB_DTYPE_REAL) {
            ZB_AS(zb_load_run)(at.n, x + at.at, (zb_real *)p.y + at.at);
            continue;
        }
#ifndef ZB_REAL_IS_DOUBLE
        uint16_t *y = (uint16_t *)p.y + at.at;

        if (p.y_dtype == ZB_DTYPE_BF16) {
            ZB_EACH(i, at.n) {
                y[i] = zb_bf16_of_float(ZB_LD(x[at.at + i]));
            }
        } else {
            ZB_EACH(i, at.n) {
                y[i] = zb_f16_of_float(ZB_LD(x[at.at + i]));
            }
        }
#endif
    }
}
