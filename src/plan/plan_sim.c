/* SPDX-License-Identifier: MIT
 *
 * Times and memory of a schedule whose order is given.
 */
#include "config.h"
#include "plan/plan_int.h"

#include <math.h>
#include <stdio.h>

#include "zb/mem.h"

#define NOT_YET (-1.0)
#define NODE_TEXT_MAX 160

struct sim {
    struct zb_schedule *s;
    const struct zb_plan_input *in;
    double *f_end, *b_end; /* [n_virtual * n_micro], NOT_YET until it ended */
    size_t *at;            /* [n_stage] */
    double *clock;         /* [n_stage] */
    int *todo;             /* [n_stage] stack of stages that may move */
    unsigned char *is_todo;
    int n_todo;
};

static void sim_release(struct sim *m)
{
    zb_free(m->f_end);
    zb_free(m->b_end);
    zb_free(m->at);
    zb_free(m->clock);
    zb_free(m->todo);
    zb_free(m->is_todo);
}

static enum zb_status sim_init(struct sim *m, struct zb_schedule *s,
                               const struct zb_plan_input *in)
{
    size_t n = (size_t)s->n_stage;
    size_t cells = n * (size_t)s->n_chunk * (size_t)s->n_micro;

    *m = (struct sim){.s = s, .in = in};
    m->f_end = zb_alloc_array(cells, sizeof(*m->f_end));
    m->b_end = zb_alloc_array(cells, sizeof(*m->b_end));
    m->at = zb_alloc_array(n, sizeof(*m->at));
    m->clock = zb_alloc_array(n, sizeof(*m->clock));
    m->todo = zb_alloc_array(n, sizeof(*m->todo));
    m->is_todo = zb_alloc_array(n, 1);
    if (m->f_end == NULL || m->b_end == NULL || m->at == NULL ||
        m->clock == NULL || m->todo == NULL || m->is_todo == NULL) {
        sim_release(m);
        return ZB_ENOMEM;
    }
    for (size_t i = 0; i < cells; i++) {
        m->f_end[i] = m->b_end[i] = NOT_YET;
    }
    return ZB_OK;
}

static size_t cell(const struct zb_schedule *s, int virt, int mb)
{
    return (size_t)virt * (size_t)s->n_micro + (size_t)mb;
}

static void wake(struct sim *m, int virt)
{
    int stage, chunk;

    if (virt < 0 || virt >= m->s->n_stage * m->s->n_chunk) {
        return;
    }
    zb_plan_local(m->s, virt, &stage, &chunk);
    if (!m->is_todo[stage]) {
        m->is_todo[stage] = 1;
        m->todo[m->n_todo++] = stage;
    }
}

/* When the inputs of a node are on its stage; NOT_YET when unknown. What is on
 * the node's own stage is there: the streams were checked. */
static double ready(const struct sim *m, int stage, const struct zb_node *node)
{
    const struct zb_schedule *s = m->s;
    int step = node->type == ZB_NODE_F ? -1 : 1;
    int virt = zb_plan_virtual(s, stage, node->chunk);
    int from = virt + step, from_stage, from_chunk;
    double end;

    if (node->type == ZB_NODE_W || from < 0 ||
        from >= s->n_stage * s->n_chunk) {
        return 0;
    }
    end = (step < 0 ? m->f_end : m->b_end)[cell(s, from, node->mb)];
    zb_plan_local(s, from, &from_stage, &from_chunk);
    return end < 0 || from_stage == stage ? end : end + m->in->c_cost;
}

static double cost_of(const struct zb_plan_input *in, enum zb_node_type type,
                      int virt)
{
    switch (type) {
    case ZB_NODE_F:
        return in->f_cost[virt];
    case ZB_NODE_B:
        return in->b_cost[virt];
    case ZB_NODE_W:
        return in->w_cost[virt];
    default:
        return in->b_cost[virt] + in->w_cost[virt];
    }
}

