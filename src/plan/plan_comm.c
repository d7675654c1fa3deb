/* SPDX-License-Identifier: MIT
 *
 * Where messages go in the streams.
 *
 * Every message gets a time, the end of the node that makes it, and a number
 * that breaks ties. Both ends of it stand in their streams at that (time,
 * number), messages before a compute node that starts at the same time. All
 * streams then agree with one total order in which every node comes after
 * what it needs, so sender and receiver can always meet.
 *
 * A RECV that falls into the run of a compute node moves in front of it, so
 * that a worker posts it before it is busy. The order still exists: the compute
 * node moves back in it, but not past its own end, where its messages stand.
 */
#include "config.h"
#include "plan/plan_int.h"

#include <math.h>
#include <string.h>

#include "zb/mem.h"

#define COMPUTE_TIE UINT32_MAX

/* Where a node stands: by time, then tie, then place in the list. */
struct key {
    double time;
    uint32_t tie; /* COMPUTE_TIE for compute nodes */
    uint32_t at;
};

/* When a message is sent, and its number. */
struct stamp {
    double time;
    uint32_t tie;
};

struct layout {
    struct zb_schedule *s;
    const double *pv_time; /* [n_stage]; NULL: no POST_VALIDATION nodes */
    struct stamp *f, *b;   /* [n_virtual * n_micro] */
    struct zb_node *node;  /* of one stage: compute nodes, then messages */
    struct key *key, *spare;
    size_t n, cap;
};

static size_t cell(const struct zb_schedule *s, int stage, int chunk, int mb)
{
    int virt = zb_virtual_stage(s->placement, s->n_stage, stage, chunk);

    return (size_t)virt * (size_t)s->n_micro + (size_t)mb;
}

/* Number the messages, stage after stage; the first numbers are kept for
 * POST_VALIDATION. */
static void stamp_all(struct layout *l)
{
    const struct zb_schedule *s = l->s;
    uint32_t tie = 3 * (uint32_t)s->n_stage;

    for (int i = 0; i < s->n_stage; i++) {
        for (size_t j = 0; j < s->stages[i].n; j++) {
            const struct zb_node *node = &s->stages[i].node[j];
            struct stamp *to;

            if (!zb_node_is_compute(node->type) || node->type == ZB_NODE_W) {
                continue;
            }
            to = node->type == ZB_NODE_F ? l->f : l->b;
            to += cell(s, i, node->chunk, node->mb);
            to->time = node->end;
            to->tie = tie++;
        }
    }
}

static void add_node(struct layout *l, const struct zb_node *node, uint32_t tie)
{
    ZB_BUG_IF(l->n >= l->cap, "layout of %zu nodes is too small", l->cap);
    l->node[l->n] = *node;
    l->key[l->n] =
        (struct key){.time = node->start, .tie = tie, .at = (uint32_t)l->n};
    l->n++;
}

/* The messages of one type of one chunk, if it has any. */
static void add_messages(struct layout *l, int stage, enum zb_node_type type,
                         int chunk)
{
    const struct zb_schedule *s = l->s;
    int is_send = type == ZB_NODE_SEND_FORWARD || type == ZB_NODE_SEND_BACKWARD;
    int is_forward =
        type == ZB_NODE_SEND_FORWARD || type == ZB_NODE_RECV_FORWARD;
    const struct stamp *from = is_forward ? l->f : l->b;
    struct zb_plan_peer peer;

    if (!zb_plan_find_peer(s, stage, type, chunk, &peer)) {
        return;
    }
    from +=
        is_send ? cell(s, stage, chunk, 0) : cell(s, peer.stage, peer.chunk, 0);
    for (int mb = 0; mb < s->n_micro; mb++) {
        struct zb_node node = {.type = type, .chunk = chunk, .mb = mb};

        if (from[mb].tie == 0) {
            continue;
        }
        node.start = node.end = from[mb].time;
        add_node(l, &node, from[mb].tie);
    }
}

/* The reference runs it from the last stage to the first. */
static void add_post_validation(struct layout *l, int stage)
{
    static const enum zb_node_type types[] = {ZB_NODE_RECV_POST_VALIDATION,
                                              ZB_NODE_SEND_POST_VALIDATION,
                                              ZB_NODE_POST_VALIDATION};
    int last = l->s->n_stage - 1;

    for (int i = 0; i < 3; i++) {
        struct zb_node node = {.type = types[i],
                               .start = l->pv_time[stage],
                               .end = l->pv_time[stage]};

        if ((i == 0 && stage == last) || (i == 1 && stage == 0)) {
            continue;
        }
        add_node(l, &node, (uint32_t)(3 * (last - stage) + i));
    }
}

static int is_before(const struct key *x, const struct key *y)
{
    if (x->time != y->time) {
        return x->time < y->time;
    }
    return x->tie != y->tie ? x->tie < y->tie : x->at < y->at;
}

