/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "backend/check/check_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "zb/mem.h"

#define SIDE_TEXT 440 /* three names and the words between them */
#define RANGE_TEXT 256

/* [a, b) as a reader of a report wants it: where in which allocation. */
static const char *range_text(const struct ck_alloc *alloc, uintptr_t a,
                              uintptr_t b, char buf[RANGE_TEXT])
{
    if (alloc == NULL) {
        snprintf(buf, RANGE_TEXT,
                 "host memory [0x%" PRIxPTR ", 0x%" PRIxPTR ")", a, b);
    } else {
        snprintf(buf, RANGE_TEXT,
                 "bytes %" PRIuPTR " to %" PRIuPTR " of \"%s\""
                 " of device %d [0x%" PRIxPTR ", 0x%" PRIxPTR ")",
                 a - alloc->start, b - alloc->start, alloc->what,
                 alloc->dev->index, a, b);
    }
    return buf;
}

/* The part of a segment that an access [a, b) meets. */
struct overlap {
    const struct ck_seg *seg;
    uintptr_t a, b;
};

static struct overlap overlap_of(const struct ck_seg *seg, uintptr_t a,
                                 uintptr_t b)
{
    struct overlap o = {.seg = seg};

    o.a = seg->start > a ? seg->start : a;
    o.b = seg->end < b ? seg->end : b;
    return o;
}

static void report_race(struct ck_backend *be, struct ck_op *op,
                        const struct overlap *o, const char *mine,
                        const char *theirs, const struct ck_mark *other)
{
    char range[RANGE_TEXT], me[SIDE_TEXT], them[SIDE_TEXT];
    const char *kind = op->me.slot < 0 ? "freed" : "race";

    if (op->has_reported) {
        return;
    }
    op->has_reported = 1;
    zb_ck_report(be,
                 "check: %s: %s of %s by %s is not ordered after its %s by "
                 "%s",
                 o->seg->alloc == NULL ? "host" : kind, mine,
                 range_text(o->seg->alloc, o->a, o->b, range),
                 zb_ck_mark_text(&op->me, me, sizeof(me)), theirs,
                 zb_ck_mark_text(other, them, sizeof(them)));
}

static void report_unwritten(struct ck_backend *be, struct ck_op *op,
                             const struct overlap *o)
{
    char range[RANGE_TEXT], me[SIDE_TEXT], them[SIDE_TEXT];

    if (op->has_reported) {
        return;
    }
    op->has_reported = 1;
    zb_ck_mark_text(&op->me, me, sizeof(me));
    range_text(o->seg->alloc, o->a, o->b, range);
    if (o->seg->state == CK_FRESH) {
        zb_ck_report(be,
                     "check: unwritten: %s reads %s, which nothing has "
                     "written",
                     me, range);
    } else {
        zb_ck_report(be,
                     "check: unwritten: %s reads %s, which nothing has "
                     "written since %s",
                     me, range,
                     zb_ck_mark_text(&o->seg->write, them, sizeof(them)));
    }
}

/* Whether [a, b) lies within one live allocation; reports if not. */
static int is_inside(struct ck_backend *be, struct ck_op *op, uintptr_t a,
                     uintptr_t b)
{
    const struct ck_seg *seg = zb_ck_map_find(&be->device_map, a);
    char range[RANGE_TEXT], me[SIDE_TEXT];
    int is_known = b > a && seg != NULL && seg->start <= a;

    if (is_known && seg->state != CK_FREED && b <= seg->alloc->end) {
        return 1;
    }
    if (op->has_reported) {
        return 0;
    }
    op->has_reported = 1;
    zb_ck_mark_text(&op->me, me, sizeof(me));
    if (!is_known) {
        zb_ck_report(be,
                     "check: stray: %s touches [0x%" PRIxPTR ", 0x%" PRIxPTR
                     "), which begins in no allocation",
                     me, a, b);
    } else if (seg->state == CK_FREED) {
        zb_ck_report(be, "check: freed: %s touches %s, which was freed", me,
                     range_text(seg->alloc, a, b, range));
    } else {
        zb_ck_report(be,
                     "check: stray: %s touches %s, which has only %" PRIuPTR
                     " bytes",
                     me, range_text(seg->alloc, a, b, range),
                     seg->alloc->end - seg->alloc->start);
    }
    return 0;
}

static void check_read(struct ck_backend *be, struct ck_op *op,
                       const struct overlap *o)
{
    const struct ck_seg *seg = o->seg;

    if (!zb_ck_is_before(&seg->write, op->clock)) {
        report_race(be, op, o, "read",
                    seg->state == CK_DISCARDED ? "discard" : "write",
                    &seg->write);
    } else if (seg->state == CK_FRESH || seg->state == CK_DISCARDED) {
        report_unwritten(be, op, o);
    }
}

