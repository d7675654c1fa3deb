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

struct coll_part zb_coll_part(const struct zb_coll_group *g, int rank,
                              struct zb_stream *stream, uint64_t seq)
{
    const struct zb_coll *c = &zb_coll_slot(g, rank, seq)->c;

    return (struct coll_part){.g = g,
                              .stream = stream,
                              .c = c,
                              .seq = seq,
                              .n = g->o.n_members,
                              .rank = rank,
                              .elem = (int64_t)zb_dtype_bytes(c->dtype)};
}

const void *zb_part_src(const struct coll_part *p, int k, int64_t at)
{
    if (p->own != NULL) {
        return (k == p->rank ? p->own
                             : p->blocks + (size_t)(k - (k > p->rank)) *
                                               p->block_stride) +
               at * p->elem;
    }
    return (k == p->rank ? (const char *)p->c->src
                         : zb_coll_shown(p->g, k, p->seq)) +
           at * p->elem;
}

void *zb_part_dst(const struct coll_part *p, int64_t at)
{
    return (char *)p->c->dst + at * p->elem;
}

/* ---- launches ------------------------------------------------------------ */

static int is_empty(const struct coll_grid *t)
{
    return t->blocks <= 0 || t->rows <= 0 || t->cols <= 0;
}

static void add_access(struct zb_launch *l, const void *ptr, int64_t bytes,
                       enum zb_access_mode mode)
{
    l->access[l->n_access++] =
        (struct zb_access){.ptr = ptr, .bytes = (size_t)bytes, .mode = mode};
}

static int64_t span(const struct coll_grid *t, int64_t block, int64_t ld)
{
    return (t->blocks - 1) * block + (t->rows - 1) * ld + t->cols;
}

enum zb_status zb_part_copy(const struct coll_part *p,
                            const struct coll_grid *t, const void *x, void *y)
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
static enum zb_status sum_some(const struct coll_part *p,
                               const struct coll_grid *t, int from, int to,
                               int64_t at, void *y, int accumulate)
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
        k.x[i - from] = zb_part_src(p, i, at);
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

enum zb_status zb_part_sum(const struct coll_part *p, const struct coll_grid *t,
                           int from, int to, int64_t at, void *y)
{
    if (is_empty(t)) {
        return ZB_OK;
    }
    if (to - from == 1) {
        return zb_part_copy(p, t, zb_part_src(p, from, at), y);
    }
    for (int i = from; i < to; i += ZB_REDUCE_MAX) {
        int end = i + ZB_REDUCE_MAX < to ? i + ZB_REDUCE_MAX : to;

        ZB_TRY(sum_some(p, t, i, end, at, y, i > from));
    }
    return ZB_OK;
}

/* ---- the kinds ----------------------------------------------------------- */

int64_t zb_coll_share(int64_t n_elems, int n, int k)
{
    int64_t units = (n_elems + ZB_COLL_SHARE_ALIGN - 1) / ZB_COLL_SHARE_ALIGN;
    int64_t at = units * k / n * ZB_COLL_SHARE_ALIGN;

    return at < n_elems ? at : n_elems;
}

static int64_t share_begin(const struct coll_part *p, int k)
{
    return zb_coll_share(p->c->outer * p->c->inner, p->n, k);
}

static struct coll_grid flat(int64_t n)
{
    return (struct coll_grid){.blocks = 1, .rows = 1, .cols = n};
}

/* n elements of the result, for the others. */
static enum zb_status show_share(const struct coll_part *p, int64_t at,
                                 int64_t n)
{
    const struct zb_coll_mirror *m = &p->g->member[p->rank].mirror;
    const struct coll_slot *s = zb_coll_slot(p->g, p->rank, p->seq);

    return m->host == NULL || n == 0
               ? ZB_OK
               : p->g->o.ops->copy_out(
                     p->stream, m->host + s->shown_at + at * p->elem,
                     zb_part_dst(p, at), (size_t)(n * p->elem), p->c->label);
}

static enum zb_status sum_share(const struct coll_part *p)
{
    int64_t at = share_begin(p, p->rank);
    const struct coll_grid t = flat(share_begin(p, p->rank + 1) - at);

    ZB_TRY(zb_part_sum(p, &t, 0, p->n, at, zb_part_dst(p, at)));
    return show_share(p, at, t.cols);
}

/* Member k's dst in its own share, as this one reads it. */
static const void *share_of(const struct coll_part *p, int k, int64_t at)
{
    const struct coll_slot *s = zb_coll_slot(p->g, k, p->seq);
    int is_shown = p->g->member[k].mirror.host != NULL;

    return (is_shown ? zb_coll_shown(p->g, k, p->seq)
                     : (const char *)s->c.dst) +
           at * p->elem;
}

static enum zb_status gather_shares(const struct coll_part *p)
{
    for (int i = 1; i < p->n; i++) {
        int k = (p->rank + i) % p->n;
        int64_t at = share_begin(p, k);
        const struct coll_grid t = flat(share_begin(p, k + 1) - at);

        ZB_TRY(zb_part_copy(p, &t, share_of(p, k, at), zb_part_dst(p, at)));
    }
    return ZB_OK;
}

static enum zb_status all_reduce(const struct coll_part *p)
{
    const struct coll_grid t = flat(p->c->outer * p->c->inner);

    if (zb_coll_has_two_parts(p->g, p->seq)) {
        return sum_share(p);
    }
    return zb_part_sum(p, &t, 0, p->n, 0, p->c->dst);
}

/* Each begins with its own and goes round, so that not all read from one. */
static enum zb_status all_gather(const struct coll_part *p)
{
    const struct zb_coll *c = p->c;
    const struct coll_grid t = {.blocks = 1,
                                .rows = c->outer,
                                .cols = c->inner,
                                .ldx = c->inner,
                                .ldy = p->n * c->inner};

