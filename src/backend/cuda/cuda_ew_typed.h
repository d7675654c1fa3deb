/* SPDX-License-Identifier: MIT
 *
 * The kernels of cuda_ew.cu. A template of kern/each_storage.h. What is dense
 * is one row.
 */
#include "kern/ew.h"

static __global__ void ZB_AS(act_fwd)(struct zb_k_act_fwd p)
{
    const ZB_ST *x = (const ZB_ST *)p.x;
    ZB_ST *y = (ZB_ST *)p.y;

    ZB_TEAM_EACH(k, ZB_CUDA_PIECES(p.n)) {
        struct zb_cuda_part at = zb_cuda_piece(k, p.n);

        ZB_AS(zb_act_run)(at.n, (int)p.act, x + at.at, y + at.at);
    }
}

static __global__ void ZB_AS(act_bwd)(struct zb_k_act_bwd p)
{
    const ZB_ST *dy = (const ZB_ST *)p.dy, *x = (const ZB_ST *)p.x;
    ZB_ST *dx = (ZB_ST *)p.dx;

    ZB_TEAM_EACH(k, ZB_CUDA_PIECES(p.n)) {
        struct zb_cuda_part at = zb_cuda_piece(k, p.n);

        ZB_AS(zb_act_bwd_run)
        (at.n, (int)p.act, dy + at.at, x + at.at, dx + at.at);
    }
}

static __global__ void ZB_AS(gated_fwd)(struct zb_k_gated_fwd p)
{
    const ZB_ST *gate = (const ZB_ST *)p.gate, *up = (const ZB_ST *)p.up;
    ZB_ST *y = (ZB_ST *)p.y;

    ZB_TEAM_EACH(k, p.rows * ZB_CUDA_PIECES(p.cols)) {
        struct zb_cuda_part at = zb_cuda_part_of(k, p.cols);

        ZB_AS(zb_gated_run)
        (at.n, (int)p.act, gate + at.row * p.ld_gate + at.at,
         up + at.row * p.ld_up + at.at, y + at.row * p.ld_y + at.at);
    }
}

static __global__ void ZB_AS(gated_bwd)(struct zb_k_gated_bwd p)
{
    const ZB_ST *dy = (const ZB_ST *)p.dy, *gate = (const ZB_ST *)p.gate;
    const ZB_ST *up = (const ZB_ST *)p.up;
    ZB_ST *dgate = (ZB_ST *)p.dgate, *dup = (ZB_ST *)p.dup;

    ZB_TEAM_EACH(k, p.rows * ZB_CUDA_PIECES(p.cols)) {
        struct zb_cuda_part at = zb_cuda_part_of(k, p.cols);

        ZB_AS(zb_gated_bwd_run)
        (at.n, (int)p.act, dy + at.row * p.ld_dy + at.at,
         gate + at.row * p.ld_gate + at.at, up + at.row * p.ld_up + at.at,
         dgate + at.row * p.ld_dgate + at.at, dup + at.row * p.ld_dup + at.at);
    }
}

static __global__ void ZB_AS(add)(struct zb_k_add p)
{
    const ZB_ST *a = (const ZB_ST *)p.a, *b = (const ZB_ST *)p.b;
    ZB_ST *y = (ZB_ST *)p.y;

    ZB_TEAM_EACH(k, ZB_CUDA_PIECES(p.n)) {
        struct zb_cuda_part at = zb_cuda_piece(k, p.n);

        ZB_AS(zb_add_run)(at.n, a + at.at, b + at.at, y + at.at);
    }
}

static __global__ void ZB_AS(fill)(struct zb_k_fill p)
{
    ZB_ST *y = (ZB_ST *)p.y;

    ZB_TEAM_EACH(k, ZB_CUDA_PIECES(p.n)) {
        struct zb_cuda_part at = zb_cuda_piece(k, p.n);

        ZB_AS(zb_fill_run)(at.n, (zb_real)p.value, y + at.at);
    }
}

