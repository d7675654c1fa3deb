/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zb/compare.h"

#include <math.h>

#include "zb/mem.h"

#define NOWHERE ((size_t)-1)

/* One node's place in time, nanoseconds from the origin. */
struct bar {
    double start, end;
};

struct job {
    const struct zb_schedule *sched;
    const struct zb_node_times *times;
    double c_ns; /* of a message, as planned */
    size_t *f_at, *b_at; /* [n_virtual * n_micro] index of F, of B or BW */
    struct zb_comparison *c;
};

const char *zb_delay_cause_str(enum zb_delay_cause cause)
{
    static const char *const name[] = {"none", "late input", "order",
                                       "own time"};

    return name[cause];
}

/* ---- the frame ----------------------------------------------------------- */

static enum zb_status check_sizes(const struct zb_schedule *sched,
                                  const struct zb_node_times *times)
{
    for (int i = 0; i < sched->n_stage; i++) {
        if (times[i].n != sched->stages[i].n) {
            return zb_fail(ZB_EINVAL,
                           "times of %zu nodes, but stage %d has %zu",
                           times[i].n, i, sched->stages[i].n);
        }
    }
    return ZB_OK;
}

static enum zb_status alloc_result(struct job *j)
{
    int n_stage = j->sched->n_stage;
    struct zb_comparison *c = zb_alloc(sizeof(*c));

    j->c = c;
    if (c == NULL) {
        return ZB_ENOMEM;
    }
    c->n_stage = n_stage;
    c->stage = zb_alloc_array((size_t)n_stage, sizeof(*c->stage));
    c->node = zb_alloc_array((size_t)n_stage, sizeof(*c->node));
    if (c->stage == NULL || c->node == NULL) {
        return ZB_ENOMEM;
    }
    for (int i = 0; i < n_stage; i++) {
        c->node[i] =
            zb_alloc_array(j->sched->stages[i].n, sizeof(*c->node[i]));
        if (c->node[i] == NULL) {
            return ZB_ENOMEM;
        }
    }
    return ZB_OK;
}

void zb_comparison_free(struct zb_comparison *c)
{
    if (c == NULL) {
        return;
    }
    for (int i = 0; c->node != NULL && i < c->n_stage; i++) {
        zb_free(c->node[i]);
    }
    zb_free(c->node);
    zb_free(c->stage);
    zb_free(c);
}

/* ---- who needs whom ------------------------------------------------------ */

static size_t cell(const struct zb_schedule *s, int virt, int mb)
{
    return (size_t)virt * (size_t)s->n_micro + (size_t)mb;
}

static enum zb_status index_nodes(struct job *j)
{
    const struct zb_schedule *s = j->sched;
    size_t cells =
        (size_t)s->n_stage * (size_t)s->n_chunk * (size_t)s->n_micro;

    j->f_at = zb_alloc_array(cells, sizeof(*j->f_at));
    j->b_at = zb_alloc_array(cells, sizeof(*j->b_at));
    if (j->f_at == NULL || j->b_at == NULL) {
        return ZB_ENOMEM;
    }
    for (size_t i = 0; i < cells; i++) {
        j->f_at[i] = j->b_at[i] = NOWHERE;
    }
    for (int i = 0; i < s->n_stage; i++) {
        for (size_t k = 0; k < s->stages[i].n; k++) {
            const struct zb_node *nd = &s->stages[i].node[k];
            int virt = zb_virtual_stage(s->placement, s->n_stage, i, nd->chunk);

            if (nd->type == ZB_NODE_F) {
                j->f_at[cell(s, virt, nd->mb)] = k;
            } else if (nd->type == ZB_NODE_B || nd->type == ZB_NODE_BW) {
                j->b_at[cell(s, virt, nd->mb)] = k;
            }
        }
    }
    return ZB_OK;
}

