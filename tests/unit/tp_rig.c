/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "tp_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coll_rig.h"

struct shared {
    const struct zb_graph *g;
    zb_real *const *params;
    const struct rig_batch *batch;
    const struct tp_opts *o;
    struct zb_bind bind;
    double scale;
};

/* What one rank has. */
struct rank {
    struct coll_rig_member *m;
    const struct shared *s;
    struct zb_chunk **chunk;
    void *(*space)[ZB_N_SPACES]; /* [n_chunks] */
    void **param, **grad, **consts, **data;
    void *sample, *loss_d;
    double loss;
    zb_real **grad_host; /* [n_uses] */
    zb_real *output;
    struct zb_shape output_shape;
};

static struct rank ranks[RIG_MEMBERS];

static enum zb_status tp_coll(void *arg, enum zb_axis axis,
                              struct zb_stream *stream, const struct zb_coll *c)
{
    const struct rank *k = arg;

    if (axis != ZB_AXIS_TP) {
        return zb_fail(ZB_EINVAL, "a collective over axis %d", (int)axis);
    }
    return zb_coll_run(k->m->r->g, k->m->rank, stream, c);
}

static const struct zb_coll_ops coll_ops = {.run = tp_coll};

/* ---- memory -------------------------------------------------------------- */

static enum zb_status sync(struct rank *k)
{
    return k->m->r->ops->stream_sync(k->m->stream[0]);
}

static enum zb_status put(struct rank *k, size_t bytes, const void *host,
                          void **out)
{
    const struct zb_backend_ops *ops = k->m->r->ops;

    *out = NULL;
    if (bytes == 0) {
        return ZB_OK;
    }
    ZB_TRY(ops->mem_alloc(k->m->dev, bytes, "tp rig", out));
    if (host == NULL) {
        return ZB_OK;
    }
    ZB_TRY(ops->copy_in(k->m->stream[0], *out, host, bytes, "put"));
    return sync(k);
}

static enum zb_status get(struct rank *k, size_t bytes, const void *dev,
                          void *host)
{
    ZB_TRY(k->m->r->ops->copy_out(k->m->stream[0], host, dev, bytes, "get"));
    return sync(k);
}

/* The shard of a whole parameter. */
static zb_real *cut(const struct zb_graph *g, int p, int rank,
                    const zb_real *whole)
{
    struct zb_param_info info = zb_graph_param(g, p);
    struct zb_piece piece[ZB_SPLIT_MAX];
    int n = zb_graph_param_pieces(g, p, rank, piece);
    zb_real *shard =
        calloc((size_t)zb_shape_elems(&info.shape), sizeof(*shard));

    for (int i = 0; i < n; i++) {
        for (int64_t row = 0; row < piece[i].rows; row++) {
            memcpy(shard + piece[i].shard_first + row * piece[i].shard_ld,
                   whole + piece[i].whole_first + row * piece[i].whole_ld,
                   (size_t)piece[i].cols * sizeof(*shard));
        }
    }
    return shard;
}

static size_t param_bytes(const struct zb_graph *g, int p)
{
    struct zb_param_info info = zb_graph_param(g, p);

    return (size_t)zb_shape_elems(&info.shape) * sizeof(zb_real);
}

static enum zb_status open_params(struct rank *k)
{
    const struct zb_graph *g = k->s->g;

    for (int p = 0; p < zb_graph_n_params(g); p++) {
        struct zb_param_info info = zb_graph_param(g, p);
        zb_real *shard = cut(g, p, k->m->rank, k->s->params[p]);
        enum zb_status st = put(k, param_bytes(g, p), shard, &k->param[p]);

        memset(shard, 0, param_bytes(g, p));
        for (int u = 0; st == ZB_OK && u < info.n_uses; u++) {
            st = put(k, param_bytes(g, p), shard, &k->grad[info.use_ids[u]]);
        }
        free(shard);
        ZB_TRY(st);
    }
    for (int i = 0; i < zb_graph_n_consts(g); i++) {
        struct zb_data_info info = zb_graph_const(g, i);

        ZB_TRY(put(k, (size_t)zb_shape_elems(&info.shape) * sizeof(zb_real),
                   zb_graph_const_value(g, i), &k->consts[i]));
    }
    return ZB_OK;
}

