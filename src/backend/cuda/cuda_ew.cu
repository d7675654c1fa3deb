/* SPDX-License-Identifier: MIT
 *
 * Kernels without any sum: elements and rows on their own. Results do not
 * depend on how they are cut into pieces.
 */
#include "backend/cuda/cuda_typed.h"
#include "kern/philox.h"

/* Random numbers come in blocks of four; a team does so many blocks, a lane one
 * at a time. */
#define DROP_BLOCKS (ZB_CUDA_PIECE / 4)

/* Elements that lie together in a tensor and in the whole sample. */
struct drop_run {
    int64_t at;    /* where they begin in a sample of the tensor */
    int64_t first; /* and in the whole sample */
    int64_t n;
    int64_t n_blocks, n_pieces;
};

/* Those of a sample: a and then b; and the factor of what is kept. */
struct drop_runs {
    struct drop_run a, b;
    double keep; /* no padding in parameters: see the emulation's addresses */
};

/* n blocks of random numbers from `block` on, for a run of sample `sample`. */
struct drop_piece {
    int64_t sample, block, n;
    struct drop_run run;
};

ZB_KERN_FN struct drop_piece drop_piece_of(int64_t k,
                                           const struct drop_runs *runs)
{
    int64_t per_sample = runs->a.n_pieces + runs->b.n_pieces, at, left;
    struct drop_piece piece;

    piece.sample = k / per_sample;
    at = k - piece.sample * per_sample;
    if (at < runs->a.n_pieces) {
        piece.run = runs->a;
    } else {
        piece.run = runs->b;
        at -= runs->a.n_pieces;
    }
    left = piece.run.n_blocks - at * DROP_BLOCKS;
    piece.block = piece.run.first / 4 + at * DROP_BLOCKS;
    piece.n = left < DROP_BLOCKS ? left : DROP_BLOCKS;
    return piece;
}

#define ZB_TEMPLATE "backend/cuda/cuda_ew_typed.h"
#include "kern/each_storage.h"

enum zb_status zb_cuda_act_fwd(struct zb_stream *stream, const void *params)
{
    const struct zb_k_act_fwd *p = (const struct zb_k_act_fwd *)params;
    unsigned grid = zb_cuda_team_grid(stream, ZB_CUDA_PIECES(p->n));

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, act_fwd, grid, ZB_CUDA_BLOCK, stream,
                                *p);
}

enum zb_status zb_cuda_act_bwd(struct zb_stream *stream, const void *params)
{
    const struct zb_k_act_bwd *p = (const struct zb_k_act_bwd *)params;
    unsigned grid = zb_cuda_team_grid(stream, ZB_CUDA_PIECES(p->n));

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, act_bwd, grid, ZB_CUDA_BLOCK, stream,
                                *p);
}

enum zb_status zb_cuda_gated_fwd(struct zb_stream *stream, const void *params)
{
    const struct zb_k_gated_fwd *p = (const struct zb_k_gated_fwd *)params;
    unsigned grid =
        zb_cuda_team_grid(stream, p->rows * ZB_CUDA_PIECES(p->cols));

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, gated_fwd, grid, ZB_CUDA_BLOCK,
                                stream, *p);
}

enum zb_status zb_cuda_gated_bwd(struct zb_stream *stream, const void *params)
{
    const struct zb_k_gated_bwd *p = (const struct zb_k_gated_bwd *)params;
    unsigned grid =
        zb_cuda_team_grid(stream, p->rows * ZB_CUDA_PIECES(p->cols));

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, gated_bwd, grid, ZB_CUDA_BLOCK,
                                stream, *p);
}

enum zb_status zb_cuda_add(struct zb_stream *stream, const void *params)
{
    const struct zb_k_add *p = (const struct zb_k_add *)params;
    unsigned grid = zb_cuda_team_grid(stream, ZB_CUDA_PIECES(p->n));

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, add, grid, ZB_CUDA_BLOCK, stream, *p);
}

enum zb_status zb_cuda_fill(struct zb_stream *stream, const void *params)
{
    const struct zb_k_fill *p = (const struct zb_k_fill *)params;
    unsigned grid = zb_cuda_team_grid(stream, ZB_CUDA_PIECES(p->n));

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, fill, grid, ZB_CUDA_BLOCK, stream,
                                *p);
}

enum zb_status zb_cuda_scale(struct zb_stream *stream, const void *params)
{
    const struct zb_k_scale *p = (const struct zb_k_scale *)params;
    unsigned grid = zb_cuda_team_grid(stream, ZB_CUDA_PIECES(p->n));

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, scale, grid, ZB_CUDA_BLOCK, stream,
                                *p);
}

enum zb_status zb_cuda_mse_fwd(struct zb_stream *stream, const void *params)
{
    const struct zb_k_mse_fwd *p = (const struct zb_k_mse_fwd *)params;
    unsigned grid = zb_cuda_team_grid(stream, ZB_CUDA_PIECES(p->n));

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, mse_fwd, grid, ZB_CUDA_BLOCK, stream,
                                *p);
}

enum zb_status zb_cuda_mse_bwd(struct zb_stream *stream, const void *params)
{
    const struct zb_k_mse_bwd *p = (const struct zb_k_mse_bwd *)params;
    unsigned grid = zb_cuda_team_grid(stream, ZB_CUDA_PIECES(p->n));

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, mse_bwd, grid, ZB_CUDA_BLOCK, stream,
                                *p);
}

static struct drop_run drop_run_of(int64_t at, int64_t first, int64_t n)
{
    struct drop_run run;

    run.at = at;
    run.first = first;
    run.n = n;
    run.n_blocks = n > 0 ? (first % 4 + n + 3) / 4 : 0;
    run.n_pieces = (run.n_blocks + DROP_BLOCKS - 1) / DROP_BLOCKS;
    return run;
}

enum zb_status zb_cuda_dropout(struct zb_stream *stream, const void *params)
{
    const struct zb_k_dropout *p = (const struct zb_k_dropout *)params;
    int64_t n = p->place.len * p->cols;
    struct drop_runs runs;
    unsigned grid;

    n = n < p->per_sample ? n : p->per_sample;
    runs.a = drop_run_of(0, p->place.first[0] * p->cols, n);
    runs.b = drop_run_of(n, p->place.first[1] * p->cols, p->per_sample - n);
    runs.keep = 1.0 / (1.0 - p->p);
    grid = zb_cuda_team_grid(stream,
                             p->batch * (runs.a.n_pieces + runs.b.n_pieces));
    return ZB_CUDA_LAUNCH_TYPED(p->dtype, dropout, grid, ZB_CUDA_BLOCK, stream,
                                *p, runs);
}
