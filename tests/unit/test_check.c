/* SPDX-License-Identifier: MIT
 *
 * Every kind of report is made to happen by a seeded fault, and a correct
 * program gets none. The rig's devices belong to the thread of the test.
 */
#include "config.h"

#include <math.h>
#include <string.h>

#include "check_rig.h"
#include "zb/mem.h"
#include "zb/thread.h"
#include "zbt.h"

#define N_SEEDS 20
#define N RIG_ELEMS
#define BYTES (N * sizeof(zb_real))

/* ---- a program that orders everything ----------------------------------- */

/* x0 comes in, y0 = 2 x0, device 1 adds it up in x1 = y1 + y0, out again; both
 * directions are ordered, so that the next round may reuse all of it. */
static enum zb_status play_round(struct rig *r, const zb_real *in, zb_real *out)
{
    struct zb_stream *io = r->s[0][0], *work = r->s[0][1], *far = r->s[1][0];
    struct zb_stream *back = r->s[1][1];

    ZB_TRY(r->ops->copy_in(io, r->x[0], in, BYTES, "in"));
    ZB_TRY(rig_order(r, 0, io, work));
    ZB_TRY(rig_add(r, work, "twice", r->y[0], r->x[0], r->x[0], N));
    ZB_TRY(rig_order(r, 0, work, far));
    ZB_TRY(rig_fill(r, far, "ones", r->y[1], N, 1));
    ZB_TRY(rig_add(r, far, "sum", r->x[1], r->y[1], r->y[0], N));
    ZB_TRY(r->ops->discard(far, r->y[1], BYTES));
    ZB_TRY(rig_order(r, 1, far, back));
    ZB_TRY(r->ops->copy_out(back, out, r->x[1], BYTES, "out"));
    ZB_TRY(rig_order(r, 1, back, io));
    ZB_TRY(rig_order(r, 1, back, far));
    return r->ops->event_sync(r->ev[1]);
}

static enum zb_status play(struct rig *r, int n_rounds, int *n_wrong)
{
    zb_real in[N], out[N];

    for (int round = 0; round < n_rounds; round++) {
        enum zb_status st;

        ZB_TRY(r->ops->host_access(r->dev[0], in, BYTES, ZB_WRITE));
        for (int i = 0; i < N; i++) {
            in[i] = (zb_real)(round + i);
        }
        st = play_round(r, in, out);
        if (st != ZB_OK) {
            rig_settle(r); /* copies may still be at work on in and out */
            return st;
        }
        ZB_TRY(r->ops->host_access(r->dev[1], out, BYTES, ZB_READ));
        for (int i = 0; i < N; i++) {
            *n_wrong += out[i] != (zb_real)(1 + 2 * (round + i));
        }
    }
    return ZB_OK;
}

static void ordered_program_under_all_seeds_has_no_report(void)
{
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
        struct rig r;
        int n_wrong = 0;

        rig_open(&r, seed, 100);
        ZBT_OK(play(&r, 8, &n_wrong));
        CU_ASSERT_EQUAL(n_wrong, 0);
        CU_ASSERT_FALSE(rig_has_overlap());
        CU_ASSERT_EQUAL(rig_close(&r), 0);
    }
}

/* The first three waits of a round are needed; the host's wait at its end does
 * what the last two do. The delays have no part in that. */
static void dropped_wait_is_reported_on_every_run(void)
{
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
        for (uint64_t k = 1; k <= 5; k++) {
            const struct zb_check_target t = {.k = k, .device = -1};
            struct rig r;
            int n_wrong = 0;

            rig_open(&r, seed, 20);
            zb_check_drop_wait(r.be, &t);
            CU_ASSERT_EQUAL(play(&r, 2, &n_wrong), k <= 3 ? ZB_EDEVICE : ZB_OK);
            CU_ASSERT_EQUAL(zb_check_reports(r.be) > 0, k <= 3);
            CU_ASSERT_EQUAL(zb_check_faults_hit(r.be), 1);
            CU_ASSERT_EQUAL(n_wrong, 0);
            rig_close(&r);
        }
    }
}

/* ---- races -------------------------------------------------------------- */

