/* SPDX-License-Identifier: MIT
 *
 * The instance that the search for V schedules works on.
 */
#include "config.h"
#include "plan/plan_v.h"

#include <math.h>
#include <string.h>

#include "plan/plan_int.h"
#include "zb/mem.h"
#include "zb/thread.h"

/* Sums of fractions may miss a limit by rounding. */
#define SLACK (1 + 1e-9)

const int zb_v_needs[ZB_V_N_TYPES] = {
    [ZB_V_F0] = -1,      [ZB_V_F1] = ZB_V_F0, [ZB_V_B1] = ZB_V_F1,
    [ZB_V_B0] = ZB_V_B1, [ZB_V_W0] = ZB_V_B0, [ZB_V_W1] = ZB_V_B1,
};

const int zb_v_input_step[ZB_V_N_TYPES] = {
    [ZB_V_F0] = -1, [ZB_V_F1] = 1, [ZB_V_B1] = -1, [ZB_V_B0] = 1};

static void fill_stage(struct zb_v *v, const struct zb_plan_input *in, int s)
{
    for (int c = 0; c < 2; c++) {
        int virt = zb_virtual_stage(ZB_PLACE_V, v->p, s, c);

        v->cost[s][ZB_V_F0 + c] = in->f_cost[virt];
        v->cost[s][ZB_V_B0 + c] = in->b_cost[virt];
        v->cost[s][ZB_V_W0 + c] = in->w_cost[virt];
        v->mem[s][ZB_V_F0 + c] = in->f_mem[virt];
        v->mem[s][ZB_V_B0 + c] = in->b_mem[virt];
        v->mem[s][ZB_V_W0 + c] = in->w_mem[virt];
    }
    v->limit[s] = in->max_mem[s] * SLACK;
}

/* For the span a stage's time counts from its first node on. */
static void fill_offsets(struct zb_v *v, enum zb_plan_objective objective)
{
    double start = 0;

    for (int s = 0; s < v->p; s++) {
        v->offset[s] = objective == ZB_PLAN_STEADY ? -start : 0;
        start += v->cost[s][ZB_V_F0] + v->c;
    }
}

static double stage_work(const struct zb_v *v, int s)
{
    double sum = 0;

    for (int t = 0; t < ZB_V_N_TYPES; t++) {
        sum += v->cost[s][t];
    }
    return sum;
}

/* Orders that can not finish wait in a circle, and the local search knows them
 * by times that never settle: a circle must take time, also where costs are 0.
 * Little enough to change no value that counts, enough to be seen in a sum. */
#define LEAST_PART 1e-13 /* of the bound */

static void raise_costs(struct zb_v *v)
{
    double least = LEAST_PART * v->bound;
    int is_raised = 0;

    for (int s = 0; s < v->p; s++) {
        for (int t = 0; t < ZB_V_N_TYPES; t++) {
            is_raised |= v->cost[s][t] < least;
            v->cost[s][t] = fmax(v->cost[s][t], least);
        }
    }
    if (is_raised) {
        v->bound += least * v->p * v->len;
    }
}

enum zb_status zb_v_init(struct zb_v *v, const struct zb_plan_input *in,
                         enum zb_plan_objective objective)
{
    size_t p = (size_t)in->n_stage;
    enum zb_status st;

    *v = (struct zb_v){.p = in->n_stage,
                       .m = in->n_micro,
                       .len = ZB_V_N_TYPES * in->n_micro,
                       .c = in->c_cost};
    v->cost = zb_alloc_array(p, sizeof(*v->cost));
    v->mem = zb_alloc_array(p, sizeof(*v->mem));
    v->limit = zb_alloc_array(p, sizeof(*v->limit));
    v->offset = zb_alloc_array(p, sizeof(*v->offset));
    if (v->cost == NULL || v->mem == NULL || v->limit == NULL ||
        v->offset == NULL) {
        zb_v_release(v);
        return ZB_ENOMEM;
    }
    for (int s = 0; s < v->p; s++) {
        fill_stage(v, in, s);
        v->work = fmax(v->work, stage_work(v, s));
    }
    st = zb_plan_bound(in, objective, 0, &v->bound);
    if (st != ZB_OK) {
        zb_v_release(v);
        return st;
    }
    raise_costs(v);
    fill_offsets(v, objective);
    return ZB_OK;
}

void zb_v_release(struct zb_v *v)
{
    zb_free(v->cost);
    zb_free(v->mem);
    zb_free(v->limit);
    zb_free(v->offset);
    memset(v, 0, sizeof(*v));
}

size_t zb_v_row_length(int m)
{
    return ((size_t)m + 7) / 8 / 2 * 16 + 8; /* an odd number of lines */
}

int zb_v_is_spent(const struct zb_v_budget *b)
{
    return b->moves <= 0 ||
           (b->deadline_ns != 0 && zb_now_ns() >= b->deadline_ns);
}

/* Vigna 2016 (arXiv 1402.6246), xorshift64*. */
uint64_t zb_v_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

double zb_v_uniform(uint64_t *state)
{
    return (double)(zb_v_random(state) >> 11) * 0x1p-53;
}

int zb_v_below(uint64_t *state, int n)
{
    return (int)((zb_v_random(state) >> 32) * (uint64_t)n >> 32);
}
