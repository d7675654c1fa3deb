/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zb/ckpt.h"

#include "ckpt/safetensors_int.h"
#include "zb/hash.h"
#include "zb/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The header is padded with spaces so that the data starts at a multiple. */
#define HEADER_ALIGN 8

#define MAX_TRIES 1000

/* What zb_st_write() was given. */
struct job {
    const char *path;
    const struct zb_st_out *tensors;
    size_t n;
    const struct zb_st_meta *meta;
    size_t n_meta;
    struct zb_sum *sum; /* of what is written, or NULL */
};

static enum zb_status bad_arg(const char *path, const char *name,
                              const char *why)
{
    return zb_fail(ZB_EINVAL, "%s: cannot write '" ZB_ST_NAME_FMT "': %s", path,
                   name, why);
}

static enum zb_status io_error(const char *path, const char *what, int code)
{
    return zb_fail(ZB_EIO, "%s: %s: %s", path, what, strerror(code));
}

static enum zb_status no_memory(const char *path)
{
    return zb_fail(ZB_ENOMEM, "%s: out of host memory", path);
}

/* After this, jansson has no reason but memory to refuse the text. */
static enum zb_status check_text(const char *path, const char *text)
{
    json_t *s = json_string(text);

    if (s == NULL) {
        return bad_arg(path, text, "not UTF-8");
    }
    json_decref(s);
    return ZB_OK;
}

static enum zb_status tensor_bytes(const char *path,
                                   const struct zb_st_out *t, size_t *bytes_out)
{
    size_t bytes;

    if ((int)t->dtype < 0 || t->dtype >= ZB_ST_OTHER || t->n_dims < 0 ||
        t->n_dims > ZB_ST_MAX_DIMS) {
        return bad_arg(path, t->name, "no such dtype or number of dimensions");
    }
    bytes = zb_st_dtype_bytes(t->dtype);
    for (int i = 0; i < t->n_dims; i++) {
        if (t->dims[i] < 0 ||
            __builtin_mul_overflow(bytes, (size_t)t->dims[i], &bytes)) {
            return bad_arg(path, t->name, "a dimension is not a size");
        }
    }
    if (t->data == NULL && bytes > 0) {
        return bad_arg(path, t->name, "no data");
    }
    *bytes_out = bytes;
    return ZB_OK;
}

