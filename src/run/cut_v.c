/* SPDX-License-Identifier: MIT
 *
 * A balanced cut for a V: a stage has one piece of the front of the model and
 * one of its end, and the two together count. */
#include "config.h"
#include "run/run_int.h"

#include <limits.h>

#include "zb/mem.h"

/* Stages take layers from both ends of what is left, [i, j). After stage s,
 * end[s + 1][i] is the least j that can be reached, and from[s + 1][i] the i
 * before; a j of NONE: i can not be reached. */
struct table {
    int n_layers, n_stages;
    double *upto;    /* [n_layers + 1] cost of the layers before */
    int *end, *from; /* [(n_stages + 1) * (n_layers + 1)] */
};

#define NONE INT_MAX

static double total(const struct table *t)
{
    return t->upto[t->n_layers];
}

/* One stage takes up to `limit`. As its front piece grows its end piece
 * shrinks, so that one pass over j does for all i. */
static void take(struct table *t, int stage, double limit)
{
    int n = t->n_layers + 1;
    const int *end = &t->end[stage * n];
    int *next = &t->end[(stage + 1) * n], *from = &t->from[(stage + 1) * n];

    for (int i = 0; i < n; i++) {
        next[i] = NONE;
    }
    for (int i = 0; i < n; i++) {
        int j = i;
        /* The last layer belongs to the last chunk. */
        int last = stage == 0 ? t->n_layers - 1 : end[i];

        for (int to = i; end[i] != NONE && to <= last; to++) {
            double left = limit - (t->upto[to] - t->upto[i]);

            j = j < to ? to : j;
            if (left < 0) {
                break;
            }
            while (j < end[i] && t->upto[end[i]] - t->upto[j] > left) {
                j++;
            }
            if (j <= last && j < next[to]) {
                next[to] = j;
                from[to] = i;
            }
        }
    }
}

/* Where both ends meet within the limit, or -1. */
static int meet(struct table *t, double limit)
{
    int n = t->n_layers + 1;

    for (int i = 0; i < n; i++) {
        t->end[i] = i == 0 ? t->n_layers : NONE;
    }
    for (int s = 0; s < t->n_stages; s++) {
        take(t, s, limit);
    }
    for (int i = 0; i < n; i++) {
        if (t->end[t->n_stages * n + i] == i) {
            return i;
        }
    }
    return -1;
}

/* The least limit, as near as counts. */
static double least_limit(struct table *t)
{
    double low = total(t) / t->n_stages, high = total(t);

    for (int i = 0; i < 40 && high - low > 1e-9 * high; i++) {
        double mid = (low + high) / 2;

        if (meet(t, mid) >= 0) {
            high = mid;
        } else {
            low = mid;
        }
    }
    return high;
}

static void read_cut(const struct table *t, int at, int *first)
{
    int n = t->n_layers + 1, p = t->n_stages;

    first[2 * p] = t->n_layers;
    for (int s = p; s > 0; s--) {
        first[s] = at;
        first[2 * p - s] = t->end[s * n + at];
        at = t->from[s * n + at];
    }
    first[0] = 0;
}

/* Work of the table; above this a cut by chunks has to do. */
#define MOST_WORK 4e6

enum zb_status zb_run_cut_v(const double *cost, int n_layers, int n_stages,
                            int *first_out)
{
    size_t n = (size_t)n_layers + 1, cells = n * ((size_t)n_stages + 1);
    struct table t = {.n_layers = n_layers, .n_stages = n_stages};
    enum zb_status st = ZB_OK;

    if ((double)n * (double)n * n_stages > MOST_WORK) {
        zb_cut_balanced(cost, n_layers, 2 * n_stages, first_out);
        return ZB_OK;
    }
    t.upto = zb_alloc_array(n, sizeof(*t.upto));
    t.end = zb_alloc_array(cells, sizeof(*t.end));
    t.from = zb_alloc_array(cells, sizeof(*t.from));
    if (t.upto == NULL || t.end == NULL || t.from == NULL) {
        st = ZB_ENOMEM;
    } else {
        for (int i = 0; i < n_layers; i++) {
            t.upto[i + 1] = t.upto[i] + cost[i];
        }
        read_cut(&t, meet(&t, least_limit(&t) * (1 + 1e-12)), first_out);
    }
    zb_free(t.from);
    zb_free(t.end);
    zb_free(t.upto);
    return st;
}
