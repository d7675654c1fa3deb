/* SPDX-License-Identifier: MIT
 *
 * The training loop and evaluation. */
#include "config.h"
#include "cli/job.h"
#include "cli/report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/runlog.h"
#include "cli/saves.h"
#include "zb/file.h"
#include "zb/log.h"
#include "zb/mem.h"
#include "zb/thread.h"
#include "zb/trace.h"

/* A trace of every step of a long run would be too big to open. */
#define TRACE_STEPS 10

/* ---- evaluation ---------------------------------------------------------- */

static enum zb_status eval_one(const struct zbrun_job *job,
                               struct zb_session *s,
                               const struct zb_batch *batch, const void **field,
                               struct zb_step_result *res)
{
    int n_micro = job->session.n_micro;
    struct zb_step_input in = {.n_rows = batch->n_rows,
                               .seq_len = batch->seq_len,
                               .field = field,
                               .sample = batch->sample_index};

    ZB_TRY(zbrun_job_fields(job, batch, field));
    if (batch->n_rows < n_micro) {
        n_micro = (int)batch->n_rows;
    }
    return zb_run_forward_only(s, &in, n_micro, ZB_RETURN_LOSS, res);
}

enum zb_status zbrun_evaluate(const struct zbrun_job *job,
                              struct zb_session *s, int64_t max_batches,
                              const volatile sig_atomic_t *stop,
                              struct zbrun_eval *eval_out)
{
    const struct zb_graph *g = zb_model_graph(job->model);
    int64_t n = zb_dataset_n_eval_batches(job->valid, job->rows);
    const void **field =
        zb_alloc_array((size_t)zb_graph_n_data(g), sizeof(*field));
    struct zb_batch batch = {.n_rows = 0};
    struct zb_step_result res = {.loss = 0};
    double sum[ZB_LOSS_MAX] = {0};
    int64_t n_targets[ZB_LOSS_MAX] = {0};
    enum zb_status st = ZB_ENOMEM;

    if (field == NULL) {
        return ZB_ENOMEM;
    }
    ZB_TRY_GOTO(st, zb_batch_init(&batch, job->rows, job->conf->data.seq_len),
                out);
    if (max_batches > 0 && max_batches < n) {
        n = max_batches;
    }
    for (int64_t i = 0; i < n; i++) {
        if (*stop != 0) {
            st = zb_fail(ZB_ESTOPPED, "stopped by a signal during evaluation");
            goto out;
        }
        ZB_TRY_GOTO(
            st, zb_dataset_eval_batch(job->valid, i, job->rows, &batch), out);
        ZB_TRY_GOTO(st, eval_one(job, s, &batch, field, &res), out);
        for (int k = 0; k < zb_graph_n_losses(g); k++) {
            sum[k] += res.loss_sum[k];
            n_targets[k] += res.n_counted[k];
        }
    }
    eval_out->loss = 0;
    for (int k = 0; k < zb_graph_n_losses(g); k++) {
        eval_out->loss += n_targets[k] > 0 ? sum[k] / (double)n_targets[k] : 0;
    }
    eval_out->n_targets = n_targets[0];
out:
    zb_batch_release(&batch);
    zb_free(field);
    return st;
}

/* ---- training ------------------------------------------------------------ */

struct loop {
    const struct zbrun_job *job;
    const struct zb_conf *conf;
    const volatile sig_atomic_t *stop;
    struct zb_session *s;
    struct zb_batch batch;
    const void **field;
    FILE *log;
    struct zb_trace *trace;
    struct zbrun_report *report; /* NULL: none is asked for */
    struct zbrun_saves saves;
    struct zb_lr lr;
    double peak_flops;
    int64_t begin_ns, session_ns, start_ns; /* opened from, session there from,
                                               steps from */
    int64_t first; /* step of this run, from 1 */
    int64_t done;  /* steps done, of earlier runs too */
    int64_t place; /* in the order of the data that comes next */
    int is_diverged, was_slow;
};

/* The bytes of a log up to its first line that is not of a step before
 * `first`: what an earlier run did after the checkpoint is done again. */
static off_t kept_bytes(const char *path, int64_t first)
{
    FILE *f = first > 1 ? fopen(path, "re") : NULL;
    char *line = NULL;
    size_t size = 0;
    ssize_t n;
    off_t kept = 0;

    while (f != NULL && (n = getline(&line, &size, f)) > 0) {
        long long step;

        if (line[n - 1] != '\n' ||
            sscanf(line, "{\"step\":%lld,", &step) != 1 || step >= first) {
            break;
        }
        kept += n;
    }
    free(line);
    if (f != NULL) {
        fclose(f);
    }
    return kept;
}

