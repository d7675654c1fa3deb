/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "backend/check/check_int.h"

#include <string.h>

#include "zb/mem.h"

static const size_t param_bytes[ZB_N_KERNELS] = {
#define ZB_X(name) [ZB_K_##name] = sizeof(struct zb_k_##name),
    ZB_KERNEL_MAP(ZB_X)
#undef ZB_X
};

static struct ck_device *device_of(struct zb_device *dev)
{
    return (struct ck_device *)(void *)dev;
}

static struct ck_stream *stream_of(struct zb_stream *stream)
{
    return (struct ck_stream *)(void *)stream;
}

static struct ck_event *event_of(struct zb_event *event)
{
    return (struct ck_event *)(void *)event;
}

/* ---- objects ------------------------------------------------------------ */

static struct ck_stream *new_slot(struct ck_backend *be)
{
    struct ck_stream *s;

    if (be->n_slots == ZB_CHECK_MAX_STREAMS) {
        zb_fail(ZB_EUNSUPPORTED, "check: more than %d streams at a time",
                ZB_CHECK_MAX_STREAMS);
        return NULL;
    }
    s = zb_alloc(sizeof(*s));
    if (s == NULL) {
        return NULL;
    }
    s->queue = zb_alloc_array(CK_QUEUE_LEN, sizeof(s->queue[0]));
    if (s->queue == NULL) {
        zb_free(s);
        return NULL;
    }
    s->be = be;
    s->slot = be->n_slots;
    zb_signal_init(&s->pushed);
    zb_signal_init(&s->done);
    be->slots[be->n_slots++] = s;
    return s;
}

/* A slot that is not in use, marked as used. Under mu. */
static struct ck_stream *claim_slot(struct ck_device *dev, const char *name)
{
    struct ck_backend *be = dev->be;
    const char *kept = zb_ck_intern(be, name);
    const char *no_node = zb_ck_intern(be, "");
    struct ck_stream *s = NULL;

    if (kept == NULL || no_node == NULL) {
        return NULL;
    }
    for (int i = 0; i < be->n_slots && s == NULL; i++) {
        s = be->slots[i]->is_live ? NULL : be->slots[i];
    }
    s = s == NULL ? new_slot(be) : s;
    if (s == NULL) {
        return NULL;
    }
    s->is_live = 1;
    s->dev = dev;
    s->name = kept;
    s->node = no_node;
    s->rng = zb_ck_seed(be->opts.seed, dev->index, dev->n_streams);
    dev->n_streams++;
    dev->n_live++;
    return s;
}

/* Give a slot back; its operations are done. */
static void leave_slot(struct ck_stream *s)
{
    struct ck_backend *be = s->be;
    struct ck_device *dev = s->dev;

    pthread_mutex_lock(&be->mu);
    s->is_live = 0;
    s->inner = NULL;
    zb_ck_join(be, &dev->host->clock, &s->clock);
    zb_ck_join(be, &be->waited_for, &s->clock);
    dev->n_live--;
    pthread_mutex_unlock(&be->mu);
}

enum zb_status zb_ck_stream_new(struct zb_device *device, const char *name,
                                struct zb_stream **stream_out)
{
    struct ck_device *dev = device_of(device);
    struct ck_backend *be = dev->be;
    struct ck_stream *s;
    enum zb_status st;

    ZB_TRY(zb_ck_owner(dev, "stream_new"));
    ZB_TRY(zb_ck_state(be));
    pthread_mutex_lock(&be->mu);
    s = claim_slot(dev, name);
    pthread_mutex_unlock(&be->mu);
    if (s == NULL) {
        return ZB_ENOMEM;
    }
    pthread_mutex_lock(&dev->run);
    st = be->iops->stream_new(dev->inner, name, &s->inner);
    pthread_mutex_unlock(&dev->run);
    ZB_TRY_GOTO(st, st, err_slot);
    atomic_store(&s->must_stop, 0);
    ZB_TRY_GOTO(st, zb_thread_start(&s->thread, name, zb_ck_stream_main, s),
                err_inner);
    *stream_out = (struct zb_stream *)(void *)s;
    return ZB_OK;

err_inner:
    pthread_mutex_lock(&dev->run);
    be->iops->stream_free(s->inner);
    pthread_mutex_unlock(&dev->run);
err_slot:
    leave_slot(s);
    return st;
}

