/* SPDX-License-Identifier: MIT
 *
 * A ring without messages: blocks stay where they are, and what a ring would
 * pass on is read in place from its owner (or from what it shows of it). With a
 * link blocks do go round: see coll_link.c.
 */
#include "config.h"
#include "comm/coll_int.h"

enum zb_status zb_ring_begin(struct zb_coll_group *g, int rank,
                             struct zb_stream *stream, const void *src,
                             size_t bytes, const char *label)
{
    struct coll_member *m = &g->member[rank];
    const struct coll_slot what = {
        .c = {.src = src, .label = label}, .is_ring = 1, .ring_bytes = bytes};

    if (!m->has_ring) {
        ZB_TRY(zb_coll_work(g, rank, stream, 0, NULL));
    }
    ZB_TRY(zb_coll_begin(g, rank, stream, &what));
    m->has_ring = 1;
    return zb_coll_is_linked(g)
               ? zb_ring_linked_begin(g, rank, stream,
                                      zb_coll_own(&m->started) - 1)
               : ZB_OK;
}

static enum zb_status check_ring(const struct zb_coll_group *g, int rank)
{
    if (!g->member[rank].has_ring) {
        return zb_fail(ZB_EINVAL, "%s: no ring has begun", g->o.name);
    }
    return ZB_OK;
}

enum zb_status zb_ring_compare(const struct zb_coll_group *g, int rank,
                               int other, uint64_t seq)
{
    const struct coll_slot *own = zb_coll_slot(g, rank, seq);
    const struct coll_slot *s = zb_coll_slot(g, other, seq);

    return s->is_ring && s->ring_bytes == own->ring_bytes
               ? ZB_OK
               : zb_fail(ZB_EINVAL,
                         "%s: member %d passes \"%s\" of %zu bytes "
                         "round, member %d does \"%s\" of %zu",
                         g->o.name, rank, own->c.label, own->ring_bytes, other,
                         s->c.label, s->ring_bytes);
}

enum zb_status zb_ring_step(struct zb_coll_group *g, int rank,
                            struct zb_stream *stream, int step,
                            const void **block_out)
{
    int n = g->o.n_members, from = (rank + n - step) % n;
    struct coll_member *peer = &g->member[from];
    const struct coll_slot *s;
    uint64_t seq;

    ZB_TRY(check_ring(g, rank));
    seq = zb_coll_own(&g->member[rank].started) - 1;
    if (step == 0) {
        ZB_TRY(zb_coll_fault(g, rank, seq, COLL_WORK));
    }
    if (zb_coll_is_linked(g)) {
        return zb_ring_linked_step(g, rank, stream, step, seq, block_out);
    }
    ZB_TRY(zb_coll_await(g, peer, &peer->started, seq));
    ZB_TRY(zb_ring_compare(g, rank, from, seq));
    s = zb_coll_slot(g, from, seq);
    ZB_TRY(g->o.ops->stream_wait(stream, s->ready));
    if (step > 0) {
        ZB_TRY(zb_coll_spend(g, stream, (double)s->ring_bytes));
    }
    *block_out = from == rank ? s->c.src : zb_coll_shown(g, from, seq);
    return ZB_OK;
}

enum zb_status zb_ring_end(struct zb_coll_group *g, int rank,
                           struct zb_stream *stream)
{
    struct coll_member *m = &g->member[rank];

    ZB_TRY(check_ring(g, rank));
    if (zb_coll_is_linked(g)) { /* what was sent was read */
        ZB_TRY(g->o.ops->stream_wait(stream, m->came[g->o.n_members - 1]));
    }
    ZB_TRY(g->o.ops->event_record(
        zb_coll_slot(g, rank, zb_coll_own(&m->started) - 1)->done, stream));
    m->has_ring = 0;
    zb_coll_publish(m, &m->summed);
    zb_coll_publish(m, &m->worked);
    return zb_coll_finish(g, rank, stream);
}
