/* SPDX-License-Identifier: MIT
 *
 * Elementwise ops, and those that take a tensor apart or look at it differently.
 */
#include "config.h"
#include "graph/graph_int.h"

#include <math.h>

static struct zb_flops per_element(const struct zb_graph *g,
                                   const struct zb_op *op,
                                   const struct zb_bind *bind, double f,
                                   double b)
{
    double n = (double)zb_bound_elems(&g->tensors[op->out[0]].shape, bind);
    struct zb_flops cost = {f * n, b * n, 0};

    return cost;
}

/* One output, shaped like the first input. */
static int like_first(struct zb_graph *g, struct zb_op *op)
{
    struct zb_shape y = *zb_op_shape(g, op, 0);

    return zb_op_add_like(g, op, &y, 0);
}

static int like_both(struct zb_graph *g, struct zb_op *op)
{
    const struct zb_shape *a = zb_op_shape(g, op, 0);
    const struct zb_shape *b = zb_op_shape(g, op, 1);

    if (!zb_shape_equal(a, b)) {
        zb_graph_mistake(g, op, "%s %s and %s %s differ", op->row->in[0].name,
                         zb_shape_text(a).s, op->row->in[1].name,
                         zb_shape_text(b).s);
        return -1;
    }
    if (g->tensors[op->in[0]].dtype != g->tensors[op->in[1]].dtype) {
        zb_graph_mistake(g, op, "%s is of type %s and %s of type %s",
                         op->row->in[0].name,
                         zb_dtype_str(g->tensors[op->in[0]].dtype),
                         op->row->in[1].name,
                         zb_dtype_str(g->tensors[op->in[1]].dtype));
        return -1;
    }
    return like_first(g, op);
}

/* ---- act, gated ---------------------------------------------------------- */

int zb_act_shape(struct zb_graph *g, struct zb_op *op)
{
    return like_first(g, op);
}

int zb_act_variant(const struct zb_op *op)
{
    return (int)op->u.act.act;
}

struct zb_flops zb_act_flops(const struct zb_graph *g, const struct zb_op *op,
                             const struct zb_bind *bind)
{
    return per_element(g, op, bind, 10, 16);
}

enum zb_status zb_act_forward(struct zb_emit *e)
{
    struct zb_k_act_fwd k = {
        .n = zb_shape_elems(&e->in[0].shape),
        .act = e->op->u.act.act,
        .dtype = e->in[0].dtype,
        .x = e->in[0].data,
        .y = e->out[0].data,
    };

    return zb_emit_launch(e, ZB_K_act_fwd, &k);
}

enum zb_status zb_act_backward_input(struct zb_emit *e)
{
    struct zb_k_act_bwd k = {
        .n = zb_shape_elems(&e->in[0].shape),
        .act = e->op->u.act.act,
        .dtype = e->in[0].dtype,
        .dy = e->d_out.data,
        .x = e->in[0].data,
        .dx = e->d_in[0].data,
    };

    return zb_emit_launch(e, ZB_K_act_bwd, &k);
}

int zb_gated_shape(struct zb_graph *g, struct zb_op *op)
{
    return like_both(g, op);
}

struct zb_flops zb_gated_flops(const struct zb_graph *g, const struct zb_op *op,
                               const struct zb_bind *bind)
{
    return per_element(g, op, bind, 11, 20);
}

enum zb_status zb_gated_forward(struct zb_emit *e)
{
    struct zb_k_gated_fwd k = {
        .rows = zb_shape_rows(&e->in[0].shape),
        .cols = zb_shape_cols(&e->in[0].shape),
        .ld_gate = zb_view_row_stride(&e->in[0]),
        .ld_up = zb_view_row_stride(&e->in[1]),
        .ld_y = zb_view_row_stride(&e->out[0]),
        .act = e->op->u.act.act,
        .dtype = e->in[0].dtype,
        .gate = e->in[0].data,
        .up = e->in[1].data,
        .y = e->out[0].data,
    };

    return zb_emit_launch(e, ZB_K_gated_fwd, &k);
}

enum zb_status zb_gated_backward_input(struct zb_emit *e)
{
    struct zb_k_gated_bwd k = {
        .rows = zb_shape_rows(&e->in[0].shape),
        .cols = zb_shape_cols(&e->in[0].shape),
        .ld_gate = zb_view_row_stride(&e->in[0]),
        .ld_up = zb_view_row_stride(&e->in[1]),
        .ld_dy = zb_view_row_stride(&e->d_out),
        .ld_dgate = zb_view_row_stride(&e->d_in[0]),
        .ld_dup = zb_view_row_stride(&e->d_in[1]),
        .act = e->op->u.act.act,
        .dtype = e->in[0].dtype,
        .dy = e->d_out.data,
        .gate = e->in[0].data,
        .up = e->in[1].data,
        .dgate = e->d_in[0].data,
        .dup = e->d_in[1].data,
    };

    return zb_emit_launch(e, ZB_K_gated_bwd, &k);
}

/* ---- add, scale, dropout ------------------------------------------------- */

