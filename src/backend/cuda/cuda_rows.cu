/* SPDX-License-Identifier: MIT
 *
 * Kernels that go row by row: norms, embedding, positions, rope. A team does a
 * row, or a piece of one where there is no sum.
 */
#include "backend/cuda/cuda_typed.h"
#include "kern/place.h"

#define ZB_TEMPLATE "backend/cuda/cuda_rows_typed.h"
#include "kern/each_storage.h"

enum zb_status zb_cuda_layernorm_fwd(struct zb_stream *stream,
                                     const void *params)
{
    const struct zb_k_layernorm_fwd *p =
        (const struct zb_k_layernorm_fwd *)params;
    unsigned grid = zb_cuda_team_grid(stream, p->rows);

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, layernorm_fwd, grid, ZB_CUDA_BLOCK,
                                stream, *p);
}

enum zb_status zb_cuda_layernorm_bwd(struct zb_stream *stream,
                                     const void *params)
{
    const struct zb_k_layernorm_bwd *p =
        (const struct zb_k_layernorm_bwd *)params;
    unsigned grid = zb_cuda_team_grid(stream, p->rows);

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, layernorm_bwd, grid, ZB_CUDA_BLOCK,
                                stream, *p);
}

enum zb_status zb_cuda_rmsnorm_fwd(struct zb_stream *stream, const void *params)
{
    const struct zb_k_rmsnorm_fwd *p = (const struct zb_k_rmsnorm_fwd *)params;
    unsigned grid = zb_cuda_team_grid(stream, p->rows);

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, rmsnorm_fwd, grid, ZB_CUDA_BLOCK,
                                stream, *p);
}

enum zb_status zb_cuda_rmsnorm_bwd(struct zb_stream *stream, const void *params)
{
    const struct zb_k_rmsnorm_bwd *p = (const struct zb_k_rmsnorm_bwd *)params;
    unsigned grid = zb_cuda_team_grid(stream, p->rows);

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, rmsnorm_bwd, grid, ZB_CUDA_BLOCK,
                                stream, *p);
}

enum zb_status zb_cuda_embedding_fwd(struct zb_stream *stream,
                                     const void *params)
{
    const struct zb_k_embedding_fwd *p =
        (const struct zb_k_embedding_fwd *)params;
    unsigned grid =
        zb_cuda_team_grid(stream, p->rows * ZB_CUDA_PIECES(p->cols));

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, embedding_fwd, grid, ZB_CUDA_BLOCK,
                                stream, *p);
}

enum zb_status zb_cuda_position_fwd(struct zb_stream *stream,
                                    const void *params)
{
    const struct zb_k_position_fwd *p =
        (const struct zb_k_position_fwd *)params;
    unsigned grid =
        zb_cuda_team_grid(stream, p->batch * p->seq * ZB_CUDA_PIECES(p->cols));

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, position_fwd, grid, ZB_CUDA_BLOCK,
                                stream, *p);
}

enum zb_status zb_cuda_rope(struct zb_stream *stream, const void *params)
{
    const struct zb_k_rope *p = (const struct zb_k_rope *)params;
    unsigned grid = zb_cuda_team_grid(stream, p->batch * p->seq * p->heads);

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, rope, grid, ZB_CUDA_BLOCK, stream,
                                *p);
}
