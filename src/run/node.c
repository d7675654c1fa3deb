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
    if (w->staging == NULL && zb_worker_stages(w, in)) {
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
    enum zb_status st;

    zb_wait_begin(w, zb_channel_name(c));
    st = zb_channel_send(c, *msg, mb, &fl->bind);
    zb_wait_end(w);
    ZB_TRY(st);
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
        .loss_sum = (double *)(w->arena + l->loss) +
                    mb % p->o.n_micro * zb_graph_n_losses(p->g),
        .is_training = w->is_training,
        .n_padding = w->mb[mb].bind.value[ZB_SYM_FULL] - w->mb[mb].len,
        .tp_rank = w->tp,
        .sp_rank = w->sp,
        /* Making a graph may take memory of the GPU, which nobody may do while
         * messages or collectives over links are under way. */
        .may_replay = p->o.cuda_graphs && !zb_has_links(p),
        .coll = &zb_worker_coll_ops,
        .coll_arg = w,
        .seed = p->o.seed,
        .step = (uint64_t)w->step,
        .sample = (const int64_t *)(w->arena + l->sample[slot]),
    };

    for (int k = 0; k < zb_graph_n_losses(p->g); k++) {
        run.loss_scale[k] =
            w->mb[mb].loss_scale[k] * w->s->norms.loss_scale[(w->turn + 1) % 2];
    }
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
    int n_losses = zb_graph_n_losses(w->s->plan->g);

    ZB_TRY(w->ops->copy_out(w->stream, &w->loss_host[mb * n_losses],
                            run->loss_sum, (size_t)n_losses * sizeof(double),
                            "loss"));
    for (int i = 0; (w->flags & ZB_RETURN_OUTPUTS) && !w->mb[mb].is_idle &&
                    i < zb_graph_n_outputs(w->s->plan->g);
         i++) {
        struct zb_view v = zb_chunk_output(program(w, chunk), run, i);

        ZB_TRY(zb_return_output(w, &w->mb[mb], i, &v));
    }
    return ZB_OK;
}

/* A pass that goes piece by piece with the side stream; a simulated device
 * takes ns for the whole of it. */
struct by_piece {
    struct zb_worker *w;
    int chunk;
    int64_t ns, spent_ns;
    int64_t n_done, n_all; /* pieces: layers, or elements of gradients */
};

static struct by_piece by_piece(struct zb_worker *w, int chunk, double cost)
{
    return (struct by_piece){
        .w = w,
        .chunk = chunk,
        .ns = llround(cost * w->s->plan->o.sim_ns_per_cost),
    };
}

/* The time of the next n pieces. */
static enum zb_status spend_pieces(struct by_piece *b, int64_t n)
{
    int64_t until;

    b->n_done += n;
    until = b->n_done == b->n_all
                ? b->ns
                : llround((double)b->ns * (double)b->n_done / (double)b->n_all);
    n = until - b->spent_ns;
    b->spent_ns = until;
    return b->w->ops->spend(b->w->stream, n);
}

/* Before a layer's F in the first pass after an update: its parameters may
 * still be on their way. */
static enum zb_status await_layer(void *arg, int layer)
{
    struct by_piece *b = arg;

    ZB_TRY(zb_worker_need(b->w, b->chunk, layer));
    return spend_pieces(b, 1);
}

static void go_by_layer(struct by_piece *b, const struct zb_chunk_info *info,
                        struct zb_chunk_run *run)
{
    b->n_all = info->end_layer - info->first_layer;
    run->at_layer = await_layer;
    run->at_arg = b;
}

static int64_t n_completed_by(const struct zb_run_plan *p,
                              const struct zb_chunk_info *info, int launch)
{
    int64_t n = 0;

    for (int i = 0; i < info->n_uses; i++) {
        n += info->use_done[i] == launch
                 ? zb_param_elems(p, p->use_param[info->uses[i]])
                 : 0;
    }
    return n;
}

/* Behind a launch of the last W: gradients are complete. */
static enum zb_status send_grads(void *arg, int launch)
{
    struct by_piece *b = arg;
    struct zb_worker *w = b->w;
    const struct zb_run_plan *p = w->s->plan;
    const struct zb_chunk_info *info =
        &p->info[zb_virt_of(p, w->stage, b->chunk)];
    int is_end = launch == info->n_ops[ZB_PASS_W];

