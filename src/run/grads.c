/* SPDX-License-Identifier: MIT
 *
 * Gradients of a worker: cleared, the uses of a parameter added, and summed
 * over the ranks that have parts of the batch. */
#include "config.h"
#include "run/run_int.h"

struct zb_worker *zb_worker_at(const struct zb_worker *w, int stage)
{
    return &w->s->worker[zb_device_of(w->s->plan, stage, w->column)];
}

static struct zb_buckets *buckets(const struct zb_worker *w)
{
    return &w->s->plan->layout[w->stage].buckets;
}

static zb_real *grad_of(const struct zb_worker *w, const struct zb_bucket *b)
{
    return (zb_real *)(w->arena + b->grad);
}

/* ---- two streams --------------------------------------------------------- */

enum zb_status zb_worker_to_side(struct zb_worker *w)
{
    ZB_TRY(w->ops->event_record(w->to_side, w->stream));
    return w->ops->stream_wait(w->side, w->to_side);
}

enum zb_status zb_worker_from_side(struct zb_worker *w)
{
    ZB_TRY(w->ops->event_record(w->from_side, w->side));
    return w->ops->stream_wait(w->stream, w->from_side);
}

/* ---- clearing -------------------------------------------------------------- */

enum zb_status zb_worker_zero_grad(struct zb_worker *w)
{
    const struct zb_run_plan *p = w->s->plan;

    w->ops->stream_mark(w->stream, "zero gradients");
    /* Another stage may still read a shared gradient for its update. */
    for (int s = 0; s < p->n_stages && p->has_shared; s++) {
        ZB_TRY(w->ops->stream_wait(w->stream, zb_worker_at(w, s)->opt_done));
    }
    for (int i = 0; i < buckets(w)->n; i++) {
        const struct zb_bucket *b = &buckets(w)->bucket[i];

        if (b->owner == w->stage) {
            ZB_TRY(zb_worker_fill(w, grad_of(w, b), b->n, 0, "gradients"));
        }
    }
    for (int u = 0; u < p->n_uses; u++) {
        struct zb_param_info info = zb_graph_param(p->g, p->use_param[u]);

        if (w->grad[u] != NULL && u != info.use_ids[0]) {
            ZB_TRY(zb_worker_fill(w, w->grad[u],
                                  zb_param_elems(p, p->use_param[u]), 0,
                                  info.name));
        }
    }
    return ZB_OK;
}

/* ---- uses of one parameter --------------------------------------------------- */

const zb_real *zb_worker_use_grad(struct zb_worker *w, int use)
{
    for (int s = 0; s < w->s->plan->n_stages; s++) {
        const struct zb_worker *holder = zb_worker_at(w, s);

        if (holder->grad[use] != NULL) {
            return zb_seen_grad(w, holder, holder->grad[use]);
        }
    }
    return NULL;
}

/* y += x */
static enum zb_status add_to(struct zb_worker *w, zb_real *y, const zb_real *x,
                             int64_t n, const char *label)
{
    struct zb_k_add k = {.n = n, .a = y, .b = x, .y = y};
    struct zb_launch l = {.kernel = ZB_K_add, .label = label, .params = &k};

    zb_launch_reals(&l, y, n, ZB_READ_WRITE);
    zb_launch_reals(&l, x, n, ZB_READ);
    return w->ops->launch(w->stream, &l);
}

/* The first use's gradient becomes the sum, uses added in model order. */
static enum zb_status sum_uses(struct zb_worker *w, int param)
{
    struct zb_param_info info = zb_graph_param(w->s->plan->g, param);
    int64_t n = zb_param_elems(w->s->plan, param);

    for (int u = 1; u < info.n_uses; u++) {
        ZB_TRY(add_to(w, w->grad[info.use_ids[0]],
                      zb_worker_use_grad(w, info.use_ids[u]), n, info.name));
    }
    return ZB_OK;
}

/* What was added must not be added again. */
static enum zb_status clear_later_uses(struct zb_worker *w, int param)
{
    struct zb_param_info info = zb_graph_param(w->s->plan->g, param);
    int64_t n = zb_param_elems(w->s->plan, param);