static void write_after_write_unordered_is_reported_with_both_sides(void)
{
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
        struct rig r;

        rig_open(&r, seed, 50);
        r.ops->stream_mark(r.s[0][0], "stage 0 F chunk 0 mb 1");
        r.ops->stream_mark(r.s[0][1], "stage 0 B chunk 1 mb 0");
        ZBT_OK(rig_fill(&r, r.s[0][0], "first", r.x[0], N, 1));
        CU_ASSERT_EQUAL(rig_fill(&r, r.s[0][1], "writer", r.x[0] + 3, 2, 0),
                        ZB_EDEVICE);
        CU_ASSERT(rig_reported(&r, "race: write of bytes 12 to 20 of \"x\"",
                               "by \"writer\" (node \"stage 0 B chunk 1 mb 0\""
                               ", stream \"s1\" of device 0)",
                               "is not ordered after its write by \"first\" "
                               "(node \"stage 0 F chunk 0 mb 1\", stream "
                               "\"s0\" of device 0)"));
        rig_close(&r);
    }
}

static void read_after_write_unordered_is_reported(void)
{
    struct rig r;

    rig_open(&r, 1, 50);
    ZBT_OK(rig_fill(&r, r.s[0][0], "first", r.x[0], N, 1));
    CU_ASSERT_EQUAL(rig_copy(&r, r.s[1][0], "far reader", r.y[1], r.x[0], N),
                    ZB_EDEVICE);
    CU_ASSERT(rig_reported(&r, "race: read of", "\"far reader\"",
                           "its write by \"first\""));
    rig_close(&r);
}

static void write_after_two_readers_names_the_unordered_one(void)
{
    struct rig r;

    rig_open(&r, 1, 50);
    ZBT_OK(rig_fill(&r, r.s[0][0], "first", r.x[0], N, 1));
    ZBT_OK(rig_order(&r, 0, r.s[0][0], r.s[0][1]));
    ZBT_OK(rig_order(&r, 0, r.s[0][0], r.s[1][0]));
    ZBT_OK(rig_copy(&r, r.s[0][1], "near", r.y[0], r.x[0], N));
    ZBT_OK(rig_copy(&r, r.s[1][0], "far", r.y[1], r.x[0], N));
    ZBT_OK(rig_order(&r, 0, r.s[0][1], r.s[0][0]));
    CU_ASSERT_EQUAL(rig_fill(&r, r.s[0][0], "again", r.x[0], N, 1), ZB_EDEVICE);
    CU_ASSERT(
        rig_reported(&r, "race: write of", "\"again\"", "its read by \"far\""));
    rig_close(&r);
}

static void order_through_a_third_stream_is_enough(void)
{
    struct rig r;

    rig_open(&r, 1, 50);
    ZBT_OK(rig_fill(&r, r.s[0][0], "first", r.x[0], N, 1));
    ZBT_OK(rig_order(&r, 0, r.s[0][0], r.s[1][0]));
    ZBT_OK(rig_order(&r, 1, r.s[1][0], r.s[1][1]));
    ZBT_OK(rig_copy(&r, r.s[1][1], "far", r.y[1], r.x[0], N));
    ZBT_OK(r.ops->stream_sync(r.s[1][1]));
    /* The host has waited for the reader: that orders all it does next. */
    ZBT_OK(rig_fill(&r, r.s[0][1], "again", r.x[0], N, 1));
    CU_ASSERT_EQUAL(rig_close(&r), 0);
}

static void disjoint_parts_need_no_order(void)
{
    struct rig r;

    rig_open(&r, 1, 50);
    ZBT_OK(rig_fill(&r, r.s[0][0], "left", r.x[0], N / 2, 1));
    ZBT_OK(rig_fill(&r, r.s[0][1], "right", r.x[0] + N / 2, N / 2, 2));
    CU_ASSERT_EQUAL(rig_close(&r), 0);
}

/* ---- unwritten ---------------------------------------------------------- */

static void read_of_fresh_bytes_is_reported(void)
{
    struct rig r;

    rig_open(&r, 1, 0);
    ZBT_OK(rig_fill(&r, r.s[0][0], "most", r.x[0], N - 1, 1));
    CU_ASSERT_EQUAL(rig_copy(&r, r.s[0][0], "eager", r.y[0], r.x[0], N),
                    ZB_EDEVICE);
    CU_ASSERT(rig_reported(&r, "unwritten: \"eager\"", "bytes 252 to 256",
                           "which nothing has written"));
    rig_close(&r);
}

