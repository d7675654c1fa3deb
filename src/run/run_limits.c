/* SPDX-License-Identifier: MIT
 *
 * Memory that a schedule may use: limits on activations (max_mem) and on all of
 * a device (device_mem), and a schedule within them. */
#include "config.h"
#include "run/run_int.h"

#include <math.h>
#include <string.h>

#include "zb/log.h"
#include "zb/mem.h"

/* ---- memory of the chunks ------------------------------------------------ */

/* Bytes from the graph's exact classes; a message counts at its receiver. Where
 * B leaves a little more for W than it frees, F counts what will be held after
 * B. With recompute it leaves much more, and that counts from B on. */
static void fill_chunk(struct zb_run_plan *p, int v)
{
    const struct zb_chunk_info *c = &p->info[v];
    double in_msg = (double)c->bytes[ZB_SPACE_IN];
    double din_msg = (double)c->bytes[ZB_SPACE_DIN];
    double after_f = (double)c->bytes[ZB_SPACE_FB] +
                     (double)c->bytes[ZB_SPACE_FW] +
                     (c->in_until > ZB_PASS_F ? in_msg : 0);
    double after_b = (double)c->bytes[ZB_SPACE_FW] +
                     (double)c->bytes[ZB_SPACE_BW] +
                     (c->in_until == ZB_PASS_W ? in_msg : 0) +
                     (c->din_until == ZB_PASS_W ? din_msg : 0);

    p->in.f_mem[v] = p->o.recompute == ZB_RECOMPUTE_NONE
                         ? fmax(after_f, after_b)
                         : after_f;
    p->in.b_mem[v] = after_b - p->in.f_mem[v];
    p->in.w_mem[v] = -after_b;
}

/* The room that a B of a chunk needs beyond what its F kept. */
static double need_of_b(const struct zb_run_plan *p, int v)
{
    return fmax(0, p->in.b_mem[v]);
}

/* The user's limit on activations; infinite without one. A multiple is one of
 * what 1F1B would hold on the first stage, 2p F memory and the B under way. */
static double user_limit(const struct zb_run_plan *p)
{
    double all = 0, most = 0;

    if (p->o.max_mem <= 0) {
        return INFINITY;
    }
    for (int v = 0; v < p->n_virtual; v++) {
        all += p->in.f_mem[v];
        most = fmax(most, need_of_b(p, v));
    }
    return p->o.is_mem_factor ? p->o.max_mem * (all + most) : p->o.max_mem;
}

void zb_run_fill_memory(struct zb_run_plan *p)
{
    for (int v = 0; v < p->n_virtual; v++) {
        fill_chunk(p, v);
    }
    for (int s = 0; s < p->n_stages; s++) {
        p->in.max_mem[s] = user_limit(p);
    }
}

/* ---- one schedule -------------------------------------------------------- */

/* Plan within p->in.max_mem; the schedule that was there goes. */
static enum zb_status plan_once(struct zb_run_plan *p)
{
    struct zb_schedule *s;

    ZB_TRY(zb_plan_make(p->planner, &p->in, &p->search, &s));
    p->n_tried++;
    zb_schedule_free(p->sched);
    p->sched = s;
    return ZB_OK;
}

/* What a stage needs to bring n microbatches through all its chunks, one B at a
 * time. */
static double microbatches(const struct zb_run_plan *p, int stage, int n)
{
    double f = 0, most = 0;

    for (int k = 0; k < p->n_chunk; k++) {
        int v = zb_virt_of(p, stage, k);

        f += p->in.f_mem[v];
        most = fmax(most, need_of_b(p, v));
    }
    return n * f + most;
}

/* ---- without a limit from the user --------------------------------------- */

/* Where the user gave no limit, a planner that fits itself to one gets what
 * 1F1B would hold: without any it would keep every W for the end. The other
 * orders bound themselves. */
static enum zb_status plan_freely(struct zb_run_plan *p)
{
    int is_elastic = zb_planner_is_elastic(p->planner);
    enum zb_status st;

    for (int s = 0; s < p->n_stages && is_elastic; s++) {
        p->in.max_mem[s] = microbatches(p, s, p->n_stages);
    }
    st = plan_once(p);
    if (st == ZB_EINFEASIBLE && is_elastic) {
        zb_log(ZB_LOG_DEBUG, "%s", zb_error_text());
        for (int s = 0; s < p->n_stages; s++) {
            p->in.max_mem[s] = INFINITY;
        }
        st = plan_once(p);
    }
    return st;
}

/* ---- bytes of a device --------------------------------------------------- */

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

/* Sender and receiver each give as many buffers as they may hold at once: then
 * the sender never waits where a rendezvous would not. One more lets it run a
 * node ahead of a late receiver (not at the turn, where nobody is late); where
 * messages are copied, one more at each end: to compute while the last is
 * copied, and to copy to. */
