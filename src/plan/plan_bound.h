/* SPDX-License-Identifier: MIT
 *
 * One stage of a pipeline as the lower bounds see it: its own work, and the
 * chains of other stages' work that its nodes wait for or are waited for by.
 * doc/schedule.md ("Lower bounds") derives every formula; (1) to (6) are the
 * numbers it gives them.
 *
 * Threads: any, no shared state.
 */
#ifndef PLAN_BOUND_H
#define PLAN_BOUND_H

#include "plan/plan_int.h"

/* A chunk of the stage. Schedules with BW: b is the cost of BW, w 0. */
struct zb_bound_chunk {
    double f, b, w;
    double f_mem;  /* kept from F's start to B's end */
    double w_held; /* kept from B's end to W's end */
    /* The longest chain from the start of the stage's first F to the start of
     * this chunk's F and B of the same microbatch. */
    double to_f, to_b;
    /* The longest chain from the end of F and B to the end of the step (of the
     * stage, when the steps follow each other). */
    double after_f, after_b;
};

struct zb_bound_stage {
    int n_chunk;
    double m;
    double limit; /* memory, with the tolerance of the checker */
    double head;  /* nothing can start before; 0 when steps follow each other */
    double work;  /* sum of all nodes' costs */
    struct zb_bound_chunk *chunk; /* [n_chunk] in model order */
};

/* (2) The most work a stage can do before its first F (or B) of chunk j:
 * before any F of chunk j, or before any B of chunk j. */
double zb_bound_before_f(const struct zb_bound_stage *st, int j);
double zb_bound_before_b(const struct zb_bound_stage *st, int j);

/* (3) The most work that can be left when the last F (or B) of chunk j ends. */
double zb_bound_after_f(const struct zb_bound_stage *st, int j);
double zb_bound_after_b(const struct zb_bound_stage *st, int j);

/* (4) The least time in which the stage's memory can be filled, hold what its
 * microbatches need, and be emptied. */
double zb_bound_memory(const struct zb_bound_stage *st);

#endif
