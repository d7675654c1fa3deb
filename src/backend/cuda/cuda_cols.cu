/* SPDX-License-Identifier: MIT
 *
 * Sums over rows, and of all elements. No sum has an order that depends on the
 * GPU: rows are cut into parts by their number alone, a block adds up a tile of
 * columns of a part, and another kernel adds the sums of the parts in order.
 * They are kept in the stream's scratch memory.
 */
#include "backend/cuda/cuda_typed.h"

/* ---- sums of columns ----------------------------------------------------- */

#define TILE_COLS 32
#define TILE_ROWS (ZB_CUDA_BLOCK / TILE_COLS)

#define PART_ROWS 128 /* rows that are worth a part of their own */
#define MAX_PARTS 32
/* Columns that are summed at a time: twice their parts fill the scratch. */
#define SLAB                                                                   \
    ((int64_t)(ZB_CUDA_SCRATCH_BYTES / (2 * MAX_PARTS * sizeof(zb_real))))
#define PART_REALS (MAX_PARTS * SLAB)

struct col_parts {
    int64_t col, n_tiles; /* from this column on */
    int64_t n_parts;
    zb_real *sum; /* [2][MAX_PARTS][SLAB] */
};

struct tile {
    int64_t part, at; /* of the sums: column `at` of the slab */
    int64_t row, row_end, col, col_end;
};

ZB_KERN_FN struct tile tile_of(int64_t k, int64_t rows, int64_t cols,
                               const struct col_parts *parts)
{
    struct tile t;

    t.part = k / parts->n_tiles;
    t.at = (k - t.part * parts->n_tiles) * TILE_COLS;
    t.row = rows * t.part / parts->n_parts;
    t.row_end = rows * (t.part + 1) / parts->n_parts;
    t.col = parts->col + t.at;
    t.col_end = t.col + TILE_COLS < cols ? t.col + TILE_COLS : cols;
    return t;
}

/* part = the sums of the tile's columns, from those of the block's lanes. */
ZB_KERN_FN void tile_store(const struct tile *t, const zb_real *sum,
                           zb_real *part)
{
    ZB_BLOCK_SYNC();
    ZB_BLOCK_EACH(c, t->col_end - t->col) {
        zb_real s = 0;

        for (int r = 0; r < TILE_ROWS; r++) {
            s += sum[r * TILE_COLS + c];
        }
        part[t->part * SLAB + t->at + c] = s;
    }
    ZB_BLOCK_SYNC();
}

/* y[c] += the sum of parts of column c, in order, for n columns. */
static __global__ void add_parts(int64_t n, int64_t n_parts,
                                 const zb_real *part, zb_real *y)
{
    ZB_LANE_EACH(c, n) {
        zb_real s = 0;

        for (int64_t k = 0; k < n_parts; k++) {
            s += part[k * SLAB + c];
        }
        y[c] += s;
    }
}

/* ---- sums of all elements ------------------------------------------------ */

#define SUM_BLOCK 4096
#define SUM_PARTS ((int64_t)(ZB_CUDA_SCRATCH_BYTES / sizeof(double)))

struct sum_blocks {
    int64_t n;
    int is_squared;
    const void *x;
    int64_t first; /* n elements of x from here on */
    double *part;
};

/* y = the parts added in order, or += when they are not the first ones; one
 * block, which fetches so many at a time. */
#define SUM_CHUNK 1024
static __global__ void sum_parts(int64_t n, int is_first, const double *part,
                                 double *y)
{
    ZB_SHARED double chunk[SUM_CHUNK];
    ZB_SHARED double total;

    ZB_BLOCK_ONCE {
        total = is_first ? 0.0 : *y;
    }
    for (int64_t k = 0; k < n; k += SUM_CHUNK) {
        int64_t m = n - k < SUM_CHUNK ? n - k : SUM_CHUNK;

        ZB_BLOCK_EACH(i, m) {
            chunk[i] = part[k + i];
        }
        ZB_BLOCK_SYNC();
        ZB_BLOCK_ONCE {
            double sum = total;

            for (int64_t i = 0; i < m; i++) {
                sum += chunk[i];
            }
            total = sum;
        }
        ZB_BLOCK_SYNC();
    }
    ZB_BLOCK_ONCE {
        *y = total;
    }
}

#define ZB_TEMPLATE "backend/cuda/cuda_cols_typed.h"
#include "kern/each_storage.h"

/* ---- launches ------------------------------------------------------------ */

static struct col_parts col_parts_of(struct zb_stream *stream, int64_t rows,
                                     int64_t cols, int64_t col)
{
    int64_t n = cols - col < SLAB ? cols - col : SLAB;
    int64_t n_parts = (rows + PART_ROWS - 1) / PART_ROWS;
    struct col_parts parts;

    parts.col = col;
    parts.n_tiles = (n + TILE_COLS - 1) / TILE_COLS;
    parts.n_parts = n_parts < 1 ? 1 : n_parts > MAX_PARTS ? MAX_PARTS : n_parts;
    parts.sum = (zb_real *)stream->scratch;
    return parts;
}

