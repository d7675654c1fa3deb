/* SPDX-License-Identifier: MIT
 *
 * The time of F, B and W of each kind of layer: its own chunk, run as workers
 * run it, on memory that exists for that long. */
#include "config.h"
#include "run/profile.h"
#include "run/run_int.h"

#include <math.h>
#include <string.h>

#include "zb/machine.h"
#include "zb/mem.h"

#define MIN_ROUNDS 3
#define MAX_ROUNDS 25
#define WARM_UP 1
/* Time for all kinds together; MIN_ROUNDS are done in any case. */
#define BUDGET_NS 1200000000
/* Between two passes of a layer a stage touches its other layers. That many
 * bytes stand for them: more than any cache keeps. */
#define MAX_OTHERS ((size_t)64 << 20)
/* Kinds are measured in turn, so that one slow moment is shared by all, as far
 * as they fit into this together. */
#define MAX_TOGETHER ((size_t)512 << 20)

/* Device memory of one layer. Arrays as in struct zb_chunk_run. */
struct layer {
    struct zb_chunk_info info;
    const struct zb_chunk *chunk;
    struct zb_chunk_run run;
    void *space[ZB_N_SPACES];
    void *memory;
    void **data, **konst;
    zb_real **value, **grad, **m, **v;
    void **stored; /* what the passes read: `value`, or in 16 bits */
    int64_t *sample;
    double *loss_sum, *sum;
    zb_real *others; /* of the stage: cools the caches down */
    int64_t n_others;
    size_t bytes;
    double ns[ZB_N_PASSES][WARM_UP + MAX_ROUNDS];
};

/* ---- memory -------------------------------------------------------------- */

/* Counts bytes first (base NULL), then gives addresses. */
struct carver {
    char *base;
    size_t at;
};

static void *carve(struct carver *c, size_t bytes)
{
    void *ptr = c->base == NULL ? NULL : c->base + c->at;

    c->at += zb_round_up(bytes);
    return ptr;
}

static zb_real *carve_reals(struct carver *c, const struct zb_shape *shape)
{
    return carve(c, (size_t)zb_shape_elems(shape) * sizeof(zb_real));
}

static void carve_params(struct layer *l, const struct zb_profile_request *r,
                         struct carver *c)
{
    size_t n_state = zb_optim_state_reals(&r->o->optim);

    for (int i = 0; i < l->info.n_params; i++) {
        int param = l->info.params[i];
        struct zb_param_info info = zb_graph_param(r->g, param);

        l->value[param] = carve_reals(c, &info.shape);
        l->stored[param] =
            zb_graph_storage(r->g) == ZB_DTYPE_REAL
                ? (void *)l->value[param]
                : carve(c, (size_t)zb_shape_elems(&info.shape) *
                               zb_dtype_bytes(zb_graph_storage(r->g)));
        for (int u = 0; u < info.n_uses; u++) {
            for (int k = 0; k < l->info.n_uses; k++) {
                if (info.use_ids[u] == l->info.uses[k]) {
                    l->grad[info.use_ids[u]] = carve_reals(c, &info.shape);
                }
            }
        }
        if (info.has_gradient && n_state > 0) {
            l->m[param] = carve_reals(c, &info.shape);
        }
        if (info.has_gradient && n_state > 1) {
            l->v[param] = carve_reals(c, &info.shape);
        }
    }
}

static void carve_all(struct layer *l, const struct zb_profile_request *r,
                      struct carver *c)
{
    carve_params(l, r, c);
    for (int i = 0; i < zb_graph_n_consts(r->g); i++) {
        struct zb_data_info info = zb_graph_const(r->g, i);

        l->konst[i] = carve_reals(c, &info.shape);
    }
    for (int i = 0; i < zb_graph_n_data(r->g); i++) {
        struct zb_data_info info = zb_graph_data(r->g, i);
        struct zb_shape bound = zb_shape_bind(&info.shape, &r->max);

        l->data[i] = carve(c, (size_t)zb_shape_elems(&bound) *
                                  zb_dtype_bytes(info.dtype));
    }
    for (int i = 0; i < ZB_N_SPACES; i++) {
        if (l->info.bytes[i] > 0) {
            l->space[i] = carve(c, l->info.bytes[i]);
        }
    }
    l->sample = carve(c, (size_t)r->max.value[ZB_SYM_BATCH] * sizeof(int64_t));
    l->loss_sum = carve(c, ZB_LOSS_MAX * sizeof(double));
    l->sum = carve(c, sizeof(double));
    l->others = carve(c, (size_t)l->n_others * sizeof(zb_real));
}

