/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "backend/check/check_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "zb/hash.h"
#include "zb/log.h"
#include "zb/mem.h"

struct ck_name {
    struct ck_name *next;
    uint64_t hash;
    char text[];
};

/* Longer names are cut: they only have to be told apart by a reader. */
#define NAME_MAX_BYTES 120
/* What follows a first report is rarely news. */
#define LOG_MAX 8

void zb_ck_report(struct ck_backend *be, const char *fmt, ...)
{
    uint64_t i = be->n_reports++;
    va_list ap;

    if (i >= ZB_CHECK_MAX_REPORTS) {
        return;
    }
    va_start(ap, fmt);
    vsnprintf(be->report[i], CK_REPORT_TEXT, fmt, ap);
    va_end(ap);
    if (i == 0) {
        atomic_store_explicit(&be->has_report, 1, memory_order_release);
    }
}

enum zb_status zb_ck_state(struct ck_backend *be)
{
    if (!atomic_load_explicit(&be->has_report, memory_order_acquire)) {
        return ZB_OK;
    }
    pthread_mutex_lock(&be->mu);
    be->is_first_told = 1;
    pthread_mutex_unlock(&be->mu);
    return zb_fail(ZB_EDEVICE, "%s", be->report[0]);
}

void zb_ck_log_reports(struct ck_backend *be)
{
    uint64_t i = be->is_first_told ? 1 : 0;

    for (; i < be->n_reports && i < LOG_MAX; i++) {
        zb_log(ZB_LOG_ERROR, "%s", be->report[i]);
    }
    if (i < be->n_reports) {
        zb_log(ZB_LOG_ERROR, "check: %llu more reports",
               (unsigned long long)(be->n_reports - i));
    }
}

enum zb_status zb_ck_owner(struct ck_device *dev, const char *call)
{
    struct ck_backend *be = dev->be;

    if (pthread_equal(dev->owner, pthread_self())) {
        return ZB_OK;
    }
    pthread_mutex_lock(&be->mu);
    zb_ck_report(be,
                 "check: foreign: %s() on device %d by a thread that does "
                 "not own it",
                 call, dev->index);
    pthread_mutex_unlock(&be->mu);
    return zb_ck_state(be);
}

const char *zb_ck_mark_text(const struct ck_mark *m, char *buf, size_t size)
{
    if (m->slot < 0) {
        snprintf(buf, size, "%s", m->label);
    } else {
        snprintf(buf, size, "\"%s\" (node \"%s\", stream \"%s\" of device %d)",
                 m->label, m->node, m->stream, m->device);
    }
    return buf;
}

static enum zb_status grow_names(struct ck_backend *be)
{
    size_t cap = be->cap_names == 0 ? 256 : be->cap_names * 2;
    struct ck_name **table;

    if (be->n_names < be->cap_names) {
        return ZB_OK;
    }
    table = zb_alloc_array(cap, sizeof(struct ck_name *));
    if (table == NULL) {
        return ZB_ENOMEM;
    }
    for (size_t i = 0; i < be->cap_names; i++) {
        struct ck_name *next;

        for (struct ck_name *n = be->names[i]; n != NULL; n = next) {
            next = n->next;
            n->next = table[n->hash % cap];
            table[n->hash % cap] = n;
        }
    }
    zb_free(be->names);
    be->names = table;
    be->cap_names = cap;
    return ZB_OK;
}

static const char *find_name(const struct ck_backend *be, uint64_t hash,
                             const char *s, size_t len)
{
    const struct ck_name *n;

    if (be->cap_names == 0) {
        return NULL;
    }
    for (n = be->names[hash % be->cap_names]; n != NULL; n = n->next) {
        if (n->hash == hash && strncmp(n->text, s, len) == 0 &&
            n->text[len] == '\0') {
            return n->text;
        }
    }
    return NULL;
}

