/* SPDX-License-Identifier: MIT
 *
 * Commands: the host has all workers do something and waits until they have, or
 * until one has failed.
 */
#include "config.h"
#include "run/run_int.h"

void zb_session_join(struct zb_session *s)
{
    for (int i = 0; i < s->n_running; i++) {
        zb_thread_join(&s->worker[i].thread);
    }
    s->n_running = 0;
}

/* The run's first error becomes this thread's; the workers are gone after. One
 * whose stream waits for a message that will not come can not leave by itself:
 * links are cut first. */
enum zb_status zb_session_end(struct zb_session *s)
{
    int n_groups;
    struct zb_coll_group *const *group = zb_groups_all(s, &n_groups);

    if (zb_has_links(s->plan)) {
        zb_links_abort(s->chan, s->plan->n_columns * zb_n_channels(s->plan),
                       group, n_groups);
    }
    atomic_store(&s->has_cut_links, 1);
    zb_signal_bump(&s->cut);
    zb_session_join(s);
    if (s->ab.st == ZB_ENOMEM && s->plan->o.memory_table != NULL) {
        zb_run_plan_print_memory(s->plan, s->plan->o.memory_table);
    }
    return zb_fail(s->ab.st, "%s", s->ab.text);
}

static enum zb_status error_of_links(struct zb_session *s)
{
    const struct zb_run_plan *p = s->plan;
    int n_groups;
    struct zb_coll_group *const *group = zb_groups_all(s, &n_groups);

    for (int c = 0; p->is_linked && c < p->n_columns * zb_n_channels(p); c++) {
        ZB_TRY(zb_channel_link_error(s->chan[c]));
    }
    for (int i = 0; p->has_group_links && i < n_groups; i++) {
        ZB_TRY(zb_coll_link_error(group[i]));
    }
    return ZB_OK;
}

/* A message that fails on its way is noticed by nobody else. */
static void look_at_links(struct zb_session *s)
{
    enum zb_status st = error_of_links(s);

    if (st != ZB_OK) {
        zb_abort_raise(&s->ab, st, zb_error_text());
    }
}

/* Wait until all workers reported, watching that something moves. */
enum zb_status zb_session_wait(struct zb_session *s)
{
    struct zb_watch watch;
    uint32_t n = (uint32_t)s->plan->n_devices;

    zb_watch_init(&watch, s);
    for (;;) {
        uint32_t seen = zb_signal_seq(&s->done);
        enum zb_status st;

        if (zb_abort_is_raised(&s->ab)) {
            return zb_session_end(s);
        }
        if (atomic_load(&s->n_done) == n) {
            return ZB_OK;
        }
        st = zb_signal_wait_for(&s->done, seen, &s->ab, ZB_WATCH_TURN_NS);
        if (st == ZB_ETIMEOUT) {
            look_at_links(s);
            zb_watch_look(&watch, s);
        }
    }
}

/* Drivers differ in how long they take: at most this share of the time. The
 * first reading, which loads a library, does not count. */
#define READING_SHARE 20

/* While the workers are at it: between steps GPUs rest. */
static void read_gpus(struct zb_session *s)
{
    int64_t begin = zb_now_ns(), now;

    if (!s->watches_gpus) {
        return;
    }
    s->watches_gpus = 0;
    s->n_gpus = 0;
    if (begin < s->no_reading_until_ns) {
        return;
    }
    s->n_gpus = s->be->ops->gpu_states(s->be, s->gpu);
    now = zb_now_ns();
    s->no_reading_until_ns =
        s->has_read_gpus ? now + (READING_SHARE - 1) * (now - begin) : now;
    s->has_read_gpus = 1;
}

enum zb_status zb_session_command(struct zb_session *s, zb_command_fn fn,
                                  void *arg)
{
    if (s->n_running == 0 || zb_abort_is_raised(&s->ab)) {
        return zb_fail(ZB_EABORT, "the session has ended: %s", s->ab.text);
    }
    atomic_store(&s->n_done, 0);
    s->command = fn;
    s->arg = arg;
    zb_signal_bump(&s->go);
    read_gpus(s);
    return zb_session_wait(s);
}

struct each_arg {
    zb_command_fn fn;
    void *arg;
};

/* What the caller lends for the call must not be in use after it. */
static enum zb_status do_each(struct zb_worker *w, void *arg)
{
    struct each_arg *a = arg;

    ZB_TRY(zb_worker_settle(w));
    ZB_TRY(a->fn(w, a->arg));
    return w->ops->stream_sync(w->stream);
}

enum zb_status
zb_session_each(struct zb_session *s,
                enum zb_status (*fn)(struct zb_worker *w, void *arg), void *arg)
{
    struct each_arg a = {fn, arg};

    return zb_session_command(s, do_each, &a);
}