/* Make the file of a log this run's alone, without the steps it will do. */
static enum zb_status take_log(const char *path, int fd, int64_t first)
{
    struct stat info;

    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        return ZB_OK;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        return zb_fail(ZB_EIO,
                       "%s: another run writes to it; each needs an "
                       "output.dir or output.log of its own",
                       path);
    }
    return ftruncate(fd, kept_bytes(path, first)) == 0
               ? ZB_OK
               : zb_fail(ZB_EIO, "%s: cannot write: %s", path, strerror(errno));
}

static enum zb_status open_log(struct loop *l)
{
    const char *path = l->conf->output.log;

    if (path == NULL) {
        return ZB_OK;
    }
    ZB_TRY(zb_make_dir(l->conf->output.dir));
    l->log = fopen(path, "ae");
    if (l->log == NULL) {
        return zb_fail(ZB_EIO, "%s: cannot write: %s", path, strerror(errno));
    }
    return take_log(path, fileno(l->log), l->first);
}

static enum zb_status open_trace(struct loop *l)
{
    const char *path = l->job->opts->trace != NULL ? l->job->opts->trace
                                                   : l->conf->output.trace;

    if (path == NULL) {
        return ZB_OK;
    }
    if (l->job->opts->trace == NULL) {
        ZB_TRY(zb_make_dir(l->conf->output.dir));
    }
    ZB_TRY(zb_trace_open(path, &l->trace));
    return zbrun_trace_rows(l->trace, l->s);
}

static enum zb_status open_report(struct loop *l)
{
    const char *path = l->job->opts->report != NULL ? l->job->opts->report
                                                    : l->conf->output.report;

    if (path == NULL) {
        return ZB_OK;
    }
    if (l->job->opts->report == NULL) {
        ZB_TRY(zb_make_dir(l->conf->output.dir));
    }
    return zbrun_report_new(path, &l->report);
}

static enum zb_status open_loop(struct loop *l)
{
    static const enum zb_lr_kind kind[] = {
        [ZB_CONF_LR_CONSTANT] = ZB_LR_CONSTANT,
        [ZB_CONF_LR_COSINE] = ZB_LR_COSINE,
        [ZB_CONF_LR_LINEAR] = ZB_LR_LINEAR,
        [ZB_CONF_LR_WSD] = ZB_LR_WSD,
    };
    const struct zb_graph *g = zb_model_graph(l->job->model);

    l->lr = (struct zb_lr){
        .kind = kind[l->conf->optimizer.lr_schedule],
        .peak = l->conf->optimizer.lr,
        .min = l->conf->optimizer.min_lr,
        .warmup_steps = l->conf->optimizer.warmup_steps,
        .steps = l->conf->train.steps,
    };
    l->field = zb_alloc_array((size_t)zb_graph_n_data(g), sizeof(*l->field));
    if (l->field == NULL) {
        return ZB_ENOMEM;
    }
    ZB_TRY(zb_batch_init(&l->batch, l->job->rows, l->conf->data.seq_len));
    /* What earlier runs left is kept until this one is known to begin. */
    ZB_TRY(zb_session_new(l->job->model, &l->job->session, &l->s));
    l->session_ns = zb_now_ns();
    ZB_TRY(zbrun_saves_open(&l->saves, l->job, l->done));
    ZB_TRY(open_log(l));
    ZB_TRY(open_trace(l));
    ZB_TRY(open_report(l));
    if (!zb_session_is_simulated(l->s)) {
        ZB_TRY(zb_session_measure_peak(l->s, &l->peak_flops));
    }
    if (l->report != NULL) {
        zbrun_report_set_peak(l->report, l->peak_flops);
    }
    return ZB_OK;
}

/* What was noted until a failure is worth most; that comes first, though, among
 * the errors: `st`, with its text. */
static enum zb_status write_notes(struct loop *l, enum zb_status st)
{
    char text[ZB_ABORT_TEXT_MAX];
    enum zb_status report_st = ZB_OK, trace_st;

    snprintf(text, sizeof(text), "%s", zb_error_text());
    if (l->report != NULL) {
        report_st = zbrun_report_write(l->report, l->job, l->s, st);
    }
    if (st == ZB_OK && report_st != ZB_OK) {
        snprintf(text, sizeof(text), "%s", zb_error_text());
        st = report_st;
    }
    trace_st = zb_trace_close(l->trace);
    if (st == ZB_OK) {
        return trace_st;
    }
    return zb_fail(st, "%s", text);
}

static enum zb_status close_loop(struct loop *l, enum zb_status st)
{
    st = write_notes(l, st);
    zbrun_saves_close(&l->saves);
    zbrun_report_free(l->report);
    zb_session_free(l->s);
    if (l->log != NULL && fclose(l->log) != 0 && st == ZB_OK) {
        st = zb_fail(ZB_EIO, "%s: cannot write: %s", l->conf->output.log,
                     strerror(errno));
    }
    zb_batch_release(&l->batch);
    zb_free(l->field);
    return st;
}

