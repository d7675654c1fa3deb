/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "run/run_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "zb/log.h"
#include "zb/mem.h"

/* ---- cutting the model --------------------------------------------------- */

static enum zb_status cut(struct zb_run_plan *p)
{
    int n_before = zb_model_n_before(p->model);
    int n_blocks = zb_model_n_blocks(p->model);
    int n_after = zb_graph_n_layers(p->g) - n_before - n_blocks;

    switch (p->o.cut) {
    case ZB_CUT_UNIFORM:
        zb_cut_uniform(n_before, n_blocks, n_after, p->n_virtual,
                       p->first_layer);
        return ZB_OK;
    case ZB_CUT_LIST:
        return zb_cut_list(n_before, n_blocks, n_after, p->n_virtual,
                           p->o.layers_per_chunk, p->first_layer);
    default:
        zb_cut_auto(p->g, &p->max, p->n_virtual, p->first_layer);
        return ZB_OK;
    }
}

static enum zb_status make_chunks(struct zb_run_plan *p)
{
    for (int v = 0; v < p->n_virtual; v++) {
        ZB_TRY(zb_chunk_new(p->g, p->first_layer[v], p->first_layer[v + 1],
                            &p->max, &p->chunk[v]));
        p->info[v] = zb_chunk_info(p->chunk[v]);
    }
    for (int v = 0; v + 1 < p->n_virtual; v++) {
        ZB_BUG_IF(p->info[v].bytes[ZB_SPACE_OUT] !=
                          p->info[v + 1].bytes[ZB_SPACE_IN] ||
                      p->info[v].bytes[ZB_SPACE_DIN] !=
                          p->info[v + 1].bytes[ZB_SPACE_DOUT],
                  "the two sides of boundary %d differ", v);
    }
    return ZB_OK;
}

/* ---- planner's input ----------------------------------------------------- */

static enum zb_status check_costs(const struct zb_run_plan *p)
{
    int is_given =
        p->o.f_cost != NULL || p->o.b_cost != NULL || p->o.w_cost != NULL;

    return is_given && p->o.n_costs != 1 && p->o.n_costs != p->n_virtual
               ? zb_fail(ZB_EINVAL, "costs of %d chunks, but there are %d",
                         p->o.n_costs, p->n_virtual)
               : ZB_OK;
}

static enum zb_status make_costs(struct zb_run_plan *p)
{
    struct zb_rates rates = zb_nominal_rates();

    return zb_costs_from_model(p->g, &p->max, &rates, &p->o.optim, &p->costs);
}

static double given_or(const double *given, int n_given, int v, double other)
{
    return given == NULL ? other : given[n_given == 1 ? 0 : v];
}

/* An empty chunk still takes the time of a copy; planners need F > 0. */
#define LEAST_COST 0.01

/* In units of the mean F: only ratios matter to a planner. */
static void fill_costs(struct zb_run_plan *p)
{
    struct zb_layer_cost all =
        zb_costs_sum(p->costs, 0, zb_graph_n_layers(p->g));
    double unit = all.f_ns > 0 ? all.f_ns / p->n_virtual : 1;

    for (int v = 0; v < p->n_virtual; v++) {
        struct zb_layer_cost c = zb_costs_sum(p->costs, p->first_layer[v],
                                              p->first_layer[v + 1]);

        p->in.f_cost[v] = given_or(p->o.f_cost, p->o.n_costs, v,
                                   fmax(c.f_ns / unit, LEAST_COST));
        p->in.b_cost[v] = given_or(p->o.b_cost, p->o.n_costs, v,
                                   fmax(c.b_ns / unit, LEAST_COST));
        p->in.w_cost[v] =
            given_or(p->o.w_cost, p->o.n_costs, v, c.w_ns / unit);
    }
    p->in.c_cost = p->o.c_cost;
    p->unit_ns = p->o.f_cost == NULL ? unit : 0;
}

/* Bytes from the graph's exact classes; a message counts at its receiver. Where
 * B leaves more for W than it frees, F counts what will be held after B: then
 * whoever starts a microbatch has room to bring it to its W. */
