/* SPDX-License-Identifier: MIT
 *
 * Proof that a schedule can be run. First each stage's stream alone (every rule
 * about order and inputs can be seen there), then all streams together with
 * channels that hold nothing, then memory.
 */
#include "config.h"
#include "plan/plan_int.h"

#include <stdio.h>
#include <string.h>

#include "zb/mem.h"

#define NODE_TEXT_MAX 160
#define PREFETCH 6 /* nodes */

/* ---- one stream ---- */

/* How many nodes of each type a stage's chunks have had: because each type of
 * each chunk comes in microbatch order, a count says which ones. */
struct counts {
    int (*of)[ZB_N_NODE_TYPES]; /* [n_chunk] */
    int pv[ZB_N_NODE_TYPES];    /* the POST_VALIDATION types */
};

struct stream {
    const struct zb_schedule *s;
    struct counts cnt;
    int stage;
    size_t at;
    int with_comm;
};

static enum zb_status bad_node(const struct stream *st, const char *why)
{
    char text[NODE_TEXT_MAX];

    zb_plan_node_text(st->s, st->stage, st->at, text, sizeof(text));
    return zb_fail(ZB_ECONFIG, "%s %s", text, why);
}

static int is_post_validation(enum zb_node_type t)
{
    return t >= ZB_NODE_POST_VALIDATION && t <= ZB_NODE_RECV_POST_VALIDATION;
}

static enum zb_status check_post_validation(struct stream *st,
                                            const struct zb_node *node)
{
    if (node->chunk != 0 || node->mb != 0) {
        return bad_node(st, "must have chunk 0 and mb 0");
    }
    if (st->s->is_forward_only) {
        return bad_node(st, "does not belong in a forward-only schedule");
    }
    if ((node->type == ZB_NODE_SEND_POST_VALIDATION && st->stage == 0) ||
        (node->type == ZB_NODE_RECV_POST_VALIDATION &&
         st->stage == st->s->n_stage - 1)) {
        return bad_node(st, "has no stage at its other end");
    }
    if (st->cnt.pv[node->type]++ > 0) {
        return bad_node(st, "is there twice");
    }
    return ZB_OK;
}

static enum zb_status check_numbers(const struct stream *st,
                                    const struct zb_node *node)
{
    const struct zb_schedule *s = st->s;
    struct zb_plan_peer peer;

    if ((unsigned)node->type >= ZB_N_NODE_TYPES) {
        return bad_node(st, "has an unknown type");
    }
    if (is_post_validation(node->type)) {
        return ZB_OK;
    }
    if (node->chunk < 0 || node->chunk >= s->n_chunk) {
        return bad_node(st, "has a chunk that does not exist");
    }
    if (node->mb < 0 || node->mb >= s->n_micro) {
        return bad_node(st, "has a microbatch that does not exist");
    }
    if (!zb_node_is_compute(node->type) &&
        !zb_plan_find_peer(s, st->stage, node->type, node->chunk, &peer)) {
        return bad_node(st, "has no stage at its other end");
    }
    if (s->is_forward_only && node->type != ZB_NODE_F &&
        node->type != ZB_NODE_SEND_FORWARD &&
        node->type != ZB_NODE_RECV_FORWARD) {
        return bad_node(st, "does not belong in a forward-only schedule");
    }
    return ZB_OK;
}

/* Whether F (dir = FORWARD) or B of microbatch mb of a chunk has its input
 * from the neighbouring virtual stage at this place of the stream. */
static int has_input(const struct stream *st, enum zb_node_type recv,
                     enum zb_node_type made, int chunk, int mb)
{
    const struct zb_schedule *s = st->s;
    int step = recv == ZB_NODE_RECV_FORWARD ? -1 : 1;
    int from = zb_plan_virtual(s, st->stage, chunk) + step;
    int from_stage, from_chunk;

    if (from < 0 || from >= s->n_stage * s->n_chunk) {
        return 1;
    }
    zb_plan_local(s, from, &from_stage, &from_chunk);
    if (from_stage == st->stage) {
        return st->cnt.of[from_chunk][made] > mb;
    }
    return !st->with_comm || st->cnt.of[chunk][recv] > mb;
}

