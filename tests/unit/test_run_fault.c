/* SPDX-License-Identifier: MIT
 *
 * Failures: whatever fails, the run ends with that error, names the place,
 * hangs nowhere and leaks nothing. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "run_util.h"
#include "zb/mem.h"
#include "zb/thread.h"
#include "zbt.h"

#define N_STAGES 2
#define N_MICRO 3
#define N_ROWS 6
#define LONGEST_S 5.0

static double seconds_since(int64_t begin)
{
    return (double)(zb_now_ns() - begin) * 1e-9;
}

static void node_text(const struct zb_session *s, int stage, size_t i,
                      char *buf, size_t n)
{
    struct zb_node_times t = zb_session_node_times(s, stage);

    snprintf(buf, n, "device %d, stage %d, %s chunk %d microbatch %d", stage,
             stage, zb_node_type_str(t.node[i].type), t.node[i].chunk,
             t.node[i].mb);
}

/* Fail node `i` of `stage`; 0 when there is no such node. */
static int fail_one(const struct zb_model *m, const struct ru_batch *b,
                    const char *planner, int n_stages, int stage, size_t i)
{
    struct zb_session_opts o = ru_opts(n_stages, N_MICRO, N_ROWS);
    struct zb_session *s = NULL;
    struct zb_step_result res = {.loss = 0};
    int64_t live = zb_mem_live();
    char want[128];
    int64_t begin;

    o.planner = planner;
    ZBT_OK(zb_session_new(m, &o, &s));
    if (i >= zb_session_node_times(s, stage).n) {
        zb_session_free(s);
        return 0;
    }
    node_text(s, stage, i, want, sizeof(want));
    zb_session_fail_node(s, stage, i);
    begin = zb_now_ns();
    CU_ASSERT_EQUAL(zb_train_step(s, &b->in, 1e-2, &res), ZB_EDEVICE);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), want));
    CU_ASSERT_EQUAL(zb_train_step(s, &b->in, 1e-2, &res), ZB_EABORT);
    zb_session_free(s);
    CU_ASSERT(seconds_since(begin) < LONGEST_S);
    CU_ASSERT_EQUAL(zb_mem_live(), live);
    return 1;
}

static void fault_in_any_node_is_named(void)
{
    static const struct {
        const char *planner;
        int n_stages;
    } run[] = {{"zbv", 1}, {"zbv", 2},  {"1f1b", 2}, {"gpipe", 2},
               {"zbv", 4}, {"1f1b", 4}, {"gpipe", 4}};
    struct zb_model *m = ru_gpt2(0); /* tied: the stages also meet at the end */
    struct ru_batch b;

    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    for (size_t k = 0; k < ZB_COUNT_OF(run); k++) {
        for (int stage = 0; stage < run[k].n_stages; stage++) {
            for (size_t i = 0; fail_one(m, &b, run[k].planner,
                                        run[k].n_stages, stage, i);
                 i++) {
            }
        }
    }
    ru_batch_release(&b);
    zb_model_free(m);
}

/* One whole use of a session; the status of the first call that failed. */
static enum zb_status use_session(const struct zb_model *m,
                                  const struct ru_batch *b)
{
    struct zb_session_opts o = ru_opts(N_STAGES, N_MICRO, N_ROWS);
    struct zb_step_result res = {.loss = 0};
    struct zb_session *s;
    enum zb_status st;

    ZB_TRY(zb_session_new(m, &o, &s));
    st = zb_train_step(s, &b->in, 1e-2, &res);
    if (st == ZB_OK) {
        st = zb_run_forward_only(s, &b->in, N_MICRO + 2, ZB_RETURN_LOSS, &res);
    }
    zb_session_free(s);
    return st;
}

