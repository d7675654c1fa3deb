/* SPDX-License-Identifier: MIT
 *
 * The page of a report. */
#include "config.h"
#include "cli/report_int.h"

#include <math.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "zb/machine.h"
#include "zb/mem.h"
#include "zb/thread.h"

/* Okabe and Ito's colours, which colour-blind people can tell apart. */
static const char style[] =
    ":root{color-scheme:light dark;--ink:#1b1b1b;--soft:#666;--page:#fff;"
    "--card:#f4f4f4;--rule:#ccc;--idle:#e4e4e4}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e8e8e8;--soft:#a0a0a0;"
    "--page:#16181b;--card:#22252a;--rule:#464a50;--idle:#33373d}}\n"
    "body{font:14px/1.45 system-ui,'DejaVu Sans',sans-serif;color:var(--ink);"
    "background:var(--page);margin:0 auto;max-width:1020px;padding:16px}\n"
    "h1{font-size:22px}h2{font-size:17px;margin-top:28px;border-bottom:1px "
    "solid var(--rule)}h3{font-size:14px}\n"
    ".tiles{display:flex;flex-wrap:wrap;gap:10px}.tile{background:var(--card);"
    "border-radius:6px;padding:8px 14px;min-width:110px}\n"
    ".tile b{display:block;font-size:18px}.tile span,p{color:var(--soft)}\n"
    ".bad{color:#d55e00;font-weight:bold}\n"
    ".charts{display:flex;flex-wrap:wrap;gap:10px}.chart{width:460px;"
    "max-width:100%;background:var(--card);border-radius:6px}\n"
    ".wide{width:100%}.scroll{overflow-x:auto}\n"
    "svg text{font-size:11px;fill:var(--ink)}.head{font-weight:bold}"
    ".end{text-anchor:end}.mid{text-anchor:middle}\n"
    ".grid{stroke:var(--rule);stroke-width:1}.line{fill:none;stroke:#0072b2;"
    "stroke-width:1.8;stroke-linecap:round;stroke-linejoin:round}"
    ".band{fill:#0072b2;fill-opacity:.25}\n"
    ".mark{stroke:var(--ink);stroke-dasharray:3 3}.idle{fill:var(--idle)}\n"
    ".f,.m0{fill:#0072b2;background:#0072b2}.b,.m1{fill:#e69f00;"
    "background:#e69f00}.w,.m2{fill:#009e73;background:#009e73}"
    ".x,.m4{fill:#cc79a7;background:#cc79a7}.o{fill-opacity:.6}\n"
    ".m3{fill:#999;background:#999}.m5{fill:#56b4e9;background:#56b4e9}"
    ".m6{fill:#d55e00;background:#d55e00}.m7{fill:#f0e442;background:#f0e442}"
    ".m8{fill:#555;background:#555}\n"
    ".key{display:inline-block;width:12px;height:12px}\n"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{"
    "text-align:right;padding:2px 9px;border-bottom:1px solid var(--rule);"
    "white-space:nowrap}.t{text-align:left}\n"
    "pre{background:var(--card);padding:10px;overflow-x:auto;font-size:12px}\n";

void zbrun_html_text(FILE *f, const char *text)
{
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        if (strchr("<>&\"'", c) != NULL) {
            fprintf(f, "&#%d;", c);
        } else {
            fputc((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f ? '?' : c,
                  f);
        }
    }
}

/* ---- pieces -------------------------------------------------------------- */

/* The contents of a scratch file, which is closed. */
static void put_file(FILE *scratch, FILE *f)
{
    char line[512];

    rewind(scratch);
    fputs("<pre>", f);
    while (fgets(line, sizeof(line), scratch) != NULL) {
        zbrun_html_text(f, line);
    }
    fputs("</pre>\n", f);
    fclose(scratch);
}

static void tile(FILE *f, const char *name, const char *unit, double value)
{
    fprintf(f, "<div class=\"tile\"><b>%.6g%s</b><span>%s</span></div>\n",
            value, unit, name);
}

static void put_outcome(const struct zbrun_report *r, enum zb_status st,
                        const char *text, FILE *f)
{
    char when[40] = "";
    time_t begin = (time_t)r->begin_s;
    struct tm tm;

    if (localtime_r(&begin, &tm) != NULL) {
        strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &tm);
    }
    fprintf(f, "<p>Begun %s, %.1f s.</p>\n", when,
            1e-9 * (double)(zb_now_ns() - r->begin_ns));
    if (st == ZB_OK) {
        fputs("<p>Done.</p>\n", f);
        return;
    }
    fprintf(f, "<p class=\"bad\">%s: ",
            st == ZB_ESTOPPED ? "Stopped" : "Failed");
    zbrun_html_text(f, text);
    fputs("</p>\n", f);
}

