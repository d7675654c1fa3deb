/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zb/weights.h"

#include <errno.h>
#include <fnmatch.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "zb/mem.h"

/* One entry per tensor is some 100 bytes; more than this is no index. */
#define INDEX_MAX_BYTES 100000000

/* A name of the model is at most this long, with a prefix. */
#define NAME_MAX_BYTES 512

/* How many names of each kind a message has. */
#define NAMES_SHOWN 3

struct zb_weights {
    char *path;
    struct zb_st_file **file;
    size_t n_files, cap_files;
    struct zb_weight *entry; /* [n] sorted by name */
    size_t n;
};

/* ---- opening ------------------------------------------------------------- */

static int compare_entries(const void *a, const void *b)
{
    const struct zb_weight *x = a, *y = b;

    return strcmp(x->tensor->name, y->tensor->name);
}

static enum zb_status add_file(struct zb_weights *w, const char *path)
{
    ZB_TRY(zb_grow(&w->file, w->n_files, &w->cap_files, sizeof(*w->file)));
    ZB_TRY(zb_st_open(path, &w->file[w->n_files]));
    w->n_files++;
    return ZB_OK;
}

/* One table of the tensors of all files. */
static enum zb_status list_tensors(struct zb_weights *w)
{
    size_t n = 0;

    for (size_t i = 0; i < w->n_files; i++) {
        n += w->file[i]->n_tensors;
    }
    w->entry = zb_alloc_array(n, sizeof(*w->entry));
    if (w->entry == NULL) {
        return ZB_ENOMEM;
    }
    for (size_t i = 0; i < w->n_files; i++) {
        for (size_t k = 0; k < w->file[i]->n_tensors; k++) {
            w->entry[w->n++] =
                (struct zb_weight){w->file[i], &w->file[i]->tensors[k]};
        }
    }
    qsort(w->entry, w->n, sizeof(*w->entry), compare_entries);
    for (size_t i = 1; i < w->n; i++) {
        if (compare_entries(&w->entry[i - 1], &w->entry[i]) == 0) {
            return zb_fail(ZB_ECONFIG, "%s and %s both have tensor '%.200s'",
                           w->entry[i - 1].file->path, w->entry[i].file->path,
                           w->entry[i].tensor->name);
        }
    }
    return ZB_OK;
}

/* ---- the index ----------------------------------------------------------- */

/* A file beside the index, and nothing else. */
static int is_file_name(const char *name)
{
    return name != NULL && name[0] != '\0' && strchr(name, '/') == NULL &&
           strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static int has_file(const struct zb_weights *w, const char *path)
{
    for (size_t i = 0; i < w->n_files; i++) {
        if (strcmp(w->file[i]->path, path) == 0) {
            return 1;
        }
    }
    return 0;
}

static enum zb_status open_mapped(struct zb_weights *w, const char *index,
                                  json_t *map)
{
    const char *name;
    json_t *value;

    json_object_foreach(map, name, value)
    {
        const char *file = json_string_value(value);
        enum zb_status st = ZB_OK;
        char *path;

        if (!is_file_name(file)) {
            return zb_fail(ZB_ECONFIG,
                           "%s: tensor '%.200s' is in no file of the directory",
                           index, name);
        }
        path = zb_format("%s/%s", w->path, file);
        if (path == NULL) {
            return ZB_ENOMEM;
        }
        if (!has_file(w, path)) {
            st = add_file(w, path);
        }
        zb_free(path);
        ZB_TRY(st);
    }
    return ZB_OK;
}

static enum zb_status check_mapped(const struct zb_weights *w,
                                   const char *index, json_t *map)
{
    const char *name;
    json_t *value;

    json_object_foreach(map, name, value)
    {
        struct zb_weight found = zb_weights_get(w, name);
        const char *slash;

        if (found.tensor != NULL) {
            slash = strrchr(found.file->path, '/');
            if (strcmp(slash + 1, json_string_value(value)) == 0) {
                continue;
            }
        }
        return zb_fail(ZB_ECONFIG, "%s: %.200s has no tensor '%.200s'", index,
                       json_string_value(value), name);
    }
    return ZB_OK;
}

static enum zb_status parse_index(const char *index, json_t **root_out)
{
    json_error_t error;
    struct stat info;

    if (stat(index, &info) != 0 || !S_ISREG(info.st_mode)) {
        return zb_fail(ZB_EIO, "%s: cannot read: %s", index,
                       errno != 0 ? strerror(errno) : "no regular file");
    }
    if (info.st_size > INDEX_MAX_BYTES) {
        return zb_fail(ZB_ECONFIG, "%s: %lld bytes are no index of weights",
                       index, (long long)info.st_size);
    }
    *root_out = json_load_file(index, JSON_REJECT_DUPLICATES, &error);
    if (*root_out == NULL) {
        return zb_fail(ZB_ECONFIG, "%s:%d: %s", index, error.line, error.text);
    }
    return ZB_OK;
}

static enum zb_status open_index(struct zb_weights *w, const char *index)
{
    json_t *root = NULL, *map;
    enum zb_status st;

    errno = 0;
    ZB_TRY(parse_index(index, &root));
    map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0) {
        st = zb_fail(ZB_ECONFIG, "%s: no weight_map", index);
    } else {
        st = open_mapped(w, index, map);
    }
    if (st == ZB_OK) {
        st = list_tensors(w);
    }
    if (st == ZB_OK) {
        st = check_mapped(w, index, map);
    }
    json_decref(root);
    return st;
}

