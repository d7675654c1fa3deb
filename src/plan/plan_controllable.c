/* SPDX-License-Identifier: MIT
 *
 * V-Half and V-Min (Qi et al. 2024, 2405.15362): V pipelines that keep few
 * microbatches.
 *
 * A building block says when the passes of one microbatch are on each stage; it
 * is repeated every six units (F, B and W of two chunks, one unit each). How
 * long a microbatch is on a stage decides the memory, and that is decided by
 * the slopes, by how much later the next stage is: V-Half takes 2 down and 1 up
 * and needs (p + 2) / 2 microbatches, V-Min 1 and 1 and (p + 4) / 3. What is
 * free are the gaps at the ends of the V: any that let no two passes of any
 * stage meet.
 *
 * That order is then run with the real costs. A stage whose next pass still
 * waits for its input takes a later one if that is there, does not hold up the
 * next by more than some slack, and leaves the memory that those before it
 * need; or a W. So the idle time at both ends, where the block leaves holes, is
 * filled, and in between what comes from unequal costs. Blocks and rules for
 * that are tried with few microbatches, and the best is taken.
 *
 * No stage is ever stuck: the pass of the block that is earliest of all not yet
 * run has its inputs.
 */
#include "config.h"
#include "plan/plan_int.h"

#include <math.h>

#include "zb/mem.h"

#define NOT_YET (-1.0)
#define PERIOD 6
#define MAX_BLOCKS 6
#define LOOK_AHEAD 8
#define SLACK_MEM (1 + 1e-9) /* sums of fractions may miss it by rounding */

/* The passes of a microbatch in the order in which it goes through them. */
enum pass { F0, F1, B1, B0, N_PASSES };

static const enum zb_node_type type_of[N_PASSES] = {ZB_NODE_F, ZB_NODE_F,
                                                    ZB_NODE_B, ZB_NODE_B};
static const int chunk_of[N_PASSES] = {0, 1, 1, 0};

struct block {
    int down, up; /* slopes of F0 and B1, of F1 and B0 */
    int gap[3];   /* from each pass to the next where the V turns */
};

/* What a stage may take before the next pass of the block. */
struct rule {
    double slack;  /* part of its time by which another pass may hold that up;
                      NONE: no other pass */
    int is_w_late; /* W only where it holds nothing up */
    double end_slack; /* the same once the stage has run all its F0 */
    int is_end_w_late;
};

#define NONE (-1.0)
#define WARM_UP_SLACK (1. / 3) /* before its first B0 */

/* The more promising first. */
static const struct rule rules[] = {
    {1. / 3, 1, 1. / 3, 1}, {1. / 3, 0, 1. / 3, 1}, {NONE, 0, 1. / 3, 1},
    {0, 0, 1. / 3, 1},      {1. / 3, 1, 1. / 3, 0}, {2. / 3, 1, 1, 1},
    {NONE, 1, 1. / 3, 1},   {2. / 3, 0, 1, 1},
};

/* ---- blocks ---- */

static int64_t time_in_block(const struct block *b, int p, int stage,
                             enum pass pass)
{
    int64_t t[N_PASSES];

    t[F0] = 0;
    t[F1] = (int64_t)(p - 1) * (b->down + b->up) + b->gap[0];
    t[B1] = t[F1] + b->gap[1];
    t[B0] = t[B1] + (int64_t)(p - 1) * (b->down + b->up) + b->gap[2];
    return pass == F0 || pass == B1 ? t[pass] + (int64_t)stage * b->down
                                    : t[pass] - (int64_t)stage * b->up;
}

/* No two passes of a stage at once; stages repeat after one period too. */
static int is_possible(const struct block *b, int p)
{
    for (int i = 0; i < p && i < PERIOD; i++) {
        unsigned taken = 0;

        for (int k = 0; k < N_PASSES; k++) {
            unsigned bit = 1u << time_in_block(b, p, i, (enum pass)k) % PERIOD;

            if (taken & bit) {
                return 0;
            }
            taken |= bit;
        }
    }
    return 1;
}

/* The possible blocks, those in which a microbatch stays for the shortest time
 * first. */
