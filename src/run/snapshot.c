/* SPDX-License-Identifier: MIT
 *
 * Everything that a run needs to go on, from the devices into whole tensors in
 * host memory: each device copies what it alone has, straight to its place. */
#include "config.h"
#include "run/run_int.h"

#include <stdio.h>
#include <string.h>

#include "zb/mem.h"

#define MAX_MOMENTS 2 /* ZB_CKPT_M, ZB_CKPT_V */

const char *zb_optim_name(const struct zb_optim *o)
{
    return o->kind == ZB_OPTIM_SGD ? "sgd" : "adamw";
}

/* ---- what a session can go on from --------------------------------------- */

static enum zb_status check_moments(const struct zb_param_info *info,
                                    const struct zb_ckpt *c, int n)
{
    for (int k = 0; k < n; k++) {
        struct zb_weight x = zb_ckpt_find(c, (enum zb_ckpt_part)k, info->name);

        if (x.tensor == NULL || x.tensor->dtype == ZB_ST_OTHER ||
            x.tensor->n_elems != zb_shape_elems(&info->whole)) {
            return zb_fail(ZB_ECONFIG, "%s: %s%s %s", c->path,
                           zb_ckpt_prefix[k], info->name,
                           x.tensor == NULL ? "is missing"
                                            : "does not fit the model");
        }
    }
    return ZB_OK;
}

/* A master need not be there: the checkpoint of an fp32 run has none. */
static enum zb_status check_master(const struct zb_param_info *info,
                                   const struct zb_ckpt *c)
{
    struct zb_weight x = zb_ckpt_find(c, ZB_CKPT_MASTER, info->name);

    return x.tensor == NULL || x.tensor->n_elems == zb_shape_elems(&info->whole)
               ? ZB_OK
               : zb_fail(ZB_ECONFIG, "%s: %s%s does not fit the model", c->path,
                         zb_ckpt_prefix[ZB_CKPT_MASTER], info->name);
}

enum zb_status zb_check_resume(const struct zb_graph *g,
                               const struct zb_session_opts *o)
{
    const struct zb_ckpt *c = o->resume;
    int n_moments = (int)zb_optim_state_reals(&o->optim);

    ZB_TRY(zb_check_weights(g, 1, c->model));
    if (strcmp(c->state.optimizer, zb_optim_name(&o->optim)) != 0 ||
        c->state.n_moments < n_moments) {
        return zb_fail(ZB_ECONFIG,
                       "%s: has %d moments of %s, but the optimizer is %s, "
                       "which needs %d",
                       c->path, c->state.n_moments, c->state.optimizer,
                       zb_optim_name(&o->optim), n_moments);
    }
    for (int i = 0; i < zb_graph_n_params(g); i++) {
        struct zb_param_info info = zb_graph_param(g, i);

        ZB_TRY(check_master(&info, c));
        if (info.has_gradient) {
            ZB_TRY(check_moments(&info, c, n_moments));
        }
    }
    return ZB_OK;
}

/* ---- copying ------------------------------------------------------------- */

/* Elements [first, first + n) of a shard, of which y is the first on the device
 * in this type, to where they belong in a whole tensor. `stage` and `stored`
 * have room for ZB_STAGE_ELEMS. */
struct copy {
    int param;
    int64_t first, n;
    enum zb_dtype dtype;
    const char *y;
    zb_real *whole;
};

struct room {
    zb_real *stage;
    void *stored;
};

static enum zb_status copy_piece(struct zb_worker *w, const struct copy *c,
                                 const struct room *room)
{
    const char *name = zb_graph_param(w->s->plan->g, c->param).name;
    size_t size = zb_dtype_bytes(c->dtype);

    for (int64_t at = 0; at < c->n; at += ZB_STAGE_ELEMS) {
        int64_t n = c->n - at < ZB_STAGE_ELEMS ? c->n - at : ZB_STAGE_ELEMS;
        int is_real = c->dtype == ZB_DTYPE_REAL;

        ZB_TRY(w->ops->copy_out(
            w->stream, is_real ? (void *)room->stage : room->stored,
            c->y + (size_t)at * size, (size_t)n * size, name));
        ZB_TRY(w->ops->stream_sync(w->stream));
        if (!is_real) {
            zb_dtype_load(c->dtype, n, room->stored, room->stage);
        }
        zb_write_shard(w->s->plan, c->param, w->tp, c->first + at, n,
                       room->stage, c->whole);
    }
    return ZB_OK;
}

