/* SPDX-License-Identifier: MIT
 *
 * A checkpoint on its way to the disk. */
#include "config.h"
#include "ckpt/ckpt_int.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/safetensors_int.h"
#include "zb/file.h"
#include "zb/hash.h"
#include "zb/mem.h"

/* transformers reads no file without it. */
static const struct zb_st_meta format_meta = {"format", "pt"};

struct job {
    const struct zb_ckpt_opts *o;
    const struct zb_ckpt_shot *c;
    const char *dir; /* written to, renamed at the end */
    struct zb_ckpt_files files;
};

void zb_ckpt_shot_free(struct zb_ckpt_shot *c)
{
    if (c == NULL) {
        return;
    }
    for (size_t i = 0; i < c->n; i++) {
        zb_free(c->param[i].name);
        zb_free(c->param[i].value);
        zb_free(c->param[i].moment[0]);
        zb_free(c->param[i].moment[1]);
    }
    zb_free(c->param);
    zb_free(c->config_json);
    zb_free(c->adapter_json);
    zb_free(c);
}

static enum zb_status io_error(const char *path, const char *what)
{
    return zb_fail(ZB_EIO, "%s: %s: %s", path, what, strerror(errno));
}

/* ---- a text -------------------------------------------------------------- */

static enum zb_status write_synced(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");
    int is_good;

    if (f == NULL) {
        return io_error(path, "cannot create");
    }
    is_good = fputs(text, f) >= 0 && fflush(f) == 0 && fsync(fileno(f)) == 0;
    if (!is_good) {
        enum zb_status st = io_error(path, "cannot write");

        fclose(f);
        return st;
    }
    return fclose(f) == 0 ? ZB_OK : io_error(path, "cannot write");
}

/* `name` is relative to the checkpoint; list NULL: it has no checksum. */
static enum zb_status write_text(const char *dir, const char *name,
                                 const char *text, struct zb_ckpt_files *list)
{
    char *path = zb_format("%s/%s", dir, name);
    struct zb_sum sum;
    enum zb_status st = path == NULL ? ZB_ENOMEM : write_synced(path, text);

    zb_free(path);
    if (st != ZB_OK || list == NULL) {
        return st;
    }
    zb_sum_init(&sum);
    zb_sum_add(&sum, text, strlen(text));
    return zb_ckpt_files_add(list, name, sum.n_bytes, zb_sum_value(&sum));
}

/* config.json says in which type the weights are, as save_pretrained() does. */
static enum zb_status write_config(struct job *j)
{
    static const char *const type[] = {
        [ZB_DTYPE_REAL] = sizeof(zb_real) == 8 ? "float64" : "float32",
        [ZB_DTYPE_BF16] = "bfloat16",
        [ZB_DTYPE_F16] = "float16",
    };
    json_error_t error;
    json_t *root;
    char *text = NULL;
    enum zb_status st;

    if (j->c->adapter_json != NULL) {
        return write_text(j->dir, ZB_CKPT_ADAPTER_CONFIG, j->c->adapter_json,
                          &j->files);
    }
    root = json_loads(j->c->config_json, 0, &error);
    if (root == NULL) {
        return zb_fail(ZB_EINVAL, "config.json: line %d: %s", error.line,
                       error.text);
    }
    json_object_del(root, "dtype"); /* the same in newer versions */
    if (json_object_set_new(root, "torch_dtype",
                            json_string(type[j->c->storage])) == 0) {
        text = json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS |
                                    JSON_REAL_PRECISION(17));
    }
    json_decref(root);
    st = text == NULL ? zb_fail(ZB_ENOMEM, "out of host memory")
                      : write_text(j->dir, ZB_CKPT_CONFIG, text, &j->files);
    free(text);
    return st;
}

/* ---- tensors ------------------------------------------------------------- */

