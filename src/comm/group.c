/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zb/comm.h"

#include "zb/mem.h"

struct zb_group {
    struct zb_barrier barrier;
    const struct zb_abort *ab;
    double *values;
};

enum zb_status zb_group_new(int n_members, size_t n_values,
                            const struct zb_abort *ab, struct zb_group **g_out)
{
    struct zb_group *g = zb_alloc(sizeof(*g));

    if (g == NULL) {
        return ZB_ENOMEM;
    }
    g->values = zb_alloc_array(n_values, sizeof(*g->values));
    if (g->values == NULL) {
        zb_free(g);
        return ZB_ENOMEM;
    }
    g->ab = ab;
    zb_barrier_init(&g->barrier, (uint32_t)n_members);
    *g_out = g;
    return ZB_OK;
}

void zb_group_free(struct zb_group *g)
{
    if (g != NULL) {
        zb_free(g->values);
        zb_free(g);
    }
}

double *zb_group_values(struct zb_group *g)
{
    return g->values;
}

enum zb_status zb_group_meet(struct zb_group *g)
{
    return zb_barrier_wait(&g->barrier, g->ab);
}
