/* SPDX-License-Identifier: MIT
 *
 * What a .cu file needs of CUDA C++ when a C++ compiler makes host code of it.
 * A kernel is a function; a launch copies its arguments and calls it in the
 * stream's thread, once for every block of a one-dimensional grid. A block is
 * one thread.
 *
 *     ZB_FAKE_LAUNCH(add, grid, stream, params)
 *
 * has a cudaError_t. Device addresses in the arguments, at multiples of 8
 * bytes from an argument's beginning, become addresses of the bytes themselves
 * in the copy.
 */
#ifndef FAKE_LAUNCH_H
#define FAKE_LAUNCH_H

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cuda_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

/* CUDA's `dim3`; all loops over them are of x. */
struct fake_dim {
    unsigned x, y, z;
};

inline thread_local fake_dim blockIdx = {0, 0, 0};
inline thread_local fake_dim gridDim = {1, 1, 1};
inline thread_local fake_dim threadIdx = {0, 0, 0};
inline thread_local fake_dim blockDim = {1, 1, 1};

/* One argument of a launch, as it will be passed. */
struct fake_arg {
    void *bytes;
    std::size_t size;
};

/* Enqueue `run`, to which `args` belong; `name` is the kernel's and static. */
cudaError_t fake_cuda_launch(const char *name, unsigned grid,
                             cudaStream_t stream, const fake_arg *args,
                             std::size_t n_args, std::function<void()> run);

template <typename... Params, typename... Args>
cudaError_t fake_launch(const char *name, void (*kernel)(Params...),
                        unsigned grid, cudaStream_t stream, Args &&...args)
{
    static_assert((std::is_trivially_copyable_v<Params> && ...),
                  "parameters of kernels are copied as bytes");
    auto held = std::make_shared<std::tuple<std::decay_t<Params>...>>(
        std::forward<Args>(args)...);
    auto list = std::apply(
        [](auto &...a) {
            return std::array<fake_arg, sizeof...(a)>{
                fake_arg{&a, sizeof(a)}...};
        },
        *held);

    return fake_cuda_launch(name, grid, stream, list.data(), list.size(),
                            [held, kernel, grid] {
                                gridDim.x = grid;
                                for (unsigned i = 0; i < grid; i++) {
                                    blockIdx.x = i;
                                    std::apply(kernel, *held);
                                }
                            });
}

#define ZB_FAKE_LAUNCH(kernel, grid, stream, ...)                              \
    fake_launch(#kernel, kernel, (grid), (stream), __VA_ARGS__)

#endif
