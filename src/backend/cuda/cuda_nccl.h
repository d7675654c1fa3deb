/* SPDX-License-Identifier: MIT
 *
 * What links over NCCL share: cuda_nccl.c (how they come to be and end, and
 * messages) and cuda_coll.c (exchanges of a group).
 *
 * Threads: as struct zb_link_ops says.
 */
#ifndef ZB_CUDA_NCCL_H
#define ZB_CUDA_NCCL_H

#include "backend/cuda/cuda_int.h"

#include <nccl.h>

struct zb_link {
    struct zb_stream *stream; /* of messages; of a group's first exchange */
    const struct zb_abort *ab;
    int n, rank;     /* ranks of the communicator, and which this is */
    int is_group;    /* for exchanges, not messages */
    ncclComm_t comm; /* NULL: there is none any more */
};

/* ZB_OK, also while NCCL is at it, or what its error means: ZB_EDEVICE. */
enum zb_status zb_nccl_check(const struct zb_link *l, ncclResult_t res,
                             const char *what) ZB_CHECKED;

/* Wait until the communicator is done with what it was asked for: then that is
 * in the stream. ZB_EABORT when the run stops. */
enum zb_status zb_nccl_settle(struct zb_link *l, const char *what) ZB_CHECKED;

/* Begin to look for the others, with a communicator that does not block. */
enum zb_status zb_nccl_open(struct zb_stream *stream,
                            const struct zb_link_id *id, int n, int rank,
                            const struct zb_abort *ab,
                            struct zb_link **link_out) ZB_CHECKED;

/* ---- groups (cuda_coll.c): slots of zb_cuda_links ------------------------ */

enum zb_status zb_nccl_open_group(struct zb_stream *stream,
                                  const struct zb_link_id *id, int n, int rank,
                                  const struct zb_abort *ab,
                                  struct zb_link **link_out);
enum zb_status zb_nccl_exchange(struct zb_link *l, struct zb_stream *stream,
                                const struct zb_exchange *x);

/* An exchange of `bytes` with everybody, from and to stream->first: then
 * each two ranks are connected. */
enum zb_status zb_nccl_first_exchange(struct zb_link *l,
                                      size_t bytes) ZB_CHECKED;

#endif
