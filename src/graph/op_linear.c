/* SPDX-License-Identifier: MIT
 *
 * Ops with a matrix or a table: linear, embedding, position.
 */
#include "config.h"
#include "graph/graph_int.h"

/* ---- linear: y[rows,out] = x[rows,in] W^T + b ---------------------------- */

int zb_linear_shape(struct zb_graph *g, struct zb_op *op)
{
    const struct zb_shape *x = zb_op_shape(g, op, 0);
    const struct zb_shape *w = zb_op_shape(g, op, 1);
    int in_dim = op->u.linear.in_by_out ? 0 : 1;
    struct zb_shape y = *x;

    if (w->n_dims != 2 || x->n_dims < 1 ||
        x->dim[x->n_dims - 1] != w->dim[in_dim]) {
        zb_graph_mistake(g, op, "x %s does not fit weight '%s' %s%s",
                         zb_shape_text(x).s,
                         g->params[g->tensors[op->in[1]].index].name,
                         zb_shape_text(w).s,
                         op->u.linear.in_by_out ? " ([in,out])" : "");
        return -1;
    }
    y.dim[y.n_dims - 1] = w->dim[1 - in_dim];
    if (zb_op_has_in(op, 2)) {
        const struct zb_shape *b = zb_op_shape(g, op, 2);

        if (b->n_dims != 1 || b->dim[0] != w->dim[1 - in_dim]) {
            zb_graph_mistake(g, op, "bias '%s' %s does not fit weight %s",
                             g->params[g->tensors[op->in[2]].index].name,
                             zb_shape_text(b).s, zb_shape_text(w).s);
            return -1;
        }
    }
    return zb_op_add_out(g, op, &y);
}

struct zb_flops zb_linear_flops(const struct zb_graph *g,
                                const struct zb_op *op,
                                const struct zb_bind *bind)
{
    double n = 2.0 *
               (double)zb_bound_rows(&g->tensors[op->out[0]].shape, bind) *
               (double)zb_bound_elems(zb_op_shape(g, op, 1), bind);
    struct zb_flops cost = {n, n, n};

    return cost;
}

enum zb_product zb_linear_product(const struct zb_op *op, enum zb_pass pass)
{
    if (pass == ZB_PASS_W) {
        return ZB_PRODUCT_TN;
    }
    return (pass == ZB_PASS_B) == op->u.linear.in_by_out ? ZB_PRODUCT_NT
                                                         : ZB_PRODUCT_NN;
}

int zb_linear_variant(const struct zb_op *op)
{
    return op->u.linear.in_by_out;
}

enum zb_status zb_linear_forward(struct zb_emit *e)
{
    int64_t k = zb_shape_cols(&e->in[0].shape);
    int64_t n = zb_shape_cols(&e->out[0].shape);
    int is_out_by_in = !e->op->u.linear.in_by_out;
    struct zb_k_gemm gemm = {
        .m = zb_shape_rows(&e->in[0].shape),
        .n = n,
        .k = k,
        .trans_b = is_out_by_in,
        .dtype = e->in[0].dtype,
        .c_dtype = e->out[0].dtype,
        .a = e->in[0].data,
        .b = e->in[1].data,
        .c = e->out[0].data,
        .bias = e->in[2].data,
        .lda = zb_view_row_stride(&e->in[0]),
        .ldb = is_out_by_in ? k : n,
        .ldc = zb_view_row_stride(&e->out[0]),
    };

    return zb_emit_launch(e, ZB_K_gemm, &gemm);
}

/* dX = dY W */
enum zb_status zb_linear_backward_input(struct zb_emit *e)
{
    int64_t n = zb_shape_cols(&e->d_in[0].shape);
    int64_t k = zb_shape_cols(&e->d_out.shape);
    int in_by_out = e->op->u.linear.in_by_out;
    struct zb_k_gemm gemm = {
        .m = zb_shape_rows(&e->d_out.shape),
        .n = n,
        .k = k,
        .trans_b = in_by_out,
        .accumulate = e->accumulate,
        .dtype = e->d_out.dtype,
        .c_dtype = e->d_in[0].dtype,
        .a = e->d_out.data,
        .b = e->in[1].data,
        .c = e->d_in[0].data,
        .lda = zb_view_row_stride(&e->d_out),
        .ldb = in_by_out ? k : n,
        .ldc = zb_view_row_stride(&e->d_in[0]),
    };

