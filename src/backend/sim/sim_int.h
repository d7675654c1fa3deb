/* SPDX-License-Identifier: MIT
 *
 * The sim backend: devices that compute nothing and only take the time that
 * they are told. Everything around them is the true runtime.
 *
 * A stream keeps two clocks. The first counts zb_now_ns(): spend() moves it on
 * by the cost and puts the calling thread to sleep until it is reached, as a
 * device that works at once would keep its thread. Only the first stream of a
 * device does that; the others go on by themselves, next to it, and who waits
 * for their events waits until they are due. Since a stream goes on from the
 * time its work was due, not from the time the thread woke up, threads that
 * wake a little late do not add up. Only the first work after the host waited
 * for the stream begins when it is enqueued.
 *
 * The second clock counts costs alone, from 0 on: an event carries it to the
 * streams that wait for it. After the first step of a session it is what the
 * order of the runtime's waits makes of the costs, whatever the machine did.
 *
 * Memory is address space that nobody may touch; what copy_out() brings is 0.
 *
 * Threads: as zb/backend.h says; an event's times may be read by any.
 */
#ifndef ZB_SIM_INT_H
#define ZB_SIM_INT_H

#include "zb/backend.h"

/* The second clock of a stream of this backend, nanoseconds. The stream's
 * thread, or any when that one rests. */
int64_t zb_sim_clock_ns(const struct zb_stream *stream);

#endif
