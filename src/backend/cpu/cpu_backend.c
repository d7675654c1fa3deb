/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

#include "zb/mem.h"
#include "backend/affinity_int.h"
#include "backend/cpu/cpu_onednn.h"

/* Nothing is ever in flight, so a stream only knows its device, and an event
 * is always done. */
struct zb_stream {
    struct zb_device *dev;
};

struct zb_event {
    struct zb_device *dev;
};

static const zb_cpu_kernel_fn kernels[ZB_N_KERNELS] = {
#define ZB_X(name) [ZB_K_##name] = zb_cpu_##name,
    ZB_KERNEL_MAP(ZB_X)
#undef ZB_X
};

static enum zb_status cpu_open(const struct zb_backend_opts *opts,
                               struct zb_backend **be_out)
{
    const struct zb_affinity_opts ao = {.n_devices = opts->n_devices,
                                        .threads_per_device =
                                            opts->threads_per_device};
    struct zb_cpu *be;

    if (opts->threads_per_device > ZB_CPU_MAX_THREADS) {
        return zb_fail(ZB_ECONFIG, "%d threads per device are more than %d",
                       opts->threads_per_device, ZB_CPU_MAX_THREADS);
    }
    be = zb_alloc(sizeof(*be));
    if (be == NULL) {
        return ZB_ENOMEM;
    }
    be->base.ops = &zb_backend_cpu_ops;
    be->base.n_devices = opts->n_devices;
    be->n_threads = opts->threads_per_device;
    if (zb_affinity_new(&ao, &be->base.affinity) != ZB_OK) {
        zb_free(be);
        return ZB_ENOMEM;
    }
    *be_out = &be->base;
    return ZB_OK;
}

static void cpu_close(struct zb_backend *be)
{
    struct zb_cpu *cpu = (struct zb_cpu *)be;

    zb_affinity_free(be->affinity);
    zb_free(cpu);
}

static enum zb_status cpu_device_open(struct zb_backend *be, int index,
                                      struct zb_device **dev_out)
{
    struct zb_cpu *cpu = (struct zb_cpu *)be;
    struct zb_device *dev;

    if (index < 0 || index >= be->n_devices) {
        return zb_fail(ZB_EINVAL, "there is no device %d among %d", index,
                       be->n_devices);
    }
    dev = zb_alloc(sizeof(*dev));
    if (dev == NULL) {
        return ZB_ENOMEM;
    }
    dev->scratch =
        zb_alloc_array((size_t)cpu->n_threads, sizeof(*dev->scratch));
    if (dev->scratch == NULL) {
        zb_free(dev);
        return ZB_ENOMEM;
    }
    dev->be = cpu;
    dev->index = index;
    dev->n_threads = cpu->n_threads;
    dev->binding_before = zb_affinity_bind(be->affinity, index);
    *dev_out = dev;
    return ZB_OK;
}

static void cpu_device_close(struct zb_device *dev)
{
    if (dev == NULL) {
        return;
    }
    zb_affinity_undo(dev->be->base.affinity, dev->binding_before);
    zb_onednn_free(dev->onednn);
    for (int t = 0; t < dev->n_threads; t++) {
        zb_free(dev->scratch[t].ptr);
    }
    zb_free(dev->scratch);
    zb_free(dev);
}

static enum zb_status cpu_stream_new(struct zb_device *dev, const char *name,
                                     struct zb_stream **stream_out)
{
    struct zb_stream *stream = zb_alloc(sizeof(*stream));

    (void)name;
    if (stream == NULL) {
        return ZB_ENOMEM;
    }
    stream->dev = dev;
    *stream_out = stream;
    return ZB_OK;
}

static void cpu_stream_free(struct zb_stream *stream)
{
    zb_free(stream);
}

static enum zb_status cpu_event_new(struct zb_device *dev,
                                    struct zb_event **event_out)
{
    struct zb_event *event = zb_alloc(sizeof(*event));

