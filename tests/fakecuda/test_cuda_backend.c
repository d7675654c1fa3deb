/* SPDX-License-Identifier: MIT
 *
 * Opening GPUs, what is refused and in which words, memory that runs out, and
 * products of any alignment; on emulated GPUs. */
#include "config.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"
#include "unit/zbt.h"
#include "zb/backend.h"
#include "zb/mem.h"

static int no_reports(void)
{
    int n = fake_cuda_n_reports();

    for (int i = 0; i < n && i < 5; i++) {
        printf("\n%s\n", fake_cuda_report(i));
    }
    return n == 0;
}

static int open_fails(const struct zb_backend_opts *o, enum zb_status want,
                      const char *words)
{
    struct zb_backend *be = NULL;
    enum zb_status st = zb_backend_open("cuda", o, &be);

    if (st != want || strstr(zb_error_text(), words) == NULL) {
        printf("\nstatus %d, %s\n", (int)st, zb_error_text());
        return 0;
    }
    return be == NULL;
}

/* ---- opening ------------------------------------------------------------- */

static void auto_is_cuda_where_a_gpu_is(void)
{
    const struct zb_backend_ops *ops = NULL;

    fake_cuda_reset(1, 0, 0);
    ZBT_OK(zb_backend_find("auto", &ops));
    CU_ASSERT_STRING_EQUAL(ops->name, "cuda");
    fake_cuda_reset(0, 0, 0);
    ZBT_OK(zb_backend_find("auto", &ops));
    CU_ASSERT_STRING_EQUAL(ops->name, "cpu");
}

static void no_gpu_is_refused(void)
{
    const struct zb_backend_opts o = {.n_devices = 1, .threads_per_device = 1};

    fake_cuda_reset(0, 0, 0);
    CU_ASSERT(open_fails(&o, ZB_EDEVICE, "there is no NVIDIA GPU"));
}

static void more_devices_than_gpus_are_refused_with_a_list_that_works(void)
{
    static const int list[] = {0, 1, 0};
    struct zb_backend_opts o = {.n_devices = 3, .threads_per_device = 1};
    struct zb_backend *be;

    fake_cuda_reset(2, 0, 0);
    CU_ASSERT(open_fails(&o, ZB_ECONFIG, "3 devices are more than the 2 GPUs"));
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "-g 0,1,0"));
    o.gpus = list;
    ZBT_OK(zb_backend_open("cuda", &o, &be));
    zb_backend_close(be);
}

static void gpu_that_is_not_there_is_refused(void)
{
    static const int list[] = {0, 2};
    const struct zb_backend_opts o = {
        .n_devices = 2, .threads_per_device = 1, .gpus = list};

    fake_cuda_reset(2, 0, 0);
    CU_ASSERT(open_fails(&o, ZB_ECONFIG, "no GPU 2: this machine has 2"));
}

static void hardware_is_described(void)
{
    const struct zb_backend_opts o = {.n_devices = 1, .threads_per_device = 1};
    const struct zb_backend_ops *ops;
    char text[256];

    fake_cuda_reset(1, 0, 0);
    ZBT_OK(zb_backend_find("cuda", &ops));
    ops->describe(&o, text, sizeof(text));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "compute capability"));
    ops->describe(NULL, text, sizeof(text));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "cuBLASLt"));
}

/* ---- trouble ------------------------------------------------------------- */

/* A machine with two GPUs and this trouble. */
static void with_trouble(const char *what)
{
    fake_cuda_reset(2, 0, 0);
    CU_ASSERT_FATAL(fake_cuda_trouble(what));
}

static void every_trouble_has_words_of_its_own(void)
{
    static const struct {
        const char *trouble, *words;
    } table[] = {
        {"no-driver", "cuda: no NVIDIA driver is installed (or its "
                      "libcuda.so.1 can not be found)"},
        {"old-driver", "cuda: the NVIDIA driver is too old: it is for CUDA "
                       "11.4, this program needs 13.0"},
        {"no-gpu", "cuda: there is no NVIDIA GPU"},
        {"lost", "the GPU may be lost: see nvidia-smi and the kernel's log for "
                 "lines with Xid"},
    };
    const struct zb_backend_opts o = {.n_devices = 2, .threads_per_device = 1};

    for (size_t i = 0; i < ZB_COUNT_OF(table); i++) {
        with_trouble(table[i].trouble);
        CU_ASSERT(open_fails(&o, ZB_EDEVICE, table[i].words));
    }
}

static void hidden_gpus_are_told_with_what_hides_them(void)
{
    const struct zb_backend_opts o = {.n_devices = 1, .threads_per_device = 1};

    with_trouble("no-gpu");
    setenv("CUDA_VISIBLE_DEVICES", "7", 1);
    CU_ASSERT(open_fails(&o, ZB_EDEVICE, "among CUDA_VISIBLE_DEVICES=7"));
    unsetenv("CUDA_VISIBLE_DEVICES");
}