/* The first step in its parts, so that its gradients can be written before they
 * are clipped. The same bits as zb_train_step(). */
static enum zb_status dump_step(struct loop *l, const struct zb_step_input *in,
                                double lr, struct zb_step_result *res)
{
    const char *dir = l->job->opts->dump_grads;
    char *path;
    enum zb_status st;

    ZB_TRY(zb_make_dir(dir));
    ZB_TRY(zb_zero_grad(l->s));
    ZB_TRY(zb_forward_backward_step(l->s, in, ZB_RETURN_LOSS, res));
    path = zb_format("%s/grads.safetensors", dir);
    st = path == NULL ? ZB_ENOMEM
                      : zb_session_dump_grads(l->s, path, res->loss);
    zb_free(path);
    ZB_TRY(st);
    return zb_optimizer_step(l->s, lr, res);
}

/* Whether a step is one of those that are shown. */
static int is_due(const struct loop *l, int64_t step)
{
    int64_t every = l->conf->train.log_interval;

    return every > 0 && (step % every == 0 || step == l->first);
}

static enum zb_status take_step(struct loop *l, int64_t step,
                                struct zbrun_record *r)
{
    struct zb_step_input in = {.n_rows = l->job->rows,
                               .seq_len = l->conf->data.seq_len,
                               .field = l->field,
                               .sample = l->batch.sample_index};
    struct zb_step_result res = {.loss = 0};
    int64_t begin = zb_now_ns();

    ZB_TRY(
        zb_dataset_batch_at(l->job->train, l->place, l->job->rows, &l->batch));
    ZB_TRY(zbrun_job_fields(l->job, &l->batch, l->field));
    r->lr = zb_lr_at(&l->lr, step);
    if (is_due(l, step)) {
        zb_session_watch_gpus(l->s);
    }
    if (step == l->first && l->job->opts->dump_grads != NULL) {
        ZB_TRY(dump_step(l, &in, r->lr, &res));
    } else {
        ZB_TRY(zb_train_step(l->s, &in, r->lr, &res));
    }
    l->done = step;
    l->place += l->job->rows;
    r->step = step;
    r->loss = res.loss;
    r->grad_norm = res.grad_norm;
    r->scale = res.scale;
    r->is_skipped = res.is_skipped;
    r->tokens = in.n_rows * in.seq_len;
    r->step_s = (double)(zb_now_ns() - begin) * 1e-9;
    r->bubble = zb_session_measured_bubble(l->s);
    r->bubble_planned = zb_session_schedule(l->s)->bubble_rate;
    r->mfu = l->peak_flops > 0 ? zb_session_step_flops(l->s) / r->step_s /
                                     l->peak_flops
                               : 0; /* simulated devices have no rate */
    if (is_due(l, step)) {
        r->gpu = zb_session_gpus(l->s, &r->n_gpus);
    }
    return ZB_OK;
}

static int wants_eval(const struct loop *l, int64_t step)
{
    int64_t every = l->conf->train.eval_interval;

    return l->job->valid != NULL && !zb_session_is_simulated(l->s) &&
           (step == l->conf->train.steps || (every > 0 && step % every == 0));
}

static enum zb_status add_eval(struct loop *l, struct zbrun_record *r)
{
    struct zbrun_eval ev;

    ZB_TRY(zbrun_evaluate(l->job, l->s, l->conf->train.eval_batches, l->stop,
                          &ev));
    r->has_eval = 1;
    r->eval_loss = ev.loss;
    return ZB_OK;
}

static void show(struct loop *l, const struct zbrun_record *r)
{
    double elapsed = (double)(zb_now_ns() - l->start_ns) * 1e-9;

    if (l->job->opts->verbosity >= 0 &&
        (is_due(l, r->step) || r->has_eval || r->step == r->n_steps)) {
        zbrun_show_step(stdout, r,
                        elapsed / (double)(r->step - l->first + 1) *
                            (double)(r->n_steps - r->step));
    }
}

/* Once: later steps have nothing else to say. */
static void warn_diverged(struct loop *l, const struct zbrun_record *r)
{
    int is_finite =
        isfinite(r->loss) && (isfinite(r->grad_norm) || r->is_skipped);

    if (!l->is_diverged && !is_finite) {
        l->is_diverged = 1;
        zb_log(ZB_LOG_WARN,
               "step %lld: the run has diverged: loss %g, gradient norm %g",
               (long long)r->step, r->loss, r->grad_norm);
    }
}

