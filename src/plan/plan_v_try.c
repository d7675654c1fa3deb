/* SPDX-License-Identifier: MIT
 *
 * Steps of the search for V schedules that make orders from scratch: rules,
 * patterns and building blocks.
 */
#include "config.h"
#include "plan/plan_v_search.h"

#include <math.h>

/* ---- one try of each kind ------------------------------------------------ */

double zb_v_try_scratch(struct zb_v_search *x)
{
    double value = zb_v_local_load(x->local, x->scratch);

    /* An order without room or end is found out early. */
    x->budget->moves -=
        isinf(value) ? x->v.len : (int64_t)zb_v_order_size(&x->v);
    zb_v_offer(x, value, x->scratch);
    return value;
}

double zb_v_try_rule(struct zb_v_search *x, const struct zb_v_rule *r)
{
    double value = zb_v_list(x->lister, r, x->budget, x->scratch);

    zb_v_offer(x, value, x->scratch);
    if (value < x->hints.rule_value) {
        x->hints.rule_value = value;
        x->hints.rule = *r;
    }
    return value;
}

static double try_pattern(struct zb_v_search *x, const struct zb_v_rule *r)
{
    zb_v_pattern(&x->v, r, &x->cycle);
    zb_v_repeat(&x->v, &x->cycle, x->scratch);
    return zb_v_try_scratch(x);
}

static void note_block(struct zb_v_hints *hints, const struct zb_v_block *b,
                       double rank)
{
    int at = hints->n_blocks;

    if (at < ZB_V_HINTS) {
        hints->n_blocks++;
    } else {
        at--; /* in place of the worst */
        if (rank >= hints->rank[at]) {
            return;
        }
    }
    for (; at > 0 && hints->rank[at - 1] > rank; at--) {
        hints->rank[at] = hints->rank[at - 1];
        hints->block[at] = hints->block[at - 1];
    }
    hints->rank[at] = rank;
    hints->block[at] = *b;
}

void zb_v_try_block(struct zb_v_search *x, const struct zb_v_block *b)
{
    double value;

    x->budget->moves--;
    if (!zb_v_block(&x->v, b, &x->cycle)) {
        return;
    }
    zb_v_repeat(&x->v, &x->cycle, x->scratch);
    value = zb_v_try_scratch(x);
    if (!isinf(value)) {
        note_block(&x->hints, b,
                   value + (x->hints.n_wanted - x->v.m) *
                               zb_v_local_period(x->local));
    }
}

/* ---- rules and patterns -------------------------------------------------- */

#define FREE 1e9 /* F of the left leg as early as memory allows */

/* Found by long searches over many instances; the last three are for half of
 * 1F1B's memory (two) and for a long last chunk in three quarters of it. */
static const struct zb_v_rule known[] = {
    {{1, 1, 1, 1}, {0, 0, 0}, 1, 0, FREE, {0.5, 0.5}},
    {{1.76, 1.33, 2.34, 3.77}, {0.63, 0.51, -0.08}, 0.3, 0.8, FREE, {1, 1}},
    {{1.14, 3.34, 2.61, 1.13}, {-0.43, -0.41, 0.63}, 0.35, 0.45, 6.25, {1, 1}},
    {{4.0, 1.45, 1.04, 1.0}, {0, -0.18, 0.53}, 0.98, 0, 4.2, {1, 1}},
    {{0.79, 1.04, 1.04, 1.36}, {-0.28, 0.26, -0.11}, 0.77, 0.36, 2.53, {1, 1}},
    {{1, 0.91, 1.07, 1.12}, {-0.43, 0.45, 0.7}, 0.7, 0.35, 2.6, {1, 1}},
    {{4.22, 0.005, 3.39, 0.005}, {-0.97, 0.94, 1.28}, 0.083, 0.79, 16.7, {1, 1}},
};

void zb_v_try_known_rules(struct zb_v_search *x)
{
    for (size_t i = 0; i < ZB_COUNT_OF(known); i++) {
        if (zb_v_is_at_bound(x) || (i > 1 && zb_v_is_spent(x->budget))) {
            return;
        }
        zb_v_try_rule(x, &known[i]);
    }
}

