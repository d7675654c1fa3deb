/* SPDX-License-Identifier: MIT
 *
 * Messages of the emulated NCCL, and its rules, each broken once.
 */
#include "fakecuda/fake_rig.h"

#include <chrono>
#include <thread>

#include "nccl.h"

#define N_GPUS 3

#define NCCL_IS(call, what) CU_ASSERT_EQUAL((call), (what))
#define ASKED(call) NCCL_IS(call, ncclInProgress)

static ncclResult_t state_of(ncclComm_t c)
{
    ncclResult_t state = ncclInternalError;

    NCCL_IS(ncclCommGetAsyncError(c, &state), ncclSuccess);
    return state;
}

/* Until it is done with what it was asked for. */
static ncclResult_t settle(ncclComm_t c)
{
    ncclResult_t state = state_of(c);

    for (int i = 0; i < 5000 && state == ncclInProgress; i++) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        state = state_of(c);
    }
    return state;
}

static bool is_done(cudaStream_t s)
{
    cudaEvent_t e = new_event();
    cudaError_t err;

    CUDA_OK(cudaEventRecord(e, s));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    err = cudaEventQuery(e);
    CUDA_OK(cudaEventDestroy(e));
    return err == cudaSuccess;
}

/* A stream and memory of a GPU. */
struct end {
    int gpu;
    cudaStream_t s;
    float *x;

    explicit end(int g) : gpu(g)
    {
        use();
        s = new_stream();
        x = new_memory();
    }
    void use() const
    {
        CUDA_OK(cudaSetDevice(gpu));
    }
    void fill(float by) const
    {
        use();
        enqueue_add(s, "fill", x, nullptr, by);
    }
    float read() const
    {
        float v = 0;

        use();
        CUDA_OK(cudaMemcpyAsync(&v, x, sizeof(v), cudaMemcpyDeviceToHost, s));
        CUDA_OK(cudaStreamSynchronize(s));
        return v;
    }
};

/* Rank 0 on a's GPU, rank 1 on b's, joined. */
struct pair {
    end a, b;
    ncclComm_t comm[2] = {};

    pair(int from, int to) : a(from), b(to)
    {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        ncclUniqueId id;

        config.blocking = 0;
        NCCL_IS(ncclGetUniqueId(&id), ncclSuccess);
        a.use();
        ASKED(ncclCommInitRankConfig(&comm[0], 2, id, 0, &config));
        CU_ASSERT_EQUAL(state_of(comm[0]), ncclInProgress);
        b.use();
        ASKED(ncclCommInitRankConfig(&comm[1], 2, id, 1, &config));
        CU_ASSERT_EQUAL(settle(comm[0]), ncclSuccess);
        CU_ASSERT_EQUAL(settle(comm[1]), ncclSuccess);
    }
    ncclResult_t send(size_t bytes = BYTES) const
    {
        a.use();
        return ncclSend(a.x, bytes, ncclInt8, 1, comm[0], a.s);
    }
    ncclResult_t take(size_t bytes = BYTES) const
    {
        b.use();
        return ncclRecv(b.x, bytes, ncclInt8, 0, comm[1], b.s);
    }
    /* A first message, which both must have asked for before it begins. */
    void connect() const
    {
        a.fill(1);
        message();
        wait();
    }
    void message() const
    {
        ASKED(send());
        ASKED(take());
        CU_ASSERT_EQUAL(settle(comm[0]), ncclSuccess);
        CU_ASSERT_EQUAL(settle(comm[1]), ncclSuccess);
    }
    void wait() const
    {
        a.use();
        CUDA_OK(cudaStreamSynchronize(a.s));
        b.use();
        CUDA_OK(cudaStreamSynchronize(b.s));
    }
    void send_now() const
    {
        ASKED(send());
        CU_ASSERT_EQUAL(settle(comm[0]), ncclSuccess);
    }
    void take_now() const
    {
        ASKED(take());
        CU_ASSERT_EQUAL(settle(comm[1]), ncclSuccess);
    }
    void abort() const
    {
        NCCL_IS(ncclCommAbort(comm[0]), ncclSuccess);
        NCCL_IS(ncclCommAbort(comm[1]), ncclSuccess);
    }
};

