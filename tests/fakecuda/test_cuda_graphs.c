/* SPDX-License-Identifier: MIT
 *
 * Work that recurs, as graphs: the same bits as launch by launch, what a graph
 * touches is checked each time it is launched, and whatever fails in a capture
 * only costs the graph. On emulated GPUs. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "fake_cuda.h"
#include "unit/run_util.h"
#include "unit/zbt.h"
#include "zb/backend.h"
#include "zb/log.h"
#include "zb/mem.h"

#define N 64 /* elements */

static int no_reports(const char *what)
{
    int n = fake_cuda_n_reports();

    for (int i = 0; i < n && i < 5; i++) {
        printf("\n%s: %s\n", what, fake_cuda_report(i));
    }
    return n == 0;
}

/* ---- the backend --------------------------------------------------------- */

struct rig {
    const struct zb_backend_ops *ops;
    struct zb_backend *be;
    struct zb_device *dev;
    struct zb_stream *stream, *other;
    float *x, *y;
};

static void rig_open(struct rig *r)
{
    const struct zb_backend_opts o = {.n_devices = 1, .threads_per_device = 1};

    fake_cuda_reset(1, 0, 20);
    ZBT_OK(zb_backend_open("cuda", &o, &r->be));
    r->ops = r->be->ops;
    ZBT_OK(r->ops->device_open(r->be, 0, &r->dev));
    ZBT_OK(r->ops->stream_new(r->dev, "test", &r->stream));
    ZBT_OK(r->ops->stream_new(r->dev, "other", &r->other));
    ZBT_OK(r->ops->mem_alloc(r->dev, N * sizeof(float), "x", (void **)&r->x));
    ZBT_OK(r->ops->mem_alloc(r->dev, N * sizeof(float), "y", (void **)&r->y));
}

static void rig_close(struct rig *r)
{
    r->ops->stream_free(r->other);
    r->ops->stream_free(r->stream);
    r->ops->mem_free(r->dev, r->y);
    r->ops->mem_free(r->dev, r->x);
    r->ops->device_close(r->dev);
    zb_backend_close(r->be);
    CU_ASSERT_EQUAL(fake_cuda_live(), 0);
}

static enum zb_status fill(struct rig *r, struct zb_stream *stream, float *x,
                           double value)
{
    struct zb_k_fill k = {.n = N, .value = value, .y = x};
    struct zb_launch l = {.kernel = ZB_K_fill, .label = "fill", .params = &k};

    zb_launch_reals(&l, x, N, ZB_WRITE);
    return r->ops->launch(stream, &l);
}

/* y = 2 x */
static enum zb_status twice(struct rig *r)
{
    struct zb_k_scale k = {.n = N, .alpha = 2, .x = r->x, .y = r->y};
    struct zb_launch l = {.kernel = ZB_K_scale, .label = "twice", .params = &k};

    zb_launch_reals(&l, r->x, N, ZB_READ);
    zb_launch_reals(&l, r->y, N, ZB_WRITE);
    return r->ops->launch(r->stream, &l);
}

/* The piece of work that recurs, as zb/backend.h says. */
static enum zb_status piece(struct rig *r, int64_t key)
{
    enum zb_status st;
    int is_done;

    ZB_TRY(r->ops->replay_begin(r->stream, &key, sizeof(key), &is_done));
    if (is_done) {
        return ZB_OK;
    }
    st = r->ops->replay_end(r->stream, twice(r), &is_done);
    return st == ZB_OK && !is_done ? twice(r) : st;
}

static float first_of_y(struct rig *r)
{
    float y[N] = {0};

    ZBT_OK(r->ops->copy_out(r->stream, y, r->y, sizeof(y), "y"));
    ZBT_OK(r->ops->stream_sync(r->stream));
    return y[0];
}

