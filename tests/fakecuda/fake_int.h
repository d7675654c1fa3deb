/* SPDX-License-Identifier: MIT
 *
 * Inside of the emulated CUDA. Parts, lowest first: fake_state.cc (settings,
 * calls, reports, faults), fake_shadow.cc (clocks and who touched what),
 * fake_mem.cc (memory, host accesses to it), fake_fault.cc (faults asked for),
 * fake_stream.cc (streams and events), fake_work.cc (copies and kernels),
 * fake_graph.cc (captures), fake_device.cc (GPUs), fake_lt.cc (cuBLASLt),
 * fake_transfer.cc (messages) and fake_nccl.cc (communicators).
 *
 * One mutex guards all of it; calls hold it for their bookkeeping, never while
 * they wait. The thread of a stream has the mutex of its queue only.
 */
#ifndef FAKE_INT_H
#define FAKE_INT_H

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cuda_runtime_api.h"
#include "fake_cuda.h"

namespace fake
{

/* ---- clocks and shadow memory (fake_shadow.cc) --------------------------- */

/* [slot]: how many operations of that stream happened before. */
using clock_of = std::vector<uint64_t>;

void join(clock_of &to, const clock_of &from);

/* As enum zb_access_mode; EMPTY beside WRITE: what was there means nothing any
 * more. */
enum { READ = 1, WRITE = 2, EMPTY = 4 };

/* An operation that touched memory. `what` is interned: "write-up" (kernel add,
 * stream 3 of GPU 1). */
struct touch {
    int slot = -1; /* -1: nobody */
    uint64_t tick = 0;
    const std::string *what = nullptr;

    bool operator==(const touch &o) const
    {
        return slot == o.slot && tick == o.tick;
    }
    bool is_before(const clock_of &clock) const
    {
        return slot < 0 ||
               ((size_t)slot < clock.size() && tick <= clock[(size_t)slot]);
    }
};

/* Up to `end` all bytes have the same history. */
struct cell {
    uintptr_t end = 0;
    bool is_written = false;
    touch write;
    std::vector<touch> reads; /* since then; none happened before another */
};

/* What is wrong with an access: bytes from `at` on that `other` touched and
 * that nothing orders; bytes from unwritten_at on. */
struct finding {
    touch other;
    uintptr_t at = 0, unwritten_at = 0;
    bool is_unwritten = false;
};

/* Who touched what of one allocation, or of all host memory. */
class shadow
{
  public:
    /* Note an access to [lo, hi). */
    finding access(uintptr_t lo, uintptr_t hi, int mode, const touch &me,
                   const clock_of &before);
    /* One that conflicts with an access of that mode and that `before` does not
     * cover, or nobody. */
    touch pending(uintptr_t lo, uintptr_t hi, int mode,
                  const clock_of &before) const;
    /* Forget what `before` covers. */
    void sweep(const clock_of &before);
    size_t size() const
    {
        return cells.size();
    }

  private:
    void split(uintptr_t at);
    void note_read(uintptr_t lo, uintptr_t hi, const touch &me,
                   const clock_of &before);
    void note_write(uintptr_t lo, uintptr_t hi, int mode, const touch &me);

    std::map<uintptr_t, cell> cells;
};

/* ---- memory (fake_mem.cc) ------------------------------------------------ */

/* The bytes of an allocation, with an inaccessible page behind them. */
struct backing {
    char *map = nullptr;
    size_t map_size = 0;
    char *bytes = nullptr;

