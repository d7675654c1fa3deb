/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "comm/channel_int.h"

#include "zb/mem.h"

static enum zb_status ring_init(struct zb_channel_ring *r, uint32_t n_slots)
{
    atomic_init(&r->head, 0);
    atomic_init(&r->tail, 0);
    zb_signal_init(&r->moved);
    r->slot = zb_alloc_array(n_slots, sizeof(*r->slot));
    return r->slot == NULL ? ZB_ENOMEM : ZB_OK;
}

static void ring_put(struct zb_channel *c, struct zb_channel_ring *r,
                     struct zb_channel_entry e)
{
    uint64_t head = atomic_load_explicit(&r->head, memory_order_relaxed);

    r->slot[head % c->n_slots] = e;
    atomic_store_explicit(&r->head, head + 1, memory_order_release);
    zb_signal_bump(&r->moved);
}

static enum zb_status ring_take(struct zb_channel *c, struct zb_channel_ring *r,
                                struct zb_channel_entry *e_out)
{
    uint64_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);

    for (;;) {
        uint32_t seen = zb_signal_seq(&r->moved);

        if (atomic_load_explicit(&r->head, memory_order_acquire) != tail) {
            break;
        }
        ZB_TRY(zb_signal_wait(&r->moved, seen, c->ab));
    }
    *e_out = r->slot[tail % c->n_slots];
    atomic_store_explicit(&r->tail, tail + 1, memory_order_release);
    return ZB_OK;
}

enum zb_status zb_channel_new(const struct zb_channel_opts *opts,
                              const struct zb_abort *ab,
                              struct zb_channel **c_out)
{
    struct zb_channel *c = zb_alloc(sizeof(*c));
    enum zb_status st = ZB_ENOMEM;

    if (c == NULL) {
        return ZB_ENOMEM;
    }
    c->opts = *opts;
    c->ab = ab;
    c->n_slots = (uint32_t)opts->n_buffers + 1;
    c->msg = zb_alloc_array((size_t)opts->n_buffers, sizeof(*c->msg));
    c->meta = zb_alloc_array(c->n_slots, sizeof(*c->meta));
    c->staged = zb_alloc_array((size_t)opts->n_staged + 1, sizeof(*c->staged));
    c->arrived = zb_alloc_array((size_t)opts->n_buffers, sizeof(*c->arrived));
    if (c->msg == NULL || c->meta == NULL || c->staged == NULL ||
        c->arrived == NULL) {
        goto err;
    }
    ZB_TRY_GOTO(st, zb_channel_ends_init(c), err);
    ZB_TRY_GOTO(st, ring_init(&c->full, c->n_slots), err);
    ZB_TRY_GOTO(st, ring_init(&c->empty, c->n_slots), err);
    for (int i = 0; i < opts->n_buffers; i++) {
        c->msg[i].index = i;
        if (i < opts->n_staged) {
            c->staged[c->n_staged_free++] = i;
        } else {
            ring_put(c, &c->empty, (struct zb_channel_entry){.msg = i});
        }
    }
    *c_out = c;
    return ZB_OK;
err:
    zb_channel_free(c);
    return st;
}

void zb_channel_free(struct zb_channel *c)
{
    if (c == NULL) {
        return;
    }
    zb_channel_ends_release(c);
    zb_free(c->empty.slot);
    zb_free(c->full.slot);
    zb_free(c->arrived);
    zb_free(c->staged);
    zb_free(c->meta);
    zb_free(c->msg);
    zb_free(c);
}

/* Who completes what is in a buffer, and who reads it last: the sender its own,
 * and what it copies or lends; the receiver what comes over a link. */
static int sender_fills(const struct zb_channel *c, int i)
{
    return i < c->opts.n_staged || !zb_channel_is_linked(c);
}

enum zb_status zb_channel_join_sender(struct zb_channel *c,
                                      struct zb_device *dev)
{
    for (int i = 0; i < c->opts.n_buffers; i++) {
        if (sender_fills(c, i)) {
            ZB_TRY(c->opts.ops->event_new(dev, &c->msg[i].filled));
        }
        if (i < c->opts.n_staged) {
            ZB_TRY(c->opts.ops->event_new(dev, &c->msg[i].free));
        }
    }
    if (c->opts.n_staged == 0) {
        return ZB_OK;
    }
    return c->opts.ops->stream_new(
        dev, "send",
        zb_channel_is_linked(c) ? &c->end[ZB_SENDER].stream : &c->copies);
}

