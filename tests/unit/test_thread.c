/* SPDX-License-Identifier: MIT */
#include "config.h"
#include <string.h>
#include "zb/thread.h"
#include "zbt.h"

#define N_THREADS 4
#define N_ROUNDS 200

struct shared {
    struct zb_barrier barrier;
    struct zb_abort ab;
    int slot[N_THREADS];
    _Atomic int n_bad;
};

struct member {
    struct shared *sh;
    int id;
    enum zb_status st;
};

/* Each round: write one's own slot, meet, read everyone's, meet. */
static void rounds_main(void *arg)
{
    struct member *m = arg;
    struct shared *sh = m->sh;

    for (int r = 0; r < N_ROUNDS && m->st == ZB_OK; r++) {
        sh->slot[m->id] = r;
        m->st = zb_barrier_wait(&sh->barrier, &sh->ab);
        for (int i = 0; i < N_THREADS; i++) {
            if (sh->slot[i] != r) {
                sh->n_bad++;
            }
        }
        if (m->st == ZB_OK) {
            m->st = zb_barrier_wait(&sh->barrier, &sh->ab);
        }
    }
}

static void barrier_publishes_writes_of_all_members(void)
{
    struct shared sh = {.n_bad = 0};
    struct zb_thread t[N_THREADS];
    struct member m[N_THREADS];

    zb_abort_init(&sh.ab);
    zb_barrier_init(&sh.barrier, N_THREADS);
    for (int i = 0; i < N_THREADS; i++) {
        m[i] = (struct member){.sh = &sh, .id = i};
        ZBT_OK(zb_thread_start(&t[i], "member", rounds_main, &m[i]));
    }
    for (int i = 0; i < N_THREADS; i++) {
        zb_thread_join(&t[i]);
        CU_ASSERT_EQUAL(m[i].st, ZB_OK);
    }
    CU_ASSERT_EQUAL(sh.n_bad, 0);
    zb_abort_release(&sh.ab);
}

static void lonely_main(void *arg)
{
    struct member *m = arg;

    m->st = zb_barrier_wait(&m->sh->barrier, &m->sh->ab);
}

static void abort_wakes_waiters_with_first_error(void)
{
    struct shared sh = {.n_bad = 0};
    struct zb_thread t;
    struct member m = {.sh = &sh};

    zb_abort_init(&sh.ab);
    zb_barrier_init(&sh.barrier, 2);
    ZBT_OK(zb_thread_start(&t, "lonely", lonely_main, &m));
    zb_abort_raise(&sh.ab, ZB_EDEVICE, "first");
    zb_abort_raise(&sh.ab, ZB_EIO, "second");
    zb_thread_join(&t);
    CU_ASSERT_EQUAL(m.st, ZB_EABORT);
    CU_ASSERT_EQUAL(sh.ab.st, ZB_EDEVICE);
    CU_ASSERT_STRING_EQUAL(sh.ab.text, "first");
    zb_abort_release(&sh.ab);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(barrier_publishes_writes_of_all_members),
        ZBT_CASE(abort_wakes_waiters_with_first_error),
    };
    return zbt_run("thread", cases, ZB_COUNT_OF(cases));
}
