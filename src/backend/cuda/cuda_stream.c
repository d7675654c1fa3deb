/* SPDX-License-Identifier: MIT
 *
 * Streams, events and copies. Waiting sleeps: a worker's core is better used by
 * the others.
 */
#include "config.h"
#include "backend/cuda/cuda_int.h"

#include "zb/mem.h"

struct zb_event {
    struct zb_device *dev;
    cudaEvent_t cuda;
};

static enum zb_status new_event(const struct zb_device *dev,
                                cudaEvent_t *event_out)
{
    ZB_TRY(zb_cuda_use(dev));
    return zb_cuda_check(
        dev,
        cudaEventCreateWithFlags(event_out, cudaEventDisableTiming |
                                                cudaEventBlockingSync),
        "new event");
}

/* ---- streams ------------------------------------------------------------- */

/* Errors were reported where the host waited for results. */
static void free_parts(struct zb_stream *s)
{
    if (s->cuda != NULL) {
        (void)cudaStreamSynchronize(s->cuda);
        zb_cuda_graphs_free(s->graphs);
        (void)cudaStreamDestroy(s->cuda);
    }
    if (!s->is_lent) {
        (void)cudaFree(s->workspace);
        (void)cudaFree(s->scratch);
    }
    (void)cudaFree(s->first);
    if (s->idle != NULL) {
        (void)cudaEventDestroy(s->idle);
    }
    (void)cudaGetLastError();
}

enum zb_status zb_cuda_stream_new(struct zb_device *dev, const char *name,
                                  struct zb_stream **stream_out)
{
    struct zb_stream *s;
    enum zb_status st;

    ZB_TRY(zb_cuda_use(dev));
    s = zb_alloc(sizeof(*s));
    if (s == NULL) {
        return ZB_ENOMEM;
    }
    s->dev = dev;
    s->name = zb_strdup(name);
    ZB_TRY_GOTO(st, s->name == NULL ? ZB_ENOMEM : ZB_OK, err);
    s->stats.name = s->name;
    ZB_TRY_GOTO(st, new_event(dev, &s->idle), err);
    ZB_TRY_GOTO(st,
                zb_cuda_check(dev,
                              cudaStreamCreateWithFlags(
                                  &s->cuda, cudaStreamNonBlocking),
                              "new stream"),
                err);
    ZB_CUDA_TELL(fake_cuda_name_stream(s->cuda, name));
    s->next = dev->streams;
    dev->streams = s;
    *stream_out = s;
    return ZB_OK;
err:
    free_parts(s);
    zb_free(s->name);
    zb_free(s);
    return st;
}

void zb_cuda_stream_free(struct zb_stream *stream)
{
    struct zb_stream **at;

    if (stream == NULL) {
        return;
    }
    if (zb_cuda_use(stream->dev) == ZB_OK) {
        free_parts(stream);
    }
    at = &stream->dev->streams;
    while (*at != stream) {
        at = &(*at)->next;
    }
    *at = stream->next;
    zb_free(stream->name);
    zb_free(stream);
}

int zb_cuda_stream_stats(const struct zb_device *dev, int i,
                         struct zb_stream_stats *stats_out)
{
    const struct zb_stream *s = dev->streams;

    while (s != NULL && i > 0) {
        s = s->next;
        i--;
    }
    if (s == NULL) {
        return 0;
    }
    *stats_out = s->stats;
    return 1;
}

void zb_cuda_stream_lend(struct zb_stream *stream, void *ptr, size_t bytes)
{
    ZB_BUG_IF(stream->scratch != NULL || stream->workspace != NULL ||
                  bytes < ZB_CUDA_SCRATCH_BYTES,
              "%zu bytes lent to a stream that has memory or needs more",
              bytes);
    stream->scratch = stream->workspace = ptr;
    stream->workspace_bytes = bytes < ZB_CUDA_WORKSPACE_BYTES
                                  ? bytes
                                  : ZB_CUDA_WORKSPACE_BYTES;
    stream->is_lent = 1;
}

enum zb_status zb_cuda_stream_scratch(struct zb_stream *stream)
{
    return stream->scratch != NULL
               ? ZB_OK
               : zb_cuda_malloc(stream->dev, ZB_CUDA_SCRATCH_BYTES,
                                "memory of a stream", &stream->scratch);
}

enum zb_status zb_cuda_stream_workspace(struct zb_stream *stream)
{
    if (stream->workspace != NULL) {
        return ZB_OK;
    }
    ZB_TRY(zb_cuda_malloc(stream->dev, ZB_CUDA_WORKSPACE_BYTES,
                          "workspace of products", &stream->workspace));
    stream->workspace_bytes = ZB_CUDA_WORKSPACE_BYTES;
    return ZB_OK;
}

