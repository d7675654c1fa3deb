/* SPDX-License-Identifier: MIT
 *
 * What row kernels are written in: the common subset of C11 and CUDA C++.
 *
 * A row kernel handles one row (or one block of elements) with a team of lanes.
 * On the CPU a team is one lane and the compiler vectorises its loops; in CUDA
 * it is a warp, and the sums below add across it. So a body reads:
 *
 *     zb_real sum = 0;
 *     ZB_EACH_SUM(i, n, sum) {
 *         sum += x[i];
 *     }
 *     sum = ZB_TEAM_SUM(sum);
 *     ZB_EACH(i, n) {
 *         y[i] = x[i] / sum;
 *     }
 *
 * In ZB_EACH loops no element may depend on another; arrays may be the same
 * but may not overlap otherwise. Values set by ZB_ONCE are seen by the team's
 * later reads only through registers: keep them in a local as well.
 */
#ifndef ZB_KERN_H
#define ZB_KERN_H

#include <stdint.h>
#include <string.h>

/* As in zb/tensor.h, which device code does not include. */
#ifdef ZB_REAL_IS_DOUBLE
typedef double zb_real;
#else
typedef float zb_real;
#endif

#if defined(__CUDACC__)

#define ZB_KERN_FN static __device__ __forceinline__
#define ZB_RESTRICT __restrict__
#define ZB_EACH(i, n) for (int64_t i = threadIdx.x % 32; i < (n); i += 32)
#define ZB_EACH_SUM(i, n, acc) ZB_EACH(i, n)
#define ZB_ONCE if (threadIdx.x % 32 == 0)
#define ZB_TEAM_SUM(x) zb_team_sum(x)
#define ZB_TEAM_MAX(x) zb_team_max(x)

template <typename T> ZB_KERN_FN T zb_team_sum(T x)
{
    for (int lane = 16; lane > 0; lane /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, lane);
    }
    return x;
}

template <typename T> ZB_KERN_FN T zb_team_max(T x)
{
    for (int lane = 16; lane > 0; lane /= 2) {
        T other = __shfl_xor_sync(0xffffffffu, x, lane);

        x = other > x ? other : x;
    }
    return x;
}

ZB_KERN_FN int64_t zb_team_find(const int32_t *x, int64_t from, int64_t to,
                                int32_t what)
{
    for (int64_t at = from; at < to; at += 32) {
        int64_t i = at + threadIdx.x % 32;
        unsigned hit = __ballot_sync(0xffffffffu, i < to && x[i] == what);

        if (hit != 0) {
            return at + __ffs((int)hit) - 1;
        }
    }
    return to;
}

#else

#include <math.h>

#define ZB_KERN_FN static inline
#ifdef __cplusplus
#define ZB_RESTRICT __restrict__
#else
#define ZB_RESTRICT restrict
#endif

/* In the double build nothing is asked of the compiler: it could not vectorise
 * the calls of the C library, and clang warns of every such loop. */
#define ZB_PRAGMA(text) _Pragma(#text)
#ifdef ZB_REAL_IS_DOUBLE
#define ZB_SIMD(text)
#else
#define ZB_SIMD(text) ZB_PRAGMA(text)
#endif

#define ZB_EACH(i, n) ZB_SIMD(omp simd) for (int64_t i = 0; i < (n); i++)
#define ZB_EACH_SUM(i, n, acc)                                                 \
    ZB_SIMD(omp simd reduction(+ : acc))                                       \
    for (int64_t i = 0; i < (n); i++)
#define ZB_ONCE
#define ZB_TEAM_SUM(x) (x)
#define ZB_TEAM_MAX(x) (x)

/* The first i in [from, to) with x[i] == what, else `to`. */
ZB_KERN_FN int64_t zb_team_find(const int32_t *x, int64_t from, int64_t to,
                                int32_t what)
{
    while (from < to && x[from] != what) {
        from++;
    }
    return from < to ? from : to;
}

#endif

/* A literal of type zb_real. */
#define ZB_R(x) ((zb_real)(x))

ZB_KERN_FN float zb_float_of_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

ZB_KERN_FN uint32_t zb_bits_of_float(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

#endif
