/* SPDX-License-Identifier: MIT
 *
 * Autodiff: the B and W lists of a chunk, from its ops in reverse.
 *
 * The gradient of a tensor is the sum of the contributions of the ops that read
 * it, taken in reverse model order, left to right; what later chunks sent
 * (DIN) comes first and is itself such a sum. The order, and whether a kernel
 * or a launch of its own adds, depend on the graph only, so every cut gives the
 * same bits.
 *
 * A value is written once. An `add` op passes its output's gradient on as the
 * same value to both inputs; nothing overwrites it while it may be read, since
 * memory is shared (zb_value.over) only where the older value has ended.
 */
#include "config.h"
#include "graph/chunk_int.h"

static int sends(const struct zb_compile *cp, const struct zb_op *op, int i)
{
    return zb_op_sends_grad(cp->g, op, i) &&
           !(op->row->in[i].flags & ZB_IN_WEIGHT);
}

static const struct zb_shape *shape_of(const struct zb_compile *cp, int t)
{
    return &cp->g->tensors[t].shape;
}

static struct zb_ref fresh(struct zb_compile *cp, int t)
{
    return zb_compile_ref(cp, zb_compile_value(cp, cp->g->tensors[t].dtype,
                                               shape_of(cp, t)));
}

/* ---- where a gradient must end ------------------------------------------- */

/* The op of this chunk of which t is only a view, and t's gradient a view of
 * its input's; or NULL. */
static const struct zb_op *alias_op(const struct zb_compile *cp, int t)
{
    int op = cp->g->tensors[t].op;

    if (op < 0 || !zb_compile_is_mine(cp, &cp->g->ops[op]) ||
        !(cp->g->ops[op].row->flags & ZB_OP_ALIAS) ||
        !(cp->g->ops[op].row->in[0].flags & ZB_IN_PASS)) {
        return NULL;
    }
    return &cp->g->ops[op];
}

/* Whether the gradient of t has a place where it must end: the message to the
 * chunk before, or the part of a packed gradient that belongs to a slice. */
static int home(struct zb_compile *cp, int t, struct zb_ref *out)
{
    const struct zb_op *op = alias_op(cp, t);
    struct zb_ref whole;

    if (cp->local[t].grad >= 0) {
        *out = zb_compile_ref(cp, cp->local[t].grad);
        return 1;
    }
    if (op == NULL || cp->st != ZB_OK) {
        return 0;
    }
    if (!(op->row->flags & ZB_OP_SLICE)) {
        if (cp->local[op->in[0]].n_grads != 1 ||
            !home(cp, op->in[0], &whole)) {
            return 0;
        }
    } else if (!cp->g->tensors[op->in[0]].is_tiled) {
        return 0;
    } else if (!home(cp, op->in[0], &whole)) {
        whole = fresh(cp, op->in[0]);
        cp->local[op->in[0]].grad = whole.index;
    }
    *out = whole;
    return op->row->alias(op, &whole.layout, &out->layout) == 0;
}

/* The next contribution to t is its last: it may be written to its home. */
static int is_last(const struct zb_compile *cp, int t)
{
    return cp->local[t].n_left == 1;
}

/* Where a launch that needs `need` writes the next sum for t. */
static struct zb_ref destination(struct zb_compile *cp, int t,
                                 enum zb_need need)
{
    struct zb_ref at;

    if (is_last(cp, t) && home(cp, t, &at) &&
        zb_layout_fits(&at.layout, need)) {
        return at;
    }
    return fresh(cp, t);
}

static void set_acc(struct zb_compile *cp, int t, const struct zb_ref *ref)
{
    cp->local[t].acc = *ref;
    cp->local[t].has_acc = 1;
    cp->local[t].n_left--;
}

/* May `dest` take the memory of `old`? mem_plan.c decides when it knows. */
static void may_replace(struct zb_compile *cp, const struct zb_ref *dest,
                        const struct zb_ref *old)
{
    if (cp->st == ZB_OK && old->where == ZB_AT_VALUE &&
        cp->values[dest->index].space < 0) {
        cp->values[dest->index].over = old->index;
    }
}

