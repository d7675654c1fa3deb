/* SPDX-License-Identifier: MIT
 *
 * What the devices can do at best: the rate of a large product on all of them
 * at once, the denominator of "model FLOPs utilisation". */
#include "config.h"
#include "run/run_int.h"

#include "zb/mem.h"

#define SIDE_MAX 512
#define WARM_UP 2
#define REPEATS 8

static enum zb_status product(struct zb_worker *w, char *mem, int64_t n)
{
    enum zb_dtype dtype = w->s->plan->storage;
    size_t bytes = (size_t)(n * n) * zb_dtype_bytes(dtype);
    struct zb_k_gemm k = {.m = n,
                          .n = n,
                          .k = n,
                          .dtype = dtype,
                          .c_dtype = dtype,
                          .a = mem,
                          .b = mem + bytes,
                          .c = mem + 2 * bytes,
                          .lda = n,
                          .ldb = n,
                          .ldc = n};
    struct zb_launch l = {.kernel = ZB_K_gemm, .label = "peak", .params = &k};

    zb_launch_elems(&l, dtype, mem, 2 * n * n, ZB_READ);
    zb_launch_elems(&l, dtype, k.c, n * n, ZB_WRITE);
    return w->ops->launch(w->stream, &l);
}

static enum zb_status time_products(struct zb_worker *w, char *mem, int64_t n,
                                    double *rate_out)
{
    int64_t begin;

    if (n > 0) {
        ZB_TRY(zb_fill(w->ops, w->stream, w->s->plan->storage, mem, 2 * n * n,
                       1, "peak"));
    }
    for (int i = 0; n > 0 && i < WARM_UP; i++) {
        ZB_TRY(product(w, mem, n));
    }
    ZB_TRY(w->ops->stream_sync(w->stream));
    ZB_TRY(zb_group_meet(w->s->group));
    begin = zb_now_ns();
    for (int i = 0; n > 0 && i < REPEATS; i++) {
        ZB_TRY(product(w, mem, n));
    }
    ZB_TRY(w->ops->stream_sync(w->stream));
    *rate_out = 2.0 * (double)n * (double)n * (double)n * REPEATS /
                ((double)(zb_now_ns() - begin + 1) * 1e-9);
    return ZB_OK;
}

/* In memory that is there and means nothing between steps: that of activations
 * and, behind it, of one pass. */
static enum zb_status do_measure(struct zb_worker *w, void *arg)
{
    double *rate = arg; /* [n_devices], each worker its own */
    const struct zb_layout *l = &w->s->plan->layout[w->stage];
    size_t room =
        l->region_bytes[ZB_REGION_ACT] + l->region_bytes[ZB_REGION_SCRATCH];
    size_t bytes = zb_dtype_bytes(w->s->plan->storage);
    int64_t n = SIDE_MAX;

    while (n > 0 && 3 * (size_t)(n * n) * bytes > room) {
        n /= 2;
    }
    return time_products(w, w->arena + l->region_offset[ZB_REGION_ACT], n,
                         &rate[w->device]);
}

/* A device without a chunk has no room for products: it is taken for as fast as
 * the fastest. */
static double add_rates(const double *rate, int n)
{
    double most = 0, sum = 0;

    for (int i = 0; i < n; i++) {
        most = rate[i] > most ? rate[i] : most;
    }
    for (int i = 0; i < n; i++) {
        sum += rate[i] > 0 ? rate[i] : most;
    }
    return sum;
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
        *flops_out = add_rates(rate, s->plan->n_devices);
    }
    zb_free(rate);
    return st;
}
