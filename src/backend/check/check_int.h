/* SPDX-License-Identifier: MIT
 *
 * Inside of the check backend. Parts, lowest first: check_map.c (intervals of
 * addresses), check_shadow.c (who touched them, and the rules), check_report.c
 * (reports, names, faults), check_exec.c (the threads of streams),
 * check_stream.c (streams, events, operations), check_backend.c (devices,
 * memory, the table).
 *
 * Locks: ck_backend.mu guards clocks, shadow memory, names, reports and faults
 * and is held for a call's bookkeeping only. ck_device.run is held round every
 * call of the inner backend for that device. Neither is taken while the other
 * is held. Queues have one producer (the owner of the device) and one consumer
 * (the stream's thread) and no lock.
 */
#ifndef ZB_CHECK_INT_H
#define ZB_CHECK_INT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend_int.h"
#include "zb/backend.h"
#include "zb/check.h"
#include "zb/thread.h"

/* ---- clocks ------------------------------------------------------------- */

/* at[s]: how many operations of stream slot s happened before. */
struct ck_clock {
    uint64_t at[ZB_CHECK_MAX_STREAMS];
};

/* Who did it. `slot` is -1 for nobody; the strings are interned names. */
struct ck_mark {
    int slot;
    int device;
    uint64_t epoch;
    const char *label, *node, *stream;
};

/* ---- intervals ---------------------------------------------------------- */

enum ck_state { CK_FRESH, CK_DISCARDED, CK_WRITTEN, CK_FREED };

/* One mem_alloc(). Kept until close: tombstones name it. */
struct ck_alloc {
    struct ck_alloc *next;
    struct ck_device *dev;
    void *ptr; /* as the inner backend gave it */
    uintptr_t start, end;
    const char *what;
    int is_live;
    int is_quarantined; /* freed by the program, not yet by us */
};

struct ck_read {
    struct ck_read *next;
    struct ck_mark mark;
};

#define CK_LEVELS 14

/* [start, end) has had the same history throughout. */
struct ck_seg {
    uintptr_t start, end;
    struct ck_alloc *alloc; /* NULL: host memory */
    enum ck_state state;
    struct ck_mark write;  /* last writer, or who discarded it */
    struct ck_read *reads; /* since then; none happened before another */
    int n_levels;
    struct ck_seg *next[CK_LEVELS];
};

/* A skip list (Pugh 1990) of disjoint segments in address order. */
struct ck_map {
    struct ck_seg head;
    size_t n_segs;
    uint64_t rng;
    struct ck_seg *free_segs;
    struct ck_read *free_reads;
    struct ck_block *blocks; /* where segments and reads come from */
};

void zb_ck_map_init(struct ck_map *map);
void zb_ck_map_release(struct ck_map *map);

/* The first segment that ends after addr, or NULL. */
struct ck_seg *zb_ck_map_find(struct ck_map *map, uintptr_t addr);

/* A new segment without writer or readers in [start, end), which must be free.
 * NULL (text recorded) without memory. */
struct ck_seg *zb_ck_map_insert(struct ck_map *map, uintptr_t start,
                                uintptr_t end);

/* Make addr a border if it lies inside a segment. */
enum zb_status zb_ck_map_split(struct ck_map *map, uintptr_t addr) ZB_CHECKED;

/* Remove all segments that start in [from, to); split first. */
void zb_ck_map_cut(struct ck_map *map, uintptr_t from, uintptr_t to);

/* Join neighbours with the same history in [from, to], borders included. */
void zb_ck_map_merge(struct ck_map *map, uintptr_t from, uintptr_t to);

enum zb_status zb_ck_read_add(struct ck_map *map, struct ck_seg *seg,
                              const struct ck_mark *mark) ZB_CHECKED;
void zb_ck_read_drop(struct ck_map *map, struct ck_read **link);

/* ---- shadow memory (all under mu) --------------------------------------- */

/* An operation that touches memory: who, and what happened before it. */
struct ck_op {
    struct ck_mark me;
    const struct ck_clock *clock;
    int has_reported; /* one report for each operation is enough */
};

struct ck_backend;

/* Check and note one access. Findings become reports; the only error is
 * ZB_ENOMEM. An access with a finding other than a race is not noted. */
enum zb_status zb_ck_touch(struct ck_backend *be, struct ck_op *op,
                           const void *ptr, size_t bytes,
                           enum zb_access_mode mode) ZB_CHECKED;
enum zb_status zb_ck_discard(struct ck_backend *be, struct ck_op *op,
                             const void *ptr, size_t bytes) ZB_CHECKED;