/* What a stage holds on average of values and gradients of the whole model. */
static int64_t count_others(const struct zb_profile_request *r)
{
    double bytes = 0;
    size_t most = MAX_OTHERS;
    size_t each = sizeof(zb_real) + zb_dtype_bytes(zb_graph_storage(r->g));

    for (int i = 0; i < zb_graph_n_params(r->g); i++) {
        struct zb_param_info info = zb_graph_param(r->g, i);

        bytes +=
            (double)each / r->o->n_stages * (double)zb_shape_elems(&info.shape);
    }
    most = bytes < (double)most ? (size_t)bytes : most;
    return (int64_t)(most / sizeof(zb_real)) + 1;
}

static enum zb_status alloc_arrays(struct layer *l, const struct zb_graph *g)
{
    size_t n_params = (size_t)zb_graph_n_params(g);

    l->data = zb_alloc_array((size_t)zb_graph_n_data(g), sizeof(*l->data));
    l->konst = zb_alloc_array((size_t)zb_graph_n_consts(g), sizeof(*l->konst));
    l->value = zb_alloc_array(n_params, sizeof(*l->value));
    l->stored = zb_alloc_array(n_params, sizeof(*l->stored));
    l->m = zb_alloc_array(n_params, sizeof(*l->m));
    l->v = zb_alloc_array(n_params, sizeof(*l->v));
    l->grad = zb_alloc_array((size_t)zb_graph_n_uses(g), sizeof(*l->grad));
    if (l->data == NULL || l->konst == NULL || l->value == NULL ||
        l->stored == NULL ||
        l->m == NULL || l->v == NULL || l->grad == NULL) {
        return ZB_ENOMEM;
    }
    return ZB_OK;
}

/* Decide what it takes, on the host. */
static enum zb_status plan_layer(struct zb_seat *s, int kind, struct layer *l)
{
    const struct zb_profile_request *r = s->p->r;
    struct carver c = {NULL, 0};

    l->chunk = r->kinds->chunk[kind];
    l->info = zb_chunk_info(l->chunk);
    l->n_others = count_others(r);
    ZB_TRY(alloc_arrays(l, r->g));
    carve_all(l, r, &c);
    l->bytes = c.at;
    return ZB_OK;
}

static enum zb_status alloc_layer(struct zb_seat *s, struct layer *l)
{
    const struct zb_profile_request *r = s->p->r;
    const struct zb_parallel *par = zb_graph_parallel(r->g);
    struct carver c = {NULL, 0};

    s->axes = (struct zb_profile_axes){
        .ops = s->ops, .n_tp = par->tp, .n_sp = par->sp};
    ZB_TRY(s->ops->mem_alloc(s->dev, l->bytes, "profile", &l->memory));
    c.base = l->memory;
    carve_all(l, r, &c);
    l->run = (struct zb_chunk_run){
        .ops = s->ops,
        .stream = s->stream,
        .bind = r->max,
        .data = l->data,
        .consts = l->konst,
        .param = l->stored,
        .grad = l->grad,
        .loss_sum = l->loss_sum,
        .loss_scale = {1 / (double)zb_graph_loss_elems(r->g, 0, &r->max), 1},
        .is_training = 1,
        .coll = &zb_profile_coll_ops,
        .coll_arg = &s->axes,
        .sample = l->sample,
    };
    memcpy(l->run.space, l->space, sizeof(l->space));
    return ZB_OK;
}

