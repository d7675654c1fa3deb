/* SPDX-License-Identifier: MIT
 *
 * zbprep arrays: .npy files one after the other along their first dimension,
 * with the numbers that models take: float32 or int32. */
#include "config.h"
#include "cli/zbprep.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "zb/mem.h"
#include "zb/npy.h"

#define PART 4096

/* What all files have in common, and how many rows they have together. */
struct shape {
    int is_float, n_dims;
    int64_t dim[ZB_NPY_MAX_DIMS];
};

static enum zb_status add_shape(struct shape *s, const char *path,
                                const struct zb_npy_info *info, int is_first)
{
    if (info->n_dims == 0) {
        return zb_fail(ZB_ECONFIG, "%s: a number, not an array", path);
    }
    if (info->is_fortran && info->n_dims > 1) {
        return zb_fail(ZB_ECONFIG,
                       "%s: its first dimension is the fastest "
                       "(fortran_order), which is not supported",
                       path);
    }
    if (is_first) {
        s->is_float = info->kind == 'f';
        s->n_dims = info->n_dims;
        memcpy(s->dim, info->dim, sizeof(s->dim));
        return ZB_OK;
    }
    if (s->n_dims != info->n_dims || s->is_float != (info->kind == 'f')) {
        return zb_fail(ZB_ECONFIG,
                       "%s: other dimensions or another kind of numbers than "
                       "the files before it",
                       path);
    }
    for (int i = 1; i < s->n_dims; i++) {
        if (s->dim[i] != info->dim[i]) {
            return zb_fail(ZB_ECONFIG,
                           "%s: dimension %d is %" PRId64 ", and %" PRId64
                           " in the files before it",
                           path, i, info->dim[i], s->dim[i]);
        }
    }
    if (info->dim[0] > INT64_MAX / 8 - s->dim[0]) {
        return zb_fail(ZB_ECONFIG, "%s: too many rows", path);
    }
    s->dim[0] += info->dim[0];
    return ZB_OK;
}

static enum zb_status find_shape(const struct zbprep_opts *o, struct shape *s)
{
    for (int i = 0; i < o->n_files; i++) {
        struct zb_npy *a;
        enum zb_status st;

        ZB_TRY(zb_npy_open(o->files[i], &a));
        st = add_shape(s, o->files[i], zb_npy_info(a), i == 0);
        zb_npy_close(a);
        ZB_TRY(st);
    }
    return ZB_OK;
}

/* Version 1.0, padded so that numbers are aligned to 64 bytes. */
static enum zb_status put_head(const struct shape *s, struct zb_sink *k)
{
    char head[320] = "\x93NUMPY\1";
    int n = 10, size;

    n += snprintf(head + n, sizeof(head) - (size_t)n,
                  "{'descr': '<%s4', 'fortran_order': False, 'shape': (",
                  s->is_float ? "f" : "i");
    for (int i = 0; i < s->n_dims; i++) {
        n += snprintf(head + n, sizeof(head) - (size_t)n, "%" PRId64 "%s",
                      s->dim[i], i == 0 || i + 1 < s->n_dims ? ", " : "");
    }
    n += snprintf(head + n, sizeof(head) - (size_t)n, "), }");
    size = (n + 1 + 63) / 64 * 64;
    memset(head + n, ' ', (size_t)(size - n - 1));
    head[size - 1] = '\n';
    head[8] = (char)((size - 10) & 255);
    head[9] = (char)((size - 10) >> 8);
    if (fwrite(head, 1, (size_t)size, k->f) != (size_t)size) {
        return zb_fail(ZB_EIO, "%s: %s", k->path, strerror(errno));
    }
    return ZB_OK;
}

static enum zb_status put_elems(const struct zb_npy *a, int is_float,
                                struct zb_sink *k)
{
    int64_t n = zb_npy_info(a)->n_elems;
    union {
        float f[PART];
        int32_t i[PART];
    } part;

    for (int64_t at = 0; at < n; at += PART) {
        int64_t here = n - at < PART ? n - at : PART;

        ZB_TRY(is_float ? zb_npy_read_f32(a, at, here, part.f)
                        : zb_npy_read_i32(a, at, here, part.i));
        if (fwrite(&part, 4, (size_t)here, k->f) != (size_t)here) {
            return zb_fail(ZB_EIO, "%s: %s", k->path, strerror(errno));
        }
    }
    return ZB_OK;
}

static enum zb_status put_all(const struct zbprep_opts *o,
                              const struct shape *s, struct zb_sink *k)
{
    ZB_TRY(put_head(s, k));
    for (int i = 0; i < o->n_files; i++) {
        struct zb_npy *a;
        enum zb_status st;

        ZB_TRY(zb_npy_open(o->files[i], &a));
        st = put_elems(a, s->is_float, k);
        zb_npy_close(a);
        ZB_TRY(st);
    }
    return ZB_OK;
}

enum zb_status zbprep_arrays(const struct zbprep_opts *o)
{
    size_t n = strlen(o->output);
    struct shape s = {0};
    struct zb_sink k;

    if (n < 5 || strcmp(o->output + n - 4, ".npy") != 0) {
        return zb_fail(ZB_EINVAL, "%s: arrays are written to .npy files",
                       o->output);
    }
    ZB_TRY(find_shape(o, &s));
    ZB_TRY(zb_sink_open(&k, o->output));
    ZB_TRY(zb_sink_close(&k, put_all(o, &s, &k)));
    if (!o->is_quiet) {
        printf("%s: %s", o->output, s.is_float ? "float32" : "int32");
        for (int i = 0; i < s.n_dims; i++) {
            printf("%s%" PRId64, i == 0 ? " [" : ", ", s.dim[i]);
        }
        printf("]\n");
    }
    return ZB_OK;
}