/* Rows of a field, each padded with 0, labels with -100. */
static enum zb_status open_field(struct rank *k, int d)
{
    const struct rig_batch *b = k->s->batch;
    struct zb_data_info info = zb_graph_data(k->s->g, d);
    struct zb_shape shape = zb_shape_bind(&info.shape, &k->s->bind);
    int64_t seq = k->s->bind.value[ZB_SYM_FULL];
    size_t bytes = (size_t)zb_shape_elems(&shape) * zb_dtype_bytes(info.dtype);
    size_t token = bytes / (size_t)(b->rows * seq);
    char *host = calloc(1, bytes);
    enum zb_status st;

    for (int64_t i = 0; i < b->rows * seq; i++) {
        static const int32_t ignored = -100;
        int64_t t = i % seq, r = i / seq;
        const char *v = b->data[d];

        if (t < b->seq) {
            memcpy(host + (size_t)i * token,
                   v + (size_t)(r * b->seq + t) * token, token);
        } else if (zb_graph_loss_labels(k->s->g) == d) {
            memcpy(host + (size_t)i * token, &ignored, sizeof(ignored));
        }
    }
    st = put(k, bytes, host, &k->data[d]);
    free(host);
    return st;
}

static enum zb_status open_data(struct rank *k)
{
    int64_t sample[64];

    for (int d = 0; d < zb_graph_n_data(k->s->g); d++) {
        ZB_TRY(open_field(k, d));
    }
    for (int i = 0; i < k->s->batch->rows; i++) {
        sample[i] = 100 + i;
    }
    return put(k, (size_t)k->s->batch->rows * sizeof(*sample), sample,
               &k->sample);
}

static enum zb_status open_chunks(struct rank *k)
{
    const struct tp_opts *o = k->s->o;

    for (int c = 0; c < o->n_chunks; c++) {
        struct zb_chunk_info info;

        ZB_TRY(zb_chunk_new(k->s->g, o->first[c], o->first[c + 1], &k->s->bind,
                            o->recompute, &k->chunk[c]));
        info = zb_chunk_info(k->chunk[c]);
        for (int s = 0; s < ZB_N_SPACES; s++) {
            if (c > 0 && s == ZB_SPACE_IN) {
                k->space[c][s] = k->space[c - 1][ZB_SPACE_OUT];
            } else if (c > 0 && s == ZB_SPACE_DOUT) {
                k->space[c][s] = k->space[c - 1][ZB_SPACE_DIN];
            } else {
                ZB_TRY(put(k, info.bytes[s], NULL, &k->space[c][s]));
            }
        }
    }
    return ZB_OK;
}

/* ---- running ------------------------------------------------------------- */

static struct zb_chunk_run run_of(struct rank *k, int c)
{
    struct zb_chunk_run run = {
        .ops = k->m->r->ops,
        .stream = k->m->stream[0],
        .bind = k->s->bind,
        .data = k->data,
        .consts = k->consts,
        .param = k->param,
        .grad = (zb_real *const *)k->grad,
        .loss_sum = k->loss_d,
        .loss_scale = k->s->scale,
        .is_training = 1,
        .tp_rank = k->m->rank,
        .n_padding = k->s->bind.value[ZB_SYM_FULL] - k->s->batch->seq,
        .coll = &coll_ops,
        .coll_arg = k,
        .seed = k->s->o->seed,
        .step = k->s->o->step,
        .sample = k->sample,
    };

    memcpy(run.space, k->space[c], sizeof(run.space));
    return run;
}

static enum zb_status save_output(struct rank *k, const struct zb_chunk *c,
                                  const struct zb_chunk_run *run)
{
    struct zb_view v;
    size_t n;

    if (zb_graph_n_outputs(k->s->g) == 0) {
        return ZB_OK;
    }
    v = zb_chunk_output(c, run, 0);
    n = (size_t)zb_shape_elems(&v.shape);
    k->output = calloc(n, sizeof(zb_real));
    k->output_shape = v.shape;
    return get(k, n * sizeof(zb_real), v.data, k->output);
}

static enum zb_status run_passes(struct rank *k)
{
    int n = k->s->o->n_chunks;

    for (int c = 0; c < n; c++) {
        struct zb_chunk_run run = run_of(k, c);

        ZB_TRY(zb_chunk_forward(k->chunk[c], &run));
        if (c == n - 1) {
            ZB_TRY(save_output(k, k->chunk[c], &run));
        }
    }
    for (int c = n - 1; c >= 0; c--) {
        struct zb_chunk_run run = run_of(k, c);

        ZB_TRY(zb_chunk_backward_input(k->chunk[c], &run));
        ZB_TRY(zb_chunk_backward_weight(k->chunk[c], &run));
    }
    return get(k, sizeof(k->loss), k->loss_d, &k->loss);
}