    ~backing();
};

struct allocation {
    int number = 0, gpu = 0;
    std::string name;
    uintptr_t start = 0; /* what cudaMalloc() returned */
    size_t size = 0;
    bool is_live = true;
    std::shared_ptr<backing> held; /* NULL once freed */
    shadow seen;
};

/* The allocation whose address this is, freed ones too, or NULL; the first byte
 * behind belongs to it as well. */
allocation *find_allocation(uintptr_t addr);
bool is_in_window(uintptr_t addr);
/* cudaFree(), by whoever holds the mutex. */
cudaError_t give_back(void *ptr);
/* Whether a word of a kernel's arguments is one of those. */
bool is_address(uintptr_t word);
/* "bytes [16, 32) of allocation 3 (arena, 4096 bytes, GPU 1)" */
std::string name_range(const allocation &a, uintptr_t lo, uintptr_t hi);
/* Whether all of a range is page-locked host memory, which kernels may touch.
 */
bool is_page_locked(uintptr_t lo, uintptr_t hi);
/* Report bytes behind the end that are no longer as they were. */
void check_bounds(const allocation &a);

/* ---- streams and events (fake_stream.cc) --------------------------------- */

/* A point in the work of a stream. */
class mark
{
  public:
    void set();
    void wait();
    bool is_set() const
    {
        return done.load(std::memory_order_acquire);
    }
    clock_of clock; /* constant once made */

  private:
    std::atomic<bool> done{false};
    std::mutex mu;
    std::condition_variable cv;
};

/* One entry of a queue: waits, runs, tells; what it needs is kept until then.
 */
struct work {
    std::shared_ptr<mark> wait_for, reached;
    std::function<void()> run;
    const std::string *what = nullptr;
    std::vector<std::shared_ptr<backing>> held;
};

struct range {
    uintptr_t lo, hi;
    int mode;
};

/* A kernel or a product: to be enqueued, or captured. */
struct operation {
    std::string name;
    std::vector<range> touches;
    bool is_declared = false; /* something said what it touches */
    bool is_good = true;      /* false: an argument is no memory; not done */
    std::function<void()> run;
    std::vector<std::shared_ptr<backing>> held;
};

/* ---- faults (fake_fault.cc) ---------------------------------------------- */

/* The fault asked for: at the `at`-th of its places. */
struct fault {
    enum fake_fault kind = FAKE_NO_FAULT;
    std::string in_name, what;
    uint64_t at = 0, n_seen = 0;
    /* An operation of a stream that waits for the next one, or for the GPU's
     * next exchange. */
    std::function<void()> held;
    CUstream_st *stream = nullptr;
};

/* An operation and what it touched, while a fault is asked for. */
struct traced_work {
    touch me;
    clock_of before;
    std::vector<range> ranges;
};

/* Here is a place for a fault of this kind; true: it happens here. */
bool hits(enum fake_fault kind, const std::string &name);
/* An operation is about to begin; true: `later` will do it, behind another. */
bool hold_back(CUstream_st *s, const std::string &name,
               std::function<void()> &&later);
/* ... and one was enqueued. */
void let_go(CUstream_st *s);
/* The same of exchanges: by the GPU's streams. */
bool hold_exchange(CUstream_st *s, const std::string &name,
                   std::function<void()> &&later);
void let_exchange_go(int gpu);
/* The thread is about to wait: nothing of its streams waits for more, so that
 * there is no fault. */
void let_go_before_wait();
void trace(const touch &me, const range &r, const clock_of &before);

} // namespace fake

struct CUstream_st {
    int gpu = 0, slot = 0, number = 0;
    uint64_t owner = 0; /* thread */
    bool is_live = true;
    std::string name, node;
    const std::string *exchange = nullptr; /* what messages are part of */
    fake::clock_of clock, earlier; /* that before the last operation */
    uint64_t tick = 0;
    const std::string *last = nullptr; /* operation */
    /* What its kernels touch, as was last said. */
    bool has_touches = false;
    std::string label;
    std::vector<fake::range> touches;
    /* What came since its capture began, or NULL. */
    std::unique_ptr<std::vector<fake::operation>> capture;
    /* Of the queue. */
    std::mutex mu;
    std::condition_variable cv;
    std::deque<fake::work> queue;
    bool must_stop = false;
    uint64_t rng = 0;
    std::thread thread;
};

struct ncclComm;

