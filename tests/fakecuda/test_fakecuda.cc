/* SPDX-License-Identifier: MIT
 *
 * The emulated CUDA is held against mutations: every rule is broken once and
 * must be reported; a right program must not be.
 */
#include "fakecuda/fake_rig.h"

#include <condition_variable>
#include <mutex>
#include <thread>

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

    /* Until `count` has reached n; what a worker did before the other may see.
     */
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
        CUDA_OK(cudaEventSynchronize(copied));
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
    fake_cuda_fault(FAKE_DROP_WAIT, nullptr, drop);
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

    CUDA_OK(
        cudaMemcpyAsync(r.x, host, sizeof(host), cudaMemcpyHostToDevice, r.a));
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

static void address_of_which_nothing_was_said_may_be_given()
{
    rig r;

    enqueue_add(r.a, "writer", r.x, nullptr, 1);
    touches(r.a, "none", {{r.y, 0, ZB_WRITE}});
    CUDA_OK(launch_add(r.a, r.y, r.x, 0, 1));
    CUDA_OK(cudaStreamSynchronize(r.a));
    CU_ASSERT(no_reports());
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
    enqueue_gate(r.a, &gate);
    CUDA_OK(
        cudaMemcpyAsync(r.x, host.data(), BYTES, cudaMemcpyHostToDevice, r.a));
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

int main()
{
    static const zbt_case cases[] = {
        ZBT_CASE(right_program_is_silent_for_any_delays),
        ZBT_CASE(every_dropped_wait_is_reported),
        ZBT_CASE(unordered_writes_are_reported_with_both_names),
        ZBT_CASE(read_of_unordered_write_is_reported),
        ZBT_CASE(write_after_unordered_read_is_reported),
        ZBT_CASE(event_recorded_before_the_work_orders_nothing),
        ZBT_CASE(unordered_reads_and_other_bytes_are_silent),
        ZBT_CASE(order_by_a_third_stream_is_enough),
        ZBT_CASE(wait_of_the_host_orders_what_it_enqueues_later),
        ZBT_CASE(wait_of_another_host_thread_orders_nothing),
        ZBT_CASE(read_of_what_nobody_wrote_is_reported),
        ZBT_CASE(read_after_discard_is_reported_and_gives_nan),
        ZBT_CASE(kernel_on_freed_memory_is_reported),
        ZBT_CASE(free_while_work_is_in_flight_is_reported),
        ZBT_CASE(free_after_any_threads_wait_is_silent),
        ZBT_CASE(second_free_is_reported),
        ZBT_CASE(access_over_the_end_is_reported),
        ZBT_CASE(write_behind_the_end_is_reported_by_free),
        ZBT_CASE(more_memory_than_there_is_is_refused),
        ZBT_CASE(kernel_that_says_nothing_is_reported),
        ZBT_CASE(address_of_which_nothing_was_said_may_be_given),
        ZBT_CASE(range_that_was_added_is_touched_too),
        ZBT_CASE(node_and_stream_are_named),
        ZBT_CASE(stream_of_another_gpu_than_the_current_is_reported),
        ZBT_CASE(event_recorded_on_another_gpus_stream_is_reported),
        ZBT_CASE(kernel_on_a_peers_memory_needs_access),
        ZBT_CASE(kernel_on_a_peers_memory_with_access_is_silent),
        ZBT_CASE(parted_gpus_have_no_access),
        ZBT_CASE(work_of_another_thread_is_reported),
        ZBT_CASE(record_of_another_thread_is_reported),
        ZBT_CASE(destroyed_stream_and_event_are_reported),
        ZBT_CASE(two_copies_to_the_same_host_memory_are_reported),
        ZBT_CASE(host_access_while_a_copy_may_write_is_reported),
        ZBT_CASE(source_that_changes_too_early_is_reported),
        ZBT_CASE(page_locked_memory_freed_too_early_is_reported),
        ZBT_CASE(copy_of_the_wrong_kind_is_refused),
    };

    return zbt_run("fakecuda", cases, sizeof(cases) / sizeof(cases[0]));
}