    for (int i = 0; i < p->n; i++) {
        int k = (p->rank + i) % p->n;

        ZB_TRY(zb_part_copy(p, &t, zb_part_src(p, k, 0),
                            zb_part_dst(p, k * c->inner)));
    }
    return ZB_OK;
}

static enum zb_status reduce_scatter(const struct coll_part *p)
{
    const struct zb_coll *c = p->c;
    const struct coll_grid t = {.blocks = 1,
                                .rows = c->outer,
                                .cols = c->inner,
                                .ldx = p->n * c->inner,
                                .ldy = c->inner};

    return zb_part_sum(p, &t, 0, p->n, p->rank * c->inner, c->dst);
}

/* A piece of heads of everybody's [outer, mid, heads, inner], as one that has
 * all of [outer, n * mid, piece, inner] reads it. */
static struct coll_grid piece_of_heads(const struct coll_part *p)
{
    const struct zb_coll *c = p->c;

    return (struct coll_grid){.blocks = c->outer,
                              .rows = c->mid,
                              .cols = c->inner,
                              .block_x = c->mid * c->n_heads * c->inner,
                              .ldx = c->n_heads * c->inner,
                              .block_y = p->n * c->mid * c->inner,
                              .ldy = c->inner};
}

/* The way back. */
static struct coll_grid transposed(struct coll_grid t)
{
    return (struct coll_grid){.blocks = t.blocks,
                              .rows = t.rows,
                              .cols = t.cols,
                              .block_x = t.block_y,
                              .ldx = t.ldy,
                              .block_y = t.block_x,
                              .ldy = t.ldx};
}

static enum zb_status seq_to_heads(const struct coll_part *p)
{
    const struct zb_coll *c = p->c;
    const struct coll_grid t = piece_of_heads(p);
    int64_t piece = p->rank * c->n_heads / p->n;

    for (int i = 0; i < p->n; i++) {
        int k = (p->rank + i) % p->n;

        ZB_TRY(zb_part_copy(p, &t, zb_part_src(p, k, piece * c->inner),
                            zb_part_dst(p, k * c->mid * c->inner)));
    }
    return ZB_OK;
}

static enum zb_status heads_to_seq(const struct coll_part *p)
{
    const struct zb_coll *c = p->c;
    const struct coll_grid t = transposed(piece_of_heads(p));
    int n_same = p->n / (int)c->n_heads;

    for (int i = 0; i < (int)c->n_heads; i++) {
        int piece = (p->rank / n_same + i) % (int)c->n_heads;

        ZB_TRY(zb_part_sum(p, &t, piece * n_same, (piece + 1) * n_same,
                           p->rank * c->mid * c->inner,
                           zb_part_dst(p, piece * c->inner)));
    }
    return ZB_OK;
}

static enum zb_status (*const first_part[ZB_N_COLLS])(
    const struct coll_part *) = {
    [ZB_COLL_ALL_REDUCE] = all_reduce,
    [ZB_COLL_ALL_GATHER] = all_gather,
    [ZB_COLL_REDUCE_SCATTER] = reduce_scatter,
    [ZB_COLL_SEQ_TO_HEADS] = seq_to_heads,
    [ZB_COLL_HEADS_TO_SEQ] = heads_to_seq,
};

/* ---- together ------------------------------------------------------------ */

int zb_coll_has_two_parts(const struct zb_coll_group *g, uint64_t seq)
{
    const struct zb_coll *c;

    if (zb_coll_is_linked(g)) { /* the others' slots may not be filled yet */
        return 0;
    }
    c = &zb_coll_slot(g, 0, seq)->c;
    if (zb_coll_slot(g, 0, seq)->is_ring || c->kind != ZB_COLL_ALL_REDUCE ||
        g->o.n_members == 1) {
        return 0;
    }
    if (c->outer * c->inner > ZB_COLL_SMALL_ELEMS) {
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

enum zb_status zb_coll_compare(const struct zb_coll_group *g, int rank,
                               int other, uint64_t seq)
{
    const struct coll_slot *own = zb_coll_slot(g, rank, seq);
    const struct coll_slot *s = zb_coll_slot(g, other, seq);

    return has_same_sizes(own, s)
               ? ZB_OK
               : zb_fail(ZB_EINVAL,
                         "%s: member %d does \"%s\" while member "
                         "%d does \"%s\", which differs in kind "
                         "or sizes",
                         g->o.name, rank, own->c.label, other, s->c.label);
}

/* Also waits for its own: the work may be on another stream than the start. */
static enum zb_status wait_for_sources(const struct zb_coll_group *g, int rank,
                                       struct zb_stream *stream, uint64_t seq)
{
    for (int i = 0; i < g->o.n_members; i++) {
        ZB_TRY(zb_coll_compare(g, rank, i, seq));
        ZB_TRY(g->o.ops->stream_wait(stream, zb_coll_slot(g, i, seq)->ready));
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
static double larger_bytes(const struct coll_part *p)
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
    const struct coll_part p = zb_coll_part(g, rank, stream, seq);

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
    const struct coll_part p = zb_coll_part(g, rank, stream, seq);

    for (int i = 0; i < g->o.n_members; i++) {
        ZB_TRY(g->o.ops->stream_wait(stream, zb_coll_slot(g, i, seq)->summed));
    }
    if (!g->o.ops->is_simulated) {
        ZB_TRY(gather_shares(&p));
    }
    return g->o.ops->event_record(zb_coll_slot(g, rank, seq)->done, stream);
}
