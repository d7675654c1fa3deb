/* SPDX-License-Identifier: MIT
 *
 * Attention and the rotation of its heads. Tensors are [B,T,heads,D].
 */
#include "config.h"
#include "graph/graph_int.h"

#include <math.h>

/* ---- rope ---------------------------------------------------------------- */

int zb_rope_shape(struct zb_graph *g, struct zb_op *op)
{
    const struct zb_shape *x = zb_op_shape(g, op, 0);
    const struct zb_shape *cos = zb_op_shape(g, op, 1);
    const struct zb_shape *sin = zb_op_shape(g, op, 2);
    struct zb_shape y = *x;

    if (x->n_dims != 4 || x->dim[2] < 0 || x->dim[3] < 0 || cos->n_dims != 2 ||
        !zb_shape_equal(cos, sin) || 2 * cos->dim[1] > x->dim[3]) {
        zb_graph_mistake(g, op, "x %s does not fit tables %s and %s",
                         zb_shape_text(x).s, zb_shape_text(cos).s,
                         zb_shape_text(sin).s);
        return -1;
    }
    return zb_op_add_out(g, op, &y);
}

enum zb_status zb_rope_fits(const struct zb_graph *g, const struct zb_op *op,
                            const struct zb_bind *max)
{
    int64_t seq = zb_least_seq(g, zb_op_shape(g, op, 0)->dim[1], max);
    int64_t rows = zb_op_shape(g, op, 1)->dim[0];

    if (seq > rows) {
        return zb_fail(ZB_EINVAL,
                       "%s: a sequence of %lld is longer than the %lld "
                       "positions of the rope table",
                       op->label, (long long)seq, (long long)rows);
    }
    return ZB_OK;
}

int zb_rope_variant(const struct zb_op *op)
{
    return op->u.rope.interleaved;
}

struct zb_flops zb_rope_flops(const struct zb_graph *g, const struct zb_op *op,
                              const struct zb_bind *bind)
{
    double n = (double)zb_bound_elems(zb_op_shape(g, op, 0), bind);
    struct zb_flops cost = {3 * n, 3 * n, 0};

    return cost;
}

static enum zb_status rotate(struct zb_emit *e, const struct zb_view *x,
                             const struct zb_view *y, int inverse)
{
    struct zb_k_rope k = {
        .batch = x->shape.dim[0],
        .seq = x->shape.dim[1],
        .heads = x->shape.dim[2],
        .head_dim = x->shape.dim[3],
        .half = e->in[1].shape.dim[1],
        .n_pos = e->in[1].shape.dim[0],
        .place = zb_emit_place(e, 0),
        .interleaved = e->op->u.rope.interleaved,
        .inverse = inverse,
        .cos = e->in[1].data,
        .sin = e->in[2].data,
        .dtype = x->dtype,
        .x = x->data,
        .x_row = x->stride[1],
        .x_head = x->stride[2],
        .y = y->data,
        .y_row = y->stride[1],
        .y_head = y->stride[2],
    };

    return zb_emit_launch(e, ZB_K_rope, &k);
}

enum zb_status zb_rope_forward(struct zb_emit *e)
{
    return rotate(e, &e->in[0], &e->out[0], 0);
}

enum zb_status zb_rope_backward_input(struct zb_emit *e)
{
    return rotate(e, &e->d_out, &e->d_in[0], 1);
}

/* ---- attention ----------------------------------------------------------- */

static int same_batch(const struct zb_shape *a, const struct zb_shape *b)
{
    return a->dim[0] == b->dim[0] && a->dim[1] == b->dim[1];
}

/* q [B,T,nq,D], k and v [B,T,nkv,D], nq a multiple of nkv; mask [B,mask_seq].
 */
static int has_attention_shapes(const struct zb_graph *g,
                                const struct zb_op *op, int64_t mask_seq)
{
    const struct zb_shape *q = zb_op_shape(g, op, 0);
    const struct zb_shape *k = zb_op_shape(g, op, 1);
    const struct zb_shape *v = zb_op_shape(g, op, 2);

    if (q->n_dims != 4 || k->n_dims != 4 || !zb_shape_equal(k, v) ||
        !same_batch(q, k) || q->dim[3] != k->dim[3] || q->dim[2] < 1 ||
        q->dim[3] < 1 || k->dim[2] < 1 || q->dim[2] % k->dim[2] != 0) {
        return 0;
    }
    if (zb_op_has_in(op, 4)) {
        const struct zb_shape *slopes = zb_op_shape(g, op, 4);

        if (slopes->n_dims != 1 || slopes->dim[0] < q->dim[2]) {
            return 0;
        }
    }
    if (zb_op_has_in(op, 3)) {
        const struct zb_shape *mask = zb_op_shape(g, op, 3);

        return mask->n_dims == 2 && mask->dim[0] == q->dim[0] &&
               mask->dim[1] == mask_seq;
    }
    return 1;
}

