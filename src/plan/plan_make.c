/* SPDX-License-Identifier: MIT
 *
 * The planners by name.
 */
#include "config.h"
#include "plan/plan_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "zb/thread.h"

#define FILE_PREFIX "file:"

struct planner {
    const char *name;
    enum zb_placement placement;
    int n_chunk;
    int is_elastic;
    enum zb_status (*make)(const struct zb_plan_input *in,
                           const struct zb_plan_opts *opts,
                           struct zb_schedule *s);
};

static const struct planner planners[] = {
    {"zbv", ZB_PLACE_V, 2, 1, zb_plan_zbv},
    {"get_v_schedule", ZB_PLACE_V, 2, 1, zb_plan_get_v_schedule},
    {"1f1b", ZB_PLACE_LINEAR, 1, 0, zb_plan_1f1b},
    {"interleaved", ZB_PLACE_LOOP, 2, 0, zb_plan_interleaved},
    {"gpipe", ZB_PLACE_LINEAR, 1, 0, zb_plan_gpipe},
    {"zb-h1", ZB_PLACE_LINEAR, 1, 0, zb_plan_zb_h1},
    {"zb-h2", ZB_PLACE_LINEAR, 1, 0, zb_plan_zb_h2},
    {"v-half", ZB_PLACE_V, 2, 0, zb_plan_v_half},
    {"v-min", ZB_PLACE_V, 2, 0, zb_plan_v_min},
    {"pytorch-zbv", ZB_PLACE_V, 2, 0, zb_plan_pytorch_zbv},
    {"dualpipev", ZB_PLACE_V, 2, 0, zb_plan_dualpipev},
};

const char *zb_planner_name(int i)
{
    return i >= 0 && (size_t)i < ZB_COUNT_OF(planners) ? planners[i].name
                                                       : NULL;
}

static enum zb_status unknown_planner(const char *name)
{
    char known[256];
    size_t n = 0;

    for (size_t i = 0; i < ZB_COUNT_OF(planners); i++) {
        int k =
            snprintf(known + n, sizeof(known) - n, "%s, ", planners[i].name);

        n += k > 0 && (size_t)k < sizeof(known) - n ? (size_t)k : 0;
    }
    return zb_fail(ZB_ECONFIG,
                   "unknown planner '%.64s': known are %sand file:PATH", name,
                   known);
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
    return unknown_planner(name);
}

int zb_planner_is_elastic(const char *planner)
{
    for (size_t i = 0; i < ZB_COUNT_OF(planners); i++) {
        if (strcmp(planners[i].name, planner) == 0) {
            return planners[i].is_elastic;
        }
    }
    return 0;
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

/* A loop goes round as often as it is told. */
static int takes_chunks(const struct planner *planner, int n_chunk)
{
    return n_chunk == planner->n_chunk ||
           (planner->placement == ZB_PLACE_LOOP && n_chunk >= 2);
}

static enum zb_status make_by_name(const char *name,
                                   const struct zb_plan_input *in,
                                   const struct zb_plan_opts *opts,
                                   struct zb_schedule **s_out)
{
    const struct planner *planner = NULL;
    struct zb_schedule *s = NULL;
    enum zb_status st;

    ZB_TRY(find_planner(name, &planner));
    if (planner->placement != in->placement ||
        !takes_chunks(planner, in->n_chunk)) {
        return zb_fail(ZB_EINVAL,
                       "planner %s does not plan for this placement with %d "
                       "chunks per stage",
                       name, in->n_chunk);
    }
    ZB_TRY(zb_plan_schedule_new(name, in->n_stage, in->n_micro, in->placement,
                                in->n_chunk, &s));
    st = planner->make(in, opts, s);
    if (st != ZB_OK) {
        zb_schedule_free(s);
        return st;
    }
    *s_out = s;
    return ZB_OK;
}

void zb_plan_opts_init(struct zb_plan_opts *opts)
{
    *opts = (struct zb_plan_opts){.objective = ZB_PLAN_STEP, .budget = -1};
}

/* A month, which no search lasts; more might not fit into nanoseconds. */
#define LONGEST_MS 2.6e9

/* The defaults for NULL. */
static enum zb_status take_opts(const struct zb_plan_opts *opts,
                                struct zb_plan_opts *opts_out)
{
    zb_plan_opts_init(opts_out);
    if (opts == NULL) {
        return ZB_OK;
    }
    if (!(opts->time_limit_ms >= 0)) {
        return zb_fail(ZB_EINVAL, "time limit is %g ms: must be >= 0",
                       opts->time_limit_ms);
    }
    *opts_out = *opts;
    opts_out->time_limit_ms = fmin(opts->time_limit_ms, LONGEST_MS);
    return ZB_OK;
}

enum zb_status zb_plan_make(const char *planner, const struct zb_plan_input *in,
                            const struct zb_plan_opts *opts,
                            struct zb_schedule **s_out)
{
    const char *path = file_of(planner);
    int64_t begin = zb_now_ns();
    struct zb_plan_opts own;
    struct zb_schedule *s = NULL;
    enum zb_status st;

    ZB_TRY(take_opts(opts, &own));
    ZB_TRY(zb_plan_input_check(in));
    ZB_TRY(path != NULL ? make_from_file(path, in, &s)
                        : make_by_name(planner, in, &own, &s));
    s->objective = own.objective;
    s->plan_ms = (double)(zb_now_ns() - begin) / 1e6;
    st = check_peaks(s, in);
    if (st == ZB_OK) {
        st = zb_schedule_check(s, in);
    }
    if (st == ZB_OK) {
        st = zb_plan_lower_bound(in, s);
    }
    if (st != ZB_OK) {
        zb_schedule_free(s);
        return st;
    }
    *s_out = s;
    return ZB_OK;
}
