/* SPDX-License-Identifier: MIT
 *
 * Matrix products. The only file that knows oneDNN: its dnnl_sgemm, which is
 * the same function in versions 2 and 3, keeps no state between calls, may run
 * in many threads at once, and accumulates at no extra cost.
 */
#include "config.h"

#include "backend/cpu/cpu_int.h"
#include "kern/kern.h"

#if defined(HAVE_ONEDNN) && !defined(ZB_REAL_IS_DOUBLE)
#include <oneapi/dnnl/dnnl.h>
#define USE_ONEDNN 1
#else
#define USE_ONEDNN 0
#endif

/* What C is before the product is added: the bias in every row, or 0. */
static void start_rows_part(const struct zb_device *dev, const void *arg,
                            int64_t begin, int64_t end, int thread)
{
    const struct zb_k_gemm *p = arg;

    (void)dev;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        zb_real *c = p->c + r * p->ldc;

        if (p->bias != NULL) {
            ZB_EACH(i, p->n) {
                c[i] = p->bias[i];
            }
        } else {
            ZB_EACH(i, p->n) {
                c[i] = 0;
            }
        }
    }
}

#if USE_ONEDNN

/* The product is cut into cells of C by its sizes only, whatever the team: the
 * library sums an element in an order that can depend on the sizes it is
 * called with. */
struct cells {
    const struct zb_k_gemm *p;
    int64_t n_rows, n_cols; /* cells */
    int64_t rows, cols;     /* of one cell */
};

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

static void cell(const struct cells *s, int64_t index)
{
    const struct zb_k_gemm *p = s->p;
    int64_t i = index / s->n_cols * s->rows, j = index % s->n_cols * s->cols;
    int64_t m = p->m - i < s->rows ? p->m - i : s->rows;
    int64_t n = p->n - j < s->cols ? p->n - j : s->cols;
    float beta = p->accumulate || p->bias != NULL ? 1.0f : 0.0f;

    /* It fails only for arguments that the checks of zb_cpu_gemm exclude. */
    dnnl_sgemm(p->trans_a ? 'T' : 'N', p->trans_b ? 'T' : 'N', m, n, p->k, 1.0f,
               p->a + i * (p->trans_a ? 1 : p->lda), p->lda,
               p->b + j * (p->trans_b ? p->ldb : 1), p->ldb, beta,
               p->c + i * p->ldc + j, p->ldc);
}

static void cells_part(const struct zb_device *dev, const void *arg,
                       int64_t begin, int64_t end, int thread)
{
    (void)dev;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        cell(arg, i);
    }
}

/* The team is ours, with a cell for each thread; oneDNN would make one of its
 * own where it finds none. */
static void product(struct zb_device *dev, const struct zb_k_gemm *p)
{
    struct cells s = {.p = p};
    int omp_threads = zb_cpu_set_omp_threads(1);

    s.n_cols = cut(p->n, MAX_CELLS, &s.cols);
    s.n_rows = cut(p->m, MAX_CELLS / s.n_cols, &s.rows);
    zb_cpu_for(dev, s.n_rows * s.n_cols, 1,
               0.02 * (double)s.rows * (double)s.cols * (double)p->k,
               cells_part, &s);
    zb_cpu_set_omp_threads(omp_threads);
}

#endif

enum zb_status zb_cpu_gemm(struct zb_device *dev, const void *params)
{
    const struct zb_k_gemm *p = params;

    if (p->m <= 0 || p->n <= 0) {
        return ZB_OK;
    }
    if (p->lda < (p->trans_a ? p->m : p->k) ||
        p->ldb < (p->trans_b ? p->k : p->n) || p->ldc < p->n) {
        return zb_fail(ZB_EINVAL, "gemm %lld x %lld x %lld: a row stride is "
                                  "shorter than its row",
                       (long long)p->m, (long long)p->n, (long long)p->k);
    }
    if (p->bias != NULL || (p->k <= 0 && !p->accumulate)) {
        zb_cpu_for(dev, p->m, 1, 0.2 * (double)p->n, start_rows_part, p);
    }
    if (p->k <= 0) {
        return ZB_OK;
    }
#if USE_ONEDNN
    product(dev, p);
    return ZB_OK;
#else
    return zb_cpu_gemm_own(dev, p);
#endif
}
