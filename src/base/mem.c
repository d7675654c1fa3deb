/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zb/mem.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 64

static _Atomic uint64_t n_allocs;
static _Atomic int64_t n_live;
static _Atomic uint64_t fail_at; /* counts down to 1; 0 is off */
static _Atomic int has_failed;

static int must_fail(void)
{
    uint64_t k = atomic_load(&fail_at);

    while (k > 0) {
        if (atomic_compare_exchange_weak(&fail_at, &k, k - 1)) {
            if (k == 1) {
                atomic_store(&has_failed, 1);
            }
            return k == 1;
        }
    }
    return 0;
}

void *zb_alloc_array(size_t n, size_t size)
{
    size_t bytes, padded;
    void *ptr;

    if (__builtin_mul_overflow(n, size, &bytes) ||
        __builtin_add_overflow(bytes, (size_t)ALIGN - 1, &padded)) {
        zb_fail(ZB_ENOMEM, "allocation of %zu x %zu bytes overflows", n, size);
        return NULL;
    }
    padded = padded / ALIGN * ALIGN + (bytes == 0 ? ALIGN : 0);
    ptr = must_fail() ? NULL : aligned_alloc(ALIGN, padded);
    if (ptr == NULL) {
        zb_fail(ZB_ENOMEM, "out of host memory (%zu bytes)", bytes);
        return NULL;
    }
    memset(ptr, 0, padded);
    atomic_fetch_add(&n_allocs, 1);
    atomic_fetch_add(&n_live, 1);
    return ptr;
}

void *zb_alloc(size_t size)
{
    return zb_alloc_array(1, size);
}

void *zb_realloc_array(void *ptr, size_t n_old, size_t n_new, size_t size)
{
    void *bigger = zb_alloc_array(n_new, size);

    if (bigger == NULL) {
        return NULL;
    }
    if (ptr != NULL) {
        memcpy(bigger, ptr, (n_old < n_new ? n_old : n_new) * size);
        zb_free(ptr);
    }
    return bigger;
}

enum zb_status zb_grow(void *ptr, size_t len, size_t *cap, size_t size)
{
    void *old, *bigger;
    size_t n_new = *cap == 0 ? 8 : *cap * 2;

    if (len < *cap) {
        return ZB_OK;
    }
    memcpy(&old, ptr, sizeof(old));
    bigger = zb_realloc_array(old, *cap, n_new, size);
    if (bigger == NULL) {
        return ZB_ENOMEM;
    }
    memcpy(ptr, &bigger, sizeof(bigger));
    *cap = n_new;
    return ZB_OK;
}

void zb_free(void *ptr)
{
    if (ptr != NULL) {
        atomic_fetch_sub(&n_live, 1);
        free(ptr);
    }
}

char *zb_strndup(const char *s, size_t n)
{
    size_t len = strnlen(s, n);
    char *copy = zb_alloc(len + 1);

    if (copy != NULL) {
        memcpy(copy, s, len);
    }
    return copy;
}

char *zb_strdup(const char *s)
{
    return zb_strndup(s, strlen(s));
}

char *zb_format(const char *fmt, ...)
{
    va_list ap;
    char *text;
    int len;

    va_start(ap, fmt);
    len = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    text = len < 0 ? NULL : zb_alloc((size_t)len + 1);
    if (text != NULL) {
        va_start(ap, fmt);
        vsnprintf(text, (size_t)len + 1, fmt, ap);
        va_end(ap);
    }
    return text;
}

uint64_t zb_mem_count(void)
{
    return atomic_load(&n_allocs);
}

int64_t zb_mem_live(void)
{
    return atomic_load(&n_live);
}

void zb_mem_fail_at(uint64_t k)
{
    atomic_store(&has_failed, 0);
    atomic_store(&fail_at, k);
}

int zb_mem_failed(void)
{
    return atomic_load(&has_failed);
}
