/* SPDX-License-Identifier: MIT
 *
 * What kernels need to be compiled by a C++ compiler and launched into a
 * stream of the emulated CUDA. C++17.
 *
 *     static __global__ void add(struct add_params p) { ... blockIdx.x ... }
 *     cudaError_t err = ZB_FAKE_LAUNCH(add, grid, stream, params);
 *
 * A block is one thread. Blocks run one after the other in an order drawn from
 * the seed, so that a kernel may not rely on one. Arguments are copied by
 * value; every aligned word in them that is an address of device memory becomes
 * the address where the bytes are, on the stream's thread.
 */
#ifndef FAKE_LAUNCH_H
#define FAKE_LAUNCH_H

#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cuda_runtime_api.h"
#include "fake_cuda.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1)
        : x(vx), y(vy), z(vz)
    {
    }
};

/* Of the kernel that runs on this thread. */
inline thread_local uint3 blockIdx{0, 0, 0};
inline thread_local uint3 threadIdx{0, 0, 0};
inline thread_local dim3 gridDim{1, 1, 1};
inline constexpr dim3 blockDim{1, 1, 1};

/* The true address, where the word is an address of device memory. */
uint64_t fake_cuda_true_word(uint64_t word);

/* Enqueue `prepare`, which makes what runs one block. */
cudaError_t fake_cuda_enqueue_kernel(
    cudaStream_t stream, const char *name, dim3 grid,
    std::function<std::function<void()>()> prepare);

template <class T> T fake_cuda_true_arg(T arg)
{
    static_assert(std::is_trivially_copyable<T>::value,
                  "kernel arguments are copied bytewise");
    unsigned char bytes[sizeof(T)];

    std::memcpy(bytes, &arg, sizeof(T));
    if (alignof(T) >= alignof(uint64_t)) {
        for (size_t i = 0; i + sizeof(uint64_t) <= sizeof(T);
             i += sizeof(uint64_t)) {
            uint64_t word;

            std::memcpy(&word, bytes + i, sizeof(word));
            word = fake_cuda_true_word(word);
            std::memcpy(bytes + i, &word, sizeof(word));
        }
    }
    std::memcpy(&arg, bytes, sizeof(T));
    return arg;
}

template <class... P, class... A>
cudaError_t fake_cuda_launch(void (*kernel)(P...), const char *name, dim3 grid,
                             cudaStream_t stream, const A &...args)
{
    std::tuple<std::decay_t<P>...> copy(args...);

    return fake_cuda_enqueue_kernel(stream, name, grid, [kernel, copy]() {
        auto real = std::apply(
            [](const auto &...arg) {
                return std::make_tuple(fake_cuda_true_arg(arg)...);
            },
            copy);

        return std::function<void()>(
            [kernel, real]() { std::apply(kernel, real); });
    });
}

#define ZB_FAKE_LAUNCH(kernel, grid, stream, ...)                              \
    fake_cuda_launch(kernel, #kernel, grid, stream, __VA_ARGS__)

#endif
