/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "comm/coll_int.h"

#include "zb/mem.h"

enum zb_status zb_coll_group_new(const struct zb_coll_group_opts *opts,
                                 const struct zb_abort *ab,
                                 struct zb_coll_group **g_out)
{
    struct zb_coll_group *g;
    enum zb_status st;

    if (opts->n_members < 1 || opts->n_under_way < 1) {
        return zb_fail(ZB_EINVAL,
                       "%s: %d members with %d collectives under "
                       "way",
                       opts->name, opts->n_members, opts->n_under_way);
    }
    g = zb_alloc(sizeof(*g));
    if (g == NULL) {
        return ZB_ENOMEM;
    }
    g->o = *opts;
    g->ab = ab;
    g->member = zb_alloc_array((size_t)opts->n_members, sizeof(*g->member));
    if (g->member == NULL) {
        zb_coll_group_free(g);
        return ZB_ENOMEM;
    }
    for (int i = 0; i < opts->n_members; i++) {
        struct coll_member *m = &g->member[i];

        atomic_init(&m->started, 0);
        atomic_init(&m->summed, 0);
        atomic_init(&m->worked, 0);
        zb_signal_init(&m->moved);
        m->fail_phase = -1;
        m->slot = zb_alloc_array((size_t)opts->n_under_way, sizeof(*m->slot));
        if (m->slot == NULL) {
            zb_coll_group_free(g);
            return ZB_ENOMEM;
        }
    }
    st = zb_coll_link_init(g);
    if (st != ZB_OK) {
        zb_coll_group_free(g);
        return st;
    }
    *g_out = g;
    return ZB_OK;
}

void zb_coll_group_free(struct zb_coll_group *g)
{
    if (g == NULL) {
        return;
    }
    zb_coll_link_release(g);
    for (int i = 0; g->member != NULL && i < g->o.n_members; i++) {
        zb_free(g->member[i].slot);
    }
    zb_free(g->member);
    zb_free(g);
}

const char *zb_coll_group_name(const struct zb_coll_group *g)
{
    return g->o.name;
}

int zb_coll_group_size(const struct zb_coll_group *g)
{
    return g->o.n_members;
}

enum zb_status zb_coll_join(struct zb_coll_group *g, int rank,
                            struct zb_device *dev)
{
    for (int i = 0; i < g->o.n_under_way; i++) {
        struct coll_slot *s = &g->member[rank].slot[i];

        ZB_TRY(g->o.ops->event_new(dev, &s->ready));
        ZB_TRY(g->o.ops->event_new(dev, &s->summed));
        ZB_TRY(g->o.ops->event_new(dev, &s->done));
    }
    return zb_coll_link_join(g, rank, dev);
}

void zb_coll_set_mirror(struct zb_coll_group *g, int rank,
                        const struct zb_coll_mirror *mirror)
{
    g->member[rank].mirror = *mirror;
}

void zb_coll_leave(struct zb_coll_group *g, int rank)
{
    zb_coll_link_leave(g, rank);
    for (int i = 0; i < g->o.n_under_way; i++) {
        struct coll_slot *s = &g->member[rank].slot[i];
        struct zb_event **const event[] = {&s->ready, &s->summed, &s->done};

        for (size_t k = 0; k < ZB_COUNT_OF(event); k++) {
            if (*event[k] != NULL) {
                g->o.ops->event_free(*event[k]);
                *event[k] = NULL;
            }
        }
    }
}

/* ---- who has got how far ------------------------------------------------- */

void zb_coll_publish(struct coll_member *m, _Atomic uint64_t *count)
{
    atomic_store_explicit(count, zb_coll_own(count) + 1, memory_order_release);
    zb_signal_bump(&m->moved);
}

static int is_past(const _Atomic uint64_t *count, uint64_t seq)
{
    return atomic_load_explicit(count, memory_order_acquire) > seq;
}

enum zb_status zb_coll_await(const struct zb_coll_group *g,
                             struct coll_member *m,
                             const _Atomic uint64_t *count, uint64_t seq)
{
    for (;;) {
        uint32_t seen = zb_signal_seq(&m->moved);

        if (is_past(count, seq)) {
            return ZB_OK;
        }
        ZB_TRY(zb_signal_wait(&m->moved, seen, g->ab));
    }
}

static int all_started(const struct zb_coll_group *g, uint64_t seq)
{
    int n = 0;

    while (n < g->o.n_members && is_past(&g->member[n].started, seq)) {
        n++;
    }
    return n == g->o.n_members;
}

static int all_summed(const struct zb_coll_group *g, uint64_t seq)
{
    int n = 0;

    while (n < g->o.n_members && is_past(&g->member[n].summed, seq)) {
        n++;
    }
    return n == g->o.n_members;
}

