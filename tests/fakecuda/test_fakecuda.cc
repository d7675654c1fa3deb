/* SPDX-License-Identifier: MIT
 *
 * The emulated CUDA is held against mutations: every rule is broken once and
 * must be reported; a right program must not be.
 */
#include "fakecuda/fake_rig.h"

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

/* ---- a right program on two GPUs ----------------------------------------- */

/* One worker on each GPU, a message buffer on the first: the first fills it,
 * the second reads it in place and brings the result home. */
#define N_MESSAGES 6

struct exchange {
    std::mutex mu;
    std::condition_variable cv;
    int n_ready = 0, n_sent = 0, n_taken = 0;
    float *buffer = nullptr;
    cudaEvent_t filled = nullptr, empty = nullptr;
    bool is_right = true;

    /* Until `count` has reached n; what a worker did before the other may see. */
    void wait(const int &count, int n)
    {
        std::unique_lock<std::mutex> lock(mu);

        cv.wait(lock, [&] { return count >= n; });
    }
    void advance(int &count)
    {
        {
            std::lock_guard<std::mutex> lock(mu);
            count++;
        }
        cv.notify_all();
    }
};

static void send_all(exchange *x)
{
    std::vector<float> host(N);
    cudaStream_t compute, copy;
    cudaEvent_t copied;
    float *in;

    CUDA_OK(cudaSetDevice(0));
    compute = new_stream();
    copy = new_stream();
    copied = new_event();
    x->filled = new_event();
    in = new_memory();
    x->advance(x->n_ready);
    x->wait(x->n_ready, 2);
    for (int m = 0; m < N_MESSAGES; m++) {
        host.assign(N, (float)m);
        CUDA_OK(cudaMemcpyAsync(in, host.data(), BYTES, cudaMemcpyHostToDevice,
                                copy));
        CUDA_OK(cudaEventRecord(copied, copy));
        CUDA_OK(cudaStreamWaitEvent(compute, copied, 0));
        x->wait(x->n_taken, m);
        if (m > 0) {
            CUDA_OK(cudaStreamWaitEvent(compute, x->empty, 0));
        }
        enqueue_add(compute, "fill", x->buffer, in, 1);
        CUDA_OK(cudaEventRecord(x->filled, compute));
        x->advance(x->n_sent);
        CUDA_OK(cudaStreamSynchronize(compute));
    }
    x->wait(x->n_taken, N_MESSAGES);
    CUDA_OK(cudaFree(in));
    CUDA_OK(cudaEventDestroy(copied));
    CUDA_OK(cudaEventDestroy(x->filled));
    CUDA_OK(cudaStreamDestroy(compute));
    CUDA_OK(cudaStreamDestroy(copy));
}

static void take_all(exchange *x)
{
    std::vector<float> host(N);
    cudaStream_t s;
    float *out;

    CUDA_OK(cudaSetDevice(1));
    CUDA_OK(cudaDeviceEnablePeerAccess(0, 0));
    s = new_stream();
    out = new_memory();
    x->empty = new_event();
    x->advance(x->n_ready);
    for (int m = 0; m < N_MESSAGES; m++) {
        x->wait(x->n_sent, m + 1);
        CUDA_OK(cudaStreamWaitEvent(s, x->filled, 0));
        enqueue_add(s, "take", out, x->buffer, 1);
        CUDA_OK(cudaEventRecord(x->empty, s));
        x->advance(x->n_taken);
        CUDA_OK(cudaMemcpyAsync(host.data(), out, BYTES, cudaMemcpyDeviceToHost,
                                s));
        CUDA_OK(cudaStreamSynchronize(s));
        x->is_right = x->is_right && host[0] == (float)m + 2 &&
                      host[N - 1] == (float)m + 2;
    }
    CUDA_OK(cudaFree(out));
    CUDA_OK(cudaEventDestroy(x->empty));
    CUDA_OK(cudaStreamDestroy(s));
}