/* Add `more` to what t has. */
static void contribute(struct zb_compile *cp, int t, const struct zb_ref *more)
{
    struct zb_local *local = &cp->local[t];
    struct zb_ref acc, dest;

    if (!local->has_acc) {
        set_acc(cp, t, more);
        return;
    }
    acc = local->acc;
    ZB_BUG_IF(!zb_layout_is_dense(&acc.layout) ||
                  !zb_layout_is_dense(&more->layout),
              "a sum of gradients with gaps");
    dest = destination(cp, t, ZB_NEED_DENSE);
    may_replace(cp, &dest, &acc);
    zb_compile_instr(cp, ZB_PASS_B, zb_emit_add, NULL, "gradient sum");
    zb_compile_slot(cp, ZB_PASS_B, ZB_ROLE_IN, ZB_READ, &acc);
    zb_compile_slot(cp, ZB_PASS_B, ZB_ROLE_IN + 1, ZB_READ, more);
    zb_compile_slot(cp, ZB_PASS_B, ZB_ROLE_OUT, ZB_WRITE, &dest);
    set_acc(cp, t, &dest);
}

static struct zb_ref fill(struct zb_compile *cp, int t, double coef)
{
    struct zb_ref ref = fresh(cp, t);

    struct zb_instr *instr =
        zb_compile_instr(cp, ZB_PASS_B, zb_emit_fill, NULL, "loss gradient");

    instr->loss_coef = coef;
    instr->loss = cp->g->tensors[t].loss;
    zb_compile_slot(cp, ZB_PASS_B, ZB_ROLE_OUT, ZB_WRITE, &ref);
    return ref;
}

/* All contributions to t have come: its gradient, in its home. */
static struct zb_ref finished(struct zb_compile *cp, int t)
{
    struct zb_local *local = &cp->local[t];
    struct zb_ref at;

    if (cp->st == ZB_OK && home(cp, t, &at) && local->acc.index != at.index) {
        zb_compile_copy(cp, ZB_PASS_B, "gradient copy", &local->acc, &at);
        local->acc = at;
    }
    return local->acc;
}

/* ---- one op -------------------------------------------------------------- */

/* The slots of what the launch reads: inputs and outputs that the row names,
 * the output's gradient. */
static void read_slots(struct zb_compile *cp, enum zb_pass pass,
                       const struct zb_op *op, unsigned in_flag,
                       unsigned out_bits, const struct zb_ref *d_out)
{
    for (int i = 0; i < op->row->n_in; i++) {
        if (op->in[i] >= 0 && (op->row->in[i].flags & in_flag)) {
            struct zb_ref in = zb_compile_input(cp, pass, op->in[i],
                                                op->row->in[i].need);

            zb_compile_slot(cp, pass, ZB_ROLE_IN + i, ZB_READ, &in);
        }
    }
    for (int i = 0; i < op->n_out; i++) {
        if (out_bits >> i & 1) {
            struct zb_ref out = zb_compile_input(cp, pass, op->out[i],
                                                 ZB_NEED_DENSE);

            zb_compile_slot(cp, pass, ZB_ROLE_OUT + i, ZB_READ, &out);
        }
    }
    if (d_out != NULL) {
        zb_compile_slot(cp, pass, ZB_ROLE_D_OUT, ZB_READ, d_out);
    }
}

static void weight_slot(struct zb_compile *cp, enum zb_pass pass,
                        const struct zb_op *op, int i)
{
    struct zb_ref ref = {
        .where = ZB_AT_GRAD,
        .index = op->use[i],
        .dtype = ZB_DTYPE_REAL,
        .layout = zb_layout_dense(shape_of(cp, op->in[i])),
    };

    zb_compile_slot(cp, pass, ZB_ROLE_D_IN + i, ZB_READ_WRITE, &ref);
}

