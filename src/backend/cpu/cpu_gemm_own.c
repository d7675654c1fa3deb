/* SPDX-License-Identifier: MIT
 *
 * Matrix products by the library's own tiles. Columns of C are shared out to
 * the team; each element is summed over k in order, in blocks.
 */
#include "config.h"

#include <string.h>

#include "backend/cpu/cpu_int.h"
#include "backend/cpu/cpu_tile.h"

#define K_BLOCK 256
#define N_BLOCK 64

/* Copy rows [k0, k0+k) and columns [j0, j0+n) of op(B) into dense rows of
 * N_BLOCK elements, the missing ones 0. */
static void pack_b(const struct zb_k_gemm *p, int64_t k0, int64_t k, int64_t j0,
                   int64_t n, zb_real *dst)
{
    if (p->trans_b) {
        zb_tile_transpose(n, k, p->b + j0 * p->ldb + k0, p->ldb, dst, N_BLOCK,
                          1);
        return;
    }
    for (int64_t l = 0; l < k; l++) {
        memcpy(dst + l * N_BLOCK, p->b + (k0 + l) * p->ldb + j0,
               (size_t)n * sizeof(zb_real));
        memset(dst + l * N_BLOCK + n, 0,
               (size_t)(N_BLOCK - n) * sizeof(zb_real));
    }
}

static void gemm_part(const struct zb_device *dev, const void *arg,
                      int64_t begin, int64_t end, int thread)
{
    const struct zb_k_gemm *p = arg;
    zb_real *packed = dev->scratch[thread].ptr;
    int is_sum = p->accumulate || p->bias != NULL;

    for (int64_t j = begin; j < end; j += N_BLOCK) {
        int64_t n = end - j < N_BLOCK ? end - j : N_BLOCK;

        for (int64_t l = 0; l < p->k; l += K_BLOCK) {
            int64_t k = p->k - l < K_BLOCK ? p->k - l : K_BLOCK;
            struct zb_tile_a a = {p->a + l, p->lda, 1};

            if (p->trans_a) {
                a = (struct zb_tile_a){p->a + l * p->lda, 1, p->lda};
            }
            pack_b(p, l, k, j, n, packed);
            zb_tile_gemm(p->m, n, k, a, packed, N_BLOCK, p->c + j, p->ldc,
                         is_sum || l > 0);
        }
    }
}

enum zb_status zb_cpu_gemm_own(struct zb_device *dev, const struct zb_k_gemm *p)
{
    ZB_TRY(zb_cpu_scratch_reserve(dev, K_BLOCK * N_BLOCK * sizeof(zb_real)));
    zb_cpu_for(dev, p->n, N_BLOCK, 0.05 * (double)p->m * (double)p->k,
               gemm_part, p);
    return ZB_OK;
}
