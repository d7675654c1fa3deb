/* SPDX-License-Identifier: MIT
 *
 * GPUs that do not reach each other's memory, or only say so: what a test at
 * the start finds out, and that a run goes another way and is right. */
#include "config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"
#include "unit/run_util.h"
#include "unit/zbt.h"
#include "zb/comm.h"
#include "zb/log.h"
#include "zb/mem.h"

#define DELAY_US 20

static int no_reports(const char *what)
{
    int n = fake_cuda_n_reports();

    for (int i = 0; i < n && i < 5; i++) {
        printf("\n%s: %s\n", what, fake_cuda_report(i));
    }
    return n == 0;
}

/* ---- what is found ------------------------------------------------------- */

static const int gpus[] = {0, 1, 2, 0};
static struct zb_pair pairs[] = {{.a = 0, .b = 1}, {.a = 0, .b = 2},
                                 {.a = 1, .b = 2}, {.a = 0, .b = 3},
                                 {.a = 1, .b = 3}, {.a = 2, .b = 3}};

/* leaves: memory of ours stays, too. */
static void find(int may_try, int leaves)
{
    const struct zb_backend_opts o = {
        .n_devices = 4, .threads_per_device = 1, .gpus = gpus};
    struct zb_backend *be;
    int64_t live = zb_mem_live();

    ZBT_OK(zb_backend_open("cuda", &o, &be));
    ZBT_OK(be->ops->find_reach(be, may_try, pairs, ZB_COUNT_OF(pairs)));
    zb_backend_close(be);
    if (leaves) {
        CU_ASSERT(zb_mem_live() > live);
    } else {
        CU_ASSERT_EQUAL(zb_mem_live(), live);
    }
}

static int is(int i, enum zb_reach reach, const char *why)
{
    if (pairs[i].reach != reach || strstr(pairs[i].why, why) == NULL) {
        printf("\npair %d: reach %d, %s\n", i, (int)pairs[i].reach, pairs[i].why);
        return 0;
    }
    return 1;
}

static void gpus_that_copy_well_are_peers_and_one_gpu_is_shared(void)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        fake_cuda_reset(3, seed, DELAY_US);
        find(1, 0);
        for (int i = 0; i < 6; i++) {
            CU_ASSERT(is(i, i == 3 ? ZB_REACH_SHARED : ZB_REACH_PEER, ""));
        }
        CU_ASSERT_EQUAL(fake_cuda_live(), 0);
        CU_ASSERT(no_reports("test"));
    }
}

static void gpus_without_access_are_named(void)
{
    fake_cuda_reset(3, 1, DELAY_US);
    fake_cuda_part(1, 0);
    find(1, 0);
    CU_ASSERT(is(0, ZB_REACH_NONE, "no peer access between GPUs 0 and 1"));
    CU_ASSERT(is(4, ZB_REACH_NONE, "no peer access between GPUs 0 and 1"));
    CU_ASSERT(is(1, ZB_REACH_PEER, ""));
    CU_ASSERT(is(2, ZB_REACH_PEER, ""));
    CU_ASSERT_EQUAL(fake_cuda_live(), 0);
    CU_ASSERT(no_reports("test"));
}

static void gpus_that_copy_wrongly_are_named_with_the_bytes(void)
{
    fake_cuda_reset(3, 1, DELAY_US);
    fake_cuda_corrupt(0, 2);
    find(1, 0);
    CU_ASSERT(is(1, ZB_REACH_NONE,
                 "copy test failed: copying from GPU 0 to GPU 2, 1 of 4194317 "
                 "bytes wrong"));
    CU_ASSERT(is(5, ZB_REACH_NONE, "copy test failed"));
    CU_ASSERT(is(0, ZB_REACH_PEER, ""));
    CU_ASSERT_EQUAL(fake_cuda_live(), 0);
    CU_ASSERT(no_reports("test"));
}

