/* SPDX-License-Identifier: MIT
 *
 * Measuring on the devices of a run before it is planned. A profile opens the
 * backend for itself, seats one thread on each device, lets all of them do the
 * same job at once (a core is slower when its neighbours are busy) and gives
 * everything back: no state of a session exists yet, so none can change.
 *
 *     double out[n];
 *     ZB_TRY(zb_profile_run(&request, job, n, out)); // medians over devices
 *
 * Threads: zb_profile_run() by the host; the others by the thread of a seat.
 */
#ifndef ZB_RUN_PROFILE_H
#define ZB_RUN_PROFILE_H

#include "run/costs.h"
#include "run/peers.h"
#include "zb/comm.h"
#include "zb/run.h"
#include "zb/thread.h"

/* What is measured. Borrowed for the call. */
struct zb_profile_request {
    const struct zb_graph *g;
    const struct zb_layer_kinds *kinds;
    struct zb_bind max; /* the microbatch */
    const struct zb_session_opts *o;
};

struct zb_profile {
    const struct zb_profile_request *r;
    struct zb_backend *be;
    struct zb_abort ab;
    struct zb_group *group; /* one value: whether to go on */
    struct zb_barrier leave;
    struct zb_seat *seat; /* [n_seats] */
    int n_seats, n_running;
    size_t n_results;
    enum zb_status (*job)(struct zb_seat *seat);
    void **field;     /* [n_data] made-up batch, host memory, read-only */
    int64_t *sample;  /* [rows] */
    /* Between seats i and i + 1: 2i there, 2i + 1 back. Made by the job that
     * needs them, before a meeting. */
    size_t message_bytes;
    struct zb_peers peers;    /* of neighbours */
    struct zb_channel **chan; /* [2 * (n_seats - 1)] */
};

/* profile_coll.c: collectives of a seat that has no others to do them with; the
 * argument is a struct zb_profile_axes. */
struct zb_profile_axes {
    const struct zb_backend_ops *ops;
    int n_tp, n_sp;
    const void *block; /* that a ring passes on */
};
extern const struct zb_coll_ops zb_profile_coll_ops;

/* A thread and its device. */
struct zb_seat {
    struct zb_profile *p;
    int index;
    struct zb_thread thread;
    const struct zb_backend_ops *ops;
    struct zb_device *dev;
    struct zb_stream *stream;
    struct zb_profile_axes axes;
    void *scratch;  /* device memory freed when all have left, or NULL */
    double *result; /* [n_results]; NAN: not for this seat */
};

/* Run the job on every device; out[i] is the median over the seats of
 * result[i], NAN where no seat has one. The first error of any seat. */
enum zb_status zb_profile_run(const struct zb_profile_request *r,
                              enum zb_status (*job)(struct zb_seat *seat),
                              size_t n_results, double *out) ZB_CHECKED;

/* Wait for all seats. */
enum zb_status zb_seat_meet(struct zb_seat *s) ZB_CHECKED;
/* The same answer for all seats: whether the first one is before `end_ns`. Each
 * must meet once more before the next question. */
enum zb_status zb_seat_has_time(struct zb_seat *s, int64_t end_ns,
                                int *has_time_out) ZB_CHECKED;

/* ---- jobs ---------------------------------------------------------------- */

/* Times of each kind of layer, then of messages. */
enum { ZB_LAYER_F, ZB_LAYER_B, ZB_LAYER_W, ZB_LAYER_UPDATE, ZB_N_LAYER_TIMES };

/* Kind k's times are results [k * ZB_N_LAYER_TIMES, ...), then come the time of
 * an empty message and what the bytes of a boundary add. */
enum zb_status zb_profile_layers(struct zb_seat *s) ZB_CHECKED;
size_t zb_profile_n_layer_results(const struct zb_profile_request *r);
/* The two results of messages. */
enum zb_status zb_profile_messages(struct zb_seat *s,
                                   double result[2]) ZB_CHECKED;
/* Bytes of the message that is timed: of the most frequent kind of layer. */
size_t zb_profile_message_bytes(const struct zb_profile_request *r);

/* Results: operations per nanosecond of each form of product, of the model's
 * sizes; bytes per nanosecond; nanoseconds of a launch without work. */
enum zb_status zb_profile_rates(struct zb_seat *s) ZB_CHECKED;
#define ZB_N_RATES (ZB_N_PRODUCTS + 2)

#endif
