/* SPDX-License-Identifier: MIT
 *
 * Does the runtime keep to its plan? On simulated devices every node takes its
 * planned time, so a step takes the planned makespan if the runtime adds
 * nothing to it.
 *
 *     bench/sim [-u UNIT_US] [-n STEPS] [-p STAGES]
 *
 * For each number of stages and schedule it prints the planned makespan, the
 * median time of a step (forward and backward, from the call to its return),
 * and their ratio; then the time of 1f1b over that of zbv at four stages, as
 * planned and as run. A chunk's F, B and W take UNIT_US each; a stage of 1f1b
 * has two of them in one.
 */
#include "config.h"

#include <stdio.h>

#include "sim_steps.h"
#include "zb/model.h"

#define SEQ 8

struct setup {
    struct sim_setup sim;
    const struct zb_model *model;
};

struct outcome {
    double planned_ms, ran_ms;
};

static enum zb_status make_model(struct zb_model **m_out)
{
    static const struct zb_model_key key[] = {
        {"model_type", "llama", 0},          {"vocab_size", "64", 0},
        {"hidden_size", "32", 0},            {"intermediate_size", "64", 0},
        {"num_hidden_layers", "8", 0},       {"num_attention_heads", "2", 0},
        {"max_position_embeddings", "8", 0},
    };
    const struct zb_model_opts opts = {.max_seq = SEQ, .init_std = -1};

    return zb_model_from_keys(key, ZB_COUNT_OF(key), "sim", &opts, m_out);
}

static enum zb_status run_case(const struct setup *u, const char *planner,
                               int p, int m, struct outcome *r)
{
    struct zb_session_opts o;
    struct zb_session *s = NULL;
    double cost;
    enum zb_status st;

    ZB_TRY(sim_session_opts(&u->sim, planner, p, m, 1, &cost, &o));
    o.max_seq = SEQ;
    st = zb_session_new(u->model, &o, &s);
    if (st == ZB_OK) {
        r->planned_ms =
            zb_session_schedule(s)->makespan * u->sim.unit_us * 1e-3;
        st = sim_time_steps(&u->sim, s, m, SEQ, 0, &r->ran_ms);
    }
    zb_session_free(s);
    return st;
}

static enum zb_status compare_with_plan(const struct setup *u, int p)
{
    static const char *const name[] = {"zbv", "get_v_schedule", "1f1b"};
    struct outcome r;

    for (size_t i = 0; i < ZB_COUNT_OF(name); i++) {
        ZB_TRY(run_case(u, name[i], p, 2 * p, &r));
        printf("p %2d m %3d %-14s planned %9.3f ms  ran %9.3f ms  "
               "ran/planned %.4f\n",
               p, 2 * p, name[i], r.planned_ms, r.ran_ms,
               r.ran_ms / r.planned_ms);
        fflush(stdout);
    }
    return ZB_OK;
}

static enum zb_status compare_schedules(const struct setup *u)
{
    for (int m = 4; m <= 8; m++) {
        struct outcome v, f;
        double planned, ran;

        ZB_TRY(run_case(u, "zbv", 4, m, &v));
        ZB_TRY(run_case(u, "1f1b", 4, m, &f));
        planned = f.planned_ms / v.planned_ms;
        ran = f.ran_ms / v.ran_ms;
        printf("p  4 m %3d 1f1b/zbv planned %.4f  ran %.4f  ran/planned "
               "%.4f\n",
               m, planned, ran, ran / planned);
        fflush(stdout);
    }
    return ZB_OK;
}

static enum zb_status run_all(const struct setup *u)
{
    static const int stages[] = {4, 8, 16, 64};
    int only = u->sim.stages;

    for (size_t i = 0; i < ZB_COUNT_OF(stages); i++) {
        if (only == 0 || only == stages[i]) {
            ZB_TRY(compare_with_plan(u, stages[i]));
        }
    }
    return only == 0 || only == 4 ? compare_schedules(u) : ZB_OK;
}

int main(int argc, char **argv)
{
    struct setup u = {.sim = {.unit_us = 2000, .n_steps = 5}};
    struct zb_model *model = NULL;
    enum zb_status st;

    if (sim_options(argc, argv, "sim", "u:n:p:", &u.sim) != 0) {
        return 2;
    }
    st = make_model(&model);
    u.model = model;
    if (st == ZB_OK) {
        st = run_all(&u);
    }
    zb_model_free(model);
    if (st != ZB_OK) {
        fprintf(stderr, "sim: %s\n", zb_error_text());
    }
    return st == ZB_OK ? 0 : 1;
}
