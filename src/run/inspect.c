/* SPDX-License-Identifier: MIT
 *
 * Looking into a session from outside: parameters, gradients, memory, times. */
#include "config.h"
#include "run/run_int.h"

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
    return s->worker[stage].arena_bytes;
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
    s->worker[stage].fail_node = node;
}

double zb_session_step_flops(const struct zb_session *s)
{
    return s->last_flops;
}

struct zb_node_times zb_session_node_times(const struct zb_session *s,
                                           int stage)
{
    const struct zb_worker *w = &s->worker[stage];

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

struct copy_arg {
    int param;
    zb_real *out;
    const zb_real *in;
};

static size_t param_bytes(const struct zb_worker *w, int param)
{
    return (size_t)zb_param_elems(w->s->plan, param) * sizeof(zb_real);
}

static enum zb_status do_get_param(struct zb_worker *w, void *arg)
{
    struct copy_arg *a = arg;

    if (w->s->plan->owner[a->param] != w->stage) {
        return ZB_OK;
    }
    ZB_TRY(w->ops->copy_out(w->stream, a->out, w->value[a->param],
                            param_bytes(w, a->param), "parameter"));
    return w->ops->stream_sync(w->stream);
}

/* Every stage that holds the parameter gets the value. */
static enum zb_status do_set_param(struct zb_worker *w, void *arg)
{
    struct copy_arg *a = arg;

    if (w->value[a->param] == NULL) {
        return ZB_OK;
    }
    ZB_TRY(w->ops->copy_in(w->stream, w->value[a->param], a->in,
                           param_bytes(w, a->param), "parameter"));
    return w->ops->stream_sync(w->stream);
}

static enum zb_status do_get_grad(struct zb_worker *w, void *arg)
{
    struct copy_arg *a = arg;
    struct zb_param_info info = zb_graph_param(w->s->plan->g, a->param);

    ZB_TRY(zb_worker_reduce_grads(w));
    if (w->s->plan->owner[a->param] == w->stage && info.has_gradient) {
        ZB_TRY(w->ops->copy_out(w->stream, a->out, w->grad[info.use_ids[0]],
                                param_bytes(w, a->param), "gradient"));
    }
    return w->ops->stream_sync(w->stream);
}

static enum zb_status check_param(const struct zb_session *s, int param)
{
    if (param < 0 || param >= s->plan->n_params) {
        return zb_fail(ZB_EINVAL, "there is no parameter %d", param);
    }
    return ZB_OK;
}

enum zb_status zb_session_get_param(struct zb_session *s, int param,
                                    zb_real *out)
{
    struct copy_arg a = {.param = param, .out = out};

    ZB_TRY(check_param(s, param));
    return zb_session_each(s, do_get_param, &a);
}

enum zb_status zb_session_set_param(struct zb_session *s, int param,
                                    const zb_real *value)
{
    struct copy_arg a = {.param = param, .in = value};

    ZB_TRY(check_param(s, param));
    return zb_session_each(s, do_set_param, &a);
}

enum zb_status zb_session_get_grad(struct zb_session *s, int param,
                                   zb_real *out)
{
    struct copy_arg a = {.param = param, .out = out};

    ZB_TRY(check_param(s, param));
    for (int64_t i = 0; i < zb_param_elems(s->plan, param); i++) {
        out[i] = 0; /* stays for a parameter that has no gradient */
    }
    return zb_session_each(s, do_get_grad, &a);
}

/* ---- all gradients into a file ------------------------------------------- */

static enum zb_status collect_grads(struct zb_session *s,
                                    struct zb_st_out *tensors)
{
    for (int i = 0; i < s->plan->n_params; i++) {
        int param = s->plan->name_order[i];
        struct zb_param_info info = zb_graph_param(s->plan->g, param);
        zb_real *value = zb_alloc_array(
            (size_t)zb_param_elems(s->plan, param), sizeof(*value));

        tensors[i] = (struct zb_st_out){.name = info.name,
                                        .dtype = ZB_ST_REAL,
                                        .n_dims = info.shape.n_dims,
                                        .data = value};
        for (int d = 0; d < info.shape.n_dims; d++) {
            tensors[i].dims[d] = info.shape.dim[d];
        }
        if (value == NULL) {
            return ZB_ENOMEM;
        }
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
    int n = s->plan->n_params;
    struct zb_st_out *tensors = zb_alloc_array((size_t)n + 1, sizeof(*tensors));
    enum zb_status st;

    if (tensors == NULL) {
        return ZB_ENOMEM;
    }
    ZB_TRY_GOTO(st, collect_grads(s, tensors), out);
    tensors[n] = (struct zb_st_out){
        .name = "loss", .dtype = ZB_ST_F64, .data = &loss};
    st = zb_st_write(path, tensors, (size_t)n + 1, NULL, 0);
out:
    free_tensors(tensors, n);
    return st;
}
