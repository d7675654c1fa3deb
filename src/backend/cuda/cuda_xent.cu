/* SPDX-License-Identifier: MIT
 *
 * Softmax cross-entropy. A block does a row where rows are long, as those of
 * logits are: a warp alone would wait for memory most of the time. What a
 * row's numbers are added in order of depends on its length alone: a block has
 * ZB_CUDA_BLOCK sums, each of every ZB_CUDA_BLOCK'th column, and adds them up
 * by halves. Gradients have no sums and go piece by piece.
 */
#include "backend/cuda/cuda_typed.h"
#include "kern/xent.h"

/* Rows of fewer columns are a warp's. */
#define LONG_ROW 1024

/* One number of each of the block's ZB_CUDA_BLOCK virtual lanes becomes their
 * sum, or the largest, in x[0]. */
#define FOLD(x, a, b, both)                                                    \
    do {                                                                       \
        ZB_BLOCK_SYNC();                                                       \
        for (int64_t half = ZB_CUDA_BLOCK / 2; half > 0; half /= 2) {          \
            ZB_BLOCK_EACH(j, half) {                                           \
                zb_real a = x[j], b = x[j + half];                             \
                x[j] = (both);                                                 \
            }                                                                  \
            ZB_BLOCK_SYNC();                                                   \
        }                                                                      \
    } while (0)

#define ZB_TEMPLATE "backend/cuda/cuda_xent_typed.h"
#include "kern/each_storage.h"

static __global__ void xent_join(struct zb_k_xent_join p)
{
    ZB_TEAM_EACH(r, p.rows) {
        zb_xent_join_row(p.n_parts, p.n_class, p.stats + 3 * p.n_parts * r,
                         p.label[r], p.loss + r, p.lse + r);
    }
}

enum zb_status zb_cuda_xent_fwd(struct zb_stream *stream, const void *params)
{
    const struct zb_k_xent_fwd *p = (const struct zb_k_xent_fwd *)params;

    if (p->cols < LONG_ROW) {
        return ZB_CUDA_LAUNCH_TYPED(p->dtype, xent_fwd,
                                    zb_cuda_team_grid(stream, p->rows),
                                    ZB_CUDA_BLOCK, stream, *p);
    }
    return ZB_CUDA_LAUNCH_TYPED(p->dtype, long_xent_fwd,
                                zb_cuda_grid(stream, p->rows, 1),
                                ZB_CUDA_BLOCK, stream, *p);
}

enum zb_status zb_cuda_xent_part(struct zb_stream *stream, const void *params)
{
    const struct zb_k_xent_part *p = (const struct zb_k_xent_part *)params;

    if (p->cols < LONG_ROW) {
        return ZB_CUDA_LAUNCH_TYPED(p->dtype, xent_part,
                                    zb_cuda_team_grid(stream, p->rows),
                                    ZB_CUDA_BLOCK, stream, *p);
    }
    return ZB_CUDA_LAUNCH_TYPED(p->dtype, long_xent_part,
                                zb_cuda_grid(stream, p->rows, 1),
                                ZB_CUDA_BLOCK, stream, *p);
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
    unsigned grid = zb_cuda_team_grid(
        stream, p->rows * ZB_CUDA_PIECES(p->cols + p->n_pad));

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, xent_bwd, grid, ZB_CUDA_BLOCK, stream,
                                *p);
}
