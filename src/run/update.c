/* SPDX-License-Identifier: MIT
 *
 * The end of a step: the norm, the update, and parameters that other ranks
 * updated. */
#include "config.h"
#include "run/run_int.h"

#include <math.h>

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

/* One rank of those that have the same shard of a parameter counts it. */
static int counts(const struct zb_worker *w, int param)
{
    return w->tp % zb_graph_param(w->s->plan->g, param).n_copies == 0;
}

/* Enqueue the squared norms of this rank's part of what it owns. */
static enum zb_status enqueue_norms(struct zb_worker *w, double *dev,
                                    size_t *n_out)
{
    const struct zb_run_plan *p = w->s->plan;
    int64_t begin, end, first, n;
    size_t k = 0;

    for (int i = 0; i < buckets(w)->n; i++) {
        const struct zb_bucket *b = &buckets(w)->bucket[i];

        my_shard(w, b, &begin, &end);
        for (int j = 0; b->owner == w->stage && j < b->n_params; j++) {
            struct zb_param_info info = zb_graph_param(p->g, b->param[j]);

            n = zb_bucket_part(p, b, j, begin, end, &first);
            if (n > 0 && counts(w, b->param[j])) {
                ZB_TRY(zb_sum_squares(w->ops, w->stream,
                                      w->grad[info.use_ids[0]] + first, n,
                                      dev + k++, info.name));
            }
        }
    }
    *n_out = k;
    return ZB_OK;
}

/* The entries of the group's table are [parameter][column]. */
static void fill_table(struct zb_worker *w)
{
    const struct zb_run_plan *p = w->s->plan;
    double *table = zb_group_values(w->s->group);
    int64_t begin, end, first;
    size_t k = 0;

    for (int i = 0; i < buckets(w)->n; i++) {
        const struct zb_bucket *b = &buckets(w)->bucket[i];

        my_shard(w, b, &begin, &end);
        for (int j = 0; b->owner == w->stage && j < b->n_params; j++) {
            int is_mine =
                counts(w, b->param[j]) &&
                zb_bucket_part(p, b, j, begin, end, &first) > 0;

            table[b->param[j] * p->n_columns + w->column] =
                is_mine ? w->sumsq_host[k++] : 0;
        }
    }
}

static enum zb_status publish_norms(struct zb_worker *w)
{
    double *dev =
        (double *)(w->arena + w->s->plan->layout[w->stage].sumsq);
    size_t n;

    ZB_TRY(enqueue_norms(w, dev, &n));
    if (n > 0) {
        ZB_TRY(w->ops->copy_out(w->stream, w->sumsq_host, dev,
                                n * sizeof(double), "squared norms"));
    }
    ZB_TRY(w->ops->stream_sync(w->stream));
    ZB_TRY(w->ops->host_access(w->dev, w->sumsq_host, n * sizeof(double),
                               ZB_READ));
    fill_table(w);
    return ZB_OK;
}

static double total_norm(struct zb_worker *w)
{
    const struct zb_run_plan *p = w->s->plan;
    const double *table = zb_group_values(w->s->group);
    double sum = 0;

    for (int i = 0; i < p->n_params; i++) {
        const double *entry = table + p->name_order[i] * p->n_columns;

        for (int c = 0; c < p->n_columns &&
                        zb_graph_param(p->g, p->name_order[i]).has_gradient;
             c++) {
            sum += entry[c];
        }
    }
    return sqrt(sum);
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
            .param = w->value[param] + first,
            .m = moment(w, b->m, at),
            .v = moment(w, b->v, at),
        };

        if (n > 0) {
            ZB_TRY(zb_optim_step(&p->o.optim, w->ops, w->stream, &op, w->t, lr,
                                 scale));
        }
    }
    return ZB_OK;
}

static enum zb_status update_all(struct zb_worker *w, double lr, double scale)
{
    int is_sharded = w->s->plan->o.zero_stage > 0;

    for (int i = 0; i < buckets(w)->n; i++) {
        const struct zb_bucket *b = &buckets(w)->bucket[i];
        int64_t begin, end;

        my_shard(w, b, &begin, &end);
        ZB_TRY(is_sharded ? update_bucket(w, b, begin, end, lr, scale)
                          : update_bucket(w, b, 0, b->n, lr, scale));
    }
    return ZB_OK;
}

/* Offer the shards that were updated, and take those of others while the next
 * step begins. */
static enum zb_status start_gather(struct zb_worker *w)
{
    if (w->gather.group == NULL || w->s->plan->o.zero_stage == 0) {
        return ZB_OK;
    }
    ZB_TRY(w->ops->event_record(w->to_side, w->stream));
    ZB_TRY(w->ops->stream_wait(w->side, w->to_side));
    for (int i = 0; i < buckets(w)->n; i++) {
        const struct zb_bucket *b = &buckets(w)->bucket[i];
        zb_real *value = (zb_real *)(w->arena + b->value);
        struct zb_coll c = {
            .kind = ZB_COLL_ALL_GATHER,
            .dtype = ZB_DTYPE_REAL,
            .outer = 1,
            .inner = b->shard,
            .src = value + w->gather.rank * b->shard,
            .dst = value,
            .label = "parameters",
        };

        ZB_TRY(zb_coll_start(w->gather.group, w->gather.rank, w->side, &c));
    }
    w->is_gathering = 1;
    return w->s->plan->o.overlap_gather ? ZB_OK : zb_worker_settle(w);
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
    ZB_TRY(w->ops->event_record(w->from_side, w->side));
    return w->ops->stream_wait(w->stream, w->from_side);
}

enum zb_status zb_worker_update(struct zb_worker *w, double lr,
                                double *norm_out)
{
    const struct zb_run_plan *p = w->s->plan;
    double norm;

    w->ops->stream_mark(w->stream, "update");
    ZB_TRY(publish_norms(w));
    ZB_TRY(zb_group_meet(w->s->group));
    norm = total_norm(w);
    w->t++;
    ZB_TRY(update_all(w, lr, zb_clip_scale(norm, p->o.optim.max_norm)));
    if (p->has_shared) {
        ZB_TRY(w->ops->event_record(w->opt_done, w->stream));
        ZB_TRY(zb_group_meet(w->s->group));
    }
    *norm_out = norm;
    return start_gather(w);
}
