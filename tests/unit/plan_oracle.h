/* SPDX-License-Identifier: MIT
 *
 * A second opinion on schedules, slow and written apart from src/plan.
 *
 * Order and messages are played like a board game: each stage owns the set of
 * things it has (activations, gradients), a move is one node of one stage or
 * one meeting of two, and every move is looked for among all stages again.
 * Times come from sweeps over all nodes until nothing moves.
 */
#ifndef PLAN_ORACLE_H
#define PLAN_ORACLE_H

#include "zb/plan.h"

#define PLAN_ORACLE_MAX_STAGES 8
#define PLAN_ORACLE_MAX_VIRTUAL 32
#define PLAN_ORACLE_MAX_MICRO 32

/* Whether zb_schedule_check() should accept the schedule, memory aside. */
int plan_oracle_is_legal(const struct zb_schedule *s);

/* The most memory a stage of a legal schedule holds. */
double plan_oracle_peak(const struct zb_schedule *s,
                        const struct zb_plan_input *in, int stage);

/* Makespan and span of a legal schedule, each node as early as its stage and
 * its inputs allow. */
double plan_oracle_makespan(const struct zb_schedule *s,
                            const struct zb_plan_input *in, double *span_out);

#endif