/* Whether the results are right. */
static bool run_exchange(uint64_t seed, int max_delay_us, uint64_t drop)
{
    exchange x;

    fake_cuda_reset(2, seed, max_delay_us);
    fake_cuda_drop_wait(drop);
    CUDA_OK(cudaSetDevice(0));
    x.buffer = new_memory();
    std::thread sender(send_all, &x), taker(take_all, &x);
    sender.join();
    taker.join();
    CUDA_OK(cudaFree(x.buffer));
    return x.is_right;
}

static void right_program_is_silent_for_any_delays()
{
    uint64_t n_seeds = zbt_is_long() ? 1000 : 50;

    for (uint64_t seed = 0; seed < n_seeds; seed++) {
        CU_ASSERT_FATAL(run_exchange(seed, 200, 0));
        CU_ASSERT_FATAL(no_reports());
        CU_ASSERT_EQUAL_FATAL(fake_cuda_live(), 0);
    }
}

static void every_dropped_wait_is_reported()
{
    uint64_t k = 1;

    for (;; k++) {
        run_exchange(k, 50, k);
        if (!fake_cuda_has_failed()) {
            break;
        }
        CU_ASSERT_FATAL(reports("race:", {}));
    }
    CU_ASSERT(k == 3 * N_MESSAGES);
    CU_ASSERT(no_reports());
}

/* ---- order --------------------------------------------------------------- */

static void unordered_writes_are_reported_with_both_names()
{
    rig r;

    enqueue_add(r.a, "first", r.x, nullptr, 1);
    enqueue_add(r.b, "second", r.x, nullptr, 2);
    CU_ASSERT(reports("race:", {"second: kernel add", "first: kernel add",
                                "stream 1 of GPU 0", "stream 2 of GPU 0",
                                "bytes [0, 4000) of allocation 1"}));
}

static void read_of_unordered_write_is_reported()
{
    rig r;

    enqueue_add(r.a, "writer", r.x, nullptr, 1);
    enqueue_add(r.b, "reader", r.y, r.x, 1);
    CU_ASSERT(reports("race:", {"reader", "reads", "writer"}));
}

static void write_after_unordered_read_is_reported()
{
    rig r;

    enqueue_add(r.a, "writer", r.x, nullptr, 1);
    r.order(r.a, r.b);
    enqueue_add(r.b, "reader", r.y, r.x, 1);
    enqueue_add(r.a, "second writer", r.x, nullptr, 2);
    CU_ASSERT(reports("race:", {"second writer", "writes", "reader"}));
}

/* Only the last of the records before the wait counts. */
static void event_recorded_before_the_work_orders_nothing()
{
    rig r;

    CUDA_OK(cudaEventRecord(r.e, r.a));
    CUDA_OK(cudaStreamWaitEvent(r.b, r.e, 0));
    enqueue_add(r.a, "writer", r.x, nullptr, 1);
    enqueue_add(r.b, "reader", r.y, r.x, 1);
    CU_ASSERT(reports("race:", {}));
}

static void unordered_reads_and_other_bytes_are_silent()
{
    rig r;

    enqueue_add(r.a, "writer", r.x, nullptr, 1);
    r.order(r.a, r.b);
    touches(r.a, "half", {{r.y, BYTES / 2, ZB_WRITE}, {r.x, BYTES, ZB_READ}});
    CUDA_OK(launch_add(r.a, r.y, r.x, N / 2, 1));
    touches(r.b, "half",
            {{r.y + N / 2, BYTES / 2, ZB_WRITE}, {r.x, BYTES, ZB_READ}});
    CUDA_OK(launch_add(r.b, r.y + N / 2, r.x, N / 2, 1));
    CU_ASSERT(no_reports());
}

static void order_by_a_third_stream_is_enough()
{
    rig r;
    cudaStream_t c = new_stream();

    enqueue_add(r.a, "writer", r.x, nullptr, 1);
    r.order(r.a, c);
    r.order(c, r.b);
    enqueue_add(r.b, "reader", r.y, r.x, 1);
    CU_ASSERT(no_reports());
}

