/* SPDX-License-Identifier: MIT
 *
 * Products of small tiles, by tensor cores where the type has them: 16 rows of
 * a warp against tiles in shared memory, sums in zb_real.
 *
 *     zb_mma_abt(acc, a, b, ...)   acc[16,N] += a[16,K] b[N,K]^T
 *     zb_mma_pb(acc, p, b, ...)    acc[16,N] += p[16,K] b[K,N]
 *
 * acc and p are struct zb_acc: a tile of 16 rows that a warp holds. p is
 * rounded to the storage type, as tensor cores take nothing else. bf16 and fp16
 * use mma.m16n8k16; zb_real takes ordinary multiply-adds, each element summed
 * in the order of k.
 *
 * With nvcc a lane has ZB_ACC_ROWS (2) rows and of each group of eight columns
 * ZB_ACC_COLS (2); in the emulation the one lane has all 16 and all 8. So
 *
 *     for (int n = 0; n < N / 8; n++)
 *         for (int r = 0; r < ZB_ACC_ROWS; r++)
 *             for (int c = 0; c < ZB_ACC_COLS; c++)
 *                 acc.x[n][r][c]
 *
 * is every element the lane holds, of row zb_acc_row(r) and column
 * 8 n + zb_acc_col(c). What rows have in common is found with zb_acc_row_sum()
 * and zb_acc_row_max(), over the lanes that share a row.
 *
 * Rows of tiles in shared memory are ZB_TILE_LD(T, columns) elements apart:
 * 16 bytes of padding, so that eight rows lie in different banks.
 */
#ifndef ZB_CUDA_MMA_H
#define ZB_CUDA_MMA_H

#include "kern/half.h"

/* ---- who holds what: mma.m16n8k16 and ldmatrix, by the PTX ISA ----------- */

#if defined(__CUDACC__)
#define ZB_MMA_INDEX static constexpr __host__ __device__ __forceinline__
#define ZB_UNROLL ZB_MMA_PRAGMA(unroll)
#define ZB_UNROLL_BY(n) ZB_MMA_PRAGMA(unroll n)
#ifndef ZB_MMA_PRAGMA
#define ZB_MMA_PRAGMA(text) _Pragma(#text)
#endif
#else
#define ZB_MMA_INDEX static constexpr inline
#define ZB_UNROLL
#define ZB_UNROLL_BY(n)
#endif

/* Row of A and column (k) of A that element i (0..7) of a lane's A has. */
ZB_MMA_INDEX int zb_mma_a_row(int lane, int i)
{
    return lane / 4 + 8 * (i / 2 % 2);
}

ZB_MMA_INDEX int zb_mma_a_k(int lane, int i)
{
    return lane % 4 * 2 + i % 2 + 8 * (i / 4);
}

/* k and column of B that element i (0..3) of a lane's B has. */
ZB_MMA_INDEX int zb_mma_b_k(int lane, int i)
{
    return lane % 4 * 2 + i % 2 + 8 * (i / 2);
}

ZB_MMA_INDEX int zb_mma_b_col(int lane, int i)
{
    return i >= 0 ? lane / 4 : 0;
}

/* Row slot r (0, 1) and column slot c (0, 1) of a lane's C. */
ZB_MMA_INDEX int zb_mma_c_row(int lane, int r)
{
    return lane / 4 + 8 * r;
}

ZB_MMA_INDEX int zb_mma_c_col(int lane, int c)
{
    return lane % 4 * 2 + c;
}

/* The row that a lane names to load A[16,16] with four matrices, from rows of
 * k; and where in it. */
ZB_MMA_INDEX int zb_mma_load_a_row(int lane)
{
    return lane % 8 + 8 * (lane / 8 % 2);
}

ZB_MMA_INDEX int zb_mma_load_a_k(int lane)
{
    return 8 * (lane / 16);
}

/* The same for two B[16,8] side by side whose columns are rows of k: the pairs
 * of matrices are the two B. */
ZB_MMA_INDEX int zb_mma_load_bt_col(int lane)
{
    return lane % 8 + 8 * (lane / 16);
}

ZB_MMA_INDEX int zb_mma_load_bt_k(int lane)
{
    return 8 * (lane / 8 % 2);
}

/* The same from rows of columns, transposed while loading. */
ZB_MMA_INDEX int zb_mma_load_b_k(int lane)
{
    return lane % 8 + 8 * (lane / 8 % 2);
}

