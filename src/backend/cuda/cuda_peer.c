/* SPDX-License-Identifier: MIT
 *
 * Memory of other GPUs: which pairs reach each other's. The driver only knows
 * what should work; behind some bridges (ACS, IOMMU) copies between GPUs arrive
 * wrong or never. So every pair that will be used copies a pattern both ways,
 * by a copy engine and by a kernel that reads the other's memory, all pairs at
 * once, before the run begins.
 */
#include "config.h"
#include "backend/cuda/cuda_int.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "zb/hash.h"
#include "zb/mem.h"
#include "zb/thread.h"

/* Odd, so that the end is no whole unit of anything. */
#define TRY_BYTES (((size_t)4 << 20) + 13)
#define ROOM_BYTES (TRY_BYTES + 51) /* a multiple of 64 */
#define TIMEOUT_NS INT64_C(2000000000)
#define PAUSE_NS 50000

/* One of the two GPUs. */
struct end {
    struct zb_device dev; /* opened for this alone */
    struct zb_stream *stream;
    struct zb_event *ready;
    char *src, *dst; /* [ROOM_BYTES] */
};

/* What the threads of all pairs share. */
struct meeting {
    struct zb_barrier barrier;
    atomic_int n_stuck; /* copies that did not end */
};

/* A pair of GPUs. */
struct trial {
    struct zb_cuda *be;
    struct meeting *all;
    int gpu[2];
    struct end end[2];
    char *sent, *came; /* [ROOM_BYTES] page-locked */
    enum zb_reach reach;
    char why[sizeof(((struct zb_pair *)0)->why)];
    int is_stuck;
    enum zb_status st;
    char text[ZB_ABORT_TEXT_MAX];
    struct zb_thread thread;
    int is_running;
};

/* ---- access -------------------------------------------------------------- */

static enum zb_status can_access(int gpu, int peer, int *can_out)
{
    return zb_cuda_check(NULL, cudaDeviceCanAccessPeer(can_out, gpu, peer),
                         "ask for peer access");
}

/* *err_out: what is no error, but an answer. */
static enum zb_status enable(const struct zb_device *dev, int peer,
                             cudaError_t *err_out)
{
    cudaError_t err;

    *err_out = cudaSuccess;
    ZB_TRY(zb_cuda_use(dev));
    err = cudaDeviceEnablePeerAccess(peer, 0);
    if (err == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
        return ZB_OK;
    }
    if (err == cudaErrorPeerAccessUnsupported || err == cudaErrorTooManyPeers) {
        (void)cudaGetLastError();
        *err_out = err;
        return ZB_OK;
    }
    return zb_cuda_check(dev, err, "access to another GPU's memory");
}

enum zb_status zb_cuda_enable_peers(const struct zb_device *dev)
{
    const struct zb_cuda *be = dev->be;
    int n = be->base.n_devices;

    for (int i = 0; i < n; i++) {
        int can = 0;
        cudaError_t err;

        if (be->gpu[i] == dev->gpu || be->is_apart[dev->index * n + i]) {
            continue;
        }
        ZB_TRY(can_access(dev->gpu, be->gpu[i], &can));
        if (can) {
            ZB_TRY(enable(dev, be->gpu[i], &err));
        }
    }
    return ZB_OK;
}

/* ---- one way ------------------------------------------------------------- */

/* What is sent, and at the other end its complement, which is wrong
 * everywhere. */
static void write_pattern(struct trial *t, int way)
{
    for (size_t i = 0; i < ROOM_BYTES / 8; i++) {
        uint64_t sent = zb_mix(i + ((uint64_t)way << 32)), wrong = ~sent;

        memcpy(t->sent + 8 * i, &sent, 8);
        memcpy(t->came + 8 * i, &wrong, 8);
    }
}

static size_t count_wrong(const struct trial *t)
{
    size_t n = 0;

    for (size_t i = 0; i < TRY_BYTES; i++) {
        n += t->sent[i] != t->came[i];
    }
    return n;
}

