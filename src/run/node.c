/* SPDX-License-Identifier: MIT
 *
 * The worker as an interpreter: one node of its stream after the other. */
#include "config.h"
#include "run/run_int.h"

#include <math.h>
#include <string.h>

static struct zb_inflight *inflight(struct zb_worker *w, int chunk, int mb)
{
    return &w->fly[chunk * w->n_fly + mb];
}

/* ---- batch --------------------------------------------------------------- */

enum zb_status zb_worker_begin(struct zb_worker *w,
                               const struct zb_step_input *in,
                               const struct zb_micro *mb, int n_micro,
                               int is_training)
{
    const struct zb_layout *l = &w->s->plan->layout[w->stage];

    /* Memory for training is laid out for the session's number. */
    if (is_training ? n_micro != w->s->plan->o.n_micro : n_micro > w->n_fly) {
        return zb_fail(ZB_EINVAL,
                       "%d microbatches, but the session has room for %d",
                       n_micro,
                       is_training ? w->s->plan->o.n_micro : w->n_fly);
    }
    w->in = in;
    w->mb = mb + w->dp * n_micro;
    w->n_micro = n_micro;
    w->is_training = is_training;
    w->step += is_training != 0;
    w->flags = 0;
    for (int i = 0; i < l->n_slots; i++) {
        w->is_loaded[i] = 0;
    }
    for (int i = 0; i < w->n_fly; i++) {
        w->is_staged[i] = 0;
    }
    return ZB_OK;
}

enum zb_status zb_load_batch(struct zb_worker *w,
                             const struct zb_step_input *in, int n_micro,
                             int is_training)
{
    if (n_micro <= w->n_fly) { /* otherwise refused below */
        ZB_TRY(zb_cut_batch(w->s->plan, in, n_micro, w->own_mb));
    }
    if (w->staging == NULL && zb_needs_staging(w->s->plan, in)) {
        return zb_fail(ZB_EINVAL, "no step before had sequences like these");
    }
    return zb_worker_begin(w, in, w->own_mb, n_micro, is_training);
}

/* ---- messages ------------------------------------------------------------ */

/* The channel that brings the input of a chunk's pass, or takes its output;
 * NULL at the ends of the model. */
static struct zb_channel *channel_in(struct zb_worker *w, int chunk,
                                     enum zb_pass pass)
{
    int v = zb_virt_of(w->s->plan, w->stage, chunk);

    if (pass == ZB_PASS_F) {
        return v > 0 ? w->chan[2 * (v - 1)] : NULL;
    }
    return v < w->s->plan->n_virtual - 1 ? w->chan[2 * v + 1] : NULL;
}

static struct zb_channel *channel_out(struct zb_worker *w, int chunk,
                                      enum zb_pass pass)
{
    int v = zb_virt_of(w->s->plan, w->stage, chunk);

    if (pass == ZB_PASS_F) {
        return v < w->s->plan->n_virtual - 1 ? w->chan[2 * v] : NULL;
    }
    return v > 0 ? w->chan[2 * (v - 1) + 1] : NULL;
}

/* Whether the chunk one step further along the model (-1: one back) lies on
 * this stage too: the turn of the V, where a message is handed over at once. */
static int is_turn(struct zb_worker *w, int chunk, int step)
{
    const struct zb_run_plan *p = w->s->plan;
    int v = zb_virt_of(p, w->stage, chunk) + step;

    return v >= 0 && v < p->n_virtual && zb_stage_of(p, v) == w->stage;
}

void zb_wait_begin(struct zb_worker *w, const char *what)
{
    atomic_store_explicit(&w->waiting_for, what, memory_order_release);
}

void zb_wait_end(struct zb_worker *w)
{
    atomic_store_explicit(&w->waiting_for, NULL, memory_order_release);
    atomic_fetch_add_explicit(&w->progress, 1, memory_order_relaxed);
}

/* A node begins when its message is there. */
static void message_begin(struct zb_worker *w, const struct zb_channel *c)
{
    zb_wait_begin(w, zb_channel_name(c));
}

static void message_end(struct zb_worker *w)
{
    zb_wait_end(w);
    w->began_ns = zb_now_ns();
}

/* The input of a pass, unless it was received before. */
static enum zb_status take_input(struct zb_worker *w, int chunk, int mb,
                                 enum zb_pass pass)
{
    struct zb_channel *c = channel_in(w, chunk, pass);
    struct zb_inflight *fl = inflight(w, chunk, mb);
    struct zb_msg **msg = pass == ZB_PASS_F ? &fl->in : &fl->din;
    enum zb_status st;

