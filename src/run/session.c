/* SPDX-License-Identifier: MIT
 *
 * The host's side of a run: start and stop the workers, give them commands. */
#include "config.h"
#include "run/run_int.h"

#include <math.h>
#include <string.h>

#include "zb/mem.h"

void zb_session_opts_init(struct zb_session_opts *o)
{
    *o = (struct zb_session_opts){
        .backend = "auto",
        .n_stages = 1,
        .n_dp = 1,
        .zero_stage = 1,
        .overlap_reduce = 1,
        .overlap_gather = 1,
        .post_validation = 1,
        .n_micro = 1,
        .max_rows = 1,
        .max_seq = 1,
        .planner = "zbv",
        .plan = {.objective = ZB_PLAN_STEP, .budget = -1},
        .has_metadata_cache = 1,
        .overlap_p2p = 1,
        .threads_per_device = 1,
        .optim = {.kind = ZB_OPTIM_ADAMW,
                  .beta1 = 0.9,
                  .beta2 = 0.95,
                  .eps = 1e-8,
                  .weight_decay = 0.01,
                  .max_norm = 1},
        .watchdog_s = 300,
        .sim_ns_per_cost = 1e6,
    };
}

/* ---- commands ------------------------------------------------------------ */

static void join_all(struct zb_session *s)
{
    for (int i = 0; i < s->n_running; i++) {
        zb_thread_join(&s->worker[i].thread);
    }
    s->n_running = 0;
}

/* The run's first error becomes this thread's; the workers are gone after. One
 * whose stream waits for a message that will not come can not leave by itself:
 * links are cut first. */
static enum zb_status end_with_error(struct zb_session *s)
{
    if (s->chan != NULL) {
        zb_channels_abort(s->chan,
                          s->plan->n_columns * zb_n_channels(s->plan));
    }
    atomic_store(&s->has_cut_links, 1);
    zb_signal_bump(&s->cut);
    join_all(s);
    if (s->ab.st == ZB_ENOMEM && s->plan->o.memory_table != NULL) {
        zb_run_plan_print_memory(s->plan, s->plan->o.memory_table);
    }
    return zb_fail(s->ab.st, "%s", s->ab.text);
}

/* A message that fails on its way is noticed by nobody else. */
static void look_at_links(struct zb_session *s)
{
    const struct zb_run_plan *p = s->plan;

    for (int c = 0; p->is_linked && c < p->n_columns * zb_n_channels(p); c++) {
        enum zb_status st = zb_channel_link_error(s->chan[c]);

        if (st != ZB_OK) {
            zb_abort_raise(&s->ab, st, zb_error_text());
            return;
        }
    }
}

/* Wait until all workers reported, watching that something moves. */
static enum zb_status wait_done(struct zb_session *s)
{
    struct zb_watch watch;
    uint32_t n = (uint32_t)s->plan->n_devices;

    zb_watch_init(&watch, s);
    for (;;) {
        uint32_t seen = zb_signal_seq(&s->done);
        enum zb_status st;

        if (zb_abort_is_raised(&s->ab)) {
            return end_with_error(s);
        }
        if (atomic_load(&s->n_done) == n) {
            return ZB_OK;
        }
        st = zb_signal_wait_for(&s->done, seen, &s->ab, ZB_WATCH_TURN_NS);
        if (st == ZB_ETIMEOUT) {
            look_at_links(s);
            zb_watch_look(&watch, s);
        }
    }
}

/* Drivers differ in how long they take: at most this share of the time. The
 * first reading, which loads a library, does not count. */
#define READING_SHARE 20

/* While the workers are at it: between steps GPUs rest. */
static void read_gpus(struct zb_session *s)
{
    int64_t begin = zb_now_ns(), now;

    if (!s->watches_gpus) {
        return;
    }
    s->watches_gpus = 0;
    s->n_gpus = 0;
    if (begin < s->no_reading_until_ns) {
        return;
    }
    s->n_gpus = s->be->ops->gpu_states(s->be, s->gpu);
    now = zb_now_ns();
    s->no_reading_until_ns =
        s->has_read_gpus ? now + (READING_SHARE - 1) * (now - begin) : now;
    s->has_read_gpus = 1;
}

static enum zb_status run_command(struct zb_session *s, zb_command_fn fn,
                                  void *arg)
{
    if (s->n_running == 0 || zb_abort_is_raised(&s->ab)) {
        return zb_fail(ZB_EABORT, "the session has ended: %s", s->ab.text);
    }
    atomic_store(&s->n_done, 0);
    s->command = fn;
    s->arg = arg;
    zb_signal_bump(&s->go);
    read_gpus(s);
    return wait_done(s);
}