/* The leak checker's own hook: what the next case leaves to the driver. It holds
 * for the whole program, so the other cases count what lives. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:open_pair\n";
}

static void copies_that_do_not_end_are_given_up(void)
{
    fake_cuda_reset(3, 1, DELAY_US);
    fake_cuda_block(1, 2);
    find(1, 1);
    CU_ASSERT(is(2, ZB_REACH_NONE, "from GPU 1 to GPU 2 did not end within"));
    CU_ASSERT(is(0, ZB_REACH_PEER, ""));
    CU_ASSERT(is(1, ZB_REACH_PEER, ""));
    /* What they use is left to the driver. */
    CU_ASSERT(fake_cuda_live() > 0);
    CU_ASSERT(no_reports("test"));
    fake_cuda_reset(1, 1, 0);
}

static void without_a_test_only_one_gpu_is_shared(void)
{
    fake_cuda_reset(3, 1, DELAY_US);
    find(0, 0);
    for (int i = 0; i < 6; i++) {
        CU_ASSERT(is(i, i == 3 ? ZB_REACH_SHARED : ZB_REACH_NONE, ""));
    }
    CU_ASSERT_EQUAL(fake_cuda_count("cudaDeviceEnablePeerAccess"), 0);
    CU_ASSERT_EQUAL(fake_cuda_count("cudaMalloc"), 0);
}

/* Every call of CUDA that a test makes fails once: an error, with its pair. */
static void failing_kth_call_is_an_error_and_leaves_nothing(void)
{
    static const int two[] = {0, 1};
    const struct zb_backend_opts o = {
        .n_devices = 2, .threads_per_device = 1, .gpus = two};
    int64_t live = zb_mem_live();
    int has_failed = 1;

    for (uint64_t k = 1; has_failed && k < 2000; k += k < 60 ? 1 : 7) {
        struct zb_pair pair = {.a = 0, .b = 1};
        struct zb_backend *be;
        enum zb_status st;

        fake_cuda_reset(2, 1, 0);
        ZBT_OK(zb_backend_open("cuda", &o, &be));
        fake_cuda_fail_at(k, cudaErrorUnknown);
        st = be->ops->find_reach(be, 1, &pair, 1);
        has_failed = fake_cuda_has_failed();
        fake_cuda_fail_at(0, cudaSuccess);
        CU_ASSERT(st == ZB_OK || st == ZB_EDEVICE);
        if (st != ZB_OK) {
            CU_ASSERT_PTR_NOT_NULL(
                strstr(zb_error_text(), "copy test between GPUs 0 and 1"));
        }
        zb_backend_close(be);
        CU_ASSERT_EQUAL(zb_mem_live(), live);
        (void)fake_cuda_n_reports(); /* of what was not cleaned up */
    }
    CU_ASSERT(!has_failed);
}

/* ---- messages through the host ------------------------------------------- */

#define ELEMS 1000

struct ends {
    struct zb_backend *be;
    struct zb_device *dev[2];
    struct zb_stream *stream[2];
    zb_real *mem[2], *out;
    struct zb_abort ab;
    struct zb_channel *c;
};

static void open_ends(struct ends *e, int via_host, uint64_t seed)
{
    static const int two[] = {0, 1};
    const struct zb_backend_opts bo = {
        .n_devices = 2, .threads_per_device = 1, .gpus = two};
    struct zb_channel_opts o = {.name = "here to there",
                                .bytes = ELEMS * sizeof(zb_real),
                                .n_buffers = 2,
                                .n_staged = 1,
                                .has_meta_cache = 1};
    void *ptr;

    fake_cuda_reset(2, seed, DELAY_US);
    if (via_host) {
        fake_cuda_part(0, 1);
    }
    ZBT_OK(zb_backend_open("cuda", &bo, &e->be));
    o.ops = e->be->ops;
    o.via_host = via_host ? e->be : NULL;
    zb_abort_init(&e->ab);
    ZBT_OK(zb_channel_new(&o, &e->ab, &e->c));
    for (int i = 0; i < 2; i++) {
        ZBT_OK(o.ops->device_open(e->be, i, &e->dev[i]));
        ZBT_OK(o.ops->stream_new(e->dev[i], "compute", &e->stream[i]));
        ZBT_OK(o.ops->mem_alloc(e->dev[i], o.bytes, "message", &ptr));
        e->mem[i] = ptr;
        zb_channel_give_memory(e->c, i, 1, ptr, o.bytes);
    }
    ZBT_OK(o.ops->mem_alloc(e->dev[1], o.bytes, "result", &ptr));
    e->out = ptr;
    ZBT_OK(zb_channel_join_sender(e->c, e->dev[0]));
    ZBT_OK(zb_channel_join_receiver(e->c, e->dev[1]));
}

