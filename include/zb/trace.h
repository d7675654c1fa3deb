/* SPDX-License-Identifier: MIT
 *
 * Timelines in the Trace Event Format, which Chrome's about:tracing and
 * Perfetto open: what ran, one row per stage, and below it what was planned.
 *
 *     ZB_TRY(zb_trace_open("trace.json", &t));
 *     ZB_TRY(zb_trace_name(t, ZB_TRACE_RAN, 0, "stage 0"));
 *     ZB_TRY(zb_trace_span(t, ZB_TRACE_RAN, 0, "F0.3", 10.0, 4.5));
 *     ZB_TRY(zb_trace_close(t));
 *
 * Threads: one at a time.
 */
#ifndef ZB_TRACE_H
#define ZB_TRACE_H

#include "zb/status.h"

struct zb_trace;

enum zb_trace_group { ZB_TRACE_RAN, ZB_TRACE_PLANNED };

/* Create the file (an old one is replaced). ZB_EIO names path and reason. */
enum zb_status zb_trace_open(const char *path,
                             struct zb_trace **t_out) ZB_CHECKED;

/* The title of a row. `name` is plain ASCII without quotes (also below). */
enum zb_status zb_trace_name(struct zb_trace *t, enum zb_trace_group group,
                             int row, const char *name) ZB_CHECKED;

/* One bar: from start_us, dur_us long, in microseconds from any origin. */
enum zb_status zb_trace_span(struct zb_trace *t, enum zb_trace_group group,
                             int row, const char *name, double start_us,
                             double dur_us) ZB_CHECKED;

/* Finish the file; it is only complete when this returns ZB_OK. Releases `t` in
 * any case; NULL is legal. */
enum zb_status zb_trace_close(struct zb_trace *t) ZB_CHECKED;

#endif
