/* SPDX-License-Identifier: MIT
 *
 * Copies and kernels: what they touch, and their way into a stream's queue.
 */
#include "fakecuda/fake_int.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "fake_launch.h"

namespace fake
{

static const char *verb(int mode)
{
    return mode & WRITE ? "writes" : "reads";
}

/* ---- the rules ----------------------------------------------------------- */

/* The live allocation that holds all of the range, or NULL and a report. */
static allocation *look_up(const touch &me, const range &r)
{
    allocation *a = find_allocation(r.lo);

    if (a == nullptr || r.hi > a->start + a->size) {
        report("stray: %s %s %zu bytes from %#zx, which are %s",
               me.what->c_str(), verb(r.mode), (size_t)(r.hi - r.lo),
               (size_t)r.lo,
               a == nullptr ? "no device memory"
                            : name_range(*a, r.lo, r.hi).c_str());
        return nullptr;
    }
    if (!a->is_live) {
        report("freed: %s %s %s", me.what->c_str(), verb(r.mode),
               name_range(*a, r.lo, r.hi).c_str());
        return nullptr;
    }
    return a;
}

bool access_device(CUstream_st *s, const touch &me, const range &r,
                   bool can_cross)
{
    allocation *a;
    finding f;

    if (r.lo >= r.hi) {
        return true;
    }
    a = look_up(me, r);
    if (a == nullptr) {
        return false;
    }
    if (a->gpu != s->gpu && !can_cross &&
        !the().gpus[(size_t)s->gpu].has_access[a->gpu]) {
        report("device: %s %s %s without peer access", me.what->c_str(),
               verb(r.mode), name_range(*a, r.lo, r.hi).c_str());
        return false;
    }
    trace(me, r, s->clock);
    f = a->seen.access(r.lo, r.hi, r.mode, me, s->clock);
    if (f.is_unwritten) {
        report("unwritten: %s reads %s; nothing has written byte %zu",
               me.what->c_str(), name_range(*a, r.lo, r.hi).c_str(),
               (size_t)(f.unwritten_at - a->start));
    }
    if (f.other.slot >= 0) {
        report("race: %s %s %s; nothing orders it after %s, which is there "
               "from byte %zu on",
               me.what->c_str(), verb(r.mode),
               name_range(*a, r.lo, r.hi).c_str(), f.other.what->c_str(),
               (size_t)(f.at - a->start));
    }
    return f.other.slot < 0;
}

bool access_host(CUstream_st *s, const touch &me, const range &r)
{
    state &all = the();
    clock_of before = s->clock;
    touch other;

    join(before, all.waited_for);
    trace(me, r, before);
    other = all.host_seen.access(r.lo, r.hi, r.mode, me, before).other;
    if (other.slot >= 0) {
        report("host: %s %s %zu bytes of host memory that %s uses, which "
               "nobody has waited for",
               me.what->c_str(), verb(r.mode), (size_t)(r.hi - r.lo),
               other.what->c_str());
    }
    if (all.host_seen.size() > 2 * all.n_host_kept + 64) {
        all.host_seen.sweep(all.waited_for);
        all.n_host_kept = all.host_seen.size();
    }
    return other.slot < 0;
}

char *bytes_at(work &w, uintptr_t addr)
{
    allocation *a = find_allocation(addr);

    w.held.push_back(a->held);
    return a->held->bytes + (addr - a->start);
}

bool is_declared(const CUstream_st *s, uintptr_t lo, uintptr_t hi, int mode)
{
    uintptr_t at = lo, was;

    do {
        was = at;
        for (const range &r : s->touches) {
            if (r.lo <= at && at < r.hi && (r.mode & mode) == mode) {
                at = r.hi;
            }
        }
    } while (at < hi && at != was);
    return at >= hi;
}

/* ---- copies -------------------------------------------------------------- */

static bool is_right_kind(bool to_device, bool from_device,
                          enum cudaMemcpyKind kind)
{
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
        return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
        return to_device && from_device;
    case cudaMemcpyHostToHost:
        return !to_device && !from_device;
    default:
        return true;
    }
}

/* One end of a copy; NULL: it can not be used. */
static char *end_of(CUstream_st *s, const touch &me, work &w, const void *ptr,
                    size_t size, int mode)
{
    range r = {(uintptr_t)ptr, (uintptr_t)ptr + size, mode};

    if (!is_in_window(r.lo)) {
        return access_host(s, me, r) ? (char *)r.lo : nullptr;
    }
    return access_device(s, me, r, true) ? bytes_at(w, r.lo) : nullptr;
}

/* FNV-1a, of words. */
static uint64_t checksum(const char *bytes, size_t size)
{
    uint64_t h = 14695981039346656037u, word = 0;

    for (size_t i = 0; i < size; i += sizeof(word)) {
        word = 0;
        std::memcpy(&word, bytes + i, std::min(sizeof(word), size - i));
        h = (h ^ word) * 1099511628211u;
    }
    return h;
}

/* Whether a stream is to write the range first: what it holds now says nothing.
 */
