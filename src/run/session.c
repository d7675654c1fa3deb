/* SPDX-License-Identifier: MIT
 *
 * Steps, as the host sees them.
 */
#include "config.h"
#include "run/run_int.h"

#include <math.h>
#include <string.h>

#include "zb/mem.h"

/* What a step's command needs; `lr` and `norm` only where it updates. */
struct step_arg {
    const struct zb_step_input *in;
    const struct zb_schedule *sched;
    int n_micro;
    int is_training;
    int updates; /* 1: the optimizer's step follows */
    int flags;
    zb_real *const *output;
    double lr;

};

static enum zb_status do_nodes(struct zb_worker *w, void *arg)
{
    struct step_arg *a = arg;

    ZB_TRY(zb_worker_begin(w, a->in, w->s->mb, a->n_micro, a->is_training));
    w->flags = a->flags;
    w->output = a->output;
    w->reduces_early =
        a->updates && w->s->plan->o.overlap_reduce && w->reduce.group != NULL;
    ZB_TRY(zb_worker_run_nodes(w, &a->sched->stages[w->stage]));
    return w->ops->stream_sync(w->stream);
}

static enum zb_status do_zero_grad(struct zb_worker *w, void *arg)
{
    (void)arg;
    ZB_TRY(zb_worker_zero_grad(w));
    return w->ops->stream_sync(w->stream);
}

static enum zb_status update(struct zb_worker *w, const struct step_arg *a)
{
    ZB_TRY(zb_worker_sum_uses(w));
    ZB_TRY(zb_worker_reduce_grads(w));
    w->reduces_early = 0;
    ZB_TRY(zb_worker_update(w, a->lr));
    return w->ops->stream_sync(w->stream);
}

static enum zb_status do_update(struct zb_worker *w, void *arg)
{
    enum zb_status st = update(w, arg);

    return st == ZB_OK ? ZB_OK
                       : zb_fail_in(st, "device %d, stage %d, update",
                                    w->device, w->stage);
}

static enum zb_status do_train_step(struct zb_worker *w, void *arg)
{
    zb_worker_note_launches(w);
    ZB_TRY(zb_worker_zero_grad(w));
    ZB_TRY(do_nodes(w, arg));
    return do_update(w, arg);
}

/* The sum of loss k of microbatch i of a replica: its parts, in rank order. */
static double micro_loss(const struct zb_session *s, int k, int dp, int i)
{
    const struct zb_run_plan *p = s->plan;
    int stage = zb_stage_of(p, p->n_virtual - 1);
    double sum = 0;

    for (int sp = 0; sp < p->n_sp; sp++) {
        int column = (dp * p->n_sp + sp) * p->n_tp;

        sum += s->worker[zb_device_of(p, stage, column)]
                   .loss_host[i * zb_graph_n_losses(p->g) + k];
    }
    return sum;
}

/* The average of loss k from the sums of the devices that have them, in the
 * order of the batch. */
static double average_loss(struct zb_session *s, int k, int n_micro,
                           struct zb_step_result *res)
{
    const struct zb_run_plan *p = s->plan;
    int n = p->n_dp * n_micro, n_used = 0;
    double mean_sum = 0;

    res->loss_sum[k] = 0;
    res->n_counted[k] = 0;
    for (int i = 0; i < n; i++) {
        double sum = micro_loss(s, k, i / n_micro, i % n_micro);

        if (s->mb[i].is_idle) {
            continue;
        }
        n_used++;
        res->loss_sum[k] += sum;
        res->n_counted[k] += s->mb[i].n_counted[k];
        if (s->mb[i].n_counted[k] > 0) {
            mean_sum += sum / (double)s->mb[i].n_counted[k];
        }
    }
    if (p->o.loss_average == ZB_LOSS_PER_MICROBATCH) {
        return mean_sum / n_used;
    }
    return res->n_counted[k] > 0 ? res->loss_sum[k] / (double)res->n_counted[k]
                                 : 0;
}

static void add_up_loss(struct zb_session *s, int n_micro,
                        struct zb_step_result *res)
{
    res->loss = average_loss(s, 0, n_micro, res);
    for (int k = 1; k < zb_graph_n_losses(s->plan->g); k++) {
        res->loss += average_loss(s, k, n_micro, res);
    }
}

enum zb_status zb_session_loss(struct zb_session *s,
                               const struct zb_step_input *in, int n_micro,
                               struct zb_step_result *res)
{
    if (n_micro > s->n_mb) {
        return zb_fail(ZB_EINVAL, "no step had %d microbatches", n_micro);
    }
    ZB_TRY(zb_cut_batch(s->plan, in, n_micro, s->mb));
    add_up_loss(s, n_micro, res);
    return ZB_OK;
}

static double step_flops(const struct zb_session *s, int n_micro)
{
    const struct zb_run_plan *p = s->plan;
    double sum = 0;

    for (int i = 0; i < p->n_dp * n_micro; i++) {
        struct zb_flops f = zb_graph_flops(
            p->g, 0, zb_graph_n_layers(p->g), &s->mb[i].bind);

        sum += f.f + f.b + f.w;
    }
    return sum * p->n_sp * p->n_tp;
}

