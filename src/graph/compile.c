/* SPDX-License-Identifier: MIT
 *
 * The pieces compiling is made of, and the forward list. After a failed
 * allocation cp->st is set and everything goes on with element 0 of the array
 * in question, so that only the driver has to look.
 */
#include "config.h"
#include "graph/chunk_int.h"

#include "zb/mem.h"

/* Enough for any machine, and no sum of sizes overflows. */
#define MAX_BYTES ((size_t)1 << 46)

size_t zb_compile_bytes(struct zb_compile *cp, enum zb_dtype dtype,
                        const struct zb_shape *shape)
{
    struct zb_shape bound = zb_shape_bind(shape, &cp->max);
    size_t bytes = zb_dtype_bytes(dtype);

    for (int i = 0; i < bound.n_dims; i++) {
        if ((size_t)bound.dim[i] > MAX_BYTES / bytes) {
            if (cp->st == ZB_OK) {
                cp->st = zb_fail(ZB_EINVAL,
                                 "a tensor %s is too large for any memory",
                                 zb_shape_text(&bound).s);
            }
            return 0;
        }
        bytes *= (size_t)bound.dim[i];
    }
    return zb_message_bytes(bytes);
}

int zb_compile_is_mine(const struct zb_compile *cp, const struct zb_op *op)
{
    return op->is_live && op->layer >= cp->first && op->layer < cp->end;
}

int zb_compile_value(struct zb_compile *cp, enum zb_dtype dtype,
                     const struct zb_shape *shape)
{
    struct zb_value v = {
        .dtype = dtype,
        .shape = *shape,
        .bytes = zb_compile_bytes(cp, dtype, shape),
        .space = -1,
        .over = -1,
        .rep = (int)cp->n_values,
    };

    if (zb_grow(&cp->values, cp->n_values, &cp->cap_values,
                sizeof(*cp->values)) != ZB_OK) {
        cp->st = ZB_ENOMEM;
        return 0;
    }
    cp->values[cp->n_values] = v;
    return (int)cp->n_values++;
}

int zb_compile_value_at(struct zb_compile *cp, const struct zb_tensor *t,
                        enum zb_space space, size_t offset)
{
    int v = zb_compile_value(cp, t->dtype, &t->shape);

    cp->values[v].space = (int)space;
    cp->values[v].offset = offset;
    return v;
}

struct zb_ref zb_compile_ref(const struct zb_compile *cp, int value)
{
    struct zb_ref ref = {
        .where = ZB_AT_VALUE,
        .index = value,
        .dtype = cp->values[value].dtype,
        .layout = zb_layout_dense(&cp->values[value].shape),
    };

    return ref;
}

struct zb_instr *zb_compile_instr(struct zb_compile *cp, enum zb_pass pass,
                                  zb_emit_fn emit, const struct zb_op *op,
                                  const char *label)
{
    struct zb_list *list = &cp->c->list[pass];
    struct zb_instr instr = {
        .emit = emit,
        .op = op,
        .label = label,
        .layer = cp->layer,
        .first_slot = cp->c->n_slots,
    };

    if (zb_grow(&list->instr, list->n, &list->cap, sizeof(*list->instr)) !=
        ZB_OK) {
        cp->st = ZB_ENOMEM;
        return &list->instr[0];
    }
    list->instr[list->n] = instr;
    return &list->instr[list->n++];
}

void zb_compile_slot(struct zb_compile *cp, enum zb_pass pass, int role,
                     enum zb_access_mode mode, const struct zb_ref *ref)
{
    struct zb_list *list = &cp->c->list[pass];
    struct zb_chunk *c = cp->c;
    struct zb_slot slot = {role, mode, *ref};

    if (cp->st != ZB_OK ||
        zb_grow(&c->slots, c->n_slots, &c->cap_slots, sizeof(*c->slots)) !=
            ZB_OK) {
        cp->st = cp->st == ZB_OK ? ZB_ENOMEM : cp->st;
        return;
    }
    c->slots[c->n_slots++] = slot;
    list->instr[list->n - 1].n_slots++;
}

void zb_compile_tmp(struct zb_compile *cp, enum zb_pass pass,
                    const struct zb_op *op)
{
    for (int i = 0; i < op->n_tmp[pass]; i++) {
        struct zb_ref ref = zb_compile_ref(
            cp, zb_compile_value(cp, op->tmp_dtype[pass][i],
                                 &op->tmp[pass][i]));

        zb_compile_slot(cp, pass, ZB_ROLE_TMP + i, ZB_WRITE, &ref);
    }
}

/* Bring both sides to the same rows: those of the one with gaps. */
static void match_rows(struct zb_ref *a, struct zb_ref *b)
{
    struct zb_layout rows;
    struct zb_ref *gaps = zb_layout_is_dense(&a->layout) ? b : a;
    struct zb_ref *dense = gaps == a ? b : a;

    ZB_BUG_IF(zb_layout_as_rows(&gaps->layout, &rows) != 0 ||
                  zb_layout_reshape(&dense->layout, &rows.shape,
                                    &dense->layout) != 0,
              "a copy needs more than one launch");
    gaps->layout = rows;
}

void zb_compile_copy(struct zb_compile *cp, enum zb_pass pass,
                     const char *label, const struct zb_ref *from,
                     const struct zb_ref *to)
{
    struct zb_ref src = *from, dst = *to;

    match_rows(&src, &dst);
    zb_compile_instr(cp, pass, zb_emit_copy, NULL, label);
    zb_compile_slot(cp, pass, ZB_ROLE_IN, ZB_READ, &src);
    zb_compile_slot(cp, pass, ZB_ROLE_OUT, ZB_WRITE, &dst);
}

