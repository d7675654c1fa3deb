/* SPDX-License-Identifier: MIT
 *
 * The groups of a grid of devices: who does which collectives with whom. */
#include "config.h"
#include "run/run_int.h"

#include <math.h>

#include "zb/mem.h"

/* Most distinct numbers of copies that parameters of a model may have, beside
 * 1 and all. */
#define MAX_COPY_SIZES 8

enum kind { TP, SP, REDUCE, GATHER, COPIES, N_KINDS = COPIES + MAX_COPY_SIZES };

/* All groups of one kind: of `size` members each. */
struct axis {
    int size; /* 1: there are no groups */
    int n_groups;
    struct zb_coll_group **group;
    char **name;
};

struct zb_groups {
    struct axis axis[N_KINDS];
    int n_copy_sizes;
    struct zb_coll_group **all; /* [n_all] of all axes */
    int n_all;
    size_t cap;
};

/* ---- who is where ---------------------------------------------------------- */

static int shard_of(const struct zb_run_plan *p, const struct zb_column *c)
{
    return c->dp * p->n_sp + c->sp;
}

/* Which group of a kind a device belongs to; its rank there in *rank_out. */
static int group_of(const struct zb_run_plan *p, enum kind kind, int size,
                    int stage, const struct zb_column *c, int *rank_out)
{
    switch (kind) {
    case TP:
        *rank_out = c->tp;
        return stage * p->n_shards + shard_of(p, c);
    case SP:
        *rank_out = c->sp;
        return (stage * p->n_dp + c->dp) * p->n_tp + c->tp;
    case REDUCE:
    case GATHER:
        *rank_out = shard_of(p, c);
        return stage * p->n_tp + c->tp;
    default:
        *rank_out = c->tp % size;
        return (stage * p->n_shards + shard_of(p, c)) * (p->n_tp / size) +
               c->tp / size;
    }
}

/* ---- making them ------------------------------------------------------------ */

static const char *kind_str(enum kind kind)
{
    static const char *const name[] = {
        [TP] = "tensor-parallel group",
        [SP] = "sequence-parallel group",
        [REDUCE] = "sum of gradients",
        [GATHER] = "gathering of parameters",
        [COPIES] = "sum over copies",
    };
    return name[kind < COPIES ? kind : COPIES];
}

static int max_buckets(const struct zb_run_plan *p)
{
    int most = 1;

    for (int s = 0; s < p->n_stages; s++) {
        int n = p->layout[s].buckets.n;

        most = n > most ? n : most;
    }
    return most;
}

static enum zb_status make_group(struct zb_session *s, enum kind kind,
                                 struct axis *a, int i)
{
    const struct zb_run_plan *p = s->plan;
    int is_side = kind == REDUCE || kind == GATHER;
    struct zb_coll_group_opts o = {
        .ops = s->be->ops,
        .n_members = a->size,
        .n_under_way = is_side ? max_buckets(p) : 1,
        .linked = p->has_group_links ? s->be : NULL,
        .latency_ns = is_side ? llround(p->o.sim_link_latency_ns) : 0,
        .ns_per_byte = is_side ? p->o.sim_link_ns_per_byte : 0,
    };

    a->name[i] = zb_format("%s %d of stage %d", kind_str(kind),
                           i % (a->n_groups / p->n_stages),
                           i / (a->n_groups / p->n_stages));
    if (a->name[i] == NULL) {
        return ZB_ENOMEM;
    }
    o.name = a->name[i];
    ZB_TRY(zb_grow(&s->groups->all, (size_t)s->groups->n_all, &s->groups->cap,
                   sizeof(struct zb_coll_group *)));
    ZB_TRY(zb_coll_group_new(&o, &s->ab, &a->group[i]));
    s->groups->all[s->groups->n_all++] = a->group[i];
    return ZB_OK;
}

static enum zb_status make_axis(struct zb_session *s, enum kind kind, int size)
{
    struct axis *a = &s->groups->axis[kind];

