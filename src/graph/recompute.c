/* SPDX-License-Identifier: MIT
 *
 * Recompute: what F need not keep for B and W because B makes it again.
 *
 * It works on the three finished lists, layer by layer from the last to the
 * first. A value that F writes and only its own layer's B and W read may be
 * made again: the instructions that lead to it, back to what is kept, are
 * written once more at the head of that layer's part of B, and its readers in B
 * and W get the new value. So W never computes anything twice, and what exists
 * in B besides what W keeps is of one layer. The instructions are those of F,
 * collectives and random masks included, so the bits are the same.
 *
 * Values that other layers read in B (what entered them) are kept. So is the
 * layer with the loss: its B follows its F at once in any schedule that spares
 * memory, and then holds for W what F held, the gradient of the logits in the
 * place of the logits. To drop them in between would cost the head's product
 * and lower no peak.
 */
#include "config.h"
#include "graph/chunk_int.h"

#include "zb/mem.h"

struct range {
    size_t first, end; /* of a list */
};

struct again {
    struct zb_compile *cp;
    struct zb_list f, b, w; /* as they were; B is rewritten */
    int layer;                      /* in question */
    struct range part[ZB_N_PASSES]; /* its own of each list */
    size_t n_values;  /* before any was made again */
    int *writer;      /* [n_values] in F, or -1 */
    int *made;        /* [n_values] the value made again, or -1 */
    char *is_kept;    /* [n_values] read in B or W as F left it */
    unsigned *seen;   /* [n_values] the last look in which it was needed */
    unsigned look;
    char *is_allowed; /* [f.n] may run again */
    char *is_wanted;  /* [f.n] does */
};

/* ---- reading instructions ------------------------------------------------ */

static struct zb_slot *slots_of(const struct again *a,
                                const struct zb_instr *instr)
{
    return &a->cp->c->slots[instr->first_slot];
}

/* The value from before B that a slot has to do with in this way, or -1. */
static int old_value(const struct again *a, const struct zb_slot *slot,
                     enum zb_access_mode mode)
{
    return slot->ref.where == ZB_AT_VALUE && (slot->mode & mode) &&
                   (size_t)slot->ref.index < a->n_values
               ? slot->ref.index
               : -1;
}

/* F made it, or the chunk before sent it. */
static int is_of_f(const struct again *a, int v)
{
    return a->writer[v] >= 0 || a->cp->values[v].space == ZB_SPACE_IN;
}

static int is_own(const struct again *a, int v)
{
    return a->writer[v] >= 0 && a->f.instr[a->writer[v]].layer == a->layer;
}

static void find_writers(struct again *a)
{
    for (size_t v = 0; v < a->n_values; v++) {
        a->writer[v] = -1;
        a->made[v] = -1;
    }
    for (size_t i = 0; i < a->f.n; i++) {
        const struct zb_slot *slot = slots_of(a, &a->f.instr[i]);

        for (int k = 0; k < a->f.instr[i].n_slots; k++) {
            int v = old_value(a, &slot[k], ZB_WRITE);

            if (v >= 0) {
                a->writer[v] = (int)i;
            }
        }
    }
}

/* Lists are in the order of layers, up in F and down in B. */
static struct range part_of(const struct zb_list *list, int layer)
{
    struct range r = {0, 0};

    while (r.first < list->n && list->instr[r.first].layer != layer) {
        r.first++;
    }
    r.end = r.first;
    while (r.end < list->n && list->instr[r.end].layer == layer) {
        r.end++;
    }
    return r;
}

/* ---- what to make again -------------------------------------------------- */

static int may_run_again(const struct again *a, const struct zb_instr *instr)
{
    if (a->layer == a->cp->g->loss_layer) {
        return 0;
    }
    return a->cp->recompute == ZB_RECOMPUTE_FULL || instr->op == NULL ||
           (instr->op->row->flags & ZB_OP_CHEAP);
}

/* v is needed. Returns the bytes that F then keeps of other layers for it. */
static double need(struct again *a, int v)
{
    if (v < 0 || !is_of_f(a, v) || a->seen[v] == a->look) {
        return 0;
    }
    a->seen[v] = a->look;
    return is_own(a, v) || a->is_kept[v] ? 0 : (double)a->cp->values[v].bytes;
}

