/* SPDX-License-Identifier: MIT
 *
 * What follows from the whole graph, independent of any cut: which ops matter,
 * which tensors have gradients, how far each tensor is needed.
 */
#include "config.h"
#include "graph/graph_int.h"

#include "zb/mem.h"

/* Marks per tensor while the graph is analysed. */
struct marks {
    char *needs;   /* depends on a parameter that is trained */
    char *reaches; /* the loss depends on it, differentiably */
    char *is_live; /* the loss or an output depends on it */
};

int zb_op_sends_grad(const struct zb_graph *g, const struct zb_op *op, int i)
{
    return op->is_live && op->in[i] >= 0 &&
           (op->row->in[i].flags & ZB_IN_DIFF) &&
           g->tensors[op->in[i]].has_grad && g->tensors[op->out[0]].has_grad;
}

int zb_tensor_crosses(const struct zb_graph *g, int t, int at)
{
    const struct zb_tensor *x = &g->tensors[t];

    return x->kind == ZB_T_VALUE && g->tensors[x->root].kind == ZB_T_VALUE &&
           x->layer < at && x->last_use >= at;
}

int zb_tensor_grad_crosses(const struct zb_graph *g, int t, int at)
{
    const struct zb_tensor *x = &g->tensors[t];

    return zb_tensor_crosses(g, t, at) && x->has_grad &&
           x->last_grad_use >= at;
}

int zb_graph_message(const struct zb_graph *g, int at, int is_grad,
                     const struct zb_bind *max, struct zb_part *part, int n)
{
    int n_parts = 0;
    size_t offset = 0;

    for (size_t t = 0; t < g->n_tensors; t++) {
        const struct zb_tensor *x = &g->tensors[t];

        if (is_grad ? !zb_tensor_grad_crosses(g, (int)t, at)
                    : !zb_tensor_crosses(g, (int)t, at)) {
            continue;
        }
        if (n_parts < n) {
            part[n_parts] = (struct zb_part){offset, x->dtype, x->shape};
        }
        n_parts++;
        offset += zb_message_bytes((size_t)zb_bound_elems(&x->shape, max) *
                                   zb_dtype_bytes(x->dtype));
    }
    return n_parts;
}

static void mark_needs(const struct zb_graph *g, struct marks *m)
{
    for (size_t i = 0; i < g->n_params; i++) {
        m->needs[g->params[i].tensor] = !g->params[i].opts.is_frozen;
    }
    for (size_t i = 0; i < g->n_ops; i++) {
        const struct zb_op *op = &g->ops[i];

        for (int k = 0; k < op->row->n_in; k++) {
            if (op->in[k] >= 0 && (op->row->in[k].flags & ZB_IN_DIFF) &&
                m->needs[op->in[k]]) {
                m->needs[op->out[0]] = 1;
            }
        }
    }
}

static void mark_op_live(struct zb_op *op, struct marks *m)
{
    for (int k = 0; k < op->n_out; k++) {
        op->is_live |= m->is_live[op->out[k]];
    }
    for (int k = 0; k < op->row->n_in; k++) {
        if (op->in[k] < 0) {
            continue;
        }
        if (op->is_live) {
            m->is_live[op->in[k]] = 1;
        }
        if ((op->row->in[k].flags & ZB_IN_DIFF) && m->reaches[op->out[0]]) {
            m->reaches[op->in[k]] = 1;
        }
    }
}

static void mark_live(struct zb_graph *g, struct marks *m)
{
    for (int k = 0; k < g->n_losses; k++) {
        m->is_live[g->loss[k].tensor] = 1;
        m->reaches[g->loss[k].tensor] = 1;
    }
    for (size_t i = 0; i < g->n_outputs; i++) {
        m->is_live[g->outputs[i].tensor] = 1;
    }
    for (size_t i = g->n_ops; i-- > 0;) {
        mark_op_live(&g->ops[i], m);
    }
}

static void see_use(int *last, int layer)
{
    if (*last < layer) {
        *last = layer;
    }
}

