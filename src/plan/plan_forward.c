/* SPDX-License-Identifier: MIT
 *
 * Forward-only schedules.
 */
#include "config.h"
#include "plan/plan_int.h"

enum zb_status zb_plan_forward_only(const struct zb_plan_input *in,
                                    struct zb_schedule **s_out)
{
    struct zb_schedule *s = NULL;
    enum zb_status st;

    ZB_TRY(zb_plan_input_check(in));
    ZB_TRY(zb_plan_schedule_new("forward", in->n_stage, in->n_micro,
                                in->placement, in->n_chunk, &s));
    s->is_forward_only = 1;
    st = zb_plan_list(in, ZB_PLAN_LIST_FORWARD, s);
    if (st == ZB_OK) {
        st = zb_schedule_add_comm(s, in);
    }
    if (st == ZB_OK) {
        st = zb_schedule_check(s, in);
    }
    if (st != ZB_OK) {
        zb_schedule_free(s);
        return st;
    }
    *s_out = s;
    return ZB_OK;
}

/* The nodes of one stage, round after round. Of the last round only the first
 * microbatches: without the others a legal order stays one. */
static enum zb_status repeat_stage(const struct zb_schedule *round, int stage,
                                   struct zb_schedule *s)
{
    const struct zb_stage_nodes *from = &round->stages[stage];
    int n_rounds = (s->n_micro + round->n_micro - 1) / round->n_micro;
    struct zb_stage_nodes *to = &s->stages[stage];

    ZB_TRY(zb_plan_stage_alloc(s, stage, (size_t)n_rounds * from->n));
    to->n = 0;
    for (int r = 0; r < n_rounds; r++) {
        for (size_t i = 0; i < from->n; i++) {
            struct zb_node node = from->node[i];

            node.mb += r * round->n_micro;
            node.start += r * round->makespan;
            node.end += r * round->makespan;
            if (node.mb < s->n_micro) {
                to->node[to->n++] = node;
            }
        }
    }
    return ZB_OK;
}

enum zb_status zb_plan_repeat(const struct zb_schedule *round, int n_micro,
                              struct zb_schedule **s_out)
{
    struct zb_schedule *s = NULL;
    enum zb_status st = ZB_OK;

    ZB_TRY(zb_plan_schedule_new(round->planner, round->n_stage, n_micro,
                                round->placement, round->n_chunk, &s));
    s->is_forward_only = round->is_forward_only;
    for (int i = 0; i < s->n_stage && st == ZB_OK; i++) {
        st = repeat_stage(round, i, s);
    }
    if (st == ZB_OK) {
        zb_plan_measure(s);
        st = zb_schedule_check(s, NULL);
    }
    if (st != ZB_OK) {
        zb_schedule_free(s);
        return st;
    }
    *s_out = s;
    return ZB_OK;
}
