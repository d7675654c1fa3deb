/* SPDX-License-Identifier: MIT
 *
 * Lower bounds on the makespan; doc/schedule.md derives them.
 */
#include "config.h"
#include "plan/plan_int.h"

#include <math.h>

/* Equal costs on a V. */
struct v_case {
    double p, m, f, b, w, c;
    double f_mem, w_held, limit; /* w_held: what B keeps for W */
};

/* How many microbatches' F fit before the first B. */
static double fit(const struct v_case *k, double most)
{
    return k->f_mem > 0 ? fmin(most, floor(k->limit * (1 + 1e-9) / k->f_mem))
                        : most;
}

/* The most work that can be left on a stage when its last F has ended: x
 * microbatches before B and y before W within the memory limit. */
static double work_left(const struct v_case *k)
{
    double best = 0, most = 2 * k->m;

    for (double x = 0; x <= fit(k, most); x++) {
        double room = k->limit * (1 + 1e-9) - x * k->f_mem, y = most;

        if (k->w_held > 0 && isfinite(room)) {
            y = fmin(most, floor(room / k->w_held));
        }
        best = fmax(best, x * (k->b + k->w) + y * k->w);
    }
    return fmin(best, most * (k->b + k->w));
}

/* Add two idle times when the windows they were found in cannot overlap. */
static double both_idle(double warm_up, double warm_up_window, double cool_down,
                        double cool_down_window, double work)
{
    double larger = fmax(warm_up, cool_down);

    if (warm_up_window + cool_down_window > work + larger) {
        return larger;
    }
    return warm_up + cool_down;
}

static double v_stage_bound(const struct v_case *k, double i, double left)
{
    double work = 2 * k->m * (k->f + k->b + k->w);
    double head = i * (k->f + k->c);
    double hops = 2 * (k->p - 1) * k->c;
    /* From the stage's first F to its first B, and to its first F of the
     * right leg. */
    double to_b = (2 * k->p - i) * k->f + i * k->b + hops;
    double to_f1 = (2 * k->p - 1 - 2 * i) * k->f + hops - 2 * i * k->c;
    double idle_b = fmax(0, to_b - k->f * fit(k, 2 * k->m));
    double idle_f1 = fmax(0, to_f1 - k->f * fit(k, k->m));
    /* From the stage's last F of the left leg to the end. */
    double to_end = head + 2 * k->p * k->b + hops + k->w;
    double idle_end = fmax(0, to_end - left);
    double idle = fmax(both_idle(idle_b, to_b, idle_end, to_end, work),
                       both_idle(idle_f1, to_f1, idle_end, to_end, work));
    /* Little: memory times time that all microbatches take, over the limit. */
    double held = k->m *
                  (((2 * k->p + 1) * (k->f + k->b) + 2 * hops) * k->f_mem +
                   2 * k->w * k->w_held) /
                  k->limit;

    return head + fmax(work + idle, held);
}

static double v_bound(const struct v_case *k)
{
    double best = (k->m + 2 * k->p - 1) * k->f + 2 * k->p * k->b + k->w +
                  4 * (k->p - 1) * k->c;
    double left = work_left(k);

    for (double i = 0; i < k->p; i++) {
        best = fmax(best, v_stage_bound(k, i, left));
    }
    return best;
}

static int has_w(const struct zb_schedule *s)
{
    for (size_t j = 0; j < s->stages[0].n; j++) {
        if (s->stages[0].node[j].type == ZB_NODE_W) {
            return 1;
        }
    }
    return 0;
}

/* The busiest stage: nothing before the first F arrives, all its work, and
 * after its last BW the chain down to stage 0. */
static double linear_bound(const struct zb_plan_input *in, int is_fused)
{
    double best = 0, head = 0, tail = 0;

    for (int i = 0; i < in->n_stage; i++) {
        double b = in->b_cost[i], w = in->w_cost[i], f = in->f_cost[i];

        best = fmax(best,
                    head + in->n_micro * (f + b + w) + (is_fused ? tail : 0));
        head += f + in->c_cost;
        tail += b + w + in->c_cost;
    }
    return best;
}

double zb_plan_lower_bound(const struct zb_plan_input *in,
                           const struct zb_schedule *s)
{
    int n = in->n_stage * in->n_chunk;
    struct v_case k = {
        .p = in->n_stage,
        .m = in->n_micro,
        .f = in->f_cost[0],
        .b = in->b_cost[0],
        .w = in->w_cost[0],
        .c = in->c_cost,
        .f_mem = in->f_mem[0],
        .w_held = -in->w_mem[0],
        .limit = in->max_mem[0],
    };

    if (in->placement == ZB_PLACE_LINEAR) {
        return linear_bound(in, !has_w(s));
    }
    if (in->placement != ZB_PLACE_V || !zb_plan_is_uniform(in->f_cost, n) ||
        !zb_plan_is_uniform(in->b_cost, n) ||
        !zb_plan_is_uniform(in->w_cost, n) ||
        !zb_plan_is_uniform(in->f_mem, n) ||
        !zb_plan_is_uniform(in->w_mem, n) ||
        !zb_plan_is_uniform(in->max_mem, in->n_stage)) {
        return NAN;
    }
    return v_bound(&k);
}
