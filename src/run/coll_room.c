/* SPDX-License-Identifier: MIT
 *
 * The largest source that passes of a stage give to the groups of an axis, and
 * the room that these need over links. */
#include "config.h"
#include "run/run_int.h"

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

static void note_coll(void *arg, enum zb_axis axis, const struct zb_coll *c)
{
    struct room *r = arg;
    int n = size_of(r, axis);

    note(r, axis, zb_coll_src_bytes(c, n), zb_coll_room_bytes(c, n));
}

static void note_ring(void *arg, enum zb_axis axis, size_t bytes)
{
    note(arg, axis, bytes, zb_ring_room_bytes(bytes, size_of(arg, axis)));
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
    const struct zb_visitor v = {
        .coll = note_coll, .ring = note_ring, .arg = &r};

    for (int k = 0; k < p->n_chunk; k++) {
        ZB_TRY(zb_chunk_visit(p->chunk[zb_virt_of(p, stage, k)], &p->max, &v));
    }
    for (int i = 0; i < buckets->n; i++) {
        if (buckets->bucket[i].owner == stage) {
            note_copies(&r, &buckets->bucket[i]);
            note_reduction(&r, &buckets->bucket[i]);
        }
    }
    *room_out = r.most;
    return ZB_OK;
}
