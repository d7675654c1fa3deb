/* SPDX-License-Identifier: MIT
 *
 * The emulated CUDA: copies between GPUs, pairs of GPUs that are broken, and
 * kernels that touch host memory.
 */
#include "fakecuda/fake_rig.h"

/* x of GPU 0 and memory of GPU 1, written; GPU 0 is current. */
struct two {
    rig r;
    float *far;
    std::vector<float> host;

    explicit two() : host(N)
    {
        CUDA_OK(cudaSetDevice(1));
        far = new_memory();
        CUDA_OK(cudaSetDevice(0));
        enqueue_add(r.a, "fill", r.x, nullptr, 3);
    }
    void send(cudaStream_t s)
    {
        CUDA_OK(cudaMemcpyPeerAsync(far, 1, r.x, 0, BYTES, s));
    }
    /* What arrived. */
    void take(cudaStream_t s)
    {
        CUDA_OK(cudaMemcpyAsync(host.data(), far, BYTES, cudaMemcpyDeviceToHost,
                                s));
        CUDA_OK(cudaStreamSynchronize(s));
    }
    size_t n_wrong() const
    {
        size_t n = 0;

        for (float x : host) {
            n += x != 3;
        }
        return n;
    }
};

static void copy_to_a_peer_needs_no_access(void)
{
    two t;

    t.send(t.r.a);
    t.take(t.r.a);
    CU_ASSERT_EQUAL(t.n_wrong(), 0);
    CU_ASSERT(no_reports());
}

static void copy_that_names_the_wrong_gpu_is_reported(void)
{
    two t;

    CU_ASSERT_EQUAL(cudaMemcpyPeerAsync(t.far, 0, t.r.x, 0, BYTES, t.r.a),
                    cudaErrorInvalidValue);
    CU_ASSERT(reports("device:", {"cudaMemcpyPeerAsync from GPU 0 to 0",
                                  "memory is of 0 and 1"}));
}

static void copy_to_freed_memory_of_a_peer_is_reported(void)
{
    two t;

    CUDA_OK(cudaFree(t.far));
    t.send(t.r.a);
    CU_ASSERT(reports("freed:", {"copy in the device", "GPU 1"}));
}

static void copy_to_a_peer_that_nothing_orders_is_reported(void)
{
    two t;

    t.send(t.r.b);
    CU_ASSERT(reports("race:", {"copy in the device", "fill"}));
}

static void copy_by_a_stream_of_another_gpu_is_reported(void)
{
    two t;

    CUDA_OK(cudaSetDevice(1));
    t.send(t.r.a);
    CU_ASSERT(reports("device:", {"cudaMemcpyPeerAsync", "GPU 1 is current"}));
}

static void corrupt_pair_copies_wrongly_only_by_itself(void)
{
    two t;

    fake_cuda_corrupt(0, 1);
    t.send(t.r.a);
    t.take(t.r.a);
    CU_ASSERT_EQUAL(t.n_wrong(), 0);
    CUDA_OK(cudaDeviceEnablePeerAccess(1, 0));
    t.send(t.r.a);
    t.take(t.r.a);
    CU_ASSERT_EQUAL(t.n_wrong(), 1);
    CUDA_OK(cudaDeviceDisablePeerAccess(1));
    CU_ASSERT_EQUAL(cudaDeviceDisablePeerAccess(1),
                    cudaErrorPeerAccessNotEnabled);
    t.send(t.r.a);
    t.take(t.r.a);
    CU_ASSERT_EQUAL(t.n_wrong(), 0);
    CU_ASSERT(no_reports());
}

static void blocked_pair_waits_for_a_reset(void)
{
    two t;
    cudaEvent_t e = new_event();

    fake_cuda_block(1, 0);
    CUDA_OK(cudaStreamSynchronize(t.r.a));
    CUDA_OK(cudaDeviceEnablePeerAccess(1, 0));
    t.send(t.r.a);
    CUDA_OK(cudaEventRecord(e, t.r.a));
    for (int i = 0; i < 1000; i++) {
        CU_ASSERT_EQUAL(cudaEventQuery(e), cudaErrorNotReady);
    }
    CU_ASSERT(no_reports());
    fake_cuda_reset(1, 0, 0);
}

/* ---- host memory --------------------------------------------------------- */

static float *new_host()
{
    void *ptr = nullptr;

    CUDA_OK(cudaHostAlloc(&ptr, BYTES, cudaHostAllocPortable));
    return (float *)ptr;
}