/* Values of simulated devices mean nothing. */
static void put_tiles(const struct zbrun_report *r, int is_simulated, FILE *f)
{
    const struct zbrun_record *last = &r->last;
    int64_t n = r->n_steps > 1 ? r->n_steps - 1 : 1;

    if (r->n_steps == 0) {
        return;
    }
    fputs("<div class=\"tiles\">\n", f);
    fprintf(f,
            "<div class=\"tile\"><b>%lld of %lld</b><span>steps</span></div>\n",
            (long long)last->step, (long long)last->n_steps);
    if (!is_simulated) {
        tile(f, "last loss", "", last->loss);
        if (last->has_eval) {
            tile(f, "last loss on data.valid", "", last->eval_loss);
        }
        tile(f, "last gradient norm", "", last->grad_norm);
    }
    tile(f, "tokens per second", "", r->tokens / r->seconds);
    tile(f, "mean step", " ms", 1e3 * r->seconds / (double)n);
    if (!is_simulated) {
        tile(f, "MFU", " %", 100 * r->flops_share / r->seconds);
    }
    tile(f, "bubble, last step", " %", 100 * last->bubble);
    tile(f, "bubble, planned", " %", 100 * last->bubble_planned);
    fputs("</div>\n", f);
    if (is_simulated) {
        fputs("<p>The devices were simulated: nothing was computed.</p>\n", f);
    } else if (r->peak_flops > 0) {
        fprintf(f,
                "<p>MFU is relative to %.4g floating point operations per "
                "second, measured with large products on all devices at once. "
                "Means leave out the first step.</p>\n",
                r->peak_flops);
    }
}

static void put_curves(const struct zbrun_report *r, int is_simulated, FILE *f)
{
    static const struct {
        const char *title;
        int is_value; /* means nothing on simulated devices */
    } curve[ZBRUN_N_CURVES] = {
        [ZBRUN_CURVE_LOSS] = {"loss", 1},
        [ZBRUN_CURVE_EVAL] = {"loss on data.valid", 1},
        [ZBRUN_CURVE_NORM] = {"gradient norm", 1},
        [ZBRUN_CURVE_LR] = {"learning rate", 0},
        [ZBRUN_CURVE_RATE] = {"tokens per second", 0},
        [ZBRUN_CURVE_STEP_MS] = {"step, ms", 0},
        [ZBRUN_CURVE_BUBBLE] = {"bubble, %", 0},
        [ZBRUN_CURVE_MFU] = {"MFU, %", 1},
    };
    int64_t per_point = r->curve[ZBRUN_CURVE_LOSS].per_point;

    fputs("<h2>Steps</h2>\n<div class=\"charts\">\n", f);
    for (int i = 0; i < ZBRUN_N_CURVES; i++) {
        if (!is_simulated || !curve[i].is_value) {
            zbrun_series_draw(&r->curve[i], curve[i].title, f);
        }
    }
    fputs("</div>\n", f);
    if (per_point > 1) {
        fprintf(f,
                "<p>Each point stands for %lld steps: the line is their mean, "
                "the band goes from the least to the greatest.</p>\n",
                (long long)per_point);
    }
}

static void put_row(const struct zbrun_record *rec, FILE *f)
{
    fprintf(f,
            "<tr><td>%lld</td><td>%.9g</td><td>%.9g</td><td>%.9g</td>"
            "<td>%.6g</td><td>%.6g</td><td>%.4g</td><td>%.4g</td><td>",
            (long long)rec->step, rec->loss, rec->grad_norm, rec->lr,
            (double)rec->tokens / rec->step_s, 1e3 * rec->step_s,
            100 * rec->bubble, 100 * rec->mfu);
    if (rec->has_eval) {
        fprintf(f, "%.9g", rec->eval_loss);
    }
    fputs("</td></tr>\n", f);
}

static void put_rows(const struct zbrun_report *r, FILE *f)
{
    fputs("<div class=\"scroll\"><table>\n<tr><th>step</th><th>loss</th><th>"
          "gradient norm</th><th>learning rate</th><th>tokens/s</th><th>ms</th>"
          "<th>bubble %</th><th>MFU %</th><th>loss on data.valid</th></tr>\n",
          f);
    for (size_t i = 0; i < r->n_rows; i++) {
        put_row(&r->row[i], f);
    }
    if (r->n_rows > 0 && r->row[r->n_rows - 1].step != r->last.step) {
        put_row(&r->last, f);
    }
    fputs("</table></div>\n", f);
}

