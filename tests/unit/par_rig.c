/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "par_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "par_plain.h"
#include "zb/check.h"
#include "zb/comm.h"
#include "zb/thread.h"

#define MAX_BLOCKS 512

/* What all ranks share. Ranks are numbered by sp, then tp. */
struct all {
    const struct zb_graph *g;
    zb_real *const *params;
    const struct rig_batch *batch;
    const struct par_opts *o;
    int tp, sp, n_chunks;
    int one_chunk[2];
    const int *first;
    struct zb_bind bind;
    double scale[ZB_LOSS_MAX];
    struct zb_backend *be;
    struct zb_chunk **chunk;
    struct zb_abort ab;
    struct zb_barrier bar;
    struct zb_coll_group *tp_group[PAR_MAX_RANKS]; /* of an sp rank */
    struct zb_coll_group *sp_group[PAR_MAX_RANKS]; /* of a tp rank */
    struct plain_group plain[PAR_MAX_RANKS];       /* of a tp rank */
};

struct rank {
    struct all *a;
    int tp, sp;
    struct zb_thread thread;
    const struct zb_backend_ops *ops;
    struct zb_device *dev;
    struct zb_stream *stream;
    struct plain_member plain;
    void *block[MAX_BLOCKS]; /* device memory */
    int n_blocks;
    void *(*space)[ZB_N_SPACES]; /* [n_chunks] */
    void **param, **grad, **consts, **data;
    void *sample, *loss_d;
    double loss[ZB_LOSS_MAX];
    zb_real **grad_host; /* [n_uses] */
    zb_real *output;
    struct zb_shape output_shape;
};

/* ---- collectives --------------------------------------------------------- */

static enum zb_status run(void *arg, enum zb_axis axis,
                          struct zb_stream *stream, const struct zb_coll *c)
{
    struct rank *k = arg;

    if (axis == ZB_AXIS_TP) {
        return zb_coll_run(k->a->tp_group[k->sp], k->tp, stream, c);
    }
    if (axis != ZB_AXIS_SP) {
        return zb_fail(ZB_EINVAL, "%s: axis %d", c->label, (int)axis);
    }
    return k->a->o->is_plain
               ? plain_run(&k->plain, stream, c)
               : zb_coll_run(k->a->sp_group[k->tp], k->sp, stream, c);
}

static enum zb_status ring_begin(void *arg, enum zb_axis axis,
                                 struct zb_stream *stream, const void *src,
                                 size_t bytes, const char *label)
{
    struct rank *k = arg;

    if (axis != ZB_AXIS_SP) {
        return zb_fail(ZB_EINVAL, "%s: axis %d", label, (int)axis);
    }
    return k->a->o->is_plain
               ? plain_ring_begin(&k->plain, stream, src, bytes)
               : zb_ring_begin(k->a->sp_group[k->tp], k->sp, stream, src,
                               bytes, label);
}

static enum zb_status ring_step(void *arg, enum zb_axis axis,
                                struct zb_stream *stream, int step,
                                const void **block_out)
{
    struct rank *k = arg;

    (void)axis;
    return k->a->o->is_plain
               ? plain_ring_step(&k->plain, stream, step, block_out)
               : zb_ring_step(k->a->sp_group[k->tp], k->sp, stream, step,
                              block_out);
}

static enum zb_status ring_end(void *arg, enum zb_axis axis,
                               struct zb_stream *stream)
{
    struct rank *k = arg;

    (void)axis;
    return k->a->o->is_plain
               ? plain_ring_end(&k->plain, stream)
               : zb_ring_end(k->a->sp_group[k->tp], k->sp, stream);
}

static const struct zb_coll_ops coll_ops = {.run = run,
                                            .ring_begin = ring_begin,
                                            .ring_step = ring_step,
                                            .ring_end = ring_end};

/* ---- memory -------------------------------------------------------------- */

/* Device memory: the host's values, or numbers that nobody may use. */
static enum zb_status put(struct rank *k, size_t bytes, const void *host,
                          void **out)
{
    CU_ASSERT_FATAL(k->n_blocks < MAX_BLOCKS);
    *out = NULL;
    if (bytes == 0) {
        return ZB_OK;
    }
    ZB_TRY(k->ops->mem_alloc(k->dev, bytes, "rig", out));
    k->block[k->n_blocks++] = *out;
    if (host == NULL) {
        memset(*out, 0xff, bytes);
        return ZB_OK;
    }
    ZB_TRY(k->ops->copy_in(k->stream, *out, host, bytes, "put"));
    return k->ops->stream_sync(k->stream);
}

