/* SPDX-License-Identifier: MIT
 *
 * Threads, waiting and stopping. The only place that knows pthreads and futex.
 *
 * Everything that waits takes the run's zb_abort: when any worker fails it
 * calls zb_abort_raise(), and every wait in the process returns ZB_EABORT.
 *
 *     struct zb_abort ab;
 *     zb_abort_init(&ab);
 *     ZB_TRY(zb_signal_wait(&sig, seen, &ab));      // a waiting worker
 *     zb_abort_raise(&ab, st, "stage 1, F chunk 0 ...");   // a failing one
 */
#ifndef ZB_THREAD_H
#define ZB_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "zb/status.h"

/* ---- threads ---------------------------------------------------------- */

struct zb_thread {
    pthread_t id;
    void (*fn)(void *arg);
    void *arg;
};

/* Start fn(arg). `t` must stay in place until zb_thread_join(). */
enum zb_status zb_thread_start(struct zb_thread *t, const char *name,
                               void (*fn)(void *arg), void *arg) ZB_CHECKED;
void zb_thread_join(struct zb_thread *t);

/* Nanoseconds of a monotonic clock. */
int64_t zb_now_ns(void);
void zb_sleep_ns(int64_t ns);
/* Until that clock shows `ns`; not at all when it is past. */
void zb_sleep_until_ns(int64_t ns);

/* ---- a counter one can wait for --------------------------------------- */

/* An event count. The writer publishes data, then bumps; a reader loads the
 * count, looks at the data, and waits for the count to move on if the data is
 * not there yet. No wake-up is lost. Any thread may do either. */
struct zb_signal {
    _Atomic uint32_t seq; /* release on bump, acquire on read */
    _Atomic uint32_t n_waiting;
};

void zb_signal_init(struct zb_signal *s);
uint32_t zb_signal_seq(const struct zb_signal *s);
void zb_signal_bump(struct zb_signal *s);

/* ---- stopping everyone ------------------------------------------------- */

#define ZB_ABORT_TEXT_MAX 1024

/* The first error of a run. `raised` is written once, after `st` and `text`
 * (release), and read by anyone (acquire). `mu` guards who is first. */
struct zb_abort {
    _Atomic int raised;
    pthread_mutex_t mu;
    enum zb_status st;
    char text[ZB_ABORT_TEXT_MAX];
};

void zb_abort_init(struct zb_abort *ab);
void zb_abort_release(struct zb_abort *ab);

/* Record the first error; later ones are ignored. All waits notice within
 * 50 ms. Any thread. */
void zb_abort_raise(struct zb_abort *ab, enum zb_status st, const char *text);
int zb_abort_is_raised(const struct zb_abort *ab);

/* Wait until the count differs from `seen`: spins briefly, then sleeps.
 * ZB_EABORT when `ab` (may be NULL) was raised. */
enum zb_status zb_signal_wait(struct zb_signal *s, uint32_t seen,
                              const struct zb_abort *ab) ZB_CHECKED;

/* The same, for at most `timeout_ns`: ZB_ETIMEOUT (without a text) after it. */
enum zb_status zb_signal_wait_for(struct zb_signal *s, uint32_t seen,
                                  const struct zb_abort *ab,
                                  int64_t timeout_ns) ZB_CHECKED;

/* ---- all wait for all --------------------------------------------------- */

struct zb_barrier {
    _Atomic uint32_t n_arrived;
    _Atomic uint32_t n_members;
    struct zb_signal turn;
};

void zb_barrier_init(struct zb_barrier *b, uint32_t n_members);

/* `n` members will never come, now or in later rounds. */
void zb_barrier_dismiss(struct zb_barrier *b, uint32_t n);

/* ZB_OK once all members have called it; everything a member wrote before is
 * visible to all after. ZB_EABORT when the run stops. Reusable. */
enum zb_status zb_barrier_wait(struct zb_barrier *b,
                               const struct zb_abort *ab) ZB_CHECKED;

#endif
