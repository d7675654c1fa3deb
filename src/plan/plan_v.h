/* SPDX-License-Identifier: MIT
 *
 * The search for V schedules: what its files share.
 *
 * An order is, per stage, a sequence of 6 * n_micro types: F, B and W of the
 * left leg (chunk 0) and of the right leg (chunk 1). The k-th of a type is that
 * of microbatch k: to run a type out of microbatch order gains nothing, since
 * the costs do not depend on the microbatch. An order has no times; they follow
 * from it, each node as early as its stage and its input allow.
 *
 * The value of an order is its makespan G, or its span when steps follow each
 * other without a barrier. Both are the largest of the stages' last ends, less
 * the start of the stage's first node for the span; the first node is always
 * F(0) of the left leg, whose start is the same in every order.
 *
 * Effort is counted in moves: a node placed by a rule, or timed anew by a step
 * of the local search. A result depends on the moves spent, never on the clock
 * (but for the time limit).
 */
#ifndef PLAN_V_H
#define PLAN_V_H

#include <stdint.h>

#include "zb/plan.h"

/* Values within this of each other, relatively, are the same. */
#define ZB_V_ROUNDING 1e-12

/* Types of a stage's sequence: 2 * pass + chunk. */
enum zb_v_type { ZB_V_F0, ZB_V_F1, ZB_V_B0, ZB_V_B1, ZB_V_W0, ZB_V_W1 };
#define ZB_V_N_TYPES 6

/* What a node needs to have happened on its own stage, for the same microbatch;
 * -1 for F of the left leg. */
extern const int zb_v_needs[ZB_V_N_TYPES];

/* How many stages on the stage is that a node's input comes from: -1, 1, or 0
 * for W, which has none. Where there is no such stage the input is what the
 * node needs on its own. */
extern const int zb_v_input_step[ZB_V_N_TYPES];

/* The instance, by stage and type. */
struct zb_v {
    int p, m;
    int len;                      /* nodes of a stage: 6 m */
    double c;                     /* latency of a message */
    double (*cost)[ZB_V_N_TYPES]; /* [p] */
    double (*mem)[ZB_V_N_TYPES];  /* [p] change of memory */
    double *limit;                /* [p] with room for rounding */
    double *offset;               /* [p] added to a stage's last end */
    double bound;                 /* no order has a smaller value */
    double work;                  /* of the busiest stage */
};

/* `in` must be for a V placement. */
enum zb_status zb_v_init(struct zb_v *v, const struct zb_plan_input *in,
                         enum zb_plan_objective objective) ZB_CHECKED;
void zb_v_release(struct zb_v *v);

/* Numbers of a row for each microbatch: m, or a few more, so that rows do not
 * all begin in the same sets of a cache. */
size_t zb_v_row_length(int m);

/* Effort left. */
struct zb_v_budget {
    int64_t moves;
    int64_t deadline_ns; /* of zb_now_ns(); 0: none */
};
/* Whether the budget is used up. */
int zb_v_is_spent(const struct zb_v_budget *b);

/* Random numbers: xorshift64*, any non-zero state. */
uint64_t zb_v_random(uint64_t *state);
/* In [0, 1). */
double zb_v_uniform(uint64_t *state);
/* In [0, n). */
int zb_v_below(uint64_t *state, int n);

/* ---- orders from rules ---------------------------------------------------
 *
 * A list scheduler. The priority of F or B of a chunk for microbatch k is the
 * time that a steady pattern would give it,
 *
 *     k * period + delay(type, stage),
 *
 * and of the nodes that may start, the one with the earliest goes first. Delays
 * grow along the path of a microbatch by `stretch` times its costs, plus a gap
 * where the path turns. Stretches of 1 and no gaps is the fastest way of one
 * microbatch; larger ones make room between F and B of a stage for other
 * microbatches, as the building blocks of arXiv 2405.15362 do. */
struct zb_v_rule {
    double stretch[4]; /* F left leg, F right leg, B right leg, B left leg */
    double gap[3];     /* before F right, B right, B left; in units of the
                        * work of a microbatch on a stage */
    double w_gap;      /* W runs in gaps of this many W costs, or more */
    double patience;   /* wait this many costs for a node of better priority */
    double ahead;      /* F left leg may run before its time by this many
                        * periods */
    double w_delay[2];  /* of a strict pattern: from B to W, in periods */
};

