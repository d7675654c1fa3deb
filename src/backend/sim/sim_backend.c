/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "backend/sim/sim_int.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/backend_int.h"
#include "zb/mem.h"
#include "zb/thread.h"

/* One piece of address space. */
struct piece {
    struct piece *next;
    void *ptr;
    size_t bytes;     /* as asked for */
    size_t map_bytes; /* at least one: nothing can not be mapped */
};

struct zb_device {
    int index;
    struct piece *pieces;
    size_t mem_bytes, mem_peak_bytes;
    struct zb_stream *first; /* the stream that keeps its thread, or NULL */
};

struct zb_stream {
    struct zb_device *dev;
    int64_t due_ns;   /* when its work is done */
    int64_t clock_ns; /* the same, counted in costs only */
    int is_idle;      /* the host waited for it; nothing was enqueued since */
};

struct zb_event {
    _Atomic int64_t due_ns;
    _Atomic int64_t clock_ns;
};

/* ---- backend and devices ------------------------------------------------- */

static enum zb_status sim_open(const struct zb_backend_opts *opts,
                               struct zb_backend **be_out)
{
    struct zb_backend *be = zb_alloc(sizeof(*be));

    if (be == NULL) {
        return ZB_ENOMEM;
    }
    be->ops = &zb_backend_sim_ops;
    be->n_devices = opts->n_devices;
    *be_out = be;
    return ZB_OK;
}

static void sim_close(struct zb_backend *be)
{
    zb_free(be);
}

static enum zb_status sim_device_open(struct zb_backend *be, int index,
                                      struct zb_device **dev_out)
{
    struct zb_device *dev;

    if (index < 0 || index >= be->n_devices) {
        return zb_fail(ZB_EINVAL, "there is no device %d among %d", index,
                       be->n_devices);
    }
    dev = zb_alloc(sizeof(*dev));
    if (dev == NULL) {
        return ZB_ENOMEM;
    }
    dev->index = index;
    *dev_out = dev;
    return ZB_OK;
}

/* ---- memory -------------------------------------------------------------- */

static enum zb_status sim_mem_alloc(struct zb_device *dev, size_t bytes,
                                    const char *what, void **ptr_out)
{
    struct piece *p = zb_alloc(sizeof(*p));

    if (p == NULL) {
        return zb_fail_in(ZB_ENOMEM, "%s", what);
    }
    p->bytes = bytes;
    p->map_bytes = bytes > 0 ? bytes : 1;
    p->ptr = mmap(NULL, p->map_bytes, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p->ptr == MAP_FAILED) {
        zb_free(p);
        return zb_fail(ZB_ENOMEM, "%s: no room for %zu bytes among the "
                                  "addresses", what, bytes);
    }
    p->next = dev->pieces;
    dev->pieces = p;
    dev->mem_bytes += bytes;
    if (dev->mem_peak_bytes < dev->mem_bytes) {
        dev->mem_peak_bytes = dev->mem_bytes;
    }
    *ptr_out = p->ptr;
    return ZB_OK;
}

static void sim_mem_free(struct zb_device *dev, void *ptr)
{
    for (struct piece **at = &dev->pieces; *at != NULL; at = &(*at)->next) {
        struct piece *p = *at;

        if (p->ptr == ptr) {
            *at = p->next;
            dev->mem_bytes -= p->bytes;
            munmap(p->ptr, p->map_bytes);
            zb_free(p);
            return;
        }
    }
}

static size_t sim_mem_bytes(const struct zb_device *dev)
{
    return dev->mem_bytes;
}

static size_t sim_mem_peak_bytes(const struct zb_device *dev)
{
    return dev->mem_peak_bytes;
}

static void sim_device_close(struct zb_device *dev)
{
    while (dev != NULL && dev->pieces != NULL) {
        sim_mem_free(dev, dev->pieces->ptr);
    }
    zb_free(dev);
}

/* ---- streams and events -------------------------------------------------- */

static enum zb_status sim_stream_new(struct zb_device *dev, const char *name,
                                     struct zb_stream **stream_out)
{
    struct zb_stream *s = zb_alloc(sizeof(*s));

    (void)name;
    if (s == NULL) {
        return ZB_ENOMEM;
    }
    s->dev = dev;
    s->is_idle = 1;
    if (dev->first == NULL) {
        dev->first = s;
    }
    *stream_out = s;
    return ZB_OK;
}

static void sim_stream_free(struct zb_stream *s)
{
    if (s != NULL && s->dev->first == s) {
        s->dev->first = NULL;
    }
    zb_free(s);
}

static enum zb_status sim_event_new(struct zb_device *dev,
                                    struct zb_event **event_out)
{
    struct zb_event *e = zb_alloc(sizeof(*e));

    (void)dev;
    if (e == NULL) {
        return ZB_ENOMEM;
    }
    atomic_init(&e->due_ns, 0);
    atomic_init(&e->clock_ns, 0);
    *event_out = e;
    return ZB_OK;
}

static void sim_event_free(struct zb_event *e)
{
    zb_free(e);
}

