/* SPDX-License-Identifier: MIT
 *
 * Channels: buffers that circulate, tags, sizes, and stopping. */
#include "config.h"

#include <string.h>

#include "zb/comm.h"
#include "zb/mem.h"
#include "zbt.h"

#define N_DEVICES 2
#define LONGEST_S 5.0

/* Two devices of the cpu backend and a channel from one to the other. The
 * threads of these tests take turns or use one side each. */
struct rig {
    struct zb_backend *be;
    struct zb_device *dev[N_DEVICES];
    struct zb_stream *stream[N_DEVICES];
    struct zb_abort ab;
    struct zb_channel *c;
    char *mem;
};

/* For via_host: that of the rig. */
static struct zb_backend rigs;

static void rig_open_with(struct rig *r, struct zb_channel_opts o)
{
    struct zb_backend_opts bo = {.n_devices = N_DEVICES,
                                 .threads_per_device = 1};

    o.name = "here to there";
    ZBT_OK(zb_backend_open("cpu", &bo, &r->be));
    for (int i = 0; i < N_DEVICES; i++) {
        ZBT_OK(r->be->ops->device_open(r->be, i, &r->dev[i]));
        ZBT_OK(r->be->ops->stream_new(r->dev[i], "compute", &r->stream[i]));
    }
    zb_abort_init(&r->ab);
    o.ops = r->be->ops;
    o.via_host = o.via_host != NULL ? r->be : NULL;
    ZBT_OK(zb_channel_new(&o, &r->ab, &r->c));
    ZBT_OK(zb_channel_join_sender(r->c, r->dev[0]));
    ZBT_OK(zb_channel_join_receiver(r->c, r->dev[1]));
    r->mem = zb_alloc((size_t)o.n_buffers * o.bytes + 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(r->mem);
    zb_channel_give_memory(r->c, 0, o.n_buffers, r->mem, o.bytes);
}

/* Messages in place. */
static void rig_open(struct rig *r, int n_buffers, size_t bytes, int has_cache)
{
    rig_open_with(r, (struct zb_channel_opts){.bytes = bytes,
                                              .n_buffers = n_buffers,
                                              .has_meta_cache = has_cache});
}

static void rig_close(struct rig *r)
{
    zb_channel_leave_sender(r->c);
    zb_channel_leave_receiver(r->c);
    zb_channel_free(r->c);
    zb_abort_release(&r->ab);
    for (int i = 0; i < N_DEVICES; i++) {
        r->be->ops->stream_free(r->stream[i]);
        r->be->ops->device_close(r->dev[i]);
    }
    zb_backend_close(r->be);
    zb_free(r->mem);
}

static struct zb_bind bind_of(int64_t rows, int64_t seq)
{
    return (struct zb_bind){.value = {[ZB_SYM_BATCH] = rows,
                                      [ZB_SYM_SEQ] = seq}};
}

static struct zb_msg *put(struct rig *r, int mb, struct zb_bind bind)
{
    struct zb_msg *m = NULL;

    ZBT_OK(zb_channel_acquire(r->c, r->stream[0], &m));
    ZBT_OK(zb_channel_filled(r->c, m, r->stream[0]));
    ZBT_OK(zb_channel_send(r->c, m, mb, &bind));
    return m;
}

static struct zb_msg *take(struct rig *r, int mb, struct zb_bind *bind_out)
{
    struct zb_msg *m = NULL;

    ZBT_OK(zb_channel_recv(r->c, mb, r->stream[1], &m, bind_out));
    return m;
}

/* ---- the pool ------------------------------------------------------------ */

static void buffers_circulate_in_order(void)
{
    for (int n = 1; n <= 4; n++) {
        struct zb_msg *sent[4];
        struct zb_bind bind;
        struct rig r;

        rig_open(&r, n, 64, 1);
        for (int round = 0; round < 5; round++) {
            for (int i = 0; i < n; i++) {
                sent[i] = put(&r, round * n + i, bind_of(1, 1));
                CU_ASSERT_PTR_EQUAL(sent[i]->ptr,
                                    r.mem + 64 * sent[i]->index);
                for (int k = 0; k < i; k++) {
                    CU_ASSERT_PTR_NOT_EQUAL(sent[i], sent[k]);
                }
            }
            for (int i = 0; i < n; i++) {
                struct zb_msg *m = take(&r, round * n + i, &bind);

                CU_ASSERT_PTR_EQUAL(m, sent[i]);
                ZBT_OK(zb_channel_release(r.c, m, r.stream[1]));
            }
        }
        CU_ASSERT_EQUAL(zb_channel_stats(r.c).n_messages, 5 * (uint64_t)n);
        rig_close(&r);
    }
}

static void message_without_bytes_has_no_memory(void)
{
    struct zb_bind bind;
    struct zb_msg *m;
    struct rig r;

    rig_open(&r, 2, 0, 1);
    m = put(&r, 7, bind_of(3, 4));
    CU_ASSERT_PTR_NULL(m->ptr);
    m = take(&r, 7, &bind);
    CU_ASSERT_PTR_NULL(m->ptr);
    CU_ASSERT_EQUAL(bind.value[ZB_SYM_BATCH], 3);
    CU_ASSERT_EQUAL(bind.value[ZB_SYM_SEQ], 4);
    rig_close(&r);
}

static void message_of_another_microbatch_is_an_error(void)
{
    struct zb_bind bind;
    struct zb_msg *m;
    struct rig r;

    rig_open(&r, 2, 8, 1);
    put(&r, 3, bind_of(1, 1));
    CU_ASSERT_EQUAL(zb_channel_recv(r.c, 2, r.stream[1], &m, &bind),
                    ZB_EINVAL);
    CU_ASSERT_PTR_NOT_NULL(
        strstr(zb_error_text(),
               "here to there: expected microbatch 2, but 3 was sent"));
    rig_close(&r);
}

/* ---- copies -------------------------------------------------------------- */

static void arrives_in_memory_of_the_receiver(struct zb_backend *via_host)
{
    struct zb_msg *sent, *got;
    struct zb_bind bind;
    struct rig r;

    rig_open_with(&r, (struct zb_channel_opts){.bytes = 64,
                                               .n_buffers = 3,
                                               .n_staged = 1,
                                               .via_host = via_host});
    for (int mb = 0; mb < 5; mb++) {
        ZBT_OK(zb_channel_acquire(r.c, r.stream[0], &sent));
        CU_ASSERT_PTR_EQUAL(sent->ptr, r.mem);
        memset(sent->ptr, mb + 1, 64);
        ZBT_OK(zb_channel_filled(r.c, sent, r.stream[0]));
        ZBT_OK(zb_channel_send(r.c, sent, mb, &(struct zb_bind){{1, 1}}));
        got = take(&r, mb, &bind);
        CU_ASSERT((char *)got->ptr >= r.mem + 64);
        CU_ASSERT_EQUAL(((char *)got->ptr)[0], mb + 1);
        CU_ASSERT_EQUAL(((char *)got->ptr)[63], mb + 1);
        ZBT_OK(zb_channel_release(r.c, got, r.stream[1]));
    }
    rig_close(&r);
}

static void copied_message_arrives_in_memory_of_the_receiver(void)
{
    arrives_in_memory_of_the_receiver(NULL);
    arrives_in_memory_of_the_receiver(&rigs);
}

static void takes_the_parts(struct zb_backend *via_host)
{
    const struct zb_part part[] = {
        {0, ZB_DTYPE_I32, zb_shape_make(1, (int64_t[]){ZB_DIM(ZB_SYM_SEQ)})},
        {64, ZB_DTYPE_BF16, zb_shape_make(1, (int64_t[]){ZB_DIM(ZB_SYM_SEQ)})},
    };
    struct zb_bind bind = bind_of(1, 5);
    struct zb_msg *sent, *got;
    struct rig r;

    rig_open_with(&r, (struct zb_channel_opts){.bytes = 128,
                                               .n_buffers = 2,
                                               .n_staged = 1,
                                               .via_host = via_host,
                                               .part = part,
                                               .n_parts = 2});
    ZBT_OK(zb_channel_acquire(r.c, r.stream[0], &sent));
    memset(r.mem, 1, 128);
    memset(r.mem + 128, 2, 128);
    ZBT_OK(zb_channel_filled(r.c, sent, r.stream[0]));
    ZBT_OK(zb_channel_send(r.c, sent, 0, &bind));
    got = take(&r, 0, &bind);
    for (int i = 0; i < 128; i++) {
        int is_copied = i < 5 * 4 || (i >= 64 && i < 64 + 5 * 2);

        CU_ASSERT_EQUAL(((char *)got->ptr)[i], is_copied ? 1 : 2);
    }
    rig_close(&r);
}

static void copy_takes_the_parts_at_the_sizes_of_the_microbatch(void)
{
    takes_the_parts(NULL);
    takes_the_parts(&rigs);
}

static void copied_message_more_than_staged_is_an_error(void)
{
    struct zb_msg *m;
    struct rig r;

    rig_open_with(&r, (struct zb_channel_opts){
                          .bytes = 8, .n_buffers = 3, .n_staged = 2});
    ZBT_OK(zb_channel_acquire(r.c, r.stream[0], &m));
    ZBT_OK(zb_channel_acquire(r.c, r.stream[0], &m));
    CU_ASSERT_EQUAL(zb_channel_acquire(r.c, r.stream[0], &m), ZB_EINVAL);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "all 2 buffers"));
    rig_close(&r);
}

