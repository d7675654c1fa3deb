/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

#include "backend/cpu/cpu_tile.h"

typedef zb_real vec __attribute__((vector_size(ZB_VEC_BYTES)));
typedef zb_real vec_u
    __attribute__((vector_size(ZB_VEC_BYTES), aligned(sizeof(zb_real))));

/* Rows and vectors of C that are kept in registers: MR * MV accumulators, MV
 * vectors of B and one element of A, of 32 or 16 registers. */
#define MR 6
#if ZB_VEC_BYTES == 64
#define MV 4
#else
#define MV 2
#endif

#define INLINE static inline __attribute__((always_inline))

/* One block of mr rows and mv vectors; both are constants where this is
 * inlined, so that `acc` lives in registers. */
INLINE void micro(const int mr, const int mv, int64_t k, struct zb_tile_a a,
                  const zb_real *b, int64_t ldb, zb_real *c, int64_t ldc,
                  int accumulate)
{
    vec acc[MR][MV];

#pragma GCC unroll 8
    for (int i = 0; i < mr; i++) {
#pragma GCC unroll 4
        for (int v = 0; v < mv; v++) {
            acc[i][v] = accumulate
                            ? (vec) * (const vec_u *)(c + i * ldc + v * ZB_VEC)
                            : (vec){0};
        }
    }
    for (int64_t l = 0; l < k; l++) {
        vec bv[MV];

#pragma GCC unroll 4
        for (int v = 0; v < mv; v++) {
            bv[v] = *(const vec_u *)(b + l * ldb + v * ZB_VEC);
        }
#pragma GCC unroll 8
        for (int i = 0; i < mr; i++) {
            zb_real x = a.ptr[i * a.row + l * a.col];

#pragma GCC unroll 4
            for (int v = 0; v < mv; v++) {
                acc[i][v] += x * bv[v];
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++) {
#pragma GCC unroll 4
        for (int v = 0; v < mv; v++) {
            *(vec_u *)(c + i * ldc + v * ZB_VEC) = acc[i][v];
        }
    }
}

/* All m rows of mv vectors. */
INLINE void panel(const int mv, int64_t m, int64_t k, struct zb_tile_a a,
                  const zb_real *b, int64_t ldb, zb_real *c, int64_t ldc,
                  int accumulate)
{
    int64_t i = 0;

    for (; i + MR <= m; i += MR) {
        micro(MR, mv, k, a, b, ldb, c + i * ldc, ldc, accumulate);
        a.ptr += MR * a.row;
    }
    if (i + 4 <= m) {
        micro(4, mv, k, a, b, ldb, c + i * ldc, ldc, accumulate);
        a.ptr += 4 * a.row;
        i += 4;
    }
    if (i + 2 <= m) {
        micro(2, mv, k, a, b, ldb, c + i * ldc, ldc, accumulate);
        a.ptr += 2 * a.row;
        i += 2;
    }
    if (i < m) {
        micro(1, mv, k, a, b, ldb, c + i * ldc, ldc, accumulate);
    }
}

static void full_panel(int64_t m, int64_t k, struct zb_tile_a a,
                       const zb_real *b, int64_t ldb, zb_real *c, int64_t ldc,
                       int accumulate)
{
    panel(MV, m, k, a, b, ldb, c, ldc, accumulate);
}

/* The last vectors of the rows, fewer than MV. */
static void last_panel(int64_t n_vec, int64_t m, int64_t k, struct zb_tile_a a,
                       const zb_real *b, int64_t ldb, zb_real *c, int64_t ldc,
                       int accumulate)
{
    switch (n_vec) {
#if MV == 4
    case 3:
        panel(3, m, k, a, b, ldb, c, ldc, accumulate);
        break;
    case 2:
        panel(2, m, k, a, b, ldb, c, ldc, accumulate);
        break;
#endif
    case 1:
        panel(1, m, k, a, b, ldb, c, ldc, accumulate);
        break;
    default:
        break;
    }
}

/* The last n elements of each row, less than a vector: through a copy. */
static void tail(int64_t m, int64_t n, int64_t k, struct zb_tile_a a,
                 const zb_real *b, int64_t ldb, zb_real *c, int64_t ldc,
                 int accumulate)
{
    for (int64_t i = 0; i < m; i += MR) {
        int64_t rows = m - i < MR ? m - i : MR;
        struct zb_tile_a a_i = {a.ptr + i * a.row, a.row, a.col};
        zb_real copy[MR * ZB_VEC_BYTES / sizeof(zb_real)];

        for (int64_t r = 0; accumulate && r < rows; r++) {
            for (int64_t x = 0; x < ZB_VEC; x++) {
                copy[r * ZB_VEC + x] =
                    x < n ? c[(i + r) * ldc + x] : ZB_R(0);
            }
        }
        panel(1, rows, k, a_i, b, ldb, copy, ZB_VEC, accumulate);
        for (int64_t r = 0; r < rows; r++) {
            memcpy(c + (i + r) * ldc, copy + r * ZB_VEC,
                   (size_t)n * sizeof(zb_real));
        }
    }
}

void zb_tile_gemm(int64_t m, int64_t n, int64_t k, struct zb_tile_a a,
                  const zb_real *b, int64_t ldb, zb_real *c, int64_t ldc,
                  int accumulate)
{
    int64_t n_vec = n / ZB_VEC, v = 0;

    for (; v + MV <= n_vec; v += MV) {
        full_panel(m, k, a, b + v * ZB_VEC, ldb, c + v * ZB_VEC, ldc,
                   accumulate);
    }
    last_panel(n_vec - v, m, k, a, b + v * ZB_VEC, ldb, c + v * ZB_VEC, ldc,
               accumulate);
    if (n % ZB_VEC != 0) {
        tail(m, n % ZB_VEC, k, a, b + n_vec * ZB_VEC, ldb,
             c + n_vec * ZB_VEC, ldc, accumulate);
    }
}

/* The first (second) halves of two vectors, element by element in turn. */
#define N_LANES (ZB_VEC_BYTES / (ZB_REAL_BYTES))
#ifdef ZB_REAL_IS_DOUBLE
#define ZB_REAL_BYTES 8
#else
#define ZB_REAL_BYTES 4
#endif

#if N_LANES == 16
#define N_ROUNDS 4
#define ZIP_FIRST(a, b)                                                        \
    __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, \
                            22, 7, 23)
#define ZIP_SECOND(a, b)                                                       \
    __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13,    \
                            29, 14, 30, 15, 31)
