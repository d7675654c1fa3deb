/* SPDX-License-Identifier: MIT
 *
 * How a product is shared out. It is cut into cells of C by its sizes only,
 * whatever the team: a library sums an element in an order that can depend on
 * the sizes it is called with.
 */
#ifndef ZB_CPU_GEMM_H
#define ZB_CPU_GEMM_H

#include "backend/cpu/cpu_int.h"

struct zb_gemm_cells {
    const struct zb_k_gemm *p;
    int64_t n_rows, n_cols; /* cells */
    int64_t rows, cols;     /* of one cell, but for the last ones */
};

struct zb_gemm_cells zb_gemm_cells(const struct zb_k_gemm *p);

/* Cell number `index`, row by row, as a product of its own. */
struct zb_k_gemm zb_gemm_cell(const struct zb_gemm_cells *s, int64_t index);

/* A checked gemm with a, b or c of 16 bits; by conversion only. */
enum zb_status zb_cpu_gemm16(struct zb_device *dev,
                             const struct zb_k_gemm *p) ZB_CHECKED;
enum zb_status zb_cpu_gemm_emulated(struct zb_device *dev,
                                    const struct zb_k_gemm *p) ZB_CHECKED;

#endif
