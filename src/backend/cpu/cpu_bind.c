/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <hwloc.h>
#include <string.h>

#include "backend/cpu/cpu_int.h"

/* Core number `i` of those of which this process may use a part. */
static hwloc_obj_t core_at(const struct zb_cpu_binder *b, int i)
{
    hwloc_obj_t core = NULL;

    while ((core = hwloc_get_next_obj_by_type(b->topo, HWLOC_OBJ_CORE, core)) !=
           NULL) {
        if (hwloc_bitmap_intersects(core->cpuset, b->allowed) && i-- == 0) {
            return core;
        }
    }
    return NULL;
}

/* Bind only a run that takes every core: another process could have been given
 * the same first cores, and the scheduler places fewer threads well enough. */
static int read_machine(struct zb_cpu_binder *b, int n_cores)
{
    if (hwloc_topology_init(&b->topo) != 0) {
        b->topo = NULL;
        return 0;
    }
    b->allowed = hwloc_bitmap_alloc();
    return b->allowed != NULL && hwloc_topology_load(b->topo) == 0 &&
           hwloc_get_cpubind(b->topo, b->allowed, HWLOC_CPUBIND_THREAD) == 0 &&
           core_at(b, n_cores - 1) != NULL && core_at(b, n_cores) == NULL;
}

void zb_cpu_binder_init(struct zb_cpu_binder *b, int n_devices,
                        int threads_per_device)
{
    int n_cores;

    memset(b, 0, sizeof(*b));
    b->threads_per_device = threads_per_device;
    if (__builtin_mul_overflow(n_devices, threads_per_device, &n_cores) ||
        !read_machine(b, n_cores)) {
        zb_cpu_binder_release(b);
    }
}

void zb_cpu_binder_release(struct zb_cpu_binder *b)
{
    hwloc_bitmap_free(b->allowed);
    if (b->topo != NULL) {
        hwloc_topology_destroy(b->topo);
    }
    b->allowed = NULL;
    b->topo = NULL;
}

void *zb_cpu_bind(const struct zb_cpu_binder *b, int index)
{
    hwloc_cpuset_t before, set;
    int ok;

    if (b->topo == NULL) {
        return NULL;
    }
    before = hwloc_bitmap_alloc();
    set = hwloc_bitmap_alloc();
    ok = before != NULL && set != NULL &&
         hwloc_get_cpubind(b->topo, before, HWLOC_CPUBIND_THREAD) == 0;
    for (int i = 0; ok && i < b->threads_per_device; i++) {
        hwloc_obj_t core = core_at(b, index * b->threads_per_device + i);

        ok = core != NULL && hwloc_bitmap_or(set, set, core->cpuset) == 0;
    }
    ok = ok && hwloc_bitmap_and(set, set, b->allowed) == 0 &&
         hwloc_set_cpubind(b->topo, set, HWLOC_CPUBIND_THREAD) == 0;
    hwloc_bitmap_free(set);
    if (!ok) {
        hwloc_bitmap_free(before);
        return NULL;
    }
    return before;
}

void zb_cpu_unbind(const struct zb_cpu_binder *b, void *before)
{
    if (before != NULL) {
        (void)hwloc_set_cpubind(b->topo, before, HWLOC_CPUBIND_THREAD);
        hwloc_bitmap_free(before);
    }
}
