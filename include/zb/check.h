/* SPDX-License-Identifier: MIT
 *
 * The `check` backend: runs another backend late and proves that the program
 * ordered everything it relies on.
 *
 *     ZB_TRY(zb_backend_open("check", &opts, &be));    // check over cpu
 *     ... run ...
 *     for (i = 0; i < zb_check_reports(be); i++)
 *         puts(zb_check_report_text(be, i));
 *     zb_backend_close(be);
 *
 * Late: every stream is a bounded queue with a thread of its own, which sleeps
 * before about one operation in eight, for up to opts.max_delay_us (the
 * sequence of a stream depends on opts.seed, its device and its number only).
 * Host memory is really read and written then. The operations of one device
 * are executed one at a time, in the threads of its streams: the inner backend
 * sees a device used by one thread at a time, but not always by the same.
 * Memory of the inner backend must be memory the host can address.
 *
 * Proves: each operation gets a vector clock when it is enqueued, from the
 * clock of its stream, of its host thread (what it has synchronised with) and
 * of the events the stream waited for. Every range remembers its last writer
 * and the readers since; a conflicting access that its clock does not cover is
 * reported. Delays and real execution have no part in that: a missing event is
 * reported on every run, at the call that enqueues the second access, and that
 * operation is not executed. The reports:
 *
 *   race       two accesses, at least one of them writing, that no event or
 *              synchronisation orders;
 *   unwritten  a read of bytes not written since mem_alloc() or discard() (the
 *              bytes are NaN);
 *   freed      an access to memory that was freed, or a free of memory whose
 *              users nobody has waited for;
 *   stray      an access that does not lie within one allocation;
 *   foreign    a call from a thread that does not own the object (a device may
 *              be closed by any thread);
 *   host       host memory touched, or the source of copy_in() changed, while
 *              a copy was in flight;
 *   misuse     an object used after its release, an event recorded on another
 *              device's stream, a device closed with live objects.
 *
 * Not seen: order that host threads give each other without an event. So work
 * on memory of another device needs an event between the two, also when the
 * owner has synchronised before it handed the memory over. Only for freeing
 * memory and for host memory is it enough that any host thread has waited.
 *
 * After the first report every call on the backend returns ZB_EDEVICE with its
 * text, nothing queued is executed any more, and accesses are still checked.
 * A failing inner operation poisons its device: nothing more is executed there
 * and each later event_sync() and stream_sync() of it returns ZB_EDEVICE with
 * the operation's label and node. No wait lasts longer than the inner
 * operations in front of it; zb_backend_close() drops what is still queued.
 */
#ifndef ZB_CHECK_H
#define ZB_CHECK_H

#include <stddef.h>
#include <stdint.h>

#include "zb/backend.h"

#define ZB_CHECK_MAX_STREAMS 256
#define ZB_CHECK_MAX_REPORTS 64

/* Like zb_backend_open("check"), over any table of inner functions (borrowed
 * until close). Before the workers start. */
enum zb_status zb_check_open_over(const struct zb_backend_ops *inner,
                                  const struct zb_backend_opts *opts,
                                  struct zb_backend **be_out) ZB_CHECKED;

/* The functions below take any backend: one that is not `check` has no
 * reports, no counts, and ignores faults. Any thread. */

/* How many reports there were, and the text of report i < both that number and
 * ZB_CHECK_MAX_REPORTS (else NULL), valid until close. */
size_t zb_check_reports(const struct zb_backend *be);
const char *zb_check_report_text(const struct zb_backend *be, size_t i);

/* Calls so far, dropped and failed ones included. */
uint64_t zb_check_n_waits(const struct zb_backend *be);
uint64_t zb_check_n_launches(const struct zb_backend *be);

/* ---- seeded faults, for tests ------------------------------------------- */

/* Which call a fault hits: the k-th (from 1, counted from when the fault is
 * set) of those on `device` (-1: any) whose node contains `node` (NULL: any;
 * borrowed until close). k = 0: none. */
struct zb_check_target {
    uint64_t k;
    int device;
    const char *node;
};

/* Ignore the stream_wait() that `target` names: as if the program lacked it. */
void zb_check_drop_wait(struct zb_backend *be,
                        const struct zb_check_target *target);

/* Let the launch that `target` names fail when its turn comes. */
void zb_check_fail_launch(struct zb_backend *be,
                          const struct zb_check_target *target);

/* How many faults were set and have hit their call. */
int zb_check_faults_hit(const struct zb_backend *be);

#endif
