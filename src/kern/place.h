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

/* Row `offset` + that of a table of n_pos rows. Padding may reach past the
 * table: it takes the last row. */
ZB_KERN_FN int64_t zb_place_table_row(int64_t len, const int64_t *first,
                                      int64_t t, int64_t offset, int64_t n_pos)
{
    int64_t row = offset + zb_place_row(len, first, t);

    return row < n_pos ? row : n_pos - 1;
}

#endif
