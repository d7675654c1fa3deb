/* SPDX-License-Identifier: MIT
 *
 * pp_style = auto: plan with every planner, take the shortest step. Where memory
 * is limited and the choice is left to us, with every way to recompute. */
#include "config.h"
#include "run/run_int.h"

#include <stdio.h>
#include <string.h>

#include "zb/mem.h"

struct contest {
    const struct zb_model *model;
    struct zb_session_opts o; /* with the recompute looked at */
    struct zb_cost_table *costs; /* of that; handed from plan to plan */
    struct zb_run_plan *best;
    struct zb_run_row *row;
    int n, n_at_most, best_row;
    double plan_ms;
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
    struct zb_session_opts o = c->o;
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
        st = zb_run_plan_make(c->model, &o, &c->costs, 1.0 / c->n_at_most,
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

static enum zb_status compete(struct contest *c, const char *planner)
{
    struct zb_run_row *row = &c->row[c->n++];
    struct zb_run_plan *p;
    enum zb_status st;

    *row = (struct zb_run_row){.planner = planner,
                               .recompute = c->o.recompute};
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
    c->plan_ms += p->plan_ms;
    if (c->best == NULL || is_preferred(row, &c->row[c->best_row])) {
        zb_run_plan_free(c->best);
        c->best = p;
        c->best_row = c->n - 1;
    } else {
        zb_run_plan_free(p);
    }
    return ZB_OK;
}

/* ---- ways to recompute --------------------------------------------------- */

/* A multiple is one of the F memory that recomputing changes, and given times
 * are those of one way: then there is nothing to compare. */
static int is_recompute_open(const struct zb_session_opts *o)
{
    int is_limited =
        o->device_mem > 0 || (o->max_mem > 0 && !o->is_mem_factor);
    int is_given =
        o->f_cost != NULL || o->b_cost != NULL || o->w_cost != NULL;

    return o->may_change_recompute && is_limited && !is_given;
}

/* Whether a step with these costs might be shorter than the best there is: it
 * takes as long as the mean stage has work. */
static int may_be_faster(const struct contest *c)
{
    const struct zb_run_row *best = &c->row[c->best_row];
    struct zb_layer_cost all = zb_costs_sum(c->costs, 0, c->costs->n_layers);
    double least_ms = (all.f_ns + all.b_ns + all.w_ns) * c->o.n_micro /
                      c->o.n_stages / 1e6;

    return c->best == NULL || !best->is_possible || least_ms < best->step;
}

static enum zb_status compete_all(struct contest *c)
{
    for (int i = 0; zb_planner_name(i) != NULL; i++) {
        ZB_TRY(compete(c, zb_planner_name(i)));
    }
    return ZB_OK;
}

/* The best plan keeps the costs that it was made with. */
static enum zb_status compete_with(struct contest *c,
                                   enum zb_recompute recompute,
                                   const struct zb_bind *max, int may_run)
{
    struct zb_cost_table *others = c->costs;
    int n_before = c->n;
    enum zb_status st;

    c->costs = NULL;
    c->o.recompute = recompute;
    st = zb_costs_make(zb_model_graph(c->model), max, &c->o, may_run,
                       &c->costs);
    if (st == ZB_OK && may_be_faster(c)) {
        st = compete_all(c);
    }
    if (c->best != NULL && c->best_row >= n_before) {
        zb_costs_free(others);
    } else {
        zb_costs_free(c->costs);
        c->costs = others;
    }
    return st;
}

/* ---- all ----------------------------------------------------------------- */

static enum zb_status run_contest(struct contest *c, int is_open,
                                  const struct zb_bind *max, int may_run)
{
    enum zb_recompute first = c->o.recompute;

    ZB_TRY(compete_all(c));
    for (int i = 0; is_open && i < ZB_N_RECOMPUTES; i++) {
        if (i != (int)first) {
            ZB_TRY(compete_with(c, (enum zb_recompute)i, max, may_run));
        }
    }
    if (c->best == NULL) {
        return zb_fail(ZB_EINFEASIBLE, "no planner has a schedule; %s: %s",
                       c->row[0].planner, c->row[0].why_not);
    }
    c->best->costs = c->costs;
    c->best->row = c->row;
    c->best->n_rows = c->n;
    c->best->plan_ms = c->plan_ms;
    c->costs = NULL;
    c->row = NULL;
    return ZB_OK;
}

enum zb_status zb_run_plan_fastest(const struct zb_model *model,
                                   const struct zb_session_opts *o,
                                   const struct zb_bind *max, int may_run,
                                   struct zb_cost_table **costs,
                                   struct zb_run_plan **p_out)
{
    int is_open = is_recompute_open(o);
    struct contest c = {
        .model = model,
        .o = *o,
        .costs = *costs,
        .n_at_most = n_planners() * (is_open ? ZB_N_RECOMPUTES : 1),
    };
    enum zb_status st = ZB_ENOMEM;

    c.row = zb_alloc_array((size_t)c.n_at_most, sizeof(*c.row));
    if (c.row != NULL) {
        st = run_contest(&c, is_open, max, may_run);
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
