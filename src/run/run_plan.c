/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "run/run_int.h"

#include <math.h>
#include <string.h>

#include "zb/mem.h"

/* ---- planner's input ----------------------------------------------------- */

static enum zb_status check_costs(const struct zb_run_plan *p)
{
    int is_given =
        p->o.f_cost != NULL || p->o.b_cost != NULL || p->o.w_cost != NULL;

    if (p->o.costs == ZB_COSTS_GIVEN &&
        (p->o.f_cost == NULL || p->o.b_cost == NULL || p->o.w_cost == NULL)) {
        return zb_fail(ZB_EINVAL, "costs are to be given, but %s are not",
                       p->o.f_cost == NULL   ? "those of F"
                       : p->o.b_cost == NULL ? "those of B"
                                             : "those of W");
    }
    return is_given && p->o.n_costs != 1 && p->o.n_costs != p->n_virtual
               ? zb_fail(ZB_EINVAL, "costs of %d chunks, but there are %d",
                         p->o.n_costs, p->n_virtual)
               : ZB_OK;
}

static double given_or(const double *given, int n_given, int v, double other)
{
    return given == NULL ? other : given[n_given == 1 ? 0 : v];
}

/* An empty chunk still takes the time of a copy; planners need F > 0. */
#define LEAST_COST 0.01

/* The planner knows one time for all messages. */
static double slowest_message(const struct zb_run_plan *p)
{
    double most = 0;

    for (int ch = 0; ch < zb_n_channels(p); ch++) {
        if (zb_stage_of(p, zb_channel_from(ch)) !=
            zb_stage_of(p, zb_channel_to(ch))) {
            most =
                fmax(most, zb_costs_message(p->costs, zb_channel_bytes(p, ch)));
        }
    }
    return most;
}

/* In units of the mean F of half a stage, which is a chunk of a V: only ratios
 * matter to a planner, but people compare planners. */
