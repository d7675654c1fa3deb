/* SPDX-License-Identifier: MIT
 *
 * Streams, each with a thread of its own, and events.
 */
#include "fakecuda/fake_int.h"

#include <chrono>

namespace fake
{

/* ---- the thread of a stream ---------------------------------------------- */

void mark::set()
{
    {
        std::lock_guard<std::mutex> lock(mu);
        done.store(true, std::memory_order_release);
    }
    cv.notify_all();
}

void mark::wait()
{
    std::unique_lock<std::mutex> lock(mu);

    cv.wait(lock, [this] { return is_set(); });
}

/* Splitmix64. */
static uint64_t draw(uint64_t &state)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* One operation in eight is late. */
static void delay(uint64_t &rng, int max_us)
{
    uint64_t r = max_us > 0 ? draw(rng) : 1;

    if (r % 8 == 0) {
        std::this_thread::sleep_for(
            std::chrono::microseconds(1 + r / 8 % (uint64_t)max_us));
    }
}

static bool next_work(CUstream_st *s, work &w)
{
    std::unique_lock<std::mutex> lock(s->mu);

    s->cv.wait(lock, [s] { return !s->queue.empty() || s->must_stop; });
    if (s->queue.empty()) {
        return false;
    }
    w = std::move(s->queue.front());
    s->queue.pop_front();
    return true;
}

static void stream_main(CUstream_st *s, int max_delay_us)
{
    for (work w; next_work(s, w); w = work()) {
        delay(s->rng, max_delay_us);
        if (w.wait_for != nullptr) {
            w.wait_for->wait();
        }
        if (w.run) {
            running() = w.what;
            w.run();
            running() = nullptr;
        }
        if (w.reached != nullptr) {
            w.reached->set();
        }
    }
}

void push(CUstream_st *s, work &&w)
{
    {
        std::lock_guard<std::mutex> lock(s->mu);
        s->queue.push_back(std::move(w));
    }
    s->cv.notify_one();
}

/* ---- who may use what ---------------------------------------------------- */

static std::string name_of(const CUstream_st *s)
{
    return "stream " + std::to_string(s->number) +
           (s->name.empty() ? "" : " (" + s->name + ")") + " of GPU " +
           std::to_string(s->gpu);
}

CUstream_st *use_stream(cudaStream_t stream, const char *call)
{
    state &s = the();
    auto it = s.streams.find(stream);

    if (stream == nullptr) {
        report("misuse: %s uses the legacy stream, which is not emulated",
               call);
        return nullptr;
    }
    if (it == s.streams.end() || !it->second->is_live) {
        report("misuse: %s uses a stream that does not exist", call);
        return nullptr;
    }
    if (stream->owner != me().id) {
        report("thread: %s uses %s, which another thread made", call,
               name_of(stream).c_str());
    }
    if (stream->gpu != me().gpu) {
        report("device: %s uses %s while GPU %d is current", call,
               name_of(stream).c_str(), me().gpu);
    }
    return stream;
}

/* All may wait for an event: `is_owners` says that this call is not of that
 * kind. */
static CUevent_st *use_event(cudaEvent_t event, const char *call,
                             bool is_owners)
{
    state &s = the();
    auto it = s.events.find(event);

    if (it == s.events.end() || !it->second->is_live) {
        report("misuse: %s uses an event that does not exist", call);
        return nullptr;
    }
    if (is_owners && event->owner != me().id) {
        report("thread: %s uses an event of GPU %d, which another "
               "thread made",
               call, event->gpu);
    }
    return event;
}

touch begin_work(CUstream_st *s, const std::string &what)
{
    touch t;
    size_t slot = (size_t)s->slot;

    join(s->clock, me().clock);
    s->earlier = s->clock;
    if (s->clock.size() <= slot) {
        s->clock.resize(slot + 1, 0);
    }
    t.slot = s->slot;
    t.tick = s->tick = s->clock[slot] = ++the().slot_ticks[slot];
    t.what = intern(what + " (" + s->node + (s->node.empty() ? "" : ", ") +
                    name_of(s) + ")");
    s->last = t.what;
    return t;
}

static void has_waited(const clock_of &clock)
{
    join(me().clock, clock);
    join(the().waited_for, clock);
}

/* A mark behind all that is in the stream's queue. */
static std::shared_ptr<mark> push_mark(CUstream_st *s)
{
    auto m = std::make_shared<mark>();
    work w;

    join(s->clock, me().clock);
    m->clock = s->clock;
    w.reached = m;
    push(s, std::move(w));
    return m;
}

/* ---- streams ------------------------------------------------------------- */

static int take_slot(state &s)
{
    int slot;

    if (s.free_slots.empty()) {
        s.slot_ticks.push_back(0);
        return (int)s.slot_ticks.size() - 1;
    }
    slot = s.free_slots.back();
    s.free_slots.pop_back();
    return slot;
}

static CUstream_st *new_stream()
{
    state &s = the();
    auto made = std::make_unique<CUstream_st>();
    CUstream_st *stream = made.get();

    stream->gpu = me().gpu;
    stream->number = ++s.gpus[(size_t)me().gpu].n_streams;
    stream->owner = me().id;
    stream->slot = take_slot(s);
    stream->rng = s.seed + ((uint64_t)stream->gpu << 32) +
                  ((uint64_t)stream->number << 40);
    s.streams.emplace(stream, std::move(made));
    s.n_live++;
    stream->thread = std::thread(stream_main, stream, s.max_delay_us);
    return stream;
}

/* What is in its queue is done first. */
static void destroy(CUstream_st *s, std::unique_lock<std::mutex> &lock)
{
    state &all = the();

    s->is_live = false;
    all.n_live--;
    lock.unlock();
    {
        std::lock_guard<std::mutex> queue_lock(s->mu);
        s->must_stop = true;
    }
    s->cv.notify_one();
    s->thread.join();
    lock.lock();
    touch last;
    last.slot = s->slot;
    last.tick = s->tick;
    if (last.is_before(all.waited_for)) {
        all.free_slots.push_back(s->slot);
    }
    s->touches = std::vector<range>();
    s->capture.reset();
    s->clock = s->earlier = clock_of();
    s->last = nullptr;
}

void destroy_all_streams(std::unique_lock<std::mutex> &lock)
{
    for (const auto &entry : the().streams) {
        if (entry.second->is_live) {
            destroy(entry.first, lock);
        }
    }
}

} // namespace fake

