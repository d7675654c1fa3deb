/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "backend/cuda/cuda_int.h"

#include <stdio.h>
#include <string.h>

#include "zb/mem.h"

/* Each piece of device memory is one of these of host memory, so that it is
 * counted and can be made to fail like any other allocation. */
struct zb_cuda_piece {
    struct zb_cuda_piece *next;
    void *ptr;
    size_t bytes;
};

/* "; 2 devices share this GPU", "" where none does. */
static const char *sharing(const struct zb_device *dev, char text[64])
{
    int n = 0;

    for (int i = 0; i < dev->be->base.n_devices; i++) {
        n += dev->be->gpu[i] == dev->gpu;
    }
    text[0] = '\0';
    if (n > 1) {
        snprintf(text, 64, "; %d devices share this GPU", n);
    }
    return text;
}

static enum zb_status out_of_memory(const struct zb_device *dev, size_t bytes,
                                    const char *what)
{
    size_t n_free = 0, total = 0;
    char text[64];

    (void)cudaGetLastError();
    if (cudaMemGetInfo(&n_free, &total) != cudaSuccess) {
        (void)cudaGetLastError();
        return zb_fail(ZB_ENOMEM,
                       "device %d, GPU %d: %s: out of memory: %zu bytes were "
                       "asked for",
                       dev->index, dev->gpu, what, bytes);
    }
    return zb_fail(ZB_ENOMEM,
                   "device %d, GPU %d: %s: out of memory: %zu bytes (%.2f GiB) "
                   "were asked for, %.2f of %.2f GiB are free%s; "
                   "schedule.device_mem limits what is planned",
                   dev->index, dev->gpu, what, bytes, (double)bytes / (1 << 30),
                   (double)n_free / (1 << 30), (double)total / (1 << 30),
                   sharing(dev, text));
}

enum zb_status zb_cuda_malloc(const struct zb_device *dev, size_t bytes,
                              const char *what, void **ptr_out)
{
    void *ptr = NULL;
    cudaError_t err;

    ZB_TRY(zb_cuda_use(dev));
    err = cudaMalloc(&ptr, bytes > 0 ? bytes : 1);
    if (err == cudaErrorMemoryAllocation) {
        return out_of_memory(dev, bytes, what);
    }
    ZB_TRY(zb_cuda_check(dev, err, what));
    *ptr_out = ptr;
    return ZB_OK;
}

enum zb_status zb_cuda_mem_alloc(struct zb_device *dev, size_t bytes,
                                 const char *what, void **ptr_out)
{
    struct zb_cuda_piece *p = zb_alloc(sizeof(*p));
    enum zb_status st;

    if (p == NULL) {
        return zb_fail_in(ZB_ENOMEM, "%s", what);
    }
    st = zb_cuda_malloc(dev, bytes, what, &p->ptr);
    if (st != ZB_OK) {
        zb_free(p);
        return st;
    }
    p->bytes = bytes;
    p->next = dev->pieces;
    dev->pieces = p;
    dev->mem_bytes += bytes;
    if (dev->mem_peak_bytes < dev->mem_bytes) {
        dev->mem_peak_bytes = dev->mem_bytes;
    }
    ZB_CUDA_TELL(fake_cuda_name_memory(p->ptr, what));
    *ptr_out = p->ptr;
    return ZB_OK;
}

void zb_cuda_mem_free(struct zb_device *dev, void *ptr)
{
    for (struct zb_cuda_piece **at = &dev->pieces; *at != NULL;
         at = &(*at)->next) {
        struct zb_cuda_piece *p = *at;

        if (p->ptr == ptr) {
            *at = p->next;
            dev->mem_bytes -= p->bytes;
            /* An earlier failure of the device was reported when it came. */
            (void)cudaFree(ptr);
            (void)cudaGetLastError();
            zb_free(p);
            return;
        }
    }
}

size_t zb_cuda_mem_bytes(const struct zb_device *dev)
{
    return dev->mem_bytes;
}

size_t zb_cuda_mem_peak_bytes(const struct zb_device *dev)
{
    return dev->mem_peak_bytes;
}

/* The calling thread's GPU becomes one of those in use, if it is not: CUDA
 * makes a context on the one that is current. */
static enum zb_status use_any(const struct zb_cuda *be)
{
    int now = -1;

    ZB_TRY(zb_cuda_check(NULL, cudaGetDevice(&now), "which GPU"));
    for (int i = 0; i < be->base.n_devices; i++) {
        if (be->gpu[i] == now) {
            return ZB_OK;
        }
    }
    return zb_cuda_check(NULL, cudaSetDevice(be->gpu[0]), "use a GPU");
}

/* In front of page-locked memory is what counts it. */
#define HEAD_BYTES 64

enum zb_status zb_cuda_host_alloc(struct zb_backend *be, size_t bytes,
                                  const char *what, void **ptr_out)
{
    void *token, *ptr = NULL;
    cudaError_t err;

    if (bytes > SIZE_MAX - HEAD_BYTES) {
        return zb_fail(ZB_ENOMEM, "%s: %zu bytes are too many", what, bytes);
    }
    ZB_TRY(use_any((struct zb_cuda *)be));
    token = zb_alloc(1);
    if (token == NULL) {
        return zb_fail_in(ZB_ENOMEM, "%s", what);
    }
    err = cudaHostAlloc(&ptr, bytes + HEAD_BYTES, cudaHostAllocPortable);
    if (err != cudaSuccess) {
        zb_free(token);
        (void)cudaGetLastError();
        return zb_fail(err == cudaErrorMemoryAllocation ? ZB_ENOMEM
                                                        : ZB_EDEVICE,
                       "%s: %zu bytes of page-locked memory: %s", what, bytes,
                       cudaGetErrorString(err));
    }
    memset(ptr, 0, bytes + HEAD_BYTES);
    *(void **)ptr = token;
    *ptr_out = (char *)ptr + HEAD_BYTES;
    return ZB_OK;
}

void zb_cuda_host_free(struct zb_backend *be, void *ptr)
{
    char *base;

    (void)be;
    if (ptr != NULL) {
        base = (char *)ptr - HEAD_BYTES;
        zb_free(*(void **)base);
        (void)cudaFreeHost(base);
        (void)cudaGetLastError();
    }
}
