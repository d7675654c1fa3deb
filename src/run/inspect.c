/* SPDX-License-Identifier: MIT
 *
 * Looking into a session from outside: parameters, gradients, memory, times. */
#include "config.h"
#include "run/run_int.h"

#include <string.h>

#include "zb/ckpt.h"
#include "zb/compare.h"
#include "zb/mem.h"

const struct zb_schedule *zb_session_schedule(const struct zb_session *s)
{
    return s->plan->sched;
}

const struct zb_model *zb_session_model(const struct zb_session *s)
{
    return s->plan->model;
}

const char *zb_session_backend(const struct zb_session *s)
{
    return s->be->ops->name;
}

int zb_session_is_simulated(const struct zb_session *s)
{
    return s->be->ops->is_simulated;
}

double zb_session_c_cost(const struct zb_session *s)
{
    return s->plan->in.c_cost;
}

double zb_session_ns_per_cost(const struct zb_session *s)
{
    const struct zb_run_plan *p = s->plan;

    if (s->be->ops->is_simulated) {
        return p->o.sim_ns_per_cost;
    }
    return p->costs->source == ZB_COST_MEASURED ? p->unit_ns : 0;
}

size_t zb_session_planned_bytes(const struct zb_session *s, int stage)
{
    return s->plan->layout[stage].total;
}

size_t zb_session_allocated_bytes(const struct zb_session *s, int stage)
{
    size_t most = 0;

    for (int c = 0; c < s->plan->n_columns; c++) {
        size_t bytes = s->worker[zb_device_of(s->plan, stage, c)].peak_bytes;

        most = bytes > most ? bytes : most;
    }
    return most;
}

const char *zb_session_memory_part(const struct zb_session *s, int stage, int i,
                                   size_t *bytes_out)
{
    if (i < 0 || i >= ZB_N_REGIONS) {
        return NULL;
    }
    *bytes_out = s->plan->layout[stage].region_bytes[i];
    return zb_region_str((enum zb_region)i);
}

void zb_session_print(const struct zb_session *s, FILE *f)
{
    zb_run_plan_print(s->plan, f);
}

void zb_session_fail_node(struct zb_session *s, int stage, size_t node)
{
    s->worker[zb_device_of(s->plan, stage, 0)].fail_node = node;
}

int zb_session_fail_coll(struct zb_session *s, int device,
                         enum zb_group_kind kind, int k, int phase)
{
    const struct zb_worker *w = &s->worker[device];
    const struct zb_member *member[ZB_N_GROUP_KINDS] = {
        [ZB_GROUP_TP] = &w->tp_group,
        [ZB_GROUP_SP] = &w->sp_group,
        [ZB_GROUP_REDUCE] = &w->reduce,
        [ZB_GROUP_GATHER] = &w->gather,
    };

    if (member[kind]->group == NULL) {
        return 0;
    }
    zb_coll_fail_at(member[kind]->group, member[kind]->rank, k, phase);
    return 1;
}

double zb_session_step_flops(const struct zb_session *s)
{
    return s->last_flops;
}

struct zb_node_times zb_session_node_times(const struct zb_session *s,
                                           int stage)
{
    const struct zb_worker *w = &s->worker[zb_device_of(s->plan, stage, 0)];

    return (struct zb_node_times){.node = w->nodes->node,
                                  .n = w->nodes->n,
                                  .start_ns = w->start_ns,
                                  .end_ns = w->end_ns};
}

int64_t zb_session_nodes_ns(const struct zb_session *s, int64_t *busiest_out)
{
    int64_t first = INT64_MAX, last = 0, busiest = 0;

    for (int i = 0; i < s->plan->n_stages; i++) {
        struct zb_node_times t = zb_session_node_times(s, i);
        int64_t busy = 0;

        for (size_t k = 0; k < t.n; k++) {
            if (zb_node_is_compute(t.node[k].type)) {
                busy += t.end_ns[k] - t.start_ns[k];
                first = t.start_ns[k] < first ? t.start_ns[k] : first;
                last = t.end_ns[k] > last ? t.end_ns[k] : last;
            }
        }
        busiest = busy > busiest ? busy : busiest;
    }
    *busiest_out = busiest;
    return last > first ? last - first : 0;
}

