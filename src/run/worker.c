/* SPDX-License-Identifier: MIT
 *
 * A worker's life: set up its device, obey commands, leave in step with the
 * others. */
#include "config.h"
#include "run/run_int.h"

#include <string.h>

#include "zb/mem.h"

/* ---- set-up -------------------------------------------------------------- */

static enum zb_status list_mine(struct zb_worker *w)
{
    const struct zb_run_plan *p = w->s->plan;
    const struct zb_layout *l = &p->layout[w->stage];

    w->mine = zb_alloc_array((size_t)p->n_params, sizeof(int));
    if (w->mine == NULL) {
        return ZB_ENOMEM;
    }
    for (int i = 0; i < p->n_params; i++) {
        if (l->param[i] != ZB_NO_OFFSET) {
            w->mine[w->n_mine++] = i;
        }
    }
    return ZB_OK;
}

/* Turn offsets into addresses: NULL where the stage has none. */
static enum zb_status addresses(struct zb_worker *w, const size_t *offset,
                                int n, void *array_out)
{
    char **a = zb_alloc_array((size_t)n, sizeof(*a));

    if (a == NULL) {
        return ZB_ENOMEM;
    }
    for (int i = 0; i < n; i++) {
        a[i] = offset[i] == ZB_NO_OFFSET ? NULL : w->arena + offset[i];
    }
    memcpy(array_out, &a, sizeof(a));
    return ZB_OK;
}

static enum zb_status place_tensors(struct zb_worker *w)
{
    const struct zb_run_plan *p = w->s->plan;
    const struct zb_layout *l = &p->layout[w->stage];

    ZB_TRY(addresses(w, l->konst, p->n_consts, &w->konst));
    ZB_TRY(addresses(w, l->param, p->n_params, &w->value));
    return addresses(w, l->grad, p->n_uses, &w->grad);
}

/* The nodes that a chunk's last W is together with: in them no message is
 * waited for, since all have come when the last B is over. */
static void find_weights(const struct zb_stage_nodes *nodes, int chunk,
                         struct zb_tail *t)
{
    for (size_t i = 0; i < nodes->n; i++) {
        const struct zb_node *nd = &nodes->node[i];
        int is_w = nd->type == ZB_NODE_W;

        if (nd->chunk != chunk || (!is_w && nd->type != ZB_NODE_BW)) {
            continue;
        }
        if (is_w && t->n > 0 && i == t->first + t->n &&
            nodes->node[t->first].type == ZB_NODE_W) {
            t->n++;
        } else {
            t->first = i;
            t->n = 1;
        }
    }
}

static void find_tail(const struct zb_worker *w, int chunk, struct zb_tail *t)
{
    const struct zb_node *node = w->nodes->node, *before;

    find_weights(w->nodes, chunk, t);
    if (zb_virt_of(w->s->plan, w->stage, chunk) > 0 || t->n == 0) {
        return;
    }
    t->has_b = node[t->first].type == ZB_NODE_BW;
    if (t->has_b || t->first == 0) {
        return;
    }
    before = &node[t->first - 1];
    if (before->type == ZB_NODE_B && before->chunk == chunk &&
        before->mb == node[t->first + t->n - 1].mb) {
        t->has_b = 1;
        t->first--;
        t->n++;
    }
}

static enum zb_status alloc_tails(struct zb_worker *w)
{
    const struct zb_run_plan *p = w->s->plan;
    size_t most = 1;

    w->tail = zb_alloc_array((size_t)p->n_chunk, sizeof(*w->tail));
    if (w->tail == NULL) {
        return ZB_ENOMEM;
    }
    for (int k = 0; k < p->n_chunk; k++) {
        struct zb_tail *t = &w->tail[k];

        find_tail(w, k, t);
        most = t->n > most ? t->n : most;
        t->name = zb_format("stage %d last W chunk %d", w->stage, k);
        if (t->name == NULL) {
            return ZB_ENOMEM;
        }
    }
    w->tail_run = zb_alloc_array(most, sizeof(*w->tail_run));
    w->tail_data =
        zb_alloc_array(most * (size_t)p->n_data, sizeof(*w->tail_data));
    return w->tail_run == NULL || w->tail_data == NULL ? ZB_ENOMEM : ZB_OK;
}

