/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "run/cost_cache.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "zb/hash.h"
#include "zb/log.h"
#include "zb/mem.h"

/* ---- the key ------------------------------------------------------------- */

#define NAME_MAX_BYTES 128

/* "model name" of the first processor, without its line end. */
static void processor_name(char name[NAME_MAX_BYTES])
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];

    snprintf(name, NAME_MAX_BYTES, "unknown");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        const char *colon = strchr(line, ':');

        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            snprintf(name, NAME_MAX_BYTES, "%.*s",
                     (int)strcspn(colon + 1, "\n") - 1, colon + 2);
            break;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
}

static int n_cores(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
}

static enum zb_status append_kinds(const struct zb_layer_kinds *kinds,
                                   char **key)
{
    for (int k = 0; k < kinds->n_kinds; k++) {
        char *longer = zb_format("%s %016" PRIx64 "x%d", *key,
                                 kinds->signature[k], kinds->count[k]);

        zb_free(*key);
        *key = longer;
        if (longer == NULL) {
            return ZB_ENOMEM;
        }
    }
    return ZB_OK;
}

enum zb_status zb_cost_key(const struct zb_profile_request *r,
                           const char *backend, const char *what,
                           char **key_out)
{
    char cpu[NAME_MAX_BYTES];
    char *key;

    processor_name(cpu);
    key = zb_format(
        "%s of zbrun %s"
#ifdef HAVE_ONEDNN
        " with onednn"
#endif
        "; %s, %s, %d cores, %d devices of %d threads; %zu byte reals, "
        "optimizer state %zu, %lld rows of %lld; layers",
        what, PACKAGE_VERSION, backend, cpu, n_cores(), r->o->n_stages,
        r->o->threads_per_device, sizeof(zb_real),
        zb_optim_state_reals(&r->o->optim),
        (long long)r->max.value[ZB_SYM_BATCH],
        (long long)r->max.value[ZB_SYM_SEQ]);
    if (key == NULL) {
        return ZB_ENOMEM;
    }
    ZB_TRY(append_kinds(r->kinds, &key));
    *key_out = key;
    return ZB_OK;
}

char *zb_cost_cache_path(const char *dir, const char *key)
{
    return zb_format("%s/costs-%016" PRIx64 ".json", dir,
                     zb_hash(key, strlen(key)));
}

/* ---- reading ------------------------------------------------------------- */

/* NULL, or why the file is not to be used. */
static const char *take_values(const json_t *root, const char *key, double *v,
                               size_t n)
{
    const char *its_key = json_string_value(json_object_get(root, "key"));
    const json_t *list = json_object_get(root, "values");

    if (its_key == NULL || strcmp(its_key, key) != 0) {
        return "it is of something else";
    }
    if (!json_is_array(list) || json_array_size(list) != n) {
        return "it has no list of values as long as expected";
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(list, i);

        v[i] = json_is_null(x) ? NAN : json_number_value(x);
        if (!json_is_null(x) &&
            (!json_is_number(x) || !isfinite(v[i]) || v[i] < 0)) {
            return "a value is not a number >= 0";
        }
    }
    return NULL;
}

static int load_file(const char *path, const char *key, double *v, size_t n)
{
    FILE *f = fopen(path, "re");
    json_error_t error;
    json_t *root;
    const char *why;

    if (f == NULL) {
        if (errno != ENOENT) {
            zb_log(ZB_LOG_INFO, "%s: not used: %s", path, strerror(errno));
        }
        return 0;
    }
    root = json_loadf(f, JSON_REJECT_DUPLICATES, &error);
    fclose(f);
    why = root == NULL ? error.text : take_values(root, key, v, n);
    if (why != NULL) {
        zb_log(ZB_LOG_INFO, "%s: not used: %s", path, why);
    }
    json_decref(root);
    return why == NULL;
}

enum zb_status zb_cost_cache_load(const char *dir, const char *key, double *v,
                                  size_t n, int *is_found_out)
{
    char *path;

    *is_found_out = 0;
    if (dir == NULL) {
        return ZB_OK;
    }
    path = zb_cost_cache_path(dir, key);
    if (path == NULL) {
        return ZB_ENOMEM;
    }
    *is_found_out = load_file(path, key, v, n);
    zb_free(path);
    return ZB_OK;
}

/* ---- writing ------------------------------------------------------------- */

/* A folder and those above it; the file to be made shows whether it worked. */
static void make_dirs(char *path)
{
    for (char *p = path + 1; *p != '\0'; p++) {
        if (*p == '/') {
            *p = '\0';
            (void)mkdir(path, 0777);
            *p = '/';
        }
    }
    (void)mkdir(path, 0777);
}

static json_t *make_json(const char *key, const double *v, size_t n)
{
    json_t *list = json_array();

    for (size_t i = 0; i < n; i++) {
        json_array_append_new(list, isnan(v[i]) ? json_null()
                                                : json_real(v[i]));
    }
    return json_pack("{s:s, s:o}", "key", key, "values", list);
}

/* 0, or errno. */
static int write_file(int fd, const json_t *root)
{
    FILE *f = fdopen(fd, "w");
    int failed;

    if (f == NULL) {
        failed = errno;
        close(fd);
        return failed;
    }
    errno = 0;
    failed = json_dumpf(root, f, JSON_INDENT(1)) != 0 || ferror(f);
    failed = fclose(f) != 0 || failed;
    return failed ? (errno != 0 ? errno : EIO) : 0;
}

static int replace_file(char *temp, const char *path, const json_t *root)
{
    int fd = mkstemp(temp), failed;

    if (fd < 0) {
        return errno;
    }
    failed = write_file(fd, root);
    if (failed == 0 && rename(temp, path) != 0) {
        failed = errno;
    }
    if (failed != 0) {
        (void)unlink(temp);
    }
    return failed;
}

enum zb_status zb_cost_cache_store(const char *dir, const char *key,
                                   const double *v, size_t n)
{
    char *folder, *path, *temp;
    enum zb_status st = ZB_ENOMEM;

    if (dir == NULL) {
        return ZB_OK;
    }
    folder = zb_strdup(dir);
    path = zb_cost_cache_path(dir, key);
    temp = zb_format("%s/.costs-XXXXXX", dir);
    if (folder != NULL && path != NULL && temp != NULL) {
        json_t *root = make_json(key, v, n);
        int failed = ENOMEM;

        make_dirs(folder);
        if (root != NULL) {
            failed = replace_file(temp, path, root);
        }
        if (failed != 0) {
            zb_log(ZB_LOG_DEBUG, "%s: measured costs are not kept: %s", path,
                   strerror(failed));
        }
        json_decref(root);
        st = ZB_OK;
    }
    zb_free(temp);
    zb_free(path);
    zb_free(folder);
    return st;
}
