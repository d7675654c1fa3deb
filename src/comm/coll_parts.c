/* SPDX-License-Identifier: MIT
 *
 * What one member computes of a collective: it reads the others' src in place
 * and writes its own dst.
 *
 * A large all_reduce has two parts. First each member sums its share of the
 * elements, so that the group sums each element once; then it copies the shares
 * of the others. That also works in place: in the first part a member
 * overwrites only its share of its own array, which nobody else reads in that
 * part. The same holds for what it shows in host memory.
 */
#include "config.h"
#include "comm/coll_int.h"

/* Shares are whole multiples of this, so that no cache line has two writers. */
#define SHARE_ALIGN 64

/* Up to here each member sums all elements of an all_reduce by itself: that
 * takes less than to meet once more. */
#define SMALL_ELEMS 8192

/* blocks x rows of cols elements, and the way from one to the next in what is
 * read and in what is written. In elements. */
struct grid {
    int64_t blocks, rows, cols;
    int64_t block_x, ldx, block_y, ldy;
};

/* One member's view of a collective. */
struct part {
    const struct zb_coll_group *g;
    struct zb_stream *stream;
    const struct zb_coll *c; /* its own */
    uint64_t seq;
    int n, rank;
    int64_t elem; /* bytes */
};

static struct part part_of(const struct zb_coll_group *g, int rank,
                           struct zb_stream *stream, uint64_t seq)
{
    const struct zb_coll *c = &zb_coll_slot(g, rank, seq)->c;

    return (struct part){.g = g,
                         .stream = stream,
                         .c = c,
                         .seq = seq,
                         .n = g->o.n_members,
                         .rank = rank,
                         .elem = (int64_t)zb_dtype_bytes(c->dtype)};
}

/* Member k's src from element `at` on, as this one reads it. */
static const void *src_of(const struct part *p, int k, int64_t at)
{
    return (k == p->rank ? (const char *)p->c->src
                         : zb_coll_shown(p->g, k, p->seq)) +
           at * p->elem;
}

/* Its own dst. */
static void *dst_at(const struct part *p, int64_t at)
{
    return (char *)p->c->dst + at * p->elem;
}

/* ---- launches ------------------------------------------------------------ */

static int is_empty(const struct grid *t)
{
    return t->blocks <= 0 || t->rows <= 0 || t->cols <= 0;
}

static void add_access(struct zb_launch *l, const void *ptr, int64_t bytes,
                       enum zb_access_mode mode)
{
    l->access[l->n_access++] =
        (struct zb_access){.ptr = ptr, .bytes = (size_t)bytes, .mode = mode};
}

static int64_t span(const struct grid *t, int64_t block, int64_t ld)
{
    return (t->blocks - 1) * block + (t->rows - 1) * ld + t->cols;
}

static enum zb_status copy(const struct part *p, const struct grid *t,
                           const void *x, void *y)
{
    const struct zb_k_copy k = {.n_blocks = t->blocks,
                                .rows = t->rows,
                                .cols = t->cols,
                                .block_x = t->block_x,
                                .ldx = t->ldx,
                                .block_y = t->block_y,
                                .ldy = t->ldy,
                                .elem_bytes = p->elem,
                                .x = x,
                                .y = y};
    struct zb_launch l = {
        .kernel = ZB_K_copy, .label = p->c->label, .params = &k};

    if (is_empty(t) || x == y) {
        return ZB_OK;
    }
    add_access(&l, x, span(t, t->block_x, t->ldx) * p->elem, ZB_READ);
    add_access(&l, y, span(t, t->block_y, t->ldy) * p->elem, ZB_WRITE);
    return p->g->o.ops->launch(p->stream, &l);
}

