/* SPDX-License-Identifier: MIT
 *
 * The report of a run: one HTML page that needs nothing else. It shows the
 * outcome, curves, the last step beside its plan, where its delays arose,
 * memory and the configuration.
 *
 *     ZB_TRY(zbrun_report_new("report.html", &r));
 *     ... after each step: zbrun_report_step(r, s, &record) ...
 *     st = zbrun_report_write(r, job, s, st);
 *     zbrun_report_free(r);
 *
 * However long a run is, the report keeps and shows a bounded number of points:
 * when they are full, neighbours are joined, with their least, greatest and
 * mean values.
 *
 * Threads: the main thread only.
 */
#ifndef ZB_CLI_REPORT_H
#define ZB_CLI_REPORT_H

#include "cli/job.h"
#include "cli/runlog.h"
#include "zb/run.h"
#include "zb/status.h"

struct zbrun_report;

/* `path` is borrowed until zbrun_report_free(). ZB_EIO when nothing can be
 * written there. */
enum zb_status zbrun_report_new(const char *path,
                                struct zbrun_report **r_out) ZB_CHECKED;
void zbrun_report_free(struct zbrun_report *r);

/* Operations per second of all devices, what mfu compares with; 0: unknown. */
void zbrun_report_set_peak(struct zbrun_report *r, double flops);

/* Take note of a step that is done. */
enum zb_status zbrun_report_step(struct zbrun_report *r,
                                 const struct zb_session *s,
                                 const struct zbrun_record *record) ZB_CHECKED;

/* Write what is known of a run that came to `st` (with this thread's error
 * text). Its workers may be gone. ZB_EIO names the path. */
enum zb_status zbrun_report_write(struct zbrun_report *r,
                                  const struct zbrun_job *job,
                                  const struct zb_session *s,
                                  enum zb_status st) ZB_CHECKED;

#endif
