/* SPDX-License-Identifier: MIT
 *
 * What messages between two devices cost, both ways to pass them on.
 *
 *     bench/messages [-b BACKEND] [-d GPU,GPU] [-n MESSAGES] [-k READS]
 *
 * One thread sends: a kernel writes each message. The other reads each READS
 * times (3: F, B and W), by a kernel that copies it elsewhere. For several sizes
 * it times, in one run, MESSAGES of them in place (the receiver reads the
 * sender's memory) and copied (a stream for copies brings them into the
 * receiver's memory first), five times in turn, and prints medians:
 * microseconds and GB/s per message, and the ratio.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zb/comm.h"
#include "zb/thread.h"

#define MAX_BYTES ((size_t)64 << 20)
enum { N_BUFFERS = 2, ROUNDS = 5, IN_PLACE = 0, COPIED = 1 };

struct bench {
    int n, n_reads;
    struct zb_backend *be;
    struct zb_channel *chan;
    struct zb_abort ab;
    struct zb_barrier barrier;
    size_t bytes;
    int is_copied;
};

struct side {
    struct bench *b;
    int index; /* 0: sends */
    struct zb_device *dev;
    struct zb_stream *stream;
    char *mem; /* its buffers of both ways, and where it reads into */
    enum zb_status st;
    double us[2][ROUNDS]; /* per message */
};

static enum zb_status launch_fill(struct side *s, void *y)
{
    struct zb_k_fill k = {.n = (int64_t)(s->b->bytes / sizeof(zb_real)),
                          .value = 1,
                          .y = y};
    struct zb_launch l = {.kernel = ZB_K_fill, .label = "fill", .params = &k};

    zb_launch_reals(&l, y, k.n, ZB_WRITE);
    return s->b->be->ops->launch(s->stream, &l);
}

static enum zb_status launch_read(struct side *s, const void *x, void *y)
{
    struct zb_k_scale k = {.n = (int64_t)(s->b->bytes / sizeof(zb_real)),
                           .alpha = 1,
                           .x = x,
                           .y = y};
    struct zb_launch l = {.kernel = ZB_K_scale, .label = "read", .params = &k};

    zb_launch_reals(&l, x, k.n, ZB_READ);
    zb_launch_reals(&l, y, k.n, ZB_WRITE);
    return s->b->be->ops->launch(s->stream, &l);
}

static enum zb_status send_all(struct side *s)
{
    struct zb_bind bind = {{1}};

    for (int i = 0; i < s->b->n; i++) {
        struct zb_msg *m;

        ZB_TRY(zb_channel_acquire(s->b->chan, s->stream, &m));
        ZB_TRY(launch_fill(s, m->ptr));
        ZB_TRY(zb_channel_filled(s->b->chan, m, s->stream));
        ZB_TRY(zb_channel_send(s->b->chan, m, i, &bind));
    }
    return s->b->be->ops->stream_sync(s->stream);
}

static enum zb_status receive_all(struct side *s)
{
    struct zb_bind bind;

    for (int i = 0; i < s->b->n; i++) {
        struct zb_msg *m;

        ZB_TRY(zb_channel_recv(s->b->chan, i, s->stream, &m, &bind));
        for (int k = 0; k < s->b->n_reads; k++) {
            ZB_TRY(launch_read(s, m->ptr, s->mem));
        }
        ZB_TRY(zb_channel_release(s->b->chan, m, s->stream));
    }
    return s->b->be->ops->stream_sync(s->stream);
}

static enum zb_status make_channel(struct bench *b)
{
    const struct zb_channel_opts o = {
        .ops = b->be->ops,
        .name = "bench",
        .bytes = b->bytes,
        .n_buffers = 2 * N_BUFFERS,
        .n_staged = b->is_copied ? N_BUFFERS : 0,
        .has_meta_cache = 1,
    };

    return zb_channel_new(&o, &b->ab, &b->chan);
}

/* In place all buffers are the sender's. */
static enum zb_status join(struct side *s)
{
    struct bench *b = s->b;

    if (s->index == 0) {
        ZB_TRY(zb_channel_join_sender(b->chan, s->dev));
        zb_channel_give_memory(b->chan, 0,
                               b->is_copied ? N_BUFFERS : 2 * N_BUFFERS, s->mem,
                               b->bytes);
        return ZB_OK;
    }
    if (b->is_copied) {
        zb_channel_give_memory(b->chan, N_BUFFERS, N_BUFFERS,
                               s->mem + MAX_BYTES, b->bytes);
    }
    return zb_channel_join_receiver(b->chan, s->dev);
}

static enum zb_status meet(struct side *s)
{
    return zb_barrier_wait(&s->b->barrier, &s->b->ab);
}

static enum zb_status one_round(struct side *s, double *us_out)
{
    int64_t begin;

