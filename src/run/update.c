/* SPDX-License-Identifier: MIT
 *
 * The end of a step: the norm, the update, and parameters that other ranks
 * updated. */
#include "config.h"
#include "run/run_int.h"

#include <math.h>

#include "zb/mem.h"

/* ---- norm and update ----------------------------------------------------- */

enum zb_status zb_sum_squares(const struct zb_backend_ops *ops,
                              struct zb_stream *stream, const zb_real *x,
                              int64_t n, double *y, const char *label)
{
    struct zb_k_sumsq_f64 k = {.n = n, .x = x, .y = y};
    struct zb_launch l = {
        .kernel = ZB_K_sumsq_f64, .label = label, .params = &k};

    zb_launch_reals(&l, x, n, ZB_READ);
    l.access[l.n_access++] = (struct zb_access){y, sizeof(*y), ZB_WRITE};
    return ops->launch(stream, &l);
}

static const struct zb_buckets *buckets(const struct zb_worker *w)
{
    return &w->s->plan->layout[w->stage].buckets;
}

/* This rank's shard of a bucket: elements [*begin_out, *end_out). */
static void my_shard(const struct zb_worker *w, const struct zb_bucket *b,
                     int64_t *begin_out, int64_t *end_out)
{
    *begin_out = w->reduce.rank * b->shard;
    *end_out = *begin_out + b->shard;
}

/* ---- norm ------------------------------------------------------------------- */

int zb_most_norms(const struct zb_run_plan *p)
{
    struct zb_copies part[ZB_SPLIT_MAX];
    int n = 0;

    for (int i = 0; i < p->n_params; i++) {
        n += zb_graph_param_copies(p->g, i, part);
    }
    return n;
}

/* Elements [begin, end) of a parameter's shard: of the ranks that have the same
 * of them one enters them. */
static void list_norms_of(struct zb_worker *w, int param, int64_t begin,
                          int64_t end)
{
    struct zb_copies part[ZB_SPLIT_MAX];
    int n = zb_graph_param_copies(w->s->plan->g, param, part);

    for (int i = 0; i < n; i++) {
        int64_t from = part[i].first > begin ? part[i].first : begin;
        int64_t to = part[i].first + part[i].n;

        to = to < end ? to : end;
        if (from < to && w->tp % part[i].n_copies == 0) {
            w->norm[w->n_norms++] = (struct zb_norm_part){
                .param = param, .first = from, .n = to - from};
        }
    }
}

/* What this rank enters: its part of what its stage owns. */
enum zb_status zb_worker_list_norms(struct zb_worker *w)
{
    const struct zb_run_plan *p = w->s->plan;
    int64_t begin, end;

    w->norm = zb_alloc_array((size_t)zb_most_norms(p), sizeof(*w->norm));
    if (w->norm == NULL) {
        return ZB_ENOMEM;
    }
    for (int i = 0; i < buckets(w)->n; i++) {
        const struct zb_bucket *b = &buckets(w)->bucket[i];

        my_shard(w, b, &begin, &end);
        for (int j = 0; b->owner == w->stage && j < b->n_params; j++) {
            int64_t first, n = zb_bucket_part(p, b, j, begin, end, &first);

            list_norms_of(w, b->param[j], first, first + n);
        }
    }
    return ZB_OK;
}

static enum zb_status enqueue_norms(struct zb_worker *w, double *dev)
{
    for (int i = 0; i < w->n_norms; i++) {
        const struct zb_norm_part *t = &w->norm[i];
        struct zb_param_info info = zb_graph_param(w->s->plan->g, t->param);

        ZB_TRY(zb_sum_squares(w->ops, w->stream,
                              w->grad[info.use_ids[0]] + t->first, t->n,
                              dev + i, info.name));
    }
    return ZB_OK;
}

/* Entries of a table are [parameter][column]; those that nobody enters stay 0,
 * as they were made. */
static void fill_table(struct zb_worker *w)
{
    double *table = w->s->norms.table[w->turn % 2];

    for (int i = 0; i < w->n_norms; i++) {
        double *entry =
            table + w->norm[i].param * w->s->plan->n_columns + w->column;
        int is_more = i > 0 && w->norm[i].param == w->norm[i - 1].param;

        *entry = (is_more ? *entry : 0) + w->sumsq_host[i];
    }
}

static enum zb_status publish_norms(struct zb_worker *w)
{
    struct zb_norms *norms = &w->s->norms;
    double *dev =
        (double *)(w->arena + w->s->plan->layout[w->stage].sumsq);
    size_t bytes = (size_t)w->n_norms * sizeof(double);

