/* SPDX-License-Identifier: MIT
 *
 * The watchdog: when no worker has moved for too long, say who waits for whom
 * and stop the run. */
#include "config.h"
#include "run/run_int.h"

#include <stdio.h>

static uint64_t total_progress(const struct zb_session *s)
{
    uint64_t sum = 0;

    for (int i = 0; i < s->plan->n_devices; i++) {
        sum += atomic_load_explicit(&s->worker[i].progress,
                                    memory_order_relaxed);
    }
    return sum;
}

void zb_watch_init(struct zb_watch *watch, const struct zb_session *s)
{
    watch->progress = total_progress(s);
    watch->moved_ns = zb_now_ns();
}

static size_t describe(const struct zb_worker *w, char *buf, size_t n)
{
    const struct zb_node *nd =
        atomic_load_explicit(&w->node, memory_order_acquire);
    const char *waiting =
        atomic_load_explicit(&w->waiting_for, memory_order_acquire);
    int len;

    if (nd == NULL) {
        len = snprintf(buf, n, "; stage %d has not begun", w->stage);
    } else {
        len = snprintf(buf, n, "; stage %d at %s chunk %d microbatch %d%s%s",
                       w->stage, zb_node_type_str(nd->type), nd->chunk, nd->mb,
                       waiting != NULL ? " waits for: " : "",
                       waiting != NULL ? waiting : "");
    }
    return len < 0 ? 0 : (size_t)len;
}

void zb_watch_look(struct zb_watch *watch, struct zb_session *s)
{
    uint64_t progress = total_progress(s);
    int64_t now = zb_now_ns();
    double still_s = (double)(now - watch->moved_ns) * 1e-9;
    char text[ZB_ABORT_TEXT_MAX];
    size_t at;

    if (progress != watch->progress) {
        watch->progress = progress;
        watch->moved_ns = now;
        return;
    }
    if (s->plan->o.watchdog_s <= 0 || still_s < s->plan->o.watchdog_s) {
        return;
    }
    at = (size_t)snprintf(text, sizeof(text), "nothing moved for %.0f s",
                          still_s);
    for (int i = 0; i < s->plan->n_devices && at < sizeof(text); i++) {
        at += describe(&s->worker[i], text + at, sizeof(text) - at);
    }
    zb_abort_raise(&s->ab, ZB_ETIMEOUT, text);
}
