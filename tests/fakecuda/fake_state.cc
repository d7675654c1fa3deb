/* SPDX-License-Identifier: MIT
 *
 * Settings, calls, reports and faults.
 */
#include "fakecuda/fake_int.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

namespace fake
{

#define MAX_GPUS 64
#define MAX_REPORTS 200
#define MAX_TEXT 1000

/* A process that found something must not end as if it had not. */
static void at_exit()
{
    state &s = the();
    std::unique_lock<std::mutex> lock(s.mu);
    uint64_t n = s.n_lost + (s.reports.size() - s.n_fetched);

    if (n > 0) {
        std::fflush(nullptr);
        dprintf(2, "fake cuda: %llu reports that nobody fetched\n",
                (unsigned long long)n);
        print_reports(2);
        _exit(FAKE_CUDA_EXIT);
    }
}

static void set_up(state &s, int n_gpus, uint64_t seed, int max_delay_us)
{
    s.gpus.assign((size_t)(n_gpus < MAX_GPUS ? n_gpus : MAX_GPUS), gpu());
    s.seed = seed;
    s.max_delay_us = max_delay_us;
}

static long from_environment(const char *name, long otherwise)
{
    const char *text = std::getenv(name);

    return text != nullptr && *text != '\0' ? std::atol(text) : otherwise;
}

using pairs = bool (gpu::*)[MAX_GPUS];

static void set_pair(state &s, int a, int b, pairs of)
{
    (s.gpus[(size_t)a].*of)[b] = true;
    (s.gpus[(size_t)b].*of)[a] = true;
}

/* "0-1,2-3" */
static void set_pairs(state &s, const char *name, pairs of)
{
    const char *text = std::getenv(name);
    int a, b, n;

    while (text != nullptr && std::sscanf(text, "%d-%d%n", &a, &b, &n) == 2 &&
           (size_t)a < s.gpus.size() && (size_t)b < s.gpus.size()) {
        set_pair(s, a, b, of);
        text += n;
        text += *text == ',';
    }
}

static bool make_trouble(state &s, const std::string &what)
{
    static const struct {
        const char *name;
        trouble wrong;
    } troubles[] = {
        {"no-driver", trouble::no_driver}, {"old-driver", trouble::old_driver},
        {"no-gpu", trouble::no_gpu},       {"busy", trouble::busy},
        {"lost", trouble::lost},
    };
    size_t colon = what.find(':');

    for (const auto &t : troubles) {
        if (what.substr(0, colon) == t.name) {
            s.wrong = t.wrong;
            s.n_until_lost = colon == std::string::npos
                                 ? 0
                                 : std::stoull(what.substr(colon + 1));
            return true;
        }
    }
    return what.empty();
}

static state *first_state()
{
    state *s = new state;

    set_up(*s, (int)from_environment("FAKE_CUDA_GPUS", 4),
           (uint64_t)from_environment("FAKE_CUDA_SEED", 0),
           (int)from_environment("FAKE_CUDA_DELAY_US", 50));
    set_pairs(*s, "FAKE_CUDA_APART", &gpu::is_apart);
    set_pairs(*s, "FAKE_CUDA_CORRUPT", &gpu::is_corrupt);
    set_pairs(*s, "FAKE_CUDA_BLOCK", &gpu::is_stuck);
    s->gpu_bytes =
        (size_t)from_environment("FAKE_CUDA_GPU_BYTES", (long)FAKE_GPU_BYTES);
    if (std::getenv("FAKE_CUDA_TROUBLE") != nullptr &&
        !make_trouble(*s, std::getenv("FAKE_CUDA_TROUBLE"))) {
        std::fprintf(stderr, "fake cuda: unknown FAKE_CUDA_TROUBLE\n");
        std::abort();
    }
    std::atexit(at_exit);
    return s;
}

/* Never destroyed: threads of streams may outlive main(). */
state &the()
{
    static state *const s = first_state();

    return *s;
}

host &me()
{
    static std::atomic<uint64_t> n_threads{0};
    static thread_local host h;
    state &s = the();

    if (h.generation != s.generation) {
        h = host();
        h.generation = s.generation;
        h.id = n_threads.fetch_add(1) + 1;
    }
    return h;
}

const std::string *&running()
{
    static thread_local const std::string *what = nullptr;

    return what;
}

const std::string *intern(const std::string &text)
{
    return &*the().names.insert(text).first;
}

/* ---- reports ------------------------------------------------------------- */

void report(const char *fmt, ...)
{
    state &s = the();
    char text[MAX_TEXT];
    va_list args;

    va_start(args, fmt);
    std::vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (s.reports.size() < MAX_REPORTS) {
        s.reports.emplace_back(text);
    }
}

void print_reports(int fd)
{
    state &s = the();

    for (size_t i = s.n_fetched; i < s.reports.size(); i++) {
        dprintf(fd, "fake cuda: %s\n", s.reports[i].c_str());
    }
}

/* ---- calls --------------------------------------------------------------- */

call::call(const char *name_, bool can_fail) : name(name_), lock(the().mu)
{
    state &s = the();

    s.calls[name]++;
    if (can_fail && s.wrong == trouble::lost) {
        fault = s.n_until_lost == 0 ? cudaErrorUnknown : cudaSuccess;
        s.n_until_lost -= s.n_until_lost > 0;
    }
    if (can_fail && s.fail_at > 0 && --s.fail_at == 0) {
        fault = s.fail_with;
        s.has_failed = true;
    }
}

cudaError_t call::end(cudaError_t err)
{
    cudaError_t result = fault != cudaSuccess ? fault : err;

    /* As with CUDA, this is an answer rather than an error. */
    if (result != cudaSuccess && result != cudaErrorNotReady) {
        me().last = result;
    }
    return result;
}

} // namespace fake

