/* SPDX-License-Identifier: MIT
 *
 * What a run shows of its steps: log.jsonl, the progress line, the trace.
 *
 * Threads: the main thread only.
 */
#ifndef ZB_CLI_RUNLOG_H
#define ZB_CLI_RUNLOG_H

#include <stdint.h>
#include <stdio.h>

#include "zb/run.h"
#include "zb/status.h"

struct zbrun_record {
    int64_t step, n_steps;
    double loss, grad_norm, lr;
    double scale;   /* of the loss */
    int is_skipped; /* 1: gradients overflowed, nothing was updated */
    int64_t tokens;
    double step_s, bubble, bubble_planned, mfu;
    int has_eval;
    double eval_loss;
    /* The GPUs' state in the step, where it was read: borrowed for the calls
     * that get the record. */
    const struct zb_gpu_state *gpu;
    int n_gpus;
};

/* Append one JSON object to `f`. ZB_EIO when it can not be written. */
enum zb_status zbrun_log_step(FILE *f, const char *path,
                              const struct zbrun_record *r) ZB_CHECKED;

/* Show a step: on a terminal one line that is written over, elsewhere one line
 * per step shown. `eta_s` is the time left. */
void zbrun_show_step(FILE *f, const struct zbrun_record *r, double eta_s);

/* Warn of the first GPU that slows itself down, for heat or a fault: not
 * because of limits that somebody set. 1: there is one. */
int zbrun_warn_slow(const struct zbrun_record *r);

/* Add the nodes of the session's last step to a trace, messages in rows of
 * their own (a SEND hands over, a RECV asks; neither waits); times count from
 * `origin_ns`. The plan is drawn to the length of the step. */
struct zb_trace;
enum zb_status zbrun_trace_step(struct zb_trace *t, const struct zb_session *s,
                                int64_t origin_ns) ZB_CHECKED;
enum zb_status zbrun_trace_rows(struct zb_trace *t,
                                const struct zb_session *s) ZB_CHECKED;

#endif
