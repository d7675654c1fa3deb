/* SPDX-License-Identifier: MIT
 *
 * Devices: memory, streams, events, and the launch of kernels.
 *
 * A backend is a table of functions; an opened backend is what the devices of
 * one run share. Every call that works on a stream only enqueues: the work may
 * happen at once (cpu) or later (cuda, check), and nothing may rely on either.
 * Work on one stream happens in order; between streams, and between a stream
 * and the host, only events order anything.
 *
 *     ZB_TRY(zb_backend_open("cpu", &opts, &be));            // before start
 *     ZB_TRY(be->ops->device_open(be, 0, &dev));             // worker
 *     ZB_TRY(be->ops->mem_alloc(dev, n, "arena", &ptr));
 *     ZB_TRY(be->ops->launch(stream, &launch));
 *     ZB_TRY(be->ops->event_record(ev, stream));
 *     ZB_TRY(be->ops->event_sync(ev));                       // host waits
 *
 * Threads: a device, its streams, events and memory belong to the worker that
 * opened it; only that thread calls functions on them. Two things cross: an
 * event may be waited for by streams of other devices, and kernels may read or
 * write memory of another device of the same opened backend where
 * find_reach() says that they reach it.
 */
#ifndef ZB_BACKEND_H
#define ZB_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "zb/kernel.h"
#include "zb/status.h"
#include "zb/tensor.h"

struct zb_affinity; /* how threads are bound */
struct zb_backend;
struct zb_device;
struct zb_stream;
struct zb_event;

struct zb_backend_opts {
    int n_devices;          /* devices the run will open, numbered from 0 */
    int threads_per_device; /* cpu: OpenMP team of each device; >= 1 */
    uint64_t seed;          /* check: seed of the random delays */
    int max_delay_us;       /* check: longest random delay of an operation */
    /* cuda: [n_devices], the GPU of each; several may be on one. NULL: 0, 1,
     * ... */
    const int *gpus;
};

enum zb_access_mode { ZB_READ = 1, ZB_WRITE = 2, ZB_READ_WRITE = 3 };

/* One range of memory that a launch touches. */
struct zb_access {
    const void *ptr;
    size_t bytes;
    enum zb_access_mode mode;
};

/* What was enqueued on a stream since it was made. */
struct zb_stream_stats {
    const char *name;  /* as stream_new() was told, for the stream's life */
    uint64_t kernels;  /* launches; one of ours may be several of a device */
    uint64_t products; /* of a library */
    uint64_t copies;
    uint64_t graphs; /* pieces of work that were replayed; what they hold is not
                        counted above */
};

#define ZB_MAX_ACCESS 20

/* One kernel with its parameters. `params` points to the struct that
 * zb/kernel.h names for `kernel`; it is copied before the call returns.
 * `label` names the operation in reports and must outlive the stream.
 * `access` lists every range of device memory the kernel touches. */
struct zb_launch {
    enum zb_kernel kernel;
    const char *label;
    const void *params;
    int n_access;
    struct zb_access access[ZB_MAX_ACCESS];
};

/* Add a range of n elements to what a launch touches; none when ptr is NULL. */
void zb_launch_elems(struct zb_launch *launch, enum zb_dtype dtype,
                     const void *ptr, int64_t n, enum zb_access_mode mode);
void zb_launch_reals(struct zb_launch *launch, const zb_real *ptr, int64_t n,
                     enum zb_access_mode mode);

/* ---- links ---------------------------------------------------------------- */

/* A link carries messages one way between two devices of a run: the sender's
 * stream and the receiver's each have an operation for a message, which keeps it
 * until the other's has its turn. Neither device reads the other's memory.
 *
 *     ZB_TRY(links->id(be, &id));                           // host, once
 *     ZB_TRY(links->open(stream, &id, ZB_SENDER, ab, &l));  // each end's worker
 *     ZB_TRY(links->join(l));         // both were opened; then all meet
 *     ZB_TRY(links->warm_up(l));      // all links in one order; then all meet
 *     ZB_TRY(links->send(l, part, n)) // ... and the other end's recv()
 *     links->close(l);
 *
 * Threads: an end belongs to the thread that opened it. error() and abort() may
 * be another's; the caller sees to it that only one at a time is inside. */
struct zb_link;
struct zb_abort;

enum zb_link_end { ZB_SENDER, ZB_RECEIVER };

/* Names a link to both of its ends. */
struct zb_link_id {
    char bytes[128];
};

/* A range of device memory; both ends name as many, of the same sizes. Those of
 * 0 bytes are left out. */
struct zb_link_part {
    void *ptr;
    size_t bytes;
};

