/* SPDX-License-Identifier: MIT
 *
 * Start values of the parameters of a worker. */
#include "config.h"
#include "run/run_int.h"

#include <string.h>

#include "zb/hash.h"

enum zb_status zb_fill(const struct zb_backend_ops *ops,
                       struct zb_stream *stream, enum zb_dtype dtype, void *y,
                       int64_t n, double value, const char *label)
{
    struct zb_k_fill k = {.n = n, .value = value, .dtype = dtype, .y = y};
    struct zb_launch l = {.kernel = ZB_K_fill, .label = label, .params = &k};

    zb_launch_elems(&l, dtype, y, n, ZB_WRITE);
    return ops->launch(stream, &l);
}

enum zb_status zb_worker_fill(struct zb_worker *w, zb_real *y, int64_t n,
                              double value, const char *label)
{
    return zb_fill(w->ops, w->stream, ZB_DTYPE_REAL, y, n, value, label);
}

/* ---- start values -------------------------------------------------------- */

enum zb_status zb_fill_normal(const struct zb_backend_ops *ops,
                              struct zb_stream *stream, uint64_t seed,
                              const char *name, int64_t first, double std,
                              enum zb_dtype dtype, void *y, int64_t n)
{
    struct zb_k_fill_normal k = {
        .n = n,
        .first = first,
        .seed = seed,
        .key = zb_hash(name, strlen(name)),
        .std = std,
        .dtype = dtype,
        .y = y,
    };
    struct zb_launch l = {
        .kernel = ZB_K_fill_normal, .label = name, .params = &k};

    zb_launch_elems(&l, dtype, y, n, ZB_WRITE);
    return ops->launch(stream, &l);
}

/* Each row of a piece is drawn as the elements of the whole tensor that it is;
 * rows that follow each other there and here are one. */
static enum zb_status fill_piece(const struct zb_backend_ops *ops,
                                 struct zb_stream *stream,
                                 const struct zb_param_info *info,
                                 struct zb_piece t, uint64_t seed,
                                 const struct zb_shard_part *to)
{
    int64_t to_end = to->first + to->n;

    if (t.shard_ld == t.cols && t.whole_ld == t.cols) {
        t.cols *= t.rows;
        t.rows = 1;
    }
    for (int64_t r = 0; r < t.rows; r++) {
        int64_t row = t.shard_first + r * t.shard_ld;
        int64_t begin = row > to->first ? row : to->first;
        int64_t end = row + t.cols < to_end ? row + t.cols : to_end;
        void *y = (char *)to->y +
                  (begin - to->first) * (int64_t)zb_dtype_bytes(to->dtype);

        if (begin >= end) {
            continue;
        }
        ZB_TRY(
            info->opts.init == ZB_INIT_NORMAL
                ? zb_fill_normal(ops, stream, seed, info->name,
                                 t.whole_first + r * t.whole_ld + begin - row,
                                 info->opts.std, to->dtype, y, end - begin)
                : zb_fill(ops, stream, to->dtype, y, end - begin,
                          info->opts.init == ZB_INIT_ONES, info->name));
    }
    return ZB_OK;
}

enum zb_status zb_fill_param(const struct zb_backend_ops *ops,
                             struct zb_stream *stream, const struct zb_graph *g,
                             int param, int tp_rank, uint64_t seed,
                             const struct zb_shard_part *to)
{
    struct zb_param_info info = zb_graph_param(g, param);
    struct zb_piece piece[ZB_SPLIT_MAX];
    int n_pieces = zb_graph_param_pieces(g, param, tp_rank, piece);
    int64_t padding = zb_shape_elems(&info.shape);

    for (int i = 0; i < n_pieces; i++) {
        padding -= piece[i].rows * piece[i].cols;
    }
    if (padding > 0) {
        ZB_TRY(zb_fill(ops, stream, to->dtype, to->y, to->n, 0, info.name));
    }
    for (int i = 0; i < n_pieces; i++) {
        ZB_TRY(fill_piece(ops, stream, &info, piece[i], seed, to));
    }
    return ZB_OK;
}