    for (int u = 1; u < info.n_uses; u++) {
        zb_real *g = w->grad[info.use_ids[u]];

        if (g != NULL) {
            ZB_TRY(zb_worker_fill(w, g, n, 0, info.name));
        }
    }
    return ZB_OK;
}

static int is_trained(const struct zb_run_plan *p, int param)
{
    return zb_graph_param(p->g, param).has_gradient;
}

/* Order later work of this stream after an event of every stage. */
static enum zb_status wait_for_all(struct zb_worker *w,
                                   struct zb_event *(*event)(
                                       const struct zb_worker *))
{
    for (int s = 0; s < w->s->plan->n_stages; s++) {
        ZB_TRY(w->ops->stream_wait(w->stream, event(zb_worker_at(w, s))));
    }
    return ZB_OK;
}

static struct zb_event *grads_done(const struct zb_worker *w)
{
    return w->grads_done;
}

static struct zb_event *sums_done(const struct zb_worker *w)
{
    return w->sums_done;
}

enum zb_status zb_worker_sum_uses(struct zb_worker *w)
{
    const struct zb_run_plan *p = w->s->plan;

    w->ops->stream_mark(w->stream, "sum gradients");
    if (p->has_shared) {
        ZB_TRY(zb_worker_show_grads(w, 0));
        ZB_TRY(w->ops->event_record(w->grads_done, w->stream));
        ZB_TRY(zb_group_meet(w->s->group));
        ZB_TRY(wait_for_all(w, grads_done));
    }
    for (int i = 0; i < w->n_mine; i++) {
        if (is_trained(p, w->mine[i]) && p->owner[w->mine[i]] == w->stage) {
            ZB_TRY(sum_uses(w, w->mine[i]));
        }
    }
    if (p->has_shared) {
        ZB_TRY(zb_worker_show_grads(w, 1));
        ZB_TRY(w->ops->event_record(w->sums_done, w->stream));
        ZB_TRY(zb_group_meet(w->s->group));
        ZB_TRY(wait_for_all(w, sums_done));
    }
    for (int i = 0; i < w->n_mine; i++) {
        if (is_trained(p, w->mine[i])) {
            ZB_TRY(clear_later_uses(w, w->mine[i]));
        }
    }
    return ZB_OK;
}

/* ---- ranks ------------------------------------------------------------------- */

/* n elements of which the copies in a tp group each have a part. */
static enum zb_status sum_over(struct zb_worker *w, int n_copies, zb_real *grad,
                               int64_t n)
{
    struct zb_member m = zb_worker_copies(w, n_copies);
    struct zb_coll c = {
        .kind = ZB_COLL_ALL_REDUCE,
        .dtype = ZB_DTYPE_REAL,
        .outer = 1,
        .inner = n,
        .src = grad,
        .dst = grad,
        .label = "gradients of copies",
    };
    enum zb_status st;

    zb_wait_begin(w, zb_coll_group_name(m.group));
    st = zb_coll_run(m.group, m.rank, w->stream, &c);
    zb_wait_end(w);
    return st;
}

/* Of a parameter of which some parts have copies. */
static enum zb_status sum_parts(struct zb_worker *w, int param, zb_real *grad)
{
    struct zb_copies part[ZB_SPLIT_MAX];
    int n = zb_graph_param_copies(w->s->plan->g, param, part);

    for (int i = 0; i < n; i++) {
        if (part[i].n_copies > 1) {
            ZB_TRY(
                sum_over(w, part[i].n_copies, grad + part[i].first, part[i].n));
        }
    }
    return ZB_OK;
}

static enum zb_status sum_copies(struct zb_worker *w, const struct zb_bucket *b)
{
    if (b->n_sum > 1) {
        return sum_over(w, b->n_sum, grad_of(w, b), b->n);
    }
    for (int i = 0; b->n_sum == ZB_SUM_PARTS && i < b->n_params; i++) {
        ZB_TRY(sum_parts(w, b->param[i], grad_of(w, b) + b->first[i]));
    }
    return ZB_OK;
}