static void log_first_step(const struct loop *l)
{
    int64_t now = zb_now_ns();

    zb_log(ZB_LOG_DEBUG,
           "start-up: session %.1f ms, logs and peak rate %.1f ms, first step "
           "%.1f ms: %.1f ms in all",
           (double)(l->session_ns - l->begin_ns) * 1e-6,
           (double)(l->start_ns - l->session_ns) * 1e-6,
           (double)(now - l->start_ns) * 1e-6,
           (double)(now - l->begin_ns) * 1e-6);
}

/* ZB_ESTOPPED when its evaluation was; the step itself is done and logged. */
static enum zb_status do_step(struct loop *l, int64_t step)
{
    struct zbrun_record r = {.n_steps = l->conf->train.steps};
    enum zb_status st = ZB_OK;

    ZB_TRY(take_step(l, step, &r));
    if (step == l->first) {
        log_first_step(l);
    }
    if (l->trace != NULL && step - l->first < TRACE_STEPS) {
        ZB_TRY(zbrun_trace_step(l->trace, l->s, l->start_ns));
    }
    if (wants_eval(l, step)) {
        st = add_eval(l, &r);
        if (st != ZB_OK && st != ZB_ESTOPPED) {
            return st;
        }
    }
    if (l->log != NULL) {
        ZB_TRY(zbrun_log_step(l->log, l->conf->output.log, &r));
    }
    if (l->report != NULL) {
        enum zb_status noted = zbrun_report_step(l->report, l->s, &r);

        st = noted != ZB_OK ? noted : st;
    }
    show(l, &r);
    warn_diverged(l, &r);
    if (!l->was_slow) {
        l->was_slow = zbrun_warn_slow(&r);
    }
    ZB_TRY(st);
    return zbrun_saves_step(&l->saves, l->s, step, l->place);
}

static void show_hardware(const struct zbrun_job *job)
{
    const struct zb_backend_opts o = {.n_devices = job->n_devices,
                                      .threads_per_device = 1,
                                      .gpus = job->session.gpus};
    char text[256];

    job->ops->describe(&o, text, sizeof(text));
    if (text[0] != '\0') {
        zb_log(ZB_LOG_INFO, "%s: %s", job->ops->name, text);
    }
}

/* Until the last step or a signal; ZB_ESTOPPED then. What was done is saved. */
static enum zb_status do_steps(struct loop *l)
{
    enum zb_status st = ZB_OK;

    for (int64_t i = l->first; st == ZB_OK && i <= l->conf->train.steps; i++) {
        st = *l->stop == 0 ? do_step(l, i) : ZB_ESTOPPED;
    }
    if (st == ZB_OK || st == ZB_ESTOPPED) {
        ZB_TRY(zbrun_saves_finish(&l->saves, l->s, l->done, l->place));
    }
    return st != ZB_ESTOPPED
               ? st
               : zb_fail(ZB_ESTOPPED, "stopped by a signal after step %lld%s",
                         (long long)l->done,
                         l->saves.saver != NULL ? ", which is saved" : "");
}

enum zb_status zbrun_train(const struct zbrun_job *job,
                           const volatile sig_atomic_t *stop)
{
    struct loop l = {
        .job = job, .conf = job->conf, .stop = stop, .begin_ns = zb_now_ns()};
    enum zb_status st;

    if (job->resume != NULL) {
        l.done = job->resume->state.step;
        l.place = job->resume->state.n_samples;
    }
    l.first = l.done + 1;
    st = open_loop(&l);

    if (st == ZB_OK && job->opts->verbosity >= 0) {
        const struct zb_schedule *sched = zb_session_schedule(l.s);

        zb_log(ZB_LOG_INFO,
               "%s on %d %s device%s, %s, planned bubble %.1f %%",
               zb_model_type(job->model), sched->n_stage,
               zb_session_backend(l.s), sched->n_stage == 1 ? "" : "s",
               sched->planner, 100 * sched->bubble_rate);
        show_hardware(job);
        if (zb_session_messages(l.s)[0] != '\0') {
            zb_log(ZB_LOG_INFO, "%s", zb_session_messages(l.s));
        }
        if (zb_session_is_simulated(l.s)) {
            zb_log(ZB_LOG_INFO, "%s devices compute nothing: losses and norms "
                                "are 0 and nothing is evaluated",
                   zb_session_backend(l.s));
        }
        /* The log of -v has them already. */
        if (job->opts->verbosity == 0 &&
            job->session.costs == ZB_COSTS_MEASURED) {
            zb_session_print_costs(l.s, stderr);
        }
    }
    l.start_ns = zb_now_ns();
    if (st == ZB_OK) {
        st = do_steps(&l);
    }
    if (st == ZB_OK && job->opts->verbosity > 0) {
        zb_session_print_cost_errors(l.s, stderr);
        zb_session_print_launches(l.s, stderr);
    }
    return close_loop(&l, st);
}