struct each_arg {
    zb_command_fn fn;
    void *arg;
};

/* What the caller lends for the call must not be in use after it. */
static enum zb_status do_each(struct zb_worker *w, void *arg)
{
    struct each_arg *a = arg;

    ZB_TRY(zb_worker_settle(w));
    ZB_TRY(a->fn(w, a->arg));
    return w->ops->stream_sync(w->stream);
}

enum zb_status zb_session_each(struct zb_session *s,
                               enum zb_status (*fn)(struct zb_worker *w,
                                                    void *arg),
                               void *arg)
{
    struct each_arg a = {fn, arg};

    return run_command(s, do_each, &a);
}

/* ---- starting and stopping ----------------------------------------------- */

static int is_turn(const struct zb_run_plan *p, int ch)
{
    return zb_stage_of(p, zb_channel_from(ch)) ==
           zb_stage_of(p, zb_channel_to(ch));
}

/* What the plan allows a message; at the turn of the V nothing moves. */
static int64_t latency_ns(const struct zb_run_plan *p, int ch)
{
    return is_turn(p, ch) ? 0 : llround(p->in.c_cost * p->o.sim_ns_per_cost);
}

struct zb_channel_opts zb_channel_opts_of(const struct zb_session *s,
                                          int column, int ch)
{
    const struct zb_run_plan *p = s->plan;
    struct zb_channel_opts o = {
        .ops = s->be->ops,
        .name = p->chan_name[ch],
        .bytes = zb_channel_bytes(p, ch),
        .n_buffers = p->n_send_bufs[ch] + p->n_recv_bufs[ch],
        .part = p->part[ch],
        .n_parts = p->n_parts[ch],
        .latency_ns = latency_ns(p, ch),
        .has_meta_cache = p->o.has_metadata_cache,
    };

    zb_peers_set_channel(
        &s->peers, zb_device_of(p, zb_stage_of(p, zb_channel_from(ch)), column),
        zb_device_of(p, zb_stage_of(p, zb_channel_to(ch)), column),
        p->n_send_bufs[ch], &o);
    return o;
}

static enum zb_status make_channels(struct zb_session *s)
{
    const struct zb_run_plan *p = s->plan;
    int n_channels = zb_n_channels(p), n = p->n_columns * n_channels;

    s->chan = zb_alloc_array((size_t)n, sizeof(*s->chan));
    if (s->chan == NULL) {
        return ZB_ENOMEM;
    }
    for (int i = 0; i < n; i++) {
        struct zb_channel_opts o =
            zb_channel_opts_of(s, i / n_channels, i % n_channels);

        ZB_TRY(zb_channel_new(&o, &s->ab, &s->chan[i]));
    }
    return ZB_OK;
}

static void host_free(struct zb_worker *w, void *ptr)
{
    if (ptr != NULL) {
        w->ops->host_free(w->s->be, ptr);
    }
}

static enum zb_status reserve_staging(struct zb_worker *w)
{
    return w->ops->host_alloc(
        w->s->be, (size_t)w->n_fly * zb_staging_bytes(w->s->plan), "batch",
        (void **)&w->staging);
}

enum zb_status zb_worker_reserve(struct zb_worker *w, int n_micro)
{
    const struct zb_run_plan *p = w->s->plan;
    size_t n = (size_t)n_micro;
    struct zb_inflight *fly =
        zb_alloc_array((size_t)p->n_chunk * n, sizeof(*fly));
    struct zb_micro *cut = zb_alloc_array((size_t)p->n_dp * n, sizeof(*cut));
    int *is_staged = zb_alloc_array(n, sizeof(*is_staged));
    void *loss = NULL;
    enum zb_status st = ZB_ENOMEM;

    if (fly != NULL && cut != NULL && is_staged != NULL) {
        st = w->ops->host_alloc(w->s->be, n * sizeof(double), "losses", &loss);
    }
    if (st != ZB_OK) {
        zb_free(fly);
        zb_free(cut);
        zb_free(is_staged);
        return st;
    }
    zb_free(w->fly);
    host_free(w, w->loss_host);
    zb_free(w->own_mb);
    zb_free(w->is_staged);
    host_free(w, w->staging);
    w->fly = fly;
    w->loss_host = loss;
    w->own_mb = cut;
    w->is_staged = is_staged;
    w->staging = NULL;
    w->mb = NULL; /* of a step that is over */
    w->n_fly = n_micro;
    return w->ops->has_host_memory ? reserve_staging(w) : ZB_OK;
}