void zb_ck_stream_stop(struct ck_stream *s)
{
    struct ck_device *dev = s->dev;

    atomic_store_explicit(&s->must_stop, 1, memory_order_release);
    zb_signal_bump(&s->pushed);
    zb_thread_join(&s->thread);
    pthread_mutex_lock(&dev->run);
    s->be->iops->stream_free(s->inner);
    pthread_mutex_unlock(&dev->run);
    leave_slot(s);
}

/* The stream is in use and the caller may use it. */
static enum zb_status check_stream(struct ck_stream *s, const char *call)
{
    struct ck_backend *be = s->be;

    pthread_mutex_lock(&be->mu);
    if (!s->is_live) {
        zb_ck_report(be,
                     "check: misuse: %s() on stream \"%s\" after "
                     "stream_free()",
                     call, s->name);
        pthread_mutex_unlock(&be->mu);
        return zb_ck_state(be);
    }
    pthread_mutex_unlock(&be->mu);
    return zb_ck_owner(s->dev, call);
}

void zb_ck_stream_free(struct zb_stream *stream)
{
    struct ck_stream *s = stream_of(stream);

    if (s != NULL && check_stream(s, "stream_free") == ZB_OK) {
        zb_ck_stream_stop(s);
    }
}

static enum zb_status check_event(struct ck_event *ev, const char *call)
{
    struct ck_backend *be = ev->dev->be;

    pthread_mutex_lock(&be->mu);
    if (!ev->is_live) {
        zb_ck_report(be,
                     "check: misuse: %s() with an event of device %d after "
                     "event_free()",
                     call, ev->dev->index);
        pthread_mutex_unlock(&be->mu);
        return zb_ck_state(be);
    }
    pthread_mutex_unlock(&be->mu);
    return ZB_OK;
}

enum zb_status zb_ck_event_new(struct zb_device *device,
                               struct zb_event **event_out)
{
    struct ck_device *dev = device_of(device);
    struct ck_backend *be = dev->be;
    struct ck_event *ev;

    ZB_TRY(zb_ck_owner(dev, "event_new"));
    ZB_TRY(zb_ck_state(be));
    ev = zb_alloc(sizeof(*ev));
    if (ev == NULL) {
        return ZB_ENOMEM;
    }
    ev->dev = dev;
    ev->is_live = 1;
    pthread_mutex_lock(&be->mu);
    ev->next = be->events;
    be->events = ev;
    dev->n_live++;
    pthread_mutex_unlock(&be->mu);
    *event_out = (struct zb_event *)(void *)ev;
    return ZB_OK;
}

void zb_ck_event_free(struct zb_event *event)
{
    struct ck_event *ev = event_of(event);

    if (ev == NULL || check_event(ev, "event_free") != ZB_OK ||
        zb_ck_owner(ev->dev, "event_free") != ZB_OK) {
        return;
    }
    pthread_mutex_lock(&ev->dev->be->mu);
    ev->is_live = 0;
    ev->dev->n_live--;
    pthread_mutex_unlock(&ev->dev->be->mu);
}

/* ---- the queue ---------------------------------------------------------- */

/* The next free entry, after waiting for one. The queue moves on by itself:
 * what its operations wait for was enqueued before them. */
static struct ck_entry *next_entry(struct ck_stream *s, enum ck_op_kind kind,
                                   const struct ck_mark *me)
{
    uint64_t n = atomic_load_explicit(&s->n_pushed, memory_order_relaxed);
    struct ck_entry *e = &s->queue[n % CK_QUEUE_LEN];

    if (n >= CK_QUEUE_LEN) {
        zb_ck_wait_done(s, n - CK_QUEUE_LEN + 1);
    }
    e->kind = kind;
    e->must_fail = 0;
    e->me = *me;
    return e;
}

