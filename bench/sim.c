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
#include <stdlib.h>
#include <unistd.h>

#include "zb/mem.h"
#include "zb/model.h"
#include "zb/run.h"
#include "zb/thread.h"

#define SEQ 8
#define STEPS_MAX 99

struct setup {
    double unit_us;
    int n_steps;
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

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static enum zb_status time_steps(const struct setup *u, struct zb_session *s,
                                 const struct zb_step_input *in,
                                 double *median_out)
{
    double ms[STEPS_MAX];
    struct zb_step_result res = {.loss = 0};

    ZB_TRY(zb_forward_backward_step(s, in, 0, &res)); /* warm up */
    for (int i = 0; i < u->n_steps; i++) {
        int64_t begin = zb_now_ns();

        ZB_TRY(zb_forward_backward_step(s, in, 0, &res));
        ms[i] = (double)(zb_now_ns() - begin) * 1e-6;
    }
    qsort(ms, (size_t)u->n_steps, sizeof(*ms), by_value);
    *median_out = ms[u->n_steps / 2];
    return ZB_OK;
}

/* 1f1b has one chunk per stage, a V two. */
static enum zb_status open_session(const struct setup *u, const char *planner,
                                   int p, int m, struct zb_session **s_out)
{
    struct zb_session_opts o;
    enum zb_placement placement;
    int n_chunks;
    double cost;

    ZB_TRY(zb_planner_shape(planner, &placement, &n_chunks));
    cost = 2.0 / n_chunks;
    zb_session_opts_init(&o);
    o.backend = "sim";
    o.planner = planner;
    o.n_stages = p;
    o.n_micro = m;
    o.max_rows = m;
    o.max_seq = SEQ;
    o.f_cost = o.b_cost = o.w_cost = &cost;
    o.n_costs = 1;
    o.sim_ns_per_cost = 1e3 * u->unit_us;
    return zb_session_new(u->model, &o, s_out);
}

static enum zb_status run_case(const struct setup *u, const char *planner,
                               int p, int m, struct outcome *r)
{
    int32_t *ids = zb_alloc_array((size_t)m * SEQ, sizeof(*ids));
    int64_t *sample = zb_alloc_array((size_t)m, sizeof(*sample));
    const void *field[] = {ids, ids};
    const struct zb_step_input in = {
        .n_rows = m, .seq_len = SEQ, .field = field, .sample = sample};
    struct zb_session *s = NULL;
    enum zb_status st = ZB_ENOMEM;

    if (ids != NULL && sample != NULL) {
        st = open_session(u, planner, p, m, &s);
    }
    if (st == ZB_OK) {
        r->planned_ms =
            zb_session_schedule(s)->makespan * u->unit_us * 1e-3;
        st = time_steps(u, s, &in, &r->ran_ms);
    }
    zb_session_free(s);
    zb_free(sample);
    zb_free(ids);
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

static enum zb_status run_all(const struct setup *u, int only)
{
    static const int stages[] = {4, 8, 16, 64};

    for (size_t i = 0; i < ZB_COUNT_OF(stages); i++) {
        if (only == 0 || only == stages[i]) {
            ZB_TRY(compare_with_plan(u, stages[i]));
        }
    }
    return only == 0 || only == 4 ? compare_schedules(u) : ZB_OK;
}

int main(int argc, char **argv)
{
    struct setup u = {.unit_us = 2000, .n_steps = 5};
    struct zb_model *model = NULL;
    int c, only = 0;
    enum zb_status st;

    while ((c = getopt(argc, argv, "u:n:p:")) != -1) {
        switch (c) {
        case 'u':
            u.unit_us = atof(optarg);
            break;
        case 'n':
            u.n_steps = atoi(optarg);
            break;
        case 'p':
            only = atoi(optarg);
            break;
        default:
            return 2;
        }
    }
    if (u.unit_us <= 0 || u.n_steps < 1 || u.n_steps > STEPS_MAX) {
        fprintf(stderr, "sim: UNIT_US above 0, 1 to %d STEPS\n", STEPS_MAX);
        return 2;
    }
    st = make_model(&model);
    u.model = model;
    if (st == ZB_OK) {
        st = run_all(&u, only);
    }
    zb_model_free(model);
    if (st != ZB_OK) {
        fprintf(stderr, "sim: %s\n", zb_error_text());
    }
    return st == ZB_OK ? 0 : 1;
}