static void update_of_fresh_bytes_is_reported(void)
{
    struct rig r;

    rig_open(&r, 1, 0);
    ZBT_OK(rig_fill(&r, r.s[0][0], "x", r.x[0], N, 1));
    CU_ASSERT_EQUAL(rig_add(&r, r.s[0][0], "sum", r.y[0], r.y[0], r.x[0], N),
                    ZB_EDEVICE);
    CU_ASSERT(rig_reported(&r, "unwritten", "\"sum\"", "\"y\""));
    rig_close(&r);
}

static void read_after_discard_is_reported(void)
{
    struct rig r;

    rig_open(&r, 1, 0);
    ZBT_OK(rig_fill(&r, r.s[0][0], "x", r.x[0], N, 1));
    r.ops->stream_mark(r.s[0][0], "the end of mb 7");
    ZBT_OK(r.ops->discard(r.s[0][0], r.x[0] + 8, 16));
    ZBT_OK(rig_copy(&r, r.s[0][0], "kept part", r.y[0], r.x[0], 8));
    CU_ASSERT_EQUAL(rig_copy(&r, r.s[0][0], "late", r.y[0], r.x[0], 9),
                    ZB_EDEVICE);
    CU_ASSERT(rig_reported(&r, "unwritten: \"late\"", "since \"discard\"",
                           "the end of mb 7"));
    rig_close(&r);
}

static void discard_unordered_with_reader_is_a_race(void)
{
    struct rig r;

    rig_open(&r, 1, 0);
    ZBT_OK(rig_fill(&r, r.s[0][0], "x", r.x[0], N, 1));
    ZBT_OK(rig_order(&r, 0, r.s[0][0], r.s[0][1]));
    ZBT_OK(rig_copy(&r, r.s[0][1], "reader", r.y[0], r.x[0], N));
    CU_ASSERT_EQUAL(r.ops->discard(r.s[0][0], r.x[0], BYTES), ZB_EDEVICE);
    CU_ASSERT(rig_reported(&r, "race: discard of", "\"discard\"",
                           "its read by \"reader\""));
    rig_close(&r);
}

static void fresh_and_discarded_bytes_are_nan(void)
{
    struct rig r;

    rig_open(&r, 1, 0);
    CU_ASSERT(isnan(r.y[0][0]) && isnan(r.y[0][N - 1]));
    ZBT_OK(rig_fill(&r, r.s[0][0], "x", r.x[0], N, 1));
    ZBT_OK(r.ops->discard(r.s[0][0], r.x[0], BYTES / 2));
    ZBT_OK(r.ops->stream_sync(r.s[0][0]));
    CU_ASSERT(isnan(r.x[0][0]) && isnan(r.x[0][N / 2 - 1]));
    CU_ASSERT_EQUAL(r.x[0][N / 2], 1);
    CU_ASSERT_EQUAL(rig_close(&r), 0);
}

/* ---- freed and stray ---------------------------------------------------- */

static void use_after_free_is_reported(void)
{
    struct rig r;
    zb_real *gone;

    rig_open(&r, 1, 0);
    gone = r.y[0];
    r.ops->mem_free(r.dev[0], r.y[0]);
    r.y[0] = NULL;
    CU_ASSERT_EQUAL(rig_fill(&r, r.s[1][0], "late", gone + 1, 2, 1),
                    ZB_EDEVICE);
    CU_ASSERT(rig_reported(&r, "freed: \"late\"", "bytes 4 to 12 of \"y\"",
                           "which was freed"));
    rig_close(&r);
}

static void free_in_flight_is_reported(void)
{
    struct rig r;

    rig_open(&r, 1, 50);
    ZBT_OK(rig_stop(&r, r.s[0][0], "gate"));
    ZBT_OK(rig_fill(&r, r.s[0][0], "user", r.y[0], N, 1));
    r.ops->mem_free(r.dev[0], r.y[0]);
    r.y[0] = NULL;
    CU_ASSERT(rig_reported(&r, "freed: free of", "mem_free()",
                           "its write by \"user\""));
    rig_open_gate();
    CU_ASSERT_EQUAL(r.ops->stream_sync(r.s[0][0]), ZB_EDEVICE);
    rig_close(&r);
}

