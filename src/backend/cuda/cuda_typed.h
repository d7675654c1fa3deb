/* SPDX-License-Identifier: MIT
 *
 * Kernels that exist for every type that tensors are stored in, and how work on
 * elements is cut up for teams.
 */
#ifndef ZB_CUDA_TYPED_H
#define ZB_CUDA_TYPED_H

#include "backend/cuda/cuda_launch.h"

static inline enum zb_status zb_cuda_no_type(enum zb_dtype dtype)
{
    return zb_fail(ZB_EINVAL, "there is no kernel for elements of type %s",
                   zb_dtype_str(dtype));
}

/* ZB_CUDA_LAUNCH of kernel_real, kernel_bf16 or kernel_f16. */
#ifdef ZB_REAL_IS_DOUBLE
#define ZB_CUDA_LAUNCH_TYPED(dtype, kernel, grid, block, stream, ...)          \
    ((dtype) != ZB_DTYPE_REAL                                                  \
         ? zb_cuda_no_type(dtype)                                              \
         : ZB_CUDA_LAUNCH(kernel##_real, grid, block, stream, __VA_ARGS__))
#else
#define ZB_CUDA_LAUNCH_TYPED(dtype, kernel, grid, block, stream, ...)          \
    ((dtype) == ZB_DTYPE_REAL                                                  \
         ? ZB_CUDA_LAUNCH(kernel##_real, grid, block, stream, __VA_ARGS__)     \
     : (dtype) == ZB_DTYPE_BF16                                                \
         ? ZB_CUDA_LAUNCH(kernel##_bf16, grid, block, stream, __VA_ARGS__)     \
     : (dtype) == ZB_DTYPE_F16                                                 \
         ? ZB_CUDA_LAUNCH(kernel##_f16, grid, block, stream, __VA_ARGS__)      \
         : zb_cuda_no_type(dtype))
#endif

/* ZB_EACH for bodies that compilers of host code do not vectorise. */
#ifdef ZB_FAKE_CUDA
#define ZB_EACH_SCALAR(i, n) for (int64_t i = 0; i < (n); i++)
#else
#define ZB_EACH_SCALAR(i, n) ZB_EACH(i, n)
#endif

/* Rows whose elements are independent are cut into pieces of ZB_CUDA_PIECE
 * elements, each for one team: short enough to keep a GPU busy with few rows,
 * long enough to pay for finding out where it is. */
#define ZB_CUDA_PIECE 512
#define ZB_CUDA_PIECES(cols) (((cols) + ZB_CUDA_PIECE - 1) / ZB_CUDA_PIECE)

struct zb_cuda_part {
    int64_t row, at, n; /* n elements from element `at` of the row on */
};

/* Piece k of n elements, of which there are ZB_CUDA_PIECES. */
ZB_KERN_FN struct zb_cuda_part zb_cuda_piece(int64_t k, int64_t n)
{
    int64_t at = k * ZB_CUDA_PIECE, left = n - at;
    struct zb_cuda_part part;

    part.row = 0;
    part.at = at;
    part.n = left < ZB_CUDA_PIECE ? left : ZB_CUDA_PIECE;
    return part;
}

/* Piece k of rows of `cols` elements, of which each has ZB_CUDA_PIECES. */
ZB_KERN_FN struct zb_cuda_part zb_cuda_part_of(int64_t k, int64_t cols)
{
    int64_t per_row = ZB_CUDA_PIECES(cols), left;
    struct zb_cuda_part part;

    part.row = k / per_row;
    part.at = (k - part.row * per_row) * ZB_CUDA_PIECE;
    left = cols - part.at;
    part.n = left < ZB_CUDA_PIECE ? left : ZB_CUDA_PIECE;
    return part;
}

#endif
