/* SPDX-License-Identifier: MIT
 *
 * Ring attention (Liu et al. 2023): queries stay, keys and values of all ranks
 * pass by, block after block, and what the queries make of each is merged by
 * its log-sum-exp. A rank has pieces r and 2 n - 1 - r of 2 n, so that with
 * causality all have the same work (Brandon et al. 2023, "Striped Attention",
 * and the "zigzag" order of Llama 3).
 *
 * A pair of pieces is seen whole, in part (the same piece), or not at all.
 * Piece by piece: what lies behind a query is never computed.
 */
#include "config.h"
#include "graph/graph_int.h"

/* One pass over the ring. */
struct ring {
    struct zb_emit *e;
    struct zb_k_attention_fwd whole; /* where queries begin; keys unset */
    int n, rank;
    int64_t len;      /* rows of a piece */
    int64_t kv_row;   /* elements of a row of a block: keys, values */
    int64_t kv_elems; /* of a block */
    size_t elem;      /* bytes of an element */
};

/* A piece of the queries and one of the keys of rank `from`. */
struct pair {
    int q, k; /* 0 or 1 */
    int from;
    const void *block;
    int is_first; /* of this piece of queries */
};

static int64_t first_row(const struct ring *r, int rank, int piece)
{
    return r->len * (piece == 0 ? rank : 2 * r->n - 1 - rank);
}

/* Element `at` of x. */
static void *element(const struct ring *r, const void *x, int64_t at)
{
    return (char *)(uintptr_t)x + at * (int64_t)r->elem;
}

static struct ring ring_of(struct zb_emit *e, const struct zb_shape *kv)
{
    struct ring r = {
        .e = e,
        .whole = zb_attention_params(e),
        .n = e->graph->par.sp,
        .rank = e->run->sp_rank,
        .len = kv->dim[1] / 2,
        .kv_row = 2 * kv->dim[2] * kv->dim[3],
        .elem = zb_dtype_bytes(e->in[0].dtype),
    };

    r.kv_elems = kv->dim[0] * kv->dim[1] * r.kv_row;
    r.whole.seq = r.len;
    r.whole.kv_seq = r.len;
    r.whole.whole = e->run->bind.value[ZB_SYM_FULL];
    r.whole.kv_heads = kv->dim[2];
    r.whole.k_batch = kv->dim[1] * r.kv_row;
    r.whole.k_row = r.kv_row;
    r.whole.k_head = kv->dim[3];
    r.whole.v_batch = r.whole.k_batch;
    r.whole.v_row = r.kv_row;
    r.whole.v_head = kv->dim[3];
    return r;
}

static struct zb_k_attention_fwd pair_params(const struct ring *r,
                                             const struct pair *at)
{
    struct zb_k_attention_fwd p = r->whole;

    p.q_first = first_row(r, r->rank, at->q);
    p.k_first = first_row(r, at->from, at->k);
    p.q = element(r, p.q, at->q * r->len * p.q_row);
    p.k = element(r, at->block, at->k * r->len * r->kv_row);
    p.v = element(r, p.k, r->kv_row / 2);
    p.out = element(r, p.out, at->q * r->len * p.q_heads * p.head_dim);
    p.lse += at->q * r->len;
    return p;
}

/* Everything both passes read for a pair. */
static void touch_inputs(const struct ring *r, const struct pair *at)
{
    struct zb_emit *e = r->e;

    zb_emit_begin(e);
    zb_emit_touch_view(e, &e->in[0], ZB_READ);
    zb_emit_touch(e, at->block, (size_t)r->kv_elems * r->elem, ZB_READ);
    zb_emit_touch_view(e, &e->in[3], ZB_READ);
    zb_emit_touch_view(e, &e->in[4], ZB_READ);
    if (r->whole.dropout > 0) {
        zb_emit_touch(e, r->whole.philox.sample,
                      (size_t)r->whole.batch * sizeof(int64_t), ZB_READ);
    }
}

/* Whether a query of the piece sees any key of the other by its place. */
static int is_seen(const struct ring *r, const struct pair *at)
{
    int64_t q = first_row(r, r->rank, at->q), k = first_row(r, at->from, at->k);

    if (!r->whole.causal) {
        return 1;
    }
    return k <= q &&
           (r->whole.window == 0 || k + r->len - 1 >= q - r->whole.window + 1);
}

