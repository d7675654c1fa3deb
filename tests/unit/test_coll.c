/* SPDX-License-Identifier: MIT
 *
 * Collectives against the sums of zb/coll.h, computed here one element at a
 * time, on the cpu and the check backend: every kind, any number of members,
 * several under way, at different pace. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "coll_rig.h"

/* ---- what is expected ---------------------------------------------------- */

struct op {
    struct zb_coll c;
    int in_place;
    int place; /* of the rig's memory */
    uint64_t id;
};

/* Values of all sizes and signs, so that another order of a sum shows. */
static zb_real value(uint64_t id, int rank, int64_t i)
{
    struct zbt_rng rng = {id * 1000003 + (uint64_t)rank * 7919 + (uint64_t)i};
    double x = (double)zbt_rand_in(&rng, -1000000, 1000000) * 1e-6;
    static const double scale[] = {1, 1e3, 1e-3, 1};

    return (zb_real)(x * scale[zbt_rand_in(&rng, 0, 3)]);
}

static int64_t n_src(const struct zb_coll *c, int n)
{
    switch (c->kind) {
    case ZB_COLL_REDUCE_SCATTER:
        return c->outer * n * c->inner;
    case ZB_COLL_SEQ_TO_HEADS:
        return c->outer * c->mid * c->n_heads * c->inner;
    case ZB_COLL_HEADS_TO_SEQ:
        return c->outer * n * c->mid * c->inner;
    default:
        return c->outer * c->inner;
    }
}

static int64_t n_dst(const struct zb_coll *c, int n)
{
    switch (c->kind) {
    case ZB_COLL_ALL_GATHER:
        return c->outer * n * c->inner;
    case ZB_COLL_SEQ_TO_HEADS:
        return c->outer * n * c->mid * c->inner;
    case ZB_COLL_HEADS_TO_SEQ:
        return c->outer * c->mid * c->n_heads * c->inner;
    default:
        return c->outer * c->inner;
    }
}

/* sum over k in [from, to) of src_k[at], in this order */
static zb_real total(const struct op *op, int from, int to, int64_t at)
{
    zb_real sum = value(op->id, from, at);

    for (int k = from + 1; k < to; k++) {
        sum += value(op->id, k, at);
    }
    return sum;
}

/* Element `at` of dst of member r, by the formulas of zb/coll.h. */
static zb_real expected(const struct op *op, int n, int r, int64_t at)
{
    const struct zb_coll *c = &op->c;
    int64_t i = at % c->inner, o = at / c->inner, k, m, g;

    switch (c->kind) {
    case ZB_COLL_ALL_REDUCE:
        return total(op, 0, n, o * c->inner + i);
    case ZB_COLL_ALL_GATHER:
        k = o % n, o /= n;
        return value(op->id, (int)k, o * c->inner + i);
    case ZB_COLL_REDUCE_SCATTER:
        return total(op, 0, n, (o * n + r) * c->inner + i);
    case ZB_COLL_SEQ_TO_HEADS:
        m = o % c->mid, o /= c->mid;
        k = o % n, o /= n;
        g = r * c->n_heads / n;
        return value(op->id, (int)k,
                     ((o * c->mid + m) * c->n_heads + g) * c->inner + i);
    default:
        g = o % c->n_heads, o /= c->n_heads;
        m = o % c->mid, o /= c->mid;
        k = n / c->n_heads;
        return total(op, (int)(g * k), (int)((g + 1) * k),
                     ((o * n + r) * c->mid + m) * c->inner + i);
    }
}

/* ---- what a member does -------------------------------------------------- */

static void place_op(struct op *op, struct coll_rig_member *m)
{
    int64_t part = op->c.inner * m->rank;
    zb_real *src = m->src[op->place], *dst = m->dst[op->place];

    if (op->in_place && op->c.kind == ZB_COLL_ALL_REDUCE) {
        dst = src;
    } else if (op->in_place && op->c.kind == ZB_COLL_REDUCE_SCATTER) {
        dst = src + part;
    } else if (op->in_place && op->c.kind == ZB_COLL_ALL_GATHER) {
        src = dst + part;
    }
    op->c.src = src;
    op->c.dst = dst;
}

