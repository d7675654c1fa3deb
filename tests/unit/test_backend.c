/* SPDX-License-Identifier: MIT
 *
 * The registry, and what devices, memory and streams of the cpu backend do.
 */
#include "config.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/backend.h"
#include "zb/mem.h"
#include "zbt.h"

static const char *backend; /* whose devices are opened */

static const struct zb_backend_opts one = {.n_devices = 1,
                                           .threads_per_device = 1};

static void every_slot_of_every_backend_is_filled(void)
{
    for (size_t i = 0; zb_backend_at(i) != NULL; i++) {
        void *slots[offsetof(struct zb_backend_ops, is_simulated) /
                    sizeof(void *)];

        memcpy(slots, zb_backend_at(i), sizeof(slots));
        for (size_t k = 0; k < ZB_COUNT_OF(slots); k++) {
            CU_ASSERT_PTR_NOT_NULL(slots[k]);
        }
    }
}

static void unknown_name_is_refused_with_names(void)
{
    struct zb_backend *be = NULL;

    CU_ASSERT_EQUAL(zb_backend_open("gpu", &one, &be), ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "'gpu'"));
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "auto, "));
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "cpu, check"));
    CU_ASSERT_PTR_NULL(be);
}

static void backend_that_is_not_built_is_refused_by_name(void)
{
    struct zb_backend *be = NULL;
    const struct zb_backend_ops *ops;

    if (zb_backend_find("cuda", &ops) == ZB_OK) {
        return;
    }
    CU_ASSERT_EQUAL(zb_backend_open("cuda", &one, &be), ZB_EUNSUPPORTED);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "'cuda'"));
}

static void senseless_options_are_refused(void)
{
    struct zb_backend_opts opts = {.n_devices = 0, .threads_per_device = 1};
    struct zb_backend *be = NULL;

    CU_ASSERT_EQUAL(zb_backend_open("cpu", &opts, &be), ZB_EINVAL);
    opts.n_devices = 1;
    opts.threads_per_device = 0;
    CU_ASSERT_EQUAL(zb_backend_open("cpu", &opts, &be), ZB_EINVAL);
    opts.threads_per_device = 100000;
    CU_ASSERT_EQUAL(zb_backend_open("cpu", &opts, &be), ZB_ECONFIG);
}

static void device_that_is_not_there_is_refused(void)
{
    struct zb_backend *be;
    struct zb_device *dev = NULL;

    ZBT_OK(zb_backend_open(backend, &one, &be));
    CU_ASSERT_EQUAL(be->ops->device_open(be, 1, &dev), ZB_EINVAL);
    CU_ASSERT_EQUAL(be->ops->device_open(be, -1, &dev), ZB_EINVAL);
    CU_ASSERT_PTR_NULL(dev);
    zb_backend_close(be);
}

/* Write to all of a piece of device memory, and wait. */
static void fill(struct zb_backend *be, struct zb_stream *stream, void *ptr,
                 size_t bytes)
{
    void *host;

    ZBT_OK(be->ops->host_alloc(be, bytes, "test", &host));
    CU_ASSERT_EQUAL((uintptr_t)host % 64, 0);
    memset(host, 1, bytes);
    ZBT_OK(be->ops->copy_in(stream, ptr, host, bytes, "test"));
    ZBT_OK(be->ops->stream_sync(stream));
    be->ops->host_free(be, host);
}

static void memory_of_any_size_is_aligned_and_counted(void)
{
    static const size_t sizes[] = {0, 1, 63, 4096, (size_t)2 << 20, 5000001};
    struct zb_backend *be;
    struct zb_device *dev;
    struct zb_stream *stream;
    int64_t live;

    ZBT_OK(zb_backend_open(backend, &one, &be));
    ZBT_OK(be->ops->device_open(be, 0, &dev));
    ZBT_OK(be->ops->stream_new(dev, "test", &stream));
    live = zb_mem_live();
    for (size_t i = 0; i < ZB_COUNT_OF(sizes); i++) {
        void *ptr;

        ZBT_OK(be->ops->mem_alloc(dev, sizes[i], "test", &ptr));
        CU_ASSERT_EQUAL((uintptr_t)ptr % 64, 0);
        CU_ASSERT_EQUAL(be->ops->mem_bytes(dev), sizes[i]);
        CU_ASSERT_EQUAL(zb_mem_live(), live + 1);
        fill(be, stream, ptr, sizes[i]);
        be->ops->mem_free(dev, ptr);
        CU_ASSERT_EQUAL(be->ops->mem_bytes(dev), 0);
        CU_ASSERT_EQUAL(zb_mem_live(), live);
    }
    CU_ASSERT_EQUAL(be->ops->mem_peak_bytes(dev), 5000001);
    be->ops->stream_free(stream);
    be->ops->device_close(dev);
    zb_backend_close(be);
}

static void memory_that_cannot_be_had_is_an_error_with_its_name(void)
{
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX / 2, (size_t)1 << 60};
    struct zb_backend *be;
    struct zb_device *dev;
    void *ptr = NULL;

    ZBT_OK(zb_backend_open(backend, &one, &be));
    ZBT_OK(be->ops->device_open(be, 0, &dev));
    for (size_t i = 0; i < ZB_COUNT_OF(sizes); i++) {
        CU_ASSERT_EQUAL(be->ops->mem_alloc(dev, sizes[i], "arena", &ptr),
                        ZB_ENOMEM);
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "arena"));
    }
    CU_ASSERT_PTR_NULL(ptr);
    be->ops->device_close(dev);
    zb_backend_close(be);
}

/* Attention of 8 queries of one head, and a product, in one piece of device
 * memory. */
#define SIDE 8
#define SQUARE (SIDE * SIDE)
#define MEM_BYTES (4 * SQUARE * sizeof(zb_real))