static enum zb_status check_inputs(const struct stream *st,
                                   const struct zb_node *node)
{
    const int *cnt = st->cnt.of[node->chunk];
    int mb = node->mb;

    switch (node->type) {
    case ZB_NODE_F:
        if (!has_input(st, ZB_NODE_RECV_FORWARD, ZB_NODE_F, node->chunk, mb)) {
            return bad_node(st, "comes before its input is there");
        }
        return ZB_OK;
    case ZB_NODE_B:
    case ZB_NODE_BW:
        if (cnt[ZB_NODE_F] <= mb) {
            return bad_node(st, "comes before its F");
        }
        if (!has_input(st, ZB_NODE_RECV_BACKWARD, ZB_NODE_B, node->chunk, mb)) {
            return bad_node(st, "comes before its output gradient is there");
        }
        return ZB_OK;
    case ZB_NODE_W:
        return cnt[ZB_NODE_B] > mb ? ZB_OK : bad_node(st, "comes before its B");
    case ZB_NODE_SEND_FORWARD:
        return cnt[ZB_NODE_F] > mb ? ZB_OK : bad_node(st, "comes before its F");
    case ZB_NODE_SEND_BACKWARD:
        return cnt[ZB_NODE_B] > mb ? ZB_OK : bad_node(st, "comes before its B");
    default:
        return ZB_OK;
    }
}

static enum zb_status count_one(struct stream *st, const struct zb_node *node,
                                enum zb_node_type as)
{
    int *cnt = &st->cnt.of[node->chunk][as];
    char why[96];

    if (node->mb < *cnt) {
        return bad_node(st, "is there twice");
    }
    if (node->mb > *cnt) {
        snprintf(why, sizeof(why),
                 "is out of order: mb %d of this chunk comes first", *cnt);
        return bad_node(st, why);
    }
    (*cnt)++;
    return ZB_OK;
}

static enum zb_status check_node(struct stream *st)
{
    const struct zb_node *node = &st->s->stages[st->stage].node[st->at];

    ZB_TRY(check_numbers(st, node));
    if (is_post_validation(node->type)) {
        return check_post_validation(st, node);
    }
    if (!st->with_comm && !zb_node_is_compute(node->type)) {
        return ZB_OK;
    }
    ZB_TRY(check_inputs(st, node));
    if (node->type == ZB_NODE_BW) {
        ZB_TRY(count_one(st, node, ZB_NODE_B));
        return count_one(st, node, ZB_NODE_W);
    }
    return count_one(st, node, node->type);
}

static enum zb_status check_end(const struct stream *st)
{
    static const enum zb_node_type types[] = {
        ZB_NODE_F,
        ZB_NODE_B,
        ZB_NODE_W,
        ZB_NODE_SEND_FORWARD,
        ZB_NODE_RECV_FORWARD,
        ZB_NODE_SEND_BACKWARD,
        ZB_NODE_RECV_BACKWARD,
    };
    const struct zb_schedule *s = st->s;
    struct zb_plan_peer peer;

    for (int c = 0; c < s->n_chunk; c++) {
        for (size_t i = 0; i < ZB_COUNT_OF(types); i++) {
            enum zb_node_type t = types[i];
            int is_comm = !zb_node_is_compute(t);

            if ((is_comm && (!st->with_comm ||
                             !zb_plan_find_peer(s, st->stage, t, c, &peer))) ||
                (s->is_forward_only && t != ZB_NODE_F &&
                 t != ZB_NODE_SEND_FORWARD && t != ZB_NODE_RECV_FORWARD)) {
                continue;
            }
            if (st->cnt.of[c][t] != s->n_micro) {
                return zb_fail(
                    ZB_ECONFIG, "stage %d: %s chunk %d mb %d is missing",
                    st->stage, zb_node_type_str(t), c, st->cnt.of[c][t]);
            }
        }
    }
    return ZB_OK;
}

/* Every SEND_POST_VALIDATION has its RECV_ on the stage before. */
static enum zb_status check_validation_pairs(const struct zb_schedule *s,
                                             const unsigned char *sends,
                                             const unsigned char *recvs)
{
    for (int i = 0; i + 1 < s->n_stage; i++) {
        if (sends[i + 1] != recvs[i]) {
            return zb_fail(ZB_ECONFIG,
                           "stage %d: %s_POST_VALIDATION chunk 0 mb 0 has no "
                           "partner on stage %d",
                           recvs[i] ? i : i + 1, recvs[i] ? "RECV" : "SEND",
                           recvs[i] ? i + 1 : i);
        }
    }
    return ZB_OK;
}