    if (c == NULL) {
        if (pass == ZB_PASS_F) {
            fl->bind = w->mb[mb].bind;
        }
        return ZB_OK;
    }
    if (*msg != NULL) {
        return ZB_OK;
    }
    message_begin(w, c);
    st = zb_channel_recv(c, mb, w->stream, msg, &fl->bind);
    message_end(w);
    return st;
}

static enum zb_status get_output(struct zb_worker *w, int chunk, int mb,
                                 enum zb_pass pass)
{
    struct zb_channel *c = channel_out(w, chunk, pass);
    struct zb_inflight *fl = inflight(w, chunk, mb);
    enum zb_status st;

    if (c == NULL) {
        return ZB_OK;
    }
    message_begin(w, c);
    st = zb_channel_acquire(c, w->stream,
                            pass == ZB_PASS_F ? &fl->out : &fl->dout);
    message_end(w);
    return st;
}

static enum zb_status send(struct zb_worker *w, int chunk, int mb,
                           enum zb_pass pass)
{
    struct zb_channel *c = channel_out(w, chunk, pass);
    struct zb_inflight *fl = inflight(w, chunk, mb);
    struct zb_msg **msg = pass == ZB_PASS_F ? &fl->out : &fl->dout;

    ZB_TRY(zb_channel_send(c, *msg, mb, &fl->bind));
    *msg = NULL;
    return ZB_OK;
}

/* The output is complete: say so, and hand it over at once when it stays. */
static enum zb_status finish_output(struct zb_worker *w, int chunk, int mb,
                                    enum zb_pass pass)
{
    struct zb_channel *c = channel_out(w, chunk, pass);
    struct zb_inflight *fl = inflight(w, chunk, mb);

    if (c == NULL) {
        return ZB_OK;
    }
    ZB_TRY(zb_channel_filled(c, pass == ZB_PASS_F ? fl->out : fl->dout,
                             w->stream));
    return is_turn(w, chunk, pass == ZB_PASS_F ? 1 : -1)
               ? send(w, chunk, mb, pass)
               : ZB_OK;
}

/* Give back the input messages whose last reader was `pass`. */
static enum zb_status release_inputs(struct zb_worker *w, int chunk, int mb,
                                     enum zb_pass pass)
{
    const struct zb_run_plan *p = w->s->plan;
    const struct zb_chunk_info *info = &p->info[zb_virt_of(p, w->stage, chunk)];
    struct zb_inflight *fl = inflight(w, chunk, mb);
    enum zb_pass in_until = w->is_training ? info->in_until : ZB_PASS_F;

    if (fl->in != NULL && in_until == pass) {
        ZB_TRY(zb_channel_release(channel_in(w, chunk, ZB_PASS_F), fl->in,
                                  w->stream));
        fl->in = NULL;
    }
    if (fl->din != NULL && info->din_until == pass) {
        ZB_TRY(zb_channel_release(channel_in(w, chunk, ZB_PASS_B), fl->din,
                                  w->stream));
        fl->din = NULL;
    }
    return ZB_OK;
}

enum zb_status zb_recv_forward(struct zb_worker *w, int chunk, int mb)
{
    return is_turn(w, chunk, -1) ? ZB_OK
                                 : take_input(w, chunk, mb, ZB_PASS_F);
}

enum zb_status zb_recv_backward(struct zb_worker *w, int chunk, int mb)
{
    return is_turn(w, chunk, 1) ? ZB_OK
                                : take_input(w, chunk, mb, ZB_PASS_B);
}

enum zb_status zb_send_forward(struct zb_worker *w, int chunk, int mb)
{
    return channel_out(w, chunk, ZB_PASS_F) == NULL ||
                   is_turn(w, chunk, 1)
               ? ZB_OK
               : send(w, chunk, mb, ZB_PASS_F);
}

enum zb_status zb_send_backward(struct zb_worker *w, int chunk, int mb)
{
    return channel_out(w, chunk, ZB_PASS_B) == NULL ||
                   is_turn(w, chunk, -1)
               ? ZB_OK
               : send(w, chunk, mb, ZB_PASS_B);
}

/* ---- compute ------------------------------------------------------------- */

static void *msg_ptr(const struct zb_msg *m)
{
    return m != NULL ? m->ptr : NULL;
}

/* A block's address, NULL when the chunk needs none. */
static void *block(struct zb_worker *w, const struct zb_chunk_info *info,
                   enum zb_space space, size_t offset)
{
    return info->bytes[space] > 0 ? w->arena + offset : NULL;
}

