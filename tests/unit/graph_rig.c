/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "graph_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/backend.h"
#include "zb/check.h"

#define GUARD 64
#define GUARD_BYTE 0xA5

/* Device memory between two guards. */
struct block {
    char *base;
    size_t bytes;
};

/* Whose W's run together. */
#define RIG_MAX_MICRO 16

struct rig {
    const struct zb_graph *g;
    const struct rig_batch *batch;
    const struct rig_opts *o;
    struct zb_backend *be;
    struct zb_device *dev;
    struct zb_stream *stream;
    int is_strict; /* device memory may be looked at and poisoned */
    int n_micro, *row0, *rows;
    struct zb_chunk **chunk;
    struct block *space;   /* [chunk][micro][space] */
    struct block *scratch; /* [chunk] */
    struct block *param, *grad, *consts, *data, *sample, *loss;
    void **param_ptr, **grad_ptr, **consts_ptr;
    zb_real **early; /* [n_uses] gradients when they were said to be complete */
    int hook_chunk;
    void **data_ptr; /* [micro][n_data] */
};

/* ---- memory -------------------------------------------------------------- */

static void sync(struct rig *k)
{
    ZBT_OK(k->be->ops->stream_sync(k->stream));
}

static struct block block_new(struct rig *k, size_t bytes, const void *values)
{
    struct block b = {NULL, bytes};
    void *ptr;

    if (bytes == 0) {
        return b;
    }
    ZBT_OK(k->be->ops->mem_alloc(k->dev, bytes + 2 * GUARD, "rig", &ptr));
    b.base = ptr;
    if (k->is_strict) {
        memset(b.base, GUARD_BYTE, bytes + 2 * GUARD);
        memset(b.base + GUARD, 0xFF, bytes);
    }
    if (values != NULL) {
        ZBT_OK(k->be->ops->copy_in(k->stream, b.base + GUARD, values, bytes,
                                   "rig in"));
        sync(k);
    }
    return b;
}

/* The host's reals as the graph stores them, in a block of `bytes`; anything
 * else as it is. */
static struct block block_store(struct rig *k, size_t bytes,
                                enum zb_dtype dtype, const void *values)
{
    struct block b;
    void *stored;

    if (!zb_dtype_is_storage(dtype)) {
        return block_new(k, bytes, values);
    }
    stored = calloc(1, bytes);
    zb_dtype_store(dtype, (int64_t)(bytes / zb_dtype_bytes(dtype)), values,
                   stored);
    b = block_new(k, bytes, stored);
    free(stored);
    return b;
}

static void *at(const struct block *b)
{
    return b->base == NULL ? NULL : b->base + GUARD;
}

static void block_free(struct rig *k, struct block *b)
{
    if (b->base == NULL) {
        return;
    }
    for (int i = 0; k->is_strict && i < GUARD; i++) {
        if ((unsigned char)b->base[i] != GUARD_BYTE ||
            (unsigned char)b->base[GUARD + b->bytes + (size_t)i] !=
                GUARD_BYTE) {
            CU_FAIL("a guard was overwritten");
            break;
        }
    }
    k->be->ops->mem_free(k->dev, b->base);
    b->base = NULL;
}

static void poison(struct rig *k, const struct block *b)
{
    if (b->base == NULL) {
        return;
    }
    if (k->is_strict) {
        sync(k);
        memset(at(b), 0xFF, b->bytes);
    } else {
        ZBT_OK(k->be->ops->discard(k->stream, at(b), b->bytes));
    }
}

/* Every line of a block was written to. */
static void expect_full(struct rig *k, const struct block *b, const char *what)
{
    static const unsigned char blank[64] = {
        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};

    if (!k->is_strict || b->base == NULL) {
        return;
    }
    for (size_t i = 0; i < b->bytes; i += 64) {
        if (memcmp(b->base + GUARD + i, blank, 64) == 0) {
            printf("\n%s: bytes %zu.. of %zu are never written\n", what, i,
                   b->bytes);
            CU_FAIL("memory that nobody uses");
            return;
        }
    }
}

static void read_back(struct rig *k, const struct block *b, void *out)
{
    ZBT_OK(k->be->ops->copy_out(k->stream, out, at(b), b->bytes, "rig out"));
    sync(k);
}

