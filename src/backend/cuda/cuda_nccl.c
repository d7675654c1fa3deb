/* SPDX-License-Identifier: MIT
 *
 * Links over NCCL: a communicator each, of two ranks for messages, of which 0
 * sends and 1 receives, or of all members of a group (cuda_coll.c).
 * Communicators do not block: what they were asked for is in the stream only
 * when they say so, and nobody is inside the library for longer than a moment.
 */
#include "config.h"
#include "backend/cuda/cuda_nccl.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/log.h"
#include "zb/mem.h"
#include "zb/thread.h"

/* How often a communicator is asked before the thread begins to sleep between
 * questions, and for how long it does. */
#define SPIN_TURNS 200
#define NAP_NS 50000
/* The longest that an end waits for the other to be done as well. */
#define CLOSE_NS ((int64_t)10000000000)
#define FIRST_BYTES sizeof(float)
/* A stream's first messages, one from each rank: more than a machine has. */
#define FIRST_ROOM ((size_t)4096)

_Static_assert(sizeof(ncclUniqueId) <= sizeof(struct zb_link_id),
               "an id must have room in a zb_link_id");

static void links_describe(char *text, size_t size)
{
    int v = 0;

    (void)ncclGetVersion(&v);
    snprintf(text, size, "NCCL %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
}

enum zb_status zb_nccl_check(const struct zb_link *l, ncclResult_t res,
                             const char *what)
{
    const struct zb_device *dev = l->stream->dev;

    return res == ncclSuccess || res == ncclInProgress
               ? ZB_OK
               : zb_fail(ZB_EDEVICE,
                         "device %d, GPU %d: %s: NCCL says: %s; with "
                         "NCCL_DEBUG=WARN it says more",
                         dev->index, dev->gpu, what, ncclGetErrorString(res));
}

static void nap(int turn)
{
    if (turn < SPIN_TURNS) {
        sched_yield();
    } else {
        zb_sleep_ns(NAP_NS);
    }
}

/* Until it is done with what it was asked for; ZB_ETIMEOUT (without a text)
 * after timeout_ns. */
static enum zb_status settle_within(struct zb_link *l, const char *what,
                                    int64_t timeout_ns)
{
    int64_t begin = zb_now_ns();

    for (int turn = 0;; turn++) {
        ncclResult_t state = ncclInProgress;

        ZB_TRY(zb_nccl_check(l, ncclCommGetAsyncError(l->comm, &state), what));
        if (state != ncclInProgress) {
            return zb_nccl_check(l, state, what);
        }
        if (zb_abort_is_raised(l->ab)) {
            return ZB_EABORT;
        }
        if (zb_now_ns() - begin > timeout_ns) {
            return ZB_ETIMEOUT;
        }
        nap(turn);
    }
}

enum zb_status zb_nccl_settle(struct zb_link *l, const char *what)
{
    return settle_within(l, what, INT64_MAX);
}

/* ---- how a link comes to be ---------------------------------------------- */

/* Devices launch messages in the order of the plan, which is free of deadlocks
 * for devices that do one after the other: NCCL is told to keep to it. It reads
 * this when it is first used. */
static enum zb_status link_id(struct zb_backend *be, struct zb_link_id *id_out)
{
    ncclUniqueId id;
    ncclResult_t res;

    (void)be;
    if (setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0) != 0) {
        return zb_fail(ZB_ENOMEM, "no memory for the environment");
    }
    res = ncclGetUniqueId(&id);
    if (res != ncclSuccess) {
        return zb_fail(ZB_EDEVICE,
                       "cuda: a new link: NCCL says: %s; with NCCL_DEBUG=WARN "
                       "it says more",
                       ncclGetErrorString(res));
    }
    memset(id_out, 0, sizeof(*id_out));
    memcpy(id_out->bytes, &id, sizeof(id));
    return ZB_OK;
}

enum zb_status zb_nccl_open(struct zb_stream *stream,
                            const struct zb_link_id *id, int n, int rank,
                            const struct zb_abort *ab,
                            struct zb_link **link_out)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    struct zb_link *l = zb_alloc(sizeof(*l));
    ncclUniqueId unique;
    enum zb_status st;

    if (l == NULL) {
        return ZB_ENOMEM;
    }
    config.blocking = 0;
    memcpy(&unique, id->bytes, sizeof(unique));
    l->stream = stream;
    l->ab = ab;
    l->n = n;
    l->rank = rank;
    st = zb_cuda_use(stream->dev);
    if (st == ZB_OK && (size_t)n >= FIRST_ROOM / FIRST_BYTES) {
        st = zb_fail(ZB_EUNSUPPORTED, "a link of %d devices", n);
    }
    if (st == ZB_OK && stream->first == NULL) {
        st = zb_cuda_malloc(stream->dev, FIRST_ROOM, "first message of a link",
                            &stream->first);
    }
    if (st == ZB_OK) {
        st = zb_nccl_check(
            l, ncclCommInitRankConfig(&l->comm, n, unique, rank, &config),
            "a new link");
    }
    if (st != ZB_OK) {
        zb_free(l);
        return st;
    }
    *link_out = l;
    return ZB_OK;
}

static enum zb_status link_open(struct zb_stream *stream,
                                const struct zb_link_id *id,
                                enum zb_link_end end, const struct zb_abort *ab,
                                struct zb_link **link_out)
{
    return zb_nccl_open(stream, id, 2, end == ZB_SENDER ? 0 : 1, ab, link_out);
}

