/* SPDX-License-Identifier: MIT
 *
 * A warp on the CPU: 32 threads, and of CUDA C++ what cuda_mma.h uses for a
 * GPU. What lanes give each other goes through warp_give() and warp_got().
 * Written from the PTX ISA, not from cuda_mma.h. Included in its place,
 * backend/cuda/cuda_ptx.h of this folder has the instructions.
 */
#ifndef WARP_MODEL_H
#define WARP_MODEL_H

#define __CUDACC__ 1
#define __device__
#define __host__
#define __forceinline__ inline
#define ZB_MMA_PRAGMA(text)

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

struct warp_index {
    unsigned x;
};

inline thread_local warp_index threadIdx;

/* What each lane gave, and where lanes wait for each other. */
struct warp_state {
    std::mutex lock;
    std::condition_variable all_here;
    int n_here = 0;
    unsigned long turn = 0;
    uint64_t given[32][8] = {};
};

inline warp_state &warp_now()
{
    static warp_state state;

    return state;
}

inline void __syncwarp()
{
    warp_state &w = warp_now();
    std::unique_lock<std::mutex> held(w.lock);
    unsigned long turn = w.turn;

    if (++w.n_here == 32) {
        w.n_here = 0;
        w.turn++;
        w.all_here.notify_all();
        return;
    }
    w.all_here.wait(held, [&]() { return w.turn != turn; });
}

template <class T> void warp_give(int i, T x)
{
    memcpy(&warp_now().given[threadIdx.x][i], &x, sizeof(x));
}

template <class T> T warp_got(unsigned lane, int i)
{
    T x;

    memcpy(&x, &warp_now().given[lane][i], sizeof(x));
    return x;
}

template <class T> T __shfl_sync(unsigned, T x, int lane)
{
    T y;

    warp_give(0, x);
    __syncwarp();
    y = warp_got<T>((unsigned)lane % 32, 0);
    __syncwarp();
    return y;
}

template <class T> T __shfl_xor_sync(unsigned mask, T x, int lanes)
{
    return __shfl_sync(mask, x, (int)threadIdx.x ^ lanes);
}

inline unsigned __ballot_sync(unsigned mask, int x)
{
    unsigned all = 0;

    for (int lane = 0; lane < 32; lane++) {
        all |= (unsigned)(__shfl_sync(mask, x, lane) != 0) << lane;
    }
    return all;
}

inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

inline void warp_run(const std::function<void()> &body)
{
    std::vector<std::thread> lanes;

    for (unsigned lane = 0; lane < 32; lane++) {
        lanes.emplace_back([&body, lane]() {
            threadIdx.x = lane;
            body();
        });
    }
    for (std::thread &lane : lanes) {
        lane.join();
    }
}

#endif