double zb_session_measured_bubble(const struct zb_session *s)
{
    int64_t busiest, ns = zb_session_nodes_ns(s, &busiest);

    return ns > 0 ? 1 - (double)busiest / (double)ns : 0;
}

struct zb_session_stats zb_session_stats(const struct zb_session *s)
{
    struct zb_session_stats sum = {0, 0, 0};

    for (int c = 0; c < zb_n_channels(s->plan); c++) {
        struct zb_channel_stats st = zb_channel_stats(s->chan[c]);

        sum.n_messages += st.n_messages;
        sum.n_meta_writes += st.n_meta_writes;
        sum.n_meta_reads += st.n_meta_reads;
    }
    return sum;
}

/* ---- values of one parameter --------------------------------------------- */

/* A parameter or gradient on its way between the devices and a whole tensor:
 * every device that has a part of it copies its own, and the host puts them
 * together in the order of the devices. */
struct copy_arg {
    int param;
    zb_real **part;       /* [n_columns] of the stage that answers, or NULL */
    int is_sum;           /* copies in a tp group have parts of a sum */
    const zb_real *whole; /* set: the new value */
};

static size_t param_bytes(const struct zb_worker *w, int param)
{
    return (size_t)zb_param_elems(w->s->plan, param) * sizeof(zb_real);
}

static zb_real *add_part(struct zb_worker *w, struct copy_arg *a)
{
    zb_real *part = zb_alloc_array(
        (size_t)zb_param_elems(w->s->plan, a->param), sizeof(*part));

    a->part[w->column] = part;
    return part;
}

static enum zb_status copy_part(struct zb_worker *w, struct copy_arg *a,
                                const zb_real *src, const char *label)
{
    zb_real *part = add_part(w, a);

    if (part == NULL) {
        return ZB_ENOMEM;
    }
    ZB_TRY(w->ops->copy_out(w->stream, part, src, param_bytes(w, a->param),
                            label));
    return w->ops->stream_sync(w->stream);
}

/* What was updated, which ranks may have parts of: zeros are around them. */
static enum zb_status copy_master(struct zb_worker *w, struct copy_arg *a)
{
    zb_real *part = add_part(w, a), *master;
    int64_t first, n;

    if (part == NULL) {
        return ZB_ENOMEM;
    }
    n = zb_worker_master(w, a->param, &master, &first);
    if (n > 0) {
        ZB_TRY(w->ops->copy_out(w->stream, part + first, master,
                                (size_t)n * sizeof(*part), "parameter"));
    }
    return w->ops->stream_sync(w->stream);
}

/* A parameter of 16 bits that is not trained. */
static enum zb_status copy_stored(struct zb_worker *w, struct copy_arg *a)
{
    const struct zb_run_plan *p = w->s->plan;
    int64_t n = zb_param_elems(p, a->param);
    void *stored = zb_alloc(zb_stored_bytes(p, n));
    zb_real *part = add_part(w, a);
    enum zb_status st = stored == NULL || part == NULL ? ZB_ENOMEM : ZB_OK;

    if (st == ZB_OK) {
        st = w->ops->copy_out(w->stream, stored, w->value[a->param],
                              zb_stored_bytes(p, n), "parameter");
    }
    if (st == ZB_OK) {
        st = w->ops->stream_sync(w->stream);
    }
    if (st == ZB_OK) {
        zb_dtype_load(p->storage, n, stored, part);
    }
    zb_free(stored);
    return st;
}

/* One of those that hold the same shard; of masters, all that have a part. */
static enum zb_status do_get_param(struct zb_worker *w, void *arg)
{
    struct copy_arg *a = arg;
    const struct zb_run_plan *p = w->s->plan;
    struct zb_param_info info = zb_graph_param(p->g, a->param);
    int is_first = w->dp == 0 && w->sp == 0;