/* Call `fn` for every pair of pieces of which queries see keys, as the blocks
 * come by, the rank's own first. */
static enum zb_status walk(struct ring *r, const struct zb_view *kv,
                           enum zb_status (*fn)(const struct ring *r,
                                                const struct pair *at))
{
    const struct zb_chunk_run *run = r->e->run;
    size_t bytes = (size_t)r->kv_elems * r->elem;
    int n_seen[2] = {0, 0};

    ZB_BUG_IF(run->coll == NULL, "%s: nothing to do collectives with",
              r->e->launch.label);
    ZB_TRY(run->coll->ring_begin(run->coll_arg, ZB_AXIS_SP, run->stream,
                                 kv->data, bytes, r->e->launch.label));
    for (int step = 0; step < r->n; step++) {
        struct pair at = {.from = (r->rank + r->n - step) % r->n};
        const void *block;

        ZB_TRY(run->coll->ring_step(run->coll_arg, ZB_AXIS_SP, run->stream,
                                    step, &block));
        at.block = block;
        for (int i = 0; i < 4; i++) {
            at.q = i / 2;
            at.k = i % 2;
            if (!is_seen(r, &at)) {
                continue;
            }
            at.is_first = n_seen[at.q]++ == 0;
            ZB_TRY(fn(r, &at));
        }
    }
    return run->coll->ring_end(run->coll_arg, ZB_AXIS_SP, run->stream);
}

/* ---- keys and values beside each other ----------------------------------- */

/* Copy heads to (or from) columns [first, ..) of rows of a block. */
static enum zb_status copy_heads(const struct ring *r, const struct zb_view *x,
                                 const struct zb_view *block, int64_t first,
                                 int is_back)
{
    struct zb_emit *e = r->e;
    int64_t dim = x->shape.dim[3], heads = x->shape.dim[2];
    int is_dense = heads == 1 || x->stride[2] == dim;
    int n = is_dense ? 1 : (int)heads;

    for (int h = 0; h < n; h++) {
        void *outside = element(r, x->data, h * x->stride[2]);
        void *inside = element(r, block->data, first + h * dim);
        struct zb_k_copy k = {
            .rows = x->shape.dim[0] * x->shape.dim[1],
            .cols = is_dense ? heads * dim : dim,
            .ldx = is_back ? r->kv_row : x->stride[1],
            .ldy = is_back ? x->stride[1] : r->kv_row,
            .elem_bytes = (int64_t)r->elem,
            .x = is_back ? inside : outside,
            .y = is_back ? outside : inside,
        };

        zb_emit_begin(e);
        zb_emit_touch_view(e, is_back ? block : x, ZB_READ);
        zb_emit_touch_view(e, is_back ? x : block, ZB_WRITE);
        ZB_TRY(zb_emit_launch(e, ZB_K_copy, &k));
    }
    return ZB_OK;
}

/* ---- forward ------------------------------------------------------------- */

static enum zb_status merge(const struct ring *r,
                            const struct zb_k_attention_fwd *p,
                            const struct zb_k_attention_fwd *more)
{
    struct zb_emit *e = r->e;
    struct zb_k_attention_merge m = {
        .batch = p->batch,
        .seq = p->seq,
        .heads = p->q_heads,
        .head_dim = p->head_dim,
        .dtype = p->dtype,
        .more = more->out,
        .more_lse = more->lse,
        .out = p->out,
        .lse = p->lse,
        .out_batch = p->out_batch,
        .lse_row = p->lse_row,
    };

    zb_emit_begin(e);
    zb_emit_touch_view(e, &e->tmp[0], ZB_READ);
    zb_emit_touch_view(e, &e->tmp[1], ZB_READ);
    zb_emit_touch_view(e, &e->out[0], ZB_READ_WRITE);
    zb_emit_touch_view(e, &e->out[1], ZB_READ_WRITE);
    return zb_emit_launch(e, ZB_K_attention_merge, &m);
}

static enum zb_status forward_pair(const struct ring *r, const struct pair *at)
{
    struct zb_emit *e = r->e;
    struct zb_k_attention_fwd p = pair_params(r, at), more = p;

