/* SPDX-License-Identifier: MIT
 *
 * What the tests of schedule files share.
 */
#ifndef PLAN_RIG_H
#define PLAN_RIG_H

#include <stddef.h>

#include "zb/plan.h"

/* A schedule of a planner: F costs f, the rest 1, messages c. */
struct zb_schedule *plan_rig_make(const char *planner, int p, int m, double f,
                                  double c);

/* A schedule as text; free() it. */
char *plan_rig_text(const struct zb_schedule *s, enum zb_plan_format format,
                    size_t *len_out);

/* Path of a scratch file with this text. */
const char *plan_rig_file(const char *text, size_t len);

/* Assert that two schedules have the same compute nodes; with `all` the same
 * nodes of every type. */
void plan_rig_same(const struct zb_schedule *a, const struct zb_schedule *b,
                   int all);

/* Assert that this text is read as a legal schedule of that placement. */
void plan_rig_legal(const char *text, enum zb_placement placement,
                    int n_chunk);

/* Assert that this text is refused with its path and `part` in the reason. */
void plan_rig_refused(const char *text, const char *part);

#endif