static void fill_memory(struct zb_run_plan *p)
{
    double total_f = 0;

    for (int v = 0; v < p->n_virtual; v++) {
        const struct zb_chunk_info *c = &p->info[v];
        double in_msg = (double)c->bytes[ZB_SPACE_IN];
        double din_msg = (double)c->bytes[ZB_SPACE_DIN];
        double after_f = (double)c->bytes[ZB_SPACE_FB] +
                         (double)c->bytes[ZB_SPACE_FW] +
                         (c->in_until > ZB_PASS_F ? in_msg : 0);
        double after_b = (double)c->bytes[ZB_SPACE_FW] +
                         (double)c->bytes[ZB_SPACE_BW] +
                         (c->in_until == ZB_PASS_W ? in_msg : 0) +
                         (c->din_until == ZB_PASS_W ? din_msg : 0);
        double f = fmax(after_f, after_b);

        p->in.f_mem[v] = f;
        p->in.b_mem[v] = after_b - f;
        p->in.w_mem[v] = -after_b;
        total_f += f;
    }
    for (int s = 0; s < p->n_stages && p->o.max_mem > 0; s++) {
        p->in.max_mem[s] = p->o.is_mem_factor ? p->o.max_mem * total_f
                                              : p->o.max_mem;
    }
}

/* Where the user gave no limit, a V schedule gets what 1F1B would hold: without
 * any it would keep every W for the end. The other orders bound themselves. */
static void limit_memory(struct zb_run_plan *p)
{
    for (int s = 0; s < p->n_stages; s++) {
        double f = 0;

        for (int k = 0; k < p->n_chunk; k++) {
            f += p->in.f_mem[zb_virt_of(p, s, k)];
        }
        p->in.max_mem[s] = p->n_stages * f;
    }
}

static void lift_limit(struct zb_run_plan *p)
{
    for (int s = 0; s < p->n_stages; s++) {
        p->in.max_mem[s] = INFINITY;
    }
}

static enum zb_status plan_within_memory(struct zb_run_plan *p)
{
    int is_free = p->o.max_mem <= 0 && p->in.placement == ZB_PLACE_V &&
                  strncmp(p->planner, "file:", 5) != 0;
    enum zb_status st;

    if (is_free) {
        limit_memory(p);
    }
    st = zb_plan_make(p->planner, &p->in, NULL, &p->sched);
    if (st == ZB_EINFEASIBLE && is_free) {
        zb_log(ZB_LOG_DEBUG, "%s", zb_error_text());
        lift_limit(p);
        st = zb_plan_make(p->planner, &p->in, NULL, &p->sched);
    }
    return st;
}

static enum zb_status make_schedule(struct zb_run_plan *p)
{
    ZB_TRY(plan_within_memory(p));
    if (p->sched->n_stage != p->n_stages ||
        p->sched->n_micro != p->o.n_micro ||
        p->sched->n_chunk != p->n_chunk ||
        p->sched->placement != p->in.placement) {
        return zb_fail(ZB_ECONFIG,
                       "%s is a schedule for %d stages of %d chunks and %d "
                       "microbatches, but the run has %d, %d and %d",
                       p->planner, p->sched->n_stage, p->sched->n_chunk,
                       p->sched->n_micro, p->n_stages, p->n_chunk,
                       p->o.n_micro);
    }
    return zb_schedule_check(p->sched, &p->in);
}

/* ---- message buffers ----------------------------------------------------- */

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

/* Sender and receiver each give as many buffers as they may hold at once: then
 * the sender never waits where a rendezvous would not. One more lets it run a
 * node ahead of a late receiver (not at the turn, where nobody is late). */
static void count_buffers(struct zb_run_plan *p)
{
    for (int ch = 0; ch < zb_n_channels(p); ch++) {
        int is_turn = zb_stage_of(p, zb_channel_from(ch)) ==
                      zb_stage_of(p, zb_channel_to(ch));

        p->n_send_bufs[ch] = max_int(zb_count_held_by_sender(p, p->sched, ch),
                                zb_count_held_by_sender(p, p->eval, ch));
        p->n_send_bufs[ch] += p->o.overlap_p2p && !is_turn ? 1 : 0;
        p->n_recv_bufs[ch] =
            max_int(zb_count_held_by_receiver(p, p->sched, ch),
                    zb_count_held_by_receiver(p, p->eval, ch));
    }
}

/* ---- names and ownership ------------------------------------------------- */

static enum zb_status name_things(struct zb_run_plan *p)
{
    for (int ch = 0; ch < zb_n_channels(p); ch++) {
        int from = zb_channel_from(ch), to = zb_channel_to(ch);

        p->chan_name[ch] = zb_format(
            "%s message, stage %d chunk %d to stage %d chunk %d",
            ch % 2 == 0 ? "forward" : "backward", zb_stage_of(p, from),
            zb_chunk_of(p, from), zb_stage_of(p, to), zb_chunk_of(p, to));
        if (p->chan_name[ch] == NULL) {
            return ZB_ENOMEM;
        }
    }
    return ZB_OK;
}

