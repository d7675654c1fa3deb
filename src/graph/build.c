/* SPDX-License-Identifier: MIT
 *
 * The builder. One way in for every op (build_ops.c): fill a struct zb_op,
 * zb_graph_add_op() checks it against its row and lets the row's shape rule
 * declare the outputs.
 */
#include "config.h"
#include "graph/graph_int.h"

#include "zb/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Plain dimensions up to this product: no size computed later overflows. */
#define MAX_ELEMS ((int64_t)1 << 46)

void zb_graph_mistake(struct zb_graph *g, const struct zb_op *op,
                      const char *fmt, ...)
{
    va_list ap;
    int at = 0;

    if (g->status != ZB_OK) {
        return;
    }
    g->status = ZB_EINVAL;
    if (op != NULL) {
        at = snprintf(g->text, sizeof(g->text), "layer '%s', %s: ",
                      g->n_layers > 0 ? g->layers[g->n_layers - 1] : "(none)",
                      op->row->name);
    }
    if (at >= 0 && (size_t)at < sizeof(g->text)) {
        va_start(ap, fmt);
        vsnprintf(g->text + at, sizeof(g->text) - (size_t)at, fmt, ap);
        va_end(ap);
    }
}

static int out_of_memory(struct zb_graph *g)
{
    if (g->status == ZB_OK) {
        g->status = ZB_ENOMEM;
        snprintf(g->text, sizeof(g->text), "%s", zb_error_text());
    }
    return -1;
}

struct zb_shape_text zb_shape_text(const struct zb_shape *s)
{
    struct zb_shape_text text;

    zb_shape_print(s, text.s, sizeof(text.s));
    return text;
}

int zb_graph_add_tensor(struct zb_graph *g, const struct zb_tensor *t)
{
    int id = (int)g->n_tensors;

    if (zb_grow(&g->tensors, g->n_tensors, &g->cap_tensors,
                sizeof(*g->tensors)) != ZB_OK) {
        return out_of_memory(g);
    }
    g->tensors[id] = *t;
    g->n_tensors++;
    return id;
}

/* A tensor that is storage of its own. */
static int add_root(struct zb_graph *g, enum zb_tensor_kind kind, size_t index,
                    enum zb_dtype dtype, const struct zb_shape *shape)
{
    struct zb_tensor t = {
        .kind = kind,
        .index = (int)index,
        .dtype = dtype,
        .shape = *shape,
        .op = -1,
        .layer = -1,
        .root = (int)g->n_tensors,
        .layout = zb_layout_dense(shape),
        .spread.param = -1,
        .entered = -1,
    };

    return zb_graph_add_tensor(g, &t);
}

int zb_graph_read_shape(struct zb_graph *g, const char *what, const char *name,
                        int n_dims, const int64_t *dim, int symbols,
                        struct zb_shape *out)
{
    int64_t elems = 1;

    if (g->status != ZB_OK) {
        return -1;
    }
    if (n_dims < 1 || n_dims > ZB_MAX_DIMS) {
        zb_graph_mistake(g, NULL, "%s '%s' has %d dimensions, not 1 to %d",
                         what, name, n_dims, ZB_MAX_DIMS);
        return -1;
    }
    for (int i = 0; i < n_dims; i++) {
        int is_symbol = dim[i] < 0 && dim[i] >= -ZB_N_SYMS;

        if ((is_symbol && symbols) ||
            (dim[i] > 0 && dim[i] <= MAX_ELEMS / elems)) {
            elems *= is_symbol ? 1 : dim[i];
            continue;
        }
        zb_graph_mistake(g, NULL, "%s '%s': dimension %d is %lld", what, name,
                         i, (long long)dim[i]);
        return -1;
    }
    *out = zb_shape_make(n_dims, dim);
    return 0;
}

void zb_g_storage(struct zb_graph *g, enum zb_dtype dtype)
{
    if (!zb_dtype_is_storage(dtype)) {
        zb_graph_mistake(g, NULL, "this build does not store tensors as %s",
                         zb_dtype_str(dtype));
    } else if (g->n_tensors > 0) {
        zb_graph_mistake(g, NULL,
                         "the type of tensors is chosen after the first one");
    } else {
        g->storage = dtype;
    }
}

