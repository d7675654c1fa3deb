/* SPDX-License-Identifier: MIT
 *
 * The header of NumPy's array files.
 *
 * Threads: any.
 */
#ifndef ZB_NPY_H
#define ZB_NPY_H

#include <stdint.h>

#include "data/data_int.h"

#define ZB_NPY_MAX_DIMS 8

struct zb_npy {
    char kind;      /* NumPy's: 'i', 'u', 'f', 'b' */
    int width;      /* bytes of one element, 1 to 8 */
    int is_fortran; /* first dimension fastest */
    int n_dims;
    int64_t dim[ZB_NPY_MAX_DIMS];
    int64_t n_elems; /* their product */
    int64_t offset;  /* of the first element, in bytes */
};

/* Whether the file begins as an array file does. */
int zb_npy_is(const struct zb_mapped *file);

/* Read the header. ZB_ECONFIG, naming file and byte, when it is damaged, when
 * the file is too short for its elements, and for elements that are no plain
 * numbers with the least byte first. */
enum zb_status zb_npy_parse(const struct zb_mapped *file,
                            struct zb_npy *npy_out) ZB_CHECKED;

#endif
