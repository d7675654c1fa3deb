/* SPDX-License-Identifier: MIT
 *
 * How good the plans of zbv must be: against the bounds, best known makespans
 * and proved optima of tests/golden/plan_*.csv. `make check-long` plans every
 * case with the default budget, `make check` a sample of the small ones with
 * less. Effort is counted in moves: no result depends on the machine's speed.
 */
#include "config.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "plan_cases.h"
#include "zb/mem.h"
#include "zb/plan.h"
#include "zbt.h"

#define QUICK_BUDGET 3000000
#define ROUNDING 1e-9

/* ---- walking through the tables ---- */

/* What came out, in parts of the makespan. */
struct tally {
    int n, n_best, n_off;
    double gap;    /* sum: above the listed bound */
    double excess; /* sum: above the best known */
    double worst;  /* of these */
};

struct filter {
    enum plan_table table;
    int (*has)(const struct plan_case *k); /* NULL: every case */
    int every;                             /* of those, in `make check` */
    int max_stages;                        /* in `make check` */
};

/* What a case must hold, beyond being legal. */
typedef int good_fn(const struct plan_case *k, const struct zb_schedule *s);

static struct zb_plan_opts budget_of(int64_t quick)
{
    struct zb_plan_opts opts;

    zb_plan_opts_init(&opts);
    opts.budget = zbt_is_long() ? -1 : quick;
    return opts;
}

static void count(struct tally *y, const struct plan_case *k,
                  const struct zb_schedule *s)
{
    double excess = s->makespan / k->best - 1;

    y->worst = y->n == 0 ? excess : fmax(y->worst, excess);
    y->n++;
    y->n_best += excess <= ROUNDING;
    y->gap += s->makespan / k->bound - 1;
    y->excess += excess;
}

static void one_case(const struct plan_case *k, good_fn *is_good,
                     struct tally *y)
{
    struct zb_plan_opts opts = budget_of(QUICK_BUDGET);
    struct zb_schedule *s = NULL;

    ZBT_OK(zb_plan_make("zbv", &k->in, &opts, &s));
    ZBT_OK(zb_schedule_check(s, &k->in));
    CU_ASSERT(s->makespan >= s->lower_bound * (1 - ROUNDING));
    count(y, k, s);
    if (is_good != NULL && !is_good(k, s)) {
        y->n_off++;
        printf("\n  %s: %g, best known %g (%+.2f %%), bound %g", k->name,
               s->makespan, k->best, 100 * (s->makespan / k->best - 1),
               s->lower_bound);
    }
    zb_schedule_free(s);
}

static int is_in_sample(const struct filter *f, const struct plan_case *k,
                        int *n)
{
    if (f->has != NULL && !f->has(k)) {
        return 0;
    }
    if (zbt_is_long()) {
        return 1;
    }
    return k->in.n_stage <= f->max_stages && (*n)++ % f->every == 0;
}

static struct tally walk(const struct filter *f, good_fn *is_good)
{
    struct plan_cases c;
    struct tally y = {0};
    int n = 0, has = 1;

    ZBT_OK(plan_cases_open(&c, f->table, zbt_source_path("tests/golden")));
    for (;;) {
        struct plan_case k;

        ZBT_OK(plan_cases_next(&c, &k, &has));
        if (!has) {
            break;
        }
        if (is_in_sample(f, &k, &n)) {
            one_case(&k, is_good, &y);
        }
        plan_case_release(&k);
    }
    plan_cases_close(&c);
    CU_ASSERT_FATAL(y.n > 0);
    printf(
        "\n  %d cases, %.3f %% above the listed bound, %+.3f %% (worst %+.2f "
        "%%) above the best known, which %d reach; %d off\n",
        y.n, 100 * y.gap / y.n, 100 * y.excess / y.n, 100 * y.worst, y.n_best,
        y.n_off);
    return y;
}

/* ---- equal costs ---- */

static int is_full(const struct plan_case *k)
{
    return k->alpha > 0.99;
}

static int is_full_and_short(const struct plan_case *k)
{
    return is_full(k) && k->in.n_micro == k->in.n_stage;
}

