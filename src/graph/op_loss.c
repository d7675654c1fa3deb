/* SPDX-License-Identifier: MIT
 *
 * Losses: their gradient is a number (loss_coef * loss_scale[loss]) times what
 * the kernel computes.
 */
#include "config.h"
#include "graph/graph_int.h"

static struct zb_flops per_input(const struct zb_graph *g,
                                 const struct zb_op *op,
                                 const struct zb_bind *bind, double f,
                                 double b)
{
    double n = (double)zb_bound_elems(zb_op_shape(g, op, 0), bind);
    struct zb_flops cost = {f * n, b * n, 0};

    return cost;
}

int zb_xent_shape(struct zb_graph *g, struct zb_op *op)
{
    const struct zb_shape *labels = zb_op_shape(g, op, 1);
    struct zb_shape rows = *zb_op_shape(g, op, 0);

    rows.n_dims--;
    if (rows.n_dims < 1 || !zb_shape_equal(&rows, labels)) {
        zb_graph_mistake(g, op, "logits %s do not fit labels %s",
                         zb_shape_text(zb_op_shape(g, op, 0)).s,
                         zb_shape_text(labels).s);
        return -1;
    }
    return zb_op_add_real(g, op, &rows) != 0
               ? -1
               : zb_op_add_real(g, op, &rows);
}

struct zb_flops zb_xent_flops(const struct zb_graph *g, const struct zb_op *op,
                              const struct zb_bind *bind)
{
    return per_input(g, op, bind, 10, 10);
}

enum zb_status zb_xent_forward(struct zb_emit *e)
{
    struct zb_k_xent_fwd k = {
        .rows = zb_shape_rows(&e->in[0].shape),
        .cols = zb_shape_cols(&e->in[0].shape),
        .ld = zb_view_row_stride(&e->in[0]),
        .dtype = e->in[0].dtype,
        .logits = e->in[0].data,
        .label = e->in[1].data,
        .loss = e->out[0].data,
        .lse = e->out[1].data,
    };

    return zb_emit_launch(e, ZB_K_xent_fwd, &k);
}

/* ---- of logits of which ranks have columns ------------------------------- */

#define N_STATS 3

int zb_xent_part_shape(struct zb_graph *g, struct zb_op *op)
{
    struct zb_shape y = *zb_op_shape(g, op, 0);
    struct zb_shape rows = y;

    rows.n_dims--;
    if (rows.n_dims < 1 || !zb_shape_equal(&rows, zb_op_shape(g, op, 1))) {
        zb_graph_mistake(g, op, "logits %s do not fit labels %s",
                         zb_shape_text(&y).s,
                         zb_shape_text(zb_op_shape(g, op, 1)).s);
        return -1;
    }
    y.dim[y.n_dims - 1] = N_STATS;
    return zb_op_add_real(g, op, &y);
}

struct zb_flops zb_xent_part_flops(const struct zb_graph *g,
                                   const struct zb_op *op,
                                   const struct zb_bind *bind)
{
    return per_input(g, op, bind, 10, 0);
}

enum zb_status zb_xent_part_forward(struct zb_emit *e)
{
    struct zb_k_xent_part k = {
        .rows = zb_shape_rows(&e->in[0].shape),
        .ld = zb_view_row_stride(&e->in[0]),
        .dtype = e->in[0].dtype,
        .logits = e->in[0].data,
        .label = e->in[1].data,
        .stats = e->out[0].data,
    };

    k.cols = zb_emit_cols(e, 0, &k.first);
    return zb_emit_launch(e, ZB_K_xent_part, &k);
}

int zb_xent_join_shape(struct zb_graph *g, struct zb_op *op)
{
    return zb_xent_shape(g, op);
}

struct zb_flops zb_xent_join_flops(const struct zb_graph *g,
                                   const struct zb_op *op,
                                   const struct zb_bind *bind)
{
    return per_input(g, op, bind, 0, 10);
}

enum zb_status zb_xent_join_forward(struct zb_emit *e)
{
    struct zb_k_xent_join k = {
        .rows = zb_shape_elems(&e->out[0].shape),
        .n_parts = zb_shape_cols(&e->in[2].shape) / N_STATS,
        .n_class = e->graph->tensors[e->op->in[0]].spread.n_whole,
        .stats = e->in[2].data,
        .label = e->in[1].data,
        .loss = e->out[0].data,
        .lse = e->out[1].data,
    };

    return zb_emit_launch(e, ZB_K_xent_join, &k);
}

/* ---- gradients of logits ------------------------------------------------- */

/* Of the columns that there are, `first` on, of n_class. */
static enum zb_status xent_gradient(struct zb_emit *e, int64_t cols,
                                    int64_t first, int64_t n_class)
{
    struct zb_k_xent_bwd k = {
        .rows = zb_shape_rows(&e->in[0].shape),
        .cols = cols,
        .ld = zb_view_row_stride(&e->in[0]),
        .ld_d = zb_view_row_stride(&e->d_in[0]),
        .n_pad = zb_shape_cols(&e->in[0].shape) - cols,
        .first = first,
        .n_class = n_class,
        .scale = e->loss_coef * e->run->loss_scale[e->loss],
        .dtype = e->in[0].dtype,
        .logits = e->in[0].data,
        .lse = e->out[1].data,
        .label = e->in[1].data,
        .dlogits = e->d_in[0].data,
    };

    return zb_emit_launch(e, ZB_K_xent_bwd, &k);
}

enum zb_status zb_xent_backward_input(struct zb_emit *e)
{
    int64_t cols = zb_shape_cols(&e->in[0].shape);

    return xent_gradient(e, cols, 0, cols);
}

enum zb_status zb_xent_join_backward_input(struct zb_emit *e)
{
    int64_t first, cols = zb_emit_cols(e, 0, &first);

    return xent_gradient(e, cols, first,
                         e->graph->tensors[e->op->in[0]].spread.n_whole);
}

int zb_mse_shape(struct zb_graph *g, struct zb_op *op)
{
    const struct zb_shape *x = zb_op_shape(g, op, 0);
    const struct zb_shape *target = zb_op_shape(g, op, 1);
    struct zb_shape y = *x;

    if (!zb_shape_equal(x, target)) {
        zb_graph_mistake(g, op, "x %s and target %s differ",
                         zb_shape_text(x).s, zb_shape_text(target).s);
        return -1;
    }
    return zb_op_add_real(g, op, &y);
}

struct zb_flops zb_mse_flops(const struct zb_graph *g, const struct zb_op *op,
                             const struct zb_bind *bind)
{
    return per_input(g, op, bind, 2, 2);
}

enum zb_status zb_mse_forward(struct zb_emit *e)
{
    struct zb_k_mse_fwd k = {
        .n = zb_shape_elems(&e->in[0].shape),
        .dtype = e->in[0].dtype,
        .x = e->in[0].data,
        .target = e->in[1].data,
        .loss = e->out[0].data,
    };

    return zb_emit_launch(e, ZB_K_mse_fwd, &k);
}

enum zb_status zb_mse_backward_input(struct zb_emit *e)
{
    struct zb_k_mse_bwd k = {
        .n = zb_shape_elems(&e->in[0].shape),
        .scale = e->loss_coef * e->run->loss_scale[e->loss],
        .dtype = e->in[0].dtype,
        .x = e->in[0].data,
        .target = e->in[1].data,
        .dx = e->d_in[0].data,
    };

    return zb_emit_launch(e, ZB_K_mse_bwd, &k);
}
