/* SPDX-License-Identifier: MIT
 *
 * The frame of a profile: threads on devices, a made-up batch, medians. */
#include "config.h"
#include "run/profile.h"

#include <math.h>
#include <stdio.h>

#include "zb/machine.h"
#include "zb/mem.h"

/* ---- a seat -------------------------------------------------------------- */

enum zb_status zb_seat_meet(struct zb_seat *s)
{
    return zb_group_meet(s->p->group);
}

enum zb_status zb_seat_has_time(struct zb_seat *s, int64_t end_ns,
                                int *has_time_out)
{
    double *value = zb_group_values(s->p->group);

    if (s->index == 0) {
        *value = zb_now_ns() < end_ns;
    }
    ZB_TRY(zb_seat_meet(s));
    *has_time_out = *value != 0;
    return ZB_OK;
}

static enum zb_status work(struct zb_seat *s)
{
    struct zb_profile *p = s->p;

    ZB_TRY(s->ops->device_open(p->be, s->index, &s->dev));
    ZB_TRY(s->ops->stream_new(s->dev, "profile", &s->stream));
    return p->job(s);
}

/* As workers leave: nobody frees what another's stream may still touch. */
static void leave_seat(struct zb_seat *s)
{
    struct zb_profile *p = s->p;
    enum zb_status st;

    for (int c = 0; c < 2 * (p->n_seats - 1); c++) {
        if (p->chan[c] != NULL && c / 2 + c % 2 == s->index) {
            zb_channel_end_sender(p->chan[c]);
        }
        if (p->chan[c] != NULL && c / 2 + 1 - c % 2 == s->index) {
            zb_channel_end_receiver(p->chan[c]);
        }
    }
    if (s->stream != NULL) {
        s->ops->stream_free(s->stream);
    }
    st = zb_barrier_wait(&p->leave, NULL);
    for (int c = 0; c < 2 * (p->n_seats - 1); c++) {
        int from = c / 2 + c % 2, to = c / 2 + 1 - c % 2;

        if (p->chan[c] != NULL && from == s->index) {
            zb_channel_leave_sender(p->chan[c]);
        }
        if (p->chan[c] != NULL && to == s->index) {
            zb_channel_leave_receiver(p->chan[c]);
        }
    }
    if (s->scratch != NULL) {
        s->ops->mem_free(s->dev, s->scratch);
    }
    st = st == ZB_OK ? zb_barrier_wait(&p->leave, NULL) : st;
    ZB_BUG_IF(st != ZB_OK, "seats failed to leave together");
    if (s->dev != NULL) {
        s->ops->device_close(s->dev);
    }
}

static void seat_main(void *arg)
{
    struct zb_seat *s = arg;
    enum zb_status st = work(s);

    if (st != ZB_OK) {
        if (st != ZB_EABORT) {
            zb_fail_in(st, "device %d, profile", s->index);
        }
        zb_abort_raise(&s->p->ab, st, zb_error_text());
    }
    leave_seat(s);
}

static void start_seats(struct zb_profile *p)
{
    zb_barrier_init(&p->leave, (uint32_t)p->n_seats);
    for (int i = 0; i < p->n_seats; i++) {
        char name[24];
        enum zb_status st;

        snprintf(name, sizeof(name), "profile %d", i);
        st = zb_thread_start(&p->seat[i].thread, name, seat_main, &p->seat[i]);
        if (st != ZB_OK) {
            zb_abort_raise(&p->ab, st, zb_error_text());
            zb_barrier_dismiss(&p->leave, (uint32_t)(p->n_seats - i));
            break;
        }
        p->n_running++;
    }
    for (int i = 0; i < p->n_running; i++) {
        zb_thread_join(&p->seat[i].thread);
    }
}

/* ---- a batch ------------------------------------------------------------- */

/* Spread evenly and without order, so that rows of tables are read as real ids
 * would. */
static uint32_t scatter(uint64_t i)
{
    return (uint32_t)((i * 0x9e3779b97f4a7c15u) >> 33);
}

/* Fields that index no table (masks, labels) are 1, the others any row of it;
 * real ones lie between -1 and 1. */
static enum zb_status make_field(struct zb_profile *p, int i)
{
    struct zb_data_info info = zb_graph_data(p->r->g, i);
    struct zb_shape bound = zb_shape_bind(&info.shape, &p->r->max);
    int64_t n = zb_shape_elems(&bound);
    int64_t range = zb_graph_data_range(p->r->g, i);

    p->field[i] = zb_alloc_array((size_t)n, zb_dtype_bytes(info.dtype));
    if (p->field[i] == NULL) {
        return ZB_ENOMEM;
    }
    for (int64_t k = 0; k < n; k++) {
        uint32_t x = scatter((uint64_t)k);

        if (info.dtype == ZB_DTYPE_I32) {
            ((int32_t *)p->field[i])[k] =
                range > 0 ? (int32_t)(x % (uint64_t)range) : 1;
        } else if (zb_dtype_is_storage(info.dtype)) {
            zb_real y = (zb_real)((double)x / (1u << 30) - 1);

            zb_dtype_store(info.dtype, 1, &y,
                           (char *)p->field[i] +
                               (size_t)k * zb_dtype_bytes(info.dtype));
        }
    }
    return ZB_OK;
}

