/* SPDX-License-Identifier: MIT
 *
 * Groups of devices: the time that simulated ones take, members that fail or do
 * not come, and what is allocated. */
#include "config.h"

#include <string.h>

#include "backend/sim/sim_int.h"
#include "coll_rig.h"
#include "zb/mem.h"

#define LONGEST_S 1.0
#define N 200

static struct zb_coll all_reduce_of(const struct coll_rig_member *m,
                                    int in_place)
{
    return (struct zb_coll){.kind = ZB_COLL_ALL_REDUCE,
                            .dtype = ZB_DTYPE_REAL,
                            .outer = 1,
                            .inner = N,
                            .src = m->src[0],
                            .dst = in_place ? m->src[0] : m->dst[0],
                            .label = "one"};
}

static enum zb_status fill(struct coll_rig_member *m)
{
    return coll_rig_put(m, m->src[0], m->host, N);
}

/* ---- simulated devices --------------------------------------------------- */

#define MS 1000000

/* 10 ms of reduce_scatter on the second stream: 1 ms and 36000 bytes of 250 ns.
 * Computation of 20 ms comes before its end, or after. */
static enum zb_status reduce_and_compute(struct coll_rig_member *m)
{
    const int *is_hidden = m->r->arg;
    struct zb_coll_group *g = m->r->g;
    const struct zb_coll c = {.kind = ZB_COLL_REDUCE_SCATTER,
                              .dtype = ZB_DTYPE_F64,
                              .outer = 1,
                              .inner = 36000 / 8 / m->r->n,
                              .src = m->src[0],
                              .dst = m->dst[0],
                              .label = "gradients"};

    ZB_TRY(zb_coll_start(g, m->rank, m->stream[0], &c));
    ZB_TRY(zb_coll_work(g, m->rank, m->stream[1], 0, NULL));
    m->n_wrong += zb_sim_clock_ns(m->stream[1]) != 10 * MS;
    m->n_wrong += zb_sim_clock_ns(m->stream[0]) != 0;
    if (*is_hidden) {
        ZB_TRY(m->r->ops->spend(m->stream[0], 20 * MS));
    }
    ZB_TRY(zb_coll_finish(g, m->rank, m->stream[0]));
    if (!*is_hidden) {
        ZB_TRY(m->r->ops->spend(m->stream[0], 20 * MS));
    }
    m->n_wrong +=
        zb_sim_clock_ns(m->stream[0]) != (*is_hidden ? 20 * MS : 30 * MS);
    return ZB_OK;
}

static void simulated_reduction_hides_under_computation(void)
{
    for (int is_hidden = 0; is_hidden < 2; is_hidden++) {
        struct coll_rig r;

        coll_rig_open(&r, "sim", 3, 1, 0, 1);
        r.arg = &is_hidden;
        coll_rig_run(&r, reduce_and_compute);
        CU_ASSERT(coll_rig_is_fine(&r));
        coll_rig_close(&r);
    }
}

/* Members that are ready at 0, 20 and 40 ms: all are done 10 ms later. */
static enum zb_status arrive_late(struct coll_rig_member *m)
{
    const struct zb_coll c = {.kind = ZB_COLL_ALL_REDUCE,
                              .dtype = ZB_DTYPE_F64,
                              .outer = 1,
                              .inner = 36000 / 8,
                              .src = m->src[0],
                              .dst = m->src[0],
                              .label = "activations"};

    ZB_TRY(m->r->ops->spend(m->stream[0], m->rank * 20 * MS));
    ZB_TRY(zb_coll_run(m->r->g, m->rank, m->stream[0], &c));
    m->n_wrong += zb_sim_clock_ns(m->stream[0]) != 50 * MS;
    return ZB_OK;
}

static void simulated_reduction_waits_for_the_last(void)
{
    struct coll_rig r;

    coll_rig_open(&r, "sim", 3, 1, 0, 1);
    coll_rig_run(&r, arrive_late);
    CU_ASSERT(coll_rig_is_fine(&r));
    coll_rig_close(&r);
}