static double need_reads(struct again *a, const struct zb_instr *instr)
{
    const struct zb_slot *slot = slots_of(a, instr);
    double bytes = 0;

    for (int k = 0; k < instr->n_slots; k++) {
        bytes += need(a, old_value(a, &slot[k], ZB_READ));
    }
    return bytes;
}

static double need_backward(struct again *a)
{
    double bytes = 0;

    for (size_t i = a->part[ZB_PASS_B].first; i < a->part[ZB_PASS_B].end;
         i++) {
        bytes += need_reads(a, &a->b.instr[i]);
    }
    for (size_t i = a->part[ZB_PASS_W].first; i < a->part[ZB_PASS_W].end;
         i++) {
        bytes += need_reads(a, &a->w.instr[i]);
    }
    return bytes;
}

/* Bytes of what is needed of an instruction's outputs; *is_needed_out: any. */
static double needed_bytes(const struct again *a, const struct zb_instr *instr,
                           int *is_needed_out)
{
    const struct zb_slot *slot = slots_of(a, instr);
    double bytes = 0;

    *is_needed_out = 0;
    for (int k = 0; k < instr->n_slots; k++) {
        int v = old_value(a, &slot[k], ZB_WRITE);

        if (v >= 0 && a->seen[v] == a->look && !a->is_kept[v]) {
            bytes += (double)a->cp->values[v].bytes;
            *is_needed_out = 1;
        }
    }
    return bytes;
}

/* Mark what runs again when all that is allowed does. Returns the bytes that F
 * keeps for this layer. */
static double choose(struct again *a)
{
    double bytes;

    a->look++;
    bytes = need_backward(a);
    for (size_t i = a->part[ZB_PASS_F].end; i-- > a->part[ZB_PASS_F].first;) {
        int is_needed;
        double kept = needed_bytes(a, &a->f.instr[i], &is_needed);

        a->is_wanted[i] = is_needed && a->is_allowed[i];
        bytes += a->is_wanted[i] ? need_reads(a, &a->f.instr[i]) : kept;
    }
    return bytes;
}

/* Allow all that may run again, or nothing. */
static double choose_all(struct again *a, int is_on)
{
    for (size_t i = a->part[ZB_PASS_F].first; i < a->part[ZB_PASS_F].end;
         i++) {
        a->is_allowed[i] = is_on && may_run_again(a, &a->f.instr[i]);
    }
    return choose(a);
}

/* Nothing runs again that F could keep in no more memory than what it is made
 * of takes; then this is so for the layer as a whole, too. */
static void choose_gainful(struct again *a)
{
    double all = choose_all(a, 0), least = choose_all(a, 1);

    for (size_t i = a->part[ZB_PASS_F].first; i < a->part[ZB_PASS_F].end;
         i++) {
        if (a->is_wanted[i]) {
            double bytes;

            a->is_allowed[i] = 0;
            bytes = choose(a);
            a->is_allowed[i] = bytes > least;
            least = bytes > least ? least : bytes;
            choose(a);
        }
    }
    if (least >= all) {
        choose_all(a, 0);
    }
}

/* What B or W of this layer, or what runs again for them, reads from F. */
static void keep_rest(struct again *a)
{
    for (size_t v = 0; v < a->n_values; v++) {
        if (a->seen[v] == a->look &&
            !(is_own(a, (int)v) && a->is_wanted[a->writer[v]])) {
            a->is_kept[v] = 1;
        }
    }
}

/* ---- writing the lists --------------------------------------------------- */

static void append(struct again *a, const struct zb_instr *instr)
{
    struct zb_list *list = &a->cp->c->list[ZB_PASS_B];

    zb_compile_instr(a->cp, ZB_PASS_B, instr->emit, instr->op, instr->label);
    if (a->cp->st == ZB_OK) {
        list->instr[list->n - 1] = *instr;
    }
}

static void run_again(struct again *a, const struct zb_instr *instr)
{
    struct zb_compile *cp = a->cp;
    struct zb_instr copy = *instr;

    copy.first_slot = cp->c->n_slots;
    copy.n_slots = 0;
    append(a, &copy);
    for (int k = 0; k < instr->n_slots && cp->st == ZB_OK; k++) {
        struct zb_slot slot = slots_of(a, instr)[k];
        int v = old_value(a, &slot, ZB_READ_WRITE);

        if (v >= 0 && (slot.mode & ZB_WRITE) && a->made[v] < 0) {
            struct zb_value value = cp->values[v];

            a->made[v] = zb_compile_value(cp, value.dtype, &value.shape);
        }
        if (v >= 0 && a->made[v] >= 0 &&
            ((slot.mode & ZB_WRITE) || !a->is_kept[v])) {
            slot.ref.index = a->made[v];
        }
        zb_compile_slot(cp, ZB_PASS_B, slot.role, slot.mode, &slot.ref);
    }
}