static int find_blocks(int down, int up, int p, struct block *out)
{
    int n = 0;

    for (int sum = 3; sum <= 3 * PERIOD && n < MAX_BLOCKS; sum++) {
        for (int i = 0; i < PERIOD * PERIOD && n < MAX_BLOCKS; i++) {
            int g0 = 1 + i / PERIOD, g1 = 1 + i % PERIOD, g2 = sum - g0 - g1;
            struct block b = {down, up, {g0, g1, g2}};

            if (g2 >= 1 && g2 <= PERIOD && is_possible(&b, p)) {
                out[n++] = b;
            }
        }
    }
    return n;
}

/* ---- running one ---- */

struct stage {
    int64_t at[N_PASSES]; /* in the block, of the next of each pass */
    int n[N_PASSES];      /* how many were run */
    int n_w[2];
    double clock, mem;
    double waiting; /* memory that its waiting Ws would free */
    double limit;
};

struct choice {
    double start; /* INFINITY: nothing can be chosen now */
    enum pass pass;
    int is_w;
    int w_chunk;
};

struct run {
    const struct zb_plan_input *in;
    struct zb_schedule *s; /* NULL: only the makespan is wanted */
    struct rule rule;
    int n_micro;
    int is_over; /* a limit had to be broken */
    struct stage *stage;
    double *end[N_PASSES]; /* [n_stage * n_micro], NOT_YET until it ended */
    struct choice *next;   /* [n_stage] */
    int *first;            /* tree of stages: each node's one starts first */
    int n_leaves;
};

static int virtual_of(const struct run *r, int stage, int chunk)
{
    return zb_virtual_stage(ZB_PLACE_V, r->in->n_stage, stage, chunk);
}

static double *end_of(const struct run *r, enum pass pass, int stage, int mb)
{
    return &r->end[pass][(size_t)stage * (size_t)r->n_micro + (size_t)mb];
}

static double cost_of(const struct run *r, int stage, enum pass pass)
{
    int virt = virtual_of(r, stage, chunk_of[pass]);

    return type_of[pass] == ZB_NODE_F ? r->in->f_cost[virt]
                                      : r->in->b_cost[virt];
}

static double f_mem_of(const struct run *r, int stage, enum pass pass)
{
    return r->in->f_mem[virtual_of(r, stage, chunk_of[pass])];
}

static double later_of(double a, double b)
{
    return a < 0 || b < 0 ? NOT_YET : fmax(a, b);
}

/* When the next of a pass can start; INFINITY when that is not known. */
static double ready(const struct run *r, int stage, enum pass pass)
{
    const struct stage *st = &r->stage[stage];
    int mb = st->n[pass], p = r->in->n_stage;
    int is_down = pass == F0 || pass == B1;
    int from = is_down ? stage - 1 : stage + 1;
    double t = 0;

    if (mb == r->n_micro) {
        return INFINITY;
    }
    if (from >= 0 && from < p) {
        t = *end_of(r, pass, from, mb);
        t = t < 0 ? t : t + r->in->c_cost;
    } else if (pass != F0) {
        t = *end_of(r, (enum pass)(pass - 1), stage, mb);
    }
    if (type_of[pass] == ZB_NODE_B) { /* its own F */
        t = later_of(t, *end_of(r, (enum pass)(B0 - pass), stage, mb));
    }
    return t < 0 ? INFINITY : fmax(t, st->clock);
}

/* The pass that the block has next; N_PASSES when all were run. */
static enum pass head_of(const int64_t *at, const int *n, int n_micro)
{
    int head = N_PASSES;

    for (int k = 0; k < N_PASSES; k++) {
        if (n[k] < n_micro && (head == N_PASSES || at[k] < at[head])) {
            head = k;
        }
    }
    return (enum pass)head;
}

/* The W whose B came first; a stage without one has start INFINITY. */
static struct choice oldest_w(const struct run *r, int stage)
{
    const struct stage *st = &r->stage[stage];
    struct choice w = {.start = INFINITY, .is_w = 1};
    double oldest = INFINITY;

    for (int c = 0; c < 2; c++) {
        enum pass b = c == 0 ? B0 : B1;

        if (st->n_w[c] < st->n[b] &&
            *end_of(r, b, stage, st->n_w[c]) < oldest) {
            oldest = *end_of(r, b, stage, st->n_w[c]);
            w.start = st->clock;
            w.w_chunk = c;
        }
    }
    return w;
}

