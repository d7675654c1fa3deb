/* SPDX-License-Identifier: MIT
 *
 * Where threads are bound, on machines that exist only as a description. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/affinity_int.h"
#include "zbt.h"
#include "zb/mem.h"

#define MAX_DEVICES 16

/* ---- machines ------------------------------------------------------------ */

static hwloc_topology_t synthetic(const char *what)
{
    hwloc_topology_t topo;

    CU_ASSERT_FATAL(hwloc_topology_init(&topo) == 0);
    CU_ASSERT_FATAL(hwloc_topology_set_synthetic(topo, what) == 0);
    CU_ASSERT_FATAL(hwloc_topology_load(topo) == 0);
    return topo;
}

/* Two packages with a memory node, four cores and two GPUs each, on buses 0x10,
 * 0x20 and 0x90, 0xa0; the second package's are behind a switch. GPU c0 hangs
 * on the machine itself. */
static void put_gpu(FILE *f, int bus)
{
    fprintf(f,
            "<object type=\"PCIDev\" pci_busid=\"0000:%02x:00.0\" "
            "pci_type=\"0302 [10de:2330] [10de:16c1] a1\" "
            "pci_link_speed=\"63.0\"/>\n",
            bus);
}

static void put_bridge(FILE *f, const char *type, int bus, int last)
{
    fprintf(f,
            "<object type=\"Bridge\" bridge_type=\"%s\" depth=\"%d\" "
            "bridge_pci=\"0000:[%02x-%02x]\"%s>\n",
            type, type[0] == '0' ? 0 : 1, bus, last,
            type[0] == '0' ? ""
                           : " pci_busid=\"0000:8f:00.0\" pci_type=\"0604 "
                             "[1000:c030] [1000:100b] b0\" "
                             "pci_link_speed=\"63.0\"");
}

static void put_package(FILE *f, int package)
{
    int set = package == 0 ? 0x0f : 0xf0;

    fprintf(f,
            "<object type=\"Package\" os_index=\"%d\" cpuset=\"%#x\" "
            "complete_cpuset=\"%#x\" nodeset=\"%#x\" "
            "complete_nodeset=\"%#x\">\n<object type=\"NUMANode\" "
            "os_index=\"%d\" cpuset=\"%#x\" complete_cpuset=\"%#x\" "
            "nodeset=\"%#x\" complete_nodeset=\"%#x\" "
            "local_memory=\"1073741824\"/>\n",
            package, set, set, 1 << package, 1 << package, package, set, set,
            1 << package, 1 << package);
    for (int i = 4 * package; i < 4 * package + 4; i++) {
        const char *const type[] = {"Core", "PU"};

        for (int k = 0; k < 2; k++) {
            fprintf(f,
                    "<object type=\"%s\" os_index=\"%d\" cpuset=\"%#x\" "
                    "complete_cpuset=\"%#x\" nodeset=\"%#x\" "
                    "complete_nodeset=\"%#x\"%s>\n",
                    type[k], i, 1 << i, 1 << i, 1 << package, 1 << package,
                    k == 1 ? "/" : "");
        }
        fputs("</object>\n", f);
    }
    if (package == 0) {
        put_bridge(f, "0-1", 0x00, 0x7f);
        put_gpu(f, 0x10);
        put_gpu(f, 0x20);
        fputs("</object>\n", f);
    } else {
        put_bridge(f, "0-1", 0x80, 0xbf);
        put_bridge(f, "1-1", 0x90, 0xaf);
        put_gpu(f, 0x90);
        put_gpu(f, 0xa0);
        fputs("</object>\n</object>\n", f);
    }
    fputs("</object>\n", f);
}

static hwloc_topology_t two_packages(void)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    hwloc_topology_t topo;

    CU_ASSERT_FATAL(f != NULL);
    fputs("<?xml version=\"1.0\"?>\n<topology version=\"2.0\">\n<object "
          "type=\"Machine\" os_index=\"0\" cpuset=\"0xff\" "
          "complete_cpuset=\"0xff\" allowed_cpuset=\"0xff\" nodeset=\"0x3\" "
          "complete_nodeset=\"0x3\" allowed_nodeset=\"0x3\">\n",
          f);
    put_package(f, 0);
    put_package(f, 1);
    put_bridge(f, "0-1", 0xc0, 0xff);
    put_gpu(f, 0xc0);
    fputs("</object>\n</object>\n</topology>\n", f);
    CU_ASSERT_FATAL(fclose(f) == 0);
    CU_ASSERT_FATAL(hwloc_topology_init(&topo) == 0);
    CU_ASSERT_FATAL(hwloc_topology_set_io_types_filter(
                        topo, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) == 0);
    CU_ASSERT_FATAL(hwloc_topology_set_xmlbuffer(topo, text, (int)n + 1) == 0);
    CU_ASSERT_FATAL(hwloc_topology_load(topo) == 0);
    free(text);
    return topo;
}

