/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "zb/mem.h"
#include "backend/cpu/cpu_int.h"

#define HUGE_BYTES ((size_t)2 << 20)
#define HEAD_BYTES 64

/* In front of every piece of device memory. Pieces of a huge page or more are
 * mapped; their `token` is an allocation of zb/mem.h that stands for them, so
 * that they are counted and can be made to fail like any other. */
struct head {
    void *token;
    void *map;
    size_t map_bytes;
    size_t bytes; /* as asked for */
};

/* Map so that the piece starts on a huge page, and touch it, so that its pages
 * belong to the memory of the core this thread is bound to. */
static struct head *map_huge(size_t bytes)
{
    size_t map_bytes, page = (size_t)sysconf(_SC_PAGESIZE);
    char *map, *start;

    if (__builtin_add_overflow(bytes, HUGE_BYTES, &map_bytes)) {
        return NULL;
    }
    map = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        return NULL;
    }
    start = map + (HUGE_BYTES - (uintptr_t)map % HUGE_BYTES) % HUGE_BYTES;
#ifdef MADV_HUGEPAGE
    (void)madvise(start, bytes, MADV_HUGEPAGE); /* only makes it faster */
#endif
    for (size_t i = 0; i < bytes; i += page) {
        start[i] = 0;
    }
    ((struct head *)start)->map = map;
    ((struct head *)start)->map_bytes = map_bytes;
    return (struct head *)start;
}

enum zb_status zb_cpu_mem_alloc(struct zb_device *dev, size_t bytes,
                                const char *what, void **ptr_out)
{
    struct head *head;
    size_t total;
    void *token;

    if (__builtin_add_overflow(bytes, HEAD_BYTES, &total)) {
        return zb_fail(ZB_ENOMEM, "%s: %zu bytes are too many", what, bytes);
    }
    token = zb_alloc(total < HUGE_BYTES ? total : 1);
    if (token == NULL) {
        return zb_fail_in(ZB_ENOMEM, "%s", what);
    }
    head = total < HUGE_BYTES ? token : map_huge(total);
    if (head == NULL) {
        zb_free(token);
        return zb_fail(ZB_ENOMEM, "%s: out of memory (%zu bytes)", what, bytes);
    }
    head->token = token;
    head->bytes = bytes;
    dev->mem_bytes += bytes;
    if (dev->mem_peak_bytes < dev->mem_bytes) {
        dev->mem_peak_bytes = dev->mem_bytes;
    }
    *ptr_out = (char *)head + HEAD_BYTES;
    return ZB_OK;
}

void zb_cpu_mem_free(struct zb_device *dev, void *ptr)
{
    struct head head;

    if (ptr == NULL) {
        return;
    }
    memcpy(&head, (char *)ptr - HEAD_BYTES, sizeof(head));
    dev->mem_bytes -= head.bytes;
    if (head.map != NULL) {
        munmap(head.map, head.map_bytes);
    }
    zb_free(head.token);
}

size_t zb_cpu_mem_bytes(const struct zb_device *dev)
{
    return dev->mem_bytes;
}

size_t zb_cpu_mem_peak_bytes(const struct zb_device *dev)
{
    return dev->mem_peak_bytes;
}
