/* SPDX-License-Identifier: MIT
 *
 * The planner zbv: a search that begins with what the other V planners give.
 */
#include "config.h"
#include "plan/plan_int.h"

#include <math.h>
#include <string.h>

#include "plan/plan_v.h"
#include "zb/mem.h"
#include "zb/thread.h"

/* About 2 s of one core, where a move of an order of few nodes takes half the
 * time; and moves per ms. */
#define DEFAULT_BUDGET INT64_C(50000000)
#define DEFAULT_BUDGET_SMALL INT64_C(100000000)
#define MOVES_PER_MS 25000
enum { SMALL_NODES = 300 };

/* Orders that the result must not be worse than, cheap ones first. */
static enum zb_status (*const seed_makers[])(const struct zb_plan_input *in,
                                             struct zb_schedule *s) = {
    zb_plan_order_get_v_schedule,
    zb_plan_order_pytorch_zbv,
    zb_plan_order_v_half,
    zb_plan_order_v_min,
};
enum { N_SEEDS = ZB_COUNT_OF(seed_makers), N_CHEAP_SEEDS = 2 };

/* What the other seeds may take. */
#define SEED_MS 50
/* Beyond this a seed costs seconds. */
#define MAX_SEED_NODES ((size_t)1 << 22)

/* ---- orders and schedules ------------------------------------------------ */

static uint8_t type_of(const struct zb_node *node)
{
    static const uint8_t first[] = {
        [ZB_NODE_F] = ZB_V_F0, [ZB_NODE_B] = ZB_V_B0, [ZB_NODE_W] = ZB_V_W0};

    return (uint8_t)(first[node->type] + node->chunk);
}

static void order_from_schedule(const struct zb_schedule *s, uint8_t *order)
{
    for (int i = 0; i < s->n_stage; i++) {
        for (size_t j = 0; j < s->stages[i].n; j++) {
            *order++ = type_of(&s->stages[i].node[j]);
        }
    }
}

static enum zb_status schedule_from_order(const uint8_t *order,
                                          struct zb_schedule *s)
{
    static const enum zb_node_type pass[] = {ZB_NODE_F, ZB_NODE_B, ZB_NODE_W};
    size_t len = ZB_V_N_TYPES * (size_t)s->n_micro;

    for (int i = 0; i < s->n_stage; i++) {
        int n[ZB_V_N_TYPES] = {0};

        ZB_TRY(zb_plan_stage_alloc(s, i, len));
        for (size_t j = 0; j < len; j++) {
            int t = *order++;

            s->stages[i].node[j] = (struct zb_node){
                .type = pass[t / 2], .chunk = t % 2, .mb = n[t]++};
        }
    }
    return ZB_OK;
}

/* ---- seeds --------------------------------------------------------------- */

/* The order of another planner; 0 in *is_made_out when it has none for this. */
static enum zb_status make_seed(const struct zb_plan_input *in, int i,
                                uint8_t *order, int *is_made_out)
{
    struct zb_schedule *s = NULL;
    enum zb_status st;

    ZB_TRY(zb_plan_schedule_new("seed", in->n_stage, in->n_micro, in->placement,
                                in->n_chunk, &s));
    st = seed_makers[i](in, s);
    *is_made_out = st == ZB_OK;
    if (st == ZB_OK) {
        order_from_schedule(s, order);
    }
    zb_schedule_free(s);
    return st == ZB_ENOMEM ? st : ZB_OK;
}

static enum zb_status make_seeds(const struct zb_plan_input *in,
                                 const struct zb_v_budget *b, uint8_t *orders,
                                 size_t size, int *n_out)
{
    int is_short = b->deadline_ns != 0 &&
                   b->deadline_ns - zb_now_ns() < (int64_t)(SEED_MS * 1e6);
    int n = b->moves > 0 && !is_short ? N_SEEDS : N_CHEAP_SEEDS;

    *n_out = 0;
    for (int i = 0; i < n && size <= MAX_SEED_NODES; i++) {
        int is_made = 0;

        ZB_TRY(make_seed(in, i, &orders[(size_t)*n_out * size], &is_made));
        *n_out += is_made;
    }
    return ZB_OK;
}

/* ---- planner ------------------------------------------------------------- */

/* W's that nothing but other W's follows may change places. Those of the right
 * leg come first, so that its gradients, complete then, can be reduced while
 * the left leg's are made. `order` is of one stage. */
static void part_last_weights(uint8_t *order, size_t len)
{
    size_t first = len, n_right = 0;

    while (first > 0 &&
           (order[first - 1] == ZB_V_W0 || order[first - 1] == ZB_V_W1)) {
        n_right += order[--first] == ZB_V_W1;
    }
    for (size_t i = first; i < len; i++) {
        order[i] = i < first + n_right ? ZB_V_W1 : ZB_V_W0;
    }
}

static int64_t default_budget(const struct zb_plan_input *in)
{
    int64_t nodes = (int64_t)ZB_V_N_TYPES * in->n_stage * in->n_micro;

    return nodes <= SMALL_NODES ? DEFAULT_BUDGET_SMALL : DEFAULT_BUDGET;
}

static struct zb_v_budget budget_of(const struct zb_plan_input *in,
                                    const struct zb_plan_opts *opts)
{
    struct zb_v_budget b = {
        .moves = opts->budget < 0 ? default_budget(in) : opts->budget};

    if (opts->time_limit_ms > 0) {
        b.deadline_ns = zb_now_ns() + (int64_t)(opts->time_limit_ms * 1e6);
        if (opts->budget < 0) {
            /* The steps of the search share what there is. */
            b.moves = (int64_t)fmin(1e15, opts->time_limit_ms * MOVES_PER_MS);
        }
    }
    return b;
}

/* `orders` has room for the seeds and the result. */
static enum zb_status plan(const struct zb_plan_input *in,
                           const struct zb_plan_opts *opts, uint8_t *orders,
                           size_t size, struct zb_schedule *s)
{
    struct zb_v_budget budget = budget_of(in, opts);
    uint8_t *result = &orders[N_SEEDS * size];
    int n_seeds;

    ZB_TRY(make_seeds(in, &budget, orders, size, &n_seeds));
    ZB_TRY(zb_v_search(in, opts, orders, n_seeds, &budget, result));
    for (int i = 0; i < in->n_stage; i++) {
        size_t len = size / (size_t)in->n_stage;

        part_last_weights(&result[(size_t)i * len], len);
    }
    return schedule_from_order(result, s);
}

enum zb_status zb_plan_zbv(const struct zb_plan_input *in,
                           const struct zb_plan_opts *opts,
                           struct zb_schedule *s)
{
    size_t size = ZB_V_N_TYPES * (size_t)in->n_micro * (size_t)in->n_stage;
    uint8_t *orders;
    enum zb_status st;

    ZB_TRY(zb_plan_check_room(in));
    orders = zb_alloc_array(N_SEEDS + 1, size);
    if (orders == NULL) {
        return ZB_ENOMEM;
    }
    st = plan(in, opts, orders, size, s);
    zb_free(orders);
    if (st == ZB_OK) {
        st = zb_schedule_add_comm(s, in);
    }
    return st;
}
