/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "run/cost_cache.h"
#include "run/run_int.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "zb/file.h"
#include "zb/hash.h"
#include "zb/log.h"
#include "zb/machine.h"
#include "zb/mem.h"

/* ---- the key ------------------------------------------------------------- */

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
    const struct zb_backend_opts bo = {
        .n_devices = r->o->n_stages,
        .threads_per_device = r->o->threads_per_device,
        .gpus = r->o->gpus};
    const struct zb_backend_ops *ops;
    char cpu[ZB_PROCESSOR_MAX], hardware[256];
    char *key;

    ZB_TRY(zb_backend_find(backend, &ops));
    ops->describe(&bo, hardware, sizeof(hardware));

    key = zb_format(
        "%s of zbrun %s"
#ifdef HAVE_ONEDNN
        " with onednn"
#endif
        "; %s%s%s, %s, %d cores, %d devices of %d threads; %zu byte reals, %s, "
        "optimizer state %zu, %lld rows of %lld%s; layers",
        what, PACKAGE_VERSION, backend, hardware[0] != '\0' ? " on " : "",
        hardware, zb_processor_name(cpu), n_cores(), r->o->n_stages,
        r->o->threads_per_device, sizeof(zb_real),
        zb_dtype_str(zb_graph_storage(r->g)),
        zb_optim_state_reals(&r->o->optim),
        (long long)r->max.value[ZB_SYM_BATCH],
        (long long)r->max.value[ZB_SYM_SEQ],
        r->o->p2p == ZB_P2P_HOST   ? ", messages through the host"
        : zb_copies_messages(r->o) ? ", messages copied"
                                   : "");
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

static json_t *make_json(const char *key, const double *v, size_t n)
{
    json_t *list = json_array();

    for (size_t i = 0; i < n; i++) {
        json_array_append_new(list, isnan(v[i]) ? json_null()
                                                : json_real(v[i]));
    }
    return json_pack("{s:s, s:o}", "key", key, "values", list);
}

static enum zb_status write_json(const json_t *root, FILE *f)
{
    if (root == NULL) {
        return zb_fail(ZB_ENOMEM, "no memory for JSON");
    }
    return json_dumpf(root, f, JSON_INDENT(1)) == 0
               ? ZB_OK
               : zb_fail(ZB_EIO, "JSON can not be written");
}

static enum zb_status store_file(const char *dir, const char *path,
                                 const json_t *root)
{
    struct zb_sink k;

    ZB_TRY(zb_make_dir(dir));
    ZB_TRY(zb_sink_open(&k, path));
    return zb_sink_close(&k, write_json(root, k.f));
}

enum zb_status zb_cost_cache_store(const char *dir, const char *key,
                                   const double *v, size_t n)
{
    char *path;
    json_t *root;
    enum zb_status st;

    if (dir == NULL) {
        return ZB_OK;
    }
    path = zb_cost_cache_path(dir, key);
    if (path == NULL) {
        return ZB_ENOMEM;
    }
    root = make_json(key, v, n);
    st = store_file(dir, path, root);
    if (st != ZB_OK) {
        zb_log(ZB_LOG_DEBUG, "measured costs are not kept: %s",
               zb_error_text());
    }
    json_decref(root);
    zb_free(path);
    return st == ZB_ENOMEM ? st : ZB_OK;
}
