/* SPDX-License-Identifier: MIT
 *
 * Known answers of Random123 (its file kat_vectors), and the elementary
 * functions against the C library.
 */
#include "config.h"

#include <math.h>

#include "kern/fmath.h"
#include "kern/philox.h"
#include "zbt.h"

static void expect_philox(uint64_t lo, uint64_t hi, uint64_t key,
                          const uint32_t want[4])
{
    struct zb_philox_out x = zb_philox(zb_philox_key_of(key), lo, hi);

    CU_ASSERT_EQUAL(x.x0, want[0]);
    CU_ASSERT_EQUAL(x.x1, want[1]);
    CU_ASSERT_EQUAL(x.x2, want[2]);
    CU_ASSERT_EQUAL(x.x3, want[3]);
}

static void philox_gives_published_numbers(void)
{
    static const uint32_t zeros[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c,
                                      0x9b00dbd8};
    static const uint32_t ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6,
                                     0x6d5451fd};
    static const uint32_t pi[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420,
                                   0x24126ea1};

    expect_philox(0, 0, 0, zeros);
    expect_philox(UINT64_MAX, UINT64_MAX, UINT64_MAX, ones);
    expect_philox(0x85a308d3243f6a88ULL, 0x0370734413198a2eULL,
                  0x299f31d0a4093822ULL, pi);
}

/* Largest error of got(x) in units of the last place of a float. */
static double ulps(zb_real got, double want)
{
    double unit = ldexp(1.0, ilogb(want == 0 ? 1e-30 : want) - 23);

    return fabs((double)got - want) / unit;
}

static void exp_within_two_ulps(void)
{
    double worst = 0;

    for (double x = -86.97; x < 88.7; x += 0.0007) {
        zb_real r = (zb_real)x;

        worst = fmax(worst, ulps(zb_exp(r), exp((double)r)));
    }
    CU_ASSERT(worst < 2);
}

static void exp_of_extremes_is_zero_infinite_or_nan(void)
{
    CU_ASSERT(zb_exp(ZB_R(-1e30)) == 0);
    CU_ASSERT(zb_exp((zb_real)-INFINITY) == 0);
    CU_ASSERT(isinf(zb_exp(ZB_R(1000))));
    CU_ASSERT(isinf(zb_exp((zb_real)INFINITY)));
    CU_ASSERT(isnan(zb_exp((zb_real)NAN)));
    CU_ASSERT(zb_exp(0) == 1);
}

static void log_within_two_ulps(void)
{
    double worst = 0;

    for (double x = 1e-37; x < 1e37; x *= 1.00051) {
        zb_real r = (zb_real)x;

        worst = fmax(worst, ulps(zb_log(r), log((double)r)));
    }
    CU_ASSERT(worst < 2);
    CU_ASSERT(zb_log(1) == 0);
}

static void erf_within_three_ulps(void)
{
    double worst = 0;

    for (double x = -6; x < 6; x += 0.0003) {
        zb_real r = (zb_real)x;

        worst = fmax(worst, ulps(zb_erf(r), erf((double)r)));
    }
    CU_ASSERT(worst < 3);
}

static void sincos_of_turn_within_1e_7(void)
{
    double worst = 0;
    zb_real s, c;

    for (double x = 0; x < 1; x += 0.00007) {
        zb_real r = (zb_real)x;

        zb_sincos_turn(r, &s, &c);
        worst = fmax(worst, fabs((double)s - sin(2 * M_PI * (double)r)));
        worst = fmax(worst, fabs((double)c - cos(2 * M_PI * (double)r)));
    }
    CU_ASSERT(worst < 1.2e-7);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(philox_gives_published_numbers),
        ZBT_CASE(exp_within_two_ulps),
        ZBT_CASE(exp_of_extremes_is_zero_infinite_or_nan),
        ZBT_CASE(log_within_two_ulps),
        ZBT_CASE(erf_within_three_ulps),
        ZBT_CASE(sincos_of_turn_within_1e_7),
    };
    return zbt_run("philox", cases, ZB_COUNT_OF(cases));
}
