/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "ops_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/mem.h"

#define MAX_BUFFERS 64
#define MAX_ARRAYS 256
#define GUARD_BYTES 64
#define GUARD 0xA5

struct buffer {
    unsigned char *ptr; /* device, first guard */
    size_t bytes;       /* without guards */
};

static struct {
    struct zb_backend *be;
    struct zb_device *dev;
    struct zb_stream *stream;
    struct zb_event *event;
    struct buffer buffers[MAX_BUFFERS];
    int n_buffers;
    void *arrays[MAX_ARRAYS];
    int n_arrays;
    uint64_t hash;
} rig;

static int is_usable(const struct zb_backend_ops *ops)
{
    const struct zb_backend_opts opts = {.n_devices = 1,
                                         .threads_per_device = 1};
    struct zb_backend *be;

    if (ops->is_simulated || ops->open(&opts, &be) != ZB_OK) {
        return 0;
    }
    zb_backend_close(be);
    return 1;
}

const char *ops_backend(size_t i)
{
    const char *only = getenv("ZB_TEST_BACKEND");

    if (only != NULL) {
        return i == 0 ? only : NULL;
    }
    for (size_t k = 0; zb_backend_at(k) != NULL; k++) {
        if (is_usable(zb_backend_at(k)) && i-- == 0) {
            return zb_backend_at(k)->name;
        }
    }
    return NULL;
}

const char *ops_one_backend(void)
{
    const char *only = getenv("ZB_TEST_BACKEND");

    return only != NULL ? only : "cpu";
}

void ops_open(const char *backend, int n_threads)
{
    struct zb_backend_opts opts = {.n_devices = 1,
                                   .threads_per_device = n_threads};

    memset(&rig, 0, sizeof(rig));
    rig.hash = 0xcbf29ce484222325ULL;
    ZBT_OK(zb_backend_open(backend, &opts, &rig.be));
    ZBT_OK(rig.be->ops->device_open(rig.be, 0, &rig.dev));
    ZBT_OK(rig.be->ops->stream_new(rig.dev, "test", &rig.stream));
    ZBT_OK(rig.be->ops->event_new(rig.dev, &rig.event));
}

static void wait_for_all(void)
{
    ZBT_OK(rig.be->ops->event_record(rig.event, rig.stream));
    ZBT_OK(rig.be->ops->event_sync(rig.event));
}

void ops_close(void)
{
    wait_for_all();
    for (int i = 0; i < rig.n_buffers; i++) {
        rig.be->ops->mem_free(rig.dev, rig.buffers[i].ptr);
    }
    rig.be->ops->event_free(rig.event);
    rig.be->ops->stream_free(rig.stream);
    rig.be->ops->device_close(rig.dev);
    zb_backend_close(rig.be);
    for (int i = 0; i < rig.n_arrays; i++) {
        zb_free(rig.arrays[i]);
    }
}

uint64_t ops_hash(void)
{
    return rig.hash;
}

static uint64_t hash_with(const char *backend, void (*run)(int which),
                          int which, int n_threads)
{
    uint64_t hash;

    ops_open(backend, n_threads);
    run(which);
    hash = ops_hash();
    ops_close();
    return hash;
}

void ops_same_bits(const char *backend, void (*run)(int which), int n)
{
    for (int which = 0; which < n; which++) {
        uint64_t one = hash_with(backend, run, which, 1);

        CU_ASSERT_EQUAL(one, hash_with(backend, run, which, 2));
        CU_ASSERT_EQUAL(one, hash_with(backend, run, which, 3));
    }
}

static const struct buffer *find(const void *ptr)
{
    for (int i = 0; i < rig.n_buffers; i++) {
        if (rig.buffers[i].ptr + GUARD_BYTES == ptr) {
            return &rig.buffers[i];
        }
    }
    CU_FAIL_FATAL("not a buffer of the rig");
    return NULL;
}

