/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "backend/affinity_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/mem.h"

struct zb_affinity {
    hwloc_topology_t topo; /* NULL: not read */
    int n_devices;
    hwloc_cpuset_t *set; /* [n_devices]; empty: not bound */
    enum zb_affinity_why *why;
    const char *variable; /* of the environment: ZB_AFFINITY_USER */
};

/* ---- the map ------------------------------------------------------------- */

/* Number `i` of the cores, or hardware threads, of which this process may use a
 * part. */
static hwloc_obj_t place_at(hwloc_topology_t topo, hwloc_const_cpuset_t allowed,
                            hwloc_obj_type_t type, int i)
{
    hwloc_obj_t obj = NULL;

    while ((obj = hwloc_get_next_obj_by_type(topo, type, obj)) != NULL) {
        if (hwloc_bitmap_intersects(obj->cpuset, allowed) && i-- == 0) {
            return obj;
        }
    }
    return NULL;
}

static int is_all(hwloc_topology_t topo, hwloc_const_cpuset_t allowed,
                  hwloc_obj_type_t type, int n)
{
    return place_at(topo, allowed, type, n - 1) != NULL &&
           place_at(topo, allowed, type, n) == NULL;
}

static void map_cores(hwloc_topology_t topo, hwloc_const_cpuset_t allowed,
                      const struct zb_affinity_opts *o, hwloc_cpuset_t *set,
                      enum zb_affinity_why *why)
{
    int n_threads, n = o->threads_per_device, takes_all = 0;
    hwloc_obj_type_t type = HWLOC_OBJ_CORE;

    if (!__builtin_mul_overflow(o->n_devices, n, &n_threads)) {
        takes_all = is_all(topo, allowed, type, n_threads);
        if (!takes_all) {
            type = HWLOC_OBJ_PU;
            takes_all = is_all(topo, allowed, type, n_threads);
        }
    }
    for (int i = 0; i < o->n_devices; i++) {
        why[i] = takes_all ? ZB_AFFINITY_BOUND : ZB_AFFINITY_NOT_ALL;
        for (int k = 0; takes_all && k < n; k++) {
            hwloc_bitmap_or(set[i], set[i],
                            place_at(topo, allowed, type, i * n + k)->cpuset);
        }
        hwloc_bitmap_and(set[i], set[i], allowed);
    }
}

static enum zb_affinity_why map_gpu(hwloc_topology_t topo,
                                    hwloc_const_cpuset_t allowed,
                                    const char *pci, hwloc_cpuset_t set)
{
    hwloc_obj_t gpu = hwloc_get_pcidev_by_busidstring(topo, pci);
    hwloc_obj_t near =
        gpu != NULL ? hwloc_get_non_io_ancestor_obj(topo, gpu) : NULL;

    if (near == NULL || near->cpuset == NULL) {
        return ZB_AFFINITY_NO_PCI;
    }
    if (hwloc_bitmap_isincluded(allowed, near->cpuset)) {
        return ZB_AFFINITY_ALL_NEAR;
    }
    hwloc_bitmap_and(set, near->cpuset, allowed);
    return hwloc_bitmap_iszero(set) ? ZB_AFFINITY_NONE_NEAR : ZB_AFFINITY_BOUND;
}

void zb_affinity_map(hwloc_topology_t topo, hwloc_const_cpuset_t allowed,
                     const struct zb_affinity_opts *o, hwloc_cpuset_t *set,
                     enum zb_affinity_why *why)
{
    for (int i = 0; i < o->n_devices; i++) {
        hwloc_bitmap_zero(set[i]);
    }
    if (o->pci == NULL) {
        map_cores(topo, allowed, o, set, why);
        return;
    }
    for (int i = 0; i < o->n_devices; i++) {
        why[i] = map_gpu(topo, allowed, o->pci[i], set[i]);
    }
}

/* ---- this machine -------------------------------------------------------- */

/* OpenMP's word on binding, or NULL. Where it binds, it has bound the first
 * thread already, and teams to cores in its own order. */
static const char *users_choice(void)
{
    static const char *const names[] = {"OMP_PROC_BIND", "OMP_PLACES",
                                        "GOMP_CPU_AFFINITY", "KMP_AFFINITY"};

    for (size_t i = 0; i < ZB_COUNT_OF(names); i++) {
        const char *value = getenv(names[i]);

        if (value != NULL && value[0] != '\0') {
            return names[i];
        }
    }
    return NULL;
}

/* PCI devices, but nothing that hwloc would have to ask a GPU's driver for. */
static int load(struct zb_affinity *a, int has_gpus)
{
    static const hwloc_obj_type_t io[] = {HWLOC_OBJ_BRIDGE,
                                          HWLOC_OBJ_PCI_DEVICE};

    if (hwloc_topology_init(&a->topo) != 0) {
        a->topo = NULL;
        return 0;
    }
    for (size_t i = 0; has_gpus && i < ZB_COUNT_OF(io); i++) {
        if (hwloc_topology_set_type_filter(
                a->topo, io[i], HWLOC_TYPE_FILTER_KEEP_IMPORTANT) != 0) {
            return 0;
        }
    }
    return hwloc_topology_load(a->topo) == 0;
}