using namespace fake;

/* ---- control ------------------------------------------------------------- */

/* The state that later calls find; its mutex stays. */
static void forget(state &s)
{
    s.generation++;
    s.allocations.clear();
    s.n_allocations = 0;
    for (const auto &[ptr, size] : s.host_memory) {
        (void)size;
        std::free(ptr);
    }
    for (void *ptr : s.kept_host) {
        std::free(ptr);
    }
    s.kept_host.clear();
    s.host_memory.clear();
    s.host_seen = shadow();
    s.n_host_kept = 0;
    s.waited_for.clear();
    forget_communicators();
    s.streams.clear();
    s.events.clear();
    s.slot_ticks.clear();
    s.free_slots.clear();
    s.n_live = 0;
    s.calls.clear();
    s.names.clear();
    s.reports.clear();
    s.n_fetched = 0;
    s.gpu_bytes = FAKE_GPU_BYTES;
    s.fail_at = 0;
    s.asked = fault();
    s.traced.clear();
    s.has_failed = false;
    s.wrong = trouble::none;
    s.n_gathered = s.n_making = s.most_making = 0;
}

void fake_cuda_reset(int n_gpus, uint64_t seed, int max_delay_us)
{
    state &s = the();
    std::unique_lock<std::mutex> lock(s.mu);

    give_up_messages();
    s.unstuck++;
    destroy_all_streams(lock);
    for (const auto &entry : s.allocations) {
        if (entry.second.is_live) {
            check_bounds(entry.second);
        }
    }
    s.n_lost += s.reports.size() - s.n_fetched;
    print_reports(2);
    forget(s);
    set_up(s, n_gpus, seed, max_delay_us);
}

int fake_cuda_n_reports(void)
{
    std::unique_lock<std::mutex> lock(the().mu);

    the().n_fetched = the().reports.size();
    return (int)the().reports.size();
}

const char *fake_cuda_report(int i)
{
    state &s = the();
    std::unique_lock<std::mutex> lock(s.mu);

    if (i < 0 || (size_t)i >= s.reports.size()) {
        return "";
    }
    s.n_fetched = s.reports.size();
    return s.reports[(size_t)i].c_str();
}

uint64_t fake_cuda_count(const char *name)
{
    state &s = the();
    std::unique_lock<std::mutex> lock(s.mu);
    auto at = s.calls.find(name);

    return at != s.calls.end() ? at->second : 0;
}

uint64_t fake_cuda_live(void)
{
    std::unique_lock<std::mutex> lock(the().mu);

    return the().n_live;
}

int fake_cuda_trouble(const char *what)
{
    std::unique_lock<std::mutex> lock(the().mu);

    return make_trouble(the(), what);
}

int fake_cuda_gather_contexts(int n)
{
    std::unique_lock<std::mutex> lock(the().mu);

    the().n_gathered = n;
    return the().most_making;
}

void fake_cuda_fail_at(uint64_t k, cudaError_t error)
{
    std::unique_lock<std::mutex> lock(the().mu);

    the().fail_at = k;
    the().fail_with = error;
    the().has_failed = false;
}

int fake_cuda_has_failed(void)
{
    std::unique_lock<std::mutex> lock(the().mu);

    return the().has_failed;
}

void fake_cuda_mute(int gpu, int after_ms)
{
    state &s = the();
    std::unique_lock<std::mutex> lock(s.mu);

    s.gpus[(size_t)gpu].is_mute = true;
    s.gpus[(size_t)gpu].told = std::chrono::steady_clock::now() +
                               std::chrono::milliseconds(after_ms);
}

void fake_cuda_part(int gpu, int other)
{
    std::unique_lock<std::mutex> lock(the().mu);

    set_pair(the(), gpu, other, &fake::gpu::is_apart);
}

void fake_cuda_corrupt(int gpu, int other)
{
    std::unique_lock<std::mutex> lock(the().mu);

    set_pair(the(), gpu, other, &fake::gpu::is_corrupt);
}

void fake_cuda_block(int gpu, int other)
{
    std::unique_lock<std::mutex> lock(the().mu);

    set_pair(the(), gpu, other, &fake::gpu::is_stuck);
}
