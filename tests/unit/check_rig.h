/* SPDX-License-Identifier: MIT
 *
 * What the tests of the check backend share: an inner backend of a few kernels
 * that can be made to stop at a gate or to fail, and a rig of two devices with
 * two streams each, opened by the calling thread.
 *
 * Kernels are fill, copy and add of zb/kernel.h. A launch labelled "gate" waits
 * until rig_open_gate(), one labelled "broken" fails.
 */
#ifndef CHECK_RIG_H
#define CHECK_RIG_H

#include "zb/backend.h"
#include "zb/check.h"

extern const struct zb_backend_ops rig_inner_ops;

/* The gate, and what the inner backend saw. Set by rig_open(). */
void rig_open_gate(void);
int rig_n_launched(void);
/* Whether two threads were ever at work on one device. */
int rig_has_overlap(void);

#define RIG_DEVICES 2
#define RIG_STREAMS 2
#define RIG_ELEMS 64

struct rig {
    struct zb_backend *be;
    const struct zb_backend_ops *ops;
    struct zb_device *dev[RIG_DEVICES];
    struct zb_stream *s[RIG_DEVICES][RIG_STREAMS]; /* "s0" and "s1" */
    struct zb_event *ev[RIG_DEVICES];
    zb_real *x[RIG_DEVICES], *y[RIG_DEVICES]; /* RIG_ELEMS each, "x" and "y" */
};

/* On failure nothing stays open. */
enum zb_status rig_try_open(struct rig *r, uint64_t seed, int max_delay_us);
void rig_open(struct rig *r, uint64_t seed, int max_delay_us);
/* Wait for everything, failed or not. */
void rig_settle(struct rig *r);
/* Free all and close; the number of reports there were. */
size_t rig_close(struct rig *r);

/* Launches with the accesses that the kernel makes. */
enum zb_status rig_fill(struct rig *r, struct zb_stream *s, const char *label,
                        zb_real *y, int64_t n, double value);
enum zb_status rig_copy(struct rig *r, struct zb_stream *s, const char *label,
                        zb_real *y, const zb_real *x, int64_t n);
enum zb_status rig_add(struct rig *r, struct zb_stream *s, const char *label,
                       zb_real *y, const zb_real *a, const zb_real *b,
                       int64_t n);
/* A launch that touches nothing: label "gate" or "broken". */
enum zb_status rig_stop(struct rig *r, struct zb_stream *s, const char *label);

/* Record the device's event on `from`, let `to` wait for it. */
enum zb_status rig_order(struct rig *r, int dev, struct zb_stream *from,
                         struct zb_stream *to);

/* There is a report, and the first one contains all of the texts given; prints
 * it if not. */
int rig_reported(const struct rig *r, const char *a, const char *b,
                 const char *c);

#endif
