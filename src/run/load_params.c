/* SPDX-License-Identifier: MIT
 *
 * Parameters from files: each device reads its own part of a tensor, piece by
 * piece, so that a model never is in host memory a second time. */
#include "config.h"
#include "run/run_int.h"

#include <string.h>

#include "zb/log.h"
#include "zb/mem.h"

/* Rows of a piece that follow each other in the shard and in the whole are
 * one. */
static void join_rows(struct zb_piece *t)
{
    if (t->shard_ld == t->cols && t->whole_ld == t->cols) {
        t->cols *= t->rows;
        t->rows = 1;
    }
}

/* A row that a piece and elements [first, end) of the shard have in common:
 * `n` elements from shard element `at`, which is element `whole` of the
 * tensor. The r-th row of the piece; n <= 0: none. */
struct row {
    int64_t at, whole, n;
};

static struct row row_of(const struct zb_piece *t, int64_t r, int64_t first,
                         int64_t end)
{
    int64_t row = t->shard_first + r * t->shard_ld;
    int64_t from = row > first ? row : first;
    int64_t to = row + t->cols < end ? row + t->cols : end;

    return (struct row){from, t->whole_first + r * t->whole_ld + from - row,
                        to - from};
}

/* The first and the last row of a piece that may have some of them. */
static int64_t first_row(const struct zb_piece *t, int64_t first)
{
    return t->rows > 1 && first > t->shard_first
               ? (first - t->shard_first) / t->shard_ld
               : 0;
}

static int64_t end_row(const struct zb_piece *t, int64_t end)
{
    int64_t n = t->rows > 1 ? (end - t->shard_first) / t->shard_ld + 1 : 1;

    return end <= t->shard_first ? 0 : n < t->rows ? n : t->rows;
}

/* What elements [first, end) of the shard have of a piece. */
static enum zb_status read_piece(struct zb_weight src, struct zb_piece t,
                                 int64_t first, int64_t end, zb_real *out)
{
    int64_t last;

    join_rows(&t);
    last = end_row(&t, end);
    for (int64_t r = first_row(&t, first); r < last; r++) {
        struct row row = row_of(&t, r, first, end);

        if (row.n > 0) {
            ZB_TRY(zb_st_read_part(src.file, src.tensor, row.whole, row.n,
                                   out + row.at - first));
        }
    }
    return ZB_OK;
}

void zb_write_shard(const struct zb_run_plan *p, int param, int tp_rank,
                    int64_t first, int64_t n, const zb_real *x, zb_real *whole)
{
    struct zb_piece t[ZB_SPLIT_MAX];
    int n_pieces = zb_graph_param_pieces(p->g, param, tp_rank, t);

    for (int i = 0; i < n_pieces; i++) {
        int64_t last;

        join_rows(&t[i]);
        last = end_row(&t[i], first + n);
        for (int64_t r = first_row(&t[i], first); r < last; r++) {
            struct row row = row_of(&t[i], r, first, first + n);

            if (row.n > 0) {
                memcpy(whole + row.whole, x + row.at - first,
                       (size_t)row.n * sizeof(*x));
            }
        }
    }
}

enum zb_status zb_read_shard(const struct zb_run_plan *p, int param,
                             int tp_rank, struct zb_weight src, int64_t first,
                             int64_t n, zb_real *out)
{
    struct zb_piece t[ZB_SPLIT_MAX];
    int n_pieces = zb_graph_param_pieces(p->g, param, tp_rank, t);

    memset(out, 0, (size_t)n * sizeof(*out)); /* padding */
    for (int i = 0; i < n_pieces; i++) {
        ZB_TRY(read_piece(src, t[i], first, first + n, out));
    }
    return ZB_OK;
}

/* ---- to the device ------------------------------------------------------- */

/* Elements [first, first + n) of a shard become the value, and of the master
 * what this rank has of it. `stored` has room for n elements of the storage. */
static enum zb_status put_part(struct zb_worker *w, int param, int64_t first,
                               int64_t n, const zb_real *x, void *stored)
{
    const struct zb_run_plan *p = w->s->plan;
    const char *name = zb_graph_param(p->g, param).name;
    int64_t at, n_master, from, to;
    zb_real *master;

    zb_dtype_store(p->storage, n, x, stored);
    ZB_TRY(w->ops->copy_in(w->stream, zb_stored_at(p, w->value[param], first),
                           stored, zb_stored_bytes(p, n), name));
    n_master = zb_worker_master(w, param, &master, &at);
    if (n_master > 0) {
        from = at > first ? at : first;
        to = at + n_master < first + n ? at + n_master : first + n;
        if (from < to) {
            ZB_TRY(w->ops->copy_in(w->stream, master + from - at,
                                   x + from - first,
                                   (size_t)(to - from) * sizeof(*x), name));
        }
    }
    return w->ops->stream_sync(w->stream);
}

