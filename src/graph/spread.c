/* SPDX-License-Identifier: MIT
 *
 * What the ranks of a tp group have of each tensor, and the collectives that
 * follow.
 *
 * A region begins where a column-parallel product reads its input and ends
 * where the ranks' parts of a row-parallel product are added (Shoeybi et al.
 * 2019); inside, ranks have columns or heads of a tensor, and the gradients
 * that reach the region's input are parts of a sum. With split_gather
 * (Korthikanti et al. 2022) ranks have parts of the sequences between regions,
 * so a region begins with a gather and ends with a reduce-scatter instead of an
 * all-reduce.
 */
#include "config.h"
#include "graph/graph_int.h"

static const struct zb_spread same = {.kind = ZB_SPREAD_SAME, .param = -1};

static int is_tensor(const struct zb_graph *g, int t)
{
    return t >= 0 && (size_t)t < g->n_tensors;
}

static int has_spread(const struct zb_graph *g, int t, enum zb_spread_kind kind)
{
    return is_tensor(g, t) && g->tensors[t].spread.kind == kind;
}

static int has_tokens(const struct zb_graph *g, int t)
{
    const struct zb_shape *s = &g->tensors[t].shape;

    return s->n_dims > 1 && s->dim[1] == ZB_DIM(ZB_SYM_SEQ);
}

/* ---- ops that change it -------------------------------------------------- */

int zb_spread_enter(struct zb_graph *g, int x)
{
    struct zb_op op = {.in = {x}};
    int is_part = has_spread(g, x, ZB_SPREAD_PART), layer, y;

    if (!is_tensor(g, x) || g->n_layers == 0 ||
        (!is_part && !has_spread(g, x, ZB_SPREAD_SAME))) {
        return x;
    }
    layer = (int)g->n_layers - 1;
    if (g->tensors[x].entered >= 0 && g->tensors[x].entered_layer == layer) {
        return g->tensors[x].entered;
    }
    y = zb_graph_add_op(g, is_part ? ZB_OP_gather : ZB_OP_enter, &op);
    g->tensors[x].entered = y;
    g->tensors[x].entered_layer = layer;
    return y;
}

int zb_spread_reduce(struct zb_graph *g, int x)
{
    struct zb_op op = {.in = {x}};

    if (!has_spread(g, x, ZB_SPREAD_SUM)) {
        return x;
    }
    return zb_graph_add_op(
        g,
        g->par.mode == ZB_SEQ_SPLIT_GATHER && has_tokens(g, x) ? ZB_OP_scatter
                                                               : ZB_OP_reduce,
        &op);
}

int zb_g_whole(struct zb_graph *g, int x)
{
    struct zb_op op = {.in = {x}};

    if (has_spread(g, x, ZB_SPREAD_PART)) {
        op.u.collect.dim = 1;
    } else if (has_spread(g, x, ZB_SPREAD_COLS)) {
        op.u.collect.dim = g->tensors[x].spread.dim;
    } else {
        return x;
    }
    {
        int64_t n_whole = g->tensors[x].spread.n_whole;
        int y = zb_graph_add_op(g, ZB_OP_collect, &op), last;
        struct zb_op cut = {.in = {y}};

        if (y < 0 || op.u.collect.dim == 1) {
            return y;
        }
        last = g->tensors[y].shape.n_dims - 1;
        if (op.u.collect.dim != last ||
            g->tensors[y].shape.dim[last] == n_whole) {
            return y;
        }
        cut.u.slice.n = n_whole;
        return zb_graph_add_op(g, ZB_OP_slice, &cut);
    }
}

int zb_spread_output(struct zb_graph *g, int x)
{
    if (has_spread(g, x, ZB_SPREAD_COLS) &&
        g->tensors[x].spread.dim == g->tensors[x].shape.n_dims - 1 &&
        g->tensors[x].spread.n_copies == 1 && g->tensors[x].spread.param >= 0 &&
        g->params[g->tensors[x].spread.param].opts.split.n_parts == 1) {
        return x;
    }
    return zb_g_whole(g, x);
}

int zb_spread_bias(struct zb_graph *g, int x, int bias)
{
    struct zb_op op = {.in = {x, bias}};

    return zb_graph_add_op(g, ZB_OP_bias, &op);
}

int zb_spread_xent(struct zb_graph *g, int logits, int labels)
{
    struct zb_op part = {.in = {logits, labels}};
    int stats = zb_g_whole(g, zb_graph_add_op(g, ZB_OP_xent_part, &part));
    struct zb_op join = {.in = {logits, labels, stats}};

    return zb_graph_add_op(g, ZB_OP_xent_join, &join);
}

