/* SPDX-License-Identifier: MIT
 *
 * How much effort planning is worth: a share of the first steps' time. Counted
 * in moves and schedules, so that the same costs give the same plan. */
#include "config.h"
#include "run/run_int.h"

/* Measured on one core of 2.1 GHz, rounded up. */
#define SEARCH_MAX_NS 2e9 /* the planner's own default */
#define MOVE_NS 100       /* of a search, and per node of the schedule: */
#define MOVE_NODE_NS 2
#define TRY_NODE_NS 1500 /* a schedule without a search, checked */

/* Whatever a step takes: more tries find little, fewer may miss much. */
#define MIN_TRIES 8
#define MAX_TRIES 256
#define MAX_TRIED_NODES 300000

/* Half for the cut, half for the search. */
static double half_share(double step_ns)
{
    return ZB_PLAN_SHARE * ZB_PLAN_STEPS * step_ns / 2;
}

int64_t zb_run_search_moves(double step_ns, size_t n_nodes)
{
    double ns = half_share(step_ns);

    if (step_ns <= 0 || ns >= SEARCH_MAX_NS) {
        return -1;
    }
    return (int64_t)(ns / (MOVE_NS + MOVE_NODE_NS * (double)n_nodes));
}

int zb_run_cut_tries(double step_ns, size_t n_nodes)
{
    double n = MAX_TRIED_NODES / (double)n_nodes;
    double worth = half_share(step_ns) / (TRY_NODE_NS * (double)n_nodes);

    n = step_ns > 0 && worth < n ? worth : n;
    n = n < MAX_TRIES ? n : MAX_TRIES;
    return n > MIN_TRIES ? (int)n : MIN_TRIES;
}
