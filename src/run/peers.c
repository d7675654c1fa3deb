/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "run/peers.h"

#include "zb/mem.h"

enum zb_status zb_peers_init(struct zb_peers *p, struct zb_backend *be,
                             enum zb_p2p p2p)
{
    size_t n = (size_t)be->n_devices;

    *p = (struct zb_peers){.be = be, .p2p = p2p, .n_devices = be->n_devices};
    p->index = zb_alloc_array(n * n, sizeof(*p->index));
    return p->index == NULL ? ZB_ENOMEM : ZB_OK;
}

void zb_peers_release(struct zb_peers *p)
{
    zb_free(p->pair);
    zb_free(p->index);
    *p = (struct zb_peers){.be = NULL};
}

static int *index_of(const struct zb_peers *p, int a, int b)
{
    return &p->index[a < b ? a * p->n_devices + b : b * p->n_devices + a];
}

enum zb_status zb_peers_need(struct zb_peers *p, int a, int b)
{
    if (a == b || *index_of(p, a, b) != 0) {
        return ZB_OK;
    }
    ZB_TRY(zb_grow(&p->pair, (size_t)p->n, &p->cap, sizeof(*p->pair)));
    p->pair[p->n++] = (struct zb_pair){.a = a < b ? a : b, .b = a < b ? b : a};
    *index_of(p, a, b) = p->n;
    return ZB_OK;
}

enum zb_status zb_peers_find(struct zb_peers *p)
{
    return p->be->ops->find_reach(p->be, p->p2p != ZB_P2P_HOST, p->pair, p->n);
}

enum zb_reach zb_reach_of(const struct zb_peers *p, int a, int b)
{
    return a == b ? ZB_REACH_SHARED : p->pair[*index_of(p, a, b) - 1].reach;
}

enum zb_way zb_peers_way(const struct zb_peers *p, int a, int b)
{
    enum zb_reach reach;

    if (a == b) { /* the turn of the V */
        return ZB_WAY_IN_PLACE;
    }
    if (p->p2p == ZB_P2P_NCCL) {
        return ZB_WAY_LINK;
    }
    reach = zb_reach_of(p, a, b);
    if (p->p2p == ZB_P2P_HOST || reach == ZB_REACH_NONE) {
        return ZB_WAY_HOST;
    }
    return p->p2p == ZB_P2P_COPY || reach == ZB_REACH_PEER ? ZB_WAY_COPY
                                                           : ZB_WAY_IN_PLACE;
}

void zb_peers_set_channel(const struct zb_peers *p, int a, int b, int n_send,
                          struct zb_channel_opts *o)
{
    enum zb_way way = zb_peers_way(p, a, b);

    o->n_staged = way == ZB_WAY_IN_PLACE ? 0 : n_send;
    o->linked = way == ZB_WAY_LINK ? p->be : NULL;
    o->via_host = way == ZB_WAY_HOST ? p->be : NULL;
}