/* ---- inputs -------------------------------------------------------------- */

/* An activation, not a parameter, table or field. */
static int is_activation(const struct zb_op *op, int i)
{
    return op->in[i] >= 0 &&
           !(op->row->in[i].flags & (ZB_IN_WEIGHT | ZB_IN_CONST | ZB_IN_DATA));
}

void zb_spread_inputs(struct zb_graph *g, struct zb_op *op)
{
    int has_part = 0;

    for (int i = 0; i < op->row->n_in; i++) {
        has_part |=
            is_activation(op, i) && has_spread(g, op->in[i], ZB_SPREAD_PART);
    }
    for (int i = 0; has_part && i < op->row->n_in; i++) {
        if (is_activation(op, i) && has_spread(g, op->in[i], ZB_SPREAD_SAME) &&
            has_tokens(g, op->in[i])) {
            struct zb_op part = {.in = {op->in[i]}};

            op->in[i] = zb_graph_add_op(g, ZB_OP_part, &part);
        }
    }
}

/* ---- outputs ------------------------------------------------------------- */

static const char *text_of(const struct zb_spread *s)
{
    static const char *const texts[] = {
        [ZB_SPREAD_SAME] = "whole on every rank",
        [ZB_SPREAD_PART] = "split by tokens",
        [ZB_SPREAD_COLS] = "split by columns or heads",
        [ZB_SPREAD_SUM] = "a sum over ranks",
    };

    return texts[s->kind];
}

static const struct zb_spread *spread_of(const struct zb_graph *g,
                                         const struct zb_op *op, int in)
{
    return &g->tensors[op->in[in]].spread;
}

static int fail(struct zb_graph *g, const struct zb_op *op, int in,
                const char *why)
{
    zb_graph_mistake(g, op, "with tp = %d input '%s' is %s: %s", g->par.tp,
                     op->row->in[in].name, text_of(spread_of(g, op, in)), why);
    return -1;
}

static int is_equal(const struct zb_spread *a, const struct zb_spread *b)
{
    return a->kind == b->kind &&
           (a->kind != ZB_SPREAD_COLS || a->dim == b->dim);
}

/* All activations alike, and the outputs so, too. */
static int like_inputs(struct zb_graph *g, const struct zb_op *op,
                       struct zb_spread *out)
{
    int first = -1;

    *out = same;
    for (int i = 0; i < op->row->n_in; i++) {
        if (!is_activation(op, i)) {
            continue;
        }
        if (first < 0) {
            first = i;
            *out = *spread_of(g, op, i);
        } else if (!is_equal(out, spread_of(g, op, i))) {
            zb_graph_mistake(g, op,
                             "with tp = %d input '%s' is %s and '%s' is %s",
                             g->par.tp, op->row->in[first].name, text_of(out),
                             op->row->in[i].name, text_of(spread_of(g, op, i)));
            return -1;
        } else if (out->n_copies != spread_of(g, op, i)->n_copies) {
            return fail(g, op, i, "and not repeated as often as the first");
        }
    }
    return 0;
}

/* Ops whose rows must be whole. */
int zb_rows_spread(struct zb_graph *g, const struct zb_op *op,
                   struct zb_spread *out)
{
    if (like_inputs(g, op, out) != 0) {
        return -1;
    }
    if (out->kind == ZB_SPREAD_COLS &&
        out->dim == g->tensors[op->in[0]].shape.n_dims - 1) {
        return fail(g, op, 0, "it needs whole rows");
    }
    return 0;
}

/* Masks are drawn by place in the whole, which columns do not know. */
int zb_dropout_spread(struct zb_graph *g, const struct zb_op *op,
                      struct zb_spread *out)
{
    if (like_inputs(g, op, out) != 0) {
        return -1;
    }
    return out->kind == ZB_SPREAD_COLS
               ? fail(g, op, 0, "dropout is for whole rows only")
               : 0;
}

/* Ops that need all of their input. */
int zb_whole_spread(struct zb_graph *g, const struct zb_op *op,
                    struct zb_spread *out)
{
    *out = same;
    return spread_of(g, op, 0)->kind == ZB_SPREAD_SAME
               ? 0
               : fail(g, op, 0, "it needs a whole tensor");
}

const struct zb_param *zb_op_param(const struct zb_graph *g,
                                   const struct zb_op *op, int in)
{
    return &g->params[g->tensors[op->in[in]].index];
}