    a->size = size;
    if (size == 1) {
        return ZB_OK;
    }
    a->n_groups = s->plan->n_devices / size;
    a->group = zb_alloc_array((size_t)a->n_groups, sizeof(*a->group));
    a->name = zb_alloc_array((size_t)a->n_groups, sizeof(*a->name));
    if (a->group == NULL || a->name == NULL) {
        return ZB_ENOMEM;
    }
    for (int i = 0; i < a->n_groups; i++) {
        ZB_TRY(make_group(s, kind, a, i));
    }
    return ZB_OK;
}

static int find_copy_size(const struct zb_groups *g, int size)
{
    for (int i = 0; i < g->n_copy_sizes; i++) {
        if (g->axis[COPIES + i].size == size) {
            return i;
        }
    }
    return -1;
}

/* The tp group itself adds over all of its ranks. */
static enum zb_status make_copy_size(struct zb_session *s, int size,
                                     const char *param)
{
    struct zb_groups *g = s->groups;

    if (size == 1 || size == s->plan->n_tp || find_copy_size(g, size) >= 0) {
        return ZB_OK;
    }
    if (g->n_copy_sizes == MAX_COPY_SIZES) {
        return zb_fail(ZB_EUNSUPPORTED,
                       "%s: parameters with more than %d different "
                       "numbers of copies",
                       param, MAX_COPY_SIZES);
    }
    ZB_TRY(make_axis(s, (enum kind)(COPIES + g->n_copy_sizes), size));
    g->n_copy_sizes++;
    return ZB_OK;
}

static enum zb_status make_copies(struct zb_session *s)
{
    for (int i = 0; i < s->plan->n_params; i++) {
        struct zb_param_info info = zb_graph_param(s->plan->g, i);
        struct zb_copies part[ZB_SPLIT_MAX];
        int n = zb_graph_param_copies(s->plan->g, i, part);

        for (int k = 0; (n > 1 || info.is_partial) && k < n; k++) {
            ZB_TRY(make_copy_size(s, part[k].n_copies, info.name));
        }
    }
    return ZB_OK;
}

enum zb_status zb_groups_new(struct zb_session *s)
{
    const struct zb_run_plan *p = s->plan;

    s->groups = zb_alloc(sizeof(*s->groups));
    if (s->groups == NULL) {
        return ZB_ENOMEM;
    }
    ZB_TRY(make_axis(s, TP, p->n_tp));
    ZB_TRY(make_axis(s, SP, p->n_sp));
    ZB_TRY(make_axis(s, REDUCE, p->n_shards));
    ZB_TRY(make_axis(s, GATHER, p->n_shards));
    return make_copies(s);
}

void zb_groups_free(struct zb_groups *g)
{
    for (int k = 0; g != NULL && k < N_KINDS; k++) {
        struct axis *a = &g->axis[k];

        for (int i = 0; i < a->n_groups; i++) {
            if (a->group != NULL) {
                zb_coll_group_free(a->group[i]);
            }
            if (a->name != NULL) {
                zb_free(a->name[i]);
            }
        }
        zb_free(a->group);
        zb_free(a->name);
    }
    if (g != NULL) {
        zb_free(g->all);
    }
    zb_free(g);
}

struct zb_coll_group *const *zb_groups_all(const struct zb_session *s,
                                           int *n_out)
{
    *n_out = s->groups->n_all;
    return s->groups->all;
}

/* ---- who reaches whom ---------------------------------------------------- */

/* Whether two devices are in one group of a kind. */
static int are_together(const struct zb_session *s, enum kind kind, int a,
                        int b)
{
    const struct zb_run_plan *p = s->plan;
    int size = s->groups->axis[kind].size, n = p->n_columns, rank;
    struct zb_column ca = zb_column_of(p, a % n), cb = zb_column_of(p, b % n);

    return size > 1 && a / n == b / n &&
           group_of(p, kind, size, a / n, &ca, &rank) ==
               group_of(p, kind, size, b / n, &cb, &rank);
}

