/* SPDX-License-Identifier: MIT
 *
 * A file that is there whole or not at all: written beside its place, renamed
 * when it is complete. What is no regular file (a pipe, a terminal) is written
 * in place.
 *
 * Threads: any, one per sink.
 */
#ifndef ZB_CLI_SINK_H
#define ZB_CLI_SINK_H

#include <stdio.h>

#include "zb/status.h"

struct zbcli_sink {
    const char *path; /* NULL: standard output */
    char *tmp;        /* what is being written; NULL: path itself */
    FILE *f;
};

/* Begin to write to `path`, which is borrowed until the sink is closed; NULL is
 * standard output. ZB_EIO names path and reason. */
enum zb_status zbcli_sink_open(struct zbcli_sink *k,
                               const char *path) ZB_CHECKED;

/* Finish after the writer came to `st`: a failure leaves an old file as it was.
 * Returns `st`, or ZB_EIO when that was ZB_OK and the file could not be
 * written. */
enum zb_status zbcli_sink_close(struct zbcli_sink *k,
                                enum zb_status st) ZB_CHECKED;

#endif
