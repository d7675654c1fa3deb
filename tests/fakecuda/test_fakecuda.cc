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