enum zb_status zb_worker_put_param(struct zb_worker *w, int param,
                                   const zb_real *shard)
{
    const struct zb_run_plan *p = w->s->plan;
    int64_t n = zb_param_elems(p, param);
    void *stored = zb_alloc(zb_stored_bytes(p, n));
    enum zb_status st =
        stored == NULL ? ZB_ENOMEM : put_part(w, param, 0, n, shard, stored);

    zb_free(stored);
    return st;
}

/* ---- all of a worker ----------------------------------------------------- */

static void moved(struct zb_worker *w)
{
    atomic_fetch_add_explicit(&w->progress, 1, memory_order_relaxed);
}

/* Of a checkpoint the master, where it has one. No tensor: it is drawn. */
static struct zb_weight source_of(const struct zb_session *s, int param)
{
    struct zb_param_info info = zb_graph_param(s->plan->g, param);
    const char *name = info.name;
    struct zb_weight found = {NULL, NULL};

    if (s->resume == NULL ||
        (zb_graph_has_adapters(s->plan->g) && !info.opts.is_adapter)) {
        return s->weights == NULL ? found : zb_weights_find(s->weights, name);
    }
    found = zb_ckpt_find(s->resume, ZB_CKPT_MASTER, name);
    return found.tensor != NULL ? found
                                : zb_weights_find(s->resume->model, name);
}

/* Elements [first, first + n) of a shard where they lie in the file, if they do
 * so in one run and in the type of the graph; else NULL. */
static const void *find_run(const struct zb_worker *w, int param,
                            struct zb_weight src, int64_t first, int64_t n)
{
    static const enum zb_st_dtype like[] = {[ZB_DTYPE_REAL] = ZB_ST_REAL,
                                            [ZB_DTYPE_BF16] = ZB_ST_BF16,
                                            [ZB_DTYPE_F16] = ZB_ST_F16};
    const struct zb_run_plan *p = w->s->plan;
    struct zb_piece t[ZB_SPLIT_MAX];
    int n_pieces = zb_graph_param_pieces(p->g, param, w->tp, t);

    if (src.tensor->dtype != like[p->storage]) {
        return NULL;
    }
    for (int i = 0; i < n_pieces; i++) {
        struct row row;

        join_rows(&t[i]);
        row = row_of(&t[i], first_row(&t[i], first), first, first + n);
        if (row.at == first && row.n == n) {
            return (const char *)src.tensor->data +
                   row.whole * (int64_t)zb_dtype_bytes(p->storage);
        }
    }
    return NULL;
}

/* Copied from the file's pages: nothing is converted, and there is no master.
 */
static enum zb_status copy_run(struct zb_worker *w, int param, const void *run,
                               int64_t first, int64_t n)
{
    const struct zb_run_plan *p = w->s->plan;

    ZB_TRY(w->ops->copy_in(w->stream, zb_stored_at(p, w->value[param], first),
                           run, zb_stored_bytes(p, n),
                           zb_graph_param(p->g, param).name));
    return w->ops->stream_sync(w->stream);
}

static enum zb_status load_param(struct zb_worker *w, int param, zb_real *stage,
                                 void *stored)
{
    const struct zb_run_plan *p = w->s->plan;
    struct zb_weight src = source_of(w->s, param);
    int64_t n = zb_param_elems(p, param), first;
    zb_real *master;
    int has_master = zb_worker_master(w, param, &master, &first) > 0;

    if (src.tensor == NULL) {
        return zb_worker_draw_param(w, param);
    }
    for (int64_t at = 0; at < n; at += ZB_STAGE_ELEMS) {
        int64_t part = n - at < ZB_STAGE_ELEMS ? n - at : ZB_STAGE_ELEMS;
        const void *run = has_master ? NULL : find_run(w, param, src, at, part);

        if (run != NULL) {
            ZB_TRY(copy_run(w, param, run, at, part));
        } else {
            ZB_TRY(zb_read_shard(p, param, w->tp, src, at, part, stage));
            ZB_TRY(put_part(w, param, at, part, stage, stored));
        }
        moved(w);
    }
    return ZB_OK;
}

/* Elements [first, first + n) of a parameter's shard become the moments `y`. */
static enum zb_status load_moment(struct zb_worker *w, int param,
                                  enum zb_ckpt_part moment, int64_t first,
                                  int64_t n, zb_real *y, zb_real *stage)
{
    const struct zb_run_plan *p = w->s->plan;
    const char *name = zb_graph_param(p->g, param).name;
    struct zb_weight src = zb_ckpt_find(w->s->resume, moment, name);

    for (int64_t at = 0; at < n; at += ZB_STAGE_ELEMS) {
        int64_t part = n - at < ZB_STAGE_ELEMS ? n - at : ZB_STAGE_ELEMS;

        ZB_TRY(zb_read_shard(p, param, w->tp, src, first + at, part, stage));
        ZB_TRY(w->ops->copy_in(w->stream, y + at, stage,
                               (size_t)part * sizeof(*stage), name));
        ZB_TRY(w->ops->stream_sync(w->stream));
        moved(w);
    }
    return ZB_OK;
}

