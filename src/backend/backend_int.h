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

#endif
