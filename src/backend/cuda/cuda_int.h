/* SPDX-License-Identifier: MIT
 *
 * Inside of the cuda backend. The host side is C; kernels are .cu files in the
 * common manner of src/kern, so that a C++ compiler makes host code of the same
 * sources for tests/fakecuda.
 *
 * A device is a GPU as one worker uses it: several may be on one GPU. Its
 * streams, events and memory belong to the thread that opened it, which has
 * made that GPU current.
 *
 * zb_cuda_find_reach() may be called before devices are opened, and has some of
 * its own for the time it takes.
 */
#ifndef ZB_CUDA_INT_H
#define ZB_CUDA_INT_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "backend/backend_int.h"

#ifdef ZB_FAKE_CUDA
#include <fake_cuda.h>
#endif

struct zb_cuda_gemm;  /* cuda_gemm.c: cuBLASLt of one device */
struct zb_cuda_graphs; /* cuda_graph.c: work of a stream that recurs */
struct zb_nvml;       /* cuda_nvml.h */
struct zb_cuda_piece; /* cuda_mem.c: memory that is in use */

/* Read-only once open. */
struct zb_cuda {
    struct zb_backend base;
    int *gpu; /* [base.n_devices]: CUDA's number */
    /* [base.n_devices ^ 2]: 1: these two must not use each other's memory.
     * Written before devices are opened. */
    unsigned char *is_apart;
    struct zb_nvml *nvml; /* the host's thread alone uses it */
    char **pci;           /* [base.n_devices] "0000:65:00.0"; "": not known */
};

struct zb_device {
    struct zb_cuda *be;
    int index; /* among the devices of the run */
    int gpu;
    int n_sm; /* multiprocessors */
    void *binding_before; /* the thread's CPUs before; NULL: not bound */
    struct zb_cuda_gemm *gemm;
    struct zb_cuda_piece *pieces;
    struct zb_stream *streams; /* the last one made */
    size_t mem_bytes, mem_peak_bytes;
};

/* Device memory of a stream's own, in which sums over many rows or elements
 * keep the sums of their parts between two kernels. */
#define ZB_CUDA_SCRATCH_BYTES ((size_t)4 << 20)

struct zb_stream {
    struct zb_device *dev;
    cudaStream_t cuda;
    cudaEvent_t idle; /* to wait for all of it */
    /* Both are the lent memory, if there is any: a stream's launches do not
     * overlap. Else each comes with the first launch that needs it. */
    void *scratch;   /* [ZB_CUDA_SCRATCH_BYTES] */
    void *workspace; /* [workspace_bytes] what cuBLASLt may use */
    size_t workspace_bytes;
    int is_lent;
    void *first; /* of links: the messages that warm them up */
    struct zb_stream *next; /* made before it, of the device */
    char *name;
    struct zb_stream_stats stats;
    struct zb_cuda_graphs *graphs; /* NULL: none asked for yet */
};

/* ---- errors and devices (cuda_backend.c) -------------------------------- */

/* ZB_OK, or what CUDA's error means: ZB_ENOMEM when memory is out, else
 * ZB_EDEVICE. The message names the device (NULL: none), `what` and CUDA's own
 * words. */
enum zb_status zb_cuda_check(const struct zb_device *dev, cudaError_t err,
                             const char *what) ZB_CHECKED;

/* The calling thread's CUDA calls are about this device's GPU from now on. */
enum zb_status zb_cuda_use(const struct zb_device *dev) ZB_CHECKED;

/* ---- other GPUs' memory (cuda_peer.c) ------------------------------------ */

enum zb_status zb_cuda_find_reach(struct zb_backend *be, int may_try,
                                  struct zb_pair *pair, int n);

/* Let this device's GPU reach the memory of those of the run that it can
 * reach. */
enum zb_status zb_cuda_enable_peers(const struct zb_device *dev) ZB_CHECKED;

/* ---- memory (cuda_mem.c) ------------------------------------------------- */

enum zb_status zb_cuda_mem_alloc(struct zb_device *dev, size_t bytes,
                                 const char *what, void **ptr_out);
void zb_cuda_mem_free(struct zb_device *dev, void *ptr);
size_t zb_cuda_mem_bytes(const struct zb_device *dev);
size_t zb_cuda_mem_peak_bytes(const struct zb_device *dev);

/* cudaMalloc; what does not fit says how much there is. */
enum zb_status zb_cuda_malloc(const struct zb_device *dev, size_t bytes,
                              const char *what, void **ptr_out) ZB_CHECKED;

/* Page-locked memory, which all GPUs may copy to and from. */
enum zb_status zb_cuda_host_alloc(struct zb_backend *be, size_t bytes,
                                  const char *what, void **ptr_out);