/* What a member of a group sends to each of the others and receives from each:
 * [members], by rank; its own are left alone. What is received is of the size
 * that the other sends. */
struct zb_exchange {
    const struct zb_link_part *send, *recv;
    const char *label; /* names the operation in reports; outlives the stream */
    uint64_t number;   /* of the group's exchanges; the same on all members */
};

struct zb_link_ops {
    /* What carries them: "NCCL 2.28.9". */
    void (*describe)(char *text, size_t size);

    enum zb_status (*id)(struct zb_backend *be, struct zb_link_id *id_out);

    /* One end: begin to look for the other. Messages are in the order of
     * `stream`, which must outlive the link, as `ab` must: what waits gives
     * ZB_EABORT when that is raised. */
    enum zb_status (*open)(struct zb_stream *stream,
                           const struct zb_link_id *id, enum zb_link_end end,
                           const struct zb_abort *ab,
                           struct zb_link **link_out);
    /* Wait until both ends are there. */
    enum zb_status (*join)(struct zb_link *link);
    /* A first small message, whose end the host waits for: whatever a link needs
     * is allocated after it. Each thread goes through its links in one order
     * that all share. */
    enum zb_status (*warm_up)(struct zb_link *link);

    /* Enqueue a message, as the end's side; ZB_EABORT after abort(). A device's
     * messages must come in an order in which devices that do one after the
     * other would not wait for each other for ever. */
    enum zb_status (*send)(struct zb_link *link,
                           const struct zb_link_part *part, int n);
    enum zb_status (*recv)(struct zb_link *link,
                           const struct zb_link_part *part, int n);

    /* A link among n members, n >= 2, that each opens with its own rank: as
     * open(), but exchange() takes the place of send() and recv(). `stream` is
     * that of warm_up(). */
    enum zb_status (*open_group)(struct zb_stream *stream,
                                 const struct zb_link_id *id, int n, int rank,
                                 const struct zb_abort *ab,
                                 struct zb_link **link_out);
    /* Enqueue a member's side of an exchange on a stream of its device. All
     * members do the same ones in the same order; what is said of the order of
     * messages holds for exchanges, too. */
    enum zb_status (*exchange)(struct zb_link *link, struct zb_stream *stream,
                               const struct zb_exchange *x);

    /* ZB_EDEVICE when the link has failed since, without waiting. */
    enum zb_status (*error)(struct zb_link *link);
    /* Messages of these ends keep no stream any more, nothing is sent. All links
     * that are under way belong in one call: there may be ends of several
     * devices. */
    void (*abort)(struct zb_link *const *link, int n);
    /* Both ends do so, when their messages are done, unless the run was
     * aborted. NULL is legal. */
    void (*close)(struct zb_link *link);
};

/* How two devices of a run reach each other's memory. */
enum zb_reach {
    ZB_REACH_SHARED, /* it is one memory */
    ZB_REACH_PEER,   /* kernels and copies of each reach the other's */
    ZB_REACH_NONE    /* only host memory is between them: that of host_alloc() is
                       read by kernels of both */
};

/* Two devices, and what find_reach() found out. */
struct zb_pair {
    int a, b;
    enum zb_reach reach;
    char why[160]; /* of ZB_REACH_NONE: "no peer access between GPUs 0 and 1" */
};

/* Why a GPU's clock is lower than it could be, from bit 0 on. */
#define ZB_THROTTLE_MAP(X)                                                     \
    X(IDLE, "idle")                                                            \
    X(SETTING, "clock_setting")                                                \
    X(POWER_CAP, "power_cap")                                                  \
    X(HW, "hw_slowdown")                                                       \
    X(SYNC, "sync_boost")                                                      \
    X(SW_THERMAL, "sw_thermal")                                                \
    X(HW_THERMAL, "hw_thermal")                                                \
    X(POWER_BRAKE, "power_brake")                                              \
    X(DISPLAY, "display_clock")

enum zb_throttle_bit {
#define ZB_X(NAME, text) ZB_THROTTLE_BIT_##NAME,
    ZB_THROTTLE_MAP(ZB_X)
#undef ZB_X
        ZB_N_THROTTLES
};

enum zb_throttle {
    ZB_THROTTLE_UNKNOWN = -1,
#define ZB_X(NAME, text) ZB_THROTTLE_##NAME = 1 << ZB_THROTTLE_BIT_##NAME,
    ZB_THROTTLE_MAP(ZB_X)
#undef ZB_X
        ZB_THROTTLE_END = 1 << ZB_N_THROTTLES
};