/* A pass, or the W that must make room for it. */
static struct choice with_room(const struct run *r, int stage, enum pass pass,
                               double start)
{
    const struct stage *st = &r->stage[stage];
    struct choice c = {.start = start, .pass = pass}, w;

    if (start < INFINITY && type_of[pass] == ZB_NODE_F &&
        st->mem + f_mem_of(r, stage, pass) > st->limit) {
        w = oldest_w(r, stage);
        return w.start < INFINITY ? w : c;
    }
    return c;
}

static int is_at_end(const struct run *r, const struct stage *st)
{
    return st->n[F0] == r->n_micro;
}

static double slack_of(const struct run *r, const struct stage *st)
{
    return is_at_end(r, st) ? r->rule.end_slack
           : st->n[B0] == 0 ? WARM_UP_SLACK
                            : r->rule.slack;
}

/* Offer the passes that the block has after `head`, which starts at `start`. An
 * F must leave room for the Fs before it. */
static void look_ahead(const struct run *r, int stage, enum pass head,
                       double start, struct choice *best)
{
    const struct stage *st = &r->stage[stage];
    double mem = st->mem - st->waiting, most = mem, slack = slack_of(r, st);
    unsigned seen = 0;
    int64_t at[N_PASSES];
    int n[N_PASSES];
    enum pass k = head;

    for (int i = 0; i < N_PASSES; i++) {
        at[i] = st->at[i];
        n[i] = st->n[i];
    }
    for (int i = 0; slack >= 0 && i <= LOOK_AHEAD && k != N_PASSES; i++) {
        int is_f = type_of[k] == ZB_NODE_F, is_first = !(seen >> k & 1);
        double f_mem = f_mem_of(r, stage, k), cost = cost_of(r, stage, k);

        seen |= 1u << k;
        if (i > 0 && is_first && (!is_f || most + f_mem <= st->limit)) {
            double t = ready(r, stage, k);

            if (t < best->start && t + cost <= start + slack * cost) {
                *best = with_room(r, stage, k, t);
            }
        }
        mem += is_f ? f_mem : -f_mem;
        most = fmax(most, mem);
        at[k] += PERIOD;
        n[k]++;
        k = head_of(at, n, r->n_micro);
    }
}

static struct choice choose(const struct run *r, int stage)
{
    const struct stage *st = &r->stage[stage];
    enum pass head = head_of(st->at, st->n, r->n_micro);
    struct choice best = {.start = INFINITY}, w;
    double start;

    if (head != N_PASSES) {
        start = ready(r, stage, head);
        best = with_room(r, stage, head, start);
        if (best.start > st->clock) {
            look_ahead(r, stage, head, start, &best);
        }
    }
    w = oldest_w(r, stage);
    if (w.start < INFINITY) {
        double cost = r->in->w_cost[virtual_of(r, stage, w.w_chunk)];
        int is_late =
            is_at_end(r, st) ? r->rule.is_end_w_late : r->rule.is_w_late;

        if (is_late ? best.start >= w.start + cost : best.start > w.start) {
            return w;
        }
    }
    return best;
}

/* Choose anew for a stage, and bring the tree up to date. */
static void refresh(struct run *r, int stage)
{
    int at = r->n_leaves + stage;

    if (stage < 0 || stage >= r->in->n_stage) {
        return;
    }
    r->next[stage] = choose(r, stage);
    while ((at /= 2) > 0) {
        int a = r->first[2 * at], b = r->first[2 * at + 1];

        r->first[at] = b >= 0 && r->next[b].start < r->next[a].start ? b : a;
    }
}

static void append(struct run *r, int stage, enum zb_node_type type, int chunk,
                   int mb)
{
    if (r->s != NULL) {
        struct zb_stage_nodes *out = &r->s->stages[stage];

        out->node[out->n++] =
            (struct zb_node){.type = type, .chunk = chunk, .mb = mb};
    }
}

static void take_w(struct run *r, int stage, int chunk)
{
    struct stage *st = &r->stage[stage];
    int virt = virtual_of(r, stage, chunk);

    append(r, stage, ZB_NODE_W, chunk, st->n_w[chunk]++);
    st->clock += r->in->w_cost[virt];
    st->mem += r->in->w_mem[virt];
    st->waiting += r->in->w_mem[virt];
}

