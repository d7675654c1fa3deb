/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zb/ckpt.h"

#include "ckpt/safetensors_int.h"
#include "zb/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* What zb_st_open() hands out is the first member. */
struct file {
    struct zb_st_file pub;
    char *path;
    struct zb_st_tensor *tensors;
    struct zb_st_meta *meta;
    const unsigned char *map;
    size_t map_bytes;
    const unsigned char *data; /* first byte after the header */
    size_t data_bytes;
};

struct dtype_size {
    const char *text;
    size_t bytes;
};

/* Types without a reader whose size is known all the same. */
static const struct dtype_size other_sizes[] = {
    {"BOOL", 1}, {"I8", 1},      {"F8_E4M3", 1}, {"F8_E5M2", 1},
    {"I16", 2},  {"U16", 2},     {"U32", 4},     {"U64", 8},
    {"C64", 8},  {"F8_E8M0", 1},
};

size_t zb_st_dtype_bytes(enum zb_st_dtype t)
{
    static const size_t bytes[] = {
#define ZB_X(name, n) n,
        ZB_ST_DTYPE_MAP(ZB_X)
#undef ZB_X
    };

    return bytes[t];
}

const char *zb_st_dtype_text(enum zb_st_dtype t)
{
    static const char *const text[] = {
#define ZB_X(name, n) #name,
        ZB_ST_DTYPE_MAP(ZB_X)
#undef ZB_X
    };

    return text[t];
}

/* The type of that name and its element size, 0 when nobody knows it. */
static enum zb_st_dtype find_dtype(const char *text, size_t *bytes_out)
{
    for (int t = 0; t < ZB_ST_OTHER; t++) {
        if (strcmp(text, zb_st_dtype_text(t)) == 0) {
            *bytes_out = zb_st_dtype_bytes(t);
            return t;
        }
    }
    *bytes_out = 0;
    for (size_t i = 0; i < ZB_COUNT_OF(other_sizes); i++) {
        if (strcmp(text, other_sizes[i].text) == 0) {
            *bytes_out = other_sizes[i].bytes;
        }
    }
    return ZB_ST_OTHER;
}

static enum zb_status bad_file(const struct file *f, const char *why)
{
    return zb_fail(ZB_ECONFIG, "%s: %s", f->path, why);
}

static enum zb_status bad_tensor(const struct file *f, const char *name,
                                 const char *why)
{
    return zb_fail(ZB_ECONFIG, "%s: tensor '" ZB_ST_NAME_FMT "': %s", f->path,
                   name, why);
}

static enum zb_status io_error(const struct file *f, const char *what)
{
    return zb_fail(ZB_EIO, "%s: %s: %s", f->path, what, strerror(errno));
}

static enum zb_status map_fd(struct file *f, int fd)
{
    struct stat sb;
    void *map;

    if (fstat(fd, &sb) != 0) {
        return io_error(f, "cannot stat");
    }
    if (!S_ISREG(sb.st_mode)) {
        return zb_fail(ZB_EIO, "%s: not a regular file", f->path);
    }
    if (sb.st_size < ZB_ST_LENGTH_BYTES) {
        return bad_file(f, "too short for a safetensors file");
    }
    map = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        return io_error(f, "cannot map");
    }
    f->map = map;
    f->map_bytes = (size_t)sb.st_size;
    return ZB_OK;
}

static enum zb_status map_path(struct file *f)
{
    /* Without O_NONBLOCK the open of a FIFO waits for its writer. */
    int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    enum zb_status st;

    if (fd < 0) {
        return io_error(f, "cannot open");
    }
    st = map_fd(f, fd);
    close(fd);
    return st;
}

/* Find the header and the data, and parse the header. */
static enum zb_status load_header(struct file *f, json_t **root_out)
{
    uint64_t n;
    json_error_t error;
    const char *text = (const char *)f->map + ZB_ST_LENGTH_BYTES;

    memcpy(&n, f->map, sizeof(n));
    if (n > ZB_ST_MAX_HEADER_BYTES) {
        return zb_fail(ZB_ECONFIG,
                       "%s: header of %llu bytes is longer than %d (not a "
                       "safetensors file?)",
                       f->path, (unsigned long long)n, ZB_ST_MAX_HEADER_BYTES);
    }
    if (n > f->map_bytes - ZB_ST_LENGTH_BYTES) {
        return bad_file(f, "file ends within its header");
    }
    if (n == 0 || text[0] != '{') {
        return bad_file(f, "header does not start with '{'");
    }
    *root_out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    if (*root_out == NULL) {
        return zb_fail(ZB_ECONFIG, "%s: header, byte %d: %s", f->path,
                       error.position, error.text);
    }
    f->data = f->map + ZB_ST_LENGTH_BYTES + n;
    f->data_bytes = f->map_bytes - ZB_ST_LENGTH_BYTES - n;
    return ZB_OK;
}

