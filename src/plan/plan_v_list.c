/* SPDX-License-Identifier: MIT
 *
 * Orders from rules: a list scheduler in the order of time.
 *
 * Every stage has a time at which it decides next; the earliest of all decides,
 * and appends a node or goes to sleep until an input arrives. What is appended
 * starts no earlier than now, so a stage that decides at a time knows all
 * inputs that are there by then.
 *
 * Memory. F of the left leg only starts when, with all waiting Ws done, there
 * is still room for one F of the right leg, and for the B that needs most, if
 * one needs any. The oldest microbatch can then always go on: whatever younger
 * ones hold was there when that room was left, and older ones hold nothing any
 * more.
 */
#include "config.h"
#include "plan/plan_v.h"

#include <math.h>
#include <string.h>

#include "zb/mem.h"

#define NOT_YET (-1.0)

enum {
    N_PASSES = ZB_V_B1 + 1, /* F0, F1, B0, B1 */
    N_RECENT = 64
};

/* Where a stage stands. */
struct stage {
    double clock;
    double mem;
    double waiting; /* what all Ws that may run would free */
    double ready[N_PASSES]; /* when the input of the next one is there;
                             * NOT_YET: unknown */
    int n[ZB_V_N_TYPES];
    int len; /* of the order so far */
    /* Its end, from the last multiple of N_RECENT on: stages write in turns,
     * and their places in the order may all be in the same sets of a cache. */
    uint8_t recent[N_RECENT];
};

struct zb_v_lister {
    const struct zb_v *v;
    const struct zb_v_rule *rule;
    struct stage *stage; /* [p] */
    double *end;         /* [p][N_PASSES][row] ends of the passes */
    size_t row;          /* from one type to the next */
    /* A tree over the stages: who decides first below a node, and when. The
     * root is 1, the children of i are 2i and 2i + 1, leaves the stages. */
    double *wake; /* [2 * n_leaves] */
    int *first;   /* [2 * n_leaves] */
    int n_leaves;
    double (*time)[ZB_V_N_TYPES]; /* [p] of microbatch 0 in the pattern */
    uint8_t *order;
};

enum zb_status zb_v_lister_new(const struct zb_v *v,
                               struct zb_v_lister **l_out)
{
    struct zb_v_lister *l = zb_alloc(sizeof(*l));
    size_t p = (size_t)v->p;

    if (l == NULL) {
        return ZB_ENOMEM;
    }
    l->v = v;
    l->row = zb_v_row_length(v->m);
    for (l->n_leaves = 1; l->n_leaves < v->p;) {
        l->n_leaves *= 2;
    }
    l->stage = zb_alloc_array(p, sizeof(*l->stage));
    l->end = zb_alloc_array(p * N_PASSES * l->row, sizeof(*l->end));
    l->wake = zb_alloc_array(2 * (size_t)l->n_leaves, sizeof(*l->wake));
    l->first = zb_alloc_array(2 * (size_t)l->n_leaves, sizeof(*l->first));
    l->time = zb_alloc_array(p, sizeof(*l->time));
    if (l->stage == NULL || l->end == NULL || l->wake == NULL ||
        l->first == NULL || l->time == NULL) {
        zb_v_lister_free(l);
        return ZB_ENOMEM;
    }
    *l_out = l;
    return ZB_OK;
}

void zb_v_lister_free(struct zb_v_lister *l)
{
    if (l == NULL) {
        return;
    }
    zb_free(l->stage);
    zb_free(l->end);
    zb_free(l->wake);
    zb_free(l->first);
    zb_free(l->time);
    zb_free(l);
}

/* ---- who decides next ---- */

static double wake_of(const struct zb_v_lister *l, int s)
{
    return l->wake[l->n_leaves + s];
}

/* Equal times go to the stage nearer the turn: it feeds the others. */
static void play(struct zb_v_lister *l, int at)
{
    int from = 2 * at;

    from += l->wake[from + 1] <= l->wake[from];
    l->wake[at] = l->wake[from];
    l->first[at] = l->first[from];
}

static void wake_at(struct zb_v_lister *l, int s, double time)
{
    int at = l->n_leaves + s;

    l->wake[at] = time;
    while ((at /= 2) > 0) {
        int was = l->first[at];

        play(l, at);
        if (was != s && l->first[at] != s) {
            break; /* nothing changes above */
        }
    }
}

/* Only stage 0 has something to do. */
static void reset_tree(struct zb_v_lister *l)
{
    for (int i = 0; i < l->n_leaves; i++) {
        l->wake[l->n_leaves + i] = i == 0 ? 0 : INFINITY;
        l->first[l->n_leaves + i] = i;
    }
    for (int at = l->n_leaves - 1; at > 0; at--) {
        play(l, at);
    }
}