static enum zb_status make_batch(struct zb_profile *p)
{
    int n_data = zb_graph_n_data(p->r->g);
    size_t rows = (size_t)p->r->max.value[ZB_SYM_BATCH];

    p->field = zb_alloc_array((size_t)n_data, sizeof(*p->field));
    p->sample = zb_alloc_array(rows, sizeof(*p->sample));
    if (p->field == NULL || p->sample == NULL) {
        return ZB_ENOMEM;
    }
    for (int i = 0; i < n_data; i++) {
        ZB_TRY(make_field(p, i));
    }
    for (size_t i = 0; i < rows; i++) {
        p->sample[i] = (int64_t)i;
    }
    return ZB_OK;
}

/* ---- all of it ----------------------------------------------------------- */

static enum zb_status make_seats(struct zb_profile *p)
{
    const struct zb_session_opts *o = p->r->o;

    p->seat = zb_alloc_array((size_t)o->n_stages, sizeof(*p->seat));
    p->chan = zb_alloc_array(2 * (size_t)o->n_stages, sizeof(*p->chan));
    if (p->seat == NULL || p->chan == NULL) {
        return ZB_ENOMEM;
    }
    p->n_seats = o->n_stages;
    for (int i = 0; i < p->n_seats; i++) {
        struct zb_seat *s = &p->seat[i];

        s->p = p;
        s->index = i;
        s->ops = p->be->ops;
        s->result = zb_alloc_array(p->n_results, sizeof(*s->result));
        if (s->result == NULL) {
            return ZB_ENOMEM;
        }
    }
    return zb_group_new(p->n_seats, 1, &p->ab, &p->group);
}

static enum zb_status open_profile(struct zb_profile *p)
{
    const struct zb_session_opts *o = p->r->o;
    struct zb_backend_opts bo = {
        .n_devices = o->n_stages,
        .threads_per_device = o->threads_per_device,
        .seed = o->check_seed,
        .max_delay_us = o->check_delay_us,
        .gpus = o->gpus,
    };

    ZB_TRY(zb_backend_open(o->backend, &bo, &p->be));
    /* Links are not timed: what copies take stands for them. */
    ZB_TRY(zb_peers_init(&p->peers, p->be,
                         o->p2p == ZB_P2P_NCCL ? ZB_P2P_COPY : o->p2p));
    for (int i = 0; i + 1 < o->n_stages; i++) {
        ZB_TRY(zb_peers_need(&p->peers, i, i + 1));
    }
    ZB_TRY(zb_peers_find(&p->peers));
    ZB_TRY(make_batch(p));
    return make_seats(p);
}

static void close_profile(struct zb_profile *p)
{
    for (int i = 0; p->seat != NULL && i < p->n_seats; i++) {
        zb_free(p->seat[i].result);
    }
    for (int c = 0; p->chan != NULL && c < 2 * (p->n_seats - 1); c++) {
        zb_channel_free(p->chan[c]);
    }
    for (int i = 0; p->field != NULL && i < zb_graph_n_data(p->r->g); i++) {
        zb_free(p->field[i]);
    }
    zb_group_free(p->group);
    zb_free(p->chan);
    zb_free(p->seat);
    zb_free(p->sample);
    zb_free(p->field);
    zb_peers_release(&p->peers);
    if (p->be != NULL) {
        zb_backend_close(p->be);
    }
    zb_abort_release(&p->ab);
}

static enum zb_status take_medians(const struct zb_profile *p, double *out)
{
    double *v = zb_alloc_array((size_t)p->n_seats, sizeof(*v));

    if (v == NULL) {
        return ZB_ENOMEM;
    }
    for (size_t i = 0; i < p->n_results; i++) {
        size_t n = 0;

        for (int s = 0; s < p->n_seats; s++) {
            if (!isnan(p->seat[s].result[i])) {
                v[n++] = p->seat[s].result[i];
            }
        }
        out[i] = n > 0 ? zb_median(v, n) : NAN;
    }
    zb_free(v);
    return ZB_OK;
}

enum zb_status zb_profile_run(const struct zb_profile_request *r,
                              enum zb_status (*job)(struct zb_seat *seat),
                              size_t n_results, double *out)
{
    struct zb_profile p = {.r = r, .job = job, .n_results = n_results};
    enum zb_status st;

    zb_abort_init(&p.ab);
    st = open_profile(&p);
    if (st == ZB_OK) {
        start_seats(&p);
        st = zb_abort_is_raised(&p.ab) ? zb_fail(p.ab.st, "%s", p.ab.text)
                                       : take_medians(&p, out);
    }
    close_profile(&p);
    return st;
}
