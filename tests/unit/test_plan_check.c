/* SPDX-License-Identifier: MIT
 *
 * The checker against a slow second opinion on mutated schedules, and its
 * messages on hand-broken ones.
 */
#include "config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "plan_oracle.h"
#include "zb/mem.h"
#include "zb/plan.h"
#include "plan_quick.h"
#include "zbt.h"

#define MAX_STAGES 5
#define MAX_MICRO 8

/* ---- mutations ---- */

static struct zb_schedule *make(const char *planner, int p, int m, double c,
                                double factor)
{
    enum zb_placement placement = ZB_PLACE_V;
    struct zb_plan_input in;
    struct zb_schedule *s = NULL;
    int n_chunk = 0;

    ZBT_OK(zb_planner_shape(planner, &placement, &n_chunk));
    ZBT_OK(zb_plan_input_init(&in, p, m, placement, n_chunk));
    in.c_cost = c;
    for (int i = 0; i < p && zb_planner_is_elastic(planner); i++) {
        in.max_mem[i] = factor * 2 * p * in.f_mem[0];
    }
    ZBT_OK(zb_plan_make(planner, &in, &plan_quick, &s));
    zb_plan_input_release(&in);
    return s;
}

/* All planners in turn. */
static const char *any_planner(int k)
{
    int n = 0;

    while (zb_planner_name(n) != NULL) {
        n++;
    }
    return zb_planner_name(k % n);
}

static void swap_nodes(struct zb_node *a, struct zb_node *b)
{
    struct zb_node kept = *a;

    *a = *b;
    *b = kept;
}

/* Move node i of a stage to place j. */
static void shift_node(struct zb_stage_nodes *st, size_t i, size_t j)
{
    struct zb_node kept = st->node[i];

    if (i < j) {
        memmove(st->node + i, st->node + i + 1, (j - i) * sizeof(kept));
    } else {
        memmove(st->node + j + 1, st->node + j, (i - j) * sizeof(kept));
    }
    st->node[j] = kept;
}

static void change_node(struct zbt_rng *r, const struct zb_schedule *s,
                        struct zb_node *node)
{
    switch (zbt_rand_in(r, 0, 2)) {
    case 0:
        node->mb = (int)zbt_rand_in(r, -1, s->n_micro);
        break;
    case 1:
        node->chunk = (int)zbt_rand_in(r, -1, s->n_chunk);
        break;
    default:
        node->type = (enum zb_node_type)zbt_rand_in(r, 0, ZB_N_NODE_TYPES - 1);
        break;
    }
}

static void mutate(struct zbt_rng *r, struct zb_schedule *s)
{
    struct zb_stage_nodes *st = &s->stages[zbt_rand_in(r, 0, s->n_stage - 1)];
    size_t i, j;

    if (st->n < 2) {
        return;
    }
    i = (size_t)zbt_rand_in(r, 0, (long)st->n - 2);
    j = (size_t)zbt_rand_in(r, 0, (long)st->n - 1);
    switch (zbt_rand_in(r, 0, 7)) {
    case 0:
    case 1:
    case 2:
        swap_nodes(&st->node[i], &st->node[i + 1]);
        break;
    case 3:
    case 4:
        j = i + 3 < st->n && j % 2 ? i + 3 : j;
        shift_node(st, i, j);
        break;
    case 5:
        shift_node(st, i, st->n - 1); /* delete */
        st->n--;
        break;
    case 6:
        st->node[j] = st->node[i];
        break;
    default:
        change_node(r, s, &st->node[i]);
        break;
    }
}

static void check_against_second_opinion(struct zbt_rng *r, const char *planner,
                                         int n_of[][2])
{
    int p = (int)zbt_rand_in(r, 1, MAX_STAGES);
    int m = (int)zbt_rand_in(r, 1, MAX_MICRO);
    struct zb_schedule *s = make(planner, p, m, (double)zbt_rand_in(r, 0, 2),
                                 zbt_rand_in(r, 0, 1) || p == 1 ? 1 : 0.6);
    int n = (int)zbt_rand_in(r, 0, 3), is_legal;
    enum zb_status st;

    while (n-- > 0) {
        mutate(r, s);
    }
    st = zb_schedule_check(s, NULL);
    is_legal = plan_oracle_is_legal(s);
    CU_ASSERT_EQUAL(st == ZB_OK, is_legal);
    if ((st == ZB_OK) != is_legal) {
        printf("\n  %s p %d m %d: %s\n", planner, p, m, zb_error_text());
    }
    if (st != ZB_OK) {
        CU_ASSERT_EQUAL(st, ZB_ECONFIG);
        CU_ASSERT_EQUAL(strncmp(zb_error_text(), "stage ", 6), 0);
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), " mb "));
    }
    n_of[s->placement][is_legal]++;
    zb_schedule_free(s);
}

