/* SPDX-License-Identifier: MIT
 *
 * Messages between the workers of a pipeline: channels for activations and
 * gradients, and the group for what all workers settle together.
 *
 * A channel is one directed link of one chunk boundary. It owns a fixed pool of
 * message buffers that circulate: the sender acquires a free one, computes into
 * it, and sends it; the receiver takes it, reads it as long as it must, and
 * releases it. There are three ways to hand one over:
 *
 * - in place: nothing is copied, the buffer changes hands. For devices that
 *   share their memory.
 * - copied: the sender computes into a buffer of its own, and sending copies it
 *   into one of the receiver's, on a stream for that. For devices with memory
 *   of their own: what the receiver reads, maybe several times, is near.
 * - linked: likewise, but each side enqueues its part of the transfer, on a
 *   stream for that (struct zb_link_ops). For devices that do not read each
 *   other's memory. Sends and receives must be called in the order of a plan
 *   that needs no buffers between the two.
 * - copied through the host: the same, but over page-locked host memory: the
 *   sender copies out, and receiving copies in. For devices that do not reach
 *   each other's memory.
 *
 *     sender                              receiver
 *     zb_channel_acquire(c, stream, &b)
 *     ... kernels write b->ptr ...
 *     zb_channel_filled(c, b, stream)
 *     zb_channel_send(c, b, mb, &bind)
 *                                         zb_channel_recv(c, mb, stream, ...)
 *                                         ... kernels read b->ptr ...
 *                                         zb_channel_release(c, b, stream)
 *
 * Two directions of one pair of stages, and two boundaries between one pair,
 * are different channels: they can not get in each other's way. Messages of one
 * channel arrive in the order they were sent and carry their microbatch.
 *
 * Threads: one sender and one receiver thread per channel (for the turn of the
 * V they are the same). The host only passes pointers; the order of the work is
 * kept by two events per buffer. No locks, but for one round each call of a link,
 * which nobody else wants until a run ends early; a waiting thread sleeps and
 * leaves when the run is aborted.
 */
#ifndef ZB_COMM_H
#define ZB_COMM_H

#include "zb/backend.h"
#include "zb/coll.h"
#include "zb/status.h"
#include "zb/tensor.h"
#include "zb/thread.h"

struct zb_channel;

/* One message buffer. */
struct zb_msg {
    void *ptr;               /* device memory; NULL when messages are empty */
    int index;               /* place in the pool */
    struct zb_event *filled; /* the sender's: contents are complete */
    /* Contents are no longer read: the receiver's event; the sender's where it
     * is the copy that reads. */
    struct zb_event *free;
};

struct zb_channel_opts {
    const struct zb_backend_ops *ops; /* of both sides */
    const char *name; /* "stage 0 chunk 0 -> stage 1 chunk 0", borrowed */
    size_t bytes;     /* of one message */
    int n_buffers;    /* in the pool */
    /* Copied and linked: how many of them are the sender's, the first ones; the
     * others are where messages arrive. 0: in place. */
    int n_staged;
    /* Linked: by a link of this backend, borrowed. NULL: not. */
    struct zb_backend *linked;
    /* Copied: NULL, or of both sides, to copy through its host memory. */
    struct zb_backend *via_host;
    /* Copied and linked: what messages consist of, borrowed; only what a
     * microbatch's sizes make of it is carried. No parts: always all bytes. */
    const struct zb_part *part;
    int n_parts;
    int64_t latency_ns; /* simulated devices: how long a message is under way */
    /* 1: sizes are sent only when they changed (one integer otherwise).
     * 0: sizes are sent with every message. */
    int has_meta_cache;
};

/* Before the workers start. `ab` is borrowed for the channel's life. */
enum zb_status zb_channel_new(const struct zb_channel_opts *opts,
                              const struct zb_abort *ab,
                              struct zb_channel **c_out) ZB_CHECKED;
void zb_channel_free(struct zb_channel *c);

/* Each side makes its events, and the sides together give all the memory:
 * buffers [first, first + n) are `bytes` apart from `ptr` on. Sender and
 * receiver thread; all sides must be done before the first acquire. */