    ZB_TRY(spend_pieces(b, is_end ? b->n_all - b->n_done
                                  : n_completed_by(p, info, launch)));
    atomic_fetch_add_explicit(&w->progress, 1, memory_order_relaxed);
    ZB_TRY(zb_worker_reduce_chunk(w, b->chunk, launch));
    return zb_worker_progress(w);
}

/* What the last W spends it spends in the measure of the gradients that it
 * completes: products take as long as their weights are large. */
static void go_by_launch(struct by_piece *b, const struct zb_run_plan *p,
                         const struct zb_chunk_info *info,
                         struct zb_chunk_run *run)
{
    for (int i = 0; i < info->n_uses; i++) {
        b->n_all += zb_param_elems(p, p->use_param[info->uses[i]]);
    }
    run->at_launch = send_grads;
    run->at_arg = b;
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
    struct by_piece b = by_piece(w, chunk, p->in.f_cost[v]);
    struct zb_chunk_run run;

    ZB_TRY(take_input(w, chunk, mb, ZB_PASS_F));
    ZB_TRY(get_output(w, chunk, mb, ZB_PASS_F));
    run = make_run(w, chunk, mb, w->data);
    if (is_first) {
        go_by_layer(&b, &p->info[v], &run);
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

/* Whether the node that runs completes the gradients of its chunk, and they are
 * then reduced. */
static int is_tail(const struct zb_worker *w, int chunk)
{
    return w->reduces_early && w->at_node == w->tail[chunk].first;
}

/* What the last W's of a chunk work on; a B before them has the last one's
 * microbatch. Returns how many they are. */
static int make_tail_runs(struct zb_worker *w, int chunk)
{
    const struct zb_tail *t = &w->tail[chunk];
    const struct zb_node *nd = &w->nodes->node[t->first];
    int n = 0;

    for (size_t k = 0; k < t->n; k++) {
        if (nd[k].type != ZB_NODE_B) {
            w->tail_run[n] = make_run(w, chunk, nd[k].mb,
                                      w->tail_data + n * w->s->plan->n_data);
            n++;
        }
    }
    if (t->n > 1) {
        w->ops->stream_mark(w->stream, t->name);
    }
    return n;
}

static enum zb_status release_tail(struct zb_worker *w, int chunk)
{
    const struct zb_tail *t = &w->tail[chunk];

    for (size_t i = t->first; i < t->first + t->n; i++) {
        const struct zb_node *nd = &w->nodes->node[i];

        if (nd->type != ZB_NODE_W) {
            ZB_TRY(release_inputs(w, chunk, nd->mb, ZB_PASS_B));
        }
        if (nd->type != ZB_NODE_B) {
            ZB_TRY(release_inputs(w, chunk, nd->mb, ZB_PASS_W));
        }
    }
    return ZB_OK;
}

/* The last W's of a chunk together. */
static enum zb_status backward_tail(struct zb_worker *w, int chunk, double cost)
{
    const struct zb_run_plan *p = w->s->plan;
    const struct zb_chunk_info *info = &p->info[zb_virt_of(p, w->stage, chunk)];
    int n = make_tail_runs(w, chunk);
    struct by_piece b = by_piece(w, chunk, n * cost);

    go_by_launch(&b, p, info, &w->tail_run[n - 1]);
    ZB_TRY(zb_chunk_backward_weights(program(w, chunk), w->tail_run, n));
    return release_tail(w, chunk);
}

/* The last B of the model's first chunk with them. */
static enum zb_status backward_both(struct zb_worker *w, int chunk, int mb)
{
    const struct zb_run_plan *p = w->s->plan;
    int v = zb_virt_of(p, w->stage, chunk), n;
    struct by_piece b;

    ZB_TRY(take_input(w, chunk, mb, ZB_PASS_B));
    n = make_tail_runs(w, chunk);
    b = by_piece(w, chunk, p->in.b_cost[v] + n * p->in.w_cost[v]);
    go_by_launch(&b, p, &p->info[v], &w->tail_run[n - 1]);
    ZB_TRY(zb_chunk_backward_both(program(w, chunk), w->tail_run, n));
    return release_tail(w, chunk);
}

/* `cost`: what a simulated device takes; 0 where it was spent before. */
static enum zb_status backward_w(struct zb_worker *w, int chunk, int mb,
                                 double cost)
{
    struct zb_chunk_run run;

    if (is_tail(w, chunk)) {
        return backward_tail(w, chunk, cost);
    }
    run = make_run(w, chunk, mb, w->data);
    ZB_TRY(spend(w, cost));
    ZB_TRY(zb_chunk_backward_weight(program(w, chunk), &run));
    return release_inputs(w, chunk, mb, ZB_PASS_W);
}

enum zb_status zb_backward_b_step(struct zb_worker *w, int chunk, int mb)
{
    return is_tail(w, chunk) ? backward_both(w, chunk, mb)
                             : backward_b(w, chunk, mb, 0);
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
    if (is_tail(w, chunk) && w->tail[chunk].has_b) {
        return backward_both(w, chunk, mb);
    }
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

/* A receive over a link takes its turn on the device here, where the plan has
 * it; other messages are taken by who reads them. */
static enum zb_status launch_recv_forward(struct zb_worker *w, int chunk,
                                          int mb)
{
    return w->s->plan->is_linked ? zb_recv_forward(w, chunk, mb) : ZB_OK;
}

static enum zb_status launch_recv_backward(struct zb_worker *w, int chunk,
                                           int mb)
{
    return w->s->plan->is_linked ? zb_recv_backward(w, chunk, mb) : ZB_OK;
}

static enum zb_status (*const run_node[ZB_N_NODE_TYPES])(struct zb_worker *w,
                                                         int chunk, int mb) = {
    [ZB_NODE_F] = zb_schedule_f,
    [ZB_NODE_B] = zb_schedule_b,
    [ZB_NODE_W] = zb_schedule_w,
    [ZB_NODE_BW] = schedule_bw,
    [ZB_NODE_SEND_FORWARD] = zb_send_forward,
    [ZB_NODE_RECV_FORWARD] = launch_recv_forward,
    [ZB_NODE_SEND_BACKWARD] = zb_send_backward,
    [ZB_NODE_RECV_BACKWARD] = launch_recv_backward,
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

/* How many nodes, from i on, run together. */
static size_t n_together(const struct zb_worker *w,
                         const struct zb_stage_nodes *nodes, size_t i)
{
    const struct zb_tail *t = &w->tail[nodes->node[i].chunk];

    return nodes == w->nodes && w->reduces_early && i == t->first ? t->n : 1;
}

/* Each of n nodes that ran together took as long as the others. */
static void share_time(struct zb_worker *w, size_t first, size_t n)
{
    int64_t ns = zb_now_ns() - w->began_ns;

    for (size_t k = 0; k < n; k++) {
        w->start_ns[first + k] = w->began_ns + ns * (int64_t)k / (int64_t)n;
        w->end_ns[first + k] = w->began_ns + ns * (int64_t)(k + 1) / (int64_t)n;
    }
}

/* Run node i and the n - 1 behind it, which go together. */
static enum zb_status run_together(struct zb_worker *w,
                                   const struct zb_stage_nodes *nodes, size_t i,
                                   size_t n)
{
    const struct zb_node *nd = &nodes->node[i];
    int is_timed = nodes == w->nodes;
    int fails = is_timed && i <= w->fail_node && w->fail_node < i + n;
    enum zb_status st;

    atomic_store_explicit(&w->node, nd, memory_order_release);
    w->at_node = is_timed ? i : ZB_NO_OFFSET;
    w->ops->stream_mark(w->stream, is_timed ? w->node_name[i] : "forward only");
    w->began_ns = zb_now_ns();
    st = fails ? zb_fail(ZB_EDEVICE, "a failure was asked for")
               : run_node[nd->type](w, nd->chunk, nd->mb);
    if (is_timed) {
        share_time(w, i, n);
    }
    if (st == ZB_OK && is_timed && w->reduces_early) {
        st = zb_worker_progress(w);
    }
    return st == ZB_OK
               ? ZB_OK
               : fail_in_node(w, fails ? &nodes->node[w->fail_node] : nd, st);
}

enum zb_status zb_worker_run_nodes(struct zb_worker *w,
                                   const struct zb_stage_nodes *nodes)
{
    for (size_t i = 0; i < nodes->n;) {
        size_t n = n_together(w, nodes, i);

        ZB_TRY(run_together(w, nodes, i, n));
        atomic_fetch_add_explicit(&w->progress, n, memory_order_relaxed);
        i += n;
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
