/* SPDX-License-Identifier: MIT
 *
 * Parameters and gradients of a worker: start values, zeroing, summing the uses
 * of shared parameters, the norm, the update. */
#include "config.h"
#include "run/run_int.h"

#include <math.h>
#include <string.h>

#include "zb/ckpt.h"
#include "zb/hash.h"
#include "zb/mem.h"

enum zb_status zb_fill(const struct zb_backend_ops *ops,
                       struct zb_stream *stream, zb_real *y, int64_t n,
                       double value, const char *label)
{
    struct zb_k_fill k = {.n = n, .value = value, .y = y};
    struct zb_launch l = {.kernel = ZB_K_fill, .label = label, .params = &k};

    zb_launch_reals(&l, y, n, ZB_WRITE);
    return ops->launch(stream, &l);
}

enum zb_status zb_worker_fill(struct zb_worker *w, zb_real *y, int64_t n,
                              double value, const char *label)
{
    return zb_fill(w->ops, w->stream, y, n, value, label);
}

/* y += x */
static enum zb_status add_to(struct zb_worker *w, zb_real *y, const zb_real *x,
                             int64_t n, const char *label)
{
    struct zb_k_add k = {.n = n, .a = y, .b = x, .y = y};
    struct zb_launch l = {.kernel = ZB_K_add, .label = label, .params = &k};

    zb_launch_reals(&l, y, n, ZB_READ_WRITE);
    zb_launch_reals(&l, x, n, ZB_READ);
    return w->ops->launch(w->stream, &l);
}

/* ---- start values -------------------------------------------------------- */

/* The name is the key of a parameter's random numbers. */
static enum zb_status fill_normal(const struct zb_backend_ops *ops,
                                  struct zb_stream *stream,
                                  const struct zb_param_info *info,
                                  uint64_t seed, zb_real *y, int64_t n)
{
    struct zb_k_fill_normal k = {
        .n = n,
        .seed = seed,
        .key = zb_hash(info->name, strlen(info->name)),
        .std = info->opts.std,
        .y = y,
    };
    struct zb_launch l = {.kernel = ZB_K_fill_normal,
                          .label = info->name,
                          .params = &k};

    zb_launch_reals(&l, y, n, ZB_WRITE);
    return ops->launch(stream, &l);
}

enum zb_status zb_fill_param(const struct zb_backend_ops *ops,
                             struct zb_stream *stream,
                             const struct zb_param_info *info, uint64_t seed,
                             zb_real *y, int64_t n)
{
    switch (info->opts.init) {
    case ZB_INIT_NORMAL:
        return fill_normal(ops, stream, info, seed, y, n);
    case ZB_INIT_ONES:
        return zb_fill(ops, stream, y, n, 1, info->name);
    default:
        return zb_fill(ops, stream, y, n, 0, info->name);
    }
}

static enum zb_status init_param(struct zb_worker *w, int param)
{
    struct zb_param_info info = zb_graph_param(w->s->plan->g, param);

    return zb_fill_param(w->ops, w->stream, &info, w->s->plan->o.seed,
                         w->value[param], zb_param_elems(w->s->plan, param));
}

/* Files of base models lack the prefix of the model with a head, or the other
 * way round. */
static const struct zb_st_tensor *find_tensor(const struct zb_st_file *f,
                                              const char *name)
{
    static const char *const prefix[] = {"transformer.", "model."};
    const struct zb_st_tensor *t = zb_st_find(f, name);
    char longer[512];

    for (size_t i = 0; t == NULL && i < ZB_COUNT_OF(prefix); i++) {
        size_t len = strlen(prefix[i]);

        if (strncmp(name, prefix[i], len) == 0) {
            t = zb_st_find(f, name + len);
        } else {
            snprintf(longer, sizeof(longer), "%s%s", prefix[i], name);
            t = zb_st_find(f, longer);
        }
    }
    return t;
}

static enum zb_status check_dims(const struct zb_st_file *f,
                                 const struct zb_st_tensor *t,
                                 const struct zb_param_info *info)
{
    char want[64], have[64] = "";
    struct zb_shape s = {.n_dims = t->n_dims};

    for (int i = 0; i < t->n_dims && t->n_dims <= ZB_MAX_DIMS; i++) {
        s.dim[i] = t->dims[i];
    }
    if (t->n_dims <= ZB_MAX_DIMS && zb_shape_equal(&s, &info->shape)) {
        return ZB_OK;
    }
    zb_shape_print(&info->shape, want, sizeof(want));
    zb_shape_print(&s, have, sizeof(have));
    return zb_fail(ZB_ECONFIG, "%s: %s has shape %s, but the model needs %s",
                   f->path, t->name, have, want);
}

