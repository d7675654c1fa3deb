/* SPDX-License-Identifier: MIT
 *
 * Collectives of a layer that is measured alone: every member is taken to have
 * what this one has. What a rank moves takes its time; what it would wait for
 * others does not count. */
#include "config.h"
#include "run/run_int.h"

#include "run/profile.h"

static int size_of(const struct zb_profile_axes *a, enum zb_axis axis)
{
    return axis == ZB_AXIS_TP ? a->n_tp : a->n_sp;
}

/* Enqueue a copy of a collective's type; k has sizes and strides. */
static enum zb_status copy(const struct zb_profile_axes *a,
                           struct zb_stream *stream, const struct zb_coll *c,
                           struct zb_k_copy k)
{
    struct zb_launch l = {
        .kernel = ZB_K_copy, .label = c->label, .params = &k};
    int64_t last = k.n_blocks - 1, row = k.rows - 1;
    size_t bytes = zb_dtype_bytes(c->dtype);

    k.elem_bytes = (int64_t)bytes;
    l.access[l.n_access++] = (struct zb_access){
        k.x, (size_t)(last * k.block_x + row * k.ldx + k.cols) * bytes,
        ZB_READ};
    l.access[l.n_access++] = (struct zb_access){
        k.y, (size_t)(last * k.block_y + row * k.ldy + k.cols) * bytes,
        ZB_WRITE};
    return a->ops->launch(stream, &l);
}

static void *piece(const struct zb_coll *c, int64_t at)
{
    return (char *)c->dst + (size_t)at * zb_dtype_bytes(c->dtype);
}

static enum zb_status all_reduce(const struct zb_profile_axes *a, int n,
                                 struct zb_stream *stream,
                                 const struct zb_coll *c)
{
    int64_t all = c->outer * c->inner;
    struct zb_k_copy k = {.rows = 1, .cols = all, .ldx = all, .ldy = all,
                          .n_blocks = 1, .x = c->src, .y = c->dst};

    (void)n;
    return c->src == c->dst ? ZB_OK : copy(a, stream, c, k);
}

static enum zb_status all_gather(const struct zb_profile_axes *a, int n,
                                 struct zb_stream *stream,
                                 const struct zb_coll *c)
{
    for (int i = 0; i < n; i++) {
        struct zb_k_copy k = {
            .rows = 1, .cols = c->inner, .ldx = c->inner, .ldy = c->inner,
            .n_blocks = c->outer, .block_x = c->inner,
            .block_y = n * c->inner, .x = c->src, .y = piece(c, i * c->inner)};

        ZB_TRY(copy(a, stream, c, k));
    }
    return ZB_OK;
}

static enum zb_status reduce_scatter(const struct zb_profile_axes *a, int n,
                                     struct zb_stream *stream,
                                     const struct zb_coll *c)
{
    struct zb_k_copy k = {
        .rows = 1, .cols = c->inner, .ldx = c->inner, .ldy = c->inner,
        .n_blocks = c->outer, .block_x = n * c->inner, .block_y = c->inner,
        .x = c->src, .y = c->dst};

    return copy(a, stream, c, k);
}

static enum zb_status seq_to_heads(const struct zb_profile_axes *a, int n,
                                   struct zb_stream *stream,
                                   const struct zb_coll *c)
{
    int64_t row = c->n_heads * c->inner;

    for (int i = 0; i < n; i++) {
        struct zb_k_copy k = {
            .rows = c->mid, .cols = c->inner, .ldx = row, .ldy = c->inner,
            .n_blocks = c->outer, .block_x = c->mid * row,
            .block_y = n * c->mid * c->inner, .x = c->src,
            .y = piece(c, i * c->mid * c->inner)};

        ZB_TRY(copy(a, stream, c, k));
    }
    return ZB_OK;
}

static enum zb_status heads_to_seq(const struct zb_profile_axes *a, int n,
                                   struct zb_stream *stream,
                                   const struct zb_coll *c)
{
    int64_t row = c->n_heads * c->inner;

    for (int i = 0; i < c->n_heads; i++) {
        struct zb_k_copy k = {
            .rows = c->mid, .cols = c->inner, .ldx = c->inner, .ldy = row,
            .n_blocks = c->outer, .block_x = n * c->mid * c->inner,
            .block_y = c->mid * row, .x = c->src,
            .y = piece(c, i * c->inner)};

        ZB_TRY(copy(a, stream, c, k));
    }
    return ZB_OK;
}

static enum zb_status run(void *arg, enum zb_axis axis,
                          struct zb_stream *stream, const struct zb_coll *c)
{
    static enum zb_status (*const kind[ZB_N_COLLS])(
        const struct zb_profile_axes *, int, struct zb_stream *,
        const struct zb_coll *) = {
        [ZB_COLL_ALL_REDUCE] = all_reduce,
        [ZB_COLL_ALL_GATHER] = all_gather,
        [ZB_COLL_REDUCE_SCATTER] = reduce_scatter,
        [ZB_COLL_SEQ_TO_HEADS] = seq_to_heads,
        [ZB_COLL_HEADS_TO_SEQ] = heads_to_seq,
    };
    const struct zb_profile_axes *a = arg;

    return kind[c->kind](a, size_of(a, axis), stream, c);
}

static enum zb_status ring_begin(void *arg, enum zb_axis axis,
                                 struct zb_stream *stream, const void *src,
                                 size_t bytes, const char *label)
{
    struct zb_profile_axes *a = arg;

    (void)axis, (void)stream, (void)bytes, (void)label;
    a->block = src;
    return ZB_OK;
}

static enum zb_status ring_step(void *arg, enum zb_axis axis,
                                struct zb_stream *stream, int step,
                                const void **block_out)
{
    const struct zb_profile_axes *a = arg;

    (void)axis, (void)stream, (void)step;
    *block_out = a->block;
    return ZB_OK;
}

static enum zb_status ring_end(void *arg, enum zb_axis axis,
                               struct zb_stream *stream)
{
    (void)arg, (void)axis, (void)stream;
    return ZB_OK;
}

const struct zb_coll_ops zb_profile_coll_ops = {
    .run = run,
    .ring_begin = ring_begin,
    .ring_step = ring_step,
    .ring_end = ring_end,
};
