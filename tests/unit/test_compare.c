/* SPDX-License-Identifier: MIT
 *
 * Planned against actual, with made-up times: cases worked out by hand, and
 * what must hold for any times. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "zb/compare.h"
#include "zb/mem.h"
#include "plan_quick.h"
#include "zbt.h"

#define NS 1000.0 /* of a unit of cost */
#define STAGES_MAX 8

/* A schedule, and the times of a run of it: as planned at first. */
struct rig {
    struct zb_plan_input in;
    struct zb_schedule *s;
    struct zb_node_times times[STAGES_MAX];
    int64_t *start[STAGES_MAX], *end[STAGES_MAX];
};

#define ORIGIN 5000000

static void rig_init(struct rig *r, const char *planner, int p, int m, double c)
{
    enum zb_placement placement;
    int n_chunk;

    ZBT_OK(zb_planner_shape(planner, &placement, &n_chunk));
    ZBT_OK(zb_plan_input_init(&r->in, p, m, placement, n_chunk));
    r->in.c_cost = c;
    ZBT_OK(zb_plan_make(planner, &r->in, &plan_quick, &r->s));
    for (int i = 0; i < p; i++) {
        size_t n = r->s->stages[i].n;

        r->start[i] = zb_alloc_array(n, sizeof(int64_t));
        r->end[i] = zb_alloc_array(n, sizeof(int64_t));
        for (size_t k = 0; k < n; k++) {
            const struct zb_node *nd = &r->s->stages[i].node[k];

            r->start[i][k] = ORIGIN + llround(nd->start * NS);
            r->end[i][k] = ORIGIN + llround(nd->end * NS);
        }
        r->times[i] = (struct zb_node_times){
            r->s->stages[i].node, n, r->start[i], r->end[i]};
    }
}

static void rig_release(struct rig *r)
{
    for (int i = 0; i < r->s->n_stage; i++) {
        zb_free(r->start[i]);
        zb_free(r->end[i]);
    }
    zb_schedule_free(r->s);
    zb_plan_input_release(&r->in);
}

static size_t find(const struct rig *r, int stage, enum zb_node_type type,
                   int mb)
{
    for (size_t k = 0; k < r->s->stages[stage].n; k++) {
        const struct zb_node *nd = &r->s->stages[stage].node[k];

        if (nd->type == type && nd->mb == mb) {
            return k;
        }
    }
    CU_FAIL_FATAL("no such node");
    return 0;
}

static void set(struct rig *r, int stage, enum zb_node_type type, int mb,
                double start, double end)
{
    size_t k = find(r, stage, type, mb);

    r->start[stage][k] = ORIGIN + llround(start * NS);
    r->end[stage][k] = ORIGIN + llround(end * NS);
}