    ZB_TRY(enqueue_norms(w, dev));
    if (bytes > 0) {
        ZB_TRY(w->ops->copy_out(w->stream, w->sumsq_host, dev, bytes,
                                "squared norms"));
    }
    ZB_TRY(w->ops->stream_sync(w->stream));
    ZB_TRY(w->ops->host_access(w->dev, w->sumsq_host, bytes, ZB_READ));
    w->turn++;
    fill_table(w);
    atomic_fetch_add_explicit(&norms->n_published, 1, memory_order_release);
    zb_signal_bump(&norms->moved);
    return ZB_OK;
}

static enum zb_status await_norms(struct zb_worker *w)
{
    struct zb_norms *norms = &w->s->norms;
    uint64_t all = w->turn * (uint64_t)w->s->plan->n_devices;
    enum zb_status st = ZB_OK;

    zb_wait_begin(w, "norms of all gradients");
    while (st == ZB_OK) {
        uint32_t seen = zb_signal_seq(&norms->moved);

        if (atomic_load_explicit(&norms->n_published, memory_order_acquire) >=
            all) {
            break;
        }
        st = zb_signal_wait(&norms->moved, seen, &w->s->ab);
    }
    zb_wait_end(w);
    return st;
}

/* Of the gradients as the loss scale made them. */
static double total_norm(const struct zb_session *s, uint64_t turn)
{
    const struct zb_run_plan *p = s->plan;
    const double *table = s->norms.table[turn % 2];
    double sum = 0;

    for (int i = 0; i < p->n_params; i++) {
        const double *entry = table + p->name_order[i] * p->n_columns;

        for (int c = 0; c < p->n_columns; c++) {
            sum += entry[c]; /* 0 without a gradient */
        }
    }
    return sqrt(sum);
}

struct zb_verdict zb_judge(const struct zb_session *s, uint64_t turn)
{
    double loss_scale = s->norms.loss_scale[turn % 2];
    struct zb_verdict v = {.norm = total_norm(s, turn) / loss_scale};

    v.clip = zb_clip_scale(v.norm, s->plan->o.optim.max_norm);
    v.scale = v.clip / loss_scale;
    v.is_overflow = zb_scales_loss(s->plan) && !isfinite(v.norm);
    return v;
}

/* Whether this worker's own part is enough to know that going ahead is wrong:
 * the norm can only be larger. */
static int is_hopeless(const struct zb_worker *w)
{
    double sum = 0;

    for (int i = 0; i < w->n_norms; i++) {
        sum += w->sumsq_host[i];
    }
    return !isfinite(sum) ||
           zb_clip_scale(sqrt(sum) / w->s->norms.loss_scale[w->turn % 2],
                         w->s->plan->o.optim.max_norm) < 1;
}

/* ---- update ------------------------------------------------------------------- */

static zb_real *moment(const struct zb_worker *w, size_t offset, int64_t at)
{
    return offset == ZB_NO_OFFSET ? NULL
                                  : (zb_real *)(w->arena + offset) + at;
}

/* Elements [begin, end) of a bucket; the moments begin with `begin`. */
static enum zb_status update_bucket(struct zb_worker *w,
                                    const struct zb_bucket *b, int64_t begin,
                                    int64_t end, double lr, double scale)
{
    const struct zb_run_plan *p = w->s->plan;

    for (int j = 0; j < b->n_params; j++) {
        int param = b->param[j];
        struct zb_param_info info = zb_graph_param(p->g, param);
        int64_t first, n = zb_bucket_part(p, b, j, begin, end, &first);
        int64_t at = b->first[j] + first - begin;
        struct zb_optim_param op = {
            .name = info.name,
            .n = n,
            .no_decay = info.opts.no_decay,
            .grad = zb_worker_use_grad(w, info.use_ids[0]) + first,
            .param = w->value[param],
            .m = moment(w, b->m, at),
            .v = moment(w, b->v, at),
            .dtype = p->storage,
        };
        void *value = zb_stored_at(p, w->value[param], first);

        if (b->master == ZB_NO_OFFSET) {
            op.param = value;
        } else {
            op.param = moment(w, b->master, at);
            op.stored = value;
        }

        if (n > 0) {
            ZB_TRY(zb_optim_step(&p->o.optim, w->ops, w->stream, &op, w->t, lr,
                                 scale));
        }
    }
    return ZB_OK;
}

/* The elements of a bucket that this rank updates. */
void zb_worker_part(const struct zb_worker *w, const struct zb_bucket *b,
                    int64_t *begin_out, int64_t *end_out)
{
    if (w->s->plan->o.zero_stage > 0) {
        my_shard(w, b, begin_out, end_out);
    } else {
        *begin_out = 0;
        *end_out = b->n;
    }
}