static void memory_given_out_again_is_fresh(void)
{
    struct rig r;
    void *p;

    rig_open(&r, 1, 0);
    for (int i = 0; i < 100; i++) {
        size_t n = (size_t)(1 + i * 7 % 50);

        ZBT_OK(r.ops->mem_alloc(r.dev[0], n * sizeof(zb_real), "again", &p));
        ZBT_OK(rig_fill(&r, r.s[0][0], "use", p, (int64_t)n, 1));
        ZBT_OK(r.ops->stream_sync(r.s[0][0]));
        r.ops->mem_free(r.dev[0], p);
    }
    ZBT_OK(r.ops->mem_alloc(r.dev[0], BYTES, "last", &p));
    CU_ASSERT_EQUAL(rig_copy(&r, r.s[0][0], "eager", r.y[0], p, 1), ZB_EDEVICE);
    CU_ASSERT(rig_reported(&r, "unwritten", "\"eager\"", "\"last\""));
    r.ops->mem_free(r.dev[0], p);
    rig_close(&r);
}

static void access_past_the_end_is_reported(void)
{
    struct rig r;

    rig_open(&r, 1, 0);
    CU_ASSERT_EQUAL(rig_fill(&r, r.s[0][0], "long", r.x[0] + 1, N, 1),
                    ZB_EDEVICE);
    CU_ASSERT(rig_reported(&r, "stray: \"long\"", "bytes 4 to 260 of \"x\"",
                           "only 256 bytes"));
    rig_close(&r);
}

static void access_to_host_memory_is_reported(void)
{
    struct rig r;
    zb_real mine[4];

    rig_open(&r, 1, 0);
    CU_ASSERT_EQUAL(rig_fill(&r, r.s[0][0], "lost", mine, 4, 1), ZB_EDEVICE);
    CU_ASSERT(rig_reported(&r, "stray: \"lost\"", "no allocation", ""));
    rig_close(&r);
}

/* ---- foreign threads ---------------------------------------------------- */

static void foreign_main(void *arg)
{
    struct rig *r = arg;

    CU_ASSERT_EQUAL(rig_fill(r, r->s[0][0], "theirs", r->x[0], N, 1),
                    ZB_EDEVICE);
}

static void launch_by_foreign_thread_is_reported(void)
{
    struct rig r;
    struct zb_thread t;

    rig_open(&r, 1, 0);
    ZBT_OK(zb_thread_start(&t, "foreign", foreign_main, &r));
    zb_thread_join(&t);
    CU_ASSERT(rig_reported(&r, "foreign: launch()", "device 0", ""));
    rig_close(&r);
}

struct far_wait {
    struct rig *r;
    enum zb_status st;
};

/* Opens device 1 itself, and waits there for an event of device 0. */
static void far_wait_main(void *arg)
{
    struct far_wait *f = arg;
    const struct zb_backend_ops *ops = f->r->ops;
    struct zb_device *dev;
    struct zb_stream *s;

    ZBT_OK(ops->device_open(f->r->be, 1, &dev));
    ZBT_OK(ops->stream_new(dev, "far", &s));
    f->st = ops->stream_wait(s, f->r->ev[0]);
    ops->stream_free(s);
    ops->device_close(dev);
}

static void wait_for_event_of_other_device_is_not_foreign(void)
{
    struct rig r;
    struct far_wait f = {.r = &r};
    struct zb_thread t;

    rig_open(&r, 1, 0);
    for (int i = 0; i < RIG_STREAMS; i++) {
        r.ops->stream_free(r.s[1][i]);
        r.s[1][i] = NULL;
    }
    r.ops->mem_free(r.dev[1], r.x[1]);
    r.ops->mem_free(r.dev[1], r.y[1]);
    r.ops->event_free(r.ev[1]);
    r.ops->device_close(r.dev[1]);
    r.dev[1] = NULL;
    ZBT_OK(r.ops->event_record(r.ev[0], r.s[0][0]));
    ZBT_OK(zb_thread_start(&t, "far", far_wait_main, &f));
    zb_thread_join(&t);
    CU_ASSERT_EQUAL(f.st, ZB_OK);
    CU_ASSERT_EQUAL(rig_close(&r), 0);
}

