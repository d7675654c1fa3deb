/* SPDX-License-Identifier: MIT
 *
 * What the devices can do at best: the rate of a large product on all of them
 * at once, the denominator of "model FLOPs utilisation". */
#include "config.h"
#include "run/run_int.h"

#include "zb/mem.h"

#define SIDE 512
#define WARM_UP 2
#define REPEATS 8

static enum zb_status product(struct zb_worker *w, zb_real *mem)
{
    const int64_t n = SIDE;
    struct zb_k_gemm k = {.m = n,
                          .n = n,
                          .k = n,
                          .dtype = w->s->plan->storage,
                          .c_dtype = w->s->plan->storage,
                          .a = mem,
                          .b = mem + n * n,
                          .c = mem + 2 * n * n,
                          .lda = n,
                          .ldb = n,
                          .ldc = n};
    struct zb_launch l = {.kernel = ZB_K_gemm, .label = "peak", .params = &k};

    zb_launch_reals(&l, mem, 2 * n * n, ZB_READ);
    zb_launch_reals(&l, k.c, n * n, ZB_WRITE);
    return w->ops->launch(w->stream, &l);
}

static enum zb_status time_products(struct zb_worker *w, zb_real *mem,
                                    double *rate_out)
{
    int64_t begin;

    ZB_TRY(zb_worker_fill(w, mem, 2 * SIDE * SIDE, 1, "peak"));
    for (int i = 0; i < WARM_UP; i++) {
        ZB_TRY(product(w, mem));
    }
    ZB_TRY(w->ops->stream_sync(w->stream));
    ZB_TRY(zb_group_meet(w->s->group));
    begin = zb_now_ns();
    for (int i = 0; i < REPEATS; i++) {
        ZB_TRY(product(w, mem));
    }
    ZB_TRY(w->ops->stream_sync(w->stream));
    *rate_out = 2.0 * SIDE * SIDE * SIDE * REPEATS /
                ((double)(zb_now_ns() - begin) * 1e-9);
    return ZB_OK;
}

static enum zb_status do_measure(struct zb_worker *w, void *arg)
{
    double *rate = arg; /* [n_devices], each worker its own */
    void *mem;
    enum zb_status st;

    ZB_TRY(w->ops->mem_alloc(w->dev, 3 * SIDE * SIDE * sizeof(zb_real), "peak",
                             &mem));
    st = time_products(w, mem, &rate[w->device]);
    w->ops->mem_free(w->dev, mem);
    return st;
}

enum zb_status zb_session_measure_peak(struct zb_session *s, double *flops_out)
{
    double *rate = zb_alloc_array((size_t)s->plan->n_devices, sizeof(*rate));
    enum zb_status st;

    if (rate == NULL) {
        return ZB_ENOMEM;
    }
    st = zb_session_each(s, do_measure, rate);
    if (st == ZB_OK) {
        *flops_out = 0;
        for (int i = 0; i < s->plan->n_devices; i++) {
            *flops_out += rate[i];
        }
    }
    zb_free(rate);
    return st;
}