static void fresh(int max_delay_us = 0)
{
    fake_cuda_reset(N_GPUS, 1, max_delay_us);
}

/* ---- messages ------------------------------------------------------------ */

static void messages_arrive_in_order()
{
    fresh(100);
    pair p(0, 1);

    for (int i = 1; i <= 5; i++) {
        p.a.fill((float)i);
        p.message();
        CU_ASSERT_EQUAL(p.b.read(), (float)i);
    }
    CU_ASSERT_EQUAL(fake_cuda_count("message"), 10);
    CU_ASSERT_EQUAL(fake_cuda_count("connection"), 1);
    CU_ASSERT(no_reports());
}

static void first_message_begins_when_both_have_asked()
{
    fresh();
    pair p(0, 1);

    p.a.fill(1);
    ASKED(p.send());
    for (int i = 0; i < 50; i++) {
        CU_ASSERT_EQUAL(state_of(p.comm[0]), ncclInProgress);
    }
    p.take_now();
    CU_ASSERT_EQUAL(settle(p.comm[0]), ncclSuccess);
    CU_ASSERT_EQUAL(p.b.read(), 1);
    CU_ASSERT(no_reports());
}

static void send_keeps_its_stream_until_it_is_received()
{
    fresh();
    pair p(0, 1);

    p.connect();
    p.send_now();
    p.a.use();
    CU_ASSERT_FALSE(is_done(p.a.s));
    p.take_now();
    p.wait();
    CU_ASSERT(no_reports());
}

static void receive_orders_its_stream_after_the_send()
{
    for (int i = 0; i < 2; i++) {
        fresh();
        pair p(0, 1);
        float *y;

        p.connect();
        p.a.use();
        y = new_memory();
        p.b.use();
        CUDA_OK(cudaDeviceEnablePeerAccess(0, 0));
        p.a.use();
        enqueue_add(p.a.s, "write", y, nullptr, 1);
        if (i == 0) {
            p.message();
        }
        p.b.use();
        enqueue_add(p.b.s, "read", p.b.x, y, 1);
        if (i == 0) {
            CU_ASSERT(no_reports());
        } else {
            CU_ASSERT(reports("race:", {"read", "write"}));
        }
        p.wait();
    }
}

static void groups_go_together()
{
    fresh(50);
    pair p(0, 1);

    p.a.fill(3);
    for (int i = 0; i < 3; i++) {
        NCCL_IS(ncclGroupStart(), ncclSuccess);
        NCCL_IS(p.send(BYTES / 2), ncclSuccess);
        NCCL_IS(p.send(BYTES / 2), ncclSuccess);
        ASKED(ncclGroupEnd());
        NCCL_IS(ncclGroupStart(), ncclSuccess);
        NCCL_IS(p.take(BYTES / 2), ncclSuccess);
        NCCL_IS(p.take(BYTES / 2), ncclSuccess);
        ASKED(ncclGroupEnd());
        CU_ASSERT_EQUAL(settle(p.comm[0]), ncclSuccess);
        CU_ASSERT_EQUAL(settle(p.comm[1]), ncclSuccess);
    }
    CU_ASSERT_EQUAL(p.b.read(), 3);
    CU_ASSERT(no_reports());
}

/* ---- order and memory ---------------------------------------------------- */

static void event_before_the_receive_is_launched_orders_nothing()
{
    fresh();
    pair p(0, 1);
    cudaStream_t other;
    cudaEvent_t e;

    p.connect();
    p.b.use();
    other = new_stream();
    e = new_event();
    p.send_now();
    ASKED(p.take());
    CUDA_OK(cudaEventRecord(e, p.b.s));
    CU_ASSERT_EQUAL(settle(p.comm[1]), ncclSuccess);
    CUDA_OK(cudaStreamWaitEvent(other, e, 0));
    enqueue_add(other, "read", p.b.x, p.b.x, 1);
    CU_ASSERT(reports("race:", {"read", "receive"}));
    p.wait();
}

