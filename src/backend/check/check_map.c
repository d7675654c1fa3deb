/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "backend/check/check_int.h"

#include <string.h>

#include "zb/mem.h"

/* Segments and readers come in blocks, so that a run in its steady state takes
 * them from the free lists only. */
#define BLOCK_ITEMS 128

struct ck_block {
    struct ck_block *next;
    unsigned char pad[64 - sizeof(void *)];
    unsigned char items[];
};

void zb_ck_map_init(struct ck_map *map)
{
    memset(map, 0, sizeof(*map));
    map->head.n_levels = CK_LEVELS;
    map->rng = 0x9e3779b97f4a7c15u;
}

void zb_ck_map_release(struct ck_map *map)
{
    struct ck_block *next;

    for (struct ck_block *b = map->blocks; b != NULL; b = next) {
        next = b->next;
        zb_free(b);
    }
    memset(map, 0, sizeof(*map));
}

static unsigned char *new_block(struct ck_map *map, size_t item_bytes)
{
    struct ck_block *b = zb_alloc(sizeof(*b) + BLOCK_ITEMS * item_bytes);

    if (b == NULL) {
        return NULL;
    }
    b->next = map->blocks;
    map->blocks = b;
    return b->items;
}

static struct ck_seg *take_seg(struct ck_map *map)
{
    struct ck_seg *seg = map->free_segs;

    if (seg == NULL) {
        struct ck_seg *segs =
            (struct ck_seg *)(void *)new_block(map, sizeof(*segs));

        for (int i = 0; segs != NULL && i < BLOCK_ITEMS; i++) {
            segs[i].next[0] = map->free_segs;
            map->free_segs = &segs[i];
        }
        seg = map->free_segs;
    }
    if (seg != NULL) {
        map->free_segs = seg->next[0];
        memset(seg, 0, sizeof(*seg));
    }
    return seg;
}

static void give_seg(struct ck_map *map, struct ck_seg *seg)
{
    while (seg->reads != NULL) {
        zb_ck_read_drop(map, &seg->reads);
    }
    seg->next[0] = map->free_segs;
    map->free_segs = seg;
}

enum zb_status zb_ck_read_add(struct ck_map *map, struct ck_seg *seg,
                              const struct ck_mark *mark)
{
    struct ck_read *r = map->free_reads;

    if (r == NULL) {
        struct ck_read *reads =
            (struct ck_read *)(void *)new_block(map, sizeof(*reads));

        for (int i = 0; reads != NULL && i < BLOCK_ITEMS; i++) {
            reads[i].next = map->free_reads;
            map->free_reads = &reads[i];
        }
        r = map->free_reads;
    }
    if (r == NULL) {
        return ZB_ENOMEM;
    }
    map->free_reads = r->next;
    r->mark = *mark;
    r->next = seg->reads;
    seg->reads = r;
    return ZB_OK;
}

void zb_ck_read_drop(struct ck_map *map, struct ck_read **link)
{
    struct ck_read *r = *link;

    *link = r->next;
    r->next = map->free_reads;
    map->free_reads = r;
}

/* pred[l] = the last segment of level l that ends at or before addr. */
static void find_preds(struct ck_map *map, uintptr_t addr,
                       struct ck_seg *pred[CK_LEVELS])
{
    struct ck_seg *at = &map->head;

    for (int l = CK_LEVELS - 1; l >= 0; l--) {
        while (at->next[l] != NULL && at->next[l]->end <= addr) {
            at = at->next[l];
        }
        pred[l] = at;
    }
}

struct ck_seg *zb_ck_map_find(struct ck_map *map, uintptr_t addr)
{
    struct ck_seg *pred[CK_LEVELS];

    find_preds(map, addr, pred);
    return pred[0]->next[0];
}

