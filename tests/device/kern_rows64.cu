/* SPDX-License-Identifier: MIT */
#define ZB_REAL_IS_DOUBLE
#include "kern_rows.cu"
