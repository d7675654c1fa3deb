/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "sp_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/backend.h"
#include "zb/check.h"
#include "zb/comm.h"
#include "zb/thread.h"
#include "zbt.h"

#define MAX_RANKS 8
#define MAX_BLOCKS 256

struct group {
    int n;
    const struct zb_graph *g;
    zb_real *const *params;
    const struct sp_batch *batch;
    const struct sp_opts *o;
    struct zb_bind bind;
    struct zb_backend *be;
    struct zb_chunk *chunk;
    struct zb_abort ab;
    struct zb_barrier bar;
    struct zb_coll_group *coll; /* with has_groups */
    const void *src[MAX_RANKS];
};

struct member {
    struct group *grp;
    int rank;
    struct zb_thread thread;
    const struct zb_backend_ops *ops;
    struct zb_device *dev;
    struct zb_stream *stream;
    void *block[MAX_BLOCKS]; /* device memory */
    int n_blocks;
    void *ring[MAX_RANKS];
    size_t ring_bytes;
    double loss;
    double **grad;
};

/* ---- device memory ------------------------------------------------------- */

static enum zb_status wait_all(const struct member *m)
{
    return zb_barrier_wait(&m->grp->bar, &m->grp->ab);
}

static enum zb_status block_new(struct member *m, size_t bytes,
                                const void *values, void **out)
{
    CU_ASSERT_FATAL(m->n_blocks < MAX_BLOCKS);
    ZB_TRY(m->ops->mem_alloc(m->dev, bytes + 64, "rig", out));
    m->block[m->n_blocks++] = *out;
    if (values != NULL) {
        ZB_TRY(m->ops->copy_in(m->stream, *out, values, bytes, "rig in"));
        return m->ops->stream_sync(m->stream);
    }
    memset(*out, 0xff, bytes);
    return ZB_OK;
}

static enum zb_status block_zeros(struct member *m, size_t bytes, void **out)
{
    void *zeros = calloc(1, bytes);
    enum zb_status st = block_new(m, bytes, zeros, out);

    free(zeros);
    return st;
}

/* ---- collectives --------------------------------------------------------- */

/* What this rank gets, from everybody's sources. */
static void reduce_scatter(const struct member *m, const struct zb_coll *c,
                           zb_real *dst)
{
    int64_t n = m->grp->n;

    for (int64_t o = 0; o < c->outer; o++) {
        for (int64_t i = 0; i < c->inner; i++) {
            zb_real sum = 0;

            for (int64_t k = 0; k < n; k++) {
                const zb_real *src = m->grp->src[k];

                sum += src[(o * n + m->rank) * c->inner + i];
            }
            dst[o * c->inner + i] = sum;
        }
    }
}

static void seq_to_heads(const struct member *m, const struct zb_coll *c,
                         zb_real *dst)
{
    int64_t n = m->grp->n, piece = m->rank * c->n_heads / n;

    for (int64_t at = 0; at < c->outer * n * c->mid * c->inner; at++) {
        int64_t i = at % c->inner, t = at / c->inner % c->mid;
        int64_t k = at / c->inner / c->mid % n;
        int64_t o = at / c->inner / c->mid / n;
        const zb_real *src = m->grp->src[k];

        dst[at] = src[((o * c->mid + t) * c->n_heads + piece) * c->inner + i];
    }
}

static void heads_to_seq(const struct member *m, const struct zb_coll *c,
                         zb_real *dst)
{
    int64_t n = m->grp->n;

    for (int64_t at = 0; at < c->outer * c->mid * c->n_heads * c->inner; at++) {
        int64_t i = at % c->inner, h = at / c->inner % c->n_heads;
        int64_t t = at / c->inner / c->n_heads % c->mid;
        int64_t o = at / c->inner / c->n_heads / c->mid;

        dst[at] = 0;
        for (int64_t k = 0; k < n; k++) {
            const zb_real *src = m->grp->src[k];

            if (k * c->n_heads / n == h) {
                dst[at] += src[((o * n + m->rank) * c->mid + t) * c->inner + i];
            }
        }
    }
}

