/* SPDX-License-Identifier: MIT
 *
 * Memory. What cudaMalloc() returns lies in a window of addresses that nobody
 * can access; the bytes are elsewhere, NaN at first, and end at a page that
 * nobody can access. Addresses are used once, so that a freed one stays known.
 */
#include "fakecuda/fake_int.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace fake
{

/* No size or count looks like an address of it. Nor does a number of 32 bits with
 * padding behind it that has the upper half of an address from before: there are
 * no addresses whose lower half is a small number, of either sign. A float can
 * have any bits, so those of parameters are doubles, or have no padding. */
#define WINDOW_HINT ((void *)0x6ab300000000)
#define WINDOW_BYTES ((size_t)1 << 40)
#define LEAST_WINDOW_BYTES ((size_t)1 << 36)
#define SMALL_NUMBERS ((uintptr_t)1 << 24)
#define HALF ((uintptr_t)1 << 32)
#define GAP_BYTES ((size_t)4096)
#define ALIGN_BYTES ((size_t)256)
#define PAGE_BYTES ((size_t)4096)
/* A file of NaNs, which memory is mapped from until it is written. */
#define NAN_BYTES ((size_t)4 << 20)
#define MOST_NAN_BYTES ((size_t)4 << 30)

struct window {
    uintptr_t base = 0;
    size_t size = WINDOW_BYTES;
    int nan_file = -1;
    struct sigaction old;
};

static window &the_window();

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* ---- names --------------------------------------------------------------- */

bool is_in_window(uintptr_t addr)
{
    const window &w = the_window();

    return addr >= w.base && addr - w.base < w.size;
}

bool is_address(uintptr_t word)
{
    uintptr_t low = word % HALF;

    return is_in_window(word) && low >= SMALL_NUMBERS &&
           low < HALF - SMALL_NUMBERS;
}

allocation *find_allocation(uintptr_t addr)
{
    auto &all = the().allocations;
    auto next = all.upper_bound(addr);

    if (next == all.begin()) {
        return nullptr;
    }
    allocation &a = std::prev(next)->second;
    return addr - a.start <= a.size ? &a : nullptr;
}

std::string name_range(const allocation &a, uintptr_t lo, uintptr_t hi)
{
    return "bytes [" + std::to_string(lo - a.start) + ", " +
           std::to_string(hi - a.start) + ") of allocation " +
           std::to_string(a.number) + " (" + a.name +
           (a.name.empty() ? "" : ", ") + std::to_string(a.size) +
           " bytes, GPU " + std::to_string(a.gpu) +
           (a.is_live ? ")" : ", freed)");
}

bool is_page_locked(uintptr_t lo, uintptr_t hi)
{
    for (const auto &[ptr, size] : the().host_memory) {
        if (lo >= (uintptr_t)ptr && hi <= (uintptr_t)ptr + size) {
            return true;
        }
    }
    return false;
}

/* ---- forbidden accesses -------------------------------------------------- */

/* The allocation behind whose bytes this address is, or NULL. */
static const allocation *find_backing(uintptr_t addr)
{
    for (const auto &entry : the().allocations) {
        const backing *b = entry.second.held.get();

        if (b != nullptr && addr - (uintptr_t)b->map < b->map_size) {
            return &entry.second;
        }
    }
    return nullptr;
}

static void tell_of_window(uintptr_t addr)
{
    const std::string *op = running();
    allocation *a = find_allocation(addr);
    std::string who = op != nullptr ? *op : "the host";

    if (a != nullptr && op != nullptr) {
        report("undeclared: %s does not say that it touches %s", who.c_str(),
               name_range(*a, addr, addr + 1).c_str());
    } else if (a != nullptr) {
        report("host: %s accesses device memory by its address: %s",
               who.c_str(), name_range(*a, addr, addr + 1).c_str());
    } else {
        report("host: %s accesses device memory by an address of no "
               "allocation: %#zx",
               who.c_str(), (size_t)addr);
    }
}

/* Whether this address is of ours. */
static bool tell_of_fault(uintptr_t addr)
{
    const allocation *a;

    if (is_in_window(addr)) {
        tell_of_window(addr);
        return true;
    }
    a = find_backing(addr);
    if (a != nullptr) {
        report("stray: %s accesses memory around allocation %d (%zu bytes, GPU "
               "%d)",
               running() != nullptr ? running()->c_str() : "the host",
               a->number, a->size, a->gpu);
    }
    return a != nullptr;
}

/* The process is about to end: there is nothing to lose by calling what is not
 * made for signal handlers. */
static void on_fault(int sig, siginfo_t *info, void *context)
{
    state &s = the();
    bool is_locked = false;

    (void)context;
    for (int i = 0; i < 1000 && !is_locked; i++) {
        is_locked = s.mu.try_lock();
        usleep(is_locked ? 0 : 1000);
    }
    if (tell_of_fault((uintptr_t)info->si_addr)) {
        print_reports(2);
        _exit(FAKE_CUDA_EXIT);
    }
    /* Somebody else's: the access is tried again. */
    if (is_locked) {
        s.mu.unlock();
    }
    sigaction(sig, &the_window().old, nullptr);
}

static int nan_file()
{
    int fd = memfd_create("nan", MFD_CLOEXEC);
    std::vector<char> nans(NAN_BYTES, (char)0xff);

    if (fd >= 0 && write(fd, nans.data(), NAN_BYTES) != (ssize_t)NAN_BYTES) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static window *make_window()
{
    window *w = new window;
    struct sigaction action;
    void *at;

    /* ThreadSanitizer leaves less. */
    do {
        at = mmap(WINDOW_HINT, w->size, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        w->size = at == MAP_FAILED ? w->size / 2 : w->size;
    } while (at == MAP_FAILED && w->size >= LEAST_WINDOW_BYTES);
    std::memset(&action, 0, sizeof(action));
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    if (at == MAP_FAILED || sigaction(SIGSEGV, &action, &w->old) != 0) {
        std::perror("fake cuda: no window for device memory");
        std::abort();
    }
    w->base = (uintptr_t)at;
    w->nan_file = nan_file();
    return w;
}

static window &the_window()
{
    static window *const w = make_window();

    return *w;
}

/* ---- device memory ------------------------------------------------------- */

backing::~backing()
{
    munmap(map, map_size);
}

/* NaNs for as much of it as has a sensible size; the rest is 0. */
static bool map_bytes(char *at, size_t size)
{
    int fd = the_window().nan_file;
    size_t n_nan = fd >= 0 ? std::min(size, MOST_NAN_BYTES) : 0;

    for (size_t i = 0; i < n_nan; i += NAN_BYTES) {
        if (mmap(at + i, std::min(NAN_BYTES, n_nan - i), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd,
                 0) == MAP_FAILED) {
            return false;
        }
    }
    return n_nan == size ||
           mprotect(at + n_nan, size - n_nan, PROT_READ | PROT_WRITE) == 0;
}

static std::shared_ptr<backing> new_backing(size_t size)
{
    auto b = std::make_shared<backing>();
    size_t n = round_up(round_up(size, ALIGN_BYTES), PAGE_BYTES);
    void *at = mmap(nullptr, n + PAGE_BYTES, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (at == MAP_FAILED) {
        return nullptr;
    }
    b->map = (char *)at;
    b->map_size = n + PAGE_BYTES;
    if (!map_bytes(b->map, n)) {
        return nullptr;
    }
    b->bytes = b->map + n - round_up(size, ALIGN_BYTES);
    return b;
}

void check_bounds(const allocation &a)
{
    const char *end = a.held->map + a.held->map_size - PAGE_BYTES;

    for (const char *at = a.held->bytes + a.size; at < end; at++) {
        if (*at != (char)0xff) {
            report("bounds: byte %zu behind the end of %s was written",
                   (size_t)(at - a.held->bytes) - a.size,
                   name_range(a, a.start, a.start + a.size).c_str());
            return;
        }
    }
}

static uintptr_t next_address()
{
    const auto &all = the().allocations;

    if (all.empty()) {
        return the_window().base + GAP_BYTES;
    }
    const allocation &last = all.rbegin()->second;
    return round_up(last.start + last.size + GAP_BYTES, ALIGN_BYTES);
}

/* From `at` on, where all of it can be told from numbers if any place can. */
static uintptr_t place(uintptr_t at, size_t size)
{
    uintptr_t low = at % HALF;

    if (low < SMALL_NUMBERS) {
        return at - low + SMALL_NUMBERS;
    }
    return size < HALF - 2 * SMALL_NUMBERS && low + size >= HALF - SMALL_NUMBERS
               ? at - low + HALF + SMALL_NUMBERS
               : at;
}

static cudaError_t allocate(void **ptr, size_t size)
{
    state &s = the();
    gpu &g = s.gpus[(size_t)me().gpu];
    uintptr_t at = place(next_address(), size);
    std::shared_ptr<backing> b;

    if (g.used + size > s.gpu_bytes || g.used + size < size ||
        at + size + GAP_BYTES > the_window().base + the_window().size ||
        (b = new_backing(size)) == nullptr) {
        return cudaErrorMemoryAllocation;
    }
    allocation &a = s.allocations[at];
    a.number = ++s.n_allocations;
    a.gpu = me().gpu;
    a.start = at;
    a.size = size;
    a.held = std::move(b);
    g.used += size;
    s.n_live++;
    *ptr = (void *)at;
    return cudaSuccess;
}

cudaError_t give_back(void *ptr)
{
    state &s = the();
    allocation *a = find_allocation((uintptr_t)ptr);
    touch last;

    if (a == nullptr || a->start != (uintptr_t)ptr) {
        report("misuse: cudaFree of %p, which is no allocation", ptr);
        return cudaErrorInvalidValue;
    }
    if (!a->is_live) {
        report("freed: cudaFree of memory that is free: %s",
               name_range(*a, a->start, a->start + a->size).c_str());
        return cudaErrorInvalidValue;
    }
    last = a->seen.pending(a->start, a->start + a->size, WRITE, s.waited_for);
    if (last.slot >= 0) {
        report("freed: cudaFree of %s while nobody has waited for %s",
               name_range(*a, a->start, a->start + a->size).c_str(),
               last.what->c_str());
    } else {
        check_bounds(*a);
    }
    a->is_live = false;
    a->held.reset();
    a->seen = shadow();
    s.gpus[(size_t)a->gpu].used -= a->size;
    s.n_live--;
    return cudaSuccess;
}

} // namespace fake

using namespace fake;

cudaError_t cudaMalloc(void **ptr, size_t size)
{
    call c("cudaMalloc");

    must_be_quiet(c.name);
    if (c.fault != cudaSuccess || the().gpus.empty()) {
        return c.end(cudaErrorNoDevice);
    }
    if (size == 0) {
        *ptr = nullptr;
        return c.end(cudaSuccess);
    }
    return c.end(allocate(ptr, size));
}

cudaError_t cudaFree(void *ptr)
{
    call c("cudaFree");

    if (ptr == nullptr) {
        return c.end(cudaSuccess);
    }
    must_be_quiet(c.name);
    return c.end(give_back(ptr));
}

cudaError_t cudaMemGetInfo(size_t *n_free, size_t *total)
{
    call c("cudaMemGetInfo");

    if (c.fault != cudaSuccess || the().gpus.empty()) {
        return c.end(cudaErrorNoDevice);
    }
    size_t used = the().gpus[(size_t)me().gpu].used;

    *total = the().gpu_bytes;
    *n_free = used < *total ? *total - used : 0;
    return c.end(cudaSuccess);
}

void fake_cuda_set_memory(size_t bytes)
{
    std::unique_lock<std::mutex> lock(the().mu);

    the().gpu_bytes = bytes;
}

void fake_cuda_name_memory(const void *ptr, const char *name)
{
    std::unique_lock<std::mutex> lock(the().mu);
    allocation *a = find_allocation((uintptr_t)ptr);

    if (a != nullptr && name != nullptr) {
        a->name = name;
    }
}

/* ---- host memory --------------------------------------------------------- */

cudaError_t cudaHostAlloc(void **ptr, size_t size, unsigned flags)
{
    call c("cudaHostAlloc");
    void *at;

    (void)flags;
    must_be_quiet(c.name);
    if (c.fault != cudaSuccess || the().gpus.empty()) {
        return c.end(cudaErrorNoDevice);
    }
    at = std::aligned_alloc(PAGE_BYTES, round_up(size + 1, PAGE_BYTES));
    if (at == nullptr) {
        return c.end(cudaErrorMemoryAllocation);
    }
    the().host_memory[at] = size;
    the().n_live++;
    *ptr = at;
    return c.end(cudaSuccess);
}

void fake_cuda_host_access(const void *ptr, size_t bytes,
                           enum zb_access_mode mode)
{
    state &s = the();
    std::unique_lock<std::mutex> lock(s.mu);
    uintptr_t at = (uintptr_t)ptr;
    touch other = s.host_seen.pending(at, at + bytes, (int)mode, s.waited_for);

    if (other.slot >= 0) {
        report("host: the host %s %zu bytes of host memory that %s uses, which "
               "nobody has waited for",
               mode & ZB_WRITE ? "writes" : "reads", bytes,
               other.what->c_str());
    }
}

cudaError_t cudaFreeHost(void *ptr)
{
    call c("cudaFreeHost");
    state &s = the();
    auto it = s.host_memory.find(ptr);
    touch last;

    if (ptr == nullptr) {
        return c.end(cudaSuccess);
    }
    must_be_quiet(c.name);
    if (it == s.host_memory.end()) {
        report("misuse: cudaFreeHost of %p, which is not from cudaHostAlloc",
               ptr);
        return c.end(cudaErrorInvalidValue);
    }
    last = s.host_seen.pending((uintptr_t)ptr, (uintptr_t)ptr + it->second,
                               WRITE, s.waited_for);
    if (last.slot >= 0) {
        s.kept_host.push_back(ptr);
        report("freed: cudaFreeHost of %zu bytes while nobody has waited for "
               "%s",
               it->second, last.what->c_str());
    } else {
        std::free(ptr);
    }
    s.host_memory.erase(it);
    s.n_live--;
    return c.end(cudaSuccess);
}
