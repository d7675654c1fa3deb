/* SPDX-License-Identifier: MIT
 *
 * Kernels that go row by row: norms, loss, embedding, positions, rope. A team
 * does a row, or a piece of one where there is no sum; also of rows as long as
 * those of logits, of which there are thousands.
 */
#include "backend/cuda/cuda_typed.h"
#include "kern/place.h"
#include "kern/xent.h"

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

enum zb_status zb_cuda_xent_fwd(struct zb_stream *stream, const void *params)
{
    const struct zb_k_xent_fwd *p = (const struct zb_k_xent_fwd *)params;
    unsigned grid = zb_cuda_team_grid(stream, p->rows);

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, xent_fwd, grid, ZB_CUDA_BLOCK, stream,
                                *p);
}

enum zb_status zb_cuda_xent_part(struct zb_stream *stream, const void *params)
{
    const struct zb_k_xent_part *p = (const struct zb_k_xent_part *)params;
    unsigned grid = zb_cuda_team_grid(stream, p->rows);

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, xent_part, grid, ZB_CUDA_BLOCK,
                                stream, *p);
}

static __global__ void xent_join(struct zb_k_xent_join p)
{
    ZB_TEAM_EACH(r, p.rows) {
        zb_xent_join_row(p.n_parts, p.n_class, p.stats + 3 * p.n_parts * r,
                         p.label[r], p.loss + r, p.lse + r);
    }
}

enum zb_status zb_cuda_xent_join(struct zb_stream *stream, const void *params)
{
    const struct zb_k_xent_join *p = (const struct zb_k_xent_join *)params;

    return ZB_CUDA_LAUNCH(xent_join, zb_cuda_team_grid(stream, p->rows),
                          ZB_CUDA_BLOCK, stream, *p);
}

enum zb_status zb_cuda_xent_bwd(struct zb_stream *stream, const void *params)
{
    const struct zb_k_xent_bwd *p = (const struct zb_k_xent_bwd *)params;
    unsigned grid = zb_cuda_team_grid(stream, p->rows);

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, xent_bwd, grid, ZB_CUDA_BLOCK, stream,
                                *p);
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