static void count_buffers(struct zb_run_plan *p)
{
    for (int ch = 0; ch < zb_n_channels(p); ch++) {
        int is_turn = zb_stage_of(p, zb_channel_from(ch)) ==
                      zb_stage_of(p, zb_channel_to(ch));
        int is_ahead = p->o.overlap_p2p && !is_turn;

        p->n_send_bufs[ch] = max_int(zb_count_held_by_sender(p, p->sched, ch),
                                zb_count_held_by_sender(p, p->eval, ch));
        p->n_send_bufs[ch] += is_ahead;
        p->n_recv_bufs[ch] =
            max_int(zb_count_held_by_receiver(p, p->sched, ch),
                    zb_count_held_by_receiver(p, p->eval, ch));
        p->n_recv_bufs[ch] += p->is_copied ? is_ahead : 0;
    }
}

/* The forward-only schedule is the same for every schedule of a cut. */
static enum zb_status lay_out(struct zb_run_plan *p)
{
    if (p->eval == NULL) {
        ZB_TRY(zb_plan_forward_only(&p->in, &p->eval));
    }
    count_buffers(p);
    for (int s = 0; s < p->n_stages; s++) {
        zb_layout_release(&p->layout[s]);
        ZB_TRY(zb_layout_init(&p->layout[s], p, s));
    }
    return ZB_OK;
}

enum zb_status zb_run_device_bytes(struct zb_run_plan *p, size_t *bytes_out)
{
    size_t most = 0;

    ZB_TRY(lay_out(p));
    for (int s = 0; s < p->n_stages; s++) {
        most = p->layout[s].total > most ? p->layout[s].total : most;
    }
    *bytes_out = most;
    return ZB_OK;
}

/* ---- within a device ----------------------------------------------------- */

/* Arena and message buffers depend on the schedule, and so does what they leave
 * of the device: this often is a limit taken back by what was too much. */
#define MAX_ROUNDS 8

/* What everything else leaves for activations and messages. */
static enum zb_status limit_to_rest(struct zb_run_plan *p)
{
    for (int s = 0; s < p->n_stages; s++) {
        double least = microbatches(p, s, 1);
        size_t fixed;

        ZB_TRY(zb_layout_fixed_bytes(p, s, &fixed));
        p->in.max_mem[s] =
            fmin(user_limit(p),
                 fmax(least, (double)p->o.device_mem - (double)fixed));
    }
    return ZB_OK;
}

/* Lower the limits of the stages that need too much. *n_out: how many were. */
static void tighten(struct zb_run_plan *p, int *n_out)
{
    *n_out = 0;
    for (int s = 0; s < p->n_stages; s++) {
        double least = microbatches(p, s, 1), limit;

        if (p->layout[s].total <= p->o.device_mem) {
            continue;
        }
        limit = fmin(p->in.max_mem[s], p->sched->peak_mem[s]) -
                (double)(p->layout[s].total - p->o.device_mem);
        limit = fmax(limit, least);
        *n_out += limit < p->in.max_mem[s];
        p->in.max_mem[s] = fmin(limit, p->in.max_mem[s]);
    }
}

/* As little as the planner can do with; orders that need what they need can not
 * do with less than without a limit. */
static enum zb_status plan_least(struct zb_run_plan *p)
{
    enum zb_status st;

    for (int s = 0; s < p->n_stages; s++) {
        p->in.max_mem[s] = fmin(user_limit(p), microbatches(p, s, 1));
    }
    st = plan_once(p);
    if (st == ZB_EINFEASIBLE) {
        for (int s = 0; s < p->n_stages; s++) {
            p->in.max_mem[s] = user_limit(p);
        }
        st = plan_once(p);
    }
    return st;
}

static enum zb_status plan_within_device(struct zb_run_plan *p)
{
    size_t bytes;
    enum zb_status st;

    ZB_TRY(limit_to_rest(p));
    for (int round = 0; round < MAX_ROUNDS; round++) {
        int n_lowered;

        st = plan_once(p);
        if (st == ZB_EINFEASIBLE) {
            break;
        }
        ZB_TRY(st);
        ZB_TRY(zb_run_device_bytes(p, &bytes));
        if (bytes <= p->o.device_mem) {
            return ZB_OK;
        }
        tighten(p, &n_lowered);
        if (n_lowered == 0) {
            break;
        }
    }
    ZB_TRY(plan_least(p));
    return zb_run_device_bytes(p, &bytes);
}

/* ---- together ------------------------------------------------------------ */

enum zb_status zb_run_make_schedule(struct zb_run_plan *p)
{
    zb_schedule_free(p->eval);
    p->eval = NULL; /* of another cut; zb_run_device_bytes() makes this one's */
    if (p->o.device_mem > 0) {
        return plan_within_device(p);
    }
    return p->o.max_mem > 0 ? plan_once(p) : plan_freely(p);
}

enum zb_status zb_run_plan_check_memory(const struct zb_run_plan *p)
{
    int worst = 0;

    for (int s = 0; s < p->n_stages; s++) {
        worst = p->layout[s].total > p->layout[worst].total ? s : worst;
    }
    if (p->o.device_mem > 0 && p->layout[worst].total > p->o.device_mem) {
        return zb_fail(ZB_EINFEASIBLE,
                       "stage %d needs %zu bytes at least, more than the %zu "
                       "of device_mem; --dry-run shows what for",
                       worst, p->layout[worst].total, p->o.device_mem);
    }
    return ZB_OK;
}