struct CUgraph_st {
    std::vector<fake::operation> all;
};

struct CUgraphExec_st {
    std::vector<fake::operation> all;
    int gpu = 0;
};

struct CUevent_st {
    int gpu = 0;
    uint64_t owner = 0;
    bool is_live = true;
    std::shared_ptr<fake::mark> last; /* NULL: never recorded */
};

namespace fake
{

struct clique;

/* The stream, when the call may use it: the calling thread's, of the current
 * GPU. Else a report and NULL. */
CUstream_st *use_stream(cudaStream_t stream, const char *call);
/* An operation of the stream begins: who does it. `what` is its name. */
touch begin_work(CUstream_st *s, const std::string &what);
/* ... and is enqueued. */
void push(CUstream_st *s, work &&w);
void destroy_all_streams(std::unique_lock<std::mutex> &lock);

/* ---- what operations touch (fake_work.cc) -------------------------------- */

/* Note an access of a stream's operation, with all rules; false: it must not be
 * executed, so that what is reported is not a race of this process too.
 * `can_cross`: to other GPUs' memory without peer access. */
bool access_device(CUstream_st *s, const touch &me, const range &r,
                   bool can_cross);
/* The same for host memory. */
bool access_host(CUstream_st *s, const touch &me, const range &r);
/* An operation of the stream that touches what was said of its kernels. */
operation declared(const CUstream_st *s, const std::string &name);
/* The bytes at a device address that access_device() allowed; `w` keeps them.
 */
char *bytes_at(work &w, uintptr_t addr);
/* Whether [lo, hi) lies in what the stream's kernels were said to touch in this
 * way, as one range or as neighbours. */
bool is_declared(const CUstream_st *s, uintptr_t lo, uintptr_t hi, int mode);

/* ---- messages (fake_transfer.cc) ----------------------------------------- */

enum { SENDS = 0, TAKES = 1 };

/* A send and its receive. */
class transfer
{
  public:
    /* By the stream's thread: this side's turn has come; NULL: nothing may be
     * touched. Then wait for the other's, and for the bytes. */
    void come(int side, char *at);
    void wait(int side);
    /* That side waits no more. */
    void give_up(int side);
    bool has_arrived();

    /* The rest under the mutex of all: what is there of each side. */
    bool is_posted[2] = {}, is_first[2] = {}, is_dropped[2] = {};
    bool has_met = false, is_over = false;
    int gpu[2] = {-1, -1};
    size_t size[2] = {};
    const std::string *exchange[2] = {}; /* interned; NULL: none */
    touch who[2];
    clock_of sent; /* what the send comes after, and itself */
    CUstream_st *taker = nullptr;

