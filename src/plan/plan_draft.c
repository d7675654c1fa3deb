/* SPDX-License-Identifier: MIT
 *
 * From nodes in the order of a file to a schedule. The file is untrusted: sizes
 * are only believed as far as there are nodes in it.
 */
#include "config.h"
#include "plan/plan_format.h"

#include <string.h>

#include "zb/mem.h"

void zb_plan_draft_release(struct zb_plan_draft *d)
{
    zb_free(d->first);
    zb_free(d->node);
}

enum zb_status zb_plan_draft_stage(struct zb_plan_draft *d)
{
    if (d->n_stage >= ZB_PLAN_MAX_STAGES) {
        return zb_fail(ZB_ECONFIG, "more than %d stages", ZB_PLAN_MAX_STAGES);
    }
    ZB_TRY(zb_grow(&d->first, d->n_stage, &d->cap_stage, sizeof(*d->first)));
    d->first[d->n_stage++] = d->n;
    return ZB_OK;
}

enum zb_status zb_plan_draft_node(struct zb_plan_draft *d,
                                  const struct zb_node *node)
{
    if (d->n >= ZB_PLAN_MAX_NODES) {
        return zb_fail(ZB_ECONFIG, "more than %zu nodes", ZB_PLAN_MAX_NODES);
    }
    ZB_TRY(zb_grow(&d->node, d->n, &d->cap, sizeof(*d->node)));
    d->node[d->n++] = *node;
    d->max_chunk = node->chunk > d->max_chunk ? node->chunk : d->max_chunk;
    d->max_mb = node->mb > d->max_mb ? node->mb : d->max_mb;
    return ZB_OK;
}

static enum zb_status draft_copy(const struct zb_plan_draft *d,
                                 enum zb_placement placement, int n_chunk,
                                 int n_micro, struct zb_schedule **s_out)
{
    struct zb_schedule *s = NULL;

    ZB_TRY(zb_plan_schedule_new("file", (int)d->n_stage, n_micro, placement,
                                n_chunk, &s));
    for (size_t i = 0; i < d->n_stage; i++) {
        size_t end = i + 1 < d->n_stage ? d->first[i + 1] : d->n;
        size_t n = end - d->first[i];

        if (zb_plan_stage_alloc(s, (int)i, n) != ZB_OK) {
            zb_schedule_free(s);
            return ZB_ENOMEM;
        }
        if (n > 0) {
            memcpy(s->stages[i].node, d->node + d->first[i],
                   n * sizeof(*d->node));
        }
    }
    *s_out = s;
    return ZB_OK;
}

/* Make the schedule as placed, with messages. */
static enum zb_status draft_place(const struct zb_plan_draft *d,
                                  enum zb_placement placement, int n_chunk,
                                  int n_micro, struct zb_schedule **s_out)
{
    struct zb_schedule *s = NULL;
    enum zb_status st;

    st = draft_copy(d, placement, n_chunk, n_micro, &s);
    if (st == ZB_EINVAL) {
        return zb_fail(ZB_ECONFIG, "%s", zb_error_text());
    }
    if (st != ZB_OK) {
        return st;
    }
    if (zb_plan_has_comm(s)) {
        st = zb_plan_check_streams(s, 0);
        zb_plan_measure(s);
    } else {
        st = zb_schedule_add_comm(s, NULL);
    }
    if (st != ZB_OK) {
        zb_schedule_free(s);
        return st;
    }
    *s_out = s;
    return ZB_OK;
}

/* Two chunks per stage can be a V or a loop. A file that does not say is a
 * loop only if that makes it legal and a V does not. */
static enum zb_status draft_guess(const struct zb_plan_draft *d, int n_micro,
                                  struct zb_schedule **s_out)
{
    static const enum zb_placement order[] = {ZB_PLACE_V, ZB_PLACE_LOOP};

    for (int i = 0; i < 2; i++) {
        struct zb_schedule *s = NULL;
        enum zb_status st = draft_place(d, order[i], 2, n_micro, &s);

        if (st == ZB_OK) {
            st = zb_schedule_check(s, NULL);
        }
        if (st == ZB_OK) {
            *s_out = s;
            return ZB_OK;
        }
        zb_schedule_free(s);
        if (st == ZB_ENOMEM) {
            return st;
        }
    }
    return draft_place(d, ZB_PLACE_V, 2, n_micro, s_out);
}

enum zb_status zb_plan_draft_finish(struct zb_plan_draft *d, int placement,
                                    int n_micro, struct zb_schedule **s_out)
{
    int n_chunk = d->max_chunk + 1;
    uint64_t need;

    if (d->n == 0) {
        return zb_fail(ZB_ECONFIG, "no nodes");
    }
    n_micro = n_micro > 0 ? n_micro : d->max_mb + 1;
    if (d->max_mb >= n_micro) {
        return zb_fail(ZB_ECONFIG, "there is an mb %d, but n_micro is %d",
                       d->max_mb, n_micro);
    }
    if (placement == ZB_PLACE_V && n_chunk < 2) {
        n_chunk = 2;
    }
    need = (uint64_t)d->n_stage * (uint64_t)n_chunk;
    if (need > ZB_PLAN_MAX_NODES || need * (uint64_t)n_micro > d->n) {
        return zb_fail(ZB_ECONFIG,
                       "%zu nodes cannot be all of %zu stages x %d chunks x "
                       "%d microbatches",
                       d->n, d->n_stage, n_chunk, n_micro);
    }
    if (placement < 0 && n_chunk == 2) {
        return draft_guess(d, n_micro, s_out);
    }
    if (placement < 0) {
        placement = n_chunk == 1 ? ZB_PLACE_LINEAR : ZB_PLACE_LOOP;
    }
    return draft_place(d, (enum zb_placement)placement, n_chunk, n_micro,
                       s_out);
}