static void *array(int64_t n, size_t size)
{
    void *ptr = zb_alloc_array((size_t)n, size);

    CU_ASSERT_FATAL(ptr != NULL && rig.n_arrays < MAX_ARRAYS);
    rig.arrays[rig.n_arrays++] = ptr;
    return ptr;
}

double *ops_zeros(int64_t n)
{
    return array(n, sizeof(double));
}

double *ops_random(struct zbt_rng *rng, int64_t n, double lo, double hi)
{
    double *x = ops_zeros(n);

    for (int64_t i = 0; i < n; i++) {
        double u = (double)(zbt_rand(rng) >> 11) * 0x1p-53;

        x[i] = (double)(zb_real)(lo + (hi - lo) * u);
    }
    return x;
}

static void copy_in(void *dst, const void *src, size_t bytes)
{
    ZBT_OK(rig.be->ops->copy_in(rig.stream, dst, src, bytes, "upload"));
    wait_for_all();
}

static void copy_out(void *dst, const void *src, size_t bytes)
{
    ZBT_OK(rig.be->ops->copy_out(rig.stream, dst, src, bytes, "download"));
    wait_for_all();
    ZBT_OK(rig.be->ops->host_access(rig.dev, dst, bytes, ZB_READ));
}

void *ops_bytes(size_t bytes, const void *values)
{
    size_t total = bytes + 2 * GUARD_BYTES;
    unsigned char *host = zb_alloc(total);
    void *ptr;

    CU_ASSERT_FATAL(host != NULL && rig.n_buffers < MAX_BUFFERS);
    ZBT_OK(rig.be->ops->mem_alloc(rig.dev, total, "buffer", &ptr));
    memset(host, GUARD, total);
    if (values != NULL) {
        memcpy(host + GUARD_BYTES, values, bytes);
    } else {
        memset(host + GUARD_BYTES, 0xff, bytes);
    }
    copy_in(ptr, host, total);
    zb_free(host);
    rig.buffers[rig.n_buffers].ptr = ptr;
    rig.buffers[rig.n_buffers++].bytes = bytes;
    return (unsigned char *)ptr + GUARD_BYTES;
}

static zb_real *to_real(int64_t n, const double *values)
{
    zb_real *x = zb_alloc_array((size_t)n, sizeof(*x));

    CU_ASSERT_FATAL(x != NULL);
    for (int64_t i = 0; i < n; i++) {
        x[i] = (zb_real)values[i];
    }
    return x;
}

zb_real *ops_reals(int64_t n, const double *values)
{
    zb_real *host = to_real(n, values);
    zb_real *buf = ops_bytes((size_t)n * sizeof(zb_real), host);

    zb_free(host);
    return buf;
}

zb_real *ops_blank(int64_t n)
{
    return ops_bytes((size_t)n * sizeof(zb_real), NULL);
}

void ops_set(zb_real *buf, int64_t n, const double *values)
{
    zb_real *host = to_real(n, values);

    copy_in(buf, host, (size_t)n * sizeof(*host));
    zb_free(host);
}

enum zb_status ops_try(enum zb_kernel kernel, const void *params,
                       void *const *out, const void *const *in)
{
    struct zb_launch launch = {
        .kernel = kernel, .label = "test", .params = params};

    for (int i = 0; i < OPS_MOST; i++) {
        if (out[i] != NULL) {
            launch.access[launch.n_access++] = (struct zb_access){
                out[i], find(out[i])->bytes, ZB_READ_WRITE};
        }
        if (in[i] != NULL) {
            launch.access[launch.n_access++] =
                (struct zb_access){in[i], find(in[i])->bytes, ZB_READ};
        }
    }
    ZB_TRY(rig.be->ops->launch(rig.stream, &launch));
    return rig.be->ops->stream_sync(rig.stream);
}

void ops_run(enum zb_kernel kernel, const void *params, void *const *out,
             const void *const *in)
{
    ZBT_OK(ops_try(kernel, params, out, in));
}