void zb_coll_fail_at(struct zb_coll_group *g, int rank, int k, int phase)
{
    struct coll_member *m = &g->member[rank];

    m->fail_seq = zb_coll_own(&m->started) + (uint64_t)k - 1;
    m->fail_phase = k > 0 ? phase : -1;
}

enum zb_status zb_coll_fault(const struct zb_coll_group *g, int rank,
                             uint64_t seq, enum coll_phase phase)
{
    static const char *const name[] = {"start", "work", "finish"};
    const struct coll_member *m = &g->member[rank];

    if (m->fail_phase != (int)phase || m->fail_seq != seq) {
        return ZB_OK;
    }
    return zb_fail(ZB_EDEVICE,
                   "%s: member %d: the fault asked for, at the %s "
                   "of collective %llu",
                   g->o.name, rank, name[phase], (unsigned long long)seq);
}

/* ---- the phases ---------------------------------------------------------- */

size_t zb_coll_src_bytes(const struct zb_coll *c, int n)
{
    int64_t elems = c->outer * c->inner;

    switch (c->kind) {
    case ZB_COLL_REDUCE_SCATTER:
        elems *= n;
        break;
    case ZB_COLL_SEQ_TO_HEADS:
        elems *= c->mid * c->n_heads;
        break;
    case ZB_COLL_HEADS_TO_SEQ:
        elems *= c->mid * n;
        break;
    default:
        break;
    }
    return (size_t)elems * zb_dtype_bytes(c->dtype);
}

/* Make the source seen by the others. */
static enum zb_status show(const struct zb_coll_group *g, int rank,
                           struct zb_stream *stream, struct coll_slot *s)
{
    const struct zb_coll_mirror *m = &g->member[rank].mirror;
    size_t bytes =
        s->is_ring ? s->ring_bytes : zb_coll_src_bytes(&s->c, g->o.n_members);
    size_t at =
        m->base == NULL ? 0 : (size_t)((const char *)s->c.src - m->base);

    if (m->host == NULL) {
        return ZB_OK;
    }
    if (at > m->bytes || bytes > m->bytes - at) {
        return zb_fail(ZB_EINVAL,
                       "%s: \"%s\" shows %zu bytes at %zu of %zu in host "
                       "memory",
                       g->o.name, s->c.label, bytes, at, m->bytes);
    }
    s->shown_at = at;
    return g->o.ops->copy_out(stream, m->host + at, s->c.src, bytes,
                              s->c.label);
}

enum zb_status zb_coll_begin(struct zb_coll_group *g, int rank,
                             struct zb_stream *stream,
                             const struct coll_slot *what)
{
    struct coll_member *m = &g->member[rank];
    uint64_t seq = zb_coll_own(&m->started);
    struct coll_slot *s = zb_coll_slot(g, rank, seq);

    if (m->has_ring) {
        return zb_fail(ZB_EINVAL, "%s: \"%s\" would start inside of a ring",
                       g->o.name, what->c.label);
    }
    if (seq - m->finished >= (uint64_t)g->o.n_under_way) {
        return zb_fail(ZB_EINVAL,
                       "%s: \"%s\" would be one more than the %d "
                       "collectives that may be under way",
                       g->o.name, what->c.label, g->o.n_under_way);
    }
    ZB_TRY(zb_coll_fault(g, rank, seq, COLL_START));
    s->c = what->c;
    s->is_ring = what->is_ring;
    s->ring_bytes = what->ring_bytes;
    ZB_TRY(show(g, rank, stream, s));
    ZB_TRY(g->o.ops->event_record(s->ready, stream));
    zb_coll_publish(m, &m->started);
    return ZB_OK;
}

static enum zb_status check_coll(const struct zb_coll_group *g,
                                 const struct zb_coll *c)
{
    int has_heads =
        c->kind == ZB_COLL_SEQ_TO_HEADS || c->kind == ZB_COLL_HEADS_TO_SEQ;

    if ((unsigned)c->kind >= ZB_N_COLLS || c->outer < 0 || c->inner < 0 ||
        (has_heads && c->mid < 0)) {
        return zb_fail(ZB_EINVAL, "%s: \"%s\" is no collective", g->o.name,
                       c->label);
    }
    if (has_heads && (c->n_heads < 1 || g->o.n_members % c->n_heads != 0)) {
        return zb_fail(ZB_EINVAL,
                       "%s: \"%s\" cuts heads into %lld pieces, "
                       "which do not divide %d members",
                       g->o.name, c->label, (long long)c->n_heads,
                       g->o.n_members);
    }
    return ZB_OK;
}

