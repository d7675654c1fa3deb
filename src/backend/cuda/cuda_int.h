/* SPDX-License-Identifier: MIT
 *
 * Inside of the cuda backend. The host side is C; kernels are .cu files in the
 * common manner of src/kern, so that a C++ compiler makes host code of the same
 * sources for tests/fakecuda.
 *
 * A device is a GPU as one worker uses it: several may be on one GPU. Its
 * streams, events and memory belong to the thread that opened it, which has
 * made that GPU current.
 */
#ifndef ZB_CUDA_INT_H
#define ZB_CUDA_INT_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "backend/backend_int.h"

struct zb_cuda_gemm; /* cuda_gemm.c: cuBLASLt of one device */

struct zb_cuda {
    struct zb_backend base;
    int *gpu; /* [base.n_devices]: CUDA's number */
};

struct zb_device {
    struct zb_cuda *be;
    int index; /* among the devices of the run */
    int gpu;
    int n_sm; /* multiprocessors */
    struct zb_cuda_gemm *gemm;
    size_t mem_bytes, mem_peak_bytes;
};

struct zb_stream {
    struct zb_device *dev;
    cudaStream_t cuda;
};

/* ZB_OK, or what CUDA's error means: ZB_ENOMEM when memory is out, else
 * ZB_EDEVICE. The message names the device, `what` and CUDA's own words. */
enum zb_status zb_cuda_check(const struct zb_device *dev, cudaError_t err,
                             const char *what) ZB_CHECKED;

/* ---- kernels ------------------------------------------------------------ */

typedef enum zb_status (*zb_cuda_kernel_fn)(struct zb_stream *stream,
                                            const void *params);

/* zb_cuda_gemm, zb_cuda_col_sum, ...: enqueue the kernel; params is its zb_k_
 * struct. */
#define ZB_X(name)                                                             \
    enum zb_status zb_cuda_##name(struct zb_stream *stream, const void *params);
ZB_KERNEL_MAP(ZB_X)
#undef ZB_X

#ifdef __cplusplus
}
#endif

#endif
