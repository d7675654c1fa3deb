/* SPDX-License-Identifier: MIT
 *
 * Which parameters are reduced, updated and gathered together. */
#include "config.h"
#include "run/run_int.h"

#include <string.h>

#include "zb/mem.h"

void zb_shard_range(int64_t n, int64_t align, int n_shards, int shard,
                    int64_t *first_out, int64_t *n_out)
{
    int64_t each = (n + n_shards - 1) / n_shards;
    int64_t first, end;

    each = (each + align - 1) / align * align;
    first = each * shard < n ? each * shard : n;
    end = first + each < n ? first + each : n;
    *first_out = first;
    *n_out = end - first;
}

int64_t zb_bucket_part(const struct zb_run_plan *p, const struct zb_bucket *b,
                       int i, int64_t begin, int64_t end, int64_t *first_out)
{
    int64_t at = b->first[i], n = zb_param_elems(p, b->param[i]);

    begin = begin > at ? begin : at;
    end = end < at + n ? end : at + n;
    *first_out = begin - at;
    return end > begin ? end - begin : 0;
}

/* ---- making them --------------------------------------------------------- */

/* What decides the bucket of a parameter that a stage holds. */
struct place {
    int chunk;
    int layer; /* of the use, or of none */
    int done;  /* launch of W that completes the use */
    int owner;
    int n_sum;
    int is_here; /* held by this stage and trained */
};

static int n_sum_of(const struct zb_run_plan *p, int param)
{
    struct zb_param_info info = zb_graph_param(p->g, param);
    struct zb_copies part[ZB_SPLIT_MAX];

    if (zb_graph_param_copies(p->g, param, part) > 1) {
        return ZB_SUM_PARTS;
    }
    return info.is_partial ? info.n_copies : 1;
}

/* A parameter with one use, in one chunk, is complete with that use. */
static void find_places(const struct zb_run_plan *p, int stage,
                        struct place *place, int *n_holders)
{
    for (int v = 0; v < p->n_virtual; v++) {
        const struct zb_chunk_info *chunk = &p->info[v];

        for (int i = 0; i < chunk->n_params; i++) {
            struct place *at = &place[chunk->params[i]];
            struct zb_param_info info =
                zb_graph_param(p->g, chunk->params[i]);

            n_holders[chunk->params[i]]++;
            at->n_sum = n_sum_of(p, chunk->params[i]);
            if (zb_stage_of(p, v) == stage && info.has_gradient) {
                at->is_here = 1;
                at->chunk = zb_chunk_of(p, v);
            }
        }
        for (int i = 0; i < chunk->n_uses; i++) {
            int param = p->use_param[chunk->uses[i]];
            struct zb_param_info info = zb_graph_param(p->g, param);

            if (info.use_ids[0] == chunk->uses[i]) {
                place[param].owner = zb_stage_of(p, v);
                place[param].layer = zb_graph_use_layer(p->g, info.use_ids[0]);
                place[param].done = chunk->use_done[i];
            }
        }
    }
    for (int i = 0; i < p->n_params; i++) {
        if (n_holders[i] > 1 || zb_graph_param(p->g, i).n_uses > 1) {
            place[i].chunk = -1;
        }
    }
}

static void add_param(struct zb_buckets *b, struct zb_bucket *k,
                      const struct zb_run_plan *p, int param)
{
    int64_t n = zb_param_elems(p, param);
    size_t at = (size_t)(k->param - b->param) + (size_t)k->n_params++;

    b->param[at] = param;
    b->first[at] = k->n;
    k->n += (n + ZB_SHARD_ALIGN - 1) / ZB_SHARD_ALIGN * ZB_SHARD_ALIGN;
}

static struct zb_bucket *open_bucket(struct zb_buckets *b,
                                     const struct place *place, size_t used)
{
    struct zb_bucket *k = &b->bucket[b->n++];

    *k = (struct zb_bucket){
        .chunk = place->chunk,
        .done = place->done,
        .layer = place->layer,
        .owner = place->owner,
        .n_sum = place->n_sum,
        .param = b->param + used,
        .first = b->first + used,
        .value = ZB_NO_OFFSET,
        .grad = ZB_NO_OFFSET,
        .m = ZB_NO_OFFSET,
        .v = ZB_NO_OFFSET,
        .master = ZB_NO_OFFSET,
        .undo = ZB_NO_OFFSET,
    };
    return k;
}

