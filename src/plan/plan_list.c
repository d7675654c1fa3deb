/* SPDX-License-Identifier: MIT
 *
 * A greedy list schedule for any placement, any costs and a hard memory limit.
 *
 * Each stage knows the node it would start next and when; the earliest of all
 * stages is appended, over and over. Nothing appended later can start earlier,
 * so a stage never misses an input that would have been there in time.
 *
 * Memory. An F of chunk c is only started when, with all waiting Ws done, there
 * is still room for one F of each later chunk of the stage and for the B that
 * needs most, if one needs any. The oldest microbatch can then always go on:
 * whatever younger ones hold was there when that room was left, and older ones
 * hold nothing any more; with Ws done, a B needs no more than was left for it.
 * So the only thing a stage needs is room for one microbatch in all its chunks.
 */
#include "config.h"
#include "plan/plan_int.h"

#include <math.h>

#include "zb/mem.h"

#define NOT_YET (-1.0)
#define SLACK                                                                  \
    (1 + 1e-9) /* sums of fractions may miss the limit by rounding             \
                */

struct choice {
    double start; /* INFINITY: nothing can be chosen now */
    double rank;  /* at equal start, the smaller goes first */
    enum zb_node_type type;
    int chunk;
};

struct list {
    const struct zb_plan_input *in;
    struct zb_schedule *s;
    unsigned flags;
    int n_virtual;
    double *f_end, *b_end; /* [n_virtual * n_micro] */
    int (*count)[3];       /* [n_virtual] placed F, B, W */
    double *clock, *mem;   /* [n_stage] */
    double *waiting;       /* [n_stage] memory that waiting Ws would free */
    struct choice *next;   /* [n_stage] */
    size_t *n_placed;      /* [n_stage] */
};

static double *end_of(const struct list *l, enum zb_node_type type, int virt,
                      int mb)
{
    size_t at = (size_t)virt * (size_t)l->in->n_micro + (size_t)mb;

    return type == ZB_NODE_F ? &l->f_end[at] : &l->b_end[at];
}

/* When the input of the next F or B of a virtual stage is there. */
static double ready(const struct list *l, enum zb_node_type type, int stage,
                    int virt)
{
    int from = type == ZB_NODE_F ? virt - 1 : virt + 1;
    int mb = l->count[virt][type], from_stage, from_chunk;
    double end;

    if (from < 0 || from >= l->n_virtual) {
        return 0;
    }
    end = *end_of(l, type, from, mb);
    zb_virtual_to_local(l->in->placement, l->in->n_stage, from, &from_stage,
                        &from_chunk);
    return end < 0 || from_stage == stage ? end : end + l->in->c_cost;
}

static int virtual_of(const struct list *l, int stage, int chunk)
{
    return zb_virtual_stage(l->in->placement, l->in->n_stage, stage, chunk);
}

static double later_chunks(const struct list *l, int stage, int chunk)
{
    double sum = 0;

    for (int c = chunk + 1; c < l->in->n_chunk; c++) {
        sum += l->in->f_mem[virtual_of(l, stage, c)];
    }
    return sum;
}

/* Room that is left for a B that needs some. */
static double room_for_b(const struct list *l, int stage)
{
    double most = 0;

    for (int c = 0; c < l->in->n_chunk; c++) {
        most = fmax(most, l->in->b_mem[virtual_of(l, stage, c)]);
    }
    return most;
}

static void take_if_better(struct choice *best, struct choice c)
{
    if (c.start < best->start ||
        (c.start == best->start && c.rank < best->rank)) {
        *best = c;
    }
}

/* The W whose B came first. */
static struct choice oldest_w(const struct list *l, int stage)
{
    struct choice w = {.start = INFINITY, .rank = INFINITY, .type = ZB_NODE_W};