static void close_ends(struct ends *e)
{
    const struct zb_backend_ops *ops = e->be->ops;

    zb_channel_end_sender(e->c);
    zb_channel_end_receiver(e->c);
    for (int i = 0; i < 2; i++) {
        ops->stream_free(e->stream[i]);
    }
    zb_channel_leave_sender(e->c);
    zb_channel_leave_receiver(e->c);
    ops->mem_free(e->dev[1], e->out);
    for (int i = 0; i < 2; i++) {
        ops->mem_free(e->dev[i], e->mem[i]);
        ops->device_close(e->dev[i]);
    }
    zb_channel_free(e->c);
    zb_abort_release(&e->ab);
    zb_backend_close(e->be);
}

static void fill(struct ends *e, zb_real *y, double value)
{
    struct zb_k_fill k = {
        .dtype = ZB_DTYPE_REAL, .n = ELEMS, .value = value, .y = y};
    struct zb_launch l = {.kernel = ZB_K_fill, .label = "fill", .params = &k};

    zb_launch_reals(&l, y, ELEMS, ZB_WRITE);
    ZBT_OK(e->be->ops->launch(e->stream[0], &l));
}

/* out = x */
static void use(struct ends *e, const zb_real *x)
{
    ZBT_OK(e->be->ops->copy_peer(e->stream[1], e->dev[1], e->out, x,
                                 ELEMS * sizeof(zb_real), "use"));
}

static void pass_message(struct ends *e, int mb)
{
    struct zb_bind bind = {{1, 1}};
    struct zb_msg *m;

    ZBT_OK(zb_channel_acquire(e->c, e->stream[0], &m));
    fill(e, m->ptr, mb + 1);
    ZBT_OK(zb_channel_filled(e->c, m, e->stream[0]));
    ZBT_OK(zb_channel_send(e->c, m, mb, &bind));
    ZBT_OK(zb_channel_recv(e->c, mb, e->stream[1], &m, &bind));
    use(e, m->ptr);
    ZBT_OK(zb_channel_release(e->c, m, e->stream[1]));
}

static void messages_arrive_by_copy_engines_and_through_the_host(void)
{
    for (int via_host = 0; via_host < 2; via_host++) {
        zb_real got[ELEMS];
        struct ends e;

        open_ends(&e, via_host, 1);
        for (int mb = 0; mb < 5; mb++) {
            pass_message(&e, mb);
            ZBT_OK(e.be->ops->copy_out(e.stream[1], got, e.out, sizeof(got),
                                       "result"));
            ZBT_OK(e.be->ops->stream_sync(e.stream[1]));
            CU_ASSERT_EQUAL(got[0], mb + 1);
            CU_ASSERT_EQUAL(got[ELEMS - 1], mb + 1);
        }
        CU_ASSERT_EQUAL(fake_cuda_count("cudaMemcpyPeerAsync"),
                        via_host ? 0 : 5);
        CU_ASSERT_EQUAL(fake_cuda_count("kernel"), 5); /* fills */
        close_ends(&e);
        CU_ASSERT_EQUAL(fake_cuda_live(), 0);
        CU_ASSERT(no_reports("messages"));
    }
}

