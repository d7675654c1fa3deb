/* SPDX-License-Identifier: MIT
 *
 * How a session comes to be and how it ends, and what is planned without one.
 */
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
        .cuda_graphs = 1,
        .watchdog_s = 300,
        .sim_ns_per_cost = 1e6,
    };
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
    return w->ops->host_alloc(w->s->be,
                              (size_t)w->n_fly * zb_staging_bytes(w->s->plan),
                              "batch", (void **)&w->staging);
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
        st = w->ops->host_alloc(w->s->be,
                                n * (size_t)zb_graph_n_losses(w->s->plan->g) *
                                    sizeof(double),
                                "losses", &loss);
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
enum zb_status zb_session_reserve(struct zb_session *s, int n_micro)
{
    size_t n_dp = (size_t)s->plan->n_dp;
    struct zb_micro *mb;

    if (n_micro <= s->n_mb) {
        return ZB_OK;
    }
    mb = zb_realloc_array(s->mb, n_dp * (size_t)s->n_mb, n_dp * (size_t)n_micro,
                          sizeof(*mb));
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
enum zb_status zb_session_reserve_batch(struct zb_session *s,
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
            return zb_session_end(s);
        }
        s->n_running++;
    }
    return zb_session_wait(s);
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
void zb_session_set_loss_scale(struct zb_session *s)
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
        zb_session_set_loss_scale(s);
    }
}

/* A checkpoint with adapters has nothing else. */
static int needs_pretrained(const struct zb_model *model,
                            const struct zb_session_opts *o)
{
    return o->resume == NULL || zb_graph_has_adapters(zb_model_graph(model));
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
    }
    return o->pretrained != NULL && needs_pretrained(model, o)
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
    zb_session_set_loss_scale(s);
    ZB_TRY(zb_session_reserve(s, o->n_micro));
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
        zb_session_join(s);
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
    for (int c = 0;
         s->chan != NULL && c < s->plan->n_columns * zb_n_channels(s->plan);
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

/* ---- without a session --------------------------------------------------- */

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
    }
    if (o->pretrained != NULL && needs_pretrained(model, o)) {
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
