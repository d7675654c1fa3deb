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

#include "zb/mem.h"

#define NOT_YET (-1.0)

/* Where a stage stands. */
struct stage {
    double clock;
    double mem;
    double waiting; /* what all Ws that may run would free */
    int n[ZB_V_N_TYPES];
};

struct zb_v_lister {
    const struct zb_v *v;
    const struct zb_v_rule *rule;
    struct stage *stage; /* [p] */
    double *end;         /* [p][4][m] ends of F0, F1, B0, B1 */
    double *wake;        /* [p] time of the next decision */
    int *heap, *place;   /* [p] stages by wake, and where they are in it */
    int n_heap;
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
    l->stage = zb_alloc_array(p, sizeof(*l->stage));
    l->end = zb_alloc_array(p * 4 * (size_t)v->m, sizeof(*l->end));
    l->wake = zb_alloc_array(p, sizeof(*l->wake));
    l->heap = zb_alloc_array(p, sizeof(*l->heap));
    l->place = zb_alloc_array(p, sizeof(*l->place));
    l->time = zb_alloc_array(p, sizeof(*l->time));
    if (l->stage == NULL || l->end == NULL || l->wake == NULL ||
        l->heap == NULL || l->place == NULL || l->time == NULL) {
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
    zb_free(l->heap);
    zb_free(l->place);
    zb_free(l->time);
    zb_free(l);
}

/* ---- heap of stages ---- */

static void heap_put(struct zb_v_lister *l, int at, int s)
{
    l->heap[at] = s;
    l->place[s] = at;
}

/* Equal times go to the stage nearer the turn: it feeds the others. */
static int is_sooner(const struct zb_v_lister *l, int a, int b)
{
    return l->wake[a] < l->wake[b] || (l->wake[a] == l->wake[b] && a > b);
}

static void sift(struct zb_v_lister *l, int s)
{
    int at = l->place[s];

    while (at > 0 && is_sooner(l, s, l->heap[(at - 1) / 2])) {
        heap_put(l, at, l->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        int child = 2 * at + 1;

        if (child + 1 < l->n_heap &&
            is_sooner(l, l->heap[child + 1], l->heap[child])) {
            child++;
        }
        if (child >= l->n_heap || !is_sooner(l, l->heap[child], s)) {
            break;
        }
        heap_put(l, at, l->heap[child]);
        at = child;
    }
    heap_put(l, at, s);
}

static void wake_at(struct zb_v_lister *l, int s, double time)
{
    l->wake[s] = time;
    sift(l, s);
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
    return &l->end[((size_t)s * 4 + (size_t)type) * (size_t)l->v->m +
                   (size_t)k];
}

/* When the input of the next node of a type is there; NOT_YET if unknown. */
static double ready(const struct zb_v_lister *l, int s, int type)
{
    int peer = s + zb_v_input_step[type], k = l->stage[s].n[type];
    double end;

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
    double clock = l->wake[s];

    *now = *later = (struct choice){.type = -1, .start = INFINITY,
                                    .prio = INFINITY};
    for (int t = ZB_V_F0; t <= ZB_V_B1; t++) {
        int room;
        struct choice c = {.type = t};

        if (st->n[t] == l->v->m ||
            (t >= ZB_V_B0 && st->n[t] == st->n[t - 2])) {
            continue;
        }
        c.start = ready(l, s, t);
        if (c.start == NOT_YET) {
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

static void append(struct zb_v_lister *l, int s, int type)
{
    const struct zb_v *v = l->v;
    struct stage *st = &l->stage[s];
    double end = l->wake[s] + v->cost[s][type];
    int k = st->n[type]++, at = 0, peer;

    for (int t = 0; t < ZB_V_N_TYPES; t++) {
        at += st->n[t];
    }
    l->order[(size_t)s * (size_t)v->len + (size_t)at - 1] = (uint8_t)type;
    st->clock = end;
    st->mem += v->mem[s][type];
    if (type >= ZB_V_W0) {
        st->waiting -= v->mem[s][type];
    } else {
        *end_of(l, s, type, k) = end;
        if (type >= ZB_V_B0) {
            st->waiting += v->mem[s][type + 2];
        }
        peer = s - zb_v_input_step[type];
        if (peer >= 0 && peer < v->p && l->stage[peer].n[type] == k &&
            l->wake[peer] > fmax(end + v->c, l->stage[peer].clock)) {
            wake_at(l, peer, fmax(end + v->c, l->stage[peer].clock));
        }
    }
    wake_at(l, s, end);
}

/* Whether to wait for a node of better priority that comes soon. */
static int is_patient(const struct zb_v_lister *l, int s,
                      const struct choice *now, const struct choice *later)
{
    return later->type >= 0 && later->type < ZB_V_W0 &&
           later->prio < now->prio &&
           later->start - l->wake[s] <
               l->rule->patience * l->v->cost[s][later->type];
}

static void decide(struct zb_v_lister *l, int s)
{
    struct choice now, later;
    int w = oldest_w(l, s);

    look(l, s, &now, &later);
    if (now.type >= 0 && !is_patient(l, s, &now, &later)) {
        append(l, s, now.type);
    } else if (w >= 0 && later.start - l->wake[s] >=
                             l->rule->w_gap * l->v->cost[s][w]) {
        append(l, s, w);
    } else {
        wake_at(l, s, later.start);
    }
}

static void start(struct zb_v_lister *l)
{
    const struct zb_v *v = l->v;
    size_t n = (size_t)v->p * 4 * (size_t)v->m;

    for (size_t i = 0; i < n; i++) {
        l->end[i] = NOT_YET;
    }
    l->n_heap = 0;
    for (int s = 0; s < v->p; s++) {
        l->stage[s] = (struct stage){.clock = 0};
        l->wake[s] = s == 0 ? 0 : INFINITY;
        heap_put(l, l->n_heap++, s);
        sift(l, s);
    }
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
    while (!isinf(l->wake[l->heap[0]])) {
        decide(l, l->heap[0]);
    }
    b->moves -= n;
    for (int s = 0; s < v->p; s++) {
        const int *done = l->stage[s].n;

        if (done[ZB_V_W0] < v->m || done[ZB_V_W1] < v->m) {
            return INFINITY;
        }
        value = fmax(value, l->stage[s].clock + v->offset[s]);
    }
    return value;
}