static void check_write(struct ck_backend *be, struct ck_op *op,
                        const struct overlap *o, const char *verb)
{
    const struct ck_seg *seg = o->seg;

    if (!zb_ck_is_before(&seg->write, op->clock)) {
        report_race(be, op, o, verb,
                    seg->state == CK_DISCARDED ? "discard" : "write",
                    &seg->write);
    }
    for (const struct ck_read *r = seg->reads; r != NULL; r = r->next) {
        if (!zb_ck_is_before(&r->mark, op->clock)) {
            report_race(be, op, o, verb, "read", &r->mark);
        }
    }
}

static void check_range(struct ck_backend *be, struct ck_map *map,
                        struct ck_op *op, uintptr_t a, uintptr_t b,
                        enum zb_access_mode mode)
{
    const struct ck_seg *seg = zb_ck_map_find(map, a);

    for (; seg != NULL && seg->start < b; seg = seg->next[0]) {
        struct overlap o = overlap_of(seg, a, b);

        if ((mode & ZB_READ) != 0) {
            check_read(be, op, &o);
        }
        if ((mode & ZB_WRITE) != 0) {
            check_write(be, op, &o, "write");
        }
    }
}

/* Readers that happened before this one are forgotten: who comes after this
 * one comes after them too. */
static enum zb_status note_read(struct ck_map *map, const struct ck_op *op,
                                uintptr_t a, uintptr_t b)
{
    struct ck_seg *seg;

    ZB_TRY(zb_ck_map_split(map, a));
    ZB_TRY(zb_ck_map_split(map, b));
    seg = zb_ck_map_find(map, a);
    for (; seg != NULL && seg->start < b; seg = seg->next[0]) {
        struct ck_read **link = &seg->reads;

        while (*link != NULL) {
            if (zb_ck_is_before(&(*link)->mark, op->clock)) {
                zb_ck_read_drop(map, link);
            } else {
                link = &(*link)->next;
            }
        }
        ZB_TRY(zb_ck_read_add(map, seg, &op->me));
    }
    zb_ck_map_merge(map, a, b);
    return ZB_OK;
}

static enum zb_status note_write(struct ck_map *map, const struct ck_op *op,
                                 uintptr_t a, uintptr_t b, enum ck_state state)
{
    struct ck_seg *seg;

    ZB_TRY(zb_ck_map_split(map, a));
    ZB_TRY(zb_ck_map_split(map, b));
    seg = zb_ck_map_find(map, a);
    zb_ck_map_cut(map, seg->end, b);
    seg->end = b;
    seg->state = state;
    seg->write = op->me;
    while (seg->reads != NULL) {
        zb_ck_read_drop(map, &seg->reads);
    }
    zb_ck_map_merge(map, a, b);
    return ZB_OK;
}

static enum zb_status note(struct ck_map *map, const struct ck_op *op,
                           uintptr_t a, uintptr_t b, enum zb_access_mode mode)
{
    if ((mode & ZB_WRITE) != 0) {
        return note_write(map, op, a, b, CK_WRITTEN);
    }
    return note_read(map, op, a, b);
}

enum zb_status zb_ck_touch(struct ck_backend *be, struct ck_op *op,
                           const void *ptr, size_t bytes,
                           enum zb_access_mode mode)
{
    uintptr_t a = (uintptr_t)ptr, b = a + bytes;

    if (bytes == 0 || !is_inside(be, op, a, b)) {
        return ZB_OK;
    }
    check_range(be, &be->device_map, op, a, b, mode);
    return note(&be->device_map, op, a, b, mode);
}

enum zb_status zb_ck_discard(struct ck_backend *be, struct ck_op *op,
                             const void *ptr, size_t bytes)
{
    uintptr_t a = (uintptr_t)ptr, b = a + bytes;
    const struct ck_seg *seg;

    if (bytes == 0 || !is_inside(be, op, a, b)) {
        return ZB_OK;
    }
    seg = zb_ck_map_find(&be->device_map, a);
    for (; seg != NULL && seg->start < b; seg = seg->next[0]) {
        struct overlap o = overlap_of(seg, a, b);

        check_write(be, op, &o, "discard");
    }
    return note_write(&be->device_map, op, a, b, CK_DISCARDED);
}

/* ---- host memory -------------------------------------------------------- */

static enum zb_status fill_gaps(struct ck_map *map, uintptr_t a, uintptr_t b)
{
    struct ck_seg *seg = zb_ck_map_find(map, a);

    while (a < b) {
        uintptr_t end = seg != NULL && seg->start < b ? seg->start : b;

        if (a < end) {
            struct ck_seg *fresh = zb_ck_map_insert(map, a, end);

            if (fresh == NULL) {
                return ZB_ENOMEM;
            }
            fresh->state = CK_WRITTEN;
        }
        if (seg == NULL || seg->start >= b) {
            break;
        }
        a = seg->end;
        seg = seg->next[0];
    }
    return ZB_OK;
}