    if (s->index == 0) {
        ZB_TRY(make_channel(s->b));
    }
    ZB_TRY(meet(s));
    ZB_TRY(join(s));
    ZB_TRY(meet(s));
    begin = zb_now_ns();
    ZB_TRY(s->index == 0 ? send_all(s) : receive_all(s));
    if (s->index == 0) {
        zb_channel_end_sender(s->b->chan);
    }
    ZB_TRY(meet(s));
    *us_out = (double)(zb_now_ns() - begin) * 1e-3 / s->b->n;
    if (s->index == 0) {
        zb_channel_leave_sender(s->b->chan);
    } else {
        zb_channel_leave_receiver(s->b->chan);
    }
    ZB_TRY(meet(s));
    if (s->index == 0) {
        zb_channel_free(s->b->chan);
    }
    return ZB_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double us[ROUNDS])
{
    qsort(us, ROUNDS, sizeof(*us), by_value);
    return us[ROUNDS / 2];
}

static void report(struct side *s)
{
    double in_place = median(s->us[IN_PLACE]), copied = median(s->us[COPIED]);
    double kb = (double)s->b->bytes * 1e-3;

    printf("%8zu KiB  in place %10.1f us %7.2f GB/s  copied %10.1f us "
           "%7.2f GB/s  ratio %.2f\n",
           s->b->bytes >> 10, in_place, kb / in_place, copied, kb / copied,
           in_place / copied);
    fflush(stdout);
}

static enum zb_status all_sizes(struct side *s)
{
    for (size_t bytes = (size_t)64 << 10; bytes * 2 * N_BUFFERS <= MAX_BYTES;
         bytes *= 4) {
        for (int i = 0; i < 2 * (ROUNDS + 1); i++) {
            double us;

            ZB_TRY(meet(s));
            if (s->index == 0) {
                s->b->bytes = bytes;
                s->b->is_copied = i % 2;
            }
            ZB_TRY(meet(s));
            ZB_TRY(one_round(s, &us));
            if (i >= 2) { /* the first of each warms up */
                s->us[i % 2][i / 2 - 1] = us;
            }
        }
        if (s->index == 1) {
            report(s);
        }
    }
    return ZB_OK;
}

static enum zb_status open_and_run(struct side *s)
{
    const struct zb_backend_ops *ops = s->b->be->ops;

    ZB_TRY(ops->device_open(s->b->be, s->index, &s->dev));
    ZB_TRY(ops->stream_new(s->dev, "bench", &s->stream));
    ZB_TRY(ops->mem_alloc(s->dev, 2 * MAX_BYTES, "bench", (void **)&s->mem));
    s->b->bytes = 2 * MAX_BYTES;
    ZB_TRY(launch_fill(s, s->mem));
    ZB_TRY(ops->stream_sync(s->stream));
    return all_sizes(s);
}

static void side_main(void *arg)
{
    struct side *s = arg;
    const struct zb_backend_ops *ops = s->b->be->ops;

    s->st = open_and_run(s);
    if (s->st != ZB_OK) {
        fprintf(stderr, "messages: device %d: %s\n", s->index, zb_error_text());
        zb_abort_raise(&s->b->ab, s->st, zb_error_text());
        return; /* the process ends */
    }
    ops->mem_free(s->dev, s->mem);
    ops->stream_free(s->stream);
    ops->device_close(s->dev);
}

static int usage(void)
{
    fprintf(stderr, "usage: messages [-b BACKEND] [-d GPU,GPU] [-n MESSAGES] "
                    "[-k READS]\n");
    return 2;
}

int main(int argc, char **argv)
{
    static struct bench b = {.n = 200, .n_reads = 3};
    static struct side side[2];
    struct zb_backend_opts bo = {.n_devices = 2, .threads_per_device = 1};
    struct zb_thread t[2];
    const char *backend = "auto";
    int gpu[2], opt;

    while ((opt = getopt(argc, argv, "b:d:n:k:")) != -1) {
        if (opt == 'b') {
            backend = optarg;
        } else if (opt == 'd' &&
                   sscanf(optarg, "%d,%d", &gpu[0], &gpu[1]) == 2) {
            bo.gpus = gpu;
        } else if (opt == 'n' && atoi(optarg) > 0) {
            b.n = atoi(optarg);
        } else if (opt == 'k' && atoi(optarg) > 0) {
            b.n_reads = atoi(optarg);
        } else {
            return usage();
        }
    }
    if (zb_backend_open(backend, &bo, &b.be) != ZB_OK) {
        fprintf(stderr, "messages: %s\n", zb_error_text());
        return 1;
    }
    zb_abort_init(&b.ab);
    zb_barrier_init(&b.barrier, 2);
    printf("backend %s, %d messages, each read %d times\n", b.be->ops->name,
           b.n, b.n_reads);
    for (int i = 0; i < 2; i++) {
        side[i].b = &b;
        side[i].index = i;
        if (zb_thread_start(&t[i], "bench", side_main, &side[i]) != ZB_OK) {
            fprintf(stderr, "messages: %s\n", zb_error_text());
            return 1;
        }
    }
    for (int i = 0; i < 2; i++) {
        zb_thread_join(&t[i]);
    }
    if (side[0].st != ZB_OK || side[1].st != ZB_OK) {
        return 1;
    }
    zb_backend_close(b.be);
    zb_abort_release(&b.ab);
    return 0;
}