void ops_get_bytes(const void *buf, size_t bytes, void *out)
{
    const struct buffer *b = find(buf);
    unsigned char *host = zb_alloc(b->bytes + 2 * GUARD_BYTES);
    int is_changed = 0;

    CU_ASSERT_FATAL(host != NULL && bytes <= b->bytes);
    copy_out(host, b->ptr, b->bytes + 2 * GUARD_BYTES);
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        is_changed |= host[i] != GUARD;
        is_changed |= host[GUARD_BYTES + b->bytes + i] != GUARD;
    }
    CU_ASSERT_FALSE(is_changed);
    memcpy(out, host + GUARD_BYTES, bytes);
    for (size_t i = 0; i < bytes; i++) {
        rig.hash = (rig.hash ^ host[GUARD_BYTES + i]) * 0x100000001b3ULL;
    }
    zb_free(host);
}

void ops_get(const zb_real *buf, int64_t n, double *out)
{
    zb_real *host = zb_alloc_array((size_t)n, sizeof(*host));

    CU_ASSERT_FATAL(host != NULL);
    ops_get_bytes(buf, (size_t)n * sizeof(*host), host);
    for (int64_t i = 0; i < n; i++) {
        out[i] = (double)host[i];
    }
    zb_free(host);
}

static void compare(const char *what, int64_t n, const double *got,
                    const double *want, double tol)
{
    double diff = 0, norm = 0, worst = -1;
    int64_t n_odd = 0, at = 0;

    for (int64_t i = 0; i < n; i++) {
        double d = fabs(got[i] - want[i]);

        if (isnan(got[i]) || isnan(want[i])) {
            n_odd += isnan(got[i]) != isnan(want[i]);
            continue;
        }
        diff += d * d;
        norm += want[i] * want[i];
        if (d > worst) {
            worst = d;
            at = i;
        }
    }
    if (n_odd > 0 || !(sqrt(diff) <= tol * sqrt(norm))) {
        printf("\n%s: error %.3g (limit %.3g), %lld NaN; worst [%lld] %.9g, "
               "wanted %.9g\n",
               what, sqrt(diff / (norm > 0 ? norm : 1)), tol, (long long)n_odd,
               (long long)at, got[at], want[at]);
        CU_FAIL("values differ");
    }
}

void ops_expect(const char *what, const zb_real *buf, int64_t n,
                const double *want, double tol)
{
    double *got = zb_alloc_array((size_t)n, sizeof(*got));

    CU_ASSERT_FATAL(got != NULL);
    ops_get(buf, n, got);
    compare(what, n, got, want, tol);
    zb_free(got);
}

static double loss_at(const struct ops_grad *g, double *x, double *y, int64_t i,
                      double value)
{
    double keep = x[i], loss = 0;

    x[i] = value;
    ops_set(g->x, g->n, x);
    x[i] = keep;
    g->forward(g->ctx);
    ops_get(g->y, g->n_y, y);
    for (int64_t j = 0; j < g->n_y; j++) {
        loss += g->weight[j] * y[j];
    }
    return loss;
}

#define N_SAMPLES 24

void ops_expect_grad(const struct ops_grad *g)
{
    struct zbt_rng rng = {(unsigned long long)g->n};
    double got[N_SAMPLES], want[N_SAMPLES], h = 1e-5;
    double *x = OPS_IS_DOUBLE ? ops_zeros(g->n) : NULL;
    double *y = OPS_IS_DOUBLE ? ops_zeros(g->n_y) : NULL;
    int64_t n = g->n < N_SAMPLES ? g->n : N_SAMPLES;

    if (!OPS_IS_DOUBLE) {
        return;
    }
    memcpy(x, g->values, (size_t)g->n * sizeof(*x));
    for (int64_t k = 0; k < n; k++) {
        int64_t i = n == g->n ? k : (int64_t)zbt_rand_in(&rng, 0, g->n - 1);

        got[k] = g->dx[i];
        want[k] = (loss_at(g, x, y, i, x[i] + h) -
                   loss_at(g, x, y, i, x[i] - h)) /
                  (2 * h);
    }
    ops_set(g->x, g->n, x);
    compare(g->what, n, got, want, 1e-6);
}
