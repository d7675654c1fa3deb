/* SPDX-License-Identifier: MIT
 *
 * Norms over the last dimension.
 */
#include "config.h"
#include "graph/graph_int.h"

#include <math.h>

/* The statistics are kept one number per row, whatever the rows are. */
static int add_row_outs(struct zb_graph *g, struct zb_op *op, int n)
{
    struct zb_shape s = *zb_op_shape(g, op, 0);

    s.n_dims--;
    for (int i = 0; i < n; i++) {
        if (zb_op_add_real(g, op, &s) != 0) {
            return -1;
        }
    }
    return 0;
}

/* A weight for all rows, or, of a layer norm, one for each of the last but one
 * dimension (heads). */
static int fits_rows(const struct zb_op *op, const struct zb_shape *p,
                     const struct zb_shape *x)
{
    int n = x->n_dims;

    if (p->n_dims == 2 && op->row == &zb_op_rows[ZB_OP_layernorm]) {
        return n > 2 && p->dim[0] == x->dim[n - 2] &&
               p->dim[1] == x->dim[n - 1];
    }
    return p->n_dims == 1 && p->dim[0] == x->dim[n - 1];
}

static int64_t n_groups(const struct zb_emit *e)
{
    const struct zb_shape *gamma = zb_op_shape(e->graph, e->op, 1);

    return gamma->n_dims == 2 ? gamma->dim[0] : 1;
}

static int norm_shape(struct zb_graph *g, struct zb_op *op, int n_stats)
{
    const struct zb_shape *x = zb_op_shape(g, op, 0);
    struct zb_shape y = *x;

    for (int i = 1; i < op->row->n_in; i++) {
        const struct zb_shape *p;

        if (!zb_op_has_in(op, i)) {
            continue;
        }
        p = zb_op_shape(g, op, i);
        if (!fits_rows(op, p, x)) {
            zb_graph_mistake(g, op, "%s '%s' %s does not fit x %s",
                             op->row->in[i].name,
                             g->params[g->tensors[op->in[i]].index].name,
                             zb_shape_text(p).s, zb_shape_text(x).s);
            return -1;
        }
    }
    if (!(op->u.norm.eps >= 0) || !isfinite(op->u.norm.eps)) {
        zb_graph_mistake(g, op, "eps is %g", op->u.norm.eps);
        return -1;
    }
    return zb_op_add_out(g, op, &y) != 0 ? -1 : add_row_outs(g, op, n_stats);
}

int zb_layernorm_shape(struct zb_graph *g, struct zb_op *op)
{
    return norm_shape(g, op, 2);
}

int zb_rmsnorm_shape(struct zb_graph *g, struct zb_op *op)
{
    return norm_shape(g, op, 1);
}

struct zb_flops zb_layernorm_flops(const struct zb_graph *g,
                                   const struct zb_op *op,
                                   const struct zb_bind *bind)
{
    double n = (double)zb_bound_elems(zb_op_shape(g, op, 0), bind);
    struct zb_flops cost = {8 * n, 10 * n, 4 * n};

    return cost;
}

struct zb_flops zb_rmsnorm_flops(const struct zb_graph *g,
                                 const struct zb_op *op,
                                 const struct zb_bind *bind)
{
    double n = (double)zb_bound_elems(zb_op_shape(g, op, 0), bind);
    struct zb_flops cost = {4 * n, 8 * n, 3 * n};

    return cost;
}

enum zb_status zb_layernorm_forward(struct zb_emit *e)
{
    struct zb_k_layernorm_fwd k = {
        .rows = zb_shape_rows(&e->in[0].shape),
        .cols = zb_shape_cols(&e->in[0].shape),
        .groups = n_groups(e),
        .dtype = e->in[0].dtype,
        .eps = e->op->u.norm.eps,
        .x = e->in[0].data,
        .gamma = e->in[1].data,
        .beta = e->in[2].data,
        .y = e->out[0].data,
        .mean = e->out[1].data,
        .rstd = e->out[2].data,
    };

    return zb_emit_launch(e, ZB_K_layernorm_fwd, &k);
}

enum zb_status zb_layernorm_backward_input(struct zb_emit *e)
{
    struct zb_k_layernorm_bwd k = {
        .rows = zb_shape_rows(&e->in[0].shape),
        .cols = zb_shape_cols(&e->in[0].shape),
        .groups = n_groups(e),
        .dtype = e->in[0].dtype,
        .dy = e->d_out.data,
        .x = e->in[0].data,
        .gamma = e->in[1].data,
        .mean = e->out[1].data,
        .rstd = e->out[2].data,
        .addend = e->addend.data,
        .dx = e->d_in[0].data,
    };

    return zb_emit_launch(e, ZB_K_layernorm_bwd, &k);
}

enum zb_status zb_layernorm_backward_weight(struct zb_emit *e)
{
    struct zb_k_layernorm_bwd_w k = {
        .rows = zb_shape_rows(&e->in[0].shape),
        .cols = zb_shape_cols(&e->in[0].shape),
        .groups = n_groups(e),
        .dtype = e->in[0].dtype,
        .dy = e->d_out.data,
        .x = e->in[0].data,
        .mean = e->out[1].data,
        .rstd = e->out[2].data,
        .dgamma = e->d_in[1].data,
        .dbeta = e->d_in[2].data,
    };
    struct zb_k_col_sum beta_only = {
        .rows = zb_shape_rows(&e->d_out.shape) / k.groups,
        .cols = zb_shape_cols(&e->d_out.shape) * k.groups,
        .ldx = zb_shape_cols(&e->d_out.shape) * k.groups,
        .dtype = e->d_out.dtype,
        .x = k.dy,
        .y = k.dbeta,
    };

    return k.dgamma == NULL ? zb_emit_launch(e, ZB_K_col_sum, &beta_only)
                            : zb_emit_launch(e, ZB_K_layernorm_bwd_w, &k);
}

enum zb_status zb_rmsnorm_forward(struct zb_emit *e)
{
    struct zb_k_rmsnorm_fwd k = {
        .rows = zb_shape_rows(&e->in[0].shape),
        .cols = zb_shape_cols(&e->in[0].shape),
        .dtype = e->in[0].dtype,
        .eps = e->op->u.norm.eps,
        .x = e->in[0].data,
        .gamma = e->in[1].data,
        .y = e->out[0].data,
        .rstd = e->out[1].data,
    };

    return zb_emit_launch(e, ZB_K_rmsnorm_fwd, &k);
}

enum zb_status zb_rmsnorm_backward_input(struct zb_emit *e)
{
    struct zb_k_rmsnorm_bwd k = {
        .rows = zb_shape_rows(&e->in[0].shape),
        .cols = zb_shape_cols(&e->in[0].shape),
        .dtype = e->in[0].dtype,
        .dy = e->d_out.data,
        .x = e->in[0].data,
        .gamma = e->in[1].data,
        .rstd = e->out[1].data,
        .addend = e->addend.data,
        .dx = e->d_in[0].data,
    };

    return zb_emit_launch(e, ZB_K_rmsnorm_bwd, &k);
}

enum zb_status zb_rmsnorm_backward_weight(struct zb_emit *e)
{
    struct zb_k_rmsnorm_bwd_w k = {
        .rows = zb_shape_rows(&e->in[0].shape),
        .cols = zb_shape_cols(&e->in[0].shape),
        .dtype = e->in[0].dtype,
        .dy = e->d_out.data,
        .x = e->in[0].data,
        .rstd = e->out[1].data,
        .dgamma = e->d_in[1].data,
    };

    return zb_emit_launch(e, ZB_K_rmsnorm_bwd_w, &k);
}