static void find_owners(struct zb_run_plan *p)
{
    for (int v = 0; v < p->n_virtual; v++) {
        for (int i = 0; i < p->info[v].n_params; i++) {
            int param = p->info[v].params[i], stage = zb_stage_of(p, v);

            if (p->owner[param] < 0) {
                p->owner[param] = stage; /* the first use decides */
            } else if (p->owner[param] != stage) {
                p->is_shared[param] = 1;
                p->has_shared = 1;
            }
        }
    }
    for (int i = 0; i < p->n_params; i++) {
        struct zb_param_info info = zb_graph_param(p->g, i);

        for (int u = 0; u < info.n_uses; u++) {
            p->use_param[info.use_ids[u]] = i;
        }
    }
}

/* Insertion sort by name: the order in which squared norms are added. */
static void sort_names(struct zb_run_plan *p)
{
    for (int i = 0; i < p->n_params; i++) {
        const char *name = zb_graph_param(p->g, i).name;
        int *order = p->name_order;
        int at = i;

        while (at > 0 &&
               strcmp(zb_graph_param(p->g, order[at - 1]).name, name) > 0) {
            p->name_order[at] = p->name_order[at - 1];
            at--;
        }
        p->name_order[at] = i;
    }
}

enum zb_status zb_run_plan_check_memory(const struct zb_run_plan *p)
{
    for (int s = 0; s < p->n_stages && p->o.device_mem > 0; s++) {
        if (p->layout[s].total > p->o.device_mem) {
            return zb_fail(ZB_EINFEASIBLE,
                           "stage %d needs %zu bytes, more than the %zu of "
                           "device_mem; --dry-run shows what for",
                           s, p->layout[s].total, p->o.device_mem);
        }
    }
    return ZB_OK;
}

/* ---- making one ---------------------------------------------------------- */

static enum zb_status check_opts(const struct zb_session_opts *o)
{
    const struct {
        const char *name;
        int64_t value;
    } at_least_one[] = {
        {"n_stages", o->n_stages},
        {"n_micro", o->n_micro},
        {"max_rows", o->max_rows},
        {"max_seq", o->max_seq},
        {"threads_per_device", o->threads_per_device},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(at_least_one); i++) {
        if (at_least_one[i].value < 1) {
            return zb_fail(ZB_EINVAL, "%s is %lld, but must be at least 1",
                           at_least_one[i].name,
                           (long long)at_least_one[i].value);
        }
    }
    if (o->max_rows < o->n_micro) {
        return zb_fail(ZB_EINVAL,
                       "%lld rows can not be cut into %d microbatches",
                       (long long)o->max_rows, o->n_micro);
    }
    return ZB_OK;
}

static enum zb_status alloc_arrays(struct zb_run_plan *p)
{
    size_t nv = (size_t)p->n_virtual, n_chan = 2 * (nv - 1);

    p->first_layer = zb_alloc_array(nv + 1, sizeof(int));
    p->chunk = zb_alloc_array(nv, sizeof(*p->chunk));
    p->info = zb_alloc_array(nv, sizeof(*p->info));
    p->layout = zb_alloc_array((size_t)p->n_stages, sizeof(*p->layout));
    p->chan_name = zb_alloc_array(n_chan, sizeof(*p->chan_name));
    p->n_send_bufs = zb_alloc_array(n_chan, sizeof(int));
    p->n_recv_bufs = zb_alloc_array(n_chan, sizeof(int));
    p->use_param = zb_alloc_array((size_t)p->n_uses, sizeof(int));
    p->owner = zb_alloc_array((size_t)p->n_params, sizeof(int));
    p->is_shared = zb_alloc_array((size_t)p->n_params, sizeof(int));
    p->name_order = zb_alloc_array((size_t)p->n_params, sizeof(int));
    if (p->first_layer == NULL || p->chunk == NULL || p->info == NULL ||
        p->layout == NULL || p->chan_name == NULL || p->n_send_bufs == NULL ||
        p->n_recv_bufs == NULL || p->use_param == NULL ||
        p->owner == NULL || p->is_shared == NULL || p->name_order == NULL) {
        return ZB_ENOMEM;
    }
    for (int i = 0; i < p->n_params; i++) {
        p->owner[i] = -1;
    }
    return ZB_OK;
}

