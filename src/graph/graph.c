/* SPDX-License-Identifier: MIT
 *
 * Storage of a graph, and what others may ask a finished one.
 */
#include "config.h"
#include "graph/graph_int.h"

#include "zb/hash.h"
#include "zb/mem.h"

#include <string.h>

static enum zb_status check_parallel(const struct zb_parallel *par)
{
    int has_axis = par->mode == ZB_SEQ_ALL_TO_ALL || par->mode == ZB_SEQ_RING;

    if (par->tp < 1 || par->sp < 1 || (par->sp > 1) != has_axis ||
        (par->mode == ZB_SEQ_SPLIT_GATHER && par->tp == 1) ||
        (par->tp > 1 && par->vocab_multiple < 1)) {
        return zb_fail(ZB_EINVAL, "tp %d, sp %d and mode %d do not fit "
                                  "together",
                       par->tp, par->sp, (int)par->mode);
    }
    return ZB_OK;
}

enum zb_status zb_graph_new(struct zb_graph **g_out)
{
    static const struct zb_parallel one = {.tp = 1, .sp = 1,
                                           .vocab_multiple = 1};

    return zb_graph_new_parallel(&one, g_out);
}

enum zb_status zb_graph_new_parallel(const struct zb_parallel *par,
                                     struct zb_graph **g_out)
{
    struct zb_graph *g;

    ZB_TRY(check_parallel(par));
    g = zb_alloc(sizeof(*g));
    if (g == NULL) {
        return ZB_ENOMEM;
    }
    g->par = *par;
    *g_out = g;
    return ZB_OK;
}

static void free_named(struct zb_named *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        zb_free(list[i].name);
    }
    zb_free(list);
}

void zb_graph_free(struct zb_graph *g)
{
    if (g == NULL) {
        return;
    }
    for (size_t i = 0; i < g->n_ops; i++) {
        zb_free(g->ops[i].label);
    }
    for (size_t i = 0; i < g->n_params; i++) {
        zb_free(g->params[i].name);
    }
    for (size_t i = 0; i < g->n_consts; i++) {
        zb_free(g->consts[i].name);
        zb_free(g->consts[i].value);
    }
    for (size_t i = 0; i < g->n_layers; i++) {
        zb_free(g->layers[i]);
    }
    free_named(g->data, g->n_data);
    free_named(g->outputs, g->n_outputs);
    zb_free(g->layers);
    zb_free(g->consts);
    zb_free(g->params);
    zb_free(g->slots);
    zb_free(g->ops);
    zb_free(g->tensors);
    zb_free(g->use_layer);
    zb_free(g->use_ids);
    zb_free(g);
}

static void must_be_finished(const struct zb_graph *g)
{
    ZB_BUG_IF(!g->is_finished, "a graph is used before zb_graph_finish()");
}

const struct zb_parallel *zb_graph_parallel(const struct zb_graph *g)
{
    return &g->par;
}

enum zb_dtype zb_graph_storage(const struct zb_graph *g)
{
    return g->storage;
}

int zb_graph_n_layers(const struct zb_graph *g)
{
    return (int)g->n_layers;
}

const char *zb_graph_layer_name(const struct zb_graph *g, int layer)
{
    return g->layers[layer];
}

int zb_graph_n_params(const struct zb_graph *g)
{
    return (int)g->n_params;
}

int zb_graph_n_uses(const struct zb_graph *g)
{
    must_be_finished(g);
    return g->n_uses;
}

struct zb_param_info zb_graph_param(const struct zb_graph *g, int param)
{
    const struct zb_param *p = &g->params[param];
    struct zb_param_info info = {
        .name = p->name,
        .shape = g->tensors[p->tensor].shape,
        .whole = p->whole,
        .n_copies = p->n_copies,
        .is_partial = p->is_partial,
        .opts = p->opts,
        .n_uses = p->n_uses,
        .use_ids = p->use_ids,
        .has_gradient = p->n_uses > 0,
    };

    must_be_finished(g);
    return info;
}

int zb_graph_use_layer(const struct zb_graph *g, int use)
{
    must_be_finished(g);
    return g->use_layer[use];
}

size_t zb_graph_param_slot(const struct zb_graph *g, const char *name)
{
    size_t at = (size_t)zb_hash(name, strlen(name)) & (g->n_slots - 1);

    while (g->slots[at] != 0 &&
           strcmp(g->params[g->slots[at] - 1].name, name) != 0) {
        at = (at + 1) & (g->n_slots - 1);
    }
    return at;
}

int zb_graph_find_param(const struct zb_graph *g, const char *name)
{
    return g->n_slots == 0 ? -1 : g->slots[zb_graph_param_slot(g, name)] - 1;
}