/* y = (or +=) sum over members [from, to) of their src from element `at` on. */
static enum zb_status sum_some(const struct part *p, const struct grid *t,
                               int from, int to, int64_t at, void *y,
                               int accumulate)
{
    struct zb_k_reduce k = {.dtype = p->c->dtype,
                            .n_x = to - from,
                            .accumulate = accumulate,
                            .n_blocks = t->blocks,
                            .rows = t->rows,
                            .cols = t->cols,
                            .block_x = t->block_x,
                            .ldx = t->ldx,
                            .block_y = t->block_y,
                            .ldy = t->ldy,
                            .y = y};
    struct zb_launch l = {
        .kernel = ZB_K_reduce, .label = p->c->label, .params = &k};

    for (int i = from; i < to; i++) {
        k.x[i - from] = src_of(p, i, at);
        if (accumulate && k.x[i - from] == y) {
            return zb_fail(ZB_EUNSUPPORTED,
                           "%s: \"%s\" in place with more than %d members",
                           p->g->o.name, p->c->label, ZB_REDUCE_MAX);
        }
        add_access(&l, k.x[i - from], span(t, t->block_x, t->ldx) * p->elem,
                   ZB_READ);
    }
    add_access(&l, y, span(t, t->block_y, t->ldy) * p->elem,
               accumulate ? ZB_READ_WRITE : ZB_WRITE);
    return p->g->o.ops->launch(p->stream, &l);
}

static enum zb_status sum(const struct part *p, const struct grid *t, int from,
                          int to, int64_t at, void *y)
{
    if (is_empty(t)) {
        return ZB_OK;
    }
    if (to - from == 1) {
        return copy(p, t, src_of(p, from, at), y);
    }
    for (int i = from; i < to; i += ZB_REDUCE_MAX) {
        int end = i + ZB_REDUCE_MAX < to ? i + ZB_REDUCE_MAX : to;

        ZB_TRY(sum_some(p, t, i, end, at, y, i > from));
    }
    return ZB_OK;
}

/* ---- the kinds ----------------------------------------------------------- */

/* Share k of the elements of an all_reduce: where it begins; its end is where
 * share k + 1 does. */
static int64_t share_begin(const struct part *p, int k)
{
    int64_t n = p->c->outer * p->c->inner;
    int64_t units = (n + SHARE_ALIGN - 1) / SHARE_ALIGN;
    int64_t at = units * k / p->n * SHARE_ALIGN;

    return at < n ? at : n;
}

static struct grid flat(int64_t n)
{
    return (struct grid){.blocks = 1, .rows = 1, .cols = n};
}

/* n elements of the result, for the others. */
static enum zb_status show_share(const struct part *p, int64_t at, int64_t n)
{
    const struct zb_coll_mirror *m = &p->g->member[p->rank].mirror;
    const struct coll_slot *s = zb_coll_slot(p->g, p->rank, p->seq);

    return m->host == NULL || n == 0
               ? ZB_OK
               : p->g->o.ops->copy_out(
                     p->stream, m->host + s->shown_at + at * p->elem,
                     dst_at(p, at), (size_t)(n * p->elem), p->c->label);
}

static enum zb_status sum_share(const struct part *p)
{
    int64_t at = share_begin(p, p->rank);
    const struct grid t = flat(share_begin(p, p->rank + 1) - at);

    ZB_TRY(sum(p, &t, 0, p->n, at, dst_at(p, at)));
    return show_share(p, at, t.cols);
}

/* Member k's dst in its own share, as this one reads it. */
static const void *share_of(const struct part *p, int k, int64_t at)
{
    const struct coll_slot *s = zb_coll_slot(p->g, k, p->seq);
    int is_shown = p->g->member[k].mirror.host != NULL;

    return (is_shown ? zb_coll_shown(p->g, k, p->seq)
                     : (const char *)s->c.dst) +
           at * p->elem;
}

static enum zb_status gather_shares(const struct part *p)
{
    for (int i = 1; i < p->n; i++) {
        int k = (p->rank + i) % p->n;
        int64_t at = share_begin(p, k);
        const struct grid t = flat(share_begin(p, k + 1) - at);

        ZB_TRY(copy(p, &t, share_of(p, k, at), dst_at(p, at)));
    }
    return ZB_OK;
}