static void wait_of_the_host_orders_what_it_enqueues_later()
{
    rig r;

    enqueue_add(r.a, "writer", r.x, nullptr, 1);
    CUDA_OK(cudaEventRecord(r.e, r.a));
    CUDA_OK(cudaEventSynchronize(r.e));
    enqueue_add(r.b, "reader", r.y, r.x, 1);
    CUDA_OK(cudaDeviceSynchronize());
    enqueue_add(r.a, "writer", r.x, r.y, 1);
    CU_ASSERT(no_reports());
}

static void wait_of_another_host_thread_orders_nothing()
{
    rig r;

    enqueue_add(r.a, "writer", r.x, nullptr, 1);
    CUDA_OK(cudaEventRecord(r.e, r.a));
    std::thread([&r] { CUDA_OK(cudaEventSynchronize(r.e)); }).join();
    enqueue_add(r.b, "reader", r.y, r.x, 1);
    CU_ASSERT(reports("race:", {}));
}

/* ---- memory -------------------------------------------------------------- */

static void read_of_what_nobody_wrote_is_reported()
{
    rig r;

    touches(r.a, "half", {{r.x, BYTES / 2, ZB_WRITE}});
    CUDA_OK(launch_add(r.a, r.x, nullptr, N / 2, 1));
    CU_ASSERT(no_reports());
    enqueue_add(r.a, "reader", r.y, r.x, 1);
    CU_ASSERT(reports("unwritten:", {"reader", "byte 2000"}));
}

static void read_after_discard_is_reported_and_gives_nan()
{
    rig r;
    float host[N] = {0};

    enqueue_add(r.a, "writer", r.x, nullptr, 1);
    fake_cuda_discard(r.a, r.x, BYTES);
    CUDA_OK(cudaMemcpyAsync(host, r.x, BYTES, cudaMemcpyDeviceToHost, r.a));
    CUDA_OK(cudaStreamSynchronize(r.a));
    CU_ASSERT(host[0] != host[0] && host[N - 1] != host[N - 1]);
    CU_ASSERT(reports("unwritten:", {"copy from the device"}));
}

static void kernel_on_freed_memory_is_reported()
{
    rig r;

    enqueue_add(r.a, "writer", r.x, nullptr, 1);
    CUDA_OK(cudaStreamSynchronize(r.a));
    fake_cuda_name_memory(r.x, "weights");
    CUDA_OK(cudaFree(r.x));
    CU_ASSERT(no_reports());
    enqueue_add(r.a, "reader", r.y, r.x, 1);
    CU_ASSERT(reports("freed:", {"reader", "allocation 1 (weights, "}));
}

static void free_while_work_is_in_flight_is_reported()
{
    rig r;

    enqueue_add(r.a, "writer", r.x, nullptr, 1);
    CUDA_OK(cudaFree(r.x));
    CU_ASSERT(reports("freed: cudaFree", {"allocation 1", "writer"}));
}

static void free_after_any_threads_wait_is_silent()
{
    rig r;

    enqueue_add(r.a, "writer", r.x, nullptr, 1);
    CUDA_OK(cudaEventRecord(r.e, r.a));
    std::thread([&r] { CUDA_OK(cudaEventSynchronize(r.e)); }).join();
    CUDA_OK(cudaFree(r.x));
    CU_ASSERT(no_reports());
}

static void second_free_is_reported()
{
    rig r;

    CUDA_OK(cudaFree(r.x));
    CU_ASSERT_EQUAL(cudaFree(r.x), cudaErrorInvalidValue);
    CU_ASSERT(reports("freed:", {"allocation 1"}));
}

static void access_over_the_end_is_reported()
{
    rig r;
    float host[N + 1] = {0};

    CUDA_OK(cudaMemcpyAsync(r.x, host, sizeof(host), cudaMemcpyHostToDevice,
                            r.a));
    CU_ASSERT(reports("stray:", {"copy to the device", "[0, 4004)"}));
}

/* The kernel does more than it says. */
static void write_behind_the_end_is_reported_by_free()
{
    rig r;

    touches(r.a, "writer", {{r.x, BYTES, ZB_WRITE}});
    CUDA_OK(launch_add(r.a, r.x, nullptr, N + 1, 1));
    CUDA_OK(cudaStreamSynchronize(r.a));
    CUDA_OK(cudaFree(r.x));
    CU_ASSERT(reports("bounds:", {"byte 0 behind", "allocation 1"}));
}