/* In units of cost. */
static void expect(const struct zb_node_delay *d, double carried, double input,
                   double order, double own, enum zb_delay_cause cause)
{
    CU_ASSERT_DOUBLE_EQUAL(d->carried_ns, carried * NS, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(d->input_ns, input * NS, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(d->order_ns, order * NS, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(d->own_ns, own * NS, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(d->delay_ns, (carried + input + order + own) * NS,
                           1e-6);
    CU_ASSERT_EQUAL(d->cause, cause);
}

static void run_as_planned_has_no_delay(void)
{
    struct rig r;
    struct zb_comparison *c;
    struct zb_worst_delay worst[3];

    rig_init(&r, "zbv", 4, 6, 1);
    ZBT_OK(zb_compare(r.s, r.times, r.in.c_cost, 0, &c));
    CU_ASSERT_DOUBLE_EQUAL(c->ns_per_cost, NS, 1e-9);
    CU_ASSERT_EQUAL(c->origin_ns, ORIGIN);
    CU_ASSERT_DOUBLE_EQUAL(c->planned_ns, r.s->makespan * NS, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(c->ran_ns, r.s->makespan * NS, 1e-6);
    for (int i = 0; i < 4; i++) {
        CU_ASSERT_DOUBLE_EQUAL(c->stage[i].delay_ns, 0, 1e-6);
        for (size_t k = 0; k < r.s->stages[i].n; k++) {
            expect(&c->node[i][k], 0, 0, 0, 0, ZB_DELAY_NONE);
        }
    }
    CU_ASSERT_EQUAL(zb_comparison_worst(c, r.s, worst, 3), 0);
    zb_comparison_free(c);
    rig_release(&r);
}

/* 1f1b of two stages and one microbatch, costs F 1, BW 2:
 *     stage 0  F 0-1           BW 4-6
 *     stage 1        F 1-2  BW 2-4
 * The run: F of stage 0 takes 3, the message 1 more, stage 1 waits half a unit
 * before its BW, and stage 0 gets the gradient and takes 1 for its BW. */
static void delays_of_two_stages_follow_by_hand(void)
{
    struct rig r;
    struct zb_comparison *c;
    struct zb_worst_delay worst[2];
    size_t k;

    rig_init(&r, "1f1b", 2, 1, 0);
    set(&r, 0, ZB_NODE_F, 0, 0, 3);
    set(&r, 1, ZB_NODE_F, 0, 4, 5);
    set(&r, 1, ZB_NODE_BW, 0, 5.5, 7.5);
    set(&r, 0, ZB_NODE_BW, 0, 7.5, 8.5);
    ZBT_OK(zb_compare(r.s, r.times, 0, NS, &c));
    expect(&c->node[0][find(&r, 0, ZB_NODE_F, 0)], 0, 0, 0, 2, ZB_DELAY_OWN);
    k = find(&r, 1, ZB_NODE_F, 0);
    expect(&c->node[1][k], 0, 3, 0, 0, ZB_DELAY_INPUT);
    CU_ASSERT_EQUAL(c->node[1][k].from_stage, 0);
    CU_ASSERT_EQUAL(c->node[1][k].from_node, find(&r, 0, ZB_NODE_F, 0));
    k = find(&r, 1, ZB_NODE_BW, 0);
    expect(&c->node[1][k], 3, 0, 0.5, 0, ZB_DELAY_ORDER);
    CU_ASSERT_EQUAL(c->node[1][k].from_stage, 1);
    CU_ASSERT_EQUAL(c->node[1][k].from_node, find(&r, 1, ZB_NODE_F, 0));
    /* Planned: free at 1, waits 3; ran: free at 3, waits 4.5. */
    expect(&c->node[0][find(&r, 0, ZB_NODE_BW, 0)], 2, 1.5, 0, -1,
           ZB_DELAY_ORDER);
    CU_ASSERT_DOUBLE_EQUAL(c->stage[0].delay_ns, 2.5 * NS, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(c->stage[0].own_ns, 1 * NS, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(c->stage[1].delay_ns, 3.5 * NS, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(c->stage[1].input_ns, 3 * NS, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(c->stage[1].order_ns, 0.5 * NS, 1e-6);
    CU_ASSERT_DOUBLE_EQUAL(c->ran_ns, 8.5 * NS, 1e-6);
    CU_ASSERT_EQUAL(zb_comparison_worst(c, r.s, worst, 2), 2);
    CU_ASSERT_EQUAL(worst[0].cause, ZB_DELAY_INPUT);
    CU_ASSERT_EQUAL(worst[0].stage, 1);
    CU_ASSERT_EQUAL(worst[1].cause, ZB_DELAY_OWN);
    CU_ASSERT_EQUAL(worst[1].stage, 0);
    CU_ASSERT_EQUAL(worst[1].node, find(&r, 0, ZB_NODE_F, 0));
    zb_comparison_free(c);
    rig_release(&r);
}

/* A message that takes as long as planned is no reason. */
static void latency_of_the_plan_is_not_a_late_input(void)
{
    struct rig r;
    struct zb_comparison *c;

    rig_init(&r, "1f1b", 2, 1, 2); /* F 0-1, F 3-4, BW 4-6, BW 8-10 */
    set(&r, 1, ZB_NODE_F, 0, 4, 5);
    set(&r, 1, ZB_NODE_BW, 0, 5, 7);
    set(&r, 0, ZB_NODE_BW, 0, 9, 11);
    ZBT_OK(zb_compare(r.s, r.times, 2, NS, &c));
    expect(&c->node[1][find(&r, 1, ZB_NODE_F, 0)], 0, 1, 0, 0, ZB_DELAY_INPUT);
    expect(&c->node[0][find(&r, 0, ZB_NODE_BW, 0)], 0, 1, 0, 0,
           ZB_DELAY_INPUT);
    zb_comparison_free(c);
    rig_release(&r);
}

/* Any times in stream order. */
static void shake(struct rig *r, struct zbt_rng *rng)
{
    for (int i = 0; i < r->s->n_stage; i++) {
        int64_t t = ORIGIN;

        for (size_t k = 0; k < r->s->stages[i].n; k++) {
            r->start[i][k] = t += zbt_rand_in(rng, 0, 3000);
            r->end[i][k] = t += zbt_rand_in(rng, 0, 3000);
        }
    }
}

static void check_sums(const struct rig *r, const struct zb_comparison *c)
{
    for (int i = 0; i < c->n_stage; i++) {
        const struct zb_stage_delay *sum = &c->stage[i];
        double before = 0;

        CU_ASSERT_DOUBLE_EQUAL(
            sum->delay_ns, sum->input_ns + sum->order_ns + sum->own_ns, 1e-4);
        for (size_t k = 0; k < r->s->stages[i].n; k++) {
            const struct zb_node_delay *d = &c->node[i][k];

            if (!zb_node_is_compute(r->s->stages[i].node[k].type)) {
                continue;
            }
            CU_ASSERT_DOUBLE_EQUAL(d->carried_ns, before, 1e-4);
            CU_ASSERT_DOUBLE_EQUAL(d->delay_ns,
                                   d->carried_ns + d->input_ns + d->order_ns +
                                       d->own_ns,
                                   1e-4);
            CU_ASSERT_EQUAL(d->cause == ZB_DELAY_NONE, d->delay_ns <= 0);
            before = d->delay_ns;
        }
    }
}

static void causes_add_up_whatever_the_times(void)
{
    static const char *const planner[] = {"zbv", "get_v_schedule", "1f1b",
                                          "gpipe"};
    struct zbt_rng rng = {3};

    for (int n = 0; n < 40; n++) {
        int p = (int)zbt_rand_in(&rng, 1, STAGES_MAX);
        int m = (int)zbt_rand_in(&rng, 1, 20);
        double c_cost = (double)zbt_rand_in(&rng, 0, 2), own = 0;
        struct zb_comparison *c;
        struct rig r;

        rig_init(&r, planner[n % 4], p, m, c_cost);
        shake(&r, &rng);
        ZBT_OK(zb_compare(r.s, r.times, c_cost, n % 3 == 0 ? NS : 0, &c));
        check_sums(&r, c);
        for (int i = 0; i < p; i++) {
            own += c->stage[i].own_ns;
        }
        if (n % 3 != 0) { /* the unit was chosen for that */
            CU_ASSERT_DOUBLE_EQUAL(own, 0, 1e-3);
        }
        zb_comparison_free(c);
        rig_release(&r);
    }
}

static void times_of_another_schedule_are_refused(void)
{
    struct rig r;
    struct zb_comparison *c = NULL;

    rig_init(&r, "zbv", 2, 4, 0);
    r.times[1].n--;
    CU_ASSERT_EQUAL(zb_compare(r.s, r.times, 0, 0, &c), ZB_EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "stage 1"));
    CU_ASSERT_PTR_NULL(c);
    rig_release(&r);
}

static void failing_allocation_unwinds(void)
{
    struct rig r;
    int64_t before;

    rig_init(&r, "zbv", 2, 4, 0);
    before = zb_mem_live();
    for (uint64_t k = 1;; k++) {
        struct zb_comparison *c = NULL;
        enum zb_status st;
        int failed;

        zb_mem_fail_at(k);
        st = zb_compare(r.s, r.times, 0, 0, &c);
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        CU_ASSERT_EQUAL(st, failed ? ZB_ENOMEM : ZB_OK);
        zb_comparison_free(c);
        CU_ASSERT_EQUAL_FATAL(zb_mem_live(), before);
        if (!failed) {
            break;
        }
    }
    rig_release(&r);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(run_as_planned_has_no_delay),
        ZBT_CASE(delays_of_two_stages_follow_by_hand),
        ZBT_CASE(latency_of_the_plan_is_not_a_late_input),
        ZBT_CASE(causes_add_up_whatever_the_times),
        ZBT_CASE(times_of_another_schedule_are_refused),
        ZBT_CASE(failing_allocation_unwinds),
    };

    return zbt_run("compare", cases, ZB_COUNT_OF(cases));
}