static json_t *make_shape(const struct zb_st_out *t)
{
    json_t *shape = json_array();

    for (int i = 0; i < t->n_dims; i++) {
        if (json_array_append_new(shape, json_integer(t->dims[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    }
    return shape;
}

/* One tensor's entry; its range starts at `*at`, which moves to its end. */
static enum zb_status add_tensor(const char *path, json_t *root,
                                 const struct zb_st_out *t, size_t *at)
{
    size_t bytes, end;
    json_t *entry;

    ZB_TRY(check_text(path, t->name));
    ZB_TRY(tensor_bytes(path, t, &bytes));
    if (__builtin_add_overflow(*at, bytes, &end) || end > INT64_MAX) {
        return bad_arg(path, t->name, "the file is too large");
    }
    if (json_object_get(root, t->name) != NULL ||
        strcmp(t->name, ZB_ST_META_KEY) == 0) {
        return bad_arg(path, t->name, "the name is taken");
    }
    /* "o" takes the reference, whether it succeeds or not. */
    entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype",
                      zb_st_dtype_text(t->dtype), "shape", make_shape(t),
                      "data_offsets", (json_int_t)*at, (json_int_t)end);
    if (entry == NULL || json_object_set_new(root, t->name, entry) != 0) {
        return no_memory(path);
    }
    *at = end;
    return ZB_OK;
}

static enum zb_status add_meta(const struct job *job, json_t *root)
{
    json_t *dict;

    if (job->n_meta == 0) {
        return ZB_OK;
    }
    dict = json_object();
    if (json_object_set_new(root, ZB_ST_META_KEY, dict) != 0) {
        return no_memory(job->path);
    }
    for (size_t i = 0; i < job->n_meta; i++) {
        const struct zb_st_meta *m = &job->meta[i];

        ZB_TRY(check_text(job->path, m->key));
        ZB_TRY(check_text(job->path, m->value));
        if (json_object_get(dict, m->key) != NULL) {
            return bad_arg(job->path, m->key, "the metadata key is taken");
        }
        if (json_object_set_new(dict, m->key, json_string(m->value)) != 0) {
            return no_memory(job->path);
        }
    }
    return ZB_OK;
}

/* The length and the padded JSON text, as they stand in the file. */
static enum zb_status print_header(const char *path, const json_t *root,
                                   char **header_out, size_t *bytes_out)
{
    size_t n = json_dumpb(root, NULL, 0, JSON_COMPACT);
    size_t padded = (n + HEADER_ALIGN - 1) / HEADER_ALIGN * HEADER_ALIGN;
    uint64_t length = padded;
    char *header;

    if (n == 0) {
        return no_memory(path);
    }
    if (padded > ZB_ST_MAX_HEADER_BYTES) {
        return zb_fail(ZB_EINVAL, "%s: a header of %zu bytes is too long", path,
                       padded);
    }
    header = zb_alloc(ZB_ST_LENGTH_BYTES + padded);
    if (header == NULL) {
        return ZB_ENOMEM;
    }
    memcpy(header, &length, sizeof(length));
    memset(header + ZB_ST_LENGTH_BYTES, ' ', padded);
    if (json_dumpb(root, header + ZB_ST_LENGTH_BYTES, n, JSON_COMPACT) != n) {
        zb_free(header);
        return no_memory(path);
    }
    *header_out = header;
    *bytes_out = ZB_ST_LENGTH_BYTES + padded;
    return ZB_OK;
}

static enum zb_status make_header(const struct job *job, char **header_out,
                                  size_t *bytes_out)
{
    json_t *root = json_object();
    size_t at = 0;
    enum zb_status st;

    if (root == NULL) {
        return no_memory(job->path);
    }
    st = add_meta(job, root);
    for (size_t i = 0; st == ZB_OK && i < job->n; i++) {
        st = add_tensor(job->path, root, &job->tensors[i], &at);
    }
    if (st == ZB_OK) {
        st = print_header(job->path, root, header_out, bytes_out);
    }
    json_decref(root);
    return st;
}

static enum zb_status write_all(int fd, const char *path, const void *data,
                                size_t bytes)
{
    const char *at = data;

    while (bytes > 0) {
        ssize_t n = write(fd, at, bytes);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return io_error(path, "cannot write", n < 0 ? errno : ENOSPC);
        }
        at += n;
        bytes -= (size_t)n;
    }
    return ZB_OK;
}

/* A piece of the file, through its checksum. */
static enum zb_status write_piece(int fd, const struct job *job,
                                  const void *data, size_t bytes)
{
    if (job->sum != NULL && bytes > 0) {
        zb_sum_add(job->sum, data, bytes);
    }
    return write_all(fd, job->path, data, bytes);
}

static enum zb_status write_content(int fd, const struct job *job,
                                    const char *header, size_t header_bytes)
{
    size_t bytes;

    ZB_TRY(write_piece(fd, job, header, header_bytes));
    for (size_t i = 0; i < job->n; i++) {
        ZB_TRY(tensor_bytes(job->path, &job->tensors[i], &bytes));
        ZB_TRY(write_piece(fd, job, job->tensors[i].data, bytes));
    }
    if (fsync(fd) != 0) {
        return io_error(job->path, "cannot synchronise", errno);
    }
    return ZB_OK;
}

/* A rename onto a device or a FIFO would remove it. */
static enum zb_status check_target(const char *path)
{
    struct stat sb;

    if (stat(path, &sb) == 0 && !S_ISREG(sb.st_mode)) {
        return zb_fail(ZB_EIO, "%s: not a regular file", path);
    }
    return ZB_OK;
}

/* A new file beside `path`. Two writers of one path each get their own. */
static enum zb_status open_beside(const char *path, char **temp_out,
                                  int *fd_out)
{
    for (int i = 0; i < MAX_TRIES; i++) {
        char *temp = zb_format("%s.tmp.%ld.%d", path, (long)getpid(), i);
        int fd, code;

        if (temp == NULL) {
            return ZB_ENOMEM;
        }
        fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) {
            *temp_out = temp;
            *fd_out = fd;
            return ZB_OK;
        }
        code = errno;
        zb_free(temp);
        if (code != EEXIST) {
            return io_error(path, "cannot create a file beside it", code);
        }
    }
    return io_error(path, "cannot create a file beside it", EEXIST);
}

/* The folder of a path, for sync_folder(); -1 in *fd_out when it may not be
 * opened, which does not keep a file from being made in it. */
static enum zb_status open_folder(const char *path, int *fd_out)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash == NULL ? zb_strdup(".")
                                 : zb_strndup(path, (size_t)(slash - path) + 1);

    if (folder == NULL) {
        return ZB_ENOMEM;
    }
    *fd_out = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    zb_free(folder);
    return ZB_OK;
}