/* ---- set up -------------------------------------------------------------- */

static void split_rows(struct rig *k)
{
    k->n_micro = k->o->n_micro > 0 ? k->o->n_micro : 1;
    k->row0 = calloc((size_t)k->n_micro + 1, sizeof(int));
    k->rows = calloc((size_t)k->n_micro, sizeof(int));
    for (int m = 0; m < k->n_micro; m++) {
        k->rows[m] = k->o->rows != NULL ? k->o->rows[m]
                                        : k->batch->rows / k->n_micro;
        k->row0[m + 1] = k->row0[m] + k->rows[m];
    }
    CU_ASSERT_EQUAL_FATAL(k->row0[k->n_micro], k->batch->rows);
}

static struct zb_bind bind_of(const struct rig *k, int m)
{
    struct zb_bind bind = {{k->rows[m], k->batch->seq}};

    return bind;
}

static struct zb_bind max_bind(const struct rig *k)
{
    struct zb_bind max = {{1, k->batch->seq}};

    for (int m = 0; m < k->n_micro; m++) {
        if (k->rows[m] > max.value[0]) {
            max.value[0] = k->rows[m];
        }
    }
    return max;
}

static size_t bound_bytes(const struct zb_data_info *info,
                          const struct zb_bind *bind)
{
    struct zb_shape s = zb_shape_bind(&info->shape, bind);

    return (size_t)zb_shape_elems(&s) * zb_dtype_bytes(info->dtype);
}

static void open_data(struct rig *k)
{
    int n_data = zb_graph_n_data(k->g);

    k->data = calloc((size_t)(n_data * k->n_micro), sizeof(*k->data));
    k->data_ptr = calloc((size_t)(n_data * k->n_micro), sizeof(void *));
    k->sample = calloc((size_t)k->n_micro, sizeof(*k->sample));
    for (int m = 0; m < k->n_micro; m++) {
        int64_t *ids = calloc((size_t)k->rows[m], sizeof(*ids));

        for (int i = 0; i < k->rows[m]; i++) {
            ids[i] = 100 + k->row0[m] + i;
        }
        k->sample[m] =
            block_new(k, (size_t)k->rows[m] * sizeof(*ids), ids);
        free(ids);
        for (int d = 0; d < n_data; d++) {
            struct zb_data_info info = zb_graph_data(k->g, d);
            struct zb_bind bind = bind_of(k, m);
            size_t bytes = bound_bytes(&info, &bind);
            const char *src = k->batch->data[d];
            size_t elem = zb_dtype_is_storage(info.dtype)
                              ? sizeof(zb_real)
                              : zb_dtype_bytes(info.dtype);
            size_t row = bytes / zb_dtype_bytes(info.dtype) * elem /
                         (size_t)k->rows[m];

            k->data[m * n_data + d] = block_store(
                k, bytes, info.dtype, src + row * (size_t)k->row0[m]);
            k->data_ptr[m * n_data + d] = at(&k->data[m * n_data + d]);
        }
    }
}

static size_t param_elems(const struct zb_graph *g, int p)
{
    struct zb_param_info info = zb_graph_param(g, p);

    return (size_t)zb_shape_elems(&info.shape);
}

