/* SPDX-License-Identifier: MIT
 *
 * What C is before a product is added to it, where cuBLASLt does not do that.
 */
#include "backend/cuda/cuda_launch.h"

#include "kern/half.h"

ZB_KERN_FN float load(enum zb_dtype dtype, const void *x, int64_t i)
{
    switch (dtype) {
    case ZB_DTYPE_BF16:
        return zb_float_of_bf16(((const uint16_t *)x)[i]);
    case ZB_DTYPE_F16:
        return zb_float_of_f16(((const uint16_t *)x)[i]);
    default:
        return ((const float *)x)[i];
    }
}

ZB_KERN_FN void store(enum zb_dtype dtype, float value, void *y,
                             int64_t i)
{
    switch (dtype) {
    case ZB_DTYPE_BF16:
        ((uint16_t *)y)[i] = zb_bf16_of_float(value);
        break;
    case ZB_DTYPE_F16:
        ((uint16_t *)y)[i] = zb_f16_of_float(value);
        break;
    default:
        ((float *)y)[i] = value;
    }
}

static __global__ void start_rows(struct zb_k_gemm p)
{
    ZB_LANE_EACH(i, p.m * p.n) {
        int64_t r = i / p.n, c = i % p.n;
        float value = p.bias != NULL ? load(p.dtype, p.bias, c) : 0.0f;

        store(p.c_dtype, value, p.c, r * p.ldc + c);
    }
}

enum zb_status zb_cuda_gemm_start(struct zb_stream *stream,
                                  const struct zb_k_gemm *p)
{
    return ZB_CUDA_LAUNCH(start_rows, zb_cuda_lane_grid(stream, p->m * p->n),
                          ZB_CUDA_BLOCK, stream, *p);
}