static enum zb_status update_all(struct zb_worker *w, double lr, double scale)
{
    for (int i = 0; i < buckets(w)->n; i++) {
        const struct zb_bucket *b = &buckets(w)->bucket[i];
        int64_t begin, end;

        zb_worker_part(w, b, &begin, &end);
        ZB_TRY(update_bucket(w, b, begin, end, lr, scale));
    }
    return ZB_OK;
}

/* ---- undoing ---------------------------------------------------------------------- */

int zb_scales_loss(const struct zb_run_plan *p)
{
    return p->o.scaler.initial_scale > 0;
}

int zb_keeps_undo(const struct zb_run_plan *p)
{
    return p->o.post_validation &&
           (p->o.optim.max_norm > 0 || zb_scales_loss(p));
}

enum zb_status zb_worker_convert(struct zb_worker *w, enum zb_dtype from,
                                 const void *src, enum zb_dtype to, void *dst,
                                 int64_t n, const char *label)
{
    struct zb_k_convert k = {
        .n = n, .x_dtype = from, .y_dtype = to, .x = src, .y = dst};
    struct zb_launch l = {.kernel = ZB_K_convert, .label = label, .params = &k};

    zb_launch_elems(&l, from, src, n, ZB_READ);
    zb_launch_elems(&l, to, dst, n, ZB_WRITE);
    return w->ops->launch(w->stream, &l);
}

int64_t zb_worker_master(struct zb_worker *w, int param, zb_real **at_out,
                         int64_t *first_out)
{
    const struct zb_run_plan *p = w->s->plan;

    for (int i = 0; i < buckets(w)->n; i++) {
        const struct zb_bucket *b = &buckets(w)->bucket[i];
        int64_t begin, end;

        zb_worker_part(w, b, &begin, &end);
        for (int j = 0; b->master != ZB_NO_OFFSET && j < b->n_params; j++) {
            int64_t n = b->param[j] != param
                            ? 0
                            : zb_bucket_part(p, b, j, begin, end, first_out);

            if (n > 0) {
                *at_out = moment(w, b->master, b->first[j] + *first_out - begin);
                return n;
            }
        }
    }
    return 0;
}

static enum zb_status copy_reals(struct zb_worker *w, const zb_real *x,
                                 zb_real *y, int64_t n)
{
    return zb_worker_convert(w, ZB_DTYPE_REAL, x, ZB_DTYPE_REAL, y, n,
                             "undo copy");
}

/* Values and moments of this rank's part, to their copies or back. */
static enum zb_status keep_or_restore(struct zb_worker *w, int is_restore)
{
    for (int i = 0; i < buckets(w)->n; i++) {
        const struct zb_bucket *b = &buckets(w)->bucket[i];
        int64_t begin, end;
        zb_real *copy = moment(w, b->undo, 0);
        zb_real *array[3];

        zb_worker_part(w, b, &begin, &end);
        array[0] = b->master == ZB_NO_OFFSET ? moment(w, b->value, begin)
                                             : moment(w, b->master, 0);
        array[1] = moment(w, b->m, 0);
        array[2] = moment(w, b->v, 0);
        for (size_t k = 0; k < ZB_COUNT_OF(array) && array[k] != NULL; k++) {
            ZB_TRY(is_restore ? copy_reals(w, copy, array[k], end - begin)
                              : copy_reals(w, array[k], copy, end - begin));
            copy += end - begin;
        }
        if (is_restore && b->master != ZB_NO_OFFSET) {
            ZB_TRY(zb_worker_convert(
                w, ZB_DTYPE_REAL, array[0], w->s->plan->storage,
                zb_stored_at(w->s->plan, w->arena + b->value, begin),
                end - begin, "undo copy"));
        }
    }
    return ZB_OK;
}

/* ---- gathering ---------------------------------------------------------------------- */

static enum zb_status start_gather_of(struct zb_worker *w,
                                      const struct zb_bucket *b)
{
    void *value = w->arena + b->value;
    struct zb_coll c = {
        .kind = ZB_COLL_ALL_GATHER,
        .dtype = w->s->plan->storage,
        .outer = 1,
        .inner = b->shard,
        .src = zb_stored_at(w->s->plan, value, w->gather.rank * b->shard),
        .dst = value,
        .label = "parameters",
    };

    return zb_coll_start(w->gather.group, w->gather.rank, w->side, &c);
}

/* Offer the shards that were updated, and take those of others while the next
 * step begins: first what all chunks may use, then chunk by chunk in the order
 * of F, which is against that of the buckets. */
