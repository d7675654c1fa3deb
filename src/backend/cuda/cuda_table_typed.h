/* SPDX-License-Identifier: MIT
 *
 * The kernels of cuda_table.cu that read gradients. A template of
 * kern/each_storage.h.
 */
#include "kern/ew.h"
#include "kern/place.h"

/* A row whose id is no earlier row's adds up all that have the id. */
static __global__ void ZB_AS(add_found)(struct zb_k_embedding_bwd_w p)
{
    ZB_TEAM_EACH(k, p.rows * TABLE_PIECES(p.cols)) {
        int64_t c = k / p.rows * TABLE_PIECE, r = k % p.rows;
        int64_t left = p.cols - c, n = left < TABLE_PIECE ? left : TABLE_PIECE;
        int32_t id = p.id[r];
        zb_real *dtable = p.dtable + (p.offset + id - p.first) * p.cols + c;

        if (!is_counted(&p, id) || zb_team_find(p.id, 0, r, id) < r) {
            continue;
        }
        while (r < p.rows) {
            ZB_AS(zb_add_to_run)
            (n, (const ZB_ST *)p.dy + r * p.lddy + c, dtable);
            r = zb_team_find(p.id, r + 1, p.rows, id);
        }
    }
}

/* The same for the rows of a slab, along their links. */
static __global__ void ZB_AS(add_linked)(struct zb_k_embedding_bwd_w p,
                                         struct sorted s)
{
    ZB_TEAM_EACH(k, s.n * TABLE_PIECES(p.cols)) {
        int64_t c = k / s.n * TABLE_PIECE, r = k % s.n;
        int64_t left = p.cols - c, n = left < TABLE_PIECE ? left : TABLE_PIECE;
        int32_t id = p.id[s.first + r];
        zb_real *dtable = p.dtable + (p.offset + id - p.first) * p.cols + c;

        if (!is_counted(&p, id) || s.link[r] % 2 == 0) {
            continue;
        }
        while (r >= 0) {
            ZB_AS(zb_add_to_run)
            (n, (const ZB_ST *)p.dy + (s.first + r) * p.lddy + c, dtable);
            r = s.link[r] / 2 - 1;
        }
    }
}

static __global__ void ZB_AS(position_bwd_w)(struct zb_k_position_bwd_w p)
{
    ZB_TEAM_EACH(k, p.seq * TABLE_PIECES(p.cols)) {
        int64_t t = k % p.seq, c = k / p.seq * TABLE_PIECE;
        int64_t left = p.cols - c, n = left < TABLE_PIECE ? left : TABLE_PIECE;
        int64_t row = p.offset + zb_place_row(p.place.len, p.place.first, t);

        for (int64_t b = 0; row < p.n_pos && b < p.batch; b++) {
            ZB_AS(zb_add_to_run)
            (n, (const ZB_ST *)p.dy + (b * p.seq + t) * p.cols + c,
             p.dtable + row * p.cols + c);
        }
    }
}
