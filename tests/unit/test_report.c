/* SPDX-License-Identifier: MIT
 *
 * The curves of a report: how many points are kept, what they say, and that
 * drawing them stays finite. */
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

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(points_of_any_number_of_steps_hold_every_value),
        ZBT_CASE(curves_of_odd_values_are_drawn_or_left_out),
    };

    return zbt_run("report", cases, ZB_COUNT_OF(cases));
}