static void push(struct ck_stream *s)
{
    atomic_fetch_add_explicit(&s->n_pushed, 1, memory_order_release);
    zb_signal_bump(&s->pushed);
}

static uint64_t n_pushed(const struct ck_stream *s)
{
    return atomic_load_explicit(&s->n_pushed, memory_order_relaxed);
}

/* Start the bookkeeping of an operation. Under mu. */
static enum zb_status begin_op(struct ck_stream *s, const char *label,
                               struct ck_op *op_out)
{
    const char *kept = zb_ck_intern(s->be, label);

    if (kept == NULL) {
        return ZB_ENOMEM;
    }
    s->epoch++;
    s->clock.at[s->slot] = s->epoch;
    zb_ck_join(s->be, &s->clock, &s->dev->host->clock);
    *op_out = (struct ck_op){.me = {.slot = s->slot,
                                    .device = s->dev->index,
                                    .epoch = s->epoch,
                                    .label = kept,
                                    .node = s->node,
                                    .stream = s->name},
                             .clock = &s->clock};
    return ZB_OK;
}

/* ---- events ------------------------------------------------------------- */

enum zb_status zb_ck_event_record(struct zb_event *event,
                                  struct zb_stream *stream)
{
    struct ck_event *ev = event_of(event);
    struct ck_stream *s = stream_of(stream);
    struct ck_backend *be = s->be;

    ZB_TRY(check_event(ev, "event_record"));
    ZB_TRY(zb_ck_owner(ev->dev, "event_record"));
    ZB_TRY(check_stream(s, "event_record"));
    pthread_mutex_lock(&be->mu);
    if (ev->dev != s->dev) {
        zb_ck_report(be,
                     "check: misuse: an event of device %d recorded on "
                     "stream \"%s\" of device %d",
                     ev->dev->index, s->name, s->dev->index);
    }
    zb_ck_join(be, &s->clock, &s->dev->host->clock);
    ev->clock = s->clock;
    ev->stream = s;
    ev->n = n_pushed(s);
    pthread_mutex_unlock(&be->mu);
    return zb_ck_state(be);
}

/* What a wait means, taken down when it is called: recording the event again
 * later does not change it. 0: there is nothing to wait for. Under mu. */
static int capture_wait(struct ck_stream *s, struct ck_event *ev,
                        struct ck_stream **target_out, uint64_t *n_out)
{
    struct ck_backend *be = s->be;

    be->n_waits++;
    if (zb_ck_fault_hits(be, &be->drop_wait, s->dev->index, s->node) ||
        ev->stream == NULL) {
        return 0;
    }
    zb_ck_join(be, &s->clock, &ev->clock);
    *target_out = ev->stream;
    *n_out = ev->n;
    return 1;
}

enum zb_status zb_ck_stream_wait(struct zb_stream *stream,
                                 struct zb_event *event)
{
    struct ck_event *ev = event_of(event);
    struct ck_stream *s = stream_of(stream);
    const struct ck_mark nobody = {.slot = -1, .label = "wait"};
    struct ck_stream *target = NULL;
    struct ck_entry *e;
    uint64_t n = 0;
    int must_wait;

    ZB_TRY(check_stream(s, "stream_wait"));
    ZB_TRY(check_event(ev, "stream_wait"));
    pthread_mutex_lock(&s->be->mu);
    must_wait = capture_wait(s, ev, &target, &n);
    pthread_mutex_unlock(&s->be->mu);
    ZB_TRY(zb_ck_state(s->be));
    if (must_wait) {
        e = next_entry(s, CK_WAIT, &nobody);
        e->wait_for = target;
        e->wait_n = n;
        push(s);
    }
    return ZB_OK;
}