static int read_machine(struct zb_affinity *a, const struct zb_affinity_opts *o)
{
    hwloc_cpuset_t allowed = hwloc_bitmap_alloc();
    int ok = allowed != NULL && load(a, o->pci != NULL) &&
             hwloc_get_cpubind(a->topo, allowed, HWLOC_CPUBIND_THREAD) == 0;

    if (ok) {
        zb_affinity_map(a->topo, allowed, o, a->set, a->why);
    }
    hwloc_bitmap_free(allowed);
    return ok;
}

static void map_none(struct zb_affinity *a, enum zb_affinity_why why)
{
    for (int i = 0; i < a->n_devices; i++) {
        hwloc_bitmap_zero(a->set[i]);
        a->why[i] = why;
    }
}

enum zb_status zb_affinity_new(const struct zb_affinity_opts *o,
                               struct zb_affinity **a_out)
{
    struct zb_affinity *a = zb_alloc(sizeof(*a));
    size_t n = (size_t)o->n_devices;

    if (a == NULL) {
        return ZB_ENOMEM;
    }
    a->set = zb_alloc_array(n, sizeof(*a->set));
    a->why = zb_alloc_array(n, sizeof(*a->why));
    if (a->set == NULL || a->why == NULL) {
        zb_affinity_free(a);
        return ZB_ENOMEM;
    }
    for (; a->n_devices < o->n_devices; a->n_devices++) {
        a->set[a->n_devices] = hwloc_bitmap_alloc();
        if (a->set[a->n_devices] == NULL) {
            zb_affinity_free(a);
            return zb_fail(ZB_ENOMEM, "no memory for sets of CPUs");
        }
    }
    a->variable = users_choice();
    if (a->variable != NULL) {
        map_none(a, ZB_AFFINITY_USER);
    } else if (!read_machine(a, o)) {
        map_none(a, ZB_AFFINITY_NO_TOPOLOGY);
    }
    *a_out = a;
    return ZB_OK;
}

void zb_affinity_free(struct zb_affinity *a)
{
    if (a == NULL) {
        return;
    }
    for (int i = 0; i < a->n_devices; i++) {
        hwloc_bitmap_free(a->set[i]);
    }
    if (a->topo != NULL) {
        hwloc_topology_destroy(a->topo);
    }
    zb_free(a->set);
    zb_free(a->why);
    zb_free(a);
}

/* ---- threads ------------------------------------------------------------- */

void *zb_affinity_bind(const struct zb_affinity *a, int index)
{
    hwloc_cpuset_t before;

    if (a == NULL || a->why[index] != ZB_AFFINITY_BOUND) {
        return NULL;
    }
    before = hwloc_bitmap_alloc();
    if (before != NULL &&
        hwloc_get_cpubind(a->topo, before, HWLOC_CPUBIND_THREAD) == 0 &&
        hwloc_set_cpubind(a->topo, a->set[index], HWLOC_CPUBIND_THREAD) == 0) {
        return before;
    }
    hwloc_bitmap_free(before);
    return NULL;
}

void zb_affinity_undo(const struct zb_affinity *a, void *before)
{
    if (before != NULL) {
        (void)hwloc_set_cpubind(a->topo, before, HWLOC_CPUBIND_THREAD);
        hwloc_bitmap_free(before);
    }
}

/* ---- for people ---------------------------------------------------------- */

/* ", memory node 0"; nothing where the set has no memory of its own. */
static void add_nodes(const struct zb_affinity *a, int index, char *text,
                      size_t size)
{
    hwloc_nodeset_t nodes = hwloc_bitmap_alloc();
    size_t len = strlen(text);
    char list[128];

    if (nodes != NULL) {
        hwloc_cpuset_to_nodeset(a->topo, a->set[index], nodes);
        hwloc_bitmap_list_snprintf(list, sizeof(list), nodes);
        snprintf(text + len, size - len, ", memory node %s", list);
    }
    hwloc_bitmap_free(nodes);
}

void zb_affinity_text(const struct zb_affinity *a, int index, char *text,
                      size_t size)
{
    static const char *const why_not[] = {
        [ZB_AFFINITY_NO_TOPOLOGY] = "the machine's CPUs can not be read",
        [ZB_AFFINITY_NOT_ALL] = "the devices do not take all cores",
        [ZB_AFFINITY_NO_PCI] = "its GPU's place in the machine is not known",
        [ZB_AFFINITY_NONE_NEAR] = "no CPU near its GPU may be used",
        [ZB_AFFINITY_ALL_NEAR] = "all CPUs are as near to its GPU",
    };
    char list[256];

    switch (a->why[index]) {
    case ZB_AFFINITY_BOUND:
        hwloc_bitmap_list_snprintf(list, sizeof(list), a->set[index]);
        snprintf(text, size, "bound to CPUs %s", list);
        add_nodes(a, index, text, size);
        break;
    case ZB_AFFINITY_USER:
        snprintf(text, size, "not bound: %s is set", a->variable);
        break;
    default:
        snprintf(text, size, "not bound: %s", why_not[a->why[index]]);
    }
}
