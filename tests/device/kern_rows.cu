/* SPDX-License-Identifier: MIT
 *
 * All of src/kern as device code. kern_rows64.cu is this file for doubles.
 */
#include "kern_rows.h"

#include "kern/act.h"
#include "kern/update.h"
#define ZB_TEMPLATE "kern/norm.h"
#include "kern/each_storage.h"
#define ZB_TEMPLATE "kern/xent_row.h"
#include "kern/each_storage.h"
#define ZB_TEMPLATE "kern/rope.h"
#include "kern/each_storage.h"

#ifdef ZB_REAL_IS_DOUBLE
#define ROW row64
#define ROW_RUN kern_rows_run64
#else
#define ROW row32
#define ROW_RUN kern_rows_run32
#endif

static __global__ void row_kernel(struct ROW *r)
{
    struct zb_philox_key key = zb_philox_site_key(7, 3, 11);

    zb_layernorm_row_real(ROW_N, ZB_R(1e-5), r->x, r->gamma, r->beta,
                          r->normed, &r->mean, &r->rstd);
    __syncwarp();
    zb_layernorm_bwd_row_real(ROW_N, r->beta, r->x, r->gamma, r->mean, r->rstd,
                              NULL, r->d_normed);
    zb_xent_row_real(ROW_N, r->x, r->label, &r->loss, &r->lse);
    __syncwarp();
    zb_xent_bwd_row_real(ROW_N, 0, ROW_N, ZB_R(0.5), r->x, r->lse, r->label, r->d_loss);
    ZB_EACH(i, ROW_N) {
        r->act[i] = zb_gelu_erf(r->x[i]);
        r->d_act[i] = zb_gelu_tanh_d(r->x[i]) + zb_silu_d(r->x[i]);
    }
    ZB_ONCE {
        zb_normal_block(5, 9, 2, r->normal);
        zb_drop_block(key, 13, 1, zb_drop_limit(0.5), ZB_R(2), r->factor);
    }
}

/* Never launched: compiling it proves that the rest is device code too. */
static __global__ void other_kernels(zb_real *y, const zb_real *x,
                                     const struct zb_adamw_coef *c)
{
    zb_rmsnorm_row_real(ROW_N, ZB_R(1e-5), x, x, y, y + ROW_N);
    zb_rmsnorm_bwd_row_real(ROW_N, x, x, x, y[ROW_N], NULL, y);
    zb_norm_bwd_w_row_real(ROW_N, x, x, x[0], x[1], y, y + ROW_N);
    zb_xent_part_row_real(ROW_N, 0, x, 3, y);
    zb_xent_join_row(2, ROW_N, x, 3, y, y + 1);
    zb_rope_halves_real(ROW_N / 2, x, x, ZB_R(-1), x, y);
    zb_rope_pairs_real(ROW_N / 2, x, x, ZB_R(1), x, y);
    zb_adamw_step(c, x[0], y, y + 1, y + 2);
    y[3] = zb_relu(x[0]) + zb_relu_d(x[1]) + zb_silu(x[2]) +
           zb_gelu_tanh(x[3]) + zb_gelu_erf_d(x[4]);
}

#ifndef ZB_REAL_IS_DOUBLE
static __global__ void kernels16(uint16_t *y, const uint16_t *x, float *stat)
{
    zb_layernorm_row_bf16(ROW_N, 1e-5f, x, x, x, y, stat, stat + 1);
    zb_layernorm_bwd_row_bf16(ROW_N, x, x, x, stat[0], stat[1], NULL, y);
    zb_rmsnorm_row_f16(ROW_N, 1e-5f, x, x, y, stat);
    zb_rmsnorm_bwd_row_f16(ROW_N, x, x, x, stat[0], x, y);
    zb_norm_bwd_w_row_f16(ROW_N, x, x, stat[0], stat[1], stat + 2,
                          stat + 2 + ROW_N);
    zb_rope_halves_bf16(ROW_N / 2, stat, stat, -1.0f, x, y);
}

int kern_rows_n_devices(void)
{
    int n = 0;

    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}
#endif

int ROW_RUN(struct ROW *r)
{
    struct cudaFuncAttributes attr;
    struct ROW *dev = NULL;
    cudaError_t err = cudaFuncGetAttributes(&attr, other_kernels);

#ifndef ZB_REAL_IS_DOUBLE
    if (err == cudaSuccess) {
        err = cudaFuncGetAttributes(&attr, kernels16);
    }
#endif
    if (err == cudaSuccess) {
        err = cudaMalloc((void **)&dev, sizeof(*dev));
    }
    if (err == cudaSuccess) {
        err = cudaMemcpy(dev, r, sizeof(*r), cudaMemcpyHostToDevice);
    }
    if (err == cudaSuccess) {
        row_kernel<<<1, 32>>>(dev);
        err = cudaMemcpy(r, dev, sizeof(*r), cudaMemcpyDeviceToHost);
    }
    cudaFree(dev);
    return (int)err;
}