    if (event == NULL) {
        return ZB_ENOMEM;
    }
    event->dev = dev;
    *event_out = event;
    return ZB_OK;
}

static void cpu_event_free(struct zb_event *event)
{
    zb_free(event);
}

static enum zb_status cpu_event_record(struct zb_event *event,
                                       struct zb_stream *stream)
{
    (void)event;
    (void)stream;
    return ZB_OK;
}

static enum zb_status cpu_stream_wait(struct zb_stream *stream,
                                      struct zb_event *event)
{
    (void)stream;
    (void)event;
    return ZB_OK;
}

static enum zb_status cpu_event_sync(struct zb_event *event)
{
    (void)event;
    return ZB_OK;
}

static enum zb_status cpu_stream_sync(struct zb_stream *stream)
{
    (void)stream;
    return ZB_OK;
}

static enum zb_status cpu_launch(struct zb_stream *stream,
                                 const struct zb_launch *launch)
{
    enum zb_status st;

    if ((unsigned)launch->kernel >= ZB_N_KERNELS) {
        return zb_fail(ZB_EINVAL, "%s: there is no kernel %d", launch->label,
                       (int)launch->kernel);
    }
    st = kernels[launch->kernel](stream->dev, launch->params);
    return st == ZB_OK ? ZB_OK : zb_fail_in(st, "%s", launch->label);
}

static enum zb_status cpu_copy_in(struct zb_stream *stream, void *dst,
                                  const void *host_src, size_t bytes,
                                  const char *label)
{
    (void)stream;
    (void)label;
    if (bytes > 0) {
        memcpy(dst, host_src, bytes);
    }
    return ZB_OK;
}

static enum zb_status cpu_copy_out(struct zb_stream *stream, void *host_dst,
                                   const void *src, size_t bytes,
                                   const char *label)
{
    return cpu_copy_in(stream, host_dst, src, bytes, label);
}

static enum zb_status cpu_copy_peer(struct zb_stream *stream,
                                    const struct zb_device *to, void *dst,
                                    const void *src, size_t bytes,
                                    const char *label)
{
    (void)to;
    return zb_backend_copy_by_kernel(cpu_launch, stream, dst, src, bytes,
                                     label);
}

const struct zb_backend_ops zb_backend_cpu_ops = {
    .name = "cpu",
    .summary = "this machine's processor: oneDNN, OpenMP, vectorised kernels",
    .open = cpu_open,
    .close = cpu_close,
    .describe = zb_backend_no_words,
    .find_reach = zb_backend_all_shared,
    .device_open = cpu_device_open,
    .device_close = cpu_device_close,
    .mem_alloc = zb_cpu_mem_alloc,
    .mem_free = zb_cpu_mem_free,
    .mem_bytes = zb_cpu_mem_bytes,
    .mem_peak_bytes = zb_cpu_mem_peak_bytes,
    .host_alloc = zb_backend_plain_alloc,
    .host_free = zb_backend_plain_free,
    .stream_new = cpu_stream_new,
    .stream_free = cpu_stream_free,
    .product_bytes = zb_backend_no_product_bytes,
    .stream_lend = zb_backend_no_lend,
    .event_new = cpu_event_new,
    .event_free = cpu_event_free,
    .event_record = cpu_event_record,
    .stream_wait = cpu_stream_wait,
    .event_sync = cpu_event_sync,
    .stream_sync = cpu_stream_sync,
    .launch = cpu_launch,
    .replay_begin = zb_backend_no_replay,
    .replay_end = zb_backend_no_replay_end,
    .copy_in = cpu_copy_in,
    .copy_out = cpu_copy_out,
    .copy_peer = cpu_copy_peer,
    .gpu_states = zb_backend_no_gpu_states,
    .stream_mark = zb_backend_no_mark,
    .discard = zb_backend_no_discard,
    .host_access = zb_backend_no_host_access,
    .stream_stats = zb_backend_no_stats,
    .spend = zb_backend_no_spend,
    .event_delay = zb_backend_no_delay,
};
