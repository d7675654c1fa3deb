/* SPDX-License-Identifier: MIT
 *
 * Orders that need no search: each stage of a linear pipeline follows a rule.
 */
#include "config.h"
#include "plan/plan_int.h"

enum zb_status zb_plan_pen_begin(struct zb_plan_pen *pen, struct zb_schedule *s,
                                 int stage)
{
    *pen =
        (struct zb_plan_pen){.n_micro = s->n_micro, .out = &s->stages[stage]};
    ZB_TRY(zb_plan_stage_alloc(s, stage,
                               3 * (size_t)s->n_chunk * (size_t)s->n_micro));
    pen->out->n = 0;
    return ZB_OK;
}

void zb_plan_pen_put(struct zb_plan_pen *pen, enum zb_node_type type, int chunk)
{
    int mb = pen->n[chunk][type]++;

    if (mb < pen->n_micro) {
        pen->out->node[pen->out->n++] =
            (struct zb_node){.type = type, .chunk = chunk, .mb = mb};
    }
}

#define FUSED (-1) /* B and W are one node */

/* `ahead` more F than B before each F; W follows its B after w_after others. */
static void f_then_b(struct zb_plan_pen *pen, int ahead, int w_after)
{
    int m = pen->n_micro;

    for (int n_b = 0; n_b < m; n_b++) {
        while (pen->n[0][ZB_NODE_F] < m &&
               pen->n[0][ZB_NODE_F] <= n_b + ahead) {
            zb_plan_pen_put(pen, ZB_NODE_F, 0);
        }
        zb_plan_pen_put(pen, w_after == FUSED ? ZB_NODE_BW : ZB_NODE_B, 0);
        if (w_after != FUSED && n_b >= w_after) {
            zb_plan_pen_put(pen, ZB_NODE_W, 0);
        }
    }
    while (w_after != FUSED && pen->n[0][ZB_NODE_W] < m) {
        zb_plan_pen_put(pen, ZB_NODE_W, 0);
    }
}

/* Every stage: `trips` F ahead of B for each stage behind it, and W after its B
 * by `trips` for each stage before it; not `is_split`: B and W are one node. */
static enum zb_status fill_stages(const struct zb_plan_input *in, int trips,
                                  int is_split, struct zb_schedule *s)
{
    struct zb_plan_pen pen;

    for (int i = 0; i < in->n_stage; i++) {
        ZB_TRY(zb_plan_pen_begin(&pen, s, i));
        f_then_b(&pen, trips * (in->n_stage - 1 - i),
                 is_split ? trips * i : FUSED);
    }
    return zb_schedule_add_comm(s, in);
}

/* Narayanan et al. 2021, section 2.2: `ahead` forward passes, then one F and
 * one backward pass in turn, then the backward passes that are left. */
enum zb_status zb_plan_1f1b(const struct zb_plan_input *in,
                            const struct zb_plan_opts *opts,
                            struct zb_schedule *s)
{
    (void)opts;
    return fill_stages(in, 1, 0, s);
}

enum zb_status zb_plan_gpipe(const struct zb_plan_input *in,
                             const struct zb_plan_opts *opts,
                             struct zb_schedule *s)
{
    struct zb_plan_pen pen;

    (void)opts;
    for (int i = 0; i < in->n_stage; i++) {
        ZB_TRY(zb_plan_pen_begin(&pen, s, i));
        f_then_b(&pen, in->n_micro, FUSED);
    }
    return zb_schedule_add_comm(s, in);
}

/* Qi et al. 2024 (2401.10241), section 2.3: 1F1B's warm-up, but later stages
 * put W off until as many microbatches are under way as on stage 0. B then
 * reaches stage 0 sooner, and the Ws fill the end. */
enum zb_status zb_plan_zb_h1(const struct zb_plan_input *in,
                             const struct zb_plan_opts *opts,
                             struct zb_schedule *s)
{
    (void)opts;
    return fill_stages(in, 1, 1, s);
}

/* The same with F enough to fill the time until the first B returns: 2p-1
 * microbatches under way, and all stages busy from first to last node. */
enum zb_status zb_plan_zb_h2(const struct zb_plan_input *in,
                             const struct zb_plan_opts *opts,
                             struct zb_schedule *s)
{
    (void)opts;
    return fill_stages(in, 2, 1, s);
}