/* ---- sizes --------------------------------------------------------------- */

/* A random sequence of sizes with up to n_buffers messages under way: what is
 * received is what was sent with that message, never an older entry. */
static void sizes_are_those_of_the_message(void)
{
    struct zbt_rng rng = {5};

    for (int n = 1; n <= 3; n++) {
        for (int has_cache = 0; has_cache < 2; has_cache++) {
            struct zb_bind sent[1000], bind;
            int n_sent = 0, n_taken = 0;
            uint64_t n_changes = 0;
            struct zb_channel_stats st;
            struct rig r;

            rig_open(&r, n, 8, has_cache);
            while (n_taken < 1000) {
                if (n_sent < 1000 && n_sent - n_taken < n &&
                    (n_sent == n_taken || zbt_rand_in(&rng, 0, 1))) {
                    sent[n_sent] = bind_of(zbt_rand_in(&rng, 1, 2),
                                           zbt_rand_in(&rng, 5, 6));
                    n_changes += n_sent == 0 ||
                                 memcmp(&sent[n_sent], &sent[n_sent - 1],
                                        sizeof(bind)) != 0;
                    put(&r, n_sent, sent[n_sent]);
                    n_sent++;
                } else {
                    struct zb_msg *m = take(&r, n_taken, &bind);

                    CU_ASSERT_EQUAL(
                        memcmp(&bind, &sent[n_taken], sizeof(bind)), 0);
                    ZBT_OK(zb_channel_release(r.c, m, r.stream[1]));
                    n_taken++;
                }
            }
            st = zb_channel_stats(r.c);
            CU_ASSERT_EQUAL(st.n_messages, 1000);
            CU_ASSERT_EQUAL(st.n_meta_writes, has_cache ? n_changes : 1000);
            CU_ASSERT_EQUAL(st.n_meta_reads, st.n_meta_writes);
            rig_close(&r);
        }
    }
}