/* Buffers in host memory begin at addresses that are as good for copies as
 * those of devices. */
#define HOST_ALIGN ((size_t)256)

static size_t host_stride(size_t bytes)
{
    return (bytes + HOST_ALIGN - 1) / HOST_ALIGN * HOST_ALIGN;
}

size_t zb_channel_host_bytes(size_t bytes, int n)
{
    return (size_t)n * host_stride(bytes);
}

static int is_via_host(const struct zb_channel *c)
{
    return c->opts.via_host != NULL && c->opts.n_staged > 0;
}

static enum zb_status join_via_host(struct zb_channel *c, struct zb_device *dev)
{
    const struct zb_backend_ops *ops = c->opts.ops;
    void *host;

    ZB_TRY(ops->host_alloc(
        c->opts.via_host,
        zb_channel_host_bytes(c->opts.bytes,
                              c->opts.n_buffers - c->opts.n_staged),
        c->opts.name, &host));
    c->host = host;
    for (int i = c->opts.n_staged; i < c->opts.n_buffers; i++) {
        ZB_TRY(ops->event_new(dev, &c->arrived[i]));
    }
    return ops->stream_new(dev, "receive", &c->arrivals);
}

enum zb_status zb_channel_join_receiver(struct zb_channel *c,
                                        struct zb_device *dev)
{
    c->receiver = dev;
    for (int i = c->opts.n_staged; i < c->opts.n_buffers; i++) {
        if (!sender_fills(c, i)) {
            ZB_TRY(c->opts.ops->event_new(dev, &c->msg[i].filled));
        }
        ZB_TRY(c->opts.ops->event_new(dev, &c->msg[i].free));
    }
    if (zb_channel_is_linked(c)) {
        return c->opts.ops->stream_new(dev, "receive",
                                       &c->end[ZB_RECEIVER].stream);
    }
    return is_via_host(c) ? join_via_host(c, dev) : ZB_OK;
}

void zb_channel_give_memory(struct zb_channel *c, int first, int n, void *ptr,
                            size_t stride)
{
    for (int i = 0; i < n && c->opts.bytes > 0; i++) {
        c->msg[first + i].ptr = (char *)ptr + (size_t)i * stride;
    }
}

static void free_event(struct zb_channel *c, struct zb_event **event)
{
    if (*event != NULL) {
        c->opts.ops->event_free(*event);
        *event = NULL;
    }
}

static void free_stream(struct zb_channel *c, struct zb_stream **stream)
{
    if (*stream != NULL) {
        c->opts.ops->stream_free(*stream);
        *stream = NULL;
    }
}

void zb_channel_end_sender(struct zb_channel *c)
{
    free_stream(c, &c->copies);
}

void zb_channel_end_receiver(struct zb_channel *c)
{
    free_stream(c, &c->arrivals);
}

void zb_channel_leave_sender(struct zb_channel *c)
{
    zb_channel_end_sender(c);
    zb_channel_close_link(c, ZB_SENDER);
    free_stream(c, &c->end[ZB_SENDER].stream);
    for (int i = 0; i < c->opts.n_buffers; i++) {
        if (sender_fills(c, i)) {
            free_event(c, &c->msg[i].filled);
        }
        if (i < c->opts.n_staged) {
            free_event(c, &c->msg[i].free);
        }
    }
}

void zb_channel_leave_receiver(struct zb_channel *c)
{
    zb_channel_end_receiver(c);
    zb_channel_close_link(c, ZB_RECEIVER);
    free_stream(c, &c->end[ZB_RECEIVER].stream);
    for (int i = c->opts.n_staged; i < c->opts.n_buffers; i++) {
        if (!sender_fills(c, i)) {
            free_event(c, &c->msg[i].filled);
        }
        free_event(c, &c->msg[i].free);
        free_event(c, &c->arrived[i]);
    }
    if (c->host != NULL) {
        c->opts.ops->host_free(c->opts.via_host, c->host);
        c->host = NULL;
    }
}

/* ---- sender -------------------------------------------------------------- */

static enum zb_status take_staged(struct zb_channel *c, int *msg_out)
{
    if (c->n_staged_free == 0) {
        return zb_fail(ZB_EINVAL, "%s: all %d buffers of the sender are in use",
                       c->opts.name, c->opts.n_staged);
    }
    *msg_out = c->staged[--c->n_staged_free];
    return ZB_OK;
}