static enum zb_status alloc_state(struct zb_worker *w)
{
    const struct zb_run_plan *p = w->s->plan;

    w->data = zb_alloc_array((size_t)p->n_data, sizeof(*w->data));
    w->is_loaded = zb_alloc_array((size_t)p->layout[w->stage].n_slots,
                                  sizeof(int));
    w->start_ns = zb_alloc_array(w->nodes->n, sizeof(int64_t));
    w->end_ns = zb_alloc_array(w->nodes->n, sizeof(int64_t));
    w->node_name = zb_alloc_array(w->nodes->n, sizeof(char *));
    if (w->data == NULL || w->is_loaded == NULL || w->start_ns == NULL ||
        w->end_ns == NULL || w->node_name == NULL) {
        return ZB_ENOMEM;
    }
    for (size_t i = 0; i < w->nodes->n; i++) {
        const struct zb_node *nd = &w->nodes->node[i];

        w->node_name[i] =
            zb_format("stage %d %s chunk %d microbatch %d", w->stage,
                      zb_node_type_str(nd->type), nd->chunk, nd->mb);
        if (w->node_name[i] == NULL) {
            return ZB_ENOMEM;
        }
    }
    ZB_TRY(w->ops->host_alloc(w->s->be,
                              (size_t)zb_most_norms(p) * sizeof(double),
                              "squared norms", (void **)&w->sumsq_host));
    return alloc_tails(w);
}

static enum zb_status join_channels(struct zb_worker *w)
{
    const struct zb_run_plan *p = w->s->plan;
    const struct zb_layout *l = &p->layout[w->stage];

    for (int ch = 0; ch < zb_n_channels(p); ch++) {
        if (zb_stage_of(p, zb_channel_from(ch)) == w->stage) {
            ZB_TRY(zb_channel_join_sender(w->chan[ch], w->dev));
        }
        if (zb_stage_of(p, zb_channel_to(ch)) == w->stage) {
            ZB_TRY(zb_channel_join_receiver(w->chan[ch], w->dev));
        }
        if (l->msg_n[ch] > 0) {
            zb_channel_give_memory(w->chan[ch], l->msg_first[ch],
                                   l->msg_n[ch], w->arena + l->msg[ch],
                                   zb_channel_bytes(p, ch));
        }
    }
    return ZB_OK;
}

typedef enum zb_status (*link_fn)(struct zb_channel *c, enum zb_link_end end);

/* All workers, each for its ends, in the order of the channels. */
static enum zb_status on_links(struct zb_worker *w, link_fn fn)
{
    const struct zb_run_plan *p = w->s->plan;

    for (int ch = 0; p->is_linked && ch < zb_n_channels(p); ch++) {
        enum zb_status st = ZB_OK;

        zb_wait_begin(w, zb_channel_name(w->chan[ch]));
        if (zb_stage_of(p, zb_channel_from(ch)) == w->stage) {
            st = fn(w->chan[ch], ZB_SENDER);
        }
        if (st == ZB_OK && zb_stage_of(p, zb_channel_to(ch)) == w->stage) {
            st = fn(w->chan[ch], ZB_RECEIVER);
        }
        zb_wait_end(w);
        ZB_TRY(st);
    }
    return ZB_OK;
}

/* A link has what it needs once a message has gone over it, and nothing may be
 * allocated while one is under way: so all this is done before any step. */
static enum zb_status connect_links(struct zb_worker *w)
{
    static const struct {
        link_fn channel;
        enum zb_group_step group;
    } steps[] = {{zb_channel_open_link, ZB_GROUP_OPEN},
                 {zb_channel_join_link, ZB_GROUP_JOIN},
                 {zb_channel_warm_up_link, ZB_GROUP_WARM_UP}};

    for (size_t i = 0; zb_has_links(w->s->plan) && i < ZB_COUNT_OF(steps);
         i++) {
        ZB_TRY(zb_group_meet(w->s->group));
        ZB_TRY(on_links(w, steps[i].channel));
        if (w->s->plan->has_group_links) {
            ZB_TRY(zb_worker_link_groups(w, steps[i].group));
        }
    }
    return ZB_OK;
}