int zb_param_is_split(const struct zb_graph *g, int tensor, int dim)
{
    const struct zb_split *s;

    if (g->par.tp == 1 || !is_tensor(g, tensor) ||
        g->tensors[tensor].kind != ZB_T_PARAM) {
        return 0;
    }
    s = &g->params[g->tensors[tensor].index].opts.split;
    return s->n_parts > 0 && s->dim == dim;
}

static int out_split(struct zb_graph *g, const struct zb_op *op, int out_dim,
                     struct zb_spread *out)
{
    const struct zb_param *w = zb_op_param(g, op, 1);
    int param = g->tensors[op->in[1]].index;
    struct zb_copies parts[ZB_SPLIT_MAX];

    if (spread_of(g, op, 0)->kind != ZB_SPREAD_SAME) {
        return fail(g, op, 0, "the columns of the weight are split again");
    }
    if (zb_op_has_in(op, 2) && !zb_param_is_split(g, op->in[2], 0)) {
        zb_graph_mistake(g, op, "weight '%s' is split over tp, its bias not",
                         w->name);
        return -1;
    }
    *out = (struct zb_spread){
        .kind = ZB_SPREAD_COLS,
        .dim = g->tensors[op->out[0]].shape.n_dims - 1,
        .n_copies =
            zb_graph_param_copies(g, param, parts) > 1 ? 0 : w->n_copies,
        .n_whole = w->whole.dim[out_dim],
        .param = param,
    };
    return 0;
}

static int in_split(struct zb_graph *g, const struct zb_op *op,
                    struct zb_spread *out)
{
    const struct zb_spread *x = spread_of(g, op, 0);

    if (x->kind != ZB_SPREAD_COLS ||
        x->dim != g->tensors[op->in[0]].shape.n_dims - 1 || x->n_copies != 1 ||
        zb_op_param(g, op, 1)->n_copies != 1 ||
        zb_op_param(g, op, 1)->opts.split.n_parts != 1) {
        return fail(g, op, 0, "the weight wants columns, each of one rank");
    }
    *out = (struct zb_spread){.kind = ZB_SPREAD_SUM, .param = -1};
    return 0;
}

int zb_linear_spread(struct zb_graph *g, const struct zb_op *op,
                     struct zb_spread *out)
{
    int out_dim = op->u.linear.in_by_out ? 1 : 0;

    if (zb_param_is_split(g, op->in[1], out_dim)) {
        return out_split(g, op, out_dim, out);
    }
    if (zb_param_is_split(g, op->in[1], 1 - out_dim)) {
        return in_split(g, op, out);
    }
    if (spread_of(g, op, 0)->kind == ZB_SPREAD_COLS) {
        return fail(g, op, 0, "the weight is not split");
    }
    *out = *spread_of(g, op, 0);
    return 0;
}

int zb_embedding_spread(struct zb_graph *g, const struct zb_op *op,
                        struct zb_spread *out)
{
    const struct zb_param *table = zb_op_param(g, op, 1);

    *out = same;
    if (zb_param_is_split(g, op->in[1], 0) && table->n_copies == 1 &&
        table->opts.split.n_parts == 1) {
        out->kind = ZB_SPREAD_SUM;
    } else if (table->opts.split.n_parts > 0) {
        zb_graph_mistake(g, op, "table '%s' is split otherwise than by rows",
                         table->name);
        return -1;
    }
    return 0;
}

/* q, k and v by heads; those of k and v may be repeated. */
int zb_attention_spread(struct zb_graph *g, const struct zb_op *op,
                        struct zb_spread *out)
{
    *out = *spread_of(g, op, 0);
    for (int i = 0; i < 3; i++) {
        const struct zb_spread *x = spread_of(g, op, i);

        if (!is_equal(out, x) || x->kind == ZB_SPREAD_PART ||
            (x->kind == ZB_SPREAD_COLS && x->dim != 2)) {
            return fail(g, op, i,
                        "q, k and v must all be split by heads, or "
                        "none");
        }
    }
    out->n_whole *= g->tensors[op->in[0]].shape.dim[3];
    out->param = -1;
    return 0;
}

/* The dimension of the new shape that begins where `dim` did, or -1. */
static int new_dim(const struct zb_shape *old, int dim,
                   const struct zb_shape *now)
{
    struct zb_prod before = zb_prod_dim(1), at = zb_prod_dim(1);

    for (int i = 0; i < dim; i++) {
        before = zb_prod_mul(before, zb_prod_dim(old->dim[i]));
    }
    for (int i = 0; i < now->n_dims; i++) {
        if (zb_prod_equal(before, at)) {
            return i;
        }
        at = zb_prod_mul(at, zb_prod_dim(now->dim[i]));
    }
    return -1;
}

