/* SPDX-License-Identifier: MIT
 *
 * Streams, events and closing of the check backend, random programs against a
 * model of their order, and threads.
 */
#include "config.h"

#include <stdatomic.h>
#include <string.h>

#include "backend/check/check_int.h"
#include "check_rig.h"
#include "zb/mem.h"
#include "zb/thread.h"
#include "zbt.h"

#define N RIG_ELEMS

/* ---- streams and events ------------------------------------------------- */

static void launch_returns_before_it_is_executed(void)
{
    struct rig r;

    rig_open(&r, 1, 0);
    ZBT_OK(rig_stop(&r, r.s[0][0], "gate"));
    ZBT_OK(rig_fill(&r, r.s[0][0], "fill", r.x[0], N, 3));
    CU_ASSERT_EQUAL(rig_n_launched(), 0);
    rig_open_gate();
    ZBT_OK(r.ops->stream_sync(r.s[0][0]));
    CU_ASSERT_EQUAL(rig_n_launched(), 1);
    CU_ASSERT_EQUAL(r.x[0][N - 1], 3);
    CU_ASSERT_EQUAL(rig_close(&r), 0);
}

static void params_changed_after_launch_have_no_effect(void)
{
    struct rig r;
    struct zb_k_fill k;
    struct zb_launch launch = {
        .kernel = ZB_K_fill, .label = "fill", .params = &k, .n_access = 1};

    rig_open(&r, 1, 0);
    k = (struct zb_k_fill){.n = N, .value = 5, .y = r.x[0]};
    launch.access[0] =
        (struct zb_access){r.x[0], N * sizeof(zb_real), ZB_WRITE};
    ZBT_OK(rig_stop(&r, r.s[0][0], "gate"));
    ZBT_OK(r.ops->launch(r.s[0][0], &launch));
    memset(&k, 0, sizeof(k));
    memset(&launch, 0, sizeof(launch));
    rig_open_gate();
    ZBT_OK(r.ops->stream_sync(r.s[0][0]));
    CU_ASSERT_EQUAL(r.x[0][0], 5);
    CU_ASSERT_EQUAL(rig_close(&r), 0);
}

static void event_never_recorded_counts_as_done(void)
{
    struct rig r;

    rig_open(&r, 1, 20);
    ZBT_OK(r.ops->event_sync(r.ev[0]));
    ZBT_OK(r.ops->stream_wait(r.s[1][0], r.ev[0]));
    ZBT_OK(r.ops->stream_sync(r.s[1][0]));
    CU_ASSERT_EQUAL(rig_close(&r), 0);
}

static void wait_for_other_device_holds_back_the_stream(void)
{
    struct rig r;

    rig_open(&r, 1, 0);
    ZBT_OK(rig_stop(&r, r.s[0][0], "gate"));
    ZBT_OK(rig_fill(&r, r.s[0][0], "fill", r.x[0], N, 7));
    ZBT_OK(rig_order(&r, 0, r.s[0][0], r.s[1][0]));
    ZBT_OK(rig_copy(&r, r.s[1][0], "copy", r.y[1], r.x[0], N));
    CU_ASSERT_EQUAL(rig_n_launched(), 0);
    rig_open_gate();
    ZBT_OK(r.ops->stream_sync(r.s[1][0]));
    CU_ASSERT_EQUAL(r.y[1][0], 7);
    CU_ASSERT_EQUAL(rig_close(&r), 0);
}

static void event_recorded_again_keeps_the_sense_of_earlier_waits(void)
{
    struct rig r;

    rig_open(&r, 1, 0);
    ZBT_OK(rig_fill(&r, r.s[0][0], "x", r.x[0], N, 1));
    ZBT_OK(rig_order(&r, 0, r.s[0][0], r.s[1][0]));
    ZBT_OK(rig_stop(&r, r.s[0][0], "gate"));
    ZBT_OK(rig_fill(&r, r.s[0][0], "y", r.y[0], N, 1));
    ZBT_OK(r.ops->event_record(r.ev[0], r.s[0][0]));
    /* The wait means the first record: it ends with the gate still closed ...
     */
    ZBT_OK(rig_copy(&r, r.s[1][0], "copy x", r.x[1], r.x[0], N));
    ZBT_OK(r.ops->stream_sync(r.s[1][0]));
    CU_ASSERT_EQUAL(r.x[1][0], 1);
    /* ... and does not order what lies between the two records. */
    CU_ASSERT_EQUAL(rig_copy(&r, r.s[1][0], "copy y", r.x[1], r.y[0], N),
                    ZB_EDEVICE);
    CU_ASSERT(rig_reported(&r, "race: read of", "\"copy y\"", "\"y\""));
    rig_open_gate();
    rig_close(&r);
}