static enum zb_status load_meta(struct file *f, json_t *dict)
{
    const char *key;
    json_t *value;

    if (!json_is_object(dict)) {
        return bad_file(f, ZB_ST_META_KEY " is not an object");
    }
    f->meta = zb_alloc_array(json_object_size(dict), sizeof(*f->meta));
    if (f->meta == NULL) {
        return ZB_ENOMEM;
    }
    json_object_foreach (dict, key, value) {
        struct zb_st_meta *m = &f->meta[f->pub.n_meta];

        if (!json_is_string(value)) {
            return zb_fail(ZB_ECONFIG,
                           "%s: " ZB_ST_META_KEY " '" ZB_ST_NAME_FMT
                           "' is not a string",
                           f->path, key);
        }
        m->key = zb_strdup(key);
        m->value = zb_strdup(json_string_value(value));
        f->pub.n_meta++;
        if (m->key == NULL || m->value == NULL) {
            return ZB_ENOMEM;
        }
    }
    return ZB_OK;
}

static enum zb_status load_shape(const struct file *f, json_t *shape,
                                 struct zb_st_tensor *t)
{
    if (!json_is_array(shape)) {
        return bad_tensor(f, t->name, "no shape");
    }
    if (json_array_size(shape) > ZB_ST_MAX_DIMS) {
        return zb_fail(ZB_ECONFIG,
                       "%s: tensor '" ZB_ST_NAME_FMT
                       "': %zu dimensions, at most %d are possible",
                       f->path, t->name, json_array_size(shape),
                       ZB_ST_MAX_DIMS);
    }
    t->n_dims = (int)json_array_size(shape);
    t->n_elems = 1;
    for (int i = 0; i < t->n_dims; i++) {
        json_t *dim = json_array_get(shape, (size_t)i);

        if (!json_is_integer(dim) || json_integer_value(dim) < 0) {
            return bad_tensor(f, t->name, "a dimension is not a size");
        }
        t->dims[i] = json_integer_value(dim);
        if (__builtin_mul_overflow(t->n_elems, t->dims[i], &t->n_elems)) {
            return bad_tensor(f, t->name, "the shape is too large");
        }
    }
    return ZB_OK;
}

static enum zb_status load_range(const struct file *f, json_t *range,
                                 struct zb_st_tensor *t)
{
    json_t *first = json_array_get(range, 0);
    json_t *last = json_array_get(range, 1);
    json_int_t begin = json_integer_value(first);
    json_int_t end = json_integer_value(last);

    if (json_array_size(range) != 2 || !json_is_integer(first) ||
        !json_is_integer(last)) {
        return bad_tensor(f, t->name, "data_offsets is not a pair of numbers");
    }
    if (begin < 0 || end < begin || (uint64_t)end > f->data_bytes) {
        return zb_fail(ZB_ECONFIG,
                       "%s: tensor '" ZB_ST_NAME_FMT
                       "': bytes %lld to %lld, the file has %zu",
                       f->path, t->name, (long long)begin, (long long)end,
                       f->data_bytes);
    }
    t->data = f->data + begin;
    t->bytes = (size_t)(end - begin);
    return ZB_OK;
}

/* t->name and t->dtype_text are owned by the table from here on, also when
 * this fails. */
static enum zb_status load_tensor(const struct file *f, const char *name,
                                  json_t *entry, struct zb_st_tensor *t)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    size_t elem_bytes, bytes;

    t->name = zb_strdup(name);
    t->dtype_text = zb_strdup(dtype != NULL ? dtype : "");
    if (t->name == NULL || t->dtype_text == NULL) {
        return ZB_ENOMEM;
    }
    if (dtype == NULL) {
        return bad_tensor(f, name, "no dtype");
    }
    ZB_TRY(load_shape(f, json_object_get(entry, "shape"), t));
    ZB_TRY(load_range(f, json_object_get(entry, "data_offsets"), t));
    t->dtype = find_dtype(dtype, &elem_bytes);
    if (elem_bytes > 0 &&
        (__builtin_mul_overflow((size_t)t->n_elems, elem_bytes, &bytes) ||
         bytes != t->bytes)) {
        return zb_fail(ZB_ECONFIG,
                       "%s: tensor '" ZB_ST_NAME_FMT
                       "': %lld elements of %s are not %zu bytes",
                       f->path, name, (long long)t->n_elems, t->dtype_text,
                       t->bytes);
    }
    return ZB_OK;
}

