/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zbt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_SLOTS 4
#define PATH_MAX_BYTES 1024

static char *path_slot(void)
{
    static char slots[PATH_SLOTS][PATH_MAX_BYTES];
    static int next;

    next = (next + 1) % PATH_SLOTS;
    return slots[next];
}

int zbt_run(const char *suite_name, const struct zbt_case *cases, size_t n)
{
    const char *only = getenv("ZBT_ONLY");
    CU_pSuite suite;
    unsigned n_bad, n_run;

    if (CU_initialize_registry() != CUE_SUCCESS) {
        return 99;
    }
    suite = CU_add_suite(suite_name, NULL, NULL);
    for (size_t i = 0; suite != NULL && i < n; i++) {
        if (only != NULL && strstr(cases[i].name, only) == NULL) {
            continue;
        }
        if (CU_add_test(suite, cases[i].name, cases[i].fn) == NULL) {
            suite = NULL;
        }
    }
    if (suite == NULL) {
        CU_cleanup_registry();
        return 99;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    n_run = CU_get_number_of_tests_run();
    n_bad = CU_get_number_of_tests_failed();
    CU_cleanup_registry();
    printf("zbt: %s: %u passed, %u failed\n", suite_name, n_run - n_bad, n_bad);
    return n_bad == 0 && n_run > 0 ? 0 : 1;
}

int zbt_ok(enum zb_status st, const char *call, const char *file, int line)
{
    if (st != ZB_OK) {
        printf("\n%s:%d: %s: %s (%s)\n", file, line, call, zb_status_str(st),
               zb_error_text());
    }
    return st == ZB_OK;
}

const char *zbt_source_path(const char *rel)
{
    const char *srcdir = getenv("srcdir");
    char *path = path_slot();

    snprintf(path, PATH_MAX_BYTES, "%s/%s", srcdir != NULL ? srcdir : ".", rel);
    return path;
}

static char scratch_dir[64];

static void remove_scratch_dir(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf '%s'", scratch_dir);
    if (system(command) != 0) {
        fprintf(stderr, "cannot remove %s\n", scratch_dir);
    }
}

const char *zbt_scratch_path(const char *name)
{
    char *path = path_slot();

    if (scratch_dir[0] == '\0') {
        snprintf(scratch_dir, sizeof(scratch_dir), "/tmp/zbt-XXXXXX");
        if (mkdtemp(scratch_dir) == NULL) {
            perror("mkdtemp");
            exit(99);
        }
        atexit(remove_scratch_dir);
    }
    snprintf(path, PATH_MAX_BYTES, "%s/%s", scratch_dir, name);
    return path;
}

int zbt_is_long(void)
{
    return getenv("ZBT_LONG") != NULL;
}

/* splitmix64 (Steele, Lea, Flood 2014). */
unsigned long long zbt_rand(struct zbt_rng *r)
{
    unsigned long long z = (r->state += 0x9e3779b97f4a7c15ULL);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

long zbt_rand_in(struct zbt_rng *r, long lo, long hi)
{
    return lo + (long)(zbt_rand(r) % (unsigned long long)(hi - lo + 1));
}
