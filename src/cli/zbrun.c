/* SPDX-License-Identifier: MIT
 *
 * zbrun: train a transformer on one machine. See zbrun(1). */
#include "config.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/job.h"
#include "zb/backend.h"
#include "zb/log.h"
#include "zb/model.h"

enum exit_code {
    EXIT_DONE = 0,
    EXIT_RUN = 1,
    EXIT_USAGE = 2,
    EXIT_STOPPED = 75
};

static volatile sig_atomic_t got_signal;

static void on_signal(int sig)
{
    got_signal = sig;
}

/* For training: the first signal ends the run after the step, the second the
 * process. Nothing else has anything to finish first. */
static void catch_signals(void)
{
    struct sigaction sa;

    memset(&sa, 0, sizeof(sa));
    sa.sa_handler = on_signal;
    sa.sa_flags = (int)(SA_RESTART | SA_RESETHAND);
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
}

static int exit_code(enum zb_status st)
{
    switch (st) {
    case ZB_OK:
        return EXIT_DONE;
    case ZB_ECONFIG:
    case ZB_EINVAL:
    case ZB_EUNSUPPORTED:
    case ZB_EINFEASIBLE:
        return EXIT_USAGE;
    case ZB_ESTOPPED:
        return EXIT_STOPPED;
    default:
        return EXIT_RUN;
    }
}

static void print_version(void)
{
    const struct zb_backend_ops *cuda;
    char text[128] = "no", links[64] = "no";

    printf("zbrun %s\nbackends:", PACKAGE_VERSION);
    for (size_t i = 0; zb_backend_at(i) != NULL; i++) {
        printf(" %s", zb_backend_at(i)->name);
    }
#ifdef _OPENMP
    printf("\nopenmp: yes");
#else
    printf("\nopenmp: no");
#endif
#ifdef HAVE_ONEDNN
    printf("\nonednn: yes");
#else
    printf("\nonednn: no (plain loops, slow)");
#endif
    if (zb_backend_find("cuda", &cuda) == ZB_OK) {
        cuda->describe(NULL, text, sizeof(text));
        if (cuda->links != NULL) {
            cuda->links->describe(links, sizeof(links));
        }
    }
    printf("\ncuda: %s\nnccl: %s\nmpi: no\n", text, links);
}

static enum zb_status print_config(const struct zbrun_opts *opts)
{
    struct zb_conf *conf;
    enum zb_status st;

    ZB_TRY(zb_conf_load(opts->config, opts->set, opts->n_set, &conf));
    st = zb_conf_print(conf, stdout, ZB_CONF_PRINT_ALL);
    zb_conf_free(conf);
    return st;
}

static enum zb_status eval_only(const struct zbrun_job *job)
{
    struct zb_session *s;
    struct zbrun_eval ev;
    enum zb_status st;

    ZB_TRY(zb_session_new(job->model, &job->session, &s));
    st = zbrun_evaluate(job, s, 0, &got_signal, &ev);
    zb_session_free(s);
    ZB_TRY(st);
    printf("eval loss %.9g (%a) over %lld targets\n", ev.loss, ev.loss,
           (long long)ev.n_targets);
    return ZB_OK;
}

static enum zb_status run_job(const struct zbrun_opts *opts)
{
    struct zbrun_job job;
    enum zb_status st = zbrun_job_init(&job, opts);

    if (st == ZB_OK && opts->verbosity >= 0) {
        st = zb_conf_print(job.conf, stderr, ZB_CONF_PRINT_NOT_YET);
    }
    if (st == ZB_OK) {
        switch (opts->action) {
        case ZBRUN_DRY_RUN:
            st = zb_session_dry_run(job.model, &job.session, stdout);
            break;
        case ZBRUN_EVAL:
            st = eval_only(&job);
            break;
        case ZBRUN_GENERATE:
            st = zbrun_generate(&job);
            break;
        default:
            st = zbrun_train(&job, &got_signal);
        }
    }
    zbrun_job_release(&job);
    return st;
}

static enum zb_status run_action(const struct zbrun_opts *opts)
{
    switch (opts->action) {
    case ZBRUN_HELP:
        zbrun_opts_help(stdout);
        return ZB_OK;
    case ZBRUN_VERSION:
        print_version();
        return ZB_OK;
    case ZBRUN_PRINT_CONFIG:
        return print_config(opts);
    case ZBRUN_LIST_MODELS:
        zb_model_list(stdout);
        return ZB_OK;
    case ZBRUN_TRAIN:
        catch_signals();
        return run_job(opts);
    default:
        return run_job(opts);
    }
}

/* A full disk shows late: what was printed may still be in the buffer. */
static enum zb_status close_stdout(enum zb_status st)
{
    int is_bad = fflush(stdout) != 0;

    if (st == ZB_OK && (is_bad || ferror(stdout))) {
        return zb_fail(ZB_EIO, "standard output: cannot write");
    }
    return st;
}

int main(int argc, char **argv)
{
    struct zbrun_opts opts;
    enum zb_status st = zbrun_opts_parse(argc, argv, &opts);

    if (st != ZB_OK) {
        zb_log(ZB_LOG_ERROR, "%s", zb_error_text());
        zbrun_opts_usage(stderr);
        return EXIT_USAGE;
    }
    zb_log_set_level(opts.verbosity < 0   ? ZB_LOG_WARN
                     : opts.verbosity > 0 ? ZB_LOG_DEBUG
                                          : ZB_LOG_INFO);
    st = close_stdout(run_action(&opts));
    if (st == ZB_ESTOPPED) {
        zb_log(ZB_LOG_WARN, "%s", zb_error_text());
    } else if (st != ZB_OK) {
        zb_log(ZB_LOG_ERROR, "%s", zb_error_text());
    }
    zbrun_opts_release(&opts);
    return exit_code(st);
}
