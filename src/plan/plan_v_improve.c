/* SPDX-License-Identifier: MIT
 *
 * The step of the search for V schedules that improves orders: many short
 * rounds of local search from different starts where the instance is small
 * enough for that, then longer ones from the best.
 */
#include "config.h"
#include "plan/plan_v_search.h"

#include <math.h>

/* Temperatures to begin with, in units of a node's mean cost: hot ones get out
 * of valleys, cold ones to the bottom. */
static const double heats[] = {0.1, 0.3, 3, 1, 0.1, 10};
#define COLD 0.01

/* Moves per node of a long round: fewer make it begin colder. */
#define ENOUGH 10000

/* Short rounds: their moves per node, what they take from the heat, their share
 * of the moves, how many there may be. */
#define SHORT 300
#define SHORT_HEAT 0.1
#define SHORT_SHARE 0.5
enum { MIN_SHORT = 40, MAX_SHORT = 1000 };

/* Long rounds: first one for each order of the pool. */
#define FIRST_SHARE 0.25
enum { MIN_LONG = 2, MAX_LONG = 64 };

/* A round from an order. */
static void anneal(struct zb_v_search *x, const uint8_t *from, double hot,
                   int64_t moves)
{
    double unit = x->v.work / ZB_V_N_TYPES, value;
    struct zb_v_heat heat = {.hot = hot * unit, .cold = COLD * unit};

    if (!(unit > 0) || isinf(zb_v_local_load(x->local, from))) {
        return;
    }
    x->budget->moves -= (int64_t)zb_v_order_size(&x->v);
    value = zb_v_local_anneal(x->local, &heat, moves, &x->random, x->budget,
                              x->scratch);
    zb_v_offer(x, value, x->scratch);
    /* The pool has one order of a value; others may stretch better. */
    if (x->many != NULL && value <= x->pool.value[0]) {
        zb_v_stretch_for_many(x, x->scratch);
    }
}

static double heat_of(int round)
{
    return heats[(size_t)round % ZB_COUNT_OF(heats)];
}

/* Rounds of a size that fit into the moves. */
static int count_rounds(const struct zb_v_search *x, int64_t moves,
                        double moves_per_node, int most)
{
    double size = (double)zb_v_order_size(&x->v);

    return (int)fmin(most, (double)moves / (moves_per_node * size));
}

static void short_rounds(struct zb_v_search *x)
{
    int64_t moves = zb_v_share(x, SHORT_SHARE);
    int n = count_rounds(x, moves, SHORT, MAX_SHORT);

    for (int i = 0; i < n && n >= MIN_SHORT && !zb_v_is_over(x); i++) {
        struct zb_v_rule rule = zb_v_random_rule(x);

        if (!isinf(zb_v_list(x->lister, &rule, x->budget, x->scratch))) {
            anneal(x, x->scratch, SHORT_HEAT * heat_of(i), moves / n);
        }
    }
}

/* What part of the heat the moves of a round are enough for. */
static double warmth(const struct zb_v_search *x, int64_t moves)
{
    double size = (double)zb_v_order_size(&x->v);

    return fmin(1, (double)moves / (ENOUGH * size));
}

static void long_rounds(struct zb_v_search *x)
{
    int64_t moves = zb_v_share(x, FIRST_SHARE / ZB_V_POOL);
    int n;

    for (int i = x->pool.n - 1; i >= 0 && !zb_v_is_over(x); i--) {
        anneal(x, x->pool.order[i], heat_of(0) * warmth(x, moves), moves);
    }
    n = count_rounds(x, x->budget->moves, ENOUGH, MAX_LONG);
    n = n < MIN_LONG ? MIN_LONG : n;
    moves = x->budget->moves / n;
    for (int i = 0; i < n && !zb_v_is_over(x); i++) {
        int from = i % 3 == 2 ? zb_v_below(&x->random, x->pool.n) : 0;

        anneal(x, x->pool.order[from], heat_of(i) * warmth(x, moves), moves);
    }
}

void zb_v_improve(struct zb_v_search *x)
{
    if (zb_v_is_over(x)) {
        return;
    }
    short_rounds(x);
    if (x->pool.n > 0) {
        long_rounds(x);
    }
}