static enum zb_status load_param(struct zb_worker *w,
                                 const struct zb_st_file *f, int param)
{
    struct zb_param_info info = zb_graph_param(w->s->plan->g, param);
    const struct zb_st_tensor *t = find_tensor(f, info.name);
    int64_t n = zb_param_elems(w->s->plan, param);
    zb_real *host;
    enum zb_status st;

    if (t == NULL) {
        return zb_fail(ZB_ECONFIG, "%s has no tensor %s", f->path, info.name);
    }
    ZB_TRY(check_dims(f, t, &info));
    host = zb_alloc_array((size_t)n, sizeof(*host));
    if (host == NULL) {
        return ZB_ENOMEM;
    }
    ZB_TRY_GOTO(st, zb_st_read_real(f, t, host, n), out);
    ZB_TRY_GOTO(st,
                w->ops->copy_in(w->stream, w->value[param], host,
                                (size_t)n * sizeof(zb_real), info.name),
                out);
    st = w->ops->stream_sync(w->stream);
out:
    zb_free(host);
    return st;
}

static enum zb_status load_all(struct zb_worker *w, const char *path)
{
    struct zb_st_file *f;
    enum zb_status st = ZB_OK;

    ZB_TRY(zb_st_open(path, &f));
    for (int i = 0; i < w->n_mine && st == ZB_OK; i++) {
        st = load_param(w, f, w->mine[i]);
        atomic_fetch_add_explicit(&w->progress, 1, memory_order_relaxed);
    }
    zb_st_close(f);
    return st;
}

enum zb_status zb_worker_fill_params(struct zb_worker *w)
{
    const struct zb_run_plan *p = w->s->plan;

    for (int i = 0; i < p->n_consts; i++) {
        struct zb_data_info info = zb_graph_const(p->g, i);

        ZB_TRY(w->ops->copy_in(w->stream, w->konst[i],
                               zb_graph_const_value(p->g, i),
                               (size_t)zb_shape_elems(&info.shape) *
                                   sizeof(zb_real),
                               info.name));
    }
    for (int i = 0; i < w->n_mine; i++) {
        int param = w->mine[i];
        int64_t n = zb_param_elems(p, param);
        const char *name = zb_graph_param(p->g, param).name;

        if (p->o.pretrained == NULL) {
            ZB_TRY(init_param(w, param));
        }
        if (w->m[param] != NULL) {
            ZB_TRY(zb_worker_fill(w, w->m[param], n, 0, name));
        }
        if (w->v[param] != NULL) {
            ZB_TRY(zb_worker_fill(w, w->v[param], n, 0, name));
        }
    }
    if (p->o.pretrained != NULL) {
        ZB_TRY(load_all(w, p->o.pretrained));
    }
    ZB_TRY(zb_worker_zero_grad(w));
    return w->ops->stream_sync(w->stream);
}

/* ---- gradients ----------------------------------------------------------- */

enum zb_status zb_worker_zero_grad(struct zb_worker *w)
{
    const struct zb_run_plan *p = w->s->plan;

    w->ops->stream_mark(w->stream, "zero gradients");
    /* Another stage may still read a shared gradient for its update. */
    for (int s = 0; s < p->n_stages && p->has_shared; s++) {
        ZB_TRY(w->ops->stream_wait(w->stream, w->s->worker[s].opt_done));
    }
    for (int u = 0; u < p->n_uses; u++) {
        if (w->grad[u] != NULL) {
            ZB_TRY(zb_worker_fill(w, w->grad[u],
                                  zb_param_elems(p, p->use_param[u]), 0,
                        zb_graph_param(p->g, p->use_param[u]).name));
        }
    }
    return ZB_OK;
}

/* The gradient of a use, wherever it lies. */
static zb_real *use_grad(struct zb_worker *w, int use)
{
    for (int s = 0; s < w->s->plan->n_stages; s++) {
        if (w->s->worker[s].grad[use] != NULL) {
            return w->s->worker[s].grad[use];
        }
    }
    return NULL;
}

/* The first use's gradient becomes the sum, uses added in model order. */
static enum zb_status sum_uses(struct zb_worker *w, int param)
{
    struct zb_param_info info = zb_graph_param(w->s->plan->g, param);
    int64_t n = zb_param_elems(w->s->plan, param);

    for (int u = 1; u < info.n_uses; u++) {
        ZB_TRY(add_to(w, use_grad(w, info.use_ids[0]),
                      use_grad(w, info.use_ids[u]), n, info.name));
    }
    return ZB_OK;
}

/* What was added must not be added again. */
static enum zb_status clear_later_uses(struct zb_worker *w, int param)
{
    struct zb_param_info info = zb_graph_param(w->s->plan->g, param);
    int64_t n = zb_param_elems(w->s->plan, param);

    for (int u = 1; u < info.n_uses; u++) {
        zb_real *g = w->grad[info.use_ids[u]];

        if (g != NULL) {
            ZB_TRY(zb_worker_fill(w, g, n, 0, info.name));
        }
    }
    return ZB_OK;
}

static int is_trained(const struct zb_run_plan *p, int param)
{
    return zb_graph_param(p->g, param).has_gradient;
}

/* Order later work of this stream after an event of every stage. */
static enum zb_status wait_for_all(struct zb_worker *w,
                                   struct zb_event *(*event)(
                                       const struct zb_worker *))
{
    for (int s = 0; s < w->s->plan->n_stages; s++) {
        ZB_TRY(w->ops->stream_wait(w->stream, event(&w->s->worker[s])));
    }
    return ZB_OK;
}