/* ---- the pattern ---- */

/* Delay of each type along the way of a microbatch. */
void zb_v_pattern_times(const struct zb_v *v, const struct zb_v_rule *r,
                        double (*time)[ZB_V_N_TYPES])
{
    /* In the order in which a microbatch goes through them. */
    static const int leg[4] = {ZB_V_F0, ZB_V_F1, ZB_V_B1, ZB_V_B0};
    double t = 0;

    for (int i = 0; i < 4; i++) {
        int is_up = leg[i] == ZB_V_F1 || leg[i] == ZB_V_B0;

        for (int k = 0; k < v->p; k++) {
            int s = is_up ? v->p - 1 - k : k;

            time[s][leg[i]] = t;
            t += r->stretch[i] * (v->cost[s][leg[i]] + v->c);
        }
        t += i < 3 ? r->gap[i] * v->work : 0;
    }
}

/* ---- choosing ---- */

static double *end_of(const struct zb_v_lister *l, int s, int type, int k)
{
    return &l->end[((size_t)s * N_PASSES + (size_t)type) * l->row + (size_t)k];
}

/* When the input of the next node of a type is there; NOT_YET if unknown. */
static double ready(const struct zb_v_lister *l, int s, int type)
{
    int peer = s + zb_v_input_step[type], k = l->stage[s].n[type];
    double end;

    if (k == l->v->m) {
        return NOT_YET;
    }
    if (peer < 0 || peer == l->v->p) {
        int own = zb_v_needs[type];

        return own < 0 ? 0 : *end_of(l, s, own, k);
    }
    end = *end_of(l, peer, type, k);
    return end < 0 ? end : end + l->v->c;
}

/* The W whose B came first; -1: none waits. */
static int oldest_w(const struct zb_v_lister *l, int s)
{
    const struct stage *st = &l->stage[s];
    int has0 = st->n[ZB_V_W0] < st->n[ZB_V_B0];
    int has1 = st->n[ZB_V_W1] < st->n[ZB_V_B1];

    if (has0 && has1) {
        return *end_of(l, s, ZB_V_B0, st->n[ZB_V_W0]) <
                       *end_of(l, s, ZB_V_B1, st->n[ZB_V_W1])
                   ? ZB_V_W0
                   : ZB_V_W1;
    }
    return has0 ? ZB_V_W0 : has1 ? ZB_V_W1 : -1;
}

/* Whether F or B may start: 0 no, 1 yes, 2 after some W. */
static int has_room(const struct zb_v_lister *l, int s, int type)
{
    const struct zb_v *v = l->v;
    const struct stage *st = &l->stage[s];
    double need = st->mem + v->mem[s][type];
    double reserve = type == ZB_V_F0 ? v->mem[s][ZB_V_F1] : 0;

    if (type <= ZB_V_F1) {
        reserve += fmax(0, fmax(v->mem[s][ZB_V_B0], v->mem[s][ZB_V_B1]));
    }

    if (need + st->waiting + reserve > v->limit[s]) {
        return 0;
    }
    return need > v->limit[s] ? 2 : 1;
}

struct choice {
    int type; /* -1: none */
    double start, prio;
};

/* The best node that may start now, and the best of those that come later. */
static void look(const struct zb_v_lister *l, int s, struct choice *now,
                 struct choice *later)
{
    const struct stage *st = &l->stage[s];
    double clock = wake_of(l, s);

    *now = *later = (struct choice){.type = -1, .start = INFINITY,
                                    .prio = INFINITY};
    for (int t = ZB_V_F0; t <= ZB_V_B1; t++) {
        int room;
        struct choice c = {.type = t, .start = st->ready[t]};

        if (c.start == NOT_YET || (t >= ZB_V_B0 && st->n[t] == st->n[t - 2])) {
            continue;
        }
        c.prio = st->n[t] * l->v->work + l->time[s][t];
        room = has_room(l, s, t);
        if (room == 0) {
            continue;
        }
        if (t == ZB_V_F0 && c.prio > clock + l->rule->ahead * l->v->work) {
            c.start = fmax(c.start, c.prio - l->rule->ahead * l->v->work);
        }
        if (room == 2) {
            c.type = oldest_w(l, s);
        }
        if (c.start <= clock) {
            if (c.prio < now->prio) {
                *now = c;
            }
        } else if (c.start < later->start ||
                   (c.start == later->start && c.prio < later->prio)) {
            *later = c;
        }
    }
}

