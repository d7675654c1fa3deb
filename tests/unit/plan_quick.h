/* SPDX-License-Identifier: MIT
 *
 * Options for tests that need a schedule of every planner, but not a
 * good one: zbv does not search.
 */
#ifndef PLAN_QUICK_H
#define PLAN_QUICK_H

#include "zb/plan.h"

static const struct zb_plan_opts plan_quick = {.budget = 0};

#endif
