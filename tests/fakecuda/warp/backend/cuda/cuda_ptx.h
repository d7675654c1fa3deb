/* SPDX-License-Identifier: MIT
 *
 * The functions of src/backend/cuda/cuda_ptx.h for the warp of warp_model.h, by
 * the text and figures of the PTX ISA ("Matrix fragments for mma.m16n8k16",
 * "ldmatrix").
 */
#ifndef ZB_CUDA_PTX_H
#define ZB_CUDA_PTX_H

#include "kern/half.h"

/* Thread 8 m + i names row i of matrix m. Of each matrix thread l gets the
 * elements 2 (l % 4) and the next of row l / 4, or of column l / 4. */
inline void warp_load(uint32_t (&r)[4], const void *row, bool is_transposed)
{
    unsigned lane = threadIdx.x;

    warp_give(0, row);
    __syncwarp();
    for (unsigned m = 0; m < 4; m++) {
        uint16_t x[2];

        for (unsigned i = 0; i < 2; i++) {
            unsigned one = lane / 4, other = 2 * (lane % 4) + i;
            unsigned from = is_transposed ? other : one;
            unsigned at = is_transposed ? one : other;

            x[i] = warp_got<const uint16_t *>(8 * m + from, 0)[at];
        }
        r[m] = x[0] | (uint32_t)x[1] << 16;
    }
    __syncwarp();
}

inline void zb_ptx_load_matrices(uint32_t (&r)[4], const void *row)
{
    warp_load(r, row, false);
}

inline void zb_ptx_load_matrices_t(uint32_t (&r)[4], const void *row)
{
    warp_load(r, row, true);
}

/* a0, a1, a4, a5 are of row l / 4, the others 8 further; a0 to a3 of columns
 * 2 (l % 4) and the next, the others 8 further. b0 and b1 are of rows 2 (l % 4)
 * and the next, b2 and b3 8 further; all of column l / 4. c0 and c1 are of row
 * l / 4, columns 2 (l % 4) and the next, c2 and c3 8 rows further. */
inline void warp_mma(float (&c)[2][2], const uint32_t (&a)[4], uint32_t b0,
                     uint32_t b1, float (*number)(uint16_t))
{
    float x[16][16], y[16][8];
    unsigned lane = threadIdx.x;

    for (int i = 0; i < 4; i++) {
        warp_give(i, a[i]);
    }
    warp_give(4, b0);
    warp_give(5, b1);
    __syncwarp();
    for (unsigned l = 0; l < 32; l++) {
        for (unsigned i = 0; i < 8; i++) {
            bool is_upper = i < 2 || (i >= 4 && i < 6);
            unsigned row = l / 4 + (is_upper ? 0 : 8);
            unsigned col = l % 4 * 2 + (i & 1) + (i < 4 ? 0 : 8);

            x[row][col] = number((uint16_t)(
                warp_got<uint32_t>(l, (int)i / 2) >> (i & 1) * 16));
        }
        for (unsigned i = 0; i < 4; i++) {
            y[l % 4 * 2 + (i & 1) + (i < 2 ? 0 : 8)][l / 4] =
                number((uint16_t)(warp_got<uint32_t>(l, 4 + (int)i / 2) >>
                                  (i & 1) * 16));
        }
    }
    for (unsigned i = 0; i < 4; i++) {
        unsigned row = lane / 4 + (i < 2 ? 0 : 8), col = lane % 4 * 2 + (i & 1);
        double sum = c[i / 2][i & 1];

        for (int k = 0; k < 16; k++) {
            sum += (double)x[row][k] * y[k][col];
        }
        c[i / 2][i & 1] = (float)sum;
    }
    __syncwarp();
}

inline void zb_ptx_mma_bf16(float (&c)[2][2], const uint32_t (&a)[4],
                            uint32_t b0, uint32_t b1)
{
    warp_mma(c, a, b0, b1, zb_float_of_bf16);
}

inline void zb_ptx_mma_f16(float (&c)[2][2], const uint32_t (&a)[4],
                           uint32_t b0, uint32_t b1)
{
    warp_mma(c, a, b0, b1, zb_float_of_f16);
}

inline uint32_t zb_ptx_pack_bf16(float first, float second)
{
    return zb_bf16_of_float(first) | (uint32_t)zb_bf16_of_float(second) << 16;
}

inline uint32_t zb_ptx_pack_f16(float first, float second)
{
    return zb_f16_of_float(first) | (uint32_t)zb_f16_of_float(second) << 16;
}

inline void zb_ptx_copy16(void *shared, const void *global, int is_zero)
{
    if (is_zero) {
        memset(shared, 0, 16);
    } else {
        memcpy(shared, global, 16);
    }
}

inline void zb_ptx_copy_wait(void)
{
}

#endif
