/* SPDX-License-Identifier: MIT
 *
 * The planners by name.
 */
#include "config.h"
#include "plan/plan_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "zb/mem.h"
#include "zb/thread.h"

#define FILE_PREFIX "file:"

/* ---- fixed orders ---- */

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

static enum zb_status make_1f1b(const struct zb_plan_input *in,
                                struct zb_schedule *s)
{
    return f_then_bw(in, s, 0);
}

static enum zb_status make_gpipe(const struct zb_plan_input *in,
                                 struct zb_schedule *s)
{
    return f_then_bw(in, s, 1);
}

/* ---- V ---- */

static double mean(const double *x, int n)
{
    double sum = 0;

    if (zb_plan_is_uniform(x, n)) {
        return x[0];
    }
    for (int i = 0; i < n; i++) {
        sum += x[i];
    }
    return sum / n;
}

static double least(const double *x, int n)
{
    double min = x[0];

    for (int i = 1; i < n; i++) {
        min = fmin(min, x[i]);
    }
    return min;
}

static struct zb_plan_vgen_input averages(const struct zb_plan_input *in)
{
    int n = 2 * in->n_stage;

    return (struct zb_plan_vgen_input){
        .cost = {mean(in->f_cost, n), mean(in->b_cost, n), mean(in->w_cost, n)},
        .c_cost = in->c_cost,
        .mem = {mean(in->f_mem, n), mean(in->b_mem, n), mean(in->w_mem, n)},
        .max_mem = least(in->max_mem, in->n_stage),
    };
}

/* Whether the original generator takes this input as it is. */
static int is_in_reach(const struct zb_plan_input *in,
                       const struct zb_plan_vgen_input *avg)
{
    int n = 2 * in->n_stage;

    return zb_plan_is_uniform(in->f_cost, n) &&
           zb_plan_is_uniform(in->b_cost, n) &&
           zb_plan_is_uniform(in->w_cost, n) &&
           zb_plan_is_uniform(in->f_mem, n) &&
           zb_plan_is_uniform(in->b_mem, n) &&
           zb_plan_is_uniform(in->w_mem, n) && avg->cost[0] > 0 &&
           avg->cost[1] > 0 && avg->max_mem >= n * avg->mem[0];
}

/* The generator's nodes. Its times end - cost may miss the end of an input by
 * rounding when costs are fractions, and a message or a W then stands on the
 * wrong side of a node; with `is_exact` 0 the times are made anew. */
static enum zb_status lay_out_original(const struct zb_plan_input *in,
                                       const struct zb_plan_vgen_input *avg,
                                       int is_exact, double *pv_time,
                                       struct zb_schedule *s)
{
    ZB_TRY(zb_plan_vgen(avg, s, pv_time));
    if (!is_exact) {
        ZB_TRY(zb_schedule_simulate(s, in));
    }
    ZB_TRY(zb_plan_layout(s, pv_time));
    zb_plan_measure(s);
    zb_plan_measure_memory(s, in);
    return zb_schedule_check(s, in);
}

/* What the original gives, exactly if that can be run. *is_done_out is 0 when
 * the generator cannot do it. */
static enum zb_status make_original(const struct zb_plan_input *in,
                                    const struct zb_plan_vgen_input *avg,
                                    struct zb_schedule *s, int *is_done_out)
{
    double *pv_time = zb_alloc_array((size_t)s->n_stage, sizeof(*pv_time));
    enum zb_status st;

    if (pv_time == NULL) {
        return ZB_ENOMEM;
    }
    st = lay_out_original(in, avg, 1, pv_time, s);
    if (st == ZB_ECONFIG) {
        st = lay_out_original(in, avg, 0, pv_time, s);
    }
    zb_free(pv_time);
    *is_done_out = st == ZB_OK;
    return st == ZB_ENOMEM ? st : ZB_OK;
}

static int fits_memory(const struct zb_schedule *s,
                       const struct zb_plan_input *in)
{
    for (int i = 0; i < s->n_stage; i++) {
        if (s->peak_mem[i] > in->max_mem[i] * (1 + 1e-9)) {
            return 0;
        }
    }
    return 1;
}

enum { CANDIDATE_ORIGINAL = 4, N_CANDIDATES = 5 };

/* Candidate k: the list schedules (k is their rule), and the original
 * generator on averages, its order run with the real costs. */