    for (int c = 0; c < l->in->n_chunk; c++) {
        int virt = virtual_of(l, stage, c);
        int mb = l->count[virt][ZB_NODE_W];

        if (mb < l->count[virt][ZB_NODE_B]) {
            take_if_better(
                &w, (struct choice){.start = l->clock[stage],
                                    .rank = *end_of(l, ZB_NODE_B, virt, mb),
                                    .type = ZB_NODE_W,
                                    .chunk = c});
        }
    }
    return w;
}

/* Offer the next F of a chunk, or the W that must make room for it. */
static void offer_f(const struct list *l, int stage, int chunk,
                    struct choice *best)
{
    int virt = virtual_of(l, stage, chunk);
    double f_mem = l->in->f_mem[virt], limit = l->in->max_mem[stage] * SLACK;
    double at = ready(l, ZB_NODE_F, stage, virt);
    int is_late = chunk > 0 && (l->flags & ZB_PLAN_LIST_F_FIRST);
    struct choice f = {.start = fmax(at, l->clock[stage]),
                       .rank = (is_late ? -1 : 2) * l->n_virtual - virt,
                       .type = ZB_NODE_F,
                       .chunk = chunk};

    if (l->count[virt][ZB_NODE_F] >= l->in->n_micro || at < 0) {
        return;
    }
    if (!(l->flags & ZB_PLAN_LIST_FORWARD)) {
        if (l->mem[stage] + l->waiting[stage] + f_mem +
                later_chunks(l, stage, chunk) + room_for_b(l, stage) >
            limit) {
            return;
        }
        if (l->mem[stage] + f_mem > limit) {
            struct choice w = oldest_w(l, stage);

            w.rank = f.rank;
            f = w;
        }
    }
    take_if_better(best, f);
}

/* A B that needs room lets waiting Ws go first; that is enough. */
static void offer_b(const struct list *l, int stage, int chunk,
                    struct choice *best)
{
    int virt = virtual_of(l, stage, chunk);
    double limit = l->in->max_mem[stage] * SLACK, at;
    struct choice b;

    if (l->count[virt][ZB_NODE_B] >= l->count[virt][ZB_NODE_F]) {
        return;
    }
    at = ready(l, ZB_NODE_B, stage, virt);
    if (at < 0) {
        return;
    }
    b = (struct choice){.start = fmax(at, l->clock[stage]),
                        .rank = virt,
                        .type = ZB_NODE_B,
                        .chunk = chunk};
    if (l->in->b_mem[virt] > 0 && l->mem[stage] + l->in->b_mem[virt] > limit) {
        b = oldest_w(l, stage);
        b.rank = virt;
    }
    take_if_better(best, b);
}

static struct choice choose(const struct list *l, int stage)
{
    struct choice best = {.start = INFINITY}, w;
    double w_cost;

    for (int c = 0; c < l->in->n_chunk; c++) {
        if (!(l->flags & ZB_PLAN_LIST_FORWARD)) {
            offer_b(l, stage, c, &best);
        }
        offer_f(l, stage, c, &best);
    }
    w = oldest_w(l, stage);
    if (isinf(w.start)) {
        return best;
    }
    w_cost = l->in->w_cost[virtual_of(l, stage, w.chunk)];
    if (l->flags & ZB_PLAN_LIST_W_LATE ? best.start >= w.start + w_cost
                                       : best.start > w.start) {
        return w;
    }
    return best;
}

static void refresh(struct list *l, int virt)
{
    int stage, chunk;

    if (virt >= 0 && virt < l->n_virtual) {
        zb_virtual_to_local(l->in->placement, l->in->n_stage, virt, &stage,
                            &chunk);
        l->next[stage] = choose(l, stage);
    }
}