using namespace fake;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    call c("cudaStreamCreateWithFlags");

    if (c.fault != cudaSuccess || the().gpus.empty()) {
        return c.end(cudaErrorNoDevice);
    }
    if (flags != cudaStreamNonBlocking) {
        report("misuse: a stream that waits for the legacy stream is not "
               "emulated");
        return c.end(cudaErrorInvalidValue);
    }
    *stream = new_stream();
    return c.end(cudaSuccess);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags,
                                         int priority)
{
    (void)priority;
    return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    call c("cudaDeviceGetStreamPriorityRange");

    *least = 0;
    *greatest = -5;
    return c.end(cudaSuccess);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    call c("cudaStreamDestroy");
    CUstream_st *s = use_stream(stream, c.name);

    if (s == nullptr) {
        return c.end(cudaErrorInvalidResourceHandle);
    }
    destroy(s, c.lock);
    return c.end(cudaSuccess);
}

static void set_name(cudaStream_t stream, const char *call,
                     std::string CUstream_st::*field, const char *name)
{
    std::unique_lock<std::mutex> lock(the().mu);
    CUstream_st *s = use_stream(stream, call);

    if (s != nullptr) {
        s->*field = name != nullptr ? name : "";
    }
}

void fake_cuda_name_stream(cudaStream_t stream, const char *name)
{
    set_name(stream, "fake_cuda_name_stream", &CUstream_st::name, name);
}

void fake_cuda_name_node(cudaStream_t stream, const char *node)
{
    set_name(stream, "fake_cuda_name_node", &CUstream_st::node, node);
}

void fake_cuda_name_exchange(cudaStream_t stream, const char *label,
                             uint64_t number)
{
    std::unique_lock<std::mutex> lock(the().mu);
    CUstream_st *s = use_stream(stream, "fake_cuda_name_exchange");

    if (s != nullptr) {
        s->exchange = intern(std::string(label) + ", exchange " +
                             std::to_string(number));
    }
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    call c("cudaStreamSynchronize");
    CUstream_st *s = use_stream(stream, c.name);
    std::shared_ptr<mark> m;

    if (s == nullptr || c.fault != cudaSuccess || refuses_capture(s, c.name)) {
        return c.end(cudaErrorInvalidResourceHandle);
    }
    let_go_before_wait();
    m = push_mark(s);
    c.lock.unlock();
    m->wait();
    c.lock.lock();
    has_waited(m->clock);
    return c.end(cudaSuccess);
}