enum zb_status zb_coll_start(struct zb_coll_group *g, int rank,
                             struct zb_stream *stream, const struct zb_coll *c)
{
    const struct coll_slot what = {.c = *c};

    ZB_TRY(check_coll(g, c));
    return zb_coll_begin(g, rank, stream, &what);
}

/* A member alone may begin where it only sends and receives. */
static int can_begin(const struct zb_coll_group *g, uint64_t seq)
{
    return zb_coll_is_linked(g) || all_started(g, seq);
}

/* First parts of those before `end`, as far as all have started. */
static enum zb_status do_first_parts(struct zb_coll_group *g, int rank,
                                     struct zb_stream *stream, uint64_t end)
{
    struct coll_member *m = &g->member[rank];

    for (;;) {
        uint64_t seq = zb_coll_own(&m->summed);

        if (seq >= end || !can_begin(g, seq)) {
            return ZB_OK;
        }
        ZB_TRY(zb_coll_fault(g, rank, seq, COLL_WORK));
        ZB_TRY(zb_coll_is_linked(g)
                   ? zb_coll_linked_work(g, rank, stream, seq)
                   : zb_coll_first_part(g, rank, stream, seq));
        zb_coll_publish(m, &m->summed);
    }
}

/* Second parts, where there are any, as far as all have done the first. */
static enum zb_status do_second_parts(struct zb_coll_group *g, int rank,
                                      struct zb_stream *stream)
{
    struct coll_member *m = &g->member[rank];

    for (;;) {
        uint64_t seq = zb_coll_own(&m->worked);

        if (seq == zb_coll_own(&m->summed)) {
            return ZB_OK;
        }
        if (zb_coll_has_two_parts(g, seq)) {
            if (!all_summed(g, seq)) {
                return ZB_OK;
            }
            ZB_TRY(zb_coll_second_part(g, rank, stream, seq));
        }
        zb_coll_publish(m, &m->worked);
    }
}

/* Wait for what the oldest one that is not worked on waits for. */
static enum zb_status await_oldest(struct zb_coll_group *g, int rank)
{
    uint64_t seq = zb_coll_own(&g->member[rank].worked);
    int is_summed = seq < zb_coll_own(&g->member[rank].summed);

    for (int i = 0; i < g->o.n_members; i++) {
        struct coll_member *m = &g->member[i];

        ZB_TRY(zb_coll_await(g, m, is_summed ? &m->summed : &m->started, seq));
    }
    return ZB_OK;
}

enum zb_status zb_coll_work(struct zb_coll_group *g, int rank,
                            struct zb_stream *stream, int most_left,
                            int *n_left_out)
{
    struct coll_member *m = &g->member[rank];
    uint64_t end = zb_coll_own(&m->started);
    uint64_t spare = most_left > 0 ? (uint64_t)most_left : 0;

    if (m->has_ring) {
        return zb_fail(ZB_EINVAL, "%s: work inside of a ring", g->o.name);
    }
    end = end > spare ? end - spare : 0;
    for (;;) {
        ZB_TRY(do_first_parts(g, rank, stream, end));
        ZB_TRY(do_second_parts(g, rank, stream));
        if (zb_coll_own(&m->worked) >= end ||
            most_left == ZB_COLL_WHAT_IS_READY) {
            break;
        }
        ZB_TRY(await_oldest(g, rank));
    }
    if (n_left_out != NULL) {
        *n_left_out =
            (int)(zb_coll_own(&m->started) - zb_coll_own(&m->worked));
    }
    return ZB_OK;
}

enum zb_status zb_coll_finish(struct zb_coll_group *g, int rank,
                              struct zb_stream *stream)
{
    struct coll_member *m = &g->member[rank];

    ZB_TRY(zb_coll_work(g, rank, stream, 0, NULL));
    for (; m->finished < zb_coll_own(&m->started); m->finished++) {
        ZB_TRY(zb_coll_fault(g, rank, m->finished, COLL_FINISH));
        for (int i = 0; i < g->o.n_members; i++) {
            struct coll_member *peer = &g->member[i];

            ZB_TRY(zb_coll_await(g, peer, &peer->worked, m->finished));
            if (i == rank || !zb_coll_is_linked(g)) {
                ZB_TRY(g->o.ops->stream_wait(
                    stream, zb_coll_slot(g, i, m->finished)->done));
            }
        }
    }
    return ZB_OK;
}

enum zb_status zb_coll_run(struct zb_coll_group *g, int rank,
                           struct zb_stream *stream, const struct zb_coll *c)
{
    ZB_TRY(zb_coll_start(g, rank, stream, c));
    return zb_coll_finish(g, rank, stream);
}
