/* SPDX-License-Identifier: MIT
 *
 * Planned against actual: the times of a step laid over its schedule, and why
 * each node ended when it did.
 *
 *     ZB_TRY(zb_compare(sched, times, c_cost, 0, &c));
 *     printf("%g ms late\n", 1e-6 * c->stage[0].delay_ns);
 *     zb_comparison_free(c);
 *
 * A node's delay is how much later than planned it ended (negative: earlier).
 * It is the sum of four parts:
 *   carried  the delay of the node before it on its device
 *   input    it waited longer than planned for the message it needs
 *   order    it began later than its device and its message allowed: an earlier
 *            entry of the stream, a full channel or the host held it up
 *   own      it ran longer than planned
 * The parts but the first add up along a stage: so a stage's delay is the sum
 * of its nodes' input, order and own parts, exactly.
 *
 * Pure functions over numbers. Threads: any, no shared state.
 */
#ifndef ZB_COMPARE_H
#define ZB_COMPARE_H

#include <stddef.h>
#include <stdint.h>

#include "zb/plan.h"
#include "zb/run.h"
#include "zb/status.h"

enum zb_delay_cause {
    ZB_DELAY_NONE, /* not late */
    ZB_DELAY_INPUT,
    ZB_DELAY_ORDER, /* order and carried */
    ZB_DELAY_OWN
};
const char *zb_delay_cause_str(enum zb_delay_cause cause);

struct zb_node_delay {
    double delay_ns; /* = carried + input + order + own */
    double carried_ns, input_ns, order_ns, own_ns;
    enum zb_delay_cause cause; /* the largest part of a node that is late */
    /* Whom the cause blames: the node that made the message, the one before on
     * the device, or the node itself. Index in the stage's stream. */
    int from_stage;
    size_t from_node;
    /* The node on another stage whose message this one needs; -1: none. */
    int input_stage;
    size_t input_node;
};

struct zb_stage_delay {
    double delay_ns; /* of the stage's last node = input + order + own */
    double input_ns, order_ns, own_ns;
};

struct zb_comparison {
    double ns_per_cost;   /* nanoseconds of a planned unit of time */
    int is_fitted;        /* 1: it was chosen, not given */
    int64_t origin_ns;    /* the plan's time 0 in the clock of the run */
    double planned_ns;    /* from the plan's time 0 to its last end */
    double ran_ns;        /* from the origin to the last end */
    int n_stage;
    struct zb_stage_delay *stage; /* [n_stage] */
    struct zb_node_delay **node;  /* [n_stage][nodes]; 0 for messages */
};

/* Compare the times of a step ([n_stage], each in the order of the stage's
 * stream) with the schedule it ran. `c_cost` is the planner's latency of a
 * message. `ns_per_cost` translates the plan's unit; 0: chosen so that all
 * nodes together ran as long as planned. The step begins with its first node.
 * ZB_EINVAL when numbers of nodes differ. */
enum zb_status zb_compare(const struct zb_schedule *sched,
                          const struct zb_node_times *times, double c_cost,
                          double ns_per_cost,
                          struct zb_comparison **c_out) ZB_CHECKED;
void zb_comparison_free(struct zb_comparison *c);

/* Where delay arose: the largest input, order and own parts, largest first.
 * Fills at most `max` entries with parts above 0 and returns how many. */
struct zb_worst_delay {
    int stage;
    size_t node;
    enum zb_delay_cause cause;
    double ns;
};
size_t zb_comparison_worst(const struct zb_comparison *c,
                           const struct zb_schedule *sched,
                           struct zb_worst_delay *worst, size_t max);

/* The costs of the session's plan: what zb_compare() needs beside the times. */
double zb_session_c_cost(const struct zb_session *s);
/* Nanoseconds of a unit of cost: on simulated devices, or when costs were
 * measured; 0 where it is not known. */
double zb_session_ns_per_cost(const struct zb_session *s);

#endif
