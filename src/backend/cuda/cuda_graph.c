/* SPDX-License-Identifier: MIT
 *
 * Work that recurs is captured once and launched as one graph. A key is
 * launched kernel by kernel when it comes for the first time, so that all that
 * launches allocate or look up is there when it is captured, the second time;
 * keys that never come back (sequences of ever new lengths) cost a hash.
 *
 * A graph holds addresses: it is replayed for the same key only, which says all
 * of them.
 */
#include "config.h"
#include "backend/cuda/cuda_int.h"

#include <string.h>

#include "zb/hash.h"
#include "zb/log.h"
#include "zb/mem.h"

/* Graphs of a stream, and the slots they are found in. The driver keeps some
 * memory of the GPU for each, so they are bounded. */
#define MOST_GRAPHS 512
#define N_SLOTS 1024
/* When there are so many, one that was not used for so many replays makes
 * room. */
#define STALE 4096
/* Hashes of keys that came once, the last of each place. */
#define N_SEEN 4096

struct graph {
    uint64_t hash;
    void *key; /* [bytes] */
    size_t bytes;
    cudaGraphExec_t exec; /* NULL: the slot is free */
    uint64_t used; /* when last, in replays */
};

struct zb_cuda_graphs {
    struct graph slot[N_SLOTS];
    uint64_t seen[N_SEEN];
    int n_graphs;
    uint64_t now;
    int is_off; /* capture failed: launches do */
    /* Under way. */
    struct graph *capture; /* NULL: launches go to the stream */
    struct zb_stream_stats before;
};

static void drop(struct zb_cuda_graphs *g, struct graph *at)
{
    if (at->exec != NULL) {
        (void)cudaGraphExecDestroy(at->exec);
        g->n_graphs--;
    }
    zb_free(at->key);
    *at = (struct graph){.hash = 0};
}

void zb_cuda_graphs_free(struct zb_cuda_graphs *graphs)
{
    for (size_t i = 0; graphs != NULL && i < N_SLOTS; i++) {
        drop(graphs, &graphs->slot[i]);
    }
    zb_free(graphs);
}

/* Each key has a few places, so that one may be emptied. */
#define N_WAYS 8

static struct graph *place(struct zb_cuda_graphs *g, uint64_t hash, size_t i)
{
    return &g->slot[(hash + i) % N_SLOTS];
}

static struct graph *find(struct zb_cuda_graphs *g, uint64_t hash,
                          const void *key, size_t bytes)
{
    for (size_t i = 0; i < N_WAYS; i++) {
        struct graph *at = place(g, hash, i);

        if (at->exec != NULL && at->hash == hash && at->bytes == bytes &&
            memcmp(at->key, key, bytes) == 0) {
            return at;
        }
    }
    return NULL;
}

/* Where a new graph goes, or NULL while those that are there are in use. */
static struct graph *make_room(struct zb_cuda_graphs *g, uint64_t hash)
{
    struct graph *oldest = NULL;

    for (size_t i = 0; i < N_WAYS; i++) {
        struct graph *at = place(g, hash, i);

        if (at->exec == NULL && g->n_graphs < MOST_GRAPHS) {
            return at;
        }
        if (at->exec != NULL && (oldest == NULL || at->used < oldest->used)) {
            oldest = at;
        }
    }
    if (oldest == NULL || g->now - oldest->used < STALE) {
        return NULL;
    }
    drop(g, oldest);
    return oldest;
}

static int was_seen(struct zb_cuda_graphs *g, uint64_t hash)
{
    uint64_t *at = &g->seen[hash % N_SEEN];
    int is_same = *at == hash;

    *at = hash;
    return is_same;
}

/* It is no failure of the run: launches do the same. */
static void give_up(struct zb_stream *stream, const char *what, const char *why)
{
    const struct zb_device *dev = stream->dev;

    (void)cudaGetLastError();
    stream->graphs->is_off = 1;
    zb_log(ZB_LOG_WARN,
           "device %d, GPU %d: no CUDA graphs, but launch by launch: %s: %s",
           dev->index, dev->gpu, what, why);
}

static enum zb_status start(struct zb_stream *stream, uint64_t hash,
                            const void *key, size_t bytes)
{
    struct zb_cuda_graphs *g = stream->graphs;
    struct graph *at = make_room(g, hash);
    cudaError_t err;

    if (at == NULL) {
        return ZB_OK;
    }
    at->key = zb_alloc(bytes);
    if (at->key == NULL) {
        return ZB_ENOMEM;
    }
    memcpy(at->key, key, bytes);
    at->hash = hash;
    at->bytes = bytes;
    /* Other threads may do what they like meanwhile. */
    err = cudaStreamBeginCapture(stream->cuda,
                                 cudaStreamCaptureModeThreadLocal);
    if (err != cudaSuccess) {
        drop(g, at);
        give_up(stream, "begin of a capture", cudaGetErrorString(err));
        return ZB_OK;
    }
    g->capture = at;
    g->before = stream->stats;
    return ZB_OK;
}

static enum zb_status launch(struct zb_stream *stream, struct graph *at)
{
    at->used = ++stream->graphs->now;
    stream->stats.graphs++;
    return zb_cuda_check(stream->dev, cudaGraphLaunch(at->exec, stream->cuda),
                         "launch of a graph");
}

enum zb_status zb_cuda_replay_begin(struct zb_stream *stream, const void *key,
                                    size_t bytes, int *is_done_out)
{
    uint64_t hash = zb_hash(key, bytes);
    struct graph *at;

    *is_done_out = 0;
    ZB_TRY(zb_cuda_use(stream->dev));
    if (stream->graphs == NULL) {
        stream->graphs = zb_alloc(sizeof(*stream->graphs));
        if (stream->graphs == NULL) {
            return ZB_ENOMEM;
        }
    }
    if (stream->graphs->is_off) {
        return ZB_OK;
    }
    at = find(stream->graphs, hash, key, bytes);
    if (at != NULL) {
        *is_done_out = 1;
        return launch(stream, at);
    }
    return was_seen(stream->graphs, hash) ? start(stream, hash, key, bytes)
                                          : ZB_OK;
}

/* What was captured becomes a graph that can be launched. */
static cudaError_t finish(struct zb_stream *stream, struct graph *at)
{
    cudaGraph_t graph = NULL;
    cudaError_t err = cudaStreamEndCapture(stream->cuda, &graph);

    if (err == cudaSuccess) {
        err = cudaGraphInstantiateWithFlags(&at->exec, graph, 0);
        stream->graphs->n_graphs += err == cudaSuccess;
    }
    if (graph != NULL) {
        (void)cudaGraphDestroy(graph);
    }
    return err;
}

enum zb_status zb_cuda_replay_end(struct zb_stream *stream, enum zb_status st,
                                  int *is_done_out)
{
    struct zb_cuda_graphs *g = stream->graphs;
    struct graph *at = g->capture;
    cudaError_t err;

    *is_done_out = 1;
    if (at == NULL) {
        return st;
    }
    g->capture = NULL;
    stream->stats = g->before;
    err = finish(stream, at);
    if (st == ZB_OK && err == cudaSuccess) {
        return launch(stream, at);
    }
    drop(g, at);
    give_up(stream, "capture",
            st == ZB_OK ? cudaGetErrorString(err) : zb_error_text());
    *is_done_out = 0;
    return ZB_OK;
}
