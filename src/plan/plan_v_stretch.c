/* SPDX-License-Identifier: MIT
 *
 * From an order of few microbatches to one of many: run a piece of each stage's
 * sequence several times, with every type equally often.
 */
#include "config.h"
#include "plan/plan_v.h"

#include <string.h>

/* The end of the shortest piece from `at` on with F and B of both legs `each`
 * times or more; 0 when there is none. */
static int end_of_piece(const uint8_t *seq, int len, int at, int each)
{
    int n[ZB_V_N_TYPES] = {0}, n_full = 0;

    for (int i = at; i < len; i++) {
        int t = seq[i];

        n_full += t < ZB_V_W0 && ++n[t] == each;
        if (n_full == 4) {
            return i + 1;
        }
    }
    return 0;
}

/* Write a piece with `each` of every type: what is more than that is left out,
 * W that is missing comes last. Returns how much was written. */
static int put_piece(const uint8_t *seq, int at, int end, int each, uint8_t *to)
{
    int n[ZB_V_N_TYPES] = {0}, len = 0;

    for (int i = at; i < end; i++) {
        int t = seq[i];

        if (n[t] < each) {
            n[t]++;
            to[len++] = (uint8_t)t;
        }
    }
    for (int t = ZB_V_W0; t <= ZB_V_W1; t++) {
        for (; n[t] < each; n[t]++) {
            to[len++] = (uint8_t)t;
        }
    }
    return len;
}

int zb_v_stretch(const struct zb_v *few, const uint8_t *order,
                 const int *cut, int each, const struct zb_v *many,
                 uint8_t *order_out)
{
    int n_more = (many->m - few->m) / each;

    if ((many->m - few->m) % each != 0) {
        return 0;
    }
    for (int s = 0; s < few->p; s++) {
        const uint8_t *from = &order[(size_t)s * (size_t)few->len];
        uint8_t *to = &order_out[(size_t)s * (size_t)many->len];
        int end = end_of_piece(from, few->len, cut[s], each);

        if (end == 0) {
            return 0;
        }
        memcpy(to, from, (size_t)cut[s]);
        to += cut[s];
        for (int i = 0; i < n_more; i++) {
            to += put_piece(from, cut[s], end, each, to);
        }
        memcpy(to, &from[cut[s]], (size_t)(few->len - cut[s]));
    }
    return 1;
}