    if (p->owner[a->param] != w->stage || w->tp % info.n_copies != 0) {
        return ZB_OK;
    }
    if (p->storage == ZB_DTYPE_REAL) {
        return is_first ? copy_part(w, a, w->value[a->param], "parameter")
                        : ZB_OK;
    }
    if (info.has_gradient) {
        return is_first || p->o.zero_stage > 0 ? copy_master(w, a) : ZB_OK;
    }
    return is_first ? copy_stored(w, a) : ZB_OK;
}

/* Every device that holds the parameter gets its shard of the value. */
static enum zb_status do_set_param(struct zb_worker *w, void *arg)
{
    struct copy_arg *a = arg;
    zb_real *shard;
    enum zb_status st;

    if (w->value[a->param] == NULL) {
        return ZB_OK;
    }
    shard = zb_alloc_array((size_t)zb_param_elems(w->s->plan, a->param),
                           sizeof(*shard));
    if (shard == NULL) {
        return ZB_ENOMEM;
    }
    zb_shard_from_whole(w->s->plan, a->param, w->tp, a->whole, shard);
    st = zb_worker_put_param(w, a->param, shard);
    zb_free(shard);
    return st;
}

/* All ranks of dp and sp have a part of the sum; of the copies in a tp group
 * all, or one. */
static enum zb_status do_get_grad(struct zb_worker *w, void *arg)
{
    struct copy_arg *a = arg;
    struct zb_param_info info = zb_graph_param(w->s->plan->g, a->param);

    ZB_TRY(zb_worker_sum_uses(w));
    if (w->s->plan->owner[a->param] != w->stage || !info.has_gradient ||
        (w->tp % info.n_copies != 0 && !info.is_partial)) {
        return w->ops->stream_sync(w->stream);
    }
    return copy_part(w, a, w->grad[info.use_ids[0]], "gradient");
}

static enum zb_status check_param(const struct zb_session *s, int param)
{
    if (param < 0 || param >= s->plan->n_params) {
        return zb_fail(ZB_EINVAL, "there is no parameter %d", param);
    }
    return ZB_OK;
}

/* Add what a column has to what the first column with the same elements has. */
static void add_part_of(const struct zb_session *s, struct copy_arg *a,
                        int column)
{
    struct zb_copies part[ZB_SPLIT_MAX];
    int n = zb_graph_param_copies(s->plan->g, a->param, part);
    int tp = zb_column_of(s->plan, column).tp;

    for (int k = 0; k < n; k++) {
        int to = a->is_sum ? tp - tp % part[k].n_copies : tp;

        for (int64_t i = 0; to != column && i < part[k].n; i++) {
            a->part[to][part[k].first + i] +=
                a->part[column][part[k].first + i];
        }
    }
}

static void add_parts(const struct zb_session *s, struct copy_arg *a)
{
    for (int c = 0; c < s->plan->n_columns; c++) {
        if (a->part[c] != NULL) {
            add_part_of(s, a, c);
        }
    }
}

/* Where ranks have the same, it is the first one's that counts, and so comes
 * last. */
static void join_parts(const struct zb_session *s, struct copy_arg *a,
                       zb_real *out)
{
    for (int tp = s->plan->n_tp - 1; tp >= 0; tp--) {
        if (a->part[tp] != NULL) {
            zb_write_shard(s->plan, a->param, tp, 0,
                           zb_param_elems(s->plan, a->param), a->part[tp],
                           out);
        }
    }
}

static enum zb_status get_whole(struct zb_session *s, int param,
                                zb_command_fn fn, int is_sum, zb_real *out)
{
    struct copy_arg a = {.param = param, .is_sum = is_sum};
    enum zb_status st;

    ZB_TRY(check_param(s, param));
    a.part = zb_alloc_array((size_t)s->plan->n_columns, sizeof(*a.part));
    if (a.part == NULL) {
        return ZB_ENOMEM;
    }
    st = zb_session_each(s, fn, &a);
    if (st == ZB_OK) {
        add_parts(s, &a);
        join_parts(s, &a, out);
    }
    for (int c = 0; c < s->plan->n_columns; c++) {
        zb_free(a.part[c]);
    }
    zb_free(a.part);
    return st;
}