static enum zb_status fill_op(const struct op *op, struct coll_rig_member *m)
{
    int64_t n = n_src(&op->c, m->r->n);

    for (int64_t i = 0; i < n; i++) {
        m->host[i] = value(op->id, m->rank, i);
    }
    return coll_rig_put(m, (zb_real *)op->c.src, m->host, (size_t)n);
}

static enum zb_status check_op(const struct op *op, struct coll_rig_member *m)
{
    int64_t n = n_dst(&op->c, m->r->n);

    ZB_TRY(coll_rig_get(m, op->c.dst, m->host, (size_t)n));
    for (int64_t i = 0; i < n; i++) {
        zb_real want = expected(op, m->r->n, m->rank, i);

        if (memcmp(&want, &m->host[i], sizeof(want)) != 0 &&
            m->n_wrong++ == 0) {
            printf("kind %d n %d outer %lld mid %lld inner %lld heads %lld%s: "
                   "element %lld of member %d is %.9g, expected %.9g\n",
                   (int)op->c.kind, m->r->n, (long long)op->c.outer,
                   (long long)op->c.mid, (long long)op->c.inner,
                   (long long)op->c.n_heads, op->in_place ? " in place" : "",
                   (long long)i, m->rank, (double)m->host[i], (double)want);
        }
    }
    return ZB_OK;
}

/* A divisor of n, the same for all members. */
static int64_t draw_heads(struct zbt_rng *rng, int n)
{
    int64_t h;

    do {
        h = zbt_rand_in(rng, 1, n);
    } while (n % h != 0);
    return h;
}

static void draw_op(struct op *op, struct zbt_rng *rng, int n)
{
    static const long inner[] = {1, 3, 64, 65, 200, 1037};
    struct zb_coll *c = &op->c;

    op->id = zbt_rand(rng) >> 20;
    c->kind = (enum zb_coll_kind)zbt_rand_in(rng, 0, ZB_N_COLLS - 1);
    c->dtype = ZB_DTYPE_REAL;
    c->label = "drawn";
    c->outer = zbt_rand_in(rng, 1, 3);
    c->mid = zbt_rand_in(rng, 1, 3);
    c->inner = inner[zbt_rand_in(rng, 0, 5)];
    c->n_heads = draw_heads(rng, n);
    op->in_place = (int)zbt_rand_in(rng, 0, 1);
    if (c->kind == ZB_COLL_ALL_REDUCE && zbt_rand_in(rng, 0, 3) == 0) {
        c->inner = 12345; /* in two parts, whatever dst is */
    } else if (op->in_place && c->kind != ZB_COLL_ALL_REDUCE) {
        c->outer = 1;
    }
    while (n_src(c, n) > RIG_ELEMS || n_dst(c, n) > RIG_ELEMS) {
        c->inner /= 2;
    }
}

struct many {
    int n_rounds, n_under_way, max_us;
    uint64_t seed;
    int is_shown; /* sources, in host memory */
};

/* Start some, work on them now and then, finish all, look at the results. The
 * ops are drawn alike by all members, the pace and the streams are not. */
