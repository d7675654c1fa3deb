/* SPDX-License-Identifier: MIT
 *
 * Groups whose members do not read each other's memory: what is read of the
 * others is sent into a room of one's own, in one exchange, and the kernels of
 * coll_parts.c read it there. Links only move bytes, and sums stay sums in rank
 * order.
 *
 * A member sends a piece of its source to each of the others. Pieces that are
 * not in one block of memory are put together first, in the room; those that
 * are not in one block of the destination, or are to be added up, arrive in the
 * room. In a large all_reduce pieces are shares of the elements: each member
 * sums one, and a second exchange carries the sums to the others.
 *
 * Nobody waits for another member but its stream for theirs. The room is used
 * again when what came before is done with it, whose last event says when.
 */
#include "config.h"
#include "comm/coll_int.h"

#include "zb/mem.h"

/* Blocks begin at multiples of so many bytes. */
#define ALIGN 64

/* The pieces of a collective, and where they are. */
struct pieces {
    int64_t elems; /* of a piece, at most */
    size_t bytes;  /* of a piece in the room */
    int n_packed;  /* pieces that are put together before; 0: none are */
    int n_landed;  /* pieces that arrive in the room; 0: in dst */
};

static size_t round_up(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Each member sums all of it by itself. */
static int is_small(const struct zb_coll *c)
{
    return c->outer * c->inner <= ZB_COLL_SMALL_ELEMS;
}

static int64_t largest_share(int64_t n_elems, int n)
{
    int64_t most = 0;

    for (int k = 0; k < n; k++) {
        int64_t share =
            zb_coll_share(n_elems, n, k + 1) - zb_coll_share(n_elems, n, k);

        most = share > most ? share : most;
    }
    return most;
}

static struct pieces pieces_of(const struct zb_coll *c, int n)
{
    int64_t flat = c->outer * c->inner;
    struct pieces p = {.elems = flat, .n_landed = n - 1};

    switch (c->kind) {
    case ZB_COLL_ALL_REDUCE:
        p.elems = is_small(c) ? flat : largest_share(flat, n);
        break;
    case ZB_COLL_ALL_GATHER:
        p.n_landed = c->outer > 1 ? n - 1 : 0;
        break;
    case ZB_COLL_REDUCE_SCATTER:
        p.n_packed = c->outer > 1 ? n : 0;
        break;
    case ZB_COLL_SEQ_TO_HEADS:
        p.elems = flat * c->mid;
        p.n_packed = c->n_heads > 1 ? (int)c->n_heads : 0;
        p.n_landed = c->outer > 1 ? n - 1 : 0;
        break;
    default:
        p.elems = flat * c->mid;
        p.n_packed = c->outer > 1 ? n : 0;
        break;
    }
    p.bytes = round_up((size_t)p.elems * zb_dtype_bytes(c->dtype));
    return p;
}

/* Enough for smaller sizes, too: of an all_reduce a whole source is more than a
 * share of one that is not small. */
size_t zb_coll_room_bytes(const struct zb_coll *c, int n)
{
    struct pieces p = pieces_of(c, n);
    size_t bytes = (size_t)(p.n_packed + p.n_landed) * p.bytes, whole;

    if (c->kind != ZB_COLL_ALL_REDUCE || is_small(c)) {
        return bytes;
    }
    whole = (size_t)(n - 1) * ZB_COLL_SMALL_ELEMS * zb_dtype_bytes(c->dtype);
    return bytes > whole ? bytes : whole;
}

size_t zb_ring_room_bytes(size_t bytes, int n)
{
    return (size_t)(n - 1) * round_up(bytes);
}

/* ---- a member's link ----------------------------------------------------- */

static const struct zb_link_ops *links_of(const struct zb_coll_group *g)
{
    return g->o.ops->links;
}

enum zb_status zb_coll_link_init(struct zb_coll_group *g)
{
    size_t n = (size_t)g->o.n_members;

    for (size_t i = 0; i < n; i++) {
        zb_link_holder_init(&g->member[i].end);
    }
    for (size_t i = 0; i < n && zb_coll_is_linked(g); i++) {
        struct coll_member *m = &g->member[i];

        m->send = zb_alloc_array(n, sizeof(*m->send));
        m->recv = zb_alloc_array(n, sizeof(*m->recv));
        m->came = zb_alloc_array(n, sizeof(struct zb_event *));
        if (m->send == NULL || m->recv == NULL || m->came == NULL) {
            return ZB_ENOMEM;
        }
    }
    return zb_coll_is_linked(g) ? links_of(g)->id(g->o.linked, &g->link_id)
                                : ZB_OK;
}

void zb_coll_link_release(struct zb_coll_group *g)
{
    for (int i = 0; g->member != NULL && i < g->o.n_members; i++) {
        zb_free(g->member[i].came);
        zb_free(g->member[i].recv);
        zb_free(g->member[i].send);
        zb_link_holder_release(&g->member[i].end);
    }
}

enum zb_status zb_coll_link_join(struct zb_coll_group *g, int rank,
                                 struct zb_device *dev)
{
    for (int i = 1; zb_coll_is_linked(g) && i < g->o.n_members; i++) {
        ZB_TRY(g->o.ops->event_new(dev, &g->member[rank].came[i]));
    }
    return ZB_OK;
}

void zb_coll_link_leave(struct zb_coll_group *g, int rank)
{
    for (int i = 1; zb_coll_is_linked(g) && i < g->o.n_members; i++) {
        if (g->member[rank].came[i] != NULL) {
            g->o.ops->event_free(g->member[rank].came[i]);
            g->member[rank].came[i] = NULL;
        }
    }
}

enum zb_status zb_coll_open_link(struct zb_coll_group *g, int rank,
                                 const struct zb_coll_linked *with)
{
    struct coll_member *m = &g->member[rank];
    enum zb_status st;

    if (!zb_coll_is_linked(g)) {
        return ZB_OK;
    }
    m->with = *with;
    pthread_mutex_lock(&m->end.mu);
    st = links_of(g)->open_group(with->stream, &g->link_id, g->o.n_members,
                                 rank, g->ab, &m->end.link);
    pthread_mutex_unlock(&m->end.mu);
    return st == ZB_OK ? ZB_OK : zb_fail_in(st, "%s", g->o.name);
}

enum zb_status zb_coll_join_link(struct zb_coll_group *g, int rank)
{
    return zb_coll_is_linked(g) ? zb_link_call(&g->member[rank].end, g->o.name,
                                               links_of(g)->join)
                                : ZB_OK;
}

enum zb_status zb_coll_warm_up_link(struct zb_coll_group *g, int rank)
{
    return zb_coll_is_linked(g) ? zb_link_call(&g->member[rank].end, g->o.name,
                                               links_of(g)->warm_up)
                                : ZB_OK;
}

void zb_coll_close_link(struct zb_coll_group *g, int rank)
{
    if (zb_coll_is_linked(g)) {
        zb_link_close(&g->member[rank].end, links_of(g));
    }
}

enum zb_status zb_coll_link_error(struct zb_coll_group *g)
{
    for (int i = 0; zb_coll_is_linked(g) && i < g->o.n_members; i++) {
        ZB_TRY(zb_link_look(&g->member[i].end, links_of(g), g->o.name));
    }
    return ZB_OK;
}

/* ---- exchanges ----------------------------------------------------------- */

static void nothing_to_pass(const struct coll_part *p)
{
    struct coll_member *m = &p->g->member[p->rank];

    for (int i = 0; i < p->n; i++) {
        m->send[i] = m->recv[i] = (struct zb_link_part){NULL, 0};
    }
}

static void pass_to(const struct coll_part *p, int peer, const void *src,
                    int64_t n)
{
    p->g->member[p->rank].send[peer] =
        (struct zb_link_part){(void *)(uintptr_t)src, (size_t)(n * p->elem)};
}

static void take_from(const struct coll_part *p, int peer, void *dst, int64_t n)
{
    p->g->member[p->rank].recv[peer] =
        (struct zb_link_part){dst, (size_t)(n * p->elem)};
}

/* What send[] and recv[] of the member say. */
static enum zb_status exchange(const struct coll_part *p)
{
    struct coll_member *m = &p->g->member[p->rank];
    const struct zb_exchange x = {.send = m->send,
                                  .recv = m->recv,
                                  .label = p->c->label,
                                  .number = ++m->n_exchanges};
    enum zb_status st = ZB_EABORT;

    pthread_mutex_lock(&m->end.mu);
    if (m->end.link != NULL) {
        st = links_of(p->g)->exchange(m->end.link, p->stream, &x);
    }
    pthread_mutex_unlock(&m->end.mu);
    return st == ZB_OK || st == ZB_EABORT ? st
                                          : zb_fail_in(st, "%s", p->g->o.name);
}

/* ---- pieces -------------------------------------------------------------- */

/* Which of the pieces of a source goes to member k. */
static int64_t piece_for(const struct coll_part *p, int k)
{
    switch (p->c->kind) {
    case ZB_COLL_ALL_REDUCE:
    case ZB_COLL_ALL_GATHER:
        return 0; /* there is only one */
    case ZB_COLL_SEQ_TO_HEADS:
        return k * p->c->n_heads / p->n;
    default:
        return k;
    }
}

/* Where the piece of member k belongs in a dst that takes it as it is. */
static int64_t place_of(const struct coll_part *p, int k)
{
    return p->c->kind == ZB_COLL_ALL_GATHER ? k * p->c->inner
                                            : k * p->c->mid * p->c->inner;
}

/* All pieces of the source, one after the other. */
static struct coll_grid packing(const struct coll_part *p,
                                const struct pieces *w)
{
    const struct zb_coll *c = p->c;
    int64_t stride = (int64_t)w->bytes / p->elem;
    int64_t row =
        c->kind == ZB_COLL_HEADS_TO_SEQ ? c->mid * c->inner : c->inner;

    return (struct coll_grid){
        .blocks = w->n_packed,
        .rows = c->kind == ZB_COLL_SEQ_TO_HEADS ? c->outer * c->mid : c->outer,
        .cols = row,
        .block_x = row,
        .ldx = w->n_packed * row,
        .block_y = stride,
        .ldy = row};
}

/* Pack what must be, and send to each of the others its piece: p->own and
 * p->blocks are then to be read. */
static enum zb_status pass_pieces(struct coll_part *p, const struct pieces *w)
{
    char *room = p->g->member[p->rank].with.room;
    char *landed = room + (size_t)w->n_packed * w->bytes;
    const char *from = w->n_packed > 0 ? room : p->c->src;
    size_t stride = w->n_packed > 0 ? w->bytes : (size_t)(w->elems * p->elem);

    if (w->n_packed > 0) {
        const struct coll_grid t = packing(p, w);

        ZB_TRY(zb_part_copy(p, &t, p->c->src, room));
    }
    nothing_to_pass(p);
    for (int k = 0; k < p->n; k++) {
        size_t slot = (size_t)(k - (k > p->rank));

        if (k != p->rank) {
            pass_to(p, k, from + (size_t)piece_for(p, k) * stride, w->elems);
            take_from(p, k,
                      w->n_landed > 0 ? landed + slot * w->bytes
                                      : zb_part_dst(p, place_of(p, k)),
                      w->elems);
        }
    }
    p->own = from + (size_t)piece_for(p, p->rank) * stride;
    p->blocks = landed;
    p->block_stride = w->bytes;
    return exchange(p);
}

static struct coll_grid flat(int64_t n)
{
    return (struct coll_grid){.blocks = 1, .rows = 1, .cols = n};
}

/* ---- the kinds ----------------------------------------------------------- */

/* Its own piece is put in place here, and those that arrived in the room. */
static enum zb_status place_pieces(const struct coll_part *p,
                                   const struct pieces *w)
{
    int64_t row = place_of(p, 1);
    const struct coll_grid t = {.blocks = 1,
                                .rows = p->c->outer,
                                .cols = row,
                                .ldx = row,
                                .ldy = p->n * row};

    for (int k = 0; k < p->n; k++) {
        if (k == p->rank || w->n_landed > 0) {
            ZB_TRY(zb_part_copy(p, &t, zb_part_src(p, k, 0),
                                zb_part_dst(p, place_of(p, k))));
        }
    }
    return ZB_OK;
}

static enum zb_status sum_pieces(const struct coll_part *p)
{
    const struct coll_grid t = flat(p->c->outer * p->c->inner);

    return zb_part_sum(p, &t, 0, p->n, 0, p->c->dst);
}

static enum zb_status sum_heads(const struct coll_part *p)
{
    const struct zb_coll *c = p->c;
    const struct coll_grid t = {.blocks = 1,
                                .rows = c->outer * c->mid,
                                .cols = c->inner,
                                .ldx = c->inner,
                                .ldy = c->n_heads * c->inner};
    int n_same = p->n / (int)c->n_heads;

    for (int i = 0; i < (int)c->n_heads; i++) {
        ZB_TRY(zb_part_sum(p, &t, i * n_same, (i + 1) * n_same, 0,
                           zb_part_dst(p, i * c->inner)));
    }
    return ZB_OK;
}

static int64_t share_of(const struct coll_part *p, int k)
{
    return zb_coll_share(p->c->outer * p->c->inner, p->n, k);
}

/* Shares of all sources to those who sum them. */
static enum zb_status pass_shares(struct coll_part *p, const struct pieces *w)
{
    char *room = p->g->member[p->rank].with.room;
    const char *src = p->c->src;
    int64_t own = share_of(p, p->rank);
    int64_t n_own = share_of(p, p->rank + 1) - own;

    nothing_to_pass(p);
    for (int k = 0; k < p->n; k++) {
        int64_t at = share_of(p, k);

        if (k != p->rank) {
            pass_to(p, k, src + at * p->elem, share_of(p, k + 1) - at);
            take_from(p, k, room + (size_t)(k - (k > p->rank)) * w->bytes,
                      n_own);
        }
    }
    p->own = src + own * p->elem;
    p->blocks = room;
    p->block_stride = w->bytes;
    return exchange(p);
}

/* The sum that is complete here to the others, and theirs. */
static enum zb_status pass_sums(const struct coll_part *p)
{
    int64_t own = share_of(p, p->rank);

    nothing_to_pass(p);
    for (int k = 0; k < p->n; k++) {
        int64_t at = share_of(p, k);

        if (k != p->rank) {
            pass_to(p, k, zb_part_dst(p, own), share_of(p, p->rank + 1) - own);
            take_from(p, k, zb_part_dst(p, at), share_of(p, k + 1) - at);
        }
    }
    return exchange(p);
}

static enum zb_status sum_by_shares(struct coll_part *p, const struct pieces *w)
{
    int64_t at = share_of(p, p->rank);
    const struct coll_grid t = flat(share_of(p, p->rank + 1) - at);

    ZB_TRY(pass_shares(p, w));
    ZB_TRY(zb_part_sum(p, &t, 0, p->n, 0, zb_part_dst(p, at)));
    return pass_sums(p);
}

static enum zb_status work(struct coll_part *p, const struct pieces *w)
{
    if (p->c->kind == ZB_COLL_ALL_REDUCE && !is_small(p->c)) {
        return sum_by_shares(p, w);
    }
    ZB_TRY(pass_pieces(p, w));
    switch (p->c->kind) {
    case ZB_COLL_ALL_GATHER:
    case ZB_COLL_SEQ_TO_HEADS:
        return place_pieces(p, w);
    case ZB_COLL_HEADS_TO_SEQ:
        return sum_heads(p);
    default:
        return sum_pieces(p);
    }
}

/* ---- together ------------------------------------------------------------ */

/* Who has begun already says what it does; who has not will look at this. */
static enum zb_status
compare(const struct zb_coll_group *g, int rank, uint64_t seq,
        enum zb_status (*fn)(const struct zb_coll_group *, int, int, uint64_t))
{
    /* Of two who look at each other at the same time, one sees the other. */
    atomic_thread_fence(memory_order_seq_cst);
    for (int i = 0; i < g->o.n_members; i++) {
        if (atomic_load_explicit(&g->member[i].started, memory_order_acquire) >
            seq) {
            ZB_TRY(fn(g, rank, i, seq));
        }
    }
    return ZB_OK;
}

/* The room, for later work of `stream`; what is in it means nothing. */
static enum zb_status take_room(const struct zb_coll_group *g, int rank,
                                struct zb_stream *stream, uint64_t seq,
                                size_t bytes)
{
    const struct zb_coll_linked *with = &g->member[rank].with;

    if (bytes > with->room_bytes) {
        return zb_fail(ZB_EINVAL,
                       "%s: \"%s\" needs room for %zu bytes of others, there "
                       "is some for %zu",
                       g->o.name, zb_coll_slot(g, rank, seq)->c.label, bytes,
                       with->room_bytes);
    }
    if (seq > 0) {
        ZB_TRY(g->o.ops->stream_wait(stream,
                                     zb_coll_slot(g, rank, seq - 1)->done));
    }
    return bytes > 0 ? g->o.ops->discard(stream, with->room, bytes) : ZB_OK;
}

enum zb_status zb_coll_linked_work(struct zb_coll_group *g, int rank,
                                   struct zb_stream *stream, uint64_t seq)
{
    struct coll_part p = zb_coll_part(g, rank, stream, seq);
    struct pieces w = pieces_of(p.c, p.n);

    ZB_TRY(compare(g, rank, seq, zb_coll_compare));
    ZB_TRY(g->o.ops->stream_wait(stream, zb_coll_slot(g, rank, seq)->ready));
    ZB_TRY(take_room(g, rank, stream, seq,
                     (size_t)(w.n_packed + w.n_landed) * w.bytes));
    if (w.elems > 0) {
        ZB_TRY(work(&p, &w));
    }
    return g->o.ops->event_record(zb_coll_slot(g, rank, seq)->done, stream);
}

/* ---- rings --------------------------------------------------------------- */

static char *block_at(const struct zb_coll_group *g, int rank, int step,
                      size_t bytes)
{
    return (char *)g->member[rank].with.room +
           (size_t)(step - 1) * round_up(bytes);
}

/* Step by step on a stream for that: a block comes while what came before is
 * worked with. */
enum zb_status zb_ring_linked_begin(struct zb_coll_group *g, int rank,
                                    struct zb_stream *stream, uint64_t seq)
{
    struct coll_member *m = &g->member[rank];
    const struct coll_slot *s = zb_coll_slot(g, rank, seq);
    struct coll_part p = {.g = g,
                          .stream =
                              m->with.ring != NULL ? m->with.ring : stream,
                          .c = &s->c,
                          .seq = seq,
                          .n = g->o.n_members,
                          .rank = rank,
                          .elem = 1};
    const void *block = s->c.src;

    ZB_TRY(compare(g, rank, seq, zb_ring_compare));
    ZB_TRY(g->o.ops->stream_wait(p.stream, s->ready));
    ZB_TRY(take_room(g, rank, p.stream, seq,
                     zb_ring_room_bytes(s->ring_bytes, p.n)));
    for (int step = 1; step < p.n; step++) {
        void *next = block_at(g, rank, step, s->ring_bytes);

        nothing_to_pass(&p);
        pass_to(&p, (rank + 1) % p.n, block, (int64_t)s->ring_bytes);
        take_from(&p, (rank + p.n - 1) % p.n, next, (int64_t)s->ring_bytes);
        ZB_TRY(exchange(&p));
        ZB_TRY(g->o.ops->event_record(m->came[step], p.stream));
        block = next;
    }
    return ZB_OK;
}

enum zb_status zb_ring_linked_step(struct zb_coll_group *g, int rank,
                                   struct zb_stream *stream, int step,
                                   uint64_t seq, const void **block_out)
{
    const struct coll_slot *s = zb_coll_slot(g, rank, seq);

    ZB_TRY(compare(g, rank, seq, zb_ring_compare));
    if (step == 0) {
        *block_out = s->c.src;
        return ZB_OK;
    }
    ZB_TRY(g->o.ops->stream_wait(stream, g->member[rank].came[step]));
    *block_out = block_at(g, rank, step, s->ring_bytes);
    return ZB_OK;
}
