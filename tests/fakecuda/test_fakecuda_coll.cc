/* SPDX-License-Identifier: MIT
 *
 * Exchanges of a group over the emulated NCCL: sends to and receives from all
 * other ranks in one group of calls. What they carry, what they order, and the
 * rules that they can break.
 */
#include "fakecuda/fake_rig.h"

#include <chrono>
#include <thread>

#include "nccl.h"

#define N_RANKS 3

#define NCCL_IS(call, what) CU_ASSERT_EQUAL((call), (what))

static ncclResult_t settle(ncclComm_t c)
{
    ncclResult_t state = ncclInProgress;

    for (int i = 0; i < 5000 && state == ncclInProgress; i++) {
        NCCL_IS(ncclCommGetAsyncError(c, &state), ncclSuccess);
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return state;
}

/* What one GPU has. */
struct member {
    cudaStream_t s;
    float *x;            /* what it sends */
    float *got[N_RANKS]; /* of each of the others */
};

/* A communicator of all GPUs, connected. */
struct clique_of_all {
    ncclComm_t comm[N_RANKS] = {};

    clique_of_all()
    {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        ncclUniqueId id;

        config.blocking = 0;
        NCCL_IS(ncclGetUniqueId(&id), ncclSuccess);
        for (int i = 0; i < N_RANKS; i++) {
            CUDA_OK(cudaSetDevice(i));
            NCCL_IS(ncclCommInitRankConfig(&comm[i], N_RANKS, id, i, &config),
                    ncclInProgress);
        }
        for (ncclComm_t c : comm) {
            CU_ASSERT_EQUAL(settle(c), ncclSuccess);
        }
    }
};

struct machine {
    member m[N_RANKS];

    explicit machine(uint64_t seed = 1, int max_delay_us = 0)
    {
        fake_cuda_reset(N_RANKS, seed, max_delay_us);
        for (int i = 0; i < N_RANKS; i++) {
            CUDA_OK(cudaSetDevice(i));
            m[i].s = new_stream();
            m[i].x = new_memory();
            for (float *&got : m[i].got) {
                got = new_memory();
            }
        }
    }
    void fill(float by)
    {
        for (int i = 0; i < N_RANKS; i++) {
            CUDA_OK(cudaSetDevice(i));
            enqueue_add(m[i].s, "fill", m[i].x, nullptr, by + (float)i);
        }
    }
    void ask(const clique_of_all &c, int rank, uint64_t number)
    {
        CUDA_OK(cudaSetDevice(rank));
        fake_cuda_name_exchange(m[rank].s, "gradients", number);
        NCCL_IS(ncclGroupStart(), ncclSuccess);
        for (int k = 0; k < N_RANKS; k++) {
            if (k != rank) {
                NCCL_IS(ncclSend(m[rank].x, BYTES, ncclInt8, k, c.comm[rank],
                                 m[rank].s),
                        ncclSuccess);
                NCCL_IS(ncclRecv(m[rank].got[k], BYTES, ncclInt8, k,
                                 c.comm[rank], m[rank].s),
                        ncclSuccess);
            }
        }
        NCCL_IS(ncclGroupEnd(), ncclInProgress);
    }
    void launch(const clique_of_all &c, int rank, uint64_t number)
    {
        ask(c, rank, number);
        CU_ASSERT_EQUAL(settle(c.comm[rank]), ncclSuccess);
    }
    void exchange(const clique_of_all &c, uint64_t number)
    {
        for (int i = 0; i < N_RANKS; i++) {
            ask(c, i, number);
        }
        for (ncclComm_t comm : c.comm) {
            CU_ASSERT_EQUAL(settle(comm), ncclSuccess);
        }
    }
    void wait()
    {
        for (int i = 0; i < N_RANKS; i++) {
            CUDA_OK(cudaSetDevice(i));
            CUDA_OK(cudaStreamSynchronize(m[i].s));
        }
    }
    /* A first one, for which all ranks must have asked. */
    void connect(const clique_of_all &c)
    {
        fill(1);
        exchange(c, 0);
        wait();
    }
};

static float first_of(const member &m, const float *x)
{
    float v = 0;

    CUDA_OK(cudaMemcpyAsync(&v, x, sizeof(v), cudaMemcpyDeviceToHost, m.s));
    CUDA_OK(cudaStreamSynchronize(m.s));
    return v;
}

/* ---- what they carry ----------------------------------------------------- */

static void everybody_gets_what_the_others_sent()
{
    for (uint64_t seed = 1; seed <= 5; seed++) {
        machine all(seed, 50);
        clique_of_all c;

        for (int round = 0; round < 3; round++) {
            all.fill(10.0f * (float)round);
            all.exchange(c, (uint64_t)round);
            for (int i = 0; i < N_RANKS; i++) {
                CUDA_OK(cudaSetDevice(i));
                for (int k = 0; k < N_RANKS; k++) {
                    CU_ASSERT(k == i || first_of(all.m[i], all.m[i].got[k]) ==
                                            10.0f * (float)round + (float)k);
                }
            }
        }
        CU_ASSERT_EQUAL(fake_cuda_count("connection"), 6);
        CU_ASSERT(no_reports());
    }
}

static void exchange_ends_when_the_last_has_come()
{
    machine all;
    clique_of_all c;
    cudaEvent_t e;

    all.connect(c);
    all.fill(1);
    all.launch(c, 0, 1);
    all.launch(c, 1, 1);
    CUDA_OK(cudaSetDevice(0));
    e = new_event();
    CUDA_OK(cudaEventRecord(e, all.m[0].s));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CU_ASSERT_EQUAL(cudaEventQuery(e), cudaErrorNotReady);
    all.launch(c, 2, 1);
    all.wait();
    CU_ASSERT(no_reports());
}

/* ---- what they order ----------------------------------------------------- */

static void reading_what_comes_without_an_event_is_a_race()
{
    for (int has_event = 0; has_event < 2; has_event++) {
        machine all;
        clique_of_all c;
        cudaStream_t other;
        cudaEvent_t e;
        float *y;

        all.connect(c);
        CUDA_OK(cudaSetDevice(0));
        other = new_stream();
        e = new_event();
        y = new_memory();
        all.fill(1);
        all.exchange(c, 1);
        CUDA_OK(cudaSetDevice(0));
        if (has_event) {
            CUDA_OK(cudaEventRecord(e, all.m[0].s));
            CUDA_OK(cudaStreamWaitEvent(other, e, 0));
        }
        enqueue_add(other, "sum", y, all.m[0].got[2], 1);
        if (has_event) {
            CU_ASSERT(no_reports());
        } else {
            CU_ASSERT(reports("race:", {"sum", "gradients, exchange 1"}));
        }
        all.wait();
    }
}

static void writing_what_is_sent_without_an_event_is_a_race()
{
    machine all;
    clique_of_all c;
    cudaStream_t other;

    all.connect(c);
    CUDA_OK(cudaSetDevice(1));
    other = new_stream();
    all.fill(1);
    all.wait();
    all.exchange(c, 1);
    CUDA_OK(cudaSetDevice(1));
    enqueue_add(other, "next", all.m[1].x, nullptr, 1);
    CU_ASSERT(reports("race:", {"next", "gradients, exchange 1: send"}));
    all.wait();
}

/* ---- rules --------------------------------------------------------------- */

static void different_exchanges_that_meet_are_reported()
{
    machine all;
    clique_of_all c;

    all.connect(c);
    all.fill(1);
    CU_ASSERT(no_reports());
    all.launch(c, 0, 1);
    all.launch(c, 1, 2);
    CU_ASSERT(
        reports("nccl:", {"gradients, exchange 1", "gradients, exchange 2"}));
    all.launch(c, 2, 1);
    all.wait();
    CU_ASSERT_EQUAL(fake_cuda_n_reports(), 4); /* each way of rank 1 */
}

/* Each GPU would wait for the other's turn, where it does one after the
 * other. */
static void groups_in_another_order_are_reported()
{
    for (int is_crossed = 0; is_crossed < 2; is_crossed++) {
        machine all;
        member other[N_RANKS];
        clique_of_all first, second;

        for (int i = 0; i < N_RANKS; i++) {
            CUDA_OK(cudaSetDevice(i));
            other[i].x = new_memory();
            enqueue_add(all.m[i].s, "fill", other[i].x, nullptr, 1);
            for (float *&got : other[i].got) {
                got = new_memory();
            }
        }
        all.connect(first);
        all.connect(second);
        all.fill(1);
        CU_ASSERT(no_reports());
        for (int i = 0; i < N_RANKS; i++) {
            bool is_last = is_crossed && i == 1;

            all.launch(is_last ? second : first, i, 1);
            /* On a stream of its own, which does not wait for it. */
            CUDA_OK(cudaSetDevice(i));
            other[i].s = new_stream();
            std::swap(all.m[i], other[i]);
            all.launch(is_last ? first : second, i, 1);
        }
        if (is_crossed) {
            CU_ASSERT(reports("nccl: order:", {"gradients", "GPU 1"}));
        } else {
            CU_ASSERT(no_reports());
        }
        all.wait();
        for (int i = 0; i < N_RANKS; i++) {
            std::swap(all.m[i], other[i]);
        }
        all.wait();
    }
}

/* ---- faults -------------------------------------------------------------- */

static void swapped_exchange_is_reported()
{
    for (uint64_t k = 1; k <= 3; k++) {
        machine all;
        clique_of_all c;

        all.connect(c);
        fake_cuda_fault(FAKE_SWAP_EXCHANGE, "gradients", k);
        for (uint64_t number = 1; number <= 2; number++) {
            all.fill(1);
            all.exchange(c, number);
        }
        all.wait();
        CU_ASSERT(fake_cuda_has_failed());
        CU_ASSERT(reports("nccl:", {"exchange 1", "exchange 2"}));
    }
}

/* Behind it comes nothing: the host does not wait for what is held. */
static void last_exchange_has_no_swap()
{
    machine all;
    clique_of_all c;

    all.connect(c);
    fake_cuda_fault(FAKE_SWAP_EXCHANGE, "gradients", 3);
    all.fill(1);
    for (int i = 0; i < N_RANKS; i++) {
        all.launch(c, i, 1);
    }
    CUDA_OK(cudaSetDevice(2));
    CUDA_OK(cudaStreamSynchronize(all.m[2].s));
    all.wait();
    CU_ASSERT_FALSE(fake_cuda_has_failed());
    CU_ASSERT(no_reports());
}

static void swapped_sum_reads_what_has_not_come()
{
    machine all;
    clique_of_all c;

    all.connect(c);
    CUDA_OK(cudaSetDevice(0));
    fake_cuda_discard(all.m[0].s, all.m[0].got[1], BYTES);
    all.fill(1);
    fake_cuda_fault(FAKE_SWAP, "exchange gradients", 1);
    for (int i = 0; i < N_RANKS; i++) {
        all.launch(c, i, 1);
        if (i == 0) {
            CUDA_OK(cudaSetDevice(0));
            enqueue_add(all.m[0].s, "sum", all.m[0].got[0], all.m[0].got[1], 1);
        }
    }
    all.wait();
    CU_ASSERT(fake_cuda_has_failed());
    CU_ASSERT(reports("unwritten:", {"sum"}));
}

int main()
{
    static const zbt_case cases[] = {
        ZBT_CASE(everybody_gets_what_the_others_sent),
        ZBT_CASE(exchange_ends_when_the_last_has_come),
        ZBT_CASE(reading_what_comes_without_an_event_is_a_race),
        ZBT_CASE(writing_what_is_sent_without_an_event_is_a_race),
        ZBT_CASE(different_exchanges_that_meet_are_reported),
        ZBT_CASE(groups_in_another_order_are_reported),
        ZBT_CASE(swapped_exchange_is_reported),
        ZBT_CASE(last_exchange_has_no_swap),
        ZBT_CASE(swapped_sum_reads_what_has_not_come),
    };

    return zbt_run("fakecuda_coll", cases, sizeof(cases) / sizeof(cases[0]));
}