ZB_MMA_INDEX int zb_mma_load_b_col(int lane)
{
    return 8 * (lane / 16);
}

/* ---- storage types ------------------------------------------------------- */

/* ld() and to(): as ZB_LD and ZB_TO. */
struct zb_mma_real {
    typedef zb_real st;
    static constexpr bool has_tensor_cores = false;

    ZB_KERN_FN zb_real ld(st x)
    {
        return x;
    }
    ZB_KERN_FN st to(zb_real x)
    {
        return x;
    }
};

#ifndef ZB_REAL_IS_DOUBLE

struct zb_mma_bf16 {
    typedef uint16_t st;
    static constexpr bool has_tensor_cores = true, is_bf16 = true;

    ZB_KERN_FN zb_real ld(st x)
    {
        return zb_float_of_bf16(x);
    }
    ZB_KERN_FN st to(zb_real x)
    {
        return zb_bf16_of_float(x);
    }
};

struct zb_mma_f16 {
    typedef uint16_t st;
    static constexpr bool has_tensor_cores = true, is_bf16 = false;

    ZB_KERN_FN zb_real ld(st x)
    {
        return zb_float_of_f16(x);
    }
    ZB_KERN_FN st to(zb_real x)
    {
        return zb_f16_of_float(x);
    }
};

#endif

/* ---- tiles --------------------------------------------------------------- */

#if defined(__CUDACC__)
enum { ZB_ACC_ROWS = 2, ZB_ACC_COLS = 2 };
#else
enum { ZB_ACC_ROWS = 16, ZB_ACC_COLS = 8 };
#endif

template <int N> struct zb_acc {
    zb_real x[N / 8][ZB_ACC_ROWS][ZB_ACC_COLS];
};

template <int N> ZB_KERN_FN void zb_acc_zero(struct zb_acc<N> &acc)
{
    ZB_UNROLL
    for (int n = 0; n < N / 8; n++) {
        ZB_UNROLL
        for (int r = 0; r < ZB_ACC_ROWS; r++) {
            ZB_UNROLL
            for (int c = 0; c < ZB_ACC_COLS; c++) {
                acc.x[n][r][c] = 0;
            }
        }
    }
}

#define ZB_TILE_LD(T, cols) ((cols) + 16 / (int)sizeof(typename T::st))

/* 16 aligned bytes of memory in one read. */
template <class T> struct alignas(16) zb_tile_vec {
    typename T::st x[16 / sizeof(typename T::st)];
};

template <class T>
ZB_KERN_FN struct zb_tile_vec<T> zb_tile_read16(const typename T::st *x)
{
    struct zb_tile_vec<T> v;

#if defined(__CUDACC__)
    v = *(const struct zb_tile_vec<T> *)x;
#else
    memcpy(&v, x, sizeof(v));
#endif
    return v;
}

#if defined(__CUDACC__)

#include "backend/cuda/cuda_ptx.h"

#define ZB_MMA_LANE ((int)(threadIdx.x % 32))

ZB_KERN_FN int zb_acc_row(int r)
{
    return zb_mma_c_row(ZB_MMA_LANE, r);
}

ZB_KERN_FN int zb_acc_col(int c)
{
    return zb_mma_c_col(ZB_MMA_LANE, c);
}