void zb_g_layer(struct zb_graph *g, const char *name)
{
    char *copy;

    if (g->status != ZB_OK) {
        return;
    }
    if (zb_grow(&g->layers, g->n_layers, &g->cap_layers,
                sizeof(*g->layers)) != ZB_OK ||
        (copy = zb_strdup(name)) == NULL) {
        out_of_memory(g);
        return;
    }
    g->layers[g->n_layers++] = copy;
}

static int find_named(const struct zb_named *list, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(list[i].name, name) == 0) {
            return (int)i;
        }
    }
    return -1;
}

static int add_named(struct zb_graph *g, struct zb_named **list, size_t *n,
                     size_t *cap, const char *name)
{
    char *copy;

    if (zb_grow(list, *n, cap, sizeof(**list)) != ZB_OK ||
        (copy = zb_strdup(name)) == NULL) {
        return out_of_memory(g);
    }
    (*list)[*n].name = copy;
    (*list)[*n].tensor = -1;
    return (int)(*n)++;
}

int zb_g_data(struct zb_graph *g, const char *name, enum zb_dtype dtype,
              int n_dims, const int64_t *dim)
{
    struct zb_shape shape;
    int i;

    if (zb_graph_read_shape(g, "data", name, n_dims, dim, 1, &shape) != 0) {
        return -1;
    }
    if (find_named(g->data, g->n_data, name) >= 0) {
        zb_graph_mistake(g, NULL, "data '%s' is declared twice", name);
        return -1;
    }
    i = add_named(g, &g->data, &g->n_data, &g->cap_data, name);
    if (i < 0) {
        return -1;
    }
    g->data[i].tensor =
        add_root(g, ZB_T_DATA, (size_t)i,
                 dtype == ZB_DTYPE_REAL ? g->storage : dtype, &shape);
    return g->data[i].tensor;
}

int zb_g_const(struct zb_graph *g, const char *name, int n_dims,
               const int64_t *dim, const zb_real *value)
{
    struct zb_shape shape;
    struct zb_const *c;
    size_t n;

    if (zb_graph_read_shape(g, "constant", name, n_dims, dim, 0, &shape) != 0) {
        return -1;
    }
    if (zb_grow(&g->consts, g->n_consts, &g->cap_consts,
                sizeof(*g->consts)) != ZB_OK) {
        return out_of_memory(g);
    }
    n = (size_t)zb_shape_elems(&shape);
    c = &g->consts[g->n_consts];
    c->name = zb_strdup(name);
    c->value = zb_alloc_array(n, sizeof(zb_real));
    g->n_consts++;
    if (c->name == NULL || c->value == NULL) {
        return out_of_memory(g);
    }
    memcpy(c->value, value, n * sizeof(zb_real));
    c->tensor = add_root(g, ZB_T_CONST, g->n_consts - 1, ZB_DTYPE_REAL, &shape);
    return c->tensor;
}

/* The parameter of that name again: its tensor, if the shape agrees. */
static int tie_param(struct zb_graph *g, int param,
                     const struct zb_shape *shape)
{
    const struct zb_param *p = &g->params[param];
    const struct zb_shape *had = &p->whole;

    if (!zb_shape_equal(had, shape)) {
        zb_graph_mistake(g, NULL, "parameter '%s' is %s here and %s before",
                         p->name, zb_shape_text(shape).s,
                         zb_shape_text(had).s);
        return -1;
    }
    return p->tensor;
}

/* Keep the table of names at most half full. */
static enum zb_status grow_slots(struct zb_graph *g)
{
    size_t n = g->n_slots == 0 ? 64 : 2 * g->n_slots;
    int *slots;

    if (2 * (g->n_params + 1) <= g->n_slots) {
        return ZB_OK;
    }
    slots = zb_alloc_array(n, sizeof(*slots));
    if (slots == NULL) {
        return ZB_ENOMEM;
    }
    zb_free(g->slots);
    g->slots = slots;
    g->n_slots = n;
    for (size_t i = 0; i < g->n_params; i++) {
        slots[zb_graph_param_slot(g, g->params[i].name)] = (int)i + 1;
    }
    return ZB_OK;
}