/* The first two outputs: y [B,T,nq*D], lse [B,nq,T]. */
static int attention_shape(struct zb_graph *g, struct zb_op *op,
                           int64_t mask_seq)
{
    const struct zb_attn_opts *o = &op->u.attention;
    struct zb_shape q, y, lse;

    if (!has_attention_shapes(g, op, mask_seq)) {
        zb_graph_mistake(g, op, "q %s, k %s, v %s%s%s do not fit together",
                         zb_shape_text(zb_op_shape(g, op, 0)).s,
                         zb_shape_text(zb_op_shape(g, op, 1)).s,
                         zb_shape_text(zb_op_shape(g, op, 2)).s,
                         zb_op_has_in(op, 3) ? ", key_mask " : "",
                         zb_op_has_in(op, 3)
                             ? zb_shape_text(zb_op_shape(g, op, 3)).s
                             : "");
        return -1;
    }
    if (o->window < 0 || (o->window > 0 && !o->causal)) {
        zb_graph_mistake(g, op, "a window of %lld%s", (long long)o->window,
                         o->causal ? "" : " without causality");
        return -1;
    }
    if (!isfinite(o->scale) || !(o->dropout >= 0 && o->dropout < 1)) {
        zb_graph_mistake(g, op, "scale %g or dropout %g is out of range",
                         o->scale, o->dropout);
        return -1;
    }
    q = *zb_op_shape(g, op, 0);
    y = q;
    y.n_dims = 3;
    y.dim[2] = q.dim[2] * q.dim[3];
    lse = q;
    lse.n_dims = 3;
    lse.dim[1] = q.dim[2];
    lse.dim[2] = q.dim[1];
    return zb_op_add_out(g, op, &y) != 0 ? -1 : zb_op_add_real(g, op, &lse);
}

/* B adds gradients of keys and values up in zb_real: `n_kv` rows of both. */
static void add_kv_sums(struct zb_graph *g, struct zb_op *op,
                        const struct zb_shape *n_kv)
{
    int at = op->n_tmp[ZB_PASS_B];

    if (g->storage != ZB_DTYPE_REAL) {
        op->tmp[ZB_PASS_B][at] = *n_kv;
        op->tmp_dtype[ZB_PASS_B][at] = ZB_DTYPE_REAL;
        op->n_tmp[ZB_PASS_B] = at + 1;
    }
}

int zb_attention_shape(struct zb_graph *g, struct zb_op *op)
{
    struct zb_shape kv;

    if (attention_shape(g, op, zb_op_shape(g, op, 0)->dim[1]) != 0) {
        return -1;
    }
    kv = *zb_op_shape(g, op, 1);
    kv.dim[3] *= 2;
    add_kv_sums(g, op, &kv);
    return 0;
}

/* Also keeps keys and values of the part as they go round, [B,SEQ,2,nkv*D]. F
 * needs memory for attention to one piece, B for the gradients of the keys and
 * values of everybody, and for their own sum; a pair of pieces has half the
 * rows of a part. */
int zb_ring_attention_shape(struct zb_graph *g, struct zb_op *op)
{
    struct zb_shape kv, all;

    if (attention_shape(g, op, ZB_DIM(ZB_SYM_FULL)) != 0) {
        return -1;
    }
    kv = *zb_op_shape(g, op, 1);
    if (kv.dim[1] != ZB_DIM(ZB_SYM_SEQ)) {
        zb_graph_mistake(g, op, "k %s is no part of a sequence",
                         zb_shape_text(&kv).s);
        return -1;
    }
    kv.dim[3] *= kv.dim[2];
    kv.dim[2] = 2;
    all = kv;
    all.dim[1] = ZB_DIM(ZB_SYM_FULL);
    for (int i = 0; i < 2; i++) {
        op->tmp[ZB_PASS_F][i] = g->tensors[op->out[i]].shape;
        op->tmp_dtype[ZB_PASS_F][i] = g->tensors[op->out[i]].dtype;
        op->tmp_dtype[ZB_PASS_B][i] = g->storage;
    }
    op->tmp[ZB_PASS_B][0] = all;
    op->tmp[ZB_PASS_B][1] = kv;
    op->n_tmp[ZB_PASS_F] = 2;
    op->n_tmp[ZB_PASS_B] = 2;
    add_kv_sums(g, op, zb_op_shape(g, op, 1));
    return zb_op_add_out(g, op, &kv);
}

/* Two products of T x T x D per head forward, five backward (the weights are
 * computed again). */
int zb_attention_variant(const struct zb_op *op)
{
    const struct zb_attn_opts *o = &op->u.attention;

    return 4 * (int)(o->window < INT32_MAX / 4 ? o->window : 0) +
           2 * o->causal + (o->dropout > 0);
}

/* Of so many keys, those that a query sees in the mean. */
static double keys_seen(const struct zb_attn_opts *o, double keys)
{
    double window =
        o->window > 0 && (double)o->window < keys ? (double)o->window : keys;

    return o->causal ? window * (1 - window / (2 * keys)) : keys;
}