/* ---- threads ------------------------------------------------------------- */

struct side {
    struct rig *r;
    int n;
    enum zb_status st;
    int n_wrong; /* messages with other contents than were sent */
};

/* The contents tell the message, the sizes change every 1000. */
static void send_many(void *arg)
{
    struct side *a = arg;

    for (int i = 0; i < a->n && a->st == ZB_OK; i++) {
        struct zb_bind bind = bind_of(1 + i / 1000, 7);
        struct zb_msg *m;

        a->st = zb_channel_acquire(a->r->c, a->r->stream[0], &m);
        if (a->st == ZB_OK) {
            memcpy(m->ptr, &i, sizeof(i));
            a->st = zb_channel_filled(a->r->c, m, a->r->stream[0]);
        }
        if (a->st == ZB_OK) {
            a->st = zb_channel_send(a->r->c, m, i, &bind);
        }
    }
}

static void receive_many(void *arg)
{
    struct side *a = arg;

    for (int i = 0; i < a->n && a->st == ZB_OK; i++) {
        struct zb_bind bind;
        struct zb_msg *m;
        int have;

        a->st = zb_channel_recv(a->r->c, i, a->r->stream[1], &m, &bind);
        if (a->st == ZB_OK) {
            memcpy(&have, m->ptr, sizeof(have));
            a->n_wrong += have != i || bind.value[0] != 1 + i / 1000;
            a->st = zb_channel_release(a->r->c, m, a->r->stream[1]);
        }
    }
}

