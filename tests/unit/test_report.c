/* SPDX-License-Identifier: MIT
 *
 * The curves of a report: how many points are kept, what they say, and that
 * drawing them stays finite; and GPUs in the log and in a report. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/report_int.h"
#include "zb/mem.h"
#include "zbt.h"

static double noise(int64_t step)
{
    return (double)(step * 7919 % 1009) - 500;
}

/* Points follow one another, and together hold every value. */
static void check_points(const struct zbrun_series *se, int64_t n_steps)
{
    double sum = 0, min = INFINITY, max = -INFINITY, want = 0;
    int64_t next = 1, n = 0;

    CU_ASSERT(se->n <= ZBRUN_POINTS_MAX);
    for (size_t i = 0; i < se->n; i++) {
        const struct zbrun_point *p = &se->point[i];

        CU_ASSERT_EQUAL(p->first, next);
        CU_ASSERT(i + 1 == se->n || p->last - p->first + 1 == se->per_point);
        CU_ASSERT(p->min <= p->sum / (double)p->n &&
                  p->sum / (double)p->n <= p->max);
        next = p->last + 1;
        n += p->n;
        sum += p->sum;
        min = fmin(min, p->min);
        max = fmax(max, p->max);
    }
    for (int64_t step = 1; step <= n_steps; step++) {
        want += noise(step);
    }
    CU_ASSERT_EQUAL(next, n_steps + 1);
    CU_ASSERT_EQUAL(n, n_steps);
    CU_ASSERT_DOUBLE_EQUAL(sum, want, 1e-6);
    if (n_steps >= 1009) {
        CU_ASSERT_EQUAL(min, -500);
        CU_ASSERT_EQUAL(max, 508);
    }
}

static void points_of_any_number_of_steps_hold_every_value(void)
{
    static const int64_t n_steps[] = {1, 2, 10, 511, 512, 513, 1024, 1025,
                                      5000, 100000};
    struct zbrun_series *se = zb_alloc(sizeof(*se));

    for (size_t k = 0; k < ZB_COUNT_OF(n_steps); k++) {
        memset(se, 0, sizeof(*se));
        for (int64_t step = 1; step <= n_steps[k]; step++) {
            zbrun_series_add(se, step, noise(step));
        }
        check_points(se, n_steps[k]);
    }
    zb_free(se);
}

/* Draw and read back; "" when nothing was drawn. */
static void draw(const struct zbrun_series *se, char *text, size_t size)
{
    FILE *f = tmpfile();
    size_t n;

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    zbrun_series_draw(se, "x", f);
    rewind(f);
    n = fread(text, 1, size - 1, f);
    text[n] = '\0';
    fclose(f);
}

static void curves_of_odd_values_are_drawn_or_left_out(void)
{
    static const double value[][3] = {
        {NAN, NAN, INFINITY},  {1, NAN, 2},          {0, 0, 0},
        {3, 3, 3},             {-1e-300, 0, 1e-300}, {1e300, -1e300, 5},
        {1e17, 1e17 + 64, 1e17}, {-7, -7, -7.0000001},
    };
    struct zbrun_series *se = zb_alloc(sizeof(*se));
    char *text = zb_alloc(65536);

    for (size_t k = 0; k < ZB_COUNT_OF(value); k++) {
        memset(se, 0, sizeof(*se));
        for (int i = 0; i < 3; i++) {
            zbrun_series_add(se, i + 1, value[k][i]);
        }
        draw(se, text, 65536);
        if (k == 0) {
            CU_ASSERT_STRING_EQUAL(text, "");
            continue;
        }
        CU_ASSERT_PTR_NOT_NULL(strstr(text, "class=\"line\""));
        CU_ASSERT_PTR_NOT_NULL(strstr(text, "</svg>"));
        CU_ASSERT_PTR_NULL(strstr(text, "nan"));
        CU_ASSERT_PTR_NULL(strstr(text, "inf"));
    }
    zb_free(text);
    zb_free(se);
}

/* ---- GPUs ---------------------------------------------------------------- */

static const struct zb_gpu_state two_gpus[] = {
    {.gpu = 0,
     .used_bytes = 3221225472.0,
     .power_w = 400.5,
     .sm_mhz = 1980,
     .temperature_c = 61,
     .throttle = ZB_THROTTLE_POWER_CAP},
    {.gpu = 3,
     .used_bytes = NAN,
     .power_w = NAN,
     .sm_mhz = 1410,
     .temperature_c = NAN,
     .throttle = ZB_THROTTLE_UNKNOWN},
};

