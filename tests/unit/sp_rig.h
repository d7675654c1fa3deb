/* SPDX-License-Identifier: MIT
 *
 * One microbatch through a graph whose sequences are split over sp ranks: a
 * thread and a device per rank, and collectives that do what zb/coll.h says in
 * the plainest way, or those of zb/comm.h.
 */
#ifndef ZB_TEST_SP_RIG_H
#define ZB_TEST_SP_RIG_H

#include "zb/graph.h"

struct sp_batch {
    int64_t rows, seq;          /* before padding */
    const int32_t *const *data; /* [n_data] fields [rows, seq] of int32 */
};

struct sp_opts {
    const char *backend; /* NULL: cpu */
    int n_threads;       /* of a device; 0: 1 */
    int has_groups;      /* 1: collectives of zb/comm.h, not plain ones */
    int is_eval;         /* F only, no dropout */
    int no_backward;     /* F only */
    uint64_t seed, step;
    double loss_scale;
    enum zb_recompute recompute;
    uint64_t delay_seed;
};

struct sp_result {
    double loss; /* sum of the ranks' * loss_scale */
    int n_params;
    double **grad; /* [n_params] sums of uses and ranks */
};

/* ZB_OK, or the first error of a rank. */
enum zb_status sp_run(const struct zb_graph *g, zb_real *const *params,
                      const struct sp_batch *batch, const struct sp_opts *opts,
                      struct sp_result *r);
void sp_result_free(struct sp_result *r);

#endif