static enum zb_status all_reduce(const struct part *p)
{
    const struct grid t = flat(p->c->outer * p->c->inner);

    if (zb_coll_has_two_parts(p->g, p->seq)) {
        return sum_share(p);
    }
    return sum(p, &t, 0, p->n, 0, p->c->dst);
}

/* Each begins with its own and goes round, so that not all read from one. */
static enum zb_status all_gather(const struct part *p)
{
    const struct zb_coll *c = p->c;
    const struct grid t = {.blocks = 1,
                           .rows = c->outer,
                           .cols = c->inner,
                           .ldx = c->inner,
                           .ldy = p->n * c->inner};

    for (int i = 0; i < p->n; i++) {
        int k = (p->rank + i) % p->n;

        ZB_TRY(copy(p, &t, src_of(p, k, 0), dst_at(p, k * c->inner)));
    }
    return ZB_OK;
}

static enum zb_status reduce_scatter(const struct part *p)
{
    const struct zb_coll *c = p->c;
    const struct grid t = {.blocks = 1,
                           .rows = c->outer,
                           .cols = c->inner,
                           .ldx = p->n * c->inner,
                           .ldy = c->inner};

    return sum(p, &t, 0, p->n, p->rank * c->inner, c->dst);
}

/* A piece of heads of everybody's [outer, mid, heads, inner], as one that has
 * all of [outer, n * mid, piece, inner] reads it. */
static struct grid piece_of_heads(const struct part *p)
{
    const struct zb_coll *c = p->c;

    return (struct grid){.blocks = c->outer,
                         .rows = c->mid,
                         .cols = c->inner,
                         .block_x = c->mid * c->n_heads * c->inner,
                         .ldx = c->n_heads * c->inner,
                         .block_y = p->n * c->mid * c->inner,
                         .ldy = c->inner};
}

/* The way back. */
static struct grid transposed(struct grid t)
{
    return (struct grid){.blocks = t.blocks,
                         .rows = t.rows,
                         .cols = t.cols,
                         .block_x = t.block_y,
                         .ldx = t.ldy,
                         .block_y = t.block_x,
                         .ldy = t.ldx};
}

static enum zb_status seq_to_heads(const struct part *p)
{
    const struct zb_coll *c = p->c;
    const struct grid t = piece_of_heads(p);
    int64_t piece = p->rank * c->n_heads / p->n;

    for (int i = 0; i < p->n; i++) {
        int k = (p->rank + i) % p->n;

        ZB_TRY(copy(p, &t, src_of(p, k, piece * c->inner),
                    dst_at(p, k * c->mid * c->inner)));
    }
    return ZB_OK;
}

static enum zb_status heads_to_seq(const struct part *p)
{
    const struct zb_coll *c = p->c;
    const struct grid t = transposed(piece_of_heads(p));
    int n_same = p->n / (int)c->n_heads;

    for (int i = 0; i < (int)c->n_heads; i++) {
        int piece = (p->rank / n_same + i) % (int)c->n_heads;

        ZB_TRY(sum(p, &t, piece * n_same, (piece + 1) * n_same,
                   p->rank * c->mid * c->inner, dst_at(p, piece * c->inner)));
    }
    return ZB_OK;
}

static enum zb_status (*const first_part[ZB_N_COLLS])(const struct part *) = {
    [ZB_COLL_ALL_REDUCE] = all_reduce,
    [ZB_COLL_ALL_GATHER] = all_gather,
    [ZB_COLL_REDUCE_SCATTER] = reduce_scatter,
    [ZB_COLL_SEQ_TO_HEADS] = seq_to_heads,
    [ZB_COLL_HEADS_TO_SEQ] = heads_to_seq,
};

/* ---- together ------------------------------------------------------------ */

