/* SPDX-License-Identifier: MIT
 *
 * Checked host allocation: overflow-safe, counted, and able to fail on demand.
 * All host allocations of the library go through here, so that a test can
 * prove that a training step allocates nothing and that every failure unwinds.
 *
 *     float *x = zb_alloc_array(n, sizeof(*x));
 *     if (x == NULL) {
 *         return ZB_ENOMEM;          // the text is already recorded
 *     }
 *
 * Every function that returns NULL has recorded its text with zb_fail().
 * Threads: any.
 */
#ifndef ZB_MEM_H
#define ZB_MEM_H

#include <stddef.h>
#include <stdint.h>

#include "zb/status.h"

/* n * size zeroed bytes, aligned to 64; NULL when they cannot be had or when
 * the product overflows. A request of 0 bytes gives a valid pointer. */
void *zb_alloc_array(size_t n, size_t size);

/* One zeroed object of `size` bytes. */
void *zb_alloc(size_t size);

/* Resize an array from zb_alloc_array (or NULL) to n elements; the contents are
 * kept, the new tail is zeroed. On failure NULL, and `ptr` is still valid. */
void *zb_realloc_array(void *ptr, size_t n_old, size_t n_new, size_t size);

/* Make room for one more element: doubles *cap when len == *cap. On failure
 * *ptr and *cap are unchanged. `ptr` is the address of the array pointer. */
enum zb_status zb_grow(void *ptr, size_t len, size_t *cap, size_t size)
    ZB_CHECKED;

/* Release memory from this header; zb_free(NULL) is legal. */
void zb_free(void *ptr);

/* Copies of a string, of at most n bytes of one, and a formatted string. */
char *zb_strdup(const char *s);
char *zb_strndup(const char *s, size_t n);
char *zb_format(const char *fmt, ...) ZB_PRINTF(1, 2);

/* How many allocations were made since the start, and how many are live. */
uint64_t zb_mem_count(void);
int64_t zb_mem_live(void);

/* Let the k-th allocation from now on fail (k = 1 is the next one); 0 turns
 * this off. For tests; process-wide. */
void zb_mem_fail_at(uint64_t k);

/* Whether the failure asked for with zb_mem_fail_at() has happened. */
int zb_mem_failed(void);

#endif