/* Room for the microbatches of a step, on the host and in the workers; these
 * make the first room for themselves, near their devices. */
static enum zb_status reserve_micro(struct zb_session *s, int n_micro)
{
    size_t n_dp = (size_t)s->plan->n_dp;
    struct zb_micro *mb;

    if (n_micro <= s->n_mb) {
        return ZB_OK;
    }
    mb = zb_realloc_array(s->mb, n_dp * (size_t)s->n_mb,
                          n_dp * (size_t)n_micro, sizeof(*mb));
    if (mb == NULL) {
        return ZB_ENOMEM;
    }
    s->mb = mb;
    for (int i = 0; i < s->n_running; i++) {
        ZB_TRY(zb_worker_reserve(&s->worker[i], n_micro));
    }
    s->n_mb = n_micro;
    return ZB_OK;
}

/* Made when the first batch asks for it. */
static enum zb_status reserve_for_batch(struct zb_session *s,
                                        const struct zb_step_input *in)
{
    for (int i = 0; i < s->plan->n_devices; i++) {
        struct zb_worker *w = &s->worker[i];

        if (w->staging == NULL && zb_worker_stages(w, in)) {
            ZB_TRY(reserve_staging(w));
        }
    }
    return ZB_OK;
}

static enum zb_status start_workers(struct zb_session *s)
{
    const struct zb_run_plan *p = s->plan;

    zb_barrier_init(&s->leave, (uint32_t)p->n_devices);
    for (int i = 0; i < p->n_devices; i++) {
        char name[24];
        enum zb_status st;

        snprintf(name, sizeof(name), "device %d", i);
        st = zb_thread_start(&s->worker[i].thread, name, zb_worker_main,
                             &s->worker[i]);
        if (st != ZB_OK) {
            zb_abort_raise(&s->ab, st, zb_error_text());
            zb_barrier_dismiss(&s->leave, (uint32_t)(p->n_devices - i));
            return end_with_error(s);
        }
        s->n_running++;
    }
    return wait_done(s);
}

/* Sleeping is not interrupted, and times must fit into an int64_t. */
#define MAX_SIM_S 3600.0

static enum zb_status check_sim(const struct zb_session *s)
{
    const struct zb_run_plan *p = s->plan;
    double step_s = p->sched->makespan * p->o.sim_ns_per_cost * 1e-9;

    if (s->be->ops->is_simulated && !(step_s <= MAX_SIM_S)) {
        return zb_fail(ZB_EINVAL,
                       "a simulated step would take %.3g s, more than %g: a "
                       "unit of the costs is %g us (schedule.sim_unit_us)",
                       step_s, MAX_SIM_S, p->o.sim_ns_per_cost * 1e-3);
    }
    return ZB_OK;
}

static void init_worker(struct zb_session *s, int device)
{
    const struct zb_run_plan *p = s->plan;
    struct zb_worker *w = &s->worker[device];
    struct zb_column c = zb_column_of(p, device % p->n_columns);

    w->s = s;
    w->device = device;
    w->stage = device / p->n_columns;
    w->column = device % p->n_columns;
    w->dp = c.dp;
    w->sp = c.sp;
    w->tp = c.tp;
    w->ops = s->be->ops;
    w->fail_node = ZB_NO_OFFSET;
}

/* The scale of the gradients that the next update will look at: it changes at
 * updates only. */
static void set_loss_scale(struct zb_session *s)
{
    s->norms.loss_scale[(s->worker[0].turn + 1) % 2] =
        zb_scales_loss(s->plan) ? s->scaler.scale : 1;
}

static void resume_scale(struct zb_session *s,
                         const struct zb_ckpt_state *state)
{
    const struct zb_scaler_opts *o = &s->scaler.o;

    if (zb_scales_loss(s->plan) && state->has_scale) {
        s->scaler.scale = fmin(fmax(state->scale, o->min_scale), o->max_scale);
        s->scaler.n_good = state->n_good < o->growth_interval
                               ? state->n_good
                               : o->growth_interval - 1;
        s->scaler.n_overflows = state->n_overflows;
        set_loss_scale(s);
    }
}

/* Where parameters come from, if they are not drawn. */
static enum zb_status find_values(struct zb_session *s,
                                  const struct zb_model *model,
                                  const struct zb_session_opts *o)
{
    if (o->resume != NULL) {
        ZB_TRY(zb_check_resume(zb_model_graph(model), o));
        s->resume = o->resume;
        resume_scale(s, &o->resume->state);
        return ZB_OK;
    }
    return o->pretrained != NULL
               ? zb_open_weights(model, o->pretrained, &s->weights)
               : ZB_OK;
}