static enum zb_status do_round(struct coll_rig_member *m, struct op *op,
                               int n_ops, int max_us)
{
    struct zb_coll_group *g = m->r->g;
    struct zb_stream *work = m->stream[zbt_rand_in(&m->rng, 0, 1)];
    int n_left;

    for (int i = 0; i < n_ops; i++) {
        place_op(&op[i], m);
        ZB_TRY(fill_op(&op[i], m));
        ZB_TRY(zb_coll_start(g, m->rank, m->stream[0], &op[i].c));
        coll_rig_dawdle(m, max_us);
        if (zbt_rand_in(&m->rng, 0, 1)) {
            ZB_TRY(zb_coll_work(g, m->rank, work, ZB_COLL_WHAT_IS_READY,
                                &n_left));
            m->n_wrong += n_left < 0 || n_left > i + 1;
        }
    }
    if (zbt_rand_in(&m->rng, 0, 1)) {
        ZB_TRY(zb_coll_work(g, m->rank, work, 0, &n_left));
        m->n_wrong += n_left != 0;
        coll_rig_dawdle(m, max_us);
    }
    ZB_TRY(zb_coll_finish(g, m->rank, m->stream[0]));
    for (int i = 0; i < n_ops; i++) {
        ZB_TRY(check_op(&op[i], m));
    }
    return ZB_OK;
}

static enum zb_status do_many(struct coll_rig_member *m)
{
    const struct many *t = m->r->arg;
    struct zbt_rng rng = {t->seed};

    for (int round = 0; round < t->n_rounds; round++) {
        struct op op[RIG_SLOTS];
        int n_ops = (int)zbt_rand_in(&rng, 1, t->n_under_way);

        for (int i = 0; i < n_ops; i++) {
            draw_op(&op[i], &rng, m->r->n);
            op[i].place = i;
        }
        ZB_TRY(do_round(m, op, n_ops, t->max_us));
    }
    return ZB_OK;
}

static void check_many(const char *backend, int n, struct many t, int delay_us)
{
    struct coll_rig r;

    coll_rig_open(&r, backend, n, t.n_under_way, delay_us, t.seed);
    r.is_shown = t.is_shown;
    r.arg = &t;
    coll_rig_run(&r, do_many);
    CU_ASSERT(coll_rig_is_fine(&r));
    CU_ASSERT_EQUAL(coll_rig_close(&r), 0);
}

static const int sizes[] = {1, 2, 3, 4, 8};

static void drawn_collectives_give_the_bits_of_the_formula(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(sizes); i++) {
        for (int n_under_way = 1; n_under_way <= RIG_SLOTS; n_under_way++) {
            const struct many t = {.n_rounds = zbt_is_long() ? 400 : 40,
                                   .n_under_way = n_under_way,
                                   .max_us = n_under_way % 2 ? 0 : 200,
                                   .seed = 10 * i + (uint64_t)n_under_way};

            check_many("cpu", sizes[i], t, 0);
        }
    }
}

static void sources_shown_in_host_memory_give_the_bits_of_the_formula(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(sizes); i++) {
        const struct many t = {.n_rounds = zbt_is_long() ? 400 : 60,
                               .n_under_way = 1,
                               .max_us = 50,
                               .seed = 10 * i + 7,
                               .is_shown = 1};

        check_many("cpu", sizes[i], t, 0);
    }
}

/* The mirror is for sources of RIG_ELEMS elements. */
static enum zb_status show_too_much(struct coll_rig_member *m)
{
    struct zb_coll c = {.kind = ZB_COLL_ALL_REDUCE,
                        .dtype = ZB_DTYPE_REAL,
                        .outer = 1,
                        .inner = RIG_ELEMS + 1,
                        .src = m->src[0],
                        .dst = m->dst[0],
                        .label = "too much"};

    return zb_coll_start(m->r->g, m->rank, m->stream[0], &c);
}

static void source_larger_than_what_shows_it_is_an_error(void)
{
    struct coll_rig r;

    coll_rig_open(&r, "cpu", 2, 1, 0, 1);
    r.is_shown = 1;
    coll_rig_run(&r, show_too_much);
    CU_ASSERT_EQUAL(r.member[0].st, ZB_EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(r.member[0].text, "in host memory"));
    coll_rig_close(&r);
}

static void drawn_collectives_are_ordered_by_events(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(sizes); i++) {
        for (uint64_t seed = 1; seed <= 3; seed++) {
            const struct many t = {.n_rounds = zbt_is_long() ? 100 : 10,
                                   .n_under_way = 1 + (int)seed,
                                   .max_us = 200,
                                   .seed = 100 * i + seed};

            check_many("check", sizes[i], t, 300);
        }
    }
}

