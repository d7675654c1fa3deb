/* SPDX-License-Identifier: MIT
 *
 * Inside of the cpu backend. It is synchronous: a launch has run when the call
 * returns, so streams and events hold no state.
 *
 * Every kernel is cut into parts by its sizes and the team's size, but what one
 * row, column or element gets is computed by one thread in one order, so the
 * result does not depend on the team.
 */
#ifndef ZB_CPU_INT_H
#define ZB_CPU_INT_H

#include "backend/backend_int.h"

/* Largest OpenMP team of a device. */
#define ZB_CPU_MAX_THREADS 256

/* Memory one thread of the team works in; grows to the largest request. */
struct zb_cpu_scratch {
    void *ptr;
    size_t bytes;
};

struct zb_onednn;

struct zb_cpu {
    struct zb_backend base;
    int n_threads;
};

/* Used by one thread at a time (its worker, or check's streams in turn); during
 * a launch also by that thread's team. */
struct zb_device {
    struct zb_cpu *be;
    int index;
    int n_threads;
    void *binding_before;   /* its cpu set before, or NULL when not bound */
    struct zb_cpu_scratch *scratch; /* [n_threads] */
    struct zb_onednn *onednn; /* made when it is first needed, or NULL */
    size_t mem_bytes;               /* given by mem_alloc and not freed */
    size_t mem_peak_bytes;          /* the most of them */
};

/* ---- teams (cpu_team.c) ------------------------------------------------ */

/* One part of a launch: items [begin, end) by thread `thread` of the team. */
typedef void (*zb_cpu_part_fn)(const struct zb_device *dev, const void *arg,
                               int64_t begin, int64_t end, int thread);

/* Run fn over [0, n), cut at multiples of `align`, on as many threads as the
 * work pays for; `item_cost` is the work of one item, in nanoseconds or so. */
void zb_cpu_for(const struct zb_device *dev, int64_t n, int64_t align,
                double item_cost, zb_cpu_part_fn fn, const void *arg);

/* The same with the part for elements of type `dtype`: parts[] is
 * ZB_CPU_PARTS(name), where name is a template of kern/each_storage.h. */
enum zb_status zb_cpu_for_type(const struct zb_device *dev,
                               enum zb_dtype dtype,
                               const zb_cpu_part_fn parts[ZB_N_STORAGE],
                               int64_t n, int64_t align, double item_cost,
                               const void *arg) ZB_CHECKED;

#ifdef ZB_REAL_IS_DOUBLE
#define ZB_CPU_PARTS(name)                                                     \
    {                                                                          \
        [ZB_DTYPE_REAL] = name##_real, [ZB_N_STORAGE - 1] = NULL               \
    }
#else
#define ZB_CPU_PARTS(name)                                                     \
    {                                                                          \
        [ZB_DTYPE_REAL] = name##_real, [ZB_DTYPE_BF16] = name##_bf16,          \
        [ZB_DTYPE_F16] = name##_f16                                            \
    }
#endif

/* Refuses a type that kernels do not store. */
enum zb_status zb_cpu_check_type(enum zb_dtype dtype) ZB_CHECKED;

/* Give every thread of the team at least `bytes` of scratch memory. */
enum zb_status zb_cpu_scratch_reserve(struct zb_device *dev, size_t bytes)
    ZB_CHECKED;

/* The OpenMP default team of the calling thread, which oneDNN looks at; set
 * returns the value before. */
int zb_cpu_set_omp_threads(int n);

/* ---- memory (cpu_mem.c) ------------------------------------------------- */

enum zb_status zb_cpu_mem_alloc(struct zb_device *dev, size_t bytes,
                                const char *what, void **ptr_out);
void zb_cpu_mem_free(struct zb_device *dev, void *ptr);
size_t zb_cpu_mem_bytes(const struct zb_device *dev);
size_t zb_cpu_mem_peak_bytes(const struct zb_device *dev);

/* ---- kernels ------------------------------------------------------------ */

typedef enum zb_status (*zb_cpu_kernel_fn)(struct zb_device *dev,
                                           const void *params);

/* zb_cpu_gemm, zb_cpu_col_sum, ...: params is the kernel's zb_k_ struct. */
#define ZB_X(name)                                                             \
    enum zb_status zb_cpu_##name(struct zb_device *dev, const void *params);
ZB_KERNEL_MAP(ZB_X)
#undef ZB_X

/* n elements of type `dtype` as numbers to compute with, and back (cpu_ew.c);
 * in the calling thread. */
void zb_cpu_load(enum zb_dtype dtype, int64_t n, const void *x, zb_real *y);
void zb_cpu_store(enum zb_dtype dtype, int64_t n, const zb_real *x, void *y);

/* ---- products ------------------------------------------------------------ */

/* A gemm of zb_real in the calling thread by the library's own loops
 * (cpu_gemm_own.c): in the double build and where there is no oneDNN.
 * `packed` has room for ZB_GEMM_OWN_REALS. */
#define ZB_GEMM_OWN_K 256
#define ZB_GEMM_OWN_N 64
#define ZB_GEMM_OWN_REALS (ZB_GEMM_OWN_K * ZB_GEMM_OWN_N)
void zb_cpu_gemm_own(const struct zb_k_gemm *p, zb_real *packed);

#endif