static void record_end(struct sim *m, int stage, const struct zb_node *node)
{
    int virt = zb_plan_virtual(m->s, stage, node->chunk);

    if (node->type == ZB_NODE_F) {
        m->f_end[cell(m->s, virt, node->mb)] = node->end;
        wake(m, virt + 1);
    } else if (node->type != ZB_NODE_W) {
        m->b_end[cell(m->s, virt, node->mb)] = node->end;
        wake(m, virt - 1);
    }
}

/* Let a stage go on as far as it can. */
static void run_stage(struct sim *m, int stage)
{
    struct zb_stage_nodes *st = &m->s->stages[stage];
    struct zb_node *node;
    double t;
    int virt;

    for (; m->at[stage] < st->n; m->at[stage]++) {
        node = &st->node[m->at[stage]];
        if (!zb_node_is_compute(node->type)) {
            node->start = node->end = m->clock[stage];
            continue;
        }
        t = ready(m, stage, node);
        if (t < 0) {
            return;
        }
        virt = zb_plan_virtual(m->s, stage, node->chunk);
        node->start = fmax(t, m->clock[stage]);
        node->end = node->start + cost_of(m->in, node->type, virt);
        m->clock[stage] = node->end;
        record_end(m, stage, node);
    }
}

static enum zb_status run_all(struct sim *m)
{
    const struct zb_schedule *s = m->s;
    char text[NODE_TEXT_MAX];

    for (int i = s->n_stage - 1; i >= 0; i--) {
        wake(m, zb_plan_virtual(s, i, 0));
    }
    while (m->n_todo > 0) {
        int stage = m->todo[--m->n_todo];

        m->is_todo[stage] = 0;
        run_stage(m, stage);
    }
    for (int i = 0; i < s->n_stage; i++) {
        if (m->at[i] < s->stages[i].n) {
            zb_plan_node_text(s, i, m->at[i], text, sizeof(text));
            return zb_fail(ZB_ECONFIG, "%s waits for ever for its input", text);
        }
    }
    return ZB_OK;
}

/* A message happens when the node that makes it ends. */
static void time_messages(struct sim *m)
{
    struct zb_schedule *s = m->s;

    for (int i = 0; i < s->n_stage; i++) {
        for (size_t j = 0; j < s->stages[i].n; j++) {
            struct zb_node *node = &s->stages[i].node[j];
            int virt = zb_plan_virtual(s, i, node->chunk);

            switch (node->type) {
            case ZB_NODE_SEND_FORWARD:
                node->end = m->f_end[cell(s, virt, node->mb)];
                break;
            case ZB_NODE_RECV_FORWARD:
                node->end = m->f_end[cell(s, virt - 1, node->mb)];
                break;
            case ZB_NODE_SEND_BACKWARD:
                node->end = m->b_end[cell(s, virt, node->mb)];
                break;
            case ZB_NODE_RECV_BACKWARD:
                node->end = m->b_end[cell(s, virt + 1, node->mb)];
                break;
            default:
                continue;
            }
            node->start = node->end;
        }
    }
}

enum zb_status zb_schedule_simulate(struct zb_schedule *s,
                                    const struct zb_plan_input *in)
{
    struct sim m;
    enum zb_status st;

    ZB_TRY(zb_plan_input_check(in));
    ZB_TRY(zb_plan_input_fits(in, s));
    ZB_TRY(zb_plan_check_streams(s, 0));
    ZB_TRY(sim_init(&m, s, in));
    st = run_all(&m);
    if (st == ZB_OK) {
        time_messages(&m);
        zb_plan_measure(s);
        zb_plan_measure_memory(s, in);
    }
    sim_release(&m);
    return st;
}

void zb_plan_measure(struct zb_schedule *s)
{
    double busiest = 0;

    s->makespan = s->span = 0;
    for (int i = 0; i < s->n_stage; i++) {
        double work = 0, first = INFINITY, last = 0;

        for (size_t j = 0; j < s->stages[i].n; j++) {
            const struct zb_node *node = &s->stages[i].node[j];

            if (zb_node_is_compute(node->type)) {
                work += node->end - node->start;
                first = fmin(first, node->start);
                last = fmax(last, node->end);
            }
        }
        s->makespan = fmax(s->makespan, last);
        s->span = fmax(s->span, last - first);
        busiest = fmax(busiest, work);
    }
    s->bubble_rate = s->makespan > 0 ? 1 - busiest / s->makespan : 0;
}