static int is_costs(const struct plan_case *k, double f, double b, double w,
                    double c)
{
    return k->in.f_cost[0] == f && k->in.b_cost[0] == b &&
           k->in.w_cost[0] == w && k->in.c_cost == c;
}

/* Where the bound can be reached. */
static int is_easy(const struct plan_case *k)
{
    int p = k->in.n_stage, m = k->in.n_micro;

    return is_full(k) && p <= 8 && m >= 2 * p && m <= 4 * p &&
           !is_costs(k, 1, 1, 1, 1) &&
           !(p == 4 && m == 16 && is_costs(k, 12, 14, 9, 1));
}

static int is_three_quarters(const struct plan_case *k)
{
    return k->alpha > 0.6 && !is_full(k);
}

static int is_half(const struct plan_case *k)
{
    return k->alpha < 0.6;
}

static int is_at_bound(const struct plan_case *k, const struct zb_schedule *s)
{
    return s->makespan <= fmax(k->bound, s->lower_bound) * (1 + ROUNDING);
}

static int is_within_a_percent(const struct plan_case *k,
                               const struct zb_schedule *s)
{
    return s->makespan <= k->best * (1.01 + ROUNDING);
}

static void zbv_with_full_memory_and_enough_microbatches_reaches_bound(void)
{
    static const struct filter f = {PLAN_GOALS, is_easy, 1, 4};

    CU_ASSERT_EQUAL(walk(&f, is_at_bound).n_off, 0);
}

static void zbv_with_full_memory_is_near_bound(void)
{
    static const struct filter all = {PLAN_GOALS, is_full, 3, 8};
    struct tally y = walk(&all, NULL);

    CU_ASSERT(!zbt_is_long() || y.n == 86);
    CU_ASSERT(!zbt_is_long() || y.gap <= 0.0054 * y.n);
    CU_ASSERT(zbt_is_long() || y.worst <= 0.01);
}

static void zbv_with_as_many_microbatches_as_stages_is_near_bound(void)
{
    static const struct filter f = {PLAN_GOALS, is_full_and_short, 1, 8};
    struct tally y = walk(&f, NULL);

    CU_ASSERT(y.gap <= 0.0052 * y.n);
}

static void zbv_with_less_memory_is_within_a_percent_of_best_known(void)
{
    static const struct filter sets[] = {
        {PLAN_GOALS, is_three_quarters, 4, 4},
        {PLAN_GOALS, is_half, 7, 4},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(sets); i++) {
        struct tally y = walk(&sets[i], is_within_a_percent);

        if (zbt_is_long()) {
            CU_ASSERT_EQUAL(y.n_off, 0);
            CU_ASSERT(y.excess < 0);
        } else { /* a little effort comes near on average */
            CU_ASSERT(4 * y.n_off <= y.n);
            CU_ASSERT(y.excess <= 0.01 * y.n);
        }
    }
}

/* ---- unequal costs ---- */

static int is_best(const struct plan_case *k, const struct zb_schedule *s)
{
    return s->makespan <= k->best * (1 + ROUNDING);
}

static void zbv_finds_proved_optimum_nearly_always(void)
{
    static const struct filter f = {PLAN_EXACT, NULL, 10, 8};
    struct tally y = walk(&f, is_best);

    CU_ASSERT(!zbt_is_long() || y.n == 380);
    CU_ASSERT(y.n_best >= (zbt_is_long() ? 0.97 : 0.9) * y.n);
    CU_ASSERT(y.worst <= 0.04);
}

static void zbv_with_unequal_costs_is_not_worse_than_best_seen(void)
{
    static const struct filter full = {PLAN_UNEQUAL, is_full, 1, 4};
    static const struct filter less = {PLAN_UNEQUAL, is_three_quarters, 2, 4};
    struct tally y = walk(&full, is_best);

    CU_ASSERT_EQUAL(y.n_off, 0);
    CU_ASSERT(y.gap <= 0.005 * y.n);
    if (zbt_is_long()) {
        CU_ASSERT_EQUAL(walk(&less, is_best).n_off, 0);
    } else {
        CU_ASSERT_EQUAL(walk(&less, is_within_a_percent).n_off, 0);
    }
}