static enum zb_status fill(struct zb_run_plan *p)
{
    enum zb_placement placement;

    ZB_TRY(zb_planner_shape(p->planner, &placement, &p->n_chunk));
    p->n_virtual = p->n_stages * p->n_chunk;
    ZB_TRY(zb_plan_input_init(&p->in, p->n_stages, p->o.n_micro, placement,
                              p->n_chunk));
    ZB_TRY(check_costs(p));
    ZB_TRY(alloc_arrays(p));
    ZB_TRY(make_costs(p));
    ZB_TRY(cut(p));
    ZB_TRY(make_chunks(p));
    fill_costs(p);
    fill_memory(p);
    ZB_TRY(make_schedule(p));
    ZB_TRY(zb_plan_forward_only(&p->in, &p->eval));
    count_buffers(p);
    ZB_TRY(name_things(p));
    find_owners(p);
    sort_names(p);
    for (int s = 0; s < p->n_stages; s++) {
        ZB_TRY(zb_layout_init(&p->layout[s], p, s));
    }
    return ZB_OK;
}

enum zb_status zb_run_plan_new(const struct zb_model *model,
                               const struct zb_session_opts *o,
                               struct zb_run_plan **p_out)
{
    struct zb_run_plan *p;
    enum zb_status st;

    ZB_TRY(check_opts(o));
    p = zb_alloc(sizeof(*p));
    if (p == NULL) {
        return ZB_ENOMEM;
    }
    p->o = *o;
    p->model = model;
    p->g = zb_model_graph(model);
    p->n_stages = o->n_stages;
    p->n_params = zb_graph_n_params(p->g);
    p->n_uses = zb_graph_n_uses(p->g);
    p->n_data = zb_graph_n_data(p->g);
    p->n_consts = zb_graph_n_consts(p->g);
    p->max.value[ZB_SYM_BATCH] = (o->max_rows + o->n_micro - 1) / o->n_micro;
    p->max.value[ZB_SYM_SEQ] = o->max_seq;
    p->planner = zb_strdup(o->planner);
    ZB_TRY_GOTO(st, p->planner == NULL ? ZB_ENOMEM : fill(p), err);
    /* Borrowed for the call only. */
    p->o.planner = p->planner;
    p->o.layers_per_chunk = NULL;
    p->o.f_cost = p->o.b_cost = p->o.w_cost = NULL;
    *p_out = p;
    return ZB_OK;
err:
    zb_run_plan_free(p);
    return st;
}

void zb_run_plan_free(struct zb_run_plan *p)
{
    if (p == NULL) {
        return;
    }
    for (int s = 0; p->layout != NULL && s < p->n_stages; s++) {
        zb_layout_release(&p->layout[s]);
    }
    for (int v = 0; p->chunk != NULL && v < p->n_virtual; v++) {
        zb_chunk_free(p->chunk[v]);
    }
    for (int c = 0; p->chan_name != NULL && c < zb_n_channels(p); c++) {
        zb_free(p->chan_name[c]);
    }
    zb_schedule_free(p->eval);
    zb_schedule_free(p->sched);
    zb_plan_input_release(&p->in);
    zb_costs_free(p->costs);
    zb_free(p->name_order);
    zb_free(p->is_shared);
    zb_free(p->owner);
    zb_free(p->use_param);
    zb_free(p->n_recv_bufs);
    zb_free(p->n_send_bufs);
    zb_free(p->chan_name);
    zb_free(p->layout);
    zb_free(p->info);
    zb_free(p->chunk);
    zb_free(p->first_layer);
    zb_free(p->planner);
    zb_free(p);
}

/* ---- what --dry-run prints ----------------------------------------------- */

static void print_chunks(const struct zb_run_plan *p, FILE *f)
{
    fprintf(f, "layout: %d stages x %d chunks, %d microbatches of up to %lld "
               "rows, %s\n",
            p->n_stages, p->n_chunk, p->o.n_micro,
            (long long)p->max.value[ZB_SYM_BATCH], p->sched->planner);
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

static void print_memory(const struct zb_run_plan *p, FILE *f)
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

void zb_run_plan_print(const struct zb_run_plan *p, FILE *f)
{
    print_chunks(p, f);
    fprintf(f, "planned bubble %.2f %%, makespan %.6g, planned in %.1f ms\n",
            100 * p->sched->bubble_rate, p->sched->makespan,
            p->sched->plan_ms);
    print_memory(p, f);
}