/* Blocks go round on a stream of their own. */
static int passes_blocks(const struct zb_run_plan *p)
{
    return p->has_group_links && p->n_sp > 1 && p->par.mode == ZB_SEQ_RING;
}

static void begin_lap(struct zb_worker *w)
{
    w->lap_at_ns = zb_now_ns();
}

static void end_lap(struct zb_worker *w, enum zb_lap lap)
{
    int64_t now = zb_now_ns();

    w->lap_ns[lap] = now - w->lap_at_ns;
    w->lap_at_ns = now;
}

static enum zb_status setup(struct zb_worker *w)
{
    const struct zb_layout *l = &w->s->plan->layout[w->stage];

    w->nodes = &w->s->plan->sched->stages[w->stage];
    begin_lap(w);
    ZB_TRY(w->ops->device_open(w->s->be, w->device, &w->dev));
    ZB_TRY(w->ops->stream_new(w->dev, "compute", &w->stream));
    ZB_TRY(w->ops->stream_new(w->dev, "side", &w->side));
    if (passes_blocks(w->s->plan)) {
        ZB_TRY(w->ops->stream_new(w->dev, "ring", &w->ring));
    }
    ZB_TRY(w->ops->event_new(w->dev, &w->to_side));
    ZB_TRY(w->ops->event_new(w->dev, &w->from_side));
    ZB_TRY(w->ops->event_new(w->dev, &w->grads_done));
    ZB_TRY(w->ops->event_new(w->dev, &w->sums_done));
    ZB_TRY(w->ops->event_new(w->dev, &w->opt_done));
    end_lap(w, ZB_LAP_OPEN);
    ZB_TRY(w->ops->mem_alloc(w->dev, l->total, "arena", (void **)&w->arena));
    if (l->region_bytes[ZB_REGION_STREAM] > 0) {
        w->ops->stream_lend(w->stream, w->arena + l->compute,
                            w->s->plan->compute_bytes);
        w->ops->stream_lend(w->side, w->arena + l->side,
                            w->s->plan->side_bytes);
    }
    ZB_TRY(zb_worker_make_mirrors(w));
    ZB_TRY(zb_worker_reserve(w, w->s->n_mb));
    end_lap(w, ZB_LAP_MEMORY);
    ZB_TRY(list_mine(w));
    ZB_TRY(place_tensors(w));
    ZB_TRY(alloc_state(w));
    ZB_TRY(join_channels(w));
    ZB_TRY(zb_worker_join_groups(w));
    ZB_TRY(zb_worker_list_norms(w));
    ZB_TRY(connect_links(w));
    /* Others may wait for this worker's events from here on. */
    ZB_TRY(zb_group_meet(w->s->group));
    end_lap(w, ZB_LAP_MEET);
    ZB_TRY(zb_worker_fill_params(w));
    end_lap(w, ZB_LAP_VALUES);
    return ZB_OK;
}

/* ---- leaving ------------------------------------------------------------- */

static void leave_channels(struct zb_worker *w)
{
    const struct zb_run_plan *p = w->s->plan;

    for (int ch = 0; ch < zb_n_channels(p); ch++) {
        if (zb_stage_of(p, zb_channel_from(ch)) == w->stage) {
            zb_channel_leave_sender(w->chan[ch]);
        }
        if (zb_stage_of(p, zb_channel_to(ch)) == w->stage) {
            zb_channel_leave_receiver(w->chan[ch]);
        }
    }
}

static void end_copies(struct zb_worker *w)
{
    const struct zb_run_plan *p = w->s->plan;

    for (int ch = 0; ch < zb_n_channels(p); ch++) {
        if (zb_stage_of(p, zb_channel_from(ch)) == w->stage) {
            zb_channel_end_sender(w->chan[ch]);
        }
        if (zb_stage_of(p, zb_channel_to(ch)) == w->stage) {
            zb_channel_end_receiver(w->chan[ch]);
        }
    }
}

/* Nobody frees what another's stream may still touch: first all streams end,
 * then memory and events go, then devices close. Every worker comes here, after
 * success or failure, so these meetings need no way out. */