  private:
    std::mutex mu;
    std::condition_variable cv;
    bool has_come[2] = {}, has_given_up[2] = {}, is_done = false;
    char *bytes[2] = {};
};

/* What one side of a communicator asked for; `sent` is read, or written. */
struct message {
    std::shared_ptr<transfer> with;
    int side = SENDS;
    CUstream_st *stream = nullptr;
    uintptr_t at = 0;
    const std::string *exchange = nullptr;
};

/* Launch messages that a group asked for, in the order of the GPU. */
void launch_messages(const std::vector<message> &all);
/* A message is not under way any more: its communicator was aborted. */
void drop_message(const std::shared_ptr<transfer> &t, int side);
/* Nobody can be at it any more. */
bool was_waited_for(const transfer &t);
/* The call stops GPUs: report messages that may be under way. */
void must_be_quiet(const char *call);
/* Communicators and messages of a state that ends (fake_nccl.cc). */
void give_up_messages();
void forget_communicators();

/* ---- captures (fake_graph.cc) -------------------------------------------- */

/* Check and enqueue the operation, or keep it while the stream is captured. */
void submit(CUstream_st *s, operation &&op);
/* For what is said of an operation before it is enqueued: nobody's touch. */
touch name_of_work(const operation &op);
/* A report, when a call that can not be captured meets a capture. */
bool refuses_capture(const CUstream_st *s, const char *call);

/* ---- settings, calls, reports (fake_state.cc) ---------------------------- */

/* Messages that one GPU launched together. */
struct unit {
    std::vector<message> parts;
};

struct gpu {
    size_t used = 0;
    int n_streams = 0;
    bool is_apart[64] = {}, has_access[64] = {};
    bool is_mute = false;      /* its messages do not arrive, */
    std::chrono::steady_clock::time_point told; /* which is told from then on */
    std::deque<unit> launched; /* if all were done one after the other: left */
    /* What goes to or from the other by itself arrives wrong, or never. */
    bool is_corrupt[64] = {}, is_stuck[64] = {};
    bool has_context = false;
};

enum class trouble { none, no_driver, old_driver, no_gpu, busy, lost };

/* A host thread. */
struct host {
    uint64_t generation = 0, id = 0;
    int gpu = 0;
    cudaError_t last = cudaSuccess;
    clock_of clock; /* what it has waited for */
};

#define FAKE_GPU_BYTES ((size_t)16 << 30)

struct state {
    std::mutex mu;
    uint64_t generation = 1; /* counts resets */
    uint64_t seed = 0;
    int max_delay_us = 0;
    std::vector<gpu> gpus;
    size_t gpu_bytes = FAKE_GPU_BYTES; /* of each */
    /* Memory: by address; addresses are not used again. */
    std::map<uintptr_t, allocation> allocations;
    int n_allocations = 0; /* ever */
    std::unordered_map<void *, size_t> host_memory;
    std::vector<void *> kept_host; /* freed too early */
    shadow host_seen;
    size_t n_host_kept = 0;
    clock_of waited_for; /* what any thread has waited for */
    /* Objects, destroyed ones too. */
    std::unordered_map<CUstream_st *, std::unique_ptr<CUstream_st>> streams;
    std::unordered_map<CUevent_st *, std::unique_ptr<CUevent_st>> events;
    std::unordered_map<ncclComm *, std::shared_ptr<ncclComm>> comms;
    std::map<uint64_t, std::shared_ptr<clique>> cliques; /* by their id */
    uint64_t n_cliques = 0;
    std::vector<std::shared_ptr<transfer>> under_way; /* maybe */
    std::vector<uint64_t> slot_ticks;
    std::vector<int> free_slots;
    uint64_t n_live = 0;
    std::unordered_set<std::string> names;
    std::unordered_map<std::string, uint64_t> calls;
    std::deque<std::string> reports;
    size_t n_fetched = 0;
    uint64_t n_lost = 0; /* not fetched before the last reset */
    /* Faults: how many calls are still to go. */
    uint64_t fail_at = 0;
    cudaError_t fail_with = cudaSuccess;
    bool has_failed = false;
    /* What is stuck goes on when this is no longer what it was. */
    std::atomic<uint64_t> unstuck{0};
    trouble wrong = trouble::none;
    uint64_t n_until_lost = 0;
    /* Contexts that are being made. */
    std::condition_variable contexts;
    int n_gathered = 0, n_making = 0, most_making = 0;
    fault asked;
    std::vector<traced_work> traced;
};

state &the();
host &me();
const std::string *intern(const std::string &text);
void report(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Those that nobody fetched, for the last words of a process. */
void print_reports(int fd);
/* For the report of a memory fault: what the calling thread is at. */
const std::string *&running();

/* One call of the interface: counts it, holds the mutex, and fails as a test
 * asked for. */
class call
{
  public:
    explicit call(const char *name, bool can_fail = true);
    /* The end: the error becomes the thread's last one. An asked-for failure
     * comes first. */
    cudaError_t end(cudaError_t err);

    const char *const name;
    std::unique_lock<std::mutex> lock;
    cudaError_t fault = cudaSuccess; /* what it must fail with */
};

} // namespace fake

#endif
