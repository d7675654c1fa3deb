/* SPDX-License-Identifier: MIT
 *
 * A sequential executor for graphs: cuts a graph, gives every chunk and
 * microbatch memory of its own, runs F, B and W, returns loss and gradients.
 *
 * On `cpu` it is strict: every space lies between guards, is NaN before its
 * time and made NaN again as soon as the contract says that nobody reads it;
 * messages are copied from chunk to chunk; every 64-byte line of FB, FW, BW,
 * OUT and DOUT must have been written when its pass is over.
 *
 *     struct rig_result r;
 *     rig_run(g, params, &batch, &opts, &r);
 *     ... r.loss, r.grad[use] ...
 *     rig_result_free(&r);
 */
#ifndef ZB_TEST_GRAPH_RIG_H
#define ZB_TEST_GRAPH_RIG_H

#include "zb/graph.h"
#include "zbt.h"

/* Host arrays, one per data field; the first dimension is the batch. Reals, here
 * and of parameters, are zb_real also where the graph stores another type. */
struct rig_batch {
    int rows, seq;
    const void *const *data;
};

enum rig_w_order {
    RIG_W_AFTER_B,  /* each after its B */
    RIG_W_LAST,     /* every W after the last B */
    RIG_W_TOGETHER, /* the same, a chunk's W's launch by launch */
    RIG_W_WITH_B,   /* layer by layer with its B */
    RIG_N_W_ORDERS
};

struct rig_opts {
    const char *backend; /* NULL: cpu */
    int n_threads;       /* 0: 1 */
    int n_chunks;
    const int *first;    /* [n_chunks + 1] */
    int n_micro;         /* 0: 1 */
    const int *rows;     /* [n_micro]; NULL: equal parts */
    enum zb_recompute recompute;
    enum rig_w_order w_order;
    int no_backward;
    int is_eval;
    uint64_t seed, step, delay_seed;
    double loss_scale; /* 0: 1 / number of loss elements that count */
};

struct rig_result {
    double loss; /* sum of the loss elements * loss_scale */
    int n_uses;
    zb_real **grad;   /* [n_uses] */
    int64_t *n_grad;  /* [n_uses] elements */
    double *output;   /* of output 0, all rows, or NULL */
    int64_t n_output;
    size_t bytes[ZB_N_SPACES]; /* sum over chunks, of one microbatch */
    int n_ops[ZB_N_PASSES];    /* sum over chunks */
};

void rig_run(const struct zb_graph *g, zb_real *const *params,
             const struct rig_batch *batch, const struct rig_opts *opts,
             struct rig_result *r);
void rig_result_free(struct rig_result *r);
/* Same loss, same gradients, bit for bit. */
int rig_same_bits(const struct rig_result *a, const struct rig_result *b);
/* Gradient of a parameter: the sum of its uses, freed by the caller. */
double *rig_param_grad(const struct zb_graph *g, const struct rig_result *r,
                       int param);

/* Normal numbers of the given deviation, from a seed. */
void rig_random(uint64_t seed, zb_real *x, int64_t n, double std);
/* Host arrays for every parameter of g, random; norm weights around 1. */
zb_real **rig_params(const struct zb_graph *g, uint64_t seed);
void rig_params_free(const struct zb_graph *g, zb_real **params);

#endif
