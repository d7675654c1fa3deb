/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "cli/zbprep.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

struct zbprep_kind {
    const char *tail; /* of the name */
    int width;        /* 0: as the ids need */
    int head_bytes;
    int64_t max_tokens;
    void (*head)(const struct zbprep_out *out, unsigned char *head);
};

static void put_le(unsigned char *p, int n, uint64_t value)
{
    for (int i = 0; i < n; i++) {
        p[i] = (unsigned char)(value >> (8 * i));
    }
}

/* 256 int32: a magic number, a version, the number of tokens. */
static void head_llmc(const struct zbprep_out *out, unsigned char *head)
{
    put_le(head, 4, out->width == 2 ? 20240520 : 20240801);
    put_le(head + 4, 4, out->width == 2 ? 1 : 7);
    put_le(head + 8, 4, (uint64_t)out->n_tokens);
}

#define NPY_BYTES 128

/* Version 1.0; the dictionary is padded so that data are aligned. */
static void head_npy(const struct zbprep_out *out, unsigned char *head)
{
    char shape[48];
    int n;

    if (out->row_len > 0) {
        snprintf(shape, sizeof(shape), "%" PRId64 ", %" PRId64,
                 out->n_tokens / out->row_len, out->row_len);
    } else {
        snprintf(shape, sizeof(shape), "%" PRId64 ",", out->n_tokens);
    }
    memcpy(head, "\x93NUMPY\1\0", 8);
    put_le(head + 8, 2, NPY_BYTES - 10);
    n = snprintf((char *)head + 10, NPY_BYTES - 10,
                 "{'descr': '<u%d', 'fortran_order': False, 'shape': (%s), }",
                 out->width, shape);
    memset(head + 10 + n, ' ', (size_t)(NPY_BYTES - 11 - n));
    head[NPY_BYTES - 1] = '\n';
}

static const struct zbprep_kind kinds[] = {
    {".bin", 0, 1024, INT32_MAX, head_llmc},
    {".npy", 0, NPY_BYTES, INT64_MAX / 8, head_npy},
    {".u16", 2, 0, INT64_MAX / 8, NULL},
    {".u32", 4, 0, INT64_MAX / 8, NULL},
};

static const struct zbprep_kind *find_kind(const char *path)
{
    size_t n = strlen(path);

    for (size_t i = 0; i < ZB_COUNT_OF(kinds); i++) {
        if (n > 4 && strcmp(path + n - 4, kinds[i].tail) == 0) {
            return &kinds[i];
        }
    }
    return NULL;
}

static enum zb_status put_head(struct zbprep_out *out)
{
    unsigned char head[1024] = {0};
    size_t n = (size_t)out->kind->head_bytes;

    if (n == 0) {
        return ZB_OK;
    }
    out->kind->head(out, head);
    if (fwrite(head, 1, n, out->sink.f) != n) {
        return zb_fail(ZB_EIO, "%s: %s", out->sink.path, strerror(errno));
    }
    return ZB_OK;
}

enum zb_status zbprep_out_open(struct zbprep_out *out, const char *path,
                               int64_t id_limit)
{
    enum zb_status st;

    memset(out, 0, sizeof(*out));
    out->kind = find_kind(path);
    if (out->kind == NULL) {
        return zb_fail(ZB_EINVAL,
                       "%s: the name says no format: it ends with .bin, .npy, "
                       ".u16 or .u32",
                       path);
    }
    out->width = out->kind->width > 0 ? out->kind->width
                 : id_limit <= 65536  ? 2
                                      : 4;
    if (out->width == 2 && id_limit > 65536) {
        return zb_fail(ZB_EINVAL,
                       "%s: ids up to %" PRId64 " do not fit into 16 bits",
                       path, id_limit - 1);
    }
    ZB_TRY(zb_sink_open(&out->sink, path));
    st = put_head(out);
    return st == ZB_OK ? st : zb_sink_close(&out->sink, st);
}

enum zb_status zbprep_out_open_rows(struct zbprep_out *out, const char *path,
                                    int64_t id_limit, int64_t row_len)
{
    ZB_TRY(zbprep_out_open(out, path, id_limit));
    ZB_BUG_IF(out->kind->head != head_npy, "%s has rows", path);
    out->row_len = row_len;
    return ZB_OK;
}

enum zb_status zbprep_out_put(void *arg, const int32_t *ids, size_t n)
{
    struct zbprep_out *out = arg;
    unsigned char bytes[4096 * 4];

    if ((int64_t)n > out->kind->max_tokens - out->n_tokens) {
        return zb_fail(ZB_ECONFIG,
                       "%s: more than %" PRId64 " tokens do not fit into this "
                       "format: write several files, or .npy",
                       out->sink.path, out->kind->max_tokens);
    }
    out->n_tokens += (int64_t)n;
    while (n > 0) {
        size_t part = n < 4096 ? n : 4096;
        size_t n_bytes = part * (size_t)out->width;

        for (size_t i = 0; i < part; i++) {
            put_le(bytes + i * (size_t)out->width, out->width,
                   (uint64_t)ids[i]);
        }
        if (fwrite(bytes, 1, n_bytes, out->sink.f) != n_bytes) {
            return zb_fail(ZB_EIO, "%s: %s", out->sink.path, strerror(errno));
        }
        ids += part;
        n -= part;
    }
    return ZB_OK;
}

/* The head again: now the number of tokens is known. */
enum zb_status zbprep_out_close(struct zbprep_out *out, enum zb_status st)
{
    if (st == ZB_OK && out->kind->head_bytes > 0) {
        st = fseek(out->sink.f, 0, SEEK_SET) != 0
                 ? zb_fail(ZB_EIO, "%s: %s", out->sink.path, strerror(errno))
                 : put_head(out);
    }
    return zb_sink_close(&out->sink, st);
}
