/* SPDX-License-Identifier: MIT
 *
 * When a run saves itself, and what happens when it cannot.
 *
 * Threads: the main thread only.
 */
#ifndef ZB_CLI_SAVES_H
#define ZB_CLI_SAVES_H

#include "cli/job.h"

/* Zeroed before zbrun_saves_open(). */
struct zbrun_saves {
    const struct zbrun_job *job;
    struct zb_saver *saver; /* NULL: nothing is saved */
    int lock;               /* file descriptor that holds checkpoint.dir */
    int64_t last;           /* step that was saved last, -1: none */
    int64_t writing;        /* step that is being written, -1: none */
};

/* Take checkpoint.dir for a run that begins behind `step`, whether it is there
 * or not. ZB_ECONFIG when it has later checkpoints that are good: those of
 * another run. Damaged ones that were passed over are renamed. ZB_EIO when
 * another process saves there. */
enum zb_status zbrun_saves_open(struct zbrun_saves *v,
                                const struct zbrun_job *job,
                                int64_t step) ZB_CHECKED;

/* After a step: say what came of the last save, and begin another one if it is
 * due (once the last one is written). `n_samples` is where the data stands. Of
 * a save that fails only checkpoint.on_error = stop returns the error. */
enum zb_status zbrun_saves_step(struct zbrun_saves *v, struct zb_session *s,
                                int64_t step, int64_t n_samples) ZB_CHECKED;

/* At the end, however it came: this step is on the disk, or an error. */
enum zb_status zbrun_saves_finish(struct zbrun_saves *v, struct zb_session *s,
                                  int64_t step, int64_t n_samples) ZB_CHECKED;

/* Waits for what is being written. */
void zbrun_saves_close(struct zbrun_saves *v);

#endif
