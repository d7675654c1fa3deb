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
 * Both are a part of each step: a step reduces, updates, and begins to gather,
 * which the next step waits for. The gains are those of whole steps.
 *
 * Of the overlap there are four times of a step: `free`, where a byte takes no
 * time; `late`, where all is reduced behind the last pass and all is gathered
 * before the first; then with only one of the two late. "Each way" is half of
 * what `late` is above `free`; what is hidden of a reduction is the part of
 * that by which a step is shorter when reducing (but not gathering) overlaps,
 * and the same the other way round. "Left" is what a step with both overlapped
 * takes more than a free one.
 *
 * On a simulated device a reduction begins when all ranks have their gradients
 * and the device's side stream is free, as on one whose host runs ahead; it
 * takes nothing from the compute stream.
 */
#include "config.h"

#include <stdio.h>

#include "sim_steps.h"
#include "zb/model.h"

#define SEQ 16

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

static enum zb_status open_session(const struct sim_setup *u,
                                   const struct grid *g, const char *planner,
                                   const struct link *l,
                                   const struct zb_model *model,
                                   struct zb_session **s_out)
{
    struct zb_session_opts o;
    double cost;

    ZB_TRY(sim_session_opts(u, planner, g->pp, 2 * g->pp, g->dp, &cost, &o));
    o.max_seq = SEQ;
    o.cut = ZB_CUT_UNIFORM;
    o.sim_link_ns_per_byte = l->ns_per_byte;
    o.overlap_reduce = !l->reduces_late;
    o.overlap_gather = !l->gathers_late;
    return zb_session_new(model, &o, s_out);
}

static enum zb_status run_case(const struct sim_setup *u, const struct grid *g,
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
        st = sim_time_steps(u, s, (int64_t)2 * g->pp * g->dp, SEQ, 1, ms_out);
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
static struct link link_of(const struct sim_setup *u, const struct grid *g)
{
    double step_ns = 2.0 * 2 * g->pp * 3 * 1e3 * u->unit_us;
    int n = g->sp * g->dp;

    return (struct link){
        .ns_per_byte =
            n > 1 ? u->percent / 100 * step_ns / stage_bytes(g) : 0,
    };
}

static enum zb_status compare_schedules(const struct sim_setup *u,
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

/* The times of a step that the header tells of. */
struct times {
    double free, late, reduces, gathers, both;
};

static enum zb_status take_times(const struct sim_setup *u,
                                 const struct grid *g, const char *planner,
                                 struct times *t)
{
    const double ns = link_of(u, g).ns_per_byte;
    const struct {
        struct link link;
        double *ms;
    } row[] = {
        {{0, 0, 0}, &t->free},     {{ns, 1, 1}, &t->late},
        {{ns, 0, 1}, &t->reduces}, {{ns, 1, 0}, &t->gathers},
        {{ns, 0, 0}, &t->both},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(row); i++) {
        ZB_TRY(run_case(u, g, planner, &row[i].link, row[i].ms));
    }
    return ZB_OK;
}

static enum zb_status compare_overlap(const struct sim_setup *u,
                                      const struct grid *g)
{
    static const char *const planner[] = {"1f1b", "zbv"};

    for (size_t i = 0; i < ZB_COUNT_OF(planner); i++) {
        struct times t = {0, 0, 0, 0, 0};
        double each;

        ZB_TRY(take_times(u, g, planner[i], &t));
        each = (t.late - t.free) / 2;
        printf("%d devices  %-6s pp %d dp %d  %-5s free %8.2f ms, each way "
               "%6.2f ms  hidden: reduction %5.1f %%, gathering %5.1f %%  left "
               "%5.2f ms\n",
               g->pp * g->dp, g->name, g->pp, g->dp, planner[i], t.free, each,
               100 * (t.late - t.reduces) / each,
               100 * (t.late - t.gathers) / each, t.both - t.free);
        fflush(stdout);
    }
    return ZB_OK;
}

static enum zb_status run_all(const struct sim_setup *u)
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
    struct sim_setup u = {.unit_us = 4000, .percent = 5, .n_steps = 5};

    if (sim_options(argc, argv, "hybrid", "u:n:r:", &u) != 0) {
        return 2;
    }
    if (run_all(&u) != ZB_OK) {
        fprintf(stderr, "hybrid: %s\n", zb_error_text());
        return 1;
    }
    return 0;
}
