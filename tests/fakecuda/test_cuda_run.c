/* SPDX-License-Identifier: MIT
 *
 * Training on emulated GPUs: the cpu's losses for any delays, no report, and no
 * step that allocates or waits for a whole device; what ends a run whose messages
 * go over links. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fake_cuda.h"
#include "unit/run_util.h"
#include "unit/zbt.h"
#include "zb/mem.h"
#include "zb/thread.h"

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

/* Messages over links: no GPU has two devices. */
#define N_LINKED_GPUS 8

static const struct ru_grid linked_grids[] = {
    {2, 1, 1, 1, ZB_SEQ_WHOLE}, {4, 1, 1, 1, ZB_SEQ_WHOLE},
    {2, 2, 1, 1, ZB_SEQ_WHOLE}, {2, 1, 2, 1, ZB_SEQ_RING},
    {2, 1, 1, 2, ZB_SEQ_WHOLE}, {4, 2, 1, 1, ZB_SEQ_WHOLE},
    {2, 2, 1, 2, ZB_SEQ_WHOLE},
};

/* The same for collectives. */
static const struct ru_grid exchanging_grids[] = {
    {1, 2, 1, 1, ZB_SEQ_WHOLE},      {1, 2, 1, 1, ZB_SEQ_SPLIT_GATHER},
    {1, 1, 2, 1, ZB_SEQ_ALL_TO_ALL}, {1, 1, 2, 1, ZB_SEQ_RING},
    {1, 1, 4, 1, ZB_SEQ_RING},       {1, 1, 1, 2, ZB_SEQ_WHOLE},
    {1, 4, 1, 1, ZB_SEQ_WHOLE},      {2, 1, 1, 2, ZB_SEQ_WHOLE},
    {2, 2, 1, 2, ZB_SEQ_WHOLE},      {1, 2, 2, 2, ZB_SEQ_RING},
};

static int no_reports(const char *what)
{
    int n = fake_cuda_n_reports();

    for (int i = 0; i < n && i < 5; i++) {
        printf("\n%s: %s\n", what, fake_cuda_report(i));
    }
    return n == 0;
}

static struct zb_session_opts opts_of(const struct ru_grid *g,
                                      const char *backend, enum zb_p2p p2p)
{
    struct zb_session_opts o = ru_grid_opts(g, N_ROWS);

    o.backend = backend;
    o.p2p = p2p;
    o.gpus = p2p == ZB_P2P_NCCL ? NULL : gpus;
    o.collectives = ZB_COLLECTIVES_COPY;
    o.optim.eps = 1e-4;
    return o;
}

static struct zb_session_opts exchanging_opts(const struct ru_grid *g)
{
    struct zb_session_opts o = opts_of(g, "cuda", ZB_P2P_COPY);

    o.gpus = NULL;
    o.collectives = ZB_COLLECTIVES_NCCL;
    return o;
}

static void train(const struct zb_model *m, const struct zb_session_opts *o,
                  double *loss)
{
    struct zb_session *s = NULL;

    ZBT_OK(zb_session_new(m, o, &s));
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

static void train_grid(const struct ru_grid *g, enum zb_p2p p2p, int n_gpus)
{
    struct zb_session_opts on_cpu = opts_of(g, "cpu", ZB_P2P_AUTO);
    struct zb_session_opts on_cuda = opts_of(g, "cuda", p2p);
    struct zb_model *m = model_for(g);
    double want[N_STEPS], loss[N_STEPS];
    int n_seeds = zbt_is_long() ? 100 : 2;

    train(m, &on_cpu, want);
    CU_ASSERT(want[0] > 3 && want[0] < 6);
    for (int seed = 1; seed <= n_seeds; seed++) {
        fake_cuda_reset(n_gpus, (uint64_t)seed, DELAY_US);
        train(m, &on_cuda, loss);
        check_losses(g, (uint64_t)seed, want, loss);
        CU_ASSERT_FATAL(no_reports("training"));
    }
    zb_model_free(m);
}

static void every_grid_trains_as_the_cpu_for_any_delays(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(grids); i++) {
        train_grid(&grids[i], ZB_P2P_AUTO, N_GPUS);
    }
}

