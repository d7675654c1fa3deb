/* SPDX-License-Identifier: MIT
 *
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011): four 32-bit random numbers
 * from a 128-bit counter and a 64-bit key.
 *
 * A dropout mask's key comes from its seed, step and site; the counter is the
 * sample (high half) and the block of four elements in it (low half).
 * Weights of attention have blocks of their own.
 */
#ifndef ZB_KERN_PHILOX_H
#define ZB_KERN_PHILOX_H

#include "kern/kern.h"

struct zb_philox_key {
    uint32_t k0, k1;
};

struct zb_philox_out {
    uint32_t x0, x1, x2, x3;
};

ZB_KERN_FN struct zb_philox_out zb_philox(struct zb_philox_key key, uint64_t lo,
                                          uint64_t hi)
{
    struct zb_philox_out c;

    c.x0 = (uint32_t)lo;
    c.x1 = (uint32_t)(lo >> 32);
    c.x2 = (uint32_t)hi;
    c.x3 = (uint32_t)(hi >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c.x0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c.x2;

        c.x0 = (uint32_t)(p1 >> 32) ^ c.x1 ^ key.k0;
        c.x2 = (uint32_t)(p0 >> 32) ^ c.x3 ^ key.k1;
        c.x1 = (uint32_t)p1;
        c.x3 = (uint32_t)p0;
        key.k0 += 0x9E3779B9u;
        key.k1 += 0xBB67AE85u;
    }
    return c;
}

ZB_KERN_FN struct zb_philox_key zb_philox_key_of(uint64_t seed)
{
    struct zb_philox_key key;

    key.k0 = (uint32_t)seed;
    key.k1 = (uint32_t)(seed >> 32);
    return key;
}

/* The key of one dropout site in one step. */
ZB_KERN_FN struct zb_philox_key zb_philox_site_key(uint64_t seed, uint64_t step,
                                                   uint32_t site)
{
    struct zb_philox_out x = zb_philox(zb_philox_key_of(seed), step, site);
    struct zb_philox_key key;

    key.k0 = x.x0;
    key.k1 = x.x1;
    return key;
}

/* The block of a weight of attention, which has those of keys key / 4 * 4 to
 * key / 4 * 4 + 3. Heads, queries and keys are apart by constants, so that the
 * numbers do not depend on how long sequences are, or were padded to be. Each
 * has its own up to 2^16 heads and 2^24 queries. */
#define ZB_ATTN_BLOCKS_OF_QUERY ((uint64_t)1 << 24)

ZB_KERN_FN uint64_t zb_attn_block(int64_t head, int64_t query, int64_t key)
{
    return (((uint64_t)head << 24) + (uint64_t)query) *
               ZB_ATTN_BLOCKS_OF_QUERY +
           (uint64_t)key / 4;
}

/* An element is kept when its number is not below this. */
ZB_KERN_FN uint32_t zb_drop_limit(double p)
{
    return (uint32_t)(p * 4294967296.0);
}

/* The factors (0 or keep) of the four elements of `block` of `sample`. */
ZB_KERN_FN void zb_drop_block(struct zb_philox_key key, int64_t sample,
                              uint64_t block, uint32_t limit, zb_real keep,
                              zb_real *ZB_RESTRICT factor)
{
    struct zb_philox_out x = zb_philox(key, block, (uint64_t)sample);

    factor[0] = x.x0 >= limit ? keep : ZB_R(0);
    factor[1] = x.x1 >= limit ? keep : ZB_R(0);
    factor[2] = x.x2 >= limit ? keep : ZB_R(0);
    factor[3] = x.x3 >= limit ? keep : ZB_R(0);
}

#endif
