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

/* ---- every order ---- */

enum { F, B, W, N_KINDS };
#define MAX_VIRTUAL 6
#define MAX_MICRO 3

/* Nodes are started in the order of their start times, each as early as
 * possible: every order of every stage comes up. */
struct search {
    const struct zb_plan_input *in;
    int n, m, objective;
    int done[MAX_VIRTUAL][N_KINDS];
    double end[MAX_VIRTUAL][N_KINDS][MAX_MICRO];
    double clock[MAX_VIRTUAL], first[MAX_VIRTUAL], mem[MAX_VIRTUAL];
    double left[MAX_VIRTUAL]; /* work that is left, per stage */
    double best;
    long n_steps;
};

static int stage_of(const struct search *s, int v)
{
    int stage, chunk;

    zb_virtual_to_local(s->in->placement, s->in->n_stage, v, &stage, &chunk);
    return stage;
}

static double cost(const struct search *s, int v, int kind)
{
    return kind == F ? s->in->f_cost[v]
                     : (kind == B ? s->in->b_cost[v] : s->in->w_cost[v]);
}

static double memory(const struct search *s, int v, int kind)
{
    return kind == F ? s->in->f_mem[v]
                     : (kind == B ? s->in->b_mem[v] : s->in->w_mem[v]);
}

/* When the output of (u, kind) is with v; INFINITY when it is not made. */
static double arrival(const struct search *s, int u, int kind, int mb, int v)
{
    if (u < 0 || u >= s->n) {
        return 0;
    }
    return s->done[u][kind] <= mb
               ? INFINITY
               : s->end[u][kind][mb] +
                     (stage_of(s, u) == stage_of(s, v) ? 0 : s->in->c_cost);
}

static double start_of(const struct search *s, int v, int kind)
{
    int mb = s->done[v][kind], i = stage_of(s, v);
    double t = s->clock[i];

    if (mb == s->m) {
        return INFINITY;
    }
    switch (kind) {
    case F:
        if (s->mem[i] + s->in->f_mem[v] > s->in->max_mem[i] * (1 + 1e-9)) {
            return INFINITY;
        }
        return fmax(t, arrival(s, v - 1, F, mb, v));
    case B:
        return fmax(t,
                    fmax(arrival(s, v, F, mb, v), arrival(s, v + 1, B, mb, v)));
    default:
        return fmax(t, arrival(s, v, B, mb, v));
    }
}

/* What the objective is at least, from here on; at the end what it is. */
static double at_least(const struct search *s)
{
    double most = 0;

    for (int i = 0; i < s->in->n_stage; i++) {
        double from =
            s->objective == ZB_PLAN_STEP || s->first[i] < 0 ? 0 : s->first[i];

        most = fmax(most, s->clock[i] + s->left[i] -
                              (s->first[i] < 0 ? s->clock[i] : from));
    }
    return most;
}

static void try_all(struct search *s, double now, int n_left);

static void try_one(struct search *s, int v, int kind, double t, int n_left)
{
    int i = stage_of(s, v), mb = s->done[v][kind]++;
    double clock = s->clock[i], first = s->first[i], left = s->left[i];

    s->end[v][kind][mb] = s->clock[i] = t + cost(s, v, kind);
    s->first[i] = first < 0 ? t : first;
    s->mem[i] += memory(s, v, kind);
    s->left[i] -= cost(s, v, kind);
    try_all(s, t, n_left - 1);
    s->left[i] = left;
    s->mem[i] -= memory(s, v, kind);
    s->first[i] = first;
    s->clock[i] = clock;
    s->done[v][kind]--;
}

static void try_all(struct search *s, double now, int n_left)
{
    s->n_steps++;
    if (at_least(s) >= s->best) {
        return;
    }
    if (n_left == 0) {
        s->best = at_least(s);
        return;
    }
    for (int v = 0; v < s->n; v++) {
        for (int kind = F; kind < N_KINDS; kind++) {
            double t = start_of(s, v, kind);

            if (isfinite(t) && t >= now) {
                try_one(s, v, kind, t, n_left);
            }
        }
    }
}

/* The best of all orders; INFINITY when there is none. */
static double best_of_all(const struct zb_plan_input *in,
                          enum zb_plan_objective objective, long *n_steps)
{
    struct search s = {.in = in,
                       .n = in->n_stage * in->n_chunk,
                       .m = in->n_micro,
                       .objective = (int)objective,
                       .best = INFINITY};

    for (int v = 0; v < s.n; v++) {
        s.first[stage_of(&s, v)] = -1;
        s.left[stage_of(&s, v)] +=
            s.m * (in->f_cost[v] + in->b_cost[v] + in->w_cost[v]);
    }
    try_all(&s, 0, s.n * N_KINDS * s.m);
    *n_steps += s.n_steps;
    return s.best;
}

struct tiny {
    enum zb_placement placement;
    int p, n_chunk, m;
};

static const struct tiny tiny_sizes[] = {
    {ZB_PLACE_V, 1, 2, 1},      {ZB_PLACE_V, 1, 2, 2},
    {ZB_PLACE_V, 2, 2, 1},      {ZB_PLACE_V, 3, 2, 1},
    {ZB_PLACE_LINEAR, 1, 1, 3}, {ZB_PLACE_LINEAR, 2, 1, 2},
    {ZB_PLACE_LINEAR, 3, 1, 2}, {ZB_PLACE_LINEAR, 2, 1, 3},
    {ZB_PLACE_LOOP, 2, 2, 1},   {ZB_PLACE_LOOP, 2, 3, 1},
    {ZB_PLACE_LOOP, 1, 2, 2},   {ZB_PLACE_V, 2, 2, 2},
};