enum zb_status zb_groups_need_peers(struct zb_session *s)
{
    for (int k = 0; !s->plan->has_group_links && k < N_KINDS; k++) {
        for (int a = 0; a < s->plan->n_devices; a++) {
            for (int b = 0; b < a; b++) {
                if (are_together(s, (enum kind)k, a, b)) {
                    ZB_TRY(zb_peers_need(&s->peers, a, b));
                }
            }
        }
    }
    return ZB_OK;
}

/* Any two members, whether or not the worker is one of the two: all of a group
 * do the same. */
static int is_apart(const struct zb_worker *w, enum kind kind)
{
    const struct zb_session *s = w->s;
    int n = s->plan->n_devices;

    for (int a = 0; !s->plan->has_group_links && a < n; a++) {
        for (int b = 0; b < a && are_together(s, kind, a, w->device); b++) {
            if (are_together(s, kind, a, b) &&
                zb_reach_of(&s->peers, a, b) == ZB_REACH_NONE) {
                return 1;
            }
        }
    }
    return 0;
}

struct zb_apart zb_worker_apart(const struct zb_worker *w)
{
    struct zb_apart apart = {.tp = is_apart(w, TP),
                             .sp = is_apart(w, SP),
                             .reduce = is_apart(w, REDUCE),
                             .gather = is_apart(w, GATHER)};

    for (int i = 0; i < w->s->groups->n_copy_sizes; i++) {
        apart.copies |= is_apart(w, (enum kind)(COPIES + i));
    }
    return apart;
}

/* ---- a worker's view -------------------------------------------------------- */

static enum zb_status join(struct zb_worker *w, enum kind kind,
                           struct zb_member *m)
{
    const struct zb_run_plan *p = w->s->plan;
    const struct axis *a = &w->s->groups->axis[kind];
    struct zb_column c = {w->dp, w->sp, w->tp};
    int i, rank;

    if (a->size <= 1) {
        return ZB_OK;
    }
    i = group_of(p, kind, a->size, w->stage, &c, &rank);
    ZB_TRY(zb_coll_join(a->group[i], rank, w->dev));
    if (is_apart(w, kind)) {
        struct zb_coll_mirror mirror =
            kind == TP   ? zb_worker_room(w, ZB_AXIS_TP)
            : kind == SP ? zb_worker_room(w, ZB_AXIS_SP)
                         : zb_worker_arena_mirror(w);

        zb_coll_set_mirror(a->group[i], rank, &mirror);
    }
    *m = (struct zb_member){a->group[i], rank};
    return ZB_OK;
}

enum zb_status zb_worker_join_groups(struct zb_worker *w)
{
    int n = w->s->groups->n_copy_sizes;

    w->copies = zb_alloc_array((size_t)n, sizeof(*w->copies));
    if (w->copies == NULL) {
        return ZB_ENOMEM;
    }
    ZB_TRY(join(w, TP, &w->tp_group));
    ZB_TRY(join(w, SP, &w->sp_group));
    ZB_TRY(join(w, REDUCE, &w->reduce));
    ZB_TRY(join(w, GATHER, &w->gather));
    for (int i = 0; i < n; i++) {
        ZB_TRY(join(w, (enum kind)(COPIES + i), &w->copies[i]));
    }
    return ZB_OK;
}

static void leave(struct zb_member *m)
{
    if (m->group != NULL) {
        zb_coll_leave(m->group, m->rank);
        m->group = NULL;
    }
}

void zb_worker_leave_groups(struct zb_worker *w)
{
    for (int i = 0; w->copies != NULL && i < w->s->groups->n_copy_sizes; i++) {
        leave(&w->copies[i]);
    }
    zb_free(w->copies);
    w->copies = NULL;
    leave(&w->gather);
    leave(&w->reduce);
    leave(&w->sp_group);
    leave(&w->tp_group);
}

/* ---- links ------------------------------------------------------------------ */

