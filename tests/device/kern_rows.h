/* SPDX-License-Identifier: MIT
 *
 * The row kernels of src/kern run by a GPU, for test_kern_rows.c: one warp, one
 * row. Plain C on both sides, so that no header of CUDA is needed here.
 */
#ifndef KERN_ROWS_H
#define KERN_ROWS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ROW_N 37 /* more than a warp, no multiple of one */

/* One row in, and what each kernel made of it. `real` is float or double. */
#define ROW_STRUCT(name, real)                                                 \
    struct name {                                                              \
        real x[ROW_N], gamma[ROW_N], beta[ROW_N];                              \
        int32_t label;                                                         \
        real normed[ROW_N], mean, rstd;                                        \
        real d_normed[ROW_N];                                                  \
        real loss, lse;                                                        \
        real d_loss[ROW_N];                                                    \
        real act[ROW_N], d_act[ROW_N];                                         \
        real normal[4], factor[4];                                             \
    }

ROW_STRUCT(row32, float);
ROW_STRUCT(row64, double);

/* Devices that can be used; 0 also when there is no driver. */
int kern_rows_n_devices(void);

/* Fill the results of `r` on the device: 0, or the CUDA error. */
int kern_rows_run32(struct row32 *r);
int kern_rows_run64(struct row64 *r);

#ifdef __cplusplus
}
#endif

#endif
