/* SPDX-License-Identifier: MIT
 *
 * Orders that repeat a cycle strictly.
 */
#include "config.h"
#include "plan/plan_v.h"

#include <math.h>

/* Merge the six sequences of a stage. What a microbatch needs on the stage
 * itself comes first. */
static void merge(const struct zb_v *v, const struct zb_v_cycle *c, int s,
                  uint8_t *order)
{
    int n[ZB_V_N_TYPES] = {0};

    for (int i = 0; i < v->len; i++) {
        int best = -1;
        double due = INFINITY;

        for (int t = 0; t < ZB_V_N_TYPES; t++) {
            double at = c->time[s][t] + n[t] * c->period;

            if (n[t] < (t == ZB_V_F0 ? v->m : n[zb_v_needs[t]]) && at < due) {
                best = t;
                due = at;
            }
        }
        ZB_BUG_IF(best < 0, "no node is due in a cycle");
        n[best]++;
        order[i] = (uint8_t)best;
    }
}

void zb_v_repeat(const struct zb_v *v, const struct zb_v_cycle *c,
                 uint8_t *order)
{
    for (int s = 0; s < v->p; s++) {
        merge(v, c, s, &order[(size_t)s * (size_t)v->len]);
    }
}

void zb_v_pattern(const struct zb_v *v, const struct zb_v_rule *rule,
                  struct zb_v_cycle *c)
{
    c->period = v->work;
    zb_v_pattern_times(v, rule, c->time);
    for (int s = 0; s < v->p; s++) {
        for (int i = 0; i < 2; i++) {
            c->time[s][ZB_V_W0 + i] = c->time[s][ZB_V_B0 + i] +
                                      v->cost[s][ZB_V_B0 + i] / 2 +
                                      rule->w_delay[i] * c->period;
        }
    }
}

/* ---- building blocks ---- */

#define UNIT_PERIOD ZB_V_N_TYPES

static int positive_mod(int a, int n)
{
    int r = a % n;

    return r < 0 ? r + n : r;
}

/* The first free slot of the period at `from` or later. */
static int take_slot(unsigned *taken, int from)
{
    while (*taken & 1u << positive_mod(from, UNIT_PERIOD)) {
        from++;
    }
    *taken |= 1u << positive_mod(from, UNIT_PERIOD);
    return from;
}

/* Slots of a stage, F0 F1 B0 B1 given; 0 when two of them collide. */
static int fill_slots(const int *at, double *time)
{
    unsigned taken = 0;

    for (int t = ZB_V_F0; t <= ZB_V_B1; t++) {
        unsigned slot = 1u << positive_mod(at[t], UNIT_PERIOD);

        if (taken & slot) {
            return 0;
        }
        taken |= slot;
        time[t] = at[t];
    }
    time[ZB_V_W1] = take_slot(&taken, at[ZB_V_B1] + 1);
    time[ZB_V_W0] = take_slot(&taken, at[ZB_V_B0] + 1);
    return 1;
}

int zb_v_block(const struct zb_v *v, const struct zb_v_block *b,
               struct zb_v_cycle *c)
{
    int far = v->p - 1;
    int f1 = b->slope[0] * far + b->gap[0];
    int b1 = f1 + b->slope[1] * far + b->gap[1];
    int b0 = b1 + b->slope[2] * far + b->gap[2];

    c->period = UNIT_PERIOD;
    for (int s = 0; s < v->p; s++) {
        int at[4] = {[ZB_V_F0] = b->slope[0] * s,
                     [ZB_V_F1] = f1 + b->slope[1] * (far - s),
                     [ZB_V_B1] = b1 + b->slope[2] * s,
                     [ZB_V_B0] = b0 + b->slope[3] * (far - s)};

        if (!fill_slots(at, c->time[s])) {
            return 0;
        }
    }
    return 1;
}