static void more_members_than_a_kernel_takes_sources_agree(void)
{
    struct coll_rig r;
    struct many t = {.n_rounds = 1, .n_under_way = 1};

    CU_ASSERT(RIG_MEMBERS > ZB_REDUCE_MAX);
    for (t.seed = 1; t.seed <= 20; t.seed++) {
        coll_rig_open(&r, "cpu", RIG_MEMBERS, 1, 0, t.seed);
        r.arg = &t;
        coll_rig_run(&r, do_many);
        for (int i = 0; i < r.n; i++) {
            CU_ASSERT_EQUAL(r.member[i].n_wrong, 0);
            CU_ASSERT(r.member[i].st == ZB_OK || r.member[i].st == ZB_EABORT ||
                      strstr(r.member[i].text, "in place with more than"));
        }
        coll_rig_close(&r);
    }
}

/* ---- one of them --------------------------------------------------------- */

static enum zb_status overwrite_src(struct coll_rig_member *m,
                                    const struct op *op,
                                    struct zb_stream *stream)
{
    const struct zb_k_fill k = {
        .n = n_src(&op->c, m->r->n), .value = 1, .y = m->src[0]};
    struct zb_launch l = {.kernel = ZB_K_fill, .label = "fill", .params = &k};

    zb_launch_reals(&l, k.y, k.n, ZB_WRITE);
    return m->r->ops->launch(stream, &l);
}

/* Starts on one stream, works on another, finishes on a third, where src is
 * overwritten after: events alone give the order. */
static enum zb_status do_on_three_streams(struct coll_rig_member *m)
{
    struct op op = *(const struct op *)m->r->arg;
    struct zb_coll_group *g = m->r->g;

    place_op(&op, m);
    m->r->ops->stream_mark(m->stream[0], "start");
    m->r->ops->stream_mark(m->stream[1], "work");
    m->r->ops->stream_mark(m->stream[2], "finish");
    ZB_TRY(overwrite_src(m, &op, m->stream[0]));
    ZB_TRY(zb_coll_start(g, m->rank, m->stream[0], &op.c));
    ZB_TRY(zb_coll_work(g, m->rank, m->stream[1], 0, NULL));
    ZB_TRY(zb_coll_finish(g, m->rank, m->stream[2]));
    return overwrite_src(m, &op, m->stream[2]);
}

static struct op op_of(enum zb_coll_kind kind, int n)
{
    return (struct op){.c = {.kind = kind,
                             .dtype = ZB_DTYPE_REAL,
                             .outer = 2,
                             .mid = 2,
                             .inner = 100,
                             .n_heads = n,
                             .label = "one"}};
}

/* Leave out the k-th wait of a member: of its work and of its finish. */
static void check_dropped_waits(enum zb_coll_kind kind, int n)
{
    static const char *const node[] = {"work", "finish"};

    for (int phase = 0; phase < 2; phase++) {
        for (int k = 1; k <= n; k++) {
            const struct zb_check_target t = {
                .k = (uint64_t)k, .device = n - 1, .node = node[phase]};
            struct op op = op_of(kind, n);
            struct coll_rig r;

            coll_rig_open(&r, "check", n, 1, 50, 1);
            zb_check_drop_wait(r.be, &t);
            r.arg = &op;
            coll_rig_run(&r, do_on_three_streams);
            CU_ASSERT_EQUAL(zb_check_faults_hit(r.be), 1);
            CU_ASSERT(zb_check_reports(r.be) > 0);
            coll_rig_close(&r);
        }
    }
}

static void every_wait_left_out_is_reported(void)
{
    for (int kind = 0; kind < ZB_N_COLLS; kind++) {
        check_dropped_waits((enum zb_coll_kind)kind, 2);
        check_dropped_waits((enum zb_coll_kind)kind, 3);
    }
}