static void find_last_uses(struct zb_graph *g)
{
    int end = (int)g->n_layers - 1;

    for (size_t i = 0; i < g->n_ops; i++) {
        const struct zb_op *op = &g->ops[i];

        for (int k = 0; op->is_live && k < op->row->n_in; k++) {
            if (op->in[k] < 0) {
                continue;
            }
            see_use(&g->tensors[op->in[k]].last_use, op->layer);
            if (zb_op_sends_grad(g, op, k)) {
                see_use(&g->tensors[op->in[k]].last_grad_use, op->layer);
            }
        }
    }
    for (int k = 0; k < g->n_losses; k++) {
        see_use(&g->tensors[g->loss[k].tensor].last_use, end);
        see_use(&g->tensors[g->loss[k].tensor].last_grad_use, end);
    }
    for (size_t i = 0; i < g->n_outputs; i++) {
        see_use(&g->tensors[g->outputs[i].tensor].last_use, end);
    }
}

/* ---- gradients that are one number --------------------------------------- */

/* A contribution to x's gradient, from layer `layer`; `coef` 0 with
 * is_uniform 0: not one number. A number does not leave its layer, so that no
 * cut decides how a gradient is represented; and it is of one loss. */
static void contribute(struct zb_tensor *x, int layer, int is_uniform, int loss,
                       double coef)
{
    x->coef += coef;
    x->is_uniform &=
        is_uniform && x->layer == layer && (x->loss < 0 || x->loss == loss);
    x->loss = loss;
}

static void find_uniform(struct zb_graph *g)
{
    for (size_t i = 0; i < g->n_tensors; i++) {
        g->tensors[i].is_uniform = 1;
        g->tensors[i].loss = -1;
    }
    for (int k = 0; k < g->n_losses; k++) {
        contribute(&g->tensors[g->loss[k].tensor], (int)g->n_layers - 1, 1, k,
                   1.0);
    }
    for (size_t i = g->n_ops; i-- > 0;) {
        const struct zb_op *op = &g->ops[i];
        const struct zb_tensor *y = &g->tensors[op->out[0]];
        int passes = op->row->uniform != NULL && y->is_uniform;
        double coef = passes ? y->coef * op->row->uniform(op) : 0;

        for (int k = 0; k < op->row->n_in; k++) {
            if (zb_op_sends_grad(g, op, k)) {
                contribute(&g->tensors[op->in[k]], op->layer, passes, y->loss,
                           coef);
            }
        }
    }
}

static void check_losses(struct zb_graph *g)
{
    for (size_t i = 0; i < g->n_ops; i++) {
        const struct zb_op *op = &g->ops[i];
        const struct zb_tensor *y = &g->tensors[op->out[0]];

        if ((op->row->flags & ZB_OP_LOSS) && op->is_live && y->has_grad &&
            !y->is_uniform) {
            zb_graph_mistake(g, NULL,
                             "layer '%s', %s: the result may reach the loss "
                             "through add, scale and reshape only, and within "
                             "its layer",
                             g->layers[op->layer], op->row->name);
        }
    }
}

/* ---- tiles --------------------------------------------------------------- */

/* What the gradient of a tensor is made of. */
struct parts {
    int n;         /* contributions */
    int n_slices;  /* of them slices, all of one layer */
    int layer;     /* of the first slice; -1: none yet */
    int64_t width; /* of the slices together */
};

static void add_part(struct parts *p, const struct zb_op *op)
{
    p->n++;
    if (!(op->row->flags & ZB_OP_SLICE) ||
        (p->layer >= 0 && p->layer != op->layer)) {
        return;
    }
    p->layer = op->layer;
    p->n_slices++;
    p->width += op->u.slice.n;
}

/* Whether slice op number i overlaps a later one of its tensor and layer. */
static int overlaps(const struct zb_graph *g, size_t i)
{
    const struct zb_op *a = &g->ops[i];

    for (i++; i < g->n_ops && g->ops[i].layer == a->layer; i++) {
        const struct zb_op *b = &g->ops[i];

        if ((b->row->flags & ZB_OP_SLICE) && b->in[0] == a->in[0] &&
            zb_op_sends_grad(g, b, 0) &&
            b->u.slice.first < a->u.slice.first + a->u.slice.n &&
            a->u.slice.first < b->u.slice.first + b->u.slice.n) {
            return 1;
        }
    }
    return 0;
}