static void many_messages_between_two_threads_arrive(void)
{
    const struct zb_channel_opts pool[] = {
        {.bytes = 64, .n_buffers = 1, .has_meta_cache = 1},
        {.bytes = 64, .n_buffers = 3, .has_meta_cache = 1},
        {.bytes = 64, .n_buffers = 2, .n_staged = 1, .has_meta_cache = 1},
        {.bytes = 64, .n_buffers = 4, .n_staged = 2, .has_meta_cache = 1},
        {.bytes = 64,
         .n_buffers = 2,
         .n_staged = 1,
         .has_meta_cache = 1,
         .via_host = &rigs},
        {.bytes = 64,
         .n_buffers = 4,
         .n_staged = 2,
         .has_meta_cache = 1,
         .via_host = &rigs},
    };

    for (size_t k = 0; k < ZB_COUNT_OF(pool); k++) {
        struct rig r;
        struct side tx = {.r = &r, .n = 100000}, rx = tx;
        struct zb_thread t[2];

        rig_open_with(&r, pool[k]);
        ZBT_OK(zb_thread_start(&t[0], "sender", send_many, &tx));
        ZBT_OK(zb_thread_start(&t[1], "receiver", receive_many, &rx));
        zb_thread_join(&t[0]);
        zb_thread_join(&t[1]);
        CU_ASSERT_EQUAL(tx.st, ZB_OK);
        CU_ASSERT_EQUAL(rx.st, ZB_OK);
        CU_ASSERT_EQUAL(rx.n_wrong, 0);
        CU_ASSERT_EQUAL(zb_channel_stats(r.c).n_meta_writes, 100);
        rig_close(&r);
    }
}

/* Each side waits for the other, who never comes. */
static void abort_wakes_whoever_waits(void)
{
    static void (*const wait[2])(void *) = {send_many, receive_many};

    for (int i = 0; i < 4; i++) {
        struct rig r;
        struct side a = {.r = &r, .n = 10};
        struct zb_thread t;
        int64_t begin;

        rig_open_with(&r, (struct zb_channel_opts){
                              .bytes = 8, .n_buffers = 2, .n_staged = i / 2});
        ZBT_OK(zb_thread_start(&t, "waits", wait[i % 2], &a));
        zb_sleep_ns(20000000);
        begin = zb_now_ns();
        zb_abort_raise(&r.ab, ZB_EDEVICE, "the other one failed");
        zb_thread_join(&t);
        CU_ASSERT((double)(zb_now_ns() - begin) * 1e-9 < LONGEST_S);
        CU_ASSERT_EQUAL(a.st, ZB_EABORT);
        rig_close(&r);
    }
}

static void failing_kth_allocation_leaves_nothing(void)
{
    struct zb_channel_opts o = {
        .name = "c", .bytes = 8, .n_buffers = 2, .n_staged = 1};
    struct zb_abort ab;
    int64_t live = zb_mem_live();

    zb_abort_init(&ab);
    for (uint64_t k = 1;; k++) {
        struct zb_channel *c = NULL;
        enum zb_status st;
        int failed;

        zb_mem_fail_at(k);
        st = zb_channel_new(&o, &ab, &c);
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        CU_ASSERT_EQUAL(st, failed ? ZB_ENOMEM : ZB_OK);
        zb_channel_free(c);
        CU_ASSERT_EQUAL(zb_mem_live(), live);
        if (!failed) {
            CU_ASSERT(k > 3);
            break;
        }
    }
    zb_abort_release(&ab);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(buffers_circulate_in_order),
        ZBT_CASE(message_without_bytes_has_no_memory),
        ZBT_CASE(message_of_another_microbatch_is_an_error),
        ZBT_CASE(copied_message_arrives_in_memory_of_the_receiver),
        ZBT_CASE(copy_takes_the_parts_at_the_sizes_of_the_microbatch),
        ZBT_CASE(copied_message_more_than_staged_is_an_error),
        ZBT_CASE(sizes_are_those_of_the_message),
        ZBT_CASE(many_messages_between_two_threads_arrive),
        ZBT_CASE(abort_wakes_whoever_waits),
        ZBT_CASE(failing_kth_allocation_leaves_nothing),
    };

    return zbt_run("channel", cases, ZB_COUNT_OF(cases));
}
