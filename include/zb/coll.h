/* SPDX-License-Identifier: MIT
 *
 * Collectives as data: what a group of devices does together, before anyone
 * decides how. A graph emits them, a group of zb/comm.h carries them out.
 *
 * Every member of the group passes the same sizes. Arrays are dense; n is the
 * number of members and r the rank of the one that looks:
 *
 *   all_reduce      dst[o,i] = sum over k of src_k[o,i]
 *   all_gather      dst[o,k,i] = src_k[o,i]
 *   reduce_scatter  dst[o,i] = sum over k of src_k[o,r,i]
 *   seq_to_heads    dst[o,k,m,i] = src_k[o,m,g(r),i]
 *   heads_to_seq    dst[o,m,g,i] = sum over k with g(k) = g of src_k[o,r,m,i]
 *
 * o < outer, m < mid, i < inner; g(k) = k * n_heads / n: with fewer pieces than
 * members (n_heads < n, which it divides) several get the same one, and their
 * gradients are added. The last two are the all-to-all of DeepSpeed-Ulysses
 * (Jacobs et al. 2023): [B, T/n, heads, D] to [B, T, heads/n, D] with mid = T/n
 * and inner = D * heads/n, and back; they are each other's adjoint, as
 * all_gather and reduce_scatter are.
 *
 * Sums are taken in rank order 0, 1, ... on every member, so that all get the
 * same bits. dst may be src in an all_reduce; in an all_gather or
 * reduce_scatter with outer = 1 it may be its own part of the larger array.
 */
#ifndef ZB_COLL_H
#define ZB_COLL_H

#include <stdint.h>

#include "zb/backend.h"
#include "zb/status.h"

/* Which devices belong together. */
enum zb_axis {
    ZB_AXIS_TP,   /* one tensor-parallel group */
    ZB_AXIS_SP,   /* one sequence-parallel group of its own */
    ZB_AXIS_COPY, /* members of a tp group that hold the same shard of a
                     parameter which is split into fewer parts */
    ZB_AXIS_DATA, /* what a gradient is summed over: dp and sp together */
    ZB_N_AXES
};

enum zb_coll_kind {
    ZB_COLL_ALL_REDUCE,
    ZB_COLL_ALL_GATHER,
    ZB_COLL_REDUCE_SCATTER,
    ZB_COLL_SEQ_TO_HEADS,
    ZB_COLL_HEADS_TO_SEQ,
    ZB_N_COLLS
};

struct zb_coll {
    enum zb_coll_kind kind;
    enum zb_dtype dtype;
    int64_t outer, mid, inner; /* mid: only the last two kinds */
    int64_t n_heads;           /* pieces; only the last two kinds */
    const void *src;
    void *dst;
    const char *label; /* names the operation in reports; outlives the stream */
};

/* How a chunk's passes reach the groups of the device that runs them. Calls
 * enqueue on the stream, in the same order on every member of a group; the host
 * may wait for the other members' hosts, and leaves with ZB_EABORT when the run
 * stops. */
struct zb_coll_ops {
    /* Later work of `stream` comes after the result, and may overwrite src. */
    enum zb_status (*run)(void *arg, enum zb_axis axis,
                          struct zb_stream *stream, const struct zb_coll *c);

    /* Everybody's block in turn, as a ring passes them on: between begin and
     * end, block `step` (0 .. n-1) is what member (r + n - step) % n gave to
     * begin, readable by later work of `stream` until the end. Steps are asked
     * for once each, in order. After the end, `src` may be overwritten. */
    enum zb_status (*ring_begin)(void *arg, enum zb_axis axis,
                                 struct zb_stream *stream, const void *src,
                                 size_t bytes, const char *label);
    enum zb_status (*ring_step)(void *arg, enum zb_axis axis,
                                struct zb_stream *stream, int step,
                                const void **block_out);
    enum zb_status (*ring_end)(void *arg, enum zb_axis axis,
                               struct zb_stream *stream);
};

#endif
