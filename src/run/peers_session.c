/* SPDX-License-Identifier: MIT
 *
 * Who uses whose memory in a session, what was found out about that, and what
 * is said of it. */
#include "config.h"
#include "run/run_int.h"

#include <stdarg.h>
#include <string.h>

#include "zb/log.h"
#include "zb/mem.h"

/* ---- who ----------------------------------------------------------------- */

static int holds(const struct zb_run_plan *p, int stage, int param)
{
    return p->layout[stage].param[param] != ZB_NO_OFFSET;
}

int zb_is_shared_by(const struct zb_run_plan *p, int stage, int other,
                    int param)
{
    return other != stage && holds(p, stage, param) && holds(p, other, param) &&
           zb_graph_param(p->g, param).has_gradient;
}

static int share_any(const struct zb_run_plan *p, int stage, int other)
{
    for (int i = 0; i < p->n_params; i++) {
        if (zb_is_shared_by(p, stage, other, i)) {
            return 1;
        }
    }
    return 0;
}

static enum zb_status need_of_column(struct zb_session *s, int column)
{
    const struct zb_run_plan *p = s->plan;

    for (int ch = 0; !p->is_linked && ch < zb_n_channels(p); ch++) {
        ZB_TRY(zb_peers_need(
            &s->peers,
            zb_device_of(p, zb_stage_of(p, zb_channel_from(ch)), column),
            zb_device_of(p, zb_stage_of(p, zb_channel_to(ch)), column)));
    }
    for (int i = 0; i < p->n_stages; i++) {
        for (int k = 0; k < i; k++) {
            if (share_any(p, i, k)) {
                ZB_TRY(zb_peers_need(&s->peers, zb_device_of(p, i, column),
                                     zb_device_of(p, k, column)));
            }
        }
    }
    return ZB_OK;
}

/* ---- what follows -------------------------------------------------------- */

/* The pairs of devices between which messages go, in *pair[0 .. n); each
 * once. */
static int list_neighbours(const struct zb_session *s, struct zb_pair *pair)
{
    const struct zb_run_plan *p = s->plan;
    int n = 0;

    for (int i = 0; i < s->peers.n; i++) {
        int a = s->peers.pair[i].a, b = s->peers.pair[i].b, is_link = 0;

        for (int ch = 0; ch < zb_n_channels(p); ch++) {
            int from = zb_stage_of(p, zb_channel_from(ch));
            int to = zb_stage_of(p, zb_channel_to(ch));

            is_link |= a % p->n_columns == b % p->n_columns &&
                       a / p->n_columns == from && b / p->n_columns == to;
        }
        if (is_link) {
            pair[n++] = s->peers.pair[i];
        }
    }
    return n;
}

/* What is asked for and not there. */
static enum zb_status check_copies(const struct zb_session *s,
                                   const struct zb_pair *pair, int n)
{
    for (int i = 0; i < n && s->peers.p2p == ZB_P2P_COPY; i++) {
        if (pair[i].reach == ZB_REACH_NONE) {
            return zb_fail(ZB_ECONFIG,
                           "p2p = copy: stages %d and %d do not reach each "
                           "other's memory: %s; with p2p = auto or host their "
                           "messages go through the host",
                           pair[i].a / s->plan->n_columns,
                           pair[i].b / s->plan->n_columns, pair[i].why);
        }
    }
    return ZB_OK;
}

static size_t host_bytes(const struct zb_session *s)
{
    const struct zb_run_plan *p = s->plan;
    size_t bytes = 0;

    for (int i = 0; i < p->n_devices; i++) {
        bytes += zb_worker_mirror_bytes(&s->worker[i]);
    }
    return bytes + s->msg_host_bytes;
}

/* ---- words --------------------------------------------------------------- */

static void append(struct zb_session *s, const char *fmt, ...) ZB_PRINTF(2, 3);

static void append(struct zb_session *s, const char *fmt, ...)
{
    size_t len = strlen(s->messages_text);
    va_list args;

    va_start(args, fmt);
    vsnprintf(s->messages_text + len, sizeof(s->messages_text) - len, fmt,
              args);
    va_end(args);
}

/* The reason of the first of n that have one. */
static const char *why_of(const struct zb_session *s, enum zb_way way,
                          const struct zb_pair *pair, int n)
{
    if (way == ZB_WAY_COPY && s->peers.p2p == ZB_P2P_COPY) {
        return "p2p = copy";
    }
    if (way == ZB_WAY_HOST && s->peers.p2p == ZB_P2P_HOST) {
        return "p2p = host";
    }
    if (way == ZB_WAY_IN_PLACE) {
        return s->be->ops->has_host_memory ? "one GPU shared by stages"
                                           : "one memory";
    }
    for (int i = 0; way == ZB_WAY_HOST && i < n; i++) {
        if (pair[i].reach == ZB_REACH_NONE) {
            return pair[i].why;
        }
    }
    return "peer access";
}

