/* SPDX-License-Identifier: MIT
 *
 * Lower bounds on the makespan and on the span; doc/schedule.md derives them.
 */
#include "config.h"
#include "plan/plan_bound.h"

#include <math.h>

#include "zb/mem.h"

/* A time in which a stage can do at most `cap` of its work. */
struct window {
    double t, cap;
};

/* ---- chains ---- */

/* The chain of one microbatch through all virtual stages and back. */
struct chains {
    const struct zb_plan_input *in;
    int is_fused, is_step;
    int n;
    double *f_start; /* [n + 1] after the first F's start */
    double *b_end;   /* [n + 1] after the last F's end */
    double *b_after; /* [n] from B's end to what counts as the end */
    struct zb_bound_chunk *chunk; /* [n_chunk] of the stage at hand */
    struct window *from_end;      /* [2 * n_chunk] */
};

static double b_cost(const struct chains *ch, int v)
{
    return ch->in->b_cost[v] + (ch->is_fused ? ch->in->w_cost[v] : 0);
}

static double w_cost(const struct chains *ch, int v)
{
    return ch->is_fused ? 0 : ch->in->w_cost[v];
}

static int stage_of(const struct zb_plan_input *in, int v)
{
    int stage, chunk;

    zb_virtual_to_local(in->placement, in->n_stage, v, &stage, &chunk);
    return stage;
}

/* Latency between virtual stages v - 1 and v. */
static double hop(const struct chains *ch, int v)
{
    return v > 0 && v < ch->n && stage_of(ch->in, v - 1) != stage_of(ch->in, v)
               ? ch->in->c_cost
               : 0;
}

/* The B that follows B of v and counts for its end: for the end of the step the
 * next one, for that of the stage the next one on the stage. -1: none. */
static int next_b(const struct chains *ch, int v)
{
    int stage, c;

    if (ch->is_step) {
        return v - 1;
    }
    zb_virtual_to_local(ch->in->placement, ch->in->n_stage, v, &stage, &c);
    return c == 0 ? -1
                  : zb_virtual_stage(ch->in->placement, ch->in->n_stage, stage,
                                     c - 1);
}

static void sum_chains(const struct chains *ch)
{
    int n = ch->n;

    ch->f_start[0] = 0;
    for (int v = 1; v <= n; v++) {
        ch->f_start[v] =
            ch->f_start[v - 1] + ch->in->f_cost[v - 1] + hop(ch, v);
    }
    ch->b_end[n] = 0;
    for (int v = n - 1; v >= 0; v--) {
        ch->b_end[v] = ch->b_end[v + 1] + hop(ch, v + 1) + b_cost(ch, v);
    }
    for (int v = 0; v < n; v++) {
        int u = next_b(ch, v);

        ch->b_after[v] = w_cost(ch, v);
        if (u >= 0) {
            ch->b_after[v] = fmax(ch->b_after[v],
                                  ch->b_end[u] - ch->b_end[v] + ch->b_after[u]);
        }
    }
}

static void set_chunk(const struct chains *ch, int stage, int c,
                      struct zb_bound_chunk *k)
{
    const struct zb_plan_input *in = ch->in;
    int v = zb_virtual_stage(in->placement, in->n_stage, stage, c);
    int top = ch->is_step ? ch->n - 1
                          : zb_virtual_stage(in->placement, in->n_stage, stage,
                                             in->n_chunk - 1);

    k->f = in->f_cost[v];
    k->b = b_cost(ch, v);
    k->w = w_cost(ch, v);
    k->f_mem = in->f_mem[v];
    /* What B adds is left out: then all formulas hold, for less memory. */
    k->w_held = ch->is_fused ? 0 : fmin(-in->w_mem[v], k->f_mem);
    k->to_f = ch->f_start[v] - ch->f_start[stage];
    k->to_b = ch->f_start[ch->n] - ch->f_start[stage] + ch->b_end[v] - k->b;
    k->after_b = ch->b_after[v];
    k->after_f = ch->f_start[ch->n] - ch->f_start[v] - k->f + ch->b_end[top] +
                 ch->b_after[top];
}

static struct zb_bound_stage look_at(const struct chains *ch, int stage)
{
    struct zb_bound_stage st = {
        .n_chunk = ch->in->n_chunk,
        .m = ch->in->n_micro,
        .limit = ch->in->max_mem[stage] * (1 + 1e-9),
        .head = ch->is_step ? ch->f_start[stage] : 0,
        .chunk = ch->chunk,
    };

    for (int c = 0; c < st.n_chunk; c++) {
        set_chunk(ch, stage, c, &st.chunk[c]);
        st.work += st.m * (st.chunk[c].f + st.chunk[c].b + st.chunk[c].w);
    }
    return st;
}

/* ---- one stage ---- */

static struct window from_start(const struct zb_bound_stage *st, int k)
{
    int j = k / 2;