static void append(struct list *l, int stage)
{
    const struct zb_plan_input *in = l->in;
    struct choice c = l->next[stage];
    int virt = virtual_of(l, stage, c.chunk);
    int mb = l->count[virt][c.type]++;
    const double *cost = c.type == ZB_NODE_F   ? in->f_cost
                         : c.type == ZB_NODE_B ? in->b_cost
                                               : in->w_cost;
    const double *mem = c.type == ZB_NODE_F   ? in->f_mem
                        : c.type == ZB_NODE_B ? in->b_mem
                                              : in->w_mem;
    double end = c.start + cost[virt];

    l->s->stages[stage].node[l->n_placed[stage]++] =
        (struct zb_node){.type = c.type,
                         .chunk = c.chunk,
                         .mb = mb,
                         .start = c.start,
                         .end = end};
    l->clock[stage] = end;
    l->mem[stage] += mem[virt];
    if (c.type == ZB_NODE_W) {
        l->waiting[stage] -= in->w_mem[virt];
    } else {
        *end_of(l, c.type, virt, mb) = end;
    }
    if (c.type == ZB_NODE_B) {
        l->waiting[stage] += in->w_mem[virt];
    }
    l->next[stage] = choose(l, stage);
    if (c.type == ZB_NODE_F) {
        refresh(l, virt + 1);
    } else if (c.type == ZB_NODE_B) {
        refresh(l, virt - 1);
    }
}

static enum zb_status run(struct list *l, size_t n_nodes)
{
    int n_stage = l->in->n_stage;

    for (int i = 0; i < n_stage; i++) {
        l->next[i] = choose(l, i);
    }
    for (size_t k = 0; k < n_nodes; k++) {
        int first = 0;

        for (int i = 1; i < n_stage; i++) {
            if (l->next[i].start < l->next[first].start) {
                first = i;
            }
        }
        if (isinf(l->next[first].start)) {
            return zb_fail(ZB_EINFEASIBLE,
                           "memory is too small for one microbatch");
        }
        append(l, first);
    }
    return ZB_OK;
}

static enum zb_status list_init(struct list *l, size_t per_stage)
{
    size_t n = (size_t)l->in->n_stage, n_virtual = (size_t)l->n_virtual;
    size_t cells = n_virtual * (size_t)l->in->n_micro;

    l->f_end = zb_alloc_array(cells, sizeof(*l->f_end));
    l->b_end = zb_alloc_array(cells, sizeof(*l->b_end));
    l->count = zb_alloc_array(n_virtual, sizeof(*l->count));
    l->clock = zb_alloc_array(n, sizeof(*l->clock));
    l->mem = zb_alloc_array(n, sizeof(*l->mem));
    l->waiting = zb_alloc_array(n, sizeof(*l->waiting));
    l->next = zb_alloc_array(n, sizeof(*l->next));
    l->n_placed = zb_alloc_array(n, sizeof(*l->n_placed));
    if (l->f_end == NULL || l->b_end == NULL || l->count == NULL ||
        l->clock == NULL || l->mem == NULL || l->waiting == NULL ||
        l->next == NULL || l->n_placed == NULL) {
        return ZB_ENOMEM;
    }
    for (size_t i = 0; i < cells; i++) {
        l->f_end[i] = l->b_end[i] = NOT_YET;
    }
    for (int i = 0; i < l->in->n_stage; i++) {
        ZB_TRY(zb_plan_stage_alloc(l->s, i, per_stage));
    }
    return ZB_OK;
}

static void list_release(struct list *l)
{
    zb_free(l->f_end);
    zb_free(l->b_end);
    zb_free(l->count);
    zb_free(l->clock);
    zb_free(l->mem);
    zb_free(l->waiting);
    zb_free(l->next);
    zb_free(l->n_placed);
}

enum zb_status zb_plan_list(const struct zb_plan_input *in, unsigned flags,
                            struct zb_schedule *s)
{
    struct list l = {.in = in, .s = s, .flags = flags};
    size_t n_types = flags & ZB_PLAN_LIST_FORWARD ? 1 : 3;
    size_t per_stage = n_types * (size_t)in->n_chunk * (size_t)in->n_micro;
    enum zb_status st;

    l.n_virtual = in->n_stage * in->n_chunk;
    st = list_init(&l, per_stage);
    if (st == ZB_OK) {
        st = run(&l, per_stage * (size_t)in->n_stage);
    }
    list_release(&l);
    return st;
}