static void open_params(struct rig *k, zb_real *const *params)
{
    int n = zb_graph_n_params(k->g), n_uses = zb_graph_n_uses(k->g);
    int n_consts = zb_graph_n_consts(k->g);

    k->param = calloc((size_t)n + 1, sizeof(*k->param));
    k->param_ptr = calloc((size_t)n + 1, sizeof(void *));
    k->grad = calloc((size_t)n_uses + 1, sizeof(*k->grad));
    k->grad_ptr = calloc((size_t)n_uses + 1, sizeof(void *));
    k->early = calloc((size_t)n_uses + 1, sizeof(*k->early));
    k->consts = calloc((size_t)n_consts + 1, sizeof(*k->consts));
    k->consts_ptr = calloc((size_t)n_consts + 1, sizeof(void *));
    for (int p = 0; p < n; p++) {
        struct zb_param_info info = zb_graph_param(k->g, p);
        size_t bytes = param_elems(k->g, p) * sizeof(zb_real);
        void *zeros = calloc(1, bytes);

        k->param[p] = block_store(k,
                                  param_elems(k->g, p) *
                                      zb_dtype_bytes(zb_graph_storage(k->g)),
                                  zb_graph_storage(k->g), params[p]);
        k->param_ptr[p] = at(&k->param[p]);
        for (int u = 0; u < info.n_uses; u++) {
            k->grad[info.use_ids[u]] = block_new(k, bytes, zeros);
            k->grad_ptr[info.use_ids[u]] = at(&k->grad[info.use_ids[u]]);
        }
        free(zeros);
    }
    for (int i = 0; i < n_consts; i++) {
        struct zb_data_info info = zb_graph_const(k->g, i);

        k->consts[i] = block_new(
            k, (size_t)zb_shape_elems(&info.shape) * sizeof(zb_real),
            zb_graph_const_value(k->g, i));
        k->consts_ptr[i] = at(&k->consts[i]);
    }
}

/* Where it may not look inside, a message is the sender's block itself. */
static struct block *space(struct rig *k, int c, int m, int s)
{
    if (s == ZB_SPACE_SCRATCH) {
        return &k->scratch[c];
    }
    if (!k->is_strict && s == ZB_SPACE_IN && c > 0) {
        return space(k, c - 1, m, ZB_SPACE_OUT);
    }
    if (!k->is_strict && s == ZB_SPACE_DIN && c + 1 < k->o->n_chunks) {
        return space(k, c + 1, m, ZB_SPACE_DOUT);
    }
    return &k->space[(c * k->n_micro + m) * ZB_N_SPACES + s];
}

static void open_chunks(struct rig *k, struct rig_result *r)
{
    int n = k->o->n_chunks;
    struct zb_bind max = max_bind(k);

    k->chunk = calloc((size_t)n, sizeof(*k->chunk));
    k->scratch = calloc((size_t)n, sizeof(*k->scratch));
    k->space = calloc((size_t)(n * k->n_micro * ZB_N_SPACES),
                      sizeof(*k->space));
    for (int c = 0; c < n; c++) {
        struct zb_chunk_info info;

        ZBT_OK(zb_chunk_new(k->g, k->o->first[c], k->o->first[c + 1], &max,
                            k->o->recompute, &k->chunk[c]));
        info = zb_chunk_info(k->chunk[c]);
        k->scratch[c] = block_new(k, info.bytes[ZB_SPACE_SCRATCH], NULL);
        for (int s = 0; s < ZB_N_SPACES; s++) {
            CU_ASSERT_EQUAL(info.bytes[s] % 64, 0);
            r->bytes[s] += info.bytes[s];
            for (int m = 0; s != ZB_SPACE_SCRATCH && m < k->n_micro; m++) {
                struct block *b = space(k, c, m, s);

                if (b->base == NULL) {
                    *b = block_new(k, info.bytes[s], NULL);
                }
            }
        }
        for (int p = 0; p < ZB_N_PASSES; p++) {
            r->n_ops[p] += info.n_ops[p];
        }
    }
    for (int c = 0; c + 1 < n; c++) {
        struct zb_chunk_info a = zb_chunk_info(k->chunk[c]);
        struct zb_chunk_info b = zb_chunk_info(k->chunk[c + 1]);

        CU_ASSERT_EQUAL_FATAL(a.bytes[ZB_SPACE_OUT], b.bytes[ZB_SPACE_IN]);
        CU_ASSERT_EQUAL_FATAL(a.bytes[ZB_SPACE_DIN], b.bytes[ZB_SPACE_DOUT]);
    }
}

/* The device of the default backend is opened once: a test of differences runs
 * thousands of graphs. */
static struct {
    struct zb_backend *be;
    struct zb_device *dev;
    struct zb_stream *stream;
} kept;

static void close_device(struct zb_backend *be, struct zb_device *dev,
                         struct zb_stream *stream)
{
    be->ops->stream_free(stream);
    be->ops->device_close(dev);
    zb_backend_close(be);
}

static void close_kept(void)
{
    close_device(kept.be, kept.dev, kept.stream);
}