int zb_g_param(struct zb_graph *g, const char *name, int n_dims,
               const int64_t *dim, const struct zb_param_opts *opts)
{
    struct zb_shape whole, shape;
    struct zb_param *p;
    int known, n_copies;

    if (zb_graph_read_shape(g, "parameter", name, n_dims, dim, 0, &whole) !=
        0) {
        return -1;
    }
    known = zb_graph_find_param(g, name);
    if (known >= 0) {
        return tie_param(g, known, &whole);
    }
    if (zb_shard_of(g, name, &whole, &opts->split, &shape, &n_copies) != 0) {
        return -1;
    }
    if (zb_grow(&g->params, g->n_params, &g->cap_params,
                sizeof(*g->params)) != ZB_OK ||
        grow_slots(g) != ZB_OK) {
        return out_of_memory(g);
    }
    p = &g->params[g->n_params];
    p->name = zb_strdup(name);
    if (p->name == NULL) {
        return out_of_memory(g);
    }
    g->slots[zb_graph_param_slot(g, name)] = (int)++g->n_params;
    p->opts = *opts;
    p->whole = whole;
    p->n_copies = n_copies;
    p->layer = g->n_layers > 0 ? (int)g->n_layers - 1 : 0;
    p->tensor =
        add_root(g, ZB_T_PARAM, g->n_params - 1, g->storage, &shape);
    return p->tensor;
}

/* ---- ops ----------------------------------------------------------------- */

const struct zb_shape *zb_op_shape(const struct zb_graph *g,
                                   const struct zb_op *op, int in)
{
    return &g->tensors[op->in[in]].shape;
}

int zb_op_has_in(const struct zb_op *op, int in)
{
    return op->in[in] != ZB_G_NONE;
}

static int add_out(struct zb_graph *g, struct zb_op *op,
                   const struct zb_shape *shape, enum zb_dtype dtype)
{
    struct zb_tensor t = {
        .kind = ZB_T_VALUE,
        .index = -1,
        .dtype = dtype,
        .shape = *shape,
        .op = op->number,
        .layer = op->layer,
        .root = (int)g->n_tensors,
        .layout = zb_layout_dense(shape),
        .spread.param = -1,
        .entered = -1,
    };
    int id = zb_graph_add_tensor(g, &t);

    if (id < 0) {
        return -1;
    }
    op->out[op->n_out++] = id;
    return 0;
}

int zb_op_add_out(struct zb_graph *g, struct zb_op *op,
                  const struct zb_shape *shape)
{
    return add_out(g, op, shape, g->storage);
}

int zb_op_add_real(struct zb_graph *g, struct zb_op *op,
                   const struct zb_shape *shape)
{
    return add_out(g, op, shape, ZB_DTYPE_REAL);
}

int zb_op_add_like(struct zb_graph *g, struct zb_op *op,
                   const struct zb_shape *shape, int in)
{
    return add_out(g, op, shape, g->tensors[op->in[in]].dtype);
}

/* What kind of tensor an input wants, for messages. */
static const char *wanted(unsigned flags)
{
    return flags & ZB_IN_WEIGHT  ? "a parameter"
           : flags & ZB_IN_CONST ? "a constant"
           : flags & ZB_IN_DATA  ? "a data field"
                                 : "an activation or data field";
}

static enum zb_dtype wanted_dtype(const struct zb_graph *g, unsigned flags)
{
    return flags & ZB_IN_I32     ? ZB_DTYPE_I32
           : flags & ZB_IN_CONST ? ZB_DTYPE_REAL
                                 : g->storage;
}

