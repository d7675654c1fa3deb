/* SPDX-License-Identifier: MIT
 *
 * Every planner on random instances: costs from nothing to a million, memory
 * and limits of all sizes. What comes out is held against the checker and
 * against the oracle and the lower bound.
 */
#include "config.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "plan_oracle.h"
#include "zb/mem.h"
#include "zb/plan.h"
#include "zbt.h"

#define MAX_STAGES 8
#define MAX_MICRO 20
#define MOVES 200

struct count {
    int n_made, n_refused, n_at_bound;
};

/* ---- instances ---- */

enum cost_kind { WHOLE, FRACTION, WITH_ZEROS, WIDE, N_COST_KINDS };

static double random_cost(struct zbt_rng *r, enum cost_kind kind)
{
    switch (kind) {
    case WHOLE:
        return (double)zbt_rand_in(r, 1, 40);
    case FRACTION:
        return (double)zbt_rand_in(r, 1, 40000) / 1000;
    case WITH_ZEROS:
        return (double)zbt_rand_in(r, 0, 3);
    default:
        return pow(10, (double)zbt_rand_in(r, -3000, 3000) / 1000);
    }
}

/* Of what memory consists: {b, w} of one chunk, for all or for each. */
static void random_memory(struct zbt_rng *r, int is_equal,
                          struct zb_plan_input *in)
{
    int n = in->n_stage * in->n_chunk;

    for (int v = 0; v < n; v++) {
        int is_copy = is_equal && v > 0;

        in->b_mem[v] = is_copy ? in->b_mem[0] : -(double)zbt_rand_in(r, 0, 100);
        in->w_mem[v] = is_copy ? in->w_mem[0] : -(double)zbt_rand_in(r, 0, 100);
        in->f_mem[v] = -in->b_mem[v] - in->w_mem[v];
    }
}

static void random_limits(struct zbt_rng *r, struct zb_plan_input *in)
{
    int kind = (int)zbt_rand_in(r, 0, 3), n = in->n_stage * in->n_chunk;
    double mean = 0;

    for (int v = 0; v < n; v++) {
        mean += in->f_mem[v] / n;
    }
    for (int i = 0; i < in->n_stage && kind > 0; i++) {
        double most = kind == 1 ? mean * n : mean * in->n_chunk;

        in->max_mem[i] = kind == 3 && i > 0
                             ? in->max_mem[0]
                             : most * (double)zbt_rand_in(r, 50, 400) / 100;
    }
}

static void random_instance(struct zbt_rng *r, enum zb_placement placement,
                            int n_chunk, struct zb_plan_input *in)
{
    enum cost_kind kind = (enum cost_kind)zbt_rand_in(r, 0, N_COST_KINDS - 1);
    int is_equal = (int)zbt_rand_in(r, 0, 1);

    ZBT_OK(zb_plan_input_init(in, (int)zbt_rand_in(r, 1, MAX_STAGES),
                              (int)zbt_rand_in(r, 1, MAX_MICRO), placement,
                              n_chunk));
    for (int v = 0; v < in->n_stage * n_chunk; v++) {
        int is_copy = is_equal && v > 0;

        in->f_cost[v] = is_copy ? in->f_cost[0] : random_cost(r, kind);
        in->b_cost[v] = is_copy ? in->b_cost[0] : random_cost(r, kind);
        in->w_cost[v] = is_copy ? in->w_cost[0] : random_cost(r, kind);
    }
    switch (zbt_rand_in(r, 0, 2)) {
    case 0:
        in->c_cost = 0;
        break;
    case 1:
        in->c_cost = random_cost(r, kind);
        break;
    default:
        in->c_cost = 100 * in->f_cost[0];
        break;
    }
    if (zbt_rand_in(r, 0, 2) > 0) {
        random_memory(r, (int)zbt_rand_in(r, 0, 1), in);
    }
    random_limits(r, in);
}

/* ---- what must hold ---- */

static void expect_near(double a, double b)
{
    CU_ASSERT(fabs(a - b) <= 1e-9 * fmax(1, fmax(fabs(a), fabs(b))));
}

static double goal_of(const struct zb_schedule *s)
{
    return s->objective == ZB_PLAN_STEP ? s->makespan : s->span;
}

static void expect_sound(const struct zb_schedule *s,
                         const struct zb_plan_input *in)
{
    double span = 0, makespan = plan_oracle_makespan(s, in, &span);

    ZBT_OK(zb_schedule_check(s, in));
    CU_ASSERT(plan_oracle_is_legal(s));
    expect_near(s->makespan, makespan);
    expect_near(s->span, span);
    for (int i = 0; i < s->n_stage; i++) {
        double peak = plan_oracle_peak(s, in, i);

        expect_near(s->peak_mem[i], peak);
        CU_ASSERT(peak <= in->max_mem[i] * (1 + 1e-8));
    }
    CU_ASSERT(s->lower_bound <= goal_of(s) * (1 + 1e-9));
    if (!(s->lower_bound <= goal_of(s) * (1 + 1e-9))) {
        printf("\n  %s p %d m %d: %.17g is below the bound %.17g", s->planner,
               s->n_stage, s->n_micro, goal_of(s), s->lower_bound);
    }
}

