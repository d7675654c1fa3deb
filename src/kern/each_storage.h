/* SPDX-License-Identifier: MIT
 *
 * Includes the file ZB_TEMPLATE once for every type that tensors are stored in,
 * each time with another meaning of
 *
 *     ZB_ST       the type of an element in memory
 *     ZB_LD(x)    an element as the zb_real to compute with
 *     ZB_TO(r)    a zb_real as an element to store
 *     ZB_AS(name) the name of a function: name_real, name_bf16, name_f16
 *
 *     #define ZB_TEMPLATE "backend/cpu/cpu_ew_typed.h"
 *     #include "kern/each_storage.h"
 *
 * Row kernels of kern/ are such templates too, without include guards:
 *
 *     ZB_KERN_FN void ZB_AS(zb_double)(int64_t n, const ZB_ST *x, ZB_ST *y)
 *     {
 *         ZB_EACH(i, n) {
 *             y[i] = ZB_TO(2 * ZB_LD(x[i]));
 *         }
 *     }
 *
 * The double build stores zb_real only.
 */
#include "kern/half.h"

#define ZB_ST zb_real
#define ZB_LD(x) (x)
#define ZB_TO(r) (r)
#define ZB_AS(name) name##_real
#include ZB_TEMPLATE
#undef ZB_ST
#undef ZB_LD
#undef ZB_TO
#undef ZB_AS

#ifndef ZB_REAL_IS_DOUBLE

#define ZB_ST uint16_t
#define ZB_LD(x) zb_float_of_bf16(x)
#define ZB_TO(r) zb_bf16_of_float(r)
#define ZB_AS(name) name##_bf16
#include ZB_TEMPLATE
#undef ZB_LD
#undef ZB_TO
#undef ZB_AS

#define ZB_LD(x) zb_float_of_f16(x)
#define ZB_TO(r) zb_f16_of_float(r)
#define ZB_AS(name) name##_f16
#include ZB_TEMPLATE
#undef ZB_ST
#undef ZB_LD
#undef ZB_TO
#undef ZB_AS

#endif

#undef ZB_TEMPLATE