static void read_all(FILE *f, char *text, size_t size)
{
    rewind(f);
    text[fread(text, 1, size - 1, f)] = '\0';
    fclose(f);
}

static void log_leaves_out_what_a_gpu_does_not_tell(void)
{
    struct zbrun_record r = {
        .step = 1, .n_steps = 1, .step_s = 1, .gpu = two_gpus, .n_gpus = 2};
    char text[2048];
    FILE *f = tmpfile();

    ZBT_OK(zbrun_log_step(f, "log", &r));
    read_all(f, text, sizeof(text));
    CU_ASSERT_PTR_NOT_NULL(
        strstr(text, ",\"gpus\":[{\"gpu\":0,\"memory_used\":3221225472,"
                     "\"power_w\":400.5,\"sm_mhz\":1980,"
                     "\"temperature_c\":61,\"throttle\":[\"power_cap\"]},"
                     "{\"gpu\":3,\"sm_mhz\":1410}]}\n"));
    r.n_gpus = 0;
    f = tmpfile();
    ZBT_OK(zbrun_log_step(f, "log", &r));
    read_all(f, text, sizeof(text));
    CU_ASSERT_PTR_NULL(strstr(text, "gpus"));
}

static void several_reasons_are_a_list(void)
{
    struct zb_gpu_state g = two_gpus[0];
    struct zbrun_record r = {
        .step = 1, .n_steps = 1, .step_s = 1, .gpu = &g, .n_gpus = 1};
    char text[2048];
    FILE *f = tmpfile();

    g.throttle = ZB_THROTTLE_IDLE | ZB_THROTTLE_DISPLAY;
    ZBT_OK(zbrun_log_step(f, "log", &r));
    g.throttle = 0;
    ZBT_OK(zbrun_log_step(f, "log", &r));
    read_all(f, text, sizeof(text));
    CU_ASSERT_PTR_NOT_NULL(
        strstr(text, "\"throttle\":[\"idle\",\"display_clock\"]}]}\n"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "\"throttle\":[]}]}\n"));
}

static void only_faults_and_heat_are_warned_of(void)
{
    struct zb_gpu_state g = two_gpus[0];
    struct zbrun_record r = {.step = 1, .gpu = &g, .n_gpus = 1};

    CU_ASSERT_EQUAL(zbrun_warn_slow(&r), 0);
    g.throttle = ZB_THROTTLE_UNKNOWN;
    CU_ASSERT_EQUAL(zbrun_warn_slow(&r), 0);
    g.throttle = ZB_THROTTLE_IDLE | ZB_THROTTLE_HW_THERMAL;
    CU_ASSERT_EQUAL(zbrun_warn_slow(&r), 1);
}

static void gpus_of_a_run_are_summed_up(void)
{
    struct zb_gpu_state now[2];
    struct zbrun_gpus gs = {.n = 0};
    char text[4096];
    FILE *f = tmpfile();

    zbrun_report_gpus(&gs, f);
    CU_ASSERT_EQUAL(ftell(f), 0);
    memcpy(now, two_gpus, sizeof(now));
    ZBT_OK(zbrun_gpus_add(&gs, now, 2));
    now[0].power_w = 500.5;
    now[0].sm_mhz = 1000;
    now[0].throttle = 0;
    ZBT_OK(zbrun_gpus_add(&gs, now, 2));
    zbrun_report_gpus(&gs, f);
    read_all(f, text, sizeof(text));
    CU_ASSERT_PTR_NOT_NULL(
        strstr(text, "<tr><td>0</td><td>2</td><td>3</td><td>450.5</td>"
                     "<td>500.5</td><td>1490</td><td>1000</td><td>61</td>"
                     "<td class=\"t\">power_cap 50 %</td></tr>"));
    CU_ASSERT_PTR_NOT_NULL(
        strstr(text, "<tr><td>3</td><td>2</td><td></td><td></td><td></td>"
                     "<td>1410</td><td>1410</td><td></td>"
                     "<td class=\"t\"></td></tr>"));
    zbrun_gpus_release(&gs);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(points_of_any_number_of_steps_hold_every_value),
        ZBT_CASE(curves_of_odd_values_are_drawn_or_left_out),
        ZBT_CASE(log_leaves_out_what_a_gpu_does_not_tell),
        ZBT_CASE(several_reasons_are_a_list),
        ZBT_CASE(only_faults_and_heat_are_warned_of),
        ZBT_CASE(gpus_of_a_run_are_summed_up),
    };

    return zbt_run("report", cases, ZB_COUNT_OF(cases));
}
