/* SPDX-License-Identifier: MIT
 *
 * What the passes of a chunk cost: the work and the bytes of each launch, and a
 * number that is the same for chunks that launch the same.
 */
#include "config.h"
#include "graph/chunk_int.h"

#include <string.h>

#include "zb/hash.h"

/* ---- estimate ------------------------------------------------------------ */

/* The pass that a launch is made for; it may run in another one: a forward
 * launch again in B, small weight gradients there too. */
static enum zb_pass pass_of(const struct zb_instr *instr)
{
    const struct zb_op *op = instr->op;

    if (op == NULL || instr->emit == op->row->forward) {
        return ZB_PASS_F;
    }
    return instr->emit == op->row->backward_weight ? ZB_PASS_W : ZB_PASS_B;
}

/* An op may have several launches in a pass, one for each weight; its matrix
 * comes first and is its work. */
static double launch_flops(const struct zb_chunk *c,
                           const struct zb_instr *instr, enum zb_pass work,
                           const struct zb_bind *bind)
{
    struct zb_flops cost;

    if (instr->op == NULL) {
        return 0;
    }
    cost = instr->op->row->flops(c->graph, instr->op, bind);
    if (work == ZB_PASS_W) {
        unsigned flags = instr->op->row->in[instr->weight].flags;

        return flags & ZB_IN_OPTIONAL ? 0 : cost.w;
    }
    return work == ZB_PASS_F ? cost.f : cost.b;
}

/* Which input of the row a slot is about, or -1. */
static int input_of(int role)
{
    if (role < ZB_ROLE_OUT) {
        return role - ZB_ROLE_IN;
    }
    return role >= ZB_ROLE_D_IN && role < ZB_ROLE_ADDEND ? role - ZB_ROLE_D_IN
                                                         : -1;
}

static double elems(const struct zb_slot *slot, const struct zb_bind *bind)
{
    return (double)zb_bound_elems(&slot->ref.layout.shape, bind);
}

/* Bytes that a launch moves through one of its tensors. */
static double slot_bytes(const struct zb_chunk *c, const struct zb_instr *instr,
                         const struct zb_slot *slot,
                         const struct zb_bind *bind)
{
    int in = input_of(slot->role);
    double n = elems(slot, bind);

    if (instr->op != NULL && in >= 0 &&
        (instr->op->row->in[in].flags & ZB_IN_SPARSE)) {
        const struct zb_tensor *y = &c->graph->tensors[instr->op->out[0]];
        double most = (double)zb_bound_elems(&y->shape, bind);

        n = n < most ? n : most;
    }
    return n * (double)zb_dtype_bytes(slot->ref.dtype) *
           (slot->mode == ZB_READ_WRITE ? 2 : 1);
}

static double launch_ns(const struct zb_chunk *c, const struct zb_instr *instr,
                        const struct zb_bind *bind, const struct zb_rates *r)
{
    const struct zb_op *op = instr->op;
    enum zb_pass pass = pass_of(instr);
    enum zb_product form = op != NULL && op->row->product != NULL
                               ? op->row->product(op, pass)
                               : ZB_PRODUCT_NN;
    double work = launch_flops(c, instr, pass, bind) / r->flops_per_ns[form];
    double bytes = 0;

    for (int i = 0; i < instr->n_slots; i++) {
        bytes += slot_bytes(c, instr, &c->slots[instr->first_slot + (size_t)i],
                            bind);
    }
    bytes /= r->bytes_per_ns;
    return r->launch_ns + (work > bytes ? work : bytes);
}

void zb_chunk_estimate(const struct zb_chunk *c, const struct zb_bind *bind,
                       const struct zb_rates *rates, double ns[ZB_N_PASSES])
{
    for (int pass = 0; pass < ZB_N_PASSES; pass++) {
        const struct zb_list *list = &c->list[pass];

        ns[pass] = 0;
        for (size_t i = 0; i < list->n; i++) {
            ns[pass] += launch_ns(c, &list->instr[i], bind, rates);
        }
    }
}

/* ---- signature ----------------------------------------------------------- */

static void mix(uint64_t *h, const void *bytes, size_t n)
{
    uint64_t both[2] = {*h, zb_hash(bytes, n)};

    *h = zb_hash(both, sizeof(both));
}

static void mix_number(uint64_t *h, int64_t x)
{
    mix(h, &x, sizeof(x));
}

static void mix_layout(uint64_t *h, const struct zb_layout *l)
{
    mix_number(h, l->shape.n_dims);
    for (int i = 0; i < l->shape.n_dims; i++) {
        mix_number(h, l->shape.dim[i]);
        mix_number(h, l->stride[i].coef);
        for (int s = 0; s < ZB_N_SYMS; s++) {
            mix_number(h, l->stride[i].pow[s]);
        }
    }
}

/* Numbers of parameters, uses and tensors are not part of it: they differ from
 * layer to layer. */
static void mix_instr(uint64_t *h, const struct zb_chunk *c,
                      const struct zb_instr *instr)
{
    const struct zb_op *op = instr->op;
    const char *name = op == NULL ? instr->label : op->row->name;

    mix(h, name, strlen(name));
    mix_number(h, op != NULL && op->row->variant != NULL ? op->row->variant(op)
                                                         : 0);
    mix_number(h, instr->accumulate);
    mix_number(h, op != NULL && instr->emit == op->row->backward_weight
                      ? instr->weight + 1
                      : 0);
    for (int i = 0; i < instr->n_slots; i++) {
        const struct zb_slot *slot = &c->slots[instr->first_slot + (size_t)i];

        mix_number(h, slot->role);
        mix_number(h, (int64_t)slot->mode);
        mix_number(h, (int64_t)slot->ref.where);
        mix_number(h, (int64_t)slot->ref.dtype);
        mix_layout(h, &slot->ref.layout);
    }
}

uint64_t zb_chunk_signature(const struct zb_chunk *c)
{
    uint64_t h = 0;

    for (int pass = 0; pass < ZB_N_PASSES; pass++) {
        const struct zb_list *list = &c->list[pass];

        mix_number(&h, (int64_t)list->n);
        for (size_t i = 0; i < list->n; i++) {
            mix_instr(&h, c, &list->instr[i]);
        }
    }
    for (int s = 0; s < ZB_N_SPACES; s++) {
        mix_number(&h, (int64_t)c->info.bytes[s]);
    }
    mix_number(&h, c->info.n_params);
    for (int i = 0; i < c->info.n_params; i++) {
        int t = c->graph->params[c->info.params[i]].tensor;

        mix_number(&h, zb_bound_elems(&c->graph->tensors[t].shape,
                                      &(struct zb_bind){{1, 1}}));
    }
    return h;
}
