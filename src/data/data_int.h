/* SPDX-License-Identifier: MIT
 *
 * Inside the data folder: mapped files, and text that was encoded.
 *
 * Threads: what is open is read-only.
 */
#ifndef ZB_DATA_INT_H
#define ZB_DATA_INT_H

#include <stddef.h>
#include <stdint.h>

#include "zb/data.h"
#include "zb/npy.h"
#include "zb/tokenizer.h"

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

/* What that holds no tokens the file is known to be by its first bytes, or
 * NULL: maybe text. */
const char *zb_mapped_kind(const struct zb_mapped *file);

/* Whether the file begins as NumPy's array files do, and its header: ZB_ECONFIG
 * as zb_npy_open(). */
int zb_npy_is(const struct zb_mapped *file);
enum zb_status zb_npy_parse(const struct zb_mapped *file,
                            struct zb_npy_info *npy_out) ZB_CHECKED;

/* Array data; rows are written into a batch, which has room. Errors of
 * zb_arrays_row() as zb_npy_read_i32(); ZB_ECONFIG, naming file and row, for
 * values the model has not. */
struct zb_arrays;
enum zb_status zb_arrays_open(const struct zb_field_files *files,
                              const struct zb_dataset_opts *opts,
                              struct zb_arrays **a_out) ZB_CHECKED;
void zb_arrays_close(struct zb_arrays *a);
int64_t zb_arrays_n_rows(const struct zb_arrays *a);
enum zb_status zb_arrays_row(const struct zb_arrays *a, int64_t sample,
                             int64_t row, struct zb_batch *batch) ZB_CHECKED;

/* The ids of a text file. */
struct zb_encoded {
    int32_t *ids; /* NULL: the file is no text, or its bytes are the ids */
    int64_t n;
    int64_t id_limit; /* the greatest of them and 1 */
};

/* Encode all of a text file. ZB_ECONFIG, naming file and byte, for text that is
 * not UTF-8. Free out->ids. */
enum zb_status zb_encoded_read(const struct zb_tokens *file,
                               const struct zb_tokenizer *tok,
                               struct zb_encoded *out) ZB_CHECKED;

#endif