/* Returns 1 when it said why messages go through the host. */
static int describe_messages(struct zb_session *s, const struct zb_pair *pair,
                             int n)
{
    static const char *const name[ZB_N_WAYS] = {
        [ZB_WAY_IN_PLACE] = "in place",
        [ZB_WAY_COPY] = "copied",
        [ZB_WAY_HOST] = "through the host",
    };
    int count[ZB_N_WAYS] = {0};
    const char *between = "messages: ";

    if (s->plan->is_linked && s->plan->n_stages > 1) {
        append(s, "messages: over links (p2p = nccl)");
        return 0;
    }
    for (int i = 0; i < n; i++) {
        count[zb_peers_way(&s->peers, pair[i].a, pair[i].b)]++;
    }
    for (int w = 0; w < ZB_N_WAYS; w++) {
        if (count[w] == 0) {
            continue;
        }
        append(s, "%s", between);
        if (count[w] < n) {
            append(s, "%d of %d pairs ", count[w], n);
        }
        append(s, "%s (%s)", name[w], why_of(s, (enum zb_way)w, pair, n));
        between = ", ";
    }
    return count[ZB_WAY_HOST] > 0;
}

static void describe_groups(struct zb_session *s, int has_said_why)
{
    int has_mirrors = 0;

    for (int i = 0; i < s->plan->n_devices; i++) {
        has_mirrors |= zb_worker_mirror_bytes(&s->worker[i]) > 0;
    }
    if (s->plan->has_group_links) {
        append(s, "%scollectives over links (%s = nccl)",
               s->messages_text[0] ? "; " : "",
               s->plan->o.collectives == ZB_COLLECTIVES_AUTO ? "p2p"
                                                             : "collectives");
    }
    if (!has_mirrors) {
        return;
    }
    append(s, "%scollectives through the host",
           s->messages_text[0] ? "; " : "");
    if (!has_said_why) {
        append(s, " (%s)", why_of(s, ZB_WAY_HOST, s->peers.pair, s->peers.n));
    }
}

/* What nobody asked for. */
static void warn(const struct zb_session *s)
{
    int n = 0;

    for (int i = 0; s->peers.p2p == ZB_P2P_AUTO && i < s->peers.n; i++) {
        const struct zb_pair *p = &s->peers.pair[i];

        if (p->reach == ZB_REACH_NONE) {
            zb_log(n++ == 0 ? ZB_LOG_WARN : ZB_LOG_DEBUG,
                   "%s: what devices %d and %d send each other goes through "
                   "host memory",
                   p->why, p->a, p->b);
        }
    }
}

static void describe(struct zb_session *s, const struct zb_pair *pair, int n)
{
    size_t bytes = host_bytes(s);

    describe_groups(s, describe_messages(s, pair, n));
    if (bytes > 0) {
        append(s, "; %.1f MiB of host memory", (double)bytes / (1 << 20));
    }
    warn(s);
}

const char *zb_session_messages(const struct zb_session *s)
{
    return s->messages_text;
}

/* ---- together ------------------------------------------------------------ */

static size_t message_bytes(const struct zb_session *s)
{
    const struct zb_run_plan *p = s->plan;
    size_t bytes = 0;

    for (int c = 0; c < p->n_columns; c++) {
        for (int ch = 0; ch < zb_n_channels(p); ch++) {
            struct zb_channel_opts o = zb_channel_opts_of(s, c, ch);

            bytes +=
                o.via_host == NULL
                    ? 0
                    : zb_channel_host_bytes(o.bytes, o.n_buffers - o.n_staged);
        }
    }
    return bytes;
}

static enum zb_status use_peers(struct zb_session *s, struct zb_pair *pair)
{
    int n = list_neighbours(s, pair);

    ZB_TRY(check_copies(s, pair, n));
    for (int i = 0; i < s->plan->n_devices; i++) {
        ZB_TRY(zb_worker_plan_mirrors(&s->worker[i]));
    }
    s->msg_host_bytes = message_bytes(s);
    describe(s, pair, n);
    return ZB_OK;
}

enum zb_status zb_session_find_peers(struct zb_session *s)
{
    struct zb_pair *pair;
    enum zb_status st;

    ZB_TRY(zb_peers_init(&s->peers, s->be, s->plan->o.p2p));
    for (int c = 0; c < s->plan->n_columns; c++) {
        ZB_TRY(need_of_column(s, c));
    }
    ZB_TRY(zb_groups_need_peers(s));
    ZB_TRY(zb_peers_find(&s->peers));
    pair = zb_alloc_array((size_t)s->peers.n, sizeof(*pair));
    if (pair == NULL) {
        return ZB_ENOMEM;
    }
    st = use_peers(s, pair);
    zb_free(pair);
    return st;
}
