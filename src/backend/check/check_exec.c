/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "backend/check/check_int.h"

#include <stdio.h>
#include <string.h>

#include "zb/hash.h"

/* Delays are slept in pieces this long, so that closing need not wait. */
#define NAP_NS 1000000
/* One operation in so many is delayed. */
#define DELAY_EVERY 8

uint64_t zb_ck_checksum(const void *ptr, size_t bytes)
{
    const unsigned char *p = ptr;
    uint64_t h = bytes, word;

    for (; bytes >= sizeof(word); bytes -= sizeof(word)) {
        memcpy(&word, p, sizeof(word));
        h = (h ^ word) * 0x9fb21c651e98df25u;
        h ^= h >> 29;
        p += sizeof(word);
    }
    for (; bytes > 0; bytes--) {
        h = (h ^ *p++) * 0x100000001b3u;
    }
    return h;
}

static uint64_t draw(uint64_t *rng)
{
    uint64_t now = *rng;

    *rng += ZB_MIX_STEP;
    return zb_mix(now);
}

uint64_t zb_ck_seed(uint64_t seed, int device, int number)
{
    uint64_t rng = seed;

    rng = draw(&rng) + (uint64_t)device;
    rng = draw(&rng) + (uint64_t)number;
    return draw(&rng);
}

int64_t zb_ck_draw_delay_us(uint64_t *rng, int max_delay_us)
{
    uint64_t z = draw(rng);

    if (max_delay_us <= 0 || z % DELAY_EVERY != 0) {
        return 0;
    }
    return (int64_t)(z / DELAY_EVERY % ((uint64_t)max_delay_us + 1));
}

static int is_stopping(const struct ck_backend *be)
{
    return atomic_load_explicit(&be->is_closing, memory_order_acquire) ||
           atomic_load_explicit(&be->has_report, memory_order_acquire);
}

static void delay(struct ck_stream *s)
{
    int64_t left =
        1000 * zb_ck_draw_delay_us(&s->rng, s->be->opts.max_delay_us);

    while (left > 0 && !is_stopping(s->be)) {
        zb_sleep_ns(left < NAP_NS ? left : NAP_NS);
        left -= NAP_NS;
    }
}

/* Under dev->run. */
static void poison(struct ck_device *dev, const struct ck_entry *e)
{
    snprintf(dev->error_text, sizeof(dev->error_text),
             "device %d: \"%s\" (node \"%s\", stream \"%s\"): %.600s",
             dev->index, e->me.label, e->me.node, e->me.stream,
             zb_error_text());
    atomic_store_explicit(&dev->has_failed, 1, memory_order_release);
}

static enum zb_status call_inner(struct ck_stream *s, const struct ck_entry *e)
{
    const struct zb_backend_ops *iops = s->be->iops;

    switch (e->kind) {
    case CK_LAUNCH:
        if (e->must_fail) {
            return zb_fail(ZB_EDEVICE, "the fault asked for");
        }
        ZB_TRY(iops->launch(s->inner, &e->launch));
        break;
    case CK_COPY_IN:
        ZB_TRY(iops->copy_in(s->inner, e->dst, e->src, e->bytes, e->me.label));
        break;
    case CK_COPY_OUT:
        ZB_TRY(iops->copy_out(s->inner, e->dst, e->src, e->bytes, e->me.label));
        break;
    case CK_DISCARD:
        memset(e->dst, 0xff, e->bytes);
        return ZB_OK;
    case CK_WAIT:
        return ZB_OK;
    }
    return iops->stream_sync(s->inner);
}

/* The source of a copy must be what it was when the copy was enqueued. */
static int is_source_intact(struct ck_stream *s, const struct ck_entry *e)
{
    struct ck_backend *be = s->be;
    char who[440];

    if (e->kind != CK_COPY_IN || !e->has_checksum ||
        zb_ck_checksum(e->src, e->bytes) == e->checksum) {
        return 1;
    }
    pthread_mutex_lock(&be->mu);
    zb_ck_report(be,
                 "check: host: host memory changed while a copy was in "
                 "flight: the %zu bytes that %s copies from %p",
                 e->bytes, zb_ck_mark_text(&e->me, who, sizeof(who)), e->src);
    pthread_mutex_unlock(&be->mu);
    return 0;
}

static void execute(struct ck_stream *s, const struct ck_entry *e)
{
    struct ck_device *dev = s->dev;

    delay(s);
    if (is_stopping(s->be)) {
        return;
    }
    if (e->kind == CK_WAIT) {
        zb_ck_wait_done(e->wait_for, e->wait_n);
        return;
    }
    if (atomic_load_explicit(&dev->has_failed, memory_order_acquire) ||
        !is_source_intact(s, e)) {
        return;
    }
    pthread_mutex_lock(&dev->run);
    if (!atomic_load_explicit(&dev->has_failed, memory_order_acquire) &&
        call_inner(s, e) != ZB_OK) {
        poison(dev, e);
    }
    pthread_mutex_unlock(&dev->run);
}

void zb_ck_wait_done(struct ck_stream *s, uint64_t n)
{
    for (;;) {
        uint32_t seq = zb_signal_seq(&s->done);

        if (atomic_load_explicit(&s->n_done, memory_order_acquire) >= n ||
            zb_signal_wait(&s->done, seq, NULL) != ZB_OK) {
            return;
        }
    }
}

void zb_ck_stream_main(void *arg)
{
    struct ck_stream *s = arg;
    uint64_t n = atomic_load_explicit(&s->n_done, memory_order_relaxed);

    for (;;) {
        uint32_t seq = zb_signal_seq(&s->pushed);

        if (n < atomic_load_explicit(&s->n_pushed, memory_order_acquire)) {
            execute(s, &s->queue[n % CK_QUEUE_LEN]);
            n++;
            atomic_store_explicit(&s->n_done, n, memory_order_release);
            zb_signal_bump(&s->done);
        } else if (atomic_load_explicit(&s->must_stop, memory_order_acquire) ||
                   zb_signal_wait(&s->pushed, seq, NULL) != ZB_OK) {
            return;
        }
    }
}
