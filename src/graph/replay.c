/* SPDX-License-Identifier: MIT
 *
 * Passes that recur: what they depend on, as a key for the backend. A pass's
 * launches are a function of the chunk, the sizes of the microbatch, the
 * addresses of what the pass touches, and a few numbers; only those numbers and
 * addresses that it uses are part of the key, so that another microbatch in the
 * same memory is the same work.
 */
#include "config.h"
#include "graph/chunk_int.h"

#include <string.h>

#include "zb/mem.h"

#define MOST_FIELDS 16

/* Compared as bytes: zeroed before it is filled. */
struct key {
    const struct zb_chunk *chunk;
    int64_t pass;
    struct zb_bind bind;
    void *space[ZB_N_SPACES];
    void *field[MOST_FIELDS];
    void *const *consts, *const *param;
    zb_real *const *grad;
    double *loss_sum;
    double loss_scale[ZB_LOSS_MAX];
    int64_t is_training, n_padding;
    uint64_t seed, step;
    const int64_t *sample;
};

static int is_random(const struct zb_op *op)
{
    return op != NULL && (op->row->flags & ZB_OP_DRAWS) &&
           (op->row == &zb_op_rows[ZB_OP_dropout] ||
            op->u.attention.dropout > 0);
}

void zb_chunk_find_reads(struct zb_chunk *c)
{
    for (int pass = 0; pass < ZB_N_PASSES; pass++) {
        const struct zb_list *list = &c->list[pass];
        struct zb_reads *r = &c->reads[pass];

        for (size_t i = 0; i < list->n; i++) {
            const struct zb_instr *instr = &list->instr[i];

            r->has_scale |= instr->loss_coef != 0;
            r->has_random |= is_random(instr->op);
            for (int k = 0; k < instr->n_slots; k++) {
                const struct zb_ref *ref =
                    &c->slots[instr->first_slot + (size_t)k].ref;

                r->spaces |= ref->where == ZB_AT_SPACE
                                 ? (uint64_t)1 << ref->index
                                 : 0;
                r->data |= ref->where == ZB_AT_DATA && ref->index < 64
                               ? (uint64_t)1 << ref->index
                               : 0;
            }
        }
    }
}

static void fill_key(struct key *key, const struct zb_chunk *c,
                     enum zb_pass pass, const struct zb_chunk_run *run)
{
    const struct zb_reads *r = &c->reads[pass];

    memset(key, 0, sizeof(*key));
    key->chunk = c;
    key->pass = (int64_t)pass;
    key->bind = run->bind;
    for (int i = 0; i < ZB_N_SPACES; i++) {
        key->space[i] = r->spaces >> i & 1 ? run->space[i] : NULL;
    }
    for (int i = 0; i < MOST_FIELDS; i++) {
        key->field[i] = r->data >> i & 1 ? run->data[i] : NULL;
    }
    key->consts = run->consts;
    key->param = run->param;
    key->grad = run->grad;
    key->loss_sum = c->info.has_loss ? run->loss_sum : NULL;
    for (int k = 0; r->has_scale && k < ZB_LOSS_MAX; k++) {
        key->loss_scale[k] = run->loss_scale[k];
    }
    key->is_training = run->is_training;
    key->n_padding = run->n_padding;
    if (r->has_random && run->is_training) {
        key->seed = run->seed;
        key->step = run->step;
        key->sample = run->sample;
    }
}

/* Work of several streams can not be replayed as one stream's. */
static int is_replayable(const struct zb_chunk *c, enum zb_pass pass,
                         const struct zb_chunk_run *run)
{
    return run->may_replay && c->graph->par.tp <= 1 && c->graph->par.sp <= 1 &&
           c->graph->n_data <= MOST_FIELDS && c->list[pass].n > 1;
}

enum zb_status zb_chunk_replay(const struct zb_chunk *c, enum zb_pass pass,
                               const struct zb_chunk_run *run, zb_pass_fn emit)
{
    enum zb_status st;
    struct key key;
    int is_done;

    if (!is_replayable(c, pass, run)) {
        return emit(c, run);
    }
    fill_key(&key, c, pass, run);
    ZB_TRY(run->ops->replay_begin(run->stream, &key, sizeof(key), &is_done));
    if (is_done) {
        return ZB_OK;
    }
    st = run->ops->replay_end(run->stream, emit(c, run), &is_done);
    return st == ZB_OK && !is_done ? emit(c, run) : st;
}