/* The same for host memory, which comes into being when it is touched. With
 * me.slot -1 (the host itself) it is only checked. */
enum zb_status zb_ck_touch_host(struct ck_backend *be, struct ck_op *op,
                                const void *ptr, size_t bytes,
                                enum zb_access_mode mode) ZB_CHECKED;

/* Whether a stream is to write part of that host memory first: what it holds now
 * says nothing. */
int zb_ck_is_host_pending(struct ck_backend *be, const void *ptr, size_t bytes);

enum zb_status zb_ck_alloc_add(struct ck_backend *be, struct ck_device *dev,
                               void *ptr, size_t bytes,
                               const char *what) ZB_CHECKED;
/* The live allocation that starts at ptr, or NULL. */
struct ck_alloc *zb_ck_alloc_find(struct ck_backend *be, const void *ptr);
/* Check that nothing is in flight on it and leave a tombstone. */
void zb_ck_alloc_bury(struct ck_backend *be, struct ck_alloc *alloc);

/* ---- streams ------------------------------------------------------------ */

enum ck_op_kind { CK_LAUNCH, CK_WAIT, CK_COPY_IN, CK_COPY_OUT, CK_DISCARD };

union ck_params {
#define ZB_X(name) struct zb_k_##name name;
    ZB_KERNEL_MAP(ZB_X)
#undef ZB_X
};

/* One entry of a queue. */
struct ck_entry {
    enum ck_op_kind kind;
    int must_fail; /* a seeded fault */
    struct ck_mark me;
    struct zb_launch launch; /* params points to `params` */
    union ck_params params;
    struct ck_stream *wait_for; /* CK_WAIT: its first wait_n entries */
    uint64_t wait_n;
    void *dst;
    const void *src;
    size_t bytes;
    /* CK_COPY_IN: of the source when it was enqueued, if it was there. */
    int has_checksum;
    uint64_t checksum;
};

#define CK_QUEUE_LEN 256

/* A slot for a stream. Never freed before close and used again after
 * stream_free(), so that a pointer to it always points to a stream and its
 * counts only ever grow. */
struct ck_stream {
    struct ck_backend *be; /* constant */
    int slot;              /* constant: component of the clocks */
    struct ck_device *dev; /* owner of the device, while not live: nobody */
    struct zb_stream *inner;
    const char *name;          /* interned */
    const char *node;          /* interned; owner */
    int is_live;               /* under mu */
    struct ck_clock clock;     /* under mu */
    uint64_t epoch;            /* under mu */
    struct ck_entry *queue;    /* CK_QUEUE_LEN; see the two counts */
    _Atomic uint64_t n_pushed; /* owner stores, release */
    _Atomic uint64_t n_done;   /* thread stores, release */
    struct zb_signal pushed, done;
    _Atomic int must_stop;
    struct zb_thread thread;
    uint64_t rng; /* thread; of the delays */
};

struct ck_event {
    struct ck_event *next;    /* kept until close */
    struct ck_device *dev;    /* constant */
    int is_live;              /* this and the rest under mu */
    struct ck_stream *stream; /* last record: NULL if there was none */
    uint64_t n;               /* the first n entries of the stream */
    struct ck_clock clock;
};

enum zb_status zb_ck_stream_new(struct zb_device *dev, const char *name,
                                struct zb_stream **stream_out);
void zb_ck_stream_free(struct zb_stream *stream);
/* Let the thread finish its queue and end; owner, or nobody else left. */
void zb_ck_stream_stop(struct ck_stream *s);
enum zb_status zb_ck_event_new(struct zb_device *dev,
                               struct zb_event **event_out);
void zb_ck_event_free(struct zb_event *event);
enum zb_status zb_ck_event_record(struct zb_event *event,
                                  struct zb_stream *stream);
enum zb_status zb_ck_stream_wait(struct zb_stream *stream,
                                 struct zb_event *event);
enum zb_status zb_ck_event_sync(struct zb_event *event);
enum zb_status zb_ck_stream_sync(struct zb_stream *stream);
enum zb_status zb_ck_launch(struct zb_stream *stream,
                            const struct zb_launch *launch);
enum zb_status zb_ck_copy_in(struct zb_stream *stream, void *dst,
                             const void *host_src, size_t bytes,
                             const char *label);
enum zb_status zb_ck_copy_out(struct zb_stream *stream, void *host_dst,
                              const void *src, size_t bytes, const char *label);
void zb_ck_stream_mark(struct zb_stream *stream, const char *node);
enum zb_status zb_ck_op_discard(struct zb_stream *stream, void *ptr,
                                size_t bytes);

