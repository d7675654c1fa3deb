/* SPDX-License-Identifier: MIT
 *
 * The largest source that passes of a stage give to the groups of an axis, and
 * the room that these need over links: found by emitting every pass once, at
 * addresses that nobody looks at. */
#include "config.h"
#include "run/run_int.h"

#include "zb/mem.h"

/* A multiple of every alignment. */
#define NOWHERE ((uintptr_t)1 << 30)

struct room {
    const struct zb_run_plan *p;
    struct zb_coll_room most;
};

static void raise_to(size_t *most, size_t bytes)
{
    *most = bytes > *most ? bytes : *most;
}

static void note(struct room *r, enum zb_axis axis, size_t src_bytes,
                 size_t room_bytes)
{
    raise_to(axis == ZB_AXIS_SP ? &r->most.sp : &r->most.tp, src_bytes);
    raise_to(&r->most.room, room_bytes);
}

static int size_of(const struct room *r, enum zb_axis axis)
{
    return axis == ZB_AXIS_TP ? r->p->n_tp : r->p->n_sp;
}

static enum zb_status no_launch(struct zb_stream *stream,
                                const struct zb_launch *launch)
{
    (void)stream;
    (void)launch;
    return ZB_OK;
}

static enum zb_status no_discard(struct zb_stream *stream, void *ptr,
                                 size_t bytes)
{
    (void)stream;
    (void)ptr;
    (void)bytes;
    return ZB_OK;
}

static enum zb_status note_run(void *arg, enum zb_axis axis,
                               struct zb_stream *stream,
                               const struct zb_coll *c)
{
    struct room *r = arg;
    int n = size_of(r, axis);

    (void)stream;
    note(r, axis, zb_coll_src_bytes(c, n), zb_coll_room_bytes(c, n));
    return ZB_OK;
}

static enum zb_status note_ring(void *arg, enum zb_axis axis,
                                struct zb_stream *stream, const void *src,
                                size_t bytes, const char *label)
{
    (void)stream;
    (void)src;
    (void)label;
    note(arg, axis, bytes, zb_ring_room_bytes(bytes, size_of(arg, axis)));
    return ZB_OK;
}

static enum zb_status no_step(void *arg, enum zb_axis axis,
                              struct zb_stream *stream, int step,
                              const void **block_out)
{
    (void)arg;
    (void)axis;
    (void)stream;
    (void)step;
    *block_out = (const void *)NOWHERE;
    return ZB_OK;
}

static enum zb_status no_end(void *arg, enum zb_axis axis,
                             struct zb_stream *stream)
{
    (void)arg;
    (void)axis;
    (void)stream;
    return ZB_OK;
}

static const struct zb_backend_ops ops = {
    .name = "none", .launch = no_launch, .discard = no_discard};
static const struct zb_coll_ops coll_ops = {.run = note_run,
                                            .ring_begin = note_ring,
                                            .ring_step = no_step,
                                            .ring_end = no_end};

static enum zb_status emit(const struct zb_chunk *c, struct zb_chunk_run *run)
{
    for (int i = 0; i < ZB_N_SPACES; i++) {
        run->space[i] = (void *)NOWHERE;
    }
    ZB_TRY(zb_chunk_forward(c, run));
    ZB_TRY(zb_chunk_backward_input(c, run));
    return zb_chunk_backward_weight(c, run);
}

/* n gradients of which ranks of tp have so many copies. */
static void note_sum(struct room *r, int64_t n, int n_copies)
{
    const struct zb_coll c = {.kind = ZB_COLL_ALL_REDUCE,
                              .dtype = ZB_DTYPE_REAL,
                              .outer = 1,
                              .inner = n};

    if (n_copies > 1) {
        note(r, ZB_AXIS_TP, zb_coll_src_bytes(&c, n_copies),
             zb_coll_room_bytes(&c, n_copies));
    }
}

static void note_copies(struct room *r, const struct zb_bucket *b)
{
    struct zb_copies part[ZB_SPLIT_MAX];

    note_sum(r, b->n, b->n_sum);
    for (int i = 0; b->n_sum == ZB_SUM_PARTS && i < b->n_params; i++) {
        int n = zb_graph_param_copies(r->p->g, b->param[i], part);

        for (int k = 0; k < n; k++) {
            note_sum(r, part[k].n, part[k].n_copies);
        }
    }
}

/* Parameters are gathered where they belong, without any. */
static void note_reduction(struct room *r, const struct zb_bucket *b)
{
    const struct zb_coll c = {.kind = ZB_COLL_REDUCE_SCATTER,
                              .dtype = ZB_DTYPE_REAL,
                              .outer = 1,
                              .inner = b->shard};

    if (r->p->n_shards > 1) {
        raise_to(&r->most.side_room, zb_coll_room_bytes(&c, r->p->n_shards));
    }
}

enum zb_status zb_find_coll_room(const struct zb_run_plan *p, int stage,
                                 const struct zb_buckets *buckets,
                                 struct zb_coll_room *room_out)
{
    struct room r = {.p = p};
    size_t n = (size_t)(p->n_params + p->n_uses + p->n_data + p->n_consts);
    void **at = zb_alloc_array(n, sizeof(*at));
    zb_real **grad = zb_alloc_array((size_t)p->n_uses, sizeof(*grad));
    enum zb_status st = at == NULL || grad == NULL ? ZB_ENOMEM : ZB_OK;

    for (size_t i = 0; st == ZB_OK && i < n; i++) {
        at[i] = (void *)NOWHERE;
    }
    for (int i = 0; st == ZB_OK && i < p->n_uses; i++) {
        grad[i] = (zb_real *)NOWHERE;
    }
    for (int k = 0; st == ZB_OK && k < p->n_chunk; k++) {
        struct zb_chunk_run run = {.ops = &ops,
                                   .bind = p->max,
                                   .data = at,
                                   .consts = at,
                                   .param = at,
                                   .grad = grad,
                                   .loss_sum = (double *)NOWHERE,
                                   .loss_scale = 1,
                                   .is_training = 1,
                                   .coll = &coll_ops,
                                   .coll_arg = &r,
                                   .sample = (const int64_t *)NOWHERE};

        st = emit(p->chunk[zb_virt_of(p, stage, k)], &run);
    }
    zb_free(grad);
    zb_free(at);
    ZB_TRY(st);
    for (int i = 0; i < buckets->n; i++) {
        if (buckets->bucket[i].owner == stage) {
            note_copies(&r, &buckets->bucket[i]);
            note_reduction(&r, &buckets->bucket[i]);
        }
    }
    *room_out = r.most;
    return ZB_OK;
}
