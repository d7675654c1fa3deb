/* SPDX-License-Identifier: MIT
 *
 * Kernels that move memory between places, and add it up on the way.
 */
#include "config.h"

#include <string.h>

#include "backend/cpu/cpu_int.h"
#include "kern/kern.h"

/* ---- copy ---------------------------------------------------------------- */

/* Parts of one long row end at multiples of this many bytes. */
#define COPY_ALIGN 4096
#define COPY_NS_PER_BYTE 0.1

static void copy_part(const struct zb_device *dev, const void *arg,
                      int64_t begin, int64_t end, int thread)
{
    const struct zb_k_copy *p = arg;
    size_t row = (size_t)(p->cols * p->elem_bytes);

    (void)dev;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int64_t b = i / p->rows, r = i % p->rows;

        memcpy((char *)p->y + (b * p->block_y + r * p->ldy) * p->elem_bytes,
               (const char *)p->x +
                   (b * p->block_x + r * p->ldx) * p->elem_bytes,
               row);
    }
}

static void copy_bytes_part(const struct zb_device *dev, const void *arg,
                            int64_t begin, int64_t end, int thread)
{
    const struct zb_k_copy *p = arg;

    (void)dev;
    (void)thread;
    memcpy((char *)p->y + begin, (const char *)p->x + begin,
           (size_t)(end - begin));
}

enum zb_status zb_cpu_copy(struct zb_device *dev, const void *params)
{
    const struct zb_k_copy *p = params;
    int64_t n = (p->n_blocks > 1 ? p->n_blocks : 1) * p->rows;
    int64_t row = p->cols * p->elem_bytes;

    if (n == 1 || (n == p->rows && p->ldx == p->cols && p->ldy == p->cols)) {
        zb_cpu_for(dev, n * row, COPY_ALIGN, COPY_NS_PER_BYTE, copy_bytes_part,
                   p);
    } else {
        zb_cpu_for(dev, n, 1, COPY_NS_PER_BYTE * (double)row, copy_part, p);
    }
    return ZB_OK;
}

/* ---- reduce -------------------------------------------------------------- */

/* A row is added up in pieces of so many elements, which stay in the cache
 * until the last source is in; only then is y written, so that it may be one of
 * the sources. */
#define PIECE 1024

static void add_piece(int64_t n, const zb_real *a, const zb_real *b, zb_real *y)
{
    ZB_EACH(i, n)
    {
        y[i] = a[i] + b[i];
    }
}

/* n elements from element x_at of the sources and y_at of y on. */
static void reduce_piece(const struct zb_k_reduce *p, int64_t x_at,
                         int64_t y_at, int64_t n)
{
    zb_real sum[PIECE];
    zb_real *y = (zb_real *)p->y + y_at;
    const zb_real *so_far = p->accumulate ? y : (const zb_real *)p->x[0] + x_at;
    int first = p->accumulate ? 0 : 1;

    if (first == p->n_x) {
        memcpy(sum, so_far, (size_t)n * sizeof(*sum));
        memcpy(y, sum, (size_t)n * sizeof(*sum));
    }
    for (int k = first; k < p->n_x; k++) {
        const zb_real *x = (const zb_real *)p->x[k] + x_at;

        add_piece(n, so_far, x, k + 1 < p->n_x ? sum : y);
        so_far = sum;
    }
}

/* The same of 16-bit numbers. */
static void reduce_piece16(const struct zb_k_reduce *p, int64_t x_at,
                           int64_t y_at, int64_t n)
{
    int64_t bytes = (int64_t)zb_dtype_bytes(p->dtype);
    zb_real sum[PIECE], more[PIECE];
    char *y = (char *)p->y + y_at * bytes;

    zb_cpu_load(p->dtype, n,
                p->accumulate ? y : (const char *)p->x[0] + x_at * bytes, sum);
    for (int k = p->accumulate ? 0 : 1; k < p->n_x; k++) {
        zb_cpu_load(p->dtype, n, (const char *)p->x[k] + x_at * bytes, more);
        add_piece(n, sum, more, sum);
    }
    zb_cpu_store(p->dtype, n, sum, y);
}

static void reduce_part(const struct zb_device *dev, const void *arg,
                        int64_t begin, int64_t end, int thread)
{
    const struct zb_k_reduce *p = arg;
    int64_t per_row = (p->cols + PIECE - 1) / PIECE;

    (void)dev;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i / per_row, c = i % per_row * PIECE;
        int64_t b = row / p->rows, r = row % p->rows;
        int64_t n = p->cols - c < PIECE ? p->cols - c : PIECE;

        (p->dtype == ZB_DTYPE_REAL ? reduce_piece : reduce_piece16)(
            p, b * p->block_x + r * p->ldx + c, b * p->block_y + r * p->ldy + c,
            n);
    }
}

enum zb_status zb_cpu_reduce(struct zb_device *dev, const void *params)
{
    const struct zb_k_reduce *p = params;
    int64_t per_row = (p->cols + PIECE - 1) / PIECE;
    double piece = (double)(p->cols < PIECE ? p->cols : PIECE);

    if (!zb_dtype_is_storage(p->dtype)) {
        return zb_fail(ZB_EUNSUPPORTED, "no sums of %s",
                       zb_dtype_str(p->dtype));
    }
    if (p->n_x < 1 || p->n_x > ZB_REDUCE_MAX) {
        return zb_fail(ZB_EINVAL, "a sum of %d sources", p->n_x);
    }
    zb_cpu_for(dev, p->n_blocks * p->rows * per_row, 1,
               0.15 * (p->n_x + 1) * piece, reduce_part, p);
    return ZB_OK;
}