static enum zb_status check_all_streams(struct stream *st, unsigned char *sends,
                                        unsigned char *recvs)
{
    const struct zb_schedule *s = st->s;

    for (st->stage = 0; st->stage < s->n_stage; st->stage++) {
        memset(st->cnt.of, 0, (size_t)s->n_chunk * sizeof(*st->cnt.of));
        memset(st->cnt.pv, 0, sizeof(st->cnt.pv));
        for (st->at = 0; st->at < s->stages[st->stage].n; st->at++) {
            ZB_TRY(check_node(st));
        }
        ZB_TRY(check_end(st));
        sends[st->stage] = st->cnt.pv[ZB_NODE_SEND_POST_VALIDATION] > 0;
        recvs[st->stage] = st->cnt.pv[ZB_NODE_RECV_POST_VALIDATION] > 0;
    }
    return st->with_comm ? check_validation_pairs(s, sends, recvs) : ZB_OK;
}

enum zb_status zb_plan_check_streams(const struct zb_schedule *s, int with_comm)
{
    struct stream st = {.s = s, .with_comm = with_comm};
    unsigned char *flags;
    enum zb_status status;

    ZB_TRY(
        zb_plan_sizes_check(s->n_stage, s->n_micro, s->placement, s->n_chunk));
    st.cnt.of = zb_alloc_array((size_t)s->n_chunk, sizeof(*st.cnt.of));
    flags = zb_alloc_array((size_t)s->n_stage, 2);
    status = st.cnt.of == NULL || flags == NULL
                 ? ZB_ENOMEM
                 : check_all_streams(&st, flags, flags + s->n_stage);
    zb_free(flags);
    zb_free(st.cnt.of);
    return status;
}

/* ---- all streams together ---- */

/* Each stage stands at one node. Sender and receiver of a message step over it
 * together. Which stage moves first does not matter: a stage has no choice, so
 * every order of moves ends in the same place. */
struct meet {
    const struct zb_schedule *s;
    size_t *at;          /* [n_stage] */
    unsigned char *slot; /* [n_stage] a validation message waits for it */
    int *todo;           /* [n_stage] stack of stages that may move */
    unsigned char *is_todo;
    int n_todo;
};

static const struct zb_node *current(const struct meet *m, int stage)
{
    const struct zb_stage_nodes *st = &m->s->stages[stage];

    return m->at[stage] < st->n ? &st->node[m->at[stage]] : NULL;
}

/* Step over the current node. Stages take turns after a few nodes each, so
 * that what comes soon is out of the caches unless it is asked for now. */
static void step(struct meet *m, int stage)
{
    const struct zb_stage_nodes *st = &m->s->stages[stage];
    size_t at = ++m->at[stage];

    if (st->n - at > PREFETCH) {
        __builtin_prefetch(&st->node[at + PREFETCH]);
    }
}

static void wake(struct meet *m, int stage)
{
    if (!m->is_todo[stage]) {
        m->is_todo[stage] = 1;
        m->todo[m->n_todo++] = stage;
    }
}

/* Whether the other end stands at the node that this one must meet. */
static int try_meet(struct meet *m, int stage, const struct zb_node *node)
{
    struct zb_plan_peer peer;
    const struct zb_node *other;

    if (!zb_plan_find_peer(m->s, stage, node->type, node->chunk, &peer)) {
        return 0;
    }
    other = current(m, peer.stage);
    if (other == NULL || other->type != peer.type ||
        other->chunk != peer.chunk || other->mb != node->mb) {
        return 0;
    }
    step(m, peer.stage);
    wake(m, peer.stage);
    return 1;
}

static int try_step(struct meet *m, int stage, const struct zb_node *node)
{
    switch (node->type) {
    case ZB_NODE_SEND_POST_VALIDATION:
        if (m->slot[stage - 1]) {
            return 0;
        }
        m->slot[stage - 1] = 1;
        wake(m, stage - 1);
        return 1;
    case ZB_NODE_RECV_POST_VALIDATION:
        if (!m->slot[stage]) {
            return 0;
        }
        m->slot[stage] = 0;
        wake(m, stage + 1);
        return 1;
    case ZB_NODE_SEND_FORWARD:
    case ZB_NODE_RECV_FORWARD:
    case ZB_NODE_SEND_BACKWARD:
    case ZB_NODE_RECV_BACKWARD:
        return try_meet(m, stage, node);
    default:
        return 1;
    }
}

