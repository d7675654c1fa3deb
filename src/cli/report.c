/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "cli/report_int.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "zb/file.h"
#include "zb/mem.h"
#include "zb/thread.h"

/* A run must not end with a report that has no place. */
static enum zb_status probe(const char *path)
{
    struct zb_sink k;
    struct stat info;
    enum zb_status st;

    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        return ZB_OK; /* opening a pipe means something to its reader */
    }
    ZB_TRY(zb_sink_open(&k, path));
    st = zb_sink_close(&k, ZB_ESTOPPED); /* leaves nothing behind */
    return st == ZB_ESTOPPED ? ZB_OK : st;
}

enum zb_status zbrun_report_new(const char *path, struct zbrun_report **r_out)
{
    struct zbrun_report *r;

    ZB_TRY(probe(path));
    r = zb_alloc(sizeof(*r));
    if (r == NULL) {
        return ZB_ENOMEM;
    }
    r->path = path;
    r->begin_ns = zb_now_ns();
    r->begin_s = (int64_t)time(NULL);
    r->per_row = 1;
    *r_out = r;
    return ZB_OK;
}

void zbrun_report_free(struct zbrun_report *r)
{
    if (r != NULL) {
        zbrun_gpus_release(&r->gpus);
        zb_free(r->ns);
        zb_free(r->times);
        zb_free(r);
    }
}

void zbrun_report_set_peak(struct zbrun_report *r, double flops)
{
    r->peak_flops = flops;
}

/* ---- the last step's times ----------------------------------------------- */

static enum zb_status make_room(struct zbrun_report *r,
                                const struct zb_session *s)
{
    size_t n = 0;

    r->n_stages = zb_session_schedule(s)->n_stage;
    for (int i = 0; i < r->n_stages; i++) {
        n += zb_session_node_times(s, i).n;
    }
    r->ns = zb_alloc_array(2 * n, sizeof(*r->ns));
    r->times = zb_alloc_array((size_t)r->n_stages, sizeof(*r->times));
    if (r->ns == NULL || r->times == NULL) {
        zb_free(r->ns);
        zb_free(r->times);
        r->ns = NULL;
        r->times = NULL;
        return ZB_ENOMEM;
    }
    return ZB_OK;
}

/* A step that fails later overwrites the session's. */
static enum zb_status copy_times(struct zbrun_report *r,
                                 const struct zb_session *s)
{
    int64_t *at;

    if (r->times == NULL) {
        ZB_TRY(make_room(r, s));
    }
    at = r->ns;
    for (int i = 0; i < r->n_stages; i++) {
        struct zb_node_times t = zb_session_node_times(s, i);

        memcpy(at, t.start_ns, t.n * sizeof(*at));
        memcpy(at + t.n, t.end_ns, t.n * sizeof(*at));
        r->times[i] = (struct zb_node_times){t.node, t.n, at, at + t.n};
        at += 2 * t.n;
    }
    return ZB_OK;
}

/* ---- steps --------------------------------------------------------------- */

/* Rows of the table: every so many steps, more apart when they are too many. */
static void add_row(struct zbrun_report *r, const struct zbrun_record *rec)
{
    size_t kept = 0;

    if ((rec->step - 1) % r->per_row != 0) {
        return;
    }
    if (r->n_rows == ZBRUN_ROWS_MAX) {
        for (size_t i = 0; i < r->n_rows; i += 2) {
            r->row[kept++] = r->row[i];
        }
        r->n_rows = kept;
        r->per_row *= 2;
    }
    if ((rec->step - 1) % r->per_row == 0) {
        r->row[r->n_rows++] = *rec;
    }
}

static void add_to_sums(struct zbrun_report *r, const struct zbrun_record *rec)
{
    if (r->n_steps == 2) {
        r->tokens = r->seconds = r->flops_share = 0;
    }
    r->tokens += (double)rec->tokens;
    r->seconds += rec->step_s;
    r->flops_share += rec->mfu * rec->step_s;
}

enum zb_status zbrun_report_step(struct zbrun_report *r,
                                 const struct zb_session *s,
                                 const struct zbrun_record *rec)
{
    const double value[ZBRUN_N_CURVES] = {
        [ZBRUN_CURVE_LOSS] = rec->loss,
        [ZBRUN_CURVE_EVAL] = rec->has_eval ? rec->eval_loss : NAN,
        [ZBRUN_CURVE_NORM] = rec->grad_norm,
        [ZBRUN_CURVE_LR] = rec->lr,
        [ZBRUN_CURVE_RATE] = (double)rec->tokens / rec->step_s,
        [ZBRUN_CURVE_STEP_MS] = 1e3 * rec->step_s,
        [ZBRUN_CURVE_BUBBLE] = 100 * rec->bubble,
        [ZBRUN_CURVE_MFU] = 100 * rec->mfu,
    };

    r->n_steps++;
    for (int i = 0; i < ZBRUN_N_CURVES; i++) {
        zbrun_series_add(&r->curve[i], rec->step, value[i]);
    }
    add_row(r, rec);
    add_to_sums(r, rec);
    r->last = *rec;
    ZB_TRY(zbrun_gpus_add(&r->gpus, rec->gpu, rec->n_gpus));
    return copy_times(r, s);
}

/* ---- writing ------------------------------------------------------------- */

enum zb_status zbrun_report_write(struct zbrun_report *r,
                                  const struct zbrun_job *job,
                                  const struct zb_session *s,
                                  enum zb_status st)
{
    struct zb_sink sink;
    char *text = st == ZB_OK ? NULL : zb_strdup(zb_error_text());
    enum zb_status written;

    if (st != ZB_OK && text == NULL) {
        return ZB_ENOMEM;
    }
    written = zb_sink_open(&sink, r->path);
    if (written == ZB_OK) {
        written = zb_sink_close(
            &sink, zbrun_report_page(r, job, s, st, text, sink.f));
    }
    zb_free(text);
    return written;
}
