/* SPDX-License-Identifier: MIT
 *
 * The parts of a report: report.c keeps what happened, report_page.c writes the
 * page, report_chart.c its curves, report_time.c the timeline and the delays.
 */
#ifndef ZB_CLI_REPORT_INT_H
#define ZB_CLI_REPORT_INT_H

#include <stdio.h>

#include "cli/report.h"
#include "zb/backend.h"
#include "zb/compare.h"

/* ---- curves -------------------------------------------------------------- */

#define ZBRUN_POINTS_MAX 512 /* even: neighbours are joined in pairs */

/* Neighbouring steps as one point; those without a finite value do not
 * count. */
struct zbrun_point {
    int64_t first, last; /* steps */
    int64_t n;           /* finite values */
    double min, max, sum;
};

struct zbrun_series {
    int64_t per_point; /* steps a point is made of, but for the last */
    size_t n;
    struct zbrun_point point[ZBRUN_POINTS_MAX];
};

void zbrun_series_add(struct zbrun_series *se, int64_t step, double value);

/* A drawing of the curve: its mean, and a band from least to greatest where
 * points stand for several steps. Nothing when it has no values. */
void zbrun_series_draw(const struct zbrun_series *se, const char *title,
                       FILE *f);

/* ---- GPUs (report_gpu.c) ------------------------------------------------- */

struct zbrun_range {
    int64_t n;
    double min, max, sum;
};

struct zbrun_gpu {
    int gpu;
    int64_t n; /* readings */
    struct zbrun_range used_bytes, power_w, sm_mhz, temperature_c;
    int64_t n_throttle, throttle[ZB_N_THROTTLES]; /* readings that told, of them
                                                     with this reason */
};

struct zbrun_gpus {
    struct zbrun_gpu *gpu; /* [n] */
    int n;
};

/* A reading of all GPUs. */
enum zb_status zbrun_gpus_add(struct zbrun_gpus *gs,
                              const struct zb_gpu_state *state,
                              int n) ZB_CHECKED;
void zbrun_gpus_release(struct zbrun_gpus *gs);

/* The table of them; nothing when nothing was ever read. */
void zbrun_report_gpus(const struct zbrun_gpus *gs, FILE *f);

/* ---- what is kept -------------------------------------------------------- */

enum zbrun_curve {
    ZBRUN_CURVE_LOSS,
    ZBRUN_CURVE_EVAL,
    ZBRUN_CURVE_NORM,
    ZBRUN_CURVE_LR,
    ZBRUN_CURVE_RATE,
    ZBRUN_CURVE_STEP_MS,
    ZBRUN_CURVE_BUBBLE,
    ZBRUN_CURVE_MFU,
    ZBRUN_N_CURVES
};

#define ZBRUN_ROWS_MAX 32

struct zbrun_report {
    const char *path;
    int64_t begin_ns;
    int64_t begin_s; /* of the calendar */
    double peak_flops;
    struct zbrun_series curve[ZBRUN_N_CURVES];
    int64_t per_row; /* every so many steps have a row of the table */
    size_t n_rows;
    struct zbrun_record row[ZBRUN_ROWS_MAX];
    struct zbrun_record last;
    int64_t n_steps; /* done */
    /* All but the first, which is slower; of a single one that. */
    double tokens, seconds, flops_share;
    struct zbrun_gpus gpus;
    /* The last step's times; [n_stages] and one block for all. */
    int n_stages;
    struct zb_node_times *times;
    int64_t *ns;
};

/* ---- parts of the page --------------------------------------------------- */

/* `text` with everything that means something in HTML made harmless. */
void zbrun_html_text(FILE *f, const char *text);

/* The colour class of a node: a CSS class of the page. */
const char *zbrun_node_class(enum zb_node_type type);

void zbrun_report_timeline(const struct zb_schedule *sched,
                           const struct zb_node_times *times,
                           const struct zb_comparison *c, FILE *f);
void zbrun_report_delays(const struct zb_schedule *sched,
                         const struct zb_comparison *c, FILE *f);
void zbrun_report_memory(const struct zb_session *s, FILE *f);

/* The page. `text` is the run's error; NULL after success. */
enum zb_status zbrun_report_page(const struct zbrun_report *r,
                                 const struct zbrun_job *job,
                                 const struct zb_session *s, enum zb_status st,
                                 const char *text, FILE *f) ZB_CHECKED;

#endif