const char *zb_ck_intern(struct ck_backend *be, const char *s)
{
    size_t len;
    uint64_t hash;
    const char *known;
    struct ck_name *n;

    s = s == NULL ? "" : s;
    len = strnlen(s, NAME_MAX_BYTES);
    hash = zb_hash(s, len);
    known = find_name(be, hash, s, len);
    if (known != NULL) {
        return known;
    }
    if (grow_names(be) != ZB_OK) {
        return NULL;
    }
    n = zb_alloc(sizeof(*n) + len + 1);
    if (n == NULL) {
        return NULL;
    }
    memcpy(n->text, s, len);
    n->hash = hash;
    n->next = be->names[hash % be->cap_names];
    be->names[hash % be->cap_names] = n;
    be->n_names++;
    return n->text;
}

void zb_ck_names_release(struct ck_backend *be)
{
    for (size_t i = 0; i < be->cap_names; i++) {
        struct ck_name *next;

        for (struct ck_name *n = be->names[i]; n != NULL; n = next) {
            next = n->next;
            zb_free(n);
        }
    }
    zb_free(be->names);
}

int zb_ck_fault_hits(struct ck_backend *be, struct ck_fault *f, int device,
                     const char *node)
{
    const struct zb_check_target *t = &f->target;

    if (t->k == 0 || (t->device >= 0 && t->device != device) ||
        (t->node != NULL && strstr(node, t->node) == NULL)) {
        return 0;
    }
    f->n_seen++;
    if (f->n_seen != t->k) {
        return 0;
    }
    be->n_hit++;
    return 1;
}

/* ---- the public questions ----------------------------------------------- */

/* NULL if `be` is another backend. Questions take the lock, hence not const. */
static struct ck_backend *check_of(const struct zb_backend *be)
{
    if (be == NULL || be->ops != &zb_backend_check_ops) {
        return NULL;
    }
    return (struct ck_backend *)(uintptr_t)be;
}

static uint64_t read_count(struct ck_backend *be, const uint64_t *count)
{
    uint64_t n;

    pthread_mutex_lock(&be->mu);
    n = *count;
    pthread_mutex_unlock(&be->mu);
    return n;
}

size_t zb_check_reports(const struct zb_backend *be)
{
    struct ck_backend *ck = check_of(be);

    return ck == NULL ? 0 : (size_t)read_count(ck, &ck->n_reports);
}

const char *zb_check_report_text(const struct zb_backend *be, size_t i)
{
    if (i >= zb_check_reports(be) || i >= ZB_CHECK_MAX_REPORTS) {
        return NULL;
    }
    return check_of(be)->report[i];
}

uint64_t zb_check_n_waits(const struct zb_backend *be)
{
    struct ck_backend *ck = check_of(be);

    return ck == NULL ? 0 : read_count(ck, &ck->n_waits);
}

uint64_t zb_check_n_launches(const struct zb_backend *be)
{
    struct ck_backend *ck = check_of(be);

    return ck == NULL ? 0 : read_count(ck, &ck->n_launches);
}

int zb_check_faults_hit(const struct zb_backend *be)
{
    struct ck_backend *ck = check_of(be);

    return ck == NULL ? 0 : (int)read_count(ck, &ck->n_hit);
}

static void set_fault(struct ck_backend *be, struct ck_fault *fault,
                      const struct zb_check_target *target)
{
    pthread_mutex_lock(&be->mu);
    fault->target = *target;
    fault->n_seen = 0;
    pthread_mutex_unlock(&be->mu);
}

void zb_check_drop_wait(struct zb_backend *be,
                        const struct zb_check_target *target)
{
    struct ck_backend *ck = check_of(be);

    if (ck != NULL) {
        set_fault(ck, &ck->drop_wait, target);
    }
}

void zb_check_fail_launch(struct zb_backend *be,
                          const struct zb_check_target *target)
{
    struct ck_backend *ck = check_of(be);

    if (ck != NULL) {
        set_fault(ck, &ck->fail_launch, target);
    }
}