/* ---- the last step ------------------------------------------------------- */

static enum zb_status put_last_step(const struct zbrun_report *r,
                                    const struct zb_session *s, FILE *f)
{
    const struct zb_schedule *sched = zb_session_schedule(s);
    struct zb_comparison *c;

    ZB_TRY(zb_compare(sched, r->times, zb_session_c_cost(s),
                      zb_session_ns_per_cost(s), &c));
    fprintf(f,
            "<h2>Step %lld beside its plan</h2>\n<p>Schedule ",
            (long long)r->last.step);
    zbrun_html_text(f, sched->planner);
    fprintf(f,
            ": bubble %.2f %% as run, %.2f %% as planned (forward and backward "
            "passes, without the update).</p>\n",
            100 * r->last.bubble, 100 * r->last.bubble_planned);
    zbrun_report_timeline(sched, r->times, c, f);
    fputs("<h2>Delays</h2>\n", f);
    zbrun_report_delays(sched, c, f);
    zb_comparison_free(c);
    return ZB_OK;
}

/* ---- settings ------------------------------------------------------------ */

static void put_machine(FILE *f)
{
    char cpu[ZB_PROCESSOR_MAX];
    struct utsname u;
    double bytes =
        (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);

    fputs("<p>", f);
    zbrun_html_text(f, zb_processor_name(cpu));
    fprintf(f, ", %ld cores, %.1f GiB of memory", sysconf(_SC_NPROCESSORS_ONLN),
            bytes / 1073741824.0);
    if (uname(&u) == 0) {
        fputs(", ", f);
        zbrun_html_text(f, u.sysname);
        fputc(' ', f);
        zbrun_html_text(f, u.release);
        fputc(' ', f);
        zbrun_html_text(f, u.machine);
    }
    fprintf(f, "; zbrun %s</p>\n", PACKAGE_VERSION);
}

static enum zb_status scratch_file(FILE **f_out)
{
    *f_out = tmpfile();
    return *f_out != NULL
               ? ZB_OK
               : zb_fail(ZB_EIO, "cannot make a scratch file for the report");
}

static enum zb_status put_settings(const struct zbrun_job *job,
                                   const struct zb_session *s, FILE *f)
{
    FILE *scratch;
    enum zb_status st;

    fputs("<h2>Machine</h2>\n", f);
    put_machine(f);
    ZB_TRY(scratch_file(&scratch));
    fprintf(f, "<h2>Layout</h2>\n<p>%s on %d ", zb_model_type(job->model),
            zb_session_schedule(s)->n_stage);
    zbrun_html_text(f, zb_session_backend(s));
    fputs(" devices.</p>\n", f);
    zb_session_print(s, scratch);
    put_file(scratch, f);
    ZB_TRY(scratch_file(&scratch));
    fputs("<h2>Configuration</h2>\n", f);
    st = zb_conf_print(job->conf, scratch, ZB_CONF_PRINT_ALL);
    if (st != ZB_OK) { /* paths that no INI file can hold */
        fputs("<p class=\"bad\">", f);
        zbrun_html_text(f, zb_error_text());
        fputs("</p>\n", f);
    }
    put_file(scratch, f);
    return ZB_OK;
}

/* ---- all ----------------------------------------------------------------- */

enum zb_status zbrun_report_page(const struct zbrun_report *r,
                                 const struct zbrun_job *job,
                                 const struct zb_session *s, enum zb_status st,
                                 const char *text, FILE *f)
{
    int is_simulated = zb_session_is_simulated(s);

    fprintf(f,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta "
            "charset=\"utf-8\">\n<meta name=\"viewport\" "
            "content=\"width=device-width\">\n<title>zbrun report</title>\n"
            "<style>\n%s</style>\n</head>\n<body>\n<h1>zbrun: %s</h1>\n",
            style, zb_model_type(job->model));
    put_outcome(r, st, text, f);
    put_tiles(r, is_simulated, f);
    if (r->n_steps > 0) {
        put_curves(r, is_simulated, f);
        put_rows(r, f);
    }
    if (r->times != NULL) {
        ZB_TRY(put_last_step(r, s, f));
    }
    zbrun_report_gpus(&r->gpus, f);
    fputs("<h2>Memory of the devices</h2>\n", f);
    zbrun_report_memory(s, f);
    ZB_TRY(put_settings(job, s, f));
    fputs("</body>\n</html>\n", f);
    return ZB_OK;
}
