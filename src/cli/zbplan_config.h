/* SPDX-License-Identifier: MIT
 *
 * zbplan with a configuration file: what the planner is told comes from the
 * model in it, as zbrun --dry-run plans it.
 *
 * Threads: the main thread only.
 */
#ifndef ZBPLAN_CONFIG_H
#define ZBPLAN_CONFIG_H

#include "cli/zbplan_opts.h"

struct zbplan_config;

/* Load the file; sizes on the command line override those in it, and o->n_stage
 * and o->n_micro get what holds. Close with zbplan_config_close(). */
enum zb_status zbplan_config_open(struct zbplan_opts *o,
                                  struct zbplan_config **c_out) ZB_CHECKED;
void zbplan_config_close(struct zbplan_config *c);

/* Cut the model, and plan, with `planner` (NULL: the file's). Times, memory and
 * limits on the command line take the place of those of the cut. `f`, unless
 * NULL, gets the layout and the memory of each device. Release *in_out and free
 * *s_out. */
enum zb_status zbplan_config_plan(struct zbplan_config *c,
                                  const struct zbplan_opts *o,
                                  const char *planner, FILE *f,
                                  struct zb_plan_input *in_out,
                                  struct zb_schedule **s_out) ZB_CHECKED;

#endif