/* The name of bit i, NULL behind the last. */
const char *zb_throttle_str(int i);

/* A GPU at one moment, as its driver says; NaN for what it does not tell. */
struct zb_gpu_state {
    int gpu;           /* numbered as zb_backend_opts.gpus */
    double used_bytes; /* of its memory, by all programs */
    double power_w, sm_mhz, temperature_c;
    int throttle; /* of enum zb_throttle; ZB_THROTTLE_UNKNOWN */
};

struct zb_backend_ops {
    const char *name;
    const char *summary; /* one line for --version and --help */

    /* Open and close what the devices of a run share. Before the workers start
     * and after they ended. */
    enum zb_status (*open)(const struct zb_backend_opts *opts,
                           struct zb_backend **be_out);
    void (*close)(struct zb_backend *be);

    /* One line about the hardware that `opts` asks for, "" where the processor
     * says all: for the log, and for what is measured on it. Without an open
     * backend; what is not there is said so. With opts NULL: the libraries it
     * is built with. */
    void (*describe)(const struct zb_backend_opts *opts, char *text,
                     size_t size);

    /* Find out how the devices of n pairs reach each other: fill in `reach` and
     * `why`. Once, before devices are opened: nobody must use what is not
     * reached. May copy between them for some milliseconds, since asking is not
     * enough; with may_try 0 it does not, and only memory that is shared is
     * taken to be reached. */
    enum zb_status (*find_reach)(struct zb_backend *be, int may_try,
                                 struct zb_pair *pair, int n);

    /* The calling thread becomes the owner of device `index`. */
    enum zb_status (*device_open)(struct zb_backend *be, int index,
                                  struct zb_device **dev_out);
    void (*device_close)(struct zb_device *dev);

    /* Device memory, aligned to 64 bytes, contents undefined. `what` names it
     * in messages. Nothing may be in flight on it when it is freed. */
    enum zb_status (*mem_alloc)(struct zb_device *dev, size_t bytes,
                                const char *what, void **ptr_out);
    void (*mem_free)(struct zb_device *dev, void *ptr);

    /* Bytes that mem_alloc() has given and mem_free() has not taken back: now,
     * and the most there were at any time. */
    size_t (*mem_bytes)(const struct zb_device *dev);
    size_t (*mem_peak_bytes)(const struct zb_device *dev);

    /* Host memory that copies do not wait for: zeroed, aligned to 64 bytes. A
     * copy to or from other host memory may keep the caller until the stream
     * has got there. Any thread, while nothing is enqueued. */
    enum zb_status (*host_alloc)(struct zb_backend *be, size_t bytes,
                                 const char *what, void **ptr_out);
    void (*host_free)(struct zb_backend *be, void *ptr);

    enum zb_status (*stream_new)(struct zb_device *dev, const char *name,
                                 struct zb_stream **stream_out);
    /* Waits for the stream's work. */
    void (*stream_free)(struct zb_stream *stream);

    /* Bytes of device memory that a stream needs for itself to launch this
     * product, beside what other launches need (scratch_bytes): a function of
     * its sizes alone, which does not fall when they grow. Touches no device;
     * addresses in `p` mean nothing. */
    size_t (*product_bytes)(const struct zb_k_gemm *p);
    /* The stream has [ptr, +bytes) for that, at least scratch_bytes, from its
     * first launch on until it is freed; aligned to 64 bytes. Without, it
     * allocates what it needs when it first does. */
    void (*stream_lend)(struct zb_stream *stream, void *ptr, size_t bytes);

    /* An event stands for the work enqueued on a stream before its last
     * event_record(); before the first it counts as done. */
    enum zb_status (*event_new)(struct zb_device *dev,
                                struct zb_event **event_out);
    void (*event_free)(struct zb_event *event);
    enum zb_status (*event_record)(struct zb_event *event,
                                   struct zb_stream *stream);
    /* Later work of `stream` starts after the event; the event may belong to
     * another device. */
    enum zb_status (*stream_wait)(struct zb_stream *stream,
                                  struct zb_event *event);
    /* The host waits. Reports errors of asynchronous work. */
    enum zb_status (*event_sync)(struct zb_event *event);
    enum zb_status (*stream_sync)(struct zb_stream *stream);

    enum zb_status (*launch)(struct zb_stream *stream,
                             const struct zb_launch *launch);