/* A first message of each link, then one for each microbatch where a boundary
 * has any. */
static void messages_over_links_train_as_the_cpu(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(linked_grids); i++) {
        const struct ru_grid *g = &linked_grids[i];
        int n_columns = g->tp * g->sp * g->dp;
        /* All boundaries but the turn of the V, both ways. */
        int n_links = 2 * (2 * g->pp - 2) * n_columns;
        int n;

        train_grid(g, ZB_P2P_NCCL, N_LINKED_GPUS);
        CU_ASSERT_EQUAL((int)fake_cuda_count("connection"), n_links);
        n = (int)fake_cuda_count("message") / 2 - n_links;
        CU_ASSERT(n > 0 && n % (N_STEPS * N_ROWS / 2 / g->dp) == 0);
        CU_ASSERT_EQUAL(fake_cuda_live(), 0);
    }
}

/* Losses of steps, bit by bit those of collectives that read the others' memory:
 * each loss depends on all sums and gatherings of the steps before. */
static void check_exchanges(const struct ru_grid *g, int zero_stage)
{
    struct zb_model *m = model_for(g);
    struct zb_session_opts on_cpu = opts_of(g, "cpu", ZB_P2P_AUTO);
    struct zb_session_opts reading = opts_of(g, "cuda", ZB_P2P_AUTO);
    struct zb_session_opts sending = exchanging_opts(g);
    double want[N_STEPS], read[N_STEPS], loss[N_STEPS];
    int n_seeds = zbt_is_long() ? 100 : 2;

    reading.gpus = NULL;
    on_cpu.zero_stage = reading.zero_stage = sending.zero_stage = zero_stage;
    train(m, &on_cpu, want);
    fake_cuda_reset(N_LINKED_GPUS, 1, 0);
    train(m, &reading, read);
    CU_ASSERT_EQUAL(fake_cuda_count("message"), 0);
    for (int seed = 1; seed <= n_seeds; seed++) {
        /* With messages over links, too, every other time. */
        sending.p2p = seed % 2 ? ZB_P2P_NCCL : ZB_P2P_COPY;
        fake_cuda_reset(N_LINKED_GPUS, (uint64_t)seed, DELAY_US);
        train(m, &sending, loss);
        check_losses(g, (uint64_t)seed, want, loss);
        CU_ASSERT(memcmp(loss, read, sizeof(loss)) == 0);
        CU_ASSERT(fake_cuda_count("message") > 0);
        CU_ASSERT_EQUAL(fake_cuda_live(), 0);
        CU_ASSERT_FATAL(no_reports("collectives over links"));
    }
    zb_model_free(m);
}

static void collectives_over_links_give_the_same_bits(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(exchanging_grids); i++) {
        const struct ru_grid *g = &exchanging_grids[i];

        check_exchanges(g, 1);
        if (g->dp > 1 && g->pp == 1) {
            check_exchanges(g, 0);
        }
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

/* What streams need is in the plan: no GPU has less or more than the arenas
 * of its devices, and the first step allocates none of its memory. */
static size_t bytes_of_gpu(int gpu)
{
    size_t n_free = 0, total = 0;

    CU_ASSERT_EQUAL(cudaSetDevice(gpu), cudaSuccess);
    CU_ASSERT_EQUAL(cudaMemGetInfo(&n_free, &total), cudaSuccess);
    return total - n_free;
}

static void gpus_have_what_was_planned(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(grids); i++) {
        const struct ru_grid *g = &grids[i];
        struct zb_model *m = model_for(g);
        struct zb_session_opts o = ru_grid_opts(g, N_ROWS);
        struct zb_step_result res = {.loss = 0};
        struct zb_session *s = NULL;
        size_t planned = 0;
        uint64_t n_allocs;
        struct ru_batch b;

        fake_cuda_reset(1, 1, 0);
        o.backend = "cuda";
        o.gpus = (const int[8]){0};
        ZBT_OK(zb_session_new(m, &o, &s));
        for (int stage = 0; stage < g->pp; stage++) {
            planned += zb_session_planned_bytes(s, stage) *
                       (size_t)(g->tp * g->sp * g->dp);
        }
        n_allocs = fake_cuda_count("cudaMalloc");
        ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
        for (int k = 0; k < 2; k++) {
            CU_ASSERT_EQUAL(bytes_of_gpu(0), planned);
            ZBT_OK(zb_train_step(s, &b.in, 1e-3, &res));
        }
        CU_ASSERT_EQUAL(fake_cuda_count("cudaMalloc"), n_allocs);
        zb_session_free(s);
        ru_batch_release(&b);
        zb_model_free(m);
        CU_ASSERT_FATAL(no_reports("memory"));
    }
}

