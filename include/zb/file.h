/* SPDX-License-Identifier: MIT
 *
 * Files that are there whole or not at all, and folders.
 *
 *     struct zb_sink k;
 *     ZB_TRY(zb_sink_open(&k, "plan.json"));
 *     return zb_sink_close(&k, write_plan(k.f));
 *
 * Threads: any, one per sink.
 */
#ifndef ZB_FILE_H
#define ZB_FILE_H

#include <stdio.h>

#include "zb/status.h"

/* Make a folder and those above it that are missing. ZB_EIO names it and the
 * reason. */
enum zb_status zb_make_dir(const char *dir) ZB_CHECKED;

/* All of a file of at most max_bytes, with a 0 behind it, to be freed with
 * zb_free(). ZB_ECONFIG names it and the reason. */
enum zb_status zb_read_text(const char *path, size_t max_bytes,
                            char **text_out) ZB_CHECKED;

/* A file that is written beside its place and renamed when it is complete. What
 * is no regular file (a pipe, a terminal) is written in place. */
struct zb_sink {
    const char *path; /* NULL: standard output */
    char *tmp;        /* what is being written; NULL: path itself */
    FILE *f;
};

/* Begin to write to `path`, which is borrowed until the sink is closed; NULL is
 * standard output. ZB_EIO names path and reason. */
enum zb_status zb_sink_open(struct zb_sink *k, const char *path) ZB_CHECKED;

/* Finish after the writer came to `st`: a failure leaves an old file as it was.
 * Returns `st`, or ZB_EIO when that was ZB_OK and the file could not be
 * written. */
enum zb_status zb_sink_close(struct zb_sink *k, enum zb_status st) ZB_CHECKED;

#endif
