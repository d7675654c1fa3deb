/* SPDX-License-Identifier: MIT
 *
 * state.json: the counters of a run and the checksums of its files. */
#include "config.h"
#include "ckpt/ckpt_int.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "zb/hash.h"
#include "zb/mem.h"

#define FORMAT "zbrun checkpoint"
#define FORMAT_VERSION 1
#define STATE_MAX_BYTES (64 << 20)

/* Numbers that need all 64 bits or are sums are texts: hexadecimal. */
#define HEX_FORMAT "%016" PRIx64

enum zb_status zb_ckpt_files_add(struct zb_ckpt_files *f, const char *path,
                                 uint64_t bytes, uint64_t sum)
{
    char *copy = zb_strdup(path);
    enum zb_status st = copy == NULL ? ZB_ENOMEM : ZB_OK;

    if (st == ZB_OK) {
        st = zb_grow(&f->file, f->n, &f->cap, sizeof(*f->file));
    }
    if (st != ZB_OK) {
        zb_free(copy);
        return st;
    }
    f->file[f->n++] = (struct zb_ckpt_file){copy, bytes, sum};
    return ZB_OK;
}

void zb_ckpt_files_release(struct zb_ckpt_files *f)
{
    for (size_t i = 0; i < f->n; i++) {
        zb_free(f->file[i].path);
    }
    zb_free(f->file);
    memset(f, 0, sizeof(*f));
}

/* ---- the fields ---------------------------------------------------------- */

static const struct count {
    const char *key;
    size_t offset;
} counts[] = {
    {"step", offsetof(struct zb_ckpt_state, step)},
    {"samples", offsetof(struct zb_ckpt_state, n_samples)},
    {"batches", offsetof(struct zb_ckpt_state, n_batches)},
    {"updates", offsetof(struct zb_ckpt_state, n_updates)},
    {"scale_good", offsetof(struct zb_ckpt_state, n_good)},
    {"scale_overflows", offsetof(struct zb_ckpt_state, n_overflows)},
};

static int64_t *count_of(struct zb_ckpt_state *s, const struct count *c)
{
    return (int64_t *)((char *)s + c->offset);
}

static json_t *hex(uint64_t x)
{
    char text[32];

    snprintf(text, sizeof(text), HEX_FORMAT, x);
    return json_string(text);
}

static int read_hex(const json_t *v, uint64_t *x_out)
{
    const char *text = json_string_value(v);
    char *end;

    if (text == NULL || strlen(text) != 16 ||
        strspn(text, "0123456789abcdef") != 16) {
        return 0;
    }
    *x_out = strtoull(text, &end, 16);
    return 1;
}

/* Of the object without its "sum": the same text for the same values. */
static int sum_of(const json_t *root, uint64_t *sum_out)
{
    char *text = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);
    struct zb_sum sum;

    if (text == NULL) {
        return 0;
    }
    zb_sum_init(&sum);
    zb_sum_add(&sum, text, strlen(text));
    *sum_out = zb_sum_value(&sum);
    free(text);
    return 1;
}

/* ---- writing ------------------------------------------------------------- */

/* Takes the value; counts in *n_failed what was out of memory. */
static void put(json_t *o, const char *key, json_t *value, int *n_failed)
{
    *n_failed += json_object_set_new(o, key, value) != 0;
}

static json_t *print_files(const struct zb_ckpt_files *f, int *n_failed)
{
    json_t *all = json_object();

    for (size_t i = 0; i < f->n; i++) {
        put(all, f->file[i].path,
            json_pack("{s:I, s:o}", "bytes", (json_int_t)f->file[i].bytes,
                      "sum", hex(f->file[i].sum)),
            n_failed);
    }
    return all;
}

static json_t *print_state(const struct zb_ckpt_state *state, int *n_failed)
{
    struct zb_ckpt_state copy = *state;
    json_t *s = json_object();

    for (size_t i = 0; i < ZB_COUNT_OF(counts); i++) {
        put(s, counts[i].key, json_integer(*count_of(&copy, &counts[i])),
            n_failed);
    }
    put(s, "seed", hex(state->seed), n_failed);
    put(s, "optimizer", json_string(state->optimizer), n_failed);
    put(s, "moments", json_integer(state->n_moments), n_failed);
    put(s, "scale", state->has_scale ? json_real(state->scale) : json_null(),
        n_failed);
    return s;
}

enum zb_status zb_ckpt_state_print(const struct zb_ckpt_state *state,
                                   const struct zb_ckpt_files *files,
                                   char **text_out)
{
    json_t *root = json_object();
    uint64_t sum = 0;
    char *text = NULL;
    int n_failed = 0;

    put(root, "format", json_string(FORMAT), &n_failed);
    put(root, "version", json_integer(FORMAT_VERSION), &n_failed);
    put(root, "state", print_state(state, &n_failed), &n_failed);
    put(root, "files", print_files(files, &n_failed), &n_failed);
    if (n_failed == 0 && sum_of(root, &sum)) {
        put(root, "sum", hex(sum), &n_failed);
        text = n_failed == 0 ? json_dumps(root, JSON_INDENT(2)) : NULL;
    }
    json_decref(root);
    *text_out = text != NULL ? zb_format("%s\n", text) : NULL;
    free(text);
    return *text_out != NULL ? ZB_OK : zb_fail(ZB_ENOMEM, "out of host memory");
}

