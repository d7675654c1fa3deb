/* SPDX-License-Identifier: MIT
 *
 * The reference's table: what zbv gains over 1f1b with the pipeline alone, with
 * sequence parallelism and with data parallelism beside it, and how much of the
 * reduction of gradients hides behind the rest of a step. On simulated devices,
 * where every node takes its planned time, and so do gradients on their way.
 *
 *     bench/hybrid [-u UNIT_US] [-n STEPS] [-r PERCENT]
 *
 * A chunk's F, B and W take UNIT_US each; a stage of 1f1b has two of them in
 * one. M = 2 pp microbatches for each replica. Reducing a stage's gradients
 * takes PERCENT of the compute of a step, and so does gathering parameters.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "zb/machine.h"
#include "zb/mem.h"
#include "zb/model.h"
#include "zb/run.h"
#include "zb/thread.h"

#define SEQ 16
#define STEPS_MAX 99

struct setup {
    double unit_us, percent;
    int n_steps;
};

struct grid {
    const char *name;
    int pp, sp, dp;
};

struct link {
    double ns_per_byte;
    int reduces_late, gathers_late; /* not overlapped with the rest */
};

/* Wide enough for buckets of a layer each: nothing is allocated for real. */
static enum zb_status make_model(int sp, struct zb_model **m_out)
{
    static const struct zb_model_key key[] = {
        {"model_type", "llama", 0},           {"vocab_size", "1024", 0},
        {"hidden_size", "1024", 0},           {"intermediate_size", "2816", 0},
        {"num_hidden_layers", "32", 0},       {"num_attention_heads", "8", 0},
        {"max_position_embeddings", "16", 0},
    };
    const struct zb_parallel par = {
        .tp = 1,
        .sp = sp,
        .mode = sp > 1 ? ZB_SEQ_ALL_TO_ALL : ZB_SEQ_WHOLE,
        .vocab_multiple = 1,
    };
    const struct zb_model_opts opts = {
        .max_seq = SEQ, .init_std = -1, .par = &par};

    return zb_model_from_keys(key, ZB_COUNT_OF(key), "hybrid", &opts, m_out);
}

static enum zb_status open_session(const struct setup *u, const struct grid *g,
                                   const char *planner, const struct link *l,
                                   const struct zb_model *model,
                                   struct zb_session **s_out)
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
    o.n_stages = g->pp;
    o.n_dp = g->dp;
    o.n_micro = 2 * g->pp;
    o.max_rows = o.n_micro * g->dp;
    o.max_seq = SEQ;
    o.cut = ZB_CUT_UNIFORM;
    o.f_cost = o.b_cost = o.w_cost = &cost;
    o.n_costs = 1;
    o.sim_ns_per_cost = 1e3 * u->unit_us;
    o.sim_link_ns_per_byte = l->ns_per_byte;
    o.overlap_reduce = !l->reduces_late;
    o.overlap_gather = !l->gathers_late;
    return zb_session_new(model, &o, s_out);
}

/* Median time of a step, each begun when the one before is done. */
static enum zb_status time_steps(const struct setup *u, const struct grid *g,
                                 struct zb_session *s, double *ms_out)
{
    int64_t rows = (int64_t)2 * g->pp * g->dp;
    int32_t *ids = zb_alloc_array((size_t)(rows * SEQ), sizeof(*ids));
    int64_t *sample = zb_alloc_array((size_t)rows, sizeof(*sample));
    const void *field[] = {ids, ids};
    const struct zb_step_input in = {
        .n_rows = rows, .seq_len = SEQ, .field = field, .sample = sample};
    struct zb_step_result res = {.loss = 0};
    double ms[STEPS_MAX];
    enum zb_status st = ids == NULL || sample == NULL ? ZB_ENOMEM : ZB_OK;