enum zb_status zb_channel_join_sender(struct zb_channel *c,
                                      struct zb_device *dev) ZB_CHECKED;
enum zb_status zb_channel_join_receiver(struct zb_channel *c,
                                        struct zb_device *dev) ZB_CHECKED;
void zb_channel_give_memory(struct zb_channel *c, int first, int n, void *ptr,
                            size_t stride);
/* Each side lets its copies end: by its thread, before memory of either side is
 * freed. */
void zb_channel_end_sender(struct zb_channel *c);
void zb_channel_end_receiver(struct zb_channel *c);
/* Release a side's events: by its thread, before its device is closed. */
void zb_channel_leave_sender(struct zb_channel *c);
void zb_channel_leave_receiver(struct zb_channel *c);

/* The link of a channel, if it has one; each end by its thread, after it has
 * joined: look for the other end; wait for it; send a first message and wait for
 * that. All ends of a run meet before and after each of these, and each goes
 * through its channels in one order that all share. Leaving closes it. */
enum zb_status zb_channel_open_link(struct zb_channel *c,
                                    enum zb_link_end end) ZB_CHECKED;
enum zb_status zb_channel_join_link(struct zb_channel *c,
                                    enum zb_link_end end) ZB_CHECKED;
enum zb_status zb_channel_warm_up_link(struct zb_channel *c,
                                       enum zb_link_end end) ZB_CHECKED;
void zb_channel_close_link(struct zb_channel *c, enum zb_link_end end);
/* Any thread: ZB_EDEVICE when a link has failed. Does not wait. */
enum zb_status zb_channel_link_error(struct zb_channel *c) ZB_CHECKED;

/* Sender: the next free buffer; later work of `stream` comes after its last
 * reader. In place: waits for the receiver when all are out; copied: ZB_EINVAL
 * when n_staged were acquired and not sent. */
enum zb_status zb_channel_acquire(struct zb_channel *c,
                                  struct zb_stream *stream,
                                  struct zb_msg **msg_out) ZB_CHECKED;
/* Sender: the work enqueued on `stream` so far completes the contents. */
enum zb_status zb_channel_filled(struct zb_channel *c, struct zb_msg *msg,
                                 struct zb_stream *stream) ZB_CHECKED;
/* Sender: hand over, after zb_channel_filled(). `bind` are the sizes of the
 * microbatch. Copied and linked: waits for the receiver when all of its
 * buffers are out. */
enum zb_status zb_channel_send(struct zb_channel *c, struct zb_msg *msg, int mb,
                               const struct zb_bind *bind) ZB_CHECKED;

/* Receiver: the next message, which must be of microbatch `mb` (ZB_EINVAL
 * otherwise); later work of `stream` comes after its contents. */
enum zb_status zb_channel_recv(struct zb_channel *c, int mb,
                               struct zb_stream *stream,
                               struct zb_msg **msg_out,
                               struct zb_bind *bind_out) ZB_CHECKED;
/* Receiver: no later work reads it. */
enum zb_status zb_channel_release(struct zb_channel *c, struct zb_msg *msg,
                                  struct zb_stream *stream) ZB_CHECKED;

const char *zb_channel_name(const struct zb_channel *c);
/* Host memory that n buffers of the receiver take where messages go through
 * it. */
size_t zb_channel_host_bytes(size_t bytes, int n);

/* How often sizes were written and read anew, for tests of the cache. Any
 * thread, when the workers rest. */
struct zb_channel_stats {
    uint64_t n_messages, n_meta_writes, n_meta_reads;
};
struct zb_channel_stats zb_channel_stats(const struct zb_channel *c);

/* ---- collectives --------------------------------------------------------- */