/* Cut it into shards. */
static void close_bucket(struct zb_bucket *k, const struct zb_run_plan *p)
{
    int64_t none;

    zb_shard_range(k->n, ZB_SHARD_ALIGN, p->n_shards, 0, &none, &k->shard);
    k->n = k->shard * p->n_shards;
}

/* Parameter `first`, which opens the bucket, and those that are complete with
 * it or next and are summed over as many copies, until there are enough for a
 * message. What is settled at the end stays alone. */
static size_t add_bucket(struct zb_buckets *b, const struct zb_run_plan *p,
                         struct place *place, int first, int n_launches,
                         size_t used)
{
    const struct place like = place[first];
    struct zb_bucket *k = open_bucket(b, &like, used);

    add_param(b, k, p, first);
    place[first].is_here = 0;
    for (int done = like.done; like.chunk >= 0 && done <= n_launches; done++) {
        for (int i = 0; i < p->n_params; i++) {
            if (place[i].is_here && place[i].chunk == like.chunk &&
                place[i].done == done && place[i].n_sum == like.n_sum) {
                add_param(b, k, p, i);
                place[i].is_here = 0;
                k->done = done;
                k->layer =
                    place[i].layer < k->layer ? place[i].layer : k->layer;
            }
        }
        if (k->n * (int64_t)sizeof(zb_real) >= ZB_BUCKET_BYTES) {
            break;
        }
    }
    close_bucket(k, p);
    return used + (size_t)k->n_params;
}

/* The parameter of a chunk that its W completes first, or -1. */
static int find_first(const struct zb_run_plan *p, const struct place *place,
                      int chunk)
{
    int found = -1;

    for (int i = 0; i < p->n_params; i++) {
        if (place[i].is_here && place[i].chunk == chunk &&
            (found < 0 || place[i].done < place[found].done)) {
            found = i;
        }
    }
    return found;
}

/* Chunk by chunk in the order of W, then what is settled at the end. */
static void add_all(struct zb_buckets *b, const struct zb_run_plan *p,
                    int stage, struct place *place)
{
    size_t used = 0;

    for (int k = 0; k <= p->n_chunk; k++) {
        int chunk = k < p->n_chunk ? k : -1;
        int n =
            chunk < 0 ? 0 : p->info[zb_virt_of(p, stage, k)].n_ops[ZB_PASS_W];

        for (int i = find_first(p, place, chunk); i >= 0;
             i = find_first(p, place, chunk)) {
            used = add_bucket(b, p, place, i, n, used);
        }
    }
}

enum zb_status zb_buckets_init(struct zb_buckets *b,
                               const struct zb_run_plan *p, int stage)
{
    size_t n = (size_t)p->n_params;
    struct place *place = zb_alloc_array(n, sizeof(*place));
    int *n_holders = zb_alloc_array(n, sizeof(*n_holders));
    enum zb_status st = ZB_ENOMEM;

    memset(b, 0, sizeof(*b));
    b->bucket = zb_alloc_array(n, sizeof(*b->bucket));
    b->param = zb_alloc_array(n, sizeof(*b->param));
    b->first = zb_alloc_array(n, sizeof(*b->first));
    if (place != NULL && n_holders != NULL && b->bucket != NULL &&
        b->param != NULL && b->first != NULL) {
        find_places(p, stage, place, n_holders);
        add_all(b, p, stage, place);
        st = ZB_OK;
    }
    zb_free(n_holders);
    zb_free(place);
    if (st != ZB_OK) {
        zb_buckets_release(b);
    }
    return st;
}

void zb_buckets_release(struct zb_buckets *b)
{
    zb_free(b->bucket);
    zb_free(b->param);
    zb_free(b->first);
    memset(b, 0, sizeof(*b));
}
