/* SPDX-License-Identifier: MIT
 *
 * A graph of tensor-parallel shards on as many threads as there are ranks: one
 * microbatch through all chunks, and the whole gradients put together from the
 * shards.
 *
 *     tp_run(g, params, &batch, &opts, &r);
 *     ... r.loss, r.grad[param] ...
 *     tp_result_free(g, &r);
 *
 * It asserts what must hold for any graph: the loss has the same bits on all
 * ranks, copies of a gradient that is whole have, too, and padding has the
 * gradient 0.
 */
#ifndef TP_RIG_H
#define TP_RIG_H

#include "graph_rig.h"
#include "zb/graph.h"

struct tp_opts {
    const char *backend; /* NULL: cpu */
    int n_chunks;
    const int *first; /* [n_chunks + 1] */
    enum zb_recompute recompute;
    uint64_t seed, step;
};

struct tp_result {
    double loss; /* sum of the loss elements / those that count */
    int n_params;
    double **grad;  /* [n_params] of the whole parameter, over its uses */
    double *output; /* of output 0, put together */
    int64_t n_output;
};

/* `params`: whole ones. Fields of the batch are [rows, seq, ..]; they are
 * padded as batches are. */
void tp_run(const struct zb_graph *g, zb_real *const *params,
            const struct rig_batch *batch, const struct tp_opts *opts,
            struct tp_result *r);
void tp_result_free(struct tp_result *r);

#endif