static void check_of_mutated_schedules_agrees_with_second_opinion(void)
{
    struct zbt_rng r = {4711};
    int n = zbt_is_long() ? 200000 : 20000;
    int n_of[ZB_PLACE_LINEAR + 1][2] = {{0}};

    for (int k = 0; k < n; k++) {
        check_against_second_opinion(&r, any_planner(k), n_of);
    }
    /* Both verdicts must have been tried, on every placement. */
    for (int i = 0; i <= ZB_PLACE_LINEAR; i++) {
        int n_here = n_of[i][0] + n_of[i][1];

        CU_ASSERT(n_here > n / 20);
        CU_ASSERT(n_of[i][0] > n_here / 5 && n_of[i][1] > n_here / 5);
        printf("\n  placement %d: %d legal, %d illegal", i, n_of[i][1],
               n_of[i][0]);
    }
    printf("\n");
}

/* ---- messages ---- */

/* The place of a node, by type, chunk and microbatch. */
static size_t find(const struct zb_schedule *s, int stage,
                   enum zb_node_type type, int chunk, int mb)
{
    for (size_t j = 0; j < s->stages[stage].n; j++) {
        const struct zb_node *node = &s->stages[stage].node[j];

        if (node->type == type && node->chunk == chunk && node->mb == mb) {
            return j;
        }
    }
    CU_FAIL_FATAL("no such node");
    return 0;
}

static void expect_refusal(const struct zb_schedule *s, const char *part)
{
    CU_ASSERT_EQUAL(zb_schedule_check(s, NULL), ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), part));
    if (strstr(zb_error_text(), part) == NULL) {
        printf("\n  is: %s\n  should name: %s\n", zb_error_text(), part);
    }
}

static void check_without_one_node_names_it(void)
{
    struct zb_schedule *s = make("zbv", 3, 4, 0, 1);
    struct zb_stage_nodes *st = &s->stages[1];

    shift_node(st, find(s, 1, ZB_NODE_W, 1, 3), st->n - 1);
    st->n--;
    expect_refusal(s, "stage 1: W chunk 1 mb 3 is missing");
    zb_schedule_free(s);
}

static void check_of_w_before_b_names_w(void)
{
    struct zb_schedule *s = make("zbv", 3, 4, 0, 1);

    shift_node(&s->stages[2], find(s, 2, ZB_NODE_W, 0, 0),
               find(s, 2, ZB_NODE_B, 0, 0));
    expect_refusal(s, "(W chunk 0 mb 0) comes before its B");
    zb_schedule_free(s);
}

static void check_of_w_out_of_order_names_microbatch(void)
{
    struct zb_schedule *s = make("gpipe", 2, 4, 0, 1);
    struct zb_stage_nodes *st = &s->stages[1];

    swap_nodes(&st->node[find(s, 1, ZB_NODE_BW, 0, 2)],
               &st->node[find(s, 1, ZB_NODE_BW, 0, 1)]);
    expect_refusal(s, "(BW chunk 0 mb 2) is out of order: mb 1");
    zb_schedule_free(s);
}

static void check_of_crossed_messages_names_both_ends(void)
{
    struct zb_schedule *s = make("zbv", 2, 4, 0, 1);
    struct zb_stage_nodes *st = &s->stages[0];

    /* Send one more left-leg output before taking what the other sends. */
    shift_node(st, find(s, 0, ZB_NODE_RECV_FORWARD, 1, 0),
               find(s, 0, ZB_NODE_F, 1, 0) - 1);
    shift_node(st, find(s, 0, ZB_NODE_SEND_FORWARD, 0, 3), st->n - 1);
    expect_refusal(s, "waits for ever");
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "stage 0, node"));
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "stage 1, node"));
    zb_schedule_free(s);
}

static void check_over_memory_names_node_and_limit(void)
{
    struct zb_schedule *s = make("zbv", 4, 8, 0, 1);
    struct zb_plan_input in;

    ZBT_OK(zb_plan_input_init(&in, 4, 8, ZB_PLACE_V, 2));
    for (int i = 0; i < 4; i++) {
        in.max_mem[i] = 8 * 303104;
    }
    ZBT_OK(zb_schedule_check(s, &in));
    in.max_mem[2] = 8 * 303104 - 1;
    CU_ASSERT_EQUAL(zb_schedule_check(s, &in), ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "stage 2, node"));
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "the limit is 2424831"));
    zb_plan_input_release(&in);
    zb_schedule_free(s);
}

/* Validation messages wait in a slot: an order that rendezvous would refuse. */
static void check_lets_validation_messages_wait_in_slot(void)
{
    struct zb_schedule *s = make("get_v_schedule", 2, 4, 0, 1);
    struct zb_stage_nodes *st = &s->stages[0];

    shift_node(st, find(s, 0, ZB_NODE_RECV_POST_VALIDATION, 0, 0), st->n - 1);
    ZBT_OK(zb_schedule_check(s, NULL));
    /* But what was never sent does not arrive. */
    st = &s->stages[1];
    shift_node(st, find(s, 1, ZB_NODE_SEND_POST_VALIDATION, 0, 0), st->n - 1);
    st->n--;
    expect_refusal(s, "stage 0: RECV_POST_VALIDATION chunk 0 mb 0");
    zb_schedule_free(s);
}