static int uses_kept(const struct rig *k)
{
    return k->o->backend == NULL && k->o->n_threads <= 1;
}

static void open_rig(struct rig *k)
{
    struct zb_backend_opts opts = {
        .n_devices = 1,
        .threads_per_device = k->o->n_threads > 0 ? k->o->n_threads : 1,
        .seed = k->o->delay_seed,
        .max_delay_us = 20,
    };
    const char *name = k->o->backend != NULL ? k->o->backend : "cpu";

    k->is_strict = strcmp(name, "cpu") == 0;
    if (!uses_kept(k) || kept.be == NULL) {
        ZBT_OK(zb_backend_open(name, &opts, &k->be));
        ZBT_OK(k->be->ops->device_open(k->be, 0, &k->dev));
        ZBT_OK(k->be->ops->stream_new(k->dev, "rig", &k->stream));
    }
    if (uses_kept(k) && kept.be == NULL) {
        kept.be = k->be;
        kept.dev = k->dev;
        kept.stream = k->stream;
        atexit(close_kept);
    }
    if (uses_kept(k)) {
        k->be = kept.be;
        k->dev = kept.dev;
        k->stream = kept.stream;
    }
}

/* ---- running ------------------------------------------------------------- */

/* Labels that count, of the whole batch. */
static double count_all(const struct rig *k, int loss)
{
    int labels = zb_graph_loss_labels(k->g, loss);
    struct zb_bind all = {{k->batch->rows, k->batch->seq}};
    struct zb_data_info info;
    const int32_t *v;
    int64_t n, count = 0;

    if (labels < 0) {
        return (double)zb_graph_loss_elems(k->g, loss, &all);
    }
    info = zb_graph_data(k->g, labels);
    n = (int64_t)(bound_bytes(&info, &all) / sizeof(int32_t));
    v = k->batch->data[labels];
    for (int64_t i = 0; i < n; i++) {
        count += v[i] != -100;
    }
    return (double)count;
}

static struct zb_chunk_run run_of(struct rig *k, int c, int m,
                                  const double *scale)
{
    struct zb_chunk_run run = {
        .ops = k->be->ops,
        .stream = k->stream,
        .bind = bind_of(k, m),
        .data = k->data_ptr + m * zb_graph_n_data(k->g),
        .consts = k->consts_ptr,
        .param = k->param_ptr,
        .grad = (zb_real *const *)k->grad_ptr,
        .loss_sum = at(&k->loss[m]),
        .loss_scale = {scale[0], scale[1]},
        .is_training = !k->o->is_eval,
        .seed = k->o->seed,
        .step = k->o->step,
        .sample = at(&k->sample[m]),
    };

    for (int s = 0; s < ZB_N_SPACES; s++) {
        run.space[s] = at(space(k, c, m, s));
    }
    return run;
}

/* A message arrives as a copy; the sender's block is as good as gone. */
static void hand_over(struct rig *k, struct block *from, struct block *to)
{
    void *host;

    if (from->base == NULL || !k->is_strict) {
        return;
    }
    host = malloc(from->bytes);
    read_back(k, from, host);
    ZBT_OK(k->be->ops->copy_in(k->stream, at(to), host, to->bytes, "in"));
    sync(k);
    free(host);
    poison(k, from);
}

static int is_full(const struct rig *k, int m)
{
    return k->rows[m] == max_bind(k).value[0];
}

static void save_output(struct rig *k, int c, int m,
                        const struct zb_chunk_run *run, struct rig_result *r)
{
    struct zb_view v;
    int64_t n;
    void *host;

    if (zb_graph_n_outputs(k->g) == 0) {
        return;
    }
    v = zb_chunk_output(k->chunk[c], run, 0);
    n = zb_shape_elems(&v.shape);
    host = calloc((size_t)n, zb_dtype_bytes(v.dtype));
    ZBT_OK(k->be->ops->copy_out(k->stream, host, v.data,
                                (size_t)n * zb_dtype_bytes(v.dtype),
                                "output"));
    sync(k);
    r->output = realloc(r->output,
                        (size_t)(r->n_output + n) * sizeof(*r->output));
    for (int64_t i = 0; i < n; i++) {
        zb_real x;

        zb_dtype_load(v.dtype, 1,
                      (char *)host + (size_t)i * zb_dtype_bytes(v.dtype), &x);
        r->output[r->n_output + i] = (double)x;
    }
    r->n_output += n;
    free(host);
    (void)m;
}

