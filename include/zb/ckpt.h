/* SPDX-License-Identifier: MIT
 *
 * Tensors in files: the safetensors format, read and written.
 *
 * A file is 8 bytes of header length (little-endian), a JSON header that gives
 * each tensor its dtype, shape and byte range, and the bytes of all tensors
 * without a gap. "__metadata__" in the header maps strings to strings.
 *
 *     struct zb_st_file *f;
 *     ZB_TRY(zb_st_open("model.safetensors", &f));
 *     const struct zb_st_tensor *t = zb_st_find(f, "lm_head.weight");
 *     if (t != NULL) {
 *         st = zb_st_read_real(f, t, w, n);
 *     }
 *     zb_st_close(f);
 *
 * A damaged or hostile file is refused when it is opened: ZB_ECONFIG with a
 * text that names the file and, where there is one, the tensor. The file is
 * mapped, not copied: whoever shortens it while it is open crashes its reader.
 *
 * Threads: one opened file may be read by any number of threads. Every other
 * call is independent of all others.
 */
#ifndef ZB_CKPT_H
#define ZB_CKPT_H

#include <stddef.h>
#include <stdint.h>

#include "zb/status.h"
#include "zb/tensor.h"

/* The format allows any number of dimensions; more than these are refused. */
#define ZB_ST_MAX_DIMS 8

/* A longer header is refused before it is looked at. */
#define ZB_ST_MAX_HEADER_BYTES 100000000

/* Element types whose values can be read and written here. The file's other
 * types (BOOL, I8, F8_E4M3, ...) are ZB_ST_OTHER: their bytes are there, named
 * by dtype_text, but no function converts them. */
#define ZB_ST_DTYPE_MAP(X)                                                     \
    X(F64, 8)                                                                  \
    X(F32, 4)                                                                  \
    X(F16, 2)                                                                  \
    X(BF16, 2)                                                                 \
    X(I64, 8)                                                                  \
    X(I32, 4)                                                                  \
    X(U8, 1)

enum zb_st_dtype {
#define ZB_X(name, bytes) ZB_ST_##name,
    ZB_ST_DTYPE_MAP(ZB_X)
#undef ZB_X
        ZB_ST_OTHER
};

/* The file type of zb_real: F32, and F64 in the double build. zb_real data is
 * written as it is, never rounded. */
#ifdef ZB_REAL_IS_DOUBLE
#define ZB_ST_REAL ZB_ST_F64
#else
#define ZB_ST_REAL ZB_ST_F32
#endif

/* One tensor of an open file. All pointers live as long as the file is open. */
struct zb_st_tensor {
    const char *name;
    enum zb_st_dtype dtype;
    const char *dtype_text; /* as in the file, "F32" */
    int n_dims;             /* 0: a scalar */
    int64_t dims[ZB_ST_MAX_DIMS];
    int64_t n_elems;  /* product of dims */
    const void *data; /* little-endian; alignment 1: use memcpy or a reader */
    size_t bytes;     /* n_elems x element size, checked for known sizes */
};

/* One pair of strings of "__metadata__". */
struct zb_st_meta {
    const char *key;
    const char *value;
};

/* An open file. Read the fields, change none. */
struct zb_st_file {
    const char *path; /* as given to zb_st_open() */
    size_t n_tensors;
    const struct zb_st_tensor *tensors; /* sorted by name (strcmp) */
    size_t n_meta;
    const struct zb_st_meta *meta; /* in the file's order */
};

/* Open and check a file. Refused (ZB_ECONFIG) is: a header that is cut off,
 * too long, no JSON object, or has a name twice; a tensor without dtype, shape
 * or data_offsets; a shape whose byte count is not that of its range; ranges
 * that overlap, leave bytes unused or leave the file. ZB_EIO when the file
 * cannot be read or is not a regular file. */
enum zb_status zb_st_open(const char *path, struct zb_st_file **file_out)
    ZB_CHECKED;

/* Release a file and everything found in it; NULL is legal. */
void zb_st_close(struct zb_st_file *file);

/* The tensor of that name, or NULL. Leaves the error text alone. */
const struct zb_st_tensor *zb_st_find(const struct zb_st_file *file,
                                      const char *name);

/* The value of a metadata key, or NULL. Leaves the error text alone. */
const char *zb_st_find_meta(const struct zb_st_file *file, const char *key);

/* Convert all n elements of a tensor of this file: from F64, F32, F16 or BF16
 * to zb_real or double, and from I32, I64 or U8 to int32_t. A narrower float
 * type rounds to nearest.
 * ZB_EINVAL: the tensor has another number of elements than n.
 * ZB_EUNSUPPORTED: its dtype cannot be read this way.
 * ZB_ECONFIG: an integer does not fit (the elements before it are written). */
enum zb_status zb_st_read_real(const struct zb_st_file *file,
                               const struct zb_st_tensor *t, zb_real *out,
                               int64_t n) ZB_CHECKED;
enum zb_status zb_st_read_f64(const struct zb_st_file *file,
                              const struct zb_st_tensor *t, double *out,
                              int64_t n) ZB_CHECKED;
enum zb_status zb_st_read_i32(const struct zb_st_file *file,
                              const struct zb_st_tensor *t, int32_t *out,
                              int64_t n) ZB_CHECKED;

/* The same of elements [first, first + n) of a tensor; n may be anything within
 * it. ZB_EINVAL: they are not all there. */
enum zb_status zb_st_read_part(const struct zb_st_file *file,
                               const struct zb_st_tensor *t, int64_t first,
                               int64_t n, zb_real *out) ZB_CHECKED;

/* One tensor to write: dense, row-major, of a dtype other than ZB_ST_OTHER
 * (ZB_ST_REAL for an array of zb_real). Borrowed for the call. */
struct zb_st_out {
    const char *name; /* UTF-8, unique within the file */
    enum zb_st_dtype dtype;
    int n_dims;
    int64_t dims[ZB_ST_MAX_DIMS];
    const void *data; /* may be NULL when a dimension is 0 */
};

/* Write a file with n tensors, in the order of the list, and n_meta pairs of
 * metadata. Either the whole file is at `path`, or `path` is what it was
 * before: the bytes go to a new file beside it, which is synchronised and
 * renamed, and removed on failure. ZB_OK means that it is on the disk. A
 * symbolic link at `path` is replaced by the file.
 * ZB_EINVAL: a tensor or pair that the format cannot hold, or a name twice.
 * ZB_EIO: the file cannot be written, or `path` is there and is no regular
 * file. The text names the path. */
enum zb_status zb_st_write(const char *path, const struct zb_st_out *tensors,
                           size_t n, const struct zb_st_meta *meta,
                           size_t n_meta) ZB_CHECKED;

#endif