/* Of the tp ranks that have the same elements the first one copies them. */
static enum zb_status copy_own(struct zb_worker *w, const struct copy *c,
                               const struct room *room)
{
    struct zb_copies run[ZB_SPLIT_MAX];
    int n_runs = zb_graph_param_copies(w->s->plan->g, c->param, run);

    for (int i = 0; i < n_runs; i++) {
        struct copy part = *c;
        int64_t end = run[i].first + run[i].n;

        part.first = run[i].first > c->first ? run[i].first : c->first;
        part.n = (end < c->first + c->n ? end : c->first + c->n) - part.first;
        part.y += (part.first - c->first) * (int64_t)zb_dtype_bytes(c->dtype);
        if (part.n > 0 && w->tp % run[i].n_copies == 0) {
            ZB_TRY(copy_piece(w, &part, room));
        }
    }
    return ZB_OK;
}

/* Parameter j of a bucket: what this rank updates of its value (or master) and
 * moments. */
static enum zb_status copy_trained(struct zb_worker *w,
                                   const struct zb_bucket *b, int j,
                                   struct zb_ckpt_shot *shot,
                                   const struct room *room)
{
    const struct zb_run_plan *p = w->s->plan;
    struct zb_ckpt_param *to = &shot->param[b->param[j]];
    const size_t moment[MAX_MOMENTS] = {b->m, b->v};
    struct copy c = {.param = b->param[j], .dtype = ZB_DTYPE_REAL};
    int64_t begin, end;
    size_t at;

    zb_worker_part(w, b, &begin, &end);
    c.n = zb_bucket_part(p, b, j, begin, end, &c.first);
    if (c.n <= 0) {
        return ZB_OK;
    }
    at = (size_t)(b->first[j] + c.first - begin) * sizeof(zb_real);
    c.whole = to->value;
    c.y = b->master != ZB_NO_OFFSET
              ? w->arena + b->master + at
              : (const char *)zb_stored_at(p, w->value[c.param], c.first);
    ZB_TRY(copy_own(w, &c, room));
    for (int k = 0; k < MAX_MOMENTS && moment[k] != ZB_NO_OFFSET; k++) {
        c.whole = to->moment[k];
        c.y = w->arena + moment[k] + at;
        ZB_TRY(copy_own(w, &c, room));
    }
    return ZB_OK;
}

static enum zb_status copy_all(struct zb_worker *w, struct zb_ckpt_shot *shot,
                               const struct room *room)
{
    const struct zb_run_plan *p = w->s->plan;
    const struct zb_buckets *all = &p->layout[w->stage].buckets;
    int is_first = w->dp == 0 && w->sp == 0;

    for (int i = 0; i < all->n; i++) {
        for (int j = 0; j < all->bucket[i].n_params; j++) {
            if (p->owner[all->bucket[i].param[j]] == w->stage &&
                (is_first || p->o.zero_stage > 0)) {
                ZB_TRY(copy_trained(w, &all->bucket[i], j, shot, room));
            }
        }
    }
    for (int i = 0; i < w->n_mine && is_first; i++) {
        const struct copy c = {.param = w->mine[i],
                               .n = zb_param_elems(p, w->mine[i]),
                               .dtype = p->storage,
                               .y = w->value[w->mine[i]],
                               .whole = shot->param[w->mine[i]].value};

        if (p->owner[w->mine[i]] == w->stage && c.whole != NULL &&
            !shot->param[w->mine[i]].is_trained) {
            ZB_TRY(copy_own(w, &c, room));
        }
    }
    return ZB_OK;
}