static void take_pass(struct run *r, int stage, const struct choice *c)
{
    struct stage *st = &r->stage[stage];
    int virt = virtual_of(r, stage, chunk_of[c->pass]), mb = st->n[c->pass]++;

    append(r, stage, type_of[c->pass], chunk_of[c->pass], mb);
    st->at[c->pass] += PERIOD;
    st->clock = c->start + cost_of(r, stage, c->pass);
    *end_of(r, c->pass, stage, mb) = st->clock;
    if (type_of[c->pass] == ZB_NODE_F) {
        st->mem += r->in->f_mem[virt];
        r->is_over |= st->mem > st->limit;
    } else {
        st->mem += r->in->b_mem[virt];
        st->waiting -= r->in->w_mem[virt];
    }
}

/* Run all nodes; fewer when only trying and it shows that the makespan will
 * not be less than `most`, or the memory not suffice. 0 in that case. */
static int run_all(struct run *r, double most)
{
    size_t n = 6 * (size_t)r->in->n_stage * (size_t)r->n_micro;

    for (int i = 0; i < r->in->n_stage; i++) {
        refresh(r, i);
    }
    for (; n > 0; n--) {
        int stage = r->first[1];
        struct choice c = r->next[stage];

        ZB_BUG_IF(isinf(c.start), "the block is stuck on stage %d", stage);
        if (r->s == NULL && (c.start >= most || r->is_over)) {
            return 0;
        }
        if (c.is_w) {
            take_w(r, stage, c.w_chunk);
        } else {
            take_pass(r, stage, &c);
            refresh(r, stage - 1);
            refresh(r, stage + 1);
        }
        refresh(r, stage);
    }
    return 1;
}

static double makespan_of(const struct run *r)
{
    double last = 0;

    for (int i = 0; i < r->in->n_stage; i++) {
        last = fmax(last, r->stage[i].clock);
    }
    return last;
}

/* Time per microbatch, seen where stage 0 has all passes to run. */
static double period_of(const struct run *r)
{
    int first = r->n_micro / 4, last = first + r->n_micro / 2;

    return last > first ? (*end_of(r, B0, 0, last) - *end_of(r, B0, 0, first)) /
                              (last - first)
                        : 0;
}

/* ---- the best block ---- */

static void run_release(struct run *r)
{
    for (int k = 0; k < N_PASSES; k++) {
        zb_free(r->end[k]);
    }
    zb_free(r->stage);
    zb_free(r->next);
    zb_free(r->first);
}

static enum zb_status run_init(struct run *r, const struct zb_plan_input *in)
{
    size_t p = (size_t)in->n_stage, m = (size_t)in->n_micro;
    int is_short = 0;

    *r = (struct run){.in = in, .n_leaves = 1};
    while (r->n_leaves < in->n_stage) {
        r->n_leaves *= 2;
    }
    for (int k = 0; k < N_PASSES; k++) {
        r->end[k] = zb_alloc_array(p * m, sizeof(double));
        is_short |= r->end[k] == NULL;
    }
    r->stage = zb_alloc_array(p, sizeof(*r->stage));
    r->next = zb_alloc_array(p, sizeof(*r->next));
    r->first = zb_alloc_array(2 * (size_t)r->n_leaves, sizeof(*r->first));
    if (is_short || r->stage == NULL || r->next == NULL || r->first == NULL) {
        run_release(r);
        return ZB_ENOMEM;
    }
    return ZB_OK;
}

/* Nothing run yet, of n_micro microbatches. */
static void run_reset(struct run *r, const struct block *b, double n_chunks,
                      int n_micro)
{
    const struct zb_plan_input *in = r->in;
    size_t cells = (size_t)in->n_stage * (size_t)n_micro;

    r->n_micro = n_micro;
    r->is_over = 0;
    for (int k = 0; k < N_PASSES; k++) {
        for (size_t i = 0; i < cells; i++) {
            r->end[k][i] = NOT_YET;
        }
    }
    for (int i = 0; i < in->n_stage; i++) {
        double one = in->f_mem[i] + in->f_mem[virtual_of(r, i, 1)];

        r->stage[i] = (struct stage){.limit = n_chunks / 2 * one * SLACK_MEM};
        for (int k = 0; k < N_PASSES; k++) {
            r->stage[i].at[k] = time_in_block(b, in->n_stage, i, (enum pass)k);
        }
        r->next[i] = (struct choice){.start = INFINITY};
    }
    for (int i = 2 * r->n_leaves - 1; i > 0; i--) {
        int stage = i - r->n_leaves;

        r->first[i] = i < r->n_leaves       ? r->first[2 * i]
                      : stage < in->n_stage ? stage
                                            : -1;
    }
}