static void release_memory(struct zb_seat *s, struct layer *l)
{
    if (l->memory != NULL) {
        /* After a failure there may still be work on the stream. */
        (void)!s->ops->stream_sync(s->stream);
        s->ops->mem_free(s->dev, l->memory);
        l->memory = NULL;
    }
}

static void free_layer(struct layer *l)
{
    zb_free(l->grad);
    zb_free(l->v);
    zb_free(l->m);
    zb_free(l->stored);
    zb_free(l->value);
    zb_free(l->konst);
    zb_free(l->data);
}

/* ---- contents ------------------------------------------------------------ */

static enum zb_status fill(struct zb_seat *s, zb_real *y, int64_t n,
                           double value)
{
    return zb_fill(s->ops, s->stream, ZB_DTYPE_REAL, y, n, value, "profile");
}

/* A message of activations or gradients: numbers as they come after a norm. */
static enum zb_status fill_message(struct zb_seat *s, struct layer *l,
                                   enum zb_space space)
{
    enum zb_dtype dtype = zb_graph_storage(s->p->r->g);
    size_t bytes = l->info.bytes[space];

    return bytes == 0
               ? ZB_OK
               : zb_fill_normal(s->ops, s->stream, (uint64_t)space, "profile",
                                0, 1, dtype, l->run.space[space],
                                (int64_t)(bytes / zb_dtype_bytes(dtype)));
}

/* The value that is updated, and what the passes read. */
static enum zb_status draw(struct zb_seat *s, struct layer *l, int param,
                           int64_t n)
{
    const struct zb_profile_request *r = s->p->r;
    const struct zb_shard_part to[] = {
        {zb_graph_storage(r->g), l->stored[param], 0, n},
        {ZB_DTYPE_REAL, l->value[param], 0, n},
    };
    int n_kinds = to[0].dtype == ZB_DTYPE_REAL ? 1 : 2;

    for (int i = 0; i < n_kinds; i++) {
        ZB_TRY(zb_fill_param(s->ops, s->stream, r->g, param, 0, r->o->seed,
                             &to[i]));
    }
    return ZB_OK;
}

static enum zb_status fill_params(struct zb_seat *s, struct layer *l)
{
    const struct zb_graph *g = s->p->r->g;

    for (int i = 0; i < l->info.n_params; i++) {
        int param = l->info.params[i];
        struct zb_param_info info = zb_graph_param(g, param);
        int64_t n = zb_shape_elems(&info.shape);

        ZB_TRY(draw(s, l, param, n));
        for (int u = 0; u < info.n_uses; u++) {
            zb_real *grad = l->grad[info.use_ids[u]];

            ZB_TRY(grad == NULL ? ZB_OK : fill(s, grad, n, 0));
        }
        ZB_TRY(l->m[param] == NULL ? ZB_OK : fill(s, l->m[param], n, 0));
        ZB_TRY(l->v[param] == NULL ? ZB_OK : fill(s, l->v[param], n, 0));
    }
    return ZB_OK;
}

static enum zb_status fill_layer(struct zb_seat *s, struct layer *l)
{
    const struct zb_profile_request *r = s->p->r;

    ZB_TRY(fill_params(s, l));
    ZB_TRY(fill(s, l->others, l->n_others, 1));
    for (int i = 0; i < zb_graph_n_consts(r->g); i++) {
        struct zb_data_info info = zb_graph_const(r->g, i);

        ZB_TRY(s->ops->copy_in(s->stream, l->konst[i],
                               zb_graph_const_value(r->g, i),
                               (size_t)zb_shape_elems(&info.shape) *
                                   sizeof(zb_real),
                               info.name));
    }
    for (int i = 0; i < zb_graph_n_data(r->g); i++) {
        struct zb_data_info info = zb_graph_data(r->g, i);
        struct zb_shape bound = zb_shape_bind(&info.shape, &r->max);

        ZB_TRY(s->ops->copy_in(s->stream, l->data[i], s->p->field[i],
                               (size_t)zb_shape_elems(&bound) *
                                   zb_dtype_bytes(info.dtype),
                               info.name));
    }
    ZB_TRY(s->ops->copy_in(s->stream, l->sample, s->p->sample,
                           (size_t)r->max.value[ZB_SYM_BATCH] *
                               sizeof(int64_t),
                           "sample indices"));
    ZB_TRY(fill_message(s, l, ZB_SPACE_IN));
    ZB_TRY(fill_message(s, l, ZB_SPACE_DIN));
    return s->ops->stream_sync(s->stream);
}