static struct zb_event *grads_done(const struct zb_worker *w)
{
    return w->grads_done;
}

static struct zb_event *sums_done(const struct zb_worker *w)
{
    return w->sums_done;
}

enum zb_status zb_worker_reduce_grads(struct zb_worker *w)
{
    const struct zb_run_plan *p = w->s->plan;

    w->ops->stream_mark(w->stream, "sum gradients");
    if (p->has_shared) {
        ZB_TRY(w->ops->event_record(w->grads_done, w->stream));
        ZB_TRY(zb_group_meet(w->s->group));
        ZB_TRY(wait_for_all(w, grads_done));
    }
    for (int i = 0; i < w->n_mine; i++) {
        if (is_trained(p, w->mine[i]) && p->owner[w->mine[i]] == w->stage) {
            ZB_TRY(sum_uses(w, w->mine[i]));
        }
    }
    if (p->has_shared) {
        ZB_TRY(w->ops->event_record(w->sums_done, w->stream));
        ZB_TRY(zb_group_meet(w->s->group));
        ZB_TRY(wait_for_all(w, sums_done));
    }
    for (int i = 0; i < w->n_mine; i++) {
        if (is_trained(p, w->mine[i])) {
            ZB_TRY(clear_later_uses(w, w->mine[i]));
        }
    }
    return ZB_OK;
}

/* ---- norm and update ----------------------------------------------------- */

enum zb_status zb_sum_squares(const struct zb_backend_ops *ops,
                              struct zb_stream *stream, const zb_real *x,
                              int64_t n, double *y, const char *label)
{
    struct zb_k_sumsq_f64 k = {.n = n, .x = x, .y = y};
    struct zb_launch l = {
        .kernel = ZB_K_sumsq_f64, .label = label, .params = &k};

    zb_launch_reals(&l, x, n, ZB_READ);
    l.access[l.n_access++] = (struct zb_access){y, sizeof(*y), ZB_WRITE};
    return ops->launch(stream, &l);
}

/* Squared norms of the parameters this stage owns, into the group's table. */
static enum zb_status publish_norms(struct zb_worker *w)
{
    const struct zb_run_plan *p = w->s->plan;
    double *dev = (double *)(w->arena + p->layout[w->stage].sumsq);
    double *table = zb_group_values(w->s->group);
    size_t n = 0;

    for (int i = 0; i < w->n_mine; i++) {
        struct zb_param_info info = zb_graph_param(p->g, w->mine[i]);

        if (info.has_gradient && p->owner[w->mine[i]] == w->stage) {
            ZB_TRY(zb_sum_squares(w->ops, w->stream, w->grad[info.use_ids[0]],
                                  zb_param_elems(p, w->mine[i]), dev + n++,
                                  info.name));
        }
    }
    if (n > 0) {
        ZB_TRY(w->ops->copy_out(w->stream, w->sumsq_host, dev,
                                n * sizeof(double), "squared norms"));
    }
    ZB_TRY(w->ops->stream_sync(w->stream));
    ZB_TRY(w->ops->host_access(w->dev, w->sumsq_host, n * sizeof(double),
                               ZB_READ));
    n = 0;
    for (int i = 0; i < w->n_mine; i++) {
        if (is_trained(p, w->mine[i]) && p->owner[w->mine[i]] == w->stage) {
            table[w->mine[i]] = w->sumsq_host[n++];
        }
    }
    return ZB_OK;
}

static double total_norm(struct zb_worker *w)
{
    const struct zb_run_plan *p = w->s->plan;
    const double *table = zb_group_values(w->s->group);
    double sum = 0;

    for (int i = 0; i < p->n_params; i++) {
        if (is_trained(p, p->name_order[i])) {
            sum += table[p->name_order[i]];
        }
    }
    return sqrt(sum);
}

enum zb_status zb_worker_update(struct zb_worker *w, double lr,
                                double *norm_out)
{
    const struct zb_run_plan *p = w->s->plan;
    double norm, scale;

    w->ops->stream_mark(w->stream, "update");
    ZB_TRY(publish_norms(w));
    ZB_TRY(zb_group_meet(w->s->group));
    norm = total_norm(w);
    scale = zb_clip_scale(norm, p->o.optim.max_norm);
    w->t++;
    for (int i = 0; i < w->n_mine; i++) {
        int param = w->mine[i];
        struct zb_param_info info = zb_graph_param(p->g, param);
        struct zb_optim_param op = {
            .name = info.name,
            .n = zb_param_elems(p, param),
            .no_decay = info.opts.no_decay,
            .param = w->value[param],
            .m = w->m[param],
            .v = w->v[param],
        };

        if (info.has_gradient) {
            op.grad = use_grad(w, info.use_ids[0]);
            ZB_TRY(zb_optim_step(&p->o.optim, w->ops, w->stream, &op, w->t, lr,
                                 scale));
        }
    }
    if (p->has_shared) {
        ZB_TRY(w->ops->event_record(w->opt_done, w->stream));
        ZB_TRY(zb_group_meet(w->s->group));
    }
    *norm_out = norm;
    return ZB_OK;
}