static enum zb_status coll_run(void *arg, enum zb_axis axis,
                               struct zb_stream *stream,
                               const struct zb_coll *c)
{
    struct member *m = arg;
    int64_t n = c->outer * c->inner;
    zb_real *dst;
    enum zb_status st;

    if (axis != ZB_AXIS_SP || c->dtype != ZB_DTYPE_REAL) {
        return zb_fail(ZB_EINVAL, "%s: axis %d", c->label, (int)axis);
    }
    n *= c->kind == ZB_COLL_SEQ_TO_HEADS   ? m->grp->n * c->mid
         : c->kind == ZB_COLL_HEADS_TO_SEQ ? c->n_heads * c->mid
                                           : 1;
    dst = malloc((size_t)n * sizeof(*dst));
    ZB_TRY(m->ops->stream_sync(stream));
    m->grp->src[m->rank] = c->src;
    st = wait_all(m);
    if (st == ZB_OK) {
        if (c->kind == ZB_COLL_REDUCE_SCATTER) {
            reduce_scatter(m, c, dst);
        } else if (c->kind == ZB_COLL_SEQ_TO_HEADS) {
            seq_to_heads(m, c, dst);
        } else {
            heads_to_seq(m, c, dst);
        }
        st = wait_all(m);
    }
    if (st == ZB_OK) {
        st = m->ops->copy_in(stream, c->dst, dst, (size_t)n * sizeof(*dst),
                             c->label);
    }
    if (st == ZB_OK) {
        st = m->ops->stream_sync(stream);
    }
    free(dst);
    return st;
}

static enum zb_status ring_begin(void *arg, enum zb_axis axis,
                                 struct zb_stream *stream, const void *src,
                                 size_t bytes, const char *label)
{
    struct member *m = arg;

    (void)label;
    if (axis != ZB_AXIS_SP) {
        return zb_fail(ZB_EINVAL, "%s: axis %d", label, (int)axis);
    }
    ZB_TRY(m->ops->stream_sync(stream));
    m->grp->src[m->rank] = src;
    m->ring_bytes = bytes;
    return wait_all(m);
}

/* A block comes as a copy. */
static enum zb_status ring_step(void *arg, enum zb_axis axis,
                                struct zb_stream *stream, int step,
                                const void **block_out)
{
    struct member *m = arg;
    int n = m->grp->n;

    (void)axis;
    ZB_TRY(block_new(m, m->ring_bytes, m->grp->src[(m->rank + n - step) % n],
                     &m->ring[step]));
    *block_out = m->ring[step];
    return m->ops->stream_sync(stream);
}

static enum zb_status ring_end(void *arg, enum zb_axis axis,
                               struct zb_stream *stream)
{
    struct member *m = arg;

    (void)axis;
    ZB_TRY(m->ops->stream_sync(stream));
    return wait_all(m);
}

static const struct zb_coll_ops coll_ops = {
    .run = coll_run,
    .ring_begin = ring_begin,
    .ring_step = ring_step,
    .ring_end = ring_end,
};

/* The same through a group of zb/comm.h. */
static enum zb_status group_run(void *arg, enum zb_axis axis,
                                struct zb_stream *stream,
                                const struct zb_coll *c)
{
    struct member *m = arg;

    (void)axis;
    return zb_coll_run(m->grp->coll, m->rank, stream, c);
}

static enum zb_status group_ring_begin(void *arg, enum zb_axis axis,
                                       struct zb_stream *stream,
                                       const void *src, size_t bytes,
                                       const char *label)
{
    struct member *m = arg;

    (void)axis;
    return zb_ring_begin(m->grp->coll, m->rank, stream, src, bytes, label);
}

static enum zb_status group_ring_step(void *arg, enum zb_axis axis,
                                      struct zb_stream *stream, int step,
                                      const void **block_out)
{
    struct member *m = arg;

    (void)axis;
    return zb_ring_step(m->grp->coll, m->rank, stream, step, block_out);
}

static enum zb_status group_ring_end(void *arg, enum zb_axis axis,
                                     struct zb_stream *stream)
{
    struct member *m = arg;

    (void)axis;
    return zb_ring_end(m->grp->coll, m->rank, stream);
}

static const struct zb_coll_ops group_ops = {
    .run = group_run,
    .ring_begin = group_ring_begin,
    .ring_step = group_ring_step,
    .ring_end = group_ring_end,
};

/* ---- a rank -------------------------------------------------------------- */

/* The rank's part of a field, padded. */
static enum zb_status load(struct member *m, int field, void **out)
{
    const struct group *grp = m->grp;
    struct zb_data_info info = zb_graph_data(grp->g, field);
    int32_t pad = strcmp(info.name, "labels") == 0 ? -100 : 0;
    struct zb_seq_place place =
        zb_parallel_place(zb_graph_parallel(grp->g), m->rank, &grp->bind);
    int is_whole = info.shape.dim[1] == ZB_DIM(ZB_SYM_FULL);
    int64_t seq = grp->bind.value[is_whole ? ZB_SYM_FULL : ZB_SYM_SEQ];
    size_t bytes = (size_t)(grp->batch->rows * seq) * sizeof(int32_t);
    int32_t *v = malloc(bytes);
    enum zb_status st;

    for (int64_t i = 0; i < grp->batch->rows * seq; i++) {
        int64_t b = i / seq, t = i % seq;
        int64_t row = is_whole        ? t
                      : t < place.len ? place.first[0] + t
                                      : place.first[1] + t - place.len;

        v[i] = row < grp->batch->seq
                   ? grp->batch->data[field][b * grp->batch->seq + row]
                   : pad;
    }
    st = block_new(m, bytes, v, out);
    free(v);
    return st;
}