cudaError_t cudaDeviceSynchronize(void)
{
    call c("cudaDeviceSynchronize");
    std::vector<std::shared_ptr<mark>> marks;

    if (c.fault != cudaSuccess) {
        return c.end(cudaSuccess);
    }
    must_be_quiet(c.name);
    for (const auto &entry : the().streams) {
        if (entry.second->is_live && entry.second->gpu == me().gpu) {
            marks.push_back(push_mark(entry.first));
        }
    }
    c.lock.unlock();
    for (const auto &m : marks) {
        m->wait();
    }
    c.lock.lock();
    for (const auto &m : marks) {
        has_waited(m->clock);
    }
    return c.end(cudaSuccess);
}

/* ---- events -------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    call c("cudaEventCreateWithFlags");
    state &s = the();
    auto made = std::make_unique<CUevent_st>();

    (void)flags;
    if (c.fault != cudaSuccess || s.gpus.empty()) {
        return c.end(cudaErrorNoDevice);
    }
    made->gpu = me().gpu;
    made->owner = me().id;
    *event = made.get();
    s.events.emplace(made.get(), std::move(made));
    s.n_live++;
    return c.end(cudaSuccess);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    call c("cudaEventDestroy");
    CUevent_st *e = use_event(event, c.name, true);

    if (e == nullptr) {
        return c.end(cudaErrorInvalidResourceHandle);
    }
    e->is_live = false;
    e->last.reset();
    the().n_live--;
    return c.end(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    call c("cudaEventRecord");
    CUevent_st *e = use_event(event, c.name, true);
    CUstream_st *s = use_stream(stream, c.name);

    if (e == nullptr || s == nullptr || c.fault != cudaSuccess ||
        refuses_capture(s, c.name)) {
        return c.end(cudaErrorInvalidResourceHandle);
    }
    if (e->gpu != s->gpu) {
        report("device: an event of GPU %d is recorded in %s", e->gpu,
               name_of(s).c_str());
        return c.end(cudaErrorInvalidResourceHandle);
    }
    e->last = push_mark(s);
    if (s->last != nullptr && hits(FAKE_EARLY_RECORD, *s->last)) {
        e->last->clock = s->earlier;
    }
    return c.end(cudaSuccess);
}

/* Whether what the stream does next comes after all of that anyway. */
static bool covers(const CUstream_st *s, const clock_of &clock)
{
    clock_of all = s->clock;

    join(all, me().clock);
    clock_of more = all;
    join(more, clock);
    return more == all;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned flags)
{
    call c("cudaStreamWaitEvent");
    CUstream_st *s = use_stream(stream, c.name);
    CUevent_st *e = use_event(event, c.name, false);
    work w;

    (void)flags;
    if (e == nullptr || s == nullptr || c.fault != cudaSuccess ||
        refuses_capture(s, c.name)) {
        return c.end(cudaErrorInvalidResourceHandle);
    }
    if (e->last != nullptr && !(!covers(s, e->last->clock) &&
                                hits(FAKE_DROP_WAIT, name_of(s)))) {
        join(s->clock, e->last->clock);
        w.wait_for = e->last;
        push(s, std::move(w));
    }
    return c.end(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    call c("cudaEventQuery");
    CUevent_st *e = use_event(event, c.name, false);

    if (e == nullptr || c.fault != cudaSuccess) {
        return c.end(cudaErrorInvalidResourceHandle);
    }
    if (e->last != nullptr && !e->last->is_set()) {
        return c.end(cudaErrorNotReady);
    }
    if (e->last != nullptr) {
        has_waited(e->last->clock);
    }
    return c.end(cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    call c("cudaEventSynchronize");
    CUevent_st *e = use_event(event, c.name, false);
    std::shared_ptr<mark> m;

    if (e == nullptr || c.fault != cudaSuccess) {
        return c.end(cudaErrorInvalidResourceHandle);
    }
    let_go_before_wait();
    m = e->last;
    if (m != nullptr) {
        c.lock.unlock();
        m->wait();
        c.lock.lock();
        has_waited(m->clock);
    }
    return c.end(cudaSuccess);
}