    return k % 2 == 0
               ? (struct window){st->chunk[j].to_f, zb_bound_before_f(st, j)}
               : (struct window){st->chunk[j].to_b, zb_bound_before_b(st, j)};
}

static struct window from_end(const struct zb_bound_stage *st, int k)
{
    int j = k / 2;

    return k % 2 == 0
               ? (struct window){st->chunk[j].after_f, zb_bound_after_f(st, j)}
               : (struct window){st->chunk[j].after_b, zb_bound_after_b(st, j)};
}

/* (1) With a window at the start and one at the end. */
static double both(const struct zb_bound_stage *st, struct window a,
                   struct window b)
{
    double idle_a = fmax(0, a.t - a.cap), idle_b = fmax(0, b.t - b.cap);

    /* Windows that overlap or touch hold all the work. */
    if (st->work > (a.cap + b.cap) * (1 + 1e-9)) {
        return st->work + idle_a + idle_b;
    }
    return st->work + fmax(idle_a, idle_b);
}

/* All nodes of one kind, between the first one's inputs and what waits for the
 * last one. */
static double longest_chain(const struct zb_bound_stage *st)
{
    double best = 0;

    for (int c = 0; c < st->n_chunk; c++) {
        const struct zb_bound_chunk *k = &st->chunk[c];

        best = fmax(best, k->to_f + st->m * k->f + k->after_f);
        best = fmax(best, k->to_b + st->m * k->b + k->after_b);
        best = fmax(best, k->to_b + k->b + st->m * k->w);
    }
    return best;
}

static double stage_bound(const struct zb_bound_stage *st, struct window *end)
{
    double best = fmax(longest_chain(st), zb_bound_memory(st));

    for (int j = 0; j < 2 * st->n_chunk; j++) {
        end[j] = from_end(st, j);
    }
    for (int i = 0; i < 2 * st->n_chunk; i++) {
        struct window a = from_start(st, i);

        for (int j = 0; j < 2 * st->n_chunk; j++) {
            best = fmax(best, both(st, a, end[j]));
        }
    }
    return st->head + best;
}

/* ---- all stages ---- */

static int is_whole(double unit, const double *x, int n)
{
    for (int i = 0; i < n; i++) {
        if (fmod(x[i], unit) != 0) {
            return 0;
        }
    }
    return 1;
}

/* (5) All times of a schedule are sums of costs: with whole costs they are
 * whole. */
static double round_up(const struct zb_plan_input *in, double bound)
{
    int n = in->n_stage * in->n_chunk;

    if (bound < 1e15 && is_whole(1, in->f_cost, n) &&
        is_whole(1, in->b_cost, n) && is_whole(1, in->w_cost, n) &&
        is_whole(1, &in->c_cost, 1)) {
        return ceil(bound - 1e-9 * fmax(1, bound));
    }
    return bound;
}

static double best_of_stages(const struct chains *ch)
{
    double best = 0;

    for (int i = 0; i < ch->in->n_stage; i++) {
        struct zb_bound_stage st = look_at(ch, i);

        best = fmax(best, stage_bound(&st, ch->from_end));
    }
    return best;
}

enum zb_status zb_plan_bound(const struct zb_plan_input *in,
                             enum zb_plan_objective objective, int is_fused,
                             double *bound_out)
{
    struct chains ch = {
        .in = in,
        .is_fused = is_fused,
        .is_step = objective == ZB_PLAN_STEP,
        .n = in->n_stage * in->n_chunk,
    };
    size_t n = (size_t)ch.n + 1, n_chunk = (size_t)in->n_chunk;
    enum zb_status st = ZB_ENOMEM;

    ch.f_start = zb_alloc_array(3 * n, sizeof(*ch.f_start));
    ch.chunk = zb_alloc_array(n_chunk, sizeof(*ch.chunk));
    ch.from_end = zb_alloc_array(2 * n_chunk, sizeof(*ch.from_end));
    if (ch.f_start != NULL && ch.chunk != NULL && ch.from_end != NULL) {
        ch.b_end = ch.f_start + n;
        ch.b_after = ch.b_end + n;
        sum_chains(&ch);
        *bound_out = round_up(in, best_of_stages(&ch));
        st = ZB_OK;
    }
    zb_free(ch.from_end);
    zb_free(ch.chunk);
    zb_free(ch.f_start);
    return st;
}

static int has_w(const struct zb_schedule *s)
{
    for (int i = 0; i < s->n_stage; i++) {
        for (size_t j = 0; j < s->stages[i].n; j++) {
            if (s->stages[i].node[j].type == ZB_NODE_W) {
                return 1;
            }
        }
    }
    return 0;
}

enum zb_status zb_plan_lower_bound(const struct zb_plan_input *in,
                                   struct zb_schedule *s)
{
    return zb_plan_bound(in, s->objective, !has_w(s), &s->lower_bound);
}
