/* SPDX-License-Identifier: MIT
 *
 * A link as its owner and those outside see it: the owner's thread calls it, any
 * may ask for an error or stop it, and only one at a time is inside.
 */
#ifndef ZB_LINK_INT_H
#define ZB_LINK_INT_H

#include <pthread.h>

#include "zb/backend.h"

struct zb_link_holder {
    pthread_mutex_t mu;   /* held round each call of the link */
    struct zb_link *link; /* under mu; NULL before open and after close */
};

void zb_link_holder_init(struct zb_link_holder *h);
void zb_link_holder_release(struct zb_link_holder *h);

/* Call a function of the link: ZB_EABORT when there is none any more. An error's
 * text says of whom it is. */
enum zb_status zb_link_call(struct zb_link_holder *h, const char *name,
                            enum zb_status (*fn)(struct zb_link *link))
    ZB_CHECKED;
void zb_link_close(struct zb_link_holder *h, const struct zb_link_ops *links);
/* Its error, where nobody is inside. */
enum zb_status zb_link_look(struct zb_link_holder *h,
                            const struct zb_link_ops *links,
                            const char *name) ZB_CHECKED;

#endif