static int is_over(const struct ck_seg *seg, const struct ck_clock *clock)
{
    if (!zb_ck_is_before(&seg->write, clock)) {
        return 0;
    }
    for (const struct ck_read *r = seg->reads; r != NULL; r = r->next) {
        if (!zb_ck_is_before(&r->mark, clock)) {
            return 0;
        }
    }
    return 1;
}

/* Forget host ranges whose copies somebody has waited for, or a run over a
 * large file would remember every batch of it. */
static void sweep_host(struct ck_backend *be)
{
    struct ck_map *map = &be->host_map;
    struct ck_seg *next;

    if (map->n_segs < 2 * be->n_host_kept + 1024) {
        return;
    }
    for (struct ck_seg *seg = map->head.next[0]; seg != NULL; seg = next) {
        next = seg->next[0];
        if (is_over(seg, &be->waited_for)) {
            zb_ck_map_cut(map, seg->start, seg->end);
        }
    }
    be->n_host_kept = map->n_segs;
}

enum zb_status zb_ck_touch_host(struct ck_backend *be, struct ck_op *op,
                                const void *ptr, size_t bytes,
                                enum zb_access_mode mode)
{
    uintptr_t a = (uintptr_t)ptr, b = a + bytes;
    struct ck_op host_op = *op;
    enum zb_status st = ZB_OK;

    if (bytes == 0) {
        return ZB_OK;
    }
    be->scratch = *op->clock;
    zb_ck_join(be, &be->scratch, &be->waited_for);
    host_op.clock = &be->scratch;
    check_range(be, &be->host_map, &host_op, a, b, mode);
    if (op->me.slot >= 0) {
        sweep_host(be);
        ZB_TRY(fill_gaps(&be->host_map, a, b));
        st = note(&be->host_map, &host_op, a, b, mode);
    }
    op->has_reported = host_op.has_reported;
    return st;
}

int zb_ck_is_host_pending(struct ck_backend *be, const void *ptr, size_t bytes)
{
    uintptr_t a = (uintptr_t)ptr, b = a + bytes;
    const struct ck_seg *seg = zb_ck_map_find(&be->host_map, a);

    for (; seg != NULL && seg->start < b; seg = seg->next[0]) {
        if (!zb_ck_is_before(&seg->write, &be->waited_for)) {
            return 1;
        }
    }
    return 0;
}

/* ---- allocations -------------------------------------------------------- */

enum zb_status zb_ck_alloc_add(struct ck_backend *be, struct ck_device *dev,
                               void *ptr, size_t bytes, const char *what)
{
    uintptr_t a = (uintptr_t)ptr, b = a + bytes;
    struct ck_alloc *alloc = zb_alloc(sizeof(*alloc));
    struct ck_seg *seg = NULL;

    if (alloc == NULL) {
        return ZB_ENOMEM;
    }
    *alloc = (struct ck_alloc){
        .dev = dev, .ptr = ptr, .start = a, .end = b, .is_live = 1};
    alloc->what = zb_ck_intern(be, what);
    if (alloc->what != NULL && bytes > 0 &&
        zb_ck_map_split(&be->device_map, a) == ZB_OK &&
        zb_ck_map_split(&be->device_map, b) == ZB_OK) {
        /* Tombstones: the inner backend gave the addresses out again. */
        zb_ck_map_cut(&be->device_map, a, b);
        seg = zb_ck_map_insert(&be->device_map, a, b);
    }
    if (alloc->what == NULL || (bytes > 0 && seg == NULL)) {
        zb_free(alloc);
        return ZB_ENOMEM;
    }
    if (seg != NULL) {
        seg->alloc = alloc;
        seg->state = CK_FRESH;
    }
    alloc->next = be->allocs;
    be->allocs = alloc;
    return ZB_OK;
}

struct ck_alloc *zb_ck_alloc_find(struct ck_backend *be, const void *ptr)
{
    struct ck_alloc *alloc = be->allocs;

    while (alloc != NULL &&
           (!alloc->is_live || alloc->start != (uintptr_t)ptr)) {
        alloc = alloc->next;
    }
    return alloc;
}

void zb_ck_alloc_bury(struct ck_backend *be, struct ck_alloc *alloc)
{
    struct ck_op op = {.me = {.slot = -1, .label = "mem_free()"},
                       .clock = &be->waited_for};
    struct ck_seg *seg = zb_ck_map_find(&be->device_map, alloc->start);

    alloc->is_live = 0;
    if (alloc->start == alloc->end) {
        return;
    }
    for (; seg != NULL && seg->start < alloc->end; seg = seg->next[0]) {
        struct overlap o = overlap_of(seg, seg->start, seg->end);

        check_write(be, &op, &o, "free");
    }
    seg = zb_ck_map_find(&be->device_map, alloc->start);
    zb_ck_map_cut(&be->device_map, seg->end, alloc->end);
    seg->end = alloc->end;
    seg->state = CK_FREED;
    seg->write = op.me;
    while (seg->reads != NULL) {
        zb_ck_read_drop(&be->device_map, &seg->reads);
    }
}