    return zb_emit_launch(e, ZB_K_gemm, &gemm);
}

enum zb_status zb_emit_col_sum(struct zb_emit *e, int bias)
{
    struct zb_k_col_sum sum = {
        .rows = zb_shape_rows(&e->d_out.shape),
        .cols = zb_shape_cols(&e->d_out.shape),
        .ldx = zb_view_row_stride(&e->d_out),
        .dtype = e->d_out.dtype,
        .x = e->d_out.data,
        .y = e->d_in[bias].data,
    };

    return zb_emit_launch(e, ZB_K_col_sum, &sum);
}

/* dW[out,in] += dY^T X, or dW[in,out] += X^T dY */
enum zb_status zb_linear_backward_weight(struct zb_emit *e)
{
    const struct zb_view *x = &e->in[0], *dy = &e->d_out;
    const struct zb_view *a, *b;

    if (e->weight == 2) {
        return zb_emit_col_sum(e, 2);
    }
    a = e->op->u.linear.in_by_out ? x : dy;
    b = e->op->u.linear.in_by_out ? dy : x;
    {
        struct zb_k_gemm gemm = {
            .m = zb_shape_cols(&a->shape),
            .n = zb_shape_cols(&b->shape),
            .k = zb_shape_rows(&x->shape),
            .trans_a = 1,
            .accumulate = 1,
            .dtype = x->dtype,
            .c_dtype = e->d_in[1].dtype,
            .a = a->data,
            .b = b->data,
            .c = e->d_in[1].data,
            .lda = zb_view_row_stride(a),
            .ldb = zb_view_row_stride(b),
            .ldc = zb_shape_cols(&b->shape),
        };

        return zb_emit_launch(e, ZB_K_gemm, &gemm);
    }
}

/* ---- embedding ----------------------------------------------------------- */

int zb_embedding_shape(struct zb_graph *g, struct zb_op *op)
{
    const struct zb_shape *ids = zb_op_shape(g, op, 0);
    const struct zb_shape *table = zb_op_shape(g, op, 1);
    int padding_idx = op->u.embedding.padding_idx;
    struct zb_shape y = *ids;

    if (table->n_dims != 2 || ids->n_dims >= ZB_MAX_DIMS) {
        zb_graph_mistake(g, op, "ids %s or table %s has too many or few "
                                "dimensions",
                         zb_shape_text(ids).s, zb_shape_text(table).s);
        return -1;
    }
    if (padding_idx < -1 ||
        padding_idx >= zb_op_param(g, op, 1)->whole.dim[0]) {
        zb_graph_mistake(g, op, "padding_idx %d is outside the table %s",
                         padding_idx,
                         zb_shape_text(&zb_op_param(g, op, 1)->whole).s);
        return -1;
    }
    y.dim[y.n_dims++] = table->dim[1];
    return zb_op_add_out(g, op, &y);
}

/* Ops that touch every element a few times. */
static struct zb_flops per_element(const struct zb_graph *g,
                                   const struct zb_op *op,
                                   const struct zb_bind *bind, double f,
                                   double b, double w)
{
    double n = (double)zb_bound_elems(&g->tensors[op->out[0]].shape, bind);
    struct zb_flops cost = {f * n, b * n, w * n};

    return cost;
}

struct zb_flops zb_embedding_flops(const struct zb_graph *g,
                                   const struct zb_op *op,
                                   const struct zb_bind *bind)
{
    return per_element(g, op, bind, 0, 0, 1);
}

/* Of the table that this rank has a part of. */
static int64_t first_row(const struct zb_emit *e)
{
    return zb_param_is_split(e->graph, e->op->in[1], 0)
               ? e->run->tp_rank * zb_op_shape(e->graph, e->op, 1)->dim[0]
               : 0;
}

