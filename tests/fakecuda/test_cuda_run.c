/* SPDX-License-Identifier: MIT
 *
 * Training on emulated GPUs: the cpu's losses for any delays, no report, and no
 * step after the first that allocates or waits for a whole device. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fake_cuda.h"
#include "unit/run_util.h"
#include "zb/mem.h"
#include "unit/zbt.h"

#define N_STEPS 4
#define N_ROWS 8
#define N_GPUS 2
#define DELAY_US 30

static const struct ru_grid grids[] = {
    {1, 1, 1, 1, ZB_SEQ_WHOLE},        {2, 1, 1, 1, ZB_SEQ_WHOLE},
    {4, 1, 1, 1, ZB_SEQ_WHOLE},        {1, 2, 1, 1, ZB_SEQ_WHOLE},
    {1, 2, 1, 1, ZB_SEQ_SPLIT_GATHER}, {1, 1, 2, 1, ZB_SEQ_ALL_TO_ALL},
    {1, 1, 2, 1, ZB_SEQ_RING},         {1, 1, 1, 2, ZB_SEQ_WHOLE},
    {2, 2, 1, 1, ZB_SEQ_WHOLE},        {2, 1, 1, 2, ZB_SEQ_WHOLE},
};

/* In turn on the GPUs that there are. */
static const int gpus[] = {0, 1, 0, 1, 0, 1, 0, 1};

static int no_reports(const char *what)
{
    int n = fake_cuda_n_reports();

    for (int i = 0; i < n && i < 5; i++) {
        printf("\n%s: %s\n", what, fake_cuda_report(i));
    }
    return n == 0;
}

static void train(const struct zb_model *m, const struct ru_grid *g,
                  const char *backend, double *loss)
{
    struct zb_session_opts o = ru_grid_opts(g, N_ROWS);
    struct zb_session *s = NULL;

    o.backend = backend;
    o.gpus = gpus;
    o.optim.eps = 1e-4;
    ZBT_OK(zb_session_new(m, &o, &s));
    for (int i = 0; i < N_STEPS; i++) {
        struct zb_step_result res = {.loss = 0};
        struct ru_batch b;

        ru_batch_init(&b, N_ROWS, RU_SEQ, (unsigned long long)i + 1);
        ZBT_OK(zb_train_step(s, &b.in, 1e-3, &res));
        loss[i] = res.loss;
        ru_batch_release(&b);
    }
    zb_session_free(s);
}

static void check_losses(const struct ru_grid *g, uint64_t seed,
                         const double *want, const double *loss)
{
    for (int i = 0; i < N_STEPS; i++) {
        if (!(fabs(loss[i] - want[i]) <= 1e-5 * want[i])) {
            printf("\npp %d tp %d sp %d dp %d, seed %llu, step %d: loss %.9g, "
                   "not %.9g\n",
                   g->pp, g->tp, g->sp, g->dp, (unsigned long long)seed, i + 1,
                   loss[i], want[i]);
            CU_FAIL("a loss differs from the cpu's");
            return;
        }
    }
}

static struct zb_model *model_for(const struct ru_grid *g)
{
    const struct zb_parallel par = {.tp = g->tp,
                                    .sp = g->sp,
                                    .mode = g->mode,
                                    .vocab_multiple = 8};

    return ru_llama_on(&par);
}

static void every_grid_trains_as_the_cpu_for_any_delays(void)
{
    int n_seeds = zbt_is_long() ? 100 : 2;

    for (size_t i = 0; i < ZB_COUNT_OF(grids); i++) {
        struct zb_model *m = model_for(&grids[i]);
        double want[N_STEPS], loss[N_STEPS];

        train(m, &grids[i], "cpu", want);
        CU_ASSERT(want[0] > 3 && want[0] < 6);
        for (int seed = 1; seed <= n_seeds; seed++) {
            fake_cuda_reset(N_GPUS, (uint64_t)seed, DELAY_US);
            train(m, &grids[i], "cuda", loss);
            check_losses(&grids[i], (uint64_t)seed, want, loss);
            CU_ASSERT_FATAL(no_reports("training"));
        }
        zb_model_free(m);
    }
}

/* Calls that stop a device, or the process's other threads. */
static uint64_t n_stops(void)
{
    static const char *const calls[] = {
        "cudaMalloc",   "cudaFree",     "cudaDeviceSynchronize",
        "cudaHostAlloc", "cudaMallocHost", "cudaFreeHost", "cudaMemcpy",
    };
    uint64_t sum = 0;

    for (size_t i = 0; i < ZB_COUNT_OF(calls); i++) {
        sum += fake_cuda_count(calls[i]);
    }
    return sum;
}

static void steps_after_the_first_allocate_nothing(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(grids); i++) {
        struct zb_model *m = model_for(&grids[i]);
        struct zb_session_opts o = ru_grid_opts(&grids[i], N_ROWS);
        struct zb_session *s = NULL;
        struct zb_step_result res = {.loss = 0};
        uint64_t stops = 0, allocs = 0;
        struct ru_batch b;

        fake_cuda_reset(N_GPUS, 1, 0);
        o.backend = "cuda";
        o.gpus = gpus;
        ZBT_OK(zb_session_new(m, &o, &s));
        ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
        for (int k = 0; k < 4; k++) {
            if (k == 2) {
                stops = n_stops();
                allocs = zb_mem_count();
            }
            ZBT_OK(zb_train_step(s, &b.in, 1e-3, &res));
        }
        CU_ASSERT(stops > 0);
        CU_ASSERT_EQUAL(n_stops(), stops);
        CU_ASSERT_EQUAL(zb_mem_count(), allocs);
        zb_session_free(s);
        ru_batch_release(&b);
        zb_model_free(m);
        CU_ASSERT_FATAL(no_reports("steps"));
    }
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(every_grid_trains_as_the_cpu_for_any_delays),
        ZBT_CASE(steps_after_the_first_allocate_nothing),
    };

    return zbt_run("cuda_run", cases, ZB_COUNT_OF(cases));
}
