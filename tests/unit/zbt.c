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

static int is_named(const struct zbt_case *c)
{
    const char *only = getenv("ZBT_ONLY");

    return only == NULL || strstr(c->name, only) != NULL;
}

/* The part that ZBT_PART=i/n names, of at most as many parts as cases. */
struct part {
    size_t i, n;
};

static int get_part(const struct zbt_case *cases, size_t n_cases,
                    struct part *out)
{
    const char *text = getenv("ZBT_PART");
    size_t n_named = 0;
    char end;

    *out = (struct part){0, 1};
    if (text == NULL) {
        return 1;
    }
    if (sscanf(text, "%zu/%zu%c", &out->i, &out->n, &end) != 2 || out->n == 0) {
        fprintf(stderr, "ZBT_PART=%s is not i/n\n", text);
        return 0;
    }
    for (size_t k = 0; k < n_cases; k++) {
        n_named += is_named(&cases[k]);
    }
    out->n = n_named > 0 && n_named < out->n ? n_named : out->n;
    out->i %= out->n;
    return 1;
}

static int add_cases(CU_pSuite suite, const struct zbt_case *cases, size_t n)
{
    struct part part;
    size_t at = 0;

    if (suite == NULL || !get_part(cases, n, &part)) {
        return 0;
    }
    for (size_t k = 0; k < n; k++) {
        if (is_named(&cases[k]) && at++ % part.n == part.i &&
            CU_add_test(suite, cases[k].name, cases[k].fn) == NULL) {
            return 0;
        }
    }
    return 1;
}

int zbt_run(const char *suite_name, const struct zbt_case *cases, size_t n)
{
    unsigned n_bad, n_run;

    if (CU_initialize_registry() != CUE_SUCCESS) {
        return 99;
    }
    if (!add_cases(CU_add_suite(suite_name, NULL, NULL), cases, n)) {
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