static void queue_longer_than_its_ring_keeps_order(void)
{
    struct rig r;

    rig_open(&r, 1, 5);
    ZBT_OK(rig_fill(&r, r.s[0][0], "zero", r.x[0], 1, 0));
    ZBT_OK(rig_fill(&r, r.s[0][0], "one", r.y[0], 1, 1));
    for (int i = 0; i < 1000; i++) {
        ZBT_OK(rig_add(&r, r.s[0][0], "x+1", r.x[0], r.x[0], r.y[0], 1));
    }
    ZBT_OK(r.ops->event_record(r.ev[0], r.s[0][0]));
    ZBT_OK(r.ops->event_sync(r.ev[0]));
    CU_ASSERT_EQUAL(r.x[0][0], 1000);
    CU_ASSERT_EQUAL(rig_close(&r), 0);
}

static void stream_slot_is_used_again(void)
{
    struct rig r;

    rig_open(&r, 1, 0);
    for (int i = 0; i < 2 * ZB_CHECK_MAX_STREAMS; i++) {
        struct zb_stream *s;

        ZBT_OK(r.ops->stream_new(r.dev[0], "short", &s));
        ZBT_OK(rig_fill(&r, s, "fill", r.x[0], N, i));
        r.ops->stream_free(s);
        CU_ASSERT_EQUAL(r.x[0][0], (zb_real)i);
    }
    CU_ASSERT_EQUAL(rig_close(&r), 0);
}

static void too_many_streams_are_refused(void)
{
    static struct zb_stream *s[ZB_CHECK_MAX_STREAMS];
    struct rig r;
    size_t n = 0;

    rig_open(&r, 1, 0);
    while (n < ZB_CHECK_MAX_STREAMS &&
           r.ops->stream_new(r.dev[0], "one more", &s[n]) == ZB_OK) {
        n++;
    }
    CU_ASSERT_EQUAL(n, ZB_CHECK_MAX_STREAMS - RIG_DEVICES * RIG_STREAMS);
    while (n > 0) {
        r.ops->stream_free(s[--n]);
    }
    CU_ASSERT_EQUAL(rig_close(&r), 0);
}

/* How many of 1000 delays of two streams differ. */
static int n_delays_differing(uint64_t rng_a, uint64_t rng_b)
{
    int n = 0;

    for (int i = 0; i < 1000; i++) {
        n += zb_ck_draw_delay_us(&rng_a, 50) != zb_ck_draw_delay_us(&rng_b, 50);
    }
    return n;
}

static void delays_depend_on_seed_device_and_stream(void)
{
    uint64_t rng = zb_ck_seed(7, 1, 2);
    int64_t longest = 0;
    int n_late = 0;

    CU_ASSERT_EQUAL(n_delays_differing(rng, zb_ck_seed(7, 1, 2)), 0);
    CU_ASSERT(n_delays_differing(rng, zb_ck_seed(8, 1, 2)) > 100);
    CU_ASSERT(n_delays_differing(rng, zb_ck_seed(7, 2, 2)) > 100);
    CU_ASSERT(n_delays_differing(rng, zb_ck_seed(7, 1, 1)) > 100);
    for (int i = 0; i < 8000; i++) {
        int64_t us = zb_ck_draw_delay_us(&rng, 50);

        CU_ASSERT(us >= 0 && us <= 50);
        longest = us > longest ? us : longest;
        n_late += us > 0;
    }
    CU_ASSERT_EQUAL(longest, 50);
    CU_ASSERT(n_late > 800 && n_late < 1200);
    CU_ASSERT_EQUAL(zb_ck_draw_delay_us(&rng, 0), 0);
}

/* ---- closing ------------------------------------------------------------ */

/* Executing what is queued would take minutes. */
static void close_with_long_delays_queued_ends(void)
{
    int64_t before = zb_mem_live();
    struct rig r;

    rig_open(&r, 1, 10000000);
    for (int i = 0; i < 200; i++) {
        ZBT_OK(rig_fill(&r, r.s[0][0], "fill", r.x[0], N, i));
        ZBT_OK(rig_order(&r, 0, r.s[0][0], r.s[1][0]));
    }
    r.ops->close(r.be);
    CU_ASSERT_EQUAL(zb_mem_live(), before);
}

