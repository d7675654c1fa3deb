/* SPDX-License-Identifier: MIT
 *
 * Products of 16-bit numbers: by the processor's own instructions for bf16
 * where it has them, else by products of floats on parts of the operands that
 * are converted. Both multiply exactly, sum in floats and round once at the
 * end, so they differ by the order of sums only.
 */
#include "config.h"

#include <stdatomic.h>

#include "backend/cpu/cpu_gemm.h"
#include "backend/cpu/cpu_onednn.h"
#include "kern/kern.h"

/* ---- by conversion ------------------------------------------------------- */

#define PART 256   /* rows and columns of C at a time */
#define PART_K 384 /* of the sum */

/* One thread's working memory. */
struct parts {
    zb_real a[PART * PART_K], b[PART_K * PART], c[PART * PART];
    zb_real packed[ZB_GEMM_OWN_REALS];
};

static const void *element(enum zb_dtype dtype, const void *x, int64_t at)
{
    return (const char *)x + at * (int64_t)zb_dtype_bytes(dtype);
}

static void load_rows(enum zb_dtype dtype, int64_t rows, int64_t cols,
                      const void *x, int64_t ld, zb_real *dst)
{
    for (int64_t r = 0; r < rows; r++) {
        zb_cpu_load(dtype, cols, element(dtype, x, r * ld), dst + r * cols);
    }
}

/* What C's part is before the product is added. */
static void start_part(const struct zb_k_gemm *p, int64_t i, int64_t j,
                       int64_t m, int64_t n, zb_real *c)
{
    if (p->accumulate) {
        load_rows(p->c_dtype, m, n, element(p->c_dtype, p->c, i * p->ldc + j),
                  p->ldc, c);
    } else if (p->bias != NULL) {
        load_rows(p->dtype, m, n, element(p->dtype, p->bias, j), 0, c);
    } else {
        ZB_EACH(e, m * n) {
            c[e] = 0;
        }
    }
}

static void add_product(const struct zb_k_gemm *p, int64_t i, int64_t j,
                        int64_t l, int64_t m, int64_t n, int64_t k,
                        struct parts *w)
{
    const struct zb_k_gemm q = {
        .m = m,
        .n = n,
        .k = k,
        .trans_a = p->trans_a,
        .trans_b = p->trans_b,
        .accumulate = 1,
        .a = w->a,
        .b = w->b,
        .c = w->c,
        .lda = p->trans_a ? m : k,
        .ldb = p->trans_b ? k : n,
        .ldc = n,
    };

    if (p->trans_a) {
        load_rows(p->dtype, k, m, element(p->dtype, p->a, l * p->lda + i),
                  p->lda, w->a);
    } else {
        load_rows(p->dtype, m, k, element(p->dtype, p->a, i * p->lda + l),
                  p->lda, w->a);
    }
    if (p->trans_b) {
        load_rows(p->dtype, n, k, element(p->dtype, p->b, j * p->ldb + l),
                  p->ldb, w->b);
    } else {
        load_rows(p->dtype, k, n, element(p->dtype, p->b, l * p->ldb + j),
                  p->ldb, w->b);
    }
#if ZB_USE_ONEDNN
    zb_onednn_sgemm(&q);
#else
    zb_cpu_gemm_own(&q, w->packed);
#endif
}

static int64_t n_parts(int64_t n)
{
    return (n + PART - 1) / PART;
}

static void emulated_part(const struct zb_device *dev, const void *arg,
                          int64_t begin, int64_t end, int thread)
{
    const struct zb_k_gemm *p = arg;
    struct parts *w = dev->scratch[thread].ptr;

    for (int64_t u = begin; u < end; u++) {
        int64_t i = u / n_parts(p->n) * PART, j = u % n_parts(p->n) * PART;
        int64_t m = p->m - i < PART ? p->m - i : PART;
        int64_t n = p->n - j < PART ? p->n - j : PART;
        char *c = (char *)p->c;

        start_part(p, i, j, m, n, w->c);
        for (int64_t l = 0; l < p->k; l += PART_K) {
            add_product(p, i, j, l, m, n, p->k - l < PART_K ? p->k - l : PART_K,
                        w);
        }
        for (int64_t r = 0; r < m; r++) {
            int64_t at = (i + r) * p->ldc + j;

            zb_cpu_store(p->c_dtype, n, w->c + r * n,
                         c + at * (int64_t)zb_dtype_bytes(p->c_dtype));
        }
    }
}