static void check_of_forward_only_needs_its_flag(void)
{
    struct zb_plan_input in;
    struct zb_schedule *s = NULL;

    ZBT_OK(zb_plan_input_init(&in, 2, 3, ZB_PLACE_V, 2));
    ZBT_OK(zb_plan_forward_only(&in, &s));
    ZBT_OK(zb_schedule_check(s, &in));
    s->is_forward_only = 0;
    expect_refusal(s, "B chunk 0 mb 0 is missing");
    zb_schedule_free(s);
    zb_plan_input_release(&in);
}

static void simulate_of_impossible_order_names_first_waiting_node(void)
{
    struct zb_schedule *s = make("1f1b", 2, 2, 0, 1);
    struct zb_stage_nodes *st = &s->stages[1];
    struct zb_plan_input in;
    size_t n = 0;

    /* Stage 0 wants its gradient of mb 0 before it sends mb 1; stage 1 wants
     * mb 1 before it makes that gradient. */
    for (int i = 0; i < 2; i++) {
        st = &s->stages[i];
        n = 0;
        for (int mb = 0; mb < 2; mb++) {
            st->node[n++] = (struct zb_node){.type = ZB_NODE_F, .mb = mb};
        }
        for (int mb = 0; mb < 2; mb++) {
            st->node[n++] = (struct zb_node){.type = ZB_NODE_BW, .mb = mb};
        }
        st->n = n;
    }
    swap_nodes(&s->stages[0].node[1], &s->stages[0].node[2]);
    ZBT_OK(zb_plan_input_init(&in, 2, 2, ZB_PLACE_LINEAR, 1));
    CU_ASSERT_EQUAL(zb_schedule_simulate(s, &in), ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(
        zb_error_text(), "stage 0, node 1 (BW chunk 0 mb 0) waits for ever"));
    zb_plan_input_release(&in);
    zb_schedule_free(s);
}

static void add_comm_to_any_legal_order_passes_check(void)
{
    struct zbt_rng r = {99};
    int n_legal = 0, n = zbt_is_long() ? 50000 : 5000;

    for (int k = 0; k < n; k++) {
        int p = (int)zbt_rand_in(&r, 1, 5), m = (int)zbt_rand_in(&r, 1, 6);
        const char *planner = any_planner(k);
        struct zb_schedule *s = make(planner, p, m, 0, 1);
        int n_mutations = (int)zbt_rand_in(&r, 0, 6);

        for (int i = 0; i < p; i++) {
            struct zb_stage_nodes *st = &s->stages[i];
            size_t kept = 0;

            for (size_t j = 0; j < st->n; j++) {
                if (zb_node_is_compute(st->node[j].type)) {
                    st->node[kept++] = st->node[j];
                }
            }
            st->n = kept;
            for (int x = 0; x < n_mutations && kept > 1; x++) {
                size_t j = (size_t)zbt_rand_in(&r, 0, (long)kept - 2);

                swap_nodes(&st->node[j], &st->node[j + 1]);
            }
        }
        if (zb_schedule_add_comm(s, NULL) == ZB_OK) {
            n_legal++;
            ZBT_OK(zb_schedule_check(s, NULL));
            CU_ASSERT(plan_oracle_is_legal(s));
            CU_ASSERT_EQUAL(zb_schedule_add_comm(s, NULL),
                            p == 1 ? ZB_OK : ZB_EINVAL);
        }
        zb_schedule_free(s);
    }
    CU_ASSERT(n_legal > n / 10 && n_legal < n);
}

static void check_with_failing_allocation_leaves_nothing(void)
{
    struct zb_schedule *s = make("zbv", 3, 4, 0, 1);

    for (uint64_t k = 1;; k++) {
        int64_t before = zb_mem_live();
        enum zb_status st;
        int failed;

        zb_mem_fail_at(k);
        st = zb_schedule_check(s, NULL);
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        CU_ASSERT_EQUAL(zb_mem_live(), before);
        CU_ASSERT_EQUAL(st, failed ? ZB_ENOMEM : ZB_OK);
        if (!failed) {
            break;
        }
    }
    zb_schedule_free(s);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(check_of_mutated_schedules_agrees_with_second_opinion),
        ZBT_CASE(check_without_one_node_names_it),
        ZBT_CASE(check_of_w_before_b_names_w),
        ZBT_CASE(check_of_w_out_of_order_names_microbatch),
        ZBT_CASE(check_of_crossed_messages_names_both_ends),
        ZBT_CASE(check_over_memory_names_node_and_limit),
        ZBT_CASE(check_lets_validation_messages_wait_in_slot),
        ZBT_CASE(check_of_forward_only_needs_its_flag),
        ZBT_CASE(simulate_of_impossible_order_names_first_waiting_node),
        ZBT_CASE(add_comm_to_any_legal_order_passes_check),
        ZBT_CASE(check_with_failing_allocation_leaves_nothing),
    };

    return zbt_run("plan_check", cases, ZB_COUNT_OF(cases));
}