static void nothing_left_out_has_no_report(void)
{
    for (int kind = 0; kind < ZB_N_COLLS; kind++) {
        struct op op = op_of((enum zb_coll_kind)kind, 4);
        struct coll_rig r;

        coll_rig_open(&r, "check", 4, 1, 50, 1);
        r.arg = &op;
        coll_rig_run(&r, do_on_three_streams);
        CU_ASSERT(coll_rig_is_fine(&r));
        CU_ASSERT_EQUAL(coll_rig_close(&r), 0);
    }
}

static enum zb_status run_one(struct coll_rig_member *m)
{
    struct op op = *(const struct op *)m->r->arg;

    if (op.id == 1) {
        op.c.inner += m->rank == 1;
    } else if (op.id == 2) {
        op.c.n_heads = 2;
    } else if (op.id == 3) {
        op.c.dtype = ZB_DTYPE_U8;
    }
    place_op(&op, m);
    ZB_TRY(fill_op(&op, m));
    if (op.id == 4) {
        ZB_TRY(zb_coll_start(m->r->g, m->rank, m->stream[0], &op.c));
    }
    return zb_coll_run(m->r->g, m->rank, m->stream[0], &op.c);
}

/* Member 1; over a link whoever comes last sees what the others do. */
static int failed_with(const struct coll_rig *r, enum zb_status st,
                       const char *text)
{
    int n = 0;

    for (int i = 0; i < r->n; i++) {
        n += (r->is_linked || i == 1) && r->member[i].st == st &&
             strstr(r->member[i].text, text) != NULL;
    }
    return n > 0;
}

static void misuse_is_an_error_that_says_what(void)
{
    static const struct {
        enum zb_coll_kind kind;
        enum zb_status st;
        const char *text;
    } want[] = {
        {ZB_COLL_ALL_GATHER, ZB_EINVAL, "differs in kind or sizes"},
        {ZB_COLL_SEQ_TO_HEADS, ZB_EINVAL, "2 pieces, which do not divide 3"},
        {ZB_COLL_ALL_REDUCE, ZB_EUNSUPPORTED, "no sums of u8"},
        {ZB_COLL_ALL_REDUCE, ZB_EINVAL, "one more than the 1 collectives"},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(want); i++) {
        struct op op = op_of(want[i].kind, 3);
        struct coll_rig r;

        op.id = i + 1;
        coll_rig_open(&r, "cpu", 3, 1, 0, 1);
        r.arg = &op;
        coll_rig_run(&r, run_one);
        CU_ASSERT(failed_with(&r, want[i].st, want[i].text));
        coll_rig_close(&r);
    }
}

/* ---- rings --------------------------------------------------------------- */

/* Over a link, in the member's room but for its own. */
static int is_in_place(const struct coll_rig_member *m, int from,
                       const void *block)
{
    const char *room = m->room, *at = block;

    return m->r->is_linked && from != m->rank && m->r->n > 1
               ? at >= room && at < room + RIG_ROOM
               : block == m->r->member[from].src[0];
}

/* An all_reduce under way before, and one after; block r holds value(r). */
static enum zb_status do_rings(struct coll_rig_member *m)
{
    int n = m->r->n;
    struct zb_coll_group *g = m->r->g;

    for (uint64_t id = 1; id <= 20; id++) {
        struct op op = op_of(ZB_COLL_ALL_REDUCE, n);
        const void *block;

        op.id = id;
        place_op(&op, m);
        ZB_TRY(fill_op(&op, m));
        ZB_TRY(zb_coll_start(g, m->rank, m->stream[0], &op.c));
        coll_rig_dawdle(m, 200);
        ZB_TRY(zb_ring_begin(g, m->rank, m->stream[0], m->src[0], 800, "ring"));
        for (int step = 0; step < n; step++) {
            int from = (m->rank + n - step) % n;

            ZB_TRY(zb_ring_step(g, m->rank, m->stream[0], step, &block));
            m->n_wrong += !is_in_place(m, from, block);
            ZB_TRY(coll_rig_get(m, block, m->host, 200));
            for (int i = 0; i < 200; i++) {
                m->n_wrong += m->host[i] != value(id, from, i);
            }
            coll_rig_dawdle(m, 200);
        }
        ZB_TRY(zb_ring_end(g, m->rank, m->stream[0]));
        ZB_TRY(check_op(&op, m));
    }
    return ZB_OK;
}