static void overwriting_what_is_sent_is_a_race()
{
    fresh();
    pair p(0, 1);
    cudaStream_t other;

    p.connect();
    p.a.use();
    other = new_stream();
    p.send_now();
    p.a.use();
    enqueue_add(other, "early", p.a.x, nullptr, 1);
    CU_ASSERT(reports("race:", {"early", "send"}));
    p.take_now();
    p.wait();
}

static void sending_what_was_never_written_is_reported()
{
    fresh();
    pair p(0, 1);

    p.message();
    CU_ASSERT(reports("unwritten:", {"send"}));
    p.wait();
}

static void sizes_that_differ_are_reported()
{
    fresh();
    pair p(0, 1);

    p.connect();
    ASKED(p.send(BYTES));
    ASKED(p.take(BYTES / 2));
    CU_ASSERT_EQUAL(settle(p.comm[0]), ncclSuccess);
    CU_ASSERT_EQUAL(settle(p.comm[1]), ncclSuccess);
    CU_ASSERT(reports("nccl:", {"of 4000 bytes", "of 2000 bytes"}));
    p.wait();
}

static void memory_is_left_alone_while_messages_are_under_way()
{
    fresh();
    pair p(0, 1);

    p.connect();
    CUDA_OK(cudaFree(new_memory()));
    CU_ASSERT(no_reports());
    p.message();
    (void)new_memory();
    CU_ASSERT(reports("nccl:", {"cudaMalloc", "send"}));
    p.wait();
}

/* ---- the order of launches ----------------------------------------------- */

static void crossed_messages_are_reported()
{
    fresh();
    pair p(0, 1), q(1, 0);

    p.connect();
    q.connect();
    CU_ASSERT(no_reports());
    p.send_now();
    q.send_now();
    CU_ASSERT(reports("nccl: order:", {"send", "GPU 0", "GPU 1"}));
    p.take_now();
    q.take_now();
    p.wait();
    q.wait();
}

static void messages_in_turn_are_not_reported()
{
    fresh();
    pair p(0, 1), q(1, 0);

    p.connect();
    q.connect();
    for (int i = 0; i < 3; i++) {
        p.send_now();
        q.take_now();
        p.take_now();
        q.send_now();
    }
    p.wait();
    q.wait();
    CU_ASSERT(no_reports());
}

static void crossed_messages_of_a_group_are_not_reported()
{
    fresh();
    pair p(0, 1), q(1, 0);

    p.connect();
    q.connect();
    NCCL_IS(ncclGroupStart(), ncclSuccess);
    NCCL_IS(p.send(), ncclSuccess);
    NCCL_IS(q.take(), ncclSuccess);
    ASKED(ncclGroupEnd());
    CU_ASSERT_EQUAL(settle(p.comm[0]), ncclSuccess);
    CU_ASSERT_EQUAL(settle(q.comm[1]), ncclSuccess);
    NCCL_IS(ncclGroupStart(), ncclSuccess);
    NCCL_IS(q.send(), ncclSuccess);
    NCCL_IS(p.take(), ncclSuccess);
    ASKED(ncclGroupEnd());
    CU_ASSERT_EQUAL(settle(q.comm[0]), ncclSuccess);
    CU_ASSERT_EQUAL(settle(p.comm[1]), ncclSuccess);
    p.wait();
    q.wait();
    CU_ASSERT(no_reports());
}

