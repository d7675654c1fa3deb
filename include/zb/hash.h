/* SPDX-License-Identifier: MIT
 *
 * A hash of bytes: names to table slots and to the keys of random numbers.
 *
 *     slot = zb_hash(name, strlen(name)) & (n_slots - 1);
 *
 * Threads: any.
 */
#ifndef ZB_HASH_H
#define ZB_HASH_H

#include <stddef.h>
#include <stdint.h>

/* FNV-1a, 64 bits (Fowler, Noll, Vo). Its values key start weights, so they
 * never change. */
uint64_t zb_hash(const void *bytes, size_t n);

#endif
