/* SPDX-License-Identifier: MIT
 *
 * What a message between two devices takes: a ball goes there and back, first
 * empty, then with every byte copied on at each side, against the same copy
 * within a device. Where the buffer itself changes hands the bytes cost what
 * the caches of another core do. */
#include "config.h"
#include "run/profile.h"
#include "run/run_int.h"

#include <math.h>
#include <string.h>

#include "zb/machine.h"
#include "zb/mem.h"

#define ROUNDS 41
#define WARM_UP 2

struct link {
    struct zb_seat *s;
    struct zb_channel *to, *from;
    int is_first;      /* of the pair: throws */
    char *mine[2];     /* two buffers of a message */
    size_t bytes;
    struct zb_bind bind;
};

size_t zb_profile_message_bytes(const struct zb_profile_request *r)
{
    int best = 0;

    for (int k = 1; k < r->kinds->n_kinds; k++) {
        best = r->kinds->count[k] > r->kinds->count[best] ? k : best;
    }
    return zb_chunk_info(r->kinds->chunk[best]).bytes[ZB_SPACE_IN];
}

static enum zb_status copy(struct link *l, const void *x, void *y)
{
    struct zb_k_copy k = {.rows = 1,
                          .cols = (int64_t)l->bytes,
                          .ldx = (int64_t)l->bytes,
                          .ldy = (int64_t)l->bytes,
                          .elem_bytes = 1,
                          .x = x,
                          .y = y};
    struct zb_launch launch = {
        .kernel = ZB_K_copy,
        .label = "profile",
        .params = &k,
        .n_access = 2,
        .access = {{x, l->bytes, ZB_READ}, {y, l->bytes, ZB_WRITE}},
    };

    return l->s->ops->launch(l->s->stream, &launch);
}

/* ---- one throw ----------------------------------------------------------- */

static enum zb_status throw_ball(struct link *l, const void *contents)
{
    struct zb_msg *msg;

    ZB_TRY(zb_channel_acquire(l->to, l->s->stream, &msg));
    if (contents != NULL) {
        ZB_TRY(copy(l, contents, msg->ptr));
    }
    ZB_TRY(zb_channel_filled(l->to, msg, l->s->stream));
    return zb_channel_send(l->to, msg, 0, &l->bind);
}

/* `on` NULL: nobody looks at what came. */
static enum zb_status catch_ball(struct link *l, void *on)
{
    struct zb_msg *msg;
    struct zb_bind bind;

    ZB_TRY(zb_channel_recv(l->from, 0, l->s->stream, &msg, &bind));
    if (on != NULL) {
        ZB_TRY(copy(l, msg->ptr, on));
    }
    ZB_TRY(zb_channel_release(l->from, msg, l->s->stream));
    /* On a stream that works later, arrival is when the event came. */
    return l->s->ops->stream_sync(l->s->stream);
}

static enum zb_status turn(struct link *l, int is_full)
{
    char *contents = is_full ? l->mine[0] : NULL;

    if (l->is_first) {
        ZB_TRY(throw_ball(l, contents));
        return catch_ball(l, contents);
    }
    ZB_TRY(catch_ball(l, contents));
    return throw_ball(l, contents);
}

/* The lower quartile: a turn is so short that one interrupt of either side
 * makes it many times as long, and in a run most messages are early. */
static double typical(double ns[ROUNDS])
{
    (void)zb_median(ns, ROUNDS); /* sorts */
    return ns[ROUNDS / 4];
}

static enum zb_status time_turns(struct link *l, int is_full, double *ns_out)
{
    double ns[ROUNDS];

    for (int round = -WARM_UP; round < ROUNDS; round++) {
        int64_t begin = zb_now_ns();

        ZB_TRY(turn(l, is_full));
        if (round >= 0) {
            ns[round] = (double)(zb_now_ns() - begin);
        }
    }
    ZB_TRY(l->s->ops->stream_sync(l->s->stream));
    *ns_out = typical(ns);
    return ZB_OK;
}

/* What copying costs where nothing travels: in and out again. */
static enum zb_status time_local(struct link *l, double *ns_out)
{
    double ns[ROUNDS];

    for (int round = -WARM_UP; round < ROUNDS; round++) {
        int64_t begin = zb_now_ns();

        ZB_TRY(copy(l, l->mine[0], l->mine[1]));
        ZB_TRY(copy(l, l->mine[1], l->mine[0]));
        ZB_TRY(l->s->ops->stream_sync(l->s->stream));
        if (round >= 0) {
            ns[round] = (double)(zb_now_ns() - begin);
        }
    }
    *ns_out = typical(ns);
    return ZB_OK;
}

/* A turn is two messages, each copied in and out. */
static enum zb_status time_link(struct link *l, double result[2])
{
    double empty, full = 0, local = 0;

    ZB_TRY(time_turns(l, 0, &empty));
    if (l->bytes > 0) {
        ZB_TRY(time_local(l, &local));
        ZB_TRY(time_turns(l, 1, &full));
    }
    result[0] = empty / 2;
    result[1] = fmax((full - empty) / 2 - local, 0);
    return ZB_OK;
}