static void busy_gpu_is_told_when_its_device_is_opened(void)
{
    const struct zb_backend_opts o = {.n_devices = 2, .threads_per_device = 1};
    struct zb_backend *be = NULL;
    struct zb_device *dev = NULL;

    with_trouble("busy");
    ZBT_OK(zb_backend_open("cuda", &o, &be));
    CU_ASSERT_EQUAL(be->ops->device_open(be, 1, &dev), ZB_EDEVICE);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "device 1, GPU 1: "));
    CU_ASSERT_PTR_NOT_NULL(
        strstr(zb_error_text(), "the GPU is busy: another program has it to "
                                "itself, or its compute mode allows no more"));
    CU_ASSERT_PTR_NULL(dev);
    zb_backend_close(be);
}

static void gpu_lost_later_is_told_by_what_meets_it(void)
{
    const struct zb_backend_opts o = {.n_devices = 1, .threads_per_device = 1};
    struct zb_backend *be = NULL;
    struct zb_device *dev = NULL;
    void *ptr = NULL;

    fake_cuda_reset(1, 0, 0);
    ZBT_OK(zb_backend_open("cuda", &o, &be));
    ZBT_OK(be->ops->device_open(be, 0, &dev));
    CU_ASSERT_FATAL(fake_cuda_trouble("lost:1"));
    CU_ASSERT_EQUAL(be->ops->mem_alloc(dev, 64, "arena", &ptr), ZB_EDEVICE);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(),
                                  "device 0, GPU 0: arena: unknown error; the "
                                  "GPU may be lost"));
    be->ops->device_close(dev);
    zb_backend_close(be);
}

static void auto_does_without_a_gpu_that_does_not_work(void)
{
    static const char *const troubles[] = {"no-driver", "old-driver", "no-gpu",
                                           "lost"};
    const struct zb_backend_ops *ops = NULL;

    for (size_t i = 0; i < ZB_COUNT_OF(troubles); i++) {
        with_trouble(troubles[i]);
        ZBT_OK(zb_backend_find("auto", &ops));
        CU_ASSERT_STRING_EQUAL(ops->name, "cpu");
    }
}

/* ---- devices ------------------------------------------------------------- */

struct rig {
    struct zb_backend *be;
    struct zb_device *dev;
    struct zb_stream *stream;
};

static void rig_open(struct rig *r)
{
    const struct zb_backend_opts o = {.n_devices = 1, .threads_per_device = 1};

    fake_cuda_reset(1, 0, 0);
    ZBT_OK(zb_backend_open("cuda", &o, &r->be));
    ZBT_OK(r->be->ops->device_open(r->be, 0, &r->dev));
    ZBT_OK(r->be->ops->stream_new(r->dev, "test", &r->stream));
}

static void rig_close(struct rig *r)
{
    r->be->ops->stream_free(r->stream);
    r->be->ops->device_close(r->dev);
    zb_backend_close(r->be);
    CU_ASSERT_FATAL(no_reports());
}

static void memory_that_runs_out_says_how_much_there_is(void)
{
    struct rig r;
    void *ptr = NULL;

    rig_open(&r);
    CU_ASSERT_EQUAL(
        r.be->ops->mem_alloc(r.dev, (size_t)1 << 50, "arena", &ptr),
        ZB_ENOMEM);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "device 0, GPU 0: arena"));
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "1048576.00 GiB"));
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "GiB are free; "
                                                   "schedule.device_mem"));
    CU_ASSERT_PTR_NULL(ptr);
    rig_close(&r);
}

static void *open_and_close(void *arg)
{
    struct zb_device *dev = NULL;
    struct zb_backend *be = arg;
    static _Atomic int next;
    int index = atomic_fetch_add(&next, 1) % be->n_devices;

    if (be->ops->device_open(be, index, &dev) == ZB_OK) {
        be->ops->device_close(dev);
    }
    return NULL;
}

