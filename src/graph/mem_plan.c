/* SPDX-License-Identifier: MIT
 *
 * Where the values of a chunk live. A value's class follows from the pass that
 * writes it and the last one that reads it; scratch memory is reused within a
 * pass, first fit in order of birth.
 */
#include "config.h"
#include "graph/chunk_int.h"

#include "zb/mem.h"

#include <limits.h>

/* ---- lifetimes ----------------------------------------------------------- */

static void touch(struct zb_value *v, int pass, int at)
{
    if (v->first_pass < 0) {
        v->first_pass = pass;
        v->first_at = at;
    }
    v->last_pass = pass;
    v->last_at = at;
}

/* What the caller may look at after F lives to its end. */
static void touch_outputs(struct zb_compile *cp)
{
    for (size_t i = 0; cp->has_loss && i < cp->g->n_outputs; i++) {
        struct zb_ref ref = zb_compile_input(cp, ZB_PASS_F,
                                             cp->g->outputs[i].tensor,
                                             ZB_NEED_ANY);

        if (ref.where == ZB_AT_VALUE) {
            touch(&cp->values[ref.index], ZB_PASS_F, INT_MAX);
        }
        cp->c->outputs[i] = ref;
    }
}

static void find_lifetimes(struct zb_compile *cp)
{
    for (size_t i = 0; i < cp->n_values; i++) {
        cp->values[i].first_pass = -1;
        cp->values[i].last_pass = -1;
    }
    for (int pass = 0; pass < ZB_N_PASSES; pass++) {
        const struct zb_list *list = &cp->c->list[pass];

        for (size_t i = 0; i < list->n; i++) {
            const struct zb_slot *slot =
                &cp->c->slots[list->instr[i].first_slot];

            for (int k = 0; k < list->instr[i].n_slots; k++) {
                if (slot[k].ref.where == ZB_AT_VALUE) {
                    touch(&cp->values[slot[k].ref.index], pass, (int)i);
                }
            }
        }
        if (pass == ZB_PASS_F) {
            touch_outputs(cp);
        }
    }
}

/* ---- taking over memory -------------------------------------------------- */

static int ends_at(const struct zb_value *v, int pass, int at)
{
    return v->last_pass == pass && v->last_at == at;
}

/* Let value v, written by instruction `at` of B, take the memory of v->over if
 * that is nobody else's and ends here. */
static int take_over(struct zb_compile *cp, int v, int at)
{
    struct zb_value *value = &cp->values[v];
    const struct zb_value *old;

    if (value->over < 0) {
        return 0;
    }
    old = &cp->values[value->over];
    if (old->space >= 0 || old->bytes != value->bytes ||
        !ends_at(old, ZB_PASS_B, at)) {
        return 0;
    }
    value->rep = old->rep;
    return 1;
}

static struct zb_slot *slot_of(struct zb_compile *cp,
                               const struct zb_instr *instr, int role)
{
    for (int k = 0; k < instr->n_slots; k++) {
        struct zb_slot *slot = &cp->c->slots[instr->first_slot + (size_t)k];

        if (slot->role == role) {
            return slot;
        }
    }
    return NULL;
}

/* An instruction that adds in place needs what it adds to where it writes:
 * either the memory is the same, or a copy goes first. Its slots end with
 * ADDEND, D_IN; only D_IN stays. */
static void settle_accumulate(struct zb_compile *cp, struct zb_instr instr,
                              int is_shared)
{
    struct zb_slot *addend = slot_of(cp, &instr, ZB_ROLE_ADDEND);
    struct zb_ref from = addend->ref;
    struct zb_list *list = &cp->c->list[ZB_PASS_B];

    *addend = addend[1];
    instr.n_slots--;
    if (!is_shared) {
        struct zb_ref to = addend->ref;

        zb_compile_copy(cp, ZB_PASS_B, "gradient copy", &from, &to);
    }
    zb_compile_instr(cp, ZB_PASS_B, instr.emit, instr.op, instr.label);
    if (cp->st == ZB_OK) {
        list->instr[list->n - 1] = instr;
    }
}