int zb_coll_has_two_parts(const struct zb_coll_group *g, uint64_t seq)
{
    const struct zb_coll *c = &zb_coll_slot(g, 0, seq)->c;

    if (zb_coll_slot(g, 0, seq)->is_ring || c->kind != ZB_COLL_ALL_REDUCE ||
        g->o.n_members == 1) {
        return 0;
    }
    if (c->outer * c->inner > SMALL_ELEMS) {
        return 1;
    }
    for (int i = 0; i < g->o.n_members; i++) {
        c = &zb_coll_slot(g, i, seq)->c;
        if (c->src == c->dst) {
            return 1;
        }
    }
    return 0;
}

static int has_same_sizes(const struct coll_slot *a, const struct coll_slot *b)
{
    return a->is_ring == b->is_ring && a->c.kind == b->c.kind &&
           a->c.dtype == b->c.dtype && a->c.outer == b->c.outer &&
           a->c.mid == b->c.mid && a->c.inner == b->c.inner &&
           a->c.n_heads == b->c.n_heads;
}

/* Also waits for its own: the work may be on another stream than the start. */
static enum zb_status wait_for_sources(const struct zb_coll_group *g, int rank,
                                       struct zb_stream *stream, uint64_t seq)
{
    const struct coll_slot *own = zb_coll_slot(g, rank, seq);

    for (int i = 0; i < g->o.n_members; i++) {
        const struct coll_slot *s = zb_coll_slot(g, i, seq);

        if (!has_same_sizes(own, s)) {
            return zb_fail(ZB_EINVAL,
                           "%s: member %d does \"%s\" while member "
                           "%d does \"%s\", which differs in kind "
                           "or sizes",
                           g->o.name, rank, own->c.label, i, s->c.label);
        }
        ZB_TRY(g->o.ops->stream_wait(stream, s->ready));
    }
    return ZB_OK;
}

enum zb_status zb_coll_spend(const struct zb_coll_group *g,
                             struct zb_stream *stream, double bytes)
{
    if (!g->o.ops->is_simulated || g->o.n_members == 1) {
        return ZB_OK;
    }
    return g->o.ops->spend(stream, g->o.latency_ns +
                                       (int64_t)(bytes * g->o.ns_per_byte));
}

/* Of the larger of src and dst: n parts, unless it is an all_reduce. */
static double larger_bytes(const struct part *p)
{
    const struct zb_coll *c = p->c;
    double bytes = (double)p->elem * (double)c->outer * (double)c->inner;

    if (c->kind == ZB_COLL_ALL_REDUCE) {
        return bytes;
    }
    if (c->kind == ZB_COLL_SEQ_TO_HEADS || c->kind == ZB_COLL_HEADS_TO_SEQ) {
        bytes *= (double)c->mid;
    }
    return bytes * p->n;
}

enum zb_status zb_coll_first_part(const struct zb_coll_group *g, int rank,
                                  struct zb_stream *stream, uint64_t seq)
{
    const struct part p = part_of(g, rank, stream, seq);

    ZB_TRY(wait_for_sources(g, rank, stream, seq));
    if (g->o.ops->is_simulated) {
        ZB_TRY(zb_coll_spend(g, stream, larger_bytes(&p)));
    } else {
        ZB_TRY(first_part[p.c->kind](&p));
    }
    return g->o.ops->event_record(zb_coll_has_two_parts(g, seq)
                                      ? zb_coll_slot(g, rank, seq)->summed
                                      : zb_coll_slot(g, rank, seq)->done,
                                  stream);
}

enum zb_status zb_coll_second_part(const struct zb_coll_group *g, int rank,
                                   struct zb_stream *stream, uint64_t seq)
{
    const struct part p = part_of(g, rank, stream, seq);

    for (int i = 0; i < g->o.n_members; i++) {
        ZB_TRY(g->o.ops->stream_wait(stream, zb_coll_slot(g, i, seq)->summed));
    }
    if (!g->o.ops->is_simulated) {
        ZB_TRY(gather_shares(&p));
    }
    return g->o.ops->event_record(zb_coll_slot(g, rank, seq)->done, stream);
}