int zb_add_shape(struct zb_graph *g, struct zb_op *op)
{
    return like_both(g, op);
}

struct zb_flops zb_add_flops(const struct zb_graph *g, const struct zb_op *op,
                             const struct zb_bind *bind)
{
    return per_element(g, op, bind, 1, 0);
}

double zb_pass_uniform(const struct zb_op *op)
{
    (void)op;
    return 1;
}

enum zb_status zb_add_forward(struct zb_emit *e)
{
    return zb_emit_add(e);
}

int zb_scale_shape(struct zb_graph *g, struct zb_op *op)
{
    if (!isfinite(op->u.scale.alpha)) {
        zb_graph_mistake(g, op, "the factor is %g", op->u.scale.alpha);
        return -1;
    }
    return like_first(g, op);
}

struct zb_flops zb_scale_flops(const struct zb_graph *g,
                               const struct zb_op *op,
                               const struct zb_bind *bind)
{
    return per_element(g, op, bind, 1, 1);
}

double zb_scale_uniform(const struct zb_op *op)
{
    return op->u.scale.alpha;
}

static enum zb_status scale(struct zb_emit *e, const struct zb_view *x,
                            const struct zb_view *y)
{
    struct zb_k_scale k = {
        .n = zb_shape_elems(&x->shape),
        .alpha = e->op->u.scale.alpha,
        .dtype = x->dtype,
        .x = x->data,
        .y = y->data,
    };

    return zb_emit_launch(e, ZB_K_scale, &k);
}

enum zb_status zb_scale_forward(struct zb_emit *e)
{
    return scale(e, &e->in[0], &e->out[0]);
}

enum zb_status zb_scale_backward_input(struct zb_emit *e)
{
    return scale(e, &e->d_out, &e->d_in[0]);
}

int zb_dropout_shape(struct zb_graph *g, struct zb_op *op)
{
    const struct zb_shape *x = zb_op_shape(g, op, 0);

    if (!(op->u.dropout.p > 0 && op->u.dropout.p < 1)) {
        zb_graph_mistake(g, op, "the rate is %g, not in [0, 1)",
                         op->u.dropout.p);
        return -1;
    }
    if (x->dim[0] != ZB_DIM(ZB_SYM_BATCH)) {
        zb_graph_mistake(g, op, "x %s does not begin with the batch",
                         zb_shape_text(x).s);
        return -1;
    }
    for (int i = 2; g->par.mode != ZB_SEQ_WHOLE && i < x->n_dims; i++) {
        if (x->dim[i] < 0) {
            zb_graph_mistake(g, op, "x %s is split in dimension %d, not 1",
                             zb_shape_text(x).s, i);
            return -1;
        }
    }
    return like_first(g, op);
}

struct zb_flops zb_dropout_flops(const struct zb_graph *g,
                                 const struct zb_op *op,
                                 const struct zb_bind *bind)
{
    return per_element(g, op, bind, 12, 12);
}

static enum zb_status drop(struct zb_emit *e, const struct zb_view *x,
                           const struct zb_view *y)
{
    struct zb_k_dropout k = {
        .batch = x->shape.dim[0],
        .per_sample = zb_shape_elems(&x->shape) / x->shape.dim[0],
        .cols = x->shape.n_dims > 1 ? zb_shape_elems(&x->shape) /
                                          x->shape.dim[0] / x->shape.dim[1]
                                    : 0,
        .p = e->run->is_training ? e->op->u.dropout.p : 0.0,
        .philox = zb_emit_philox(e),
        .dtype = x->dtype,
        .x = x->data,
        .addend = e->addend.data,
        .y = y->data,
    };

    if (k.cols > 0) {
        k.place = zb_emit_place(e, 0);
    }
    if (k.p > 0) {
        zb_emit_reads(e, k.philox.sample, (size_t)k.batch * sizeof(int64_t));
    }
    return zb_emit_launch(e, ZB_K_dropout, &k);
}

enum zb_status zb_dropout_forward(struct zb_emit *e)
{
    return drop(e, &e->in[0], &e->out[0]);
}

enum zb_status zb_dropout_backward_input(struct zb_emit *e)
{
    return drop(e, &e->d_out, &e->d_in[0]);
}

/* ---- reshape, slice ------------------------------------------------------ */

int zb_reshape_shape(struct zb_graph *g, struct zb_op *op)
{
    const struct zb_shape *x = zb_op_shape(g, op, 0);
    const struct zb_shape *y = &op->u.reshape.shape;

    if (!zb_prod_equal(zb_shape_prod(x), zb_shape_prod(y))) {
        zb_graph_mistake(g, op, "%s and %s do not have the same size",
                         zb_shape_text(x).s, zb_shape_text(y).s);
        return -1;
    }
    return zb_op_add_out(g, op, y);
}

int zb_reshape_alias(const struct zb_op *op, const struct zb_layout *in,
                     struct zb_layout *out)
{
    return zb_layout_reshape(in, &op->u.reshape.shape, out);
}