enum zb_status zb_channel_acquire(struct zb_channel *c,
                                  struct zb_stream *stream,
                                  struct zb_msg **msg_out)
{
    struct zb_channel_entry e = {.msg = 0};

    if (c->opts.n_staged > 0) {
        ZB_TRY(take_staged(c, &e.msg));
    } else {
        ZB_TRY(ring_take(c, &c->empty, &e));
    }
    *msg_out = &c->msg[e.msg];
    return c->opts.ops->stream_wait(stream, c->msg[e.msg].free);
}

enum zb_status zb_channel_filled(struct zb_channel *c, struct zb_msg *msg,
                                 struct zb_stream *stream)
{
    ZB_TRY(c->opts.ops->event_record(msg->filled, stream));
    if (c->opts.latency_ns > 0 && c->opts.n_staged == 0) {
        c->opts.ops->event_delay(msg->filled, c->opts.latency_ns);
    }
    return ZB_OK;
}

int zb_channel_n_parts(const struct zb_channel *c)
{
    return c->opts.n_parts > 0 ? c->opts.n_parts : 1;
}

size_t zb_channel_part(const struct zb_channel *c, int i,
                       const struct zb_bind *bind, size_t *offset_out)
{
    const struct zb_part *p = &c->opts.part[i];
    struct zb_shape shape;

    if (c->opts.n_parts == 0) {
        *offset_out = 0;
        return c->opts.bytes;
    }
    shape = zb_shape_bind(&p->shape, bind);
    *offset_out = p->offset;
    return (size_t)zb_shape_elems(&shape) * zb_dtype_bytes(p->dtype);
}

/* Bytes [at, at + bytes) of a message on one part of its way; `from` is NULL
 * where it comes from the host. */
typedef enum zb_status (*move_fn)(struct zb_channel *c,
                                  const struct zb_msg *from,
                                  const struct zb_msg *to, size_t at,
                                  size_t bytes);

static char *host_of(const struct zb_channel *c, const struct zb_msg *msg)
{
    return c->host +
           (size_t)(msg->index - c->opts.n_staged) * host_stride(c->opts.bytes);
}

static enum zb_status copy_over(struct zb_channel *c, const struct zb_msg *from,
                                const struct zb_msg *to, size_t at,
                                size_t bytes)
{
    return c->opts.ops->copy_peer(c->copies, c->receiver, (char *)to->ptr + at,
                                  (const char *)from->ptr + at, bytes,
                                  "copy of a message");
}

static enum zb_status copy_out(struct zb_channel *c, const struct zb_msg *from,
                               const struct zb_msg *to, size_t at, size_t bytes)
{
    return c->opts.ops->copy_out(c->copies, host_of(c, to) + at,
                                 (const char *)from->ptr + at, bytes,
                                 "copy of a message to the host");
}

static enum zb_status copy_in(struct zb_channel *c, const struct zb_msg *from,
                              const struct zb_msg *to, size_t at, size_t bytes)
{
    (void)from;
    return c->opts.ops->copy_in(c->arrivals, (char *)to->ptr + at,
                                host_of(c, to) + at, bytes,
                                "copy of a message from the host");
}

static enum zb_status move_parts(struct zb_channel *c, move_fn move,
                                 const struct zb_msg *from,
                                 const struct zb_msg *to,
                                 const struct zb_bind *bind)
{
    for (int i = 0; i < zb_channel_n_parts(c); i++) {
        size_t at, bytes = zb_channel_part(c, i, bind, &at);

        if (bytes > 0) {
            ZB_TRY(move(c, from, to, at, bytes));
        }
    }
    return ZB_OK;
}

static enum zb_status copy_to(struct zb_channel *c, struct zb_msg *from,
                              struct zb_msg *to, const struct zb_bind *bind)
{
    const struct zb_backend_ops *ops = c->opts.ops;

    ZB_TRY(ops->stream_wait(c->copies, from->filled));
    ZB_TRY(ops->stream_wait(c->copies, to->free));
    ZB_TRY(
        move_parts(c, is_via_host(c) ? copy_out : copy_over, from, to, bind));
    ZB_TRY(ops->event_record(to->filled, c->copies));
    if (c->opts.latency_ns > 0) {
        ops->event_delay(to->filled, c->opts.latency_ns);
    }
    return ops->event_record(from->free, c->copies);
}

