/* SPDX-License-Identifier: MIT
 *
 * Lower bounds against proved optima, best known schedules and the bounds of
 * tests/golden/plan_*.csv; against every order of tiny pipelines; scale.
 */
#include "config.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "plan/plan_int.h"
#include "zb/mem.h"
#include "zbt.h"

#define F_MEM 303104
#define LINE_MAX_BYTES 4096
#define MAX_FIELDS 20

/* ---- tables ---- */

struct table {
    FILE *f;
    char line[LINE_MAX_BYTES];
    const char *field[MAX_FIELDS];
};

static void table_open(struct table *t, const char *rel)
{
    t->f = fopen(zbt_source_path(rel), "r");
    CU_ASSERT_FATAL(t->f != NULL);
    do {
        CU_ASSERT_FATAL(fgets(t->line, sizeof(t->line), t->f) != NULL);
    } while (t->line[0] == '#');
}

static int table_next(struct table *t)
{
    char *at = t->line;

    if (fgets(t->line, sizeof(t->line), t->f) == NULL) {
        fclose(t->f);
        return 0;
    }
    for (int i = 0; i < MAX_FIELDS; i++) {
        t->field[i] = at;
        at += strcspn(at, ",\n");
        if (*at != '\0') {
            *at++ = '\0';
        }
    }
    return 1;
}

static double number(const struct table *t, int i)
{
    return strtod(t->field[i], NULL);
}

static void numbers(const struct table *t, int i, double *x, int n)
{
    const char *at = t->field[i];
    char *end = NULL;

    for (int k = 0; k < n; k++) {
        x[k] = strtod(at, &end);
        CU_ASSERT_FATAL(end != at);
        at = end;
    }
}

static void input_of(int p, int m, double c, double limit,
                     struct zb_plan_input *in)
{
    ZBT_OK(zb_plan_input_init(in, p, m, ZB_PLACE_V, 2));
    in->c_cost = c;
    for (int i = 0; i < p; i++) {
        in->max_mem[i] = limit;
    }
}

/* id,p,m,c,f,b,w,cap_over_fm,LB,opt */
static void read_exact(const struct table *t, struct zb_plan_input *in)
{
    int n = 2 * (int)number(t, 1);

    input_of((int)number(t, 1), (int)number(t, 2), number(t, 3),
             number(t, 7) * F_MEM, in);
    numbers(t, 4, in->f_cost, n);
    numbers(t, 5, in->b_cost, n);
    numbers(t, 6, in->w_cost, n);
}

/* p,m,f,b,w,c,alpha,max_mem_over_fm,LB_G,exact_opt,best_known_G,... */
static void read_goal(const struct table *t, struct zb_plan_input *in)
{
    int n = 2 * (int)number(t, 0);

    input_of((int)number(t, 0), (int)number(t, 1), number(t, 5),
             number(t, 7) * F_MEM, in);
    for (int v = 0; v < n; v++) {
        in->f_cost[v] = number(t, 2);
        in->b_cost[v] = number(t, 3);
        in->w_cost[v] = number(t, 4);
    }
}

/* name,p,m,alpha,c,f,b,w,f_mem,b_mem,w_mem,max_mem,LB_G,best_seen_G,... */
static void read_unequal(const struct table *t, struct zb_plan_input *in)
{
    int n = 2 * (int)number(t, 1);

    input_of((int)number(t, 1), (int)number(t, 2), number(t, 4), number(t, 11),
             in);
    numbers(t, 5, in->f_cost, n);
    numbers(t, 6, in->b_cost, n);
    numbers(t, 7, in->w_cost, n);
    numbers(t, 8, in->f_mem, n);
    numbers(t, 9, in->b_mem, n);
    numbers(t, 10, in->w_mem, n);
}

static double bound_of(const struct zb_plan_input *in,
                       enum zb_plan_objective objective)
{
    double bound = NAN;

    ZBT_OK(zb_plan_bound(in, objective, 0, &bound));
    return bound;
}

struct tally {
    double gap, list_gap;
    int n, n_tight;
};

static void compare(struct tally *k, double bound, double listed, double best,
                    const char *what)
{
    CU_ASSERT(bound <= best + 1e-6);
    CU_ASSERT(bound >= listed - 0.0011);
    if (!(bound <= best + 1e-6 && bound >= listed - 0.0011)) {
        printf("\n  %s line %d: bound %g, listed %g, best %g", what, k->n,
               bound, listed, best);
    }
    k->gap += best / bound - 1;
    k->list_gap += best / listed - 1;
    k->n_tight += bound >= best - 1e-6;
    k->n++;
}

static void report(const struct tally *k, const char *what)
{
    printf("\n  %s: best is %.2f %% above the bound on average (%.2f %% above "
           "the listed one), at the bound %d of %d times",
           what, 100 * k->gap / k->n, 100 * k->list_gap / k->n, k->n_tight,
           k->n);
}

static void bound_is_between_listed_bound_and_proved_optimum(void)
{
    struct table t;
    struct tally k = {0};

    table_open(&t, "tests/golden/plan_exact.csv");
    while (table_next(&t)) {
        struct zb_plan_input in;

        read_exact(&t, &in);
        compare(&k, bound_of(&in, ZB_PLAN_STEP), number(&t, 8), number(&t, 9),
                "plan_exact");
        zb_plan_input_release(&in);
    }
    CU_ASSERT_EQUAL(k.n, 380);
    report(&k, "proved optima");
}

static void bound_is_between_listed_bound_and_best_known_makespan(void)
{
    struct table t;
    struct tally by_alpha[3] = {{0}};
    int n = 0;

    table_open(&t, "tests/golden/plan_goals.csv");
    while (table_next(&t)) {
        struct zb_plan_input in;
        double best = number(&t, 10);
        double alpha = number(&t, 6);

        read_goal(&t, &in);
        if (number(&t, 9) > 0) {
            best = fmin(best, number(&t, 9));
        }
        compare(&by_alpha[alpha < 0.6   ? 0
                          : alpha < 0.9 ? 1
                                        : 2],
                bound_of(&in, ZB_PLAN_STEP), number(&t, 8), best, "plan_goals");
        zb_plan_input_release(&in);
        n++;
    }
    CU_ASSERT_EQUAL(n, 265);
    report(&by_alpha[2], "equal costs, alpha 1");
    report(&by_alpha[1], "equal costs, alpha .75");
    report(&by_alpha[0], "equal costs, alpha .5");
}

static void bound_of_unequal_costs_is_between_listed_and_best_seen(void)
{
    struct table t;
    struct tally k = {0};

    table_open(&t, "tests/golden/plan_unequal.csv");
    while (table_next(&t)) {
        struct zb_plan_input in;

        read_unequal(&t, &in);
        compare(&k, bound_of(&in, ZB_PLAN_STEP), number(&t, 12), number(&t, 13),
                "plan_unequal");
        zb_plan_input_release(&in);
    }
    CU_ASSERT(k.n > 20);
    report(&k, "unequal costs");
    printf("\n");
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(bound_is_between_listed_bound_and_proved_optimum),
        ZBT_CASE(bound_is_between_listed_bound_and_best_known_makespan),
        ZBT_CASE(bound_of_unequal_costs_is_between_listed_and_best_seen),
    };

    return zbt_run("plan_bound", cases, ZB_COUNT_OF(cases));
}