/* Rewrite the B list with every question of shared memory answered. */
static void settle_sharing(struct zb_compile *cp)
{
    struct zb_list *list = &cp->c->list[ZB_PASS_B];
    struct zb_list old = *list;

    *list = (struct zb_list){NULL, 0, 0};
    for (size_t i = 0; i < old.n && cp->st == ZB_OK; i++) {
        struct zb_instr instr = old.instr[i];
        int is_shared = 0;

        cp->layer = instr.layer; /* also of a copy */
        for (int k = 0; k < instr.n_slots; k++) {
            const struct zb_slot *slot =
                &cp->c->slots[instr.first_slot + (size_t)k];

            if (slot->ref.where == ZB_AT_VALUE && (slot->mode & ZB_WRITE)) {
                is_shared |= take_over(cp, slot->ref.index, (int)i);
            }
        }
        if (instr.accumulate) {
            settle_accumulate(cp, instr, is_shared);
        } else {
            zb_compile_instr(cp, ZB_PASS_B, instr.emit, instr.op, instr.label);
            if (cp->st == ZB_OK) {
                list->instr[list->n - 1] = instr;
            }
        }
    }
    zb_free(old.instr);
}

/* ---- the forward message ------------------------------------------------- */

/* A tensor that only F needs is written into the message; one that came in, or
 * that B or W read, is copied there. */
static void send_tensor(struct zb_compile *cp, int t, size_t at)
{
    const struct zb_local *local = &cp->local[t];
    struct zb_value *v = local->value < 0 ? NULL : &cp->values[local->value];
    struct zb_ref from, to;

    if (v != NULL && v->space < 0 && v->last_pass == ZB_PASS_F) {
        v->space = ZB_SPACE_OUT;
        v->offset = at;
        return;
    }
    from = zb_compile_input(cp, ZB_PASS_F, t, ZB_NEED_ANY);
    to = zb_compile_ref(cp, zb_compile_value_at(cp, &cp->g->tensors[t],
                                                ZB_SPACE_OUT, at));
    zb_compile_copy(cp, ZB_PASS_F, "boundary copy", &from, &to);
}

static void send_outputs(struct zb_compile *cp)
{
    size_t at = 0;

    for (size_t t = 0; t < cp->g->n_tensors && cp->st == ZB_OK; t++) {
        const struct zb_tensor *x = &cp->g->tensors[t];

        if (zb_tensor_crosses(cp->g, (int)t, cp->end)) {
            send_tensor(cp, (int)t, at);
            at += zb_compile_bytes(cp, x->dtype, &x->shape);
        }
    }
    cp->c->info.bytes[ZB_SPACE_OUT] = at;
}

/* ---- spaces and offsets -------------------------------------------------- */

/* The lifetime of memory that several values have in turn. */
static void join_lifetimes(struct zb_compile *cp)
{
    for (size_t i = 0; i < cp->n_values; i++) {
        struct zb_value *v = &cp->values[i];

        if (v->rep != (int)i && v->first_pass >= 0) {
            struct zb_value *rep = &cp->values[v->rep];

            if (rep->last_pass < v->last_pass ||
                (rep->last_pass == v->last_pass && rep->last_at < v->last_at)) {
                rep->last_pass = v->last_pass;
                rep->last_at = v->last_at;
            }
        }
    }
}

static enum zb_space class_of(const struct zb_value *v)
{
    static const enum zb_space classes[ZB_N_PASSES][ZB_N_PASSES] = {
        {ZB_SPACE_SCRATCH, ZB_SPACE_FB, ZB_SPACE_FW},
        {ZB_SPACE_SCRATCH, ZB_SPACE_SCRATCH, ZB_SPACE_BW},
        {ZB_SPACE_SCRATCH, ZB_SPACE_SCRATCH, ZB_SPACE_SCRATCH},
    };

    return classes[v->first_pass][v->last_pass];
}

/* Lowest offset where v meets none of the n values that live. */
static size_t first_fit(const struct zb_compile *cp, const int *alive,
                        size_t n, const struct zb_value *v)
{
    size_t at = 0;
    int moved = 1;

    while (moved) {
        moved = 0;
        for (size_t i = 0; i < n; i++) {
            const struct zb_value *u = &cp->values[alive[i]];

            if (at < u->offset + u->bytes && u->offset < at + v->bytes) {
                at = u->offset + u->bytes;
                moved = 1;
            }
        }
    }
    return at;
}

