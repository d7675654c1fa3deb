/* SPDX-License-Identifier: MIT
 *
 * The search for V schedules: which steps, and how the effort is shared out.
 *
 * Many microbatches are planned by way of few: what is found for few is tried
 * for many, rules and blocks as they are, orders by repeating a part of them.
 */
#include "config.h"
#include "plan/plan_v_search.h"

#include <math.h>
#include <string.h>

#include "zb/mem.h"

/* Shares of what is left of the budget when a step begins. */
#define FEW_SHARE 0.5
#define STRETCH_SHARE 0.1
#define BLOCK_SHARE 0.15
#define RULE_SHARE 0.1
#define PATTERN_SHARE 0.1

size_t zb_v_order_size(const struct zb_v *v)
{
    return (size_t)v->p * (size_t)v->len;
}

void zb_v_offer(struct zb_v_search *x, double value, const uint8_t *order)
{
    struct zb_v_pool *pool = &x->pool;
    uint8_t *room;
    int at = pool->n;

    for (int i = 0; i < pool->n; i++) {
        if (value == pool->value[i]) {
            return;
        }
    }
    if (isinf(value) ||
        (pool->n == ZB_V_POOL && value > pool->value[ZB_V_POOL - 1])) {
        return;
    }
    if (pool->n < ZB_V_POOL) {
        pool->n++;
    } else {
        at = ZB_V_POOL - 1;
    }
    room = pool->order[at];
    for (; at > 0 && pool->value[at - 1] > value; at--) {
        pool->value[at] = pool->value[at - 1];
        pool->order[at] = pool->order[at - 1];
    }
    pool->value[at] = value;
    pool->order[at] = room;
    memcpy(room, order, zb_v_order_size(&x->v));
}

int zb_v_is_at_bound(const struct zb_v_search *x)
{
    return x->pool.n > 0 &&
           x->pool.value[0] <= x->v.bound * (1 + ZB_V_ROUNDING);
}

int zb_v_is_over(const struct zb_v_search *x)
{
    return zb_v_is_at_bound(x) || zb_v_is_spent(x->budget);
}

int64_t zb_v_share(const struct zb_v_search *x, double part)
{
    return (int64_t)(part * (double)x->budget->moves);
}

/* ---- one search ---------------------------------------------------------- */

static enum zb_status search_init(struct zb_v_search *x)
{
    size_t n;

    x->hints.rule_value = INFINITY;
    ZB_TRY(zb_v_init(&x->v, x->in, x->objective));
    n = zb_v_order_size(&x->v);
    ZB_TRY(zb_v_lister_new(&x->v, &x->lister));
    ZB_TRY(zb_v_local_new(&x->v, &x->local));
    x->scratch = zb_alloc(n);
    x->cycle.time =
        zb_alloc_array((size_t)x->v.p, sizeof(*x->cycle.time));
    x->cut = zb_alloc_array((size_t)x->v.p, sizeof(*x->cut));
    if (x->scratch == NULL || x->cycle.time == NULL || x->cut == NULL) {
        return ZB_ENOMEM;
    }
    for (int i = 0; i < ZB_V_POOL; i++) {
        x->pool.order[i] = zb_alloc(n);
        if (x->pool.order[i] == NULL) {
            return ZB_ENOMEM;
        }
    }
    return ZB_OK;
}

static void search_release(struct zb_v_search *x)
{
    zb_v_lister_free(x->lister);
    zb_v_local_free(x->local);
    zb_free(x->scratch);
    zb_free(x->cycle.time);
    zb_free(x->cut);
    for (int i = 0; i < ZB_V_POOL; i++) {
        zb_free(x->pool.order[i]);
    }
    zb_v_release(&x->v);
}

/* Without help: blocks, rules and patterns, a part of them at random. */
static void search_from_scratch(struct zb_v_search *x)
{
    zb_v_try_known_rules(x);
    zb_v_try_blocks(x, zb_v_share(x, BLOCK_SHARE));
    zb_v_try_rules(x, zb_v_share(x, RULE_SHARE), 0.5);
    zb_v_try_patterns(x, zb_v_share(x, PATTERN_SHARE), 0.5);
    zb_v_improve(x);
}

/* ---- from few microbatches to many --------------------------------------- */

/* How many microbatches stand for many; 0: not fewer than there are. What the
 * memory holds may all start before the first B, and a steady state comes only
 * behind that. What is missing to all of them must be even, since good cycles
 * often are of two microbatches. */
static int few_for(const struct zb_v *v)
{
    double held = 0;
    int n;

    for (int s = 0; s < v->p; s++) {
        held = fmax(held, v->limit[s] / v->mem[s][ZB_V_F0]);
    }
    n = (int)fmin(held, v->m) + v->p / 2 + 4;
    n += (v->m - n) % 2 != 0;
    return v->m >= 1.15 * n ? n : 0;
}

