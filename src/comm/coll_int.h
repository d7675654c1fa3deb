/* SPDX-License-Identifier: MIT
 *
 * Inside of the collectives. Parts: coll_group.c (who has got how far, and
 * waiting), coll_parts.c (what one member computes), coll_ring.c, coll_link.c
 * (groups whose members send what the others would read).
 *
 * A member has as many slots as collectives may be under way; collective
 * number seq is in slot seq % n on every member. It fills the slot, records
 * `ready` and publishes `started`; from then on it leaves the slot alone until
 * all members have published `worked`, which they do after their last look at
 * it. Events are recorded again only when all have waited for them: `ready`
 * for that reason, `summed` and `done` since whoever starts seq + n has
 * finished seq.
 */
#ifndef ZB_COLL_INT_H
#define ZB_COLL_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm/link_int.h"
#include "zb/comm.h"

enum coll_phase { COLL_START, COLL_WORK, COLL_FINISH };

struct coll_slot {
    struct zb_coll c;  /* of a ring: label and src only */
    size_t ring_bytes; /* of a block */
    int is_ring;
    size_t shown_at; /* where src is in the member's mirror */
    /* Owner makes them in join(), before any start; the rest reads them. */
    struct zb_event *ready;  /* src is complete */
    struct zb_event *summed; /* its share of an all_reduce is complete */
    struct zb_event *done;   /* nothing of others is read any more */
};

/* Counts of collectives. Each is stored by the owner (release) and read by all
 * (acquire); `moved` tells that one of them has. On cache lines of its own. */
struct coll_member {
    _Alignas(64) _Atomic uint64_t started;
    _Atomic uint64_t summed; /* first part of its work enqueued */
    _Atomic uint64_t worked; /* all of its work enqueued */
    struct zb_signal moved;

    /* owner only */
    uint64_t finished;
    int has_ring;           /* between begin and end; the last one started */
    uint64_t fail_seq;      /* number of the collective that fails */
    int fail_phase;         /* or -1 */
    struct coll_slot *slot; /* [n_under_way]; see above */
    struct zb_coll_mirror mirror; /* host NULL: others read its memory */

    /* Groups with a link; the owner's but for `end`. */
    struct zb_link_holder end;
    struct zb_coll_linked with;
    struct zb_link_part *send, *recv; /* [n_members] */
    struct zb_event **came; /* [n_members]: the block of a step of a ring */
    uint64_t n_exchanges;
};

struct zb_coll_group {
    struct zb_coll_group_opts o;
    const struct zb_abort *ab;
    struct coll_member *member; /* [n_members] */
    struct zb_link_id link_id;  /* where there is a link */
};

/* A member alone has nobody to send to. */
static inline int zb_coll_is_linked(const struct zb_coll_group *g)
{
    return g->o.linked != NULL && g->o.n_members > 1;
}

static inline struct coll_slot *zb_coll_slot(const struct zb_coll_group *g,
                                             int rank, uint64_t seq)
{
    return &g->member[rank].slot[seq % (uint64_t)g->o.n_under_way];
}

/* A member's source as the others read it. */
static inline const char *zb_coll_shown(const struct zb_coll_group *g, int rank,
                                        uint64_t seq)
{
    const struct zb_coll_mirror *m = &g->member[rank].mirror;
    const struct coll_slot *s = zb_coll_slot(g, rank, seq);

    return m->host == NULL ? (const char *)s->c.src : m->host + s->shown_at;
}

/* How far the owner itself has got with a count. */
static inline uint64_t zb_coll_own(const _Atomic uint64_t *count)
{
    return atomic_load_explicit(count, memory_order_relaxed);
}

/* ---- coll_group.c -------------------------------------------------------- */

/* One more of a count of `m`, seen by all with what was written before. */
void zb_coll_publish(struct coll_member *m, _Atomic uint64_t *count);

/* Wait until `count`, one of those of `m`, is past seq. */
enum zb_status zb_coll_await(const struct zb_coll_group *g,
                             struct coll_member *m,
                             const _Atomic uint64_t *count,
                             uint64_t seq) ZB_CHECKED;

/* The fault of zb_coll_fail_at(), when it is due. */
enum zb_status zb_coll_fault(const struct zb_coll_group *g, int rank,
                             uint64_t seq, enum coll_phase phase) ZB_CHECKED;

/* Fill the next slot, record `ready`, and publish. */
enum zb_status zb_coll_begin(struct zb_coll_group *g, int rank,
                             struct zb_stream *stream,
                             const struct coll_slot *what) ZB_CHECKED;

