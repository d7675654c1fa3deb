/* SPDX-License-Identifier: MIT
 *
 * Which layers belong to which chunk.
 */
#include "config.h"
#include "graph/graph_int.h"

#include "zb/mem.h"

/* Boundaries from the number of blocks of each chunk. */
static void from_counts(int n_before, int n_blocks, int n_after, int n_chunks,
                        int (*count)(int chunk, const void *arg),
                        const void *arg, int *first_out)
{
    int at = n_before;

    first_out[0] = 0;
    for (int c = 0; c < n_chunks - 1; c++) {
        at += count(c, arg);
        first_out[c + 1] = at;
    }
    first_out[n_chunks] = n_before + n_blocks + n_after;
}

struct uniform {
    int quotient, rest, n_chunks;
};

static int uniform_count(int chunk, const void *arg)
{
    const struct uniform *u = arg;
    int first_extra = u->n_chunks / 2 - u->rest / 2;

    return u->quotient +
           (chunk >= first_extra && chunk < first_extra + u->rest);
}

void zb_cut_uniform(int n_before, int n_blocks, int n_after, int n_chunks,
                    int *first_out)
{
    struct uniform u = {n_blocks / n_chunks, n_blocks % n_chunks, n_chunks};

    from_counts(n_before, n_blocks, n_after, n_chunks, uniform_count, &u,
                first_out);
}

static int listed_count(int chunk, const void *arg)
{
    const int *per_chunk = arg;

    return per_chunk[chunk];
}

enum zb_status zb_cut_list(int n_before, int n_blocks, int n_after,
                           int n_chunks, const int *per_chunk, int *first_out)
{
    long long sum = 0;

    for (int c = 0; c < n_chunks; c++) {
        if (per_chunk[c] < 0) {
            return zb_fail(ZB_ECONFIG, "chunk %d has %d layers", c,
                           per_chunk[c]);
        }
        sum += per_chunk[c];
    }
    if (sum != n_blocks) {
        return zb_fail(ZB_ECONFIG,
                       "the layers of the %d chunks sum up to %lld, but the "
                       "model has %d",
                       n_chunks, sum, n_blocks);
    }
    from_counts(n_before, n_blocks, n_after, n_chunks, listed_count, per_chunk,
                first_out);
    return ZB_OK;
}

/* ---- balanced ------------------------------------------------------------ */

struct costs {
    const double *layer; /* [n_layers] */
    int n_layers;
};

static double cost_from(const struct costs *k, int first)
{
    double sum = 0;

    for (int i = first; i < k->n_layers; i++) {
        sum += k->layer[i];
    }
    return sum;
}

/* How far a chunk that begins at `first` reaches when it may cost `limit`.
 * *more_out: the cost with one layer more, where there is one. */
static int reach(const struct costs *k, int first, double limit,
                 double *more_out)
{
    double cost = 0;
    int end = first;

    for (; end < k->n_layers; end++) {
        double more = cost + k->layer[end];

        if (more > limit) {
            *more_out = more;
            break;
        }
        cost = more;
    }
    return end;
}

/* Whether layers first.. fit in `n` chunks of `limit` each. *next_out: the
 * least larger limit for which a chunk would reach further. */
static int fits(const struct costs *k, int first, int n, double limit,
                double *next_out)
{
    double next = 0;
    int at = first;

    for (int c = 0; c < n && at < k->n_layers; c++) {
        double more = 0;

        at = reach(k, at, limit, &more);
        if (at < k->n_layers && (next == 0 || more < next)) {
            next = more;
        }
    }
    *next_out = next;
    return at == k->n_layers;
}

/* The end of the chunk that begins at `first` when `n` chunks are left: as near
 * to their mean as the limit allows, one layer at least kept for the last. */
static int choose_end(const struct costs *k, int first, int n, double limit)
{
    double mean = cost_from(k, first) / n, cost = 0, unused;
    int end = first;

    for (; end < k->n_layers - 1; end++) {
        double more = cost + k->layer[end];

        if (more > limit || (more - mean > mean - cost &&
                             fits(k, end, n - 1, limit, &unused))) {
            break;
        }
        cost = more;
    }
    return end;
}

void zb_cut_balanced(const double *layer_cost, int n_layers, int n_chunks,
                     int *first_out)
{
    struct costs k = {layer_cost, n_layers};
    double limit = cost_from(&k, 0) / n_chunks, next;

    while (!fits(&k, 0, n_chunks, limit, &next)) {
        limit = next;
    }
    first_out[0] = 0;
    for (int c = 0; c < n_chunks - 1; c++) {
        first_out[c + 1] = choose_end(&k, first_out[c], n_chunks - c, limit);
    }
    first_out[n_chunks] = k.n_layers;
}

enum zb_status zb_cut_auto(const struct zb_graph *g, const struct zb_bind *bind,
                           int n_chunks, int *first_out)
{
    int n = zb_graph_n_layers(g);
    double *cost = zb_alloc_array((size_t)n, sizeof(*cost));

    if (cost == NULL) {
        return ZB_ENOMEM;
    }
    for (int i = 0; i < n; i++) {
        struct zb_flops f = zb_graph_flops(g, i, i + 1, bind);

        cost[i] = f.f + f.b + f.w;
    }
    zb_cut_balanced(cost, n, n_chunks, first_out);
    zb_free(cost);
    return ZB_OK;
}