static void more_memory_than_there_is_is_refused()
{
    rig r;
    void *ptr = nullptr;
    size_t n_free = 0, total = 0;

    fake_cuda_set_memory(3 * BYTES);
    CUDA_OK(cudaMemGetInfo(&n_free, &total));
    CU_ASSERT(n_free == BYTES && total == 3 * BYTES);
    CU_ASSERT_EQUAL(cudaMalloc(&ptr, BYTES + 1), cudaErrorMemoryAllocation);
    CU_ASSERT_EQUAL(cudaGetLastError(), cudaErrorMemoryAllocation);
    CU_ASSERT_EQUAL(cudaGetLastError(), cudaSuccess);
    CUDA_OK(cudaMalloc(&ptr, BYTES));
    CU_ASSERT(no_reports());
}

/* ---- kernels ------------------------------------------------------------- */

static void kernel_that_says_nothing_is_reported()
{
    rig r;

    CUDA_OK(launch_add(r.a, r.x, nullptr, N, 1));
    CU_ASSERT(reports("undeclared:", {"kernel add"}));
}

static void address_of_which_nothing_was_said_is_reported()
{
    rig r;

    enqueue_add(r.a, "writer", r.x, nullptr, 1);
    touches(r.a, "liar", {{r.y, BYTES, ZB_WRITE}});
    CUDA_OK(launch_add(r.a, r.y, r.x, N, 1));
    CU_ASSERT(reports("undeclared:", {"liar", "allocation 1"}));
}

static void range_that_was_added_is_touched_too()
{
    rig r;

    touches(r.a, "writer", {});
    fake_cuda_touches_also(r.a, r.x, BYTES, ZB_WRITE);
    CUDA_OK(launch_add(r.a, r.x, nullptr, N, 1));
    CU_ASSERT(no_reports());
    enqueue_add(r.b, "reader", r.y, r.x, 1);
    CU_ASSERT(reports("race:", {"reader", "writer"}));
}

static void node_and_stream_are_named()
{
    rig r;

    fake_cuda_name_stream(r.a, "compute");
    fake_cuda_name_node(r.a, "stage 1 F 3");
    enqueue_add(r.a, "writer", r.x, nullptr, 1);
    enqueue_add(r.b, "reader", r.y, r.x, 1);
    CU_ASSERT(reports("race:", {"stage 1 F 3", "stream 1 (compute) of GPU 0"}));
}

/* ---- GPUs and threads ---------------------------------------------------- */

static void stream_of_another_gpu_than_the_current_is_reported()
{
    rig r;

    CUDA_OK(cudaSetDevice(1));
    enqueue_add(r.a, "writer", r.x, nullptr, 1);
    CU_ASSERT(reports("device:", {"stream 1 of GPU 0", "GPU 1 is current"}));
}

static void event_recorded_on_another_gpus_stream_is_reported()
{
    rig r;
    cudaStream_t s;

    CUDA_OK(cudaSetDevice(1));
    s = new_stream();
    CU_ASSERT_EQUAL(cudaEventRecord(r.e, s), cudaErrorInvalidResourceHandle);
    CU_ASSERT(reports("device:", {"event of GPU 0", "GPU 1"}));
}

static void kernel_on_a_peers_memory_needs_access()
{
    rig r;
    cudaStream_t s;
    float *mine;

    enqueue_add(r.a, "writer", r.x, nullptr, 1);
    CUDA_OK(cudaEventRecord(r.e, r.a));
    CUDA_OK(cudaSetDevice(1));
    s = new_stream();
    mine = new_memory();
    CUDA_OK(cudaStreamWaitEvent(s, r.e, 0));
    CUDA_OK(cudaMemcpyPeerAsync(mine, 1, r.x, 0, BYTES, s));
    CU_ASSERT(no_reports());
    enqueue_add(s, "reader", mine, r.x, 1);
    CU_ASSERT(reports("device:", {"reader", "allocation 1", "peer access"}));
}

