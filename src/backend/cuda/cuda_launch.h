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
 * Kernels of tiles (cuda_mma.h) also give each warp of a block its own part,
 * ZB_WARP_EACH(w, n_warps). What a warp holds from one such loop to the next is
 * in arrays x[ZB_WARPS_HELD(n_warps)], at x[ZB_WARP_AT(w)]: registers. Blocks
 * take items in turn, ZB_ITEM_EACH(u, n); ZB_SHARED_ROOM is shared memory whose
 * size the launch says (ZB_CUDA_CALL_ROOM).
 *
 * With nvcc a team is a warp and blocks have many threads. In the emulation
 * (ZB_FAKE_CUDA) a team, a block and a grid of one block is one thread that
 * does all the work: the loops above are all that a kernel may assume.
 */
#ifndef ZB_CUDA_LAUNCH_H
#define ZB_CUDA_LAUNCH_H

#include "backend/cuda/cuda_int.h"
#include "kern/kern.h"

/* Bytes of shared memory that a block of any of our GPUs can have. */
enum { ZB_CUDA_ROOM_MAX = 99 * 1024 };

#ifdef ZB_FAKE_CUDA

/* tests/fakecuda: __global__, blockIdx, gridDim, ZB_FAKE_LAUNCH. */
#include <fake_launch.h>

#define ZB_TEAM_EACH(i, n)                                                     \
    for (int64_t i = blockIdx.x; i < (n); i += gridDim.x)
#define ZB_LANE_EACH(i, n) ZB_TEAM_EACH(i, n)
#define ZB_BLOCK_EACH(i, n) for (int64_t i = 0; i < (n); i++)
#define ZB_BLOCK_ONCE
#define ZB_BLOCK_SYNC() ((void)0)
#define ZB_SHARED static thread_local
#define ZB_ITEM_EACH(u, n) ZB_TEAM_EACH(u, n)
#define ZB_WARP_EACH(w, n_warps) for (int w = 0; w < (n_warps); w++)
#define ZB_WARPS_HELD(n_warps) (n_warps)
#define ZB_WARP_AT(w) (w)
#define ZB_SHARED_ROOM(name) unsigned char *const name = zb_cuda_room()
#define ZB_CUDA_BOUNDS(n_threads)
#define ZB_CUDA_CALL(kernel, grid, block, cuda_stream, ...)                    \
    ZB_FAKE_LAUNCH(kernel, grid, cuda_stream, __VA_ARGS__)
#define ZB_CUDA_CALL_ROOM(kernel, grid, block, bytes, cuda_stream, ...)        \
    ((void)(bytes), ZB_CUDA_CALL(kernel, grid, block, cuda_stream, __VA_ARGS__))

static inline unsigned char *zb_cuda_room(void)
{
    alignas(16) static thread_local unsigned char
        room[ZB_CUDA_ROOM_MAX * sizeof(zb_real) / sizeof(float)];

    return room;
}

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
#define ZB_ITEM_EACH(u, n)                                                     \
    for (int64_t u = blockIdx.x; u < (n); u += gridDim.x)
#define ZB_WARP_EACH(w, n_warps)                                               \
    if ([[maybe_unused]] const int w = (int)(threadIdx.x / 32); true)
#define ZB_WARPS_HELD(n_warps) 1
#define ZB_WARP_AT(w) 0
#define ZB_SHARED_ROOM(name)                                                   \
    extern __shared__ __align__(16) unsigned char name[]
#define ZB_CUDA_BOUNDS(n_threads) __launch_bounds__(n_threads, 1)
#define ZB_CUDA_CALL(kernel, grid, block, cuda_stream, ...)                    \
    (kernel<<<(grid), (block), 0, (cuda_stream)>>>(__VA_ARGS__),               \
     cudaPeekAtLastError())
/* More than 48 KiB have to be asked for. */
#define ZB_CUDA_CALL_ROOM(kernel, grid, block, bytes, cuda_stream, ...)        \
    (cudaFuncSetAttribute((const void *)(kernel),                              \
                          cudaFuncAttributeMaxDynamicSharedMemorySize,         \
                          (bytes)),                                            \
     kernel<<<(grid), (block), (size_t)(bytes), (cuda_stream)>>>(__VA_ARGS__), \
     cudaPeekAtLastError())

#endif

/* Threads of a block, unless a kernel has reasons for another number. */
enum { ZB_CUDA_BLOCK = 256 };

/* Launch; the status says whether CUDA took it. A grid of 0 launches nothing. */
#define ZB_CUDA_LAUNCH(kernel, grid, block, stream, ...)                       \
    ((grid) == 0 ? ZB_OK                                                       \
                 : ((stream)->stats.kernels++,                                 \
                    zb_cuda_check((stream)->dev,                               \
                                  ZB_CUDA_CALL(kernel, grid, block,            \
                                               (stream)->cuda, __VA_ARGS__),   \
                                  #kernel)))

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