/* ---- host memory -------------------------------------------------------- */

static void host_read_before_copy_out_is_done_is_reported(void)
{
    struct rig r;
    zb_real out[N];

    rig_open(&r, 1, 50);
    ZBT_OK(rig_fill(&r, r.s[0][0], "x", r.x[0], N, 1));
    ZBT_OK(r.ops->copy_out(r.s[0][0], out, r.x[0], BYTES, "out"));
    CU_ASSERT_EQUAL(r.ops->host_access(r.dev[0], out + 5, 4, ZB_READ),
                    ZB_EDEVICE);
    CU_ASSERT(rig_reported(&r, "host: read of host memory", "by the host",
                           "its write by \"out\""));
    rig_settle(&r);
    rig_close(&r);
}

static void host_write_before_copy_in_is_done_is_reported(void)
{
    struct rig r;
    zb_real in[N] = {0};

    rig_open(&r, 1, 50);
    ZBT_OK(r.ops->copy_in(r.s[0][0], r.x[0], in, BYTES, "in"));
    ZBT_OK(r.ops->host_access(r.dev[0], in, BYTES, ZB_READ));
    CU_ASSERT_EQUAL(r.ops->host_access(r.dev[0], in, BYTES, ZB_WRITE),
                    ZB_EDEVICE);
    CU_ASSERT(rig_reported(&r, "host: write of host memory", "by the host",
                           "its read by \"in\""));
    rig_settle(&r);
    rig_close(&r);
}

static void host_access_after_sync_is_fine(void)
{
    struct rig r;
    zb_real host[N] = {0};

    rig_open(&r, 1, 50);
    ZBT_OK(r.ops->copy_in(r.s[0][0], r.x[0], host, BYTES, "in"));
    ZBT_OK(r.ops->copy_out(r.s[0][0], host, r.x[0], BYTES, "out"));
    ZBT_OK(r.ops->event_record(r.ev[0], r.s[0][0]));
    ZBT_OK(r.ops->event_sync(r.ev[0]));
    ZBT_OK(r.ops->host_access(r.dev[0], host, BYTES, ZB_READ_WRITE));
    CU_ASSERT_EQUAL(rig_close(&r), 0);
}

static void unordered_copies_to_one_host_range_are_reported(void)
{
    struct rig r;
    zb_real out[N];

    rig_open(&r, 1, 50);
    ZBT_OK(rig_fill(&r, r.s[0][0], "x", r.x[0], N, 1));
    ZBT_OK(rig_fill(&r, r.s[0][1], "y", r.y[0], N, 1));
    ZBT_OK(r.ops->copy_out(r.s[0][0], out, r.x[0], BYTES, "out 0"));
    CU_ASSERT_EQUAL(
        r.ops->copy_out(r.s[0][1], out + N / 2, r.y[0], BYTES / 2, "out 1"),
        ZB_EDEVICE);
    CU_ASSERT(rig_reported(&r, "host: write", "\"out 1\"", "\"out 0\""));
    rig_settle(&r);
    rig_close(&r);
}

static void source_changed_in_flight_is_reported(void)
{
    struct rig r;
    zb_real in[N] = {0};

    rig_open(&r, 1, 0);
    ZBT_OK(rig_stop(&r, r.s[0][0], "gate"));
    ZBT_OK(r.ops->copy_in(r.s[0][0], r.x[0], in, BYTES, "in"));
    in[N - 1] = 1;
    rig_open_gate();
    CU_ASSERT_EQUAL(r.ops->stream_sync(r.s[0][0]), ZB_EDEVICE);
    CU_ASSERT(rig_reported(&r, "host memory changed while a copy was in flight",
                           "256 bytes", "\"in\""));
    rig_close(&r);
}