/* The input of the next node of a type is there. */
static void feed(struct zb_v_lister *l, int s, int type, double time)
{
    double next = fmax(time, l->stage[s].clock);

    l->stage[s].ready[type] = time;
    if (wake_of(l, s) > next) {
        wake_at(l, s, next);
    }
}

/* What the k-th pass of a type is the input of, if that comes next there. */
static void feed_output(struct zb_v_lister *l, int s, int type, int k)
{
    static const int turn[N_PASSES] = {[ZB_V_F0] = ZB_V_F1,
                                       [ZB_V_F1] = ZB_V_B1,
                                       [ZB_V_B1] = ZB_V_B0,
                                       [ZB_V_B0] = -1};
    int peer = s - zb_v_input_step[type];
    double end = *end_of(l, s, type, k);

    if (peer >= 0 && peer < l->v->p) {
        if (l->stage[peer].n[type] == k) {
            feed(l, peer, type, end + l->v->c);
        }
    } else if (turn[type] >= 0 && l->stage[s].n[turn[type]] == k) {
        l->stage[s].ready[turn[type]] = end;
    }
}

/* Put a stage's recent nodes into the order, when they are n in all. */
static void flush(struct zb_v_lister *l, int s, int n)
{
    const struct stage *st = &l->stage[s];
    size_t at = (size_t)s * (size_t)l->v->len + (size_t)(st->len - n);

    memcpy(&l->order[at], st->recent, (size_t)n);
}

static void append(struct zb_v_lister *l, int s, int type)
{
    const struct zb_v *v = l->v;
    struct stage *st = &l->stage[s];
    double end = wake_of(l, s) + v->cost[s][type];
    int k = st->n[type]++;

    st->recent[st->len++ % N_RECENT] = (uint8_t)type;
    if (st->len % N_RECENT == 0) {
        flush(l, s, N_RECENT);
    }
    st->clock = end;
    st->mem += v->mem[s][type];
    if (type >= ZB_V_W0) {
        st->waiting -= v->mem[s][type];
    } else {
        *end_of(l, s, type, k) = end;
        if (type >= ZB_V_B0) {
            st->waiting += v->mem[s][type + 2];
        }
        st->ready[type] = ready(l, s, type);
        feed_output(l, s, type, k);
    }
    wake_at(l, s, end);
}

/* Whether to wait for a node of better priority that comes soon. */
static int is_patient(const struct zb_v_lister *l, int s,
                      const struct choice *now, const struct choice *later)
{
    return later->type >= 0 && later->type < ZB_V_W0 &&
           later->prio < now->prio &&
           later->start - wake_of(l, s) <
               l->rule->patience * l->v->cost[s][later->type];
}

static void decide(struct zb_v_lister *l, int s)
{
    struct choice now, later;
    int w = oldest_w(l, s);

    look(l, s, &now, &later);
    if (now.type >= 0 && !is_patient(l, s, &now, &later)) {
        append(l, s, now.type);
    } else if (w >= 0 && later.start - wake_of(l, s) >=
                             l->rule->w_gap * l->v->cost[s][w]) {
        append(l, s, w);
    } else {
        wake_at(l, s, later.start);
    }
}

static void start(struct zb_v_lister *l)
{
    const struct zb_v *v = l->v;
    size_t n = (size_t)v->p * N_PASSES * l->row;

    for (size_t i = 0; i < n; i++) {
        l->end[i] = NOT_YET;
    }
    for (int s = 0; s < v->p; s++) {
        l->stage[s] = (struct stage){
            .ready = {s == 0 ? 0 : NOT_YET, NOT_YET, NOT_YET, NOT_YET}};
    }
    reset_tree(l);
}

double zb_v_list(struct zb_v_lister *l, const struct zb_v_rule *rule,
                 struct zb_v_budget *b, uint8_t *order)
{
    const struct zb_v *v = l->v;
    double value = 0;
    int64_t n = (int64_t)v->p * v->len;

    l->rule = rule;
    l->order = order;
    start(l);
    zb_v_pattern_times(v, rule, l->time);
    while (!isinf(l->wake[1])) {
        decide(l, l->first[1]);
    }
    b->moves -= n;
    for (int s = 0; s < v->p; s++) {
        const int *done = l->stage[s].n;

        flush(l, s, l->stage[s].len % N_RECENT);
        if (done[ZB_V_W0] < v->m || done[ZB_V_W1] < v->m) {
            return INFINITY;
        }
        value = fmax(value, l->stage[s].clock + v->offset[s]);
    }
    return value;
}