/* Times of F and B of microbatch 0 in the pattern of a rule: time [p]. */
void zb_v_pattern_times(const struct zb_v *v, const struct zb_v_rule *rule,
                        double (*time)[ZB_V_N_TYPES]);
/* The order that a rule gives: `order` [p * len] and its value. It finishes
 * whenever each stage has room for one microbatch in both chunks; INFINITY
 * otherwise. */
struct zb_v_lister; /* scratch memory */
enum zb_status zb_v_lister_new(const struct zb_v *v,
                               struct zb_v_lister **l_out) ZB_CHECKED;
void zb_v_lister_free(struct zb_v_lister *l);
double zb_v_list(struct zb_v_lister *l, const struct zb_v_rule *rule,
                 struct zb_v_budget *b, uint8_t *order);

/* ---- orders that repeat a cycle ------------------------------------------
 *
 * Each stage runs its nodes strictly in the order of due times: those of
 * microbatch k are time[stage][type] + k * period. */
struct zb_v_cycle {
    double period;
    double (*time)[ZB_V_N_TYPES]; /* [p] */
};

/* The order that repeats a cycle. It may need too much memory, or be such that
 * it can not finish. */
void zb_v_repeat(const struct zb_v *v, const struct zb_v_cycle *c,
                 uint8_t *order);

/* The cycle that follows the pattern of a rule. */
void zb_v_pattern(const struct zb_v *v, const struct zb_v_rule *rule,
                  struct zb_v_cycle *c);

/* A building block of arXiv 2405.15362: all nodes take one unit of time, a
 * microbatch enters every 6 units, F and B follow each other from stage to
 * stage in `slope` units and turn in `gap`, and W takes the slots that are
 * left. Its cycle; 0 when two nodes would be due at once. */
struct zb_v_block {
    int slope[4]; /* F left leg, F right leg, B right leg, B left leg */
    int gap[3];
};
int zb_v_block(const struct zb_v *v, const struct zb_v_block *b,
               struct zb_v_cycle *c);

/* ---- from few to many ----------------------------------------------------
 *
 * An order of `many` from one of `few`, an instance with the same costs and
 * fewer microbatches: on each stage a piece with `each` of every type, made of
 * what comes from place cut[stage] on, runs there as often as it takes. 0 when
 * F or B does not come so often behind a cut, or the numbers do not divide. The
 * result may need too much memory or be such that it can not finish. */
int zb_v_stretch(const struct zb_v *few, const uint8_t *order, const int *cut,
                 int each, const struct zb_v *many, uint8_t *order_out);

/* ---- local search --------------------------------------------------------
 *
 * Annealing on an order: take a node, preferably on a longest path, to another
 * place of its stage. */
struct zb_v_local;
enum zb_status zb_v_local_new(const struct zb_v *v,
                              struct zb_v_local **l_out) ZB_CHECKED;
void zb_v_local_free(struct zb_v_local *l);

/* Load an order; returns its value, INFINITY when it can not finish or exceeds
 * the memory limit. */
double zb_v_local_load(struct zb_v_local *l, const uint8_t *order);

/* The place in the loaded order, on each stage, of the first node that starts
 * at `time` or later: cut_out [p]. */
void zb_v_local_cut(const struct zb_v_local *l, double time, int *cut_out);

/* Time from one microbatch to the next in the middle of the loaded order. */
double zb_v_local_period(const struct zb_v_local *l);

/* A round of annealing: temperatures in units of the value. */
struct zb_v_heat {
    double hot, cold;
};

/* Improve the loaded order until `moves` more are spent or the bound is
 * reached. Returns the best value met within memory; `order` gets that
 * order. */
double zb_v_local_anneal(struct zb_v_local *l, const struct zb_v_heat *heat,
                         int64_t moves, uint64_t *random,
                         struct zb_v_budget *b, uint8_t *order);

/* ---- all together --------------------------------------------------------
 *
 * The best order by objective and seed of `opts` that the budget finds. `seeds`
 * [n_seeds * p * len] are orders that it must not be worse than, as far as they
 * fit. ZB_EINFEASIBLE when there is no order, which is only so when a stage has
 * not room for one microbatch in both chunks. */
enum zb_status zb_v_search(const struct zb_plan_input *in,
                           const struct zb_plan_opts *opts,
                           const uint8_t *seeds, int n_seeds,
                           struct zb_v_budget *b, uint8_t *order) ZB_CHECKED;

#endif
