/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zb/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 1024

static _Thread_local char error_text[TEXT_MAX];

const char *zb_status_str(enum zb_status st)
{
    switch (st) {
#define ZB_X(name, value, text)                                                \
    case ZB_##name:                                                            \
        return text;
        ZB_STATUS_MAP(ZB_X)
#undef ZB_X
    }
    return "unknown status";
}

enum zb_status zb_fail(enum zb_status st, const char *fmt, ...)
{
    /* An argument may be zb_error_text() itself. */
    char text[TEXT_MAX];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    memcpy(error_text, text, sizeof(text));
    return st;
}

enum zb_status zb_fail_in(enum zb_status st, const char *fmt, ...)
{
    char where[TEXT_MAX];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(where, sizeof(where), fmt, ap);
    va_end(ap);
    return zb_fail(st, "%s: %s", where, error_text);
}

const char *zb_error_text(void)
{
    return error_text;
}

void zb_bug(const char *file, int line, const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "zbrun: bug at %s:%d: ", file, line);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    abort();
}