static enum zb_status collect(struct rank *k)
{
    const struct zb_graph *g = k->s->g;

    for (int p = 0; p < zb_graph_n_params(g); p++) {
        struct zb_param_info info = zb_graph_param(g, p);

        for (int i = 0; i < info.n_uses; i++) {
            int u = info.use_ids[i];

            k->grad_host[u] = malloc(param_bytes(g, p));
            ZB_TRY(get(k, param_bytes(g, p), k->grad[u], k->grad_host[u]));
        }
    }
    return ZB_OK;
}

static enum zb_status run_rank(struct rank *k)
{
    ZB_TRY(put(k, sizeof(double), NULL, &k->loss_d));
    ZB_TRY(open_params(k));
    ZB_TRY(open_data(k));
    ZB_TRY(open_chunks(k));
    ZB_TRY(run_passes(k));
    return collect(k);
}

static void drop(struct rank *k, void **list, int n)
{
    for (int i = 0; i < n; i++) {
        if (list[i] != NULL) {
            k->m->r->ops->mem_free(k->m->dev, list[i]);
        }
    }
}

static void close_rank(struct rank *k)
{
    const struct zb_graph *g = k->s->g;

    (void)!sync(k);
    /* The others may still read this one's memory. */
    (void)!zb_barrier_wait(&k->m->r->barrier, &k->m->r->ab);
    for (int c = 0; c < k->s->o->n_chunks; c++) {
        k->space[c][ZB_SPACE_IN] = c > 0 ? NULL : k->space[c][ZB_SPACE_IN];
        k->space[c][ZB_SPACE_DOUT] = c > 0 ? NULL : k->space[c][ZB_SPACE_DOUT];
        drop(k, k->space[c], ZB_N_SPACES);
        zb_chunk_free(k->chunk[c]);
    }
    drop(k, k->param, zb_graph_n_params(g));
    drop(k, k->grad, zb_graph_n_uses(g));
    drop(k, k->consts, zb_graph_n_consts(g));
    drop(k, k->data, zb_graph_n_data(g));
    drop(k, &k->sample, 1);
    drop(k, &k->loss_d, 1);
    free(k->chunk);
    free(k->space);
    free(k->param);
    free(k->grad);
    free(k->consts);
    free(k->data);
}

static enum zb_status member_main(struct coll_rig_member *m)
{
    struct rank *k = &ranks[m->rank];
    const struct shared *s = m->r->arg;
    enum zb_status st;

    *k = (struct rank){.m = m, .s = s};
    k->chunk = calloc((size_t)s->o->n_chunks, sizeof(*k->chunk));
    k->space = calloc((size_t)s->o->n_chunks, sizeof(*k->space));
    k->param = calloc((size_t)zb_graph_n_params(s->g) + 1, sizeof(void *));
    k->grad = calloc((size_t)zb_graph_n_uses(s->g) + 1, sizeof(void *));
    k->grad_host = calloc((size_t)zb_graph_n_uses(s->g) + 1, sizeof(void *));
    k->consts = calloc((size_t)zb_graph_n_consts(s->g) + 1, sizeof(void *));
    k->data = calloc((size_t)zb_graph_n_data(s->g) + 1, sizeof(void *));
    st = run_rank(k);
    if (st != ZB_OK) {
        zb_abort_raise(&m->r->ab, st, zb_error_text());
    }
    close_rank(k);
    return st;
}

/* ---- results ------------------------------------------------------------- */

static int is_padding_zero(const zb_real *shard, int64_t n,
                           const struct zb_piece *piece, int n_pieces)
{
    char *is_in = calloc((size_t)n, 1);
    int ok = 1;

    for (int i = 0; i < n_pieces; i++) {
        for (int64_t row = 0; row < piece[i].rows; row++) {
            memset(is_in + piece[i].shard_first + row * piece[i].shard_ld, 1,
                   (size_t)piece[i].cols);
        }
    }
    for (int64_t i = 0; i < n; i++) {
        ok &= is_in[i] || shard[i] == 0;
    }
    free(is_in);
    return ok;
}

static void add_pieces(double *whole, const zb_real *shard,
                       const struct zb_piece *piece, int n)
{
    for (int i = 0; i < n; i++) {
        for (int64_t row = 0; row < piece[i].rows; row++) {
            for (int64_t c = 0; c < piece[i].cols; c++) {
                whole[piece[i].whole_first + row * piece[i].whole_ld + c] +=
                    (double)shard[piece[i].shard_first +
                                  row * piece[i].shard_ld + c];
            }
        }
    }
}

