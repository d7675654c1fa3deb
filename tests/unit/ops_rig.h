/* SPDX-License-Identifier: MIT
 *
 * What the tests of kernels share: an open backend, device buffers between
 * guards, comparison with references in double, and central differences.
 *
 *     ops_open("cpu", 1);
 *     x = ops_reals(n, x_values);
 *     y = ops_blank(n);
 *     ops_run(ZB_K_scale, &params, OPS_OUT(y), OPS_IN(x));
 *     ops_expect("scale", y, n, want, OPS_TOL(1e-6, 1e-14));
 *     ops_close();
 *
 * There is one rig at a time; buffers live until ops_close().
 */
#ifndef ZB_TEST_OPS_RIG_H
#define ZB_TEST_OPS_RIG_H

#include <stdint.h>

#include "zb/backend.h"
#include "zbt.h"

#ifdef ZB_REAL_IS_DOUBLE
#define OPS_TOL(in_float, in_double) (in_double)
#define OPS_IS_DOUBLE 1
#else
#define OPS_TOL(in_float, in_double) (in_float)
#define OPS_IS_DOUBLE 0
#endif

/* Lists of buffers a launch writes (or updates) and reads. */
enum { OPS_MOST = 9 };
#define OPS_OUT(...) ((void *const[OPS_MOST]){__VA_ARGS__})
#define OPS_IN(...) ((const void *const[OPS_MOST]){__VA_ARGS__})

/* The i-th backend that can run kernels here, or NULL past the last one; of all
 * only ZB_TEST_BACKEND where the environment names one. */
const char *ops_backend(size_t i);

/* ZB_TEST_BACKEND, or cpu: for tests that one backend is enough for. */
const char *ops_one_backend(void);

void ops_open(const char *backend, int n_threads);
void ops_close(void);

/* A hash of all bytes that came back from the device since ops_open(). */
uint64_t ops_hash(void);

/* Call run(0) .. run(n - 1), each with a team of 1, 2 and 3 threads, and check
 * that the team changes no bit of what the kernels wrote. */
void ops_same_bits(const char *backend, void (*run)(int which), int n);

/* Device buffers: with values, or of NaN. */
zb_real *ops_reals(int64_t n, const double *values);
zb_real *ops_blank(int64_t n);
void *ops_bytes(size_t bytes, const void *values);

/* Replace values of a buffer from its start. */
void ops_set(zb_real *buf, int64_t n, const double *values);

/* Run a kernel; every buffer named is one the kernel may touch as a whole. NULL
 * entries are skipped, all other device memory must stay as it is. */
void ops_run(enum zb_kernel kernel, const void *params, void *const *out,
             const void *const *in);
enum zb_status ops_try(enum zb_kernel kernel, const void *params,
                       void *const *out, const void *const *in);

/* Read a buffer; fails the test when a guard beside it changed. */
void ops_get(const zb_real *buf, int64_t n, double *out);
void ops_get_bytes(const void *buf, size_t bytes, void *out);

/* || got - want || <= tol || want ||, NaN in the same places. */
void ops_expect(const char *what, const zb_real *buf, int64_t n,
                const double *want, double tol);

/* n numbers in [lo, hi); freed by ops_close(). */
double *ops_random(struct zbt_rng *rng, int64_t n, double lo, double hi);
double *ops_zeros(int64_t n);

/* Compare a gradient with central differences of the loss sum(weight * y),
 * where `forward` runs the kernel that makes y from x. Samples of x are moved.
 * In the float build nothing is compared. */
struct ops_grad {
    const char *what;
    zb_real *x;
    int64_t n;
    const double *values;
    const double *dx; /* the gradient to be tested */
    void (*forward)(void *ctx);
    void *ctx;
    zb_real *y;
    int64_t n_y;
    const double *weight;
};
void ops_expect_grad(const struct ops_grad *g);

#endif
