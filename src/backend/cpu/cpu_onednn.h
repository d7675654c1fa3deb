/* SPDX-License-Identifier: MIT
 *
 * What is asked of oneDNN: products of floats and of bf16. cpu_onednn.c is the
 * only file that knows the library. Not in the double build, nor without it.
 */
#ifndef ZB_CPU_ONEDNN_H
#define ZB_CPU_ONEDNN_H

#include "backend/cpu/cpu_int.h"

#if defined(HAVE_ONEDNN) && !defined(ZB_REAL_IS_DOUBLE)
#define ZB_USE_ONEDNN 1
#else
#define ZB_USE_ONEDNN 0
#endif

/* C = A B or C += A B of floats, in the calling thread; p has no bias, and k is
 * not 0. Keeps no state between calls. */
void zb_onednn_sgemm(const struct zb_k_gemm *p);

/* Whether the processor multiplies bf16. */
int zb_onednn_has_bf16(void);

/* The library compiles a program for each shape of a product of bf16, which
 * takes longer than running it: they are kept, the ones used last. */
struct zb_onednn;
enum zb_status zb_onednn_new(int n_threads,
                             struct zb_onednn **o_out) ZB_CHECKED;
void zb_onednn_free(struct zb_onednn *o);

/* The program for the sizes, strides and types of p; valid until 60 others were
 * asked for. NULL when the library has none. Call it where only one thread is
 * at work, with a team of one set; other threads may run programs then. */
struct zb_onednn_bf16;
enum zb_status zb_onednn_bf16(struct zb_onednn *o, const struct zb_k_gemm *p,
                              struct zb_onednn_bf16 **prog_out) ZB_CHECKED;
size_t zb_onednn_scratch_bytes(const struct zb_onednn_bf16 *prog);

/* Run it on the pointers of p, as thread `thread` of the team. */
enum zb_status zb_onednn_run(struct zb_onednn *o, struct zb_onednn_bf16 *prog,
                             const struct zb_k_gemm *p, int thread,
                             void *scratch) ZB_CHECKED;

#endif
