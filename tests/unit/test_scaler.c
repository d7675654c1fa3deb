/* SPDX-License-Identifier: MIT
 *
 * The loss scale against what ColossalAI's DynamicGradScaler documents and
 * does: its update() is written down here again, from that source, and run
 * beside ours.
 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "zb/optim.h"
#include "zbt.h"

static struct zb_scaler_opts defaults(void)
{
    struct zb_scaler_opts o = {.initial_scale = 65536,
                               .min_scale = 1,
                               .max_scale = 4294967296.0,
                               .growth_factor = 2,
                               .backoff_factor = 0.5,
                               .growth_interval = 1000,
                               .hysteresis = 2};

    return o;
}

static void update(struct zb_scaler *s, int is_overflow, int times)
{
    for (int i = 0; i < times; i++) {
        ZBT_OK(zb_scaler_update(s, is_overflow));
    }
}

static void scale_grows_after_interval_without_overflow(void)
{
    struct zb_scaler_opts o = defaults();
    struct zb_scaler s;

    ZBT_OK(zb_scaler_init(&s, &o));
    CU_ASSERT_EQUAL(s.scale, 65536);
    update(&s, 0, 999);
    CU_ASSERT_EQUAL(s.scale, 65536);
    update(&s, 0, 1);
    CU_ASSERT_EQUAL(s.scale, 131072);
    /* an overflow begins the count again */
    update(&s, 0, 999);
    update(&s, 1, 1);
    update(&s, 0, 999);
    CU_ASSERT_EQUAL(s.scale, 131072);
    update(&s, 0, 1);
    CU_ASSERT_EQUAL(s.scale, 262144);
}

static void scale_falls_at_hysteresis_and_then_each_time(void)
{
    struct zb_scaler_opts o = defaults();
    struct zb_scaler s;

    ZBT_OK(zb_scaler_init(&s, &o));
    update(&s, 1, 1);
    CU_ASSERT_EQUAL(s.scale, 65536);
    update(&s, 0, 500); /* does not make up for it */
    update(&s, 1, 1);
    CU_ASSERT_EQUAL(s.scale, 32768);
    update(&s, 1, 1);
    CU_ASSERT_EQUAL(s.scale, 16384);
}

static void growth_makes_up_for_overflows(void)
{
    struct zb_scaler_opts o = defaults();
    struct zb_scaler s;

    o.growth_interval = 3;
    ZBT_OK(zb_scaler_init(&s, &o));
    update(&s, 1, 2);
    CU_ASSERT_EQUAL(s.scale, 32768);
    update(&s, 0, 3);
    CU_ASSERT_EQUAL(s.scale, 65536);
    update(&s, 1, 1);
    CU_ASSERT_EQUAL(s.scale, 65536);
    update(&s, 1, 1);
    CU_ASSERT_EQUAL(s.scale, 32768);
}

static void scale_stays_between_its_limits(void)
{
    struct zb_scaler_opts o = defaults();
    struct zb_scaler s;

    o.growth_interval = 1;
    o.hysteresis = 1;
    o.max_scale = 100000;
    o.min_scale = 30000;
    ZBT_OK(zb_scaler_init(&s, &o));
    update(&s, 0, 1);
    CU_ASSERT_EQUAL(s.scale, 100000);
    update(&s, 1, 1);
    CU_ASSERT_EQUAL(s.scale, 50000);
    update(&s, 1, 1);
    CU_ASSERT_EQUAL(s.scale, 30000);
}

static void overflow_at_least_scale_is_an_error(void)
{
    struct zb_scaler_opts o = defaults();
    struct zb_scaler s;

    o.initial_scale = 2;
    o.hysteresis = 1;
    ZBT_OK(zb_scaler_init(&s, &o));
    update(&s, 1, 1);
    CU_ASSERT_EQUAL(s.scale, 1);
    CU_ASSERT_EQUAL(zb_scaler_update(&s, 1), ZB_EDEVICE);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "min_scale = 1"));
    CU_ASSERT_EQUAL(s.scale, 1);
    update(&s, 0, 1);
}

/* The first of two is left out, as everywhere; growth makes up for it. */
static void hysteresis_forgives_at_least_scale_too(void)
{
    struct zb_scaler_opts o = defaults();
    struct zb_scaler s;

    o.initial_scale = o.min_scale = o.max_scale = 1024;
    o.hysteresis = 2;
    o.growth_interval = 3;
    ZBT_OK(zb_scaler_init(&s, &o));
    for (int i = 0; i < 3; i++) {
        update(&s, 1, 1);
        update(&s, 0, 3);
        CU_ASSERT_EQUAL(s.scale, 1024);
    }
    update(&s, 1, 1);
    update(&s, 0, 2);
    CU_ASSERT_EQUAL(zb_scaler_update(&s, 1), ZB_EDEVICE);
}

