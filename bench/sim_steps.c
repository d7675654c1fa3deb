/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "sim_steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "zb/machine.h"
#include "zb/mem.h"
#include "zb/thread.h"

int sim_options(int argc, char **argv, const char *name, const char *letters,
                struct sim_setup *u)
{
    int c;

    while ((c = getopt(argc, argv, letters)) != -1) {
        switch (c) {
        case 'u':
            u->unit_us = atof(optarg);
            break;
        case 'n':
            u->n_steps = atoi(optarg);
            break;
        case 'r':
            u->percent = atof(optarg);
            break;
        case 'p':
            u->stages = atoi(optarg);
            break;
        default:
            return -1;
        }
    }
    if (u->unit_us <= 0 || u->n_steps < 1 || u->n_steps > SIM_STEPS_MAX ||
        u->percent < 0) {
        fprintf(stderr,
                "%s: UNIT_US above 0, 1 to %d STEPS, PERCENT of 0 or "
                "more\n",
                name, SIM_STEPS_MAX);
        return -1;
    }
    return 0;
}

enum zb_status sim_session_opts(const struct sim_setup *u, const char *planner,
                                int p, int m, int dp, double *cost_out,
                                struct zb_session_opts *o_out)
{
    enum zb_placement placement;
    int n_chunks;

    ZB_TRY(zb_planner_shape(planner, &placement, &n_chunks));
    *cost_out = 2.0 / n_chunks;
    zb_session_opts_init(o_out);
    o_out->backend = "sim";
    o_out->planner = planner;
    o_out->n_stages = p;
    o_out->n_dp = dp;
    o_out->n_micro = m;
    o_out->max_rows = m * dp;
    o_out->f_cost = o_out->b_cost = o_out->w_cost = cost_out;
    o_out->n_costs = 1;
    o_out->sim_ns_per_cost = 1e3 * u->unit_us;
    return ZB_OK;
}

static enum zb_status run_step(struct zb_session *s,
                               const struct zb_step_input *in, int trains)
{
    struct zb_step_result res = {.loss = 0};

    return trains ? zb_train_step(s, in, 1e-3, &res)
                  : zb_forward_backward_step(s, in, 0, &res);
}

enum zb_status sim_time_steps(const struct sim_setup *u, struct zb_session *s,
                              int64_t rows, int64_t seq, int trains,
                              double *ms_out)
{
    int32_t *ids = zb_alloc_array((size_t)(rows * seq), sizeof(*ids));
    int64_t *sample = zb_alloc_array((size_t)rows, sizeof(*sample));
    const void *field[] = {ids, ids};
    const struct zb_step_input in = {
        .n_rows = rows, .seq_len = seq, .field = field, .sample = sample};
    double ms[SIM_STEPS_MAX];
    enum zb_status st = ids == NULL || sample == NULL ? ZB_ENOMEM : ZB_OK;

    for (int i = -1; i < u->n_steps && st == ZB_OK; i++) {
        int64_t begin = zb_now_ns();

        st = run_step(s, &in, trains);
        if (i >= 0) {
            ms[i] = (double)(zb_now_ns() - begin) * 1e-6;
        }
    }
    if (st == ZB_OK) {
        *ms_out = zb_median(ms, (size_t)u->n_steps);
    }
    zb_free(sample);
    zb_free(ids);
    return st;
}