static void drop_after(struct rig *k, int c, int m, enum zb_pass pass)
{
    struct zb_chunk_info info = zb_chunk_info(k->chunk[c]);

    if (info.in_until == pass) {
        poison(k, space(k, c, m, ZB_SPACE_IN));
    }
    if (info.din_until == pass) {
        poison(k, space(k, c, m, ZB_SPACE_DIN));
    }
    poison(k, &k->scratch[c]);
}

static void forward(struct rig *k, int c, int m, const double *scale,
                    struct rig_result *r)
{
    struct zb_chunk_run run = run_of(k, c, m, scale);

    ZBT_OK(zb_chunk_forward(k->chunk[c], &run));
    sync(k);
    if (is_full(k, m)) {
        expect_full(k, space(k, c, m, ZB_SPACE_FB), "FB");
        expect_full(k, space(k, c, m, ZB_SPACE_FW), "FW");
        expect_full(k, space(k, c, m, ZB_SPACE_OUT), "OUT");
    }
    if (zb_chunk_info(k->chunk[c]).has_loss) {
        save_output(k, c, m, &run, r);
    }
    if (c + 1 < k->o->n_chunks) {
        hand_over(k, space(k, c, m, ZB_SPACE_OUT),
                  space(k, c + 1, m, ZB_SPACE_IN));
    }
    drop_after(k, c, m, ZB_PASS_F);
}

static void backward(struct rig *k, int c, int m, const double *scale)
{
    struct zb_chunk_run run = run_of(k, c, m, scale);

    ZBT_OK(zb_chunk_backward_input(k->chunk[c], &run));
    sync(k);
    if (is_full(k, m)) {
        expect_full(k, space(k, c, m, ZB_SPACE_BW), "BW");
        expect_full(k, space(k, c, m, ZB_SPACE_DOUT), "DOUT");
    }
    if (c > 0) {
        hand_over(k, space(k, c, m, ZB_SPACE_DOUT),
                  space(k, c - 1, m, ZB_SPACE_DIN));
    }
    poison(k, space(k, c, m, ZB_SPACE_FB));
    drop_after(k, c, m, ZB_PASS_B);
}

static void weight(struct rig *k, int c, int m, const double *scale)
{
    struct zb_chunk_run run = run_of(k, c, m, scale);

    ZBT_OK(zb_chunk_backward_weight(k->chunk[c], &run));
    drop_after(k, c, m, ZB_PASS_W);
    poison(k, space(k, c, m, ZB_SPACE_FW));
    poison(k, space(k, c, m, ZB_SPACE_BW));
}

/* Keep the gradients that are complete, to be compared with the final ones. */
static enum zb_status keep_complete(void *arg, int launch)
{
    struct rig *k = arg;
    struct zb_chunk_info info = zb_chunk_info(k->chunk[k->hook_chunk]);

    for (int i = 0; i < info.n_uses; i++) {
        int u = info.uses[i];

        if (info.use_done[i] == launch && k->grad[u].bytes > 0) {
            free(k->early[u]);
            k->early[u] = malloc(k->grad[u].bytes);
            read_back(k, &k->grad[u], k->early[u]);
        }
    }
    return ZB_OK;
}

static void expect_complete(struct rig *k)
{
    for (int u = 0; u < zb_graph_n_uses(k->g); u++) {
        void *now = k->early[u] != NULL ? malloc(k->grad[u].bytes) : NULL;

        if (now != NULL) {
            read_back(k, &k->grad[u], now);
            CU_ASSERT_EQUAL(memcmp(now, k->early[u], k->grad[u].bytes), 0);
        }
        free(now);
        free(k->early[u]);
    }
    free(k->early);
}