static enum zb_status open_session(struct zb_session *s,
                                   const struct zb_model *model,
                                   const struct zb_session_opts *o)
{
    const struct zb_run_plan *p;
    struct zb_backend_opts bo = {
        .threads_per_device = o->threads_per_device,
        .seed = o->check_seed,
        .max_delay_us = o->check_delay_us,
        .gpus = o->gpus,
    };

    s->begin_ns = zb_now_ns();
    ZB_TRY(zb_run_plan_new_on_devices(model, o, &s->plan));
    s->planned_ns = zb_now_ns();
    zb_run_plan_log(s->plan);
    ZB_TRY(zb_run_plan_check_memory(s->plan));
    p = s->plan;
    bo.n_devices = p->n_devices;
    s->worker = zb_alloc_array((size_t)p->n_devices, sizeof(*s->worker));
    s->gpu = zb_alloc_array((size_t)p->n_devices, sizeof(*s->gpu));
    if (s->worker == NULL || s->gpu == NULL) {
        return ZB_ENOMEM;
    }
    ZB_TRY(zb_backend_open(o->backend, &bo, &s->be));
    ZB_TRY(check_sim(s));
    ZB_TRY(zb_notes_init(s));
    for (int i = 0; i < p->n_devices; i++) {
        init_worker(s, i);
    }
    ZB_TRY(zb_groups_new(s));
    ZB_TRY(zb_session_find_peers(s));
    ZB_TRY(make_channels(s));
    ZB_TRY(zb_group_new(p->n_devices, 0, &s->ab, &s->group));
    for (int i = 0; i < 2; i++) {
        s->norms.table[i] = zb_alloc_array(
            (size_t)p->n_params * (size_t)p->n_columns, sizeof(double));
        if (s->norms.table[i] == NULL) {
            return ZB_ENOMEM;
        }
    }
    for (int i = 0; i < p->n_devices; i++) {
        s->worker[i].chan = s->chan + s->worker[i].column * zb_n_channels(p);
    }
    if (zb_scales_loss(p)) {
        ZB_TRY(zb_scaler_init(&s->scaler, &o->scaler));
    }
    set_loss_scale(s);
    ZB_TRY(reserve_micro(s, o->n_micro));
    ZB_TRY(find_values(s, model, o));
    s->opened_ns = zb_now_ns();
    ZB_TRY(start_workers(s));
    zb_session_log_start(s, zb_now_ns());
    zb_weights_close(s->weights);
    s->weights = NULL;
    s->resume = NULL;
    return ZB_OK;
}

enum zb_status zb_session_new(const struct zb_model *model,
                              const struct zb_session_opts *o,
                              struct zb_session **s_out)
{
    struct zb_session *s = zb_alloc(sizeof(*s));
    enum zb_status st;

    if (s == NULL) {
        return ZB_ENOMEM;
    }
    zb_abort_init(&s->ab);
    zb_signal_init(&s->go);
    zb_signal_init(&s->done);
    zb_signal_init(&s->cut);
    zb_signal_init(&s->norms.moved);
    st = open_session(s, model, o);
    if (st != ZB_OK) {
        zb_session_free(s);
        return st;
    }
    *s_out = s;
    return ZB_OK;
}

void zb_session_stop(struct zb_session *s)
{
    if (s->n_running > 0) {
        s->command = NULL;
        zb_signal_bump(&s->go);
        join_all(s);
    }
}

void zb_session_free(struct zb_session *s)
{
    if (s == NULL) {
        return;
    }
    zb_session_stop(s);
    for (int i = 0; s->worker != NULL && i < s->plan->n_devices; i++) {
        host_free(&s->worker[i], s->worker[i].staging);
        zb_free(s->worker[i].is_staged);
        zb_free(s->worker[i].own_mb);
        host_free(&s->worker[i], s->worker[i].loss_host);
        zb_free(s->worker[i].fly);
    }
    zb_free(s->norms.table[1]);
    zb_free(s->norms.table[0]);
    zb_group_free(s->group);
    zb_groups_free(s->groups);
    for (int c = 0; s->chan != NULL &&
                    c < s->plan->n_columns * zb_n_channels(s->plan);
         c++) {
        zb_channel_free(s->chan[c]);
    }
    zb_peers_release(&s->peers);
    if (s->be != NULL) {
        zb_backend_close(s->be);
    }
    zb_weights_close(s->weights);
    zb_notes_release(s);
    zb_schedule_free(s->eval);
    zb_free(s->mb);
    zb_free(s->chan);
    zb_free(s->worker);
    zb_free(s->gpu);
    zb_run_plan_free(s->plan);
    zb_abort_release(&s->ab);
    zb_free(s);
}