static void ring_of_sends_is_reported()
{
    fresh();
    pair p(0, 1), q(1, 2), r(2, 0);

    p.connect();
    q.connect();
    r.connect();
    p.send_now();
    q.send_now();
    CU_ASSERT(no_reports());
    r.send_now();
    CU_ASSERT(reports("nccl: order:", {"GPU 2"}));
    p.take_now();
    q.take_now();
    r.take_now();
    p.wait();
    q.wait();
    r.wait();
}

/* ---- who may use what ---------------------------------------------------- */

static void asking_before_the_last_is_done_is_reported()
{
    fresh();
    pair p(0, 1);

    p.a.fill(1);
    ASKED(p.send());
    NCCL_IS(p.send(), ncclInvalidArgument);
    CU_ASSERT(reports("nccl:", {"ncclSend while", "not done"}));
    ASKED(p.take());
    CU_ASSERT_EQUAL(settle(p.comm[0]), ncclSuccess);
    CU_ASSERT_EQUAL(settle(p.comm[1]), ncclSuccess);
    p.wait();
}

static void communicator_of_another_thread_is_reported()
{
    fresh();
    pair p(0, 1);

    p.connect();
    std::thread other([&p] {
        ncclComm_t c = p.comm[0];

        CUDA_OK(cudaSetDevice(0));
        cudaStream_t s = new_stream();
        ASKED(ncclSend(p.a.x, BYTES, ncclInt8, 1, c, s));
        CU_ASSERT_EQUAL(state_of(c), ncclInProgress);
    });
    other.join();
    CU_ASSERT(reports("thread:", {"ncclSend", "rank 0 on GPU 0"}));
    p.abort();
}

static void stream_of_another_gpu_is_reported()
{
    fresh();
    pair p(0, 1);

    p.b.use();
    NCCL_IS(ncclSend(p.b.x, BYTES, ncclInt8, 1, p.comm[0], p.b.s),
            ncclInvalidUsage);
    CU_ASSERT(reports("device:", {"rank 0 on GPU 0", "stream of GPU 1"}));
}

static void ranks_on_one_gpu_are_reported()
{
    fresh();
    pair p(1, 1);

    CU_ASSERT(reports("nccl:", {"both on GPU 1"}));
}

static void communicators_end_in_order()
{
    for (int i = 0; i < 3; i++) {
        fresh();
        pair p(0, 1);
        uint64_t live = fake_cuda_live();

        p.connect();
        if (i != 1) {
            ASKED(ncclCommFinalize(p.comm[0]));
            CU_ASSERT_EQUAL(state_of(p.comm[0]), ncclInProgress);
            ASKED(ncclCommFinalize(p.comm[1]));
            CU_ASSERT_EQUAL(settle(p.comm[0]), ncclSuccess);
            CU_ASSERT_EQUAL(settle(p.comm[1]), ncclSuccess);
        }
        NCCL_IS(ncclCommDestroy(p.comm[0]), ncclSuccess);
        NCCL_IS(ncclCommDestroy(p.comm[1]), ncclSuccess);
        CU_ASSERT_EQUAL(fake_cuda_live(), live - 2);
        if (i == 0) {
            CU_ASSERT(no_reports());
        } else if (i == 1) {
            CU_ASSERT(reports("misuse:", {"before it was finalized"}));
        } else {
            NCCL_IS(p.send(), ncclInvalidArgument);
            CU_ASSERT(reports("misuse:", {"ncclSend", "does not exist"}));
        }
    }
}

static void finalized_communicator_sends_no_more()
{
    fresh();
    pair p(0, 1);

    p.connect();
    ASKED(ncclCommFinalize(p.comm[0]));
    ASKED(ncclCommFinalize(p.comm[1]));
    CU_ASSERT_EQUAL(settle(p.comm[0]), ncclSuccess);
    NCCL_IS(p.send(), ncclInvalidUsage);
    CU_ASSERT(reports("misuse:", {"ncclSend", "was finalized"}));
}