static enum zb_status write_tensors(struct job *j, const char *name,
                                    const struct zb_st_out *t, size_t n)
{
    char *path = zb_format("%s/%s", j->dir, name);
    uint64_t sum = 0, bytes = 0;
    enum zb_status st =
        path == NULL
            ? ZB_ENOMEM
            : zb_st_write_summed(path, t, n, &format_meta, 1, &sum, &bytes);

    zb_free(path);
    return st == ZB_OK ? zb_ckpt_files_add(&j->files, name, bytes, sum) : st;
}

static struct zb_st_out out_of(const struct zb_ckpt_param *p, const char *name,
                               const void *data, enum zb_st_dtype dtype)
{
    struct zb_st_out t = {
        .name = name, .dtype = dtype, .n_dims = p->n_dims, .data = data};

    memcpy(t.dims, p->dims, sizeof(t.dims));
    return t;
}

/* ---- weights ------------------------------------------------------------- */

static int64_t param_bytes(const struct job *j, size_t i)
{
    return j->c->param[i].n * (int64_t)zb_dtype_bytes(j->c->storage);
}

/* Parameters [first, *end_out) that a file of weights has. */
static size_t end_of_file(const struct job *j, size_t first)
{
    int64_t bytes = 0, most = j->o->max_file_bytes;
    size_t end = first;

    while (end < j->c->n &&
           (end == first || most == 0 || bytes + param_bytes(j, end) <= most)) {
        bytes += param_bytes(j, end++);
    }
    return end;
}

/* The weights as the run computes with them: masters rounded. */
static enum zb_status round_values(const struct job *j, size_t first,
                                   size_t end, struct zb_st_out *t,
                                   char **stored_out)
{
    size_t bytes = 0;
    char *stored;

    for (size_t i = first; i < end; i++) {
        bytes += (size_t)param_bytes(j, i);
    }
    stored = zb_alloc(bytes);
    if (stored == NULL) {
        return ZB_ENOMEM;
    }
    *stored_out = stored;
    for (size_t i = first; i < end; i++) {
        const struct zb_ckpt_param *p = &j->c->param[i];

        zb_dtype_store(j->c->storage, p->n, p->value, stored);
        t[i - first] =
            out_of(p, p->name, stored,
                   j->c->storage == ZB_DTYPE_BF16 ? ZB_ST_BF16 : ZB_ST_F16);
        stored += param_bytes(j, i);
    }
    return ZB_OK;
}

/* The names that PEFT gives adapters. */
static enum zb_status add_prefixes(struct zb_st_out *t, size_t n, char **name)
{
    for (size_t i = 0; i < n; i++) {
        name[i] = zb_format(ZB_ADAPTER_PREFIX "%s", t[i].name);
        if (name[i] == NULL) {
            return ZB_ENOMEM;
        }
        t[i].name = name[i];
    }
    return ZB_OK;
}

static enum zb_status write_adapters(struct job *j, const char *file,
                                     struct zb_st_out *t, size_t n)
{
    char **name = zb_alloc_array(n, sizeof(*name));
    enum zb_status st = name == NULL ? ZB_ENOMEM : add_prefixes(t, n, name);

    if (st == ZB_OK) {
        st = write_tensors(j, file, t, n);
    }
    for (size_t i = 0; name != NULL && i < n; i++) {
        zb_free(name[i]);
    }
    zb_free(name);
    return st;
}

static enum zb_status write_weight_file(struct job *j, const char *name,
                                        size_t first, size_t end)
{
    struct zb_st_out *t = zb_alloc_array(end - first, sizeof(*t));
    char *stored = NULL;
    enum zb_status st = t == NULL ? ZB_ENOMEM : ZB_OK;

    if (st == ZB_OK && j->c->storage != ZB_DTYPE_REAL) {
        st = round_values(j, first, end, t, &stored);
    }
    for (size_t i = first; st == ZB_OK && stored == NULL && i < end; i++) {
        const struct zb_ckpt_param *p = &j->c->param[i];

        t[i - first] = out_of(p, p->name, p->value, ZB_ST_REAL);
    }
    if (st == ZB_OK) {
        st = j->c->adapter_json != NULL
                 ? write_adapters(j, name, t, end - first)
                 : write_tensors(j, name, t, end - first);
    }
    zb_free(stored);
    zb_free(t);
    return st;
}

