/* SPDX-License-Identifier: MIT
 *
 * The kernels of cuda_cols.cu. A template of kern/each_storage.h.
 */
#include "kern/ew.h"
#include "kern/norm.h"

/* Every lane of a block has a column of the tile and each TILE_ROWS'th row. */
static __global__ void ZB_AS(col_sum)(struct zb_k_col_sum p,
                                      struct col_parts parts)
{
    ZB_SHARED zb_real sum[TILE_ROWS * TILE_COLS];

    ZB_ITEM_EACH(k, parts.n_tiles * parts.n_parts) {
        struct tile t = tile_of(k, p.rows, p.cols, &parts);

        ZB_BLOCK_EACH(j, TILE_ROWS * TILE_COLS) {
            int64_t c = t.col + j % TILE_COLS;
            zb_real s = 0;

            for (int64_t r = t.row + j / TILE_COLS;
                 c < t.col_end && r < t.row_end; r += TILE_ROWS) {
                s += ZB_LD(((const ZB_ST *)p.x)[r * p.ldx + c]);
            }
            sum[j] = s;
        }
        tile_store(&t, sum, parts.sum);
    }
}

/* LayerNorm's, and with mean and dbeta NULL RMSNorm's. */
static __global__ void ZB_AS(norm_bwd_w)(struct zb_k_layernorm_bwd_w p,
                                         struct col_parts parts)
{
    ZB_SHARED zb_real sum[2][TILE_ROWS * TILE_COLS];
    int64_t groups = p.groups > 1 ? p.groups : 1, width = groups * p.cols;

    ZB_ITEM_EACH(k, parts.n_tiles * parts.n_parts) {
        struct tile t = tile_of(k, p.rows / groups, width, &parts);

        ZB_BLOCK_EACH(j, TILE_ROWS * TILE_COLS) {
            int64_t c = t.col + j % TILE_COLS;
            zb_real s_g = 0, s_b = 0;

            for (int64_t r = t.row + j / TILE_COLS;
                 c < t.col_end && r < t.row_end; r += TILE_ROWS) {
                int64_t row = groups > 1 ? r * groups + c / p.cols : r;
                ZB_ST dy = ((const ZB_ST *)p.dy)[r * width + c];
                ZB_ST x = ((const ZB_ST *)p.x)[r * width + c];
                zb_real mean = p.mean != NULL ? p.mean[row] : ZB_R(0);

                s_g += ZB_AS(zb_norm_dgamma)(dy, x, mean, p.rstd[row]);
                s_b += ZB_LD(dy);
            }
            sum[0][j] = s_g;
            sum[1][j] = s_b;
        }
        tile_store(&t, sum[0], parts.sum);
        if (p.dbeta != NULL) {
            tile_store(&t, sum[1], parts.sum + PART_REALS);
        }
    }
}

/* The sum of each block of elements, by a team. */
static __global__ void ZB_AS(sum_blocks)(struct sum_blocks p)
{
    const ZB_ST *x = (const ZB_ST *)p.x + p.first;

    ZB_TEAM_EACH(k, (p.n + SUM_BLOCK - 1) / SUM_BLOCK) {
        int64_t left = p.n - k * SUM_BLOCK;
        double sum = ZB_AS(zb_sum_run)(left < SUM_BLOCK ? left : SUM_BLOCK,
                                       p.is_squared, x + k * SUM_BLOCK);

        ZB_ONCE {
            p.part[k] = sum;
        }
    }
}
