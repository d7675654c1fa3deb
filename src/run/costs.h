/* SPDX-License-Identifier: MIT
 *
 * What a planner is told about time: one table with the time of one microbatch
 * through each layer of the graph, in nanoseconds, from the model or measured
 * on the devices of the run. Costs of chunks are sums of it, so it is made
 * once, before layers are cut into chunks.
 *
 *     struct zb_cost_table *t;
 *     ZB_TRY(zb_costs_from_model(g, &max, &rates, &optim, recompute, &t));
 *     struct zb_layer_cost c = zb_costs_sum(t, first, end);
 *     double c_cost = zb_costs_message(t, bytes);
 *     zb_costs_free(t);
 *
 * Threads: a table is read-only once made.
 */
#ifndef ZB_RUN_COSTS_H
#define ZB_RUN_COSTS_H

#include "zb/graph.h"
#include "zb/optim.h"
#include "zb/run.h"
#include "zb/status.h"

/* Times of F, B and W of the largest microbatch, and of what a step does to the
 * layer's parameters once: zero gradients, norm, update. */
struct zb_layer_cost {
    double f_ns, b_ns, w_ns;
    double update_ns;
};

enum zb_cost_source {
    ZB_COST_NOMINAL, /* operations and bytes over the rates of no real device */
    ZB_COST_RATES,   /* the same over rates measured on this machine */
    ZB_COST_MEASURED /* each layer ran on the devices */
};

struct zb_cost_table {
    int n_layers;
    struct zb_layer_cost *layer; /* [n_layers] of the graph, in its order */
    double message_ns;           /* a message between stages, whatever size */
    double bytes_per_ns;         /* and what bytes add; INFINITY: nothing */
    enum zb_cost_source source;
};

/* All costs 0. */
enum zb_status zb_costs_new(int n_layers, struct zb_cost_table **t_out)
    ZB_CHECKED;
void zb_costs_free(struct zb_cost_table *t);

/* Rates for plans made without a device: roughly those of a cpu core. Only
 * their ratio matters to a planner. */
struct zb_rates zb_nominal_rates(void);

/* Operations and bytes of each layer over `rates`, those of B with what it
 * computes again; messages cost nothing. `max`
 * is the largest microbatch. The source is ZB_COST_NOMINAL. */
enum zb_status zb_costs_from_model(const struct zb_graph *g,
                                   const struct zb_bind *max,
                                   const struct zb_rates *rates,
                                   const struct zb_optim *optim,
                                   enum zb_recompute recompute,
                                   struct zb_cost_table **t_out) ZB_CHECKED;

/* The table of a run, as opts.costs says: what the cache holds, else what the
 * devices show if they may be used (`may_run`), else what the model says. */
enum zb_status zb_costs_make(const struct zb_graph *g,
                             const struct zb_bind *max,
                             const struct zb_session_opts *o, int may_run,
                             struct zb_cost_table **t_out) ZB_CHECKED;

/* Layers [first, end) one after the other. */
struct zb_layer_cost zb_costs_sum(const struct zb_cost_table *t, int first,
                                  int end);

/* A message of `bytes` between two stages. */
double zb_costs_message(const struct zb_cost_table *t, size_t bytes);

const char *zb_cost_source_str(enum zb_cost_source source);

/* ---- layers that are alike ----------------------------------------------- */

/* Every layer of a graph as a chunk of its own, equal ones once. */
struct zb_layer_kinds {
    int n_layers, n_kinds;
    int *kind;               /* [n_layers] */
    struct zb_chunk **chunk; /* [n_kinds] of the first layer of the kind */
    uint64_t *signature;     /* [n_kinds] */
    int *count;              /* [n_kinds] layers of the kind */
};

/* `k` is released by the caller in any case. */
enum zb_status zb_layer_kinds_init(struct zb_layer_kinds *k,
                                   const struct zb_graph *g,
                                   const struct zb_bind *max,
                                   enum zb_recompute recompute) ZB_CHECKED;
void zb_layer_kinds_release(struct zb_layer_kinds *k);

#endif