/* Something is enqueued: it can not begin before now if nothing was there. */
static void touch(struct zb_stream *s)
{
    if (s->is_idle) {
        int64_t now = zb_now_ns();

        s->due_ns = now > s->due_ns ? now : s->due_ns;
        s->is_idle = 0;
    }
}

/* Keep the calling thread until the work is done, if the stream does that. */
static void keep_thread(const struct zb_stream *s)
{
    if (s->dev->first == s) {
        zb_sleep_until_ns(s->due_ns);
    }
}

static enum zb_status sim_event_record(struct zb_event *e, struct zb_stream *s)
{
    touch(s);
    atomic_store_explicit(&e->due_ns, s->due_ns, memory_order_relaxed);
    atomic_store_explicit(&e->clock_ns, s->clock_ns, memory_order_relaxed);
    return ZB_OK;
}

static void sim_event_delay(struct zb_event *e, int64_t ns)
{
    atomic_fetch_add_explicit(&e->due_ns, ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&e->clock_ns, ns, memory_order_relaxed);
}

static enum zb_status sim_stream_wait(struct zb_stream *s, struct zb_event *e)
{
    int64_t due = atomic_load_explicit(&e->due_ns, memory_order_relaxed);
    int64_t clock = atomic_load_explicit(&e->clock_ns, memory_order_relaxed);

    touch(s);
    s->clock_ns = clock > s->clock_ns ? clock : s->clock_ns;
    if (due > s->due_ns) {
        s->due_ns = due;
        keep_thread(s);
    }
    return ZB_OK;
}

static enum zb_status sim_event_sync(struct zb_event *e)
{
    zb_sleep_until_ns(atomic_load_explicit(&e->due_ns, memory_order_relaxed));
    return ZB_OK;
}

static enum zb_status sim_stream_sync(struct zb_stream *s)
{
    zb_sleep_until_ns(s->due_ns);
    s->is_idle = 1;
    return ZB_OK;
}

static enum zb_status sim_spend(struct zb_stream *s, int64_t ns)
{
    touch(s);
    s->due_ns += ns;
    s->clock_ns += ns;
    keep_thread(s);
    return ZB_OK;
}

static void sim_stream_mark(struct zb_stream *s, const char *node)
{
    (void)node;
    touch(s);
}

int64_t zb_sim_clock_ns(const struct zb_stream *s)
{
    return s->clock_ns;
}

/* ---- what takes no time -------------------------------------------------- */

static enum zb_status sim_launch(struct zb_stream *s,
                                 const struct zb_launch *launch)
{
    (void)launch;
    touch(s);
    return ZB_OK;
}

static enum zb_status sim_copy_in(struct zb_stream *s, void *dst,
                                  const void *host_src, size_t bytes,
                                  const char *label)
{
    (void)dst, (void)host_src, (void)bytes, (void)label;
    touch(s);
    return ZB_OK;
}

static enum zb_status sim_copy_out(struct zb_stream *s, void *host_dst,
                                   const void *src, size_t bytes,
                                   const char *label)
{
    (void)src, (void)label;
    touch(s);
    memset(host_dst, 0, bytes);
    return ZB_OK;
}

static enum zb_status sim_copy_peer(struct zb_stream *stream,
                                    const struct zb_device *to, void *dst,
                                    const void *src, size_t bytes,
                                    const char *label)
{
    (void)to;
    return zb_backend_copy_by_kernel(sim_launch, stream, dst, src, bytes,
                                     label);
}

const struct zb_backend_ops zb_backend_sim_ops = {
    .name = "sim",
    .summary = "computes nothing; each node takes its planned time",
    .open = sim_open,
    .close = sim_close,
    .describe = zb_backend_no_words,
    .find_reach = zb_backend_all_shared,
    .device_open = sim_device_open,
    .device_close = sim_device_close,
    .mem_alloc = sim_mem_alloc,
    .mem_free = sim_mem_free,
    .mem_bytes = sim_mem_bytes,
    .mem_peak_bytes = sim_mem_peak_bytes,
    .host_alloc = zb_backend_plain_alloc,
    .host_free = zb_backend_plain_free,
    .stream_new = sim_stream_new,
    .stream_free = sim_stream_free,
    .product_bytes = zb_backend_no_product_bytes,
    .stream_lend = zb_backend_no_lend,
    .event_new = sim_event_new,
    .event_free = sim_event_free,
    .event_record = sim_event_record,
    .stream_wait = sim_stream_wait,
    .event_sync = sim_event_sync,
    .stream_sync = sim_stream_sync,
    .launch = sim_launch,
    .replay_begin = zb_backend_no_replay,
    .replay_end = zb_backend_no_replay_end,
    .copy_in = sim_copy_in,
    .copy_out = sim_copy_out,
    .copy_peer = sim_copy_peer,
    .gpu_states = zb_backend_no_gpu_states,
    .stream_mark = sim_stream_mark,
    .discard = zb_backend_no_discard,
    .host_access = zb_backend_no_host_access,
    .stream_stats = zb_backend_no_stats,
    .spend = sim_spend,
    .event_delay = sim_event_delay,
    .is_simulated = 1,
};
