/* SPDX-License-Identifier: MIT
 *
 * Whole training runs with a fault in them, and that the emulated CUDA reports
 * it: waits dropped, events recorded too early, messages, collectives and
 * exchanges of NCCL swapped, memory freed too early, device memory read by the
 * host. A fault may stay silent only where all accesses of the run, compared
 * pair by pair, turn out to be ordered without it. */
#include "config.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_cuda.h"
#include "unit/run_util.h"
#include "unit/zbt.h"
#include "zb/mem.h"

#define N_STEPS 2
#define N_ROWS 4
#define N_GPUS 2
#define DELAY_US 5

static const struct ru_grid pp = {2, 1, 1, 1, ZB_SEQ_WHOLE};
static const struct ru_grid dp = {1, 1, 1, 2, ZB_SEQ_WHOLE};
static const struct ru_grid tp = {1, 2, 1, 1, ZB_SEQ_WHOLE};
static const struct ru_grid sp = {1, 1, 2, 1, ZB_SEQ_RING};

static const char *const kind_names[] = {
    [FAKE_DROP_WAIT] = "wait",      [FAKE_EARLY_RECORD] = "record",
    [FAKE_SWAP] = "swap",           [FAKE_FREE] = "free",
    [FAKE_HOST_READ] = "host read", [FAKE_SWAP_EXCHANGE] = "swap of exchanges",
};

/* Over NCCL, or reading the others' memory. */
static enum zb_collectives collectives = ZB_COLLECTIVES_COPY;

/* Steps of a session; without an error of the run or with one. */
static enum zb_status train(const struct ru_grid *g)
{
    static const int gpus[] = {0, 1};
    const struct zb_parallel par = {
        .tp = g->tp, .sp = g->sp, .mode = g->mode, .vocab_multiple = 8};
    struct zb_model *m = ru_llama_on(&par);
    struct zb_session_opts o = ru_grid_opts(g, N_ROWS);
    struct zb_session *s = NULL;
    struct ru_batch b;
    enum zb_status st;

    o.backend = "cuda";
    o.gpus = gpus;
    o.p2p = ZB_P2P_COPY;
    o.collectives = collectives;
    o.watchdog_s = 2; /* swapped exchanges may wait for each other */
    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    st = zb_session_new(m, &o, &s);
    for (int i = 0; i < N_STEPS && st == ZB_OK; i++) {
        struct zb_step_result res = {.loss = 0};

        st = zb_train_step(s, &b.in, 1e-3, &res);
    }
    zb_session_free(s);
    ru_batch_release(&b);
    zb_model_free(m);
    return st;
}

/* How many places there are for such a fault in a run that has none. */
static uint64_t count_places(const struct ru_grid *g, enum fake_fault kind,
                             const char *in_name)
{
    fake_cuda_reset(N_GPUS, 1, DELAY_US);
    fake_cuda_fault(kind, in_name, UINT64_MAX);
    ZBT_OK(train(g));
    if (fake_cuda_n_reports() > 0) {
        printf("\nno fault: %s\n", fake_cuda_report(0));
        CU_FAIL("a report without a fault");
    }
    CU_ASSERT_FALSE(fake_cuda_has_unordered());
    return fake_cuda_n_fault_places();
}

struct tally {
    int n_reported, n_harmless, n_absent;
};

/* A run with the k-th fault. */
static void try_fault(const struct ru_grid *g, enum fake_fault kind,
                      const char *in_name, uint64_t k, struct tally *t)
{
    fake_cuda_reset(N_GPUS, k, DELAY_US);
    fake_cuda_fault(kind, in_name, k);
    (void)train(g);
    if (!fake_cuda_has_failed()) {
        t->n_absent++;
        (void)fake_cuda_n_reports();
    } else if (fake_cuda_n_reports() > 0) {
        t->n_reported++;
    } else if (!fake_cuda_has_unordered()) {
        t->n_harmless++;
    } else {
        printf("\nplace %llu, %s: not reported\n", (unsigned long long)k,
               fake_cuda_fault_text());
        CU_FAIL("a fault is not reported");
    }
}

/* Runs with a sample of such faults, or with all; `least` of them, in percent,
 * are to be reported. */
static void try_faults(const struct ru_grid *g, enum fake_fault kind,
                       const char *in_name, int n_sample, int least)
{
    uint64_t n = count_places(g, kind, in_name);
    struct zbt_rng rng = {n + (uint64_t)kind};
    struct tally t = {0, 0, 0};
    int n_tried;

    CU_ASSERT_FATAL(n > 0);
    if ((zbt_is_long() && n < 1000) || n <= (uint64_t)n_sample) {
        for (uint64_t k = 1; k <= n; k++) {
            try_fault(g, kind, in_name, k, &t);
        }
    } else {
        int n_more = n_sample * (zbt_is_long() ? 10 : 1);

        /* Which place is the k-th depends on the threads: a sample may, rarely,
         * have met nothing that counts. */
        for (int i = 0; i < n_more || (t.n_reported == 0 && i < 10 * n_sample);
             i++) {
            try_fault(g, kind, in_name, (uint64_t)zbt_rand_in(&rng, 1, (long)n),
                      &t);
        }
    }
    n_tried = t.n_reported + t.n_harmless;
    if (zbt_is_long()) {
        printf("%s pp %d tp %d sp %d dp %d: %llu places; %d reported, %d "
               "harmless, %d absent\n",
               kind_names[kind], g->pp, g->tp, g->sp, g->dp,
               (unsigned long long)n, t.n_reported, t.n_harmless, t.n_absent);
    }
    CU_ASSERT(t.n_reported * 100 >= least * n_tried && t.n_reported > 0);
}