static void second_time_is_a_graph_of_what_lies_there_now(void)
{
    struct zb_stream_stats stats;
    struct rig r;

    rig_open(&r);
    for (int i = 1; i <= 6; i++) {
        ZBT_OK(fill(&r, r.stream, r.x, i));
        ZBT_OK(piece(&r, 7));
        CU_ASSERT_EQUAL(first_of_y(&r), (float)(2 * i));
        CU_ASSERT_EQUAL(fake_cuda_count("cudaGraphLaunch"),
                        (uint64_t)(i > 1 ? i - 1 : 0));
    }
    CU_ASSERT_EQUAL(fake_cuda_count("cudaStreamBeginCapture"), 1);
    CU_ASSERT(r.ops->stream_stats(r.dev, 1, &stats));
    CU_ASSERT_STRING_EQUAL(stats.name, "test");
    CU_ASSERT_EQUAL(stats.graphs, 5);
    CU_ASSERT_EQUAL(stats.kernels, 7); /* six fills, the first piece */
    CU_ASSERT(no_reports("replays"));
    rig_close(&r);
}

/* Sequences of ever new lengths. */
static void keys_that_come_once_are_never_captured(void)
{
    struct rig r;

    rig_open(&r);
    ZBT_OK(fill(&r, r.stream, r.x, 1));
    for (int64_t i = 1; i <= 5000; i++) {
        ZBT_OK(piece(&r, i));
    }
    ZBT_OK(r.ops->stream_sync(r.stream));
    CU_ASSERT_EQUAL(fake_cuda_count("cudaStreamBeginCapture"), 0);
    rig_close(&r);
}

static void graphs_are_bounded_and_old_ones_make_room(void)
{
    uint64_t live, most = 0, n_before;
    struct rig r;

    rig_open(&r);
    ZBT_OK(fill(&r, r.stream, r.x, 1));
    live = fake_cuda_live();
    for (int64_t i = 0; i < 3 * 900; i++) {
        ZBT_OK(piece(&r, i / 3));
        most = fake_cuda_live() - live > most ? fake_cuda_live() - live : most;
    }
    CU_ASSERT(most > 400 && most <= 513);
    for (int i = 0; i < 5000; i++) { /* the others grow old */
        ZBT_OK(piece(&r, 0));
    }
    n_before = fake_cuda_count("cudaGraphInstantiateWithFlags");
    for (int64_t i = 0; i < 3 * 100; i++) {
        ZBT_OK(piece(&r, 5000 + i / 3));
    }
    CU_ASSERT(fake_cuda_count("cudaGraphInstantiateWithFlags") > n_before + 50);
    CU_ASSERT(fake_cuda_live() - live <= 513);
    ZBT_OK(r.ops->stream_sync(r.stream));
    CU_ASSERT(no_reports("many graphs"));
    rig_close(&r);
}

/* ---- memory that is somebody else's by now ---------------------------------
 */

static void make_graph(struct rig *r)
{
    rig_open(r);
    ZBT_OK(fill(r, r->stream, r->x, 1));
    for (int i = 0; i < 3; i++) {
        ZBT_OK(piece(r, 7));
    }
    CU_ASSERT_EQUAL(fake_cuda_count("cudaGraphLaunch"), 2);
    ZBT_OK(r->ops->stream_sync(r->stream));
    CU_ASSERT(no_reports("before"));
}

/* The replay is reported under the rule's name, and as what it launches. */
static void expect_report(struct rig *r, const char *rule)
{
    int n;

    ZBT_OK(piece(r, 7));
    ZBT_OK(r->ops->stream_sync(r->stream));
    CU_ASSERT_EQUAL(fake_cuda_count("cudaGraphLaunch"), 3);
    n = fake_cuda_n_reports();
    CU_ASSERT(n >= 1);
    if (n > 0 && (strncmp(fake_cuda_report(0), rule, strlen(rule)) != 0 ||
                  strstr(fake_cuda_report(0), "twice") == NULL)) {
        printf("\n%s\n", fake_cuda_report(0));
        CU_FAIL("another report");
    }
}

static void replay_on_freed_memory_is_reported(void)
{
    void *again;
    struct rig r;

    make_graph(&r);
    r.ops->mem_free(r.dev, r.x);
    ZBT_OK(r.ops->mem_alloc(r.dev, N * sizeof(float), "new x", &again));
    expect_report(&r, "freed: ");
    r.x = again;
    rig_close(&r);
}

