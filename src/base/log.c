/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zb/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

static _Atomic int max_level = ZB_LOG_INFO;

void zb_log_set_level(enum zb_log_level level)
{
    atomic_store(&max_level, level);
}

void zb_log(enum zb_log_level level, const char *fmt, ...)
{
    static const char *const prefix[] = {"error: ", "warning: ", "", "debug: "};
    char line[2048];
    va_list ap;

    if ((int)level > atomic_load(&max_level)) {
        return;
    }
    va_start(ap, fmt);
    vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    fprintf(stderr, "zbrun: %s%s\n", prefix[level], line);
}