/* Devices write to places of their own in the same tensors. */
static enum zb_status do_snapshot(struct zb_worker *w, void *arg)
{
    struct room room = {
        .stage = zb_alloc_array(ZB_STAGE_ELEMS, sizeof(zb_real)),
        .stored = zb_alloc_array(ZB_STAGE_ELEMS, sizeof(zb_real))};
    enum zb_status st = room.stage == NULL || room.stored == NULL
                            ? ZB_ENOMEM
                            : copy_all(w, arg, &room);

    zb_free(room.stored);
    zb_free(room.stage);
    return st;
}

/* ---- the result ---------------------------------------------------------- */

static enum zb_status init_param(const struct zb_param_info *info,
                                 int n_moments, struct zb_ckpt_param *p)
{
    p->name = zb_strdup(info->name);
    p->n_dims = info->whole.n_dims;
    memcpy(p->dims, info->whole.dim, (size_t)p->n_dims * sizeof(p->dims[0]));
    p->n = zb_shape_elems(&info->whole);
    p->is_trained = info->has_gradient;
    p->value = zb_alloc_array((size_t)p->n, sizeof(zb_real));
    if (p->name == NULL || p->value == NULL) {
        return ZB_ENOMEM;
    }
    for (int k = 0; k < n_moments && p->is_trained; k++) {
        p->moment[k] = zb_alloc_array((size_t)p->n, sizeof(zb_real));
        if (p->moment[k] == NULL) {
            return ZB_ENOMEM;
        }
    }
    return ZB_OK;
}

static enum zb_status init_shot(const struct zb_session *s,
                                struct zb_ckpt_shot *c)
{
    const struct zb_run_plan *p = s->plan;
    const char *adapter_json = zb_model_adapter_json(p->model);
    int n_moments = (int)zb_optim_state_reals(&p->o.optim);

    c->storage = p->storage;
    if (adapter_json != NULL) {
        c->adapter_json = zb_strdup(adapter_json);
        if (c->adapter_json == NULL) {
            return ZB_ENOMEM;
        }
    }
    c->config_json = zb_strdup(zb_model_config_json(p->model));
    c->param = zb_alloc_array((size_t)p->n_params, sizeof(*c->param));
    if (c->config_json == NULL || c->param == NULL) {
        return ZB_ENOMEM;
    }
    for (int i = 0; i < p->n_params; i++) {
        struct zb_param_info info = zb_graph_param(p->g, i);

        c->n++;
        if (adapter_json == NULL || info.opts.is_adapter) {
            ZB_TRY(init_param(&info, n_moments, &c->param[i]));
        }
    }
    return ZB_OK;
}

/* Until here a parameter had its number in the model. */
static void leave_out_unsaved(struct zb_ckpt_shot *c)
{
    size_t n = 0;

    for (size_t i = 0; i < c->n; i++) {
        if (c->param[i].value != NULL) {
            c->param[n++] = c->param[i];
        }
    }
    c->n = n;
}

/* After the workers have looked at the last step's norm. */
static void fill_state(const struct zb_session *s, struct zb_ckpt_state *state)
{
    const struct zb_run_plan *p = s->plan;

    state->seed = p->o.seed;
    state->n_batches = s->worker[0].step;
    state->n_updates = s->worker[0].t;
    snprintf(state->optimizer, sizeof(state->optimizer), "%s",
             zb_optim_name(&p->o.optim));
    state->n_moments = (int)zb_optim_state_reals(&p->o.optim);
    state->has_scale = zb_scales_loss(p);
    state->scale = s->scaler.scale;
    state->n_good = s->scaler.n_good;
    state->n_overflows = s->scaler.n_overflows;
}

enum zb_status zb_session_snapshot(struct zb_session *s,
                                   struct zb_ckpt_shot **shot_out)
{
    struct zb_ckpt_shot *c = zb_alloc(sizeof(*c));
    enum zb_status st;

    if (c == NULL) {
        return ZB_ENOMEM;
    }
    ZB_TRY_GOTO(st, init_shot(s, c), err);
    ZB_TRY_GOTO(st, zb_session_each(s, do_snapshot, c), err);
    leave_out_unsaved(c);
    fill_state(s, &c->state);
    *shot_out = c;
    return ZB_OK;
err:
    zb_ckpt_shot_free(c);
    return st;
}