static void failing_kth_allocation_unwinds(void)
{
    struct zb_session_opts o = ru_opts(N_STAGES, N_MICRO, N_ROWS);
    struct zb_model *m = ru_llama();
    struct ru_batch b;
    int64_t live;
    uint64_t k;

    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    live = zb_mem_live();
    for (k = 1;; k += zbt_is_long() ? 1 : 7) {
        int64_t begin = zb_now_ns();
        enum zb_status st;
        int failed;

        zb_mem_fail_at(k);
        st = use_session(m, &b);
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        CU_ASSERT_EQUAL(zb_mem_live(), live);
        CU_ASSERT(seconds_since(begin) < LONGEST_S);
        if (!failed) {
            CU_ASSERT_EQUAL(st, ZB_OK);
            break;
        }
        /* A device that works later reports it as an error of its own. */
        CU_ASSERT(st == ZB_ENOMEM || strcmp(o.backend, "check") == 0);
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "memory"));
    }
    CU_ASSERT(k > 50);
    ru_batch_release(&b);
    zb_model_free(m);
}

/* ---- the watchdog -------------------------------------------------------- */

/* Stage 1 receives what stage 0 never sends. */
static enum zb_status wait_for_nothing(struct zb_worker *w, void *arg)
{
    const struct zb_step_input *in = arg;

    ZB_TRY(zb_load_batch(w, in, N_MICRO, 1));
    if (zb_worker_stage(w) == 1) {
        return zb_schedule_f(w, 0, 0);
    }
    return ZB_OK;
}

static void watchdog_says_who_waits(void)
{
    struct zb_session_opts o = ru_opts(N_STAGES, N_MICRO, N_ROWS);
    struct zb_model *m = ru_llama();
    struct zb_session *s = NULL;
    struct zb_step_result res = {.loss = 0};
    struct ru_batch b;

    o.watchdog_s = 0.5;
    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    ZBT_OK(zb_session_new(m, &o, &s));
    ZBT_OK(zb_train_step(s, &b.in, 1e-2, &res));
    CU_ASSERT_EQUAL(zb_session_each(s, wait_for_nothing, &b.in), ZB_ETIMEOUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(
        zb_error_text(),
        "waits for: forward message, stage 0 chunk 0 to stage 1 chunk 0"));
    zb_session_free(s);
    ru_batch_release(&b);
    zb_model_free(m);
}

/* ---- functions of one's own ---------------------------------------------- */

static enum zb_status give_up_on_stage_one(struct zb_worker *w, void *arg)
{
    return zb_worker_stage(w) == 1 ? *(const enum zb_status *)arg : ZB_OK;
}

static void any_status_of_a_function_ends_the_session(void)
{
    static const enum zb_status code[] = {ZB_EDEVICE, ZB_EABORT};
    struct zb_model *m = ru_llama();

    for (size_t i = 0; i < ZB_COUNT_OF(code); i++) {
        struct zb_session_opts o = ru_opts(N_STAGES, N_MICRO, N_ROWS);
        struct zb_session *s = NULL;
        enum zb_status st = code[i];

        ZBT_OK(zb_session_new(m, &o, &s));
        CU_ASSERT_EQUAL(zb_session_each(s, give_up_on_stage_one, &st), st);
        CU_ASSERT_EQUAL(zb_zero_grad(s), ZB_EABORT);
        zb_session_free(s);
    }
    zb_model_free(m);
}

/* ---- what a batch may not be --------------------------------------------- */