/* The waits of a message: for the sender's buffer, for its contents, for the
 * receiver's buffer; through the host for what is there; for what has come. */
static void every_wait_of_a_message_is_needed(void)
{
    for (int via_host = 0; via_host < 2; via_host++) {
        for (uint64_t k = 1; k <= 4 + (uint64_t)via_host; k++) {
            struct ends e;

            open_ends(&e, via_host, k);
            pass_message(&e, 0);
            pass_message(&e, 1);
            CU_ASSERT(no_reports("before"));
            fake_cuda_fault(FAKE_DROP_WAIT, NULL, k);
            pass_message(&e, 2);
            CU_ASSERT(fake_cuda_has_failed());
            ZBT_OK(e.be->ops->stream_sync(e.stream[1]));
            close_ends(&e);
            if (fake_cuda_n_reports() == 0) {
                printf("\nvia host %d, wait %d: no report\n", via_host, (int)k);
                CU_FAIL("a missing wait is not reported");
            }
        }
    }
}

/* ---- training ------------------------------------------------------------ */

#define N_STEPS 3
#define N_ROWS 8

static const int in_turn[] = {0, 1, 0, 1, 0, 1, 0, 1};

static void train(const struct zb_model *m, struct zb_session_opts *o,
                  double *loss, char *words, size_t size)
{
    struct zb_session *s = NULL;

    o->gpus = in_turn;
    o->optim.eps = 1e-4;
    ZBT_OK(zb_session_new(m, o, &s));
    for (int i = 0; i < N_STEPS; i++) {
        struct zb_step_result res = {.loss = 0};
        struct ru_batch b;

        ru_batch_init(&b, N_ROWS, RU_SEQ, (unsigned long long)i + 1);
        ZBT_OK(zb_train_step(s, &b.in, 1e-3, &res));
        loss[i] = res.loss;
        ru_batch_release(&b);
    }
    snprintf(words, size, "%s", zb_session_messages(s));
    zb_session_free(s);
}

static int is_near(const double *want, const double *loss)
{
    for (int i = 0; i < N_STEPS; i++) {
        if (!(fabs(loss[i] - want[i]) <= 1e-5 * want[i])) {
            printf("\nstep %d: loss %.9g, not %.9g\n", i + 1, loss[i], want[i]);
            return 0;
        }
    }
    return 1;
}

/* What is wrong with GPUs 0 and 1. */
enum trouble { FINE, APART, CORRUPT, N_TROUBLES };

static void reset_with(enum trouble t, uint64_t seed)
{
    fake_cuda_reset(2, seed, DELAY_US);
    if (t == APART) {
        fake_cuda_part(0, 1);
    }
    if (t == CORRUPT) {
        fake_cuda_corrupt(0, 1);
    }
}

static const struct {
    struct ru_grid grid;
    int is_tied;
    const char *planner;
    int zero_stage;
    /* Words of the start by trouble; NULL: nothing is said. */
    const char *words[N_TROUBLES];
} runs[] = {
    {{2, 1, 1, 1, ZB_SEQ_WHOLE},
     0,
     "zbv",
     1,
     {"messages: copied (peer access)",
      "messages: through the host (no peer access between GPUs 0 and 1)",
      "messages: through the host (copy test failed: copying from GPU 0 to GPU "
      "1, 1 of 4194317 bytes wrong)"}},
    {{4, 1, 1, 1, ZB_SEQ_WHOLE},
     0,
     "zbv",
     1,
     {"copied (peer access)", "through the host (no",
      "through the host (copy"}},
    /* Stages 0 and 1 hold the embedding. */
    {{2, 1, 1, 1, ZB_SEQ_WHOLE},
     1,
     "1f1b",
     1,
     {"copied (peer access)", "; collectives through the host",
      "; collectives through the host"}},
    {{2, 1, 1, 2, ZB_SEQ_WHOLE},
     1,
     "1f1b",
     1,
     {"in place (one GPU shared by stages)", "collectives through the host (no",
      "collectives through the host (copy"}},
    {{1, 2, 1, 1, ZB_SEQ_WHOLE},
     0,
     "1f1b",
     1,
     {NULL, "collectives through the host (no",
      "collectives through the host (copy"}},
    {{1, 2, 1, 1, ZB_SEQ_SPLIT_GATHER},
     0,
     "1f1b",
     1,
     {NULL, "collectives", "collectives"}},
    {{1, 1, 2, 1, ZB_SEQ_ALL_TO_ALL},
     0,
     "1f1b",
     1,
     {NULL, "collectives", "collectives"}},
    {{1, 1, 2, 1, ZB_SEQ_RING},
     0,
     "1f1b",
     1,
     {NULL, "collectives", "collectives"}},
    {{1, 1, 1, 2, ZB_SEQ_WHOLE},
     0,
     "1f1b",
     1,
     {NULL, "collectives", "collectives"}},
    {{1, 1, 1, 2, ZB_SEQ_WHOLE},
     1,
     "1f1b",
     0,
     {NULL, "collectives", "collectives"}},
    {{2, 2, 1, 2, ZB_SEQ_WHOLE},
     0,
     "zbv",
     1,
     {"in place (one GPU", "collectives", "collectives"}},
};

