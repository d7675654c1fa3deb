/* SPDX-License-Identifier: MIT
 *
 * Small matrix products and transposes in the compiler's vector types: what
 * attention, and gemm without oneDNN, are made of. Everything here runs in the
 * calling thread, and each element is summed in the order of k.
 */
#ifndef ZB_CPU_TILE_H
#define ZB_CPU_TILE_H

#include "kern/kern.h"

#if defined(__AVX512F__)
#define ZB_VEC_BYTES 64
#elif defined(__AVX__)
#define ZB_VEC_BYTES 32
#else
#define ZB_VEC_BYTES 16
#endif

#define ZB_VEC ((int64_t)(ZB_VEC_BYTES / sizeof(zb_real)))

/* n rounded up to whole vectors. */
static inline int64_t zb_vec_round(int64_t n)
{
    return (n + ZB_VEC - 1) / ZB_VEC * ZB_VEC;
}

/* A matrix of which element (i, k) is at ptr[i * row + k * col]. */
struct zb_tile_a {
    const zb_real *ptr;
    int64_t row, col;
};

/* C[m,n] = A[m,k] B[k,n], or += when `accumulate`. B and C have rows of ldb and
 * ldc elements. Rows of B are read up to zb_vec_round(n) elements; of C only n
 * elements are touched. k may be 0. */
void zb_tile_gemm(int64_t m, int64_t n, int64_t k, struct zb_tile_a a,
                  const zb_real *b, int64_t ldb, zb_real *c, int64_t ldc,
                  int accumulate);

/* dst[c,r] = src[r,c] for rows x cols of src. With `pad`, rows of dst are
 * filled with zeros up to zb_vec_round(rows). */
void zb_tile_transpose(int64_t rows, int64_t cols, const zb_real *src,
                       int64_t ld_src, zb_real *dst, int64_t ld_dst, int pad);

#endif