enum zb_status zb_cuda_stream_sync(struct zb_stream *stream)
{
    const struct zb_device *dev = stream->dev;

    ZB_TRY(zb_cuda_use(dev));
    ZB_TRY(zb_cuda_check(dev, cudaEventRecord(stream->idle, stream->cuda),
                         "wait for a stream"));
    return zb_cuda_check(dev, cudaEventSynchronize(stream->idle),
                         "work of a stream");
}

/* ---- events -------------------------------------------------------------- */

enum zb_status zb_cuda_event_new(struct zb_device *dev,
                                 struct zb_event **event_out)
{
    struct zb_event *e = zb_alloc(sizeof(*e));
    enum zb_status st;

    if (e == NULL) {
        return ZB_ENOMEM;
    }
    e->dev = dev;
    st = new_event(dev, &e->cuda);
    if (st != ZB_OK) {
        zb_free(e);
        return st;
    }
    *event_out = e;
    return ZB_OK;
}

void zb_cuda_event_free(struct zb_event *event)
{
    if (event == NULL) {
        return;
    }
    if (zb_cuda_use(event->dev) == ZB_OK) {
        (void)cudaEventDestroy(event->cuda);
        (void)cudaGetLastError();
    }
    zb_free(event);
}

enum zb_status zb_cuda_event_record(struct zb_event *event,
                                    struct zb_stream *stream)
{
    ZB_TRY(zb_cuda_use(stream->dev));
    return zb_cuda_check(stream->dev,
                         cudaEventRecord(event->cuda, stream->cuda),
                         "record an event");
}

enum zb_status zb_cuda_stream_wait(struct zb_stream *stream,
                                   struct zb_event *event)
{
    ZB_TRY(zb_cuda_use(stream->dev));
    return zb_cuda_check(stream->dev,
                         cudaStreamWaitEvent(stream->cuda, event->cuda, 0),
                         "wait for an event");
}

enum zb_status zb_cuda_event_sync(struct zb_event *event)
{
    ZB_TRY(zb_cuda_use(event->dev));
    return zb_cuda_check(event->dev, cudaEventSynchronize(event->cuda),
                         "work before an event");
}

enum zb_status zb_cuda_event_is_done(struct zb_event *event, int *is_done_out)
{
    cudaError_t err;

    ZB_TRY(zb_cuda_use(event->dev));
    err = cudaEventQuery(event->cuda);
    *is_done_out = err != cudaErrorNotReady;
    return *is_done_out ? zb_cuda_check(event->dev, err, "work before an event")
                        : ZB_OK;
}

/* ---- copies -------------------------------------------------------------- */

static enum zb_status copy(struct zb_stream *stream, void *dst,
                           const void *src, size_t bytes,
                           enum cudaMemcpyKind kind, const char *label)
{
    if (bytes == 0) {
        return ZB_OK;
    }
    ZB_TRY(zb_cuda_use(stream->dev));
    stream->stats.copies++;
    return zb_cuda_check(stream->dev,
                         cudaMemcpyAsync(dst, src, bytes, kind, stream->cuda),
                         label);
}

enum zb_status zb_cuda_copy_in(struct zb_stream *stream, void *dst,
                               const void *host_src, size_t bytes,
                               const char *label)
{
    return copy(stream, dst, host_src, bytes, cudaMemcpyHostToDevice, label);
}

enum zb_status zb_cuda_copy_out(struct zb_stream *stream, void *host_dst,
                                const void *src, size_t bytes,
                                const char *label)
{
    return copy(stream, host_dst, src, bytes, cudaMemcpyDeviceToHost, label);
}

/* By a copy engine where the GPUs differ; without peer access the driver goes
 * through host memory of its own. */
enum zb_status zb_cuda_copy_peer(struct zb_stream *stream,
                                 const struct zb_device *to, void *dst,
                                 const void *src, size_t bytes,
                                 const char *label)
{
    const struct zb_device *dev = stream->dev;

    if (to->gpu == dev->gpu) {
        return copy(stream, dst, src, bytes, cudaMemcpyDeviceToDevice, label);
    }
    if (bytes == 0) {
        return ZB_OK;
    }
    ZB_TRY(zb_cuda_use(dev));
    return zb_cuda_check(
        dev,
        cudaMemcpyPeerAsync(dst, to->gpu, src, dev->gpu, bytes, stream->cuda),
        label);
}
