/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "comm/channel_int.h"
#include "comm/coll_int.h"

#include "zb/mem.h"

void zb_link_holder_init(struct zb_link_holder *h)
{
    pthread_mutex_init(&h->mu, NULL);
    h->link = NULL;
}

void zb_link_holder_release(struct zb_link_holder *h)
{
    pthread_mutex_destroy(&h->mu);
}

enum zb_status zb_link_call(struct zb_link_holder *h, const char *name,
                            enum zb_status (*fn)(struct zb_link *link))
{
    enum zb_status st;

    pthread_mutex_lock(&h->mu);
    st = h->link != NULL ? fn(h->link) : ZB_EABORT;
    pthread_mutex_unlock(&h->mu);
    return st == ZB_OK || st == ZB_EABORT ? st : zb_fail_in(st, "%s", name);
}

void zb_link_close(struct zb_link_holder *h, const struct zb_link_ops *links)
{
    pthread_mutex_lock(&h->mu);
    links->close(h->link);
    h->link = NULL;
    pthread_mutex_unlock(&h->mu);
}

enum zb_status zb_link_look(struct zb_link_holder *h,
                            const struct zb_link_ops *links, const char *name)
{
    enum zb_status st;

    if (pthread_mutex_trylock(&h->mu) != 0) {
        return ZB_OK;
    }
    st = h->link != NULL ? links->error(h->link) : ZB_OK;
    pthread_mutex_unlock(&h->mu);
    return st == ZB_OK ? ZB_OK : zb_fail_in(st, "%s", name);
}

/* ---- all of a run -------------------------------------------------------- */

struct all {
    struct zb_channel *const *chan;
    int n_chan;
    struct zb_coll_group *const *group;
    int n_groups;
};

/* Holder number i, and what links those are; NULL past the last one. Without a
 * link there is nothing in it. */
static struct zb_link_holder *holder_at(const struct all *all, int i,
                                        const struct zb_link_ops **links_out)
{
    if (i < 2 * all->n_chan) {
        *links_out = all->chan[i / 2]->opts.ops->links;
        return &all->chan[i / 2]->end[i % 2].at;
    }
    i -= 2 * all->n_chan;
    for (int k = 0; k < all->n_groups; k++) {
        struct zb_coll_group *g = all->group[k];

        if (i < g->o.n_members) {
            *links_out = g->o.ops->links;
            return &g->member[i].end;
        }
        i -= g->o.n_members;
    }
    return NULL;
}

/* Holders [first, end): all are held while their links are stopped. */
static void abort_some(const struct all *all, int first, int end,
                       struct zb_link **link)
{
    const struct zb_link_ops *links = NULL;
    int n = 0;

    for (int i = first; i < end; i++) {
        struct zb_link_holder *h = holder_at(all, i, &links);

        pthread_mutex_lock(&h->mu);
        if (h->link != NULL) {
            link[n++] = h->link;
        }
    }
    if (n > 0) {
        links->abort(link, n);
    }
    for (int i = first; i < end; i++) {
        pthread_mutex_unlock(&holder_at(all, i, &links)->mu);
    }
}

void zb_links_abort(struct zb_channel *const *chan, int n_chan,
                    struct zb_coll_group *const *group, int n_groups)
{
    const struct all all = {chan, n_chan, group, n_groups};
    const struct zb_link_ops *links;
    struct zb_link **link, *alone;
    int n = 0;

    while (holder_at(&all, n, &links) != NULL) {
        n++;
    }
    link = zb_alloc_array((size_t)n, sizeof(struct zb_link *));
    for (int i = 0; link == NULL && i < n; i++) {
        abort_some(&all, i, i + 1, &alone);
    }
    if (link != NULL) {
        abort_some(&all, 0, n, link);
        zb_free(link);
    }
}
