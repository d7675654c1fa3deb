/* SPDX-License-Identifier: MIT
 *
 * What is said about the start of a session: how long its parts took, and where
 * threads are bound. */
#include "config.h"
#include "run/run_int.h"

#include <stdio.h>
#include <string.h>

#include "zb/backend.h"
#include "zb/log.h"

#define TEXT_MAX 512

static double ms(int64_t ns)
{
    return (double)ns * 1e-6;
}

/* Of the worker that took longest. */
static int64_t longest(const struct zb_session *s, enum zb_lap lap)
{
    int64_t most = 0;

    for (int i = 0; i < s->plan->n_devices; i++) {
        int64_t ns = s->worker[i].lap_ns[lap];

        most = ns > most ? ns : most;
    }
    return most;
}

static void log_times(const struct zb_session *s, int64_t end_ns)
{
    double plan_ms = s->plan->plan_ms;

    zb_log(ZB_LOG_DEBUG,
           "start-up: costs %.1f ms, plan %.1f ms, backend %.1f ms, all "
           "devices at once %.1f ms (at most: open %.1f ms, memory %.1f ms, "
           "meet %.1f ms, start values %.1f ms)",
           ms(s->planned_ns - s->begin_ns) - plan_ms, plan_ms,
           ms(s->opened_ns - s->planned_ns), ms(end_ns - s->opened_ns),
           ms(longest(s, ZB_LAP_OPEN)), ms(longest(s, ZB_LAP_MEMORY)),
           ms(longest(s, ZB_LAP_MEET)), ms(longest(s, ZB_LAP_VALUES)));
}

/* Neighbours with the same text share a line. */
static void log_bindings(const struct zb_session *s)
{
    char text[TEXT_MAX], next[TEXT_MAX] = "";
    int n = s->plan->n_devices, first = 0;

    zb_backend_binding(s->be, 0, text, sizeof(text));
    for (int i = 1; i <= n && text[0] != '\0'; i++) {
        if (i < n) {
            zb_backend_binding(s->be, i, next, sizeof(next));
        }
        if (i < n && strcmp(next, text) == 0) {
            continue;
        }
        if (i - first > 1) {
            zb_log(ZB_LOG_DEBUG, "threads of devices %d to %d: %s", first,
                   i - 1, text);
        } else {
            zb_log(ZB_LOG_DEBUG, "thread of device %d: %s", first, text);
        }
        first = i;
        memcpy(text, next, sizeof(text));
    }
}

void zb_session_log_start(const struct zb_session *s, int64_t end_ns)
{
    log_bindings(s);
    log_times(s, end_ns);
}
