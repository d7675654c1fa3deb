/* SPDX-License-Identifier: MIT
 *
 * Memory: planned is allocated, blocks never overlap while both live, packing
 * is close to the least possible, and steady steps allocate nothing. */
#include "config.h"

#include <string.h>

#include "run/run_int.h"
#include "run_util.h"
#include "zb/mem.h"
#include "zbt.h"

#define N_ROWS 8

static int overlap(const struct zb_block *a, const struct zb_block *b)
{
    return a->bytes > 0 && b->bytes > 0 && a->first <= b->last &&
           b->first <= a->last && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

static size_t most_live_bytes(const struct zb_block *b, size_t n)
{
    size_t most = 0;

    for (size_t i = 0; i < n; i++) {
        size_t live = 0;

        for (size_t k = 0; k < n; k++) {
            live += b[k].first <= b[i].first && b[i].first <= b[k].last
                        ? b[k].bytes
                        : 0;
        }
        most = live > most ? live : most;
    }
    return most;
}

static void random_blocks_never_overlap_while_live(void)
{
    struct zbt_rng rng = {3};

    for (int round = 0; round < 200; round++) {
        struct zb_block b[40];
        size_t n = (size_t)zbt_rand_in(&rng, 0, 40), bytes;

        for (size_t i = 0; i < n; i++) {
            b[i].first = (size_t)zbt_rand_in(&rng, 0, 60);
            b[i].last = b[i].first + (size_t)zbt_rand_in(&rng, 0, 20);
            b[i].bytes = 64 * (size_t)zbt_rand_in(&rng, 0, 9);
        }
        ZBT_OK(zb_arena_pack(b, n, &bytes));
        CU_ASSERT(bytes >= most_live_bytes(b, n));
        for (size_t i = 0; i < n; i++) {
            CU_ASSERT(b[i].bytes == 0 || b[i].offset + b[i].bytes <= bytes);
            for (size_t k = 0; k < i; k++) {
                CU_ASSERT_FALSE(overlap(&b[i], &b[k]));
            }
        }
    }
}

/* With blocks of one size first fit is exact. */
static void equal_blocks_pack_without_loss(void)
{
    struct zbt_rng rng = {4};

    for (int round = 0; round < 50; round++) {
        struct zb_block b[60];
        size_t bytes;

        for (size_t i = 0; i < 60; i++) {
            b[i].first = (size_t)zbt_rand_in(&rng, 0, 100);
            b[i].last = b[i].first + (size_t)zbt_rand_in(&rng, 0, 30);
            b[i].bytes = 128;
        }
        ZBT_OK(zb_arena_pack(b, 60, &bytes));
        CU_ASSERT_EQUAL(bytes, most_live_bytes(b, 60));
    }
}

static void planned_bytes_are_allocated_bytes(void)
{
    static const char *const planner[] = {"zbv", "1f1b", "gpipe",
                                          "interleaved", "v-min"};
    struct zb_model *m = ru_gpt2(0);

    for (int p = 1; p <= 4; p *= 2) {
        for (size_t k = 0; k < 3 * ZB_COUNT_OF(planner); k++) {
            struct zb_session_opts o = ru_opts(p, 4, N_ROWS);
            struct zb_session *s = NULL;

            o.planner = planner[k / 3];
            o.recompute = (enum zb_recompute)(k % 3);
            ZBT_OK(zb_session_new(m, &o, &s));
            for (int i = 0; i < p; i++) {
                CU_ASSERT(zb_session_planned_bytes(s, i) > 0);
                CU_ASSERT_EQUAL(zb_session_planned_bytes(s, i),
                                zb_session_allocated_bytes(s, i));
            }
            zb_session_free(s);
        }
    }
    zb_model_free(m);
}

/* Also where start values are drawn for masters and in 16 bits, in steps, and
 * when the best rate is measured. */
static void memory_of_16_bits_is_never_more_than_planned(void)
{
    static const enum zb_dtype type[] = {ZB_DTYPE_BF16, ZB_DTYPE_F16};
    struct zb_parallel par = {.tp = 1, .sp = 1, .vocab_multiple = 1};
    struct ru_batch b;

    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    for (size_t k = 0; k < 3 * ZB_COUNT_OF(type); k++) {
        struct zb_session_opts o = ru_opts(2, 4, N_ROWS);
        struct zb_model *m = ru_llama_as(&par, type[k / 3]);
        struct zb_step_result res = {.loss = 0};
        struct zb_session *s = NULL;
        double flops;

        o.recompute = (enum zb_recompute)(k % 3);
        ZBT_OK(zb_session_new(m, &o, &s));
        ZBT_OK(zb_session_measure_peak(s, &flops));
        CU_ASSERT(flops > 0);
        ZBT_OK(zb_train_step(s, &b.in, 1e-3, &res));
        for (int i = 0; i < 2; i++) {
            CU_ASSERT_EQUAL(zb_session_planned_bytes(s, i),
                            zb_session_allocated_bytes(s, i));
        }
        zb_session_free(s);
        zb_model_free(m);
    }
    ru_batch_release(&b);
}

/* Once every step has been taken once, training and evaluating allocate
 * nothing. */
static void steady_steps_allocate_nothing(void)
{
    struct zb_session_opts o = ru_opts(2, 4, N_ROWS);
    struct zb_model *m = ru_gpt2(0.1);
    struct zb_session *s = NULL;
    struct zb_step_result res = {.loss = 0};
    struct ru_batch b;
    uint64_t before;

    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    ZBT_OK(zb_session_new(m, &o, &s));
    for (int i = 0; i < 2; i++) {
        ZBT_OK(zb_train_step(s, &b.in, 1e-3, &res));
        ZBT_OK(zb_run_forward_only(s, &b.in, 5, ZB_RETURN_LOSS, &res));
    }
    before = zb_mem_count();
    for (int i = 0; i < 5; i++) {
        ZBT_OK(zb_train_step(s, &b.in, 1e-3, &res));
        ZBT_OK(zb_run_forward_only(s, &b.in, 5, ZB_RETURN_LOSS, &res));
    }
    CU_ASSERT_EQUAL(zb_mem_count(), before);
    zb_session_free(s);
    ru_batch_release(&b);
    zb_model_free(m);
}

/* The message buffers are counted for the planned number of microbatches. With
 * late messages an order made for more of them would want more buffers, and
 * wait for them for ever. */
static void more_microbatches_than_planned_need_no_more_buffers(void)
{
    static const int planned[] = {1, 2, 4};
    struct zb_model *m = ru_llama();
    struct ru_batch b;

    ru_batch_init(&b, 40, RU_SEQ, 1);
    for (size_t i = 0; i < ZB_COUNT_OF(planned); i++) {
        struct zb_session_opts o = ru_opts(2, planned[i], 40);
        struct zb_step_result one = {.loss = 0}, many = {.loss = 0};
        struct zb_session *s = NULL;

        o.c_cost = 30;
        o.watchdog_s = 20;
        ZBT_OK(zb_session_new(m, &o, &s));
        ZBT_OK(zb_run_forward_only(s, &b.in, 0, ZB_RETURN_LOSS, &one));
        ZBT_OK(zb_run_forward_only(s, &b.in, 39, ZB_RETURN_LOSS, &many));
        CU_ASSERT_DOUBLE_EQUAL(many.loss, one.loss, 1e-5);
        CU_ASSERT_EQUAL(many.n_counted[0], one.n_counted[0]);
        zb_session_free(s);
    }
    ru_batch_release(&b);
    zb_model_free(m);
}

/* 1f1b holds p - s microbatches on stage s, gpipe all of them: the arena shows
 * it, so it is the schedule that decides the memory. */
static void activations_follow_the_schedule(void)
{
    struct zb_model *m = ru_llama();
    struct zb_session_opts o = ru_opts(4, 8, N_ROWS);
    struct zb_run_plan *one, *all;
    size_t act[2];

    o.cut = ZB_CUT_UNIFORM;
    o.planner = "1f1b";
    ZBT_OK(zb_run_plan_new(m, &o, &one));
    o.planner = "gpipe";
    ZBT_OK(zb_run_plan_new(m, &o, &all));
    for (int s = 0; s < 4; s++) {
        act[0] = one->layout[s].region_bytes[ZB_REGION_ACT];
        act[1] = all->layout[s].region_bytes[ZB_REGION_ACT];
        CU_ASSERT(act[0] < act[1]);
    }
    CU_ASSERT(one->layout[3].region_bytes[ZB_REGION_ACT] <
              one->layout[0].region_bytes[ZB_REGION_ACT]);
    zb_run_plan_free(one);
    zb_run_plan_free(all);
    zb_model_free(m);
}

/* Of the stage that needs most. */
static size_t most_activations(const struct zb_model *m, const char *planner,
                               enum zb_recompute recompute)
{
    struct zb_session_opts o = ru_opts(4, 8, N_ROWS);
    struct zb_run_plan *p;
    size_t most = 0;

    o.planner = planner;
    o.recompute = recompute;
    o.cut = ZB_CUT_UNIFORM;
    ZBT_OK(zb_run_plan_new(m, &o, &p));
    for (int s = 0; s < 4; s++) {
        size_t bytes = p->layout[s].region_bytes[ZB_REGION_ACT];

        most = bytes > most ? bytes : most;
    }
    zb_run_plan_free(p);
    return most;
}

static void recomputing_takes_less_memory_with_any_schedule(void)
{
    static const char *const planner[] = {"zbv", "get_v_schedule", "1f1b",
                                          "gpipe", "interleaved"};
    struct zb_model *m = ru_llama();

    for (size_t i = 0; i < ZB_COUNT_OF(planner); i++) {
        size_t none = most_activations(m, planner[i], ZB_RECOMPUTE_NONE);
        size_t some = most_activations(m, planner[i], ZB_RECOMPUTE_SELECTIVE);
        size_t full = most_activations(m, planner[i], ZB_RECOMPUTE_FULL);

        printf("\n  %s: %zu, %zu, %zu bytes ", planner[i], none, some, full);
        CU_ASSERT(some < none);
        CU_ASSERT(2 * full < none);
    }
    zb_model_free(m);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(random_blocks_never_overlap_while_live),
        ZBT_CASE(equal_blocks_pack_without_loss),
        ZBT_CASE(planned_bytes_are_allocated_bytes),
        ZBT_CASE(memory_of_16_bits_is_never_more_than_planned),
        ZBT_CASE(steady_steps_allocate_nothing),
        ZBT_CASE(more_microbatches_than_planned_need_no_more_buffers),
        ZBT_CASE(activations_follow_the_schedule),
        ZBT_CASE(recomputing_takes_less_memory_with_any_schedule),
    };
    return zbt_run("run_memory", cases, ZB_COUNT_OF(cases));
}
