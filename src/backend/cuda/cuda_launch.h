/* SPDX-License-Identifier: MIT
 *
 * How kernels are written and launched. There are two kinds:
 *
 * - of teams: a warp does one item, with the row kernels of src/kern. Warps
 *   know nothing of each other.
 *
 *       static __global__ void some_rows(struct zb_k_some p)
 *       {
 *           ZB_TEAM_EACH(r, p.rows) {
 *               zb_some_row_real(p.cols, p.x + r * p.cols, ...);
 *           }
 *       }
 *       return ZB_CUDA_LAUNCH(some_rows, zb_cuda_team_grid(stream, p->rows),
 *                             ZB_CUDA_BLOCK, stream, *p);
 *
 * - of lanes: every lane of the grid does elements.
 *
 *       ZB_LANE_EACH(i, p.n) {
 *           y[i] = ...
 *       }
 *
 * Kernels that use a block as one team (shared memory) write loops over
 * ZB_BLOCK_EACH(i, n), ZB_BLOCK_SYNC() between them, and keep what must survive
 * a sync in ZB_SHARED arrays.
 *
 * With nvcc a team is a warp and blocks have many threads. In the emulation
 * (ZB_FAKE_CUDA) a team, a block and a grid of one block is one thread that
 * does all the work: the loops above are all that a kernel may assume.
 */
#ifndef ZB_CUDA_LAUNCH_H
#define ZB_CUDA_LAUNCH_H

#include "backend/cuda/cuda_int.h"
#include "kern/kern.h"

#ifdef ZB_FAKE_CUDA

/* tests/fakecuda: __global__, blockIdx, gridDim, ZB_FAKE_LAUNCH. */
#include "fake_launch.h"

#define ZB_TEAM_EACH(i, n)                                                     \
    for (int64_t i = blockIdx.x; i < (n); i += gridDim.x)
#define ZB_LANE_EACH(i, n) ZB_TEAM_EACH(i, n)
#define ZB_BLOCK_EACH(i, n) for (int64_t i = 0; i < (n); i++)
#define ZB_BLOCK_ONCE
#define ZB_BLOCK_SYNC() ((void)0)
#define ZB_SHARED static thread_local
#define ZB_CUDA_CALL(kernel, grid, block, cuda_stream, ...)                    \
    ZB_FAKE_LAUNCH(kernel, grid, cuda_stream, __VA_ARGS__)

#else

#define ZB_TEAM_EACH(i, n)                                                     \
    for (int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / 32;    \
         i < (n); i += gridDim.x * (int64_t)(blockDim.x / 32))
#define ZB_LANE_EACH(i, n)                                                     \
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (n);  \
         i += gridDim.x * (int64_t)blockDim.x)
#define ZB_BLOCK_EACH(i, n)                                                    \
    for (int64_t i = threadIdx.x; i < (n); i += blockDim.x)
#define ZB_BLOCK_ONCE if (threadIdx.x == 0)
#define ZB_BLOCK_SYNC() __syncthreads()
#define ZB_SHARED __shared__
#define ZB_CUDA_CALL(kernel, grid, block, cuda_stream, ...)                    \
    (kernel<<<(grid), (block), 0, (cuda_stream)>>>(__VA_ARGS__),               \
     cudaPeekAtLastError())

#endif

/* Threads of a block, unless a kernel has reasons for another number. */
enum { ZB_CUDA_BLOCK = 256 };

/* Launch; the status says whether CUDA took it. A grid of 0 launches nothing. */
#define ZB_CUDA_LAUNCH(kernel, grid, block, stream, ...)                       \
    ((grid) == 0 ? ZB_OK                                                       \
                 : zb_cuda_check((stream)->dev,                                \
                                 ZB_CUDA_CALL(kernel, grid, block,             \
                                              (stream)->cuda, __VA_ARGS__),    \
                                 #kernel))

/* Blocks for n items of a warp each, or of a lane each: as many as fill the GPU
 * a few times over; the loops do the rest. */
static inline unsigned zb_cuda_grid(const struct zb_stream *stream, int64_t n,
                                    int64_t per_block)
{
    int64_t n_blocks = (n + per_block - 1) / per_block;
    int64_t most = 16 * (int64_t)stream->dev->n_sm;

    return (unsigned)(n_blocks < most ? n_blocks : most);
}

static inline unsigned zb_cuda_team_grid(const struct zb_stream *stream,
                                         int64_t n)
{
    return zb_cuda_grid(stream, n, ZB_CUDA_BLOCK / 32);
}

static inline unsigned zb_cuda_lane_grid(const struct zb_stream *stream,
                                         int64_t n)
{
    return zb_cuda_grid(stream, n, ZB_CUDA_BLOCK);
}

#endif
