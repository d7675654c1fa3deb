/* SPDX-License-Identifier: MIT
 *
 * What the benches of simulated devices have in common: their options, sessions
 * whose nodes take planned times, and the time of a step. */
#ifndef SIM_STEPS_H
#define SIM_STEPS_H

#include "zb/run.h"

#define SIM_STEPS_MAX 99

struct sim_setup {
    double unit_us; /* of a chunk's F, B and W each */
    int n_steps;    /* of which the median counts */
    double percent; /* of hybrid */
    int stages;     /* of sim; 0: all */
};

/* -u and -n, and those of -r (percent) and -p (stages) that `letters`, as for
 * getopt(), has. Prints what is wrong; 0 when all is well. */
int sim_options(int argc, char **argv, const char *name, const char *letters,
                struct sim_setup *u);

/* A session of p stages with m microbatches for each of dp replicas. A stage of
 * 1f1b has two of a V's chunks in one; its cost is put into *cost_out, which
 * the options keep. */
enum zb_status sim_session_opts(const struct sim_setup *u, const char *planner,
                                int p, int m, int dp, double *cost_out,
                                struct zb_session_opts *o_out) ZB_CHECKED;

/* Median time of a step of `rows` sequences, from the call to its return, after
 * one to warm up: of forward and backward passes, or of training. */
enum zb_status sim_time_steps(const struct sim_setup *u, struct zb_session *s,
                              int64_t rows, int64_t seq, int trains,
                              double *ms_out) ZB_CHECKED;

#endif