static void kernel_on_a_peers_memory_with_access_is_silent()
{
    rig r;
    cudaStream_t s;
    float host[N];
    int can = 0;

    enqueue_add(r.a, "writer", r.x, nullptr, 1);
    CUDA_OK(cudaEventRecord(r.e, r.a));
    CUDA_OK(cudaSetDevice(1));
    CUDA_OK(cudaDeviceCanAccessPeer(&can, 1, 0));
    CU_ASSERT_EQUAL(can, 1);
    CUDA_OK(cudaDeviceEnablePeerAccess(0, 0));
    CU_ASSERT_EQUAL(cudaDeviceEnablePeerAccess(0, 0),
                    cudaErrorPeerAccessAlreadyEnabled);
    s = new_stream();
    CUDA_OK(cudaStreamWaitEvent(s, r.e, 0));
    enqueue_add(s, "adder", r.x, r.x, 1);
    CUDA_OK(cudaMemcpyAsync(host, r.x, BYTES, cudaMemcpyDeviceToHost, s));
    CUDA_OK(cudaStreamSynchronize(s));
    CU_ASSERT(host[0] == 2 && host[N - 1] == 2);
    CU_ASSERT(no_reports());
}

static void parted_gpus_have_no_access()
{
    rig r;
    int can = 1;

    fake_cuda_part(0, 1);
    CUDA_OK(cudaDeviceCanAccessPeer(&can, 0, 1));
    CU_ASSERT_EQUAL(can, 0);
    CU_ASSERT_EQUAL(cudaDeviceEnablePeerAccess(1, 0),
                    cudaErrorPeerAccessUnsupported);
}

static void work_of_another_thread_is_reported()
{
    rig r;

    std::thread([&r] { enqueue_add(r.a, "w", r.x, nullptr, 1); }).join();
    CU_ASSERT(reports("thread:", {"stream 1 of GPU 0"}));
}

static void record_of_another_thread_is_reported()
{
    rig r;

    std::thread([&r] {
        cudaStream_t s = new_stream();

        CUDA_OK(cudaEventRecord(r.e, s));
    }).join();
    CU_ASSERT(reports("thread:", {"cudaEventRecord", "event"}));
}

static void destroyed_stream_and_event_are_reported()
{
    rig r;

    CUDA_OK(cudaStreamDestroy(r.b));
    CU_ASSERT_NOT_EQUAL(cudaStreamSynchronize(r.b), cudaSuccess);
    CU_ASSERT(reports("misuse:", {"cudaStreamSynchronize"}));
    fake_cuda_reset(2, 0, 0);
    r.e = new_event();
    CUDA_OK(cudaEventDestroy(r.e));
    CU_ASSERT_NOT_EQUAL(cudaEventSynchronize(r.e), cudaSuccess);
    CU_ASSERT(reports("misuse:", {"cudaEventSynchronize"}));
}

/* ---- host memory --------------------------------------------------------- */

static void two_copies_to_the_same_host_memory_are_reported()
{
    rig r;
    float host[N];

    enqueue_add(r.a, "writer", r.x, nullptr, 1);
    r.order(r.a, r.b);
    CUDA_OK(cudaMemcpyAsync(host, r.x, BYTES, cudaMemcpyDeviceToHost, r.a));
    CUDA_OK(cudaMemcpyAsync(host, r.x, BYTES, cudaMemcpyDeviceToHost, r.b));
    CU_ASSERT(reports("host:", {"writes 4000 bytes", "stream 1", "stream 2"}));
    CUDA_OK(cudaDeviceSynchronize());
}

static void host_access_while_a_copy_may_write_is_reported()
{
    rig r;
    float host[N];

    enqueue_add(r.a, "writer", r.x, nullptr, 1);
    CUDA_OK(cudaMemcpyAsync(host, r.x, BYTES, cudaMemcpyDeviceToHost, r.a));
    CUDA_OK(cudaEventRecord(r.e, r.a));
    fake_cuda_host_access(host + N, 4, ZB_READ);
    CU_ASSERT(no_reports());
    fake_cuda_host_access(host, 4, ZB_READ);
    CU_ASSERT(reports("host:", {"the host reads", "copy from the device"}));
    CUDA_OK(cudaEventSynchronize(r.e));
    fake_cuda_host_access(host, 4, ZB_READ_WRITE);
    CU_ASSERT_EQUAL(fake_cuda_n_reports(), 1);
}

