/* SPDX-License-Identifier: MIT
 *
 * The machine this runs on, and numbers measured on it.
 *
 * Threads: any.
 */
#ifndef ZB_MACHINE_H
#define ZB_MACHINE_H

#include <stddef.h>

/* The model of the first processor, "unknown" where the system does not say. */
#define ZB_PROCESSOR_MAX 128
const char *zb_processor_name(char name[ZB_PROCESSOR_MAX]);

/* The median of n >= 1 values, which get sorted. */
double zb_median(double *v, size_t n);

#endif