static void weights_together(struct rig *k, int c, const double *scale)
{
    struct zb_chunk_run run[RIG_MAX_MICRO];

    CU_ASSERT_FATAL(k->n_micro <= RIG_MAX_MICRO);
    for (int m = 0; m < k->n_micro; m++) {
        run[m] = run_of(k, c, m, scale);
    }
    k->hook_chunk = c;
    run[k->n_micro - 1].at_launch = keep_complete;
    run[k->n_micro - 1].at_arg = k;
    ZBT_OK(zb_chunk_backward_weights(k->chunk[c], run, k->n_micro));
}

static void backward_both(struct rig *k, int c, int m, const double *scale)
{
    struct zb_chunk_run run = run_of(k, c, m, scale);

    k->hook_chunk = c;
    run.at_launch = keep_complete;
    run.at_arg = k;
    ZBT_OK(zb_chunk_backward_both(k->chunk[c], &run, 1));
    sync(k);
    if (c > 0) {
        hand_over(k, space(k, c, m, ZB_SPACE_DOUT),
                  space(k, c - 1, m, ZB_SPACE_DIN));
    }
}

static void run_all(struct rig *k, const double *scale, struct rig_result *r)
{
    int n = k->o->n_chunks;

    for (int m = 0; m < k->n_micro; m++) {
        for (int c = 0; c < n; c++) {
            forward(k, c, m, scale, r);
        }
    }
    for (int m = 0; !k->o->no_backward && m < k->n_micro; m++) {
        for (int c = n - 1; c >= 0; c--) {
            if (k->o->w_order == RIG_W_WITH_B) {
                backward_both(k, c, m, scale);
                continue;
            }
            backward(k, c, m, scale);
            if (k->o->w_order == RIG_W_AFTER_B) {
                weight(k, c, m, scale);
            }
        }
    }
    for (int c = 0; !k->o->no_backward && c < n; c++) {
        for (int m = 0; k->o->w_order == RIG_W_LAST && m < k->n_micro; m++) {
            weight(k, c, m, scale);
        }
        if (k->o->w_order == RIG_W_TOGETHER) {
            weights_together(k, c, scale);
        }
    }
    expect_complete(k);
}

static void collect(struct rig *k, const double *scale, struct rig_result *r)
{
    int n = zb_graph_n_params(k->g);

    for (int m = 0; m < k->n_micro; m++) {
        double sum[ZB_LOSS_MAX];

        read_back(k, &k->loss[m], sum);
        for (int i = 0; i < zb_graph_n_losses(k->g); i++) {
            r->loss += sum[i] * scale[i];
        }
    }
    r->n_uses = zb_graph_n_uses(k->g);
    r->grad = calloc((size_t)r->n_uses + 1, sizeof(*r->grad));
    r->n_grad = calloc((size_t)r->n_uses + 1, sizeof(*r->n_grad));
    for (int p = 0; p < n; p++) {
        struct zb_param_info info = zb_graph_param(k->g, p);

        for (int i = 0; i < info.n_uses; i++) {
            int u = info.use_ids[i];

            r->n_grad[u] = (int64_t)param_elems(k->g, p);
            r->grad[u] = calloc((size_t)r->n_grad[u], sizeof(zb_real));
            read_back(k, &k->grad[u], r->grad[u]);
        }
    }
}

static void free_list(struct rig *k, struct block *list, int n)
{
    for (int i = 0; i < n; i++) {
        block_free(k, &list[i]);
    }
    free(list);
}

static void close_rig(struct rig *k)
{
    int n = k->o->n_chunks;

    sync(k);
    free_list(k, k->space, n * k->n_micro * ZB_N_SPACES);
    free_list(k, k->scratch, n);
    free_list(k, k->data, zb_graph_n_data(k->g) * k->n_micro);
    free_list(k, k->sample, k->n_micro);
    free_list(k, k->loss, k->n_micro);
    free_list(k, k->param, zb_graph_n_params(k->g));
    free_list(k, k->grad, zb_graph_n_uses(k->g));
    free_list(k, k->consts, zb_graph_n_consts(k->g));
    for (int c = 0; c < n; c++) {
        zb_chunk_free(k->chunk[c]);
    }
    for (size_t i = 0; i < zb_check_reports(k->be); i++) {
        printf("\n%s\n", zb_check_report_text(k->be, i));
        CU_FAIL("a report of the check backend");
    }
    if (!uses_kept(k)) {
        close_device(k->be, k->dev, k->stream);
    }
    free(k->chunk);
    free(k->row0);
    free(k->rows);
    free(k->param_ptr);
    free(k->grad_ptr);
    free(k->consts_ptr);
    free(k->data_ptr);
}

