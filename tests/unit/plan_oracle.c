/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "plan_oracle.h"

#include <math.h>
#include <string.h>

#define MAX_STAGES PLAN_ORACLE_MAX_STAGES
#define MAX_VIRTUAL PLAN_ORACLE_MAX_VIRTUAL
#define MAX_MICRO PLAN_ORACLE_MAX_MICRO

/* ---- order and messages ---- */

enum thing { ACT_IN, ACT_OUT, GRAD_IN, GRAD_OUT, W_DONE, N_THINGS };

struct board {
    const struct zb_schedule *s;
    /* Who has what: [stage][thing][virtual stage][mb]. ACT_IN of v is the
     * output of v - 1 on the stage of v; GRAD_IN of v that of v + 1. */
    char has[MAX_STAGES][N_THINGS][MAX_VIRTUAL][MAX_MICRO];
    char said[MAX_STAGES][ZB_N_NODE_TYPES][MAX_VIRTUAL][MAX_MICRO];
    int slot[MAX_STAGES];
    size_t at[MAX_STAGES];
    int n_virtual;
};

static int home(const struct board *b, int virt)
{
    int p = b->s->n_stage;

    if (b->s->placement == ZB_PLACE_V && virt >= p) {
        return 2 * p - 1 - virt;
    }
    return virt % p;
}

static int virt_of(const struct board *b, int stage, int chunk)
{
    for (int v = chunk * b->s->n_stage; v < (chunk + 1) * b->s->n_stage; v++) {
        if (home(b, v) == stage) {
            return v;
        }
    }
    return -1;
}

/* Give a thing to a stage; 0 when it has it already. */
static int give(struct board *b, int stage, enum thing t, int v, int mb)
{
    if (b->has[stage][t][v][mb]) {
        return 0;
    }
    b->has[stage][t][v][mb] = 1;
    return 1;
}

static int have(const struct board *b, int stage, enum thing t, int v, int mb)
{
    return b->has[stage][t][v][mb];
}

static int play_f(struct board *b, int i, int v, int mb)
{
    int ok =
        (v == 0 || have(b, i, ACT_IN, v, mb)) && give(b, i, ACT_OUT, v, mb);

    if (ok && v + 1 < b->n_virtual && home(b, v + 1) == i) {
        ok = give(b, i, ACT_IN, v + 1, mb);
    }
    return ok;
}

static int play_b(struct board *b, int i, int v, int mb)
{
    int ok = have(b, i, ACT_OUT, v, mb) &&
             (v == b->n_virtual - 1 || have(b, i, GRAD_IN, v, mb)) &&
             give(b, i, GRAD_OUT, v, mb);

    if (ok && v > 0 && home(b, v - 1) == i) {
        ok = give(b, i, GRAD_IN, v - 1, mb);
    }
    return ok;
}

static int play_w(struct board *b, int i, int v, int mb)
{
    return have(b, i, GRAD_OUT, v, mb) && give(b, i, W_DONE, v, mb);
}

/* A message from virtual stage v on stage i arrives at its neighbour. */
static int play_message(struct board *b, int i, int is_forward, int v, int mb)
{
    int to = is_forward ? v + 1 : v - 1;

    return have(b, i, is_forward ? ACT_OUT : GRAD_OUT, v, mb) &&
           give(b, home(b, to), is_forward ? ACT_IN : GRAD_IN, to, mb);
}

static const struct zb_node *top(const struct board *b, int i)
{
    return b->at[i] < b->s->stages[i].n ? &b->s->stages[i].node[b->at[i]]
                                        : NULL;
}

/* Whether the RECV at the top of stage j is the other end of this SEND. */
static int is_pair(const struct board *b, int i, const struct zb_node *send,
                   int j)
{
    const struct zb_node *recv = top(b, j);
    int is_forward = send->type == ZB_NODE_SEND_FORWARD;
    int v = virt_of(b, i, send->chunk);
    int to = is_forward ? v + 1 : v - 1;

    return recv != NULL && i != j &&
           recv->type ==
               (is_forward ? ZB_NODE_RECV_FORWARD : ZB_NODE_RECV_BACKWARD) &&
           recv->mb == send->mb && to >= 0 && to < b->n_virtual &&
           home(b, to) == j && virt_of(b, j, recv->chunk) == to;
}

enum outcome { MOVED, STUCK, ILLEGAL };