static unsigned col_grid(struct zb_stream *stream,
                         const struct col_parts *parts)
{
    return zb_cuda_grid(stream, parts->n_tiles * parts->n_parts, 1);
}

static enum zb_status add_parts_to(struct zb_stream *stream,
                                   const struct col_parts *parts, int64_t cols,
                                   const zb_real *sum, zb_real *y)
{
    int64_t left = cols - parts->col, n = left < SLAB ? left : SLAB;

    return ZB_CUDA_LAUNCH(add_parts, zb_cuda_lane_grid(stream, n),
                          ZB_CUDA_BLOCK, stream, n, parts->n_parts, sum,
                          y + parts->col);
}

enum zb_status zb_cuda_col_sum(struct zb_stream *stream, const void *params)
{
    const struct zb_k_col_sum *p = (const struct zb_k_col_sum *)params;

    for (int64_t c = 0; c < p->cols; c += SLAB) {
        struct col_parts parts = col_parts_of(stream, p->rows, p->cols, c);

        ZB_TRY(ZB_CUDA_LAUNCH_TYPED(p->dtype, col_sum, col_grid(stream, &parts),
                                    ZB_CUDA_BLOCK, stream, *p, parts));
        ZB_TRY(add_parts_to(stream, &parts, p->cols, parts.sum, p->y));
    }
    return ZB_OK;
}

static enum zb_status norm_bwd_w(struct zb_stream *stream,
                                 const struct zb_k_layernorm_bwd_w *p)
{
    int64_t groups = p->groups > 1 ? p->groups : 1, cols = groups * p->cols;

    for (int64_t c = 0; c < cols; c += SLAB) {
        struct col_parts parts =
            col_parts_of(stream, p->rows / groups, cols, c);

        ZB_TRY(ZB_CUDA_LAUNCH_TYPED(p->dtype, norm_bwd_w,
                                    col_grid(stream, &parts), ZB_CUDA_BLOCK,
                                    stream, *p, parts));
        ZB_TRY(add_parts_to(stream, &parts, cols, parts.sum, p->dgamma));
        if (p->dbeta != NULL) {
            ZB_TRY(add_parts_to(stream, &parts, cols, parts.sum + PART_REALS,
                                p->dbeta));
        }
    }
    return ZB_OK;
}

enum zb_status zb_cuda_layernorm_bwd_w(struct zb_stream *stream,
                                       const void *params)
{
    return norm_bwd_w(stream, (const struct zb_k_layernorm_bwd_w *)params);
}

enum zb_status zb_cuda_rmsnorm_bwd_w(struct zb_stream *stream,
                                     const void *params)
{
    const struct zb_k_rmsnorm_bwd_w *p =
        (const struct zb_k_rmsnorm_bwd_w *)params;
    struct zb_k_layernorm_bwd_w as_layernorm = {};

    as_layernorm.rows = p->rows;
    as_layernorm.cols = p->cols;
    as_layernorm.dtype = p->dtype;
    as_layernorm.dy = p->dy;
    as_layernorm.x = p->x;
    as_layernorm.rstd = p->rstd;
    as_layernorm.dgamma = p->dgamma;
    return norm_bwd_w(stream, &as_layernorm);
}

static enum zb_status sum_f64(struct zb_stream *stream,
                              const struct zb_k_sum_f64 *p, int is_squared)
{
    double *part = (double *)stream->scratch;
    int64_t most = SUM_PARTS * SUM_BLOCK, i = 0;

    do {
        int64_t left = p->n - i, n = left < most ? left : most;
        int64_t n_parts = (n + SUM_BLOCK - 1) / SUM_BLOCK;
        unsigned grid = zb_cuda_team_grid(stream, n_parts);
        struct sum_blocks of = {n, is_squared, p->x, i, part};

        ZB_TRY(ZB_CUDA_LAUNCH_TYPED(p->dtype, sum_blocks, grid, ZB_CUDA_BLOCK,
                                    stream, of));
        ZB_TRY(ZB_CUDA_LAUNCH(sum_parts, 1, ZB_CUDA_BLOCK, stream, n_parts,
                              i == 0, part, p->y));
        i += n;
    } while (i < p->n);
    return ZB_OK;
}

enum zb_status zb_cuda_sum_f64(struct zb_stream *stream, const void *params)
{
    return sum_f64(stream, (const struct zb_k_sum_f64 *)params, 0);
}

enum zb_status zb_cuda_sumsq_f64(struct zb_stream *stream, const void *params)
{
    const struct zb_k_sumsq_f64 *p = (const struct zb_k_sumsq_f64 *)params;
    struct zb_k_sum_f64 as_sum = {p->n, p->dtype, p->x, p->y};

    return sum_f64(stream, &as_sum, 1);
}
