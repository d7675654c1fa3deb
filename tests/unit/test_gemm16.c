/* SPDX-License-Identifier: MIT
 *
 * Products of bf16: by the processor against by conversion, which other tests
 * hold against products of zb_real.
 */
#include "config.h"

#include <math.h>
#include <stdio.h>

#include "backend/cpu/cpu_gemm.h"
#include "backend/cpu/cpu_onednn.h"
#include "kern/half.h"
#include "zbt.h"

#define SIDE 300
#define SUM_ERROR 4e-6 /* per root of the number of summands */

static struct zbt_rng rng;

static uint16_t draw(void)
{
    return zb_bf16_of_float((float)zbt_rand_in(&rng, -999, 999) / 999);
}

/* A unit in the last place. */
static double ulp(double x)
{
    int e;

    frexp(x, &e);
    return ldexp(1, e - 8);
}

static struct zb_backend *open_device(struct zb_device **dev_out)
{
    struct zb_backend_opts opts = {.n_devices = 1, .threads_per_device = 2};
    struct zb_backend *be;

    ZBT_OK(zb_backend_open("cpu", &opts, &be));
    ZBT_OK(be->ops->device_open(be, 0, dev_out));
    return be;
}

static void close_device(struct zb_backend *be, struct zb_device *dev)
{
    be->ops->device_close(dev);
    zb_backend_close(be);
}

/* Variants: both transpositions, the result in bf16 or float, added or not. */
static void compare(struct zb_device *dev, int variant)
{
    static uint16_t a[SIDE * SIDE], b[SIDE * SIDE], c[2][SIDE * SIDE];
    static float c_real[2][SIDE * SIDE];
    int is_real = variant >> 2 & 1;
    struct zb_k_gemm p = {
        .m = SIDE - 7, .n = SIDE - 20, .k = SIDE, .trans_a = variant & 1,
        .trans_b = variant >> 1 & 1, .accumulate = variant >> 3 & 1,
        .dtype = ZB_DTYPE_BF16,
        .c_dtype = is_real ? ZB_DTYPE_REAL : ZB_DTYPE_BF16,
        .a = a, .b = b, .lda = SIDE, .ldb = SIDE, .ldc = SIDE};
    double worst = 0;

    for (int i = 0; i < SIDE * SIDE; i++) {
        a[i] = draw();
        b[i] = draw();
        c[0][i] = c[1][i] = draw();
        c_real[0][i] = c_real[1][i] = zb_float_of_bf16(c[0][i]);
    }
    for (int way = 0; way < 2; way++) {
        p.c = is_real ? (void *)c_real[way] : (void *)c[way];
        ZBT_OK(way == 0 ? zb_cpu_gemm(dev, &p) : zb_cpu_gemm_emulated(dev, &p));
    }
    for (int i = 0; i < SIDE * SIDE; i++) {
        double x = (double)(is_real ? c_real[0][i] : zb_float_of_bf16(c[0][i]));
        double y = (double)(is_real ? c_real[1][i] : zb_float_of_bf16(c[1][i]));
        double most = is_real ? 0 : ulp(y);

        worst = fmax(worst, (fabs(x - y) - most) / sqrt(SIDE));
    }
    CU_ASSERT(worst <= SUM_ERROR);
}

static void processor_and_conversion_agree(void)
{
    struct zb_device *dev;
    struct zb_backend *be = open_device(&dev);

    printf("\n  bf16 by %s ", zb_onednn_has_bf16() ? "the processor"
                                                   : "conversion only");
    rng.state = 3;
    for (int variant = 0; variant < 16; variant++) {
        compare(dev, variant);
    }
    close_device(be, dev);
}

/* More shapes than programs are kept for, twice. */
static void many_shapes_in_turn_stay_right(void)
{
    struct zb_device *dev;
    struct zb_backend *be = open_device(&dev);
    uint16_t ones[160], y[4];

    for (int i = 0; i < 160; i++) {
        ones[i] = zb_bf16_of_float(1);
    }
    for (int64_t i = 0; i < 160; i++) {
        int64_t k = i % 80 + 1;
        struct zb_k_gemm p = {.m = 2, .n = 2, .k = k, .lda = k, .ldb = 2,
                              .ldc = 2, .a = ones, .b = ones, .c = y,
                              .dtype = ZB_DTYPE_BF16,
                              .c_dtype = ZB_DTYPE_BF16};

        ZBT_OK(zb_cpu_gemm(dev, &p));
        CU_ASSERT_EQUAL(zb_float_of_bf16(y[0]), (float)k);
        CU_ASSERT_EQUAL(zb_float_of_bf16(y[3]), (float)k);
    }
    close_device(be, dev);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(processor_and_conversion_agree),
        ZBT_CASE(many_shapes_in_turn_stay_right),
    };

    return zbt_run("gemm16", cases, ZB_COUNT_OF(cases));
}
