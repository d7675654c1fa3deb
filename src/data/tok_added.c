/* SPDX-License-Identifier: MIT
 *
 * Added tokens: texts that are tokens wherever they stand. */
#include "config.h"
#include "data/tok_int.h"

#include <stdlib.h>

#include "zb/mem.h"

static int compare(const void *a_arg, const void *b_arg)
{
    const struct tok_added *a = a_arg, *b = b_arg;
    int order = memcmp(a->text, b->text, a->n < b->n ? a->n : b->n);

    return order != 0 ? order : (a->n > b->n) - (a->n < b->n);
}

void zb_tok_added_sort(struct tok_added_set *set)
{
    if (set->n_items > 0) {
        qsort(set->item, set->n_items, sizeof(*set->item), compare);
    }
    for (size_t i = 0; i < set->n_items; i++) {
        set->is_first[(unsigned char)set->item[i].text[0]] = 1;
    }
}

void zb_tok_added_release(struct tok_added_set *set)
{
    for (size_t i = 0; i < set->n_items; i++) {
        zb_free(set->item[i].text);
    }
    zb_free(set->item);
    memset(set, 0, sizeof(*set));
}

/* The first of lo .. hi - 1, which begin alike, whose byte at `depth` is >= c.
 */
static size_t lower(const struct tok_added_set *set, size_t lo, size_t hi,
                    size_t depth, int c)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const struct tok_added *a = &set->item[mid];
        int here = a->n > depth ? (unsigned char)a->text[depth] : -1;

        if (here < c) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* The longest token that the text begins with. */
static const struct tok_added *longest(const struct tok_added_set *set,
                                       const char *text, size_t n)
{
    const struct tok_added *found = NULL;
    size_t lo = 0, hi = set->n_items;

    for (size_t depth = 0; depth < n; depth++) {
        int c = (unsigned char)text[depth];

        lo = lower(set, lo, hi, depth, c);
        hi = lower(set, lo, hi, depth, c + 1);
        if (lo == hi) {
            break;
        }
        if (set->item[lo].n == depth + 1) {
            found = &set->item[lo];
        }
    }
    return found;
}

const struct tok_added *zb_tok_added_find(const struct tok_added_set *set,
                                          const char *text, size_t n,
                                          size_t from, size_t *at_out)
{
    if (set->n_items == 0) {
        return NULL;
    }
    for (size_t i = from; i < n; i++) {
        if (set->is_first[(unsigned char)text[i]]) {
            const struct tok_added *a = longest(set, text + i, n - i);

            if (a != NULL) {
                *at_out = i;
                return a;
            }
        }
    }
    return NULL;
}