/* ---- what is mapped ------------------------------------------------------ */

/* The devices' sets as lists with spaces between them, "-" for none. */
static const char *map(hwloc_topology_t topo, const char *allowed,
                       const struct zb_affinity_opts *o,
                       enum zb_affinity_why *why)
{
    static char text[1024];
    hwloc_cpuset_t set[MAX_DEVICES], may = hwloc_bitmap_alloc();
    size_t len = 0;

    CU_ASSERT_FATAL(hwloc_bitmap_list_sscanf(may, allowed) == 0);
    for (int i = 0; i < o->n_devices; i++) {
        set[i] = hwloc_bitmap_alloc_full();
    }
    zb_affinity_map(topo, may, o, set, why);
    text[0] = '\0';
    for (int i = 0; i < o->n_devices; i++) {
        char list[128];

        hwloc_bitmap_list_snprintf(list, sizeof(list), set[i]);
        CU_ASSERT(hwloc_bitmap_iszero(set[i]) == (why[i] != ZB_AFFINITY_BOUND));
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s",
                                i > 0 ? " " : "", list[0] ? list : "-");
        hwloc_bitmap_free(set[i]);
    }
    hwloc_bitmap_free(may);
    return text;
}

static int maps(hwloc_topology_t topo, const char *allowed, int n_devices,
                int n_threads, const char *want)
{
    const struct zb_affinity_opts o = {.n_devices = n_devices,
                                       .threads_per_device = n_threads};
    enum zb_affinity_why why[MAX_DEVICES];
    const char *got = map(topo, allowed, &o, why);

    if (strcmp(got, want) != 0) {
        printf("\n%d devices of %d on %s: %s, not %s\n", n_devices, n_threads,
               allowed, got, want);
    }
    return strcmp(got, want) == 0;
}

static void devices_that_take_all_cores_get_their_own(void)
{
    hwloc_topology_t topo = synthetic("node:2 core:4 pu:1");

    CU_ASSERT(maps(topo, "0-7", 4, 2, "0-1 2-3 4-5 6-7"));
    CU_ASSERT(maps(topo, "0-7", 8, 1, "0 1 2 3 4 5 6 7"));
    CU_ASSERT(maps(topo, "0-7", 1, 8, "0-7"));
    hwloc_topology_destroy(topo);
}

static void other_numbers_of_threads_are_left_to_the_system(void)
{
    hwloc_topology_t topo = synthetic("node:2 core:4 pu:1");

    CU_ASSERT(maps(topo, "0-7", 3, 2, "- - -"));
    CU_ASSERT(maps(topo, "0-7", 9, 1, "- - - - - - - - -"));
    CU_ASSERT(maps(topo, "0-7", 2, 1 << 30, "- -"));
    hwloc_topology_destroy(topo);
}

static void cores_with_two_hardware_threads_are_divided_either_way(void)
{
    hwloc_topology_t topo = synthetic("core:4 pu:2");

    CU_ASSERT(maps(topo, "0-7", 2, 2, "0-3 4-7"));
    CU_ASSERT(maps(topo, "0-7", 2, 4, "0-3 4-7"));
    CU_ASSERT(maps(topo, "0-7", 8, 1, "0 1 2 3 4 5 6 7"));
    CU_ASSERT(maps(topo, "0-7", 2, 3, "- -"));
    hwloc_topology_destroy(topo);
}

static void process_of_a_few_cpus_stays_on_them(void)
{
    hwloc_topology_t topo = synthetic("core:4 pu:2");

    CU_ASSERT(maps(topo, "2-5", 2, 1, "2-3 4-5"));
    CU_ASSERT(maps(topo, "0,2,4,6", 2, 2, "0,2 4,6"));
    CU_ASSERT(maps(topo, "2-5", 4, 1, "2 3 4 5"));
    CU_ASSERT(maps(topo, "2-5", 2, 4, "- -"));
    hwloc_topology_destroy(topo);
}

/* ---- GPUs ---------------------------------------------------------------- */