static void blocking_communicators_are_refused()
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = nullptr;
    ncclUniqueId id;

    fresh();
    NCCL_IS(ncclGetUniqueId(&id), ncclSuccess);
    NCCL_IS(ncclCommInitRankConfig(&comm, 2, id, 0, &config),
            ncclInvalidArgument);
    CU_ASSERT(reports("misuse:", {"do not block"}));
}

/* ---- aborts and faults --------------------------------------------------- */

static void abort_frees_streams_that_wait()
{
    fresh();
    pair p(0, 1);

    p.connect();
    p.send_now();
    std::thread other([&p] { p.abort(); });
    other.join();
    p.wait();
    CUDA_OK(cudaFree(new_memory()));
    CU_ASSERT(no_reports());
}

static void abort_of_one_side_does_not_free_the_other()
{
    fresh();
    pair p(0, 1);

    p.connect();
    p.take_now();
    NCCL_IS(ncclCommAbort(p.comm[0]), ncclSuccess);
    p.b.use();
    CU_ASSERT_FALSE(is_done(p.b.s));
    NCCL_IS(ncclCommAbort(p.comm[1]), ncclSuccess);
    p.wait();
    CU_ASSERT(no_reports());
}

static void mute_gpu_is_a_remote_error()
{
    fresh();
    pair p(0, 1), q(1, 2);

    p.connect();
    fake_cuda_mute(0, 0);
    ASKED(p.send());
    ASKED(p.take());
    CU_ASSERT_EQUAL(settle(p.comm[1]), ncclRemoteError);
    CU_ASSERT_EQUAL(settle(q.comm[0]), ncclSuccess);
    p.abort();
    p.wait();
    CU_ASSERT(no_reports());
}

static void asked_for_failures_are_nccls()
{
    ncclUniqueId id;

    fresh();
    pair p(0, 1);
    fake_cuda_fail_at(1, cudaErrorUnknown);
    NCCL_IS(ncclGetUniqueId(&id), ncclUnhandledCudaError);
    p.connect();
    fake_cuda_fail_at(2, cudaErrorUnknown); /* after cudaSetDevice() */
    NCCL_IS(p.send(), ncclUnhandledCudaError);
    CU_ASSERT(no_reports());
}

int main()
{
    static const zbt_case cases[] = {
        ZBT_CASE(messages_arrive_in_order),
        ZBT_CASE(first_message_begins_when_both_have_asked),
        ZBT_CASE(send_keeps_its_stream_until_it_is_received),
        ZBT_CASE(receive_orders_its_stream_after_the_send),
        ZBT_CASE(groups_go_together),
        ZBT_CASE(event_before_the_receive_is_launched_orders_nothing),
        ZBT_CASE(overwriting_what_is_sent_is_a_race),
        ZBT_CASE(sending_what_was_never_written_is_reported),
        ZBT_CASE(sizes_that_differ_are_reported),
        ZBT_CASE(memory_is_left_alone_while_messages_are_under_way),
        ZBT_CASE(crossed_messages_are_reported),
        ZBT_CASE(messages_in_turn_are_not_reported),
        ZBT_CASE(crossed_messages_of_a_group_are_not_reported),
        ZBT_CASE(ring_of_sends_is_reported),
        ZBT_CASE(asking_before_the_last_is_done_is_reported),
        ZBT_CASE(communicator_of_another_thread_is_reported),
        ZBT_CASE(stream_of_another_gpu_is_reported),
        ZBT_CASE(ranks_on_one_gpu_are_reported),
        ZBT_CASE(communicators_end_in_order),
        ZBT_CASE(finalized_communicator_sends_no_more),
        ZBT_CASE(blocking_communicators_are_refused),
        ZBT_CASE(abort_frees_streams_that_wait),
        ZBT_CASE(abort_of_one_side_does_not_free_the_other),
        ZBT_CASE(mute_gpu_is_a_remote_error),
        ZBT_CASE(asked_for_failures_are_nccls),
    };

    return zbt_run("fakecuda_nccl", cases, sizeof(cases) / sizeof(cases[0]));
}
