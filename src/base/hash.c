/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zb/hash.h"

uint64_t zb_hash(const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < n; i++) {
        h = (h ^ p[i]) * 0x100000001b3u;
    }
    return h;
}