    touch_inputs(r, at);
    if (at->is_first) {
        zb_emit_touch_view(e, &e->out[0], ZB_WRITE);
        zb_emit_touch_view(e, &e->out[1], ZB_WRITE);
        return zb_emit_launch(e, ZB_K_attention_fwd, &p);
    }
    more.out = e->tmp[0].data;
    more.lse = e->tmp[1].data;
    more.out_batch = p.seq * p.q_heads * p.head_dim;
    more.lse_row = p.seq;
    zb_emit_touch_view(e, &e->tmp[0], ZB_WRITE);
    zb_emit_touch_view(e, &e->tmp[1], ZB_WRITE);
    ZB_TRY(zb_emit_launch(e, ZB_K_attention_fwd, &more));
    return merge(r, &p, &more);
}

enum zb_status zb_ring_attention_forward(struct zb_emit *e)
{
    struct ring r = ring_of(e, &e->in[1].shape);

    ZB_TRY(copy_heads(&r, &e->in[1], &e->out[2], 0, 0));
    ZB_TRY(copy_heads(&r, &e->in[2], &e->out[2], r.kv_row / 2, 0));
    return walk(&r, &e->out[2], forward_pair);
}

/* ---- backward ------------------------------------------------------------ */

static enum zb_status backward_pair(const struct ring *r, const struct pair *at)
{
    struct zb_emit *e = r->e;
    const struct zb_view *dq = &e->d_in[0];
    struct zb_k_attention_bwd k = {
        .fwd = pair_params(r, at),
        .add_q = !at->is_first,
        .add_kv = 1,
        .dq_batch = dq->stride[0],
        .dk_batch = r->whole.k_batch,
        .dv_batch = r->whole.k_batch,
        .dq_row = dq->stride[1],
        .dk_row = r->kv_row,
        .dv_row = r->kv_row,
        .dq_head = dq->stride[2],
        .dk_head = r->whole.k_head,
        .dv_head = r->whole.k_head,
        .sums = e->tmp[2].data,
    };

    k.dout = element(r, e->d_out.data,
                     at->q * r->len * k.fwd.q_heads * k.fwd.head_dim);
    k.dq = element(r, dq->data, at->q * r->len * k.dq_row);
    k.dk = element(r, e->tmp[0].data,
                   at->from * r->kv_elems + at->k * r->len * r->kv_row);
    k.dv = element(r, k.dk, r->kv_row / 2);
    touch_inputs(r, at);
    zb_emit_touch_view(e, &e->out[0], ZB_READ);
    zb_emit_touch_view(e, &e->out[1], ZB_READ);
    zb_emit_touch_view(e, &e->d_out, ZB_READ);
    zb_emit_touch_view(e, dq, at->is_first ? ZB_WRITE : ZB_READ_WRITE);
    zb_emit_touch_view(e, &e->tmp[0], ZB_READ_WRITE);
    zb_emit_touch_view(e, &e->tmp[2], ZB_WRITE); /* 16 bits only */
    return zb_emit_launch(e, ZB_K_attention_bwd, &k);
}

static enum zb_status clear_sums(struct zb_emit *e)
{
    struct zb_k_fill k = {
        .n = zb_shape_elems(&e->tmp[0].shape),
        .dtype = e->tmp[0].dtype,
        .y = e->tmp[0].data,
    };

    zb_emit_begin(e);
    zb_emit_touch_view(e, &e->tmp[0], ZB_WRITE);
    return zb_emit_launch(e, ZB_K_fill, &k);
}

/* Gradients of everybody's keys and values are gathered in rank order, summed
 * by their owners: exact, and the same in every run. */
enum zb_status zb_ring_attention_backward_input(struct zb_emit *e)
{
    struct ring r = ring_of(e, &e->d_in[1].shape);
    struct zb_coll sum = {
        .kind = ZB_COLL_REDUCE_SCATTER,
        .dtype = e->tmp[0].dtype,
        .outer = 1,
        .inner = r.kv_elems,
        .src = e->tmp[0].data,
        .dst = e->tmp[1].data,
    };

    ZB_TRY(clear_sums(e));
    ZB_TRY(walk(&r, &e->out[2], backward_pair));
    ZB_TRY(zb_emit_coll(e, ZB_AXIS_SP, sum));
    ZB_TRY(copy_heads(&r, &e->d_in[1], &e->tmp[1], 0, 1));
    return copy_heads(&r, &e->d_in[2], &e->tmp[1], r.kv_row / 2, 1);
}