/* Activations of a forward-only pass live for one node: at the region's
 * start. */
static void place_activations(struct zb_worker *w, struct zb_chunk_run *run,
                              const struct zb_chunk_info *info, int chunk,
                              int mb)
{
    const struct zb_layout *l = &w->s->plan->layout[w->stage];
    size_t i = (size_t)chunk * (size_t)w->s->plan->o.n_micro + (size_t)mb;
    size_t base = l->region_offset[ZB_REGION_ACT];

    if (!w->is_training) {
        run->space[ZB_SPACE_FB] = block(w, info, ZB_SPACE_FB, base);
        run->space[ZB_SPACE_FW] =
            block(w, info, ZB_SPACE_FW, base + info->bytes[ZB_SPACE_FB]);
        return;
    }
    run->space[ZB_SPACE_FB] = block(w, info, ZB_SPACE_FB, l->fb[i]);
    run->space[ZB_SPACE_FW] = block(w, info, ZB_SPACE_FW, l->fw[i]);
    run->space[ZB_SPACE_BW] = block(w, info, ZB_SPACE_BW, l->bw[i]);
}

static struct zb_chunk_run make_run(struct zb_worker *w, int chunk, int mb,
                                    void **data)
{
    const struct zb_run_plan *p = w->s->plan;
    const struct zb_layout *l = &p->layout[w->stage];
    const struct zb_chunk_info *info = &p->info[zb_virt_of(p, w->stage, chunk)];
    struct zb_inflight *fl = inflight(w, chunk, mb);
    int slot = zb_slot_of(w, chunk, mb);
    struct zb_chunk_run run = {
        .ops = w->ops,
        .stream = w->stream,
        .bind = fl->bind,
        .data = data,
        .consts = w->konst,
        .param = w->value,
        .grad = w->grad,
        .loss_sum = (double *)(w->arena + l->loss) + mb % p->o.n_micro,
        .loss_scale = w->mb[mb].loss_scale *
                      w->s->norms.loss_scale[(w->turn + 1) % 2],
        .is_training = w->is_training,
        .n_padding = w->mb[mb].bind.value[ZB_SYM_FULL] - w->mb[mb].len,
        .tp_rank = w->tp,
        .sp_rank = w->sp,
        .coll = &zb_worker_coll_ops,
        .coll_arg = w,
        .seed = p->o.seed,
        .step = (uint64_t)w->step,
        .sample = (const int64_t *)(w->arena + l->sample[slot]),
    };

    for (int i = 0; i < p->n_data; i++) {
        data[i] = w->arena + l->field[slot * p->n_data + i];
    }
    run.space[ZB_SPACE_IN] = msg_ptr(fl->in);
    run.space[ZB_SPACE_OUT] = msg_ptr(fl->out);
    run.space[ZB_SPACE_DIN] = msg_ptr(fl->din);
    run.space[ZB_SPACE_DOUT] = msg_ptr(fl->dout);
    run.space[ZB_SPACE_SCRATCH] =
        block(w, info, ZB_SPACE_SCRATCH, l->scratch);
    place_activations(w, &run, info, chunk, mb);
    return run;
}

static const struct zb_chunk *program(struct zb_worker *w, int chunk)
{
    return w->s->plan->chunk[zb_virt_of(w->s->plan, w->stage, chunk)];
}

/* Loss sum and, when asked for, outputs go to the host as they are made. */
static enum zb_status return_results(struct zb_worker *w,
                                     const struct zb_chunk_run *run, int chunk,
                                     int mb)
{
    ZB_TRY(w->ops->copy_out(w->stream, &w->loss_host[mb], run->loss_sum,
                            sizeof(double), "loss"));
    for (int i = 0; (w->flags & ZB_RETURN_OUTPUTS) && !w->mb[mb].is_idle &&
                    i < zb_graph_n_outputs(w->s->plan->g);
         i++) {
        struct zb_view v = zb_chunk_output(program(w, chunk), run, i);

        ZB_TRY(zb_return_output(w, &w->mb[mb], i, &v));
    }
    return ZB_OK;
}

/* A pass that goes layer by layer with the side stream. */
struct by_layer {
    struct zb_worker *w;
    int chunk;
    int64_t ns; /* that a simulated device takes for a layer */
};

/* Before a layer's F in the first pass after an update: its parameters may
 * still be on their way. */
static enum zb_status await_layer(void *arg, int layer)
{
    struct by_layer *b = arg;