/* ---- time ---------------------------------------------------------------- */

static enum zb_status (*const pass_fn[ZB_N_PASSES])(
    const struct zb_chunk *c, const struct zb_chunk_run *run) = {
    [ZB_PASS_F] = zb_chunk_forward,
    [ZB_PASS_B] = zb_chunk_backward_input,
    [ZB_PASS_W] = zb_chunk_backward_weight,
};

static enum zb_status read_all(struct zb_seat *s, struct layer *l,
                               const void *x, size_t bytes)
{
    return bytes == 0 ? ZB_OK
                      : zb_sum_squares(s->ops, s->stream, x,
                                       (int64_t)(bytes / sizeof(zb_real)),
                                       l->sum, "profile");
}

/* What caches hold when a pass begins in a run: the message, which the layer
 * before or behind has just written, but no weights. They are read, since what
 * was written would still have to go to memory. */
static enum zb_status set_caches(struct zb_seat *s, struct layer *l, int pass)
{
    enum zb_space in = pass == ZB_PASS_F ? ZB_SPACE_IN : ZB_SPACE_DIN;

    ZB_TRY(read_all(s, l, l->others, (size_t)l->n_others * sizeof(zb_real)));
    ZB_TRY(read_all(s, l, l->space[in], l->info.bytes[in]));
    return s->ops->stream_sync(s->stream);
}

/* All seats begin at once. */
static enum zb_status time_pass(struct zb_seat *s, struct layer *l, int pass,
                                double *ns_out)
{
    int64_t begin;

    ZB_TRY(set_caches(s, l, pass));
    ZB_TRY(zb_seat_meet(s));
    begin = zb_now_ns();
    ZB_TRY(pass_fn[pass](l->chunk, &l->run));
    ZB_TRY(s->ops->stream_sync(s->stream));
    *ns_out = (double)(zb_now_ns() - begin);
    return ZB_OK;
}

/* Zero gradients, norm, update; with rate 0, so that values stay. */
static enum zb_status update_param(struct zb_seat *s, struct layer *l,
                                   int param)
{
    const struct zb_profile_request *r = s->p->r;
    struct zb_param_info info = zb_graph_param(r->g, param);
    int64_t n = zb_shape_elems(&info.shape);
    zb_real *grad = NULL;

    for (int u = 0; u < info.n_uses; u++) {
        grad = grad == NULL ? l->grad[info.use_ids[u]] : grad;
    }
    if (grad == NULL || !info.has_gradient) {
        return ZB_OK;
    }
    struct zb_optim_param op = {
        .name = info.name,
        .n = n,
        .no_decay = info.opts.no_decay,
        .grad = grad,
        .param = l->value[param],
        .m = l->m[param],
        .v = l->v[param],
        .dtype = zb_graph_storage(r->g),
        .stored = zb_graph_storage(r->g) != ZB_DTYPE_REAL ? l->stored[param]
                                                          : NULL,
    };

    ZB_TRY(fill(s, grad, n, 0));
    ZB_TRY(zb_sum_squares(s->ops, s->stream, grad, n, l->sum, "profile"));
    return zb_optim_step(&r->o->optim, s->ops, s->stream, &op, 1, 0, 1);
}

