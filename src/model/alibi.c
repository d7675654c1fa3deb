/* SPDX-License-Identifier: MIT
 *
 * ALiBi (Press et al. 2022): scores fall with distance, by a slope for each
 * head. Of n heads, c being the largest power of two up to n, the first c have
 * the slopes 2^(-8i/c), i = 1 .. c; the others 2^(-4j/c), j = 1, 3, 5, ...
 */
#include "config.h"
#include "model/model_int.h"

#include <math.h>

#include "zb/mem.h"

static double slope_of(int64_t h, int64_t c)
{
    return h < c ? exp2(-8.0 * (double)(h + 1) / (double)c)
                 : exp2(-4.0 * (double)(2 * (h - c) + 1) / (double)c);
}

/* To 8 bits, ties to even. */
static double round_to_bf16(double x)
{
    int exponent;
    double fraction = frexp(x, &exponent);

    return ldexp(nearbyint(ldexp(fraction, 8)), exponent - 8);
}

enum zb_status zb_build_alibi(struct zb_builder *b, int64_t n_heads,
                              double scale, int is_rounded, int *slopes_out)
{
    zb_real *slope = zb_alloc_array((size_t)n_heads, sizeof(*slope));
    int64_t c = 1;

    if (slope == NULL) {
        return ZB_ENOMEM;
    }
    while (2 * c <= n_heads) {
        c *= 2;
    }
    for (int64_t h = 0; h < n_heads; h++) {
        double s = slope_of(h, c);

        slope[h] = (zb_real)(scale * (is_rounded ? round_to_bf16(s) : s));
    }
    *slopes_out = zb_g_const(b->g, "alibi", 1, &n_heads, slope);
    zb_free(slope);
    return ZB_OK;
}