static void move_all(struct meet *m)
{
    for (int i = m->s->n_stage - 1; i >= 0; i--) {
        wake(m, i);
    }
    while (m->n_todo > 0) {
        int stage = m->todo[--m->n_todo];
        const struct zb_node *node;

        m->is_todo[stage] = 0;
        while ((node = current(m, stage)) != NULL && try_step(m, stage, node)) {
            step(m, stage);
        }
    }
}

static int waits_for(const struct meet *m, int stage)
{
    const struct zb_node *node = current(m, stage);
    struct zb_plan_peer peer;

    if (node->type == ZB_NODE_SEND_POST_VALIDATION) {
        return stage - 1;
    }
    if (node->type == ZB_NODE_RECV_POST_VALIDATION) {
        return stage + 1;
    }
    zb_plan_find_peer(m->s, stage, node->type, node->chunk, &peer);
    return peer.stage;
}

static enum zb_status report_stuck(const struct meet *m)
{
    char text[NODE_TEXT_MAX], other_text[NODE_TEXT_MAX];
    int other;

    for (int i = 0; i < m->s->n_stage; i++) {
        if (current(m, i) == NULL) {
            continue;
        }
        other = waits_for(m, i);
        zb_plan_node_text(m->s, i, m->at[i], text, sizeof(text));
        if (current(m, other) == NULL) {
            return zb_fail(ZB_ECONFIG, "%s waits for ever: stage %d has ended",
                           text, other);
        }
        zb_plan_node_text(m->s, other, m->at[other], other_text,
                          sizeof(other_text));
        return zb_fail(ZB_ECONFIG, "%s waits for ever: its other end is at %s",
                       text, other_text);
    }
    return ZB_OK;
}

static enum zb_status check_meetings(const struct zb_schedule *s)
{
    size_t n = (size_t)s->n_stage;
    struct meet m = {.s = s};
    enum zb_status st = ZB_ENOMEM;

    m.at = zb_alloc_array(n, sizeof(*m.at));
    m.todo = zb_alloc_array(n, sizeof(*m.todo));
    m.slot = zb_alloc_array(n, 2);
    if (m.at != NULL && m.todo != NULL && m.slot != NULL) {
        m.is_todo = m.slot + n;
        move_all(&m);
        st = report_stuck(&m);
    }
    zb_free(m.slot);
    zb_free(m.todo);
    zb_free(m.at);
    return st;
}

/* ---- memory ---- */

static enum zb_status check_stage_memory(const struct zb_schedule *s, int stage,
                                         const struct zb_plan_input *in)
{
    const struct zb_stage_nodes *st = &s->stages[stage];
    double limit = in->max_mem[stage] * (1 + 1e-9), mem = 0;
    char text[NODE_TEXT_MAX], a[ZB_PLAN_NUMBER_MAX], b[ZB_PLAN_NUMBER_MAX];

    for (size_t i = 0; i < st->n; i++) {
        double need = zb_plan_node_need(s, in, stage, &st->node[i]);

        if (need > 0 && mem + need > limit) {
            zb_plan_node_text(s, stage, i, text, sizeof(text));
            return zb_fail(ZB_ECONFIG, "%s needs memory %s, the limit is %s",
                           text, zb_plan_number(mem + need, a),
                           zb_plan_number(in->max_mem[stage], b));
        }
        mem += zb_plan_node_mem(s, in, stage, &st->node[i]);
    }
    return ZB_OK;
}

enum zb_status zb_schedule_check(const struct zb_schedule *s,
                                 const struct zb_plan_input *in)
{
    ZB_TRY(zb_plan_check_streams(s, 1));
    ZB_TRY(check_meetings(s));
    if (in == NULL || s->is_forward_only) {
        return ZB_OK;
    }
    ZB_TRY(zb_plan_input_fits(in, s));
    for (int i = 0; i < s->n_stage; i++) {
        ZB_TRY(check_stage_memory(s, i, in));
    }
    return ZB_OK;
}
