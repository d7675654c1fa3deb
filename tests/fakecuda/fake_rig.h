/* SPDX-License-Identifier: MIT
 *
 * What the tests of the emulated CUDA share: kernels, calls that must succeed,
 * and looking for a report.
 */
#ifndef FAKE_RIG_H
#define FAKE_RIG_H

#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <string>
#include <vector>

extern "C" {
#include "unit/zbt.h"
}

#include "fake_cuda.h"
#include "fake_launch.h"

#define N 1000
#define BYTES (N * sizeof(float))

#define CUDA_OK(call) CU_ASSERT(is_ok((call), #call, __FILE__, __LINE__))

static inline bool is_ok(cudaError_t err, const char *what, const char *file,
                         int line)
{
    if (err != cudaSuccess) {
        std::printf("\n%s:%d: %s: %s\n", file, line, what,
                    cudaGetErrorString(err));
    }
    return err == cudaSuccess;
}

/* ---- reports ------------------------------------------------------------- */

static inline bool no_reports()
{
    int n = fake_cuda_n_reports();

    for (int i = 0; i < n && i < 5; i++) {
        std::printf("\n%s\n", fake_cuda_report(i));
    }
    return n == 0;
}

/* There are reports, the first begins with `rule` and has all the words. */
static inline bool reports(const char *rule,
                           std::initializer_list<const char *> words)
{
    std::string text = fake_cuda_n_reports() > 0 ? fake_cuda_report(0) : "none";
    bool ok = text.compare(0, std::strlen(rule), rule) == 0;

    for (const char *word : words) {
        ok = ok && text.find(word) != std::string::npos;
    }
    if (!ok) {
        std::printf("\nfirst report: %s\n", text.c_str());
    }
    return ok;
}

/* ---- kernels ------------------------------------------------------------- */

struct params {
    float *y;
    const float *x;
    int64_t n;
    float by;
};

/* y = x + by; without x: y = by. */
static __global__ void add(params p)
{
    for (int64_t i = blockIdx.x; i < p.n; i += gridDim.x) {
        p.y[i] = (p.x != nullptr ? p.x[i] : 0.0f) + p.by;
    }
}

static inline void touches(cudaStream_t s, const char *label,
                           std::initializer_list<zb_access> access)
{
    zb_launch l = {};

    l.label = label;
    for (const zb_access &a : access) {
        l.access[l.n_access++] = a;
    }
    fake_cuda_touches(s, &l);
}

static inline cudaError_t launch_add(cudaStream_t s, float *y, const float *x,
                                     int64_t n, float by)
{
    const params p = {y, x, n, by};

    return ZB_FAKE_LAUNCH(add, 7u, s, p);
}

/* All of y is written, and all of x read. */
static inline void enqueue_add(cudaStream_t s, const char *label, float *y,
                               const float *x, float by)
{
    if (x != nullptr) {
        touches(s, label, {{y, BYTES, ZB_WRITE}, {x, BYTES, ZB_READ}});
    } else {
        touches(s, label, {{y, BYTES, ZB_WRITE}});
    }
    CUDA_OK(launch_add(s, y, x, N, by));
}

/* What is enqueued next is not done while the gate is locked. */
static __global__ void pass_gate(std::mutex *gate)
{
    std::lock_guard<std::mutex> lock(*gate);
}

static inline void enqueue_gate(cudaStream_t s, std::mutex *gate)
{
    touches(s, "gate", {});
    CUDA_OK(ZB_FAKE_LAUNCH(pass_gate, 1u, s, gate));
}

/* ---- objects ------------------------------------------------------------- */

static inline float *new_memory(size_t bytes = BYTES)
{
    void *ptr = nullptr;

    CUDA_OK(cudaMalloc(&ptr, bytes));
    return (float *)ptr;
}

static inline cudaStream_t new_stream()
{
    cudaStream_t s = nullptr;

    CUDA_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

static inline cudaEvent_t new_event()
{
    cudaEvent_t e = nullptr;

    CUDA_OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    return e;
}

/* Two streams of GPU 0 of two, an event, and two arrays. */
struct rig {
    cudaStream_t a, b;
    cudaEvent_t e;
    float *x, *y;

    explicit rig(uint64_t seed = 0, int max_delay_us = 0)
    {
        fake_cuda_reset(2, seed, max_delay_us);
        CUDA_OK(cudaSetDevice(0));
        a = new_stream();
        b = new_stream();
        e = new_event();
        x = new_memory();
        y = new_memory();
    }
    /* What comes later in `to` is after all that is in `from`. */
    void order(cudaStream_t from, cudaStream_t to)
    {
        CUDA_OK(cudaEventRecord(e, from));
        CUDA_OK(cudaStreamWaitEvent(to, e, 0));
    }
};

#endif
