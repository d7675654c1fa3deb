/* SPDX-License-Identifier: MIT
 *
 * Channels whose messages go over a link: the sender sends from a buffer of its
 * own, the receiver receives into the one of its that the sender was given,
 * each in a stream for that. Both know the sizes before: the receiver takes
 * them from shared memory, with the message's entry.
 */
#include "config.h"
#include "comm/channel_int.h"

#include "zb/mem.h"

static const struct zb_link_ops *links_of(const struct zb_channel *c)
{
    return c->opts.ops->links;
}

enum zb_status zb_channel_ends_init(struct zb_channel *c)
{
    for (int i = 0; i < 2; i++) {
        zb_link_holder_init(&c->end[i].at);
    }
    if (!zb_channel_is_linked(c)) {
        return ZB_OK;
    }
    for (int i = 0; i < 2; i++) {
        c->end[i].part = zb_alloc_array((size_t)zb_channel_n_parts(c),
                                        sizeof(*c->end[i].part));
        if (c->end[i].part == NULL) {
            return ZB_ENOMEM;
        }
    }
    return links_of(c)->id(c->opts.linked, &c->link_id);
}

void zb_channel_ends_release(struct zb_channel *c)
{
    for (int i = 0; i < 2; i++) {
        zb_free(c->end[i].part);
        zb_link_holder_release(&c->end[i].at);
    }
}

/* ---- how a link begins and ends ------------------------------------------ */

enum zb_status zb_channel_open_link(struct zb_channel *c, enum zb_link_end end)
{
    struct zb_channel_end *e = &c->end[end];
    enum zb_status st;

    if (!zb_channel_is_linked(c)) {
        return ZB_OK;
    }
    pthread_mutex_lock(&e->at.mu);
    st = links_of(c)->open(e->stream, &c->link_id, end, c->ab, &e->at.link);
    pthread_mutex_unlock(&e->at.mu);
    return st;
}

static enum zb_status on_link(struct zb_channel *c, enum zb_link_end end,
                              enum zb_status (*fn)(struct zb_link *link))
{
    return zb_link_call(&c->end[end].at, c->opts.name, fn);
}

enum zb_status zb_channel_join_link(struct zb_channel *c, enum zb_link_end end)
{
    return zb_channel_is_linked(c) ? on_link(c, end, links_of(c)->join) : ZB_OK;
}

enum zb_status zb_channel_warm_up_link(struct zb_channel *c,
                                       enum zb_link_end end)
{
    return zb_channel_is_linked(c) ? on_link(c, end, links_of(c)->warm_up)
                                   : ZB_OK;
}

void zb_channel_close_link(struct zb_channel *c, enum zb_link_end end)
{
    if (zb_channel_is_linked(c)) {
        zb_link_close(&c->end[end].at, links_of(c));
    }
}

/* ---- messages ------------------------------------------------------------ */

static int list_parts(struct zb_channel *c, const struct zb_msg *msg,
                      const struct zb_bind *bind, struct zb_link_part *part)
{
    int n = zb_channel_n_parts(c);

    for (int i = 0; i < n; i++) {
        size_t offset;

        part[i].bytes = zb_channel_part(c, i, bind, &offset);
        part[i].ptr = (char *)msg->ptr + offset;
    }
    return n;
}

/* The sender reads what is filled, and frees it; the receiver fills what is
 * free. */
enum zb_status zb_channel_pass(struct zb_channel *c, enum zb_link_end end,
                               const struct zb_msg *msg,
                               const struct zb_bind *bind)
{
    const struct zb_backend_ops *ops = c->opts.ops;
    struct zb_channel_end *e = &c->end[end];
    int is_sender = end == ZB_SENDER;
    int n = list_parts(c, msg, bind, e->part);
    enum zb_status st = ZB_EABORT;

    ZB_TRY(ops->stream_wait(e->stream, is_sender ? msg->filled : msg->free));
    pthread_mutex_lock(&e->at.mu);
    if (e->at.link != NULL) {
        st = is_sender ? links_of(c)->send(e->at.link, e->part, n)
                       : links_of(c)->recv(e->at.link, e->part, n);
    }
    pthread_mutex_unlock(&e->at.mu);
    if (st != ZB_OK) {
        return st == ZB_EABORT ? st : zb_fail_in(st, "%s", c->opts.name);
    }
    return ops->event_record(is_sender ? msg->free : msg->filled, e->stream);
}

/* ---- from outside -------------------------------------------------------- */

enum zb_status zb_channel_link_error(struct zb_channel *c)
{
    enum zb_status st = ZB_OK;

    for (int i = 0; zb_channel_is_linked(c) && i < 2 && st == ZB_OK; i++) {
        st = zb_link_look(&c->end[i].at, links_of(c), c->opts.name);
    }
    return st;
}