enum zb_status zb_session_get_param(struct zb_session *s, int param,
                                    zb_real *out)
{
    return get_whole(s, param, do_get_param, 0, out);
}

enum zb_status zb_session_set_param(struct zb_session *s, int param,
                                    const zb_real *value)
{
    struct copy_arg a = {.param = param, .whole = value};

    ZB_TRY(check_param(s, param));
    return zb_session_each(s, do_set_param, &a);
}

enum zb_status zb_session_get_grad(struct zb_session *s, int param,
                                   zb_real *out)
{
    uint64_t turn;

    ZB_TRY(check_param(s, param));
    if (s->is_reduced && s->plan->n_columns > 1) {
        return zb_fail(ZB_EINVAL, "gradients are spread over the ranks after "
                                  "an optimizer step: ask before it");
    }
    for (int64_t i = 0; i < zb_param_whole_elems(s->plan, param); i++) {
        out[i] = 0; /* stays for a parameter that has no gradient */
    }
    ZB_TRY(get_whole(s, param, do_get_grad, 1, out));
    turn = s->worker[0].turn + !s->is_reduced;
    for (int64_t i = 0; zb_scales_loss(s->plan) &&
                        i < zb_param_whole_elems(s->plan, param);
         i++) {
        out[i] /= (zb_real)s->norms.loss_scale[turn % 2];
    }
    return ZB_OK;
}

/* ---- all gradients into a file ------------------------------------------- */

/* Of the parameters that are not frozen. */
static enum zb_status collect_grads(struct zb_session *s,
                                    struct zb_st_out *tensors, int *n_out)
{
    for (int i = 0; i < s->plan->n_params; i++) {
        int param = s->plan->name_order[i];
        struct zb_param_info info = zb_graph_param(s->plan->g, param);
        zb_real *value;

        if (info.opts.is_frozen) {
            continue;
        }
        value = zb_alloc_array((size_t)zb_param_whole_elems(s->plan, param),
                               sizeof(*value));
        if (value == NULL) {
            return ZB_ENOMEM;
        }
        tensors[*n_out] = (struct zb_st_out){.name = info.name,
                                             .dtype = ZB_ST_REAL,
                                             .n_dims = info.whole.n_dims,
                                             .data = value};
        memcpy(tensors[(*n_out)++].dims, info.whole.dim,
               (size_t)info.whole.n_dims * sizeof(info.whole.dim[0]));
        ZB_TRY(zb_session_get_grad(s, param, value));
    }
    return ZB_OK;
}

static void free_tensors(struct zb_st_out *tensors, int n)
{
    for (int i = 0; i < n; i++) {
        zb_free((void *)(uintptr_t)tensors[i].data);
    }
    zb_free(tensors);
}

enum zb_status zb_session_dump_grads(struct zb_session *s, const char *path,
                                     double loss)
{
    struct zb_st_out *tensors =
        zb_alloc_array((size_t)s->plan->n_params + 1, sizeof(*tensors));
    int n = 0;
    enum zb_status st;

    if (tensors == NULL) {
        return ZB_ENOMEM;
    }
    ZB_TRY_GOTO(st, collect_grads(s, tensors, &n), out);
    tensors[n] = (struct zb_st_out){
        .name = "loss", .dtype = ZB_ST_F64, .data = &loss};
    st = zb_st_write(path, tensors, (size_t)n + 1, NULL, 0);
out:
    free_tensors(tensors, n);
    return st;
}

void zb_session_watch_gpus(struct zb_session *s)
{
    s->watches_gpus = 1;
}

const struct zb_gpu_state *zb_session_gpus(const struct zb_session *s,
                                           int *n_out)
{
    *n_out = s->n_gpus;
    return s->gpu;
}