static enum zb_status start_reduce(struct zb_worker *w,
                                   const struct zb_bucket *b)
{
    zb_real *grad = grad_of(w, b);
    struct zb_coll c = {
        .kind = ZB_COLL_REDUCE_SCATTER,
        .dtype = ZB_DTYPE_REAL,
        .outer = 1,
        .inner = b->shard,
        .src = grad,
        .dst = grad + w->reduce.rank * b->shard,
        .label = "gradients",
    };

    if (b->owner != w->stage) {
        return ZB_OK;
    }
    ZB_TRY(sum_copies(w, b));
    if (w->reduce.group == NULL) {
        return ZB_OK;
    }
    /* The side stream, which does the work, waits for each bucket by itself:
     * were it to wait here, what is ready would come behind what is not yet,
     * wherever the host is ahead of the device. */
    return zb_coll_start(w->reduce.group, w->reduce.rank, w->stream, &c);
}

enum zb_status zb_worker_reduce_chunk(struct zb_worker *w, int chunk,
                                      int launch)
{
    const struct zb_buckets *all = buckets(w);

    for (int i = 0; i < all->n; i++) {
        const struct zb_bucket *b = &all->bucket[i];

        if (b->chunk == chunk &&
            (launch == ZB_ALL_LAUNCHES || b->done == launch)) {
            ZB_TRY(start_reduce(w, b));
        }
    }
    return ZB_OK;
}

/* Parameters are left alone until the first chunk has asked for its own: what
 * comes with those on the side stream would have to be waited for as well. */
enum zb_status zb_worker_progress(struct zb_worker *w)
{
    int gathers = w->is_gathering && w->n_gathered > 0;
    const struct zb_member *under_way[] = {gathers ? &w->gather : NULL,
                                           &w->reduce};

    for (size_t i = 0; i < ZB_COUNT_OF(under_way); i++) {
        const struct zb_member *m = under_way[i];

        if (m != NULL && m->group != NULL) {
            ZB_TRY(zb_coll_work(m->group, m->rank, w->side,
                                ZB_COLL_WHAT_IS_READY, NULL));
        }
    }
    return ZB_OK;
}

/* Without sharding every rank needs all of the sums. */
static enum zb_status gather_grads(struct zb_worker *w)
{
    const struct zb_buckets *all = buckets(w);

    for (int i = 0; i < all->n; i++) {
        const struct zb_bucket *b = &all->bucket[i];
        struct zb_coll c = {
            .kind = ZB_COLL_ALL_GATHER,
            .dtype = ZB_DTYPE_REAL,
            .outer = 1,
            .inner = b->shard,
            .label = "gradients",
        };

        if (b->owner == w->stage) {
            c.dst = grad_of(w, b);
            c.src = grad_of(w, b) + w->reduce.rank * b->shard;
            ZB_TRY(zb_coll_start(w->reduce.group, w->reduce.rank, w->side,
                                 &c));
        }
    }
    return zb_coll_finish(w->reduce.group, w->reduce.rank, w->side);
}

enum zb_status zb_worker_reduce_grads(struct zb_worker *w)
{
    const struct zb_run_plan *p = w->s->plan;
    enum zb_status st;

    w->ops->stream_mark(w->stream, "reduce gradients");
    for (int k = w->reduces_early ? -1 : p->n_chunk - 1; k >= -1; k--) {
        ZB_TRY(zb_worker_reduce_chunk(w, k, ZB_ALL_LAUNCHES));
    }
    if (w->reduce.group == NULL) {
        return ZB_OK;
    }
    zb_wait_begin(w, zb_coll_group_name(w->reduce.group));
    /* All have read what they need: it may be overwritten. */
    st = zb_coll_finish(w->reduce.group, w->reduce.rank, w->side);
    if (st == ZB_OK && p->o.zero_stage == 0) {
        st = gather_grads(w);
    }
    zb_wait_end(w);
    ZB_TRY(st);
    ZB_TRY(zb_worker_from_side(w));
    if (p->has_shared) { /* others update with gradients of this stage */
        ZB_TRY(zb_worker_show_grads(w, 1));
        ZB_TRY(w->ops->event_record(w->sums_done, w->stream));
        ZB_TRY(zb_group_meet(w->s->group));
        ZB_TRY(wait_for_all(w, sums_done));
    }
    return ZB_OK;
}