/* The devices that do collectives together. Members read each other's memory in
 * place (or what they show of it in host memory, see zb_coll_set_mirror());
 * nothing is copied that a result does not need, no lock is taken, and every
 * sum is in rank order.
 *
 * A collective has three phases on each member: start() says that src is
 * complete once the work enqueued so far is done; work(), when all have
 * started, enqueues this member's part, after which dst is complete; finish(),
 * when all have worked, orders later work of the stream after everybody's
 * reading, after which src may be overwritten. Several may be under way: they
 * advance in the order in which they were started, which is the same on all
 * members; the phases may be on different streams of one device. zb_ring_... is
 * one that takes its place in that order too: what was started before is worked
 * on before it begins, and nothing else starts before it ends.
 *
 *     ZB_TRY(zb_coll_start(g, rank, compute, &c));
 *     ... enqueue more on compute; now and then: ...
 *     ZB_TRY(zb_coll_work(g, rank, comm, 0, NULL));
 *     ZB_TRY(zb_coll_finish(g, rank, compute));
 *
 * Threads: each member calls with its own rank only. A waiting thread sleeps,
 * and leaves with ZB_EABORT when the run stops. */
struct zb_coll_group;

struct zb_coll_group_opts {
    const struct zb_backend_ops *ops; /* of all members */
    const char *name; /* "tp group of stage 1, dp 0", borrowed */
    int n_members;
    int n_under_way; /* most collectives between start and finish at once */
    /* Over a link of this backend, borrowed (see zb_coll_linked). NULL: members
     * read each other's memory. */
    struct zb_backend *linked;
    /* Simulated devices: what work() takes on the stream. */
    int64_t latency_ns;
    double ns_per_byte; /* of the larger of src and dst */
};

/* Before the workers start. `ab` is borrowed for the group's life. */
enum zb_status zb_coll_group_new(const struct zb_coll_group_opts *opts,
                                 const struct zb_abort *ab,
                                 struct zb_coll_group **g_out) ZB_CHECKED;
void zb_coll_group_free(struct zb_coll_group *g);
const char *zb_coll_group_name(const struct zb_coll_group *g);
int zb_coll_group_size(const struct zb_coll_group *g);

/* A member makes its events; all must have joined before the first start.
 * Leaving releases them, also after a join that failed: by the same thread,
 * before its device is closed and after all members' streams have ended. */
enum zb_status zb_coll_join(struct zb_coll_group *g, int rank,
                            struct zb_device *dev) ZB_CHECKED;
void zb_coll_leave(struct zb_coll_group *g, int rank);

/* Members that do not reach each other's memory: each shows its sources in host
 * memory, which the kernels of the others read in place of its own. It copies a
 * source there before it says that it is complete. */
struct zb_coll_mirror {
    char *host; /* page-locked; borrowed until the member leaves */
    /* What is at base + n is shown at host + n; NULL: sources are shown at
     * `host`, for groups with n_under_way 1. */
    const char *base;
    size_t bytes;
};
/* All members or none, after join and before any start. */
void zb_coll_set_mirror(struct zb_coll_group *g, int rank,
                        const struct zb_coll_mirror *mirror);
/* Bytes of the source of a collective among n members. */
size_t zb_coll_src_bytes(const struct zb_coll *c, int n);

/* Groups with a link: no member reads another's memory. What is read of the
 * others is sent to a room of the member's instead, and added up or put in place
 * from there by the same kernels, in the same order: results are the same bits.
 * work() does not wait for the others: their streams meet. So each member must
 * call work() and ring_begin() at the same points of an order that all its groups
 * and channels with links share, whatever the pace; ZB_COLL_WHAT_IS_READY is all
 * that was started. */
struct zb_coll_linked {
    struct zb_stream *stream; /* of the first exchange */
    struct zb_stream *ring;   /* of blocks that go round; NULL: the caller's */
    /* Where blocks of others arrive: device memory, aligned to 64 bytes. Groups
     * that work on the same stream may have the same. */
    void *room;
    size_t room_bytes;
};
/* Member, between zb_coll_join() and the first start. All members meet before and
 * after each, and go through their groups in one order that all share: look for
 * the others; wait for them; exchange something, and wait for that. Without a
 * link they do nothing. */
enum zb_status zb_coll_open_link(struct zb_coll_group *g, int rank,
                                 const struct zb_coll_linked *with) ZB_CHECKED;
