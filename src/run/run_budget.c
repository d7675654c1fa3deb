/* SPDX-License-Identifier: MIT
 *
 * How much effort planning is worth: a share of the first steps' time. Counted
 * in moves and schedules, so that the same costs give the same plan. */
#include "config.h"
#include "run/run_int.h"

/* Measured on one core of 2.1 GHz, rounded up. */
#define SEARCH_MAX_NS 2e9 /* the planner's own default */
#define MOVE_NS 40        /* one step of a search */
#define TRY_NODE_NS 1500  /* a schedule without a search, per node, checked */

/* Whatever a step takes: more tries find little, fewer would leave out cuts to
 * begin with. */
#define MIN_TRIES 4
#define MAX_TRIES 256
#define MAX_TRIED_NODES 300000
/* Of those, what a plan may take that is one of several. */
#define SHARE_FACTOR 3

/* Half for the cut, half for the search. */
static double half_share(double step_ns)
{
    return ZB_PLAN_SHARE * ZB_PLAN_STEPS * step_ns / 2;
}

int64_t zb_run_search_moves(double step_ns)
{
    double ns = half_share(step_ns);

    return step_ns <= 0 || ns >= SEARCH_MAX_NS ? -1 : (int64_t)(ns / MOVE_NS);
}

int zb_run_cut_tries(double step_ns, double share, size_t n_nodes)
{
    double most = SHARE_FACTOR * share < 1 ? SHARE_FACTOR * share : 1;
    double n = most * MAX_TRIED_NODES / (double)n_nodes;
    double worth =
        share * half_share(step_ns) / (TRY_NODE_NS * (double)n_nodes);

    n = step_ns > 0 && worth < n ? worth : n;
    n = n < MAX_TRIES * most ? n : MAX_TRIES * most;
    return n > MIN_TRIES ? (int)n : MIN_TRIES;
}
