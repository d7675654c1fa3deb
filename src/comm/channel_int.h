/* SPDX-License-Identifier: MIT
 *
 * Inside of a channel. Parts: channel.c (the pool, sizes, copies),
 * channel_link.c (messages over links).
 */
#ifndef ZB_CHANNEL_INT_H
#define ZB_CHANNEL_INT_H

#include <stdatomic.h>

#include "comm/link_int.h"
#include "zb/comm.h"

/* A ring with one writer and one reader. `head` is only advanced by the writer
 * (release), `tail` only by the reader (release); `moved` wakes the reader. */
struct zb_channel_entry {
    int msg;
    int mb;
    uint64_t meta_version;
};

/* Counts of 64 bits: they never wrap, which n_slots would not divide. */
struct zb_channel_ring {
    _Atomic uint64_t head;
    _Atomic uint64_t tail;
    struct zb_signal moved;
    struct zb_channel_entry
        *slot; /* [n_slots], n_slots > buffers in the pool */
};

/* One end of a channel with a link. */
struct zb_channel_end {
    struct zb_stream *stream;  /* of the messages; that side's thread only */
    struct zb_link_part *part; /* likewise: [n_parts, at least 1] */
    struct zb_link_holder at;
};

struct zb_channel {
    struct zb_channel_opts opts;
    const struct zb_abort *ab;
    struct zb_msg *msg; /* [n_buffers] */
    uint32_t n_slots;
    struct zb_channel_ring full;  /* sender to receiver */
    struct zb_channel_ring empty; /* receiver to sender */

    /* Copied and linked: sender only. */
    struct zb_stream *copies; /* copied only */
    int *staged; /* [n_staged], buffers of the sender: the first n are free */
    int n_staged_free;
    const struct zb_device *receiver; /* whose memory is copied to */

    /* Through the host: the receiver's, which makes `host` when it joins. */
    char *host; /* [buffers of the receiver] */
    struct zb_stream *arrivals;
    struct zb_event **arrived; /* [n_buffers] contents are there */

    /* Sizes of messages, one entry per version. A version's entry is reused
     * only n_slots versions later, when its message has long been received:
     * there are fewer messages under way than entries. */
    struct zb_bind *meta; /* [n_slots], sender writes before the ring's head */
    struct zb_bind sent;  /* sender only */
    uint64_t sent_version;
    struct zb_bind seen; /* receiver only */
    uint64_t seen_version;

    /* Linked. */
    struct zb_link_id link_id;
    struct zb_channel_end end[2]; /* enum zb_link_end */

    uint64_t n_messages, n_meta_writes; /* sender only */
    uint64_t n_meta_reads;              /* receiver only */
};

static inline int zb_channel_is_linked(const struct zb_channel *c)
{
    return c->opts.linked != NULL;
}

/* channel_link.c. Before the workers start, and after. */
enum zb_status zb_channel_ends_init(struct zb_channel *c) ZB_CHECKED;
void zb_channel_ends_release(struct zb_channel *c);

/* By an end's thread: enqueue that end's part of a message with these sizes. */
enum zb_status zb_channel_pass(struct zb_channel *c, enum zb_link_end end,
                               const struct zb_msg *msg,
                               const struct zb_bind *bind) ZB_CHECKED;

/* Bytes that sizes make of part i, at *offset_out of a message. */
size_t zb_channel_part(const struct zb_channel *c, int i,
                       const struct zb_bind *bind, size_t *offset_out);
/* How many there are: one, of all bytes, when nobody said. */
int zb_channel_n_parts(const struct zb_channel *c);

#endif