static void kernel_may_read_page_locked_memory(void)
{
    rig r;
    std::vector<float> host(N);
    float *locked = new_host();

    enqueue_add(r.a, "fill", r.x, nullptr, 3);
    CUDA_OK(cudaMemcpyAsync(locked, r.x, BYTES, cudaMemcpyDeviceToHost, r.a));
    r.order(r.a, r.b);
    enqueue_add(r.b, "read", r.y, locked, 1);
    CUDA_OK(
        cudaMemcpyAsync(host.data(), r.y, BYTES, cudaMemcpyDeviceToHost, r.b));
    CUDA_OK(cudaStreamSynchronize(r.b));
    CU_ASSERT_EQUAL(host[0], 4);
    CU_ASSERT_EQUAL(host[N - 1], 4);
    CUDA_OK(cudaFreeHost(locked));
    CU_ASSERT(no_reports());
}

static void kernel_that_reads_too_early_is_reported(void)
{
    rig r;
    float *locked = new_host();

    enqueue_add(r.a, "fill", r.x, nullptr, 3);
    CUDA_OK(cudaMemcpyAsync(locked, r.x, BYTES, cudaMemcpyDeviceToHost, r.a));
    enqueue_add(r.b, "read", r.y, locked, 1);
    CU_ASSERT(reports("host:", {"read: kernel", "copy from the device"}));
    CUDA_OK(cudaStreamSynchronize(r.a));
    CUDA_OK(cudaStreamSynchronize(r.b));
    CUDA_OK(cudaFreeHost(locked));
}

static void copy_over_what_a_kernel_reads_is_reported(void)
{
    rig r;
    float *locked = new_host();

    enqueue_add(r.a, "fill", r.x, nullptr, 3);
    enqueue_add(r.b, "read", r.y, locked, 1);
    CUDA_OK(cudaMemcpyAsync(locked, r.x, BYTES, cudaMemcpyDeviceToHost, r.a));
    CU_ASSERT(reports("host:", {"copy from the device", "read: kernel"}));
    CUDA_OK(cudaStreamSynchronize(r.a));
    CUDA_OK(cudaStreamSynchronize(r.b));
    CUDA_OK(cudaFreeHost(locked));
}

/* Its contents come from the stream, not from the host. */
static void page_locked_memory_may_be_passed_on(void)
{
    rig r;
    std::vector<float> host(N);
    std::mutex gate;
    float *locked = new_host();

    gate.lock();
    enqueue_gate(r.a, &gate);
    enqueue_add(r.a, "fill", r.x, nullptr, 3);
    CUDA_OK(cudaMemcpyAsync(locked, r.x, BYTES, cudaMemcpyDeviceToHost, r.a));
    r.order(r.a, r.b);
    CUDA_OK(cudaMemcpyAsync(r.y, locked, BYTES, cudaMemcpyHostToDevice, r.b));
    CUDA_OK(
        cudaMemcpyAsync(host.data(), r.y, BYTES, cudaMemcpyDeviceToHost, r.b));
    gate.unlock();
    CUDA_OK(cudaStreamSynchronize(r.b));
    CU_ASSERT_EQUAL(host[0], 3);
    CU_ASSERT_EQUAL(host[N - 1], 3);
    CUDA_OK(cudaFreeHost(locked));
    CU_ASSERT(no_reports());
}

static void kernel_on_other_host_memory_is_reported(void)
{
    rig r;
    std::vector<float> host(N);

    enqueue_add(r.a, "read", r.y, host.data(), 1);
    CU_ASSERT(reports("stray:", {"read: kernel", "no device memory"}));
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(copy_to_a_peer_needs_no_access),
        ZBT_CASE(copy_that_names_the_wrong_gpu_is_reported),
        ZBT_CASE(copy_to_freed_memory_of_a_peer_is_reported),
        ZBT_CASE(copy_to_a_peer_that_nothing_orders_is_reported),
        ZBT_CASE(copy_by_a_stream_of_another_gpu_is_reported),
        ZBT_CASE(corrupt_pair_copies_wrongly_only_by_itself),
        ZBT_CASE(blocked_pair_waits_for_a_reset),
        ZBT_CASE(kernel_may_read_page_locked_memory),
        ZBT_CASE(kernel_that_reads_too_early_is_reported),
        ZBT_CASE(copy_over_what_a_kernel_reads_is_reported),
        ZBT_CASE(page_locked_memory_may_be_passed_on),
        ZBT_CASE(kernel_on_other_host_memory_is_reported),
    };

    return zbt_run("fakecuda_peer", cases, ZB_COUNT_OF(cases));
}
