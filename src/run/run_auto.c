/* SPDX-License-Identifier: MIT
 *
 * pp_style = auto: plan with every planner, take the shortest step. */
#include "config.h"
#include "run/run_int.h"

#include <stdio.h>
#include <string.h>

#include "zb/mem.h"

struct contest {
    const struct zb_model *model;
    const struct zb_session_opts *o;
    struct zb_cost_table *costs; /* handed from plan to plan */
    struct zb_run_plan *best;
    struct zb_run_row *row;
    int n;
};

static int n_planners(void)
{
    int n = 0;

    while (zb_planner_name(n) != NULL) {
        n++;
    }
    return n;
}

/* ---- times that are given for chunks ------------------------------------- */

/* Times the user gave are those of the 2 n_stages chunks of a V, or of one of
 * them. Where a stage has another number of chunks, they are made of those. */
static enum zb_status spread(const double *given, int n_given, int n_stages,
                             int n_chunk, double *out)
{
    int n = n_stages * n_chunk;

    if (n_given == 1) {
        for (int v = 0; v < n; v++) {
            out[v] = given[0] * 2 / n_chunk;
        }
        return ZB_OK;
    }
    for (int v = 0; v < n; v++) {
        if (n_given == n) {
            out[v] = given[v];
        } else if (n_given == 2 * n) {
            out[v] = given[2 * v] + given[2 * v + 1];
        } else {
            return zb_fail(ZB_EINVAL, "costs of %d chunks, but there are %d",
                           n_given, n);
        }
    }
    return ZB_OK;
}

/* `cost` has room for three lists of n_stages * n_chunk. */
static enum zb_status convert_costs(struct zb_session_opts *o, int n_chunk,
                                    double *cost)
{
    const double **list[] = {&o->f_cost, &o->b_cost, &o->w_cost};
    int n = o->n_stages * n_chunk;

    for (int i = 0; i < 3; i++) {
        if (*list[i] != NULL) {
            ZB_TRY(spread(*list[i], o->n_costs, o->n_stages, n_chunk,
                          cost + i * n));
            *list[i] = cost + i * n;
        }
    }
    o->n_costs = n;
    return ZB_OK;
}

/* ---- one planner --------------------------------------------------------- */

static enum zb_status plan_with(struct contest *c, const char *planner,
                                struct zb_run_plan **p_out)
{
    struct zb_session_opts o = *c->o;
    enum zb_placement placement;
    double *cost;
    int n_chunk;
    enum zb_status st;

    o.planner = planner;
    ZB_TRY(zb_planner_shape(planner, &placement, &n_chunk));
    if (placement == ZB_PLACE_LOOP && o.n_chunk > 0) {
        n_chunk = o.n_chunk;
    }
    cost = zb_alloc_array(3 * (size_t)o.n_stages * (size_t)n_chunk,
                          sizeof(*cost));
    if (cost == NULL) {
        return ZB_ENOMEM;
    }
    st = convert_costs(&o, n_chunk, cost);
    if (st == ZB_OK) {
        st = zb_run_plan_make(c->model, &o, &c->costs, 1.0 / n_planners(),
                              p_out);
    }
    zb_free(cost);
    return st;
}

static void describe(struct zb_run_row *row, const struct zb_run_plan *p)
{
    double unit_ms = p->unit_ns > 0 ? p->unit_ns / 1e6 : 1;

    row->step = zb_run_step_cost(p) * unit_ms;
    row->bubble = p->sched->bubble_rate;
    row->plan_ms = p->plan_ms;
    for (int s = 0; s < p->n_stages; s++) {
        size_t bytes = p->layout[s].total;

        row->device_bytes =
            bytes > row->device_bytes ? bytes : row->device_bytes;
    }
    row->is_possible = zb_run_plan_check_memory(p) == ZB_OK;
}

static void say_why_not(struct zb_run_row *row)
{
    snprintf(row->why_not, sizeof(row->why_not), "%s", zb_error_text());
}

/* A plan that fits before one that does not; then the shorter step, or what
 * needs less. */
static int is_preferred(const struct zb_run_row *a, const struct zb_run_row *b)
{
    if (a->is_possible != b->is_possible) {
        return a->is_possible;
    }
    return a->is_possible ? a->step < b->step * (1 - 1e-9)
                          : a->device_bytes < b->device_bytes;
}

static enum zb_status compete(struct contest *c, const char *planner,
                              int *best_row)
{
    struct zb_run_row *row = &c->row[c->n++];
    struct zb_run_plan *p;
    enum zb_status st;

    *row = (struct zb_run_row){.planner = planner};
    st = plan_with(c, planner, &p);
    if (st == ZB_ENOMEM) {
        return st;
    }
    if (st != ZB_OK) {
        say_why_not(row);
        return ZB_OK;
    }
    describe(row, p);
    if (!row->is_possible) {
        say_why_not(row);
    }
    /* The table of costs goes on to the next. */
    c->costs = p->costs;
    p->costs = NULL;
    if (c->best == NULL || is_preferred(row, &c->row[*best_row])) {
        zb_run_plan_free(c->best);
        c->best = p;
        *best_row = c->n - 1;
    } else {
        zb_run_plan_free(p);
    }
    return ZB_OK;
}

/* ---- all ----------------------------------------------------------------- */

static enum zb_status run_contest(struct contest *c)
{
    int best_row = 0;
    double ms = 0;

    for (int i = 0; zb_planner_name(i) != NULL; i++) {
        ZB_TRY(compete(c, zb_planner_name(i), &best_row));
        ms += c->row[i].plan_ms;
    }
    if (c->best == NULL) {
        return zb_fail(ZB_EINFEASIBLE, "no planner has a schedule; %s: %s",
                       c->row[0].planner, c->row[0].why_not);
    }
    c->best->costs = c->costs;
    c->best->row = c->row;
    c->best->n_rows = c->n;
    c->best->plan_ms = ms;
    c->costs = NULL;
    c->row = NULL;
    return ZB_OK;
}

enum zb_status zb_run_plan_fastest(const struct zb_model *model,
                                   const struct zb_session_opts *o,
                                   struct zb_cost_table **costs,
                                   struct zb_run_plan **p_out)
{
    struct contest c = {.model = model, .o = o, .costs = *costs};
    enum zb_status st = ZB_ENOMEM;

    c.row = zb_alloc_array((size_t)n_planners(), sizeof(*c.row));
    if (c.row != NULL) {
        st = run_contest(&c);
    }
    if (st == ZB_OK) {
        *p_out = c.best;
    } else {
        zb_run_plan_free(c.best);
    }
    *costs = c.costs;
    zb_free(c.row);
    return st;
}