    /* Work that recurs. Between begin and end there is nothing but launch(), on
     * this stream, and the `bytes` bytes at key say all of it: the same key
     * stands for the same kernels with the same params. *is_done_out of begin
     * 1: they were enqueued as they once were; the caller leaves them out, and
     * the end. Of the end 0: none was enqueued, and the caller launches them
     * once more, without begin and end; `st` is what launching gave. */
    enum zb_status (*replay_begin)(struct zb_stream *stream, const void *key,
                                   size_t bytes, int *is_done_out);
    enum zb_status (*replay_end)(struct zb_stream *stream, enum zb_status st,
                                 int *is_done_out);

    /* Copies. Host memory must stay valid, and for copy_in unchanged, until an
     * event recorded after the copy is done. */
    enum zb_status (*copy_in)(struct zb_stream *stream, void *dst,
                              const void *host_src, size_t bytes,
                              const char *label);
    enum zb_status (*copy_out)(struct zb_stream *stream, void *host_dst,
                               const void *src, size_t bytes,
                               const char *label);

    /* Copy from memory of the stream's device to that of another, or of itself.
     * Devices that do not reach each other may be slow here, or fail. */
    enum zb_status (*copy_peer)(struct zb_stream *stream,
                                const struct zb_device *to, void *dst,
                                const void *src, size_t bytes,
                                const char *label);

    /* The GPUs of the run, each once, into state[n_devices]; returns how many
     * there is something to tell of: 0 where devices are no GPUs. Takes up to
     * some ms, the first call up to seconds. One thread at a time, any. */
    int (*gpu_states)(struct zb_backend *be, struct zb_gpu_state *state);

    /* ---- for reports and checks: other backends do nothing here ---- */

    /* Work enqueued from now on belongs to this node ("stage 1 F chunk 0
     * mb 3"): for reports and traces. `node` must outlive the stream. */
    void (*stream_mark)(struct zb_stream *stream, const char *node);

    /* In stream order: the contents of [ptr, ptr+bytes) mean nothing any more;
     * reading them before writing is an error that `check` reports. */
    enum zb_status (*discard)(struct zb_stream *stream, void *ptr,
                              size_t bytes);

    /* The host is about to read or write host memory that copy_in or copy_out
     * may still touch: `check` reports it when no event_sync orders it. */
    enum zb_status (*host_access)(struct zb_device *dev, const void *ptr,
                                  size_t bytes, enum zb_access_mode mode);

    /* Stream i of the device, the one made last first; 0 past the end and where
     * nothing is counted. */
    int (*stream_stats)(const struct zb_device *dev, int i,
                        struct zb_stream_stats *stats_out);

    /* ---- for simulated devices: other backends do nothing here ---- */

    /* In stream order: take this long. May keep the calling thread until
     * then. */
    enum zb_status (*spend)(struct zb_stream *stream, int64_t ns);

    /* What event_record() has just said happens this much later: a message on
     * its way, while the stream goes on. */
    void (*event_delay)(struct zb_event *event, int64_t ns);

    /* 1: nothing is computed and no value means anything: what comes back from
     * the device is 0. Nodes take the time that spend() says. */
    int is_simulated;

    /* 1: a precision that is not said is bf16. */
    int prefers_bf16;

    /* 1: what is not from host_alloc() is copied slowly. */
    int has_host_memory;

    /* Bytes of device memory that a stream needs for itself to launch anything
     * but products; for copies alone, ZB_K_copy too, it needs none. 0: none for
     * anything. */
    size_t scratch_bytes;

    /* NULL: there are none. */
    const struct zb_link_ops *links;
};

/* Every backend's own struct begins with this. */
struct zb_backend {
    const struct zb_backend_ops *ops;
    int n_devices;
    struct zb_affinity *affinity; /* NULL: nothing is ever bound */
};

/* Find the backend called `name`, as zb_backend_open() does; touches no
 * device. */
enum zb_status zb_backend_find(const char *name,
                               const struct zb_backend_ops **ops_out)
    ZB_CHECKED;

/* Open the backend called `name` (auto, cpu, check, ...). "auto" is cuda where
 * it is built and a GPU is usable, else cpu. ZB_ECONFIG for an unknown name,
 * with the names there are; ZB_EUNSUPPORTED for one that was not built. */
enum zb_status zb_backend_open(const char *name,
                               const struct zb_backend_opts *opts,
                               struct zb_backend **be_out) ZB_CHECKED;
void zb_backend_close(struct zb_backend *be);

/* Where the thread of a device is bound once it has opened it: "bound to CPUs
 * 0-7, memory node 0", or why it is not; "" where it never is. */
void zb_backend_binding(const struct zb_backend *be, int index, char *text,
                        size_t size);

/* The table of built backends: NULL past the end. No function is ever NULL. */
const struct zb_backend_ops *zb_backend_at(size_t i);

#endif