#define GPU(bus) "0000:" bus ":00.0"

static int maps_gpus(hwloc_topology_t topo, const char *allowed,
                     const char *const *pci, int n, const char *want,
                     enum zb_affinity_why *why)
{
    const struct zb_affinity_opts o = {
        .n_devices = n, .threads_per_device = 1, .pci = pci};
    const char *got = map(topo, allowed, &o, why);

    if (strcmp(got, want) != 0) {
        printf("\nGPUs on %s: %s, not %s\n", allowed, got, want);
    }
    return strcmp(got, want) == 0;
}

static void thread_of_a_gpu_gets_the_cpus_of_its_package(void)
{
    static const char *const pci[] = {GPU("10"), GPU("a0"), GPU("20"),
                                      GPU("90")};
    enum zb_affinity_why why[MAX_DEVICES];
    hwloc_topology_t topo = two_packages();

    CU_ASSERT(maps_gpus(topo, "0-7", pci, 4, "0-3 4-7 0-3 4-7", why));
    CU_ASSERT(maps_gpus(topo, "0-7", pci + 1, 1, "4-7", why));
    hwloc_topology_destroy(topo);
}

static void gpu_shared_by_devices_is_near_to_all_of_them(void)
{
    static const char *const pci[] = {GPU("90"), GPU("90")};
    enum zb_affinity_why why[MAX_DEVICES];
    hwloc_topology_t topo = two_packages();

    CU_ASSERT(maps_gpus(topo, "0-7", pci, 2, "4-7 4-7", why));
    hwloc_topology_destroy(topo);
}

static void restricted_process_keeps_to_its_cpus(void)
{
    static const char *const pci[] = {GPU("10"), GPU("90")};
    enum zb_affinity_why why[MAX_DEVICES];
    hwloc_topology_t topo = two_packages();

    CU_ASSERT(maps_gpus(topo, "2-5", pci, 2, "2-3 4-5", why));
    /* All that is left is near one GPU, nothing near the other. */
    CU_ASSERT(maps_gpus(topo, "1-2", pci, 2, "- -", why));
    CU_ASSERT_EQUAL(why[0], ZB_AFFINITY_ALL_NEAR);
    CU_ASSERT_EQUAL(why[1], ZB_AFFINITY_NONE_NEAR);
    hwloc_topology_destroy(topo);
}

static void gpu_without_a_place_is_left_to_the_system(void)
{
    static const char *const pci[] = {GPU("77"), "", "fffe:01:00.0", GPU("c0"),
                                      GPU("10")};
    enum zb_affinity_why why[MAX_DEVICES];
    hwloc_topology_t topo = two_packages();

    CU_ASSERT(maps_gpus(topo, "0-7", pci, 5, "- - - - 0-3", why));
    CU_ASSERT_EQUAL(why[0], ZB_AFFINITY_NO_PCI);
    CU_ASSERT_EQUAL(why[1], ZB_AFFINITY_NO_PCI);
    CU_ASSERT_EQUAL(why[2], ZB_AFFINITY_NO_PCI);
    CU_ASSERT_EQUAL(why[3], ZB_AFFINITY_ALL_NEAR);
    hwloc_topology_destroy(topo);
}

/* ---- this machine -------------------------------------------------------- */

/* One device that takes all there is: on any machine. */
static int n_allowed(void)
{
    hwloc_topology_t topo = NULL;
    hwloc_cpuset_t set = hwloc_bitmap_alloc();
    int n;

    CU_ASSERT_FATAL(hwloc_topology_init(&topo) == 0);
    CU_ASSERT_FATAL(hwloc_topology_load(topo) == 0);
    CU_ASSERT_FATAL(hwloc_get_cpubind(topo, set, HWLOC_CPUBIND_THREAD) == 0);
    n = hwloc_bitmap_weight(set);
    hwloc_bitmap_free(set);
    hwloc_topology_destroy(topo);
    return n;
}

static void binding_text(int n_threads, char *text, size_t size)
{
    const struct zb_affinity_opts o = {.n_devices = 1,
                                       .threads_per_device = n_threads};
    struct zb_affinity *a = NULL;

    ZBT_OK(zb_affinity_new(&o, &a));
    zb_affinity_text(a, 0, text, size);
    zb_affinity_undo(a, zb_affinity_bind(a, 0));
    zb_affinity_free(a);
}