/* Where a tensor lies, as it is. */
static struct zb_ref locate(const struct zb_compile *cp, int t)
{
    static const enum zb_where where_of[] = {
        [ZB_T_DATA] = ZB_AT_DATA,
        [ZB_T_CONST] = ZB_AT_CONST,
        [ZB_T_PARAM] = ZB_AT_PARAM,
        [ZB_T_VALUE] = ZB_AT_VALUE,
    };
    const struct zb_tensor *x = &cp->g->tensors[t];
    const struct zb_tensor *root = &cp->g->tensors[x->root];
    struct zb_ref ref = {
        .where = where_of[root->kind],
        .index = root->index,
        .dtype = x->dtype,
        .layout = x->layout,
    };

    if (root->kind == ZB_T_VALUE) {
        ref.index = cp->local[cp->local[t].root].value;
        ref.layout = cp->local[t].layout;
    }
    return ref;
}

struct zb_ref zb_compile_input(struct zb_compile *cp, enum zb_pass pass, int t,
                               enum zb_need need)
{
    struct zb_ref ref = locate(cp, t);
    struct zb_local *local = &cp->local[t];

    if (cp->st != ZB_OK || zb_layout_fits(&ref.layout, need)) {
        return ref;
    }
    if (local->dense < 0) {
        struct zb_ref copy;

        ZB_BUG_IF(pass != ZB_PASS_F, "an input was not copied in F");
        local->dense = zb_compile_value(cp, ref.dtype, &ref.layout.shape);
        copy = zb_compile_ref(cp, local->dense);
        zb_compile_copy(cp, pass, "input copy", &ref, &copy);
    }
    return zb_compile_ref(cp, local->dense);
}

/* ---- forward ------------------------------------------------------------- */

static void set_local(struct zb_compile *cp, int t, int value)
{
    struct zb_local *local = &cp->local[t];

    local->is_here = 1;
    local->root = t;
    local->value = value;
    local->layout = zb_layout_dense(&cp->g->tensors[t].shape);
}

static void forward_alias(struct zb_compile *cp, const struct zb_op *op)
{
    const struct zb_local *in = &cp->local[op->in[0]];
    struct zb_local *out = &cp->local[op->out[0]];

    if (cp->g->tensors[op->out[0]].root == op->out[0] || !in->is_here) {
        return; /* of a data field: locate() knows */
    }
    out->is_here = 1;
    out->root = in->root;
    ZB_BUG_IF(op->row->alias(op, &in->layout, &out->layout) != 0,
              "%s: no view in this chunk", op->label);
}

static void forward_op(struct zb_compile *cp, const struct zb_op *op)
{
    struct zb_ref in[ZB_OP_MAX_IN];

    for (int i = 0; i < op->row->n_in; i++) {
        if (op->in[i] >= 0) {
            /* Also one that only backward reads: copies are made in F. */
            in[i] = zb_compile_input(cp, ZB_PASS_F, op->in[i],
                                     op->row->in[i].need);
        }
    }
    zb_compile_instr(cp, ZB_PASS_F, op->row->forward, op, op->label);
    for (int i = 0; i < op->row->n_in; i++) {
        if (op->in[i] >= 0 && !(op->row->in[i].flags & ZB_IN_NOT_F)) {
            zb_compile_slot(cp, ZB_PASS_F, ZB_ROLE_IN + i, ZB_READ, &in[i]);
        }
    }
    for (int i = 0; i < op->n_out; i++) {
        const struct zb_tensor *t = &cp->g->tensors[op->out[i]];
        int v = zb_compile_value(cp, t->dtype, &t->shape);
        struct zb_ref out = zb_compile_ref(cp, v);

        set_local(cp, op->out[i], v);
        zb_compile_slot(cp, ZB_PASS_F, ZB_ROLE_OUT + i, ZB_WRITE, &out);
    }
    zb_compile_tmp(cp, ZB_PASS_F, op);
}

static void forward_inputs(struct zb_compile *cp)
{
    size_t at = 0;

    for (size_t t = 0; t < cp->g->n_tensors; t++) {
        if (zb_tensor_crosses(cp->g, (int)t, cp->first)) {
            int v = zb_compile_value_at(cp, &cp->g->tensors[t], ZB_SPACE_IN,
                                        at);

            at += cp->values[v].bytes;
            set_local(cp, (int)t, v);
        }
    }
    cp->c->info.bytes[ZB_SPACE_IN] = at;
}

void zb_compile_forward(struct zb_compile *cp)
{
    forward_inputs(cp);
    for (size_t i = 0; i < cp->g->n_ops && cp->st == ZB_OK; i++) {
        const struct zb_op *op = &cp->g->ops[i];

        if (!zb_compile_is_mine(cp, op)) {
            continue;
        }
        cp->layer = op->layer;
        if (op->row->flags & ZB_OP_ALIAS) {
            forward_alias(cp, op);
        } else {
            forward_op(cp, op);
        }
    }
    for (int k = 0; cp->has_loss && cp->st == ZB_OK && k < cp->g->n_losses;
         k++) {
        struct zb_ref loss = zb_compile_input(
            cp, ZB_PASS_F, cp->g->loss[k].tensor, ZB_NEED_DENSE);

        zb_compile_instr(cp, ZB_PASS_F, zb_emit_loss_sum, NULL, "loss sum")
            ->loss = k;
        zb_compile_slot(cp, ZB_PASS_F, ZB_ROLE_IN, ZB_READ, &loss);
    }
}