/* The end of the sorted run that begins at i. */
static size_t run_end(const struct key *key, size_t i, size_t n)
{
    do {
        i++;
    } while (i < n && !is_before(&key[i], &key[i - 1]));
    return i;
}

/* Merge neighbouring runs of l->key in pairs; returns how many are left. */
static size_t merge_pairs(struct layout *l)
{
    struct key *from = l->key, *to = l->spare;
    size_t n_runs = 0;

    for (size_t i = 0, mid, end; i < l->n; i = end, n_runs++) {
        size_t j, k = i;

        mid = j = run_end(from, i, l->n);
        end = mid < l->n ? run_end(from, mid, l->n) : mid;
        while (i < mid && j < end) {
            to[k++] = is_before(&from[j], &from[i]) ? from[j++] : from[i++];
        }
        memcpy(&to[k], &from[i], (mid - i) * sizeof(*to));
        k += mid - i;
        memcpy(&to[k], &from[j], (end - j) * sizeof(*to));
    }
    l->key = to;
    l->spare = from;
    return n_runs;
}

static void move_receives_ahead(struct zb_stage_nodes *st)
{
    for (size_t i = 1; i < st->n; i++) {
        struct zb_node *prev = &st->node[i - 1], *cur = &st->node[i];
        struct zb_node kept;

        if (zb_node_is_compute(prev->type) &&
            (cur->type == ZB_NODE_RECV_FORWARD ||
             cur->type == ZB_NODE_RECV_BACKWARD) &&
            cur->start <= prev->end) {
            kept = *prev;
            *prev = *cur;
            *cur = kept;
        }
    }
}

/* Room for the stage with the most nodes. */
static size_t room(const struct zb_schedule *s)
{
    size_t most = 0;

    for (int i = 0; i < s->n_stage; i++) {
        most = s->stages[i].n > most ? s->stages[i].n : most;
    }
    return most + 4 * (size_t)s->n_chunk * (size_t)s->n_micro + 3;
}

static enum zb_status layout_stage(struct layout *l, int stage)
{
    struct zb_schedule *s = l->s;
    struct zb_stage_nodes *st = &s->stages[stage];

    l->n = 0;
    for (size_t j = 0; j < st->n; j++) {
        add_node(l, &st->node[j], COMPUTE_TIE);
    }
    if (l->pv_time != NULL) {
        add_post_validation(l, stage);
    }
    for (int c = 0; c < s->n_chunk; c++) {
        add_messages(l, stage, ZB_NODE_SEND_FORWARD, c);
        add_messages(l, stage, ZB_NODE_RECV_FORWARD, c);
        add_messages(l, stage, ZB_NODE_SEND_BACKWARD, c);
        add_messages(l, stage, ZB_NODE_RECV_BACKWARD, c);
    }
    /* Few runs: compute nodes and each type of message come sorted, unless
     * rounding in the times spoils it. */
    while (merge_pairs(l) > 1) {
    }
    ZB_TRY(zb_plan_stage_alloc(s, stage, l->n));
    for (size_t j = 0; j < l->n; j++) {
        st->node[j] = l->node[l->key[j].at];
    }
    move_receives_ahead(st);
    return ZB_OK;
}

/* Mark what a stage receives before its left neighbour has validated the last
 * step: it is sent again when that step is rolled back. */
static void mark_rollback(struct zb_schedule *s)
{
    for (int i = 1; i < s->n_stage; i++) {
        const struct zb_stage_nodes *left = &s->stages[i - 1];
        struct zb_stage_nodes *st = &s->stages[i];
        int n = 0;

        for (size_t j = 0; j < left->n; j++) {
            if (left->node[j].type == ZB_NODE_POST_VALIDATION) {
                break;
            }
            n += left->node[j].type == ZB_NODE_SEND_FORWARD &&
                 left->node[j].chunk == 0;
        }
        for (size_t j = 0; j < st->n; j++) {
            st->node[j].rollback = st->node[j].type == ZB_NODE_RECV_FORWARD &&
                                   st->node[j].chunk == 0 && st->node[j].mb < n;
        }
    }
}

enum zb_status zb_plan_layout(struct zb_schedule *s, const double *pv_time)
{
    size_t cells = (size_t)s->n_stage * (size_t)s->n_chunk * (size_t)s->n_micro;
    struct layout l = {.s = s, .pv_time = pv_time, .cap = room(s)};
    enum zb_status st = ZB_OK;

    l.f = zb_alloc_array(cells, sizeof(*l.f));
    l.b = zb_alloc_array(cells, sizeof(*l.b));
    l.node = zb_alloc_array(l.cap, sizeof(*l.node));
    l.key = zb_alloc_array(l.cap, sizeof(*l.key));
    l.spare = zb_alloc_array(l.cap, sizeof(*l.spare));
    if (l.f == NULL || l.b == NULL || l.node == NULL || l.key == NULL ||
        l.spare == NULL) {
        st = ZB_ENOMEM;
    } else {
        stamp_all(&l);
        for (int i = 0; i < s->n_stage && st == ZB_OK; i++) {
            st = layout_stage(&l, i);
        }
    }
    if (st == ZB_OK && pv_time != NULL) {
        mark_rollback(s);
    }
    zb_free(l.spare);
    zb_free(l.key);
    zb_free(l.node);
    zb_free(l.b);
    zb_free(l.f);
    return st;
}

