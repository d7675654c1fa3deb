/* SPDX-License-Identifier: MIT
 *
 * From parts of sequences with all heads to whole sequences with a share of the
 * heads, and back (Jacobs et al. 2023, "DeepSpeed Ulysses"). The two are each
 * other's adjoint.
 */
#include "config.h"
#include "graph/graph_int.h"

/* x [B,SEQ,heads,D] -> [B,FULL,share,D]; with fewer heads than devices several
 * get the same one. */
int zb_seq_to_heads_shape(struct zb_graph *g, struct zb_op *op)
{
    const struct zb_shape *x = zb_op_shape(g, op, 0);
    int64_t sp = g->par.sp;
    struct zb_shape y = *x;

    if (x->n_dims != 4 || x->dim[1] != ZB_DIM(ZB_SYM_SEQ) || x->dim[2] < 1) {
        zb_graph_mistake(g, op, "x %s has no heads of parts of sequences",
                         zb_shape_text(x).s);
        return -1;
    }
    if (x->dim[2] % sp != 0 &&
        !(op->u.heads.may_repeat && sp % x->dim[2] == 0)) {
        zb_graph_mistake(
            g, op,
            "%lld %s heads can not be shared by %lld devices "
            "(sp_size)%s",
            (long long)x->dim[2], op->u.heads.may_repeat ? "key" : "query",
            (long long)sp,
            op->u.heads.may_repeat ? ": one number must divide the other"
                                   : ": their number must be a multiple");
        return -1;
    }
    y.dim[1] = ZB_DIM(ZB_SYM_FULL);
    y.dim[2] = x->dim[2] < sp ? 1 : x->dim[2] / sp;
    return zb_op_add_out(g, op, &y);
}

/* x [B,FULL,share] -> [B,SEQ,all] */
int zb_heads_to_seq_shape(struct zb_graph *g, struct zb_op *op)
{
    const struct zb_shape *x = zb_op_shape(g, op, 0);
    struct zb_shape y = *x;

    if (x->n_dims != 3 || x->dim[1] != ZB_DIM(ZB_SYM_FULL) || x->dim[2] < 1) {
        zb_graph_mistake(g, op, "x %s is no output of heads of sequences",
                         zb_shape_text(x).s);
        return -1;
    }
    y.dim[1] = ZB_DIM(ZB_SYM_SEQ);
    y.dim[2] = x->dim[2] * g->par.sp;
    return zb_op_add_out(g, op, &y);
}

struct zb_flops zb_seq_to_heads_flops(const struct zb_graph *g,
                                      const struct zb_op *op,
                                      const struct zb_bind *bind)
{
    (void)g;
    (void)op;
    (void)bind;
    return (struct zb_flops){0, 0, 0};
}

struct zb_flops zb_heads_to_seq_flops(const struct zb_graph *g,
                                      const struct zb_op *op,
                                      const struct zb_bind *bind)
{
    return zb_seq_to_heads_flops(g, op, bind);
}

/* `parts` is the side [B,SEQ,..]: its elements per row and how many pieces they
 * are say all. */
static enum zb_status exchange(struct zb_emit *e, enum zb_coll_kind kind,
                               const struct zb_view *parts, int64_t n_heads,
                               const struct zb_view *src,
                               const struct zb_view *dst)
{
    int64_t batch = parts->shape.dim[0], seq = parts->shape.dim[1];
    struct zb_coll c = {
        .kind = kind,
        .dtype = src->dtype,
        .outer = batch,
        .mid = seq,
        .inner = zb_shape_elems(&parts->shape) / batch / seq / n_heads,
        .n_heads = n_heads,
        .src = src->data,
        .dst = dst->data,
    };

    return zb_emit_coll(e, ZB_AXIS_SP, c);
}

static int64_t n_pieces(const struct zb_emit *e)
{
    int64_t heads = zb_op_shape(e->graph, e->op, 0)->dim[2];

    return heads < e->graph->par.sp ? heads : e->graph->par.sp;
}

enum zb_status zb_seq_to_heads_forward(struct zb_emit *e)
{
    return exchange(e, ZB_COLL_SEQ_TO_HEADS, &e->in[0], n_pieces(e), &e->in[0],
                    &e->out[0]);
}

enum zb_status zb_seq_to_heads_backward_input(struct zb_emit *e)
{
    return exchange(e, ZB_COLL_HEADS_TO_SEQ, &e->d_in[0], n_pieces(e),
                    &e->d_out, &e->d_in[0]);
}

enum zb_status zb_heads_to_seq_forward(struct zb_emit *e)
{
    return exchange(e, ZB_COLL_HEADS_TO_SEQ, &e->out[0], e->graph->par.sp,
                    &e->in[0], &e->out[0]);
}

enum zb_status zb_heads_to_seq_backward_input(struct zb_emit *e)
{
    return exchange(e, ZB_COLL_SEQ_TO_HEADS, &e->d_out, e->graph->par.sp,
                    &e->d_out, &e->d_in[0]);
}