/* Nothing that devices share keeps one waiting for another's context. */
static void gpus_are_opened_at_once(void)
{
    const struct zb_backend_opts o = {.n_devices = 4, .threads_per_device = 1};
    struct zb_backend *be = NULL;
    pthread_t thread[4];

    fake_cuda_reset(4, 0, 0);
    fake_cuda_gather_contexts(4);
    ZBT_OK(zb_backend_open("cuda", &o, &be));
    for (int i = 0; i < 4; i++) {
        CU_ASSERT_FATAL(pthread_create(&thread[i], NULL, open_and_close, be) ==
                        0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
    }
    CU_ASSERT_EQUAL(fake_cuda_gather_contexts(0), 4);
    zb_backend_close(be);
    CU_ASSERT_FATAL(no_reports());
}

/* ---- products ------------------------------------------------------------ */

#define M 7
#define N 5
#define K 9
#define LD 11 /* odd: no row but the first is aligned */
#define SIZE ((K + 1) * LD + 8)

/* op(A) op(B) + (C or bias) in double. */
static double element(const float *a, const float *b, const float *start,
                      int is_bias, int trans_a, int trans_b, int i, int j)
{
    double sum = (double)(is_bias ? start[j] : start[i * LD + j]);

    for (int l = 0; l < K; l++) {
        sum += (double)(trans_a ? a[l * LD + i] : a[i * LD + l]) *
               (double)(trans_b ? b[j * LD + l] : b[l * LD + j]);
    }
    return sum;
}

/* Operands begin `shift` elements behind an aligned address. */
static void check_product(struct rig *r, float *dev, int variant, int shift)
{
    struct zbt_rng rng = {(unsigned long long)variant + 1};
    float host[3 * SIZE], got[3 * SIZE];
    float *a = host + shift, *b = a + SIZE, *c = b + SIZE;
    int is_bias = variant >> 2 & 1;
    struct zb_k_gemm p = {.m = M, .n = N, .k = K, .trans_a = variant & 1,
                          .trans_b = variant >> 1 & 1,
                          .accumulate = !is_bias, .a = dev + shift,
                          .b = dev + SIZE + shift, .c = dev + 2 * SIZE + shift,
                          .lda = LD, .ldb = LD, .ldc = LD};
    float bias[SIZE];
    struct zb_launch l = {
        .kernel = ZB_K_gemm, .label = "product", .params = &p};

    for (int i = 0; i < 3 * SIZE; i++) {
        host[i] = (float)zbt_rand_in(&rng, -999, 999) / 999;
    }
    memcpy(bias, b + 3, sizeof(float) * N);
    p.bias = is_bias ? (const float *)p.b + 3 : NULL;
    zb_launch_reals(&l, dev, 3 * SIZE, ZB_READ_WRITE);
    ZBT_OK(r->be->ops->copy_in(r->stream, dev, host, sizeof(host), "in"));
    ZBT_OK(r->be->ops->launch(r->stream, &l));
    ZBT_OK(r->be->ops->copy_out(r->stream, got, dev, sizeof(got), "out"));
    ZBT_OK(r->be->ops->stream_sync(r->stream));
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            double want = element(a, b, is_bias ? bias : c, is_bias,
                                  p.trans_a, p.trans_b, i, j);

            CU_ASSERT_DOUBLE_EQUAL(
                (double)got[2 * SIZE + shift + i * LD + j], want, 1e-5);
        }
    }
}

static void products_of_odd_strides_and_addresses_are_right(void)
{
    struct rig r;
    void *dev;

    rig_open(&r);
    ZBT_OK(r.be->ops->mem_alloc(r.dev, 3 * SIZE * sizeof(float), "x", &dev));
    for (int variant = 0; variant < 8; variant++) {
        for (int shift = 0; shift < 5; shift++) {
            check_product(&r, dev, variant, shift);
        }
    }
    r.be->ops->mem_free(r.dev, dev);
    rig_close(&r);
}

static void products_of_many_sizes_are_forgotten_in_time(void)
{
    static const float zero[5001];
    struct rig r;
    void *dev;
    uint64_t n_live = 0;

    rig_open(&r);
    ZBT_OK(r.be->ops->mem_alloc(r.dev, 1 << 20, "x", &dev));
    ZBT_OK(r.be->ops->copy_in(r.stream, dev, zero, sizeof(zero), "in"));
    for (int i = 0; i < 9000; i++) {
        int64_t k = i % 4500 + 1;
        struct zb_k_gemm p = {.m = 1, .n = 1, .k = k, .a = dev, .b = dev,
                              .c = (float *)dev + 5000, .lda = k, .ldb = 1,
                              .ldc = 1};
        struct zb_launch l = {
            .kernel = ZB_K_gemm, .label = "product", .params = &p};

        zb_launch_reals(&l, dev, 5001, ZB_READ_WRITE);
        ZBT_OK(r.be->ops->launch(r.stream, &l));
        n_live = (uint64_t)zb_mem_live() > n_live ? (uint64_t)zb_mem_live()
                                                  : n_live;
    }
    CU_ASSERT(n_live < 4200);
    ZBT_OK(r.be->ops->stream_sync(r.stream));
    r.be->ops->mem_free(r.dev, dev);
    rig_close(&r);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(auto_is_cuda_where_a_gpu_is),
        ZBT_CASE(no_gpu_is_refused),
        ZBT_CASE(more_devices_than_gpus_are_refused_with_a_list_that_works),
        ZBT_CASE(gpu_that_is_not_there_is_refused),
        ZBT_CASE(hardware_is_described),
        ZBT_CASE(every_trouble_has_words_of_its_own),
        ZBT_CASE(hidden_gpus_are_told_with_what_hides_them),
        ZBT_CASE(busy_gpu_is_told_when_its_device_is_opened),
        ZBT_CASE(gpu_lost_later_is_told_by_what_meets_it),
        ZBT_CASE(auto_does_without_a_gpu_that_does_not_work),
        ZBT_CASE(gpus_are_opened_at_once),
        ZBT_CASE(memory_that_runs_out_says_how_much_there_is),
        ZBT_CASE(products_of_odd_strides_and_addresses_are_right),
        ZBT_CASE(products_of_many_sizes_are_forgotten_in_time),
    };

    return zbt_run("cuda_backend", cases, ZB_COUNT_OF(cases));
}
