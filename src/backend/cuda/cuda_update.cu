/* SPDX-License-Identifier: MIT
 *
 * Start values and optimizer steps.
 */
#include "backend/cuda/cuda_typed.h"
#include "kern/update.h"

#define ZB_TEMPLATE "backend/cuda/cuda_update_typed.h"
#include "kern/each_storage.h"

enum zb_status zb_cuda_fill_normal(struct zb_stream *stream, const void *params)
{
    const struct zb_k_fill_normal *p = (const struct zb_k_fill_normal *)params;
    unsigned grid = zb_cuda_lane_grid(stream, (p->first % 4 + p->n + 3) / 4);

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, fill_normal, grid, ZB_CUDA_BLOCK,
                                stream, *p);
}

enum zb_status zb_cuda_adamw(struct zb_stream *stream, const void *params)
{
    const struct zb_k_adamw *p = (const struct zb_k_adamw *)params;
    struct zb_adamw_coef coef =
        zb_adamw_coef_of(p->t, p->lr, p->beta1, p->beta2, p->eps,
                         p->weight_decay, p->grad_scale);
    unsigned grid = zb_cuda_team_grid(stream, ZB_CUDA_PIECES(p->n));

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, adamw, grid, ZB_CUDA_BLOCK, stream,
                                *p, coef);
}

enum zb_status zb_cuda_sgd(struct zb_stream *stream, const void *params)
{
    const struct zb_k_sgd *p = (const struct zb_k_sgd *)params;
    struct zb_sgd_coef coef = zb_sgd_coef_of(p->t, p->lr, p->momentum,
                                             p->weight_decay, p->grad_scale);
    unsigned grid = zb_cuda_team_grid(stream, ZB_CUDA_PIECES(p->n));

    return ZB_CUDA_LAUNCH_TYPED(p->dtype, sgd, grid, ZB_CUDA_BLOCK, stream, *p,
                                coef);
}
