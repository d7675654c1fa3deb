/* SPDX-License-Identifier: MIT
 *
 * Orders that need no search: each stage follows a rule.
 */
#include "config.h"
#include "plan/plan_int.h"

static void append(struct zb_stage_nodes *st, enum zb_node_type type, int mb)
{
    st->node[st->n++] = (struct zb_node){.type = type, .mb = mb};
}

/* Each stage: `ahead` forward passes, then one F and one BW in turn, then the
 * backward passes that are left (Narayanan et al. 2021, section 2.2). */
static enum zb_status f_then_bw(const struct zb_plan_input *in,
                                struct zb_schedule *s, int is_gpipe)
{
    int m = in->n_micro;

    for (int i = 0; i < in->n_stage; i++) {
        int ahead = is_gpipe ? m : in->n_stage - 1 - i;
        int n_f = 0;

        ZB_TRY(zb_plan_stage_alloc(s, i, 2 * (size_t)m));
        s->stages[i].n = 0;
        for (int n_bw = 0; n_bw < m; n_bw++) {
            while (n_f < m && n_f <= n_bw + ahead) {
                append(&s->stages[i], ZB_NODE_F, n_f++);
            }
            append(&s->stages[i], ZB_NODE_BW, n_bw);
        }
    }
    return zb_schedule_add_comm(s, in);
}

enum zb_status zb_plan_1f1b(const struct zb_plan_input *in,
                            const struct zb_plan_opts *opts,
                            struct zb_schedule *s)
{
    (void)opts;
    return f_then_bw(in, s, 0);
}

enum zb_status zb_plan_gpipe(const struct zb_plan_input *in,
                             const struct zb_plan_opts *opts,
                             struct zb_schedule *s)
{
    (void)opts;
    return f_then_bw(in, s, 1);
}