/* So many nodes may be run to find the best way. */
#define TRY_NODES 600000

/* Microbatches that show how long each more will take: enough for both ends,
 * and of few stages as many as make the end exact. */
static int n_to_try(int p, int m)
{
    int n = 2 * p + 8 + 700 / p;

    return m < n ? m : n;
}

struct way {
    struct block block;
    struct rule rule;
};

/* Of all pairs of block and rule the i-th, the first ones of both first. */
static struct way way_at(const struct block *block, int n_blocks, int i)
{
    int n_rules = (int)ZB_COUNT_OF(rules), b = 0, r = 0;

    for (; i > 0; i--) {
        do {
            if (r == 0) {
                r = b + 1;
                b = 0;
            } else {
                r--;
                b++;
            }
        } while (b >= n_blocks || r >= n_rules);
    }
    return (struct way){block[b], rules[r]};
}

static struct way best_way(struct run *r, const struct block *block,
                           int n_blocks, double n_chunks)
{
    int p = r->in->n_stage, m = r->in->n_micro;
    int n_ways = n_blocks * (int)ZB_COUNT_OF(rules);
    int n_micro = n_to_try(p, m);
    int64_t nodes = (int64_t)6 * p * n_micro, n_tries = TRY_NODES / nodes;
    struct way best = {block[0], rules[0]};
    double least = INFINITY;

    for (int i = 0; i < n_ways && i < n_tries; i++) {
        struct way w = way_at(block, n_blocks, i);
        double makespan;

        r->rule = w.rule;
        run_reset(r, &w.block, n_chunks, n_micro);
        if (!run_all(r, least)) {
            continue;
        }
        makespan = makespan_of(r) + (m - n_micro) * period_of(r);
        if (!r->is_over && makespan < least) {
            least = makespan;
            best = w;
        }
    }
    return best;
}

static enum zb_status fill(struct run *r, int down, int up, double n_chunks,
                           struct zb_schedule *s)
{
    struct block block[MAX_BLOCKS];
    int n = find_blocks(down, up, r->in->n_stage, block);
    struct way way;

    ZB_BUG_IF(n == 0, "no block for %d stages", r->in->n_stage);
    way = best_way(r, block, n, n_chunks);
    for (int i = 0; i < s->n_stage; i++) {
        ZB_TRY(zb_plan_stage_alloc(s, i, 6 * (size_t)s->n_micro));
        s->stages[i].n = 0;
    }
    r->s = s;
    r->rule = way.rule;
    run_reset(r, &way.block, n_chunks, s->n_micro);
    run_all(r, INFINITY);
    return ZB_OK;
}

static enum zb_status make_order(const struct zb_plan_input *in, int down,
                                 int up, double n_chunks, struct zb_schedule *s)
{
    struct run r;
    enum zb_status st;

    ZB_TRY(run_init(&r, in));
    st = fill(&r, down, up, n_chunks, s);
    run_release(&r);
    return st;
}

enum zb_status zb_plan_order_v_half(const struct zb_plan_input *in,
                                    struct zb_schedule *s)
{
    return make_order(in, 2, 1, in->n_stage + 2, s);
}

enum zb_status zb_plan_order_v_min(const struct zb_plan_input *in,
                                   struct zb_schedule *s)
{
    return make_order(in, 1, 1, 2. * (in->n_stage + 4) / 3, s);
}

enum zb_status zb_plan_v_half(const struct zb_plan_input *in,
                              const struct zb_plan_opts *opts,
                              struct zb_schedule *s)
{
    (void)opts;
    ZB_TRY(zb_plan_order_v_half(in, s));
    return zb_schedule_add_comm(s, in);
}

enum zb_status zb_plan_v_min(const struct zb_plan_input *in,
                             const struct zb_plan_opts *opts,
                             struct zb_schedule *s)
{
    (void)opts;
    ZB_TRY(zb_plan_order_v_min(in, s));
    return zb_schedule_add_comm(s, in);
}
