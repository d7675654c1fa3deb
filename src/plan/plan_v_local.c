/* SPDX-License-Identifier: MIT
 *
 * Local search on an order.
 *
 * For every node we keep its start and its tail, the longest path from its
 * start to the end. A change of place touches the machine neighbours of a few
 * nodes; starts are then corrected outwards from there, in the order of the old
 * starts, until nothing changes. As soon as a corrected start plus the node's
 * tail says that the new value would not be accepted, the move is taken back:
 * most are, after a few nodes. Tails are corrected only for accepted moves.
 */
#include "config.h"
#include "plan/plan_v.h"

#include <math.h>
#include <string.h>

#include "zb/mem.h"

#define NONE (-1)
#define REACH 6           /* most places a node moves at once */
#define END_WEIGHT 0.02   /* of the mean end of the stages */
#define CRITICAL_TRIES 12 /* to hit a node on a longest path */
#define TRIES_PER_LOOK 256 /* at the clock */
#define SWAP_PART 0.3     /* of the moves change the places of two nodes */

struct change {
    int32_t id;
    double old;
};

struct heap_item {
    double key;
    int32_t id;
};

struct zb_v_local {
    const struct zb_v *v;
    int32_t n; /* nodes: p * len; id = (stage * 6 + type) * m + microbatch */
    int32_t *seq;       /* [p][len] ids in stream order */
    int32_t *at;        /* [n] place in seq */
    uint8_t *type;      /* [n] */
    double *start;      /* [n] */
    double *tail;       /* [n] longest path from the start to the end */
    double *mem_after;  /* [n] by place: memory of the stage after the node */
    uint8_t *is_queued; /* [n] */
    uint8_t *is_changed; /* [n] in `changes` */
    struct change *changes;
    int32_t n_changes;
    struct heap_item *heap;
    int32_t n_heap;
    int32_t *next;   /* [p] of time_all() */
    double value;    /* of the order */
    double sum_ends; /* of the stages */
    int64_t visits;  /* nodes timed since the last account */
};

/* ---- relations of nodes ---- */

static int stage_of(const struct zb_v_local *l, int32_t place)
{
    return place / l->v->len;
}

/* The node on another stage that one waits for, or that waits for it. */
static int32_t neighbour(const struct zb_v_local *l, int32_t id, int s,
                         int is_after)
{
    int step = zb_v_input_step[l->type[id]] * (is_after ? -1 : 1);
    int peer = s + step;

    if (step == 0 || peer < 0 || peer >= l->v->p) {
        return NONE;
    }
    return id + step * l->v->len;
}

static double cost_of(const struct zb_v_local *l, int s, int32_t id)
{
    return l->v->cost[s][l->type[id]];
}

static double earliest(const struct zb_v_local *l, int s, int32_t id)
{
    int32_t place = l->at[id], input = neighbour(l, id, s, 0);
    double t = 0;

    if (place > s * l->v->len) {
        int32_t before = l->seq[place - 1];

        t = l->start[before] + cost_of(l, s, before);
    }
    if (input != NONE) {
        int from = stage_of(l, l->at[input]);

        t = fmax(t, l->start[input] + cost_of(l, from, input) + l->v->c);
    }
    return t;
}

static double longest_tail(const struct zb_v_local *l, int s, int32_t id)
{
    int32_t place = l->at[id], output = neighbour(l, id, s, 1);
    double t = l->v->offset[s];

    if (place + 1 < (s + 1) * l->v->len) {
        t = l->tail[l->seq[place + 1]];
    }
    if (output != NONE) {
        t = fmax(t, l->tail[output] + l->v->c);
    }
    return t + cost_of(l, s, id);
}

/* ---- queue of nodes to correct, by key ---- */

