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

/* How threads are bound; a machine that was not read has topo == NULL. Types
 * of hwloc. Read-only once made. */
struct zb_cpu_binder {
    struct hwloc_topology *topo;
    struct hwloc_bitmap_s *allowed; /* the cpu set before any binding */
    int threads_per_device;
};

/* Memory one thread of the team works in; grows to the largest request. */
struct zb_cpu_scratch {
    void *ptr;
    size_t bytes;
};

struct zb_cpu {
    struct zb_backend base;
    int n_threads;
    struct zb_cpu_binder binder;
};

/* Used by one thread at a time (its worker, or check's streams in turn); during
 * a launch also by that thread's team. */
struct zb_device {
    struct zb_cpu *be;
    int index;
    int n_threads;
    void *binding_before;   /* its cpu set before, or NULL when not bound */
    struct zb_cpu_scratch *scratch; /* [n_threads] */
    size_t mem_bytes;               /* given by mem_alloc and not freed */
};

/* ---- teams (cpu_team.c) ------------------------------------------------ */

/* One part of a launch: items [begin, end) by thread `thread` of the team. */
typedef void (*zb_cpu_part_fn)(const struct zb_device *dev, const void *arg,
                               int64_t begin, int64_t end, int thread);

/* Run fn over [0, n), cut at multiples of `align`, on as many threads as the
 * work pays for; `item_cost` is the work of one item, in nanoseconds or so. */
void zb_cpu_for(const struct zb_device *dev, int64_t n, int64_t align,
                double item_cost, zb_cpu_part_fn fn, const void *arg);

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

/* ---- binding (cpu_bind.c) ----------------------------------------------- */

/* Read the machine and this thread's cpu set. When binding is not possible, or
 * the devices' threads outnumber the cores, nothing will be bound: that is
 * never an error. */
void zb_cpu_binder_init(struct zb_cpu_binder *b, int n_devices,
                        int threads_per_device);
void zb_cpu_binder_release(struct zb_cpu_binder *b);

/* Bind the calling thread to the cores of device `index`; returns what undo
 * needs, or NULL when it was not bound. */
void *zb_cpu_bind(const struct zb_cpu_binder *b, int index);
void zb_cpu_unbind(const struct zb_cpu_binder *b, void *before);

/* ---- kernels ------------------------------------------------------------ */

typedef enum zb_status (*zb_cpu_kernel_fn)(struct zb_device *dev,
                                           const void *params);

/* zb_cpu_gemm, zb_cpu_col_sum, ...: params is the kernel's zb_k_ struct. */
#define ZB_X(name)                                                             \
    enum zb_status zb_cpu_##name(struct zb_device *dev, const void *params);
ZB_KERNEL_MAP(ZB_X)
#undef ZB_X

/* A gemm by the library's own loops (cpu_gemm_own.c): in the double build and
 * where there is no oneDNN. */
enum zb_status zb_cpu_gemm_own(struct zb_device *dev,
                               const struct zb_k_gemm *p);

#endif
