/* SPDX-License-Identifier: MIT
 *
 * The V pipelines of tests/golden/plan_*.csv: for tests and benchmarks of
 * planners.
 */
#ifndef PLAN_CASES_H
#define PLAN_CASES_H

#include <stdio.h>

#include "zb/plan.h"

enum plan_table {
    PLAN_GOALS,   /* equal costs, three memory limits */
    PLAN_EXACT,   /* tiny, unequal costs, the optimum is proved */
    PLAN_UNEQUAL, /* costs of real models, at random, with a head */
    PLAN_N_TABLES
};

/* "goals", "exact", "unequal" */
const char *plan_table_str(enum plan_table table);

struct plan_case {
    char name[96];
    struct zb_plan_input in;
    double alpha; /* memory limit, in units of 2p F; exact: 0 */
    double bound; /* listed lower bound of the makespan */
    double best;  /* least makespan that is known; exact: the optimum */
};

struct plan_cases {
    enum plan_table table;
    FILE *f;
    int line;
};

/* `folder` has the tables. The status of each names file and line. */
enum zb_status plan_cases_open(struct plan_cases *c, enum plan_table table,
                               const char *folder) ZB_CHECKED;
/* The next case, to be released; 0 in has_out behind the last. */
enum zb_status plan_cases_next(struct plan_cases *c, struct plan_case *k_out,
                               int *has_out) ZB_CHECKED;
void plan_case_release(struct plan_case *k);
void plan_cases_close(struct plan_cases *c);

#endif