    ZB_TRY(zb_worker_need(b->w, b->chunk, layer));
    return b->w->ops->spend(b->w->stream, b->ns);
}

/* After a layer's part of the last W: its gradients are complete. */
static enum zb_status send_layer(void *arg, int layer)
{
    struct by_layer *b = arg;

    ZB_TRY(b->w->ops->spend(b->w->stream, b->ns));
    ZB_TRY(zb_worker_reduce_chunk(b->w, b->chunk, layer));
    return zb_worker_progress(b->w);
}

/* Have a pass call `at_layer`, which spends a layer's share of `cost`. */
static void go_by_layer(struct zb_worker *w, int chunk, double cost,
                        enum zb_status (*at_layer)(void *arg, int layer),
                        struct by_layer *b, struct zb_chunk_run *run)
{
    const struct zb_run_plan *p = w->s->plan;
    const struct zb_chunk_info *info = &p->info[zb_virt_of(p, w->stage, chunk)];
    int n = info->end_layer - info->first_layer;

    *b = (struct by_layer){.w = w, .chunk = chunk};
    b->ns = n > 0 ? llround(cost * p->o.sim_ns_per_cost / n) : 0;
    run->at_layer = at_layer;
    run->at_layer_arg = b;
}

/* Simulated devices are busy for as long as the plan says. */
static enum zb_status spend(struct zb_worker *w, double cost)
{
    return w->ops->spend(w->stream,
                         llround(cost * w->s->plan->o.sim_ns_per_cost));
}

enum zb_status zb_forward_step(struct zb_worker *w, int chunk, int mb)
{
    const struct zb_run_plan *p = w->s->plan;
    int v = zb_virt_of(p, w->stage, chunk);
    int is_first = w->is_gathering && chunk >= w->n_gathered;
    struct zb_chunk_run run;
    struct by_layer b;

    ZB_TRY(take_input(w, chunk, mb, ZB_PASS_F));
    ZB_TRY(get_output(w, chunk, mb, ZB_PASS_F));
    run = make_run(w, chunk, mb, w->data);
    if (is_first) {
        go_by_layer(w, chunk, p->in.f_cost[v], await_layer, &b, &run);
        w->n_gathered = chunk + 1;
    } else {
        ZB_TRY(spend(w, p->in.f_cost[v]));
    }
    ZB_TRY(zb_chunk_forward(program(w, chunk), &run));
    if (p->info[v].has_loss) {
        ZB_TRY(return_results(w, &run, chunk, mb));
    }
    ZB_TRY(finish_output(w, chunk, mb, ZB_PASS_F));
    return release_inputs(w, chunk, mb, ZB_PASS_F);
}

/* A fused node is one to the plan: its message comes at its end. So its W,
 * which really runs behind B and the message, is accounted for with its B. */
static enum zb_status backward_b(struct zb_worker *w, int chunk, int mb,
                                 int is_fused)
{
    const struct zb_plan_input *in = &w->s->plan->in;
    int v = zb_virt_of(w->s->plan, w->stage, chunk);
    struct zb_chunk_run run;

    ZB_TRY(take_input(w, chunk, mb, ZB_PASS_B));
    ZB_TRY(get_output(w, chunk, mb, ZB_PASS_B));
    run = make_run(w, chunk, mb, w->data);
    ZB_TRY(zb_chunk_backward_input(program(w, chunk), &run));
    ZB_TRY(spend(w, in->b_cost[v] + (is_fused ? in->w_cost[v] : 0)));
    ZB_TRY(finish_output(w, chunk, mb, ZB_PASS_B));
    return release_inputs(w, chunk, mb, ZB_PASS_B);
}

/* `cost`: what a simulated device takes; 0 where it was spent before. */
static enum zb_status backward_w(struct zb_worker *w, int chunk, int mb,
                                 double cost)
{
    struct zb_chunk_run run = make_run(w, chunk, mb, w->data);
    struct by_layer b;

    if (w->reduces_early && w->at_node == w->last_w[chunk]) {
        go_by_layer(w, chunk, cost, send_layer, &b, &run);
    } else {
        ZB_TRY(spend(w, cost));
    }
    ZB_TRY(zb_chunk_backward_weight(program(w, chunk), &run));
    return release_inputs(w, chunk, mb, ZB_PASS_W);
}

enum zb_status zb_backward_b_step(struct zb_worker *w, int chunk, int mb)
{
    return backward_b(w, chunk, mb, 0);
}

