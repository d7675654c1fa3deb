/* SPDX-License-Identifier: MIT
 *
 * How a layout cuts sequences.
 */
#include "config.h"
#include "graph/graph_int.h"

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

int64_t zb_parallel_seq_multiple(const struct zb_parallel *par)
{
    switch (par->mode) {
    case ZB_SEQ_SPLIT_GATHER:
        return par->tp;
    case ZB_SEQ_ALL_TO_ALL:
        return par->sp;
    case ZB_SEQ_RING:
        return 2 * (int64_t)par->sp;
    default:
        return 1;
    }
}

struct zb_bind zb_parallel_bind(const struct zb_parallel *par, int64_t rows,
                                int64_t seq)
{
    int64_t full = round_up(seq, zb_parallel_seq_multiple(par));
    int is_split_gather = par->mode == ZB_SEQ_SPLIT_GATHER;
    struct zb_bind bind;

    bind.value[ZB_SYM_BATCH] = rows;
    bind.value[ZB_SYM_FULL] = full;
    bind.value[ZB_SYM_SEQ] = full / par->sp;
    bind.value[ZB_SYM_PART] = full / (is_split_gather ? par->tp : par->sp);
    return bind;
}

int64_t zb_whole_seq(const struct zb_graph *g, int64_t dim,
                     const struct zb_bind *max)
{
    if (dim >= 0) {
        return dim;
    }
    return max->value[g->par.mode == ZB_SEQ_WHOLE ? -1 - dim : ZB_SYM_FULL];
}

int64_t zb_least_seq(const struct zb_graph *g, int64_t dim,
                     const struct zb_bind *max)
{
    return zb_whole_seq(g, dim, max) - (zb_parallel_seq_multiple(&g->par) - 1);
}

struct zb_seq_place zb_parallel_place(const struct zb_parallel *par,
                                      int sp_rank, const struct zb_bind *bind)
{
    int64_t seq = bind->value[ZB_SYM_SEQ];
    struct zb_seq_place place = {.len = (seq + 1) / 2};

    if (par->mode == ZB_SEQ_RING) {
        place.first[0] = sp_rank * place.len;
        place.first[1] = (2 * (int64_t)par->sp - 1 - sp_rank) * place.len;
    } else {
        place.first[0] = sp_rank * seq;
        place.first[1] = place.first[0] + place.len;
    }
    return place;
}