/* ---- reading ------------------------------------------------------------- */

static enum zb_status bad(const char *path, const char *what)
{
    return zb_fail(ZB_ECONFIG, "%s: %s", path, what);
}

static enum zb_status read_scale(const char *path, const json_t *v,
                                 struct zb_ckpt_state *out)
{
    out->has_scale = json_is_number(v);
    out->scale = json_number_value(v);
    if (!out->has_scale) {
        return json_is_null(v) ? ZB_OK : bad(path, "no scale");
    }
    return isfinite(out->scale) && out->scale > 0
               ? ZB_OK
               : bad(path, "the scale is out of range");
}

static enum zb_status read_state(const char *path, const json_t *s,
                                 struct zb_ckpt_state *out)
{
    const char *optimizer = json_string_value(json_object_get(s, "optimizer"));
    const json_t *moments = json_object_get(s, "moments");

    for (size_t i = 0; i < ZB_COUNT_OF(counts); i++) {
        const json_t *v = json_object_get(s, counts[i].key);

        if (!json_is_integer(v) || json_integer_value(v) < 0) {
            return zb_fail(ZB_ECONFIG, "%s: %s is no count", path,
                           counts[i].key);
        }
        *count_of(out, &counts[i]) = json_integer_value(v);
    }
    if (!read_hex(json_object_get(s, "seed"), &out->seed)) {
        return bad(path, "no seed");
    }
    if (optimizer == NULL || strlen(optimizer) >= sizeof(out->optimizer)) {
        return bad(path, "no optimizer");
    }
    strcpy(out->optimizer, optimizer);
    out->n_moments = (int)json_integer_value(moments);
    if (!json_is_integer(moments) || json_integer_value(moments) < 0 ||
        json_integer_value(moments) > 2) {
        return bad(path, "no number of moments");
    }
    return read_scale(path, json_object_get(s, "scale"), out);
}

/* Below the checkpoint, as it was written. */
static int is_inside(const char *path)
{
    return path[0] != '/' && path[0] != '\0' && strstr(path, "..") == NULL;
}

static enum zb_status read_files(const char *path, json_t *all,
                                 struct zb_ckpt_files *out)
{
    const char *name;
    json_t *v;

    if (json_object_size(all) == 0) {
        return bad(path, "no files");
    }
    json_object_foreach(all, name, v)
    {
        const json_t *bytes = json_object_get(v, "bytes");
        uint64_t sum;

        if (!is_inside(name) || !json_is_integer(bytes) ||
            json_integer_value(bytes) < 0 ||
            !read_hex(json_object_get(v, "sum"), &sum)) {
            return zb_fail(ZB_ECONFIG, "%s: file '%.200s' has no checksum",
                           path, name);
        }
        ZB_TRY(zb_ckpt_files_add(out, name, (uint64_t)json_integer_value(bytes),
                                 sum));
    }
    return ZB_OK;
}

static enum zb_status check_head(const char *path, json_t *root)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    uint64_t want, have = 0;

    if (format == NULL || strcmp(format, FORMAT) != 0) {
        return bad(path, "is not the state of a checkpoint");
    }
    if (json_integer_value(json_object_get(root, "version")) !=
        FORMAT_VERSION) {
        return bad(path, "is of another version of zbrun");
    }
    if (!read_hex(json_object_get(root, "sum"), &want)) {
        return bad(path, "no checksum of its own");
    }
    json_object_del(root, "sum");
    if (!sum_of(root, &have)) {
        return zb_fail(ZB_ENOMEM, "out of host memory");
    }
    return have == want ? ZB_OK : bad(path, "checksum differs");
}

enum zb_status zb_ckpt_state_read(const char *path,
                                  struct zb_ckpt_state *state_out,
                                  struct zb_ckpt_files *files_out)
{
    struct zb_ckpt_state state = {0};
    json_error_t error;
    struct stat info;
    json_t *root;
    enum zb_status st;

    if (stat(path, &info) == 0 &&
        (!S_ISREG(info.st_mode) || info.st_size > STATE_MAX_BYTES)) {
        return bad(path, "is not the state of a checkpoint");
    }
    root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        return zb_fail(ZB_ECONFIG, "%s:%d: %s", path, error.line, error.text);
    }
    st = check_head(path, root);
    if (st == ZB_OK) {
        st = read_state(path, json_object_get(root, "state"), &state);
    }
    if (st == ZB_OK) {
        st = read_files(path, json_object_get(root, "files"), files_out);
    }
    json_decref(root);
    ZB_TRY(st);
    *state_out = state;
    return ZB_OK;
}
