/* SPDX-License-Identifier: MIT
 *
 * One microbatch through a graph for a layout: a thread and a device for each
 * of tp x sp ranks, and whole gradients put together from what they have.
 *
 *     par_run(g, params, &batch, &opts, &r);
 *     ... r.loss, r.grad[param] ...
 *     par_result_free(&r);
 *
 * It asserts what must hold for any graph: no rank fails, the check backend has
 * nothing to report, the loss has the same bits on all ranks of a tp group,
 * copies of a gradient that is whole have, too, and padding has the gradient 0.
 */
#ifndef PAR_RIG_H
#define PAR_RIG_H

#include "graph_rig.h"
#include "zb/graph.h"

#define PAR_MAX_RANKS 16

struct par_opts {
    const char *backend; /* NULL: cpu */
    int n_threads;       /* of a device; 0: 1 */
    int n_chunks;        /* 0: one */
    const int *first;    /* [n_chunks + 1], unless there is one */
    enum zb_recompute recompute;
    int is_plain;    /* 1: collectives over sp of par_plain.h, not those of
                        zb/comm.h */
    int is_eval;     /* F only, no dropout */
    int no_backward; /* F only */
    uint64_t seed, step;
    uint64_t delay_seed; /* check backend; 0: no delays */
    double loss_scale;   /* 0: 1 / number of loss elements that count */
};

struct par_result {
    double loss; /* sum of the loss elements * loss_scale */
    int n_params;
    double **grad;  /* [n_params] of the whole parameter, over its uses */
    double *output; /* of output 0, put together; NULL: there is none */
    int64_t n_output;
};

/* `params`: whole ones. Fields of the batch are [rows, seq, ..]; ranks get
 * their part of them, padded as batches are. */
void par_run(const struct zb_graph *g, zb_real *const *params,
             const struct rig_batch *batch, const struct par_opts *opts,
             struct par_result *r);
void par_result_free(struct par_result *r);

#endif