/* DynamicGradScaler.update(), line by line. */
struct reference {
    double scale;
    int64_t growth_step, hysteresis_step;
};

static void reference_update(struct reference *r,
                             const struct zb_scaler_opts *o, int overflow)
{
    if (overflow) {
        r->hysteresis_step += 1;
        r->growth_step = 0;
        if (r->hysteresis_step >= o->hysteresis) {
            r->scale = fmax(r->scale * o->backoff_factor, o->min_scale);
        }
    } else {
        r->growth_step += 1;
        if (r->growth_step == o->growth_interval) {
            r->growth_step = 0;
            r->hysteresis_step = 0;
            r->scale = fmin(r->scale * o->growth_factor, o->max_scale);
        }
    }
}

static void random_steps_equal_reference(void)
{
    struct zbt_rng rng = {17};

    for (int run = 0; run < 50; run++) {
        struct zb_scaler_opts o = defaults();
        struct zb_scaler s;
        struct reference r = {.scale = 65536};

        o.growth_interval = zbt_rand_in(&rng, 1, 12);
        o.hysteresis = zbt_rand_in(&rng, 1, 5);
        o.max_scale = ldexp(1, (int)zbt_rand_in(&rng, 16, 24));
        o.min_scale = ldexp(1, (int)zbt_rand_in(&rng, 4, 16));
        o.growth_factor = (double)zbt_rand_in(&rng, 3, 9) / 2;
        ZBT_OK(zb_scaler_init(&s, &o));
        for (int i = 0; i < 300; i++) {
            int overflow = zbt_rand_in(&rng, 0, 9) == 0;

            if (overflow && r.scale <= o.min_scale &&
                r.hysteresis_step + 1 >= o.hysteresis) {
                CU_ASSERT_EQUAL(zb_scaler_update(&s, overflow), ZB_EDEVICE);
                break;
            }
            reference_update(&r, &o, overflow);
            update(&s, overflow, 1);
            CU_ASSERT_EQUAL(s.scale, r.scale);
        }
    }
}

static void values_out_of_range_are_refused_by_name(void)
{
    static const struct {
        double initial, min, max, growth, backoff;
        int64_t interval, hysteresis;
        const char *name;
    } bad[] = {
        {4, 0, 8, 2, 0.5, 1, 1, "min_scale"},
        {4, 5, 8, 2, 0.5, 1, 1, "initial_scale"},
        {4, 1, 3, 2, 0.5, 1, 1, "max_scale"},
        {4, 1, 8, 1, 0.5, 1, 1, "growth_factor"},
        {4, 1, 8, 2, 1, 1, 1, "backoff_factor"},
        {4, 1, 8, 2, 0, 1, 1, "backoff_factor"},
        {4, 1, 8, 2, 0.5, 0, 1, "growth_interval"},
        {4, 1, 8, 2, 0.5, 1, 0, "hysteresis"},
        {NAN, 1, 8, 2, 0.5, 1, 1, "initial_scale"},
        {4, 1, INFINITY, 2, 0.5, 1, 1, "max_scale"},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(bad); i++) {
        struct zb_scaler_opts o = {bad[i].initial, bad[i].min,
                                   bad[i].max,     bad[i].growth,
                                   bad[i].backoff, bad[i].interval,
                                   bad[i].hysteresis};
        struct zb_scaler s;

        CU_ASSERT_EQUAL(zb_scaler_init(&s, &o), ZB_ECONFIG);
        CU_ASSERT_EQUAL(strncmp(zb_error_text(), bad[i].name,
                                strlen(bad[i].name)),
                        0);
    }
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(scale_grows_after_interval_without_overflow),
        ZBT_CASE(scale_falls_at_hysteresis_and_then_each_time),
        ZBT_CASE(growth_makes_up_for_overflows),
        ZBT_CASE(scale_stays_between_its_limits),
        ZBT_CASE(overflow_at_least_scale_is_an_error),
        ZBT_CASE(hysteresis_forgives_at_least_scale_too),
        ZBT_CASE(random_steps_equal_reference),
        ZBT_CASE(values_out_of_range_are_refused_by_name),
    };

    return zbt_run("scaler", cases, ZB_COUNT_OF(cases));
}