static enum zb_status get(struct rank *k, size_t bytes, const void *dev,
                          void *host)
{
    ZB_TRY(k->ops->copy_out(k->stream, host, dev, bytes, "get"));
    return k->ops->stream_sync(k->stream);
}

/* The shard of a whole parameter. */
static zb_real *cut(const struct zb_graph *g, int p, int tp_rank,
                    const zb_real *whole)
{
    struct zb_param_info info = zb_graph_param(g, p);
    struct zb_piece piece[ZB_SPLIT_MAX];
    int n = zb_graph_param_pieces(g, p, tp_rank, piece);
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
    const struct zb_graph *g = k->a->g;

    for (int p = 0; p < zb_graph_n_params(g); p++) {
        struct zb_param_info info = zb_graph_param(g, p);
        zb_real *shard = cut(g, p, k->tp, k->a->params[p]);
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

static size_t loss_bytes(const struct rank *k)
{
    return (size_t)zb_graph_n_losses(k->a->g) * sizeof(double);
}

/* Where row t of the rank's part lies in the whole. */
static int64_t whole_row(const struct rank *k, int64_t t)
{
    struct zb_seq_place at = zb_parallel_place(zb_graph_parallel(k->a->g),
                                               k->sp, &k->a->bind);

    return t < at.len ? at.first[0] + t : at.first[1] + t - at.len;
}

/* The rank's part of each row of a field, padded with 0, labels with -100. */
static enum zb_status open_field(struct rank *k, int d)
{
    static const int32_t ignored = -100;
    const struct rig_batch *b = k->a->batch;
    struct zb_data_info info = zb_graph_data(k->a->g, d);
    struct zb_shape shape = zb_shape_bind(&info.shape, &k->a->bind);
    int has_seq = info.shape.n_dims > 1; /* else one number for each row */
    int is_whole = has_seq && info.shape.dim[1] == ZB_DIM(ZB_SYM_FULL);
    int64_t seq = has_seq ? shape.dim[1] : 1;
    size_t bytes = (size_t)zb_shape_elems(&shape) * zb_dtype_bytes(info.dtype);
    size_t token = bytes / (size_t)(b->rows * seq);
    char *host;
    enum zb_status st;

    if (!has_seq) {
        return put(k, bytes, b->data[d], &k->data[d]);
    }
    host = calloc(1, bytes);
    for (int64_t i = 0; i < b->rows * seq; i++) {
        int64_t r = i / seq, t = is_whole ? i % seq : whole_row(k, i % seq);

        if (t < b->seq) {
            memcpy(host + (size_t)i * token,
                   (const char *)b->data[d] + (size_t)(r * b->seq + t) * token,
                   token);
        } else if (zb_graph_loss_labels(k->a->g, 0) == d) {
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

    for (int d = 0; d < zb_graph_n_data(k->a->g); d++) {
        ZB_TRY(open_field(k, d));
    }
    for (int i = 0; i < k->a->batch->rows; i++) {
        sample[i] = 100 + i; /* as graph_rig numbers them */
    }
    return put(k, (size_t)k->a->batch->rows * sizeof(*sample), sample,
               &k->sample);
}

static enum zb_status open_spaces(struct rank *k)
{
    for (int c = 0; c < k->a->n_chunks; c++) {
        struct zb_chunk_info info = zb_chunk_info(k->a->chunk[c]);

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
    const struct all *a = k->a;
    struct zb_chunk_run pass = {
        .ops = k->ops,
        .stream = k->stream,
        .bind = a->bind,
        .data = k->data,
        .consts = k->consts,
        .param = k->param,
        .grad = (zb_real *const *)k->grad,
        .loss_sum = k->loss_d,
        .loss_scale = {a->scale[0], a->scale[1]},
        .is_training = !a->o->is_eval,
        .tp_rank = k->tp,
        .sp_rank = k->sp,
        .n_padding = a->bind.value[ZB_SYM_FULL] - a->batch->seq,
        .coll = &coll_ops,
        .coll_arg = k,
        .seed = a->o->seed,
        .step = a->o->step,
        .sample = k->sample,
    };

    memcpy(pass.space, k->space[c], sizeof(pass.space));
    return pass;
}

static enum zb_status save_output(struct rank *k, const struct zb_chunk *c,
                                  const struct zb_chunk_run *pass)
{
    struct zb_view v;
    size_t n;

    if (zb_graph_n_outputs(k->a->g) == 0) {
        return ZB_OK;
    }
    v = zb_chunk_output(c, pass, 0);
    n = (size_t)zb_shape_elems(&v.shape);
    k->output = calloc(n, sizeof(zb_real));
    k->output_shape = v.shape;
    return get(k, n * sizeof(zb_real), v.data, k->output);
}

static int has_backward(const struct all *a)
{
    return !a->o->is_eval && !a->o->no_backward;
}

static enum zb_status run_passes(struct rank *k)
{
    int n = k->a->n_chunks;

    for (int c = 0; c < n; c++) {
        struct zb_chunk_run pass = run_of(k, c);

        ZB_TRY(zb_chunk_forward(k->a->chunk[c], &pass));
        if (c == n - 1) {
            ZB_TRY(save_output(k, k->a->chunk[c], &pass));
        }
    }
    for (int c = n - 1; has_backward(k->a) && c >= 0; c--) {
        struct zb_chunk_run pass = run_of(k, c);

        ZB_TRY(zb_chunk_backward_input(k->a->chunk[c], &pass));
        ZB_TRY(zb_chunk_backward_weight(k->a->chunk[c], &pass));
    }
    return get(k, loss_bytes(k), k->loss_d, k->loss);
}

static enum zb_status collect(struct rank *k)
{
    const struct zb_graph *g = k->a->g;

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

static enum zb_status join(struct rank *k)
{
    struct all *a = k->a;
    int rank = k->sp * a->tp + k->tp;

    ZB_TRY(k->ops->device_open(a->be, rank, &k->dev));
    ZB_TRY(k->ops->stream_new(k->dev, "rig", &k->stream));
    k->plain = (struct plain_member){.group = &a->plain[k->tp],
                                     .rank = k->sp,
                                     .ops = k->ops,
                                     .dev = k->dev};
    ZB_TRY(zb_coll_join(a->tp_group[k->sp], k->tp, k->dev));
    ZB_TRY(zb_coll_join(a->sp_group[k->tp], k->sp, k->dev));
    return zb_barrier_wait(&a->bar, &a->ab);
}

static enum zb_status run_rank(struct rank *k)
{
    ZB_TRY(join(k));
    ZB_TRY(put(k, loss_bytes(k), NULL, &k->loss_d));
    ZB_TRY(open_params(k));
    ZB_TRY(open_data(k));
    ZB_TRY(open_spaces(k));
    ZB_TRY(run_passes(k));
    return collect(k);
}

static void close_rank(struct rank *k)
{
    struct all *a = k->a;

    if (k->stream != NULL) {
        (void)!k->ops->stream_sync(k->stream);
    }
    /* The others may still read this one's memory. */
    (void)!zb_barrier_wait(&a->bar, NULL);
    if (k->dev == NULL) {
        return;
    }
    zb_coll_leave(a->tp_group[k->sp], k->tp);
    zb_coll_leave(a->sp_group[k->tp], k->sp);
    if (k->stream != NULL) {
        k->ops->stream_free(k->stream);
    }
    plain_member_release(&k->plain);
    for (int i = k->n_blocks - 1; i >= 0; i--) {
        k->ops->mem_free(k->dev, k->block[i]);
    }
    k->ops->device_close(k->dev);
}

static void rank_main(void *arg)
{
    struct rank *k = arg;
    enum zb_status st = run_rank(k);

    if (st != ZB_OK) {
        zb_abort_raise(&k->a->ab, st, zb_error_text());
    }
    close_rank(k);
}

/* ---- all of them --------------------------------------------------------- */

static void open_groups(struct all *a)
{
    for (int i = 0; i < a->sp; i++) {
        const struct zb_coll_group_opts o = {.ops = a->be->ops,
                                             .name = "tp group",
                                             .n_members = a->tp,
                                             .n_under_way = 1};

        ZBT_OK(zb_coll_group_new(&o, &a->ab, &a->tp_group[i]));
    }
    for (int i = 0; i < a->tp; i++) {
        const struct zb_coll_group_opts o = {.ops = a->be->ops,
                                             .name = "sp group",
                                             .n_members = a->sp,
                                             .n_under_way = 1};

        ZBT_OK(zb_coll_group_new(&o, &a->ab, &a->sp_group[i]));
        plain_group_init(&a->plain[i], a->sp, &a->ab);
    }
}

static double count_labels(const struct zb_graph *g, int loss,
                           const struct rig_batch *batch)
{
    int labels = zb_graph_loss_labels(g, loss);
    int has_seq = zb_graph_data(g, labels).shape.n_dims > 1;
    const int32_t *v = batch->data[labels];
    double n = 0;

    for (int i = 0; i < batch->rows * (has_seq ? batch->seq : 1); i++) {
        n += v[i] != -100;
    }
    return n;
}

static void open_all(struct all *a)
{
    const struct zb_parallel *par = zb_graph_parallel(a->g);
    struct zb_backend_opts o = {
        .n_devices = par->tp * par->sp,
        .threads_per_device = a->o->n_threads > 0 ? a->o->n_threads : 1,
        .seed = a->o->delay_seed,
        .max_delay_us = a->o->delay_seed > 0 ? 20 : 0,
    };

    CU_ASSERT_FATAL(o.n_devices <= PAR_MAX_RANKS);
    a->tp = par->tp;
    a->sp = par->sp;
    a->n_chunks = a->o->n_chunks > 0 ? a->o->n_chunks : 1;
    a->one_chunk[1] = zb_graph_n_layers(a->g);
    a->first = a->o->n_chunks > 0 ? a->o->first : a->one_chunk;
    a->bind = zb_parallel_bind(par, a->batch->rows, a->batch->seq);
    for (int i = 0; i < zb_graph_n_losses(a->g); i++) {
        a->scale[i] = a->o->loss_scale != 0
                          ? a->o->loss_scale
                          : 1.0 / count_labels(a->g, i, a->batch);
    }
    ZBT_OK(zb_backend_open(a->o->backend != NULL ? a->o->backend : "cpu", &o,
                           &a->be));
    zb_abort_init(&a->ab);
    zb_barrier_init(&a->bar, (uint32_t)o.n_devices);
    open_groups(a);
    a->chunk = calloc((size_t)a->n_chunks, sizeof(*a->chunk));
    for (int c = 0; c < a->n_chunks; c++) {
        ZBT_OK(zb_chunk_new(a->g, a->first[c], a->first[c + 1], &a->bind,
                            a->o->recompute, &a->chunk[c]));
    }
}

static void expect_success(const struct all *a)
{
    if (zb_abort_is_raised(&a->ab)) {
        printf("\n%s\n", a->ab.text);
        CU_FAIL_FATAL("a rank failed");
    }
}

static void close_all(struct all *a)
{
    for (size_t i = 0; i < zb_check_reports(a->be); i++) {
        printf("\n%s\n", zb_check_report_text(a->be, i));
        CU_FAIL("a report of the check backend");
    }
    for (int c = 0; c < a->n_chunks; c++) {
        zb_chunk_free(a->chunk[c]);
    }
    free(a->chunk);
    for (int i = 0; i < PAR_MAX_RANKS; i++) {
        zb_coll_group_free(a->tp_group[i]);
        zb_coll_group_free(a->sp_group[i]);
    }
    zb_abort_release(&a->ab);
    zb_backend_close(a->be);
}

static void open_lists(struct rank *k, struct all *a, int rank)
{
    const struct zb_graph *g = a->g;
    size_t n_params = (size_t)zb_graph_n_params(g) + 1;
    size_t n_uses = (size_t)zb_graph_n_uses(g) + 1;

    k->a = a;
    k->tp = rank % a->tp;
    k->sp = rank / a->tp;
    k->ops = a->be->ops;
    k->space = calloc((size_t)a->n_chunks, sizeof(*k->space));
    k->param = calloc(n_params, sizeof(void *));
    k->grad = calloc(n_uses, sizeof(void *));
    k->grad_host = calloc(n_uses, sizeof(void *));
    k->consts = calloc((size_t)zb_graph_n_consts(g) + 1, sizeof(void *));
    k->data = calloc((size_t)zb_graph_n_data(g) + 1, sizeof(void *));
}

static void close_lists(struct rank *k)
{
    for (int u = 0; u < zb_graph_n_uses(k->a->g); u++) {
        free(k->grad_host[u]);
    }
    free(k->space);
    free(k->param);
    free(k->grad);
    free(k->grad_host);
    free(k->consts);
    free(k->data);
    free(k->output);
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

/* Add what a rank has of the gradient of a use. */
static void add_use(const struct rank *k, int rank, int p, int u,
                    double *whole)
{
    const struct zb_graph *g = k[rank].a->g;
    struct zb_param_info info = zb_graph_param(g, p);
    struct zb_piece piece[ZB_SPLIT_MAX];
    int n = zb_graph_param_pieces(g, p, k[rank].tp, piece);
    int first = rank - k[rank].tp % info.n_copies;

    CU_ASSERT(is_padding_zero(k[rank].grad_host[u],
                              zb_shape_elems(&info.shape), piece, n));
    if (info.is_partial || rank == first) {
        add_pieces(whole, k[rank].grad_host[u], piece, n);
    } else if (memcmp(k[rank].grad_host[u], k[first].grad_host[u],
                      param_bytes(g, p)) != 0) {
        printf("\n%s: ranks %d and %d differ", info.name, first, rank);
        CU_FAIL("copies of a gradient differ");
    }
}

static double *assemble(const struct all *a, const struct rank *k, int p)
{
    struct zb_param_info info = zb_graph_param(a->g, p);
    double *whole = calloc((size_t)zb_shape_elems(&info.whole), sizeof(*whole));

    for (int i = 0; has_backward(a) && i < info.n_uses; i++) {
        for (int r = 0; r < a->tp * a->sp; r++) {
            add_use(k, r, p, info.use_ids[i], whole);
        }
    }
    return whole;
}

/* Output 0 [B,T,..] or [B,..]: columns of tp ranks beside each other, without
 * padding. */
static void assemble_output(const struct all *a, const struct rank *k,
                            struct par_result *r)
{
    int64_t cols = zb_shape_cols(&k[0].output_shape);
    int has_tokens = k[0].output_shape.n_dims > 2;
    int64_t seq = has_tokens ? k[0].output_shape.dim[1] : 1, n_last;
    int64_t whole_seq = has_tokens ? a->batch->seq : 1;

    if (k[0].output == NULL) {
        return;
    }
    n_last = zb_graph_output(a->g, 0).n_last;
    n_last = n_last > 0 ? n_last : cols;
    r->n_output = a->batch->rows * whole_seq * n_last;
    r->output = calloc((size_t)r->n_output, sizeof(*r->output));
    for (int64_t i = 0; i < a->sp * a->batch->rows * seq * n_last; i++) {
        int64_t c = i % n_last, at = i / n_last;
        int64_t sp = at / seq / a->batch->rows, b = at / seq % a->batch->rows;
        const struct rank *from = &k[sp * a->tp + c / cols];
        int64_t row = has_tokens ? whole_row(from, at % seq) : 0;

        if (row < whole_seq) {
            r->output[(b * whole_seq + row) * n_last + c] =
                (double)from->output[(b * seq + at % seq) * cols + c % cols];
        }
    }
}

static void take_results(const struct all *a, const struct rank *k,
                         struct par_result *r)
{
    r->n_params = zb_graph_n_params(a->g);
    r->grad = calloc((size_t)r->n_params + 1, sizeof(*r->grad));
    for (int i = 0; i < a->tp * a->sp; i++) {
        const struct rank *first = &k[i - k[i].tp];

        for (int l = 0; l < zb_graph_n_losses(a->g); l++) {
            CU_ASSERT(memcmp(&k[i].loss[l], &first->loss[l], sizeof(double)) ==
                      0);
            r->loss += k[i].tp == 0 ? k[i].loss[l] * a->scale[l] : 0;
        }
    }
    for (int p = 0; p < r->n_params; p++) {
        r->grad[p] = assemble(a, k, p);
    }
    assemble_output(a, k, r);
}

void par_run(const struct zb_graph *g, zb_real *const *params,
             const struct rig_batch *batch, const struct par_opts *opts,
             struct par_result *r)
{
    struct all a = {.g = g, .params = params, .batch = batch, .o = opts};
    struct rank *k = calloc(PAR_MAX_RANKS, sizeof(*k));

    memset(r, 0, sizeof(*r));
    open_all(&a);
    for (int i = 0; i < a.tp * a.sp; i++) {
        open_lists(&k[i], &a, i);
        ZBT_OK(zb_thread_start(&k[i].thread, "rank", rank_main, &k[i]));
    }
    for (int i = 0; i < a.tp * a.sp; i++) {
        zb_thread_join(&k[i].thread);
    }
    expect_success(&a);
    take_results(&a, k, r);
    for (int i = 0; i < a.tp * a.sp; i++) {
        close_lists(&k[i]);
    }
    free(k);
    close_all(&a);
}

void par_result_free(struct par_result *r)
{
    for (int p = 0; p < r->n_params; p++) {
        free(r->grad[p]);
    }
    free(r->grad);
    free(r->output);
    memset(r, 0, sizeof(*r));
}