void zb_cuda_host_free(struct zb_backend *be, void *ptr);

/* ---- streams and events (cuda_stream.c) ---------------------------------- */

enum zb_status zb_cuda_stream_new(struct zb_device *dev, const char *name,
                                  struct zb_stream **stream_out);
void zb_cuda_stream_free(struct zb_stream *stream);
void zb_cuda_stream_lend(struct zb_stream *stream, void *ptr, size_t bytes);
int zb_cuda_stream_stats(const struct zb_device *dev, int i,
                         struct zb_stream_stats *stats_out);
/* Before a launch: the stream has its memory. */
enum zb_status zb_cuda_stream_scratch(struct zb_stream *stream) ZB_CHECKED;
enum zb_status zb_cuda_stream_workspace(struct zb_stream *stream) ZB_CHECKED;
enum zb_status zb_cuda_event_new(struct zb_device *dev,
                                 struct zb_event **event_out);
void zb_cuda_event_free(struct zb_event *event);
enum zb_status zb_cuda_event_record(struct zb_event *event,
                                    struct zb_stream *stream);
enum zb_status zb_cuda_stream_wait(struct zb_stream *stream,
                                   struct zb_event *event);
enum zb_status zb_cuda_event_sync(struct zb_event *event);
enum zb_status zb_cuda_stream_sync(struct zb_stream *stream);
/* Whether the work before an event is done; does not wait. */
enum zb_status zb_cuda_event_is_done(struct zb_event *event,
                                     int *is_done_out) ZB_CHECKED;
enum zb_status zb_cuda_copy_in(struct zb_stream *stream, void *dst,
                               const void *host_src, size_t bytes,
                               const char *label);
enum zb_status zb_cuda_copy_out(struct zb_stream *stream, void *host_dst,
                                const void *src, size_t bytes,
                                const char *label);

enum zb_status zb_cuda_copy_peer(struct zb_stream *stream,
                                 const struct zb_device *to, void *dst,
                                 const void *src, size_t bytes,
                                 const char *label);

/* ---- links (cuda_nccl.c, cuda_coll.c) ------------------------------------ */

#ifdef HAVE_NCCL
extern const struct zb_link_ops zb_cuda_links;
#endif

/* ---- graphs (cuda_graph.c) ----------------------------------------------- */

enum zb_status zb_cuda_replay_begin(struct zb_stream *stream, const void *key,
                                    size_t bytes, int *is_done_out);
enum zb_status zb_cuda_replay_end(struct zb_stream *stream, enum zb_status st,
                                  int *is_done_out);
/* When the stream's work is over; NULL is legal. */
void zb_cuda_graphs_free(struct zb_cuda_graphs *graphs);

/* ---- products (cuda_gemm.c, cuda_gemm_start.cu) -------------------------- */

/* What a device's products share; NULL may be freed. */
enum zb_status zb_cuda_gemm_new(const struct zb_device *dev,
                                struct zb_cuda_gemm **gemm_out) ZB_CHECKED;
void zb_cuda_gemm_free(struct zb_cuda_gemm *gemm);

/* The most that cuBLASLt is allowed to use for a product, and for any. */
size_t zb_cuda_product_bytes(const struct zb_k_gemm *p);
#define ZB_CUDA_WORKSPACE_BYTES ((size_t)32 << 20)

/* C = the bias in every row, or 0. */
enum zb_status zb_cuda_gemm_start(struct zb_stream *stream,
                                  const struct zb_k_gemm *p) ZB_CHECKED;

/* ---- kernels ------------------------------------------------------------ */

typedef enum zb_status (*zb_cuda_kernel_fn)(struct zb_stream *stream,
                                            const void *params);

/* zb_cuda_gemm, zb_cuda_col_sum, ...: enqueue the kernel; params is its zb_k_
 * struct. */
#define ZB_X(name)                                                             \
    enum zb_status zb_cuda_##name(struct zb_stream *stream, const void *params);
ZB_KERNEL_MAP(ZB_X)
#undef ZB_X

/* What the emulation of tests/fakecuda is told, and no GPU; and what the kernels
 * touch that are launched into a stream from now on. */
#ifdef ZB_FAKE_CUDA
#define ZB_CUDA_TELL(call) (call)
#else
#define ZB_CUDA_TELL(call) ((void)0)
#endif
#define ZB_CUDA_TOUCHES(stream, launch)                                        \
    (ZB_CUDA_TELL(fake_cuda_touches((stream)->cuda, (launch))),                \
     ZB_CUDA_TELL(fake_cuda_touches_also((stream)->cuda, (stream)->scratch,    \
                                         ZB_CUDA_SCRATCH_BYTES, ZB_WRITE)))

#ifdef __cplusplus
}
#endif

#endif
