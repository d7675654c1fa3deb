/* SPDX-License-Identifier: MIT
 *
 * NumPy's array files (.npy, versions 1 to 3), mapped.
 *
 *     ZB_TRY(zb_npy_open("x.npy", &a));
 *     n = zb_npy_info(a)->n_elems;
 *     ZB_TRY(zb_npy_read_f32(a, 0, n, x));
 *     zb_npy_close(a);
 *
 * Files are untrusted: sizes are checked before they are used, messages name
 * the file and the byte in it.
 *
 * Threads: an open array is read-only; any thread may use it.
 */
#ifndef ZB_NPY_H
#define ZB_NPY_H

#include <stdint.h>

#include "zb/status.h"

#define ZB_NPY_MAX_DIMS 8

struct zb_npy_info {
    char kind;      /* NumPy's: 'i', 'u', 'f', 'b' */
    int width;      /* bytes of one element: 1, 2, 4 or 8 */
    int is_fortran; /* first dimension fastest */
    int n_dims;
    int64_t dim[ZB_NPY_MAX_DIMS];
    int64_t n_elems; /* their product */
    int64_t offset;  /* of the first element, in bytes */
};

struct zb_npy;

/* Map an array. ZB_ECONFIG, naming file and byte, when it can not be read, is
 * damaged or too short for its elements, and for elements that are no plain
 * numbers with the least byte first. */
enum zb_status zb_npy_open(const char *path, struct zb_npy **a_out) ZB_CHECKED;

/* NULL is legal. */
void zb_npy_close(struct zb_npy *a);

const struct zb_npy_info *zb_npy_info(const struct zb_npy *a);

/* Elements first .. first + n - 1, which exist, in the file's order. Of
 * floating point numbers as float32, rounded to nearest (ZB_EINVAL for others);
 * of integers and booleans as int32 (ZB_EINVAL for others; ZB_ECONFIG, naming
 * the byte, for one out of range). ZB_EIO when the file became shorter. */
enum zb_status zb_npy_read_f32(const struct zb_npy *a, int64_t first, int64_t n,
                               float *out) ZB_CHECKED;
enum zb_status zb_npy_read_i32(const struct zb_npy *a, int64_t first, int64_t n,
                               int32_t *out) ZB_CHECKED;

#endif