static int is_there(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0;
}

static enum zb_status open_dir(struct zb_weights *w)
{
    char *file = zb_format("%s/" ZB_WEIGHTS_FILE, w->path);
    char *index = zb_format("%s/" ZB_WEIGHTS_INDEX, w->path);
    char *adapter = zb_format("%s/" ZB_ADAPTER_FILE, w->path);
    enum zb_status st;

    if (file == NULL || index == NULL || adapter == NULL) {
        st = ZB_ENOMEM;
    } else if (is_there(file)) {
        st = add_file(w, file);
        st = st == ZB_OK ? list_tensors(w) : st;
    } else if (is_there(index)) {
        st = open_index(w, index);
    } else if (is_there(adapter)) {
        st = add_file(w, adapter);
        st = st == ZB_OK ? list_tensors(w) : st;
    } else {
        st = zb_fail(ZB_ECONFIG,
                     "%s: neither " ZB_WEIGHTS_FILE " nor " ZB_WEIGHTS_INDEX
                     " is there",
                     w->path);
    }
    zb_free(adapter);
    zb_free(index);
    zb_free(file);
    return st;
}

static enum zb_status open_path(struct zb_weights *w, const char *path)
{
    struct stat info;

    w->path = zb_strdup(path);
    if (w->path == NULL) {
        return ZB_ENOMEM;
    }
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        return open_dir(w);
    }
    ZB_TRY(add_file(w, path));
    return list_tensors(w);
}

enum zb_status zb_weights_open(const char *path, struct zb_weights **w_out)
{
    struct zb_weights *w = zb_alloc(sizeof(*w));
    enum zb_status st;

    if (w == NULL) {
        return ZB_ENOMEM;
    }
    st = open_path(w, path);
    if (st != ZB_OK) {
        zb_weights_close(w);
        return st;
    }
    *w_out = w;
    return ZB_OK;
}

void zb_weights_close(struct zb_weights *w)
{
    if (w == NULL) {
        return;
    }
    for (size_t i = 0; i < w->n_files; i++) {
        zb_st_close(w->file[i]);
    }
    zb_free(w->entry);
    zb_free(w->file);
    zb_free(w->path);
    zb_free(w);
}

const char *zb_weights_path(const struct zb_weights *w)
{
    return w->path;
}

/* ---- looking up ---------------------------------------------------------- */

struct zb_weight zb_weights_get(const struct zb_weights *w, const char *name)
{
    const struct zb_st_tensor tensor = {.name = name};
    const struct zb_weight key = {NULL, &tensor}, none = {NULL, NULL};
    const struct zb_weight *found =
        bsearch(&key, w->entry, w->n, sizeof(key), compare_entries);

    return found != NULL ? *found : none;
}

/* The name, and with each prefix of a base model added or taken away. */
static struct zb_weight find_prefixed(const struct zb_weights *w,
                                      const char *name)
{
    static const char *const prefix[] = {"transformer.", "model.", "bert.",
                                         ZB_ADAPTER_PREFIX};
    struct zb_weight found = zb_weights_get(w, name);
    char longer[NAME_MAX_BYTES];

    for (size_t i = 0; found.tensor == NULL && i < ZB_COUNT_OF(prefix); i++) {
        size_t len = strlen(prefix[i]);

        if (strncmp(name, prefix[i], len) == 0) {
            found = zb_weights_get(w, name + len);
        } else {
            snprintf(longer, sizeof(longer), "%s%s", prefix[i], name);
            found = zb_weights_get(w, longer);
        }
    }
    return found;
}

struct zb_weight zb_weights_find(const struct zb_weights *w, const char *name)
{
    static const struct {
        const char *end, *old;
    } old_ends[] = {
        {"LayerNorm.weight", "LayerNorm.gamma"},
        {"LayerNorm.bias", "LayerNorm.beta"},
    };
    struct zb_weight found = find_prefixed(w, name);
    size_t len = strlen(name);

    for (size_t i = 0; found.tensor == NULL && i < ZB_COUNT_OF(old_ends); i++) {
        size_t n = strlen(old_ends[i].end);
        char old[NAME_MAX_BYTES];

        if (len >= n && strcmp(name + len - n, old_ends[i].end) == 0) {
            snprintf(old, sizeof(old), "%.*s%s", (int)(len - n), name,
                     old_ends[i].old);
            found = find_prefixed(w, old);
        }
    }
    return found;
}

/* ---- what a model needs -------------------------------------------------- */

