/* SPDX-License-Identifier: MIT
 *
 * Inside of the collectives. Parts: coll_group.c (who has got how far, and
 * waiting), coll_parts.c (what one member computes), coll_ring.c.
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

#include <stdatomic.h>

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
};

struct zb_coll_group {
    struct zb_coll_group_opts o;
    const struct zb_abort *ab;
    struct coll_member *member; /* [n_members] */
};

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

#endif