struct pointers {
    void *data[8], *consts[8], *param[128], *grad[128], *sample, *loss;
};

static size_t param_bytes(const struct zb_graph *g, int p)
{
    struct zb_param_info info = zb_graph_param(g, p);

    return (size_t)zb_shape_elems(&info.shape) * sizeof(zb_real);
}

static enum zb_status open_inputs(struct member *m, struct pointers *p)
{
    const struct zb_graph *g = m->grp->g;
    int64_t ids[16];

    for (int i = 0; i < zb_graph_n_data(g); i++) {
        ZB_TRY(load(m, i, &p->data[i]));
    }
    for (int i = 0; i < zb_graph_n_consts(g); i++) {
        struct zb_data_info info = zb_graph_const(g, i);

        ZB_TRY(block_new(m,
                         (size_t)zb_shape_elems(&info.shape) * sizeof(zb_real),
                         zb_graph_const_value(g, i), &p->consts[i]));
    }
    for (int i = 0; i < zb_graph_n_params(g); i++) {
        struct zb_param_info info = zb_graph_param(g, i);

        ZB_TRY(
            block_new(m, param_bytes(g, i), m->grp->params[i], &p->param[i]));
        for (int u = 0; u < info.n_uses; u++) {
            ZB_TRY(
                block_zeros(m, param_bytes(g, i), &p->grad[info.use_ids[u]]));
        }
    }
    for (int i = 0; i < 16; i++) {
        ids[i] = 100 + i; /* as graph_rig numbers them */
    }
    ZB_TRY(block_new(m, sizeof(ids), ids, &p->sample));
    return block_new(m, sizeof(double), NULL, &p->loss);
}

static int is_training(const struct member *m)
{
    return !m->grp->o->is_eval && !m->grp->o->no_backward;
}

static enum zb_status collect(struct member *m, const struct pointers *p)
{
    const struct zb_graph *g = m->grp->g;

    ZB_TRY(
        m->ops->copy_out(m->stream, &m->loss, p->loss, sizeof(double), "loss"));
    ZB_TRY(m->ops->stream_sync(m->stream));
    for (int i = 0; is_training(m) && i < zb_graph_n_params(g); i++) {
        struct zb_param_info info = zb_graph_param(g, i);
        size_t n = param_bytes(g, i) / sizeof(zb_real);
        zb_real *v = malloc(n * sizeof(*v));

        for (int u = 0; u < info.n_uses; u++) {
            ZB_TRY(m->ops->copy_out(m->stream, v, p->grad[info.use_ids[u]],
                                    n * sizeof(*v), "grad"));
            ZB_TRY(m->ops->stream_sync(m->stream));
            for (size_t k = 0; k < n; k++) {
                m->grad[i][k] += (double)v[k];
            }
        }
        free(v);
    }
    return ZB_OK;
}

static enum zb_status run_rank(struct member *m)
{
    struct group *grp = m->grp;
    struct zb_chunk_info info = zb_chunk_info(grp->chunk);
    struct pointers p;
    struct zb_chunk_run run = {
        .ops = m->ops,
        .bind = grp->bind,
        .data = p.data,
        .consts = p.consts,
        .param = p.param,
        .grad = (zb_real *const *)p.grad,
        .loss_scale = grp->o->loss_scale,
        .is_training = !grp->o->is_eval,
        .sp_rank = m->rank,
        .n_padding = grp->bind.value[ZB_SYM_FULL] - grp->batch->seq,
        .coll = grp->o->has_groups ? &group_ops : &coll_ops,
        .coll_arg = m,
        .seed = grp->o->seed,
        .step = grp->o->step,
    };

    ZB_TRY(m->ops->device_open(grp->be, m->rank, &m->dev));
    ZB_TRY(m->ops->stream_new(m->dev, "rig", &m->stream));
    if (grp->o->has_groups) {
        ZB_TRY(zb_coll_join(grp->coll, m->rank, m->dev));
        ZB_TRY(wait_all(m));
    }
    ZB_TRY(open_inputs(m, &p));
    for (int s = 0; s < ZB_N_SPACES; s++) {
        ZB_TRY(block_new(m, info.bytes[s], NULL, &run.space[s]));
    }
    run.stream = m->stream;
    run.sample = p.sample;
    run.loss_sum = p.loss;
    ZB_TRY(zb_chunk_forward(grp->chunk, &run));
    if (is_training(m)) {
        ZB_TRY(zb_chunk_backward_input(grp->chunk, &run));
        ZB_TRY(zb_chunk_backward_weight(grp->chunk, &run));
    }
    ZB_TRY(m->ops->stream_sync(m->stream));
    return collect(m, &p);
}