/* What does not fit, by kind, with the first names of each. */
struct misfits {
    size_t n;
    char text[280];
};

static void add_misfit(struct misfits *m, const char *text)
{
    size_t len = strlen(m->text);

    m->n++;
    if (m->n <= NAMES_SHOWN) {
        snprintf(m->text + len, sizeof(m->text) - len, "%s%.88s",
                 m->n > 1 ? ", " : "", text);
    }
}

static void print_dims(char *text, size_t size, int n_dims, const int64_t *dims)
{
    size_t len = (size_t)snprintf(text, size, "[");

    for (int i = 0; i < n_dims && len < size; i++) {
        len += (size_t)snprintf(text + len, size - len, "%s%lld",
                                i > 0 ? "," : "", (long long)dims[i]);
    }
    if (len < size) {
        snprintf(text + len, size - len, "]");
    }
}

static int has_dims(const struct zb_st_tensor *t,
                    const struct zb_weight_want *want)
{
    return t->n_dims == want->n_dims &&
           (t->n_dims == 0 || memcmp(t->dims, want->dims,
                                     (size_t)t->n_dims * sizeof(int64_t)) == 0);
}

static int is_real(const struct zb_st_tensor *t)
{
    return t->dtype == ZB_ST_F64 || t->dtype == ZB_ST_F32 ||
           t->dtype == ZB_ST_F16 || t->dtype == ZB_ST_BF16;
}

/* One tensor against what is wanted. */
static void check_one(const struct zb_st_tensor *t,
                      const struct zb_weight_want *want,
                      struct misfits *misshapen)
{
    char have[40], need[40], text[160];

    if (!has_dims(t, want)) {
        print_dims(have, sizeof(have), t->n_dims, t->dims);
        print_dims(need, sizeof(need), want->n_dims, want->dims);
        snprintf(text, sizeof(text), "%.60s is %s, not %s", t->name, have,
                 need);
        add_misfit(misshapen, text);
    } else if (!is_real(t)) {
        snprintf(text, sizeof(text), "%.60s is of type %.20s", t->name,
                 t->dtype_text);
        add_misfit(misshapen, text);
    }
}

/* Stored by other programs, computed or tied here; heads of other tasks. */
static int is_ignored(const char *name)
{
    static const char *const pattern[] = {
        "*.attn.bias",
        "*.attn.masked_bias",
        "*.attention.bias",
        "*.attention.masked_bias",
        "*rotary_emb.inv_freq",
        "*rotary_pos_emb.inv_freq",
        "*.position_ids",
        "lm_head.weight",
        "cls.*",
        "*pooler.dense.*",
    };

    for (size_t i = 0; i < ZB_COUNT_OF(pattern); i++) {
        if (fnmatch(pattern[i], name, 0) == 0) {
            return 1;
        }
    }
    return 0;
}

static void check_extra(const struct zb_weights *w, const char *is_used,
                        struct misfits *extra)
{
    for (size_t i = 0; i < w->n; i++) {
        if (!is_used[i] && !is_ignored(w->entry[i].tensor->name)) {
            add_misfit(extra, w->entry[i].tensor->name);
        }
    }
}

static enum zb_status refuse(const struct zb_weights *w,
                             const struct misfits *missing,
                             const struct misfits *misshapen,
                             const struct misfits *extra)
{
    const struct misfits *kind[] = {missing, misshapen, extra};
    static const char *const what[] = {"missing", "not as the model has it",
                                       "not in the model"};
    char text[960] = "";

    for (size_t i = 0; i < ZB_COUNT_OF(kind); i++) {
        size_t len = strlen(text);

        if (kind[i]->n > 0) {
            snprintf(text + len, sizeof(text) - len, "%s%zu %s: %s%s",
                     len > 0 ? "; " : "", kind[i]->n, what[i], kind[i]->text,
                     kind[i]->n > NAMES_SHOWN ? ", ..." : "");
        }
    }
    return text[0] == '\0'
               ? ZB_OK
               : zb_fail(ZB_ECONFIG, "%s: the tensors do not fit the model: %s",
                         w->path, text);
}

enum zb_status zb_weights_check(const struct zb_weights *w,
                                const struct zb_weight_want *want, size_t n)
{
    struct misfits missing = {0}, misshapen = {0}, extra = {0};
    char *is_used = zb_alloc(w->n + 1);
    enum zb_status st;

    if (is_used == NULL) {
        return ZB_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        struct zb_weight found = zb_weights_find(w, want[i].name);

        if (found.tensor == NULL && want[i].is_optional) {
            continue;
        }
        if (found.tensor == NULL) {
            add_misfit(&missing, want[i].name);
        } else {
            const struct zb_weight *at =
                bsearch(&found, w->entry, w->n, sizeof(found), compare_entries);

            is_used[at - w->entry] = 1;
            check_one(found.tensor, &want[i], &misshapen);
        }
    }
    check_extra(w, is_used, &extra);
    st = refuse(w, &missing, &misshapen, &extra);
    zb_free(is_used);
    return st;
}