/* A level more with probability 1/4. */
static int draw_levels(struct ck_map *map)
{
    uint64_t x = map->rng;
    int n = 1;

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    map->rng = x;
    while (n < CK_LEVELS && (x & 3) == 0) {
        n++;
        x >>= 2;
    }
    return n;
}

static void link_seg(struct ck_map *map, struct ck_seg *seg)
{
    struct ck_seg *pred[CK_LEVELS];

    find_preds(map, seg->start, pred);
    seg->n_levels = draw_levels(map);
    for (int l = 0; l < seg->n_levels; l++) {
        seg->next[l] = pred[l]->next[l];
        pred[l]->next[l] = seg;
    }
    map->n_segs++;
}

struct ck_seg *zb_ck_map_insert(struct ck_map *map, uintptr_t start,
                                uintptr_t end)
{
    struct ck_seg *seg = take_seg(map);

    if (seg == NULL) {
        return NULL;
    }
    seg->start = start;
    seg->end = end;
    seg->write.slot = -1;
    link_seg(map, seg);
    return seg;
}

enum zb_status zb_ck_map_split(struct ck_map *map, uintptr_t addr)
{
    struct ck_seg *left = zb_ck_map_find(map, addr);
    struct ck_seg *right;

    if (left == NULL || left->start >= addr) {
        return ZB_OK;
    }
    right = take_seg(map);
    if (right == NULL) {
        return ZB_ENOMEM;
    }
    right->start = addr;
    right->end = left->end;
    right->alloc = left->alloc;
    right->state = left->state;
    right->write = left->write;
    for (const struct ck_read *r = left->reads; r != NULL; r = r->next) {
        if (zb_ck_read_add(map, right, &r->mark) != ZB_OK) {
            give_seg(map, right);
            return ZB_ENOMEM;
        }
    }
    left->end = addr;
    link_seg(map, right);
    return ZB_OK;
}

void zb_ck_map_cut(struct ck_map *map, uintptr_t from, uintptr_t to)
{
    struct ck_seg *pred[CK_LEVELS];
    struct ck_seg *seg;

    find_preds(map, from, pred);
    seg = pred[0]->next[0];
    while (seg != NULL && seg->start < to) {
        struct ck_seg *next = seg->next[0];

        for (int l = 0; l < seg->n_levels; l++) {
            pred[l]->next[l] = seg->next[l];
        }
        give_seg(map, seg);
        map->n_segs--;
        seg = next;
    }
}

static int is_same_mark(const struct ck_mark *a, const struct ck_mark *b)
{
    return a->slot == b->slot && a->epoch == b->epoch;
}

/* In any order (a split turns a list round). A list has a stream once at most,
 * so equal lengths and inclusion are enough. */
static int are_same_reads(const struct ck_read *a, const struct ck_read *b)
{
    const struct ck_read *x, *y;
    int n = 0;

    for (x = a; x != NULL; x = x->next) {
        for (y = b; y != NULL && !is_same_mark(&x->mark, &y->mark);) {
            y = y->next;
        }
        if (y == NULL) {
            return 0;
        }
        n++;
    }
    for (y = b; y != NULL; y = y->next) {
        n--;
    }
    return n == 0;
}

static int is_same_history(const struct ck_seg *a, const struct ck_seg *b)
{
    return a->end == b->start && a->alloc == b->alloc && a->state == b->state &&
           is_same_mark(&a->write, &b->write) &&
           are_same_reads(a->reads, b->reads);
}

void zb_ck_map_merge(struct ck_map *map, uintptr_t from, uintptr_t to)
{
    /* One byte before, so that the border at `from` is looked at too. */
    struct ck_seg *seg = zb_ck_map_find(map, from == 0 ? 0 : from - 1);

    while (seg != NULL && seg->start < to) {
        struct ck_seg *next = seg->next[0];

        if (next != NULL && is_same_history(seg, next)) {
            uintptr_t end = next->end;

            zb_ck_map_cut(map, next->start, end);
            seg->end = end;
        } else {
            seg = next;
        }
    }
}
