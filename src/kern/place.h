/* SPDX-License-Identifier: MIT
 *
 * Where rows of a part of a sequence lie in the whole.
 */
#ifndef ZB_KERN_PLACE_H
#define ZB_KERN_PLACE_H

#include "kern/kern.h"

/* Row t of a part of which `len` rows begin at first[0], the others at
 * first[1]. */
ZB_KERN_FN int64_t zb_place_row(int64_t len, const int64_t *first, int64_t t)
{
    return t < len ? first[0] + t : first[1] + t - len;
}

#endif