static double between(struct zb_v_search *x, double lo, double hi)
{
    return lo + (hi - lo) * zb_v_uniform(&x->random);
}

struct zb_v_rule zb_v_random_rule(struct zb_v_search *x)
{
    struct zb_v_rule r;

    for (int i = 0; i < 4; i++) {
        r.stretch[i] = exp(between(x, -0.2, 1.4));
    }
    for (int i = 0; i < 3; i++) {
        r.gap[i] = between(x, -0.75, 0.75);
    }
    r.w_delay[0] = between(x, 0, 1.5);
    r.w_delay[1] = between(x, 0, 1.5);
    r.w_gap = between(x, 0, 1.2);
    r.patience = zb_v_below(&x->random, 2) ? 0 : between(x, 0, 1);
    r.ahead =
        zb_v_below(&x->random, 2) ? FREE : between(x, 0, (double)x->v.p);
    return r;
}

static void change_rule(struct zb_v_search *x, struct zb_v_rule *r)
{
    int k = zb_v_below(&x->random, 12);
    double d = between(x, -0.5, 0.5);

    if (k < 4) {
        r->stretch[k] *= exp(0.6 * d);
    } else if (k < 7) {
        r->gap[k - 4] += 0.5 * d;
    } else if (k < 9) {
        r->w_delay[k - 7] = fabs(r->w_delay[k - 7] + 0.6 * d);
    } else if (k == 9) {
        r->w_gap = fabs(r->w_gap + 0.6 * d);
    } else if (k == 10) {
        r->patience = fmax(0, r->patience + 0.6 * d);
    } else if (r->ahead >= FREE) {
        r->ahead = between(x, 0, (double)x->v.p);
    } else {
        r->ahead = d > 0.3 ? FREE : fmax(0, r->ahead + 4 * d);
    }
}

typedef double try_fn(struct zb_v_search *x, const struct zb_v_rule *r);

/* Random rules for a part of the moves, then steps from the best. */
static void climb(struct zb_v_search *x, try_fn *try, int64_t moves,
                  double random_part)
{
    struct zb_v_rule best = x->hints.rule;
    double value = INFINITY;
    int64_t stop = x->budget->moves - moves;
    int64_t steps = stop + (int64_t)((1 - random_part) * (double)moves);

    while (x->budget->moves > stop && !zb_v_is_over(x)) {
        struct zb_v_rule r = best;
        double got;

        if (x->budget->moves > steps) {
            r = zb_v_random_rule(x);
        } else {
            for (int n = 1 + zb_v_below(&x->random, 3); n > 0; n--) {
                change_rule(x, &r);
            }
        }
        got = try(x, &r);
        if (got <= value) {
            value = got;
            best = r;
        }
    }
}

void zb_v_try_rules(struct zb_v_search *x, int64_t moves, double random_part)
{
    climb(x, zb_v_try_rule, moves, random_part);
}

void zb_v_try_patterns(struct zb_v_search *x, int64_t moves, double random_part)
{
    climb(x, try_pattern, moves, random_part);
}

/* ---- building blocks ----------------------------------------------------- */

/* Larger ones hold more memory than 1F1B. */
enum { MAX_SLOPE = 5, MAX_GAP = 6 };

/* The block with a number; 0 behind the last. */
static int block_by_number(int i, struct zb_v_block *b)
{
    for (int k = 0; k < 4; k++) {
        b->slope[k] = 1 + i % MAX_SLOPE;
        i /= MAX_SLOPE;
    }
    for (int k = 0; k < 3; k++) {
        b->gap[k] = 1 + i % MAX_GAP;
        i /= MAX_GAP;
    }
    return i == 0;
}

void zb_v_try_blocks(struct zb_v_search *x, int64_t moves)
{
    int64_t stop = x->budget->moves - moves;
    struct zb_v_block b;

    for (int i = 0; block_by_number(i, &b); i++) {
        if (x->budget->moves <= stop || zb_v_is_over(x)) {
            break;
        }
        zb_v_try_block(x, &b);
    }
}