static enum zb_status start_gather(struct zb_worker *w)
{
    if (w->gather.group == NULL || w->s->plan->o.zero_stage == 0) {
        return ZB_OK;
    }
    ZB_TRY(zb_worker_to_side(w));
    for (int chunk = -1; chunk < w->s->plan->n_chunk; chunk++) {
        for (int i = buckets(w)->n - 1; i >= 0; i--) {
            if (buckets(w)->bucket[i].chunk == chunk) {
                ZB_TRY(start_gather_of(w, &buckets(w)->bucket[i]));
            }
        }
    }
    w->n_gathered = 0;
    w->is_gathering = 1;
    return w->s->plan->o.overlap_gather ? ZB_OK : zb_worker_settle(w);
}

/* How many come behind the last bucket that is needed. In a chunk a bucket that
 * begins with an earlier layer may come later: it has other copies to sum. */
static int n_not_needed(const struct zb_worker *w, int chunk, int layer)
{
    int n = 0;

    for (int i = 0; i < buckets(w)->n; i++) {
        const struct zb_bucket *b = &buckets(w)->bucket[i];

        n += b->chunk > chunk;
    }
    for (int i = 0; i < buckets(w)->n; i++) {
        const struct zb_bucket *b = &buckets(w)->bucket[i];

        if (b->chunk == chunk) {
            if (b->layer <= layer) {
                break;
            }
            n++;
        }
    }
    return n;
}

enum zb_status zb_worker_need(struct zb_worker *w, int chunk, int layer)
{
    int n_later = n_not_needed(w, chunk, layer);
    enum zb_status st;

    zb_wait_begin(w, zb_coll_group_name(w->gather.group));
    st = zb_coll_work(w->gather.group, w->gather.rank, w->side, n_later, NULL);
    zb_wait_end(w);
    ZB_TRY(st);
    return zb_worker_from_side(w);
}

enum zb_status zb_worker_settle(struct zb_worker *w)
{
    enum zb_status st;

    if (!w->is_gathering) {
        return ZB_OK;
    }
    w->is_gathering = 0;
    zb_wait_begin(w, zb_coll_group_name(w->gather.group));
    st = zb_coll_finish(w->gather.group, w->gather.rank, w->side);
    zb_wait_end(w);
    ZB_TRY(st);
    return zb_worker_from_side(w);
}

/* ---- the step --------------------------------------------------------------------------- */

/* Others read this stage's gradients for their updates, and keep them until
 * then. */
static enum zb_status end_update(struct zb_worker *w)
{
    if (w->s->plan->has_shared) {
        ZB_TRY(w->ops->event_record(w->opt_done, w->stream));
        ZB_TRY(zb_group_meet(w->s->group));
    }
    return start_gather(w);
}

/* With everything known. */
static enum zb_status step_surely(struct zb_worker *w)
{
    struct zb_verdict v;

    ZB_TRY(await_norms(w));
    v = zb_judge(w->s, w->turn);
    w->has_clipped = v.clip < 1 || v.is_overflow;
    if (v.is_overflow) {
        w->t--;
        return ZB_OK;
    }
    return update_all(w, w->lr, v.scale);
}

enum zb_status zb_worker_update(struct zb_worker *w, double lr)
{
    int may_go_ahead = zb_keeps_undo(w->s->plan) && !w->has_clipped;

    ZB_TRY(zb_worker_settle(w)); /* others have read what changes now */
    w->ops->stream_mark(w->stream, "update");
    ZB_TRY(publish_norms(w));
    w->t++;
    w->lr = lr;
    w->is_unproven = may_go_ahead;
    w->went_ahead = may_go_ahead && !is_hopeless(w);
    if (w->went_ahead) {
        ZB_TRY(keep_or_restore(w, 0));
        ZB_TRY(update_all(w, lr,
                          1 / w->s->norms.loss_scale[w->turn % 2]));
    } else {
        ZB_TRY(step_surely(w));
    }
    return end_update(w);
}

/* All come here alike, and all gather again, also those that had waited. */
enum zb_status zb_worker_validate(struct zb_worker *w)
{
    struct zb_verdict v;

    if (!w->is_unproven) {
        return ZB_OK;
    }
    w->is_unproven = 0;
    v = zb_judge(w->s, w->turn);
    w->has_clipped = v.clip < 1 || v.is_overflow;
    if (!w->has_clipped) {
        return ZB_OK;
    }
    w->ops->stream_mark(w->stream, "undo");
    ZB_TRY(zb_worker_settle(w));
    if (w->went_ahead) {
        ZB_TRY(keep_or_restore(w, 1));
        if (v.is_overflow) {
            w->t--;
        } else {
            ZB_TRY(update_all(w, w->lr, v.scale));
        }
    }
    return end_update(w);
}
