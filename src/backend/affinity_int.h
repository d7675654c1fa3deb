/* SPDX-License-Identifier: MIT
 *
 * Where the threads of a backend's devices run: the cores that are theirs, or
 * those near their GPU. Memory follows: what a bound thread touches first lies
 * near it, unless the user's own policy (numactl) says otherwise.
 *
 * The user's choice comes first: nothing is bound when OpenMP was told to bind
 * or not to, and never outside of the CPUs that the calling thread may use when
 * the backend is opened.
 *
 * Threads: made and freed by one; the others only read.
 */
#ifndef ZB_AFFINITY_INT_H
#define ZB_AFFINITY_INT_H

#include <hwloc.h>

#include "zb/backend.h"

struct zb_affinity_opts {
    int n_devices;
    int threads_per_device;
    /* [n_devices] of the GPUs, "0000:65:00.0"; NULL: devices are cores. */
    const char *const *pci;
};

enum zb_affinity_why {
    ZB_AFFINITY_BOUND,
    ZB_AFFINITY_USER,        /* environment variables of OpenMP */
    ZB_AFFINITY_NO_TOPOLOGY, /* the machine can not be read */
    ZB_AFFINITY_NOT_ALL,     /* the devices do not take all cores */
    ZB_AFFINITY_NO_PCI,      /* the GPU is not on the machine's map */
    ZB_AFFINITY_NONE_NEAR,   /* no CPU near the GPU may be used */
    ZB_AFFINITY_ALL_NEAR     /* all that may be used are as near */
};

/* Which of the CPUs `allowed` each device is to be bound to: into set[i] and
 * why[i], both [n_devices]. The sets are the caller's, and left empty where
 * nothing is bound. Looks at nothing but its arguments. Without GPUs each
 * device gets cores of its own, and only when together they take every core (or
 * every hardware thread; neighbours are those of one core):
 * another process could have been given the same first ones, and the system
 * places fewer threads well enough. A GPU's thread gets all CPUs near it. */
void zb_affinity_map(hwloc_topology_t topo, hwloc_const_cpuset_t allowed,
                     const struct zb_affinity_opts *o, hwloc_cpuset_t *set,
                     enum zb_affinity_why *why);

/* Read the machine and map the devices. ZB_ENOMEM; a machine that can not be
 * read is no error: nothing will be bound. */
enum zb_status zb_affinity_new(const struct zb_affinity_opts *o,
                               struct zb_affinity **a_out) ZB_CHECKED;
void zb_affinity_free(struct zb_affinity *a);

/* Bind the calling thread as device `index` is; returns what undo needs, or
 * NULL when it was not bound. */
void *zb_affinity_bind(const struct zb_affinity *a, int index);
void zb_affinity_undo(const struct zb_affinity *a, void *before);

/* For people: "bound to CPUs 0-7, memory node 0" or why not. */
void zb_affinity_text(const struct zb_affinity *a, int index, char *text,
                      size_t size);

#endif