/* A refusal names a stage and a limit above the one it has. */
static void expect_refusal(enum zb_status st, const struct zb_plan_input *in)
{
    const char *stage = strstr(zb_error_text(), " of stage ");
    const char *need = strstr(zb_error_text(), "needs ");
    int i;

    CU_ASSERT_EQUAL_FATAL(st, ZB_EINFEASIBLE);
    CU_ASSERT_FATAL(stage != NULL && need != NULL);
    i = atoi(stage + strlen(" of stage "));
    CU_ASSERT_FATAL(i >= 0 && i < in->n_stage);
    CU_ASSERT(strtod(need + strlen("needs "), NULL) > in->max_mem[i]);
}

/* What the planner reached, INFINITY where it refuses. */
static double try_planner(const char *planner, const struct zb_plan_input *in,
                          enum zb_plan_objective objective, struct count *n)
{
    double goal;
    struct zb_schedule *s = NULL;
    struct zb_plan_opts opts;
    enum zb_status st;

    zb_plan_opts_init(&opts);
    opts.budget = MOVES;
    opts.objective = objective;
    st = zb_plan_make(planner, in, &opts, &s);
    if (st != ZB_OK) {
        expect_refusal(st, in);
        n->n_refused++;
        return INFINITY;
    }
    CU_ASSERT_EQUAL(s->objective, objective);
    expect_sound(s, in);
    n->n_made++;
    n->n_at_bound += goal_of(s) <= s->lower_bound * (1 + 1e-9);
    goal = goal_of(s);
    zb_schedule_free(s);
    return goal;
}

/* Whether zbv promises to be no worse. */
static int is_rival(const char *planner)
{
    static const char *const rivals[] = {"get_v_schedule", "pytorch-zbv",
                                         "v-half", "v-min"};

    for (size_t i = 0; i < ZB_COUNT_OF(rivals); i++) {
        if (strcmp(planner, rivals[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

/* All planners of one placement on one instance. */
static void try_instance(struct zbt_rng *r, enum zb_placement placement,
                         int n_chunk, struct count *n)
{
    enum zb_plan_objective objective =
        zbt_rand_in(r, 0, 2) > 0 ? ZB_PLAN_STEP : ZB_PLAN_STEADY;
    struct zb_plan_input in;
    double zbv = INFINITY, goal;

    random_instance(r, placement, n_chunk, &in);
    for (int i = 0; zb_planner_name(i) != NULL; i++) {
        const char *planner = zb_planner_name(i);
        enum zb_placement its_placement;
        int its_chunks;

        ZBT_OK(zb_planner_shape(planner, &its_placement, &its_chunks));
        if (its_placement != placement) {
            continue;
        }
        goal = try_planner(planner, &in, objective, n);
        if (strcmp(planner, "zbv") == 0) {
            zbv = goal; /* the first of its placement */
        }
        CU_ASSERT(!is_rival(planner) || zbv <= goal * (1 + 1e-9));
        if (is_rival(planner) && !(zbv <= goal * (1 + 1e-9))) {
            printf("\n  p %d m %d: zbv %.17g, %s %.17g", in.n_stage, in.n_micro,
                   zbv, planner, goal);
        }
    }
    zb_plan_input_release(&in);
}

static void planners_on_random_instances_give_sound_schedules(void)
{
    struct zbt_rng r = {20260};
    struct count n = {0};
    int n_instances = zbt_is_long() ? 10000 : 400;

    for (int k = 0; k < n_instances; k++) {
        switch (k % 4) {
        case 0:
            try_instance(&r, ZB_PLACE_LINEAR, 1, &n);
            break;
        case 1:
            try_instance(&r, ZB_PLACE_LOOP, (int)zbt_rand_in(&r, 2, 3), &n);
            break;
        default:
            try_instance(&r, ZB_PLACE_V, 2, &n);
            break;
        }
    }
    CU_ASSERT(n.n_made > n_instances);
    CU_ASSERT(n.n_refused > n_instances / 4);
    printf("\n  %d schedules, %d of them at their lower bound; %d refusals\n",
           n.n_made, n.n_at_bound, n.n_refused);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(planners_on_random_instances_give_sound_schedules),
    };

    return zbt_run("plan_random", cases, ZB_COUNT_OF(cases));
}