static enum zb_status run_step(struct zb_session *s, struct step_arg *a,
                               zb_command_fn fn, struct zb_step_result *res)
{
    ZB_TRY(zb_session_reserve(s, a->n_micro));
    ZB_TRY(zb_session_reserve_batch(s, a->in));
    ZB_TRY(zb_cut_batch(s->plan, a->in, a->n_micro, s->mb));
    if ((a->flags & ZB_RETURN_OUTPUTS) && res->output == NULL) {
        return zb_fail(ZB_EINVAL, "outputs asked for without room for them");
    }
    a->output = res->output;
    ZB_TRY(zb_session_command(s, fn, a));
    add_up_loss(s, a->n_micro, res);
    if (a->is_training) {
        s->last_flops = step_flops(s, a->n_micro);
        zb_notes_take(s);
    }
    return ZB_OK;
}

/* Each rank has its own shard of sums, and old parts of the others. */
static enum zb_status check_gradients(const struct zb_session *s)
{
    return s->is_reduced && s->plan->n_columns > 1
               ? zb_fail(ZB_EINVAL, "gradients are those of a step that is "
                                    "over: zb_zero_grad() comes first")
               : ZB_OK;
}

enum zb_status zb_forward_backward_step(struct zb_session *s,
                                        const struct zb_step_input *in,
                                        int flags, struct zb_step_result *res)
{
    struct step_arg a = {.in = in,
                         .sched = s->plan->sched,
                         .n_micro = s->plan->o.n_micro,
                         .is_training = 1,
                         .flags = flags};

    ZB_TRY(check_gradients(s));
    return run_step(s, &a, do_nodes, res);
}

/* All are done with the step, so the norm is complete, whether workers have
 * looked at it or not. */
static enum zb_status take_verdict(struct zb_session *s,
                                   struct zb_step_result *res)
{
    uint64_t turn = s->worker[0].turn;
    struct zb_verdict v = zb_judge(s, turn);

    if (res != NULL) {
        res->grad_norm = v.norm;
        res->scale = s->norms.loss_scale[turn % 2];
        res->is_skipped = v.is_overflow;
    }
    if (zb_scales_loss(s->plan)) {
        ZB_TRY(zb_scaler_update(&s->scaler, v.is_overflow));
    }
    zb_session_set_loss_scale(s);
    return ZB_OK;
}

enum zb_status zb_train_step(struct zb_session *s,
                             const struct zb_step_input *in, double lr,
                             struct zb_step_result *res)
{
    struct step_arg a = {.in = in,
                         .sched = s->plan->sched,
                         .n_micro = s->plan->o.n_micro,
                         .is_training = 1,
                         .updates = 1,
                         .lr = lr};

    ZB_TRY(run_step(s, &a, do_train_step, res));
    s->is_reduced = 1;
    return take_verdict(s, res);
}

enum zb_status zb_optimizer_step(struct zb_session *s, double lr,
                                 struct zb_step_result *res)
{
    struct step_arg a = {.lr = lr};

    ZB_TRY(check_gradients(s));
    ZB_TRY(zb_session_command(s, do_update, &a));
    s->is_reduced = 1;
    return take_verdict(s, res);
}

enum zb_status zb_zero_grad(struct zb_session *s)
{
    ZB_TRY(zb_session_command(s, do_zero_grad, NULL));
    s->is_reduced = 0;
    return ZB_OK;
}

/* A forward-only schedule for n_micro; kept until another number is asked for.
 * It goes through the planned one in turn, for which the message buffers were
 * counted: an order made for n_micro could need more of them. */
static enum zb_status eval_schedule(struct zb_session *s, int n_micro,
                                    const struct zb_schedule **sched_out)
{
    struct zb_schedule *made;

    if (n_micro == s->plan->o.n_micro) {
        *sched_out = s->plan->eval;
        return ZB_OK;
    }
    if (s->eval == NULL || s->eval->n_micro != n_micro) {
        ZB_TRY(zb_plan_repeat(s->plan->eval, n_micro, &made));
        for (int i = 0; i < s->plan->n_devices; i++) {
            /* The watchdog may look before a worker is at its next node. */
            atomic_store(&s->worker[i].node, NULL);
        }
        zb_schedule_free(s->eval);
        s->eval = made;
    }
    *sched_out = s->eval;
    return ZB_OK;
}

enum zb_status zb_run_forward_only(struct zb_session *s,
                                   const struct zb_step_input *in, int n_micro,
                                   int flags, struct zb_step_result *res)
{
    struct step_arg a = {
        .in = in,
        .n_micro = n_micro > 0 ? n_micro : s->plan->o.n_micro,
        .flags = flags,
    };

    ZB_TRY(eval_schedule(s, a.n_micro, &a.sched));
    return run_step(s, &a, do_nodes, res);
}

enum zb_status zb_execute_pipeline(struct zb_session *s,
                                   const struct zb_step_input *in,
                                   int is_training, int flags,
                                   struct zb_step_result *res)
{
    return is_training ? zb_forward_backward_step(s, in, flags, res)
                       : zb_run_forward_only(s, in, 0, flags, res);
}