/* ---- what options do ---- */

/* A pipeline of p stages whose chunks differ, with a part of 2p F of memory. */
static void uneven(int p, int m, double alpha, unsigned long long seed,
                   struct zb_plan_input *in)
{
    struct zbt_rng r = {seed};

    ZBT_OK(zb_plan_input_init(in, p, m, ZB_PLACE_V, 2));
    for (int v = 0; v < 2 * p; v++) {
        in->f_cost[v] = (double)zbt_rand_in(&r, 8, 14);
        in->b_cost[v] = (double)zbt_rand_in(&r, 8, 16);
        in->w_cost[v] = (double)zbt_rand_in(&r, 6, 12);
    }
    in->c_cost = 2;
    for (int s = 0; s < p; s++) {
        in->max_mem[s] = alpha * 2 * p * in->f_mem[0];
    }
}

static struct zb_schedule *make(const struct zb_plan_input *in,
                                const struct zb_plan_opts *opts)
{
    struct zb_schedule *s = NULL;

    ZBT_OK(zb_plan_make("zbv", in, opts, &s));
    ZBT_OK(zb_schedule_check(s, in));
    return s;
}

static int is_same(const struct zb_schedule *a, const struct zb_schedule *b)
{
    for (int s = 0; s < a->n_stage; s++) {
        if (a->stages[s].n != b->stages[s].n) {
            return 0;
        }
        for (size_t i = 0; i < a->stages[s].n; i++) {
            const struct zb_node *x = &a->stages[s].node[i];
            const struct zb_node *y = &b->stages[s].node[i];

            if (x->type != y->type || x->chunk != y->chunk || x->mb != y->mb ||
                x->start != y->start || x->end != y->end) {
                return 0;
            }
        }
    }
    return 1;
}

static void same_seed_and_budget_give_same_schedule(void)
{
    struct zb_plan_opts opts = {.seed = 7, .budget = 500000};
    int n_different = 0;

    for (int m = 4; m <= 40; m += 12) {
        struct zb_plan_input in;
        struct zb_schedule *a, *b, *other;

        uneven(4, m, 0.6, 11 + (unsigned long long)m, &in);
        opts.seed = 7;
        a = make(&in, &opts);
        b = make(&in, &opts);
        CU_ASSERT(is_same(a, b));
        opts.seed = 8;
        other = make(&in, &opts);
        n_different += !is_same(a, other);
        zb_schedule_free(a);
        zb_schedule_free(b);
        zb_schedule_free(other);
        zb_plan_input_release(&in);
    }
    CU_ASSERT(n_different > 0);
}

/* Every budget gives a legal schedule, and none is better than what the bound
 * allows or worse than what no search gives. */
static void any_budget_gives_legal_schedule_not_worse_than_none(void)
{
    static const int64_t budgets[] = {1, 10, 1000, 30000, 1000000};
    struct zb_plan_opts opts = {.budget = 0};
    struct zb_plan_input in;
    struct zb_schedule *none;

    uneven(4, 12, 0.5, 3, &in);
    none = make(&in, &opts);
    for (size_t i = 0; i < ZB_COUNT_OF(budgets); i++) {
        struct zb_schedule *s;

        opts.budget = budgets[i];
        s = make(&in, &opts);
        CU_ASSERT(s->makespan <= none->makespan * (1 + ROUNDING));
        CU_ASSERT(s->makespan >= s->lower_bound * (1 - ROUNDING));
        zb_schedule_free(s);
    }
    zb_schedule_free(none);
    zb_plan_input_release(&in);
}

