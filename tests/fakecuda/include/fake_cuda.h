/* SPDX-License-Identifier: MIT
 *
 * What a test says to the emulated CUDA, and hears from it.
 *
 * Every rule broken is a report (text) and does not stop the program. Reports
 * begin with the rule's name:
 *
 *   race:     two accesses to the same bytes, at least one a write, that no
 *             event and no host wait orders
 *   freed:    use of memory, a stream or an event after its end
 *   stray:    an access that does not lie inside one allocation, or a kernel
 *             that touched memory it may not
 *   device:   a stream used while another device is current, an event recorded
 *             on another device's stream, memory of another device touched
 *             without cudaDeviceEnablePeerAccess()
 *   thread:   a stream or event used by a thread that did not create it
 *             (anyone may wait for an event)
 *   host:     host memory touched or freed while a copy may use it, or the
 *             source of a copy changed before the copy was done
 *   unordered: a free while work on the memory may be in flight
 *   undeclared: a kernel launched without saying what it touches
 *   bounds:   bytes behind the end of an allocation were written
 *   unwritten: bytes read that nothing has written
 *
 * Accesses are ordered when the one's clock includes the other: in order of a
 * stream; by event recorded and waited for; by a wait of the host thread that
 * enqueues the later one. What host threads tell each other orders nothing,
 * except for frees and for host memory, where any host thread's wait counts.
 *
 * At exit, reports that nobody fetched are printed and the exit status is 1.
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stddef.h>
#include <stdint.h>

#include "cuda_runtime_api.h"
#include "zb/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- control ------------------------------------------------------------ */

/* A fresh machine: no memory, streams, events, reports, faults or counts.
 * Waits for the streams there are; what was not freed is freed. Without this
 * call the environment says: FAKE_CUDA_GPUS (4), FAKE_CUDA_SEED (0),
 * FAKE_CUDA_DELAY_US (50). No other thread may be inside CUDA. */
void fake_cuda_reset(int n_gpus, uint64_t seed, int max_delay_us);

/* Bytes of memory of every GPU (default 4 GiB); kept by a reset. */
void fake_cuda_set_memory(size_t bytes);

/* Whether cudaDeviceCanAccessPeer() says yes (default 1); reset by a reset. */
void fake_cuda_set_peers(int can_access);

/* ---- reports and counts ------------------------------------------------- */

/* Reports since the reset. Asking for the number, or for one, counts as
 * fetching all there are. Text is valid until the reset. */
int fake_cuda_n_reports(void);
const char *fake_cuda_report(int i);

/* How often the function of that name was called since the reset:
 * "cudaMalloc", "cudaFree", "cudaMallocHost", "cudaFreeHost",
 * "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize",
 * ..., "kernel" (launches) and "cublasLtMatmul". 0 for unknown names. */
uint64_t fake_cuda_count(const char *name);

/* ---- what the backend tells --------------------------------------------- */

/* Kernels launched into the stream from now on touch launch->access, until the
 * next call; reports name them by launch->label. Copied. */
void fake_cuda_touches(cudaStream_t stream, const struct zb_launch *launch);

/* Add a range to that: scratch memory, for example. */
void fake_cuda_touches_also(cudaStream_t stream, const void *ptr, size_t bytes,
                            enum zb_access_mode mode);

/* Names for reports; copied. The node is that of work enqueued from now on. */
void fake_cuda_name_stream(cudaStream_t stream, const char *name);
void fake_cuda_name_node(cudaStream_t stream, const char *node);
void fake_cuda_name_memory(const void *ptr, const char *name);

/* The contents mean nothing from here on in the stream's order: reading them
 * before writing is a report. Fills them with NaN. */
void fake_cuda_discard(cudaStream_t stream, void *ptr, size_t bytes);

/* The calling thread is about to touch host memory that copies may still use:
 * a report when they may. */
void fake_cuda_host_access(const void *ptr, size_t bytes,
                           enum zb_access_mode mode);

/* ---- faults; cleared by a reset ----------------------------------------- */

/* The k-th cudaStreamWaitEvent() from now (1 is the next) is ignored. */
void fake_cuda_drop_wait(uint64_t k);

/* The k-th copy, memset, launch or product from now is refused with `error`. */
void fake_cuda_fail_at(uint64_t k, cudaError_t error);

/* The k-th cudaMalloc() from now fails: out of memory. */
void fake_cuda_fail_malloc_at(uint64_t k);

/* The GPU is gone: its streams do nothing more and every call about it returns
 * `error`, as after a kernel's illegal access; frees and destroys succeed. */
void fake_cuda_lose_gpu(int gpu, cudaError_t error);

/* cudaGetDeviceCount() fails with this (no driver, too old); 0 ends it. */
void fake_cuda_fail_driver(cudaError_t error);

#ifdef __cplusplus
}
#endif

#endif