static void replay_on_memory_that_means_nothing_is_reported(void)
{
    struct rig r;

    make_graph(&r);
    ZBT_OK(r.ops->discard(r.stream, r.x, N * sizeof(float)));
    expect_report(&r, "unwritten: ");
    rig_close(&r);
}

static void replay_on_memory_of_another_stream_is_reported(void)
{
    struct zb_event *event;
    struct rig r;

    make_graph(&r);
    ZBT_OK(r.ops->event_new(r.dev, &event));
    ZBT_OK(fill(&r, r.other, r.x, 3));
    ZBT_OK(r.ops->event_record(event, r.other));
    expect_report(&r, "race: ");
    ZBT_OK(r.ops->event_sync(event));
    r.ops->event_free(event);
    rig_close(&r);
}

/* The same, with the event: no report, and the new value. */
static void replay_behind_an_event_is_right(void)
{
    struct zb_event *event;
    struct rig r;

    make_graph(&r);
    ZBT_OK(r.ops->event_new(r.dev, &event));
    ZBT_OK(fill(&r, r.other, r.x, 3));
    ZBT_OK(r.ops->event_record(event, r.other));
    ZBT_OK(r.ops->stream_wait(r.stream, event));
    ZBT_OK(piece(&r, 7));
    CU_ASSERT_EQUAL(first_of_y(&r), 6.0f);
    CU_ASSERT(no_reports("ordered"));
    r.ops->event_free(event);
    rig_close(&r);
}

static void copy_in_a_capture_is_reported(void)
{
    int64_t key = 1;
    float host = 0;
    struct rig r;
    int is_done;

    rig_open(&r);
    ZBT_OK(fill(&r, r.stream, r.x, 1));
    ZBT_OK(piece(&r, key));
    ZBT_OK(r.ops->replay_begin(r.stream, &key, sizeof(key), &is_done));
    CU_ASSERT_EQUAL(is_done, 0);
    CU_ASSERT_NOT_EQUAL(r.ops->copy_in(r.stream, r.x, &host, sizeof(host), "x"),
                        ZB_OK);
    ZBT_OK(r.ops->replay_end(r.stream, ZB_OK, &is_done));
    CU_ASSERT(fake_cuda_n_reports() >= 1);
    CU_ASSERT_EQUAL(strncmp(fake_cuda_report(0), "misuse: ", 8), 0);
    rig_close(&r);
}

/* ---- failures -------------------------------------------------------------
 */

/* The k-th call from the second piece on fails: none of a capture's calls is
 * the run's failure, and the work is done all the same. */
static void failing_capture_falls_back_to_launches(void)
{
    int n_fallen = 0;

    zb_log_set_level(ZB_LOG_ERROR);
    for (uint64_t k = 1; k < 40; k++) {
        enum zb_status st = ZB_OK;
        int has_failed;
        struct rig r;

        rig_open(&r);
        ZBT_OK(fill(&r, r.stream, r.x, 4));
        ZBT_OK(piece(&r, 7));
        fake_cuda_fail_at(k, cudaErrorNotSupported);
        for (int i = 0; i < 3 && st == ZB_OK; i++) {
            st = piece(&r, 7);
        }
        has_failed = fake_cuda_has_failed();
        fake_cuda_fail_at(0, cudaSuccess);
        if (st == ZB_OK) {
            CU_ASSERT_EQUAL(first_of_y(&r), 8.0f);
            n_fallen += has_failed;
        }
        CU_ASSERT(no_reports("failures"));
        rig_close(&r);
        if (!has_failed) {
            break;
        }
    }
    zb_log_set_level(ZB_LOG_INFO);
    /* Begin, launch, end, instantiate, at least. */
    CU_ASSERT(n_fallen >= 4);
}