static void rank_main(void *arg)
{
    struct member *m = arg;
    enum zb_status st = run_rank(m);

    if (st != ZB_OK) {
        zb_abort_raise(&m->grp->ab, st, zb_error_text());
    }
    /* Others may still read what this rank has. */
    if (m->stream != NULL && m->ops->stream_sync(m->stream) == ZB_OK &&
        wait_all(m) != ZB_OK) {
        CU_ASSERT(zb_abort_is_raised(&m->grp->ab));
    }
    if (m->grp->o->has_groups && m->dev != NULL) {
        zb_coll_leave(m->grp->coll, m->rank);
    }
    if (m->stream != NULL) {
        m->ops->stream_free(m->stream);
    }
    for (int i = m->n_blocks - 1; i >= 0; i--) {
        m->ops->mem_free(m->dev, m->block[i]);
    }
    if (m->dev != NULL) {
        m->ops->device_close(m->dev);
    }
}

/* ---- all of them --------------------------------------------------------- */

static void open_group(struct group *grp)
{
    const struct zb_parallel *par = zb_graph_parallel(grp->g);
    const struct sp_opts *o = grp->o;
    struct zb_backend_opts be = {
        .n_devices = par->sp,
        .threads_per_device = o->n_threads > 0 ? o->n_threads : 1,
        .seed = o->delay_seed,
        .max_delay_us = o->delay_seed > 0 ? 20 : 0,
    };

    grp->n = par->sp;
    grp->bind = zb_parallel_bind(par, grp->batch->rows, grp->batch->seq);
    ZBT_OK(zb_backend_open(o->backend != NULL ? o->backend : "cpu", &be,
                           &grp->be));
    ZBT_OK(zb_chunk_new(grp->g, 0, zb_graph_n_layers(grp->g), &grp->bind,
                        o->recompute, &grp->chunk));
    zb_abort_init(&grp->ab);
    zb_barrier_init(&grp->bar, (uint32_t)grp->n);
    if (o->has_groups) {
        const struct zb_coll_group_opts opts = {
            .ops = grp->be->ops,
            .name = "sp group",
            .n_members = grp->n,
            .n_under_way = 1,
        };

        ZBT_OK(zb_coll_group_new(&opts, &grp->ab, &grp->coll));
    }
}

static enum zb_status close_group(struct group *grp)
{
    enum zb_status st = ZB_OK;

    if (zb_abort_is_raised(&grp->ab)) {
        st = zb_fail(grp->ab.st, "%s", grp->ab.text);
    }
    for (size_t i = 0; i < zb_check_reports(grp->be); i++) {
        printf("\n%s\n", zb_check_report_text(grp->be, i));
        CU_FAIL("a report of the check backend");
    }
    zb_coll_group_free(grp->coll);
    zb_chunk_free(grp->chunk);
    zb_backend_close(grp->be);
    zb_abort_release(&grp->ab);
    return st;
}

static double **new_grads(const struct zb_graph *g)
{
    int n = zb_graph_n_params(g);
    double **grad = calloc((size_t)n, sizeof(*grad));

    for (int i = 0; i < n; i++) {
        grad[i] = calloc(param_bytes(g, i) / sizeof(zb_real), sizeof(double));
    }
    return grad;
}

static void free_grads(double **grad, int n)
{
    for (int i = 0; i < n; i++) {
        free(grad[i]);
    }
    free(grad);
}

enum zb_status sp_run(const struct zb_graph *g, zb_real *const *params,
                      const struct sp_batch *batch, const struct sp_opts *opts,
                      struct sp_result *r)
{
    struct group grp = {.g = g, .params = params, .batch = batch, .o = opts};
    struct member *m;

    open_group(&grp);
    m = calloc((size_t)grp.n, sizeof(*m));
    memset(r, 0, sizeof(*r));
    r->n_params = zb_graph_n_params(g);
    r->grad = new_grads(g);
    for (int i = 0; i < grp.n; i++) {
        m[i].grp = &grp;
        m[i].rank = i;
        m[i].ops = grp.be->ops;
        m[i].grad = new_grads(g);
        ZBT_OK(zb_thread_start(&m[i].thread, "rank", rank_main, &m[i]));
    }
    for (int i = 0; i < grp.n; i++) {
        zb_thread_join(&m[i].thread);
        r->loss += m[i].loss * opts->loss_scale;
        for (int p = 0; p < r->n_params; p++) {
            for (size_t k = 0; k < param_bytes(g, p) / sizeof(zb_real); k++) {
                r->grad[p][k] += m[i].grad[p][k];
            }
        }
        free_grads(m[i].grad, r->n_params);
    }
    free(m);
    return close_group(&grp);
}

void sp_result_free(struct sp_result *r)
{
    free_grads(r->grad, r->n_params);
    memset(r, 0, sizeof(*r));
}