struct zb_flops zb_reshape_flops(const struct zb_graph *g,
                                 const struct zb_op *op,
                                 const struct zb_bind *bind)
{
    return per_element(g, op, bind, 0, 0);
}

int zb_dense_shape(struct zb_graph *g, struct zb_op *op)
{
    struct zb_shape y = *zb_op_shape(g, op, 0);

    return zb_op_add_out(g, op, &y);
}

struct zb_flops zb_dense_flops(const struct zb_graph *g, const struct zb_op *op,
                               const struct zb_bind *bind)
{
    return per_element(g, op, bind, 0, 0);
}

enum zb_status zb_dense_forward(struct zb_emit *e)
{
    int64_t cols = zb_shape_cols(&e->in[0].shape);
    struct zb_k_copy k = {
        .rows = zb_shape_rows(&e->in[0].shape),
        .cols = cols,
        .ldx = zb_view_row_stride(&e->in[0]),
        .ldy = cols,
        .elem_bytes = (int64_t)zb_dtype_bytes(e->in[0].dtype),
        .x = e->in[0].data,
        .y = e->out[0].data,
    };

    return zb_emit_launch(e, ZB_K_copy, &k);
}

int zb_slice_shape(struct zb_graph *g, struct zb_op *op)
{
    struct zb_shape y = *zb_op_shape(g, op, 0);
    int64_t *last = &y.dim[y.n_dims - 1];
    int64_t first = op->u.slice.first, n = op->u.slice.n;

    if (*last < 0 || first < 0 || n < 1 || first > *last || n > *last - first) {
        zb_graph_mistake(g, op, "columns [%lld, %lld) are not in %s",
                         (long long)first, (long long)(first + n),
                         zb_shape_text(&y).s);
        return -1;
    }
    *last = n;
    return zb_op_add_out(g, op, &y);
}

int zb_slice_alias(const struct zb_op *op, const struct zb_layout *in,
                   struct zb_layout *out)
{
    *out = zb_layout_slice(in, op->u.slice.first, op->u.slice.n);
    return 0;
}

struct zb_flops zb_slice_flops(const struct zb_graph *g,
                               const struct zb_op *op,
                               const struct zb_bind *bind)
{
    return per_element(g, op, bind, 0, 0);
}

/* ---- first --------------------------------------------------------------- */

int zb_first_shape(struct zb_graph *g, struct zb_op *op)
{
    struct zb_shape y = *zb_op_shape(g, op, 0);

    if (y.n_dims < 3 || y.dim[0] != ZB_DIM(ZB_SYM_BATCH) ||
        y.dim[1] != ZB_DIM(ZB_SYM_SEQ)) {
        zb_graph_mistake(g, op, "x %s is no batch of sequences",
                         zb_shape_text(&y).s);
        return -1;
    }
    if (g->par.sp > 1) {
        zb_graph_mistake(g, op, "sequences are cut, over sp = %d", g->par.sp);
        return -1;
    }
    for (int i = 2; i < y.n_dims; i++) {
        y.dim[i - 1] = y.dim[i];
    }
    y.n_dims--;
    return zb_op_add_like(g, op, &y, 0);
}

struct zb_flops zb_first_flops(const struct zb_graph *g,
                               const struct zb_op *op,
                               const struct zb_bind *bind)
{
    return per_element(g, op, bind, 0, 0);
}

/* Between the tokens [B,T,..] and the first ones [B,..]. */
static struct zb_k_copy first_params(const struct zb_view *tokens,
                                     const struct zb_view *first)
{
    return (struct zb_k_copy){
        .rows = first->shape.dim[0],
        .cols = zb_shape_elems(&first->shape) / first->shape.dim[0],
        .ldx = zb_shape_elems(&tokens->shape) / tokens->shape.dim[0],
        .ldy = zb_shape_elems(&first->shape) / first->shape.dim[0],
        .elem_bytes = (int64_t)zb_dtype_bytes(first->dtype),
        .x = tokens->data,
        .y = first->data,
    };
}

enum zb_status zb_first_forward(struct zb_emit *e)
{
    struct zb_k_copy k = first_params(&e->in[0], &e->out[0]);

    return zb_emit_launch(e, ZB_K_copy, &k);
}

enum zb_status zb_first_backward_input(struct zb_emit *e)
{
    struct zb_k_copy there = first_params(&e->d_in[0], &e->d_out), back = there;
    struct zb_k_fill zero = {
        .n = zb_shape_elems(&e->d_in[0].shape),
        .dtype = e->d_in[0].dtype,
        .y = e->d_in[0].data,
    };

    back.ldx = there.ldy;
    back.ldy = there.ldx;
    back.x = e->d_out.data;
    back.y = e->d_in[0].data;
    zb_emit_begin(e);
    zb_emit_touch_view(e, &e->d_in[0], ZB_WRITE);
    ZB_TRY(zb_emit_launch(e, ZB_K_fill, &zero));
    zb_emit_touch_view(e, &e->d_out, ZB_READ);
    return zb_emit_launch(e, ZB_K_copy, &back);
}