/* Contents that come from a stream and not from the host. */
static void host_memory_may_be_passed_on_between_streams(void)
{
    struct rig r;
    zb_real host[N] = {0}, got[N] = {0};

    rig_open(&r, 1, 50);
    ZBT_OK(rig_stop(&r, r.s[0][0], "gate"));
    ZBT_OK(rig_fill(&r, r.s[0][0], "x", r.x[0], N, 3));
    ZBT_OK(r.ops->copy_out(r.s[0][0], host, r.x[0], BYTES, "out"));
    ZBT_OK(rig_order(&r, 0, r.s[0][0], r.s[0][1]));
    ZBT_OK(r.ops->copy_in(r.s[0][1], r.y[0], host, BYTES, "in"));
    ZBT_OK(r.ops->copy_out(r.s[0][1], got, r.y[0], BYTES, "out again"));
    rig_open_gate();
    ZBT_OK(r.ops->stream_sync(r.s[0][1]));
    CU_ASSERT_EQUAL(got[0], 3);
    CU_ASSERT_EQUAL(got[N - 1], 3);
    CU_ASSERT_EQUAL(rig_close(&r), 0);
}

static void host_memory_passed_on_too_early_is_reported(void)
{
    struct rig r;
    zb_real host[N] = {0};

    rig_open(&r, 1, 50);
    ZBT_OK(rig_fill(&r, r.s[0][0], "x", r.x[0], N, 3));
    ZBT_OK(r.ops->copy_out(r.s[0][0], host, r.x[0], BYTES, "out"));
    CU_ASSERT_EQUAL(r.ops->copy_in(r.s[0][1], r.y[0], host, BYTES, "in"),
                    ZB_EDEVICE);
    CU_ASSERT(rig_reported(&r, "host: read of host memory", "\"in\"",
                           "its write by \"out\""));
    rig_settle(&r);
    rig_close(&r);
}

/* Far more host ranges than are ever in flight: they are forgotten. */
static void many_host_ranges_in_turn_have_no_report(void)
{
    struct rig r;
    char *file = zb_alloc(20000);

    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    rig_open(&r, 1, 0);
    for (int i = 0; i < 5000; i++) {
        ZBT_OK(r.ops->copy_in(r.s[0][0], r.x[0], file + 4 * i, 3, "in"));
        if (i % 100 == 99) {
            ZBT_OK(r.ops->stream_sync(r.s[0][0]));
        }
    }
    CU_ASSERT_EQUAL(rig_close(&r), 0);
    zb_free(file);
}

/* ---- misuse ------------------------------------------------------------- */

static void device_closed_with_live_memory_is_reported(void)
{
    struct rig r;
    void *p;

    rig_open(&r, 1, 0);
    ZBT_OK(r.ops->mem_alloc(r.dev[0], 8, "forgotten", &p));
    CU_ASSERT_EQUAL(rig_close(&r), 1);
}

static void event_recorded_on_other_device_is_reported(void)
{
    struct rig r;

    rig_open(&r, 1, 0);
    CU_ASSERT_EQUAL(r.ops->event_record(r.ev[0], r.s[1][0]), ZB_EDEVICE);
    CU_ASSERT(rig_reported(&r, "misuse", "event of device 0", "of device 1"));
    rig_close(&r);
}

static void use_of_freed_stream_and_event_is_reported(void)
{
    struct rig r;
    struct zb_stream *gone;

    rig_open(&r, 1, 0);
    gone = r.s[0][1];
    r.ops->stream_free(gone);
    r.s[0][1] = NULL;
    CU_ASSERT_EQUAL(rig_fill(&r, gone, "late", r.x[0], N, 1), ZB_EDEVICE);
    CU_ASSERT(rig_reported(&r, "misuse: launch()", "\"s1\"", "stream_free()"));
    rig_close(&r);
    rig_open(&r, 1, 0);
    r.ops->event_free(r.ev[0]);
    CU_ASSERT_EQUAL(r.ops->stream_wait(r.s[0][0], r.ev[0]), ZB_EDEVICE);
    CU_ASSERT(rig_reported(&r, "misuse: stream_wait()", "event of device 0",
                           "event_free()"));
    r.ev[0] = NULL;
    rig_close(&r);
}

static void free_of_unknown_pointer_is_reported(void)
{
    struct rig r;

    rig_open(&r, 1, 0);
    r.ops->mem_free(r.dev[0], r.x[0] + 1);
    CU_ASSERT(rig_reported(&r, "misuse: mem_free()", "device 0", ""));
    rig_close(&r);
}

