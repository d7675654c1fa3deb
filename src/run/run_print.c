/* SPDX-License-Identifier: MIT
 *
 * What --dry-run prints of a plan. */
#include "config.h"
#include "run/run_int.h"

#include <stdlib.h>
#include <string.h>

#include "zb/log.h"

static void print_chunks(const struct zb_run_plan *p, FILE *f)
{
    fprintf(f, "layout: %d stages x %d chunks, %d microbatches of up to %lld "
               "rows, %s",
            p->n_stages, p->n_chunk, p->o.n_micro,
            (long long)p->max.value[ZB_SYM_BATCH], p->sched->planner);
    if (p->o.recompute != ZB_RECOMPUTE_NONE) {
        fprintf(f, ", recompute %s", zb_recompute_str(p->o.recompute));
    }
    fputc('\n', f);
    if (p->n_columns > 1) {
        fprintf(f, "devices: %d = pp %d x dp %d x sp %d x tp %d, optimizer "
                   "state in %d shards\n",
                p->n_devices, p->n_stages, p->n_dp, p->n_sp, p->n_tp,
                p->o.zero_stage > 0 ? p->n_shards : 1);
    }
    for (int v = 0; v < p->n_virtual; v++) {
        int first = p->first_layer[v], end = p->first_layer[v + 1];

        fprintf(f, "  chunk %d on stage %d: ", v, zb_stage_of(p, v));
        if (first == end) {
            fprintf(f, "empty");
        } else {
            fprintf(f, "%s .. %s (%d layers)", zb_graph_layer_name(p->g, first),
                    zb_graph_layer_name(p->g, end - 1), end - first);
        }
        fprintf(f, ", cost F %.3g B %.3g W %.3g\n", p->in.f_cost[v],
                p->in.b_cost[v], p->in.w_cost[v]);
    }
}

void zb_run_plan_print_memory(const struct zb_run_plan *p, FILE *f)
{
    fprintf(f, "memory (bytes)");
    for (int s = 0; s < p->n_stages; s++) {
        fprintf(f, " %14s %d", "stage", s);
    }
    fputc('\n', f);
    for (int r = 0; r <= ZB_N_REGIONS; r++) {
        fprintf(f, "  %-12s",
                r < ZB_N_REGIONS ? zb_region_str((enum zb_region)r) : "total");
        for (int s = 0; s < p->n_stages; s++) {
            fprintf(f, " %16zu",
                    r < ZB_N_REGIONS ? p->layout[s].region_bytes[r]
                                     : p->layout[s].total);
        }
        fputc('\n', f);
    }
}

/* Page-locked memory of the host, all devices together. */
static void print_host_memory(const struct zb_run_plan *p, FILE *f)
{
    size_t bytes = 0;

    for (int ch = 0; ch < zb_n_channels(p); ch++) {
        if (zb_stage_of(p, zb_channel_from(ch)) !=
            zb_stage_of(p, zb_channel_to(ch))) {
            bytes += (size_t)p->n_columns *
                     zb_channel_host_bytes(zb_channel_bytes(p, ch),
                                           p->n_recv_bufs[ch]);
        }
    }
    if (p->o.p2p == ZB_P2P_HOST) {
        fprintf(f, "host memory: %zu bytes for messages\n", bytes);
    } else if (p->o.p2p == ZB_P2P_AUTO && p->is_copied && bytes > 0) {
        fprintf(f,
                "host memory: up to %zu bytes for messages, where devices "
                "do not reach each other\n",
                bytes);
    }
}

/* Rows are the planners with one way to recompute, then with another. */
static int has_recomputes(const struct zb_run_plan *p)
{
    return p->n_rows > 0 &&
           p->row[0].recompute != p->row[p->n_rows - 1].recompute;
}

static void print_row(const struct zb_run_plan *p, const struct zb_run_row *r,
                      FILE *f)
{
    int is_taken = strcmp(r->planner, p->planner) == 0 &&
                   r->recompute == p->o.recompute;

    fprintf(f, "%-16s ", r->planner);
    if (has_recomputes(p)) {
        fprintf(f, "%-10s ", zb_recompute_str(r->recompute));
    }
    if (r->is_possible) {
        fprintf(f, "%12.6g %9.2f %16zu %10.2f%s\n", r->step, 100 * r->bubble,
                r->device_bytes, r->plan_ms, is_taken ? "  taken" : "");
    } else {
        fprintf(f, "%s\n", r->why_not);
    }
}

static void print_rows(const struct zb_run_plan *p, FILE *f)
{
    if (p->n_rows > 0) {
        fprintf(f, "%-16s %s%12s %9s %16s %10s\n", "planner",
                has_recomputes(p) ? "recompute  " : "",
                p->unit_ns > 0 ? "step ms" : "step", "bubble %",
                "bytes at most", "plan ms");
    }
    for (int i = 0; i < p->n_rows; i++) {
        print_row(p, &p->row[i], f);
    }
}

static void print_times(const struct zb_run_plan *p, FILE *f)
{
    const struct zb_schedule *s = p->sched;

    fprintf(f, "planned bubble %.2f %%, makespan %.6g, update %.3g",
            100 * s->bubble_rate, s->makespan, p->update);
    if (p->unit_ns > 0) {
        fprintf(f, ", step %.4g ms", zb_run_step_cost(p) * p->unit_ns / 1e6);
    }
    fprintf(f, ", planned in %.1f ms (schedules tried: %d, ", p->plan_ms,
            p->n_tried);
    if (p->search.budget < 0) {
        fprintf(f, "full search)\n");
    } else {
        fprintf(f, "moves: %lld)\n", (long long)p->search.budget);
    }
}

void zb_run_plan_print(const struct zb_run_plan *p, FILE *f)
{
    print_rows(p, f);
    print_chunks(p, f);
    zb_run_plan_print_costs(p, f);
    print_times(p, f);
    zb_run_plan_print_memory(p, f);
    print_host_memory(p, f);
}

/* ---- the log ------------------------------------------------------------- */

/* Line by line what --dry-run prints. */
void zb_run_plan_log(const struct zb_run_plan *p)
{
    char *text = NULL, *save = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);

    if (f == NULL) {
        return;
    }
    zb_run_plan_print(p, f);
    if (fclose(f) == 0) {
        for (char *line = strtok_r(text, "\n", &save); line != NULL;
             line = strtok_r(NULL, "\n", &save)) {
            zb_log(ZB_LOG_DEBUG, "%s", line);
        }
    }
    free(text);
}
