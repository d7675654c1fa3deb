/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "backend/check/check_int.h"

#include <string.h>

#include "zb/log.h"
#include "zb/mem.h"

static struct ck_backend *backend_of(struct zb_backend *be)
{
    return (struct ck_backend *)(void *)be;
}

static struct ck_device *device_of(struct zb_device *dev)
{
    return (struct ck_device *)(void *)dev;
}

/* ---- the backend -------------------------------------------------------- */

static enum zb_status new_parts(struct ck_backend *be, int n_devices)
{
    be->devices = zb_alloc_array((size_t)n_devices, sizeof(be->devices[0]));
    be->hosts = zb_alloc_array((size_t)n_devices, sizeof(be->hosts[0]));
    if (be->devices == NULL || be->hosts == NULL) {
        zb_free(be->hosts);
        zb_free(be->devices);
        return ZB_ENOMEM;
    }
    for (int i = 0; i < n_devices; i++) {
        be->devices[i].be = be;
        be->devices[i].index = i;
        pthread_mutex_init(&be->devices[i].run, NULL);
    }
    pthread_mutex_init(&be->mu, NULL);
    zb_ck_map_init(&be->device_map);
    zb_ck_map_init(&be->host_map);
    return ZB_OK;
}

static void free_parts(struct ck_backend *be)
{
    for (int i = 0; i < be->base.n_devices; i++) {
        pthread_mutex_destroy(&be->devices[i].run);
    }
    pthread_mutex_destroy(&be->mu);
    zb_free(be->hosts);
    zb_free(be->devices);
}

enum zb_status zb_check_open_over(const struct zb_backend_ops *inner,
                                  const struct zb_backend_opts *opts,
                                  struct zb_backend **be_out)
{
    struct ck_backend *be;
    enum zb_status st;

    if (opts->n_devices < 1) {
        return zb_fail(ZB_EINVAL, "check: %d devices", opts->n_devices);
    }
    be = zb_alloc(sizeof(*be));
    if (be == NULL) {
        return ZB_ENOMEM;
    }
    be->base.ops = &zb_backend_check_ops;
    be->base.n_devices = opts->n_devices;
    be->iops = inner;
    be->opts = *opts;
    ZB_TRY_GOTO(st, new_parts(be, opts->n_devices), err);
    ZB_TRY_GOTO(st, inner->open(opts, &be->inner), err_parts);
    be->base.affinity = be->inner->affinity;
    *be_out = &be->base;
    return ZB_OK;

err_parts:
    free_parts(be);
err:
    zb_free(be);
    return st;
}

static enum zb_status open_over_cpu(const struct zb_backend_opts *opts,
                                    struct zb_backend **be_out)
{
    return zb_check_open_over(&zb_backend_cpu_ops, opts, be_out);
}

/* What the program, or a failure, left open in the inner backend. */
static void close_inner(struct ck_backend *be)
{
    for (int i = 0; i < be->n_slots; i++) {
        if (be->slots[i]->is_live) {
            zb_ck_stream_stop(be->slots[i]);
        }
    }
    for (struct ck_alloc *a = be->allocs; a != NULL; a = a->next) {
        if (a->is_live || a->is_quarantined) {
            be->iops->mem_free(a->dev->inner, a->ptr);
        }
    }
    /* Last opened, first closed: closing undoes what opening did to a thread
     * that owns several. */
    for (int i = be->base.n_devices - 1; i >= 0; i--) {
        if (be->devices[i].inner != NULL) {
            be->iops->device_close(be->devices[i].inner);
        }
    }
    be->iops->close(be->inner);
}

static void free_lists(struct ck_backend *be)
{
    struct ck_alloc *next_alloc;
    struct ck_event *next_event;

    for (struct ck_alloc *a = be->allocs; a != NULL; a = next_alloc) {
        next_alloc = a->next;
        zb_free(a);
    }
    for (struct ck_event *e = be->events; e != NULL; e = next_event) {
        next_event = e->next;
        zb_free(e);
    }
    for (int i = 0; i < be->n_slots; i++) {
        zb_free(be->slots[i]->queue);
        zb_free(be->slots[i]);
    }
    zb_ck_map_release(&be->device_map);
    zb_ck_map_release(&be->host_map);
    zb_ck_names_release(be);
}

static void check_close(struct zb_backend *base)
{
    struct ck_backend *be = backend_of(base);

    if (be == NULL) {
        return;
    }
    atomic_store_explicit(&be->is_closing, 1, memory_order_release);
    close_inner(be);
    zb_ck_log_reports(be);
    free_lists(be);
    free_parts(be);
    zb_free(be);
}

/* ---- devices ------------------------------------------------------------ */

/* The entry of the calling thread. There is one for each device. Under mu. */
static struct ck_host *claim_host(struct ck_backend *be)
{
    struct ck_host *unused = NULL;

