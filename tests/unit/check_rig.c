/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "check_rig.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "zb/mem.h"
#include "zb/thread.h"
#include "zbt.h"

struct zb_device {
    _Atomic int n_inside;
};

struct zb_stream {
    struct zb_device *dev;
};

static struct zb_signal gate;
static _Atomic int n_launched, has_overlap;

void rig_open_gate(void)
{
    zb_signal_bump(&gate);
}

int rig_n_launched(void)
{
    return n_launched;
}

int rig_has_overlap(void)
{
    return has_overlap;
}

/* ---- the inner backend -------------------------------------------------- */

static void enter(struct zb_device *dev)
{
    if (atomic_fetch_add(&dev->n_inside, 1) > 0) {
        has_overlap = 1;
    }
}

static void leave(struct zb_device *dev)
{
    atomic_fetch_sub(&dev->n_inside, 1);
}

static enum zb_status inner_open(const struct zb_backend_opts *opts,
                                 struct zb_backend **be_out)
{
    struct zb_backend *be = zb_alloc(sizeof(*be));

    if (be == NULL) {
        return ZB_ENOMEM;
    }
    be->ops = &rig_inner_ops;
    be->n_devices = opts->n_devices;
    *be_out = be;
    return ZB_OK;
}

static void inner_close(struct zb_backend *be)
{
    zb_free(be);
}

static enum zb_status inner_device_open(struct zb_backend *be, int index,
                                        struct zb_device **dev_out)
{
    (void)be;
    (void)index;
    *dev_out = zb_alloc(sizeof(**dev_out));
    return *dev_out == NULL ? ZB_ENOMEM : ZB_OK;
}

static void inner_device_close(struct zb_device *dev)
{
    zb_free(dev);
}

static enum zb_status inner_mem_alloc(struct zb_device *dev, size_t bytes,
                                      const char *what, void **ptr_out)
{
    (void)what;
    enter(dev);
    *ptr_out = zb_alloc(bytes);
    leave(dev);
    return *ptr_out == NULL ? ZB_ENOMEM : ZB_OK;
}

static void inner_mem_free(struct zb_device *dev, void *ptr)
{
    enter(dev);
    zb_free(ptr);
    leave(dev);
}

static size_t inner_mem_bytes(const struct zb_device *dev)
{
    (void)dev;
    return 0; /* these tests do not look at it */
}

static enum zb_status inner_stream_new(struct zb_device *dev, const char *name,
                                       struct zb_stream **stream_out)
{
    (void)name;
    *stream_out = zb_alloc(sizeof(**stream_out));
    if (*stream_out == NULL) {
        return ZB_ENOMEM;
    }
    (*stream_out)->dev = dev;
    return ZB_OK;
}

static void inner_stream_free(struct zb_stream *stream)
{
    zb_free(stream);
}

static enum zb_status inner_stream_sync(struct zb_stream *stream)
{
    (void)stream;
    return ZB_OK;
}

static void compute(const struct zb_launch *launch)
{
    if (launch->kernel == ZB_K_fill) {
        const struct zb_k_fill *k = launch->params;
        zb_real *y = k->y;

        for (int64_t i = 0; i < k->n; i++) {
            y[i] = (zb_real)k->value;
        }
    } else if (launch->kernel == ZB_K_copy) {
        const struct zb_k_copy *k = launch->params;

        memcpy(k->y, k->x, (size_t)(k->rows * k->cols * k->elem_bytes));
    } else if (launch->kernel == ZB_K_add) {
        const struct zb_k_add *k = launch->params;
        const zb_real *a = k->a, *b = k->b;
        zb_real *y = k->y;

        for (int64_t i = 0; i < k->n; i++) {
            y[i] = a[i] + b[i];
        }
    }
}

static enum zb_status inner_launch(struct zb_stream *stream,
                                   const struct zb_launch *launch)
{
    enum zb_status st = ZB_OK;

    enter(stream->dev);
    if (strcmp(launch->label, "gate") == 0) {
        st = zb_signal_wait(&gate, 0, NULL);
    } else if (strcmp(launch->label, "broken") == 0) {
        st = zb_fail(ZB_EDEVICE, "it broke");
    } else {
        compute(launch);
        n_launched++;
    }
    leave(stream->dev);
    return st;
}

static enum zb_status inner_copy_in(struct zb_stream *stream, void *dst,
                                    const void *src, size_t bytes,
                                    const char *label)
{
    (void)label;
    enter(stream->dev);
    memcpy(dst, src, bytes);
    leave(stream->dev);
    return ZB_OK;
}

static enum zb_status inner_copy_out(struct zb_stream *stream, void *dst,
                                     const void *src, size_t bytes,
                                     const char *label)
{
    return inner_copy_in(stream, dst, src, bytes, label);
}

const struct zb_backend_ops rig_inner_ops = {
    .name = "rig",
    .open = inner_open,
    .close = inner_close,
    .device_open = inner_device_open,
    .device_close = inner_device_close,
    .mem_alloc = inner_mem_alloc,
    .mem_free = inner_mem_free,
    .mem_bytes = inner_mem_bytes,
    .mem_peak_bytes = inner_mem_bytes,
    .stream_new = inner_stream_new,
    .stream_free = inner_stream_free,
    .stream_sync = inner_stream_sync,
    .launch = inner_launch,
    .copy_in = inner_copy_in,
    .copy_out = inner_copy_out,
};

/* ---- the rig ------------------------------------------------------------ */

static enum zb_status open_device(struct rig *r, int d)
{
    const size_t bytes = RIG_ELEMS * sizeof(zb_real);
    void *x, *y;