/* The node on another stage that makes a node's message; NOWHERE: none. */
static size_t producer(const struct job *j, int stage, const struct zb_node *nd,
                       int *stage_out)
{
    const struct zb_schedule *s = j->sched;
    int step = nd->type == ZB_NODE_F ? -1 : 1, chunk;
    int virt = zb_virtual_stage(s->placement, s->n_stage, stage, nd->chunk);

    virt += step;
    if (nd->type == ZB_NODE_W || virt < 0 || virt >= s->n_stage * s->n_chunk) {
        return NOWHERE;
    }
    zb_virtual_to_local(s->placement, s->n_stage, virt, stage_out, &chunk);
    if (*stage_out == stage) {
        return NOWHERE;
    }
    return (step < 0 ? j->f_at : j->b_at)[cell(s, virt, nd->mb)];
}

/* ---- two clocks made one ------------------------------------------------- */

struct extent {
    double planned_first, planned_work, ran_work;
    int64_t ran_first;
};

static struct extent measure(const struct job *j)
{
    struct extent e = {INFINITY, 0, 0, INT64_MAX};

    for (int i = 0; i < j->sched->n_stage; i++) {
        const struct zb_node_times *t = &j->times[i];

        for (size_t k = 0; k < t->n; k++) {
            const struct zb_node *nd = &j->sched->stages[i].node[k];

            if (zb_node_is_compute(nd->type)) {
                e.planned_first = fmin(e.planned_first, nd->start);
                e.planned_work += nd->end - nd->start;
                e.ran_work += (double)(t->end_ns[k] - t->start_ns[k]);
                e.ran_first = t->start_ns[k] < e.ran_first ? t->start_ns[k]
                                                           : e.ran_first;
            }
        }
    }
    return e;
}

static void align(struct job *j, double c_cost, double ns_per_cost)
{
    struct extent e = measure(j);
    struct zb_comparison *c = j->c;

    c->is_fitted = !(ns_per_cost > 0);
    if (e.ran_first == INT64_MAX) {
        return; /* no nodes */
    }
    c->ns_per_cost = ns_per_cost > 0      ? ns_per_cost
                     : e.planned_work > 0 ? e.ran_work / e.planned_work
                                          : 0;
    c->origin_ns = e.ran_first - llround(e.planned_first * c->ns_per_cost);
    j->c_ns = c_cost * c->ns_per_cost;
}

static struct bar planned(const struct job *j, int stage, size_t k)
{
    const struct zb_node *nd = &j->sched->stages[stage].node[k];

    return (struct bar){nd->start * j->c->ns_per_cost,
                        nd->end * j->c->ns_per_cost};
}

static struct bar ran(const struct job *j, int stage, size_t k)
{
    const struct zb_node_times *t = &j->times[stage];

    return (struct bar){(double)(t->start_ns[k] - j->c->origin_ns),
                        (double)(t->end_ns[k] - j->c->origin_ns)};
}

/* ---- causes -------------------------------------------------------------- */

/* The time between two nodes of a device, to the message if it came after the
 * device was free, else to the order. */
struct gap {
    double input, order;
};

static struct gap gap_before(double start, double free_at, double arrival)
{
    double wait = start - free_at;

    return arrival > free_at ? (struct gap){wait, 0} : (struct gap){0, wait};
}

static void blame(struct zb_node_delay *d, int stage, size_t k, size_t before,
                  int from_stage, size_t from)
{
    double order = d->carried_ns + d->order_ns, most = 0;

    d->from_stage = stage;
    d->from_node = k;
    if (d->delay_ns <= 0) {
        return;
    }
    if (d->own_ns > most) {
        most = d->own_ns;
        d->cause = ZB_DELAY_OWN;
    }
    if (order > most) {
        most = order;
        d->cause = ZB_DELAY_ORDER;
        d->from_node = before != NOWHERE ? before : k;
    }
    if (d->input_ns > most && from != NOWHERE) {
        d->cause = ZB_DELAY_INPUT;
        d->from_stage = from_stage;
        d->from_node = from;
    }
}