/* The host has waited for everything that `clock` covers on dev. */
static enum zb_status after_sync(struct ck_device *dev,
                                 const struct ck_clock *clock)
{
    struct ck_backend *be = dev->be;

    pthread_mutex_lock(&be->mu);
    zb_ck_join(be, &dev->host->clock, clock);
    zb_ck_join(be, &be->waited_for, clock);
    pthread_mutex_unlock(&be->mu);
    ZB_TRY(zb_ck_state(be));
    if (atomic_load_explicit(&dev->has_failed, memory_order_acquire)) {
        dev->is_told = 1;
        return zb_fail(ZB_EDEVICE, "%s", dev->error_text);
    }
    return ZB_OK;
}

enum zb_status zb_ck_event_sync(struct zb_event *event)
{
    struct ck_event *ev = event_of(event);

    ZB_TRY(check_event(ev, "event_sync"));
    ZB_TRY(zb_ck_owner(ev->dev, "event_sync"));
    /* Only the owner writes these fields. */
    if (ev->stream != NULL) {
        zb_ck_wait_done(ev->stream, ev->n);
    }
    return after_sync(ev->dev, &ev->clock);
}

enum zb_status zb_ck_stream_sync(struct zb_stream *stream)
{
    struct ck_stream *s = stream_of(stream);

    ZB_TRY(check_stream(s, "stream_sync"));
    zb_ck_wait_done(s, n_pushed(s));
    return after_sync(s->dev, &s->clock);
}

/* ---- operations --------------------------------------------------------- */

static enum zb_status check_launch(const struct zb_launch *launch)
{
    if (launch->label == NULL) {
        return zb_fail(ZB_EINVAL, "check: a launch without label");
    }
    if ((int)launch->kernel < 0 || launch->kernel >= ZB_N_KERNELS) {
        return zb_fail(ZB_EINVAL, "check: launch \"%s\": no kernel %d",
                       launch->label, (int)launch->kernel);
    }
    if (launch->params == NULL || launch->n_access < 0 ||
        launch->n_access > ZB_MAX_ACCESS) {
        return zb_fail(ZB_EINVAL, "check: launch \"%s\": %s", launch->label,
                       launch->params == NULL ? "no parameters"
                                              : "bad number of accesses");
    }
    for (int i = 0; i < launch->n_access; i++) {
        if (launch->access[i].mode < ZB_READ ||
            launch->access[i].mode > ZB_READ_WRITE) {
            return zb_fail(ZB_EINVAL,
                           "check: launch \"%s\": access %d has no "
                           "mode",
                           launch->label, i);
        }
    }
    return ZB_OK;
}

/* All reads come before all writes: a kernel that writes a range does not make
 * up for reading it unwritten. Under mu. */
static enum zb_status note_launch(struct ck_stream *s,
                                  const struct zb_launch *launch,
                                  struct ck_mark *me_out, int *must_fail_out)
{
    struct ck_backend *be = s->be;
    struct ck_op op;

    ZB_TRY(begin_op(s, launch->label, &op));
    for (int pass = ZB_READ; pass <= ZB_WRITE; pass++) {
        for (int i = 0; i < launch->n_access; i++) {
            const struct zb_access *a = &launch->access[i];

            if (((int)a->mode & pass) != 0) {
                ZB_TRY(zb_ck_touch(be, &op, a->ptr, a->bytes,
                                   (enum zb_access_mode)pass));
            }
        }
    }
    be->n_launches++;
    *me_out = op.me;
    *must_fail_out =
        zb_ck_fault_hits(be, &be->fail_launch, s->dev->index, s->node);
    return ZB_OK;
}

enum zb_status zb_ck_launch(struct zb_stream *stream,
                            const struct zb_launch *launch)
{
    struct ck_stream *s = stream_of(stream);
    struct ck_entry *e;
    struct ck_mark me;
    enum zb_status st;
    int must_fail;

    ZB_TRY(check_stream(s, "launch"));
    ZB_TRY(check_launch(launch));
    pthread_mutex_lock(&s->be->mu);
    st = note_launch(s, launch, &me, &must_fail);
    pthread_mutex_unlock(&s->be->mu);
    ZB_TRY(st);
    ZB_TRY(zb_ck_state(s->be));
    e = next_entry(s, CK_LAUNCH, &me);
    e->must_fail = must_fail;
    memcpy(&e->params, launch->params, param_bytes[launch->kernel]);
    e->launch = *launch;
    e->launch.params = &e->params;
    e->launch.label = me.label;
    push(s);
    return ZB_OK;
}

