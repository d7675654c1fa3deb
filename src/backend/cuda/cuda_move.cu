/* SPDX-License-Identifier: MIT
 *
 * Kernels that move memory between places, also of several devices, and add it
 * up on the way.
 */
#include "backend/cuda/cuda_typed.h"

#define ZB_TEMPLATE "backend/cuda/cuda_move_typed.h"
#include "kern/each_storage.h"

/* ---- copy -----------------------------------------------------------------
 */

/* The largest unit that a lane moves at once. */
struct alignas(16) unit16 {
    uint64_t lo, hi;
};

/* All sizes of p are in units T. */
template <typename T> static __global__ void copy_rows(struct zb_k_copy p)
{
    ZB_TEAM_EACH(k, p.n_blocks * p.rows * ZB_CUDA_PIECES(p.cols)) {
        struct zb_cuda_part part = zb_cuda_part_of(k, p.cols);
        int64_t b = part.row / p.rows, r = part.row - b * p.rows;
        const T *x = (const T *)p.x + b * p.block_x + r * p.ldx + part.at;
        T *y = (T *)p.y + b * p.block_y + r * p.ldy + part.at;

        ZB_EACH_SCALAR(i, part.n) {
            y[i] = x[i];
        }
    }
}

/* The same copy with as few rows as possible and sizes in bytes. */
static struct zb_k_copy copy_of_bytes(const struct zb_k_copy *p)
{
    struct zb_k_copy c = *p;

    c.n_blocks = p->n_blocks > 1 ? p->n_blocks : 1;
    c.cols = p->cols * p->elem_bytes;
    c.ldx = p->ldx * p->elem_bytes;
    c.ldy = p->ldy * p->elem_bytes;
    c.block_x = c.n_blocks > 1 ? p->block_x * p->elem_bytes : 0;
    c.block_y = c.n_blocks > 1 ? p->block_y * p->elem_bytes : 0;
    if (c.ldx == c.cols && c.ldy == c.cols) {
        c.cols *= c.rows;
        c.rows = 1;
    }
    if (c.rows == 1) {
        c.ldx = c.ldy = 0;
    }
    return c;
}

/* The largest unit that all sizes and addresses are multiples of. */
static int64_t unit_of(const struct zb_k_copy *c)
{
    uint64_t all =
        (uint64_t)(uintptr_t)c->x | (uint64_t)(uintptr_t)c->y |
        (uint64_t)(c->cols | c->ldx | c->ldy | c->block_x | c->block_y | 16);

    return (int64_t)(all & -all);
}

enum zb_status zb_cuda_copy(struct zb_stream *stream, const void *params)
{
    struct zb_k_copy c = copy_of_bytes((const struct zb_k_copy *)params);
    int64_t unit = unit_of(&c);
    unsigned grid;

    c.cols /= unit;
    c.ldx /= unit;
    c.ldy /= unit;
    c.block_x /= unit;
    c.block_y /= unit;
    grid =
        zb_cuda_team_grid(stream, c.n_blocks * c.rows * ZB_CUDA_PIECES(c.cols));
    switch (unit) {
    case 16:
        return ZB_CUDA_LAUNCH(copy_rows<unit16>, grid, ZB_CUDA_BLOCK, stream,
                              c);
    case 8:
        return ZB_CUDA_LAUNCH(copy_rows<uint64_t>, grid, ZB_CUDA_BLOCK, stream,
                              c);
    case 4:
        return ZB_CUDA_LAUNCH(copy_rows<uint32_t>, grid, ZB_CUDA_BLOCK, stream,
                              c);
    case 2:
        return ZB_CUDA_LAUNCH(copy_rows<uint16_t>, grid, ZB_CUDA_BLOCK, stream,
                              c);
    default:
        return ZB_CUDA_LAUNCH(copy_rows<uint8_t>, grid, ZB_CUDA_BLOCK, stream,
                              c);
    }
}

/* ---- the typed ones -------------------------------------------------------
 */

enum zb_status zb_cuda_reduce(struct zb_stream *stream, const void *params)
{
    const struct zb_k_reduce *p = (const struct zb_k_reduce *)params;
    unsigned grid = zb_cuda_team_grid(stream, p->n_blocks * p->rows *
                                                  ZB_CUDA_PIECES(p->cols));

    if (!zb_dtype_is_storage(p->dtype)) {
        return zb_fail(ZB_EUNSUPPORTED, "no sums of %s",
                       zb_dtype_str(p->dtype));
    }
    if (p->n_x < 1 || p->n_x > ZB_REDUCE_MAX) {
        return zb_fail(ZB_EINVAL, "a sum of %d sources", p->n_x);
    }
    return ZB_CUDA_LAUNCH_TYPED(p->dtype, reduce, grid, ZB_CUDA_BLOCK, stream,
                                *p);
}

enum zb_status zb_cuda_convert(struct zb_stream *stream, const void *params)
{
    const struct zb_k_convert *p = (const struct zb_k_convert *)params;
    unsigned grid = zb_cuda_team_grid(stream, ZB_CUDA_PIECES(p->n));
    struct zb_k_copy copy = {};

    if (!zb_dtype_is_storage(p->y_dtype)) {
        return zb_cuda_no_type(p->y_dtype);
    }
    if (p->x_dtype != p->y_dtype) {
        return ZB_CUDA_LAUNCH_TYPED(p->x_dtype, convert, grid, ZB_CUDA_BLOCK,
                                    stream, *p);
    }
    copy.rows = 1;
    copy.cols = p->n;
    copy.elem_bytes = (int64_t)zb_dtype_bytes(p->x_dtype);
    copy.x = p->x;
    copy.y = p->y;
    return zb_cuda_copy(stream, &copy);
}