static void push(struct zb_v_local *l, int32_t id, double key)
{
    int32_t at = l->n_heap;

    if (l->is_queued[id]) {
        return;
    }
    l->is_queued[id] = 1;
    l->n_heap++;
    while (at > 0 && key < l->heap[(at - 1) / 2].key) {
        l->heap[at] = l->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    l->heap[at] = (struct heap_item){key, id};
}

static int32_t pop(struct zb_v_local *l)
{
    int32_t top = l->heap[0].id, at = 0;
    struct heap_item last = l->heap[--l->n_heap];

    for (;;) {
        int32_t child = 2 * at + 1;

        if (child + 1 < l->n_heap &&
            l->heap[child + 1].key < l->heap[child].key) {
            child++;
        }
        if (child >= l->n_heap || !(l->heap[child].key < last.key)) {
            break;
        }
        l->heap[at] = l->heap[child];
        at = child;
    }
    l->heap[at] = last;
    l->is_queued[top] = 0;
    return top;
}

static void clear_queue(struct zb_v_local *l)
{
    for (int32_t i = 0; i < l->n_heap; i++) {
        l->is_queued[l->heap[i].id] = 0;
    }
    l->n_heap = 0;
}

/* ---- starts ---- */

static void set_start(struct zb_v_local *l, int32_t id, double start)
{
    if (!l->is_changed[id]) {
        l->is_changed[id] = 1;
        l->changes[l->n_changes++] = (struct change){id, l->start[id]};
    }
    l->start[id] = start;
}

static void push_after(struct zb_v_local *l, int s, int32_t id)
{
    int32_t next = l->at[id] + 1, output = neighbour(l, id, s, 1);

    if (next < (s + 1) * l->v->len) {
        push(l, l->seq[next], l->start[l->seq[next]]);
    }
    if (output != NONE) {
        push(l, output, l->start[output]);
    }
}

/* Time a node anew; 0 when the value would exceed `most`. */
static int correct_start(struct zb_v_local *l, int32_t id, double most)
{
    int s = stage_of(l, l->at[id]);
    double t = earliest(l, s, id);

    l->visits++;
    if (t != l->start[id]) {
        if (t + l->tail[id] > most) {
            return 0;
        }
        set_start(l, id, t);
        push_after(l, s, id);
    }
    return 1;
}

/* Time the nodes of a window, and then whatever depends on them; 0 when the
 * value would exceed `most`, or the order can not finish. */
static int correct_starts(struct zb_v_local *l, int32_t lo, int32_t hi,
                          double most)
{
    int64_t patience = l->visits + 4 * (int64_t)l->n;

    for (int32_t i = lo; i <= hi; i++) {
        if (!correct_start(l, l->seq[i], most)) {
            return 0;
        }
    }
    while (l->n_heap > 0) {
        if (!correct_start(l, pop(l), most) || l->visits > patience) {
            return 0;
        }
    }
    return 1;
}

static void forget_changes(struct zb_v_local *l)
{
    for (int32_t i = 0; i < l->n_changes; i++) {
        l->is_changed[l->changes[i].id] = 0;
    }
    l->n_changes = 0;
}

static void undo_changes(struct zb_v_local *l)
{
    for (int32_t i = 0; i < l->n_changes; i++) {
        l->start[l->changes[i].id] = l->changes[i].old;
    }
    forget_changes(l);
}

static void measure(struct zb_v_local *l, double *value_out, double *sum_out)
{
    double value = 0, sum = 0;

    for (int s = 0; s < l->v->p; s++) {
        int32_t last = l->seq[(s + 1) * l->v->len - 1];
        double end = l->start[last] + cost_of(l, s, last) + l->v->offset[s];

        value = fmax(value, end);
        sum += end;
    }
    *value_out = value;
    *sum_out = sum;
}

/* ---- tails ---- */

static void correct_tails(struct zb_v_local *l)
{
    while (l->n_heap > 0) {
        int32_t id = pop(l), place = l->at[id], input;
        int s = stage_of(l, place);
        double t = longest_tail(l, s, id);

        l->visits++;
        if (t == l->tail[id]) {
            continue;
        }
        l->tail[id] = t;
        if (place > s * l->v->len) {
            push(l, l->seq[place - 1], -l->start[l->seq[place - 1]]);
        }
        input = neighbour(l, id, s, 0);
        if (input != NONE) {
            push(l, input, -l->start[input]);
        }
    }
}

static void push_window_back(struct zb_v_local *l, int s, int32_t lo,
                             int32_t hi)
{
    if (lo > s * l->v->len) {
        lo--;
    }
    for (int32_t i = hi; i >= lo; i--) {
        push(l, l->seq[i], -l->start[l->seq[i]]);
    }
}

/* ---- moves ---- */

/* Whether node x may change sides with node y of its stage. */
static int may_pass(const struct zb_v_local *l, int32_t x, int32_t y)
{
    int m = l->v->m, tx = l->type[x], ty = l->type[y];

    if (tx == ty) {
        return 0;
    }
    if (x % m != y % m) {
        return 1;
    }
    /* Of one microbatch only W may pass, and not the B of its chunk. */
    return (tx >= ZB_V_W0 && tx - ZB_V_W0 != ty % 2 && ty >= ZB_V_B0) ||
           (ty >= ZB_V_W0 && ty - ZB_V_W0 != tx % 2 && tx >= ZB_V_B0);
}

/* Take the node at place `from` to place `to` of its stage. */
static void shift(struct zb_v_local *l, int32_t from, int32_t to)
{
    int32_t id = l->seq[from], step = from < to ? 1 : -1;

    for (int32_t i = from; i != to; i += step) {
        l->seq[i] = l->seq[i + step];
        l->at[l->seq[i]] = i;
    }
    l->seq[to] = id;
    l->at[id] = to;
}

static void set_memory(struct zb_v_local *l, int s, int32_t lo, int32_t hi)
{
    double mem = lo > s * l->v->len ? l->mem_after[lo - 1] : 0;

    for (int32_t i = lo; i <= hi; i++) {
        mem += l->v->mem[s][l->type[l->seq[i]]];
        l->mem_after[i] = mem;
    }
}

static int fits_memory(const struct zb_v_local *l, int s, int32_t lo,
                       int32_t hi)
{
    double mem = lo > s * l->v->len ? l->mem_after[lo - 1] : 0;

    for (int32_t i = lo; i <= hi; i++) {
        mem += l->v->mem[s][l->type[l->seq[i]]];
        if (mem > l->v->limit[s]) {
            return 0;
        }
    }
    return 1;
}

struct move {
    int s;
    int32_t from, to;
    int is_swap; /* the node at `to` takes the place of the one at `from` */
};

static int is_critical(const struct zb_v_local *l, int32_t id)
{
    return l->start[id] + l->tail[id] >= l->value * (1 - ZB_V_ROUNDING);
}

/* Whether the node at `to`, too, may pass all between and the one at `from`. */
static int may_swap(const struct zb_v_local *l, struct move mv)
{
    int step = mv.from < mv.to ? 1 : -1;
    int32_t i = mv.from + step;

    for (; i != mv.to && mv.from != mv.to; i += step) {
        if (!may_pass(l, l->seq[mv.to], l->seq[i])) {
            return 0;
        }
    }
    return mv.from != mv.to && i != mv.from + step;
}

/* A random move that keeps the order of each microbatch; 0: none found. */
static int pick(const struct zb_v_local *l, uint64_t *random,
                struct move *move_out)
{
    int32_t id = zb_v_below(random, l->n), at, reach;
    int step, s;

    for (int i = 0; i < CRITICAL_TRIES && !is_critical(l, id); i++) {
        id = zb_v_below(random, l->n);
    }
    at = l->at[id];
    s = stage_of(l, at);
    step = zb_v_random(random) >> 63 ? 1 : -1;
    reach = 1 + zb_v_below(random, REACH);
    *move_out = (struct move){s, at, at, 0};
    while (reach-- > 0) {
        int32_t next = move_out->to + step;

        if (next < s * l->v->len || next >= (s + 1) * l->v->len ||
            !may_pass(l, id, l->seq[next])) {
            break;
        }
        move_out->to = next;
    }
    move_out->is_swap = may_swap(l, *move_out) &&
                        zb_v_uniform(random) < SWAP_PART;
    return move_out->to != at;
}

/* Swap the tails of the nodes of a window with those of `tail`. */
static void swap_tails(struct zb_v_local *l, int32_t lo, int32_t hi,
                       double *tail)
{
    for (int32_t i = lo; i <= hi; i++) {
        double old = l->tail[l->seq[i]];

        l->tail[l->seq[i]] = tail[i - lo];
        tail[i - lo] = old;
    }
}

/* The tails in a window as they are after its change, if the tails behind it
 * stay. */
static void look_ahead(struct zb_v_local *l, int s, int32_t lo, int32_t hi,
                       double *old)
{
    for (int32_t i = hi; i >= lo; i--) {
        int32_t id = l->seq[i];

        old[i - lo] = l->tail[id];
        l->tail[id] = longest_tail(l, s, id);
    }
}

static void make_move(struct zb_v_local *l, struct move mv)
{
    shift(l, mv.from, mv.to);
    if (mv.is_swap) {
        shift(l, mv.to + (mv.from < mv.to ? -1 : 1), mv.from);
    }
}

static void take_back(struct zb_v_local *l, struct move mv)
{
    if (mv.is_swap) {
        shift(l, mv.from, mv.to + (mv.from < mv.to ? -1 : 1));
    }
    shift(l, mv.to, mv.from);
}

static double weighted(const struct zb_v_local *l)
{
    return l->value + END_WEIGHT * l->sum_ends / l->v->p;
}

/* Correct starts after a move in a window; 0 when the new order is worse than
 * `most`, or can not finish. */
static int retime(struct zb_v_local *l, int s, int32_t lo, int32_t hi,
                  double most)
{
    double tail[REACH + 1];
    int is_ok;

    look_ahead(l, s, lo, hi, tail);
    if (hi + 1 < (s + 1) * l->v->len) {
        push(l, l->seq[hi + 1], l->start[l->seq[hi + 1]]);
    }
    is_ok = correct_starts(l, lo, hi, most);
    swap_tails(l, lo, hi, tail);
    return is_ok;
}

/* Try a move: 1 when it was taken, 0 when everything is as before. */
static int try_move(struct zb_v_local *l, struct move mv, double extra,
                    double slack)
{
    int32_t lo = mv.from < mv.to ? mv.from : mv.to;
    int32_t hi = mv.from < mv.to ? mv.to : mv.from;
    double value = l->value, sum_ends = l->sum_ends;
    double most = weighted(l) + extra;

    make_move(l, mv);
    if (!fits_memory(l, mv.s, lo, hi)) {
        take_back(l, mv);
        return 0;
    }
    if (retime(l, mv.s, lo, hi, l->value + extra + slack)) {
        measure(l, &l->value, &l->sum_ends);
        if (weighted(l) <= most) {
            forget_changes(l);
            set_memory(l, mv.s, lo, hi);
            push_window_back(l, mv.s, lo, hi);
            correct_tails(l);
            return 1;
        }
    }
    clear_queue(l);
    undo_changes(l);
    take_back(l, mv);
    l->value = value;
    l->sum_ends = sum_ends;
    return 0;
}

static void save(const struct zb_v_local *l, uint8_t *order)
{
    for (int32_t i = 0; i < l->n; i++) {
        order[i] = l->type[l->seq[i]];
    }
}

/* How a round of annealing goes: from 0 to 1. */
static double between(double from, double to, double part)
{
    return from * pow(to / from, part);
}

double zb_v_local_anneal(struct zb_v_local *l, const struct zb_v_heat *heat,
                         int64_t moves, uint64_t *random,
                         struct zb_v_budget *b, uint8_t *order)
{
    double best = l->value;
    int is_saved = 0, n_tries = 0;
    int64_t left = moves;

    while (left > 0 && best > l->v->bound * (1 + ZB_V_ROUNDING)) {
        double part = 1 - (double)left / (double)moves;
        double now = between(heat->hot, heat->cold, part);
        struct move mv;

        l->visits = 2;
        if (pick(l, random, &mv) &&
            try_move(l, mv, -now * log(1 - zb_v_uniform(random)),
                     END_WEIGHT * now)) {
            if (l->value < best) {
                best = l->value;
                is_saved = 0;
            } else if (!is_saved && l->value > best) {
                take_back(l, mv);
                save(l, order);
                make_move(l, mv);
                is_saved = 1;
            }
        }
        left -= l->visits;
        b->moves -= l->visits;
        if (n_tries++ % TRIES_PER_LOOK == 0 && zb_v_is_spent(b)) {
            break;
        }
    }
    if (!is_saved) {
        save(l, order);
    }
    return best;
}

/* ---- loading ---- */

/* Number the nodes of a stage; 0 when one comes before what it needs there, or
 * the memory does not suffice. */
static int load_stage(struct zb_v_local *l, int s, const uint8_t *order)
{
    int n[ZB_V_N_TYPES] = {0}, m = l->v->m;
    int32_t first = s * l->v->len;

    for (int32_t i = 0; i < l->v->len; i++) {
        int t = order[first + i];
        int32_t id = (s * ZB_V_N_TYPES + t) * m + n[t]++;

        if (t != ZB_V_F0 && n[t] > n[zb_v_needs[t]]) {
            return 0;
        }
        l->seq[first + i] = id;
        l->at[id] = first + i;
        l->type[id] = (uint8_t)t;
    }
    set_memory(l, s, first, first + l->v->len - 1);
    return fits_memory(l, s, first, first + l->v->len - 1);
}

/* Time all nodes; they are left in `changes` in an order in which inputs come
 * first. Returns how many could be timed. */
static int32_t time_all(struct zb_v_local *l)
{
    int32_t n = 0, before = -1;
    int32_t *next = l->next;

    for (int s = 0; s < l->v->p; s++) {
        next[s] = s * l->v->len;
    }
    for (int32_t i = 0; i < l->n; i++) {
        l->start[i] = -1;
    }
    while (n != before) {
        before = n;
        for (int s = 0; s < l->v->p; s++) {
            for (; next[s] < (s + 1) * l->v->len; next[s]++) {
                int32_t id = l->seq[next[s]];
                int32_t input = neighbour(l, id, s, 0);

                if (input != NONE && l->start[input] < 0) {
                    break;
                }
                l->start[id] = earliest(l, s, id);
                l->changes[n++].id = id;
            }
        }
    }
    return n;
}

double zb_v_local_load(struct zb_v_local *l, const uint8_t *order)
{
    int fits = 1;

    l->n_changes = l->n_heap = 0;
    l->value = INFINITY;
    for (int s = 0; s < l->v->p && fits; s++) {
        fits = load_stage(l, s, order);
    }
    if (!fits || time_all(l) < l->n) {
        return INFINITY;
    }
    for (int32_t i = l->n - 1; i >= 0; i--) {
        int32_t id = l->changes[i].id;

        l->tail[id] = longest_tail(l, stage_of(l, l->at[id]), id);
    }
    measure(l, &l->value, &l->sum_ends);
    return l->value;
}

void zb_v_local_cut(const struct zb_v_local *l, double time, int *cut_out)
{
    for (int s = 0; s < l->v->p; s++) {
        const int32_t *seq = &l->seq[s * l->v->len];
        int lo = 0, hi = l->v->len;

        while (lo < hi) {
            int mid = (lo + hi) / 2;

            if (l->start[seq[mid]] < time) {
                lo = mid + 1;
            } else {
                hi = mid;
            }
        }
        cut_out[s] = lo;
    }
}

double zb_v_local_period(const struct zb_v_local *l)
{
    const double *b0 = &l->start[ZB_V_B0 * l->v->m]; /* of stage 0 */
    int from = l->v->m / 3, to = l->v->m - 1 - l->v->m / 3;

    return to > from ? (b0[to] - b0[from]) / (to - from) : l->v->work;
}

enum zb_status zb_v_local_new(const struct zb_v *v, struct zb_v_local **l_out)
{
    struct zb_v_local *l = zb_alloc(sizeof(*l));
    size_t n = (size_t)v->p * (size_t)v->len;

    if (l == NULL) {
        return ZB_ENOMEM;
    }
    l->v = v;
    l->n = (int32_t)n;
    l->seq = zb_alloc_array(n, sizeof(*l->seq));
    l->at = zb_alloc_array(n, sizeof(*l->at));
    l->type = zb_alloc_array(n, sizeof(*l->type));
    l->start = zb_alloc_array(n, sizeof(*l->start));
    l->tail = zb_alloc_array(n, sizeof(*l->tail));
    l->mem_after = zb_alloc_array(n, sizeof(*l->mem_after));
    l->is_queued = zb_alloc_array(n, sizeof(*l->is_queued));
    l->is_changed = zb_alloc_array(n, sizeof(*l->is_changed));
    l->changes = zb_alloc_array(n, sizeof(*l->changes));
    l->heap = zb_alloc_array(n, sizeof(*l->heap));
    l->next = zb_alloc_array((size_t)v->p, sizeof(*l->next));
    if (l->seq == NULL || l->at == NULL || l->type == NULL ||
        l->start == NULL || l->tail == NULL || l->mem_after == NULL ||
        l->is_queued == NULL || l->is_changed == NULL || l->changes == NULL ||
        l->heap == NULL || l->next == NULL) {
        zb_v_local_free(l);
        return ZB_ENOMEM;
    }
    *l_out = l;
    return ZB_OK;
}

void zb_v_local_free(struct zb_v_local *l)
{
    if (l == NULL) {
        return;
    }
    zb_free(l->seq);
    zb_free(l->at);
    zb_free(l->type);
    zb_free(l->start);
    zb_free(l->tail);
    zb_free(l->mem_after);
    zb_free(l->is_queued);
    zb_free(l->is_changed);
    zb_free(l->changes);
    zb_free(l->heap);
    zb_free(l->next);
    zb_free(l);
}
