/* SPDX-License-Identifier: MIT
 *
 * A hash of bytes: names to table slots and to the keys of random numbers; one
 * of a number; and a checksum of files, which is faster.
 *
 *     slot = zb_hash(name, strlen(name)) & (n_slots - 1);
 *
 *     struct zb_sum sum;
 *     zb_sum_init(&sum);
 *     zb_sum_add(&sum, data, n);           // as often as there are pieces
 *     x = zb_sum_value(&sum);
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

/* The state of splitmix64 goes on by this. */
#define ZB_MIX_STEP UINT64_C(0x9e3779b97f4a7c15)

/* The number of splitmix64 (Steele, Lea, Flood 2014) at state x: a permutation
 * of the 64-bit numbers that leaves no pattern. Its values order samples and
 * draw tokens, so they never change. */
static inline uint64_t zb_mix(uint64_t x)
{
    uint64_t z = x + ZB_MIX_STEP;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#define ZB_SUM_LANES 4
#define ZB_SUM_BLOCK (8 * ZB_SUM_LANES)

/* A checksum of bytes that come in pieces, which may be cut anywhere. A changed
 * word always changes it, anything else but for one case in 2^64; it is no
 * protection against who means harm. Its values are in checkpoints, so they
 * never change. */
struct zb_sum {
    uint64_t lane[ZB_SUM_LANES];
    uint64_t n_bytes;
    unsigned char part[ZB_SUM_BLOCK]; /* of a block that is not complete */
};

void zb_sum_init(struct zb_sum *s);
void zb_sum_add(struct zb_sum *s, const void *bytes, size_t n);
uint64_t zb_sum_value(const struct zb_sum *s);

#endif