static enum zb_status load_moments(struct zb_worker *w, zb_real *stage)
{
    const struct zb_run_plan *p = w->s->plan;
    const struct zb_buckets *all = &p->layout[w->stage].buckets;

    for (int i = 0; i < all->n; i++) {
        const struct zb_bucket *b = &all->bucket[i];
        const size_t offset[] = {b->m, b->v};
        int64_t begin, end, first;

        zb_worker_part(w, b, &begin, &end);
        for (int j = 0; j < b->n_params; j++) {
            int64_t n = zb_bucket_part(p, b, j, begin, end, &first);

            for (int k = 0; k < 2 && n > 0; k++) {
                zb_real *y = (zb_real *)(w->arena + offset[k]) + b->first[j] +
                             first - begin;

                if (offset[k] != ZB_NO_OFFSET) {
                    ZB_TRY(load_moment(w, b->param[j], (enum zb_ckpt_part)k,
                                       first, n, y, stage));
                }
            }
        }
    }
    return ZB_OK;
}

static void log_speed(const struct zb_worker *w, int64_t begin_ns)
{
    double s = (double)(zb_now_ns() - begin_ns) * 1e-9, bytes = 0;

    for (int i = 0; i < w->n_mine; i++) {
        bytes += (double)zb_param_elems(w->s->plan, w->mine[i]) *
                 (double)zb_dtype_bytes(w->s->plan->storage);
    }
    zb_log(ZB_LOG_DEBUG, "device %d: %.1f MB of parameters read in %.3g s",
           w->device, bytes * 1e-6, s);
}

enum zb_status zb_worker_load_params(struct zb_worker *w)
{
    int64_t begin_ns = zb_now_ns();
    zb_real *stage = zb_alloc_array(ZB_STAGE_ELEMS, sizeof(*stage));
    void *stored = zb_alloc_array(ZB_STAGE_ELEMS, sizeof(*stage));
    enum zb_status st = stage == NULL || stored == NULL ? ZB_ENOMEM : ZB_OK;

    for (int i = 0; i < w->n_mine && st == ZB_OK; i++) {
        st = load_param(w, w->mine[i], stage, stored);
    }
    if (st == ZB_OK && w->s->resume != NULL) {
        w->t = w->s->resume->state.n_updates;
        w->step = w->s->resume->state.n_batches;
        st = load_moments(w, stage);
    }
    if (st == ZB_OK) {
        log_speed(w, begin_ns);
    }
    zb_free(stored);
    zb_free(stage);
    return st;
}

/* ---- before anything is read --------------------------------------------- */

static struct zb_weight_want want_of(const struct zb_param_info *info)
{
    struct zb_weight_want want = {.name = info->name,
                                  .n_dims = info->whole.n_dims};

    memcpy(want.dims, info->whole.dim,
           (size_t)want.n_dims * sizeof(want.dims[0]));
    return want;
}

enum zb_status zb_check_weights(const struct zb_graph *g, int is_resume,
                                const struct zb_weights *weights)
{
    int only_adapters = is_resume && zb_graph_has_adapters(g);
    int n_params = zb_graph_n_params(g);
    struct zb_weight_want *want =
        zb_alloc_array((size_t)n_params, sizeof(*want));
    size_t n = 0;
    enum zb_status st;

    if (want == NULL) {
        return ZB_ENOMEM;
    }
    for (int i = 0; i < n_params; i++) {
        struct zb_param_info info = zb_graph_param(g, i);

        if (!only_adapters || info.opts.is_adapter) {
            want[n] = want_of(&info);
            want[n++].is_optional =
                !is_resume &&
                (info.opts.is_adapter || info.opts.is_new_head);
        }
    }
    st = zb_weights_check(weights, want, n);
    zb_free(want);
    return st;
}

/* A head that is drawn beside pretrained weights has everything to learn. */
static void report_new_heads(const struct zb_graph *g,
                             const struct zb_weights *w)
{
    for (int i = 0; i < zb_graph_n_params(g); i++) {
        struct zb_param_info info = zb_graph_param(g, i);

        if (info.opts.is_new_head &&
            zb_weights_find(w, info.name).tensor == NULL) {
            zb_log(ZB_LOG_WARN, "%s has no %s: it is drawn",
                   zb_weights_path(w), info.name);
        }
    }
}

enum zb_status zb_open_weights(const struct zb_model *model, const char *path,
                               struct zb_weights **w_out)
{
    struct zb_weights *w;
    enum zb_status st;

    ZB_TRY(zb_weights_open(path, &w));
    st = zb_check_weights(zb_model_graph(model), 0, w);
    if (st != ZB_OK) {
        zb_weights_close(w);
        return st;
    }
    report_new_heads(zb_model_graph(model), w);
    *w_out = w;
    return ZB_OK;
}
