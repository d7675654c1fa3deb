/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "cli/saves.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "zb/file.h"
#include "zb/log.h"
#include "zb/mem.h"

#define TOKENIZER_MAX ((size_t)1 << 30)

/* ---- the folder ---------------------------------------------------------- */

/* Two runs in one folder would remove each other's checkpoints. */
static enum zb_status take_dir(struct zbrun_saves *v, const char *dir)
{
    v->lock = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (v->lock < 0) {
        return zb_fail(ZB_EIO, "%s: cannot open: %s", dir, strerror(errno));
    }
    if (flock(v->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        return zb_fail(ZB_EIO,
                       "%s: another run saves to it; each needs a "
                       "checkpoint.dir of its own",
                       dir);
    }
    return zb_ckpt_clean(dir);
}

static enum zb_status later_one(const struct zbrun_job *job, int64_t step,
                                int64_t later)
{
    const char *dir = job->conf->checkpoint.dir;

    if (job->is_own_resume) {
        return zb_ckpt_set_aside(dir, later);
    }
    return zb_fail(ZB_ECONFIG,
                   "%s has step-%lld, but this run begins behind step %lld: "
                   "it needs a folder of its own, or go on from that one",
                   dir, (long long)later, (long long)step);
}

/* What is behind the step to go on from was found damaged. */
static enum zb_status check_later(const struct zbrun_job *job, int64_t begin)
{
    int64_t *step = NULL;
    size_t n = 0;
    enum zb_status st = ZB_OK;

    ZB_TRY(zb_ckpt_list(job->conf->checkpoint.dir, &step, &n));
    for (size_t i = 0; st == ZB_OK && i < n; i++) {
        if (step[i] > begin || (begin == 0 && !job->is_own_resume)) {
            st = later_one(job, begin, step[i]);
        }
    }
    zb_free(step);
    return st;
}

/* With the tokenizer, so that the folder has all that a text needs. */
static enum zb_status new_saver(const struct zbrun_job *job,
                                struct zb_saver **s_out)
{
    const struct zb_conf_checkpoint *c = &job->conf->checkpoint;
    struct zb_ckpt_opts o = {
        .dir = c->dir, .keep = c->keep, .max_file_bytes = c->max_file_bytes};
    char *text = NULL;
    enum zb_status st;

    if (job->tokenizer != NULL) {
        ZB_TRY(zb_read_text(job->conf->data.tokenizer, TOKENIZER_MAX, &text));
    }
    o.tokenizer_json = text;
    st = zb_saver_new(&o, s_out);
    zb_free(text);
    return st;
}

enum zb_status zbrun_saves_open(struct zbrun_saves *v,
                                const struct zbrun_job *job, int64_t step)
{
    const struct zb_conf_checkpoint *c = &job->conf->checkpoint;

    *v =
        (struct zbrun_saves){.job = job, .lock = -1, .last = -1, .writing = -1};
    if (c->dir == NULL || job->ops->is_simulated) {
        return ZB_OK;
    }
    ZB_TRY(zb_make_dir(c->dir));
    ZB_TRY(take_dir(v, c->dir));
    ZB_TRY(check_later(job, step));
    if (job->is_own_resume) {
        v->last = step;
    }
    return new_saver(job, &v->saver);
}

void zbrun_saves_close(struct zbrun_saves *v)
{
    zb_saver_free(v->saver);
    if (v->job != NULL && v->lock >= 0) {
        close(v->lock);
    }
    memset(v, 0, sizeof(*v));
}

/* ---- saving -------------------------------------------------------------- */

/* What came of the save that is under way; waits for its end. */
static enum zb_status settle(struct zbrun_saves *v)
{
    int64_t step = v->writing;
    enum zb_status st;

    if (step < 0) {
        return ZB_OK;
    }
    v->writing = -1;
    st = zb_saver_wait(v->saver);
    if (st == ZB_OK) {
        v->last = step;
        return ZB_OK;
    }
    return zb_fail_in(st, "step %lld is not saved", (long long)step);
}

static enum zb_status begin(struct zbrun_saves *v, struct zb_session *s,
                            int64_t step, int64_t n_samples)
{
    struct zb_ckpt_shot *shot = NULL;
    enum zb_status st = zb_session_snapshot(s, &shot);

    if (st == ZB_OK) {
        shot->state.step = step;
        shot->state.n_samples = n_samples;
        st = zb_saver_begin(v->saver, shot);
    }
    if (st != ZB_OK) {
        return zb_fail_in(st, "step %lld is not saved", (long long)step);
    }
    v->writing = step;
    return ZB_OK;
}

/* A run that can not save goes on, if the user did not ask otherwise; a session
 * that failed does not. */
static enum zb_status judge(const struct zbrun_saves *v, enum zb_status st)
{
    if (st == ZB_EIO || st == ZB_ENOMEM) {
        if (v->job->conf->checkpoint.on_error == ZB_CONF_SAVE_CONTINUE) {
            zb_log(ZB_LOG_ERROR, "%s; training goes on", zb_error_text());
            return ZB_OK;
        }
    }
    return st;
}

enum zb_status zbrun_saves_step(struct zbrun_saves *v, struct zb_session *s,
                                int64_t step, int64_t n_samples)
{
    int64_t every = v->job->conf->checkpoint.interval;

    if (v->saver == NULL) {
        return ZB_OK;
    }
    if (zb_saver_is_done(v->saver)) {
        ZB_TRY(judge(v, settle(v)));
    }
    if (every == 0 || step % every != 0) {
        return ZB_OK;
    }
    ZB_TRY(judge(v, settle(v)));
    return judge(v, begin(v, s, step, n_samples));
}

enum zb_status zbrun_saves_finish(struct zbrun_saves *v, struct zb_session *s,
                                  int64_t step, int64_t n_samples)
{
    if (v->saver == NULL) {
        return ZB_OK;
    }
    /* One before the end that failed: this is another try. */
    ZB_TRY(judge(v, settle(v)));
    if (v->last != step) {
        ZB_TRY(begin(v, s, step, n_samples));
        ZB_TRY(settle(v));
    }
    if (v->job->opts->verbosity >= 0) {
        zb_log(ZB_LOG_INFO, "step %lld is saved in %s", (long long)step,
               v->job->conf->checkpoint.dir);
    }
    return ZB_OK;
}