static void what_is_bound_is_said(void)
{
    char text[256];

    binding_text(n_allowed(), text, sizeof(text));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "bound to CPUs "));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, ", memory node "));
    binding_text(n_allowed() + 1, text, sizeof(text));
    CU_ASSERT_STRING_EQUAL(text,
                           "not bound: the devices do not take all cores");
}

static void openmp_told_to_bind_is_left_alone(void)
{
    char text[256];

    setenv("OMP_PROC_BIND", "close", 1);
    binding_text(n_allowed(), text, sizeof(text));
    CU_ASSERT_STRING_EQUAL(text, "not bound: OMP_PROC_BIND is set");
    unsetenv("OMP_PROC_BIND");
    setenv("OMP_PLACES", "cores", 1);
    binding_text(n_allowed(), text, sizeof(text));
    CU_ASSERT_STRING_EQUAL(text, "not bound: OMP_PLACES is set");
    unsetenv("OMP_PLACES");
}

/* The thread of a device is where the map says, and where it was afterwards. */
static void bound_thread_is_there_and_comes_back(void)
{
    const struct zb_affinity_opts o = {.n_devices = n_allowed(),
                                       .threads_per_device = 1};
    hwloc_cpuset_t before = hwloc_bitmap_alloc(), now = hwloc_bitmap_alloc();
    hwloc_topology_t topo = NULL;
    struct zb_affinity *a = NULL;
    void *undo;

    CU_ASSERT_FATAL(hwloc_topology_init(&topo) == 0);
    CU_ASSERT_FATAL(hwloc_topology_load(topo) == 0);
    hwloc_get_cpubind(topo, before, HWLOC_CPUBIND_THREAD);
    ZBT_OK(zb_affinity_new(&o, &a));
    for (int i = 0; i < o.n_devices; i++) {
        undo = zb_affinity_bind(a, i);
        CU_ASSERT_PTR_NOT_NULL(undo);
        hwloc_get_cpubind(topo, now, HWLOC_CPUBIND_THREAD);
        CU_ASSERT(hwloc_bitmap_isincluded(now, before));
        CU_ASSERT_EQUAL(hwloc_bitmap_weight(now), 1);
        zb_affinity_undo(a, undo);
        hwloc_get_cpubind(topo, now, HWLOC_CPUBIND_THREAD);
        CU_ASSERT(hwloc_bitmap_isequal(now, before));
    }
    zb_affinity_free(a);
    hwloc_bitmap_free(before);
    hwloc_bitmap_free(now);
    hwloc_topology_destroy(topo);
}

static void memory_that_runs_out_is_told(void)
{
    const struct zb_affinity_opts o = {.n_devices = 2, .threads_per_device = 1};
    struct zb_affinity *a = NULL;

    for (uint64_t k = 1; k <= 3; k++) {
        zb_mem_fail_at(k);
        CU_ASSERT_EQUAL(zb_affinity_new(&o, &a), ZB_ENOMEM);
        CU_ASSERT_PTR_NULL(a);
    }
    zb_mem_fail_at(0);
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

int main(void)
{
    static const char *const names[] = {"OMP_PROC_BIND",     "OMP_PLACES",
                                        "GOMP_CPU_AFFINITY", "KMP_AFFINITY",
                                        "HWLOC_SYNTHETIC",   "HWLOC_XMLFILE"};
    static const struct zbt_case cases[] = {
        ZBT_CASE(devices_that_take_all_cores_get_their_own),
        ZBT_CASE(other_numbers_of_threads_are_left_to_the_system),
        ZBT_CASE(cores_with_two_hardware_threads_are_divided_either_way),
        ZBT_CASE(process_of_a_few_cpus_stays_on_them),
        ZBT_CASE(thread_of_a_gpu_gets_the_cpus_of_its_package),
        ZBT_CASE(gpu_shared_by_devices_is_near_to_all_of_them),
        ZBT_CASE(restricted_process_keeps_to_its_cpus),
        ZBT_CASE(gpu_without_a_place_is_left_to_the_system),
        ZBT_CASE(what_is_bound_is_said),
        ZBT_CASE(openmp_told_to_bind_is_left_alone),
        ZBT_CASE(bound_thread_is_there_and_comes_back),
        ZBT_CASE(memory_that_runs_out_is_told),
    };

    /* What the user of this shell wants for other programs. */
    for (size_t i = 0; i < ZB_COUNT_OF(names); i++) {
        unsetenv(names[i]);
    }
    return zbt_run("affinity", cases, ZB_COUNT_OF(cases));
}
