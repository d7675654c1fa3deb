/* SPDX-License-Identifier: MIT
 *
 * get_v_schedule: the original generator where it takes the input, and the
 * best of simple list schedules where it does not.
 */
#include "config.h"
#include "plan/plan_int.h"

#include <math.h>

#include "zb/mem.h"

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
           avg->cost[1] > 0 && avg->mem[1] <= 0 &&
           avg->max_mem >= n * avg->mem[0];
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

static enum zb_status best_order(const struct zb_plan_input *in,
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
    return ZB_OK;
}

enum zb_status zb_plan_order_get_v_schedule(const struct zb_plan_input *in,
                                            struct zb_schedule *s)
{
    struct zb_plan_vgen_input avg = averages(in);

    return is_in_reach(in, &avg) ? zb_plan_vgen(&avg, s, NULL)
                                 : best_order(in, s);
}

/* One microbatch must fit; the list schedule needs no more. */
enum zb_status zb_plan_check_room(const struct zb_plan_input *in)
{
    char need[ZB_PLAN_NUMBER_MAX], have[ZB_PLAN_NUMBER_MAX];

    for (int i = 0; i < in->n_stage; i++) {
        double sum = 0, most = 0;

        for (int c = 0; c < in->n_chunk; c++) {
            int v = zb_virtual_stage(in->placement, in->n_stage, i, c);

            sum += in->f_mem[v];
            most = fmax(most, in->b_mem[v]);
        }
        sum += most;
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

enum zb_status zb_plan_get_v_schedule(const struct zb_plan_input *in,
                                      const struct zb_plan_opts *opts,
                                      struct zb_schedule *s)
{
    struct zb_plan_vgen_input avg = averages(in);
    int is_done = 0;

    (void)opts;
    ZB_TRY(zb_plan_check_room(in));
    if (is_in_reach(in, &avg)) {
        ZB_TRY(make_original(in, &avg, s, &is_done));
    }
    if (is_done) {
        return ZB_OK;
    }
    ZB_TRY(best_order(in, s));
    return zb_schedule_add_comm(s, in);
}