    for (int i = -1; i < u->n_steps && st == ZB_OK; i++) {
        int64_t begin = zb_now_ns();

        st = zb_train_step(s, &in, 1e-3, &res);
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

static enum zb_status run_case(const struct setup *u, const struct grid *g,
                               const char *planner, const struct link *l,
                               double *ms_out)
{
    struct zb_model *model = NULL;
    struct zb_session *s = NULL;
    enum zb_status st = make_model(g->sp, &model);

    if (st == ZB_OK) {
        st = open_session(u, g, planner, l, model, &s);
    }
    if (st == ZB_OK) {
        st = time_steps(u, g, s, ms_out);
    }
    zb_session_free(s);
    zb_model_free(model);
    return st;
}

/* Bytes of gradients of a stage, near enough: a layer's matrices. */
static double stage_bytes(const struct grid *g)
{
    double layer = 1024.0 * 1024 * 4 + 1024.0 * 2816 * 3;

    return 32.0 / g->pp * layer * sizeof(zb_real);
}

/* Time of a byte so that a stage's reduction takes the asked part of a step. */
static struct link link_of(const struct setup *u, const struct grid *g)
{
    double step_ns = 2.0 * 2 * g->pp * 3 * 1e3 * u->unit_us;
    int n = g->sp * g->dp;

    return (struct link){
        .ns_per_byte =
            n > 1 ? u->percent / 100 * step_ns / stage_bytes(g) : 0,
    };
}

static enum zb_status compare_schedules(const struct setup *u,
                                        const struct grid *g)
{
    struct link l = link_of(u, g);
    int n_devices = g->pp * g->sp * g->dp;
    double v, f;

    ZB_TRY(run_case(u, g, "1f1b", &l, &f));
    ZB_TRY(run_case(u, g, "zbv", &l, &v));
    printf("%d devices  %-6s pp %d sp %d dp %d  M %2d  1f1b %8.2f ms  zbv "
           "%8.2f ms  gain %5.1f %%\n",
           n_devices, g->name, g->pp, g->sp, g->dp, 2 * g->pp, f, v,
           100 * (f / v - 1));
    fflush(stdout);
    return ZB_OK;
}

/* What is hidden of a reduction: of the time that it takes alone, that by which
 * a step is shorter when it overlaps. */
static enum zb_status compare_overlap(const struct setup *u,
                                      const struct grid *g)
{
    static const char *const planner[] = {"1f1b", "zbv"};

    for (size_t i = 0; i < ZB_COUNT_OF(planner); i++) {
        struct link l = link_of(u, g);
        double alone = l.ns_per_byte * stage_bytes(g) * 1e-6;
        double both, reduced_late, gathered_late;

        ZB_TRY(run_case(u, g, planner[i], &l, &both));
        l.reduces_late = 1;
        ZB_TRY(run_case(u, g, planner[i], &l, &reduced_late));
        l.reduces_late = 0;
        l.gathers_late = 1;
        ZB_TRY(run_case(u, g, planner[i], &l, &gathered_late));
        printf("%d devices  %-6s pp %d dp %d  %-5s step %8.2f ms, each way "
               "%6.2f ms  hidden: reduction %5.1f %%, gathering %5.1f %%\n",
               g->pp * g->dp, g->name, g->pp, g->dp, planner[i], both, alone,
               100 * (reduced_late - both) / alone,
               100 * (gathered_late - both) / alone);
        fflush(stdout);
    }
    return ZB_OK;
}

static enum zb_status run_all(const struct setup *u)
{
    static const struct grid grid[] = {
        {"pp", 4, 1, 1},    {"sp+pp", 2, 2, 1}, {"dp+pp", 2, 1, 2},
        {"pp", 8, 1, 1},    {"sp+pp", 4, 2, 1}, {"dp+pp", 4, 1, 2},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(grid); i++) {
        ZB_TRY(compare_schedules(u, &grid[i]));
    }
    for (size_t i = 0; i < ZB_COUNT_OF(grid); i++) {
        ZB_TRY(grid[i].dp > 1 ? compare_overlap(u, &grid[i]) : ZB_OK);
    }
    return ZB_OK;
}

int main(int argc, char **argv)
{
    struct setup u = {.unit_us = 4000, .percent = 5, .n_steps = 5};
    int c;

    while ((c = getopt(argc, argv, "u:n:r:")) != -1) {
        switch (c) {
        case 'u':
            u.unit_us = atof(optarg);
            break;
        case 'n':
            u.n_steps = atoi(optarg);
            break;
        case 'r':
            u.percent = atof(optarg);
            break;
        default:
            return 2;
        }
    }
    if (u.unit_us <= 0 || u.n_steps < 1 || u.n_steps > STEPS_MAX ||
        u.percent < 0) {
        fprintf(stderr, "hybrid: UNIT_US above 0, 1 to %d STEPS, PERCENT of 0 "
                        "or more\n",
                STEPS_MAX);
        return 2;
    }
    if (run_all(&u) != ZB_OK) {
        fprintf(stderr, "hybrid: %s\n", zb_error_text());
        return 1;
    }
    return 0;
}