static void count_product(void *arg, const struct zb_launch *launch)
{
    *(int *)arg += launch->kernel == ZB_K_gemm;
}

/* What is looked at without a device is what is launched. */
static void products_of_a_step_are_those_of_the_graph(void)
{
    enum { N_MICRO = 4 };
    struct zb_model *m = ru_llama();
    const struct zb_graph *g = zb_model_graph(m);
    struct zb_session_opts o = ru_opts(1, N_MICRO, N_ROWS);
    struct zb_bind bind =
        zb_parallel_bind(zb_graph_parallel(g), N_ROWS / N_MICRO, RU_SEQ);
    struct zb_step_result res = {.loss = 0};
    struct zb_stream_stats one;
    struct zb_session *s = NULL;
    struct zb_chunk *c = NULL;
    uint64_t n_products = 0, n_kernels = 0;
    struct ru_batch b;
    int n = 0;
    const struct zb_visitor v = {.launch = count_product, .arg = &n};

    ZBT_OK(zb_chunk_new(g, 0, zb_graph_n_layers(g), &bind, ZB_RECOMPUTE_NONE,
                        &c));
    ZBT_OK(zb_chunk_visit(c, &bind, &v));
    fake_cuda_reset(1, 1, 0);
    o.backend = "cuda";
    o.cuda_graphs = 0;
    ZBT_OK(zb_session_new(m, &o, &s));
    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    ZBT_OK(zb_train_step(s, &b.in, 1e-3, &res));
    for (int i = 0; zb_session_step_stats(s, 0, i, &one); i++) {
        n_products += one.products;
        n_kernels += one.kernels;
    }
    CU_ASSERT(n > 10);
    CU_ASSERT_EQUAL(n_products, (uint64_t)(N_MICRO * n));
    CU_ASSERT(n_kernels > n_products / 2);
    CU_ASSERT_EQUAL(n_products, fake_cuda_count("cublasLtMatmul"));
    ru_batch_release(&b);
    zb_session_free(s);
    zb_chunk_free(c);
    zb_model_free(m);
}

/* The limit is one for all: 4 MiB of scratch for each of two streams count. */
static void streams_count_for_the_limit_of_a_device(void)
{
    struct zb_model *m = ru_llama();
    struct zb_session_opts o = ru_opts(1, 2, N_ROWS);

    fake_cuda_reset(1, 1, 0);
    o.backend = "cuda";
    o.device_mem = (size_t)8 << 20;
    CU_ASSERT_EQUAL(zb_session_dry_run(m, &o, stdout), ZB_EINFEASIBLE);
    o.backend = "cpu";
    ZBT_OK(zb_session_dry_run(m, &o, stdout));
    zb_model_free(m);
}

/* Nothing stops a device once n_free steps were done. Launch by launch the host
 * allocates nothing either; a graph is made when its work comes again. */