/* The other side's stream goes on after what this one has. */
static enum zb_status pass_on(struct end *from, struct end *to)
{
    ZB_TRY(zb_cuda_event_record(from->ready, from->stream));
    return zb_cuda_stream_wait(to->stream, from->ready);
}

static enum zb_status read_by_kernel(struct end *from, struct end *to)
{
    ZB_TRY(pass_on(from, to));
    return zb_backend_copy_by_kernel(zb_backend_cuda_ops.launch, to->stream,
                                     to->dst, from->src, TRY_BYTES,
                                     "peer access test");
}

static enum zb_status send_by_engine(struct end *from, struct end *to)
{
    ZB_TRY(zb_cuda_copy_peer(from->stream, &to->dev, to->dst, from->src,
                             TRY_BYTES, "peer copy test"));
    return pass_on(from, to);
}

static enum zb_status enqueue(struct trial *t, struct end *from, struct end *to,
                              int by_kernel)
{
    ZB_TRY(zb_cuda_copy_in(to->stream, to->dst, t->came, TRY_BYTES, "pattern"));
    ZB_TRY(pass_on(to, from));
    ZB_TRY(zb_cuda_copy_in(from->stream, from->src, t->sent, TRY_BYTES,
                           "pattern"));
    ZB_TRY(by_kernel ? read_by_kernel(from, to) : send_by_engine(from, to));
    ZB_TRY(
        zb_cuda_copy_out(to->stream, t->came, to->dst, TRY_BYTES, "pattern"));
    return zb_cuda_event_record(to->ready, to->stream);
}

/* Nothing that waits in the driver: that would not come back. */
static enum zb_status await(struct trial *t, const struct end *end)
{
    int64_t begin = zb_now_ns();
    int is_done = 0;

    for (;;) {
        ZB_TRY(zb_cuda_event_is_done(end->ready, &is_done));
        if (is_done) {
            return ZB_OK;
        }
        if (zb_now_ns() - begin > TIMEOUT_NS) {
            t->is_stuck = 1;
            return ZB_OK;
        }
        zb_sleep_ns(PAUSE_NS);
    }
}

/* Sets why it failed. */
static enum zb_status try_way(struct trial *t, int i, int by_kernel)
{
    struct end *from = &t->end[i], *to = &t->end[!i];
    size_t n_wrong;
    char what[80];

    write_pattern(t, 2 * i + by_kernel);
    ZB_TRY(enqueue(t, from, to, by_kernel));
    ZB_TRY(await(t, to));
    snprintf(what, sizeof(what), "%s GPU %d %s GPU %d",
             by_kernel ? "reading memory of" : "copying from", t->gpu[i],
             by_kernel ? "by" : "to", t->gpu[!i]);
    if (t->is_stuck) {
        snprintf(t->why, sizeof(t->why),
                 "copy test failed: %s did not end within %d s", what,
                 (int)(TIMEOUT_NS / 1000000000));
        return ZB_OK;
    }
    ZB_CUDA_TELL(fake_cuda_host_access(t->came, TRY_BYTES, ZB_READ_WRITE));
    ZB_CUDA_TELL(fake_cuda_host_access(t->sent, TRY_BYTES, ZB_READ_WRITE));
    n_wrong = count_wrong(t);
    if (n_wrong > 0) {
        snprintf(t->why, sizeof(t->why),
                 "copy test failed: %s, %zu of %zu bytes wrong", what, n_wrong,
                 TRY_BYTES);
    }
    return ZB_OK;
}

/* ---- a pair -------------------------------------------------------------- */

static enum zb_status open_end(struct trial *t, int i)
{
    struct end *e = &t->end[i];
    void *memory = NULL;