static int fits_input(const struct zb_graph *g, const struct zb_tensor *t,
                      unsigned flags)
{
    const struct zb_tensor *root = &g->tensors[t->root];
    int is_loss = (flags & ZB_IN_FLOAT) && t->dtype == ZB_DTYPE_REAL;

    if (t->dtype != wanted_dtype(g, flags) && !is_loss &&
        !(flags & ZB_IN_ANY)) {
        return 0;
    }
    if (flags & ZB_IN_WEIGHT) {
        return t->kind == ZB_T_PARAM;
    }
    if (flags & ZB_IN_CONST) {
        return t->kind == ZB_T_CONST;
    }
    if (flags & ZB_IN_DATA) {
        return root->kind == ZB_T_DATA;
    }
    return root->kind == ZB_T_VALUE || root->kind == ZB_T_DATA;
}

static int check_input(struct zb_graph *g, const struct zb_op *op, int i)
{
    const struct zb_in_row *row = &op->row->in[i];
    const struct zb_tensor *t;

    if (op->in[i] == ZB_G_NONE && (row->flags & ZB_IN_OPTIONAL)) {
        return 0;
    }
    if (op->in[i] < 0 || (size_t)op->in[i] >= g->n_tensors) {
        zb_graph_mistake(g, op, "input '%s' is no tensor (%d)", row->name,
                         op->in[i]);
        return -1;
    }
    t = &g->tensors[op->in[i]];
    if (!fits_input(g, t, row->flags)) {
        zb_graph_mistake(g, op, "input '%s' must be %s of type %s", row->name,
                         wanted(row->flags),
                         zb_dtype_str(wanted_dtype(g, row->flags)));
        return -1;
    }
    return 0;
}

/* An input that lies in memory as no kernel and no copy can take it. */
static int check_layout(struct zb_graph *g, const struct zb_op *op, int i)
{
    struct zb_layout rows;

    if (op->in[i] < 0 || (op->row->flags & ZB_OP_ALIAS)) {
        return 0;
    }
    if (!zb_layout_fits(&g->tensors[op->in[i]].layout, op->row->in[i].need) &&
        zb_layout_as_rows(&g->tensors[op->in[i]].layout, &rows) != 0) {
        zb_graph_mistake(g, op,
                         "input '%s' is a slice of a slice that can not be "
                         "copied at once",
                         op->row->in[i].name);
        return -1;
    }
    return 0;
}

static char *make_label(const struct zb_graph *g, const struct zb_op *op)
{
    const char *layer = g->layers[op->layer];

    for (int i = 0; i < op->row->n_in; i++) {
        if (op->in[i] >= 0 && g->tensors[op->in[i]].kind == ZB_T_PARAM) {
            return zb_format("%s/%s %s", layer, op->row->name,
                             g->params[g->tensors[op->in[i]].index].name);
        }
    }
    return zb_format("%s/%s", layer, op->row->name);
}

/* out[0] of an alias op shares its input's storage. */
static int set_alias(struct zb_graph *g, const struct zb_op *op)
{
    struct zb_tensor *out = &g->tensors[op->out[0]];
    const struct zb_tensor *in = &g->tensors[op->in[0]];

    out->root = in->root;
    out->dtype = in->dtype;
    if (op->row->alias(op, &in->layout, &out->layout) != 0) {
        zb_graph_mistake(g, op, "%s can not be seen as %s without a copy",
                         zb_shape_text(&in->shape).s,
                         zb_shape_text(&out->shape).s);
        return -1;
    }
    return 0;
}

static int check_op(struct zb_graph *g, const struct zb_op *op)
{
    if (g->is_finished) {
        zb_graph_mistake(g, op, "the graph is finished");
        return -1;
    }
    if (g->n_layers == 0) {
        zb_graph_mistake(g, op, "an op before the first zb_g_layer()");
        return -1;
    }
    for (int i = 0; i < op->row->n_in; i++) {
        if (check_input(g, op, i) != 0 || check_layout(g, op, i) != 0) {
            return -1;
        }
    }
    return 0;
}