#elif N_LANES == 8
#define N_ROUNDS 3
#define ZIP_FIRST(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define ZIP_SECOND(a, b)                                                       \
    __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#elif N_LANES == 4
#define N_ROUNDS 2
#define ZIP_FIRST(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define ZIP_SECOND(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#else
#define N_ROUNDS 1
#define ZIP_FIRST(a, b) __builtin_shufflevector(a, b, 0, 2)
#define ZIP_SECOND(a, b) __builtin_shufflevector(a, b, 1, 3)
#endif

/* Transpose a square of vectors: each round is a perfect shuffle. */
INLINE void transpose_square(vec *x)
{
#pragma GCC unroll 4
    for (int round = 0; round < N_ROUNDS; round++) {
        vec y[N_LANES];

#pragma GCC unroll 8
        for (int i = 0; i < N_LANES / 2; i++) {
            y[2 * i] = ZIP_FIRST(x[i], x[i + N_LANES / 2]);
            y[2 * i + 1] = ZIP_SECOND(x[i], x[i + N_LANES / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < N_LANES; i++) {
            x[i] = y[i];
        }
    }
}

/* Rows beyond `rows` and columns beyond `cols` count as zeros; n elements of
 * each row of dst are written. */
static void transpose_edge(int64_t rows, int64_t cols, const zb_real *src,
                           int64_t ld_src, zb_real *dst, int64_t ld_dst,
                           int64_t n)
{
    vec x[N_LANES];

    memset(x, 0, sizeof(x));
    for (int64_t r = 0; r < rows; r++) {
        memcpy(&x[r], src + r * ld_src, (size_t)cols * sizeof(zb_real));
    }
    transpose_square(x);
    for (int64_t c = 0; c < cols; c++) {
        memcpy(dst + c * ld_dst, &x[c], (size_t)n * sizeof(zb_real));
    }
}

static void transpose_full(const zb_real *src, int64_t ld_src, zb_real *dst,
                           int64_t ld_dst)
{
    vec x[N_LANES];

#pragma GCC unroll 16
    for (int r = 0; r < N_LANES; r++) {
        x[r] = *(const vec_u *)(src + r * ld_src);
    }
    transpose_square(x);
#pragma GCC unroll 16
    for (int c = 0; c < N_LANES; c++) {
        *(vec_u *)(dst + c * ld_dst) = x[c];
    }
}

void zb_tile_transpose(int64_t rows, int64_t cols, const zb_real *src,
                       int64_t ld_src, zb_real *dst, int64_t ld_dst, int pad)
{
    for (int64_t r = 0; r < rows; r += ZB_VEC) {
        int64_t n_rows = rows - r < ZB_VEC ? rows - r : ZB_VEC;

        for (int64_t c = 0; c < cols; c += ZB_VEC) {
            int64_t n_cols = cols - c < ZB_VEC ? cols - c : ZB_VEC;
            const zb_real *from = src + r * ld_src + c;
            zb_real *to = dst + c * ld_dst + r;

            if (n_rows == ZB_VEC && n_cols == ZB_VEC) {
                transpose_full(from, ld_src, to, ld_dst);
            } else {
                transpose_edge(n_rows, n_cols, from, ld_src, to, ld_dst,
                               pad ? ZB_VEC : n_rows);
            }
        }
    }
}
