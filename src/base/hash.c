/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zb/hash.h"

#include <string.h>

uint64_t zb_hash(const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < n; i++) {
        h = (h ^ p[i]) * 0x100000001b3u;
    }
    return h;
}

/* Each lane takes every fourth word of 8 bytes. Both the product with an odd
 * number and the rotation can be undone, so that two words never lead from one
 * state to the same; the rotation brings changes of high bits down, which the
 * product alone would lose. */
static uint64_t mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0x9e3779b97f4a7c15u;
    return h << 29 | h >> 35;
}

static void add_block(uint64_t *lane, const unsigned char *p)
{
    for (int i = 0; i < ZB_SUM_LANES; i++) {
        uint64_t word;

        memcpy(&word, p + 8 * i, sizeof(word));
        lane[i] = mix(lane[i], word);
    }
}

void zb_sum_init(struct zb_sum *s)
{
    memset(s, 0, sizeof(*s));
    for (int i = 0; i < ZB_SUM_LANES; i++) {
        s->lane[i] = 0xcbf29ce484222325u + (uint64_t)i;
    }
}

void zb_sum_add(struct zb_sum *s, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    size_t have = s->n_bytes % ZB_SUM_BLOCK;

    s->n_bytes += n;
    if (have > 0) {
        size_t take = n < ZB_SUM_BLOCK - have ? n : ZB_SUM_BLOCK - have;

        memcpy(s->part + have, p, take);
        if (have + take < ZB_SUM_BLOCK) {
            return;
        }
        add_block(s->lane, s->part);
        p += take;
        n -= take;
    }
    for (; n >= ZB_SUM_BLOCK; n -= ZB_SUM_BLOCK, p += ZB_SUM_BLOCK) {
        add_block(s->lane, p);
    }
    if (n > 0) {
        memcpy(s->part, p, n);
    }
}

uint64_t zb_sum_value(const struct zb_sum *s)
{
    size_t have = s->n_bytes % ZB_SUM_BLOCK;
    unsigned char last[ZB_SUM_BLOCK] = {0};
    uint64_t lane[ZB_SUM_LANES], h = s->n_bytes;

    memcpy(lane, s->lane, sizeof(lane));
    memcpy(last, s->part, have);
    add_block(lane, last);
    for (int i = 0; i < ZB_SUM_LANES; i++) {
        h = mix(h, lane[i]);
    }
    return h ^ h >> 32;
}
