/* SPDX-License-Identifier: MIT
 *
 * What the backends share: their tables, and the slots of a backend that has
 * no use for an optional call.
 */
#ifndef ZB_BACKEND_INT_H
#define ZB_BACKEND_INT_H

#include "zb/backend.h"

extern const struct zb_backend_ops zb_backend_cpu_ops;
extern const struct zb_backend_ops zb_backend_check_ops;
extern const struct zb_backend_ops zb_backend_sim_ops;
extern const struct zb_backend_ops zb_backend_cuda_ops; /* where it is built */

/* Whether device 0 of cuda can be opened; the text says why not. *is_odd_out is
 * then set to 1 where a GPU or its driver is there, and should have worked. */
enum zb_status zb_cuda_is_usable(int *is_odd_out) ZB_CHECKED;

/* For the slots stream_mark, discard, host_access, spend and event_delay: do
 * nothing, succeed. */
void zb_backend_no_mark(struct zb_stream *stream, const char *node);
enum zb_status zb_backend_no_discard(struct zb_stream *stream, void *ptr,
                                     size_t bytes);
enum zb_status zb_backend_no_host_access(struct zb_device *dev,
                                         const void *ptr, size_t bytes,
                                         enum zb_access_mode mode);
enum zb_status zb_backend_no_spend(struct zb_stream *stream, int64_t ns);
void zb_backend_no_delay(struct zb_event *event, int64_t ns);
/* For replay_begin and replay_end: all is launched each time. */
enum zb_status zb_backend_no_replay(struct zb_stream *stream, const void *key,
                                    size_t bytes, int *is_done_out);
enum zb_status zb_backend_no_replay_end(struct zb_stream *stream,
                                        enum zb_status st, int *is_done_out);
/* For stream_stats: there is no stream. */
int zb_backend_no_stats(const struct zb_device *dev, int i,
                        struct zb_stream_stats *stats_out);

/* For backends whose streams need no memory for themselves. */
size_t zb_backend_no_product_bytes(const struct zb_k_gemm *p);
void zb_backend_no_lend(struct zb_stream *stream, void *ptr, size_t bytes);

/* For backends whose devices are this machine's processor: describe nothing,
 * have no GPUs, one memory, and host memory like any other. */
int zb_backend_no_gpu_states(struct zb_backend *be, struct zb_gpu_state *state);
void zb_backend_no_words(const struct zb_backend_opts *opts, char *text,
                         size_t size);
enum zb_status zb_backend_all_shared(struct zb_backend *be, int may_try,
                                     struct zb_pair *pair, int n);
enum zb_status zb_backend_plain_alloc(struct zb_backend *be, size_t bytes,
                                      const char *what, void **ptr_out);
void zb_backend_plain_free(struct zb_backend *be, void *ptr);

/* For copy_peer: a kernel that copies, by this function. */
enum zb_status zb_backend_copy_by_kernel(
    enum zb_status (*launch)(struct zb_stream *stream,
                             const struct zb_launch *launch),
    struct zb_stream *stream, void *dst, const void *src, size_t bytes,
    const char *label) ZB_CHECKED;

#endif
