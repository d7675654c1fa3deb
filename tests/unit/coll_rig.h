/* SPDX-License-Identifier: MIT
 *
 * A group of members, each a thread with a device, its memory and streams of
 * its own.
 *
 *     coll_rig_open(&r, "check", 4, 2, 100, seed);
 *     coll_rig_run(&r, what_a_member_does);
 *     ... r.member[i].st ...
 *     coll_rig_close(&r);
 *
 * With ZB_TEST_BACKEND "cpu" is that backend, and with ZB_TEST_P2P = nccl the
 * group of it has a link.
 */
#ifndef COLL_RIG_H
#define COLL_RIG_H

#include "zb/check.h"
#include "zb/comm.h"
#include "zb/thread.h"
#include "zbt.h"

#define RIG_MEMBERS 20
#define RIG_SLOTS 4     /* places for collectives that are under way */
#define RIG_ELEMS 40000 /* of src and of dst in each place */
#define RIG_ROOM ((size_t)1 << 20) /* bytes for what others send over links */

struct coll_rig;

struct coll_rig_member {
    struct coll_rig *r;
    int rank;
    struct zb_device *dev;
    struct zb_stream *stream[3]; /* compute, comm, after */
    struct zb_event *event;
    zb_real *src[RIG_SLOTS], *dst[RIG_SLOTS]; /* device memory */
    zb_real *host;                            /* RIG_ELEMS */
    void *shown; /* RIG_ELEMS for the others, where r->is_shown */
    void *room;  /* where the group has a link */
    struct zbt_rng rng;                       /* of its own pace */
    enum zb_status st;
    char text[256];
    size_t n_wrong;
};

struct coll_rig {
    struct zb_backend *be;
    const struct zb_backend_ops *ops;
    struct zb_abort ab;
    struct zb_barrier barrier;
    struct zb_coll_group *g;
    int n;
    int is_linked;
    int is_shown; /* set after opening: members show their sources */
    void *arg; /* the test's */
    enum zb_status (*fn)(struct coll_rig_member *m);
    struct coll_rig_member member[RIG_MEMBERS];
};

/* A group of n members with n_under_way. max_delay_us: of the check backend. */
void coll_rig_open(struct coll_rig *r, const char *backend, int n,
                   int n_under_way, int max_delay_us, uint64_t seed);
/* The number of reports of the check backend. */
size_t coll_rig_close(struct coll_rig *r);

/* Run fn on a thread for each member, between join and leave. */
void coll_rig_run(struct coll_rig *r,
                  enum zb_status (*fn)(struct coll_rig_member *m));

/* All members returned ZB_OK and found nothing wrong; prints what is not so. */
int coll_rig_is_fine(const struct coll_rig *r);

/* Host values into device memory and back; the host waits. */
enum zb_status coll_rig_put(struct coll_rig_member *m, zb_real *dst,
                            const zb_real *host, size_t n);
enum zb_status coll_rig_get(struct coll_rig_member *m, const zb_real *src,
                            zb_real *host, size_t n);

/* Sleep for up to so many microseconds, or mostly not at all. */
void coll_rig_dawdle(struct coll_rig_member *m, int max_us);

#endif