enum zb_status zb_backward_w_step(struct zb_worker *w, int chunk, int mb)
{
    const struct zb_run_plan *p = w->s->plan;

    return backward_w(w, chunk, mb,
                      p->in.w_cost[zb_virt_of(p, w->stage, chunk)]);
}

enum zb_status zb_schedule_f(struct zb_worker *w, int chunk, int mb)
{
    ZB_TRY(zb_load_micro_batch(w, chunk, mb));
    return zb_forward_step(w, chunk, mb);
}

enum zb_status zb_schedule_b(struct zb_worker *w, int chunk, int mb)
{
    return zb_backward_b_step(w, chunk, mb);
}

enum zb_status zb_schedule_w(struct zb_worker *w, int chunk, int mb)
{
    return zb_backward_w_step(w, chunk, mb);
}

static enum zb_status schedule_bw(struct zb_worker *w, int chunk, int mb)
{
    ZB_TRY(backward_b(w, chunk, mb, 1));
    return backward_w(w, chunk, mb, 0);
}

/* A RECV node posts: the pool has room for the message from the start, and the
 * node that reads it takes it, so that a worker need not wait before it is
 * busy. Post-validation nodes mark where the optimizer's late check belongs;
 * with the check done up front there is nothing to do at them. */
static enum zb_status no_work(struct zb_worker *w, int chunk, int mb)
{
    (void)w, (void)chunk, (void)mb;
    return ZB_OK;
}

static enum zb_status (*const run_node[ZB_N_NODE_TYPES])(struct zb_worker *w,
                                                         int chunk, int mb) = {
    [ZB_NODE_F] = zb_schedule_f,
    [ZB_NODE_B] = zb_schedule_b,
    [ZB_NODE_W] = zb_schedule_w,
    [ZB_NODE_BW] = schedule_bw,
    [ZB_NODE_SEND_FORWARD] = zb_send_forward,
    [ZB_NODE_RECV_FORWARD] = no_work,
    [ZB_NODE_SEND_BACKWARD] = zb_send_backward,
    [ZB_NODE_RECV_BACKWARD] = no_work,
    [ZB_NODE_POST_VALIDATION] = no_work,
    [ZB_NODE_SEND_POST_VALIDATION] = no_work,
    [ZB_NODE_RECV_POST_VALIDATION] = no_work,
};

static enum zb_status fail_in_node(struct zb_worker *w,
                                   const struct zb_node *nd, enum zb_status st)
{
    return zb_fail_in(st, "device %d, stage %d, %s chunk %d microbatch %d",
                      w->device, w->stage, zb_node_type_str(nd->type), nd->chunk,
                      nd->mb);
}

enum zb_status zb_worker_run_nodes(struct zb_worker *w,
                                   const struct zb_stage_nodes *nodes)
{
    int is_timed = nodes == w->nodes;

    for (size_t i = 0; i < nodes->n; i++) {
        const struct zb_node *nd = &nodes->node[i];
        enum zb_status st;

        atomic_store_explicit(&w->node, nd, memory_order_release);
        w->at_node = is_timed ? i : ZB_NO_OFFSET;
        w->ops->stream_mark(w->stream,
                            is_timed ? w->node_name[i] : "forward only");
        w->began_ns = zb_now_ns();
        st = is_timed && i == w->fail_node
                 ? zb_fail(ZB_EDEVICE, "a failure was asked for")
                 : run_node[nd->type](w, nd->chunk, nd->mb);
        if (is_timed) {
            w->start_ns[i] = w->began_ns;
            w->end_ns[i] = zb_now_ns();
        }
        if (st == ZB_OK && is_timed && w->reduces_early) {
            st = zb_worker_progress(w);
        }
        if (st != ZB_OK) {
            return fail_in_node(w, nd, st);
        }
        atomic_fetch_add_explicit(&w->progress, 1, memory_order_relaxed);
    }
    return ZB_OK;
}

enum zb_status zb_run_forward_backward(struct zb_worker *w)
{
    return zb_worker_run_nodes(w, w->nodes);
}

int zb_worker_stage(const struct zb_worker *w)
{
    return w->stage;
}

const struct zb_stage_nodes *zb_worker_nodes(const struct zb_worker *w)
{
    return w->nodes;
}

int zb_get_model_chunk_id(const struct zb_worker *w, int i, int is_forward)
{
    int n_stages = w->s->plan->n_stages, n_chunk = w->s->plan->n_chunk;
    int chunk = i % (n_stages * n_chunk) / n_stages;

    return is_forward ? chunk : n_chunk - 1 - chunk;
}