void zb_run_fill_costs(struct zb_run_plan *p)
{
    struct zb_layer_cost all =
        zb_costs_sum(p->costs, 0, zb_graph_n_layers(p->g));
    double unit = all.f_ns > 0 ? all.f_ns / (2 * p->n_stages) : 1;

    for (int v = 0; v < p->n_virtual; v++) {
        struct zb_layer_cost c =
            zb_costs_sum(p->costs, p->first_layer[v], p->first_layer[v + 1]);

        p->in.f_cost[v] = given_or(p->o.f_cost, p->o.n_costs, v,
                                   fmax(c.f_ns / unit, LEAST_COST));
        p->in.b_cost[v] = given_or(p->o.b_cost, p->o.n_costs, v,
                                   fmax(c.b_ns / unit, LEAST_COST));
        p->in.w_cost[v] = given_or(p->o.w_cost, p->o.n_costs, v, c.w_ns / unit);
    }
    p->in.c_cost = p->o.c_cost > 0 || p->o.f_cost != NULL
                       ? p->o.c_cost
                       : slowest_message(p) / unit;
    p->unit_ns = p->o.f_cost == NULL ? unit : 0;
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

static enum zb_status list_parts(struct zb_run_plan *p)
{
    for (int ch = 0; ch < zb_n_channels(p); ch++) {
        int at = p->first_layer[ch / 2 + 1], is_grad = ch % 2;
        int n = zb_graph_message(p->g, at, is_grad, &p->max, NULL, 0);

        p->part[ch] = zb_alloc_array((size_t)n + 1, sizeof(**p->part));
        if (p->part[ch] == NULL) {
            return ZB_ENOMEM;
        }
        p->n_parts[ch] =
            zb_graph_message(p->g, at, is_grad, &p->max, p->part[ch], n);
    }
    return ZB_OK;
}

static void find_uses(struct zb_run_plan *p)
{
    for (int i = 0; i < p->n_params; i++) {
        struct zb_param_info info = zb_graph_param(p->g, i);

        for (int u = 0; u < info.n_uses; u++) {
            p->use_param[info.use_ids[u]] = i;
        }
    }
}

/* The stage of the first use owns the gradient; without one, the first that
 * holds the parameter answers for it. */
static void find_owners(struct zb_run_plan *p)
{
    for (int v = 0; v < p->n_virtual; v++) {
        const struct zb_chunk_info *info = &p->info[v];
        int stage = zb_stage_of(p, v);

        for (int i = 0; i < info->n_uses; i++) {
            int param = p->use_param[info->uses[i]];

            if (zb_graph_param(p->g, param).use_ids[0] == info->uses[i]) {
                p->owner[param] = stage;
            }
        }
    }
    for (int v = 0; v < p->n_virtual; v++) {
        for (int i = 0; i < p->info[v].n_params; i++) {
            int param = p->info[v].params[i], stage = zb_stage_of(p, v);

            if (p->owner[param] < 0) {
                p->owner[param] = stage;
            }
            p->has_shared |= p->owner[param] != stage;
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

/* ---- making one ---------------------------------------------------------- */

static enum zb_status check_opts(const struct zb_session_opts *o)
{
    const struct {
        const char *name;
        int64_t value;
    } at_least_one[] = {
        {"n_stages", o->n_stages},
        {"n_dp", o->n_dp},
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
    if (o->max_rows / o->n_dp < o->n_micro) {
        return zb_fail(ZB_EINVAL,
                       "%lld rows can not be cut into %d x %d microbatches",
                       (long long)o->max_rows, o->n_dp, o->n_micro);
    }
    return ZB_OK;
}

static int n_devices(const struct zb_model *model,
                     const struct zb_session_opts *o)
{
    const struct zb_parallel *par = zb_graph_parallel(zb_model_graph(model));

    return o->n_stages * o->n_dp * par->sp * par->tp;
}

/* Two devices of one GPU, in one process, between which NCCL sends nothing. */
static int share_a_gpu(const struct zb_session_opts *o, int n, int *a_out,
                       int *b_out)
{
    for (int i = 0; o->gpus != NULL && i < n; i++) {
        for (int k = 0; k < i; k++) {
            if (o->gpus[k] == o->gpus[i]) {
                *a_out = k;
                *b_out = i;
                return 1;
            }
        }
    }
    return 0;
}

/* Whether there are the links that `key` asks for, among n devices. */
static enum zb_status check_nccl(const struct zb_session_opts *o, int n,
                                 const char *key, const char *what)
{
    const struct zb_backend_ops *ops;
    int a, b;

    ZB_TRY(zb_backend_find(o->backend, &ops));
    if (ops->links == NULL) {
        return zb_fail(ZB_EUNSUPPORTED,
                       "%s = nccl: the %s backend of this zbrun has no %s by "
                       "NCCL; %s may be auto or copy",
                       key, ops->name, what, key);
    }
    return share_a_gpu(o, n, &a, &b)
               ? zb_fail(ZB_ECONFIG,
                         "%s = nccl: devices %d and %d share GPU %d, between "
                         "which NCCL sends nothing; %s = copy does",
                         key, a, b, o->gpus[b], key)
               : ZB_OK;
}

static enum zb_status check_links(const struct zb_model *model,
                                  const struct zb_session_opts *o)
{
    int n = n_devices(model, o);

    if (o->p2p == ZB_P2P_NCCL) {
        ZB_TRY(check_nccl(o, o->n_stages > 1 ? n : 0, "p2p", "messages"));
    }
    return o->collectives == ZB_COLLECTIVES_NCCL
               ? check_nccl(o, n > o->n_stages ? n : 0, "collectives",
                            "collectives")
               : ZB_OK;
}

static int links_groups(const struct zb_session_opts *o, int n)
{
    int a, b;

    return o->collectives == ZB_COLLECTIVES_NCCL ||
           (o->collectives == ZB_COLLECTIVES_AUTO && o->p2p == ZB_P2P_NCCL &&
            !share_a_gpu(o, n, &a, &b));
}

int zb_has_links(const struct zb_run_plan *p)
{
    return p->is_linked || p->has_group_links;
}

static enum zb_status alloc_arrays(struct zb_run_plan *p)
{
    size_t nv = (size_t)p->n_virtual, n_chan = 2 * (nv - 1);

    p->first_layer = zb_alloc_array(nv + 1, sizeof(int));
    p->chunk = zb_alloc_array(nv, sizeof(*p->chunk));
    p->info = zb_alloc_array(nv, sizeof(*p->info));
    p->layout = zb_alloc_array((size_t)p->n_stages, sizeof(*p->layout));
    p->chan_name = zb_alloc_array(n_chan, sizeof(*p->chan_name));
    p->part = zb_alloc_array(n_chan, sizeof(*p->part));
    p->n_parts = zb_alloc_array(n_chan, sizeof(int));
    p->n_send_bufs = zb_alloc_array(n_chan, sizeof(int));
    p->n_recv_bufs = zb_alloc_array(n_chan, sizeof(int));
    p->use_param = zb_alloc_array((size_t)p->n_uses, sizeof(int));
    p->owner = zb_alloc_array((size_t)p->n_params, sizeof(int));
    p->name_order = zb_alloc_array((size_t)p->n_params, sizeof(int));
    if (p->first_layer == NULL || p->chunk == NULL || p->info == NULL ||
        p->layout == NULL || p->chan_name == NULL || p->n_send_bufs == NULL ||
        p->n_recv_bufs == NULL || p->part == NULL || p->n_parts == NULL ||
        p->use_param == NULL || p->owner == NULL || p->name_order == NULL) {
        return ZB_ENOMEM;
    }
    for (int i = 0; i < p->n_params; i++) {
        p->owner[i] = -1;
    }
    return ZB_OK;
}

struct most_bytes {
    const struct zb_backend_ops *ops;
    size_t bytes;
};

static void note_product(void *arg, const struct zb_launch *launch)
{
    struct most_bytes *most = arg;
    size_t bytes;

    if (launch->kernel == ZB_K_gemm) {
        bytes = most->ops->product_bytes(launch->params);
        most->bytes = bytes > most->bytes ? bytes : most->bytes;
    }
}

/* A stream's launches do not overlap, so that all use the same bytes. Those of
 * the whole model are those of any cut; a product of any chunk then finds what
 * it is allowed to use, however the model is cut. */
static enum zb_status find_stream_bytes(struct zb_run_plan *p)
{
    const struct zb_backend_ops *ops;
    struct most_bytes most = {.bytes = 0};
    const struct zb_visitor v = {.launch = note_product, .arg = &most};
    struct zb_chunk *all;
    enum zb_status st;

    /* A backend that is not there is refused where it is opened. */
    if (zb_backend_find(p->o.backend, &ops) != ZB_OK ||
        ops->scratch_bytes == 0) {
        return ZB_OK;
    }
    most.ops = ops;
    most.bytes = p->side_bytes = ops->scratch_bytes;
    ZB_TRY(zb_chunk_new(p->g, 0, zb_graph_n_layers(p->g), &p->max,
                        p->o.recompute, &all));
    st = zb_chunk_visit(all, &p->max, &v);
    zb_chunk_free(all);
    p->compute_bytes = most.bytes;
    return st;
}

static enum zb_status fill(struct zb_run_plan *p)
{
    enum zb_placement placement;
    size_t most;

    ZB_TRY(zb_planner_shape(p->planner, &placement, &p->n_chunk));
    if (placement == ZB_PLACE_LOOP && p->o.n_chunk > 0 &&
        strncmp(p->planner, "file:", 5) != 0) {
        p->n_chunk = p->o.n_chunk;
    }
    p->n_virtual = p->n_stages * p->n_chunk;
    ZB_TRY(zb_plan_input_init(&p->in, p->n_stages, p->o.n_micro, placement,
                              p->n_chunk));
    ZB_TRY(check_costs(p));
    ZB_TRY(alloc_arrays(p));
    find_uses(p);
    ZB_TRY(find_stream_bytes(p));
    ZB_TRY(zb_run_choose_cut(p));
    ZB_TRY(name_things(p));
    ZB_TRY(list_parts(p));
    find_owners(p);
    sort_names(p);
    return zb_run_device_bytes(p, &most);
}

static struct zb_bind largest_micro(const struct zb_graph *g,
                                    const struct zb_session_opts *o)
{
    int64_t n = (int64_t)o->n_dp * o->n_micro;

    return zb_parallel_bind(zb_graph_parallel(g), (o->max_rows + n - 1) / n,
                            o->max_seq);
}

int zb_copies_messages(const struct zb_session_opts *o)
{
    const struct zb_backend_ops *ops;

    /* A backend that is not there is refused where it is opened. */
    return o->p2p != ZB_P2P_AUTO ||
           (zb_backend_find(o->backend, &ops) == ZB_OK && ops->has_host_memory);
}

static enum zb_status plan_new(const struct zb_model *model,
                               const struct zb_session_opts *o, int may_run,
                               struct zb_run_plan **p_out)
{
    struct zb_cost_table *costs;
    struct zb_bind max;
    enum zb_status st;

    ZB_TRY(check_opts(o));
    ZB_TRY(check_links(model, o));
    max = largest_micro(zb_model_graph(model), o);
    ZB_TRY(zb_costs_make(zb_model_graph(model), &max, o, may_run, &costs));
    st = strcmp(o->planner, "auto") == 0
             ? zb_run_plan_fastest(model, o, &max, may_run, &costs, p_out)
             : zb_run_plan_make(model, o, &costs, 1, p_out);
    zb_costs_free(costs); /* where it failed */
    return st;
}

enum zb_status zb_run_plan_new(const struct zb_model *model,
                               const struct zb_session_opts *o,
                               struct zb_run_plan **p_out)
{
    return plan_new(model, o, 0, p_out);
}

enum zb_status zb_run_plan_new_on_devices(const struct zb_model *model,
                                          const struct zb_session_opts *o,
                                          struct zb_run_plan **p_out)
{
    return plan_new(model, o, 1, p_out);
}

enum zb_status zb_run_plan_make(const struct zb_model *model,
                                const struct zb_session_opts *o,
                                struct zb_cost_table **costs, double share,
                                struct zb_run_plan **p_out)
{
    struct zb_run_plan *p;
    enum zb_status st;

    p = zb_alloc(sizeof(*p));
    if (p == NULL) {
        return ZB_ENOMEM;
    }
    p->o = *o;
    p->model = model;
    p->g = zb_model_graph(model);
    p->storage = zb_graph_storage(p->g);
    p->n_stages = o->n_stages;
    p->n_params = zb_graph_n_params(p->g);
    p->n_uses = zb_graph_n_uses(p->g);
    p->n_data = zb_graph_n_data(p->g);
    p->n_consts = zb_graph_n_consts(p->g);
    p->par = *zb_graph_parallel(p->g);
    p->n_dp = o->n_dp;
    p->n_sp = p->par.sp;
    p->n_tp = p->par.tp;
    p->n_shards = p->n_dp * p->n_sp;
    p->n_columns = p->n_shards * p->n_tp;
    p->n_devices = p->n_stages * p->n_columns;
    p->is_copied = zb_copies_messages(o);
    p->is_linked = o->p2p == ZB_P2P_NCCL;
    p->has_group_links = p->n_columns > 1 && links_groups(o, p->n_devices);
    p->max = largest_micro(p->g, o);
    p->share = share;
    p->costs = *costs;
    p->planner = zb_strdup(o->planner);
    ZB_TRY_GOTO(st, p->planner == NULL ? ZB_ENOMEM : fill(p), err);
    /* Borrowed for the call only. */
    p->o.planner = p->planner;
    p->o.cost_cache = NULL;
    p->o.pretrained = NULL;
    p->o.resume = NULL;
    p->o.layers_per_chunk = NULL;
    p->o.f_cost = p->o.b_cost = p->o.w_cost = NULL;
    *costs = NULL;
    *p_out = p;
    return ZB_OK;
err:
    *costs = p->costs;
    p->costs = NULL;
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
    for (int c = 0; p->part != NULL && c < zb_n_channels(p); c++) {
        zb_free(p->part[c]);
    }
    zb_free(p->part);
    zb_free(p->n_parts);
    zb_schedule_free(p->eval);
    zb_schedule_free(p->sched);
    zb_plan_input_release(&p->in);
    zb_costs_free(p->costs);
    zb_free(p->row);
    zb_free(p->name_order);
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