/* A copy of cost in which nothing is free. */
static enum zb_status all_positive(const double *cost, int n, double least,
                                   double **out)
{
    double *copy = zb_alloc_array((size_t)n, sizeof(*copy));

    if (copy == NULL) {
        return ZB_ENOMEM;
    }
    for (int v = 0; v < n; v++) {
        copy[v] = cost[v] > least ? cost[v] : least;
    }
    *out = copy;
    return ZB_OK;
}

/* The least time that F and B take for ordering messages. */
static double least_time(const struct zb_plan_input *in)
{
    double largest = 0;

    for (int v = 0; v < in->n_stage * in->n_chunk; v++) {
        largest = fmax(largest, fmax(in->f_cost[v], in->b_cost[v]));
    }
    return largest > 0 ? largest * 1e-6 : 1;
}

/* Whether every F and B does. */
static int takes_time(const struct zb_plan_input *in)
{
    double least = least_time(in);

    for (int v = 0; v < in->n_stage * in->n_chunk; v++) {
        if (in->f_cost[v] < least || in->b_cost[v] < least) {
            return 0;
        }
    }
    return 1;
}

/* Times for ordering messages: as simulated, but every F and B takes time, or
 * a message would stand before the node that makes it. */
static enum zb_status simulate_positive(struct zb_schedule *s,
                                        const struct zb_plan_input *in)
{
    struct zb_plan_input order = *in;
    int n = in->n_stage * in->n_chunk;
    double least = least_time(in);
    enum zb_status st;

    ZB_TRY(all_positive(in->f_cost, n, least, &order.f_cost));
    st = all_positive(in->b_cost, n, least, &order.b_cost);
    if (st == ZB_OK) {
        st = zb_schedule_simulate(s, &order);
        zb_free(order.b_cost);
    }
    zb_free(order.f_cost);
    return st;
}

enum zb_status zb_plan_simulate_unit(struct zb_schedule *s)
{
    struct zb_plan_input unit;
    enum zb_status st;

    ZB_TRY(zb_plan_input_init(&unit, s->n_stage, s->n_micro, s->placement,
                              s->n_chunk));
    st = zb_schedule_simulate(s, &unit);
    for (int i = 0; i < s->n_stage; i++) {
        s->peak_mem[i] = NAN;
    }
    zb_plan_input_release(&unit);
    return st;
}

static void remove_messages(struct zb_schedule *s)
{
    for (int i = 0; i < s->n_stage; i++) {
        struct zb_stage_nodes *st = &s->stages[i];
        size_t n = 0;

        for (size_t j = 0; j < st->n; j++) {
            if (zb_node_is_compute(st->node[j].type) ||
                st->node[j].type >= ZB_NODE_POST_VALIDATION) {
                st->node[n++] = st->node[j];
            }
        }
        st->n = n;
    }
}

/* Without costs: after the times the nodes came with, or, where these are
 * none or rounding spoilt them, after those of equal costs. */
static enum zb_status add_comm_without_costs(struct zb_schedule *s)
{
    enum zb_status st;
    int is_ok;

    ZB_TRY(zb_plan_check_streams(s, 0));
    ZB_TRY(zb_plan_times_ok(s, &is_ok));
    if (is_ok) {
        ZB_TRY(zb_plan_layout(s, NULL));
        st = zb_schedule_check(s, NULL);
        if (st == ZB_OK || st == ZB_ENOMEM) {
            zb_plan_measure(s);
            return st;
        }
        remove_messages(s);
    }
    ZB_TRY(zb_plan_simulate_unit(s));
    ZB_TRY(zb_plan_layout(s, NULL));
    zb_plan_measure(s);
    return ZB_OK;
}

enum zb_status zb_schedule_add_comm(struct zb_schedule *s,
                                    const struct zb_plan_input *in)
{
    if (zb_plan_has_comm(s)) {
        return zb_fail(ZB_EINVAL, "the schedule has messages already");
    }
    if (in == NULL) {
        return add_comm_without_costs(s);
    }
    ZB_TRY(zb_plan_input_check(in));
    ZB_TRY(zb_plan_input_fits(in, s));
    if (takes_time(in)) {
        /* Messages get their times with their places. */
        ZB_TRY(zb_schedule_simulate(s, in));
        return zb_plan_layout(s, NULL);
    }
    ZB_TRY(simulate_positive(s, in));
    ZB_TRY(zb_plan_layout(s, NULL));
    return zb_schedule_simulate(s, in);
}