/* `before` is the compute node before k on the stage. */
static void judge(const struct job *j, int stage, size_t k, size_t before)
{
    struct zb_node_delay *d = &j->c->node[stage][k];
    struct bar p = planned(j, stage, k), r = ran(j, stage, k);
    double p_free = 0, r_free = 0, p_arrival = -INFINITY, r_arrival = -INFINITY;
    int from_stage = stage;
    size_t from =
        producer(j, stage, &j->sched->stages[stage].node[k], &from_stage);
    struct gap in_plan, in_run;

    if (before != NOWHERE) {
        p_free = planned(j, stage, before).end;
        r_free = ran(j, stage, before).end;
    }
    if (from != NOWHERE) {
        p_arrival = planned(j, from_stage, from).end + j->c_ns;
        r_arrival = ran(j, from_stage, from).end + j->c_ns;
    }
    in_plan = gap_before(p.start, p_free, p_arrival);
    in_run = gap_before(r.start, r_free, r_arrival);
    d->carried_ns = r_free - p_free;
    d->input_ns = in_run.input - in_plan.input;
    d->order_ns = in_run.order - in_plan.order;
    d->own_ns = (r.end - r.start) - (p.end - p.start);
    d->delay_ns = r.end - p.end;
    d->input_stage = from != NOWHERE ? from_stage : -1;
    d->input_node = from != NOWHERE ? from : 0;
    blame(d, stage, k, before, from_stage, from);
}

static void judge_stage(const struct job *j, int stage)
{
    const struct zb_stage_nodes *nodes = &j->sched->stages[stage];
    struct zb_stage_delay *sum = &j->c->stage[stage];
    size_t before = NOWHERE;

    for (size_t k = 0; k < nodes->n; k++) {
        const struct zb_node_delay *d = &j->c->node[stage][k];

        if (!zb_node_is_compute(nodes->node[k].type)) {
            continue;
        }
        judge(j, stage, k, before);
        sum->input_ns += d->input_ns;
        sum->order_ns += d->order_ns;
        sum->own_ns += d->own_ns;
        sum->delay_ns = d->delay_ns;
        j->c->planned_ns =
            fmax(j->c->planned_ns, planned(j, stage, k).end);
        j->c->ran_ns = fmax(j->c->ran_ns, ran(j, stage, k).end);
        before = k;
    }
}

enum zb_status zb_compare(const struct zb_schedule *sched,
                          const struct zb_node_times *times, double c_cost,
                          double ns_per_cost, struct zb_comparison **c_out)
{
    struct job j = {.sched = sched, .times = times};
    enum zb_status st;

    ZB_TRY(check_sizes(sched, times));
    ZB_TRY_GOTO(st, alloc_result(&j), out);
    ZB_TRY_GOTO(st, index_nodes(&j), out);
    align(&j, c_cost, ns_per_cost);
    for (int i = 0; i < sched->n_stage; i++) {
        judge_stage(&j, i);
    }
    *c_out = j.c;
    j.c = NULL;
out:
    zb_comparison_free(j.c);
    zb_free(j.f_at);
    zb_free(j.b_at);
    return st;
}

/* ---- the worst ----------------------------------------------------------- */

/* Insert into the list, which is sorted; returns its new length. */
static size_t insert(struct zb_worst_delay *list, size_t n, size_t max,
                     struct zb_worst_delay w)
{
    size_t at = n < max ? n : max - 1;

    if (w.ns <= 0 || max == 0 || (n == max && list[n - 1].ns >= w.ns)) {
        return n;
    }
    while (at > 0 && list[at - 1].ns < w.ns) {
        list[at] = list[at - 1];
        at--;
    }
    list[at] = w;
    return n < max ? n + 1 : n;
}

size_t zb_comparison_worst(const struct zb_comparison *c,
                           const struct zb_schedule *sched,
                           struct zb_worst_delay *worst, size_t max)
{
    size_t n = 0;

    for (int i = 0; i < c->n_stage; i++) {
        for (size_t k = 0; k < sched->stages[i].n; k++) {
            const struct zb_node_delay *d = &c->node[i][k];
            struct zb_worst_delay w = {i, k, ZB_DELAY_INPUT, d->input_ns};

            n = insert(worst, n, max, w);
            w.cause = ZB_DELAY_ORDER;
            w.ns = d->order_ns;
            n = insert(worst, n, max, w);
            w.cause = ZB_DELAY_OWN;
            w.ns = d->own_ns;
            n = insert(worst, n, max, w);
        }
    }
    return n;
}