static enum zb_status load_tensors(struct file *f, json_t *root)
{
    const char *key;
    json_t *value;

    f->tensors = zb_alloc_array(json_object_size(root), sizeof(*f->tensors));
    if (f->tensors == NULL) {
        return ZB_ENOMEM;
    }
    json_object_foreach (root, key, value) {
        if (strcmp(key, ZB_ST_META_KEY) == 0) {
            ZB_TRY(load_meta(f, value));
        } else {
            f->pub.n_tensors++;
            ZB_TRY(load_tensor(f, key, value,
                               &f->tensors[f->pub.n_tensors - 1]));
        }
    }
    return ZB_OK;
}

/* Empty tensors come before the one that starts at the same byte. */
static int compare_ranges(const void *a, const void *b)
{
    const struct zb_st_tensor *x = a, *y = b;

    if (x->data != y->data) {
        return (const char *)x->data < (const char *)y->data ? -1 : 1;
    }
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int compare_names(const void *a, const void *b)
{
    const struct zb_st_tensor *x = a, *y = b;

    return strcmp(x->name, y->name);
}

/* Every byte must belong to exactly one tensor: an overlap would let one write
 * change two of them, and a gap says that the file was put together wrongly. */
static enum zb_status check_ranges(struct file *f)
{
    const unsigned char *end = f->data;

    qsort(f->tensors, f->pub.n_tensors, sizeof(*f->tensors), compare_ranges);
    for (size_t i = 0; i < f->pub.n_tensors; i++) {
        const struct zb_st_tensor *t = &f->tensors[i];

        if ((const unsigned char *)t->data < end) {
            return bad_tensor(f, t->name, "overlaps another tensor");
        }
        if ((const unsigned char *)t->data > end) {
            return bad_tensor(f, t->name, "unused bytes before it");
        }
        end += t->bytes;
    }
    if (end != f->data + f->data_bytes) {
        return bad_file(f, "unused bytes after the last tensor");
    }
    return ZB_OK;
}

static enum zb_status load(struct file *f, const char *path)
{
    json_t *root = NULL;
    enum zb_status st;

    f->path = zb_strdup(path);
    if (f->path == NULL) {
        return ZB_ENOMEM;
    }
    ZB_TRY(map_path(f));
    ZB_TRY(load_header(f, &root));
    st = load_tensors(f, root);
    json_decref(root);
    ZB_TRY(st);
    ZB_TRY(check_ranges(f));
    qsort(f->tensors, f->pub.n_tensors, sizeof(*f->tensors), compare_names);
    f->pub.path = f->path;
    f->pub.tensors = f->tensors;
    f->pub.meta = f->meta;
    return ZB_OK;
}

enum zb_status zb_st_open(const char *path, struct zb_st_file **file_out)
{
    struct file *f = zb_alloc(sizeof(*f));
    enum zb_status st;

    if (f == NULL) {
        return ZB_ENOMEM;
    }
    st = load(f, path);
    if (st != ZB_OK) {
        zb_st_close(&f->pub);
        return st;
    }
    *file_out = &f->pub;
    return ZB_OK;
}

void zb_st_close(struct zb_st_file *file)
{
    struct file *f = (struct file *)file;

    if (f == NULL) {
        return;
    }
    for (size_t i = 0; i < f->pub.n_tensors; i++) {
        zb_free((char *)f->tensors[i].name);
        zb_free((char *)f->tensors[i].dtype_text);
    }
    for (size_t i = 0; i < f->pub.n_meta; i++) {
        zb_free((char *)f->meta[i].key);
        zb_free((char *)f->meta[i].value);
    }
    if (f->map != NULL) {
        munmap((void *)f->map, f->map_bytes);
    }
    zb_free(f->tensors);
    zb_free(f->meta);
    zb_free(f->path);
    zb_free(f);
}

const struct zb_st_tensor *zb_st_find(const struct zb_st_file *file,
                                      const char *name)
{
    const struct zb_st_tensor key = {.name = name};

    return bsearch(&key, file->tensors, file->n_tensors, sizeof(key),
                   compare_names);
}

const char *zb_st_find_meta(const struct zb_st_file *file, const char *key)
{
    for (size_t i = 0; i < file->n_meta; i++) {
        if (strcmp(file->meta[i].key, key) == 0) {
            return file->meta[i].value;
        }
    }
    return NULL;
}