static enum zb_status time_update(struct zb_seat *s, struct layer *l,
                                  double *ns_out)
{
    double ns[MIN_ROUNDS];

    for (int round = -WARM_UP; round < MIN_ROUNDS; round++) {
        int64_t begin;

        ZB_TRY(set_caches(s, l, ZB_PASS_W));
        ZB_TRY(zb_seat_meet(s));
        begin = zb_now_ns();
        for (int i = 0; i < l->info.n_params; i++) {
            ZB_TRY(update_param(s, l, l->info.params[i]));
        }
        ZB_TRY(s->ops->stream_sync(s->stream));
        if (round >= 0) {
            ns[round] = (double)(zb_now_ns() - begin);
        }
    }
    *ns_out = zb_median(ns, MIN_ROUNDS);
    return ZB_OK;
}

static enum zb_status time_round(struct zb_seat *s, struct layer *l, int n,
                                 int round)
{
    for (int k = 0; k < n; k++) {
        for (int pass = 0; pass < ZB_N_PASSES; pass++) {
            ZB_TRY(time_pass(s, &l[k], pass, &l[k].ns[pass][round]));
        }
    }
    return ZB_OK;
}

/* The budget covers what it took to make the layers. */
static enum zb_status time_layers(struct zb_seat *s, struct layer *l, int n,
                                  int64_t began_ns, double *result)
{
    int64_t end = began_ns + BUDGET_NS / s->p->r->kinds->n_kinds * n;
    int round = 0, has_time = 1;

    while (round < WARM_UP + MIN_ROUNDS ||
           (round < WARM_UP + MAX_ROUNDS && has_time)) {
        ZB_TRY(time_round(s, l, n, round));
        ZB_TRY(zb_seat_has_time(s, end, &has_time));
        round++;
    }
    for (int k = 0; k < n; k++) {
        double *res = result + (size_t)k * ZB_N_LAYER_TIMES;

        for (int pass = 0; pass < ZB_N_PASSES; pass++) {
            res[ZB_LAYER_F + pass] = zb_median(l[k].ns[pass] + WARM_UP,
                                               (size_t)(round - WARM_UP));
        }
        ZB_TRY(time_update(s, &l[k], &res[ZB_LAYER_UPDATE]));
    }
    return ZB_OK;
}

static enum zb_status profile_together(struct zb_seat *s, struct layer *l,
                                       int n, double *result)
{
    int64_t began = zb_now_ns();
    enum zb_status st = ZB_OK;

    for (int k = 0; k < n && st == ZB_OK; k++) {
        st = alloc_layer(s, &l[k]);
        st = st == ZB_OK ? fill_layer(s, &l[k]) : st;
    }
    st = st == ZB_OK ? time_layers(s, l, n, began, result) : st;
    for (int k = 0; k < n; k++) {
        release_memory(s, &l[k]);
    }
    return st;
}

static enum zb_status profile_kinds(struct zb_seat *s, struct layer *l, int n)
{
    int first = 0;

    for (int k = 0; k < n; k++) {
        ZB_TRY(plan_layer(s, k, &l[k]));
    }
    while (first < n) {
        size_t bytes = l[first].bytes;
        int end = first + 1;

        while (end < n && bytes + l[end].bytes <= MAX_TOGETHER) {
            bytes += l[end++].bytes;
        }
        ZB_TRY(profile_together(s, l + first, end - first,
                                s->result +
                                    (size_t)first * ZB_N_LAYER_TIMES));
        first = end;
    }
    return ZB_OK;
}

size_t zb_profile_n_layer_results(const struct zb_profile_request *r)
{
    return (size_t)r->kinds->n_kinds * ZB_N_LAYER_TIMES + 2;
}

enum zb_status zb_profile_layers(struct zb_seat *s)
{
    int n = s->p->r->kinds->n_kinds;
    struct layer *l = zb_alloc_array((size_t)n, sizeof(*l));
    enum zb_status st;

    if (l == NULL) {
        return ZB_ENOMEM;
    }
    st = profile_kinds(s, l, n);
    for (int k = 0; k < n; k++) {
        free_layer(&l[k]);
    }
    zb_free(l);
    ZB_TRY(st);
    return zb_profile_messages(s, s->result + (size_t)n * ZB_N_LAYER_TIMES);
}