static void first_report_fails_all_later_calls(void)
{
    struct rig r;
    zb_real out[N];
    void *p;

    rig_open(&r, 1, 0);
    ZBT_OK(rig_fill(&r, r.s[0][0], "x", r.x[0], N, 1));
    CU_ASSERT_EQUAL(rig_copy(&r, r.s[0][0], "eager", r.x[0], r.y[0], N),
                    ZB_EDEVICE);
    CU_ASSERT_EQUAL(r.ops->event_record(r.ev[0], r.s[0][0]), ZB_EDEVICE);
    CU_ASSERT_EQUAL(r.ops->stream_wait(r.s[1][0], r.ev[0]), ZB_EDEVICE);
    CU_ASSERT_EQUAL(r.ops->event_sync(r.ev[1]), ZB_EDEVICE);
    CU_ASSERT_EQUAL(r.ops->stream_sync(r.s[1][0]), ZB_EDEVICE);
    CU_ASSERT_EQUAL(rig_fill(&r, r.s[1][0], "x", r.x[1], N, 1), ZB_EDEVICE);
    CU_ASSERT_EQUAL(r.ops->copy_out(r.s[1][0], out, r.x[1], BYTES, "out"),
                    ZB_EDEVICE);
    CU_ASSERT_EQUAL(r.ops->discard(r.s[1][0], r.x[1], BYTES), ZB_EDEVICE);
    CU_ASSERT_EQUAL(r.ops->mem_alloc(r.dev[0], 8, "more", &p), ZB_EDEVICE);
    CU_ASSERT_STRING_EQUAL(zb_error_text(), zb_check_report_text(r.be, 0));
    CU_ASSERT_EQUAL(zb_check_reports(r.be), 1);
    CU_ASSERT_EQUAL(rig_close(&r), 1);
}

static void report_past_the_limit_is_counted_only(void)
{
    struct rig r;

    rig_open(&r, 1, 0);
    for (int i = 0; i < ZB_CHECK_MAX_REPORTS + 5; i++) {
        CU_ASSERT_EQUAL(rig_copy(&r, r.s[0][0], "eager", r.x[0], r.y[0], 1),
                        ZB_EDEVICE);
    }
    CU_ASSERT_EQUAL(zb_check_reports(r.be), ZB_CHECK_MAX_REPORTS + 5);
    CU_ASSERT_PTR_NOT_NULL(
        zb_check_report_text(r.be, ZB_CHECK_MAX_REPORTS - 1));
    CU_ASSERT_PTR_NULL(zb_check_report_text(r.be, ZB_CHECK_MAX_REPORTS));
    rig_close(&r);
}

/* ---- errors of operations ----------------------------------------------- */

static void failing_operation_surfaces_at_sync_with_its_name(void)
{
    struct rig r;

    rig_open(&r, 1, 20);
    r.ops->stream_mark(r.s[0][0], "stage 0 W chunk 1 mb 2");
    ZBT_OK(rig_stop(&r, r.s[0][0], "broken"));
    ZBT_OK(rig_fill(&r, r.s[0][0], "after", r.x[0], N, 1));
    ZBT_OK(r.ops->event_record(r.ev[0], r.s[0][0]));
    CU_ASSERT_EQUAL(r.ops->event_sync(r.ev[0]), ZB_EDEVICE);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "device 0: \"broken\""));
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "stage 0 W chunk 1 mb 2"));
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "it broke"));
    CU_ASSERT_EQUAL(r.ops->stream_sync(r.s[0][1]), ZB_EDEVICE);
    /* The other device is well, and "after" was not executed. */
    ZBT_OK(r.ops->stream_sync(r.s[1][0]));
    CU_ASSERT_EQUAL(rig_n_launched(), 0);
    CU_ASSERT_EQUAL(rig_close(&r), 0);
}

