/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "par_plain.h"

#include <stdlib.h>

void plain_group_init(struct plain_group *g, int n, struct zb_abort *ab)
{
    *g = (struct plain_group){.n = n, .ab = ab};
    zb_barrier_init(&g->bar, (uint32_t)n);
}

static enum zb_status wait_all(const struct plain_member *m)
{
    return zb_barrier_wait(&m->group->bar, m->group->ab);
}

/* ---- what this rank gets, from everybody's sources ----------------------- */

static void reduce_scatter(const struct plain_member *m,
                           const struct zb_coll *c, zb_real *dst)
{
    int64_t n = m->group->n;

    for (int64_t o = 0; o < c->outer; o++) {
        for (int64_t i = 0; i < c->inner; i++) {
            zb_real sum = 0;

            for (int64_t k = 0; k < n; k++) {
                const zb_real *src = m->group->src[k];

                sum += src[(o * n + m->rank) * c->inner + i];
            }
            dst[o * c->inner + i] = sum;
        }
    }
}

static void seq_to_heads(const struct plain_member *m, const struct zb_coll *c,
                         zb_real *dst)
{
    int64_t n = m->group->n, piece = m->rank * c->n_heads / n;

    for (int64_t at = 0; at < c->outer * n * c->mid * c->inner; at++) {
        int64_t i = at % c->inner, t = at / c->inner % c->mid;
        int64_t k = at / c->inner / c->mid % n;
        int64_t o = at / c->inner / c->mid / n;
        const zb_real *src = m->group->src[k];

        dst[at] = src[((o * c->mid + t) * c->n_heads + piece) * c->inner + i];
    }
}

static void heads_to_seq(const struct plain_member *m, const struct zb_coll *c,
                         zb_real *dst)
{
    int64_t n = m->group->n;

    for (int64_t at = 0; at < c->outer * c->mid * c->n_heads * c->inner; at++) {
        int64_t i = at % c->inner, h = at / c->inner % c->n_heads;
        int64_t t = at / c->inner / c->n_heads % c->mid;
        int64_t o = at / c->inner / c->n_heads / c->mid;

        dst[at] = 0;
        for (int64_t k = 0; k < n; k++) {
            const zb_real *src = m->group->src[k];

            if (k * c->n_heads / n == h) {
                dst[at] += src[((o * n + m->rank) * c->mid + t) * c->inner + i];
            }
        }
    }
}

typedef void (*kind_fn)(const struct plain_member *m, const struct zb_coll *c,
                        zb_real *dst);

static const kind_fn kinds[ZB_N_COLLS] = {
    [ZB_COLL_REDUCE_SCATTER] = reduce_scatter,
    [ZB_COLL_SEQ_TO_HEADS] = seq_to_heads,
    [ZB_COLL_HEADS_TO_SEQ] = heads_to_seq,
};

static int64_t n_result(const struct plain_member *m, const struct zb_coll *c)
{
    return c->outer * c->inner *
           (c->kind == ZB_COLL_SEQ_TO_HEADS   ? m->group->n * c->mid
            : c->kind == ZB_COLL_HEADS_TO_SEQ ? c->n_heads * c->mid
                                              : 1);
}

enum zb_status plain_run(struct plain_member *m, struct zb_stream *stream,
                         const struct zb_coll *c)
{
    size_t bytes = (size_t)n_result(m, c) * sizeof(zb_real);
    enum zb_status st;
    zb_real *dst;

    if (kinds[c->kind] == NULL || c->dtype != ZB_DTYPE_REAL) {
        return zb_fail(ZB_EINVAL, "%s: collective %d of type %d", c->label,
                       (int)c->kind, (int)c->dtype);
    }
    ZB_TRY(m->ops->stream_sync(stream));
    m->group->src[m->rank] = c->src;
    ZB_TRY(wait_all(m));
    dst = malloc(bytes);
    kinds[c->kind](m, c, dst);
    st = wait_all(m);
    if (st == ZB_OK) {
        st = m->ops->copy_in(stream, c->dst, dst, bytes, c->label);
    }
    if (st == ZB_OK) {
        st = m->ops->stream_sync(stream);
    }
    free(dst);
    return st;
}

/* ---- the ring ------------------------------------------------------------ */

enum zb_status plain_ring_begin(struct plain_member *m,
                                struct zb_stream *stream, const void *src,
                                size_t bytes)
{
    ZB_TRY(m->ops->stream_sync(stream));
    m->group->src[m->rank] = src;
    m->bytes = bytes;
    return wait_all(m);
}

/* A block comes as a copy. */
enum zb_status plain_ring_step(struct plain_member *m, struct zb_stream *stream,
                               int step, const void **block_out)
{
    int n = m->group->n;
    const void *src = m->group->src[(m->rank + n - step) % n];

    ZB_TRY(m->ops->mem_alloc(m->dev, m->bytes, "block", &m->block[step]));
    ZB_TRY(m->ops->copy_in(stream, m->block[step], src, m->bytes, "block"));
    *block_out = m->block[step];
    return m->ops->stream_sync(stream);
}

enum zb_status plain_ring_end(struct plain_member *m, struct zb_stream *stream)
{
    ZB_TRY(m->ops->stream_sync(stream));
    plain_member_release(m);
    return wait_all(m);
}

void plain_member_release(struct plain_member *m)
{
    for (int i = 0; i < PLAIN_MEMBERS; i++) {
        if (m->block[i] != NULL) {
            m->ops->mem_free(m->dev, m->block[i]);
        }
        m->block[i] = NULL;
    }
}
