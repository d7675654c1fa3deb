/* SPDX-License-Identifier: MIT
 *
 * What a worker shows in host memory, where others of its groups, or stages
 * that share a parameter, do not reach its device: sources of collectives of tp
 * and sp, each in a room of its own, and its parameters and gradients, which
 * lie there as they do in the arena. */
#include "config.h"
#include "run/run_int.h"

static const struct zb_layout *layout(const struct zb_worker *w)
{
    return &w->s->plan->layout[w->stage];
}

/* The part of the arena that is shown: regions lie in this order. */
static void plan_arena(struct zb_worker *w, int has_values, int has_grads)
{
    const struct zb_layout *l = layout(w);
    enum zb_region first = has_values ? ZB_REGION_PARAM : ZB_REGION_GRAD;
    enum zb_region last = has_grads ? ZB_REGION_GRAD : ZB_REGION_PARAM;

    if (has_values || has_grads) {
        w->mirror.first = l->region_offset[first];
        w->mirror.arena_bytes =
            l->region_offset[last] + l->region_bytes[last] - w->mirror.first;
    }
}

/* Whether another stage reads gradients of this one and does not reach them. */
static int has_far_sharer(const struct zb_worker *w)
{
    const struct zb_run_plan *p = w->s->plan;

    for (int s = 0; s < p->n_stages; s++) {
        for (int i = 0; i < p->n_params; i++) {
            if (zb_is_shared_by(p, w->stage, s, i) &&
                zb_reach_of(&w->s->peers, w->device,
                            zb_worker_at(w, s)->device) == ZB_REACH_NONE) {
                return 1;
            }
        }
    }
    return 0;
}

enum zb_status zb_worker_plan_mirrors(struct zb_worker *w)
{
    struct zb_apart apart = zb_worker_apart(w);
    struct zb_coll_room room;

    w->mirror.has_far_sharer = has_far_sharer(w);
    plan_arena(w, apart.gather && w->s->plan->o.zero_stage > 0,
               apart.reduce || apart.copies || w->mirror.has_far_sharer);
    if (apart.tp || apart.sp) {
        ZB_TRY(zb_find_coll_room(w->s->plan, w->stage, &layout(w)->buckets,
                                 &room));
        w->mirror.tp_bytes = apart.tp ? zb_round_up(room.tp) : 0;
        w->mirror.sp_bytes = apart.sp ? zb_round_up(room.sp) : 0;
    }
    return ZB_OK;
}

size_t zb_worker_mirror_bytes(const struct zb_worker *w)
{
    return w->mirror.arena_bytes + w->mirror.tp_bytes + w->mirror.sp_bytes;
}

enum zb_status zb_worker_make_mirrors(struct zb_worker *w)
{
    size_t bytes = zb_worker_mirror_bytes(w);
    void *host;

    if (bytes > 0) {
        ZB_TRY(w->ops->host_alloc(w->s->be, bytes,
                                  "memory for devices that do not reach this "
                                  "one",
                                  &host));
        w->mirror.host = host;
    }
    return ZB_OK;
}

void zb_worker_free_mirrors(struct zb_worker *w)
{
    if (w->mirror.host != NULL) {
        w->ops->host_free(w->s->be, w->mirror.host);
        w->mirror.host = NULL;
    }
}

struct zb_coll_mirror zb_worker_arena_mirror(const struct zb_worker *w)
{
    return (struct zb_coll_mirror){.host = w->mirror.host,
                                   .base = w->arena + w->mirror.first,
                                   .bytes = w->mirror.arena_bytes};
}

struct zb_coll_mirror zb_worker_room(const struct zb_worker *w,
                                     enum zb_axis axis)
{
    char *tp = w->mirror.host + w->mirror.arena_bytes;

    return axis == ZB_AXIS_TP
               ? (struct zb_coll_mirror){.host = tp,
                                         .bytes = w->mirror.tp_bytes}
               : (struct zb_coll_mirror){.host = tp + w->mirror.tp_bytes,
                                         .bytes = w->mirror.sp_bytes};
}

/* ---- gradients of parameters that several stages hold -------------------- */

static char *shown_at(const struct zb_worker *w, const zb_real *grad)
{
    return w->mirror.host + ((const char *)grad - (w->arena + w->mirror.first));
}

const zb_real *zb_seen_grad(const struct zb_worker *w,
                            const struct zb_worker *holder, const zb_real *grad)
{
    return holder != w && zb_reach_of(&w->s->peers, w->device,
                                      holder->device) == ZB_REACH_NONE
               ? (const zb_real *)(const void *)shown_at(holder, grad)
               : grad;
}

static int is_shared(const struct zb_worker *w, int param)
{
    const struct zb_run_plan *p = w->s->plan;
    int n = 0;

    for (int s = 0; s < p->n_stages; s++) {
        n += zb_is_shared_by(p, w->stage, s, param);
    }
    return n > 0;
}

enum zb_status zb_worker_show_grads(struct zb_worker *w, int is_summed)
{
    const struct zb_run_plan *p = w->s->plan;

    for (int u = 0; w->mirror.has_far_sharer && u < p->n_uses; u++) {
        int param = p->use_param[u];
        int is_first = zb_graph_param(p->g, param).use_ids[0] == u;

        if (w->grad[u] != NULL && is_first == is_summed &&
            is_shared(w, param)) {
            ZB_TRY(w->ops->copy_out(
                w->stream, shown_at(w, w->grad[u]), w->grad[u],
                (size_t)zb_param_elems(p, param) * sizeof(zb_real),
                "gradients of other stages"));
        }
    }
    return ZB_OK;
}
