/* SPDX-License-Identifier: MIT
 *
 * What a test says to the emulated CUDA, and hears from it.
 *
 * Every rule broken is a report (text) and does not stop the program. Reports
 * begin with the rule's name:
 *
 *   race:       two accesses to the same bytes, at least one a write, that no
 *               event and no host wait orders
 *   unwritten:  bytes read that nothing has written, or of which was said that
 *               they mean nothing any more
 *   freed:      memory used after its end, or freed while work on it may be in
 *               flight
 *   stray:      an access that does not lie inside one allocation
 *   bounds:     bytes behind the end of an allocation were written
 *   device:     a stream used while another GPU is current, an event recorded
 *               on another GPU's stream, memory of another GPU touched by a
 *               kernel without cudaDeviceEnablePeerAccess()
 *   thread:     a stream, event or communicator used by a thread that did not create it
 *               (anyone may wait for an event)
 *   host:       host memory touched while a copy may use it, or the source of a
 *               copy changed before the copy was done
 *   undeclared: a kernel launched without saying what it touches; or one that
 *               touches other memory, which ends the process
 *   misuse:     an object that does not exist (any more), the legacy stream
 *   nccl:       messages of different sizes, or of different exchanges, that
 *               meet; a communicator used
 *               before it is done with what it was asked for; two ranks of one
 *               on one GPU; memory allocated or freed while a message may be
 *               under way; "nccl: order": messages launched in an order in
 *               which GPUs that do one after the other wait for each other
 *
 * Each operation gets a vector clock when it is enqueued. Accesses are ordered
 * when the one's clock includes the other: in order of a stream; by an event
 * recorded and waited for; by a message, whose receive (and what is enqueued
 * behind it once both are) comes after the send; by a wait of the host thread that
 * enqueues the later one. Delays have no part in it: what is not ordered is reported on every run.
 * What host threads tell each other orders nothing, except for frees and for
 * host memory, where any host thread's wait counts.
 *
 * A host access to device memory, and a kernel's outside of the allocations it
 * said it touches, end the process with the reports and FAKE_CUDA_EXIT; so does the end of a
 * process with reports that nobody fetched.
 *
 * Any thread may call these, where nothing else is said.
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

#define FAKE_CUDA_EXIT 88

/* ---- control ------------------------------------------------------------ */

/* A fresh machine: no memory, streams, events, reports, faults or counts.
 * Waits for the streams there are; what was not freed is freed. Without this
 * call the environment says: FAKE_CUDA_GPUS (4), FAKE_CUDA_SEED (0),
 * FAKE_CUDA_DELAY_US (50), FAKE_CUDA_GPU_BYTES (16 GiB), FAKE_CUDA_TROUBLE (see
 * fake_cuda_trouble()), and pairs of GPUs ("0-1,2-3") in FAKE_CUDA_APART,
 * FAKE_CUDA_CORRUPT and FAKE_CUDA_BLOCK, as fake_cuda_part(), _corrupt() and
 * _block() say. No other thread may be inside CUDA. */
void fake_cuda_reset(int n_gpus, uint64_t seed, int max_delay_us);

/* Bytes of memory of every GPU (16 GiB after a reset). */
void fake_cuda_set_memory(size_t bytes);

/* These two GPUs can not reach each other's memory (after a reset all can). */
void fake_cuda_part(int gpu, int other);

/* Messages that this GPU launches from now on never arrive, and communicators
 * with a rank on it say so (ncclRemoteError) after so many milliseconds. */
void fake_cuda_mute(int gpu, int after_ms);

/* They say that they can, but what is copied from one to the other by itself
 * has a wrong byte; or it never arrives, until the next reset. What the driver
 * copies where peer access is not enabled is right. */
void fake_cuda_corrupt(int gpu, int other);
void fake_cuda_block(int gpu, int other);

/* A machine where something is wrong, from now on until a reset: 0 if there is
 * no such trouble.
 *
 *   no-driver    nobody installed one
 *   old-driver   it is for CUDA 11.4
 *   no-gpu
 *   busy         another program has all GPUs to itself: no context is made
 *   lost:N       after N calls that can fail all of them do; 0 without ":N"
 */
int fake_cuda_trouble(const char *what);

/* cudaSetDevice() makes the GPU's context when it is first called for it; the
 * first n such calls wait until all n are there, for 10 s at most. Returns the
 * most that were there at once since the reset. */
int fake_cuda_gather_contexts(int n);

/* ---- reports and counts ------------------------------------------------- */

/* Reports since the reset. Asking for the number, or for one, counts as
 * fetching all there are. Text is valid until the reset. */
int fake_cuda_n_reports(void);
const char *fake_cuda_report(int i);

/* How often the function of that name was called since the reset:
 * "cudaMalloc", "cudaEventSynchronize", "cublasLtMatmul", ..., "kernel" for
 * launches, "message" for sends and receives, and "connection" for pairs of ranks
 * that had their first one. 0 for unknown names. */
uint64_t fake_cuda_count(const char *name);

/* Allocations, streams, events, communicators and cuBLASLt's objects that were
 * not given back. */
uint64_t fake_cuda_live(void);

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
/* What the sends and receives asked for in the stream from now on are part of:
 * exchange `number` of its group. Those that meet must be of the same. */
void fake_cuda_name_exchange(cudaStream_t stream, const char *label,
                             uint64_t number);

/* The contents mean nothing from here on in the stream's order; they become
 * NaN. */
void fake_cuda_discard(cudaStream_t stream, void *ptr, size_t bytes);

/* The calling thread is about to touch host memory that copies may still use:
 * a report when they may. */
void fake_cuda_host_access(const void *ptr, size_t bytes,
                           enum zb_access_mode mode);

/* ---- faults; cleared by a reset, 0 is none ------------------------------- */

enum fake_fault {
    FAKE_NO_FAULT,
    /* A cudaStreamWaitEvent() does nothing. Only where it would order
     * something: a wait that others imply is no place for a fault. */
    FAKE_DROP_WAIT,
    /* A cudaEventRecord() covers neither the last operation of its stream nor
     * what came since: the event hands over too early. */
    FAKE_EARLY_RECORD,
    /* A kernel, copy or exchange comes behind the next one of its stream. */
    FAKE_SWAP,
    /* An exchange comes behind the next one that its GPU launches. */
    FAKE_SWAP_EXCHANGE,
    /* The memory that a kernel touches first is freed right behind it. */
    FAKE_FREE,
    /* The host reads what a kernel touches first. */
    FAKE_HOST_READ,
};

/* The k-th place from now (1 is the next) where a fault of this kind can be has
 * it. Only those count whose name has `in_name` in it (NULL: all): of a kernel
 * "LABEL: kernel NAME", of an exchange "exchange LABEL", of a wait "stream 1 (NAME) of GPU 0", of a record both:
 * the last operation's name as in reports. */
void fake_cuda_fault(enum fake_fault kind, const char *in_name, uint64_t k);

/* Such places since then. */
uint64_t fake_cuda_n_fault_places(void);

/* The name of the one that has it; valid until the next fault or reset. */
const char *fake_cuda_fault_text(void);

/* 1: of all accesses of streams since the fault was asked for, two conflict
 * that nothing orders. Compares all pairs: slow, and knows nothing of what the
 * checker does. */
int fake_cuda_has_unordered(void);

/* The k-th call from now that can fail fails with `error`. Calls that give
 * something back do it all the same. */
void fake_cuda_fail_at(uint64_t k, cudaError_t error);

/* 1: what was last asked for, fault or failure, has happened. */
int fake_cuda_has_failed(void);

#ifdef __cplusplus
}
#endif

#endif
