/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "coll_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/mem.h"

static int is_set_to(const char *variable, const char *value)
{
    const char *is = getenv(variable);

    return is != NULL && strcmp(is, value) == 0;
}

void coll_rig_open(struct coll_rig *r, const char *backend, int n,
                   int n_under_way, int max_delay_us, uint64_t seed)
{
    const struct zb_backend_opts bo = {.n_devices = n,
                                       .threads_per_device = 1,
                                       .seed = seed,
                                       .max_delay_us = max_delay_us};
    struct zb_coll_group_opts o = {.name = "group",
                                   .n_members = n,
                                   .n_under_way = n_under_way,
                                   .latency_ns = 1000000,
                                   .ns_per_byte = 250};

    memset(r, 0, sizeof(*r));
    if (strcmp(backend, "cpu") == 0 && getenv("ZB_TEST_BACKEND") != NULL) {
        backend = getenv("ZB_TEST_BACKEND");
        r->is_linked = is_set_to("ZB_TEST_P2P", "nccl");
    }
    ZBT_OK(zb_backend_open(backend, &bo, &r->be));
    o.linked = r->is_linked ? r->be : NULL;
    r->ops = o.ops = r->be->ops;
    r->n = n;
    zb_abort_init(&r->ab);
    zb_barrier_init(&r->barrier, (uint32_t)n);
    ZBT_OK(zb_coll_group_new(&o, &r->ab, &r->g));
    for (int i = 0; i < n; i++) {
        r->member[i] = (struct coll_rig_member){
            .r = r, .rank = i, .rng = {seed * 1000 + (uint64_t)i}};
    }
}

size_t coll_rig_close(struct coll_rig *r)
{
    size_t n = zb_check_reports(r->be);

    zb_coll_group_free(r->g);
    zb_abort_release(&r->ab);
    zb_backend_close(r->be);
    return n;
}

static enum zb_status member_open(struct coll_rig_member *m)
{
    static const char *const name[] = {"compute", "comm", "after"};
    const struct zb_backend_ops *ops = m->r->ops;
    size_t bytes = RIG_ELEMS * sizeof(zb_real);
    void *ptr;

    ZB_TRY(ops->device_open(m->r->be, m->rank, &m->dev));
    for (int i = 0; i < 3; i++) {
        ZB_TRY(ops->stream_new(m->dev, name[i], &m->stream[i]));
    }
    ZB_TRY(ops->event_new(m->dev, &m->event));
    for (int i = 0; i < RIG_SLOTS; i++) {
        ZB_TRY(ops->mem_alloc(m->dev, bytes, "src", &ptr));
        m->src[i] = ptr;
        ZB_TRY(ops->mem_alloc(m->dev, bytes, "dst", &ptr));
        m->dst[i] = ptr;
    }
    m->host = zb_alloc_array(RIG_ELEMS, sizeof(*m->host));
    if (m->host == NULL) {
        return ZB_ENOMEM;
    }
    ZB_TRY(zb_coll_join(m->r->g, m->rank, m->dev));
    if (m->r->is_shown) {
        struct zb_coll_mirror mirror = {.bytes = bytes};

        ZB_TRY(ops->host_alloc(m->r->be, bytes, "shown", &m->shown));
        mirror.host = m->shown;
        zb_coll_set_mirror(m->r->g, m->rank, &mirror);
    }
    if (m->r->is_linked) {
        ZB_TRY(ops->mem_alloc(m->dev, RIG_ROOM, "room", &m->room));
    }
    return ZB_OK;
}

static enum zb_status member_link(struct coll_rig_member *m)
{
    struct coll_rig *r = m->r;
    const struct zb_coll_linked with = {.stream = m->stream[1],
                                        .ring = m->stream[2],
                                        .room = m->room,
                                        .room_bytes = RIG_ROOM};

    if (!r->is_linked) {
        return ZB_OK;
    }
    ZB_TRY(zb_barrier_wait(&r->barrier, &r->ab));
    ZB_TRY(zb_coll_open_link(r->g, m->rank, &with));
    ZB_TRY(zb_barrier_wait(&r->barrier, &r->ab));
    ZB_TRY(zb_coll_join_link(r->g, m->rank));
    ZB_TRY(zb_barrier_wait(&r->barrier, &r->ab));
    return zb_coll_warm_up_link(r->g, m->rank);
}