/* *p_out is there, and to be freed, also when memory does not suffice. */
static enum zb_status plan_and_print(const struct zb_model *model,
                                     const struct zb_session_opts *o, FILE *f,
                                     struct zb_run_plan **p_out)
{
    const struct zb_backend_ops *ops;

    struct zb_weights *weights;

    ZB_TRY(zb_backend_find(o->backend, &ops));
    if (o->resume != NULL) {
        ZB_TRY(zb_check_resume(zb_model_graph(model), o));
    } else if (o->pretrained != NULL) {
        ZB_TRY(zb_open_weights(model, o->pretrained, &weights));
        zb_weights_close(weights);
    }
    ZB_TRY(zb_run_plan_new(model, o, p_out));
    if (f != NULL) {
        zb_run_plan_print(*p_out, f);
    }
    return zb_run_plan_check_memory(*p_out);
}

enum zb_status zb_session_dry_run(const struct zb_model *model,
                                  const struct zb_session_opts *o, FILE *f)
{
    struct zb_run_plan *p = NULL;
    enum zb_status st = plan_and_print(model, o, f, &p);

    zb_run_plan_free(p);
    return st;
}

enum zb_status zb_session_plan(const struct zb_model *model,
                               const struct zb_session_opts *o, FILE *f,
                               struct zb_plan_input *in_out,
                               struct zb_schedule **s_out)
{
    struct zb_run_plan *p = NULL;
    enum zb_status st = plan_and_print(model, o, f, &p);

    if (st == ZB_OK) {
        *in_out = p->in;
        *s_out = p->sched;
        memset(&p->in, 0, sizeof(p->in));
        p->sched = NULL;
    }
    zb_run_plan_free(p);
    return st;
}

/* ---- steps --------------------------------------------------------------- */

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
    ZB_TRY(zb_worker_zero_grad(w));
    ZB_TRY(do_nodes(w, arg));
    return do_update(w, arg);
}

/* The loss sum of microbatch i of a replica: its parts, in rank order. */
static double micro_loss(const struct zb_session *s, int dp, int i)
{
    const struct zb_run_plan *p = s->plan;
    int stage = zb_stage_of(p, p->n_virtual - 1);
    double sum = 0;

    for (int sp = 0; sp < p->n_sp; sp++) {
        int column = (dp * p->n_sp + sp) * p->n_tp;

        sum += s->worker[zb_device_of(p, stage, column)].loss_host[i];
    }
    return sum;
}

/* The loss from the sums of the devices that have them, in the order of the
 * batch. */
static void add_up_loss(struct zb_session *s, int n_micro,
                        struct zb_step_result *res)
{
    const struct zb_run_plan *p = s->plan;
    int n = p->n_dp * n_micro, n_used = 0;
    double mean_sum = 0;

    res->loss_sum = 0;
    res->n_counted = 0;
    for (int i = 0; i < n; i++) {
        double sum = micro_loss(s, i / n_micro, i % n_micro);

        if (s->mb[i].is_idle) {
            continue;
        }
        n_used++;
        res->loss_sum += sum;
        res->n_counted += s->mb[i].n_counted;
        if (s->mb[i].n_counted > 0) {
            mean_sum += sum / (double)s->mb[i].n_counted;
        }
    }
    res->loss = p->o.loss_average == ZB_LOSS_PER_MICROBATCH
                    ? mean_sum / n_used
                : res->n_counted > 0 ? res->loss_sum / (double)res->n_counted
                                     : 0;
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
    ZB_TRY(reserve_micro(s, a->n_micro));
    ZB_TRY(reserve_for_batch(s, a->in));
    ZB_TRY(zb_cut_batch(s->plan, a->in, a->n_micro, s->mb));
    if ((a->flags & ZB_RETURN_OUTPUTS) && res->output == NULL) {
        return zb_fail(ZB_EINVAL, "outputs asked for without room for them");
    }
    a->output = res->output;
    ZB_TRY(run_command(s, fn, a));
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
    set_loss_scale(s);
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
    ZB_TRY(run_command(s, do_update, &a));
    s->is_reduced = 1;
    return take_verdict(s, res);
}

enum zb_status zb_zero_grad(struct zb_session *s)
{
    ZB_TRY(run_command(s, do_zero_grad, NULL));
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