static void first_report_cuts_long_delays_short(void)
{
    struct rig r;

    rig_open(&r, 1, 10000000);
    for (int i = 0; i < 200; i++) {
        ZBT_OK(rig_fill(&r, r.s[0][0], "fill", r.x[0], N, i));
    }
    CU_ASSERT_EQUAL(rig_fill(&r, r.s[0][1], "race", r.x[0], N, 0), ZB_EDEVICE);
    CU_ASSERT_EQUAL(r.ops->stream_sync(r.s[0][0]), ZB_EDEVICE);
    CU_ASSERT_EQUAL(rig_close(&r), 1);
}

static void failing_allocation_unwinds(void)
{
    for (uint64_t k = 1;; k++) {
        int64_t before = zb_mem_live();
        struct rig r;
        int has_failed;

        zb_mem_fail_at(k);
        if (rig_try_open(&r, 1, 0) == ZB_OK) {
            r.ops->stream_mark(r.s[0][0], "a node");
            (void)(rig_fill(&r, r.s[0][0], "x", r.x[0], N, 1) == ZB_OK &&
                   rig_copy(&r, r.s[0][0], "y", r.y[0], r.x[0], N) == ZB_OK &&
                   rig_fill(&r, r.s[0][0], "z", r.x[0] + 1, 3, 1) == ZB_OK &&
                   r.ops->discard(r.s[0][0], r.x[0], 8) == ZB_OK);
            rig_close(&r);
        }
        has_failed = zb_mem_failed();
        zb_mem_fail_at(0);
        CU_ASSERT_EQUAL(zb_mem_live(), before);
        if (!has_failed) {
            CU_ASSERT(k > 10);
            break;
        }
    }
}

static void steady_launches_allocate_nothing(void)
{
    struct rig r;
    uint64_t before = 0;

    rig_open(&r, 1, 0);
    ZBT_OK(rig_fill(&r, r.s[0][0], "x", r.x[0], N, 1));
    for (int i = 0; i < 200; i++) {
        if (i == 20) {
            before = zb_mem_count();
        }
        ZBT_OK(rig_order(&r, 0, r.s[0][0], r.s[1][0]));
        for (int j = 0; j < N; j++) {
            ZBT_OK(rig_copy(&r, r.s[1][0], "part", r.y[1] + j,
                            r.x[0] + (i + j) % N, 1));
        }
        ZBT_OK(rig_order(&r, 1, r.s[1][0], r.s[0][0]));
        ZBT_OK(rig_fill(&r, r.s[0][0], "x", r.x[0], N, i));
    }
    CU_ASSERT_EQUAL(zb_mem_count(), before);
    CU_ASSERT_EQUAL(rig_close(&r), 0);
}

/* Random ranges of one large buffer, as many launches as a small training. */
static void many_random_ranges_stay_cheap(void)
{
    const struct zb_k_fill k = {.n = 0};
    struct zbt_rng rng = {.state = 5};
    long n_launches = zbt_is_long() ? 1000000 : 100000;
    const long n = 1 << 20;
    struct rig r;
    void *p;

    rig_open(&r, 1, 0);
    ZBT_OK(r.ops->mem_alloc(r.dev[0], (size_t)n, "arena", &p));
    ZBT_OK(rig_fill(&r, r.s[0][0], "arena", p, n / (long)sizeof(zb_real), 0));
    for (long i = 0; i < n_launches; i++) {
        struct zb_launch launch = {
            .kernel = ZB_K_fill, .label = "touch", .params = &k, .n_access = 3};

        for (int j = 0; j < 3; j++) {
            long a = zbt_rand_in(&rng, 0, n - 1);
            long len = zbt_rand_in(&rng, 1, n - a < 2000 ? n - a : 2000);

            launch.access[j] = (struct zb_access){(char *)p + a, (size_t)len,
                                                  j == 0 ? ZB_WRITE : ZB_READ};
        }
        ZBT_OK(r.ops->launch(r.s[0][0], &launch));
    }
    ZBT_OK(r.ops->stream_sync(r.s[0][0]));
    r.ops->mem_free(r.dev[0], p);
    CU_ASSERT_EQUAL(rig_close(&r), 0);
}

/* ---- random programs against a model of their order --------------------- */

#define MODEL_OPS 60
#define MODEL_BYTES ((long)(N * sizeof(zb_real)))

