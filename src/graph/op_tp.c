/* SPDX-License-Identifier: MIT
 *
 * Ops that only tensor parallelism has: collectives between the ranks of a tp
 * group, what is local of them, and the bias that comes after one.
 *
 *            forward          backward
 *   enter    x itself         all-reduce       into a region, whole tokens
 *   gather   all-gather       reduce-scatter   the same, of parts of sequences
 *   reduce   all-reduce       dY itself        out of a region
 *   scatter  reduce-scatter   all-gather       the same
 *   collect  all-gather       own part         for what every rank does alike
 *   part     own part         all-gather       the way back
 */
#include "config.h"
#include "graph/graph_int.h"

static struct zb_flops no_flops(void)
{
    struct zb_flops none = {0, 0, 0};

    return none;
}

#define NO_FLOPS(name)                                                         \
    struct zb_flops zb_##name##_flops(const struct zb_graph *g,                \
                                      const struct zb_op *op,                  \
                                      const struct zb_bind *bind)              \
    {                                                                          \
        (void)g;                                                               \
        (void)op;                                                              \
        (void)bind;                                                            \
        return no_flops();                                                     \
    }

NO_FLOPS(enter)
NO_FLOPS(gather)
NO_FLOPS(reduce)
NO_FLOPS(scatter)
NO_FLOPS(collect)
NO_FLOPS(part)

/* ---- launching ----------------------------------------------------------- */

/* The product of the dimensions before `dim` of a bound shape. */
static int64_t outer_of(const struct zb_shape *s, int dim)
{
    int64_t n = 1;

    for (int i = 0; i < dim; i++) {
        n *= s->dim[i];
    }
    return n;
}

/* A collective in dimension `dim` of the smaller of the two tensors, `part`. */
static enum zb_status run_coll(struct zb_emit *e, enum zb_coll_kind kind,
                               int dim, const struct zb_view *part,
                               const struct zb_view *src,
                               const struct zb_view *dst)
{
    struct zb_coll c = {
        .kind = kind,
        .dtype = src->dtype,
        .outer = outer_of(&part->shape, dim),
        .src = src->data,
        .dst = dst->data,
        .label = e->launch.label,
    };

    c.inner = zb_shape_elems(&part->shape) / c.outer;
    return e->run->coll->run(e->run->coll_arg, ZB_AXIS_TP, e->run->stream, &c);
}

static enum zb_status all_reduce(struct zb_emit *e, const struct zb_view *src,
                                 const struct zb_view *dst)
{
    return run_coll(e, ZB_COLL_ALL_REDUCE, 0, src, src, dst);
}

static enum zb_status all_gather(struct zb_emit *e, int dim,
                                 const struct zb_view *src,
                                 const struct zb_view *dst)
{
    return run_coll(e, ZB_COLL_ALL_GATHER, dim, src, src, dst);
}

static enum zb_status reduce_scatter(struct zb_emit *e, int dim,
                                     const struct zb_view *src,
                                     const struct zb_view *dst)
{
    return run_coll(e, ZB_COLL_REDUCE_SCATTER, dim, dst, src, dst);
}

/* This rank's part of dimension `dim` of `whole`. */
static enum zb_status take_part(struct zb_emit *e, int dim,
                                const struct zb_view *whole,
                                const struct zb_view *part)
{
    int64_t rows = outer_of(&part->shape, dim);
    int64_t cols = zb_shape_elems(&part->shape) / rows;
    size_t bytes = zb_dtype_bytes(part->dtype);
    struct zb_k_copy k = {
        .rows = rows,
        .cols = cols,
        .ldx = zb_shape_elems(&whole->shape) / rows,
        .ldy = cols,
        .elem_bytes = (int64_t)bytes,
        .x = (const char *)whole->data +
             (size_t)(e->run->tp_rank * cols) * bytes,
        .y = part->data,
    };

    return zb_emit_launch(e, ZB_K_copy, &k);
}

/* ---- between parts of sequences and whole ones --------------------------- */

/* x with dimension 1 changed from one length to another. */
static int change_tokens(struct zb_graph *g, struct zb_op *op, int64_t from,
                         int64_t to)
{
    struct zb_shape y = *zb_op_shape(g, op, 0);

    if (y.n_dims < 2 || y.dim[1] != from) {
        zb_graph_mistake(g, op, "x %s has no tokens in dimension 1",
                         zb_shape_text(&y).s);
        return -1;
    }
    y.dim[1] = to;
    return zb_op_add_like(g, op, &y, 0);
}

static int like_x(struct zb_graph *g, struct zb_op *op)
{
    struct zb_shape y = *zb_op_shape(g, op, 0);

    return zb_op_add_like(g, op, &y, 0);
}

int zb_enter_shape(struct zb_graph *g, struct zb_op *op)
{
    return like_x(g, op);
}

int zb_enter_alias(const struct zb_op *op, const struct zb_layout *in,
                   struct zb_layout *out)
{
    (void)op;
    *out = *in;
    return 0;
}

enum zb_status zb_enter_backward_input(struct zb_emit *e)
{
    return all_reduce(e, &e->d_out, &e->d_in[0]);
}