    for (int i = 0; i < be->base.n_devices; i++) {
        struct ck_host *h = &be->hosts[i];

        if (h->n_devices > 0 && pthread_equal(h->id, pthread_self())) {
            h->n_devices++;
            return h;
        }
        if (h->n_devices == 0 && unused == NULL) {
            unused = h;
        }
    }
    ZB_BUG_IF(unused == NULL, "check: more owners than devices");
    memset(unused, 0, sizeof(*unused));
    unused->id = pthread_self();
    unused->n_devices = 1;
    return unused;
}

static enum zb_status check_device_open(struct zb_backend *base, int index,
                                        struct zb_device **dev_out)
{
    struct ck_backend *be = backend_of(base);
    struct ck_device *dev;
    enum zb_status st;
    int was_open;

    if (index < 0 || index >= base->n_devices) {
        return zb_fail(ZB_EINVAL, "check: no device %d of %d", index,
                       base->n_devices);
    }
    ZB_TRY(zb_ck_state(be));
    dev = &be->devices[index];
    pthread_mutex_lock(&be->mu);
    was_open = dev->is_open;
    dev->is_open = 1;
    pthread_mutex_unlock(&be->mu);
    if (was_open) {
        return zb_fail(ZB_EINVAL, "check: device %d is open already", index);
    }
    st = be->iops->device_open(be->inner, index, &dev->inner);
    pthread_mutex_lock(&be->mu);
    if (st == ZB_OK) {
        dev->owner = pthread_self();
        dev->host = claim_host(be);
        dev->n_streams = 0;
        dev->n_live = 0;
    } else {
        dev->is_open = 0;
    }
    pthread_mutex_unlock(&be->mu);
    ZB_TRY(st);
    *dev_out = (struct zb_device *)(void *)dev;
    return ZB_OK;
}

/* Report what is still open on dev. Under mu. */
static void report_left_open(struct ck_device *dev)
{
    struct ck_backend *be = dev->be;

    for (struct ck_alloc *a = be->allocs; a != NULL; a = a->next) {
        if (a->dev == dev && a->is_live) {
            zb_ck_report(be,
                         "check: misuse: device %d closed before mem_free() "
                         "of \"%s\"",
                         dev->index, a->what);
            return;
        }
    }
    if (dev->n_live > 0) {
        zb_ck_report(be,
                     "check: misuse: device %d closed with %d streams or "
                     "events not freed",
                     dev->index, dev->n_live);
    }
}

static void stop_streams(struct ck_device *dev)
{
    struct ck_backend *be = dev->be;

    for (int i = 0; i < ZB_CHECK_MAX_STREAMS; i++) {
        struct ck_stream *s;
        int is_mine;

        pthread_mutex_lock(&be->mu);
        s = be->slots[i];
        is_mine = s != NULL && s->is_live && s->dev == dev;
        pthread_mutex_unlock(&be->mu);
        if (is_mine) {
            zb_ck_stream_stop(s);
        }
    }
}

/* After a report the inner device stays until the backend is closed: other
 * devices may still be at work on its memory. */
static void check_device_close(struct zb_device *device)
{
    struct ck_device *dev = device_of(device);
    struct ck_backend *be;

    if (dev == NULL) {
        return;
    }
    be = dev->be;
    pthread_mutex_lock(&be->mu);
    report_left_open(dev);
    pthread_mutex_unlock(&be->mu);
    stop_streams(dev);
    if (atomic_load(&dev->has_failed) && !dev->is_told) {
        zb_log(ZB_LOG_ERROR, "%s", dev->error_text);
        dev->is_told = 1;
    }
    if (!atomic_load(&be->has_report)) {
        be->iops->device_close(dev->inner);
        dev->inner = NULL;
        atomic_store(&dev->has_failed, 0);
    }
    pthread_mutex_lock(&be->mu);
    dev->host->n_devices--;
    dev->is_open = 0;
    pthread_mutex_unlock(&be->mu);
}

/* ---- memory ------------------------------------------------------------- */

static enum zb_status check_mem_alloc(struct zb_device *device, size_t bytes,
                                      const char *what, void **ptr_out)
{
    struct ck_device *dev = device_of(device);
    struct ck_backend *be = dev->be;
    enum zb_status st;
    void *ptr;

    ZB_TRY(zb_ck_owner(dev, "mem_alloc"));
    ZB_TRY(zb_ck_state(be));
    pthread_mutex_lock(&dev->run);
    st = be->iops->mem_alloc(dev->inner, bytes, what, &ptr);
    pthread_mutex_unlock(&dev->run);
    ZB_TRY(st);
    memset(ptr, 0xff, bytes);
    pthread_mutex_lock(&be->mu);
    st = zb_ck_alloc_add(be, dev, ptr, bytes, what);
    dev->n_live += st == ZB_OK;
    pthread_mutex_unlock(&be->mu);
    if (st != ZB_OK) {
        pthread_mutex_lock(&dev->run);
        be->iops->mem_free(dev->inner, ptr);
        pthread_mutex_unlock(&dev->run);
        return st;
    }
    *ptr_out = ptr;
    return ZB_OK;
}

