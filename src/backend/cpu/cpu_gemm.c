/* SPDX-License-Identifier: MIT
 *
 * Matrix products: checked, cut into cells, and those of zb_real.
 */
#include "config.h"

#include "backend/cpu/cpu_gemm.h"
#include "backend/cpu/cpu_onednn.h"
#include "kern/kern.h"

/* What C is before the product is added: the bias in every row, or 0. */
static void start_rows_part(const struct zb_device *dev, const void *arg,
                            int64_t begin, int64_t end, int thread)
{
    const struct zb_k_gemm *p = arg;
    const zb_real *bias = p->bias;

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        zb_real *c = (zb_real *)p->c + r * p->ldc;

        if (bias != NULL) {
            ZB_EACH(i, p->n) {
                c[i] = bias[i];
            }
        } else {
            ZB_EACH(i, p->n) {
                c[i] = 0;
            }
        }
    }
}

/* ---- cells --------------------------------------------------------------- */

#define MAX_CELLS 8
#define MIN_CELL 384 /* rows or columns */
#define CELL_ALIGN 48

static int64_t cut(int64_t n, int64_t most, int64_t *size_out)
{
    int64_t parts = 1;

    while (parts * 2 <= most && n / (parts * 2) >= MIN_CELL) {
        parts *= 2;
    }
    *size_out =
        ((n + parts - 1) / parts + CELL_ALIGN - 1) / CELL_ALIGN * CELL_ALIGN;
    return (n + *size_out - 1) / *size_out;
}

struct zb_gemm_cells zb_gemm_cells(const struct zb_k_gemm *p)
{
    struct zb_gemm_cells s = {.p = p};

    s.n_cols = cut(p->n, MAX_CELLS, &s.cols);
    s.n_rows = cut(p->m, MAX_CELLS / s.n_cols, &s.rows);
    return s;
}

struct zb_k_gemm zb_gemm_cell(const struct zb_gemm_cells *s, int64_t index)
{
    const struct zb_k_gemm *p = s->p;
    struct zb_k_gemm q = *p;
    int64_t i = index / s->n_cols * s->rows, j = index % s->n_cols * s->cols;
    int64_t bytes = (int64_t)zb_dtype_bytes(p->dtype);
    int64_t c_bytes = (int64_t)zb_dtype_bytes(p->c_dtype);

    q.m = p->m - i < s->rows ? p->m - i : s->rows;
    q.n = p->n - j < s->cols ? p->n - j : s->cols;
    q.a = (const char *)p->a + i * (p->trans_a ? 1 : p->lda) * bytes;
    q.b = (const char *)p->b + j * (p->trans_b ? p->ldb : 1) * bytes;
    q.c = (char *)p->c + (i * p->ldc + j) * c_bytes;
    q.bias = p->bias != NULL ? (const char *)p->bias + j * bytes : NULL;
    return q;
}

/* ---- zb_real ------------------------------------------------------------- */

#if ZB_USE_ONEDNN

static void cells_part(const struct zb_device *dev, const void *arg,
                       int64_t begin, int64_t end, int thread)
{
    (void)dev;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        struct zb_k_gemm q = zb_gemm_cell(arg, i);

        q.accumulate = q.accumulate || q.bias != NULL;
        zb_onednn_sgemm(&q);
    }
}

/* The team is ours, with a cell for each thread; oneDNN would make one of its
 * own where it finds none. */
static enum zb_status product(struct zb_device *dev, const struct zb_k_gemm *p)
{
    struct zb_gemm_cells s = zb_gemm_cells(p);
    int omp_threads = zb_cpu_set_omp_threads(1);

    zb_cpu_for(dev, s.n_rows * s.n_cols, 1,
               0.02 * (double)s.rows * (double)s.cols * (double)p->k,
               cells_part, &s);
    zb_cpu_set_omp_threads(omp_threads);
    return ZB_OK;
}

#else