/* ---- pairs of neighbours ------------------------------------------------- */

static enum zb_status make_channel(struct zb_seat *s, int c)
{
    struct zb_profile *p = s->p;
    struct zb_channel_opts o = {
        .ops = s->ops,
        .name = "profile message",
        .bytes = p->message_bytes,
        .n_buffers = 2,
        .has_meta_cache = 1,
    };

    zb_peers_set_channel(&p->peers, c / 2 + c % 2, c / 2 + 1 - c % 2, 1, &o);
    o.n_buffers = o.n_staged > 0 ? 2 : 1;
    return zb_channel_new(&o, &p->ab, &p->chan[c]);
}

static int is_copied(const struct zb_profile *p, int c)
{
    return zb_peers_way(&p->peers, c / 2, c / 2 + 1) != ZB_WAY_IN_PLACE;
}

/* The lower seat of each pair makes both channels; each gives the buffer of the
 * one it sends on, and where messages are copied that of the other, too. */
static enum zb_status join(struct zb_seat *s, int c, int is_sender, void *ptr)
{
    struct zb_channel *chan = s->p->chan[c];

    if (!is_sender) {
        if (is_copied(s->p, c)) {
            zb_channel_give_memory(chan, 1, 1, ptr, s->p->message_bytes);
        }
        return zb_channel_join_receiver(chan, s->dev);
    }
    ZB_TRY(zb_channel_join_sender(chan, s->dev));
    zb_channel_give_memory(chan, 0, 1, ptr, s->p->message_bytes);
    return ZB_OK;
}

static enum zb_status with_neighbour(struct zb_seat *s, int lower,
                                     char *memory, double result[2])
{
    size_t bytes = zb_round_up(s->p->message_bytes);
    int is_first = s->index == lower;
    struct link l = {
        .s = s,
        .to = s->p->chan[2 * lower + !is_first],
        .from = s->p->chan[2 * lower + is_first],
        .is_first = is_first,
        .mine = {memory, memory + bytes},
        .bytes = s->p->message_bytes,
        .bind = s->p->r->max,
    };

    return time_link(&l, result);
}

/* Seats of odd and even pairs; both rounds have all meetings. */
static enum zb_status play(struct zb_seat *s, char *memory, double result[2])
{
    int n = s->p->n_seats;
    double sum[2] = {0, 0};
    int count = 0;

    for (int parity = 0; parity < 2; parity++) {
        int lower = s->index % 2 == parity ? s->index : s->index - 1;

        ZB_TRY(zb_seat_meet(s));
        if (lower >= 0 && lower + 1 < n) {
            double one[2];

            ZB_TRY(with_neighbour(s, lower, memory, one));
            sum[0] += one[0];
            sum[1] += one[1];
            count++;
        }
    }
    result[0] = count > 0 ? sum[0] / count : NAN;
    result[1] = count > 0 ? sum[1] / count : NAN;
    return zb_seat_meet(s);
}

/* The buffers of a seat, each for one message: two of its own, then one for its
 * end of each channel. */
enum { TO_UP = 2, TO_DOWN, FROM_UP, FROM_DOWN, N_BUFFERS };

static enum zb_status make_links(struct zb_seat *s, char *memory)
{
    int up = s->index + 1 < s->p->n_seats, down = s->index > 0;
    size_t bytes = zb_round_up(s->p->message_bytes);

    for (int c = 2 * s->index; up && c < 2 * s->index + 2; c++) {
        ZB_TRY(make_channel(s, c));
    }
    ZB_TRY(zb_seat_meet(s));
    if (up) {
        ZB_TRY(join(s, 2 * s->index, 1, memory + TO_UP * bytes));
        ZB_TRY(join(s, 2 * s->index + 1, 0, memory + FROM_UP * bytes));
    }
    if (down) {
        ZB_TRY(join(s, 2 * s->index - 1, 1, memory + TO_DOWN * bytes));
        ZB_TRY(join(s, 2 * s->index - 2, 0, memory + FROM_DOWN * bytes));
    }
    return ZB_OK;
}

/* The neighbours still use each other's memory until all have met. */
enum zb_status zb_profile_messages(struct zb_seat *s, double result[2])
{
    size_t bytes;
    void *memory;

    if (s->index == 0) {
        s->p->message_bytes = zb_profile_message_bytes(s->p->r);
    }
    ZB_TRY(zb_seat_meet(s));
    bytes = zb_round_up(s->p->message_bytes);
    ZB_TRY(s->ops->mem_alloc(s->dev, bytes > 0 ? N_BUFFERS * bytes : ZB_ALIGN,
                             "profile", &memory));
    s->scratch = memory;
    if (bytes > 0) {
        /* Not those received into: neighbours write them when they like. */
        ZB_TRY(zb_fill(s->ops, s->stream, ZB_DTYPE_REAL, memory,
                       (int64_t)(FROM_UP * bytes / sizeof(zb_real)), 0,
                       "profile"));
    }
    ZB_TRY(make_links(s, memory));
    return play(s, memory, result);
}
