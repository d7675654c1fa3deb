/* SPDX-License-Identifier: MIT
 *
 * Collectives that do what zb/coll.h says in the plainest way: everybody waits
 * for all, and copies. For reals, of the kinds that sequences in parts need. */
#ifndef PAR_PLAIN_H
#define PAR_PLAIN_H

#include "zb/coll.h"
#include "zb/thread.h"

#define PLAIN_MEMBERS 16

struct plain_group {
    int n;
    struct zb_abort *ab;
    struct zb_barrier bar;
    const void *src[PLAIN_MEMBERS];
};

struct plain_member {
    struct plain_group *group;
    int rank;
    const struct zb_backend_ops *ops;
    struct zb_device *dev;
    void *block[PLAIN_MEMBERS]; /* of the ring that is under way */
    size_t bytes;
};

void plain_group_init(struct plain_group *g, int n, struct zb_abort *ab);

enum zb_status plain_run(struct plain_member *m, struct zb_stream *stream,
                         const struct zb_coll *c);
enum zb_status plain_ring_begin(struct plain_member *m,
                                struct zb_stream *stream, const void *src,
                                size_t bytes);
enum zb_status plain_ring_step(struct plain_member *m, struct zb_stream *stream,
                               int step, const void **block_out);
enum zb_status plain_ring_end(struct plain_member *m, struct zb_stream *stream);
/* Memory of a ring that was not ended. */
void plain_member_release(struct plain_member *m);

#endif