/* The thread of a stream (check_exec.c). */
void zb_ck_stream_main(void *arg);
/* Wait until the first n entries of the stream are done. Any thread. */
void zb_ck_wait_done(struct ck_stream *s, uint64_t n);
uint64_t zb_ck_checksum(const void *ptr, size_t bytes);

/* The delays of a stream, in microseconds, 0 for seven in eight: a sequence of
 * its own for each seed, device and number of the stream on its device. */
uint64_t zb_ck_seed(uint64_t seed, int device, int number);
int64_t zb_ck_draw_delay_us(uint64_t *rng, int max_delay_us);

/* ---- devices and the backend -------------------------------------------- */

/* A host thread that owns devices, and what it has waited for. Under mu. */
struct ck_host {
    pthread_t id;
    int n_devices; /* 0: entry not in use */
    struct ck_clock clock;
};

struct ck_device {
    struct ck_backend *be; /* constant, like index and inner */
    int index;
    struct zb_device *inner;
    pthread_t owner; /* constant once open */
    struct ck_host *host;
    int is_open;            /* under mu */
    int n_streams;          /* under mu: opened so far, numbers them */
    int n_live;             /* under mu: streams, events, allocations */
    pthread_mutex_t run;    /* round calls of the inner backend */
    int is_told;            /* owner: a caller has got error_text */
    _Atomic int has_failed; /* release after error_text */
    char error_text[1000];  /* written once, by a stream's thread, in run */
};

#define CK_REPORT_TEXT 1000

struct ck_fault {
    struct zb_check_target target;
    uint64_t n_seen;
};

struct ck_backend {
    struct zb_backend base;
    const struct zb_backend_ops *iops; /* the inner backend */
    struct zb_backend *inner;
    struct zb_backend_opts opts;
    struct ck_device *devices; /* base.n_devices of them */
    struct ck_host *hosts;     /* as many */
    _Atomic int is_closing;
    _Atomic int has_report; /* release after report[0] */
    pthread_mutex_t mu;     /* guards the rest */
    struct ck_stream *slots[ZB_CHECK_MAX_STREAMS];
    int n_slots;
    struct ck_clock waited_for; /* what any host has waited for */
    struct ck_clock scratch;
    struct ck_map device_map, host_map;
    size_t n_host_kept; /* host segments after the last sweep */
    struct ck_alloc *allocs;
    struct ck_event *events;
    struct ck_name **names; /* hash table of interned strings */
    size_t n_names, cap_names;
    uint64_t n_reports;
    int is_first_told; /* report[0] was returned to a caller */
    char report[ZB_CHECK_MAX_REPORTS][CK_REPORT_TEXT];
    struct ck_fault drop_wait, fail_launch;
    uint64_t n_hit, n_waits, n_launches;
};

static inline void zb_ck_join(const struct ck_backend *be, struct ck_clock *to,
                              const struct ck_clock *from)
{
    for (int i = 0; i < be->n_slots; i++) {
        if (to->at[i] < from->at[i]) {
            to->at[i] = from->at[i];
        }
    }
}

static inline int zb_ck_is_before(const struct ck_mark *m,
                                  const struct ck_clock *clock)
{
    return m->slot < 0 || m->epoch <= clock->at[m->slot];
}

/* ---- reports, names, faults --------------------------------------------- */

/* Under mu. */
void zb_ck_report(struct ck_backend *be, const char *fmt, ...) ZB_PRINTF(2, 3);
/* Not under mu. ZB_EDEVICE with the first report's text, if there is one. */
enum zb_status zb_ck_state(struct ck_backend *be) ZB_CHECKED;
/* Log what no caller was told. */
void zb_ck_log_reports(struct ck_backend *be);

/* The calling thread must own dev (else: a report, ZB_EDEVICE). Not under mu.
 */
enum zb_status zb_ck_owner(struct ck_device *dev, const char *call) ZB_CHECKED;

/* "label" (node "..", stream ".." of device 1), into buf. */
const char *zb_ck_mark_text(const struct ck_mark *m, char *buf, size_t size);

/* The backend's copy of a string, valid until close; equal strings are equal
 * pointers. Under mu. NULL only without memory. */
const char *zb_ck_intern(struct ck_backend *be, const char *s);
void zb_ck_names_release(struct ck_backend *be);

/* Count a call for a fault; 1 if it is the one. Under mu. */
int zb_ck_fault_hits(struct ck_backend *be, struct ck_fault *f, int device,
                     const char *node);

#endif