static void objective_steady_gives_span_not_worse_than_step_does(void)
{
    double sum = 0, sum_step = 0;

    for (int i = 0; i < 6; i++) {
        struct zb_plan_opts opts = {.budget = 1000000};
        struct zb_plan_input in;
        struct zb_schedule *step, *steady;

        uneven(2 + i % 3, 4 + 3 * i, i % 2 ? 0.7 : 1, 100 + (unsigned)i, &in);
        step = make(&in, &opts);
        opts.objective = ZB_PLAN_STEADY;
        steady = make(&in, &opts);
        CU_ASSERT_EQUAL(steady->objective, ZB_PLAN_STEADY);
        CU_ASSERT(steady->span >= steady->lower_bound * (1 - ROUNDING));
        CU_ASSERT(steady->span <= step->span * (1 + ROUNDING));
        sum += steady->span;
        sum_step += step->span;
        zb_schedule_free(step);
        zb_schedule_free(steady);
        zb_plan_input_release(&in);
    }
    CU_ASSERT(sum < sum_step);
}

/* The bound, which would end the search too, is out of reach. */
static void time_limit_ends_search_with_legal_schedule(void)
{
    struct zb_plan_opts opts = {.budget = -1, .time_limit_ms = 20};
    struct zb_plan_input in;
    struct zb_schedule *s;

    uneven(3, 6, 0.5, 5, &in);
    s = make(&in, &opts);
    CU_ASSERT(s->makespan > s->lower_bound * (1 + ROUNDING));
    zb_schedule_free(s);
    zb_plan_input_release(&in);
}

/* The limit of one stage is too small; the message says what would do. */
static void too_small_limit_is_refused_with_least_that_works(void)
{
    struct zb_plan_opts opts = {.budget = 100000};
    struct zb_plan_input in;
    struct zb_schedule *s = NULL;

    uneven(4, 9, 0.5, 6, &in);
    in.f_mem[2] = 400;
    in.b_mem[2] = -300;
    in.w_mem[2] = -100;
    in.f_mem[5] = 77;
    in.b_mem[5] = -7;
    in.w_mem[5] = -70;
    in.max_mem[2] = 476;
    CU_ASSERT_EQUAL(zb_plan_make("zbv", &in, &opts, &s), ZB_EINFEASIBLE);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "477"));
    in.max_mem[2] = 477;
    s = make(&in, &opts);
    CU_ASSERT(s->peak_mem[2] <= 477);
    zb_schedule_free(s);
    zb_plan_input_release(&in);
}

static void search_without_memory_fails_cleanly(void)
{
    struct zb_plan_opts opts = {.budget = 3000};
    struct zb_plan_input in;

    uneven(2, 12, 0.75, 9, &in);
    for (uint64_t k = 1;; k++) {
        int64_t before = zb_mem_live();
        struct zb_schedule *s = NULL;
        enum zb_status st;
        int failed;

        zb_mem_fail_at(k);
        st = zb_plan_make("zbv", &in, &opts, &s);
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        CU_ASSERT(st == (failed ? ZB_ENOMEM : ZB_OK));
        zb_schedule_free(st == ZB_OK ? s : NULL);
        CU_ASSERT_EQUAL(zb_mem_live(), before);
        if (!failed) {
            break;
        }
    }
    zb_plan_input_release(&in);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(zbv_with_full_memory_and_enough_microbatches_reaches_bound),
        ZBT_CASE(zbv_with_full_memory_is_near_bound),
        ZBT_CASE(zbv_with_as_many_microbatches_as_stages_is_near_bound),
        ZBT_CASE(zbv_with_less_memory_is_within_a_percent_of_best_known),
        ZBT_CASE(zbv_finds_proved_optimum_nearly_always),
        ZBT_CASE(zbv_with_unequal_costs_is_not_worse_than_best_seen),
        ZBT_CASE(same_seed_and_budget_give_same_schedule),
        ZBT_CASE(any_budget_gives_legal_schedule_not_worse_than_none),
        ZBT_CASE(objective_steady_gives_span_not_worse_than_step_does),
        ZBT_CASE(time_limit_ends_search_with_legal_schedule),
        ZBT_CASE(too_small_limit_is_refused_with_least_that_works),
        ZBT_CASE(search_without_memory_fails_cleanly),
    };

    return zbt_run("plan_goals", cases, ZB_COUNT_OF(cases));
}