/* ---- stopping ------------------------------------------------------------ */

/* The last member does not go past phase t->phase; the others come to where
 * they need it. phase 3: a step of a ring, 4: its end. */
struct stop {
    int phase;
    int64_t raised_ns;
};

static enum zb_status wait_for_the_last(struct coll_rig_member *m)
{
    struct stop *t = m->r->arg;
    struct zb_coll_group *g = m->r->g;
    const struct zb_coll c = all_reduce_of(m, t->phase == 1);
    int is_last = m->rank == m->r->n - 1;
    struct zb_stream *s = m->stream[0];
    const void *block;

    ZB_TRY(fill(m));
    if (is_last && t->phase != 0 && t->phase < 3) {
        ZB_TRY(zb_coll_start(g, m->rank, s, &c));
    } else if (is_last && t->phase == 4) {
        ZB_TRY(zb_ring_begin(g, m->rank, s, m->src[0], 8, "ring"));
    }
    if (is_last) {
        zb_sleep_ns(20000000);
        t->raised_ns = zb_now_ns();
        zb_abort_raise(&m->r->ab, ZB_EDEVICE, "the last one failed");
        return ZB_EABORT;
    }
    if (t->phase < 3) {
        return zb_coll_run(g, m->rank, s, &c);
    }
    ZB_TRY(zb_ring_begin(g, m->rank, s, m->src[0], 8, "ring"));
    if (t->phase == 3) {
        for (int step = 0; step < m->r->n; step++) {
            ZB_TRY(zb_ring_step(g, m->rank, s, step, &block));
        }
    }
    return zb_ring_end(g, m->rank, s);
}

static void abort_wakes_whoever_waits_in_any_phase(void)
{
    static const char *const backend[] = {"cpu", "check"};

    for (int phase = 0; phase < 5; phase++) {
        for (size_t b = 0; b < ZB_COUNT_OF(backend); b++) {
            struct stop t = {.phase = phase};
            struct coll_rig r;

            coll_rig_open(&r, backend[b], 4, 1, 0, 1);
            r.arg = &t;
            coll_rig_run(&r, wait_for_the_last);
            CU_ASSERT((double)(zb_now_ns() - t.raised_ns) * 1e-9 < LONGEST_S);
            for (int i = 0; i < r.n; i++) {
                CU_ASSERT_EQUAL(r.member[i].st, ZB_EABORT);
            }
            CU_ASSERT_EQUAL(coll_rig_close(&r), 0);
        }
    }
}

static enum zb_status run_three(struct coll_rig_member *m)
{
    for (int i = 0; i < 3; i++) {
        const struct zb_coll c = all_reduce_of(m, i % 2);

        ZB_TRY(fill(m));
        ZB_TRY(zb_coll_run(m->r->g, m->rank, m->stream[0], &c));
        if (i == 1) {
            const void *block;

            ZB_TRY(zb_ring_begin(m->r->g, m->rank, m->stream[0], m->src[0], 8,
                                 "ring"));
            ZB_TRY(zb_ring_step(m->r->g, m->rank, m->stream[0], 0, &block));
            ZB_TRY(zb_ring_end(m->r->g, m->rank, m->stream[0]));
        }
    }
    return ZB_OK;
}

static void member_that_fails_stops_all(void)
{
    static const char *const name[] = {"start", "work", "finish"};

    for (int phase = 0; phase < 3; phase++) {
        for (int k = 1; k <= 4; k++) {
            struct coll_rig r;

            coll_rig_open(&r, "cpu", 3, 1, 0, 1);
            zb_coll_fail_at(r.g, 1, k, phase);
            coll_rig_run(&r, run_three);
            CU_ASSERT_EQUAL(r.member[1].st, ZB_EDEVICE);
            CU_ASSERT_PTR_NOT_NULL(strstr(r.member[1].text, name[phase]));
            CU_ASSERT_PTR_NOT_NULL(strstr(r.member[1].text, "group: member 1"));
            /* In the last phase of the last one nobody needs it any more. */
            CU_ASSERT(r.member[0].st == ZB_EABORT || (phase == 2 && k == 4));
            CU_ASSERT(r.member[2].st == ZB_EABORT || (phase == 2 && k == 4));
            coll_rig_close(&r);
        }
    }
}

