/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "run/run_int.h"

#include <stdlib.h>

#include "zb/mem.h"

size_t zb_round_up(size_t bytes)
{
    return (bytes + ZB_ALIGN - 1) / ZB_ALIGN * ZB_ALIGN;
}

static int by_first_node(const void *a, const void *b)
{
    const struct zb_block *x = *(struct zb_block *const *)a;
    const struct zb_block *y = *(struct zb_block *const *)b;

    if (x->first != y->first) {
        return x->first < y->first ? -1 : 1;
    }
    return x < y ? -1 : x > y;
}

/* Put `b` into the lowest gap of the live blocks, which are sorted by offset,
 * and keep them sorted. Dead blocks are dropped on the way. */
static size_t place(struct zb_block **live, size_t n_live, struct zb_block *b)
{
    size_t kept = 0, at = 0, where = 0;

    for (size_t i = 0; i < n_live; i++) {
        if (live[i]->last >= b->first) {
            live[kept++] = live[i];
        }
    }
    while (where < kept && live[where]->offset < at + b->bytes) {
        at = live[where]->offset + live[where]->bytes;
        where++;
    }
    b->offset = at;
    for (size_t i = kept; i > where; i--) {
        live[i] = live[i - 1];
    }
    live[where] = b;
    return kept + 1;
}

enum zb_status zb_arena_pack(struct zb_block *blocks, size_t n,
                             size_t *bytes_out)
{
    struct zb_block **order = zb_alloc_array(n, sizeof(struct zb_block *));
    struct zb_block **live = zb_alloc_array(n + 1, sizeof(struct zb_block *));
    size_t n_order = 0, n_live = 0, bytes = 0;

    if (order == NULL || live == NULL) {
        zb_free(order);
        zb_free(live);
        return ZB_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        blocks[i].offset = 0;
        if (blocks[i].bytes > 0) {
            order[n_order++] = &blocks[i];
        }
    }
    qsort(order, n_order, sizeof(struct zb_block *), by_first_node);
    for (size_t i = 0; i < n_order; i++) {
        n_live = place(live, n_live, order[i]);
        if (order[i]->offset + order[i]->bytes > bytes) {
            bytes = order[i]->offset + order[i]->bytes;
        }
    }
    zb_free(live);
    zb_free(order);
    *bytes_out = bytes;
    return ZB_OK;
}
