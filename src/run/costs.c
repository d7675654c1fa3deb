/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "run/costs.h"

#include <math.h>
#include <string.h>

#include "zb/mem.h"

/* ---- layers that are alike ----------------------------------------------- */

/* The kind of the layer that `c` is; takes `c`. */
static int add_kind(struct zb_layer_kinds *k, struct zb_chunk *c)
{
    uint64_t signature = zb_chunk_signature(c);
    int kind = 0;

    while (kind < k->n_kinds && k->signature[kind] != signature) {
        kind++;
    }
    if (kind < k->n_kinds) {
        zb_chunk_free(c);
    } else {
        k->chunk[kind] = c;
        k->signature[kind] = signature;
        k->n_kinds++;
    }
    k->count[kind]++;
    return kind;
}

enum zb_status zb_layer_kinds_init(struct zb_layer_kinds *k,
                                   const struct zb_graph *g,
                                   const struct zb_bind *max,
                                   enum zb_recompute recompute)
{
    size_t n = (size_t)zb_graph_n_layers(g);

    memset(k, 0, sizeof(*k));
    k->n_layers = (int)n;
    k->kind = zb_alloc_array(n, sizeof(*k->kind));
    k->chunk = zb_alloc_array(n, sizeof(*k->chunk));
    k->signature = zb_alloc_array(n, sizeof(*k->signature));
    k->count = zb_alloc_array(n, sizeof(*k->count));
    if (k->kind == NULL || k->chunk == NULL || k->signature == NULL ||
        k->count == NULL) {
        return ZB_ENOMEM;
    }
    for (int i = 0; i < k->n_layers; i++) {
        struct zb_chunk *c;

        ZB_TRY(zb_chunk_new(g, i, i + 1, max, recompute, &c));
        k->kind[i] = add_kind(k, c);
    }
    return ZB_OK;
}

void zb_layer_kinds_release(struct zb_layer_kinds *k)
{
    for (int i = 0; i < k->n_kinds; i++) {
        zb_chunk_free(k->chunk[i]);
    }
    zb_free(k->count);
    zb_free(k->signature);
    zb_free(k->chunk);
    zb_free(k->kind);
    memset(k, 0, sizeof(*k));
}

/* ---- the table ----------------------------------------------------------- */

enum zb_status zb_costs_new(int n_layers, struct zb_cost_table **t_out)
{
    struct zb_cost_table *t = zb_alloc(sizeof(*t));

    if (t == NULL) {
        return ZB_ENOMEM;
    }
    t->n_layers = n_layers;
    t->bytes_per_ns = INFINITY;
    t->layer = zb_alloc_array((size_t)n_layers, sizeof(*t->layer));
    if (t->layer == NULL) {
        zb_costs_free(t);
        return ZB_ENOMEM;
    }
    *t_out = t;
    return ZB_OK;
}

void zb_costs_free(struct zb_cost_table *t)
{
    if (t != NULL) {
        zb_free(t->layer);
        zb_free(t);
    }
}

struct zb_layer_cost zb_costs_sum(const struct zb_cost_table *t, int first,
                                  int end)
{
    struct zb_layer_cost sum = {0, 0, 0, 0};

    for (int i = first; i < end; i++) {
        sum.f_ns += t->layer[i].f_ns;
        sum.b_ns += t->layer[i].b_ns;
        sum.w_ns += t->layer[i].w_ns;
        sum.update_ns += t->layer[i].update_ns;
    }
    return sum;
}

double zb_costs_message(const struct zb_cost_table *t, size_t bytes)
{
    return t->message_ns + (double)bytes / t->bytes_per_ns;
}

const char *zb_cost_source_str(enum zb_cost_source source)
{
    static const char *const text[] = {
        [ZB_COST_NOMINAL] = "estimated, nominal rates",
        [ZB_COST_RATES] = "estimated, measured rates",
        [ZB_COST_MEASURED] = "measured",
    };

    return text[source];
}

/* ---- from the model ------------------------------------------------------ */

struct zb_rates zb_nominal_rates(void)
{
    struct zb_rates r = {
        .flops_per_ns = {64, 64, 64}, .bytes_per_ns = 10, .launch_ns = 500};

    return r;
}

/* Bytes a step moves for each element of a trained parameter: its gradient is
 * zeroed, squared and read, value and state are read and written. Where values
 * are masters, what is stored beside is written. */
static double update_bytes(const struct zb_optim *optim, enum zb_dtype storage)
{
    double n_reals = 3 + 2.0 * (1 + (double)zb_optim_state_reals(optim));

    return n_reals * (double)sizeof(zb_real) +
           (storage == ZB_DTYPE_REAL ? 0 : (double)zb_dtype_bytes(storage));
}

static double update_ns(const struct zb_graph *g, const struct zb_chunk *c,
                        const struct zb_optim *optim,
                        const struct zb_rates *rates)
{
    struct zb_chunk_info info = zb_chunk_info(c);
    double bytes = 0;

    for (int i = 0; i < info.n_params; i++) {
        struct zb_param_info p = zb_graph_param(g, info.params[i]);

        if (p.has_gradient) {
            bytes += update_bytes(optim, zb_graph_storage(g)) *
                     (double)zb_shape_elems(&p.shape);
        }
    }
    return bytes / rates->bytes_per_ns;
}

enum zb_status zb_costs_from_model(const struct zb_graph *g,
                                   const struct zb_bind *max,
                                   const struct zb_rates *rates,
                                   const struct zb_optim *optim,
                                   enum zb_recompute recompute,
                                   struct zb_cost_table **t_out)
{
    struct zb_layer_kinds k;
    struct zb_cost_table *t = NULL;
    enum zb_status st;

    ZB_TRY_GOTO(st, zb_layer_kinds_init(&k, g, max, recompute), out);
    ZB_TRY_GOTO(st, zb_costs_new(k.n_layers, &t), out);
    for (int i = 0; i < k.n_layers; i++) {
        const struct zb_chunk *c = k.chunk[k.kind[i]];
        double ns[ZB_N_PASSES];

        zb_chunk_estimate(c, max, rates, ns);
        t->layer[i] = (struct zb_layer_cost){
            .f_ns = ns[ZB_PASS_F],
            .b_ns = ns[ZB_PASS_B],
            .w_ns = ns[ZB_PASS_W],
            .update_ns = update_ns(g, c, optim, rates),
        };
    }
    *t_out = t;
out:
    zb_layer_kinds_release(&k);
    return st;
}