static size_t count_files(const struct job *j)
{
    size_t n = 0;

    for (size_t at = 0; at < j->c->n; at = end_of_file(j, at)) {
        n++;
    }
    return n;
}

static enum zb_status write_index(struct job *j, const json_t *map)
{
    int64_t bytes = 0;
    json_t *root;
    char *text;
    enum zb_status st;

    for (size_t i = 0; i < j->c->n; i++) {
        bytes += param_bytes(j, i);
    }
    root = json_pack("{s:{s:I}, s:O}", "metadata", "total_size",
                     (json_int_t)bytes, "weight_map", map);
    text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(2));
    st = text == NULL ? zb_fail(ZB_ENOMEM, "out of host memory")
                      : write_text(j->dir, ZB_WEIGHTS_INDEX, text, &j->files);
    free(text);
    json_decref(root);
    return st;
}

/* Several files, which the index has the names of. */
static enum zb_status write_split(struct job *j, size_t n_files, json_t *map)
{
    size_t at = 0;

    for (size_t k = 1; k <= n_files; k++) {
        size_t end = end_of_file(j, at);
        char name[64];

        snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", k,
                 n_files);
        ZB_TRY(write_weight_file(j, name, at, end));
        for (; at < end; at++) {
            if (json_object_set_new(map, j->c->param[at].name,
                                    json_string(name)) != 0) {
                return zb_fail(ZB_ENOMEM, "out of host memory");
            }
        }
    }
    return write_index(j, map);
}

static enum zb_status write_weights(struct job *j)
{
    size_t n_files = count_files(j);
    json_t *map;
    enum zb_status st;

    if (j->c->adapter_json != NULL) {
        return write_weight_file(j, ZB_ADAPTER_FILE, 0, j->c->n);
    }
    if (n_files <= 1) {
        return write_weight_file(j, ZB_WEIGHTS_FILE, 0, j->c->n);
    }
    map = json_object();
    st = map == NULL ? zb_fail(ZB_ENOMEM, "out of host memory")
                     : write_split(j, n_files, map);
    json_decref(map);
    return st;
}

/* ---- the optimizer's state ----------------------------------------------- */

static enum zb_status add_optim(const struct zb_ckpt_param *p,
                                enum zb_ckpt_part part, const zb_real *data,
                                struct zb_st_out *t, size_t *n)
{
    char *name;

    if (data == NULL) {
        return ZB_OK;
    }
    name = zb_format("%s%s", zb_ckpt_prefix[part], p->name);
    if (name == NULL) {
        return ZB_ENOMEM;
    }
    t[(*n)++] = out_of(p, name, data, ZB_ST_REAL);
    return ZB_OK;
}

static enum zb_status write_optim(struct job *j)
{
    const struct zb_ckpt_shot *c = j->c;
    struct zb_st_out *t = zb_alloc_array(3 * c->n, sizeof(*t));
    size_t n = 0;
    enum zb_status st = t == NULL ? ZB_ENOMEM : ZB_OK;

    for (size_t i = 0; st == ZB_OK && i < c->n; i++) {
        const struct zb_ckpt_param *p = &c->param[i];
        int has_master = c->storage != ZB_DTYPE_REAL && p->is_trained;

        st = add_optim(p, ZB_CKPT_MASTER, has_master ? p->value : NULL, t, &n);
        if (st == ZB_OK) {
            st = add_optim(p, ZB_CKPT_M, p->moment[0], t, &n);
        }
        if (st == ZB_OK) {
            st = add_optim(p, ZB_CKPT_V, p->moment[1], t, &n);
        }
    }
    if (st == ZB_OK) {
        st = write_tensors(j, ZB_CKPT_OPTIM, t, n);
    }
    for (size_t i = 0; i < n; i++) {
        zb_free((void *)(uintptr_t)t[i].name);
    }
    zb_free(t);
    return st;
}

