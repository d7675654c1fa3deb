/* SPDX-License-Identifier: MIT
 *
 * Collectives of a layer that is measured alone: each moves what a member of a
 * group would have moved. On the check backend, which sees accesses outside of
 * the blocks. */
#include "config.h"

#include "run/profile.h"
#include "zb/backend.h"
#include "zb/coll.h"
#include "zbt.h"

#define OUTER 3
#define MID 2
#define INNER 5
#define HEADS 2
#define N_TP 4
#define N_SP 2
#define GUARD 16
#define MOST (OUTER * MID * N_TP * HEADS * INNER)

struct rig {
    struct zb_backend *be;
    struct zb_device *dev;
    struct zb_stream *stream;
    struct zb_profile_axes axes;
    zb_real *src, *dst; /* device */
};

static void rig_init(struct rig *k, int64_t n_src, int64_t n_dst)
{
    const struct zb_backend_opts opts = {.n_devices = 1, .threads_per_device = 1};

    ZBT_OK(zb_backend_open("check", &opts, &k->be));
    ZBT_OK(k->be->ops->device_open(k->be, 0, &k->dev));
    ZBT_OK(k->be->ops->stream_new(k->dev, "test", &k->stream));
    ZBT_OK(k->be->ops->mem_alloc(k->dev, (size_t)n_src * sizeof(zb_real), "src",
                                 (void **)&k->src));
    ZBT_OK(k->be->ops->mem_alloc(k->dev, (size_t)n_dst * sizeof(zb_real), "dst",
                                 (void **)&k->dst));
    k->axes = (struct zb_profile_axes){
        .ops = k->be->ops, .n_tp = N_TP, .n_sp = N_SP};
}

static void rig_release(struct rig *k)
{
    k->be->ops->mem_free(k->dev, k->dst);
    k->be->ops->mem_free(k->dev, k->src);
    k->be->ops->stream_free(k->stream);
    k->be->ops->device_close(k->dev);
    zb_backend_close(k->be);
}

/* src is 1, 2, 3 and so on; what nobody writes in dst is -1. */
static void run(const struct zb_coll *want, enum zb_axis axis, int64_t n_src,
                int64_t n_dst, zb_real *dst)
{
    struct rig k;
    struct zb_coll c = *want;
    zb_real src[MOST];

    rig_init(&k, n_src, n_dst + 2 * GUARD);
    for (int64_t i = 0; i < n_src; i++) {
        src[i] = (zb_real)(i + 1);
    }
    for (int64_t i = 0; i < n_dst + 2 * GUARD; i++) {
        dst[i] = -1;
    }
    ZBT_OK(k.be->ops->copy_in(k.stream, k.src, src,
                              (size_t)n_src * sizeof(zb_real), "src"));
    ZBT_OK(k.be->ops->copy_in(k.stream, k.dst, dst,
                              (size_t)(n_dst + 2 * GUARD) * sizeof(zb_real),
                              "dst"));
    c.src = k.src;
    c.dst = k.dst + GUARD;
    c.label = "test";
    ZBT_OK(zb_profile_coll_ops.run(&k.axes, axis, k.stream, &c));
    ZBT_OK(k.be->ops->copy_out(k.stream, dst, k.dst,
                               (size_t)(n_dst + 2 * GUARD) * sizeof(zb_real),
                               "dst"));
    ZBT_OK(k.be->ops->stream_sync(k.stream));
    rig_release(&k);
}

/* All of dst has elements of src, and nothing else was written. */
static void check_filled(const struct zb_coll *c, enum zb_axis axis,
                         int64_t n_src, int64_t n_dst)
{
    zb_real dst[MOST + 2 * GUARD];

    run(c, axis, n_src, n_dst, dst);
    for (int64_t i = 0; i < GUARD; i++) {
        CU_ASSERT_EQUAL(dst[i], -1);
        CU_ASSERT_EQUAL(dst[GUARD + n_dst + i], -1);
    }
    for (int64_t i = GUARD; i < GUARD + n_dst; i++) {
        CU_ASSERT(dst[i] >= 1 && dst[i] <= (zb_real)n_src);
    }
}

static void every_kind_fills_what_it_writes(void)
{
    const enum zb_axis axis[] = {ZB_AXIS_TP, ZB_AXIS_SP};
    const int64_t part = OUTER * INNER;
    struct zb_coll c = {.dtype = ZB_DTYPE_REAL,
                        .outer = OUTER,
                        .mid = MID,
                        .inner = INNER,
                        .n_heads = HEADS};

    for (size_t i = 0; i < ZB_COUNT_OF(axis); i++) {
        int64_t n = axis[i] == ZB_AXIS_TP ? N_TP : N_SP;

        c.kind = ZB_COLL_ALL_REDUCE;
        check_filled(&c, axis[i], part, part);
        c.kind = ZB_COLL_ALL_GATHER;
        check_filled(&c, axis[i], part, n * part);
        c.kind = ZB_COLL_REDUCE_SCATTER;
        check_filled(&c, axis[i], n * part, part);
        c.kind = ZB_COLL_SEQ_TO_HEADS;
        check_filled(&c, axis[i], MID * HEADS * part, n * MID * part);
        c.kind = ZB_COLL_HEADS_TO_SEQ;
        check_filled(&c, axis[i], n * MID * part, MID * HEADS * part);
    }
}

/* As a group would whose members all have this src. */
static void gather_has_the_own_part_of_each_member(void)
{
    const struct zb_coll c = {.kind = ZB_COLL_ALL_GATHER,
                              .dtype = ZB_DTYPE_REAL,
                              .outer = OUTER,
                              .inner = INNER};
    zb_real dst[MOST + 2 * GUARD];

    run(&c, ZB_AXIS_TP, OUTER * INNER, N_TP * OUTER * INNER, dst);
    for (int i = 0; i < N_TP * OUTER * INNER; i++) {
        int row = i / (N_TP * INNER), col = i % INNER;

        CU_ASSERT_EQUAL(dst[GUARD + i], (zb_real)(row * INNER + col + 1));
    }
}

static void ring_passes_on_the_own_block(void)
{
    struct zb_profile_axes axes = {.n_tp = 1, .n_sp = N_SP};
    const struct zb_coll_ops *ops = &zb_profile_coll_ops;
    const void *block = NULL;
    zb_real own[4];

    ZBT_OK(ops->ring_begin(&axes, ZB_AXIS_SP, NULL, own, sizeof(own), "ring"));
    for (int step = 0; step < N_SP; step++) {
        ZBT_OK(ops->ring_step(&axes, ZB_AXIS_SP, NULL, step, &block));
        CU_ASSERT_PTR_EQUAL(block, own);
    }
    ZBT_OK(ops->ring_end(&axes, ZB_AXIS_SP, NULL));
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(every_kind_fills_what_it_writes),
        ZBT_CASE(gather_has_the_own_part_of_each_member),
        ZBT_CASE(ring_passes_on_the_own_block),
    };

    return zbt_run("profile coll", cases, ZB_COUNT_OF(cases));
}
