/* SPDX-License-Identifier: MIT
 *
 * What collectives cost: members as threads of the cpu backend, one core each.
 *
 *     bench/coll [-n MEMBERS] [-r ROUNDS]
 *
 * For several sizes of a member's array it times, in one run, memcpy() by all
 * members at once and each collective, and prints medians: microseconds, and
 * the memory traffic of all members (bytes read and written) in GB/s beside
 * that of memcpy(). With more members than cores the times are those of the
 * scheduler.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zb/comm.h"
#include "zb/mem.h"

#define MAX_MEMBERS 16
#define MAX_BYTES ((size_t)32 << 20)

enum { MEMCPY, REDUCE_SCATTER, ALL_GATHER, ALL_REDUCE, IN_PLACE, N_WHAT };

static const char *const what_name[N_WHAT] = {"memcpy", "reduce_scatter",
                                              "all_gather", "all_reduce",
                                              "all_reduce in place"};

struct bench {
    int n, rounds;
    struct zb_backend *be;
    struct zb_coll_group *g;
    struct zb_abort ab;
    struct zb_barrier barrier;
    size_t bytes; /* of the larger array */
    int what;
    double *us; /* [rounds], member 0 */
};

struct member {
    struct bench *b;
    int rank;
    struct zb_device *dev;
    struct zb_stream *stream;
    char *src, *dst;
    enum zb_status st;
};

static struct zb_coll coll_of(const struct member *m)
{
    int64_t elems = (int64_t)(m->b->bytes / sizeof(zb_real));
    struct zb_coll c = {.kind = ZB_COLL_ALL_REDUCE,
                        .dtype = ZB_DTYPE_REAL,
                        .outer = 1,
                        .inner = elems,
                        .src = m->src,
                        .dst = m->b->what == IN_PLACE ? m->src : m->dst,
                        .label = "bench"};

    if (m->b->what == REDUCE_SCATTER || m->b->what == ALL_GATHER) {
        c.kind = m->b->what == REDUCE_SCATTER ? ZB_COLL_REDUCE_SCATTER
                                              : ZB_COLL_ALL_GATHER;
        c.inner = elems / m->b->n;
    }
    return c;
}

static enum zb_status run_once(struct member *m)
{
    const struct zb_coll c = coll_of(m);

    if (m->b->what == MEMCPY) {
        memcpy(m->dst, m->src, m->b->bytes);
        return ZB_OK;
    }
    return zb_coll_run(m->b->g, m->rank, m->stream, &c);
}

/* From when all are there until all are done. */
static enum zb_status run_rounds(struct member *m)
{
    struct bench *b = m->b;

    for (int i = -1; i < b->rounds; i++) {
        int64_t begin;

        ZB_TRY(zb_barrier_wait(&b->barrier, &b->ab));
        begin = zb_now_ns();
        ZB_TRY(run_once(m));
        ZB_TRY(zb_barrier_wait(&b->barrier, &b->ab));
        if (m->rank == 0 && i >= 0) {
            b->us[i] = (double)(zb_now_ns() - begin) * 1e-3;
        }
    }
    return ZB_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Bytes that all members read and write. */
static double traffic(const struct bench *b)
{
    double bytes = (double)b->bytes, n = b->n;

    switch (b->what) {
    case REDUCE_SCATTER:
        return n * (bytes + bytes / n);
    case ALL_REDUCE:
    case IN_PLACE:
        if (b->what == ALL_REDUCE && b->bytes <= 32768) {
            return n * (n + 1) * bytes; /* each sums all of it */
        }
        return n * (bytes + bytes / n + 2 * bytes * (n - 1) / n);
    default:
        return n * 2 * bytes;
    }
}

static void report(const struct bench *b, double *memcpy_rate)
{
    double us, rate;

    qsort(b->us, (size_t)b->rounds, sizeof(*b->us), by_value);
    us = b->us[b->rounds / 2];
    rate = traffic(b) / us * 1e-3;
    if (b->what == MEMCPY) {
        *memcpy_rate = rate;
    }
    printf("%8zu KiB  %-20s %10.1f us %7.1f GB/s  %5.2f of memcpy\n",
           b->bytes >> 10, what_name[b->what], us, rate, rate / *memcpy_rate);
}

static enum zb_status run_all(struct member *m)
{
    struct bench *b = m->b;
    double memcpy_rate = 1;