/* Make a rename in this folder last. A file system that cannot synchronise a
 * folder says EINVAL. */
static enum zb_status sync_folder(const char *path, int fd)
{
    if (fd >= 0 && fsync(fd) != 0 && errno != EINVAL) {
        return io_error(path, "cannot synchronise its folder", errno);
    }
    return ZB_OK;
}

static enum zb_status write_beside(const struct job *job, const char *header,
                                   size_t header_bytes)
{
    char *temp = NULL;
    int fd = -1;
    enum zb_status st;

    ZB_TRY(open_beside(job->path, &temp, &fd));
    st = write_content(fd, job, header, header_bytes);
    if (close(fd) != 0 && st == ZB_OK) {
        st = io_error(job->path, "cannot close", errno);
    }
    if (st == ZB_OK && rename(temp, job->path) != 0) {
        st = io_error(job->path, "cannot rename onto it", errno);
    }
    if (st != ZB_OK) {
        unlink(temp);
    }
    zb_free(temp);
    return st;
}

static enum zb_status write_file(const struct job *job, const char *header,
                                 size_t header_bytes)
{
    int folder = -1;
    enum zb_status st;

    ZB_TRY(check_target(job->path));
    ZB_TRY(open_folder(job->path, &folder));
    st = write_beside(job, header, header_bytes);
    if (st == ZB_OK) {
        st = sync_folder(job->path, folder);
    }
    if (folder >= 0) {
        close(folder);
    }
    return st;
}

static enum zb_status write_job(const struct job *job)
{
    char *header = NULL;
    size_t header_bytes = 0;
    enum zb_status st;

    ZB_TRY(make_header(job, &header, &header_bytes));
    st = write_file(job, header, header_bytes);
    zb_free(header);
    return st;
}

enum zb_status zb_st_write(const char *path, const struct zb_st_out *tensors,
                           size_t n, const struct zb_st_meta *meta,
                           size_t n_meta)
{
    const struct job job = {path, tensors, n, meta, n_meta, NULL};

    return write_job(&job);
}

enum zb_status zb_st_write_summed(const char *path,
                                  const struct zb_st_out *tensors, size_t n,
                                  const struct zb_st_meta *meta, size_t n_meta,
                                  uint64_t *sum_out, uint64_t *bytes_out)
{
    struct zb_sum sum;
    const struct job job = {path, tensors, n, meta, n_meta, &sum};

    zb_sum_init(&sum);
    ZB_TRY(write_job(&job));
    *sum_out = zb_sum_value(&sum);
    *bytes_out = sum.n_bytes;
    return ZB_OK;
}