static struct zb_model *model_for(const struct ru_grid *g, int is_tied)
{
    const struct zb_parallel par = {
        .tp = g->tp, .sp = g->sp, .mode = g->mode, .vocab_multiple = 8};

    return is_tied && g->tp * g->sp == 1 ? ru_gpt2(0) : ru_llama_on(&par);
}

static void broken_pairs_train_as_the_cpu_and_the_way_is_said(void)
{
    int n_seeds = zbt_is_long() ? 20 : 1;

    for (size_t i = 0; i < ZB_COUNT_OF(runs); i++) {
        const struct ru_grid *g = &runs[i].grid;
        struct zb_model *m = model_for(g, runs[i].is_tied);
        struct zb_session_opts o = ru_grid_opts(g, N_ROWS);
        double want[N_STEPS], loss[N_STEPS];
        char words[400];

        o.planner = runs[i].planner;
        o.zero_stage = runs[i].zero_stage;
        o.backend = "cpu";
        train(m, &o, want, words, sizeof(words));
        o.backend = "cuda";
        for (int k = 0; k < N_TROUBLES * n_seeds; k++) {
            enum trouble t = (enum trouble)(k % N_TROUBLES);
            const char *said = runs[i].words[t];

            reset_with(t, (uint64_t)k + 1);
            train(m, &o, loss, words, sizeof(words));
            CU_ASSERT(is_near(want, loss));
            if (said == NULL ? words[0] != '\0' : !strstr(words, said)) {
                printf("\nrun %zu, trouble %d: \"%s\"\n", i, (int)t, words);
                CU_FAIL("the way is not said");
            }
            CU_ASSERT_FATAL(no_reports("training"));
            CU_ASSERT_EQUAL(fake_cuda_live(), 0);
        }
        zb_model_free(m);
    }
}

static void pairs_may_go_different_ways(void)
{
    static const int three[] = {0, 1, 2, 2};
    struct zb_model *m = ru_llama();
    struct zb_session_opts o = ru_opts(4, 4, N_ROWS);
    struct zb_session *s = NULL;

    fake_cuda_reset(3, 1, DELAY_US);
    fake_cuda_part(0, 1);
    o.backend = "cuda";
    o.gpus = three;
    ZBT_OK(zb_session_new(m, &o, &s));
    CU_ASSERT_STRING_EQUAL(
        zb_session_messages(s),
        "messages: 1 of 3 pairs in place (one GPU shared by stages), 1 of 3 "
        "pairs copied (peer access), 1 of 3 pairs through the host (no peer "
        "access between GPUs 0 and 1); 0.0 MiB of host memory");
    zb_session_free(s);
    zb_model_free(m);
    CU_ASSERT(no_reports("session"));
}

