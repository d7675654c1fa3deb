/* SPDX-License-Identifier: MIT
 *
 * How many messages of a channel a stage holds at once, read off its stream. */
#include "config.h"
#include "run/run_int.h"

struct tally {
    int now, most;
};

static void hold(struct tally *t)
{
    t->now++;
    t->most = t->now > t->most ? t->now : t->most;
}

static int is_pass(const struct zb_node *nd, enum zb_pass pass)
{
    switch (pass) {
    case ZB_PASS_F:
        return nd->type == ZB_NODE_F;
    case ZB_PASS_B:
        return nd->type == ZB_NODE_B || nd->type == ZB_NODE_BW;
    default:
        return nd->type == ZB_NODE_W || nd->type == ZB_NODE_BW;
    }
}

/* One side of one channel. A forward schedule (eval) drops its input at F. */
struct side {
    enum zb_pass makes;   /* the sender's pass that fills the message */
    enum zb_pass drops;   /* the receiver's pass that reads it last */
    enum zb_node_type send, recv;
};

static struct side side_of(const struct zb_run_plan *p, int channel,
                           int is_eval)
{
    int low = channel / 2;

    if (channel % 2 == 0) {
        return (struct side){
            .makes = ZB_PASS_F,
            .drops = is_eval ? ZB_PASS_F : p->info[low + 1].in_until,
            .send = ZB_NODE_SEND_FORWARD,
            .recv = ZB_NODE_RECV_FORWARD,
        };
    }
    return (struct side){
        .makes = ZB_PASS_B,
        .drops = p->info[low].din_until,
        .send = ZB_NODE_SEND_BACKWARD,
        .recv = ZB_NODE_RECV_BACKWARD,
    };
}

int zb_count_held_by_sender(const struct zb_run_plan *p,
                            const struct zb_schedule *sched, int channel)
{
    int virt = zb_channel_from(channel), chunk = zb_chunk_of(p, virt);
    int peer = zb_channel_to(channel), peer_chunk = zb_chunk_of(p, peer);
    int is_turn = zb_stage_of(p, virt) == zb_stage_of(p, peer);
    struct side side = side_of(p, channel, sched != p->sched);
    const struct zb_stage_nodes *nodes = &sched->stages[zb_stage_of(p, virt)];
    struct tally t = {0, 0};

    for (size_t i = 0; i < nodes->n; i++) {
        const struct zb_node *nd = &nodes->node[i];

        if (nd->chunk == chunk && is_pass(nd, side.makes)) {
            hold(&t);
        }
        if (!is_turn && nd->chunk == chunk && nd->type == side.send) {
            t.now--;
        }
        /* At the turn sender and receiver are one: until the last reader. */
        if (is_turn && nd->chunk == peer_chunk && is_pass(nd, side.drops)) {
            t.now--;
        }
    }
    return t.most;
}

int zb_count_held_by_receiver(const struct zb_run_plan *p,
                              const struct zb_schedule *sched, int channel)
{
    int virt = zb_channel_to(channel), chunk = zb_chunk_of(p, virt);
    struct side side = side_of(p, channel, sched != p->sched);
    const struct zb_stage_nodes *nodes = &sched->stages[zb_stage_of(p, virt)];
    struct tally t = {0, 0};

    if (zb_stage_of(p, zb_channel_from(channel)) == zb_stage_of(p, virt)) {
        return 0; /* the turn: counted at the sender */
    }
    for (size_t i = 0; i < nodes->n; i++) {
        const struct zb_node *nd = &nodes->node[i];

        if (nd->chunk == chunk && nd->type == side.recv) {
            hold(&t);
        }
        if (nd->chunk == chunk && is_pass(nd, side.drops)) {
            t.now--;
        }
    }
    return t.most;
}