/* B and W of this layer read what was made again. */
static void replace_reads(struct again *a, const struct zb_instr *instr)
{
    struct zb_slot *slot = slots_of(a, instr);

    for (int k = 0; k < instr->n_slots; k++) {
        int v = old_value(a, &slot[k], ZB_READ);

        if (v >= 0 && a->made[v] >= 0 && !a->is_kept[v]) {
            slot[k].ref.index = a->made[v];
        }
    }
}

static void write_layer(struct again *a)
{
    for (size_t i = a->part[ZB_PASS_F].first;
         i < a->part[ZB_PASS_F].end && a->cp->st == ZB_OK; i++) {
        if (a->is_wanted[i]) {
            run_again(a, &a->f.instr[i]);
        }
    }
    for (size_t i = a->part[ZB_PASS_B].first;
         i < a->part[ZB_PASS_B].end && a->cp->st == ZB_OK; i++) {
        replace_reads(a, &a->b.instr[i]);
        append(a, &a->b.instr[i]);
    }
    for (size_t i = a->part[ZB_PASS_W].first;
         i < a->part[ZB_PASS_W].end && a->cp->st == ZB_OK; i++) {
        replace_reads(a, &a->w.instr[i]);
    }
}

/* A gradient that may take the memory of what it is the gradient of. */
static void replace_overs(struct again *a)
{
    for (size_t i = 0; i < a->cp->n_values; i++) {
        int over = a->cp->values[i].over;

        if (over >= 0 && (size_t)over < a->n_values && a->made[over] >= 0 &&
            !a->is_kept[over]) {
            a->cp->values[i].over = a->made[over];
        }
    }
}

static void rewrite(struct again *a)
{
    struct zb_compile *cp = a->cp;

    find_writers(a);
    cp->c->list[ZB_PASS_B] = (struct zb_list){NULL, 0, 0};
    for (int layer = cp->end; layer-- > cp->first && cp->st == ZB_OK;) {
        a->layer = layer;
        a->part[ZB_PASS_F] = part_of(&a->f, layer);
        a->part[ZB_PASS_B] = part_of(&a->b, layer);
        a->part[ZB_PASS_W] = part_of(&a->w, layer);
        choose_gainful(a);
        keep_rest(a);
        write_layer(a);
    }
    replace_overs(a);
}

static enum zb_status alloc_arrays(struct again *a)
{
    a->writer = zb_alloc_array(a->n_values, sizeof(*a->writer));
    a->made = zb_alloc_array(a->n_values, sizeof(*a->made));
    a->is_kept = zb_alloc_array(a->n_values, 1);
    a->seen = zb_alloc_array(a->n_values, sizeof(*a->seen));
    a->is_allowed = zb_alloc_array(a->f.n, 1);
    a->is_wanted = zb_alloc_array(a->f.n, 1);
    return a->writer == NULL || a->made == NULL || a->is_kept == NULL ||
                   a->seen == NULL || a->is_allowed == NULL ||
                   a->is_wanted == NULL
               ? ZB_ENOMEM
               : ZB_OK;
}

void zb_compile_recompute(struct zb_compile *cp)
{
    struct again a = {
        .cp = cp,
        .f = cp->c->list[ZB_PASS_F],
        .b = cp->c->list[ZB_PASS_B],
        .w = cp->c->list[ZB_PASS_W],
        .n_values = cp->n_values,
    };

    if (cp->recompute == ZB_RECOMPUTE_NONE || cp->first == cp->end) {
        return;
    }
    if (alloc_arrays(&a) != ZB_OK) {
        cp->st = ZB_ENOMEM;
    } else {
        rewrite(&a);
        zb_free(a.b.instr);
    }
    zb_free(a.is_wanted);
    zb_free(a.is_allowed);
    zb_free(a.seen);
    zb_free(a.is_kept);
    zb_free(a.made);
    zb_free(a.writer);
}