/* One copy between host and device. */
struct copy {
    enum ck_op_kind kind;
    void *dst;
    const void *src;
    size_t bytes;
    const char *label;
};

/* Under mu. */
static enum zb_status note_copy(struct ck_stream *s, const struct copy *c,
                                struct ck_mark *me_out)
{
    struct ck_op op;

    ZB_TRY(begin_op(s, c->label, &op));
    *me_out = op.me;
    if (c->kind == CK_COPY_IN) {
        ZB_TRY(zb_ck_touch_host(s->be, &op, c->src, c->bytes, ZB_READ));
        return zb_ck_touch(s->be, &op, c->dst, c->bytes, ZB_WRITE);
    }
    ZB_TRY(zb_ck_touch(s->be, &op, c->src, c->bytes, ZB_READ));
    return zb_ck_touch_host(s->be, &op, c->dst, c->bytes, ZB_WRITE);
}

static enum zb_status enqueue_copy(struct ck_stream *s, const struct copy *c)
{
    struct ck_entry *e;
    struct ck_mark me;
    enum zb_status st;
    int is_there;

    pthread_mutex_lock(&s->be->mu);
    is_there = c->kind == CK_COPY_IN &&
               !zb_ck_is_host_pending(s->be, c->src, c->bytes);
    st = note_copy(s, c, &me);
    pthread_mutex_unlock(&s->be->mu);
    ZB_TRY(st);
    ZB_TRY(zb_ck_state(s->be));
    e = next_entry(s, c->kind, &me);
    e->dst = c->dst;
    e->src = c->src;
    e->bytes = c->bytes;
    e->has_checksum = is_there;
    if (is_there) {
        e->checksum = zb_ck_checksum(c->src, c->bytes);
    }
    push(s);
    return ZB_OK;
}

enum zb_status zb_ck_copy_in(struct zb_stream *stream, void *dst,
                             const void *host_src, size_t bytes,
                             const char *label)
{
    const struct copy c = {CK_COPY_IN, dst, host_src, bytes, label};

    ZB_TRY(check_stream(stream_of(stream), "copy_in"));
    return enqueue_copy(stream_of(stream), &c);
}

enum zb_status zb_ck_copy_out(struct zb_stream *stream, void *host_dst,
                              const void *src, size_t bytes, const char *label)
{
    const struct copy c = {CK_COPY_OUT, host_dst, src, bytes, label};

    ZB_TRY(check_stream(stream_of(stream), "copy_out"));
    return enqueue_copy(stream_of(stream), &c);
}

enum zb_status zb_ck_op_discard(struct zb_stream *stream, void *ptr,
                                size_t bytes)
{
    struct ck_stream *s = stream_of(stream);
    struct ck_entry *e;
    struct ck_op op;
    enum zb_status st;

    ZB_TRY(check_stream(s, "discard"));
    pthread_mutex_lock(&s->be->mu);
    st = begin_op(s, "discard", &op);
    if (st == ZB_OK) {
        st = zb_ck_discard(s->be, &op, ptr, bytes);
    }
    pthread_mutex_unlock(&s->be->mu);
    ZB_TRY(st);
    ZB_TRY(zb_ck_state(s->be));
    e = next_entry(s, CK_DISCARD, &op.me);
    e->dst = ptr;
    e->bytes = bytes;
    push(s);
    return ZB_OK;
}

void zb_ck_stream_mark(struct zb_stream *stream, const char *node)
{
    struct ck_stream *s = stream_of(stream);
    const char *kept;

    if (check_stream(s, "stream_mark") != ZB_OK) {
        return;
    }
    pthread_mutex_lock(&s->be->mu);
    kept = zb_ck_intern(s->be, node);
    /* Without memory the old name stays: the next call that needs memory
     * reports that. */
    s->node = kept == NULL ? s->node : kept;
    pthread_mutex_unlock(&s->be->mu);
}
