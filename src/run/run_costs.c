/* SPDX-License-Identifier: MIT
 *
 * Costs for people: what was planned with, and what it was worth. */
#include "config.h"
#include "run/run_int.h"

#include <math.h>
#include <string.h>

#include "run/profile.h"
#include "zb/machine.h"
#include "zb/mem.h"

/* ---- costs --------------------------------------------------------------- */

static void print_message(const struct zb_run_plan *p, FILE *f)
{
    if (p->costs->source != ZB_COST_MEASURED || p->n_stages == 1) {
        return;
    }
    fprintf(f, "  message: %.1f us", p->costs->message_ns * 1e-3);
    if (isfinite(p->costs->bytes_per_ns)) {
        fprintf(f, " and %.2f GB/s", p->costs->bytes_per_ns);
    }
    fprintf(f, ", planned as %.1f us\n", p->in.c_cost * p->unit_ns * 1e-3);
}

void zb_run_plan_print_costs(const struct zb_run_plan *p, FILE *f)
{
    if (p->unit_ns == 0) {
        fprintf(f, "costs: given\n");
        return;
    }
    fprintf(f, "costs of a microbatch: %s\n",
            zb_cost_source_str(p->costs->source));
    for (int v = 0; v < p->n_virtual; v++) {
        double ms = p->unit_ns * 1e-6;

        fprintf(f, "  chunk %d: F %.3f ms, B %.3f ms, W %.3f ms\n", v,
                p->in.f_cost[v] * ms, p->in.b_cost[v] * ms,
                p->in.w_cost[v] * ms);
    }
    print_message(p, f);
}

void zb_session_print_costs(const struct zb_session *s, FILE *f)
{
    zb_run_plan_print_costs(s->plan, f);
}

double zb_session_planned_ns(const struct zb_session *s)
{
    return s->plan->sched->makespan * s->plan->unit_ns;
}

/* ---- costs against what was ---------------------------------------------- */

/* What is noted of a step: times of the nodes of each type in each chunk, then
 * that of all. */
static const enum zb_node_type noted_type[] = {ZB_NODE_F, ZB_NODE_B, ZB_NODE_W,
                                               ZB_NODE_BW};
#define N_NOTED ZB_COUNT_OF(noted_type)

static size_t notes_per_step(const struct zb_session *s)
{
    return N_NOTED * (size_t)s->plan->n_virtual + 1;
}

enum zb_status zb_notes_init(struct zb_session *s)
{
    size_t n_micro = (size_t)s->plan->o.n_micro;

    if (s->plan->o.costs != ZB_COSTS_MEASURED || s->plan->unit_ns == 0) {
        return ZB_OK;
    }
    s->n_noted = -1; /* the first step warms up */
    s->note = zb_alloc_array(ZB_NOTE_STEPS * notes_per_step(s),
                             sizeof(*s->note));
    s->note_room = zb_alloc_array(
        n_micro > ZB_NOTE_STEPS ? n_micro : ZB_NOTE_STEPS,
        sizeof(*s->note_room));
    return s->note == NULL || s->note_room == NULL ? ZB_ENOMEM : ZB_OK;
}

void zb_notes_release(struct zb_session *s)
{
    zb_free(s->note_room);
    zb_free(s->note);
}

/* Median time in ns of the nodes of one type in one chunk; NAN without any. */
static double node_median(struct zb_session *s, int virt,
                          enum zb_node_type type)
{
    struct zb_node_times t =
        zb_session_node_times(s, zb_stage_of(s->plan, virt));
    int chunk = zb_chunk_of(s->plan, virt);
    size_t n = 0;

    for (size_t i = 0; i < t.n; i++) {
        if (t.node[i].type == type && t.node[i].chunk == chunk) {
            s->note_room[n++] = (double)(t.end_ns[i] - t.start_ns[i]);
        }
    }
    return n > 0 ? zb_median(s->note_room, n) : NAN;
}

void zb_notes_take(struct zb_session *s)
{
    double *note;
    int64_t busiest;

    if (s->note == NULL || s->n_noted == ZB_NOTE_STEPS ||
        ++s->n_noted == 0) {
        return;
    }
    note = s->note + (size_t)(s->n_noted - 1) * notes_per_step(s);
    for (int v = 0; v < s->plan->n_virtual; v++) {
        for (size_t i = 0; i < N_NOTED; i++) {
            *note++ = node_median(s, v, noted_type[i]);
        }
    }
    *note = (double)zb_session_nodes_ns(s, &busiest);
}

/* Over the steps. */
static double note_median(const struct zb_session *s, size_t i)
{
    size_t n = (size_t)s->n_noted;

    for (size_t k = 0; k < n; k++) {
        s->note_room[k] = s->note[k * notes_per_step(s) + i];
        if (isnan(s->note_room[k])) {
            return NAN;
        }
    }
    return zb_median(s->note_room, n);
}

static void print_ratio(FILE *f, const char *what, double is, double planned)
{
    if (planned > 0 && !isnan(is)) {
        fprintf(f, " %s %.3f ms (%+.1f %%)", what, is * 1e-6,
                100 * (is / planned - 1));
    }
}

static void print_chunk_errors(const struct zb_session *s, int v, FILE *f)
{
    const struct zb_plan_input *in = &s->plan->in;
    const double planned[N_NOTED] = {in->f_cost[v], in->b_cost[v],
                                     in->w_cost[v],
                                     in->b_cost[v] + in->w_cost[v]};

    if (s->plan->first_layer[v] == s->plan->first_layer[v + 1]) {
        return; /* it only hands on */
    }
    fprintf(f, "  chunk %d:", v);
    for (size_t i = 0; i < N_NOTED; i++) {
        print_ratio(f, zb_node_type_str(noted_type[i]),
                    note_median(s, (size_t)v * N_NOTED + i),
                    planned[i] * s->plan->unit_ns);
    }
    fputc('\n', f);
}

void zb_session_print_cost_errors(const struct zb_session *s, FILE *f)
{
    const struct zb_run_plan *p = s->plan;

    if (s->note == NULL || s->n_noted < 1) {
        return;
    }
    fprintf(f, "nodes against the planned costs:\n");
    for (int v = 0; v < p->n_virtual; v++) {
        print_chunk_errors(s, v, f);
    }
    fprintf(f, "  forward and backward:");
    print_ratio(f, "all nodes", note_median(s, notes_per_step(s) - 1),
                p->sched->makespan * p->unit_ns);
    fputc('\n', f);
}