    e->dev.be = t->be;
    e->dev.index = -1;
    e->dev.gpu = t->gpu[i];
    ZB_TRY(zb_cuda_use(&e->dev));
    ZB_TRY(zb_cuda_check(&e->dev,
                         cudaDeviceGetAttribute(&e->dev.n_sm,
                                                cudaDevAttrMultiProcessorCount,
                                                e->dev.gpu),
                         "ask a GPU what it has"));
    ZB_TRY(zb_cuda_stream_new(&e->dev, "copy test", &e->stream));
    ZB_TRY(zb_cuda_event_new(&e->dev, &e->ready));
    ZB_TRY(zb_cuda_mem_alloc(&e->dev, 2 * ROOM_BYTES, "copy test", &memory));
    e->src = memory;
    e->dst = e->src + ROOM_BYTES;
    return ZB_OK;
}

/* Streams first: the other side's may still use this one's memory. */
static void close_ends(struct trial *t)
{
    for (int i = 0; i < 2; i++) {
        zb_cuda_stream_free(t->end[i].stream);
    }
    for (int i = 0; i < 2; i++) {
        zb_cuda_event_free(t->end[i].ready);
        if (t->end[i].src != NULL) {
            zb_cuda_mem_free(&t->end[i].dev, t->end[i].src);
        }
    }
    zb_cuda_host_free(&t->be->base, t->sent);
}

static enum zb_status both_reach(struct trial *t)
{
    for (int i = 0; i < 2; i++) {
        cudaError_t err;
        int can = 0;

        ZB_TRY(can_access(t->gpu[i], t->gpu[!i], &can));
        if (!can) {
            snprintf(t->why, sizeof(t->why),
                     "no peer access between GPUs %d and %d", t->gpu[0],
                     t->gpu[1]);
            return ZB_OK;
        }
        ZB_TRY(enable(&t->end[i].dev, t->gpu[!i], &err));
        if (err != cudaSuccess) {
            snprintf(t->why, sizeof(t->why),
                     "no peer access between GPUs %d and %d: %s", t->gpu[0],
                     t->gpu[1], cudaGetErrorString(err));
            return ZB_OK;
        }
    }
    return ZB_OK;
}

/* So that copies which the driver stages do not take that way either. */
static void disable_both(struct trial *t)
{
    for (int i = 0; i < 2; i++) {
        if (zb_cuda_use(&t->end[i].dev) == ZB_OK) {
            (void)cudaDeviceDisablePeerAccess(t->gpu[!i]);
            (void)cudaGetLastError();
        }
    }
}

static enum zb_status open_pair(struct trial *t)
{
    void *host = NULL;

    ZB_TRY(open_end(t, 0));
    ZB_TRY(open_end(t, 1));
    ZB_TRY(both_reach(t));
    ZB_TRY(
        zb_cuda_host_alloc(&t->be->base, 2 * ROOM_BYTES, "copy test", &host));
    t->sent = host;
    t->came = t->sent + ROOM_BYTES;
    return ZB_OK;
}

static enum zb_status try_pair(struct trial *t)
{
    for (int way = 0; way < 4 && t->why[0] == '\0'; way++) {
        ZB_TRY(try_way(t, way / 2, way % 2));
    }
    return ZB_OK;
}

static void meet(struct trial *t)
{
    enum zb_status st = zb_barrier_wait(&t->all->barrier, NULL);

    ZB_BUG_IF(st != ZB_OK, "copy tests failed to meet");
}

/* Memory is given and taken back while nobody copies: the driver may wait for a
 * GPU then, and what is stuck would hold all of them. It is left to the driver
 * for that reason, with all that is there. */
static void trial_main(void *arg)
{
    struct trial *t = arg;

    t->st = open_pair(t);
    meet(t);
    t->st = t->st == ZB_OK ? try_pair(t) : t->st;
    if (t->st != ZB_OK) {
        snprintf(t->text, sizeof(t->text), "%s", zb_error_text());
    }
    t->reach = t->why[0] == '\0' ? ZB_REACH_PEER : ZB_REACH_NONE;
    atomic_fetch_add(&t->all->n_stuck, t->is_stuck);
    meet(t);
    if (atomic_load(&t->all->n_stuck) == 0) {
        if (t->why[0] != '\0') {
            disable_both(t);
        }
        close_ends(t);
    }
}

/* ---- all pairs ----------------------------------------------------------- */