int zb_gather_shape(struct zb_graph *g, struct zb_op *op)
{
    return change_tokens(g, op, ZB_DIM(ZB_SYM_PART), ZB_DIM(ZB_SYM_SEQ));
}

enum zb_status zb_gather_forward(struct zb_emit *e)
{
    return all_gather(e, 1, &e->in[0], &e->out[0]);
}

enum zb_status zb_gather_backward_input(struct zb_emit *e)
{
    return reduce_scatter(e, 1, &e->d_out, &e->d_in[0]);
}

int zb_reduce_shape(struct zb_graph *g, struct zb_op *op)
{
    return like_x(g, op);
}

enum zb_status zb_reduce_forward(struct zb_emit *e)
{
    return all_reduce(e, &e->in[0], &e->out[0]);
}

int zb_scatter_shape(struct zb_graph *g, struct zb_op *op)
{
    return change_tokens(g, op, ZB_DIM(ZB_SYM_SEQ), ZB_DIM(ZB_SYM_PART));
}

enum zb_status zb_scatter_forward(struct zb_emit *e)
{
    return reduce_scatter(e, 1, &e->in[0], &e->out[0]);
}

enum zb_status zb_scatter_backward_input(struct zb_emit *e)
{
    return all_gather(e, 1, &e->d_out, &e->d_in[0]);
}

int zb_collect_shape(struct zb_graph *g, struct zb_op *op)
{
    const struct zb_spread *x = &g->tensors[op->in[0]].spread;
    struct zb_shape y = *zb_op_shape(g, op, 0);
    int64_t *n = &y.dim[op->u.collect.dim];

    *n = *n == ZB_DIM(ZB_SYM_PART) ? ZB_DIM(ZB_SYM_SEQ) : *n * g->par.tp;
    if (*n < -ZB_N_SYMS || (x->kind == ZB_SPREAD_COLS && x->n_copies != 1)) {
        zb_graph_mistake(g, op, "x %s is split in no way that can be undone",
                         zb_shape_text(zb_op_shape(g, op, 0)).s);
        return -1;
    }
    return zb_op_add_like(g, op, &y, 0);
}

enum zb_status zb_collect_forward(struct zb_emit *e)
{
    return all_gather(e, e->op->u.collect.dim, &e->in[0], &e->out[0]);
}

enum zb_status zb_collect_backward_input(struct zb_emit *e)
{
    return take_part(e, e->op->u.collect.dim, &e->d_out, &e->d_in[0]);
}

int zb_part_shape(struct zb_graph *g, struct zb_op *op)
{
    return change_tokens(g, op, ZB_DIM(ZB_SYM_SEQ), ZB_DIM(ZB_SYM_PART));
}

enum zb_status zb_part_forward(struct zb_emit *e)
{
    return take_part(e, 1, &e->in[0], &e->out[0]);
}

enum zb_status zb_part_backward_input(struct zb_emit *e)
{
    return all_gather(e, 1, &e->d_out, &e->d_in[0]);
}

/* ---- bias: y = x + b, after a sum over ranks ----------------------------- */

int zb_bias_shape(struct zb_graph *g, struct zb_op *op)
{
    const struct zb_shape *x = zb_op_shape(g, op, 0);
    const struct zb_shape *b = zb_op_shape(g, op, 1);

    if (b->n_dims != 1 || x->dim[x->n_dims - 1] != b->dim[0]) {
        zb_graph_mistake(g, op, "bias '%s' %s does not fit x %s",
                         zb_op_param(g, op, 1)->name, zb_shape_text(b).s,
                         zb_shape_text(x).s);
        return -1;
    }
    return like_x(g, op);
}

struct zb_flops zb_bias_flops(const struct zb_graph *g, const struct zb_op *op,
                              const struct zb_bind *bind)
{
    double n = (double)zb_bound_elems(&g->tensors[op->out[0]].shape, bind);
    struct zb_flops cost = {n, 0, n};

    return cost;
}

/* A table of one position, for sequences of one token. */
enum zb_status zb_bias_forward(struct zb_emit *e)
{
    struct zb_k_position_fwd k = {
        .batch = zb_shape_rows(&e->in[0].shape),
        .seq = 1,
        .cols = zb_shape_cols(&e->in[0].shape),
        .n_pos = 1,
        .dtype = e->in[0].dtype,
        .x = e->in[0].data,
        .table = e->in[1].data,
        .y = e->out[0].data,
    };

    return zb_emit_launch(e, ZB_K_position_fwd, &k);
}

enum zb_status zb_bias_backward_weight(struct zb_emit *e)
{
    return zb_emit_col_sum(e, 1);
}

/* ---- for ops of which ranks have columns --------------------------------- */

int64_t zb_emit_cols(const struct zb_emit *e, int in, int64_t *first_out)
{
    const struct zb_tensor *t = &e->graph->tensors[e->op->in[in]];
    int64_t n = zb_shape_cols(&t->shape), left;

    *first_out = e->run->tp_rank * n;
    left = t->spread.n_whole - *first_out;
    return left < 0 ? 0 : left < n ? left : n;
}
