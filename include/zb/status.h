/* SPDX-License-Identifier: MIT
 *
 * Status codes and the error text that goes with them.
 *
 * A fallible function returns enum zb_status: 0 or a negative code. The first
 * function that decides an error describes it once with zb_fail(); everyone
 * above passes the code on with ZB_TRY. The text stays with the thread until
 * its next zb_fail(), and the program (or the run, for a worker) prints it.
 *
 *     enum zb_status st = zb_plan_make(...);
 *     if (st != ZB_OK)
 *         fprintf(stderr, "%s\n", zb_error_text());
 *
 * Threads: any. The error text is per thread.
 */
#ifndef ZB_STATUS_H
#define ZB_STATUS_H

#define ZB_STATUS_MAP(X)                                                       \
    X(OK, 0, "success")                                                        \
    X(ENOMEM, -1, "out of memory")                                             \
    X(EINVAL, -2, "invalid argument")                                          \
    X(ECONFIG, -3, "invalid configuration or input")                           \
    X(EUNSUPPORTED, -4, "not supported by this build")                         \
    X(EDEVICE, -5, "device error")                                             \
    X(EIO, -6, "input or output error")                                        \
    X(EABORT, -7, "stopped because another worker failed")                     \
    X(ETIMEOUT, -8, "nothing moved for too long")                              \
    X(EINFEASIBLE, -9, "no schedule satisfies the constraints")                \
    X(ESTOPPED, -10, "stopped by a signal")

enum zb_status {
#define ZB_X(name, value, text) ZB_##name = value,
    ZB_STATUS_MAP(ZB_X)
#undef ZB_X
};

#if defined(__GNUC__)
#define ZB_CHECKED __attribute__((warn_unused_result))
#define ZB_PRINTF(fmt_arg, first_arg)                                          \
    __attribute__((format(printf, fmt_arg, first_arg)))
#define ZB_NORETURN __attribute__((noreturn))
#else
#define ZB_CHECKED
#define ZB_PRINTF(fmt_arg, first_arg)
#define ZB_NORETURN
#endif

/* A short fixed text for a code; "unknown status" for a number that is none. */
const char *zb_status_str(enum zb_status st);

/* Record this thread's error text (truncated to 1023 bytes) and return st, so
 * that a detector can write `return zb_fail(ZB_EINVAL, "...", ...)`. */
enum zb_status zb_fail(enum zb_status st, const char *fmt, ...)
    ZB_PRINTF(2, 3);

/* Put `fmt` and ": " in front of this thread's error text and return st: for
 * a caller that knows where (which file, which node) the failure happened. */
enum zb_status zb_fail_in(enum zb_status st, const char *fmt, ...)
    ZB_PRINTF(2, 3);

/* This thread's last error text; never NULL, "" when nothing failed yet.
 * Valid until the thread's next zb_fail() or zb_fail_in(). */
const char *zb_error_text(void);

/* Return from the function if `call` fails. */
#define ZB_TRY(call)                                                           \
    do {                                                                       \
        enum zb_status zb_try_ = (call);                                       \
        if (zb_try_ != ZB_OK) {                                                \
            return zb_try_;                                                    \
        }                                                                      \
    } while (0)

/* Store the status in `st` and go to `label` if `call` fails. */
#define ZB_TRY_GOTO(st, call, label)                                           \
    do {                                                                       \
        (st) = (call);                                                         \
        if ((st) != ZB_OK) {                                                   \
            goto label;                                                        \
        }                                                                      \
    } while (0)

/* A broken invariant of zbrun itself: print it and abort. Always on. Never for
 * user input and never for the state of a device. */
#define ZB_BUG_IF(cond, ...)                                                   \
    do {                                                                       \
        if (cond) {                                                            \
            zb_bug(__FILE__, __LINE__, __VA_ARGS__);                           \
        }                                                                      \
    } while (0)

void zb_bug(const char *file, int line, const char *fmt, ...)
    ZB_PRINTF(3, 4) ZB_NORETURN;

#define ZB_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#endif