ZB_KERN_FN zb_real zb_acc_row_sum(zb_real x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

ZB_KERN_FN zb_real zb_acc_row_max(zb_real x)
{
    zb_real y = __shfl_xor_sync(0xffffffffu, x, 1);

    x = y > x ? y : x;
    y = __shfl_xor_sync(0xffffffffu, x, 2);
    return y > x ? y : x;
}

/* Copy 16 aligned bytes to shared memory, or zeros; done for the lane itself
 * after zb_tile_wait(), for others after the next sync. */
ZB_KERN_FN void zb_tile_copy16(void *shared, const void *x, int is_zero)
{
    zb_ptx_copy16(shared, x, is_zero);
}

ZB_KERN_FN void zb_tile_wait(void)
{
    zb_ptx_copy_wait();
}

#ifndef ZB_REAL_IS_DOUBLE

template <class T>
ZB_KERN_FN void zb_mma_one(zb_real (&c)[2][2], const uint32_t (&a)[4],
                           uint32_t b0, uint32_t b1)
{
    if constexpr (T::is_bf16) {
        zb_ptx_mma_bf16(c, a, b0, b1);
    } else {
        zb_ptx_mma_f16(c, a, b0, b1);
    }
}

template <class T> ZB_KERN_FN uint32_t zb_mma_pack(const zb_real (&pair)[2])
{
    if constexpr (T::is_bf16) {
        return zb_ptx_pack_bf16(pair[0], pair[1]);
    } else {
        return zb_ptx_pack_f16(pair[0], pair[1]);
    }
}

template <class T, int N, int K>
ZB_KERN_FN void zb_mma_abt_cores(struct zb_acc<N> &acc,
                                 const typename T::st *a,
                                 const typename T::st *b, int ld)
{
    const int lane = ZB_MMA_LANE;

    a += zb_mma_load_a_row(lane) * ld + zb_mma_load_a_k(lane);
    b += zb_mma_load_bt_col(lane) * ld + zb_mma_load_bt_k(lane);
    ZB_UNROLL
    for (int k = 0; k < K; k += 16) {
        uint32_t fa[4];

        zb_ptx_load_matrices(fa, a + k);
        ZB_UNROLL
        for (int n = 0; n < N; n += 16) {
            uint32_t fb[4];

            zb_ptx_load_matrices(fb, b + n * ld + k);
            zb_mma_one<T>(acc.x[n / 8], fa, fb[0], fb[1]);
            zb_mma_one<T>(acc.x[n / 8 + 1], fa, fb[2], fb[3]);
        }
    }
}

/* What a lane has of two C side by side is what it has of one A. */
template <class T, int N, int K>
ZB_KERN_FN void zb_mma_pb_cores(struct zb_acc<N> &acc,
                                const struct zb_acc<K> &p,
                                const typename T::st *b, int ld)
{
    const int lane = ZB_MMA_LANE;

    b += zb_mma_load_b_k(lane) * ld + zb_mma_load_b_col(lane);
    ZB_UNROLL
    for (int k = 0; k < K; k += 16) {
        const uint32_t fa[4] = {
            zb_mma_pack<T>(p.x[k / 8][0]), zb_mma_pack<T>(p.x[k / 8][1]),
            zb_mma_pack<T>(p.x[k / 8 + 1][0]),
            zb_mma_pack<T>(p.x[k / 8 + 1][1])};

        ZB_UNROLL
        for (int n = 0; n < N; n += 16) {
            uint32_t fb[4];

            zb_ptx_load_matrices_t(fb, b + k * ld + n);
            zb_mma_one<T>(acc.x[n / 8], fa, fb[0], fb[1]);
            zb_mma_one<T>(acc.x[n / 8 + 1], fa, fb[2], fb[3]);
        }
    }
}

#endif

template <int N, int K>
ZB_KERN_FN void zb_mma_abt_plain(struct zb_acc<N> &acc, const zb_real *a,
                                 const zb_real *b, int ld)
{
    a += zb_acc_row(0) * ld;
    b += zb_acc_col(0) * ld;
    ZB_UNROLL_BY(1)
    for (int k = 0; k < K; k += 4) {
        zb_real va[2][4];

        ZB_UNROLL
        for (int i = 0; i < 8; i++) {
            va[i / 4][i % 4] = a[i / 4 * 8 * ld + k + i % 4];
        }
        ZB_UNROLL
        for (int n = 0; n < N / 8; n++) {
            ZB_UNROLL
            for (int c = 0; c < 2; c++) {
                const zb_real *row = b + (8 * n + c) * ld + k;

                ZB_UNROLL
                for (int i = 0; i < 4; i++) {
                    acc.x[n][0][c] += va[0][i] * row[i];
                    acc.x[n][1][c] += va[1][i] * row[i];
                }
            }
        }
    }
}

/* Column k of p is with the lane of each four that has it. The syncs keep the
 * compiler from reading ahead more than there are registers for. */
template <int N, int K>
ZB_KERN_FN void zb_mma_pb_plain(struct zb_acc<N> &acc,
                                const struct zb_acc<K> &p, const zb_real *b,
                                int ld)
{
    b += zb_acc_col(0);
    ZB_UNROLL
    for (int k = 0; k < K; k++) {
        const int from = ZB_MMA_LANE / 4 * 4 + k % 8 / 2;
        zb_real p0 = __shfl_sync(0xffffffffu, p.x[k / 8][0][k % 2], from);
        zb_real p1 = __shfl_sync(0xffffffffu, p.x[k / 8][1][k % 2], from);

        __syncwarp();
        ZB_UNROLL
        for (int n = 0; n < N / 8; n++) {
            ZB_UNROLL
            for (int c = 0; c < 2; c++) {
                zb_real y = b[k * ld + 8 * n + c];

                acc.x[n][0][c] += p0 * y;
                acc.x[n][1][c] += p1 * y;
            }
        }
    }
}

/* The lane's elements of one row and one group of eight columns, which follow
 * each other, to aligned memory. */
template <class T>
ZB_KERN_FN void zb_acc_put(typename T::st *x, const zb_real (&y)[2])
{
    if constexpr (T::has_tensor_cores) {
        *(uint32_t *)x = zb_mma_pack<T>(y);
    } else {
        x[0] = y[0];
        x[1] = y[1];
    }
}

/* n_used and k_used: what is past them is zero, for the emulation. */
template <class T, int N, int K>
ZB_KERN_FN void zb_mma_abt(struct zb_acc<N> &acc, const typename T::st *a,
                           const typename T::st *b, int ld, int n_used,
                           int k_used)
{
    (void)n_used;
    (void)k_used;
    if constexpr (T::has_tensor_cores) {
        zb_mma_abt_cores<T, N, K>(acc, a, b, ld);
    } else {
        zb_mma_abt_plain<N, K>(acc, a, b, ld);
    }
}

template <class T, int N, int K>
ZB_KERN_FN void zb_mma_pb(struct zb_acc<N> &acc, const struct zb_acc<K> &p,
                          const typename T::st *b, int ld, int n_used,
                          int k_used)
{
    (void)n_used;
    (void)k_used;
    if constexpr (T::has_tensor_cores) {
        zb_mma_pb_cores<T, N, K>(acc, p, b, ld);
    } else {
        zb_mma_pb_plain<N, K>(acc, p, b, ld);
    }
}

#else

ZB_KERN_FN int zb_acc_row(int r)
{
    return r;
}

ZB_KERN_FN int zb_acc_col(int c)
{
    return c;
}

ZB_KERN_FN zb_real zb_acc_row_sum(zb_real x)
{
    return x;
}

ZB_KERN_FN zb_real zb_acc_row_max(zb_real x)
{
    return x;
}

template <class T>
ZB_KERN_FN void zb_acc_put(typename T::st *x, const zb_real (&y)[8])
{
    for (int c = 0; c < 8; c++) {
        x[c] = T::to(y[c]);
    }
}

ZB_KERN_FN void zb_tile_copy16(void *shared, const void *x, int is_zero)
{
    if (is_zero) {
        memset(shared, 0, 16);
    } else {
        memcpy(shared, x, 16);
    }
}

ZB_KERN_FN void zb_tile_wait(void)
{
}

ZB_KERN_FN void zb_mma_eight(zb_real (&c)[8], zb_real a, const zb_real (&b)[8])
{
    for (int i = 0; i < 8; i++) {
        c[i] += a * b[i];
    }
}

template <class T, int N, int K>
ZB_KERN_FN void zb_mma_abt(struct zb_acc<N> &acc, const typename T::st *a,
                           const typename T::st *b, int ld, int n_used,
                           int k_used)
{
    for (int n = 0; n < N / 8 && 8 * n < n_used; n++) {
        for (int k = 0; k < K && k < k_used; k++) {
            zb_real y[8];

            for (int c = 0; c < 8; c++) {
                y[c] = T::ld(b[(8 * n + c) * ld + k]);
            }
            for (int r = 0; r < 16; r++) {
                zb_mma_eight(acc.x[n][r], T::ld(a[r * ld + k]), y);
            }
        }
    }
}

template <class T, int N, int K>
ZB_KERN_FN void zb_mma_pb(struct zb_acc<N> &acc, const struct zb_acc<K> &p,
                          const typename T::st *b, int ld, int n_used,
                          int k_used)
{
    for (int n = 0; n < N / 8 && 8 * n < n_used; n++) {
        for (int k = 0; k < K && k < k_used; k++) {
            zb_real y[8];

            for (int c = 0; c < 8; c++) {
                y[c] = T::ld(b[k * ld + 8 * n + c]);
            }
            for (int r = 0; r < 16; r++) {
                zb_real x = T::ld(T::to(p.x[k / 8][r][k % 8]));

                zb_mma_eight(acc.x[n][r], x, y);
            }
        }
    }
}

#endif

#endif