static bool is_filled_by_stream(uintptr_t lo, uintptr_t hi)
{
    return the().host_seen.pending(lo, hi, READ, the().waited_for).slot >= 0;
}

/* By a stream's thread: the source must be as it was when the copy began. */
static void copy_from_host(char *to, const char *from, size_t size,
                           uint64_t sum, const std::string *what)
{
    std::memcpy(to, from, size);
    if (checksum(to, size) != sum) {
        std::unique_lock<std::mutex> lock(the().mu);

        report("host: the source of %s (%zu bytes) changed before it was done",
               what->c_str(), size);
    }
}

/* Of memory: -1 is the host. */
static int gpu_of(const void *ptr)
{
    return is_in_window((uintptr_t)ptr) ? find_allocation((uintptr_t)ptr)->gpu
                                        : -1;
}

/* Between two GPUs: by itself where one may access the other, else by the
 * driver, over host memory. */
static std::function<void()> copy_between(int from_gpu, int to_gpu, char *to,
                                          const char *from, size_t size)
{
    const gpu *g =
        from_gpu >= 0 && to_gpu >= 0 ? &the().gpus[(size_t)from_gpu] : nullptr;
    bool is_direct =
        g != nullptr && (g->has_access[to_gpu] ||
                         the().gpus[(size_t)to_gpu].has_access[from_gpu]);

    if (is_direct && g->is_stuck[to_gpu]) {
        return [was = the().unstuck.load()] {
            while (the().unstuck.load() == was) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
        };
    }
    if (is_direct && g->is_corrupt[to_gpu]) {
        return [to, from, size] {
            std::memmove(to, from, size);
            to[size / 2] = (char)(to[size / 2] ^ 0x40);
        };
    }
    return [to, from, size] { std::memmove(to, from, size); };
}

static void enqueue_copy(CUstream_st *s, void *dst, const void *src,
                         size_t size, const char *name)
{
    if (hold_back(s, name,
                  [=] { enqueue_copy(s, dst, src, size, name); })) {
        return;
    }
    touch me = begin_work(s, name);
    uintptr_t at = (uintptr_t)src;
    bool is_from_host =
        !is_in_window(at) && !is_filled_by_stream(at, at + size);
    work w;
    char *from = end_of(s, me, w, src, size, READ);
    char *to = end_of(s, me, w, dst, size, WRITE);
    uint64_t sum;

    if (from == nullptr || to == nullptr) {
        return;
    }
    w.what = me.what;
    if (is_from_host) {
        sum = checksum(from, size);
        w.run = [to, from, size, sum, what = me.what] {
            copy_from_host(to, from, size, sum, what);
        };
    } else {
        w.run = copy_between(gpu_of(src), gpu_of(dst), to, from, size);
    }
    push(s, std::move(w));
    let_go(s);
}

static cudaError_t copy(call &c, void *dst, const void *src, size_t size,
                        enum cudaMemcpyKind kind, cudaStream_t stream)
{
    CUstream_st *s = use_stream(stream, c.name);
    bool to_device = is_in_window((uintptr_t)dst);
    bool from_device = is_in_window((uintptr_t)src);

    if (s == nullptr || c.fault != cudaSuccess || refuses_capture(s, c.name)) {
        return c.end(cudaErrorInvalidResourceHandle);
    }
    if (dst == nullptr || src == nullptr ||
        !is_right_kind(to_device, from_device, kind)) {
        report("misuse: %s from %s to %s memory says that it is another kind",
               c.name, from_device ? "device" : "host",
               to_device ? "device" : "host");
        return c.end(cudaErrorInvalidValue);
    }
    if (size > 0) {
        enqueue_copy(s, dst, src, size,
                     !from_device ? "copy to the device"
                     : to_device  ? "copy in the device"
                                  : "copy from the device");
    }
    return c.end(cudaSuccess);
}

static void enqueue_set(CUstream_st *s, const char *name, void *dst, int value,
                        size_t size, int mode)
{
    const std::string *last = s->last;
    clock_of earlier = s->earlier;
    touch me = begin_work(s, name);
    range r = {(uintptr_t)dst, (uintptr_t)dst + size, mode};
    work w;

    if (mode & EMPTY) { /* no operation of the program's */
        s->last = last;
        s->earlier = earlier;
    }

    if (size > 0 && access_device(s, me, r, true)) {
        char *at = bytes_at(w, r.lo);

        w.what = me.what;
        w.run = [at, value, size] { std::memset(at, value, size); };
        push(s, std::move(w));
    }
}

/* ---- kernels ------------------------------------------------------------- */

/* Replace a device address by that of the bytes. */
static bool translate(const CUstream_st *s, const touch &me, work &w,
                      uintptr_t *word)
{
    allocation *a = look_up(me, {*word, *word, READ});
    bool is_said = false;

    if (a == nullptr) {
        return false;
    }
    for (const range &r : s->touches) {
        is_said = is_said || (*word >= r.lo && *word <= r.hi);
    }
    /* It stays where nothing can be touched. */
    if (is_said || !s->has_touches) {
        *word = (uintptr_t)bytes_at(w, *word);
    }
    return true;
}