static void batch_that_does_not_fit_is_refused(void)
{
    struct zb_session_opts o = ru_opts(N_STAGES, N_MICRO, N_ROWS);
    struct zb_model *m = ru_llama();
    struct zb_session *s = NULL;
    struct zb_step_result res = {.loss = 0};
    struct ru_batch small, large, longer, good;

    ru_batch_init(&small, N_MICRO - 1, RU_SEQ, 1);
    ru_batch_init(&large, N_ROWS + 1, RU_SEQ, 1);
    ru_batch_init(&longer, N_ROWS, RU_SEQ + 1, 1);
    ru_batch_init(&good, N_ROWS, RU_SEQ, 1);
    ZBT_OK(zb_session_new(m, &o, &s));
    CU_ASSERT_EQUAL(zb_train_step(s, &small.in, 1e-2, &res), ZB_ECONFIG);
    CU_ASSERT_EQUAL(zb_train_step(s, &large.in, 1e-2, &res), ZB_ECONFIG);
    CU_ASSERT_EQUAL(zb_train_step(s, &longer.in, 1e-2, &res), ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "13"));
    /* A refused batch does not end the session. */
    ZBT_OK(zb_train_step(s, &good.in, 1e-2, &res));
    zb_session_free(s);
    ru_batch_release(&small);
    ru_batch_release(&large);
    ru_batch_release(&longer);
    ru_batch_release(&good);
    zb_model_free(m);
}

static void impossible_sessions_are_refused(void)
{
    struct zb_model *m = ru_llama();
    static const double cost[] = {1, 1};
    struct zb_session *s = NULL;
    struct zb_session_opts o = ru_opts(N_STAGES, N_MICRO, N_ROWS);

    o.planner = "zbw";
    CU_ASSERT_EQUAL(zb_session_new(m, &o, &s), ZB_ECONFIG);
    o = ru_opts(N_STAGES, N_MICRO, N_ROWS);
    o.backend = "cup";
    CU_ASSERT_EQUAL(zb_session_new(m, &o, &s), ZB_ECONFIG);
    o = ru_opts(N_STAGES, N_MICRO, N_ROWS);
    o.device_mem = 1000;
    CU_ASSERT_EQUAL(zb_session_new(m, &o, &s), ZB_EINFEASIBLE);
    o = ru_opts(N_STAGES, N_MICRO, N_ROWS);
    o.max_mem = 1000;
    CU_ASSERT_EQUAL(zb_session_new(m, &o, &s), ZB_EINFEASIBLE);
    o = ru_opts(N_STAGES, N_MICRO, N_ROWS);
    o.f_cost = cost;
    o.n_costs = 2;
    CU_ASSERT_EQUAL(zb_session_new(m, &o, &s), ZB_EINVAL);
    o = ru_opts(0, N_MICRO, N_ROWS);
    CU_ASSERT_EQUAL(zb_session_new(m, &o, &s), ZB_EINVAL);
    o = ru_opts(N_STAGES, N_MICRO, N_MICRO - 1);
    CU_ASSERT_EQUAL(zb_session_new(m, &o, &s), ZB_EINVAL);
    zb_model_free(m);
}

static void dry_run_refuses_what_a_run_would(void)
{
    struct zb_model *m = ru_llama();
    struct zb_session_opts o = ru_opts(N_STAGES, N_MICRO, N_ROWS);
    FILE *f = tmpfile();

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    ZBT_OK(zb_session_dry_run(m, &o, f));
    CU_ASSERT(ftell(f) > 100);
    o.device_mem = 1000;
    CU_ASSERT_EQUAL(zb_session_dry_run(m, &o, f), ZB_EINFEASIBLE);
    o = ru_opts(N_STAGES, N_MICRO, N_ROWS);
    o.backend = "cup";
    CU_ASSERT_EQUAL(zb_session_dry_run(m, &o, f), ZB_ECONFIG);
    fclose(f);
    zb_model_free(m);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(fault_in_any_node_is_named),
        ZBT_CASE(failing_kth_allocation_unwinds),
        ZBT_CASE(watchdog_says_who_waits),
        ZBT_CASE(any_status_of_a_function_ends_the_session),
        ZBT_CASE(batch_that_does_not_fit_is_refused),
        ZBT_CASE(impossible_sessions_are_refused),
        ZBT_CASE(dry_run_refuses_what_a_run_would),
    };
    return zbt_run("run_fault", cases, ZB_COUNT_OF(cases));
}