static void failing_host_allocation_unwinds(void)
{
    for (long k = 1; k < 20; k++) {
        enum zb_status st = ZB_OK;
        struct rig r;
        long live;

        rig_open(&r);
        ZBT_OK(fill(&r, r.stream, r.x, 4));
        live = zb_mem_live();
        zb_mem_fail_at(k);
        for (int i = 0; i < 3 && st == ZB_OK; i++) {
            st = piece(&r, 7);
        }
        zb_mem_fail_at(0);
        CU_ASSERT(st == ZB_OK || st == ZB_ENOMEM);
        CU_ASSERT(zb_mem_live() >= live);
        rig_close(&r);
        if (st == ZB_OK) {
            CU_ASSERT(k > 2);
            return;
        }
    }
    CU_FAIL("it never succeeded");
}

/* ---- training -------------------------------------------------------------
 */

enum { N_STEPS = 8, N_ROWS = 8 };

static const int gpus[] = {0, 1, 0, 1, 0, 1, 0, 1};

struct run {
    double loss[N_STEPS];
    uint64_t n_graphs; /* launched */
    /* Called on stage 0 in the step from the third on that called fewest: when
     * a message arrives, and so in which buffer, differs from step to step. */
    uint64_t n_products;
};

static uint64_t n_products(const struct zb_session *s)
{
    struct zb_stream_stats one;
    uint64_t n = 0;

    for (int i = 0; zb_session_step_stats(s, 0, i, &one); i++) {
        n += one.products;
    }
    return n;
}

/* Two batches in turn; with `len` microbatches of those lengths in the even
 * steps. */
static void train(const struct zb_model *m, struct zb_session_opts o,
                  int has_graphs, const int64_t *len, struct run *run)
{
    struct zb_session *s = NULL;

    fake_cuda_reset(2, 3, 20);
    memset(run, 0, sizeof(*run));
    run->n_products = UINT64_MAX;
    o.backend = "cuda";
    o.gpus = gpus;
    o.cuda_graphs = has_graphs;
    ZBT_OK(zb_session_new(m, &o, &s));
    for (int i = 0; i < N_STEPS; i++) {
        struct zb_step_result res = {.loss = 0};
        struct ru_batch b;

        ru_batch_init(&b, N_ROWS, RU_SEQ, (unsigned long long)(i % 2) + 1);
        b.in.micro_len = i % 2 == 0 ? len : NULL;
        ZBT_OK(zb_train_step(s, &b.in, 1e-3, &res));
        run->loss[i] = res.loss;
        ru_batch_release(&b);
        if (i >= 2 && n_products(s) < run->n_products) {
            run->n_products = n_products(s);
        }
    }
    run->n_graphs = fake_cuda_count("cudaGraphLaunch");
    zb_session_free(s);
    CU_ASSERT_FATAL(no_reports("training"));
    CU_ASSERT_EQUAL(fake_cuda_live(), 0);
}

/* Whether graphs change no bit; what was launched without and with them. */
static int same_bits(const struct zb_model *m, const struct zb_session_opts *o,
                     const int64_t *len, struct run *without, struct run *with)
{
    train(m, *o, 0, len, without);
    train(m, *o, 1, len, with);
    CU_ASSERT_EQUAL(without->n_graphs, 0);
    CU_ASSERT(without->loss[0] > 3 && without->loss[0] < 6);
    return memcmp(without->loss, with->loss, sizeof(with->loss)) == 0;
}

static void graphs_change_no_bit_on_any_layout(void)
{
    static const struct ru_grid grid[] = {
        {1, 1, 1, 1, ZB_SEQ_WHOLE}, {2, 1, 1, 1, ZB_SEQ_WHOLE},
        {4, 1, 1, 1, ZB_SEQ_WHOLE}, {1, 1, 1, 2, ZB_SEQ_WHOLE},
        {2, 1, 1, 2, ZB_SEQ_WHOLE}, {2, 2, 1, 1, ZB_SEQ_WHOLE},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(grid); i++) {
        const struct zb_parallel par = {
            .tp = grid[i].tp, .sp = 1, .vocab_multiple = 8};
        struct zb_model *m = ru_llama_on(&par);
        struct zb_session_opts o = ru_grid_opts(&grid[i], N_ROWS);
        struct run without, with;

        CU_ASSERT(same_bits(m, &o, NULL, &without, &with));
        /* Passes with collectives are not replayed. */
        CU_ASSERT_EQUAL(with.n_graphs > 0, grid[i].tp == 1);
        zb_model_free(m);
    }
}