static struct zb_flops attention_flops(const struct zb_graph *g,
                                       const struct zb_op *op,
                                       const struct zb_bind *bind, int64_t keys)
{
    struct zb_shape q = zb_shape_bind(zb_op_shape(g, op, 0), bind);
    double product = 2.0 * (double)zb_shape_elems(&q) *
                     keys_seen(&op->u.attention, (double)keys);
    struct zb_flops cost = {2 * product, 5 * product, 0};

    return cost;
}

struct zb_flops zb_attention_flops(const struct zb_graph *g,
                                   const struct zb_op *op,
                                   const struct zb_bind *bind)
{
    struct zb_shape k = zb_shape_bind(zb_op_shape(g, op, 1), bind);

    return attention_flops(g, op, bind, k.dim[1]);
}

struct zb_flops zb_ring_attention_flops(const struct zb_graph *g,
                                        const struct zb_op *op,
                                        const struct zb_bind *bind)
{
    return attention_flops(g, op, bind, bind->value[ZB_SYM_FULL]);
}

/* The number in the whole model of the first head that this rank has. */
static int64_t first_head(const struct zb_emit *e)
{
    const struct zb_tensor *q = &e->graph->tensors[e->op->in[0]];
    int64_t n = q->shape.dim[2];
    int rank = q->spread.kind == ZB_SPREAD_COLS ? e->run->tp_rank : 0;

    if (e->graph->par.mode == ZB_SEQ_ALL_TO_ALL) {
        rank = rank * e->graph->par.sp + e->run->sp_rank;
    }
    return rank * n;
}

/* Padding of sequences; keys may be something else. */
static int64_t n_padding(const struct zb_emit *e)
{
    return zb_op_shape(e->graph, e->op, 1)->dim[1] < 0 ? e->run->n_padding : 0;
}

struct zb_k_attention_fwd zb_attention_params(const struct zb_emit *e)
{
    const struct zb_attn_opts *o = &e->op->u.attention;
    const struct zb_view *q = &e->in[0], *k = &e->in[1], *v = &e->in[2];
    const struct zb_view *out = &e->out[0], *lse = &e->out[1];
    struct zb_k_attention_fwd p = {
        .batch = q->shape.dim[0],
        .seq = q->shape.dim[1],
        .kv_seq = k->shape.dim[1],
        .whole = k->shape.dim[1],
        .n_padding = n_padding(e),
        .q_heads = q->shape.dim[2],
        .kv_heads = k->shape.dim[2],
        .head_dim = q->shape.dim[3],
        .first_head = first_head(e),
        .causal = o->causal,
        .window = o->window,
        .scale = o->scale,
        .dropout = e->run->is_training ? o->dropout : 0.0,
        .philox = zb_emit_philox(e),
        .key_mask = e->in[3].data,
        .slopes = e->in[4].data,
        .dtype = q->dtype,
        .q = q->data,
        .k = k->data,
        .v = v->data,
        .q_batch = q->stride[0],
        .k_batch = k->stride[0],
        .v_batch = v->stride[0],
        .q_row = q->stride[1],
        .k_row = k->stride[1],
        .v_row = v->stride[1],
        .q_head = q->stride[2],
        .k_head = k->stride[2],
        .v_head = v->stride[2],
        .out = out->data,
        .lse = lse->data,
        .out_batch = out->stride[0],
        .lse_row = lse->stride[1],
    };

    return p;
}

static void read_samples(struct zb_emit *e, const struct zb_k_attention_fwd *p)
{
    if (p->dropout > 0) {
        zb_emit_reads(e, p->philox.sample, (size_t)p->batch * sizeof(int64_t));
    }
}

enum zb_status zb_attention_forward(struct zb_emit *e)
{
    struct zb_k_attention_fwd k = zb_attention_params(e);

    read_samples(e, &k);
    return zb_emit_launch(e, ZB_K_attention_fwd, &k);
}

enum zb_status zb_attention_backward_input(struct zb_emit *e)
{
    const struct zb_view *dq = &e->d_in[0], *dk = &e->d_in[1];
    const struct zb_view *dv = &e->d_in[2];
    struct zb_k_attention_bwd k = {
        .fwd = zb_attention_params(e),
        .dout = e->d_out.data,
        .dq = dq->data,
        .dk = dk->data,
        .dv = dv->data,
        .dq_batch = dq->stride[0],
        .dk_batch = dk->stride[0],
        .dv_batch = dv->stride[0],
        .dq_row = dq->stride[1],
        .dk_row = dk->stride[1],
        .dv_row = dv->stride[1],
        .dq_head = dq->stride[2],
        .dk_head = dk->stride[2],
        .dv_head = dv->stride[2],
        .sums = e->tmp[0].data,
    };

    read_samples(e, &k.fwd);
    return zb_emit_launch(e, ZB_K_attention_bwd, &k);
}