/* Costs, memory and limits around the least that can work. */
static void random_tiny(struct zbt_rng *r, const struct tiny *k,
                        struct zb_plan_input *in)
{
    ZBT_OK(zb_plan_input_init(in, k->p, k->m, k->placement, k->n_chunk));
    for (int v = 0; v < k->p * k->n_chunk; v++) {
        in->f_cost[v] = (double)zbt_rand_in(r, 0, 6);
        in->b_cost[v] = (double)zbt_rand_in(r, 0, 6);
        in->w_cost[v] = (double)zbt_rand_in(r, 0, 6);
        in->b_mem[v] = -(double)zbt_rand_in(r, 0, 5);
        in->w_mem[v] = -(double)zbt_rand_in(r, 0, 5);
        in->f_mem[v] = -in->b_mem[v] - in->w_mem[v];
    }
    in->c_cost = (double)zbt_rand_in(r, 0, 4);
    for (int i = 0; i < k->p; i++) {
        double sum = 0;

        for (int c = 0; c < k->n_chunk; c++) {
            sum += in->f_mem[zb_virtual_stage(k->placement, k->p, i, c)];
        }
        in->max_mem[i] = fmax(0, sum + (double)zbt_rand_in(r, 0, 12));
        if (zbt_rand_in(r, 0, 20) == 0) {
            in->max_mem[i] = fmax(0, sum - (double)zbt_rand_in(r, 1, 5));
        }
    }
}

static void bound_is_below_best_of_all_orders_of_tiny_pipelines(void)
{
    struct zbt_rng r = {5};
    int n = zbt_is_long() ? 6000 : 600, n_tight[2] = {0}, n_of[2] = {0};
    long n_steps = 0;

    for (int k = 0; k < n; k++) {
        const struct tiny *size = &tiny_sizes[k % (int)ZB_COUNT_OF(tiny_sizes)];
        struct zb_plan_input in;

        random_tiny(&r, size, &in);
        for (int o = ZB_PLAN_STEP; o <= ZB_PLAN_STEADY; o++) {
            double best = best_of_all(&in, (enum zb_plan_objective)o, &n_steps);
            double bound = bound_of(&in, (enum zb_plan_objective)o);

            CU_ASSERT(bound <= best + 1e-6);
            if (bound > best + 1e-6) {
                printf("\n  p %d m %d placement %d objective %d: bound %g, "
                       "best %g",
                       size->p, size->m, (int)size->placement, o, bound, best);
            }
            n_of[o] += isfinite(best) ? 1 : 0;
            n_tight[o] += bound >= best - 1e-6;
        }
        zb_plan_input_release(&in);
    }
    printf("\n  at the bound: makespan %d of %d times, span %d of %d (%ld "
           "steps)",
           n_tight[0], n_of[0], n_tight[1], n_of[1], n_steps);
}

/* What is refused has no order at all. */
static void zbv_refuses_exactly_the_limits_no_order_meets(void)
{
    struct zbt_rng r = {6};
    int n = zbt_is_long() ? 3000 : 300, n_refused = 0;
    long n_steps = 0;

    for (int k = 0; k < n; k++) {
        struct zb_plan_input in;
        struct zb_schedule *s = NULL;
        struct zb_plan_opts opts;
        enum zb_status st;

        random_tiny(&r, &tiny_sizes[k % 4], &in);
        zb_plan_opts_init(&opts);
        opts.budget = 0;
        st = zb_plan_make("zbv", &in, &opts, &s);
        CU_ASSERT(st == ZB_OK || st == ZB_EINFEASIBLE);
        CU_ASSERT_EQUAL(st == ZB_OK,
                        isfinite(best_of_all(&in, ZB_PLAN_STEP, &n_steps)));
        n_refused += st != ZB_OK;
        zb_schedule_free(s);
        zb_plan_input_release(&in);
    }
    CU_ASSERT(n_refused > n / 20 && n_refused < n);
}

static void bound_with_failing_allocation_leaves_nothing(void)
{
    struct zb_plan_input in;

    ZBT_OK(zb_plan_input_init(&in, 4, 8, ZB_PLACE_V, 2));
    for (uint64_t k = 1;; k++) {
        int64_t before = zb_mem_live();
        double bound = -1;
        enum zb_status st;
        int failed;

        zb_mem_fail_at(k);
        st = zb_plan_bound(&in, ZB_PLAN_STEP, 0, &bound);
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        CU_ASSERT_EQUAL(zb_mem_live(), before);
        CU_ASSERT_EQUAL(st, failed ? ZB_ENOMEM : ZB_OK);
        CU_ASSERT_EQUAL(bound < 0, failed);
        if (!failed) {
            break;
        }
    }
    zb_plan_input_release(&in);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(bound_is_between_listed_bound_and_proved_optimum),
        ZBT_CASE(bound_is_between_listed_bound_and_best_known_makespan),
        ZBT_CASE(bound_of_unequal_costs_is_between_listed_and_best_seen),
        ZBT_CASE(bound_is_below_best_of_all_orders_of_tiny_pipelines),
        ZBT_CASE(zbv_refuses_exactly_the_limits_no_order_meets),
        ZBT_CASE(bound_with_failing_allocation_leaves_nothing),
    };

    return zbt_run("plan_bound", cases, ZB_COUNT_OF(cases));
}