/* Where to cut an order, in parts of its length, and how many microbatches to
 * repeat. */
#define FIRST_CUT 0.2
#define LAST_CUT 0.8
enum { N_CUTS = 24, MAX_EACH = 3 };

void zb_v_stretch_for_many(struct zb_v_search *x, const uint8_t *order)
{
    struct zb_v_search *many = x->many;
    double end = zb_v_local_load(x->local, order);
    int64_t before = many->budget->moves;

    for (int i = 0; i < N_CUTS * MAX_EACH; i++) {
        double part = (double)(i / MAX_EACH) / N_CUTS;
        int each = 1 + i % MAX_EACH;

        if (before - many->budget->moves >= x->stretch_moves ||
            zb_v_is_over(many)) {
            break;
        }
        part = FIRST_CUT + (LAST_CUT - FIRST_CUT) * part;
        zb_v_local_cut(x->local, part * end, x->cut);
        if (zb_v_stretch(&x->v, order, x->cut, each, &many->v,
                         many->scratch)) {
            zb_v_try_scratch(many);
        }
    }
    x->stretch_moves -= before - many->budget->moves;
}

static void use_few(struct zb_v_search *x, struct zb_v_search *few)
{
    for (int i = 0; i < few->hints.n_blocks && !zb_v_is_over(x); i++) {
        zb_v_try_block(x, &few->hints.block[i]);
    }
    if (!isinf(few->hints.rule_value)) {
        zb_v_try_rule(x, &few->hints.rule);
    }
    /* Where annealing began it has stretched what it found. */
    if (zb_v_is_at_bound(few)) {
        zb_v_stretch_for_many(few, few->pool.order[0]);
    }
}

static enum zb_status search_few(struct zb_v_search *x)
{
    struct zb_plan_input in = *x->in;
    struct zb_v_budget budget = *x->budget;
    struct zb_v_search few = {.in = &in,
                              .objective = x->objective,
                              .budget = &budget,
                              .random = zb_v_random(&x->random),
                              .hints = {.n_wanted = x->v.m},
                              .many = x};
    enum zb_status st;

    in.n_micro = few_for(&x->v);
    budget.moves = zb_v_share(x, FEW_SHARE);
    x->budget->moves -= budget.moves;
    few.stretch_moves = zb_v_share(x, STRETCH_SHARE);
    st = search_init(&few);
    if (st == ZB_OK) {
        search_from_scratch(&few);
        x->budget->moves += budget.moves;
        use_few(x, &few);
    }
    search_release(&few);
    return st;
}

static enum zb_status search_by_way_of_few(struct zb_v_search *x)
{
    zb_v_try_known_rules(x);
    if (zb_v_is_over(x)) {
        return ZB_OK;
    }
    ZB_TRY(search_few(x));
    zb_v_try_rules(x, zb_v_share(x, RULE_SHARE), 0);
    zb_v_improve(x);
    return ZB_OK;
}

/* ---- all together -------------------------------------------------------- */

static enum zb_status search(struct zb_v_search *x)
{
    if (few_for(&x->v) > 0) {
        return search_by_way_of_few(x);
    }
    search_from_scratch(x);
    return ZB_OK;
}

static void offer_seeds(struct zb_v_search *x, const uint8_t *seeds, int n)
{
    size_t size = zb_v_order_size(&x->v);

    for (int i = 0; i < n; i++) {
        memcpy(x->scratch, &seeds[(size_t)i * size], size);
        zb_v_try_scratch(x);
    }
}

enum zb_status zb_v_search(const struct zb_plan_input *in,
                           const struct zb_plan_opts *opts,
                           const uint8_t *seeds, int n_seeds,
                           struct zb_v_budget *b, uint8_t *order)
{
    struct zb_v_search x = {
        .in = in,
        .objective = opts->objective,
        .budget = b,
        .random = (opts->seed + 1) * UINT64_C(0x9e3779b97f4a7c15) | 1,
        .hints = {.n_wanted = in->n_micro},
    };
    enum zb_status st;

    st = search_init(&x);
    if (st == ZB_OK) {
        offer_seeds(&x, seeds, n_seeds);
        st = search(&x);
    }
    if (st == ZB_OK && x.pool.n == 0) {
        st = zb_fail(ZB_EINFEASIBLE, "no schedule found");
    } else if (st == ZB_OK) {
        memcpy(order, x.pool.order[0], zb_v_order_size(&x.v));
    }
    search_release(&x);
    return st;
}