static void member_close(struct coll_rig_member *m)
{
    const struct zb_backend_ops *ops = m->r->ops;

    zb_coll_leave(m->r->g, m->rank);
    if (m->room != NULL) {
        ops->mem_free(m->dev, m->room);
    }
    if (m->shown != NULL) {
        ops->host_free(m->r->be, m->shown);
    }
    for (int i = 0; i < RIG_SLOTS; i++) {
        ops->mem_free(m->dev, m->src[i]);
        ops->mem_free(m->dev, m->dst[i]);
    }
    ops->event_free(m->event);
    for (int i = 0; i < 3; i++) {
        ops->stream_free(m->stream[i]);
    }
    ops->device_close(m->dev);
    zb_free(m->host);
}

/* What waits for a member that has failed will wait for ever. */
static void cut_links(struct coll_rig_member *m)
{
    struct coll_rig *r = m->r;

    (void)!zb_barrier_wait(&r->barrier, NULL);
    if (m->rank == 0 && zb_abort_is_raised(&r->ab)) {
        zb_links_abort(NULL, 0, &r->g, 1);
    }
    (void)!zb_barrier_wait(&r->barrier, NULL);
}

static void member_main(void *arg)
{
    struct coll_rig_member *m = arg;
    struct coll_rig *r = m->r;

    m->st = member_open(m);
    if (m->st == ZB_OK) {
        m->st = member_link(m);
    }
    if (m->st == ZB_OK) {
        m->st = zb_barrier_wait(&r->barrier, &r->ab);
    }
    if (m->st == ZB_OK) {
        m->st = r->fn(m);
    }
    snprintf(m->text, sizeof(m->text), "%s", zb_error_text());
    if (m->st != ZB_OK) {
        zb_abort_raise(&r->ab, m->st, m->text);
    }
    if (r->is_linked) {
        cut_links(m);
    }
    for (int i = 0; i < 3; i++) {
        /* after an error, too, nothing may be in flight */
        (void)!r->ops->stream_sync(m->stream[i]);
    }
    zb_coll_close_link(r->g, m->rank);
    /* The others may still read this member's memory. */
    (void)!zb_barrier_wait(&r->barrier, NULL);
    member_close(m);
}

void coll_rig_run(struct coll_rig *r,
                  enum zb_status (*fn)(struct coll_rig_member *m))
{
    struct zb_thread t[RIG_MEMBERS];

    r->fn = fn;
    for (int i = 0; i < r->n; i++) {
        ZBT_OK(zb_thread_start(&t[i], "member", member_main, &r->member[i]));
    }
    for (int i = 0; i < r->n; i++) {
        zb_thread_join(&t[i]);
    }
}

int coll_rig_is_fine(const struct coll_rig *r)
{
    int is_fine = 1;

    for (int i = 0; i < r->n; i++) {
        const struct coll_rig_member *m = &r->member[i];

        if (m->st != ZB_OK || m->n_wrong > 0) {
            printf("member %d of %d: %s (%s), %zu wrong\n", i, r->n,
                   zb_status_str(m->st), m->text, m->n_wrong);
            is_fine = 0;
        }
    }
    return is_fine;
}

static enum zb_status wait_for_host(struct coll_rig_member *m)
{
    ZB_TRY(m->r->ops->event_record(m->event, m->stream[0]));
    return m->r->ops->event_sync(m->event);
}

enum zb_status coll_rig_put(struct coll_rig_member *m, zb_real *dst,
                            const zb_real *host, size_t n)
{
    ZB_TRY(
        m->r->ops->copy_in(m->stream[0], dst, host, n * sizeof(*host), "put"));
    return wait_for_host(m);
}

enum zb_status coll_rig_get(struct coll_rig_member *m, const zb_real *src,
                            zb_real *host, size_t n)
{
    ZB_TRY(
        m->r->ops->copy_out(m->stream[0], host, src, n * sizeof(*host), "get"));
    return wait_for_host(m);
}

void coll_rig_dawdle(struct coll_rig_member *m, int max_us)
{
    if (max_us > 0 && zbt_rand_in(&m->rng, 0, 3) == 0) {
        zb_sleep_ns(1000 * zbt_rand_in(&m->rng, 0, max_us));
    }
}