/* Whether the inner memory can go too. Under mu. */
static int bury(struct ck_device *dev, void *ptr)
{
    struct ck_backend *be = dev->be;
    struct ck_alloc *alloc = zb_ck_alloc_find(be, ptr);

    if (alloc == NULL || alloc->dev != dev) {
        zb_ck_report(be,
                     "check: misuse: mem_free() on device %d of %p, which "
                     "is no allocation of it",
                     dev->index, ptr);
        return 0;
    }
    zb_ck_alloc_bury(be, alloc);
    dev->n_live--;
    alloc->is_quarantined = be->n_reports > 0;
    return !alloc->is_quarantined;
}

static void check_mem_free(struct zb_device *device, void *ptr)
{
    struct ck_device *dev = device_of(device);
    struct ck_backend *be = dev->be;
    int can_go;

    if (ptr == NULL || zb_ck_owner(dev, "mem_free") != ZB_OK) {
        return;
    }
    pthread_mutex_lock(&be->mu);
    can_go = bury(dev, ptr);
    pthread_mutex_unlock(&be->mu);
    if (can_go) {
        pthread_mutex_lock(&dev->run);
        be->iops->mem_free(dev->inner, ptr);
        pthread_mutex_unlock(&dev->run);
    }
}

static size_t check_mem_bytes(const struct zb_device *device)
{
    const struct ck_device *dev = (const struct ck_device *)device;

    return dev->be->iops->mem_bytes(dev->inner);
}

static size_t check_mem_peak_bytes(const struct zb_device *device)
{
    const struct ck_device *dev = (const struct ck_device *)device;

    return dev->be->iops->mem_peak_bytes(dev->inner);
}

static enum zb_status check_host_access(struct zb_device *device,
                                        const void *ptr, size_t bytes,
                                        enum zb_access_mode mode)
{
    struct ck_device *dev = device_of(device);
    struct ck_backend *be = dev->be;
    struct ck_op op = {.me = {.slot = -1, .label = "the host"},
                       .clock = &be->waited_for};
    enum zb_status st;

    ZB_TRY(zb_ck_owner(dev, "host_access"));
    pthread_mutex_lock(&be->mu);
    st = zb_ck_touch_host(be, &op, ptr, bytes, mode);
    pthread_mutex_unlock(&be->mu);
    ZB_TRY(st);
    return zb_ck_state(be);
}

static enum zb_status check_copy_peer(struct zb_stream *stream,
                                      const struct zb_device *to, void *dst,
                                      const void *src, size_t bytes,
                                      const char *label)
{
    (void)to;
    return zb_backend_copy_by_kernel(zb_ck_launch, stream, dst, src, bytes,
                                     label);
}

static int check_gpu_states(struct zb_backend *base, struct zb_gpu_state *state)
{
    struct ck_backend *be = (struct ck_backend *)base;

    return be->iops->gpu_states(be->inner, state);
}

const struct zb_backend_ops zb_backend_check_ops = {
    .name = "check",
    .summary = "cpu with late execution; reports what no event orders",
    .open = open_over_cpu,
    .close = check_close,
    .describe = zb_backend_no_words,
    .find_reach = zb_backend_all_shared,
    .device_open = check_device_open,
    .device_close = check_device_close,
    .mem_alloc = check_mem_alloc,
    .mem_free = check_mem_free,
    .mem_bytes = check_mem_bytes,
    .mem_peak_bytes = check_mem_peak_bytes,
    .host_alloc = zb_backend_plain_alloc,
    .host_free = zb_backend_plain_free,
    .stream_new = zb_ck_stream_new,
    .stream_free = zb_ck_stream_free,
    .product_bytes = zb_backend_no_product_bytes,
    .stream_lend = zb_backend_no_lend,
    .event_new = zb_ck_event_new,
    .event_free = zb_ck_event_free,
    .event_record = zb_ck_event_record,
    .stream_wait = zb_ck_stream_wait,
    .event_sync = zb_ck_event_sync,
    .stream_sync = zb_ck_stream_sync,
    .launch = zb_ck_launch,
    .replay_begin = zb_backend_no_replay,
    .replay_end = zb_backend_no_replay_end,
    .copy_in = zb_ck_copy_in,
    .copy_out = zb_ck_copy_out,
    .copy_peer = check_copy_peer,
    .gpu_states = check_gpu_states,
    .stream_mark = zb_ck_stream_mark,
    .discard = zb_ck_op_discard,
    .host_access = check_host_access,
    .stream_stats = zb_backend_no_stats,
    .spend = zb_backend_no_spend,
    .event_delay = zb_backend_no_delay,
};