int zb_reshape_spread(struct zb_graph *g, const struct zb_op *op,
                      struct zb_spread *out)
{
    const struct zb_shape *x = zb_op_shape(g, op, 0);
    const struct zb_shape *y = &g->tensors[op->out[0]].shape;
    int64_t had, has;

    *out = *spread_of(g, op, 0);
    if (out->kind == ZB_SPREAD_PART && y->dim[1] != ZB_DIM(ZB_SYM_PART)) {
        return fail(g, op, 0, "tokens must stay dimension 1");
    }
    if (out->kind != ZB_SPREAD_COLS) {
        return 0;
    }
    had = x->dim[out->dim];
    out->dim = new_dim(x, out->dim, y);
    has = out->dim < 0 ? 0 : y->dim[out->dim];
    if (has < 1 || had < 1 || (has < had ? had % has : has % had) != 0 ||
        out->n_whole * has % had != 0) {
        return fail(g, op, 0, "they must stay a dimension");
    }
    out->n_whole = out->n_whole * has / had;
    out->param = has == had ? out->param : -1;
    return 0;
}

/* zb_g_slice() has found the part of the shard. */
int zb_slice_spread(struct zb_graph *g, const struct zb_op *op,
                    struct zb_spread *out)
{
    const struct zb_spread *x = spread_of(g, op, 0);

    *out = *x;
    if (x->kind == ZB_SPREAD_COLS &&
        x->dim == g->tensors[op->in[0]].shape.n_dims - 1) {
        out->n_copies = x->param >= 0 ? op->u.slice.n_copies : x->n_copies;
        out->n_whole = op->u.slice.n * g->par.tp / out->n_copies;
        out->param = -1;
    }
    return 0;
}

int zb_stats_spread(struct zb_graph *g, const struct zb_op *op,
                    struct zb_spread *out)
{
    int last = g->tensors[op->out[0]].shape.n_dims - 1;

    if (spread_of(g, op, 0)->kind != ZB_SPREAD_COLS ||
        spread_of(g, op, 0)->dim != last) {
        return fail(g, op, 0, "it takes columns of logits");
    }
    *out = *spread_of(g, op, 0);
    out->n_copies = 1;
    out->n_whole = g->tensors[op->out[0]].shape.dim[last] * g->par.tp;
    out->param = -1;
    return 0;
}

int zb_to_same_spread(struct zb_graph *g, const struct zb_op *op,
                      struct zb_spread *out)
{
    (void)g;
    (void)op;
    *out = same;
    return 0;
}

int zb_to_part_spread(struct zb_graph *g, const struct zb_op *op,
                      struct zb_spread *out)
{
    (void)g;
    (void)op;
    *out = same;
    out->kind = ZB_SPREAD_PART;
    return 0;
}

/* ---- parameters ---------------------------------------------------------- */

/* Whether each copy of a parameter gets a part of its gradient from this op:
 * copies see other tokens or heads, or other heads read what they make. */
static int is_partial_in(const struct zb_graph *g, const struct zb_op *op,
                         const struct zb_param *p)
{
    if (p->opts.split.n_parts > 0) {
        return 1;
    }
    for (int i = 0; i < op->row->n_in; i++) {
        if (is_activation(op, i)) {
            return spread_of(g, op, i)->kind != ZB_SPREAD_SAME;
        }
    }
    return 0;
}

static int use_params(struct zb_graph *g, const struct zb_op *op)
{
    for (int i = 0; i < op->row->n_in; i++) {
        struct zb_param *p;
        int is_partial;

        if (op->in[i] < 0 || !(op->row->in[i].flags & ZB_IN_WEIGHT)) {
            continue;
        }
        p = &g->params[g->tensors[op->in[i]].index];
        is_partial = p->n_copies > 1 && is_partial_in(g, op, p);
        if (p->is_used && p->is_partial != is_partial) {
            zb_graph_mistake(g, op,
                             "with tp = %d parameter '%s' is used on whole "
                             "and on split activations",
                             g->par.tp, p->name);
            return -1;
        }
        p->is_used = 1;
        p->is_partial = is_partial;
    }
    return 0;
}

int zb_spread_outputs(struct zb_graph *g, const struct zb_op *op)
{
    struct zb_spread out;
    int rc = op->row->spread != NULL ? op->row->spread(g, op, &out)
                                     : like_inputs(g, op, &out);

    if (rc != 0 || use_params(g, op) != 0) {
        return -1;
    }
    for (int i = 0; i < op->n_out; i++) {
        g->tensors[op->out[i]].spread = out;
    }
    return 0;
}
