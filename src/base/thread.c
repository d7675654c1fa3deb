/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zb/thread.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A stage usually waits much longer than a futex call takes, and stages may
 * outnumber cores, so spinning is kept to about a microsecond. */
#define SPIN_TURNS 200
/* A sleeping waiter looks at the abort flag this often. */
#define SLEEP_NS 50000000

static void *thread_main(void *arg)
{
    struct zb_thread *t = arg;

    t->fn(t->arg);
    return NULL;
}

enum zb_status zb_thread_start(struct zb_thread *t, const char *name,
                               void (*fn)(void *arg), void *arg)
{
    int err;

    t->fn = fn;
    t->arg = arg;
    err = pthread_create(&t->id, NULL, thread_main, t);
    if (err != 0) {
        return zb_fail(ZB_ENOMEM, "cannot start thread %s: %s", name,
                       strerror(err));
    }
    char shortened[16]; /* the kernel's limit */
    snprintf(shortened, sizeof(shortened), "%s", name);
    pthread_setname_np(t->id, shortened);
    return ZB_OK;
}

void zb_thread_join(struct zb_thread *t)
{
    pthread_join(t->id, NULL);
}

int64_t zb_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

void zb_sleep_ns(int64_t ns)
{
    struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000),
                          .tv_nsec = (long)(ns % 1000000000)};

    while (nanosleep(&ts, &ts) != 0 && errno == EINTR) {
    }
}

void zb_sleep_until_ns(int64_t ns)
{
    const struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000),
                                .tv_nsec = (long)(ns % 1000000000)};

    while (zb_now_ns() < ns && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME,
                                               &ts, NULL) == EINTR) {
    }
}

void zb_signal_init(struct zb_signal *s)
{
    atomic_init(&s->seq, 0);
    atomic_init(&s->n_waiting, 0);
}

uint32_t zb_signal_seq(const struct zb_signal *s)
{
    return atomic_load_explicit(&s->seq, memory_order_acquire);
}

void zb_signal_bump(struct zb_signal *s)
{
    /* seq_cst: the bump and the look at n_waiting must not be reordered, or a
     * waiter that has just announced itself would sleep through it. */
    atomic_fetch_add(&s->seq, 1);
    if (atomic_load(&s->n_waiting) > 0) {
        syscall(SYS_futex, &s->seq, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
}

enum zb_status zb_signal_wait_for(struct zb_signal *s, uint32_t seen,
                                  const struct zb_abort *ab,
                                  int64_t timeout_ns)
{
    int64_t end =
        timeout_ns == INT64_MAX ? INT64_MAX : zb_now_ns() + timeout_ns;
    enum zb_status st = ZB_OK;

    atomic_fetch_add(&s->n_waiting, 1);
    while (atomic_load(&s->seq) == seen) {
        int64_t left = end == INT64_MAX ? SLEEP_NS : end - zb_now_ns();
        const struct timespec nap = {
            .tv_sec = 0, .tv_nsec = left < SLEEP_NS ? (long)left : SLEEP_NS};

        if (ab != NULL && zb_abort_is_raised(ab)) {
            st = ZB_EABORT;
            break;
        }
        if (left <= 0) {
            st = ZB_ETIMEOUT;
            break;
        }
        syscall(SYS_futex, &s->seq, FUTEX_WAIT_PRIVATE, seen, &nap, NULL, 0);
    }
    atomic_fetch_sub(&s->n_waiting, 1);
    return st;
}

enum zb_status zb_signal_wait(struct zb_signal *s, uint32_t seen,
                              const struct zb_abort *ab)
{
    for (int i = 0; i < SPIN_TURNS; i++) {
        if (zb_signal_seq(s) != seen) {
            return ZB_OK;
        }
    }
    return zb_signal_wait_for(s, seen, ab, INT64_MAX);
}

void zb_abort_init(struct zb_abort *ab)
{
    memset(ab, 0, sizeof(*ab));
    atomic_init(&ab->raised, 0);
    pthread_mutex_init(&ab->mu, NULL);
}

void zb_abort_release(struct zb_abort *ab)
{
    pthread_mutex_destroy(&ab->mu);
}

void zb_abort_raise(struct zb_abort *ab, enum zb_status st, const char *text)
{
    pthread_mutex_lock(&ab->mu);
    if (!zb_abort_is_raised(ab)) {
        ab->st = st;
        snprintf(ab->text, sizeof(ab->text), "%s", text);
        atomic_store_explicit(&ab->raised, 1, memory_order_release);
    }
    pthread_mutex_unlock(&ab->mu);
}

int zb_abort_is_raised(const struct zb_abort *ab)
{
    return atomic_load_explicit(&ab->raised, memory_order_acquire);
}

void zb_barrier_init(struct zb_barrier *b, uint32_t n_members)
{
    atomic_init(&b->n_arrived, 0);
    atomic_init(&b->n_members, n_members);
    zb_signal_init(&b->turn);
}

/* Open the gate if everyone is there; one caller alone succeeds. */
static int barrier_try_open(struct zb_barrier *b)
{
    uint32_t all = atomic_load(&b->n_members);

    if (all == 0 || !atomic_compare_exchange_strong(&b->n_arrived, &all, 0)) {
        return 0;
    }
    zb_signal_bump(&b->turn);
    return 1;
}

void zb_barrier_dismiss(struct zb_barrier *b, uint32_t n)
{
    atomic_fetch_sub(&b->n_members, n);
    barrier_try_open(b);
}

enum zb_status zb_barrier_wait(struct zb_barrier *b, const struct zb_abort *ab)
{
    uint32_t turn = zb_signal_seq(&b->turn);

    atomic_fetch_add(&b->n_arrived, 1);
    if (barrier_try_open(b)) {
        return ZB_OK;
    }
    return zb_signal_wait(&b->turn, turn, ab);
}