    ZB_TRY(r->ops->device_open(r->be, d, &r->dev[d]));
    ZB_TRY(r->ops->stream_new(r->dev[d], "s0", &r->s[d][0]));
    ZB_TRY(r->ops->stream_new(r->dev[d], "s1", &r->s[d][1]));
    ZB_TRY(r->ops->event_new(r->dev[d], &r->ev[d]));
    ZB_TRY(r->ops->mem_alloc(r->dev[d], bytes, "x", &x));
    r->x[d] = x;
    ZB_TRY(r->ops->mem_alloc(r->dev[d], bytes, "y", &y));
    r->y[d] = y;
    return ZB_OK;
}

enum zb_status rig_try_open(struct rig *r, uint64_t seed, int max_delay_us)
{
    const struct zb_backend_opts opts = {.n_devices = RIG_DEVICES,
                                         .threads_per_device = 1,
                                         .seed = seed,
                                         .max_delay_us = max_delay_us};
    enum zb_status st;

    memset(r, 0, sizeof(*r));
    zb_signal_init(&gate);
    n_launched = 0;
    has_overlap = 0;
    ZB_TRY(zb_check_open_over(&rig_inner_ops, &opts, &r->be));
    r->ops = r->be->ops;
    for (int d = 0; d < RIG_DEVICES; d++) {
        st = open_device(r, d);
        if (st != ZB_OK) {
            rig_close(r);
            return st;
        }
    }
    return ZB_OK;
}

void rig_open(struct rig *r, uint64_t seed, int max_delay_us)
{
    ZBT_OK(rig_try_open(r, seed, max_delay_us));
}

void rig_settle(struct rig *r)
{
    for (int d = 0; d < RIG_DEVICES; d++) {
        for (int i = 0; i < RIG_STREAMS; i++) {
            (void)r->ops->stream_sync(r->s[d][i]);
        }
    }
}

size_t rig_close(struct rig *r)
{
    size_t n;

    /* All work ends before any memory goes: the devices use each other's. */
    for (int d = 0; d < RIG_DEVICES; d++) {
        for (int i = 0; i < RIG_STREAMS; i++) {
            r->ops->stream_free(r->s[d][i]);
        }
    }
    for (int d = 0; d < RIG_DEVICES && r->dev[d] != NULL; d++) {
        r->ops->mem_free(r->dev[d], r->y[d]);
        r->ops->mem_free(r->dev[d], r->x[d]);
        r->ops->event_free(r->ev[d]);
        r->ops->device_close(r->dev[d]);
    }
    n = zb_check_reports(r->be);
    r->ops->close(r->be);
    return n;
}

/* ---- launches ----------------------------------------------------------- */

static struct zb_access reads(const zb_real *x, int64_t n)
{
    return (struct zb_access){x, (size_t)n * sizeof(*x), ZB_READ};
}

static struct zb_access writes(const zb_real *y, int64_t n)
{
    return (struct zb_access){y, (size_t)n * sizeof(*y), ZB_WRITE};
}

enum zb_status rig_fill(struct rig *r, struct zb_stream *s, const char *label,
                        zb_real *y, int64_t n, double value)
{
    const struct zb_k_fill k = {.n = n, .value = value, .y = y};
    const struct zb_launch launch = {.kernel = ZB_K_fill,
                                     .label = label,
                                     .params = &k,
                                     .n_access = 1,
                                     .access = {writes(y, n)}};

    return r->ops->launch(s, &launch);
}

enum zb_status rig_copy(struct rig *r, struct zb_stream *s, const char *label,
                        zb_real *y, const zb_real *x, int64_t n)
{
    const struct zb_k_copy k = {
        .rows = 1, .cols = n, .elem_bytes = sizeof(*x), .x = x, .y = y};
    const struct zb_launch launch = {.kernel = ZB_K_copy,
                                     .label = label,
                                     .params = &k,
                                     .n_access = 2,
                                     .access = {writes(y, n), reads(x, n)}};

    return r->ops->launch(s, &launch);
}

enum zb_status rig_add(struct rig *r, struct zb_stream *s, const char *label,
                       zb_real *y, const zb_real *a, const zb_real *b,
                       int64_t n)
{
    const struct zb_k_add k = {.n = n, .a = a, .b = b, .y = y};
    const struct zb_launch launch = {
        .kernel = ZB_K_add,
        .label = label,
        .params = &k,
        .n_access = 3,
        .access = {reads(a, n), reads(b, n), writes(y, n)}};

    return r->ops->launch(s, &launch);
}

enum zb_status rig_stop(struct rig *r, struct zb_stream *s, const char *label)
{
    const struct zb_k_fill k = {.n = 0};
    const struct zb_launch launch = {
        .kernel = ZB_K_fill, .label = label, .params = &k};

    return r->ops->launch(s, &launch);
}

enum zb_status rig_order(struct rig *r, int dev, struct zb_stream *from,
                         struct zb_stream *to)
{
    ZB_TRY(r->ops->event_record(r->ev[dev], from));
    return r->ops->stream_wait(to, r->ev[dev]);
}

int rig_reported(const struct rig *r, const char *a, const char *b,
                 const char *c)
{
    const char *text = zb_check_report_text(r->be, 0);

    if (text != NULL && strstr(text, a) != NULL && strstr(text, b) != NULL &&
        strstr(text, c) != NULL) {
        return 1;
    }
    printf("\n    expected \"%s\", \"%s\", \"%s\" in: %s\n", a, b, c,
           text == NULL ? "(no report)" : text);
    return 0;
}