static void check_steps(const struct ru_grid *g, enum zb_p2p p2p, int n_gpus,
                        int n_free, int has_graphs)
{
    struct zb_model *m = model_for(g);
    struct zb_session_opts o = opts_of(g, "cuda", p2p);
    struct zb_session *s = NULL;
    struct zb_step_result res = {.loss = 0};
    uint64_t stops = 0, links = 0, allocs = 0;
    struct ru_batch b;

    o.cuda_graphs = has_graphs;
    fake_cuda_reset(n_gpus, 1, 0);
    ZBT_OK(zb_session_new(m, &o, &s));
    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    for (int k = 0; k < 4; k++) {
        if (k == n_free) {
            stops = n_stops();
            links = fake_cuda_count("connection");
        }
        if (k == 1) {
            allocs = zb_mem_count();
        }
        ZBT_OK(zb_train_step(s, &b.in, 1e-3, &res));
    }
    CU_ASSERT(stops > 0);
    CU_ASSERT_EQUAL(n_stops(), stops);
    CU_ASSERT_EQUAL(fake_cuda_count("connection"), links);
    CU_ASSERT(has_graphs || zb_mem_count() == allocs);
    zb_session_free(s);
    ru_batch_release(&b);
    zb_model_free(m);
    CU_ASSERT_FATAL(no_reports("steps"));
}

static void steps_allocate_nothing(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(grids); i++) {
        check_steps(&grids[i], ZB_P2P_AUTO, N_GPUS, 1, 0);
        check_steps(&grids[i], ZB_P2P_AUTO, N_GPUS, 1, 1);
    }
    for (size_t i = 0; i < ZB_COUNT_OF(linked_grids); i++) {
        check_steps(&linked_grids[i], ZB_P2P_NCCL, N_LINKED_GPUS, 0, 1);
    }
}

/* ---- what goes wrong with links ------------------------------------------ */

#define LONGEST_S 10.0

/* At once: who sends or receives next hears of it; later, when all wait for
 * their streams: nobody but the host. */
static void gpu_whose_messages_are_lost_ends_the_run(void)
{
    const struct ru_grid *g = &linked_grids[1];
    struct zb_session_opts o = opts_of(g, "cuda", ZB_P2P_NCCL);
    struct zb_model *m = model_for(g);

    for (int i = 0; i < 8; i++) {
        int gpu = i % 4, after_ms = i / 4 * 400;
        struct zb_step_result res = {.loss = 0};
        int64_t live = zb_mem_live(), begin = zb_now_ns();
        struct zb_session *s = NULL;
        struct ru_batch b;

        fake_cuda_reset(N_LINKED_GPUS, (uint64_t)i, DELAY_US);
        ZBT_OK(zb_session_new(m, &o, &s));
        ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
        ZBT_OK(zb_train_step(s, &b.in, 1e-3, &res));
        fake_cuda_mute(gpu, after_ms);
        CU_ASSERT_EQUAL(zb_train_step(s, &b.in, 1e-3, &res), ZB_EDEVICE);
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "NCCL says: remote"));
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "stage"));
        zb_session_free(s);
        ru_batch_release(&b);
        CU_ASSERT((double)(zb_now_ns() - begin) * 1e-9 < LONGEST_S);
        CU_ASSERT_EQUAL(zb_mem_live(), live);
        CU_ASSERT_EQUAL(fake_cuda_live(), 0);
        CU_ASSERT_FATAL(no_reports("a lost GPU"));
    }
    zb_model_free(m);
}

/* Wherever CUDA or NCCL fails, in set-up or in a step, the run ends with that,
 * in time, and gives everything back. */
static void failure_of_any_call_ends_the_run(void)
{
    const struct ru_grid *g = &linked_grids[0];
    struct zb_session_opts o = opts_of(g, "cuda", ZB_P2P_NCCL);
    struct zb_model *m = model_for(g);
    struct ru_batch b;
    uint64_t step = zbt_is_long() ? 1 : 17;
    int n_failed = 0, has_failed = 1;

    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    for (uint64_t k = 1; has_failed; k += step) {
        struct zb_step_result res = {.loss = 0};
        int64_t begin = zb_now_ns();
        struct zb_session *s = NULL;
        enum zb_status st;

        fake_cuda_reset(N_LINKED_GPUS, k, 0);
        fake_cuda_fail_at(k, cudaErrorUnknown);
        st = zb_session_new(m, &o, &s);
        st = st == ZB_OK ? zb_train_step(s, &b.in, 1e-3, &res) : st;
        has_failed = fake_cuda_has_failed();
        n_failed += st != ZB_OK;
        CU_ASSERT(st == ZB_OK || st == ZB_EDEVICE || st == ZB_EUNSUPPORTED);
        zb_session_free(s);
        CU_ASSERT((double)(zb_now_ns() - begin) * 1e-9 < LONGEST_S);
        (void)fake_cuda_n_reports(); /* a call that failed orders nothing */
    }
    CU_ASSERT(n_failed > 10);
    ru_batch_release(&b);
    zb_model_free(m);
}