/* Columns of C are shared out. */
static void own_part(const struct zb_device *dev, const void *arg,
                     int64_t begin, int64_t end, int thread)
{
    const struct zb_k_gemm *p = arg;
    struct zb_k_gemm q = *p;

    q.n = end - begin;
    q.b = (const zb_real *)p->b + begin * (p->trans_b ? p->ldb : 1);
    q.c = (zb_real *)p->c + begin;
    q.accumulate = p->accumulate || p->bias != NULL;
    zb_cpu_gemm_own(&q, dev->scratch[thread].ptr);
}

static enum zb_status product(struct zb_device *dev, const struct zb_k_gemm *p)
{
    ZB_TRY(zb_cpu_scratch_reserve(dev, ZB_GEMM_OWN_REALS * sizeof(zb_real)));
    zb_cpu_for(dev, p->n, ZB_GEMM_OWN_N, 0.05 * (double)p->m * (double)p->k,
               own_part, p);
    return ZB_OK;
}

#endif

/* ---- for the thread sanitizer -------------------------------------------- */

#if defined(__SANITIZE_THREAD__)

void __tsan_read_range(void *first, unsigned long n_bytes);
void __tsan_write_range(void *first, unsigned long n_bytes);

static void touch(const void *x, enum zb_dtype dtype, int64_t rows,
                  int64_t cols, int64_t ld,
                  void (*fn)(void *first, unsigned long n_bytes))
{
    size_t bytes = zb_dtype_bytes(dtype);

    for (int64_t r = 0; r < rows && cols > 0; r++) {
        fn((char *)(uintptr_t)x + (size_t)(r * ld) * bytes,
           (size_t)cols * bytes);
    }
}

/* A library's own accesses are invisible. */
static void touch_operands(const struct zb_k_gemm *p)
{
    touch(p->a, p->dtype, p->trans_a ? p->k : p->m, p->trans_a ? p->m : p->k,
          p->lda, __tsan_read_range);
    touch(p->b, p->dtype, p->trans_b ? p->n : p->k, p->trans_b ? p->k : p->n,
          p->ldb, __tsan_read_range);
    touch(p->bias, p->dtype, p->bias != NULL, p->n, 0, __tsan_read_range);
    touch(p->c, p->c_dtype, p->m, p->n, p->ldc, __tsan_write_range);
}

#else

static void touch_operands(const struct zb_k_gemm *p)
{
    (void)p;
}

#endif

/* ---- the kernel ---------------------------------------------------------- */

static enum zb_status check(const struct zb_k_gemm *p)
{
    ZB_TRY(zb_cpu_check_type(p->dtype));
    if (p->c_dtype != p->dtype && p->c_dtype != ZB_DTYPE_REAL) {
        return zb_fail(ZB_EINVAL, "gemm of %s has a result of %s",
                       zb_dtype_str(p->dtype), zb_dtype_str(p->c_dtype));
    }
    if (p->lda < (p->trans_a ? p->m : p->k) ||
        p->ldb < (p->trans_b ? p->k : p->n) || p->ldc < p->n) {
        return zb_fail(ZB_EINVAL,
                       "gemm %lld x %lld x %lld: a row stride is "
                       "shorter than its row",
                       (long long)p->m, (long long)p->n, (long long)p->k);
    }
    return ZB_OK;
}

enum zb_status zb_cpu_gemm(struct zb_device *dev, const void *params)
{
    const struct zb_k_gemm *p = params;

    if (p->m <= 0 || p->n <= 0) {
        return ZB_OK;
    }
    ZB_TRY(check(p));
    touch_operands(p);
    if (p->dtype != ZB_DTYPE_REAL) {
        return zb_cpu_gemm16(dev, p);
    }
    if (p->bias != NULL || (p->k <= 0 && !p->accumulate)) {
        zb_cpu_for(dev, p->m, 1, 0.2 * (double)p->n, start_rows_part, p);
    }
    return p->k <= 0 ? ZB_OK : product(dev, p);
}