static void backward_weights(struct zb_compile *cp, const struct zb_op *op,
                             const struct zb_ref *d_out)
{
    unsigned flags = op->row->flags;
    enum zb_pass pass = flags & ZB_OP_WEIGHT_IN_B ? ZB_PASS_B : ZB_PASS_W;
    int is_open = 0;

    for (int i = 0; i < op->row->n_in; i++) {
        if (op->use[i] < 0) {
            continue;
        }
        if (!is_open || !(flags & ZB_OP_WEIGHT_JOINT)) {
            zb_compile_instr(cp, pass, op->row->backward_weight, op, op->label)
                ->weight = i;
            /* A bias needs no activation; the row's first weight does. */
            read_slots(cp, pass, op,
                       op->row->in[i].flags & ZB_IN_OPTIONAL ? 0 : ZB_IN_W,
                       op->row->in[i].flags & ZB_IN_OPTIONAL ? 0
                                                             : op->row->out_w,
                       d_out);
            is_open = 1;
        }
        weight_slot(cp, pass, op, i);
    }
}

/* Only one input of the row has a gradient that a launch computes. */
static int has_one_grad(const struct zb_op_row *row)
{
    int n = 0;

    for (int i = 0; i < row->n_in; i++) {
        n += (row->in[i].flags & ZB_IN_GRAD) != 0;
    }
    return n == 1;
}

/* dX where something was summed before and the kernel itself can add to it. */
static void backward_onto(struct zb_compile *cp, const struct zb_op *op, int i,
                          const struct zb_ref *d_out, double coef)
{
    int t = op->in[i];
    struct zb_ref acc = cp->local[t].acc;
    int accumulates = (op->row->flags & ZB_OP_ACCUMULATE) != 0;
    struct zb_ref dest = accumulates
                             ? fresh(cp, t)
                             : destination(cp, t, op->row->in[i].need);
    struct zb_instr *instr;

    if (accumulates || (op->row->flags & ZB_OP_IN_PLACE)) {
        may_replace(cp, &dest, &acc);
    }
    instr = zb_compile_instr(cp, ZB_PASS_B, op->row->backward_input, op,
                             op->label);
    instr->accumulate = accumulates;
    instr->loss_coef = coef;
    instr->loss = cp->g->tensors[op->out[0]].loss;
    read_slots(cp, ZB_PASS_B, op, ZB_IN_B, op->row->out_b, d_out);
    zb_compile_slot(cp, ZB_PASS_B, ZB_ROLE_ADDEND, ZB_READ, &acc);
    zb_compile_slot(cp, ZB_PASS_B, ZB_ROLE_D_IN + i,
                    accumulates ? ZB_READ_WRITE : ZB_WRITE, &dest);
    set_acc(cp, t, &dest);
}

/* Where the gradient of input i goes when the launch does not add. */
static struct zb_ref input_destination(struct zb_compile *cp,
                                       const struct zb_op *op, int i)
{
    const struct zb_local *local = &cp->local[op->in[i]];
    struct zb_ref dest;

    if (!sends(cp, op, i) || local->n_grads != 1) {
        return fresh(cp, op->in[i]);
    }
    dest = destination(cp, op->in[i], op->row->in[i].need);
    if ((op->row->in[i].flags & ZB_IN_OVERWRITE) && local->value >= 0) {
        struct zb_ref old = zb_compile_ref(cp, local->value);

        may_replace(cp, &dest, &old);
    }
    return dest;
}

/* One launch for the gradients of all inputs; those nobody wants go to scratch
 * memory. */
static void backward_inputs(struct zb_compile *cp, const struct zb_op *op,
                            const struct zb_ref *d_out, double coef)
{
    struct zb_ref dest[ZB_OP_MAX_IN];
    struct zb_instr *instr;

    for (int i = 0; i < op->row->n_in; i++) {
        if (op->row->in[i].flags & ZB_IN_GRAD) {
            dest[i] = input_destination(cp, op, i);
        }
    }
    if (op->row->flags & ZB_OP_OVER_D_OUT) {
        may_replace(cp, &dest[0], d_out);
    }
    instr =
        zb_compile_instr(cp, ZB_PASS_B, op->row->backward_input, op, op->label);
    instr->loss_coef = coef;
    instr->loss = cp->g->tensors[op->out[0]].loss;
    read_slots(cp, ZB_PASS_B, op, ZB_IN_B, op->row->out_b, d_out);
    for (int i = 0; i < op->row->n_in; i++) {
        if (op->row->in[i].flags & ZB_IN_GRAD) {
            zb_compile_slot(cp, ZB_PASS_B, ZB_ROLE_D_IN + i, ZB_WRITE,
                            &dest[i]);
        }
    }
    zb_compile_tmp(cp, ZB_PASS_B, op);
    for (int i = 0; i < op->row->n_in; i++) {
        if ((op->row->in[i].flags & ZB_IN_GRAD) && sends(cp, op, i)) {
            contribute(cp, op->in[i], &dest[i]);
        }
    }
}