    for (size_t bytes = (size_t)4 << 10; bytes <= MAX_BYTES; bytes *= 8) {
        for (int what = MEMCPY; what < N_WHAT; what++) {
            ZB_TRY(zb_barrier_wait(&b->barrier, &b->ab));
            if (m->rank == 0) {
                b->bytes = bytes;
                b->what = what;
            }
            ZB_TRY(zb_barrier_wait(&b->barrier, &b->ab));
            /* Repeated sums in place must not overflow. */
            memset(m->src, 0, bytes);
            ZB_TRY(run_rounds(m));
            if (m->rank == 0) {
                report(b, &memcpy_rate);
            }
        }
    }
    return ZB_OK;
}

static void member_main(void *arg)
{
    struct member *m = arg;
    const struct zb_backend_ops *ops = m->b->be->ops;
    void *src = NULL, *dst = NULL;

    ZB_TRY_GOTO(m->st, ops->device_open(m->b->be, m->rank, &m->dev), out);
    ZB_TRY_GOTO(m->st, ops->stream_new(m->dev, "bench", &m->stream), out);
    ZB_TRY_GOTO(m->st, ops->mem_alloc(m->dev, MAX_BYTES, "src", &src), out);
    ZB_TRY_GOTO(m->st, ops->mem_alloc(m->dev, MAX_BYTES, "dst", &dst), out);
    m->src = src;
    m->dst = dst;
    memset(dst, 0, MAX_BYTES);
    ZB_TRY_GOTO(m->st, zb_coll_join(m->b->g, m->rank, m->dev), out);
    m->st = run_all(m);
out:
    if (m->st != ZB_OK) {
        fprintf(stderr, "coll: member %d: %s\n", m->rank, zb_error_text());
        zb_abort_raise(&m->b->ab, m->st, zb_error_text());
    }
}

static void member_close(struct member *m)
{
    const struct zb_backend_ops *ops = m->b->be->ops;

    if (m->dev != NULL) {
        zb_coll_leave(m->b->g, m->rank);
        ops->mem_free(m->dev, m->src);
        ops->mem_free(m->dev, m->dst);
        ops->stream_free(m->stream);
        ops->device_close(m->dev);
    }
}

/* The backend is synchronous: who comes after may close for the threads. */
static enum zb_status run_members(struct bench *b)
{
    struct member m[MAX_MEMBERS] = {{0}};
    struct zb_thread t[MAX_MEMBERS];
    enum zb_status st = ZB_OK;
    int n = 0;

    while (n < b->n && st == ZB_OK) {
        m[n] = (struct member){.b = b, .rank = n};
        st = zb_thread_start(&t[n], "member", member_main, &m[n]);
        n += st == ZB_OK;
    }
    if (st != ZB_OK) {
        zb_abort_raise(&b->ab, st, zb_error_text());
    }
    for (int i = 0; i < n; i++) {
        zb_thread_join(&t[i]);
        st = m[i].st != ZB_OK ? m[i].st : st;
    }
    for (int i = 0; i < n; i++) {
        member_close(&m[i]);
    }
    return st;
}

static enum zb_status bench(struct bench *b)
{
    const struct zb_backend_opts bo = {.n_devices = b->n,
                                       .threads_per_device = 1};
    struct zb_coll_group_opts o = {
        .name = "bench", .n_members = b->n, .n_under_way = 1};
    enum zb_status st;

    zb_abort_init(&b->ab);
    zb_barrier_init(&b->barrier, (uint32_t)b->n);
    b->us = zb_alloc_array((size_t)b->rounds, sizeof(*b->us));
    st = b->us == NULL ? ZB_ENOMEM : zb_backend_open("cpu", &bo, &b->be);
    if (st == ZB_OK) {
        o.ops = b->be->ops;
        st = zb_coll_group_new(&o, &b->ab, &b->g);
    }
    if (st == ZB_OK) {
        st = run_members(b);
    }
    zb_coll_group_free(b->g);
    zb_backend_close(b->be);
    zb_free(b->us);
    zb_abort_release(&b->ab);
    return st;
}

int main(int argc, char **argv)
{
    struct bench b = {.n = 2, .rounds = 101};
    int opt;

    while ((opt = getopt(argc, argv, "n:r:")) != -1) {
        if (opt == 'n') {
            b.n = atoi(optarg);
        } else if (opt == 'r') {
            b.rounds = atoi(optarg);
        } else {
            return 2;
        }
    }
    if (b.n < 1 || b.n > MAX_MEMBERS || b.rounds < 1) {
        fprintf(stderr, "coll: 1 to %d members, 1 round or more\n",
                MAX_MEMBERS);
        return 2;
    }
    printf("%d members\n", b.n);
    return bench(&b) == ZB_OK ? 0 : 1;
}
