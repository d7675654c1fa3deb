/* SPDX-License-Identifier: MIT
 *
 * The orders of PyTorch's ScheduleZBVZeroBubble and ScheduleDualPipeV, node for
 * node. Each is defined from some number of microbatches on; for fewer it is
 * that order without the microbatches that are not there.
 */
#include "config.h"
#include "plan/plan_int.h"

static int at_least(int n, int least)
{
    return n > least ? n : least;
}

static void put_n(struct zb_plan_pen *pen, enum zb_node_type type, int chunk,
                  int n)
{
    for (int k = 0; k < n; k++) {
        zb_plan_pen_put(pen, type, chunk);
    }
}

/* F, B, W of the next microbatch of a chunk, or B and W alone. */
static void put_fbw(struct zb_plan_pen *pen, int chunk, int has_f)
{
    if (has_f) {
        zb_plan_pen_put(pen, ZB_NODE_F, chunk);
    }
    zb_plan_pen_put(pen, ZB_NODE_B, chunk);
    zb_plan_pen_put(pen, ZB_NODE_W, chunk);
}

static void put_all_w(struct zb_plan_pen *pen, int chunk)
{
    put_n(pen, ZB_NODE_W, chunk,
          pen->n[chunk][ZB_NODE_B] - pen->n[chunk][ZB_NODE_W]);
}

/* ---- ZBV ---- */

static void zbv_stage(struct zb_plan_pen *pen, int stage, int p, int m)
{
    put_n(pen, ZB_NODE_F, 0, 2 * (p - stage) - 1);
    for (int k = 0; k < stage; k++) {
        zb_plan_pen_put(pen, ZB_NODE_F, 1);
        zb_plan_pen_put(pen, ZB_NODE_F, 0);
    }
    for (int k = stage; k < p; k++) {
        put_fbw(pen, 1, 1);
    }
    while (pen->n[1][ZB_NODE_F] < m) {
        put_fbw(pen, 0, pen->n[0][ZB_NODE_F] < m);
        put_fbw(pen, 1, 1);
    }
    for (int k = 0; k < stage; k++) {
        zb_plan_pen_put(pen, ZB_NODE_B, 0);
        zb_plan_pen_put(pen, ZB_NODE_B, 1);
    }
    /* The oldest W of the left leg, not that of this B. */
    for (int k = stage; k < p; k++) {
        zb_plan_pen_put(pen, ZB_NODE_B, 0);
        zb_plan_pen_put(pen, ZB_NODE_W, 0);
    }
    put_all_w(pen, 1);
    put_all_w(pen, 0);
}

enum zb_status zb_plan_order_pytorch_zbv(const struct zb_plan_input *in,
                                         struct zb_schedule *s)
{
    int p = in->n_stage, m = at_least(in->n_micro, 2 * p - 1);
    struct zb_plan_pen pen;

    for (int i = 0; i < p; i++) {
        ZB_TRY(zb_plan_pen_begin(&pen, s, i));
        zbv_stage(&pen, i, p, m);
    }
    return ZB_OK;
}

enum zb_status zb_plan_pytorch_zbv(const struct zb_plan_input *in,
                                   const struct zb_plan_opts *opts,
                                   struct zb_schedule *s)
{
    (void)opts;
    ZB_TRY(zb_plan_order_pytorch_zbv(in, s));
    return zb_schedule_add_comm(s, in);
}

/* ---- DualPipeV ---- */

struct dual {
    struct zb_plan_pen pen;
    size_t at; /* up to here no node of the stream waits for its W */
};

/* A backward pass: whole, or its W waits for a place of its own. */
static void put_backward(struct dual *d, int chunk, int is_split)
{
    zb_plan_pen_put(&d->pen, ZB_NODE_B, chunk);
    if (!is_split) {
        zb_plan_pen_put(&d->pen, ZB_NODE_W, chunk);
    }
}

static void put_oldest_w(struct dual *d)
{
    const struct zb_stage_nodes *out = d->pen.out;

    for (; d->at < out->n; d->at++) {
        const struct zb_node *node = &out->node[d->at];

        if (node->type == ZB_NODE_B &&
            node->mb >= d->pen.n[node->chunk][ZB_NODE_W]) {
            zb_plan_pen_put(&d->pen, ZB_NODE_W, node->chunk);
            return;
        }
    }
}

static void dual_warm_up(struct dual *d, int stage, int p)
{
    put_n(&d->pen, ZB_NODE_F, 0, 2 * (p - stage - 1));
    for (int k = 0; k <= stage; k++) {
        zb_plan_pen_put(&d->pen, ZB_NODE_F, 0);
        zb_plan_pen_put(&d->pen, ZB_NODE_F, 1);
    }
    for (int k = stage + 1; k < p; k++) {
        put_backward(d, 1, 1);
        put_oldest_w(d);
        zb_plan_pen_put(&d->pen, ZB_NODE_F, 1);
    }
}

/* PyTorch runs the pairs F0 B1 and F1 B0 side by side if it can, else in this
 * order. */
static void dual_steady(struct dual *d, int stage, int p, int m)
{
    for (int k = 0; k < m - 2 * p + stage + 1; k++) {
        zb_plan_pen_put(&d->pen, ZB_NODE_F, 0);
        put_backward(d, 1, 0);
        zb_plan_pen_put(&d->pen, ZB_NODE_F, 1);
        put_backward(d, 0, 0);
    }
    for (int k = stage + 1; k < p; k++) {
        put_backward(d, 1, 0);
        zb_plan_pen_put(&d->pen, ZB_NODE_F, 1);
        put_backward(d, 0, 0);
    }
}

/* From the middle on backward passes are split. */
static void dual_cool_down(struct dual *d, int stage, int p)
{
    int n = stage + 1, is_split = 0;

    for (int k = 0; k < n; k++) {
        is_split |= k == n / 2 && stage % 2 == 1;
        put_backward(d, 1, is_split);
        is_split |= k == n / 2;
        put_backward(d, 0, is_split);
    }
    for (int k = stage + 1; k < p; k++) {
        put_oldest_w(d);
        put_backward(d, 0, is_split);
    }
    for (int k = 0; k < n; k++) {
        put_oldest_w(d);
    }
}

enum zb_status zb_plan_dualpipev(const struct zb_plan_input *in,
                                 const struct zb_plan_opts *opts,
                                 struct zb_schedule *s)
{
    int p = in->n_stage, m = at_least(in->n_micro, 2 * p);

    (void)opts;
    for (int i = 0; i < p; i++) {
        struct dual d = {.at = 0};

        ZB_TRY(zb_plan_pen_begin(&d.pen, s, i));
        dual_warm_up(&d, i, p);
        dual_steady(&d, i, p, m);
        dual_cool_down(&d, i, p);
    }
    return zb_schedule_add_comm(s, in);
}