static bool translate_all(const CUstream_st *s, const touch &me, work &w,
                          const fake_arg *arg)
{
    bool ok = true;

    for (size_t i = 0; i + sizeof(uintptr_t) <= arg->size;
         i += sizeof(uintptr_t)) {
        char *at = (char *)arg->bytes + i;
        uintptr_t word;

        std::memcpy(&word, at, sizeof(word));
        if (is_address(word)) {
            ok = translate(s, me, w, &word) && ok;
            std::memcpy(at, &word, sizeof(word));
        }
    }
    return ok;
}

operation declared(const CUstream_st *s, const std::string &name)
{
    operation op;

    op.name = s->label + ": " + name;
    op.touches = s->touches;
    op.is_declared = s->has_touches;
    return op;
}

static operation kernel_of(const CUstream_st *s, const char *name,
                           const fake_arg *args, size_t n_args,
                           std::function<void()> &&run)
{
    operation op = declared(s, std::string("kernel ") + name);
    touch me = name_of_work(op);
    work w;

    for (size_t i = 0; i < n_args; i++) {
        op.is_good = translate_all(s, me, w, &args[i]) && op.is_good;
    }
    op.held = std::move(w.held);
    op.run = std::move(run);
    return op;
}

} // namespace fake

using namespace fake;

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t size,
                            enum cudaMemcpyKind kind, cudaStream_t stream)
{
    call c("cudaMemcpyAsync");

    return copy(c, dst, src, size, kind, stream);
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src,
                                int src_device, size_t size,
                                cudaStream_t stream)
{
    call c("cudaMemcpyPeerAsync");
    const allocation *to = find_allocation((uintptr_t)dst);
    const allocation *from = find_allocation((uintptr_t)src);

    if (to != nullptr && from != nullptr &&
        (to->gpu != dst_device || from->gpu != src_device)) {
        report("device: cudaMemcpyPeerAsync from GPU %d to %d, but the "
               "memory is of %d and %d",
               src_device, dst_device, from->gpu, to->gpu);
        return c.end(cudaErrorInvalidValue);
    }
    return copy(c, dst, src, size, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t size,
                            cudaStream_t stream)
{
    call c("cudaMemsetAsync");
    CUstream_st *s = use_stream(stream, c.name);

    if (s == nullptr || c.fault != cudaSuccess || refuses_capture(s, c.name)) {
        return c.end(cudaErrorInvalidResourceHandle);
    }
    enqueue_set(s, "set the device's memory", dst, value, size, WRITE);
    return c.end(cudaSuccess);
}

void fake_cuda_discard(cudaStream_t stream, void *ptr, size_t bytes)
{
    std::unique_lock<std::mutex> lock(the().mu);
    CUstream_st *s = use_stream(stream, "fake_cuda_discard");

    if (s != nullptr && !refuses_capture(s, "a discard")) {
        enqueue_set(s, "discard", ptr, 0xff, bytes, WRITE | EMPTY);
    }
}

void fake_cuda_touches(cudaStream_t stream, const struct zb_launch *launch)
{
    {
        std::unique_lock<std::mutex> lock(the().mu);
        CUstream_st *s = use_stream(stream, "fake_cuda_touches");

        if (s == nullptr) {
            return;
        }
        s->has_touches = true;
        s->label = launch->label != nullptr ? launch->label : "";
        s->touches.clear();
    }
    for (int i = 0; i < launch->n_access; i++) {
        const struct zb_access *a = &launch->access[i];

        fake_cuda_touches_also(stream, a->ptr, a->bytes, a->mode);
    }
}

void fake_cuda_touches_also(cudaStream_t stream, const void *ptr, size_t bytes,
                            enum zb_access_mode mode)
{
    std::unique_lock<std::mutex> lock(the().mu);
    CUstream_st *s = use_stream(stream, "fake_cuda_touches_also");
    uintptr_t lo = (uintptr_t)ptr;

    if (s != nullptr && ptr != nullptr) {
        s->touches.push_back({lo, lo + bytes, (int)mode});
    }
}

cudaError_t fake_cuda_launch(const char *name, unsigned grid,
                             cudaStream_t stream, const fake_arg *args,
                             size_t n_args, std::function<void()> run)
{
    call c("kernel");
    CUstream_st *s = use_stream(stream, name);
    const volatile char *read = nullptr;
    operation op;

    if (s == nullptr || c.fault != cudaSuccess) {
        return c.end(cudaErrorInvalidResourceHandle);
    }
    if (grid == 0) {
        return c.end(cudaErrorInvalidConfiguration);
    }
    op = kernel_of(s, name, args, n_args, std::move(run));
    if (!op.touches.empty() && hits(FAKE_HOST_READ, op.name)) {
        read = (const volatile char *)op.touches[0].lo;
    }
    submit(s, std::move(op));
    if (read != nullptr) {
        c.lock.unlock();
        (void)*read; /* the end of the process */
        c.lock.lock();
    }
    return c.end(cudaSuccess);
}