/* Drop the values that ended before instruction `at`. */
static size_t drop_ended(const struct zb_compile *cp, int *alive, size_t n,
                         int at)
{
    size_t kept = 0;

    for (size_t i = 0; i < n; i++) {
        if (cp->values[alive[i]].last_at >= at) {
            alive[kept++] = alive[i];
        }
    }
    return kept;
}

/* The scratch values of one pass in order of birth; they were made nearly in
 * that order. */
static size_t sort_scratch(const struct zb_compile *cp, int pass, int *order)
{
    size_t n = 0;

    for (size_t i = 0; i < cp->n_values; i++) {
        const struct zb_value *v = &cp->values[i];
        size_t k = n;

        if (v->space != ZB_SPACE_SCRATCH || v->rep != (int)i ||
            v->first_pass != pass) {
            continue;
        }
        for (; k > 0 && cp->values[order[k - 1]].first_at > v->first_at; k--) {
            order[k] = order[k - 1];
        }
        order[k] = (int)i;
        n++;
    }
    return n;
}

/* Values that live are kept at the front of `order`, which they have left. */
static void place_scratch(struct zb_compile *cp, int pass, int *order)
{
    size_t n = sort_scratch(cp, pass, order), n_alive = 0;
    size_t *bytes = &cp->c->info.bytes[ZB_SPACE_SCRATCH];

    for (size_t k = 0; k < n; k++) {
        int i = order[k];
        struct zb_value *v = &cp->values[i];

        n_alive = drop_ended(cp, order, n_alive, v->first_at);
        v->offset = first_fit(cp, order, n_alive, v);
        order[n_alive++] = i;
        *bytes = v->offset + v->bytes > *bytes ? v->offset + v->bytes : *bytes;
    }
}

static void place_values(struct zb_compile *cp)
{
    int *order = zb_alloc_array(cp->n_values, sizeof(*order));

    if (order == NULL) {
        cp->st = ZB_ENOMEM;
        return;
    }
    for (size_t i = 0; i < cp->n_values; i++) {
        struct zb_value *v = &cp->values[i];

        if (v->space >= 0 || v->rep != (int)i || v->first_pass < 0) {
            continue;
        }
        v->space = (int)class_of(v);
        if (v->space != ZB_SPACE_SCRATCH) {
            v->offset = cp->c->info.bytes[v->space];
            cp->c->info.bytes[v->space] += v->bytes;
        }
    }
    for (int pass = 0; pass < ZB_N_PASSES; pass++) {
        place_scratch(cp, pass, order);
    }
    zb_free(order);
}

static void resolve(const struct zb_compile *cp, struct zb_ref *ref)
{
    if (ref->where == ZB_AT_VALUE) {
        const struct zb_value *v = &cp->values[cp->values[ref->index].rep];

        ref->where = ZB_AT_SPACE;
        ref->index = v->space;
        ref->offset = v->offset;
    }
}

/* The last pass that touches a message that was received. */
static void find_untils(struct zb_compile *cp)
{
    struct zb_chunk_info *info = &cp->c->info;

    info->in_until = ZB_PASS_F;
    info->din_until = ZB_PASS_B;
    for (size_t i = 0; i < cp->n_values; i++) {
        const struct zb_value *v = &cp->values[i];

        if (v->space == ZB_SPACE_IN && v->last_pass > (int)info->in_until) {
            info->in_until = (enum zb_pass)v->last_pass;
        }
        if (v->space == ZB_SPACE_DIN && v->last_pass > (int)info->din_until) {
            info->din_until = (enum zb_pass)v->last_pass;
        }
    }
}

void zb_compile_memory(struct zb_compile *cp)
{
    find_lifetimes(cp);
    settle_sharing(cp);
    if (cp->st != ZB_OK) {
        return;
    }
    send_outputs(cp);
    if (cp->st != ZB_OK) {
        return;
    }
    find_lifetimes(cp);
    join_lifetimes(cp);
    find_untils(cp);
    place_values(cp);
    for (size_t i = 0; i < cp->c->n_slots && cp->st == ZB_OK; i++) {
        resolve(cp, &cp->c->slots[i].ref);
    }
    for (size_t i = 0; cp->has_loss && i < cp->g->n_outputs; i++) {
        resolve(cp, &cp->c->outputs[i]);
    }
}