static double *assemble(const struct zb_graph *g, int p, int tp)
{
    struct zb_param_info info = zb_graph_param(g, p);
    double *whole = calloc((size_t)zb_shape_elems(&info.whole), sizeof(*whole));

    for (int i = 0; i < info.n_uses; i++) {
        int u = info.use_ids[i];

        for (int r = 0; r < tp; r++) {
            struct zb_piece piece[ZB_SPLIT_MAX];
            int n = zb_graph_param_pieces(g, p, r, piece);
            int first = r - r % info.n_copies;

            CU_ASSERT(is_padding_zero(ranks[r].grad_host[u],
                                      zb_shape_elems(&info.shape), piece, n));
            if (info.is_partial || r == first) {
                add_pieces(whole, ranks[r].grad_host[u], piece, n);
            } else if (memcmp(ranks[r].grad_host[u], ranks[first].grad_host[u],
                              param_bytes(g, p)) != 0) {
                printf("\n%s: ranks %d and %d differ", info.name, first, r);
                CU_FAIL("copies of a gradient differ");
            }
        }
    }
    return whole;
}

/* Output 0 [B,T,..]: columns of ranks beside each other, without padding. */
static void assemble_output(const struct shared *s, struct tp_result *r)
{
    int64_t rows = s->batch->rows * s->batch->seq, cols, n_last;
    int64_t pad = s->bind.value[ZB_SYM_FULL] - s->batch->seq;

    if (ranks[0].output == NULL) {
        return;
    }
    cols = zb_shape_cols(&ranks[0].output_shape);
    n_last = zb_graph_output(s->g, 0).n_last;
    n_last = n_last > 0 ? n_last : cols;
    r->n_output = rows * n_last;
    r->output = calloc((size_t)r->n_output, sizeof(*r->output));
    for (int64_t i = 0; i < r->n_output; i++) {
        int64_t c = i % n_last, row = i / n_last;

        row += row / s->batch->seq * pad;
        r->output[i] = (double)ranks[c / cols].output[row * cols + c % cols];
    }
}

static double count_labels(const struct zb_graph *g,
                           const struct rig_batch *batch)
{
    const int32_t *v = batch->data[zb_graph_loss_labels(g)];
    double n = 0;

    for (int i = 0; i < batch->rows * batch->seq; i++) {
        n += v[i] != -100;
    }
    return n;
}

static void free_rank(const struct zb_graph *g, struct rank *k)
{
    for (int u = 0; u < zb_graph_n_uses(g); u++) {
        free(k->grad_host[u]);
    }
    free(k->grad_host);
    free(k->output);
}

void tp_run(const struct zb_graph *g, zb_real *const *params,
            const struct rig_batch *batch, const struct tp_opts *opts,
            struct tp_result *r)
{
    const struct zb_parallel *par = zb_graph_parallel(g);
    struct shared s = {
        .g = g,
        .params = params,
        .batch = batch,
        .o = opts,
        .bind = zb_parallel_bind(par, batch->rows, batch->seq),
        .scale = 1.0 / count_labels(g, batch),
    };
    static struct coll_rig rig;

    memset(r, 0, sizeof(*r));
    coll_rig_open(&rig, opts->backend != NULL ? opts->backend : "cpu", par->tp,
                  1, 20, 1);
    rig.arg = &s;
    coll_rig_run(&rig, member_main);
    CU_ASSERT_FATAL(coll_rig_is_fine(&rig));
    r->loss = ranks[0].loss * s.scale;
    r->n_params = zb_graph_n_params(g);
    r->grad = calloc((size_t)r->n_params + 1, sizeof(*r->grad));
    for (int p = 0; p < r->n_params; p++) {
        r->grad[p] = assemble(g, p, par->tp);
    }
    assemble_output(&s, r);
    for (int i = 0; i < par->tp; i++) {
        CU_ASSERT(memcmp(&ranks[i].loss, &ranks[0].loss, sizeof(double)) == 0);
    }
    for (int i = 0; i < par->tp; i++) {
        free_rank(g, &ranks[i]);
    }
    CU_ASSERT_EQUAL(coll_rig_close(&rig), 0);
}

void tp_result_free(struct tp_result *r)
{
    for (int p = 0; p < r->n_params; p++) {
        free(r->grad[p]);
    }
    free(r->grad);
    free(r->output);
    memset(r, 0, sizeof(*r));
}