enum zb_status zb_coll_join_link(struct zb_coll_group *g, int rank) ZB_CHECKED;
enum zb_status zb_coll_warm_up_link(struct zb_coll_group *g,
                                    int rank) ZB_CHECKED;
/* Before the streams are freed. */
void zb_coll_close_link(struct zb_coll_group *g, int rank);
/* Any thread: ZB_EDEVICE when the link of a member has failed. Does not wait. */
enum zb_status zb_coll_link_error(struct zb_coll_group *g) ZB_CHECKED;
/* Room that a collective, or a ring of blocks of so many bytes, among n members
 * needs. */
size_t zb_coll_room_bytes(const struct zb_coll *c, int n);
size_t zb_ring_room_bytes(size_t bytes, int n);

/* Any thread, after the run's abort was raised: nothing under way in these
 * channels and groups keeps a stream any more. In one call for all of a run. */
void zb_links_abort(struct zb_channel *const *chan, int n_chan,
                    struct zb_coll_group *const *group, int n_groups);

/* `c` is copied. ZB_EINVAL when more than n_under_way would be. work() gives
 * ZB_EINVAL when the members' kinds or sizes differ, and ZB_EUNSUPPORTED for
 * sums in place over more than ZB_REDUCE_MAX members. */
enum zb_status zb_coll_start(struct zb_coll_group *g, int rank,
                             struct zb_stream *stream,
                             const struct zb_coll *c) ZB_CHECKED;
/* Work on what was started, in order: until at most `most_left` are left,
 * waiting for the other members where that is needed; or all that can be worked
 * on without waiting. *n_left_out: how many are left then; may be NULL. */
#define ZB_COLL_WHAT_IS_READY (-1)
enum zb_status zb_coll_work(struct zb_coll_group *g, int rank,
                            struct zb_stream *stream, int most_left,
                            int *n_left_out) ZB_CHECKED;
/* Finish all that was started (working first where that was not done): waits
 * for the other members. */
enum zb_status zb_coll_finish(struct zb_coll_group *g, int rank,
                              struct zb_stream *stream) ZB_CHECKED;
/* All three phases of one; what is under way before is finished too. */
enum zb_status zb_coll_run(struct zb_coll_group *g, int rank,
                           struct zb_stream *stream,
                           const struct zb_coll *c) ZB_CHECKED;

/* As in struct zb_coll_ops. The end finishes what is under way before, too. On
 * simulated devices each step but the first takes the time of its block. */
enum zb_status zb_ring_begin(struct zb_coll_group *g, int rank,
                             struct zb_stream *stream, const void *src,
                             size_t bytes, const char *label) ZB_CHECKED;
enum zb_status zb_ring_step(struct zb_coll_group *g, int rank,
                            struct zb_stream *stream, int step,
                            const void **block_out) ZB_CHECKED;
enum zb_status zb_ring_end(struct zb_coll_group *g, int rank,
                           struct zb_stream *stream) ZB_CHECKED;

/* For tests: member `rank` fails with ZB_EDEVICE in its k-th collective from
 * now (from 1), in phase 0 (start), 1 (work) or 2 (finish); of a ring, in its
 * begin, first step or end. k = 0: not any more. Before start, or by that
 * member's thread. */
void zb_coll_fail_at(struct zb_coll_group *g, int rank, int k, int phase);

/* ---- what all workers of a run settle together -------------------------- */

/* A table of doubles that every worker fills in parts and then reads whole. */
struct zb_group;

enum zb_status zb_group_new(int n_members, size_t n_values,
                            const struct zb_abort *ab,
                            struct zb_group **g_out) ZB_CHECKED;
void zb_group_free(struct zb_group *g);

/* The table: a worker writes its own entries before zb_group_meet() and reads
 * any after. To write again it must have met once more in between. */
double *zb_group_values(struct zb_group *g);

/* Wait for all members. Workers only. */
enum zb_status zb_group_meet(struct zb_group *g) ZB_CHECKED;

#endif
