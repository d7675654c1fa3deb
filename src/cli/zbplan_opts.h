/* SPDX-License-Identifier: MIT
 *
 * The command line of zbplan, parsed but not yet combined with a placement.
 */
#ifndef ZBPLAN_OPTS_H
#define ZBPLAN_OPTS_H

#include <stdio.h>

#include "zb/plan.h"

/* A list of numbers from the command line; n 0: the option was not given. */
struct zbplan_list {
    double *x;
    int n;
    int is_factor; /* --max-mem 1.5x */
};

struct zbplan_config;

enum zbplan_mode {
    ZBPLAN_PLAN,
    ZBPLAN_CHECK,
    ZBPLAN_COMPARE,
    ZBPLAN_HELP,
    ZBPLAN_VERSION
};

struct zbplan_opts {
    enum zbplan_mode mode;
    int n_stage, n_micro; /* 0: not given */
    const char *config;  /* NULL: none */
    struct zbplan_config *from; /* the same, once it is open */
    const char *planner; /* NULL: that of the configuration */
    const char *check_path;
    const char *output; /* NULL: standard output */
    enum zb_plan_format format;
    int has_messages; /* in a drawing */
    struct zb_plan_opts search;
    int has_objective; /* it was given */
    int has_time_limit;
    /* Time and memory of F, B, W; either one value or one per chunk. */
    struct zbplan_list cost[3], mem[3];
    double c_cost;
    int has_c_cost; /* it was given */
    struct zbplan_list max_mem;
};

/* Parse. ZB_EINVAL with a text for a wrong or missing value. Release in every
 * case. */
enum zb_status zbplan_opts_parse(struct zbplan_opts *o, int argc,
                                 char **argv) ZB_CHECKED;
void zbplan_opts_release(struct zbplan_opts *o);

void zbplan_opts_usage(FILE *f);
void zbplan_opts_help(FILE *f);

/* The input of a plan with this placement. In a linear placement with
 * `is_pair` one chunk is two of those the options speak of. `is_limited`: keep
 * the default memory limit of 1.0x when --max-mem was not given. */
enum zb_status zbplan_opts_input(const struct zbplan_opts *o,
                                 enum zb_placement placement, int n_chunk,
                                 int is_pair, int is_limited,
                                 struct zb_plan_input *in_out) ZB_CHECKED;

/* Put what was given in place of what `in` has. */
enum zb_status zbplan_opts_override(const struct zbplan_opts *o,
                                    struct zb_plan_input *in) ZB_CHECKED;

/* What --max-mem 1x means for such an input: 2P times the mean memory of F of
 * the chunks the options speak of. */
double zbplan_memory_unit(const struct zb_plan_input *in, int is_pair);

#endif