static void fault_asked_for_hits_the_kth_launch_of_a_node(void)
{
    const struct zb_check_target t = {.k = 2, .device = 0, .node = "mb 1"};
    struct rig r;

    rig_open(&r, 1, 20);
    zb_check_fail_launch(r.be, &t);
    for (int mb = 0; mb < 2; mb++) {
        r.ops->stream_mark(r.s[0][0], mb == 0 ? "F mb 0" : "F mb 1");
        ZBT_OK(rig_fill(&r, r.s[0][0], "a", r.x[0], N, 1));
        ZBT_OK(rig_fill(&r, r.s[0][0], "b", r.y[0], N, 1));
    }
    CU_ASSERT_EQUAL(r.ops->stream_sync(r.s[0][0]), ZB_EDEVICE);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "\"b\" (node \"F mb 1\""));
    CU_ASSERT_EQUAL(zb_check_n_launches(r.be), 4);
    CU_ASSERT_EQUAL(zb_check_faults_hit(r.be), 1);
    CU_ASSERT_EQUAL(rig_n_launched(), 3);
    CU_ASSERT_EQUAL(rig_close(&r), 0);
}

static void bad_launch_is_refused(void)
{
    const struct zb_k_fill k = {.n = 0};
    struct zb_launch launch = {.kernel = ZB_K_fill, .params = &k};
    struct rig r;

    rig_open(&r, 1, 0);
    CU_ASSERT_EQUAL(r.ops->launch(r.s[0][0], &launch), ZB_EINVAL);
    launch.label = "bad";
    launch.kernel = ZB_N_KERNELS;
    CU_ASSERT_EQUAL(r.ops->launch(r.s[0][0], &launch), ZB_EINVAL);
    launch.kernel = ZB_K_fill;
    launch.n_access = ZB_MAX_ACCESS + 1;
    CU_ASSERT_EQUAL(r.ops->launch(r.s[0][0], &launch), ZB_EINVAL);
    launch.n_access = 1;
    CU_ASSERT_EQUAL(r.ops->launch(r.s[0][0], &launch), ZB_EINVAL);
    CU_ASSERT_EQUAL(rig_close(&r), 0);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(ordered_program_under_all_seeds_has_no_report),
        ZBT_CASE(dropped_wait_is_reported_on_every_run),
        ZBT_CASE(write_after_write_unordered_is_reported_with_both_sides),
        ZBT_CASE(read_after_write_unordered_is_reported),
        ZBT_CASE(write_after_two_readers_names_the_unordered_one),
        ZBT_CASE(order_through_a_third_stream_is_enough),
        ZBT_CASE(disjoint_parts_need_no_order),
        ZBT_CASE(read_of_fresh_bytes_is_reported),
        ZBT_CASE(update_of_fresh_bytes_is_reported),
        ZBT_CASE(read_after_discard_is_reported),
        ZBT_CASE(discard_unordered_with_reader_is_a_race),
        ZBT_CASE(fresh_and_discarded_bytes_are_nan),
        ZBT_CASE(use_after_free_is_reported),
        ZBT_CASE(free_in_flight_is_reported),
        ZBT_CASE(memory_given_out_again_is_fresh),
        ZBT_CASE(access_past_the_end_is_reported),
        ZBT_CASE(access_to_host_memory_is_reported),
        ZBT_CASE(launch_by_foreign_thread_is_reported),
        ZBT_CASE(wait_for_event_of_other_device_is_not_foreign),
        ZBT_CASE(host_read_before_copy_out_is_done_is_reported),
        ZBT_CASE(host_write_before_copy_in_is_done_is_reported),
        ZBT_CASE(host_access_after_sync_is_fine),
        ZBT_CASE(unordered_copies_to_one_host_range_are_reported),
        ZBT_CASE(source_changed_in_flight_is_reported),
        ZBT_CASE(host_memory_may_be_passed_on_between_streams),
        ZBT_CASE(host_memory_passed_on_too_early_is_reported),
        ZBT_CASE(many_host_ranges_in_turn_have_no_report),
        ZBT_CASE(device_closed_with_live_memory_is_reported),
        ZBT_CASE(event_recorded_on_other_device_is_reported),
        ZBT_CASE(use_of_freed_stream_and_event_is_reported),
        ZBT_CASE(free_of_unknown_pointer_is_reported),
        ZBT_CASE(first_report_fails_all_later_calls),
        ZBT_CASE(report_past_the_limit_is_counted_only),
        ZBT_CASE(failing_operation_surfaces_at_sync_with_its_name),
        ZBT_CASE(fault_asked_for_hits_the_kth_launch_of_a_node),
        ZBT_CASE(bad_launch_is_refused),
    };

    return zbt_run("check", cases, ZB_COUNT_OF(cases));
}
