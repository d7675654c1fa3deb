/* SPDX-License-Identifier: MIT
 *
 * Optimizers: AdamW and SGD on device memory, learning rate schedules, clipping
 * by the global norm, and the scale of the loss where gradients are stored in
 * fp16.
 *
 *     double lr = zb_lr_at(&sched, step);
 *     double scale = zb_clip_scale(norm, max_norm);
 *     for each parameter: ZB_TRY(zb_optim_step(&opt, ops, stream, &p, ...));
 *
 * Threads: any; the functions keep no state.
 */
#ifndef ZB_OPTIM_H
#define ZB_OPTIM_H

#include <stdint.h>

#include "zb/backend.h"
#include "zb/status.h"

enum zb_optim_kind { ZB_OPTIM_ADAMW, ZB_OPTIM_SGD };

struct zb_optim {
    enum zb_optim_kind kind;
    double beta1, beta2, eps; /* adamw */
    double momentum;          /* sgd */
    double weight_decay;      /* decoupled: p -= lr * weight_decay * p */
    double max_norm;          /* 0: no clipping */
};

enum zb_lr_kind { ZB_LR_CONSTANT, ZB_LR_COSINE, ZB_LR_LINEAR, ZB_LR_WSD };

/* Warm-up rises linearly from 0 (step 0 would have lr 0) to `peak` at
 * `warmup_steps`; then by kind:
 *   constant  peak
 *   cosine    min + (peak - min) (1 + cos(pi x)) / 2
 *   linear    peak + (min - peak) x
 *   wsd       peak, and linear to min over the last tenth of `steps`
 * with x the part of the steps after the warm-up that is done (0..1). */
struct zb_lr {
    enum zb_lr_kind kind;
    double peak, min;
    int64_t warmup_steps, steps;
};

/* The rate of step `step`, counted from 1. */
double zb_lr_at(const struct zb_lr *lr, int64_t step);

/* What gradients are multiplied with so that their norm is at most max_norm:
 * min(1, max_norm / (norm + 1e-6)); 1 when max_norm is 0. */
double zb_clip_scale(double norm, double max_norm);

/* Numbers of state per parameter element: moments kept beside it. */
size_t zb_optim_state_reals(const struct zb_optim *opt);

/* One parameter: n elements each. m and v are the state, NULL as unused. Where
 * parameters are stored in 16 bits, `param` is the master that is updated and
 * `stored`, of type `dtype`, what the model reads; else `stored` is NULL. */
struct zb_optim_param {
    const char *name;
    int64_t n;
    int no_decay;
    const zb_real *grad;
    zb_real *param, *m, *v;
    enum zb_dtype dtype;
    void *stored;
};

/* Enqueue the update of one parameter at step t (from 1). */
enum zb_status zb_optim_step(const struct zb_optim *opt,
                             const struct zb_backend_ops *ops,
                             struct zb_stream *stream,
                             const struct zb_optim_param *p, int64_t t,
                             double lr, double grad_scale) ZB_CHECKED;

/* ---- the scale of the loss ------------------------------------------------
 *
 * Gradients below fp16's smallest number would be lost, so the loss (its
 * gradient) is multiplied with a scale, and gradients with 1 / scale before
 * they are used. It grows until they overflow; a step that overflowed is left
 * out. One scaler decides for all ranks:
 *
 *     zb_chunk_run.loss_scale *= scaler.scale;
 *     ... F, B, W, reduction, norm: the overflow is a norm that is not finite
 *     grad_scale = zb_clip_scale(norm / scaler.scale, ..) / scaler.scale;
 *     ZB_TRY(zb_scaler_update(&scaler, is_overflow));
 */

struct zb_scaler_opts {
    double initial_scale, min_scale, max_scale; /* 0 < min <= initial <= max */
    double growth_factor;    /* > 1 */
    double backoff_factor;   /* between 0 and 1 */
    int64_t growth_interval; /* steps without overflow before it grows */
    int64_t hysteresis;      /* overflows before it falls, counted until it
                                grows the next time */
};

/* `scale`, n_good and n_overflows are all of its state, for checkpoints. */
struct zb_scaler {
    struct zb_scaler_opts o;
    double scale;
    int64_t n_good;      /* steps since the last overflow or growth */
    int64_t n_overflows; /* since the last growth */
};

/* ZB_ECONFIG names the value that is out of range. */
enum zb_status zb_scaler_init(struct zb_scaler *s,
                              const struct zb_scaler_opts *o) ZB_CHECKED;

/* After each step. ZB_EDEVICE, and nothing changes, when the scale would have
 * to fall and is min_scale: nothing can help then. */
enum zb_status zb_scaler_update(struct zb_scaler *s,
                                int is_overflow) ZB_CHECKED;

#endif