/* The stream is kept from the copy until the source has changed. */
static void source_that_changes_too_early_is_reported()
{
    rig r;
    std::vector<float> host(N, 1.0f);
    std::mutex gate;

    gate.lock();
    touches(r.a, "gate", {});
    CUDA_OK(ZB_FAKE_LAUNCH(+[](std::mutex *m) { std::lock_guard<std::mutex> l(*m); },
                           1u, r.a, &gate));
    CUDA_OK(cudaMemcpyAsync(r.x, host.data(), BYTES, cudaMemcpyHostToDevice,
                            r.a));
    host[N - 1] = 2;
    gate.unlock();
    CUDA_OK(cudaStreamSynchronize(r.a));
    CU_ASSERT(reports("host:", {"source", "changed"}));
}

static void page_locked_memory_freed_too_early_is_reported()
{
    rig r;
    void *host = nullptr;

    CUDA_OK(cudaHostAlloc(&host, BYTES, cudaHostAllocPortable));
    std::memset(host, 0, BYTES);
    CUDA_OK(cudaMemcpyAsync(r.x, host, BYTES, cudaMemcpyHostToDevice, r.a));
    CUDA_OK(cudaFreeHost(host));
    CU_ASSERT(reports("freed: cudaFreeHost", {"copy to the device"}));
    CUDA_OK(cudaStreamSynchronize(r.a));
}

static void copy_of_the_wrong_kind_is_refused()
{
    rig r;
    float host[N];

    CU_ASSERT_EQUAL(
        cudaMemcpyAsync(host, r.x, BYTES, cudaMemcpyHostToDevice, r.a),
        cudaErrorInvalidValue);
    CU_ASSERT(reports("misuse:", {"from device to host"}));
}

/* ---- the end of a process ------------------------------------------------ */

struct ending {
    int status;
    std::string text; /* of standard error */
};

/* What becomes of a process that does this and then ends. */
static ending run_child(void (*what)())
{
    int fds[2], status = -1;
    ending end;
    char text[4096];
    ssize_t n;
    pid_t pid;

    fake_cuda_reset(1, 0, 0); /* no thread is left to be missed */
    std::fflush(nullptr);
    CU_ASSERT_FATAL(pipe(fds) == 0);
    pid = fork();
    CU_ASSERT_FATAL(pid >= 0);
    if (pid == 0) {
        dup2(fds[1], 2);
        close(fds[0]);
        close(fds[1]);
        what();
        std::exit(0);
    }
    close(fds[1]);
    while ((n = read(fds[0], text, sizeof(text))) > 0) {
        end.text.append(text, (size_t)n);
    }
    close(fds[0]);
    waitpid(pid, &status, 0);
    end.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return end;
}

static bool ends_with(void (*what)(), int status, const char *words)
{
    ending end = run_child(what);

    if (end.status != status || end.text.find(words) == std::string::npos) {
        std::printf("\nstatus %d: %s\n", end.status, end.text.c_str());
        return false;
    }
    return true;
}

static void read_device_memory()
{
    rig r;
    volatile float sum;

    fake_cuda_name_memory(r.y, "weights");
    sum = r.y[3];
    (void)sum;
}

static void write_freed_memory()
{
    rig r;

    CUDA_OK(cudaFree(r.x));
    *(volatile float *)r.x = 1;
}

static void run_far_behind_the_end()
{
    rig r;

    touches(r.a, "runaway", {{r.x, BYTES, ZB_WRITE}});
    CUDA_OK(launch_add(r.a, r.x, nullptr, 2 * N, 1));
    CUDA_OK(cudaStreamSynchronize(r.a));
}

static void race()
{
    rig r;

    enqueue_add(r.a, "first", r.x, nullptr, 1);
    enqueue_add(r.b, "second", r.x, nullptr, 2);
}

static void race_and_reset()
{
    race();
    fake_cuda_reset(1, 0, 0);
}

static void race_and_fetch()
{
    race();
    (void)fake_cuda_n_reports();
    std::fputs("fetched", stderr);
}