static void ring_passes_every_block_in_place(void)
{
    static const char *const backend[] = {"cpu", "check"};

    for (size_t b = 0; b < ZB_COUNT_OF(backend); b++) {
        for (size_t i = 0; i < ZB_COUNT_OF(sizes); i++) {
            struct coll_rig r;

            coll_rig_open(&r, backend[b], sizes[i], 2, 200, i);
            coll_rig_run(&r, do_rings);
            CU_ASSERT(coll_rig_is_fine(&r));
            CU_ASSERT_EQUAL(coll_rig_close(&r), 0);
        }
    }
}

static enum zb_status misuse_ring(struct coll_rig_member *m)
{
    struct op op = op_of(ZB_COLL_ALL_REDUCE, m->r->n);
    struct zb_coll_group *g = m->r->g;
    struct zb_stream *s = m->stream[0];
    const void *block;

    ZB_TRY(fill_op(
        &(struct op){.c = {.outer = 1, .inner = 4, .src = m->src[0]}}, m));
    m->n_wrong += zb_ring_step(g, m->rank, s, 0, &block) != ZB_EINVAL;
    m->n_wrong += zb_ring_end(g, m->rank, s) != ZB_EINVAL;
    ZB_TRY(zb_ring_begin(g, m->rank, s, m->src[0], 8, "a"));
    m->n_wrong += zb_coll_start(g, m->rank, s, &op.c) != ZB_EINVAL;
    m->n_wrong += zb_coll_work(g, m->rank, s, 0, NULL) != ZB_EINVAL;
    m->n_wrong += zb_coll_finish(g, m->rank, s) != ZB_EINVAL;
    m->n_wrong += zb_ring_begin(g, m->rank, s, m->src[0], 8, "b") != ZB_EINVAL;
    ZB_TRY(zb_ring_end(g, m->rank, s));
    if (m->r->is_linked) { /* it may be sent before it is compared */
        return ZB_OK;
    }
    ZB_TRY(zb_ring_begin(g, m->rank, s, m->src[0], 8 + (size_t)m->rank, "c"));
    m->n_wrong += zb_ring_step(g, m->rank, s, 1, &block) != ZB_EINVAL;
    return zb_ring_end(g, m->rank, s);
}

static void misuse_of_a_ring_is_an_error(void)
{
    struct coll_rig r;

    coll_rig_open(&r, "cpu", 2, 2, 0, 1);
    coll_rig_run(&r, misuse_ring);
    CU_ASSERT(coll_rig_is_fine(&r));
    coll_rig_close(&r);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(drawn_collectives_give_the_bits_of_the_formula),
        ZBT_CASE(sources_shown_in_host_memory_give_the_bits_of_the_formula),
        ZBT_CASE(source_larger_than_what_shows_it_is_an_error),
        ZBT_CASE(drawn_collectives_are_ordered_by_events),
        ZBT_CASE(more_members_than_a_kernel_takes_sources_agree),
        ZBT_CASE(every_wait_left_out_is_reported),
        ZBT_CASE(nothing_left_out_has_no_report),
        ZBT_CASE(misuse_is_an_error_that_says_what),
        ZBT_CASE(ring_passes_every_block_in_place),
        ZBT_CASE(misuse_of_a_ring_is_an_error),
    };

    return zbt_run("coll", cases, ZB_COUNT_OF(cases));
}
