/* SPDX-License-Identifier: MIT
 *
 * How a process with reports ends, and what tests say to the emulated CUDA.
 */
#include "fakecuda/fake_rig.h"

#include <cstdlib>
#include <mutex>
#include <sys/wait.h>
#include <unistd.h>

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

static void touch_more_than_is_said()
{
    rig r;

    enqueue_add(r.a, "writer", r.x, nullptr, 1);
    touches(r.a, "liar", {{r.y, BYTES, ZB_WRITE}});
    CUDA_OK(launch_add(r.a, r.y, r.x, N, 1));
    CUDA_OK(cudaStreamSynchronize(r.a));
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
    CU_ASSERT(ends_with(write_freed_memory, FAKE_CUDA_EXIT, "GPU 0, freed)"));
}

static void kernel_that_touches_more_than_is_said_ends_with_its_name()
{
    CU_ASSERT(ends_with(touch_more_than_is_said, FAKE_CUDA_EXIT,
                        "undeclared: liar: kernel add"));
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
    enqueue_gate(r.a, &gate);
    CUDA_OK(cudaEventRecord(r.e, r.a));
    CU_ASSERT_EQUAL(cudaEventQuery(r.e), cudaErrorNotReady);
    CU_ASSERT_EQUAL(cudaGetLastError(), cudaSuccess);
    gate.unlock();
    CUDA_OK(cudaEventSynchronize(r.e));
    CUDA_OK(cudaEventQuery(r.e));
    CU_ASSERT(no_reports());
}

int main()
{
    static const zbt_case cases[] = {
        ZBT_CASE(host_access_to_device_memory_ends_with_its_name),
        ZBT_CASE(kernel_that_touches_more_than_is_said_ends_with_its_name),
        ZBT_CASE(kernel_far_behind_the_end_ends_with_its_name),
        ZBT_CASE(reports_that_nobody_fetches_make_the_status),
        ZBT_CASE(calls_are_counted),
        ZBT_CASE(kth_call_fails),
        ZBT_CASE(machine_without_gpus_says_so),
        ZBT_CASE(event_is_not_ready_before_its_work_is_done),
    };

    return zbt_run("fakecuda_end", cases, sizeof(cases) / sizeof(cases[0]));
}