/* Copy a message of the sender into a free one of the receiver, or into host
 * memory that belongs to it, or send it there. */
static enum zb_status hand_over(struct zb_channel *c, struct zb_msg *from,
                                const struct zb_bind *bind,
                                struct zb_msg **to_out)
{
    struct zb_msg *to;
    struct zb_channel_entry e;

    ZB_TRY(ring_take(c, &c->empty, &e));
    to = &c->msg[e.msg];
    if (zb_channel_is_linked(c)) {
        ZB_TRY(zb_channel_pass(c, ZB_SENDER, from, bind));
    } else {
        ZB_TRY(copy_to(c, from, to, bind));
    }
    c->staged[c->n_staged_free++] = from->index;
    *to_out = to;
    return ZB_OK;
}

static int bind_equal(const struct zb_bind *a, const struct zb_bind *b)
{
    for (int i = 0; i < ZB_N_SYMS; i++) {
        if (a->value[i] != b->value[i]) {
            return 0;
        }
    }
    return 1;
}

enum zb_status zb_channel_send(struct zb_channel *c, struct zb_msg *msg, int mb,
                               const struct zb_bind *bind)
{
    int is_known = c->opts.has_meta_cache && c->sent_version > 0 &&
                   bind_equal(bind, &c->sent);

    if (c->opts.n_staged > 0) {
        ZB_TRY(hand_over(c, msg, bind, &msg));
    }
    if (!is_known) {
        c->sent_version++;
        c->sent = *bind;
        c->meta[c->sent_version % c->n_slots] = *bind;
        c->n_meta_writes++;
    }
    c->n_messages++;
    ring_put(c, &c->full,
             (struct zb_channel_entry){
                 .msg = msg->index, .mb = mb, .meta_version = c->sent_version});
    return ZB_OK;
}

/* The rest of the way. Nobody reads what was in the buffer before: the sender
 * has waited for that. */
static enum zb_status land(struct zb_channel *c, const struct zb_msg *msg,
                           struct zb_stream *stream)
{
    const struct zb_backend_ops *ops = c->opts.ops;

    ZB_TRY(ops->stream_wait(c->arrivals, msg->filled));
    ZB_TRY(move_parts(c, copy_in, NULL, msg, &c->seen));
    ZB_TRY(ops->event_record(c->arrived[msg->index], c->arrivals));
    return ops->stream_wait(stream, c->arrived[msg->index]);
}

enum zb_status zb_channel_recv(struct zb_channel *c, int mb,
                               struct zb_stream *stream,
                               struct zb_msg **msg_out,
                               struct zb_bind *bind_out)
{
    struct zb_channel_entry e;

    ZB_TRY(ring_take(c, &c->full, &e));
    if (e.mb != mb) {
        return zb_fail(ZB_EINVAL, "%s: expected microbatch %d, but %d was sent",
                       c->opts.name, mb, e.mb);
    }
    if (e.meta_version != c->seen_version) {
        c->seen = c->meta[e.meta_version % c->n_slots];
        c->seen_version = e.meta_version;
        c->n_meta_reads++;
    }
    *bind_out = c->seen;
    *msg_out = &c->msg[e.msg];
    if (zb_channel_is_linked(c)) {
        ZB_TRY(zb_channel_pass(c, ZB_RECEIVER, *msg_out, bind_out));
    }
    return is_via_host(c)
               ? land(c, *msg_out, stream)
               : c->opts.ops->stream_wait(stream, (*msg_out)->filled);
}

enum zb_status zb_channel_release(struct zb_channel *c, struct zb_msg *msg,
                                  struct zb_stream *stream)
{
    ZB_TRY(c->opts.ops->event_record(msg->free, stream));
    ring_put(c, &c->empty, (struct zb_channel_entry){.msg = msg->index});
    return ZB_OK;
}

const char *zb_channel_name(const struct zb_channel *c)
{
    return c->opts.name;
}

struct zb_channel_stats zb_channel_stats(const struct zb_channel *c)
{
    return (struct zb_channel_stats){.n_messages = c->n_messages,
                                     .n_meta_writes = c->n_meta_writes,
                                     .n_meta_reads = c->n_meta_reads};
}