/* ---- shards and wholes --------------------------------------------------- */

void zb_shard_from_whole(const struct zb_run_plan *p, int param, int tp_rank,
                         const zb_real *whole, zb_real *shard)
{
    struct zb_piece t[ZB_SPLIT_MAX];
    int n = zb_graph_param_pieces(p->g, param, tp_rank, t);

    memset(shard, 0, (size_t)zb_param_elems(p, param) * sizeof(*shard));
    for (int i = 0; i < n; i++) {
        for (int64_t r = 0; r < t[i].rows; r++) {
            memcpy(shard + t[i].shard_first + r * t[i].shard_ld,
                   whole + t[i].whole_first + r * t[i].whole_ld,
                   (size_t)t[i].cols * sizeof(*shard));
        }
    }
}

/* ---- all of a worker ----------------------------------------------------- */

/* Also what lies between parameters: it is summed and gathered with them. */
static enum zb_status clear_buckets(struct zb_worker *w)
{
    const struct zb_run_plan *p = w->s->plan;
    const struct zb_buckets *all = &p->layout[w->stage].buckets;

    for (int i = 0; i < all->n; i++) {
        const struct zb_bucket *b = &all->bucket[i];
        int64_t n = p->o.zero_stage == 0 ? b->n : b->shard;
        const size_t state[] = {b->m, b->v, b->master};

        ZB_TRY(zb_fill(w->ops, w->stream, p->storage, w->arena + b->value, b->n,
                       0, "start"));
        for (size_t k = 0; k < ZB_COUNT_OF(state); k++) {
            if (state[k] != ZB_NO_OFFSET) {
                ZB_TRY(zb_worker_fill(w, (zb_real *)(w->arena + state[k]), n, 0,
                                      "start"));
            }
        }
    }
    return ZB_OK;
}

/* The value, and where there is one the master: the same numbers, rounded only
 * in what is stored. */
enum zb_status zb_worker_draw_param(struct zb_worker *w, int param)
{
    const struct zb_run_plan *p = w->s->plan;
    struct zb_shard_part to = {.dtype = p->storage,
                               .y = w->value[param],
                               .n = zb_param_elems(p, param)};
    zb_real *master;

    ZB_TRY(
        zb_fill_param(w->ops, w->stream, p->g, param, w->tp, p->o.seed, &to));
    to.dtype = ZB_DTYPE_REAL;
    to.n = zb_worker_master(w, param, &master, &to.first);
    if (to.n == 0) {
        return ZB_OK;
    }
    to.y = master;
    return zb_fill_param(w->ops, w->stream, p->g, param, w->tp, p->o.seed, &to);
}

static enum zb_status draw_all(struct zb_worker *w)
{
    for (int i = 0; i < w->n_mine; i++) {
        ZB_TRY(zb_worker_draw_param(w, w->mine[i]));
    }
    return ZB_OK;
}

enum zb_status zb_worker_fill_params(struct zb_worker *w)
{
    const struct zb_run_plan *p = w->s->plan;

    for (int i = 0; i < p->n_consts; i++) {
        struct zb_data_info info = zb_graph_const(p->g, i);

        ZB_TRY(w->ops->copy_in(w->stream, w->konst[i],
                               zb_graph_const_value(p->g, i),
                               (size_t)zb_shape_elems(&info.shape) *
                                   sizeof(zb_real),
                               info.name));
    }
    ZB_TRY(clear_buckets(w));
    ZB_TRY(w->s->weights != NULL || w->s->resume != NULL
               ? zb_worker_load_params(w)
               : draw_all(w));
    ZB_TRY(zb_worker_zero_grad(w));
    return w->ops->stream_sync(w->stream);
}