enum zb_status zb_embedding_forward(struct zb_emit *e)
{
    struct zb_k_embedding_fwd k = {
        .rows = zb_shape_elems(&e->in[0].shape),
        .cols = e->in[1].shape.dim[1],
        .n_ids = e->in[1].shape.dim[0],
        .first = first_row(e),
        .whole = zb_op_param(e->graph, e->op, 1)->whole.dim[0],
        .offset = e->op->u.embedding.offset,
        .ldy = zb_view_row_stride(&e->out[0]),
        .dtype = e->out[0].dtype,
        .id = e->in[0].data,
        .table = e->in[1].data,
        .y = e->out[0].data,
    };

    return zb_emit_launch(e, ZB_K_embedding_fwd, &k);
}

enum zb_status zb_embedding_backward_weight(struct zb_emit *e)
{
    struct zb_k_embedding_bwd_w k = {
        .rows = zb_shape_elems(&e->in[0].shape),
        .cols = e->d_in[1].shape.dim[1],
        .n_ids = e->d_in[1].shape.dim[0],
        .first = first_row(e),
        .whole = zb_op_param(e->graph, e->op, 1)->whole.dim[0],
        .offset = e->op->u.embedding.offset,
        .lddy = zb_view_row_stride(&e->d_out),
        .padding_idx = e->op->u.embedding.padding_idx,
        .dtype = e->d_out.dtype,
        .id = e->in[0].data,
        .dy = e->d_out.data,
        .dtable = e->d_in[1].data,
    };

    return zb_emit_launch(e, ZB_K_embedding_bwd_w, &k);
}

/* ---- position: y[b,t,:] = x[b,t,:] + table[offset + t,:] ----------------- */

int zb_position_shape(struct zb_graph *g, struct zb_op *op)
{
    const struct zb_shape *x = zb_op_shape(g, op, 0);
    const struct zb_shape *table = zb_op_shape(g, op, 1);

    if (x->n_dims != 3 || table->n_dims != 2 || x->dim[2] != table->dim[1] ||
        op->u.position.offset < 0 ||
        op->u.position.offset >= table->dim[0]) {
        zb_graph_mistake(g, op, "x %s does not fit table %s with offset %d",
                         zb_shape_text(x).s, zb_shape_text(table).s,
                         op->u.position.offset);
        return -1;
    }
    return zb_op_add_out(g, op, x);
}

enum zb_status zb_position_fits(const struct zb_graph *g,
                                const struct zb_op *op,
                                const struct zb_bind *max)
{
    int64_t seq = zb_least_seq(g, zb_op_shape(g, op, 0)->dim[1], max);
    int64_t rows = zb_op_shape(g, op, 1)->dim[0] - op->u.position.offset;

    if (seq > rows) {
        return zb_fail(ZB_EINVAL,
                       "%s: a sequence of %lld is longer than the %lld "
                       "positions of the table",
                       op->label, (long long)seq, (long long)rows);
    }
    return ZB_OK;
}

struct zb_flops zb_position_flops(const struct zb_graph *g,
                                  const struct zb_op *op,
                                  const struct zb_bind *bind)
{
    return per_element(g, op, bind, 1, 0, 1);
}

enum zb_status zb_position_forward(struct zb_emit *e)
{
    struct zb_k_position_fwd k = {
        .batch = e->in[0].shape.dim[0],
        .seq = e->in[0].shape.dim[1],
        .cols = e->in[0].shape.dim[2],
        .offset = e->op->u.position.offset,
        .n_pos = e->in[1].shape.dim[0],
        .place = zb_emit_place(e, 0),
        .dtype = e->in[0].dtype,
        .x = e->in[0].data,
        .table = e->in[1].data,
        .y = e->out[0].data,
    };

    return zb_emit_launch(e, ZB_K_position_fwd, &k);
}

enum zb_status zb_position_backward_weight(struct zb_emit *e)
{
    struct zb_k_position_bwd_w k = {
        .batch = e->d_out.shape.dim[0],
        .seq = e->d_out.shape.dim[1],
        .cols = e->d_out.shape.dim[2],
        .offset = e->op->u.position.offset,
        .n_pos = e->d_in[1].shape.dim[0],
        .place = zb_emit_place(e, 0),
        .dtype = e->d_out.dtype,
        .dy = e->d_out.data,
        .dtable = e->d_in[1].data,
    };

    return zb_emit_launch(e, ZB_K_position_bwd_w, &k);
}