static __global__ void ZB_AS(scale)(struct zb_k_scale p)
{
    const ZB_ST *x = (const ZB_ST *)p.x;
    ZB_ST *y = (ZB_ST *)p.y;

    ZB_TEAM_EACH(k, ZB_CUDA_PIECES(p.n)) {
        struct zb_cuda_part at = zb_cuda_piece(k, p.n);

        ZB_AS(zb_scale_run)(at.n, (zb_real)p.alpha, x + at.at, y + at.at);
    }
}

static __global__ void ZB_AS(mse_fwd)(struct zb_k_mse_fwd p)
{
    const ZB_ST *x = (const ZB_ST *)p.x, *target = (const ZB_ST *)p.target;

    ZB_TEAM_EACH(k, ZB_CUDA_PIECES(p.n)) {
        struct zb_cuda_part at = zb_cuda_piece(k, p.n);

        ZB_AS(zb_mse_run)(at.n, x + at.at, target + at.at, p.loss + at.at);
    }
}

static __global__ void ZB_AS(mse_bwd)(struct zb_k_mse_bwd p)
{
    const ZB_ST *x = (const ZB_ST *)p.x, *target = (const ZB_ST *)p.target;
    ZB_ST *dx = (ZB_ST *)p.dx;

    ZB_TEAM_EACH(k, ZB_CUDA_PIECES(p.n)) {
        struct zb_cuda_part at = zb_cuda_piece(k, p.n);

        ZB_AS(zb_mse_bwd_run)
        (at.n, (zb_real)(2.0 * p.scale), x + at.at, target + at.at, dx + at.at);
    }
}

/* A piece of a run; x, addend and y are where the run begins. A lane draws four
 * numbers, and has those of their elements that are in the run. */
ZB_KERN_FN void ZB_AS(drop_piece)(const struct zb_k_dropout *p,
                                  const struct drop_piece *piece, zb_real keep,
                                  int has_addend, const ZB_ST *x,
                                  const ZB_ST *addend, ZB_ST *y)
{
    struct zb_philox_key key =
        zb_philox_site_key(p->philox.seed, p->philox.step, p->philox.site);
    uint32_t limit = zb_drop_limit(p->p);
    int64_t sample = p->p > 0 ? p->philox.sample[piece->sample] : 0;

    ZB_EACH_SCALAR(k, piece->n) {
        int64_t block = piece->block + k;
        zb_real factor[4];

        zb_drop_block(key, sample, (uint64_t)block, limit, keep, factor);
        for (int j = 0; j < 4; j++) {
            int64_t i = 4 * block + j - piece->run.first;

            if (i < 0 || i >= piece->run.n) {
                continue;
            }
            y[i] = has_addend
                       ? ZB_TO(ZB_LD(addend[i]) + ZB_LD(x[i]) * factor[j])
                       : ZB_TO(ZB_LD(x[i]) * factor[j]);
        }
    }
}

static __global__ void ZB_AS(dropout)(struct zb_k_dropout p,
                                      struct drop_runs runs)
{
    ZB_TEAM_EACH(k, p.batch * (runs.a.n_pieces + runs.b.n_pieces)) {
        struct drop_piece piece = drop_piece_of(k, &runs);
        int64_t at = piece.sample * p.per_sample + piece.run.at;
        const ZB_ST *x = (const ZB_ST *)p.x + at;
        ZB_ST *y = (ZB_ST *)p.y + at;
        zb_real keep = (zb_real)runs.keep;

        /* Two loops, each with an expression that the cpu backend has, so that
         * compilers round it in the same way. */
        if (p.addend != NULL) {
            ZB_AS(drop_piece)
            (&p, &piece, keep, 1, x, (const ZB_ST *)p.addend + at, y);
        } else {
            ZB_AS(drop_piece)(&p, &piece, keep, 0, x, NULL, y);
        }
    }
}