static enum outcome compute_move(struct board *b, int i,
                                 const struct zb_node *node)
{
    int v = virt_of(b, i, node->chunk), ok;

    switch (node->type) {
    case ZB_NODE_F:
        ok = play_f(b, i, v, node->mb);
        break;
    case ZB_NODE_B:
        ok = play_b(b, i, v, node->mb);
        break;
    case ZB_NODE_W:
        ok = play_w(b, i, v, node->mb);
        break;
    default:
        ok = play_b(b, i, v, node->mb) && play_w(b, i, v, node->mb);
        break;
    }
    b->at[i]++;
    return ok ? MOVED : ILLEGAL;
}

static enum outcome one_move(struct board *b, int i)
{
    const struct zb_node *node = top(b, i);

    if (node == NULL) {
        return STUCK;
    }
    if (zb_node_is_compute(node->type)) {
        return compute_move(b, i, node);
    }
    if (node->type == ZB_NODE_POST_VALIDATION) {
        b->at[i]++;
        return MOVED;
    }
    if (node->type == ZB_NODE_SEND_POST_VALIDATION) {
        if (b->slot[i - 1]) {
            return STUCK;
        }
        b->slot[i - 1] = 1;
        b->at[i]++;
        return MOVED;
    }
    if (node->type == ZB_NODE_RECV_POST_VALIDATION) {
        if (!b->slot[i]) {
            return STUCK;
        }
        b->slot[i] = 0;
        b->at[i]++;
        return MOVED;
    }
    if (node->type == ZB_NODE_RECV_FORWARD ||
        node->type == ZB_NODE_RECV_BACKWARD) {
        return STUCK; /* the sender makes the move */
    }
    for (int j = 0; j < b->s->n_stage; j++) {
        if (is_pair(b, i, node, j)) {
            int ok = play_message(b, i, node->type == ZB_NODE_SEND_FORWARD,
                                  virt_of(b, i, node->chunk), node->mb);

            b->at[i]++;
            b->at[j]++;
            return ok ? MOVED : ILLEGAL;
        }
    }
    return STUCK;
}

/* Numbers in range, nothing said twice, ascending microbatches. */
static int words_ok(struct board *b)
{
    const struct zb_schedule *s = b->s;

    for (int i = 0; i < s->n_stage; i++) {
        for (size_t j = 0; j < s->stages[i].n; j++) {
            const struct zb_node *node = &s->stages[i].node[j];

            if (node->chunk < 0 || node->chunk >= s->n_chunk || node->mb < 0 ||
                node->mb >= s->n_micro) {
                return 0;
            }
            for (int k = node->mb; k < s->n_micro; k++) {
                if (b->said[i][node->type][node->chunk][k]) {
                    return 0;
                }
            }
            b->said[i][node->type][node->chunk][node->mb] = 1;
        }
    }
    return 1;
}

/* The validation nodes: chunk 0 mb 0, with a partner. */
static int validation_ok(const struct board *b)
{
    int p = b->s->n_stage;

    for (int i = 0; i < p; i++) {
        for (size_t j = 0; j < b->s->stages[i].n; j++) {
            const struct zb_node *node = &b->s->stages[i].node[j];

            if (node->type >= ZB_NODE_POST_VALIDATION &&
                (node->chunk != 0 || node->mb != 0)) {
                return 0;
            }
        }
        if ((i == 0 && b->said[i][ZB_NODE_SEND_POST_VALIDATION][0][0]) ||
            (i == p - 1 && b->said[i][ZB_NODE_RECV_POST_VALIDATION][0][0]) ||
            (i > 0 && b->said[i][ZB_NODE_SEND_POST_VALIDATION][0][0] !=
                          b->said[i - 1][ZB_NODE_RECV_POST_VALIDATION][0][0])) {
            return 0;
        }
    }
    return 1;
}

static int all_done(const struct board *b)
{
    for (int i = 0; i < b->s->n_stage; i++) {
        if (top(b, i) != NULL) {
            return 0;
        }
    }
    for (int v = 0; v < b->n_virtual; v++) {
        for (int mb = 0; mb < b->s->n_micro; mb++) {
            if (!have(b, home(b, v), ACT_OUT, v, mb) ||
                !have(b, home(b, v), GRAD_OUT, v, mb) ||
                !have(b, home(b, v), W_DONE, v, mb)) {
                return 0;
            }
        }
    }
    return 1;
}