int zb_graph_add_op(struct zb_graph *g, enum zb_op_kind kind, struct zb_op *op)
{
    if (g->status != ZB_OK) {
        return -1;
    }
    op->row = &zb_op_rows[kind];
    zb_spread_inputs(g, op);
    op->number = (int)g->n_ops;
    op->site = g->n_sites;
    op->layer = (int)g->n_layers - 1;
    if (check_op(g, op) != 0 || op->row->shape(g, op) != 0 ||
        ((op->row->flags & ZB_OP_ALIAS) && set_alias(g, op) != 0) ||
        (g->par.tp > 1 && zb_spread_outputs(g, op) != 0)) {
        return -1;
    }
    if (zb_grow(&g->ops, g->n_ops, &g->cap_ops, sizeof(*g->ops)) != ZB_OK ||
        (op->label = make_label(g, op)) == NULL) {
        return out_of_memory(g);
    }
    g->ops[g->n_ops++] = *op;
    g->n_sites += (op->row->flags & ZB_OP_DRAWS) != 0;
    return op->out[0];
}

/* ---- loss and outputs ---------------------------------------------------- */

/* A tensor that may be a loss or an output. */
static int is_value(const struct zb_graph *g, int x)
{
    return x >= 0 && (size_t)x < g->n_tensors &&
           zb_dtype_is_storage(g->tensors[x].dtype) &&
           (g->tensors[x].kind == ZB_T_VALUE ||
            g->tensors[x].kind == ZB_T_DATA);
}

void zb_g_loss(struct zb_graph *g, int loss, int labels)
{
    struct zb_layout rows;

    loss = zb_g_whole(g, loss);
    if (g->status != ZB_OK) {
        return;
    }
    if (g->n_losses == ZB_LOSS_MAX) {
        zb_graph_mistake(g, NULL, "the graph has more than %d losses",
                         ZB_LOSS_MAX);
    } else if (g->n_losses > 0 && g->loss[0].tensor == loss) {
        zb_graph_mistake(g, NULL, "the graph has one loss twice");
    } else if (g->n_layers == 0 || !is_value(g, loss)) {
        zb_graph_mistake(g, NULL, "the loss is no tensor of a layer");
    } else if (labels != ZB_G_NONE &&
               (labels < 0 || (size_t)labels >= g->n_tensors ||
                g->tensors[labels].kind != ZB_T_DATA ||
                g->tensors[labels].dtype != ZB_DTYPE_I32)) {
        zb_graph_mistake(g, NULL, "the labels of the loss are no data field "
                                  "of type i32");
    } else if (zb_layout_as_rows(&g->tensors[loss].layout, &rows) != 0) {
        zb_graph_mistake(g, NULL, "the loss is a slice of a slice that can "
                                  "not be copied at once");
    } else {
        g->loss_layer = g->n_losses == 0 ? (int)g->n_layers - 1 : g->loss_layer;
        g->loss[g->n_losses].tensor = loss;
        g->loss[g->n_losses++].labels = labels == ZB_G_NONE ? -1 : labels;
    }
}

void zb_g_output(struct zb_graph *g, const char *name, int x)
{
    int i;

    x = zb_spread_output(g, x);
    if (g->status != ZB_OK) {
        return;
    }
    if (!is_value(g, x)) {
        zb_graph_mistake(g, NULL, "output '%s' is no tensor", name);
        return;
    }
    i = add_named(g, &g->outputs, &g->n_outputs, &g->cap_outputs, name);
    if (i >= 0) {
        g->outputs[i].tensor = x;
    }
}

static void check_whole(struct zb_graph *g)
{
    if (g->n_layers == 0) {
        zb_graph_mistake(g, NULL, "the graph has no layers");
    } else if (g->n_losses == 0) {
        zb_graph_mistake(g, NULL, "the graph has no loss (zb_g_loss)");
    } else if (g->loss_layer != (int)g->n_layers - 1) {
        zb_graph_mistake(g, NULL, "the loss is in layer '%s', not in the last",
                         g->layers[g->loss_layer]);
    }
}

enum zb_status zb_graph_finish(struct zb_graph *g)
{
    if (g->is_finished) {
        return zb_fail(ZB_EINVAL, "zb_graph_finish() is called twice");
    }
    check_whole(g);
    if (g->status == ZB_OK && zb_graph_analyse(g) == ZB_ENOMEM) {
        out_of_memory(g);
    }
    if (g->status != ZB_OK) {
        return zb_fail(g->status, "%s", g->text);
    }
    g->is_finished = 1;
    return ZB_OK;
}
