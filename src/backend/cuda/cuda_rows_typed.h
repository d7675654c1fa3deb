/* SPDX-License-Identifier: MIT
 *
 * The kernels of cuda_rows.cu. A template of kern/each_storage.h.
 */
#include "kern/ew.h"
#include "kern/norm.h"
#include "kern/rope.h"

static __global__ void ZB_AS(layernorm_fwd)(struct zb_k_layernorm_fwd p)
{
    ZB_TEAM_EACH(r, p.rows) {
        int64_t at = zb_norm_group_at(r, p.groups, p.cols);

        ZB_AS(zb_layernorm_row)
        (p.cols, (zb_real)p.eps, (const ZB_ST *)p.x + r * p.cols,
         (const ZB_ST *)p.gamma + at,
         p.beta != NULL ? (const ZB_ST *)p.beta + at : NULL,
         (ZB_ST *)p.y + r * p.cols, p.mean + r, p.rstd + r);
    }
}

static __global__ void ZB_AS(layernorm_bwd)(struct zb_k_layernorm_bwd p)
{
    ZB_TEAM_EACH(r, p.rows) {
        int64_t at = r * p.cols;

        ZB_AS(zb_layernorm_bwd_row)
        (p.cols, (const ZB_ST *)p.dy + at, (const ZB_ST *)p.x + at,
         (const ZB_ST *)p.gamma + zb_norm_group_at(r, p.groups, p.cols),
         p.mean[r], p.rstd[r],
         p.addend != NULL ? (const ZB_ST *)p.addend + at : NULL,
         (ZB_ST *)p.dx + at);
    }
}

static __global__ void ZB_AS(rmsnorm_fwd)(struct zb_k_rmsnorm_fwd p)
{
    ZB_TEAM_EACH(r, p.rows) {
        ZB_AS(zb_rmsnorm_row)
        (p.cols, (zb_real)p.eps, (const ZB_ST *)p.x + r * p.cols,
         (const ZB_ST *)p.gamma, (ZB_ST *)p.y + r * p.cols, p.rstd + r);
    }
}

static __global__ void ZB_AS(rmsnorm_bwd)(struct zb_k_rmsnorm_bwd p)
{
    ZB_TEAM_EACH(r, p.rows) {
        int64_t at = r * p.cols;

        ZB_AS(zb_rmsnorm_bwd_row)
        (p.cols, (const ZB_ST *)p.dy + at, (const ZB_ST *)p.x + at,
         (const ZB_ST *)p.gamma, p.rstd[r],
         p.addend != NULL ? (const ZB_ST *)p.addend + at : NULL,
         (ZB_ST *)p.dx + at);
    }
}

static __global__ void ZB_AS(embedding_fwd)(struct zb_k_embedding_fwd p)
{
    ZB_TEAM_EACH(k, p.rows * ZB_CUDA_PIECES(p.cols)) {
        struct zb_cuda_part part = zb_cuda_part_of(k, p.cols);
        int64_t id = p.offset + p.id[part.row], at = id - p.first;
        ZB_ST *y = (ZB_ST *)p.y + part.row * p.ldy + part.at;

        if (id < 0 || id >= p.whole) {
            ZB_AS(zb_fill_run)(part.n, (zb_real)NAN, y);
        } else if (at < 0 || at >= p.n_ids) {
            ZB_AS(zb_fill_run)(part.n, ZB_R(0), y);
        } else {
            const ZB_ST *row = (const ZB_ST *)p.table + at * p.cols + part.at;

            ZB_EACH(i, part.n) {
                y[i] = row[i];
            }
        }
    }
}

static __global__ void ZB_AS(position_fwd)(struct zb_k_position_fwd p)
{
    ZB_TEAM_EACH(k, p.batch * p.seq * ZB_CUDA_PIECES(p.cols)) {
        struct zb_cuda_part part = zb_cuda_part_of(k, p.cols);
        int64_t at = part.row * p.cols + part.at;
        int64_t row = zb_place_table_row(p.place.len, p.place.first,
                                         part.row % p.seq, p.offset, p.n_pos);

        ZB_AS(zb_add_run)
        (part.n, (const ZB_ST *)p.x + at,
         (const ZB_ST *)p.table + row * p.cols + part.at, (ZB_ST *)p.y + at);
    }
}

static __global__ void ZB_AS(rope)(struct zb_k_rope p)
{
    zb_real sign = p.inverse ? ZB_R(-1) : ZB_R(1);

    ZB_TEAM_EACH(k, p.batch * p.seq * p.heads) {
        int64_t r = k / p.heads, h = k - r * p.heads;
        int64_t pos = zb_place_table_row(p.place.len, p.place.first, r % p.seq,
                                         0, p.n_pos);

        ZB_AS(zb_rope_head)
        (p.head_dim, p.half, p.interleaved, p.cos + pos * p.half,
         p.sin + pos * p.half, sign,
         (const ZB_ST *)p.x + r * p.x_row + h * p.x_head,
         (ZB_ST *)p.y + r * p.y_row + h * p.y_head);
    }
}