static void every_dropped_wait_that_counts_is_reported(void)
{
    try_faults(&pp, FAKE_DROP_WAIT, NULL, 10, 0);
    try_faults(&dp, FAKE_DROP_WAIT, NULL, 8, 0);
    try_faults(&tp, FAKE_DROP_WAIT, NULL, 6, 90);
    try_faults(&sp, FAKE_DROP_WAIT, NULL, 8, 0);
}

static void every_early_record_that_counts_is_reported(void)
{
    try_faults(&pp, FAKE_EARLY_RECORD, "copy in the device", 8, 0);
    try_faults(&dp, FAKE_EARLY_RECORD, "reduce", 6, 0);
    try_faults(&tp, FAKE_EARLY_RECORD, NULL, 6, 60);
}

static void swapped_messages_are_reported(void)
{
    try_faults(&pp, FAKE_SWAP, "copy in the device", 6, 0);
}

static void reordered_collectives_are_reported(void)
{
    try_faults(&tp, FAKE_SWAP, "reduce", 8, 60);
}

static void exchanges_out_of_order_are_reported(void)
{
    collectives = ZB_COLLECTIVES_NCCL;
    /* With the exchange of the same group that comes next, or of another. */
    try_faults(&tp, FAKE_SWAP_EXCHANGE, "exchange", 8, 100);
    try_faults(&dp, FAKE_SWAP_EXCHANGE, "exchange gradients", 6, 100);
    try_faults(&dp, FAKE_SWAP_EXCHANGE, "exchange parameters", 4, 100);
    try_faults(&sp, FAKE_SWAP_EXCHANGE, "exchange", 6, 100);
    /* With the sum of what is exchanged, where there is one. */
    try_faults(&dp, FAKE_SWAP, "exchange gradients", 4, 100);
    try_faults(&tp, FAKE_SWAP, "exchange", 6, 50);
    collectives = ZB_COLLECTIVES_COPY;
}

static void exchange_without_its_events_is_reported(void)
{
    collectives = ZB_COLLECTIVES_NCCL;
    try_faults(&dp, FAKE_DROP_WAIT, "side", 6, 0);
    try_faults(&dp, FAKE_EARLY_RECORD, "gradients", 6, 0);
    try_faults(&sp, FAKE_DROP_WAIT, "ring", 6, 0);
    try_faults(&sp, FAKE_EARLY_RECORD, "exchange", 6, 0);
    collectives = ZB_COLLECTIVES_COPY;
}

static void every_early_free_is_reported(void)
{
    try_faults(&pp, FAKE_FREE, NULL, 3, 100);
    try_faults(&dp, FAKE_FREE, NULL, 3, 100);
}

/* The exit status of a process that trains so, and whether it said why. */
static int run_child(const struct ru_grid *g, uint64_t k, int *has_said)
{
    char text[4096] = "";
    int fds[2], status = -1;
    size_t n = 0;
    ssize_t more;
    pid_t pid;

    fake_cuda_reset(N_GPUS, k, DELAY_US); /* no thread is left to be missed */
    fflush(NULL);
    CU_ASSERT_FATAL(pipe(fds) == 0);
    pid = fork();
    CU_ASSERT_FATAL(pid >= 0);
    if (pid == 0) {
        dup2(fds[1], 2);
        close(fds[0]);
        close(fds[1]);
        fake_cuda_fault(FAKE_HOST_READ, NULL, k);
        (void)train(g);
        _exit(0);
    }
    close(fds[1]);
    while (n + 1 < sizeof(text) &&
           (more = read(fds[0], text + n, sizeof(text) - 1 - n)) > 0) {
        n += (size_t)more;
        text[n] = '\0';
    }
    close(fds[0]);
    waitpid(pid, &status, 0);
    *has_said = strstr(text, "host: the host accesses device memory") != NULL;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void host_read_of_device_memory_is_reported(void)
{
    uint64_t n = count_places(&pp, FAKE_HOST_READ, NULL);
    struct zbt_rng rng = {n};
    int n_runs = zbt_is_long() ? 20 : 3;

    CU_ASSERT_FATAL(n > 0);
    for (int i = 0; i < n_runs; i++) {
        int has_said = 0;

        CU_ASSERT_EQUAL(
            run_child(&pp, (uint64_t)zbt_rand_in(&rng, 1, (long)n), &has_said),
            FAKE_CUDA_EXIT);
        CU_ASSERT(has_said);
    }
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(every_dropped_wait_that_counts_is_reported),
        ZBT_CASE(every_early_record_that_counts_is_reported),
        ZBT_CASE(swapped_messages_are_reported),
        ZBT_CASE(reordered_collectives_are_reported),
        ZBT_CASE(exchanges_out_of_order_are_reported),
        ZBT_CASE(exchange_without_its_events_is_reported),
        ZBT_CASE(every_early_free_is_reported),
        ZBT_CASE(host_read_of_device_memory_is_reported),
    };

    return zbt_run("cuda_faults", cases, ZB_COUNT_OF(cases));
}