static struct zb_data_info info_of(const struct zb_graph *g, const char *name,
                                   int tensor)
{
    struct zb_data_info info = {
        .name = name,
        .dtype = g->tensors[tensor].dtype,
        .shape = g->tensors[tensor].shape,
        .n_last = g->tensors[tensor].spread.n_whole,
    };

    return info;
}

int zb_graph_n_data(const struct zb_graph *g)
{
    return (int)g->n_data;
}

struct zb_data_info zb_graph_data(const struct zb_graph *g, int i)
{
    return info_of(g, g->data[i].name, g->data[i].tensor);
}

/* Rows of the whole table that input `in` is. */
static int64_t rows_of(const struct zb_graph *g, const struct zb_op *op, int in)
{
    return g->tensors[op->in[in]].kind == ZB_T_PARAM
               ? zb_op_param(g, op, in)->whole.dim[0]
               : zb_op_shape(g, op, in)->dim[0];
}

/* The row of the table that id 0 means. */
static int64_t first_id(const struct zb_op *op)
{
    return op->row == &zb_op_rows[ZB_OP_embedding] ? op->u.embedding.offset : 0;
}

int64_t zb_graph_data_range(const struct zb_graph *g, int i)
{
    int64_t range = 0;

    for (size_t k = 0; k < g->n_ops; k++) {
        const struct zb_op *op = &g->ops[k];

        for (int in = 0; in < op->row->n_in; in++) {
            if ((op->row->in[in].flags & ZB_IN_SPARSE) &&
                g->tensors[op->in[0]].root == g->data[i].tensor) {
                int64_t rows = rows_of(g, op, in) - first_id(op);

                range = range == 0 || rows < range ? rows : range;
            }
        }
    }
    return range;
}

int zb_graph_n_consts(const struct zb_graph *g)
{
    return (int)g->n_consts;
}

struct zb_data_info zb_graph_const(const struct zb_graph *g, int i)
{
    return info_of(g, g->consts[i].name, g->consts[i].tensor);
}

const zb_real *zb_graph_const_value(const struct zb_graph *g, int i)
{
    return g->consts[i].value;
}

int zb_graph_n_outputs(const struct zb_graph *g)
{
    return (int)g->n_outputs;
}

struct zb_data_info zb_graph_output(const struct zb_graph *g, int i)
{
    return info_of(g, g->outputs[i].name, g->outputs[i].tensor);
}

int zb_graph_has_adapters(const struct zb_graph *g)
{
    for (size_t i = 0; i < g->n_params; i++) {
        if (g->params[i].opts.is_adapter) {
            return 1;
        }
    }
    return 0;
}

int zb_graph_n_losses(const struct zb_graph *g)
{
    return g->n_losses;
}

int zb_graph_loss_labels(const struct zb_graph *g, int k)
{
    int labels = g->loss[k].labels;

    return labels < 0 ? -1 : g->tensors[labels].index;
}

int64_t zb_bound_elems(const struct zb_shape *s, const struct zb_bind *bind)
{
    struct zb_shape bound = zb_shape_bind(s, bind);

    return zb_shape_elems(&bound);
}

int64_t zb_bound_rows(const struct zb_shape *s, const struct zb_bind *bind)
{
    struct zb_shape bound = zb_shape_bind(s, bind);

    return zb_shape_rows(&bound);
}

int64_t zb_graph_loss_elems(const struct zb_graph *g, int k,
                            const struct zb_bind *bind)
{
    must_be_finished(g);
    return zb_bound_elems(&g->tensors[g->loss[k].tensor].shape, bind);
}

/* B and W of an op cost what its row says for the gradients it really makes. */
static void add_op_flops(const struct zb_graph *g, const struct zb_op *op,
                         const struct zb_bind *bind, struct zb_flops *sum)
{
    struct zb_flops cost = op->row->flops(g, op, bind);
    int has_b = 0, has_w = 0;

    for (int i = 0; i < op->row->n_in; i++) {
        has_w |= op->use[i] >= 0;
        has_b |= zb_op_sends_grad(g, op, i) && op->use[i] < 0;
    }
    sum->f += cost.f;
    sum->b += has_b ? cost.b : 0;
    if (has_w && (op->row->flags & ZB_OP_WEIGHT_IN_B)) {
        sum->b += cost.w;
    } else if (has_w) {
        sum->w += cost.w;
    }
}

/* Number of the first op of a layer or a later one. */
static size_t first_op(const struct zb_graph *g, int layer)
{
    size_t lo = 0, hi = g->n_ops;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (g->ops[mid].layer < layer) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

struct zb_flops zb_graph_flops(const struct zb_graph *g, int first, int end,
                               const struct zb_bind *bind)
{
    struct zb_flops sum = {0, 0, 0};

    must_be_finished(g);
    for (size_t i = first_op(g, first), n = first_op(g, end); i < n; i++) {
        if (g->ops[i].is_live) {
            add_op_flops(g, &g->ops[i], bind, &sum);
        }
    }
    return sum;
}