static void devices_that_share_a_gpu_are_refused(void)
{
    const struct ru_grid *g = &linked_grids[0];
    struct zb_session_opts o = opts_of(g, "cuda", ZB_P2P_NCCL);
    struct zb_model *m = model_for(g);
    static const int shared[] = {1, 1};
    struct zb_session *s = NULL;

    fake_cuda_reset(N_LINKED_GPUS, 1, 0);
    o.gpus = shared;
    CU_ASSERT_EQUAL(zb_session_new(m, &o, &s), ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(
        strstr(zb_error_text(), "devices 0 and 1 share GPU 1"));
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "p2p = copy"));
    o.backend = "cpu";
    CU_ASSERT_EQUAL(zb_session_new(m, &o, &s), ZB_EUNSUPPORTED);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "p2p = nccl: the cpu"));
    zb_model_free(m);
}

/* The host opens none of them before, which would be one after the other. */
static void contexts_of_a_run_are_made_together(void)
{
    static const int one_each[] = {0, 1, 2, 3};
    const struct ru_grid g = {4, 1, 1, 1, ZB_SEQ_WHOLE};
    struct zb_session_opts o = ru_grid_opts(&g, N_ROWS);
    struct zb_model *m = model_for(&g);
    struct zb_session *s = NULL;

    fake_cuda_reset(4, 1, 0);
    fake_cuda_gather_contexts(4);
    o.backend = "cuda";
    o.gpus = one_each;
    o.p2p = ZB_P2P_HOST; /* no copy test, whose pairs make some before */
    ZBT_OK(zb_session_new(m, &o, &s));
    CU_ASSERT_EQUAL(fake_cuda_gather_contexts(0), 4);
    zb_session_free(s);
    zb_model_free(m);
    CU_ASSERT_FATAL(no_reports("start"));
}

static void too_little_memory_shows_what_was_planned(void)
{
    const struct ru_grid g = {2, 1, 1, 1, ZB_SEQ_WHOLE};
    struct zb_session_opts o = ru_grid_opts(&g, N_ROWS);
    struct zb_model *m = model_for(&g);
    struct zb_session *s = NULL;
    char text[4096];
    FILE *f = tmpfile();

    fake_cuda_reset(N_GPUS, 1, 0);
    fake_cuda_set_memory(100000);
    o.backend = "cuda";
    o.memory_table = f;
    CU_ASSERT_EQUAL(zb_session_new(m, &o, &s), ZB_ENOMEM);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "out of memory"));
    rewind(f);
    text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
    fclose(f);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "memory (bytes)"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "stage 1"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "  total "));
    zb_model_free(m);
    CU_ASSERT_FATAL(no_reports("memory"));
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(every_grid_trains_as_the_cpu_for_any_delays),
        ZBT_CASE(messages_over_links_train_as_the_cpu),
        ZBT_CASE(gpus_have_what_was_planned),
        ZBT_CASE(products_of_a_step_are_those_of_the_graph),
        ZBT_CASE(streams_count_for_the_limit_of_a_device),
        ZBT_CASE(collectives_over_links_give_the_same_bits),
        ZBT_CASE(steps_allocate_nothing),
        ZBT_CASE(gpu_whose_messages_are_lost_ends_the_run),
        ZBT_CASE(failure_of_any_call_ends_the_run),
        ZBT_CASE(devices_that_share_a_gpu_are_refused),
        ZBT_CASE(contexts_of_a_run_are_made_together),
        ZBT_CASE(too_little_memory_shows_what_was_planned),
    };

    return zbt_run("cuda_run", cases, ZB_COUNT_OF(cases));
}
