/* SPDX-License-Identifier: MIT
 *
 * Costs for people: what was planned with, and what it was worth. */
#include "config.h"
#include "run/run_int.h"

#include <math.h>
#include <string.h>

#include "run/profile.h"
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

/* ---- costs against what was ---------------------------------------------- */

/* Median time in ns of the nodes of one type in one chunk; NAN without any. */
static double node_median(const struct zb_session *s, int virt,
                          enum zb_node_type type, double *room)
{
    struct zb_node_times t =
        zb_session_node_times(s, zb_stage_of(s->plan, virt));
    int chunk = zb_chunk_of(s->plan, virt);
    size_t n = 0;

    for (size_t i = 0; i < t.n; i++) {
        if (t.node[i].type == type && t.node[i].chunk == chunk) {
            room[n++] = (double)(t.end_ns[i] - t.start_ns[i]);
        }
    }
    return n > 0 ? zb_median(room, n) : NAN;
}

static double span_ns(const struct zb_session *s)
{
    int64_t first = INT64_MAX, last = 0;

    for (int i = 0; i < s->plan->n_stages; i++) {
        struct zb_node_times t = zb_session_node_times(s, i);

        for (size_t k = 0; k < t.n; k++) {
            first = t.start_ns[k] < first ? t.start_ns[k] : first;
            last = t.end_ns[k] > last ? t.end_ns[k] : last;
        }
    }
    return last > first ? (double)(last - first) : NAN;
}

static void print_ratio(FILE *f, const char *what, double is, double planned)
{
    if (planned > 0 && !isnan(is)) {
        fprintf(f, " %s %.3f ms (%+.1f %%)", what, is * 1e-6,
                100 * (is / planned - 1));
    }
}

static void print_chunk_errors(const struct zb_session *s, int v, double *room,
                               FILE *f)
{
    const struct zb_plan_input *in = &s->plan->in;
    double unit = s->plan->unit_ns;

    fprintf(f, "  chunk %d:", v);
    print_ratio(f, "F", node_median(s, v, ZB_NODE_F, room),
                in->f_cost[v] * unit);
    print_ratio(f, "B", node_median(s, v, ZB_NODE_B, room),
                in->b_cost[v] * unit);
    print_ratio(f, "W", node_median(s, v, ZB_NODE_W, room),
                in->w_cost[v] * unit);
    print_ratio(f, "BW", node_median(s, v, ZB_NODE_BW, room),
                (in->b_cost[v] + in->w_cost[v]) * unit);
    fputc('\n', f);
}

void zb_session_print_cost_errors(const struct zb_session *s, FILE *f)
{
    const struct zb_run_plan *p = s->plan;
    double *room = zb_alloc_array((size_t)p->o.n_micro, sizeof(*room));

    if (room != NULL && p->unit_ns > 0 && !isnan(span_ns(s))) {
        fprintf(f, "last step against the planned costs:\n");
        for (int v = 0; v < p->n_virtual; v++) {
            print_chunk_errors(s, v, room, f);
        }
        fprintf(f, "  forward and backward:");
        print_ratio(f, "all nodes", span_ns(s),
                    p->sched->span * p->unit_ns);
        fputc('\n', f);
    }
    zb_free(room);
}
