/* SPDX-License-Identifier: MIT
 *
 * The frame of a unit test program: one CUnit suite, automake's exit codes.
 *
 *     static void put_after_get_returns_value(void) { CU_ASSERT(...); }
 *     int main(void)
 *     {
 *         static const struct zbt_case cases[] = {
 *             ZBT_CASE(put_after_get_returns_value),
 *         };
 *         return zbt_run("table", cases, ZB_COUNT_OF(cases));
 *     }
 */
#ifndef ZBT_H
#define ZBT_H

#include <CUnit/Basic.h>
#include <stddef.h>

#include "zb/status.h"

struct zbt_case {
    const char *name;
    void (*fn)(void);
};

#define ZBT_CASE(fn)                                                           \
    {                                                                          \
#fn, fn                                                                \
    }

/* Run the cases. Exit status for main(): 0 passed, 1 failed, 99 CUnit itself.
 * With ZBT_ONLY=text in the environment only cases whose name contains the
 * text are run; with ZBT_PART=i/n only every n-th of these, from the i-th on,
 * counted round: one at least. */
int zbt_run(const char *suite, const struct zbt_case *cases, size_t n);

/* Check that a call succeeds, and print its error text when it does not. */
#define ZBT_OK(call) CU_ASSERT_FATAL(zbt_ok((call), #call, __FILE__, __LINE__))
int zbt_ok(enum zb_status st, const char *call, const char *file, int line);

/* Path of a file of the source tree, and of a scratch file unique to this
 * process (its folder is removed at exit). Static storage, overwritten by the
 * fourth next call. */
const char *zbt_source_path(const char *rel);
const char *zbt_scratch_path(const char *name);

/* 1 when ZBT_LONG is set: `make check-long` runs the full sizes. */
int zbt_is_long(void);

/* A small reproducible generator: 64 random bits, and a number in [lo, hi]. */
struct zbt_rng {
    unsigned long long state;
};
unsigned long long zbt_rand(struct zbt_rng *r);
long zbt_rand_in(struct zbt_rng *r, long lo, long hi);

#endif