static enum zb_status link_join(struct zb_link *l)
{
    ZB_TRY(zb_cuda_use(l->stream->dev));
    return zb_nccl_settle(l, "a new link");
}

/* ---- messages ------------------------------------------------------------ */

static ncclResult_t post(struct zb_link *l, const struct zb_link_part *p)
{
    return l->rank == 0 ? ncclSend(p->ptr, p->bytes, ncclInt8, 1, l->comm,
                                   l->stream->cuda)
                        : ncclRecv(p->ptr, p->bytes, ncclInt8, 0, l->comm,
                                   l->stream->cuda);
}

/* One launch for all parts. A group that was begun is ended, whatever comes
 * between. */
static enum zb_status link_pass(struct zb_link *l,
                                const struct zb_link_part *part, int n)
{
    const char *what = l->rank == 0 ? "send a message" : "receive a message";
    ncclResult_t res, end;
    int n_posted = 0;

    if (l->comm == NULL) {
        return ZB_EABORT;
    }
    ZB_TRY(zb_cuda_use(l->stream->dev));
    res = ncclGroupStart();
    for (int i = 0; i < n && res == ncclSuccess; i++) {
        if (part[i].bytes > 0) {
            res = post(l, &part[i]);
            n_posted++;
        }
    }
    end = ncclGroupEnd();
    ZB_TRY(zb_nccl_check(l, res, what));
    ZB_TRY(zb_nccl_check(l, end, what));
    return n_posted > 0 ? zb_nccl_settle(l, what) : ZB_OK;
}

static enum zb_status wait_for_stream(struct zb_link *l)
{
    struct zb_stream *s = l->stream;

    ZB_TRY(zb_cuda_check(s->dev, cudaEventRecord(s->idle, s->cuda),
                         "first message of a link"));
    for (int turn = 0;; turn++) {
        cudaError_t err = cudaEventQuery(s->idle);

        if (err != cudaErrorNotReady) {
            return zb_cuda_check(s->dev, err, "first message of a link");
        }
        if (zb_abort_is_raised(l->ab)) {
            return ZB_EABORT;
        }
        nap(turn);
    }
}

static enum zb_status first_message(struct zb_link *l)
{
    const struct zb_link_part part = {l->stream->first, FIRST_BYTES};

    return l->is_group ? zb_nccl_first_exchange(l, FIRST_BYTES)
                       : link_pass(l, &part, 1);
}

static enum zb_status link_warm_up(struct zb_link *l)
{
    struct zb_stream *s = l->stream;

    ZB_TRY(zb_cuda_use(s->dev));
    if (l->rank == 0 || l->is_group) {
        ZB_TRY(zb_cuda_check(s->dev,
                             cudaMemsetAsync(s->first, 0, FIRST_BYTES, s->cuda),
                             "first message of a link"));
    }
    ZB_TRY(first_message(l));
    return wait_for_stream(l);
}

static enum zb_status link_error(struct zb_link *l)
{
    ncclResult_t state = ncclSuccess;

    if (l->comm == NULL) {
        return ZB_OK;
    }
    ZB_TRY(zb_nccl_check(l, ncclCommGetAsyncError(l->comm, &state), "a link"));
    return zb_nccl_check(l, state, "a link");
}

/* ---- how it ends --------------------------------------------------------- */

/* In one group: each is told to stop before any is waited for, since what is
 * left of one may wait for the memory of a GPU that another keeps busy. */
static void link_abort(struct zb_link *const *link, int n)
{
    ncclResult_t res = ncclGroupStart();

    for (int i = 0; i < n; i++) {
        if (link[i]->comm != NULL) {
            ncclResult_t r = ncclCommAbort(link[i]->comm);

            res = res == ncclSuccess ? r : res;
            link[i]->comm = NULL;
        }
    }
    (void)ncclGroupEnd();
    if (res != ncclSuccess && res != ncclInProgress) {
        zb_log(ZB_LOG_WARN, "cuda: stop links: NCCL says: %s",
               ncclGetErrorString(res));
    }
}

static void link_close(struct zb_link *l)
{
    enum zb_status st;

    if (l == NULL) {
        return;
    }
    if (l->comm != NULL && !zb_abort_is_raised(l->ab) &&
        zb_cuda_use(l->stream->dev) == ZB_OK) {
        st = zb_nccl_check(l, ncclCommFinalize(l->comm), "end a link");
        st = st == ZB_OK ? settle_within(l, "end a link", CLOSE_NS) : st;
        if (st == ZB_OK) {
            (void)ncclCommDestroy(l->comm);
            l->comm = NULL;
        } else {
            zb_log(ZB_LOG_WARN, "cuda: a link does not end (%s): it is stopped",
                   st == ZB_ETIMEOUT ? "nothing moves" : zb_error_text());
        }
    }
    if (l->comm != NULL) {
        link_abort(&l, 1);
    }
    zb_free(l);
}

const struct zb_link_ops zb_cuda_links = {
    .describe = links_describe,
    .id = link_id,
    .open = link_open,
    .join = link_join,
    .warm_up = link_warm_up,
    .send = link_pass,
    .recv = link_pass,
    .open_group = zb_nccl_open_group,
    .exchange = zb_nccl_exchange,
    .error = link_error,
    .abort = link_abort,
    .close = link_close,
};