static void asked_for_ways_are_taken_or_refused(void)
{
    struct zb_model *m = ru_llama();
    struct zb_session_opts o = ru_opts(2, 4, N_ROWS);
    struct zb_session *s = NULL;
    double want[N_STEPS], loss[N_STEPS];
    char words[400];

    o.backend = "cpu";
    train(m, &o, want, words, sizeof(words));
    CU_ASSERT_STRING_EQUAL(words, "messages: in place (one memory)");
    o.backend = "cuda";
    o.p2p = ZB_P2P_HOST;
    reset_with(CORRUPT, 1);
    train(m, &o, loss, words, sizeof(words));
    CU_ASSERT(is_near(want, loss));
    CU_ASSERT_PTR_NOT_NULL(strstr(words, "through the host (p2p = host); "));
    CU_ASSERT_EQUAL(fake_cuda_count("cudaDeviceEnablePeerAccess"), 0);
    o.p2p = ZB_P2P_NCCL;
    reset_with(APART, 1);
    train(m, &o, loss, words, sizeof(words));
    CU_ASSERT(is_near(want, loss));
    CU_ASSERT_STRING_EQUAL(words, "messages: over links (p2p = nccl)");
    o.p2p = ZB_P2P_COPY;
    reset_with(APART, 1);
    CU_ASSERT_EQUAL(zb_session_new(m, &o, &s), ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(
        strstr(zb_error_text(), "p2p = copy: stages 0 and 1 do not reach each "
                                "other's memory: no peer access between GPUs "
                                "0 and 1; with p2p = auto or host"));
    CU_ASSERT(no_reports("refused"));
    CU_ASSERT_EQUAL(fake_cuda_live(), 0);
    zb_model_free(m);
}

/* With gradients that go through the host, no step allocates either. */
static void host_memory_is_there_before_the_first_step(void)
{
    struct zb_model *m = ru_gpt2(0);
    struct zb_session_opts o = ru_opts(2, 4, N_ROWS);
    struct zb_session *s = NULL;
    struct zb_step_result res = {.loss = 0};
    struct ru_batch b;
    uint64_t n_host;

    reset_with(APART, 1);
    o.backend = "cuda";
    o.planner = "1f1b";
    o.gpus = in_turn;
    ZBT_OK(zb_session_new(m, &o, &s));
    CU_ASSERT_PTR_NOT_NULL(
        strstr(zb_session_messages(s), "MiB of host memory"));
    n_host = fake_cuda_count("cudaHostAlloc");
    ru_batch_init(&b, N_ROWS, RU_SEQ, 1);
    for (int i = 0; i < 3; i++) {
        ZBT_OK(zb_train_step(s, &b.in, 1e-3, &res));
    }
    CU_ASSERT_EQUAL(fake_cuda_count("cudaHostAlloc"), n_host);
    ru_batch_release(&b);
    zb_session_free(s);
    zb_model_free(m);
    CU_ASSERT(no_reports("steps"));
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(gpus_that_copy_well_are_peers_and_one_gpu_is_shared),
        ZBT_CASE(gpus_without_access_are_named),
        ZBT_CASE(gpus_that_copy_wrongly_are_named_with_the_bytes),
        ZBT_CASE(copies_that_do_not_end_are_given_up),
        ZBT_CASE(without_a_test_only_one_gpu_is_shared),
        ZBT_CASE(failing_kth_call_is_an_error_and_leaves_nothing),
        ZBT_CASE(messages_arrive_by_copy_engines_and_through_the_host),
        ZBT_CASE(every_wait_of_a_message_is_needed),
        ZBT_CASE(broken_pairs_train_as_the_cpu_and_the_way_is_said),
        ZBT_CASE(pairs_may_go_different_ways),
        ZBT_CASE(asked_for_ways_are_taken_or_refused),
        ZBT_CASE(host_memory_is_there_before_the_first_step),
    };

    return zbt_run("cuda_peers", cases, ZB_COUNT_OF(cases));
}
