/* SPDX-License-Identifier: MIT
 *
 * The search for V schedules: what its steps share. A search has a pool of the
 * best orders it met; every step tries orders and offers them to the pool.
 */
#ifndef PLAN_V_SEARCH_H
#define PLAN_V_SEARCH_H

#include "plan/plan_v.h"

enum { ZB_V_POOL = 4, ZB_V_HINTS = 12 };

/* The best orders so far, best first, of different values. */
struct zb_v_pool {
    uint8_t *order[ZB_V_POOL];
    double value[ZB_V_POOL];
    int n;
};

/* What a search for few microbatches hands on to one for many. */
struct zb_v_hints {
    struct zb_v_rule rule; /* the best one */
    double rule_value;
    struct zb_v_block block[ZB_V_HINTS]; /* best first */
    double rank[ZB_V_HINTS]; /* the value to expect of n_wanted microbatches */
    int n_blocks;
    int n_wanted;
};

struct zb_v_search {
    const struct zb_plan_input *in;
    enum zb_plan_objective objective;
    struct zb_v v;
    struct zb_v_lister *lister;
    struct zb_v_local *local;
    struct zb_v_budget *budget;
    uint64_t random;
    uint8_t *scratch; /* an order */
    struct zb_v_cycle cycle;
    struct zb_v_pool pool;
    struct zb_v_hints hints;
    struct zb_v_search *many; /* what it is for; NULL: itself */
    int64_t stretch_moves;    /* of `many`, left for zb_v_stretch_for_many() */
    int *cut;                 /* [p] */
};

/* Bytes of an order. */
size_t zb_v_order_size(const struct zb_v *v);

/* Take an order into the pool unless its value is there already or too bad. */
void zb_v_offer(struct zb_v_search *x, double value, const uint8_t *order);

/* Whether the best order is as good as any can be; or that, or the budget is
 * used up. */
int zb_v_is_at_bound(const struct zb_v_search *x);
int zb_v_is_over(const struct zb_v_search *x);

/* A part of the moves that are left. */
int64_t zb_v_share(const struct zb_v_search *x, double part);

/* Of a search for few microbatches: offer to the one for many what an order
 * gives when pieces of it are repeated. The local search has the order loaded
 * then. */
void zb_v_stretch_for_many(struct zb_v_search *x, const uint8_t *order);

/* ---- steps: plan_v_try.c ------------------------------------------------- */

/* Value and offer what is in scratch, or what a rule or a block gives. */
double zb_v_try_scratch(struct zb_v_search *x);
double zb_v_try_rule(struct zb_v_search *x, const struct zb_v_rule *r);
void zb_v_try_block(struct zb_v_search *x, const struct zb_v_block *b);

/* The rules that are good for many instances; two of them even when there is
 * nothing to spend, but none when the bound is reached. */
void zb_v_try_known_rules(struct zb_v_search *x);
/* Every block that fits. */
void zb_v_try_blocks(struct zb_v_search *x, int64_t moves);
/* Rules, and strict patterns: at random for a part of the moves, then by steps
 * from the best. */
void zb_v_try_rules(struct zb_v_search *x, int64_t moves, double random_part);
void zb_v_try_patterns(struct zb_v_search *x, int64_t moves,
                       double random_part);
struct zb_v_rule zb_v_random_rule(struct zb_v_search *x);

/* ---- steps: plan_v_improve.c --------------------------------------------- */

/* Spend what is left on local search from the pool and from random rules. */
void zb_v_improve(struct zb_v_search *x);

#endif