/* Sets of operations as bit masks: what happened before the next operation of
 * each stream, before each event, before the host's next call. */
struct model {
    uint64_t stream[RIG_DEVICES][RIG_STREAMS], event[RIG_DEVICES], host;
    int n_ops;
    long from[MODEL_OPS], to[MODEL_OPS]; /* bytes of x of device 0 */
    enum zb_access_mode mode[MODEL_OPS];
    char is_unwritten[N * sizeof(zb_real)];
};

/* Whether the operation in place n_ops, on stream (d, i), must be reported. */
static int model_is_bad(const struct model *m, int d, int i)
{
    uint64_t before = m->stream[d][i] | m->host;
    long from = m->from[m->n_ops], to = m->to[m->n_ops];

    for (int j = 0; j < m->n_ops; j++) {
        if ((before >> j & 1) == 0 && m->from[j] < to && from < m->to[j] &&
            ((m->mode[j] | m->mode[m->n_ops]) & ZB_WRITE) != 0) {
            return 1;
        }
    }
    for (long b = from; b < to && (m->mode[m->n_ops] & ZB_READ) != 0; b++) {
        if (m->is_unwritten[b]) {
            return 1;
        }
    }
    return 0;
}

static void model_do(struct model *m, int d, int i, int is_discard)
{
    int n = m->n_ops++;

    m->stream[d][i] |= m->host | (uint64_t)1 << n;
    if ((m->mode[n] & ZB_WRITE) != 0) {
        memset(m->is_unwritten + m->from[n], is_discard,
               (size_t)(m->to[n] - m->from[n]));
    }
}

/* One operation on both sides; 0 ends the program. Most of those that must be
 * reported are left out, for long programs. */
static int model_op(struct model *m, struct rig *r, struct zbt_rng *rng, int d,
                    int i)
{
    const struct zb_k_fill k = {.n = 0};
    struct zb_launch launch = {
        .kernel = ZB_K_fill, .label = "op", .params = &k, .n_access = 1};
    int n = m->n_ops, is_discard, is_bad;
    char *x = (char *)r->x[0];
    enum zb_status st;

    m->from[n] = zbt_rand_in(rng, 0, MODEL_BYTES - 1);
    m->to[n] = zbt_rand_in(rng, m->from[n] + 1, MODEL_BYTES);
    m->mode[n] = (enum zb_access_mode)zbt_rand_in(rng, ZB_READ, ZB_READ_WRITE);
    is_discard = m->mode[n] == ZB_WRITE && zbt_rand_in(rng, 0, 3) == 0;
    is_bad = model_is_bad(m, d, i);
    if (is_bad && zbt_rand_in(rng, 0, 19) != 0) {
        return 1;
    }
    launch.access[0] = (struct zb_access){
        x + m->from[n], (size_t)(m->to[n] - m->from[n]), m->mode[n]};
    st = is_discard ? r->ops->discard(r->s[d][i], x + m->from[n],
                                      launch.access[0].bytes)
                    : r->ops->launch(r->s[d][i], &launch);
    CU_ASSERT_EQUAL(st, is_bad ? ZB_EDEVICE : ZB_OK);
    model_do(m, d, i, is_discard);
    return !is_bad && st == ZB_OK && m->n_ops < MODEL_OPS;
}

/* One random call on both sides; 0 ends the program. */
static int model_step(struct model *m, struct rig *r, struct zbt_rng *rng)
{
    int d = (int)zbt_rand_in(rng, 0, RIG_DEVICES - 1);
    int i = (int)zbt_rand_in(rng, 0, RIG_STREAMS - 1);
    int e = (int)zbt_rand_in(rng, 0, RIG_DEVICES - 1);

    switch (zbt_rand_in(rng, 0, 15)) {
    case 0:
    case 1:
    case 2:
        ZBT_OK(r->ops->event_record(r->ev[d], r->s[d][i]));
        m->stream[d][i] |= m->host;
        m->event[d] = m->stream[d][i];
        return 1;
    case 3:
    case 4:
    case 5:
    case 6:
        ZBT_OK(r->ops->stream_wait(r->s[d][i], r->ev[e]));
        m->stream[d][i] |= m->event[e];
        return 1;
    case 7:
        ZBT_OK(r->ops->event_sync(r->ev[e]));
        m->host |= m->event[e];
        return 1;
    default:
        return model_op(m, r, rng, d, i);
    }
}