/* ---- the folder ---------------------------------------------------------- */

static enum zb_status make_folder(const char *path)
{
    return mkdir(path, 0777) == 0 ? ZB_OK : io_error(path, "cannot create");
}

static enum zb_status write_state(struct job *j)
{
    char *text = NULL;
    enum zb_status st = zb_ckpt_state_print(&j->c->state, &j->files, &text);

    if (st == ZB_OK) {
        st = write_text(j->dir, ZB_CKPT_STATE, text, NULL);
    }
    zb_free(text);
    return st;
}

/* state.json comes last, with the checksums of all others. */
static enum zb_status write_all(struct job *j)
{
    char *state = zb_format("%s/" ZB_CKPT_STATE_DIR, j->dir);
    enum zb_status st = state == NULL ? ZB_ENOMEM : make_folder(j->dir);

    if (st == ZB_OK) {
        st = make_folder(state);
    }
    if (st == ZB_OK) {
        st = write_config(j);
    }
    if (st == ZB_OK && j->o->tokenizer_json != NULL) {
        st = write_text(j->dir, ZB_CKPT_TOKENIZER, j->o->tokenizer_json,
                        &j->files);
    }
    if (st == ZB_OK) {
        st = write_weights(j);
    }
    if (st == ZB_OK) {
        st = write_optim(j);
    }
    if (st == ZB_OK) {
        st = write_state(j);
    }
    if (st == ZB_OK) {
        st = zb_sync_dir(state);
    }
    if (st == ZB_OK) {
        st = zb_sync_dir(j->dir);
    }
    zb_free(state);
    return st;
}

/* One of the same step is renamed away before, and removed after. */
static enum zb_status put_in_place(const struct zb_ckpt_opts *o,
                                   const char *tmp, const char *path,
                                   const char *old)
{
    ZB_TRY(zb_remove_tree(old));
    if (rename(path, old) != 0 && errno != ENOENT) {
        return io_error(path, "cannot rename");
    }
    if (rename(tmp, path) != 0) {
        enum zb_status st = io_error(tmp, "cannot rename");

        return rename(old, path) == 0 || errno == ENOENT
                   ? st
                   : zb_fail_in(st, "%s is now %s", path, old);
    }
    ZB_TRY(zb_sync_dir(o->dir));
    ZB_TRY(zb_remove_tree(old));
    return zb_ckpt_prune(o->dir, o->keep);
}

static enum zb_status write_aside(const struct zb_ckpt_opts *o,
                                  const struct zb_ckpt_shot *c, const char *tmp)
{
    struct job j = {.o = o, .c = c, .dir = tmp};
    enum zb_status st;

    ZB_TRY(zb_remove_tree(tmp));
    st = write_all(&j);
    zb_ckpt_files_release(&j.files);
    return st;
}

/* The text of the error that matters is that of the failure, not of removing
 * what it left. */
static void remove_quietly(const char *path)
{
    char text[1024];

    snprintf(text, sizeof(text), "%s", zb_error_text());
    if (zb_remove_tree(path) != ZB_OK) {
        zb_fail(ZB_EIO, "%s", text);
    }
}

enum zb_status zb_ckpt_write(const struct zb_ckpt_opts *o,
                             const struct zb_ckpt_shot *c)
{
    char *path = zb_ckpt_path(o->dir, c->state.step);
    char *tmp = path == NULL ? NULL : zb_format("%s.tmp", path);
    char *old = path == NULL ? NULL : zb_format("%s.old.tmp", path);
    enum zb_status st = tmp == NULL || old == NULL ? ZB_ENOMEM : ZB_OK;

    if (st == ZB_OK) {
        st = zb_make_dir(o->dir);
    }
    if (st == ZB_OK) {
        st = write_aside(o, c, tmp);
        if (st == ZB_OK) {
            st = put_in_place(o, tmp, path, old);
        } else {
            remove_quietly(tmp);
        }
    }
    zb_free(old);
    zb_free(tmp);
    zb_free(path);
    return st;
}
