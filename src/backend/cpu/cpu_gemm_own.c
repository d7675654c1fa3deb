/* SPDX-License-Identifier: MIT
 *
 * Matrix products by the library's own tiles. Each element is summed over k in
 * order, in blocks.
 */
#include "config.h"

#include <string.h>

#include "backend/cpu/cpu_int.h"
#include "backend/cpu/cpu_tile.h"

#define K_BLOCK ZB_GEMM_OWN_K
#define N_BLOCK ZB_GEMM_OWN_N

/* Copy rows [k0, k0+k) and columns [j0, j0+n) of op(B) into dense rows of
 * N_BLOCK elements, the missing ones 0. */
static void pack_b(const struct zb_k_gemm *p, int64_t k0, int64_t k, int64_t j0,
                   int64_t n, zb_real *dst)
{
    const zb_real *b = p->b;

    if (p->trans_b) {
        zb_tile_transpose(n, k, b + j0 * p->ldb + k0, p->ldb, dst, N_BLOCK, 1);
        return;
    }
    for (int64_t l = 0; l < k; l++) {
        memcpy(dst + l * N_BLOCK, b + (k0 + l) * p->ldb + j0,
               (size_t)n * sizeof(zb_real));
        memset(dst + l * N_BLOCK + n, 0,
               (size_t)(N_BLOCK - n) * sizeof(zb_real));
    }
}

void zb_cpu_gemm_own(const struct zb_k_gemm *p, zb_real *packed)
{
    const zb_real *a = p->a;

    for (int64_t j = 0; j < p->n; j += N_BLOCK) {
        int64_t n = p->n - j < N_BLOCK ? p->n - j : N_BLOCK;

        for (int64_t l = 0; l < p->k; l += K_BLOCK) {
            int64_t k = p->k - l < K_BLOCK ? p->k - l : K_BLOCK;
            struct zb_tile_a part = {a + l, p->lda, 1};

            if (p->trans_a) {
                part = (struct zb_tile_a){a + l * p->lda, 1, p->lda};
            }
            pack_b(p, l, k, j, n, packed);
            zb_tile_gemm(p->m, n, k, part, packed, N_BLOCK,
                         (zb_real *)p->c + j, p->ldc, p->accumulate || l > 0);
        }
    }
}