static void random_program_is_reported_exactly_where_order_lacks(void)
{
    struct zbt_rng rng = {.state = 20};
    int n_programs = zbt_is_long() ? 5000 : 300;
    int n_reported = 0;

    for (int p = 0; p < n_programs; p++) {
        struct model m = {.n_ops = 0};
        struct rig r;

        rig_open(&r, (uint64_t)p, 2);
        ZBT_OK(rig_fill(&r, r.s[0][0], "start", r.x[0], N, 0));
        ZBT_OK(r.ops->stream_sync(r.s[0][0]));
        while (model_step(&m, &r, &rng)) {
        }
        n_reported += rig_close(&r) > 0;
    }
    CU_ASSERT(n_reported > n_programs / 4);
    CU_ASSERT(n_reported < n_programs);
}

/* ---- threads ------------------------------------------------------------ */

#define RING 4
#define ROUNDS 15

/* Worker w keeps x[w]; each round it waits for its left neighbour's x, adds
 * that to its own in a second stream, and hands it on. */
struct ring {
    struct zb_backend *be;
    struct zb_barrier barrier;
    struct zb_abort ab;
    zb_real *x[RING];                /* set before the first meeting */
    struct zb_event *is_made[RING];  /* x[w] has its new value */
    struct zb_event *is_taken[RING]; /* the left neighbour's x was read */
};

struct ring_worker {
    struct ring *ring;
    int id;
    enum zb_status st;
    zb_real result;
};

struct ring_device {
    struct zb_device *dev;
    struct zb_stream *make, *take;
    zb_real *sum;
};

static enum zb_status ring_open(struct ring_worker *w, struct ring_device *d)
{
    const struct zb_backend_ops *ops = w->ring->be->ops;
    void *x, *sum;

    ZB_TRY(ops->device_open(w->ring->be, w->id, &d->dev));
    ZB_TRY(ops->stream_new(d->dev, "make", &d->make));
    ZB_TRY(ops->stream_new(d->dev, "take", &d->take));
    ZB_TRY(ops->event_new(d->dev, &w->ring->is_made[w->id]));
    ZB_TRY(ops->event_new(d->dev, &w->ring->is_taken[w->id]));
    ZB_TRY(ops->mem_alloc(d->dev, N * sizeof(zb_real), "x", &x));
    ZB_TRY(ops->mem_alloc(d->dev, N * sizeof(zb_real), "sum", &sum));
    w->ring->x[w->id] = x;
    d->sum = sum;
    return ZB_OK;
}

static enum zb_status ring_round(struct ring_worker *w, struct ring_device *d,
                                 int round)
{
    struct ring *ring = w->ring;
    const struct zb_backend_ops *ops = ring->be->ops;
    struct rig r = {.be = ring->be, .ops = ops};
    int left = (w->id + RING - 1) % RING, right = (w->id + 1) % RING;

    /* Who reads x is the right neighbour's second stream. */
    ZB_TRY(ops->stream_wait(d->make, ring->is_taken[right]));
    ZB_TRY(
        rig_fill(&r, d->make, "make", ring->x[w->id], N, round * 10 + w->id));
    ZB_TRY(ops->event_record(ring->is_made[w->id], d->make));
    ZB_TRY(zb_barrier_wait(&ring->barrier, &ring->ab));
    ZB_TRY(ops->stream_wait(d->take, ring->is_made[left]));
    ZB_TRY(rig_add(&r, d->take, "take", d->sum, d->sum, ring->x[left], N));
    ZB_TRY(ops->event_record(ring->is_taken[w->id], d->take));
    return zb_barrier_wait(&ring->barrier, &ring->ab);
}

static enum zb_status ring_run(struct ring_worker *w, struct ring_device *d)
{
    struct rig r = {.be = w->ring->be, .ops = w->ring->be->ops};

    ZB_TRY(zb_barrier_wait(&w->ring->barrier, &w->ring->ab));
    ZB_TRY(rig_fill(&r, d->take, "zero", d->sum, N, 0));
    for (int round = 0; round < ROUNDS; round++) {
        ZB_TRY(ring_round(w, d, round));
    }
    ZB_TRY(r.ops->copy_out(d->take, &w->result, d->sum + N - 1,
                           sizeof(w->result), "result"));
    return r.ops->stream_sync(d->take);
}