static struct trial *find_trial(struct trial *t, int n, int gpu, int peer)
{
    for (int i = 0; i < n; i++) {
        if ((t[i].gpu[0] == gpu && t[i].gpu[1] == peer) ||
            (t[i].gpu[1] == gpu && t[i].gpu[0] == peer)) {
            return &t[i];
        }
    }
    return NULL;
}

/* One for each two different GPUs; *n_out of them. */
static void list_trials(struct zb_cuda *be, const struct zb_pair *pair, int n,
                        struct trial *t, int *n_out)
{
    int n_trials = 0;

    for (int i = 0; i < n; i++) {
        int gpu = be->gpu[pair[i].a], peer = be->gpu[pair[i].b];

        if (gpu != peer && find_trial(t, n_trials, gpu, peer) == NULL) {
            t[n_trials].be = be;
            t[n_trials].gpu[0] = gpu < peer ? gpu : peer;
            t[n_trials].gpu[1] = gpu < peer ? peer : gpu;
            n_trials++;
        }
    }
    *n_out = n_trials;
}

static enum zb_status start_trials(struct trial *t, int n, struct meeting *all)
{
    zb_barrier_init(&all->barrier, (uint32_t)n);
    atomic_init(&all->n_stuck, 0);
    for (int i = 0; i < n; i++) {
        enum zb_status st;

        t[i].all = all;
        st = zb_thread_start(&t[i].thread, "copy test", trial_main, &t[i]);
        if (st != ZB_OK) {
            zb_barrier_dismiss(&all->barrier, (uint32_t)(n - i));
            return st;
        }
        t[i].is_running = 1;
    }
    return ZB_OK;
}

/* The first error of any. */
static enum zb_status run_trials(struct trial *t, int n)
{
    struct meeting all;
    enum zb_status st = start_trials(t, n, &all);

    for (int i = 0; i < n; i++) {
        if (t[i].is_running) {
            zb_thread_join(&t[i].thread);
        }
    }
    for (int i = 0; i < n && st == ZB_OK; i++) {
        if (t[i].st != ZB_OK) {
            st = zb_fail(t[i].st,
                         "copy test between GPUs %d and %d: %s; p2p = host "
                         "needs none",
                         t[i].gpu[0], t[i].gpu[1], t[i].text);
        }
    }
    return st;
}

static void note_apart(struct zb_cuda *be, int gpu, int peer)
{
    int n = be->base.n_devices;

    for (int i = 0; i < n * n; i++) {
        int a = be->gpu[i / n], b = be->gpu[i % n];

        be->is_apart[i] |= (a == gpu && b == peer) || (a == peer && b == gpu);
    }
}

static void take_result(struct zb_cuda *be, const struct trial *t,
                        struct zb_pair *pair)
{
    int gpu = be->gpu[pair->a], peer = be->gpu[pair->b];

    if (gpu == peer) {
        pair->reach = ZB_REACH_SHARED;
        return;
    }
    pair->reach = t != NULL ? t->reach : ZB_REACH_NONE;
    snprintf(pair->why, sizeof(pair->why), "%s", t != NULL ? t->why : "");
    if (pair->reach == ZB_REACH_NONE) {
        note_apart(be, gpu, peer);
    }
}

enum zb_status zb_cuda_find_reach(struct zb_backend *base, int may_try,
                                  struct zb_pair *pair, int n)
{
    struct zb_cuda *be = (struct zb_cuda *)base;
    struct trial *t = zb_alloc_array((size_t)n, sizeof(*t));
    int n_trials = 0;
    enum zb_status st = ZB_OK;

    if (t == NULL) {
        return ZB_ENOMEM;
    }
    if (may_try) {
        list_trials(be, pair, n, t, &n_trials);
        st = run_trials(t, n_trials);
    }
    for (int i = 0; i < n && st == ZB_OK; i++) {
        take_result(
            be, find_trial(t, n_trials, be->gpu[pair[i].a], be->gpu[pair[i].b]),
            &pair[i]);
    }
    zb_free(t);
    return st;
}