double zb_plan_node_mem(const struct zb_schedule *s,
                        const struct zb_plan_input *in, int stage,
                        const struct zb_node *node)
{
    int virt;

    if (!zb_node_is_compute(node->type)) {
        return 0;
    }
    virt = zb_plan_virtual(s, stage, node->chunk);
    switch (node->type) {
    case ZB_NODE_F:
        return in->f_mem[virt];
    case ZB_NODE_B:
        return in->b_mem[virt];
    case ZB_NODE_W:
        return in->w_mem[virt];
    default:
        return in->b_mem[virt] + in->w_mem[virt];
    }
}

double zb_plan_node_need(const struct zb_schedule *s,
                         const struct zb_plan_input *in, int stage,
                         const struct zb_node *node)
{
    int virt = zb_plan_virtual(s, stage, node->chunk);

    switch (node->type) {
    case ZB_NODE_F:
        return in->f_mem[virt];
    case ZB_NODE_B:
    case ZB_NODE_BW:
        return fmax(0, in->b_mem[virt]);
    default:
        return 0;
    }
}

void zb_plan_measure_memory(struct zb_schedule *s,
                            const struct zb_plan_input *in)
{
    for (int i = 0; i < s->n_stage; i++) {
        double mem = 0, peak = 0;

        for (size_t j = 0; j < s->stages[i].n; j++) {
            const struct zb_node *node = &s->stages[i].node[j];

            peak = fmax(peak, mem + zb_plan_node_need(s, in, i, node));
            mem += zb_plan_node_mem(s, in, i, node);
        }
        s->peak_mem[i] = s->is_forward_only ? 0 : peak;
    }
}

/* ---- times that came with a schedule ---- */

static void collect_ends(struct sim *m)
{
    const struct zb_schedule *s = m->s;

    for (int i = 0; i < s->n_stage; i++) {
        for (size_t j = 0; j < s->stages[i].n; j++) {
            const struct zb_node *node = &s->stages[i].node[j];
            size_t at;

            if (!zb_node_is_compute(node->type)) {
                continue;
            }
            at = cell(s, zb_plan_virtual(s, i, node->chunk), node->mb);
            if (node->type == ZB_NODE_F) {
                m->f_end[at] = node->end;
            } else if (node->type != ZB_NODE_W) {
                m->b_end[at] = node->end;
            }
        }
    }
}

static int stage_times_ok(const struct sim *m, int stage, double rounding)
{
    const struct zb_stage_nodes *st = &m->s->stages[stage];
    double clock = 0;

    for (size_t j = 0; j < st->n; j++) {
        const struct zb_node *node = &st->node[j];
        int may_be_empty = node->type == ZB_NODE_W;

        if (!zb_node_is_compute(node->type)) {
            continue;
        }
        if (!isfinite(node->end) ||
            !(node->start >= fmax(clock, ready(m, stage, node)) - rounding) ||
            !(may_be_empty ? node->end >= node->start
                           : node->end > node->start)) {
            return 0;
        }
        clock = node->end;
    }
    return 1;
}

enum zb_status zb_plan_times_ok(const struct zb_schedule *s, int *is_ok_out)
{
    static const struct zb_plan_input no_latency;
    struct zb_schedule view = *s;
    struct sim m;
    int is_ok = 1;

    ZB_TRY(sim_init(&m, &view, &no_latency));
    collect_ends(&m);
    zb_plan_measure(&view);
    for (int i = 0; i < s->n_stage && is_ok; i++) {
        is_ok = stage_times_ok(&m, i, 1e-12 * view.makespan);
    }
    sim_release(&m);
    *is_ok_out = is_ok;
    return ZB_OK;
}