static void ring_main(void *arg)
{
    struct ring_worker *w = arg;
    const struct zb_backend_ops *ops = w->ring->be->ops;
    struct ring_device d = {.dev = NULL};

    w->st = ring_open(w, &d);
    if (w->st == ZB_OK) {
        w->st = ring_run(w, &d);
    }
    if (w->st != ZB_OK) {
        zb_abort_raise(&w->ring->ab, w->st, zb_error_text());
    }
    ops->stream_free(d.make);
    ops->stream_free(d.take);
    /* The neighbours are at work on x until they have ended their streams. */
    if (zb_barrier_wait(&w->ring->barrier, &w->ring->ab) == ZB_OK &&
        !zb_abort_is_raised(&w->ring->ab)) {
        ops->mem_free(d.dev, d.sum);
        ops->mem_free(d.dev, w->ring->x[w->id]);
        ops->event_free(w->ring->is_made[w->id]);
        ops->event_free(w->ring->is_taken[w->id]);
        ops->device_close(d.dev);
    }
}

static void play_ring(uint64_t seed, const struct zb_check_target *drop,
                      enum zb_status *st_out, size_t *n_reports_out)
{
    const struct zb_backend_opts opts = {
        .n_devices = RING, .seed = seed, .max_delay_us = 100};
    struct ring ring = {.be = NULL};
    struct ring_worker w[RING];
    struct zb_thread t[RING];

    ZBT_OK(zb_check_open_over(&rig_inner_ops, &opts, &ring.be));
    zb_check_drop_wait(ring.be, drop);
    zb_barrier_init(&ring.barrier, RING);
    zb_abort_init(&ring.ab);
    for (int i = 0; i < RING; i++) {
        w[i] = (struct ring_worker){.ring = &ring, .id = i};
        ZBT_OK(zb_thread_start(&t[i], "worker", ring_main, &w[i]));
    }
    for (int i = 0; i < RING; i++) {
        zb_thread_join(&t[i]);
    }
    *st_out = ring.ab.st;
    *n_reports_out = zb_check_reports(ring.be);
    for (int i = 0; i < RING && ring.ab.st == ZB_OK; i++) {
        int left = (i + RING - 1) % RING;

        CU_ASSERT_EQUAL(w[i].result,
                        (zb_real)(ROUNDS * left +
                                  5 * ROUNDS * (ROUNDS - 1)));
    }
    ring.be->ops->close(ring.be);
    zb_abort_release(&ring.ab);
}

static void workers_in_a_ring_have_no_report(void)
{
    const struct zb_check_target none = {.k = 0};

    for (uint64_t seed = 0; seed < 20; seed++) {
        enum zb_status st;
        size_t n_reports;

        play_ring(seed, &none, &st, &n_reports);
        CU_ASSERT_EQUAL(st, ZB_OK);
        CU_ASSERT_EQUAL(n_reports, 0);
    }
}

/* Waits of one worker: is_taken, is_made, in turn. The first is for an event
 * that was not recorded yet; every other one is needed. */
static void workers_in_a_ring_need_every_wait(void)
{
    for (uint64_t k = 2; k <= 2 * ROUNDS; k++) {
        const struct zb_check_target drop = {.k = k, .device = (int)(k % RING)};
        enum zb_status st;
        size_t n_reports;

        play_ring(k, &drop, &st, &n_reports);
        CU_ASSERT_EQUAL(st, ZB_EDEVICE);
        CU_ASSERT(n_reports > 0);
    }
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(launch_returns_before_it_is_executed),
        ZBT_CASE(params_changed_after_launch_have_no_effect),
        ZBT_CASE(event_never_recorded_counts_as_done),
        ZBT_CASE(wait_for_other_device_holds_back_the_stream),
        ZBT_CASE(event_recorded_again_keeps_the_sense_of_earlier_waits),
        ZBT_CASE(queue_longer_than_its_ring_keeps_order),
        ZBT_CASE(stream_slot_is_used_again),
        ZBT_CASE(too_many_streams_are_refused),
        ZBT_CASE(delays_depend_on_seed_device_and_stream),
        ZBT_CASE(close_with_long_delays_queued_ends),
        ZBT_CASE(first_report_cuts_long_delays_short),
        ZBT_CASE(failing_allocation_unwinds),
        ZBT_CASE(steady_launches_allocate_nothing),
        ZBT_CASE(many_random_ranges_stay_cheap),
        ZBT_CASE(random_program_is_reported_exactly_where_order_lacks),
        ZBT_CASE(workers_in_a_ring_have_no_report),
        ZBT_CASE(workers_in_a_ring_need_every_wait),
    };

    return zbt_run("check_stream", cases, ZB_COUNT_OF(cases));
}
