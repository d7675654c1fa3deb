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
        (void)cudaStreamDestroy(s->cuda);
    }
    (void)cudaFree(s->workspace);
    (void)cudaFree(s->scratch);
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

    (void)name;
    ZB_TRY(zb_cuda_use(dev));
    s = zb_alloc(sizeof(*s));
    if (s == NULL) {
        return ZB_ENOMEM;
    }
    s->dev = dev;
    ZB_TRY_GOTO(st, new_event(dev, &s->idle), err);
    ZB_TRY_GOTO(st,
                zb_cuda_malloc(dev, ZB_CUDA_SCRATCH_BYTES, "stream's memory",
                               &s->scratch),
                err);
    ZB_TRY_GOTO(st,
                zb_cuda_check(dev,
                              cudaStreamCreateWithFlags(
                                  &s->cuda, cudaStreamNonBlocking),
                              "new stream"),
                err);
    if (dev->n_streams == 0) {
        ZB_TRY_GOTO(st, zb_cuda_gemm_workspace(s), err);
    }
    dev->n_streams++;
    ZB_CUDA_TELL(fake_cuda_name_stream(s->cuda, name));
    *stream_out = s;
    return ZB_OK;
err:
    free_parts(s);
    zb_free(s);
    return st;
}

void zb_cuda_stream_free(struct zb_stream *stream)
{
    if (stream == NULL) {
        return;
    }
    if (zb_cuda_use(stream->dev) == ZB_OK) {
        free_parts(stream);
    }
    zb_free(stream);
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