struct work {
    struct zb_k_attention_fwd attn;
    struct zb_k_gemm gemm;
    struct zb_launch launch[2];
};

static void work_init(struct work *w, zb_real *x)
{
    zb_real *y = x + SQUARE, *lse = x + 2 * SQUARE;

    w->attn = (struct zb_k_attention_fwd){
        .batch = 1, .seq = SIDE, .kv_seq = SIDE, .whole = SIDE, .q_heads = 1,
        .lse_row = SIDE, .kv_heads = 1, .head_dim = SIDE, .scale = 1, .q = x,
        .k = x, .v = x, .q_row = SIDE, .k_row = SIDE, .v_row = SIDE, .out = y,
        .lse = lse};
    w->gemm = (struct zb_k_gemm){.m = SIDE, .n = SIDE, .k = SIDE, .a = x,
                                 .b = x, .c = y, .lda = SIDE, .ldb = SIDE,
                                 .ldc = SIDE};
    w->launch[0] = (struct zb_launch){
        .kernel = ZB_K_attention_fwd, .label = "a", .params = &w->attn};
    w->launch[1] = (struct zb_launch){
        .kernel = ZB_K_gemm, .label = "g", .params = &w->gemm};
    for (int i = 0; i < 2; i++) {
        zb_launch_reals(&w->launch[i], x, SQUARE, ZB_READ);
        zb_launch_reals(&w->launch[i], y, SQUARE, ZB_WRITE);
    }
    zb_launch_reals(&w->launch[0], lse, SIDE, ZB_WRITE);
}

/* Open a device, run kernels that need scratch memory, close. */
static enum zb_status use_device(void)
{
    struct zb_backend_opts opts = {.n_devices = 1, .threads_per_device = 2};
    struct zb_backend *be;
    struct zb_device *dev = NULL;
    struct zb_stream *stream = NULL;
    struct zb_event *event = NULL;
    struct work work;
    void *ptr = NULL, *host = NULL;
    enum zb_status st;

    ZB_TRY(zb_backend_open(backend, &opts, &be));
    ZB_TRY_GOTO(st, be->ops->device_open(be, 0, &dev), out);
    ZB_TRY_GOTO(st, be->ops->mem_alloc(dev, 3000000, "big", &ptr), out);
    ZB_TRY_GOTO(st, be->ops->host_alloc(be, MEM_BYTES, "host", &host), out);
    ZB_TRY_GOTO(st, be->ops->stream_new(dev, "s", &stream), out);
    ZB_TRY_GOTO(st, be->ops->event_new(dev, &event), out);
    ZB_TRY_GOTO(st, be->ops->copy_in(stream, ptr, host, MEM_BYTES, "x"), out);
    work_init(&work, ptr);
    for (int i = 0; i < 2; i++) {
        ZB_TRY_GOTO(st, be->ops->launch(stream, &work.launch[i]), out);
    }
    st = be->ops->stream_sync(stream);
out:
    if (dev != NULL) {
        if (stream != NULL) {
            be->ops->stream_free(stream);
        }
        if (event != NULL) {
            be->ops->event_free(event);
        }
        be->ops->mem_free(dev, ptr);
        be->ops->device_close(dev);
    }
    if (host != NULL) {
        be->ops->host_free(be, host);
    }
    zb_backend_close(be);
    return st;
}

static void every_failing_allocation_unwinds(void)
{
    int64_t before = zb_mem_live();

    for (uint64_t k = 1;; k++) {
        enum zb_status st;
        int failed;

        zb_mem_fail_at(k);
        st = use_device();
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        CU_ASSERT_EQUAL(st, failed ? ZB_ENOMEM : ZB_OK);
        CU_ASSERT_EQUAL_FATAL(zb_mem_live(), before);
        if (!failed) {
            break;
        }
    }
}

static void second_launch_of_a_shape_allocates_nothing(void)
{
    struct zb_backend *be;
    struct zb_device *dev;
    struct zb_stream *stream;
    struct work work;
    void *ptr;
    uint64_t count = 0;

    ZBT_OK(zb_backend_open(backend, &one, &be));
    ZBT_OK(be->ops->device_open(be, 0, &dev));
    ZBT_OK(be->ops->stream_new(dev, "s", &stream));
    ZBT_OK(be->ops->mem_alloc(dev, MEM_BYTES, "test", &ptr));
    fill(be, stream, ptr, MEM_BYTES);
    work_init(&work, ptr);
    for (int i = 0; i < 6; i++) {
        count = i == 2 ? zb_mem_count() : count;
        ZBT_OK(be->ops->launch(stream, &work.launch[i % 2]));
    }
    CU_ASSERT_EQUAL(zb_mem_count(), count);
    be->ops->stream_free(stream);
    be->ops->mem_free(dev, ptr);
    be->ops->device_close(dev);
    zb_backend_close(be);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(every_slot_of_every_backend_is_filled),
        ZBT_CASE(unknown_name_is_refused_with_names),
        ZBT_CASE(backend_that_is_not_built_is_refused_by_name),
        ZBT_CASE(senseless_options_are_refused),
        ZBT_CASE(device_that_is_not_there_is_refused),
        ZBT_CASE(memory_of_any_size_is_aligned_and_counted),
        ZBT_CASE(memory_that_cannot_be_had_is_an_error_with_its_name),
        ZBT_CASE(every_failing_allocation_unwinds),
        ZBT_CASE(second_launch_of_a_shape_allocates_nothing),
    };

    backend = getenv("ZB_TEST_BACKEND");
    backend = backend != NULL ? backend : "cpu";
    return zbt_run("backend", cases, ZB_COUNT_OF(cases));
}