/* ---- coll_parts.c -------------------------------------------------------- */

/* Shares of an all_reduce are whole multiples of this, so that no cache line has
 * two writers. */
#define ZB_COLL_SHARE_ALIGN 64

/* Up to here each member sums all elements of an all_reduce by itself: that
 * takes less than to meet once more. */
#define ZB_COLL_SMALL_ELEMS 8192

/* blocks x rows of cols elements, and the way from one to the next in what is
 * read and in what is written. In elements. */
struct coll_grid {
    int64_t blocks, rows, cols;
    int64_t block_x, ldx, block_y, ldy;
};

/* One member's view of a collective. */
struct coll_part {
    const struct zb_coll_group *g;
    struct zb_stream *stream;
    const struct zb_coll *c; /* its own */
    uint64_t seq;
    int n, rank;
    int64_t elem; /* bytes */
    /* Over a link: what is read of its own and of the others, whose blocks lie
     * one after the other, without its own. NULL: sources where they are. */
    const char *own, *blocks;
    size_t block_stride; /* bytes */
};

struct coll_part zb_coll_part(const struct zb_coll_group *g, int rank,
                              struct zb_stream *stream, uint64_t seq);
/* What is read of member k, from element `at` on; its own dst. */
const void *zb_part_src(const struct coll_part *p, int k, int64_t at);
void *zb_part_dst(const struct coll_part *p, int64_t at);
/* y = x; y = sum over members [from, to) of theirs from element `at` on. */
enum zb_status zb_part_copy(const struct coll_part *p,
                            const struct coll_grid *t, const void *x,
                            void *y) ZB_CHECKED;
enum zb_status zb_part_sum(const struct coll_part *p,
                           const struct coll_grid *t, int from, int to,
                           int64_t at, void *y) ZB_CHECKED;
/* Where share k of n_elems among n begins; its end is where share k + 1 does. */
int64_t zb_coll_share(int64_t n_elems, int n, int k);

/* ZB_EINVAL when what two members do differs. */
enum zb_status zb_coll_compare(const struct zb_coll_group *g, int rank,
                               int other, uint64_t seq) ZB_CHECKED;

/* The same, of rings (coll_ring.c). */
enum zb_status zb_ring_compare(const struct zb_coll_group *g, int rank,
                               int other, uint64_t seq) ZB_CHECKED;

/* What simulated devices take to move so many bytes. */
enum zb_status zb_coll_spend(const struct zb_coll_group *g,
                             struct zb_stream *stream, double bytes) ZB_CHECKED;

/* Enqueue a member's part of collective seq. The first part needs that all have
 * started; the second, that all have done the first. */
enum zb_status zb_coll_first_part(const struct zb_coll_group *g, int rank,
                                  struct zb_stream *stream,
                                  uint64_t seq) ZB_CHECKED;
enum zb_status zb_coll_second_part(const struct zb_coll_group *g, int rank,
                                   struct zb_stream *stream,
                                   uint64_t seq) ZB_CHECKED;

/* Whether there is a second part: its first must then be waited for. */
int zb_coll_has_two_parts(const struct zb_coll_group *g, uint64_t seq);

/* ---- coll_link.c --------------------------------------------------------- */

enum zb_status zb_coll_link_init(struct zb_coll_group *g) ZB_CHECKED;
void zb_coll_link_release(struct zb_coll_group *g);
/* The member's events; freed where it leaves. */
enum zb_status zb_coll_link_join(struct zb_coll_group *g, int rank,
                                 struct zb_device *dev) ZB_CHECKED;
void zb_coll_link_leave(struct zb_coll_group *g, int rank);

/* A member's side of all of collective seq. */
enum zb_status zb_coll_linked_work(struct zb_coll_group *g, int rank,
                                   struct zb_stream *stream,
                                   uint64_t seq) ZB_CHECKED;
/* Send all blocks of ring seq, which has begun, on their way. Then the block of
 * a step, in order; and the end. */
enum zb_status zb_ring_linked_begin(struct zb_coll_group *g, int rank,
                                    struct zb_stream *stream,
                                    uint64_t seq) ZB_CHECKED;
enum zb_status zb_ring_linked_step(struct zb_coll_group *g, int rank,
                                   struct zb_stream *stream, int step,
                                   uint64_t seq,
                                   const void **block_out) ZB_CHECKED;

#endif
