/* SPDX-License-Identifier: MIT
 *
 * Interleaved 1F1B (Narayanan et al. 2021, section 2.2): several chunks per
 * stage, in rounds of microbatches that go through one chunk after the other.
 *
 * Megatron wants as many microbatches per round as stages, and that to divide
 * n_micro. Here there are as many rounds as fit, of sizes that differ by one at
 * most, the larger first (as PyTorch does where all are equal). A round then
 * has at least one microbatch per stage, so what comes back from the last stage
 * is there in time; and because no later round is larger than the first, whose
 * size decides how many F run ahead, each B finds its F done.
 */
#include "config.h"
#include "plan/plan_int.h"

/* Goes through (chunk, microbatch) in the order of F; that of B is the same
 * with the chunks from last to first. */
struct walk {
    int n_chunk;
    int size, n_larger; /* of a round; the first n_larger have one more */
    int first;          /* microbatch of this round */
    int chunk, at;
};

static int round_size(const struct walk *w)
{
    return w->size + (w->n_larger > 0);
}

static struct walk walk_begin(const struct zb_plan_input *in)
{
    int n_rounds = in->n_micro / in->n_stage;

    n_rounds = n_rounds > 1 ? n_rounds : 1;
    return (struct walk){.n_chunk = in->n_chunk,
                         .size = in->n_micro / n_rounds,
                         .n_larger = in->n_micro % n_rounds};
}

static void walk_next(struct walk *w)
{
    if (++w->at < round_size(w)) {
        return;
    }
    w->at = 0;
    if (++w->chunk < w->n_chunk) {
        return;
    }
    w->chunk = 0;
    w->first += round_size(w);
    w->n_larger -= w->n_larger > 0;
}

static void put(struct zb_stage_nodes *out, enum zb_node_type type,
                struct walk *w)
{
    int is_f = type == ZB_NODE_F;

    out->node[out->n++] =
        (struct zb_node){.type = type,
                         .chunk = is_f ? w->chunk : w->n_chunk - 1 - w->chunk,
                         .mb = w->first + w->at};
    walk_next(w);
}

static void fill_stage(const struct zb_plan_input *in, int stage,
                       struct zb_stage_nodes *out)
{
    struct walk f = walk_begin(in), b = walk_begin(in);
    int64_t total = (int64_t)in->n_chunk * in->n_micro;
    int64_t ahead = (int64_t)(in->n_chunk - 1) * round_size(&f) +
                    2 * (in->n_stage - 1 - stage);
    int64_t n_f = 0;

    for (int64_t n_b = 0; n_b < total; n_b++) {
        for (; n_f < total && n_f <= n_b + ahead; n_f++) {
            put(out, ZB_NODE_F, &f);
        }
        put(out, ZB_NODE_BW, &b);
    }
}

enum zb_status zb_plan_interleaved(const struct zb_plan_input *in,
                                   const struct zb_plan_opts *opts,
                                   struct zb_schedule *s)
{
    size_t n = (size_t)in->n_chunk * (size_t)in->n_micro;

    (void)opts;
    for (int i = 0; i < in->n_stage; i++) {
        ZB_TRY(zb_plan_stage_alloc(s, i, 2 * n));
        s->stages[i].n = 0;
        fill_stage(in, i, &s->stages[i]);
    }
    return zb_schedule_add_comm(s, in);
}