static enum zb_status find_tiles(struct zb_graph *g)
{
    struct parts *parts = zb_alloc_array(g->n_tensors, sizeof(*parts));

    if (parts == NULL) {
        return ZB_ENOMEM;
    }
    for (size_t t = 0; t < g->n_tensors; t++) {
        parts[t].layer = -1;
    }
    for (int k = 0; k < g->n_losses; k++) {
        parts[g->loss[k].tensor].n++;
    }
    for (size_t i = 0; i < g->n_ops; i++) {
        for (int k = 0; k < g->ops[i].row->n_in; k++) {
            if (zb_op_sends_grad(g, &g->ops[i], k)) {
                add_part(&parts[g->ops[i].in[k]], &g->ops[i]);
            }
        }
    }
    for (size_t t = 0; t < g->n_tensors; t++) {
        g->tensors[t].is_tiled =
            parts[t].n > 0 && parts[t].n == parts[t].n_slices &&
            parts[t].width == zb_shape_cols(&g->tensors[t].shape);
    }
    for (size_t i = 0; i < g->n_ops; i++) {
        if ((g->ops[i].row->flags & ZB_OP_SLICE) &&
            zb_op_sends_grad(g, &g->ops[i], 0) && overlaps(g, i)) {
            g->tensors[g->ops[i].in[0]].is_tiled = 0;
        }
    }
    zb_free(parts);
    return ZB_OK;
}

/* ---- uses of parameters -------------------------------------------------- */

static void number_uses(struct zb_graph *g)
{
    for (size_t i = 0; i < g->n_ops; i++) {
        struct zb_op *op = &g->ops[i];

        for (int k = 0; k < op->row->n_in; k++) {
            op->use[k] = -1;
            if ((op->row->in[k].flags & ZB_IN_WEIGHT) &&
                zb_op_sends_grad(g, op, k)) {
                op->use[k] = g->n_uses++;
                g->params[g->tensors[op->in[k]].index].n_uses++;
            }
        }
    }
}

static enum zb_status list_uses(struct zb_graph *g)
{
    int at = 0;

    g->use_ids = zb_alloc_array((size_t)g->n_uses, sizeof(*g->use_ids));
    g->use_layer = zb_alloc_array((size_t)g->n_uses, sizeof(*g->use_layer));
    if (g->use_ids == NULL || g->use_layer == NULL) {
        return ZB_ENOMEM;
    }
    for (size_t i = 0; i < g->n_params; i++) {
        g->params[i].use_ids = g->use_ids + at;
        at += g->params[i].n_uses;
        g->params[i].n_uses = 0;
    }
    for (size_t i = 0; i < g->n_ops; i++) {
        const struct zb_op *op = &g->ops[i];

        for (int k = 0; k < op->row->n_in; k++) {
            if (op->use[k] >= 0) {
                struct zb_param *p = &g->params[g->tensors[op->in[k]].index];

                p->use_ids[p->n_uses++] = op->use[k];
                g->use_layer[op->use[k]] = op->layer;
            }
        }
    }
    return ZB_OK;
}

enum zb_status zb_graph_analyse(struct zb_graph *g)
{
    char *all = zb_alloc_array(g->n_tensors, 3);
    struct marks m = {all, all + g->n_tensors, all + 2 * g->n_tensors};

    if (all == NULL) {
        return ZB_ENOMEM;
    }
    mark_needs(g, &m);
    mark_live(g, &m);
    for (size_t i = 0; i < g->n_tensors; i++) {
        g->tensors[i].has_grad = m.needs[i] && m.reaches[i];
        g->tensors[i].last_use = -1;
        g->tensors[i].last_grad_use = -1;
    }
    zb_free(all);
    find_last_uses(g);
    find_uniform(g);
    check_losses(g);
    ZB_TRY(find_tiles(g));
    number_uses(g);
    return list_uses(g);
}