static void backward_launch(struct zb_compile *cp, const struct zb_op *op,
                            const struct zb_ref *d_out, double coef)
{
    for (int i = 0; i < op->row->n_in; i++) {
        if (!(op->row->in[i].flags & ZB_IN_GRAD) || !sends(cp, op, i)) {
            continue;
        }
        if (has_one_grad(op->row) && cp->local[op->in[i]].has_acc &&
            (op->row->flags & (ZB_OP_ADDEND | ZB_OP_ACCUMULATE))) {
            backward_onto(cp, op, i, d_out, coef);
        } else {
            backward_inputs(cp, op, d_out, coef);
        }
        return;
    }
}

/* The gradient of a slice that shares its tensor's gradient with others that
 * do not just lie beside it: zeros around it. */
static void pad_slice(struct zb_compile *cp, const struct zb_op *op,
                      const struct zb_ref *d_out)
{
    struct zb_ref whole = fresh(cp, op->in[0]), part = whole;

    ZB_BUG_IF(op->row->alias(op, &whole.layout, &part.layout) != 0,
              "%s: no view of a gradient", op->label);
    zb_compile_instr(cp, ZB_PASS_B, zb_emit_zero, NULL, "gradient of slice");
    zb_compile_slot(cp, ZB_PASS_B, ZB_ROLE_OUT, ZB_WRITE, &whole);
    zb_compile_copy(cp, ZB_PASS_B, "gradient of slice", d_out, &part);
    contribute(cp, op->in[0], &whole);
}

static void backward_slice(struct zb_compile *cp, const struct zb_op *op,
                           const struct zb_ref *d_out)
{
    int x = op->in[0];
    struct zb_ref whole;

    if (!cp->g->tensors[x].is_tiled) {
        pad_slice(cp, op, d_out);
    } else if (is_last(cp, x)) {
        if (home(cp, x, &whole)) {
            set_acc(cp, x, &whole);
        }
    } else {
        cp->local[x].n_left--;
    }
}

/* dY itself, seen with the shape of the input. */
static void backward_pass(struct zb_compile *cp, const struct zb_op *op, int i,
                          const struct zb_ref *d_out)
{
    struct zb_ref ref = *d_out, at;
    int t = op->in[i];

    if (alias_op(cp, op->out[0]) != NULL && home(cp, t, &at) &&
        at.index == d_out->index) {
        ref = at;
    } else {
        ZB_BUG_IF(zb_layout_reshape(&d_out->layout, shape_of(cp, t),
                                    &ref.layout) != 0,
                  "%s: no view of a gradient", op->label);
    }
    contribute(cp, t, &ref);
}

/* dY is one number and the op only multiplies it. */
static void backward_uniform(struct zb_compile *cp, const struct zb_op *op)
{
    const struct zb_tensor *y = &cp->g->tensors[op->out[0]];
    double coef = y->coef * op->row->uniform(op);

    for (int i = 0; i < op->row->n_in; i++) {
        if (!sends(cp, op, i)) {
            continue;
        }
        if (cp->g->tensors[op->in[i]].is_uniform) {
            cp->local[op->in[i]].n_left--;
        } else {
            struct zb_ref ref = fill(cp, op->in[i], coef);

            contribute(cp, op->in[i], &ref);
        }
    }
}

