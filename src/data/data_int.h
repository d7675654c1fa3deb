/* SPDX-License-Identifier: MIT
 *
 * Inside the data folder: mapped files.
 *
 * Threads: a mapped file is read-only.
 */
#ifndef ZB_DATA_INT_H
#define ZB_DATA_INT_H

#include <stddef.h>
#include <stdint.h>

#include "zb/data.h"

/* One mapped file. The descriptor stays open: zb_mapped_check() needs it. */
struct zb_mapped {
    char *path;
    int fd;
    const unsigned char *bytes; /* NULL when the file is empty */
    int64_t n_bytes;
};

/* Map a regular file for reading. On failure nothing is left to release. */
enum zb_status zb_mapped_open(const char *path,
                              struct zb_mapped *file_out) ZB_CHECKED;
void zb_mapped_close(struct zb_mapped *file);

/* ZB_EIO when the file is shorter than what is mapped: touching the lost part
 * would be fatal. */
enum zb_status zb_mapped_check(const struct zb_mapped *file) ZB_CHECKED;

/* What that holds no tokens the file is known to be by its first bytes, or NULL:
 * maybe text. */
const char *zb_mapped_kind(const struct zb_mapped *file);

#endif