static void meet_to_leave(struct zb_worker *w)
{
    enum zb_status st = zb_barrier_wait(&w->s->leave, NULL);

    ZB_BUG_IF(st != ZB_OK, "workers failed to leave together");
}

static void free_host_state(struct zb_worker *w)
{
    for (size_t i = 0; w->node_name != NULL && i < w->nodes->n; i++) {
        zb_free(w->node_name[i]);
    }
    zb_free(w->node_name);
    zb_free(w->end_ns);
    zb_free(w->start_ns);
    if (w->sumsq_host != NULL) {
        w->ops->host_free(w->s->be, w->sumsq_host);
    }
    zb_worker_free_mirrors(w);
    zb_free(w->norm);
    zb_free(w->is_loaded);
    zb_free(w->data);
    for (int k = 0; w->tail != NULL && k < w->s->plan->n_chunk; k++) {
        zb_free(w->tail[k].name);
    }
    zb_free(w->tail_data);
    zb_free(w->tail_run);
    zb_free(w->tail);
    zb_free(w->grad);
    zb_free(w->value);
    zb_free(w->konst);
    zb_free(w->mine);
}

/* After an abort, until the host has cut the links: before that, what is freed
 * may wait for a message that does not come. */
static void await_cut(struct zb_worker *w)
{
    struct zb_session *s = w->s;

    if (!zb_has_links(s->plan) || !zb_abort_is_raised(&s->ab)) {
        return;
    }
    for (enum zb_status st = ZB_OK; st == ZB_OK;) {
        uint32_t seen = zb_signal_seq(&s->cut);

        if (atomic_load(&s->has_cut_links)) {
            return;
        }
        st = zb_signal_wait(&s->cut, seen, NULL);
    }
}

static void leave(struct zb_worker *w)
{
    struct zb_event *events[] = {w->from_side, w->to_side, w->opt_done,
                                 w->sums_done, w->grads_done};

    await_cut(w);
    end_copies(w);
    zb_worker_end_groups(w);
    if (w->ring != NULL) {
        w->ops->stream_free(w->ring);
    }
    if (w->side != NULL) {
        w->ops->stream_free(w->side);
    }
    if (w->stream != NULL) {
        w->ops->stream_free(w->stream);
    }
    meet_to_leave(w);
    zb_worker_leave_groups(w);
    leave_channels(w);
    for (size_t i = 0; i < ZB_COUNT_OF(events); i++) {
        if (events[i] != NULL) {
            w->ops->event_free(events[i]);
        }
    }
    if (w->arena != NULL) {
        w->ops->mem_free(w->dev, w->arena);
    }
    free_host_state(w);
    meet_to_leave(w);
    if (w->dev != NULL) {
        w->ops->device_close(w->dev);
    }
}

/* ---- obeying ------------------------------------------------------------- */

static void report(struct zb_worker *w, enum zb_status st)
{
    if (w->dev != NULL) {
        w->peak_bytes = w->ops->mem_peak_bytes(w->dev);
    }
    /* ZB_EABORT too: from a caller's function it may be the first error. */
    if (st != ZB_OK) {
        zb_abort_raise(&w->s->ab, st, zb_error_text());
    }
    atomic_fetch_add(&w->s->n_done, 1);
    zb_signal_bump(&w->s->done);
}

void zb_worker_main(void *arg)
{
    struct zb_worker *w = arg;
    struct zb_session *s = w->s;
    uint32_t seen = 0;
    enum zb_status st = setup(w);

    if (st != ZB_OK && st != ZB_EABORT) {
        zb_fail_in(st, "device %d, stage %d, set-up", w->device, w->stage);
    }
    report(w, st);
    while (st == ZB_OK) {
        st = zb_signal_wait(&s->go, seen, &s->ab);
        if (st != ZB_OK || s->command == NULL) {
            break;
        }
        seen++;
        st = zb_worker_validate(w);
        st = st == ZB_OK ? s->command(w, s->arg)
                         : zb_fail_in(st, "device %d, stage %d, validation",
                                      w->device, w->stage);
        report(w, st);
    }
    leave(w);
}
