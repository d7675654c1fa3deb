/* SPDX-License-Identifier: MIT
 *
 * How the devices of a run reach each other's memory, and what follows for
 * messages between them.
 *
 * Threads: made by the host before devices are opened; read-only after.
 */
#ifndef ZB_RUN_PEERS_H
#define ZB_RUN_PEERS_H

#include "zb/comm.h"
#include "zb/run.h"

struct zb_peers {
    struct zb_backend *be;
    enum zb_p2p p2p;
    int n_devices;
    struct zb_pair *pair; /* [n] each two devices that have to do with each
                             other, a < b */
    int n;
    size_t cap;
    int *index; /* [n_devices ^ 2] of the pair + 1, or 0 */
};

/* `be` is borrowed. Then say which devices use each other's memory, and have
 * the backend find out how; ZB_ECONFIG when p2p asks for what there is not. */
enum zb_status zb_peers_init(struct zb_peers *p, struct zb_backend *be,
                             enum zb_p2p p2p) ZB_CHECKED;
enum zb_status zb_peers_need(struct zb_peers *p, int a, int b) ZB_CHECKED;
enum zb_status zb_peers_find(struct zb_peers *p) ZB_CHECKED;
void zb_peers_release(struct zb_peers *p);

/* Between two devices of a pair that was asked for, or a == b. */
enum zb_reach zb_reach_of(const struct zb_peers *p, int a, int b);

/* How messages go from a to b: over a link (ZB_P2P_NCCL, for which nobody has to
 * be asked), or as they reach each other. */
enum zb_way {
    ZB_WAY_IN_PLACE,
    ZB_WAY_COPY,
    ZB_WAY_HOST,
    ZB_WAY_LINK,
    ZB_N_WAYS
};
enum zb_way zb_peers_way(const struct zb_peers *p, int a, int b);

/* Fill in what follows for a channel from a to b of which the sender would have
 * n_send buffers where messages are copied. */
void zb_peers_set_channel(const struct zb_peers *p, int a, int b, int n_send,
                          struct zb_channel_opts *o);

#endif