/* NCCL must not be under way on a GPU while a graph is made. */
static void work_over_links_has_none(void)
{
    static const struct ru_grid grid[] = {{2, 1, 1, 1, ZB_SEQ_WHOLE},
                                          {1, 1, 1, 2, ZB_SEQ_WHOLE}};

    for (size_t i = 0; i < ZB_COUNT_OF(grid); i++) {
        struct zb_model *m = ru_llama();
        struct zb_session_opts o = ru_grid_opts(&grid[i], N_ROWS);
        struct run without, with;

        o.p2p = grid[i].pp > 1 ? ZB_P2P_NCCL : o.p2p;
        o.collectives = ZB_COLLECTIVES_NCCL;
        CU_ASSERT(same_bits(m, &o, NULL, &without, &with));
        CU_ASSERT_EQUAL(with.n_graphs, 0);
        zb_model_free(m);
    }
}

static void graphs_change_no_bit_with_recompute(void)
{
    static const char *const planner[] = {"zbv", "1f1b"};

    for (int how = 0; how < ZB_N_RECOMPUTES; how++) {
        for (size_t i = 0; i < ZB_COUNT_OF(planner); i++) {
            struct zb_model *m = ru_llama();
            struct zb_session_opts o = ru_opts(2, 4, N_ROWS);
            struct run without, with;

            o.recompute = (enum zb_recompute)how;
            o.planner = planner[i];
            CU_ASSERT(same_bits(m, &o, NULL, &without, &with));
            CU_ASSERT(with.n_graphs > 0);
            CU_ASSERT(without.n_products > 0);
            CU_ASSERT_EQUAL(with.n_products, 0);
            zb_model_free(m);
        }
    }
}

static void graphs_change_no_bit_with_lengths_that_differ(void)
{
    static const int64_t len[4] = {12, 5, 9, 5};
    struct zb_model *m = ru_llama();
    struct zb_session_opts o = ru_opts(2, 4, N_ROWS);
    struct run without, with;

    CU_ASSERT(same_bits(m, &o, len, &without, &with));
    CU_ASSERT(with.n_graphs > 0);
    zb_model_free(m);
}

/* Random numbers differ from step to step, so nothing recurs but what draws
 * none. */
static void dropout_is_drawn_anew(void)
{
    struct zb_model *m = ru_gpt2(0.1);
    struct zb_session_opts o = ru_opts(2, 4, N_ROWS);
    struct run without, with;

    CU_ASSERT(same_bits(m, &o, NULL, &without, &with));
    CU_ASSERT_NOT_EQUAL(with.loss[0], with.loss[2]);
    zb_model_free(m);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(second_time_is_a_graph_of_what_lies_there_now),
        ZBT_CASE(keys_that_come_once_are_never_captured),
        ZBT_CASE(graphs_are_bounded_and_old_ones_make_room),
        ZBT_CASE(replay_on_freed_memory_is_reported),
        ZBT_CASE(replay_on_memory_that_means_nothing_is_reported),
        ZBT_CASE(replay_on_memory_of_another_stream_is_reported),
        ZBT_CASE(replay_behind_an_event_is_right),
        ZBT_CASE(copy_in_a_capture_is_reported),
        ZBT_CASE(failing_capture_falls_back_to_launches),
        ZBT_CASE(failing_host_allocation_unwinds),
        ZBT_CASE(graphs_change_no_bit_on_any_layout),
        ZBT_CASE(work_over_links_has_none),
        ZBT_CASE(graphs_change_no_bit_with_recompute),
        ZBT_CASE(graphs_change_no_bit_with_lengths_that_differ),
        ZBT_CASE(dropout_is_drawn_anew),
    };

    return zbt_run("cuda_graphs", cases, ZB_COUNT_OF(cases));
}