static enum zb_status make_candidate(const struct zb_plan_input *in, int k,
                                     struct zb_schedule *s)
{
    struct zb_plan_vgen_input avg = averages(in);
    unsigned flags = ((k & 1) ? ZB_PLAN_LIST_F_FIRST : 0) |
                     ((k & 2) ? ZB_PLAN_LIST_W_LATE : 0);

    if (k < CANDIDATE_ORIGINAL) {
        ZB_TRY(zb_plan_list(in, flags, s));
    } else {
        avg.max_mem = fmax(avg.max_mem, 2 * in->n_stage * avg.mem[0]);
        ZB_TRY(zb_plan_vgen(&avg, s, NULL));
    }
    return zb_schedule_simulate(s, in);
}

/* Move the nodes of one schedule to another of the same sizes. */
static void take_nodes(struct zb_schedule *to, struct zb_schedule *from)
{
    for (int i = 0; i < to->n_stage; i++) {
        zb_free(to->stages[i].node);
        to->stages[i] = from->stages[i];
        from->stages[i] = (struct zb_stage_nodes){0};
    }
    to->makespan = from->makespan;
}

static enum zb_status make_best(const struct zb_plan_input *in,
                                struct zb_schedule *s)
{
    int n_found = 0;

    for (int k = 0; k < N_CANDIDATES; k++) {
        struct zb_schedule *one = NULL;
        enum zb_status st;

        ZB_TRY(zb_plan_schedule_new(s->planner, s->n_stage, s->n_micro,
                                    s->placement, s->n_chunk, &one));
        st = make_candidate(in, k, one);
        if (st == ZB_OK && fits_memory(one, in) &&
            (n_found == 0 || one->makespan < s->makespan)) {
            take_nodes(s, one);
            n_found++;
        }
        zb_schedule_free(one);
        if (st == ZB_ENOMEM) {
            return st;
        }
    }
    if (n_found == 0) {
        return zb_fail(ZB_EINFEASIBLE, "no schedule found");
    }
    return zb_schedule_add_comm(s, in);
}

/* One microbatch must fit; the list schedule needs no more. */
static enum zb_status check_room(const struct zb_plan_input *in)
{
    char need[ZB_PLAN_NUMBER_MAX], have[ZB_PLAN_NUMBER_MAX];

    for (int i = 0; i < in->n_stage; i++) {
        double sum = 0;

        for (int c = 0; c < in->n_chunk; c++) {
            sum +=
                in->f_mem[zb_virtual_stage(in->placement, in->n_stage, i, c)];
        }
        if (sum > in->max_mem[i] * (1 + 1e-9)) {
            return zb_fail(ZB_EINFEASIBLE,
                           "memory limit %s of stage %d is too small: one "
                           "microbatch alone needs %s",
                           zb_plan_number(in->max_mem[i], have), i,
                           zb_plan_number(sum, need));
        }
    }
    return ZB_OK;
}

static enum zb_status make_v(const struct zb_plan_input *in,
                             struct zb_schedule *s)
{
    struct zb_plan_vgen_input avg = averages(in);
    int is_done = 0;

    ZB_TRY(check_room(in));
    if (is_in_reach(in, &avg)) {
        ZB_TRY(make_original(in, &avg, s, &is_done));
    }
    return is_done ? ZB_OK : make_best(in, s);
}

/* ---- by name ---- */

struct planner {
    const char *name;
    enum zb_placement placement;
    int n_chunk;
    enum zb_status (*make)(const struct zb_plan_input *in,
                           struct zb_schedule *s);
};

static const struct planner planners[] = {
    {"zbv", ZB_PLACE_V, 2, make_v},
    {"get_v_schedule", ZB_PLACE_V, 2, make_v},
    {"1f1b", ZB_PLACE_LINEAR, 1, make_1f1b},
    {"gpipe", ZB_PLACE_LINEAR, 1, make_gpipe},
};

const char *zb_planner_name(int i)
{
    return i >= 0 && (size_t)i < ZB_COUNT_OF(planners) ? planners[i].name
                                                       : NULL;
}

