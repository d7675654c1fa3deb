/* SPDX-License-Identifier: MIT
 *
 * bf16 and fp16 against what IEEE 754 says: every one of their values, the
 * middles between them, and floats at random. The value of a pattern is made
 * here from its fields, in double.
 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "kern/half.h"
#include "zb/tensor.h"
#include "zbt.h"

struct format {
    int n_exp, n_frac;
    float (*to_float)(uint16_t x);
    uint16_t (*of_float)(float x);
};

static float float_of_bf16(uint16_t x)
{
    return zb_float_of_bf16(x);
}

static uint16_t bf16_of_float(float x)
{
    return zb_bf16_of_float(x);
}

static float float_of_f16(uint16_t x)
{
    return zb_float_of_f16(x);
}

static uint16_t f16_of_float(float x)
{
    return zb_f16_of_float(x);
}

static const struct format formats[] = {
    {8, 7, float_of_bf16, bf16_of_float},
    {5, 10, float_of_f16, f16_of_float},
};

/* The magnitude of a pattern without sign; the one after the largest finite is
 * where rounding to infinity begins to count from. */
static double size_of(const struct format *f, int bits)
{
    int exponent = bits >> f->n_frac, frac = bits & ((1 << f->n_frac) - 1);
    int bias = (1 << (f->n_exp - 1)) - 1;

    if (exponent == 0) {
        return ldexp(frac, 1 - bias - f->n_frac);
    }
    return ldexp(frac + (1 << f->n_frac), exponent - bias - f->n_frac);
}

static int infinity_of(const struct format *f)
{
    return ((1 << f->n_exp) - 1) << f->n_frac;
}

static void every_value_goes_to_float_and_back(void)
{
    for (size_t k = 0; k < ZB_COUNT_OF(formats); k++) {
        const struct format *f = &formats[k];
        int n_bad = 0;

        for (int x = 0; x < 65536; x++) {
            float y = f->to_float((uint16_t)x);
            int size = x & 0x7fff;
            double want = size < infinity_of(f) ? size_of(f, size) : INFINITY;

            if (size > infinity_of(f)) {
                uint16_t back = f->of_float(y);

                n_bad += !isnan(y) || (back & 0x7fff) <= infinity_of(f) ||
                         (back & 0x8000) != (x & 0x8000);
                continue;
            }
            n_bad += (double)y != (x & 0x8000 ? -want : want) ||
                     !signbit(y) != !(x & 0x8000) ||
                     f->of_float(y) != (uint16_t)x;
        }
        CU_ASSERT_EQUAL(n_bad, 0);
    }
}

/* Between neighbours: the middle goes to the even one, what is next to it to
 * the nearer one. Past the largest the neighbour is infinity. */
static void middles_round_to_even(void)
{
    for (size_t k = 0; k < ZB_COUNT_OF(formats); k++) {
        const struct format *f = &formats[k];
        int n_bad = 0;

        for (int x = 0; x < infinity_of(f); x++) {
            double lo = size_of(f, x), hi = size_of(f, x + 1);
            float middle = (float)(lo + (hi - lo) / 2);
            int even = x & 1 ? x + 1 : x;

            n_bad += f->of_float(middle) != even;
            n_bad += f->of_float(-middle) != (even | 0x8000);
            n_bad += f->of_float(nextafterf(middle, 0)) != x;
            n_bad += f->of_float(nextafterf(middle, INFINITY)) != x + 1;
        }
        CU_ASSERT_EQUAL(n_bad, 0);
    }
}

static void random_floats_round_to_nearest(void)
{
    struct zbt_rng rng = {5};

    for (size_t k = 0; k < ZB_COUNT_OF(formats); k++) {
        const struct format *f = &formats[k];
        int n_bad = 0;

        for (int i = 0; i < 200000; i++) {
            float x = zb_float_of_bits((uint32_t)zbt_rand(&rng) & 0x7fffffff);
            int y = f->of_float(x);
            double below, here, above;

            if (isnan(x) || y == infinity_of(f)) {
                n_bad += isnan(x) ? y <= infinity_of(f)
                                  : (double)x <
                                        (size_of(f, y - 1) + size_of(f, y)) / 2;
                continue;
            }
            here = fabs(size_of(f, y) - (double)x);
            below = y > 0 ? fabs(size_of(f, y - 1) - (double)x) : INFINITY;
            above = fabs(size_of(f, y + 1) - (double)x);
            n_bad += here > below || here > above;
        }
        CU_ASSERT_EQUAL(n_bad, 0);
    }
}

static void types_have_names_and_sizes(void)
{
    CU_ASSERT_EQUAL(zb_dtype_bytes(ZB_DTYPE_BF16), 2);
    CU_ASSERT_EQUAL(zb_dtype_bytes(ZB_DTYPE_F16), 2);
    CU_ASSERT_STRING_EQUAL(zb_dtype_str(ZB_DTYPE_BF16), "bf16");
    CU_ASSERT_STRING_EQUAL(zb_dtype_str(ZB_DTYPE_F16), "f16");
    CU_ASSERT_TRUE(zb_dtype_is_storage(ZB_DTYPE_REAL));
    CU_ASSERT_FALSE(zb_dtype_is_storage(ZB_DTYPE_I32));
    CU_ASSERT_EQUAL(zb_dtype_is_storage(ZB_DTYPE_BF16), sizeof(zb_real) == 4);
    CU_ASSERT_EQUAL(zb_dtype_is_storage(ZB_DTYPE_F16), sizeof(zb_real) == 4);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(every_value_goes_to_float_and_back),
        ZBT_CASE(middles_round_to_even),
        ZBT_CASE(random_floats_round_to_nearest),
        ZBT_CASE(types_have_names_and_sizes),
    };

    return zbt_run("half", cases, ZB_COUNT_OF(cases));
}