/* Side: groups whose work is on that stream. */
static enum zb_status link_group(struct zb_worker *w, const struct zb_member *m,
                                 int is_side, enum zb_group_step step)
{
    const struct zb_layout *l = &w->s->plan->layout[w->stage];
    const struct zb_coll_linked with = {
        .stream = is_side ? w->side : w->stream,
        .ring = w->ring,
        .room = w->arena + (is_side ? l->side_room : l->room),
        .room_bytes = is_side ? l->room_bytes.side_room : l->room_bytes.room,
    };
    enum zb_status st;

    if (m->group == NULL) {
        return ZB_OK;
    }
    zb_wait_begin(w, zb_coll_group_name(m->group));
    st = step == ZB_GROUP_OPEN ? zb_coll_open_link(m->group, m->rank, &with)
         : step == ZB_GROUP_JOIN
             ? zb_coll_join_link(m->group, m->rank)
             : zb_coll_warm_up_link(m->group, m->rank);
    zb_wait_end(w);
    return st;
}

enum zb_status zb_worker_link_groups(struct zb_worker *w,
                                     enum zb_group_step step)
{
    ZB_TRY(link_group(w, &w->tp_group, 0, step));
    ZB_TRY(link_group(w, &w->sp_group, 0, step));
    for (int i = 0; i < w->s->groups->n_copy_sizes; i++) {
        ZB_TRY(link_group(w, &w->copies[i], 0, step));
    }
    ZB_TRY(link_group(w, &w->reduce, 1, step));
    return link_group(w, &w->gather, 1, step);
}

static void end_group(const struct zb_member *m)
{
    if (m->group != NULL) {
        zb_coll_close_link(m->group, m->rank);
    }
}

void zb_worker_end_groups(struct zb_worker *w)
{
    end_group(&w->tp_group);
    end_group(&w->sp_group);
    for (int i = 0; w->copies != NULL && i < w->s->groups->n_copy_sizes; i++) {
        end_group(&w->copies[i]);
    }
    end_group(&w->reduce);
    end_group(&w->gather);
}

struct zb_member zb_worker_copies(const struct zb_worker *w, int n_sum)
{
    return n_sum == w->s->plan->n_tp
               ? w->tp_group
               : w->copies[find_copy_size(w->s->groups, n_sum)];
}

/* ---- what passes call --------------------------------------------------------- */

static struct zb_member member_of(const struct zb_worker *w, enum zb_axis axis)
{
    return axis == ZB_AXIS_TP ? w->tp_group : w->sp_group;
}

static enum zb_status coll_run(void *arg, enum zb_axis axis,
                               struct zb_stream *stream,
                               const struct zb_coll *c)
{
    struct zb_worker *w = arg;
    struct zb_member m = member_of(w, axis);
    enum zb_status st;

    zb_wait_begin(w, zb_coll_group_name(m.group));
    st = zb_coll_run(m.group, m.rank, stream, c);
    zb_wait_end(w);
    return st;
}

static enum zb_status ring_begin(void *arg, enum zb_axis axis,
                                 struct zb_stream *stream, const void *src,
                                 size_t bytes, const char *label)
{
    struct zb_member m = member_of(arg, axis);

    return zb_ring_begin(m.group, m.rank, stream, src, bytes, label);
}

static enum zb_status ring_step(void *arg, enum zb_axis axis,
                                struct zb_stream *stream, int step,
                                const void **block_out)
{
    struct zb_worker *w = arg;
    struct zb_member m = member_of(w, axis);
    enum zb_status st;

    zb_wait_begin(w, zb_coll_group_name(m.group));
    st = zb_ring_step(m.group, m.rank, stream, step, block_out);
    zb_wait_end(w);
    return st;
}

static enum zb_status ring_end(void *arg, enum zb_axis axis,
                               struct zb_stream *stream)
{
    struct zb_worker *w = arg;
    struct zb_member m = member_of(w, axis);
    enum zb_status st;

    zb_wait_begin(w, zb_coll_group_name(m.group));
    st = zb_ring_end(m.group, m.rank, stream);
    zb_wait_end(w);
    return st;
}

const struct zb_coll_ops zb_worker_coll_ops = {
    .run = coll_run,
    .ring_begin = ring_begin,
    .ring_step = ring_step,
    .ring_end = ring_end,
};