static void backward_op(struct zb_compile *cp, const struct zb_op *op)
{
    const struct zb_tensor *y = &cp->g->tensors[op->out[0]];
    struct zb_ref d_out;

    if (y->is_uniform && op->row->uniform != NULL) {
        backward_uniform(cp, op);
        return;
    }
    if (op->row->flags & ZB_OP_LOSS) {
        backward_launch(cp, op, NULL, y->coef);
        return;
    }
    d_out = y->is_uniform ? fill(cp, op->out[0], y->coef)
                          : finished(cp, op->out[0]);
    if (op->row->flags & ZB_OP_SLICE) {
        backward_slice(cp, op, &d_out);
        return;
    }
    for (int i = 0; i < op->row->n_in; i++) {
        if ((op->row->in[i].flags & ZB_IN_PASS) && sends(cp, op, i)) {
            backward_pass(cp, op, i, &d_out);
        }
    }
    backward_launch(cp, op, &d_out, 0);
    backward_weights(cp, op, &d_out);
}

/* ---- the chunk ----------------------------------------------------------- */

static void count_contributions(struct zb_compile *cp)
{
    for (size_t i = 0; i < cp->g->n_ops; i++) {
        const struct zb_op *op = &cp->g->ops[i];

        for (int k = 0; zb_compile_is_mine(cp, op) && k < op->row->n_in; k++) {
            cp->local[op->in[k] < 0 ? 0 : op->in[k]].n_grads +=
                sends(cp, op, k);
        }
    }
    for (size_t t = 0; t < cp->g->n_tensors; t++) {
        struct zb_local *local = &cp->local[t];

        local->n_grads += zb_tensor_grad_crosses(cp->g, (int)t, cp->end);
    }
    for (int k = 0; cp->has_loss && k < cp->g->n_losses; k++) {
        cp->local[cp->g->loss[k].tensor].n_grads++;
    }
    for (size_t t = 0; t < cp->g->n_tensors; t++) {
        cp->local[t].n_left = cp->local[t].n_grads;
    }
}

/* Gradients that come from the chunk behind, and the places for those that go
 * to the chunk before. */
static void open_boundaries(struct zb_compile *cp)
{
    size_t at_in = 0, at_out = 0;

    for (size_t t = 0; t < cp->g->n_tensors; t++) {
        const struct zb_tensor *x = &cp->g->tensors[t];

        if (zb_tensor_grad_crosses(cp->g, (int)t, cp->first)) {
            int v = zb_compile_value_at(cp, x, ZB_SPACE_DOUT, at_out);

            cp->local[t].grad = v;
            at_out += cp->values[v].bytes;
        }
        if (zb_tensor_grad_crosses(cp->g, (int)t, cp->end)) {
            int v = zb_compile_value_at(cp, x, ZB_SPACE_DIN, at_in);
            struct zb_ref ref = zb_compile_ref(cp, v);

            contribute(cp, (int)t, &ref);
            at_in += cp->values[v].bytes;
        }
    }
    cp->c->info.bytes[ZB_SPACE_DIN] = at_in;
    cp->c->info.bytes[ZB_SPACE_DOUT] = at_out;
}

static void begin_with_loss(struct zb_compile *cp, int t)
{
    if (!cp->g->tensors[t].has_grad) {
        return;
    }
    if (cp->g->tensors[t].is_uniform) {
        cp->local[t].n_left--;
    } else {
        struct zb_ref ref = fill(cp, t, 1.0);

        contribute(cp, t, &ref);
    }
}

void zb_compile_backward(struct zb_compile *cp)
{
    const struct zb_graph *g = cp->g;

    cp->layer = cp->end - 1;
    count_contributions(cp);
    open_boundaries(cp);
    for (int k = 0; cp->has_loss && k < g->n_losses; k++) {
        begin_with_loss(cp, g->loss[k].tensor);
    }
    for (size_t i = g->n_ops; i-- > 0 && cp->st == ZB_OK;) {
        const struct zb_op *op = &g->ops[i];

        if (zb_compile_is_mine(cp, op) && g->tensors[op->out[0]].has_grad) {
            cp->layer = op->layer;
            backward_op(cp, op);
        }
    }
    cp->layer = cp->first;
    for (size_t t = 0; t < g->n_tensors && cp->st == ZB_OK; t++) {
        if (zb_tensor_grad_crosses(g, (int)t, cp->first)) {
            finished(cp, (int)t);
        }
    }
}