int plan_oracle_is_legal(const struct zb_schedule *s)
{
    static struct board b;
    int n_moves;

    memset(&b, 0, sizeof(b));
    b.s = s;
    b.n_virtual = s->n_stage * s->n_chunk;
    if (!words_ok(&b) || !validation_ok(&b)) {
        return 0;
    }
    do {
        n_moves = 0;
        for (int i = 0; i < s->n_stage; i++) {
            enum outcome o = one_move(&b, i);

            if (o == ILLEGAL) {
                return 0;
            }
            n_moves += o == MOVED;
        }
    } while (n_moves > 0);
    return all_done(&b);
}

/* ---- time and memory ---- */

double plan_oracle_peak(const struct zb_schedule *s,
                        const struct zb_plan_input *in, int stage)
{
    struct board b = {.s = s};
    double peak = 0;

    /* At each F: what has come in and not gone out, each node asked anew. */
    b.n_virtual = s->n_stage * s->n_chunk;
    for (size_t j = 0; j < s->stages[stage].n; j++) {
        const struct zb_node *last = &s->stages[stage].node[j];
        double held = 0;

        for (size_t k = 0; k <= j; k++) {
            const struct zb_node *node = &s->stages[stage].node[k];
            int v = virt_of(&b, stage, node->chunk);

            held += node->type == ZB_NODE_F    ? in->f_mem[v]
                    : node->type == ZB_NODE_B  ? in->b_mem[v]
                    : node->type == ZB_NODE_W  ? in->w_mem[v]
                    : node->type == ZB_NODE_BW ? -in->f_mem[v]
                                               : 0;
        }
        if (last->type == ZB_NODE_BW) { /* what it makes and frees */
            int v = virt_of(&b, stage, last->chunk);

            held += in->f_mem[v] + fmax(0, in->b_mem[v]);
        }
        peak = fmax(peak, held);
    }
    return peak;
}

struct clock {
    const struct zb_schedule *s;
    const struct zb_plan_input *in;
    struct board b;
    double f_end[MAX_VIRTUAL][MAX_MICRO], b_end[MAX_VIRTUAL][MAX_MICRO];
};

static double arrival(const struct clock *k, double end, int from, int to)
{
    return end + (home(&k->b, from) == home(&k->b, to) ? 0 : k->in->c_cost);
}

/* When a node can start as far as its inputs are concerned, by the ends known
 * so far. */
static double inputs(const struct clock *k, enum zb_node_type type, int v,
                     int mb)
{
    if (type == ZB_NODE_F) {
        return v == 0 ? 0 : arrival(k, k->f_end[v - 1][mb], v - 1, v);
    }
    if (type == ZB_NODE_W) {
        return k->b_end[v][mb];
    }
    return fmax(k->f_end[v][mb],
                v == k->b.n_virtual - 1
                    ? 0
                    : arrival(k, k->b_end[v + 1][mb], v + 1, v));
}

/* Go through a stage's nodes once; whether an end moved. */
static int sweep_stage(struct clock *k, int stage, double *first, double *last)
{
    int has_moved = 0;
    double t = 0;

    *first = INFINITY;
    for (size_t j = 0; j < k->s->stages[stage].n; j++) {
        const struct zb_node *node = &k->s->stages[stage].node[j];
        int v = virt_of(&k->b, stage, node->chunk), mb = node->mb;
        double *end =
            node->type == ZB_NODE_F ? &k->f_end[v][mb] : &k->b_end[v][mb];

        if (!zb_node_is_compute(node->type)) {
            continue;
        }
        t = fmax(t, inputs(k, node->type, v, mb));
        *first = fmin(*first, t);
        t += node->type == ZB_NODE_F   ? k->in->f_cost[v]
             : node->type == ZB_NODE_B ? k->in->b_cost[v]
             : node->type == ZB_NODE_W ? k->in->w_cost[v]
                                       : k->in->b_cost[v] + k->in->w_cost[v];
        if (node->type != ZB_NODE_W && t > *end) {
            *end = t;
            has_moved = 1;
        }
    }
    *last = t;
    return has_moved;
}

double plan_oracle_makespan(const struct zb_schedule *s,
                            const struct zb_plan_input *in, double *span_out)
{
    static struct clock k;
    double makespan, span;
    int has_moved;

    memset(&k, 0, sizeof(k));
    k.s = k.b.s = s;
    k.in = in;
    k.b.n_virtual = s->n_stage * s->n_chunk;
    do {
        has_moved = 0;
        makespan = span = 0;
        for (int i = 0; i < s->n_stage; i++) {
            double first, last;

            has_moved |= sweep_stage(&k, i, &first, &last);
            makespan = fmax(makespan, last);
            span = fmax(span, last - first);
        }
    } while (has_moved);
    *span_out = span;
    return makespan;
}