void rig_run(const struct zb_graph *g, zb_real *const *params,
             const struct rig_batch *batch, const struct rig_opts *opts,
             struct rig_result *r)
{
    struct rig k = {.g = g, .batch = batch, .o = opts};
    double scale[ZB_LOSS_MAX] = {0};

    memset(r, 0, sizeof(*r));
    split_rows(&k);
    open_rig(&k);
    open_data(&k);
    open_params(&k, params);
    k.loss = calloc((size_t)k.n_micro, sizeof(*k.loss));
    for (int m = 0; m < k.n_micro; m++) {
        k.loss[m] =
            block_new(&k, (size_t)zb_graph_n_losses(g) * sizeof(double), NULL);
    }
    open_chunks(&k, r);
    for (int i = 0; i < zb_graph_n_losses(g); i++) {
        scale[i] =
            opts->loss_scale != 0 ? opts->loss_scale : 1.0 / count_all(&k, i);
    }
    run_all(&k, scale, r);
    collect(&k, scale, r);
    close_rig(&k);
}

/* ---- results ------------------------------------------------------------- */

void rig_result_free(struct rig_result *r)
{
    for (int u = 0; u < r->n_uses; u++) {
        free(r->grad[u]);
    }
    free(r->grad);
    free(r->n_grad);
    free(r->output);
    memset(r, 0, sizeof(*r));
}

int rig_same_bits(const struct rig_result *a, const struct rig_result *b)
{
    int same = a->n_uses == b->n_uses && isfinite(a->loss) &&
               memcmp(&a->loss, &b->loss, sizeof(a->loss)) == 0;

    for (int u = 0; same && u < a->n_uses; u++) {
        if (a->n_grad[u] != b->n_grad[u] ||
            memcmp(a->grad[u], b->grad[u],
                   (size_t)a->n_grad[u] * sizeof(zb_real)) != 0) {
            printf("\nuse %d differs\n", u);
            same = 0;
        }
    }
    return same;
}

double *rig_param_grad(const struct zb_graph *g, const struct rig_result *r,
                       int param)
{
    struct zb_param_info info = zb_graph_param(g, param);
    size_t n = param_elems(g, param);
    double *sum = calloc(n, sizeof(*sum));

    for (int u = 0; u < info.n_uses; u++) {
        for (size_t i = 0; i < n; i++) {
            sum[i] += (double)r->grad[info.use_ids[u]][i];
        }
    }
    return sum;
}

void rig_random(uint64_t seed, zb_real *x, int64_t n, double std)
{
    struct zbt_rng rng = {seed * 7919 + 17};

    for (int64_t i = 0; i < n; i++) {
        double u = ((double)(zbt_rand(&rng) >> 11) + 0.5) / 9007199254740992.0;
        double v = ((double)(zbt_rand(&rng) >> 11) + 0.5) / 9007199254740992.0;

        x[i] = (zb_real)(std * sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
    }
}

zb_real **rig_params(const struct zb_graph *g, uint64_t seed)
{
    int n = zb_graph_n_params(g);
    zb_real **params = calloc((size_t)n + 1, sizeof(*params));

    for (int p = 0; p < n; p++) {
        struct zb_param_info info = zb_graph_param(g, p);
        int64_t elems = (int64_t)param_elems(g, p);

        params[p] = calloc((size_t)elems, sizeof(zb_real));
        rig_random(seed + (uint64_t)p, params[p], elems, 0.3);
        for (int64_t i = 0; info.opts.init == ZB_INIT_ONES && i < elems; i++) {
            params[p][i] += 1;
        }
    }
    return params;
}

void rig_params_free(const struct zb_graph *g, zb_real **params)
{
    for (int p = 0; p < zb_graph_n_params(g); p++) {
        free(params[p]);
    }
    free(params);
}