static enum zb_status find_planner(const char *name,
                                   const struct planner **planner_out)
{
    for (size_t i = 0; i < ZB_COUNT_OF(planners); i++) {
        if (strcmp(planners[i].name, name) == 0) {
            *planner_out = &planners[i];
            return ZB_OK;
        }
    }
    return zb_fail(ZB_ECONFIG,
                   "unknown planner '%.64s': known are zbv, get_v_schedule, "
                   "1f1b, gpipe and file:PATH",
                   name);
}

static const char *file_of(const char *planner)
{
    size_t n = strlen(FILE_PREFIX);

    return strncmp(planner, FILE_PREFIX, n) == 0 ? planner + n : NULL;
}

enum zb_status zb_planner_shape(const char *planner,
                                enum zb_placement *placement_out,
                                int *n_chunk_out)
{
    const char *path = file_of(planner);
    const struct planner *found = NULL;
    struct zb_schedule *s = NULL;

    if (path != NULL) {
        ZB_TRY(zb_schedule_read(path, &s));
        *placement_out = s->placement;
        *n_chunk_out = s->n_chunk;
        zb_schedule_free(s);
        return ZB_OK;
    }
    ZB_TRY(find_planner(planner, &found));
    *placement_out = found->placement;
    *n_chunk_out = found->n_chunk;
    return ZB_OK;
}

/* A fixed order needs the memory it needs. */
static enum zb_status check_peaks(const struct zb_schedule *s,
                                  const struct zb_plan_input *in)
{
    char need[ZB_PLAN_NUMBER_MAX], have[ZB_PLAN_NUMBER_MAX];

    for (int i = 0; i < s->n_stage; i++) {
        if (s->peak_mem[i] > in->max_mem[i] * (1 + 1e-9)) {
            return zb_fail(ZB_EINFEASIBLE,
                           "memory limit %s of stage %d is too small: planner "
                           "%s needs %s there",
                           zb_plan_number(in->max_mem[i], have), i, s->planner,
                           zb_plan_number(s->peak_mem[i], need));
        }
    }
    return ZB_OK;
}

static enum zb_status make_from_file(const char *path,
                                     const struct zb_plan_input *in,
                                     struct zb_schedule **s_out)
{
    struct zb_schedule *s = NULL;
    enum zb_status st;

    ZB_TRY(zb_schedule_read(path, &s));
    snprintf(s->planner, sizeof(s->planner), "file");
    st = zb_plan_input_fits(in, s);
    if (st == ZB_OK) {
        st = zb_schedule_check(s, NULL);
    }
    if (st == ZB_OK) {
        st = zb_schedule_simulate(s, in);
    }
    if (st != ZB_OK) {
        zb_schedule_free(s);
        return zb_fail_in(st, "%s", path);
    }
    *s_out = s;
    return ZB_OK;
}

static enum zb_status make_by_name(const char *name,
                                   const struct zb_plan_input *in,
                                   struct zb_schedule **s_out)
{
    const struct planner *planner = NULL;
    struct zb_schedule *s = NULL;
    enum zb_status st;

    ZB_TRY(find_planner(name, &planner));
    if (planner->placement != in->placement ||
        planner->n_chunk != in->n_chunk) {
        return zb_fail(ZB_EINVAL,
                       "planner %s does not plan for this placement with %d "
                       "chunks per stage",
                       name, in->n_chunk);
    }
    ZB_TRY(zb_plan_schedule_new(name, in->n_stage, in->n_micro, in->placement,
                                in->n_chunk, &s));
    st = planner->make(in, s);
    if (st != ZB_OK) {
        zb_schedule_free(s);
        return st;
    }
    *s_out = s;
    return ZB_OK;
}

enum zb_status zb_plan_make(const char *planner, const struct zb_plan_input *in,
                            struct zb_schedule **s_out)
{
    const char *path = file_of(planner);
    int64_t begin = zb_now_ns();
    struct zb_schedule *s = NULL;
    enum zb_status st;

    ZB_TRY(zb_plan_input_check(in));
    ZB_TRY(path != NULL ? make_from_file(path, in, &s)
                        : make_by_name(planner, in, &s));
    s->plan_ms = (double)(zb_now_ns() - begin) / 1e6;
    st = check_peaks(s, in);
    if (st == ZB_OK) {
        st = zb_schedule_check(s, in);
    }
    if (st != ZB_OK) {
        zb_schedule_free(s);
        return st;
    }
    s->lower_bound = zb_plan_lower_bound(in, s);
    *s_out = s;
    return ZB_OK;
}

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