static void fault_asked_for_later_does_not_happen(void)
{
    struct coll_rig r;

    coll_rig_open(&r, "cpu", 3, 1, 0, 1);
    zb_coll_fail_at(r.g, 1, 5, 1);
    zb_coll_fail_at(r.g, 2, 1, 1);
    zb_coll_fail_at(r.g, 2, 0, 0);
    coll_rig_run(&r, run_three);
    CU_ASSERT(coll_rig_is_fine(&r));
    CU_ASSERT_STRING_EQUAL(zb_coll_group_name(r.g), "group");
    CU_ASSERT_EQUAL(zb_coll_group_size(r.g), 3);
    coll_rig_close(&r);
}

static enum zb_status join_alone(struct zb_coll_group_opts *o,
                                 struct zb_backend *be)
{
    struct zb_coll_group *g = NULL;
    struct zb_device *dev = NULL;
    struct zb_abort ab;
    enum zb_status st;

    zb_abort_init(&ab);
    ZB_TRY_GOTO(st, zb_coll_group_new(o, &ab, &g), out);
    ZB_TRY_GOTO(st, o->ops->device_open(be, 0, &dev), out);
    st = zb_coll_join(g, 0, dev);
    zb_coll_leave(g, 0);
out:
    o->ops->device_close(dev);
    zb_coll_group_free(g);
    zb_abort_release(&ab);
    return st;
}

static void failing_kth_allocation_leaves_nothing(void)
{
    const struct zb_backend_opts bo = {.n_devices = 1, .threads_per_device = 1};
    struct zb_coll_group_opts o = {
        .name = "g", .n_members = 3, .n_under_way = 2};
    struct zb_backend *be;
    int64_t live;

    ZBT_OK(zb_backend_open("cpu", &bo, &be));
    o.ops = be->ops;
    live = zb_mem_live();
    for (uint64_t k = 1;; k++) {
        enum zb_status st;
        int failed;

        zb_mem_fail_at(k);
        st = join_alone(&o, be);
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        CU_ASSERT_EQUAL(st, failed ? ZB_ENOMEM : ZB_OK);
        CU_ASSERT_EQUAL_FATAL(zb_mem_live(), live);
        if (!failed) {
            break;
        }
    }
    o.n_members = 0;
    CU_ASSERT_EQUAL(join_alone(&o, be), ZB_EINVAL);
    zb_backend_close(be);
}

static enum zb_status count_allocations(struct coll_rig_member *m)
{
    uint64_t before;

    ZB_TRY(zb_barrier_wait(&m->r->barrier, &m->r->ab));
    before = zb_mem_count();
    for (int round = 0; round < 5; round++) {
        const struct zb_coll c = all_reduce_of(m, round % 2);

        ZB_TRY(fill(m));
        ZB_TRY(zb_coll_run(m->r->g, m->rank, m->stream[0], &c));
    }
    m->n_wrong += zb_mem_count() != before;
    return zb_barrier_wait(&m->r->barrier, &m->r->ab);
}

static void steady_state_allocates_nothing(void)
{
    struct coll_rig r;

    coll_rig_open(&r, "cpu", 4, 2, 0, 1);
    coll_rig_run(&r, count_allocations);
    CU_ASSERT(coll_rig_is_fine(&r));
    coll_rig_close(&r);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(simulated_reduction_hides_under_computation),
        ZBT_CASE(simulated_reduction_waits_for_the_last),
        ZBT_CASE(abort_wakes_whoever_waits_in_any_phase),
        ZBT_CASE(member_that_fails_stops_all),
        ZBT_CASE(fault_asked_for_later_does_not_happen),
        ZBT_CASE(failing_kth_allocation_leaves_nothing),
        ZBT_CASE(steady_state_allocates_nothing),
    };

    return zbt_run("coll stop", cases, ZB_COUNT_OF(cases));
}
