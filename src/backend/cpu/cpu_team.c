/* SPDX-License-Identifier: MIT */
#include "config.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include "zb/mem.h"
#include "backend/cpu/cpu_int.h"

/* Work below this is not worth waking another thread. */
#define MIN_PART_COST 20000.0

#ifndef _OPENMP
/* Without OpenMP here, oneDNN may still bring its library: then its team is
 * set, else nobody looks at it. */
extern void omp_set_num_threads(int n) __attribute__((weak));
extern int omp_get_max_threads(void) __attribute__((weak));
#endif

int zb_cpu_set_omp_threads(int n)
{
    int before = 1;

#ifndef _OPENMP
    if (omp_set_num_threads == NULL || omp_get_max_threads == NULL) {
        return before;
    }
#endif
    before = omp_get_max_threads();
    omp_set_num_threads(n);
    return before;
}

static int n_parts_of(const struct zb_device *dev, int64_t n_units, double cost)
{
    double most = cost / MIN_PART_COST;
    int parts = dev->n_threads;

    if (parts > n_units) {
        parts = (int)n_units;
    }
    if (parts > most) {
        parts = (int)most;
    }
    return parts < 1 ? 1 : parts;
}

void zb_cpu_for(const struct zb_device *dev, int64_t n, int64_t align,
                double item_cost, zb_cpu_part_fn fn, const void *arg)
{
    int64_t n_units = (n + align - 1) / align;
    int n_parts = n_parts_of(dev, n_units, (double)n * item_cost);

    if (n <= 0) {
        return;
    }
    if (n_parts == 1) {
        fn(dev, arg, 0, n, 0);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel for num_threads(n_parts) schedule(static, 1)
#endif
    for (int part = 0; part < n_parts; part++) {
        int64_t begin = n_units * part / n_parts * align;
        int64_t end = n_units * (part + 1) / n_parts * align;

        fn(dev, arg, begin, end < n ? end : n, part);
    }
}

enum zb_status zb_cpu_check_type(enum zb_dtype dtype)
{
    if (!zb_dtype_is_storage(dtype)) {
        return zb_fail(ZB_EINVAL, "there is no kernel for elements of type %s",
                       zb_dtype_str(dtype));
    }
    return ZB_OK;
}

enum zb_status zb_cpu_for_type(const struct zb_device *dev, enum zb_dtype dtype,
                               const zb_cpu_part_fn parts[ZB_N_STORAGE],
                               int64_t n, int64_t align, double item_cost,
                               const void *arg)
{
    ZB_TRY(zb_cpu_check_type(dtype));
    zb_cpu_for(dev, n, align, item_cost, parts[dtype], arg);
    return ZB_OK;
}

enum zb_status zb_cpu_scratch_reserve(struct zb_device *dev, size_t bytes)
{
    for (int t = 0; t < dev->n_threads; t++) {
        struct zb_cpu_scratch *s = &dev->scratch[t];
        void *ptr;

        if (s->bytes >= bytes) {
            continue;
        }
        ptr = zb_alloc(bytes);
        if (ptr == NULL) {
            return ZB_ENOMEM;
        }
        zb_free(s->ptr);
        s->ptr = ptr;
        s->bytes = bytes;
    }
    return ZB_OK;
}