static void host_access_to_device_memory_ends_with_its_name()
{
    CU_ASSERT(ends_with(read_device_memory, FAKE_CUDA_EXIT,
                        "bytes [12, 13) of allocation 2 (weights, "));
    CU_ASSERT(ends_with(write_freed_memory, FAKE_CUDA_EXIT,
                        "GPU 0, freed)"));
}

static void kernel_far_behind_the_end_ends_with_its_name()
{
    CU_ASSERT(ends_with(run_far_behind_the_end, FAKE_CUDA_EXIT, "runaway"));
}

static void reports_that_nobody_fetches_make_the_status()
{
    CU_ASSERT(ends_with(race, FAKE_CUDA_EXIT, "race:"));
    CU_ASSERT(ends_with(race_and_reset, FAKE_CUDA_EXIT, "race:"));
    CU_ASSERT(ends_with(race_and_fetch, 0, "fetched"));
}

/* ---- control ------------------------------------------------------------- */

static void calls_are_counted()
{
    rig r;

    CU_ASSERT_EQUAL(fake_cuda_count("cudaMalloc"), 2);
    CU_ASSERT_EQUAL(fake_cuda_count("kernel"), 0);
    enqueue_add(r.a, "writer", r.x, nullptr, 1);
    CU_ASSERT_EQUAL(fake_cuda_count("kernel"), 1);
    CU_ASSERT_EQUAL(fake_cuda_count("cudaNothing"), 0);
    CU_ASSERT_EQUAL(fake_cuda_live(), 5);
}

static void kth_call_fails()
{
    rig r;
    float host[N] = {0};
    void *ptr = nullptr;

    fake_cuda_fail_at(2, cudaErrorLaunchFailure);
    CUDA_OK(cudaMemcpyAsync(r.x, host, BYTES, cudaMemcpyHostToDevice, r.a));
    CU_ASSERT_EQUAL(fake_cuda_has_failed(), 0);
    CU_ASSERT_EQUAL(cudaMalloc(&ptr, 16), cudaErrorLaunchFailure);
    CU_ASSERT_EQUAL(fake_cuda_has_failed(), 1);
    CU_ASSERT_PTR_NULL(ptr);
    CUDA_OK(cudaStreamSynchronize(r.a));
    fake_cuda_fail_at(1, cudaErrorUnknown);
    CU_ASSERT_EQUAL(cudaFree(r.x), cudaErrorUnknown);
    CU_ASSERT_EQUAL(fake_cuda_live(), 4);
    CU_ASSERT(no_reports());
}

static void machine_without_gpus_says_so()
{
    void *ptr = nullptr;
    int n = 5;

    fake_cuda_reset(0, 0, 0);
    CU_ASSERT_EQUAL(cudaGetDeviceCount(&n), cudaErrorNoDevice);
    CU_ASSERT_EQUAL(n, 0);
    CU_ASSERT_EQUAL(cudaSetDevice(0), cudaErrorInvalidDevice);
    CU_ASSERT_EQUAL(cudaMalloc(&ptr, 1), cudaErrorNoDevice);
    CU_ASSERT_STRING_EQUAL(cudaGetErrorName(cudaErrorNoDevice),
                           "cudaErrorNoDevice");
}

/* What a stream does in its own time is not done when the call returns. */
static void event_is_not_ready_before_its_work_is_done()
{
    rig r;
    std::mutex gate;

    gate.lock();
    touches(r.a, "gate", {});
    CUDA_OK(ZB_FAKE_LAUNCH(+[](std::mutex *m) { std::lock_guard<std::mutex> l(*m); },
                           1u, r.a, &gate));
    CUDA_OK(cudaEventRecord(r.e, r.a));
    CU_ASSERT_EQUAL(cudaEventQuery(r.e), cudaErrorNotReady);
    CU_ASSERT_EQUAL(cudaGetLastError(), cudaSuccess);
    gate.unlock();
    CUDA_OK(cudaEventSynchronize(r.e));
    CUDA_OK(cudaEventQuery(r.e));
    CU_ASSERT(no_reports());
}