enum zb_status zb_cpu_gemm_emulated(struct zb_device *dev,
                                    const struct zb_k_gemm *p)
{
    int omp_threads;

    ZB_TRY(zb_cpu_scratch_reserve(dev, sizeof(struct parts)));
    omp_threads = zb_cpu_set_omp_threads(1);
    zb_cpu_for(dev, n_parts(p->m) * n_parts(p->n), 1,
               0.02 * PART * PART * (double)p->k, emulated_part, p);
    zb_cpu_set_omp_threads(omp_threads);
    return ZB_OK;
}

/* ---- by the processor ---------------------------------------------------- */

#if ZB_USE_ONEDNN

/* Cells at the edges of C are smaller: up to four shapes. */
struct native {
    struct zb_gemm_cells cells;
    struct zb_onednn *onednn;
    struct zb_onednn_bf16 *prog[2][2]; /* last row, last column of cells */
    atomic_int status;
};

static int is_last(int64_t i, int64_t n)
{
    return i + 1 == n;
}

static void native_part(const struct zb_device *dev, const void *arg,
                        int64_t begin, int64_t end, int thread)
{
    /* Only the status is written to, by whoever fails. */
    struct native *s = (struct native *)(uintptr_t)arg;

    for (int64_t i = begin; i < end; i++) {
        int64_t row = i / s->cells.n_cols, col = i % s->cells.n_cols;
        struct zb_k_gemm q = zb_gemm_cell(&s->cells, i);
        enum zb_status st =
            zb_onednn_run(s->onednn,
                          s->prog[is_last(row, s->cells.n_rows)]
                                 [is_last(col, s->cells.n_cols)],
                          &q, thread, dev->scratch[thread].ptr);

        if (st != ZB_OK) {
            atomic_store(&s->status, (int)st);
        }
    }
}

/* The programs for the cells of each shape; *ok_out 0: the library has none. */
static enum zb_status find_programs(struct zb_device *dev, struct native *s,
                                    int *ok_out)
{
    const struct zb_gemm_cells *cells = &s->cells;
    size_t bytes = 0;

    *ok_out = 1;
    for (int r = 0; r < 2; r++) {
        for (int c = 0; c < 2; c++) {
            int64_t row = r ? cells->n_rows - 1 : 0;
            int64_t col = c ? cells->n_cols - 1 : 0;
            struct zb_k_gemm q = zb_gemm_cell(cells, row * cells->n_cols + col);

            ZB_TRY(zb_onednn_bf16(s->onednn, &q, &s->prog[r][c]));
            if (s->prog[r][c] == NULL) {
                *ok_out = 0;
                return ZB_OK;
            }
            if (bytes < zb_onednn_scratch_bytes(s->prog[r][c])) {
                bytes = zb_onednn_scratch_bytes(s->prog[r][c]);
            }
        }
    }
    return zb_cpu_scratch_reserve(dev, bytes);
}

static enum zb_status run_native(struct zb_device *dev,
                                 const struct zb_k_gemm *p, int *ok_out)
{
    struct native s = {.cells = zb_gemm_cells(p), .onednn = dev->onednn};
    enum zb_status st;

    ZB_TRY(find_programs(dev, &s, ok_out));
    if (!*ok_out) {
        return ZB_OK;
    }
    zb_cpu_for(dev, s.cells.n_rows * s.cells.n_cols, 1,
               0.01 * (double)s.cells.rows * (double)s.cells.cols *
                   (double)p->k,
               native_part, &s);
    /* The text of the failure stayed with the thread of the team. */
    st = (enum zb_status)atomic_load(&s.status);
    return st == ZB_OK ? ZB_OK
                       : zb_fail(st, "oneDNN can not run a product of bf16");
}

/* *ok_out 1: done. */
static enum zb_status try_native(struct zb_device *dev,
                                 const struct zb_k_gemm *p, int *ok_out)
{
    int omp_threads;
    enum zb_status st;

    if (p->dtype != ZB_DTYPE_BF16 || p->k <= 0 || !zb_onednn_has_bf16()) {
        return ZB_OK;
    }
    if (dev->onednn == NULL) {
        ZB_TRY(zb_onednn_new(dev->n_threads, &dev->onednn));
    }
    omp_threads = zb_cpu_set_omp_threads(1);
    st = run_native(dev, p, ok_out);
    zb_cpu_set_omp_threads(omp_threads);
    return st;
}

#endif

enum zb_status zb_cpu_gemm16(struct zb_device *dev, const struct zb_k_gemm *p)
{
    int is_done = 0;

#if ZB_USE_ONEDNN
    ZB_TRY(try_native(dev, p, &is_done));
#endif
    return is_done ? ZB_OK : zb_cpu_gemm_emulated(dev, p);
}
