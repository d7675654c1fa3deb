/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zb/tensor.h"

#include <stdio.h>
#include <string.h>

#include "kern/half.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
#define ZB_X(name, text, bytes) {text, bytes},
    ZB_DTYPE_MAP(ZB_X)
#undef ZB_X
};

int zb_dtype_is_storage(enum zb_dtype t)
{
#ifdef ZB_REAL_IS_DOUBLE
    return t == ZB_DTYPE_REAL;
#else
    return (unsigned)t < ZB_N_STORAGE;
#endif
}

void zb_dtype_store(enum zb_dtype t, int64_t n, const zb_real *x, void *y)
{
    uint16_t *half = y;

    ZB_BUG_IF(!zb_dtype_is_storage(t), "storing %s", zb_dtype_str(t));
    if (t == ZB_DTYPE_REAL) {
        memcpy(y, x, (size_t)n * sizeof(*x));
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        half[i] = t == ZB_DTYPE_BF16 ? zb_bf16_of_float((float)x[i])
                                     : zb_f16_of_float((float)x[i]);
    }
}

void zb_dtype_load(enum zb_dtype t, int64_t n, const void *x, zb_real *y)
{
    const uint16_t *half = x;

    ZB_BUG_IF(!zb_dtype_is_storage(t), "loading %s", zb_dtype_str(t));
    if (t == ZB_DTYPE_REAL) {
        memcpy(y, x, (size_t)n * sizeof(*y));
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        y[i] = (zb_real)(t == ZB_DTYPE_BF16 ? zb_float_of_bf16(half[i])
                                            : zb_float_of_f16(half[i]));
    }
}

size_t zb_dtype_bytes(enum zb_dtype t)
{
    return dtypes[t].bytes;
}

const char *zb_dtype_str(enum zb_dtype t)
{
    return dtypes[t].name;
}

struct zb_shape zb_shape_make(int n_dims, const int64_t *dim)
{
    struct zb_shape s = {.n_dims = n_dims};

    ZB_BUG_IF(n_dims < 0 || n_dims > ZB_MAX_DIMS, "shape of %d dims", n_dims);
    for (int i = 0; i < n_dims; i++) {
        s.dim[i] = dim[i];
    }
    return s;
}

int zb_shape_equal(const struct zb_shape *a, const struct zb_shape *b)
{
    return a->n_dims == b->n_dims &&
           memcmp(a->dim, b->dim, (size_t)a->n_dims * sizeof(a->dim[0])) == 0;
}

struct zb_shape zb_shape_bind(const struct zb_shape *s,
                              const struct zb_bind *bind)
{
    struct zb_shape out = *s;

    for (int i = 0; i < s->n_dims; i++) {
        if (s->dim[i] < 0) {
            out.dim[i] = bind->value[-1 - s->dim[i]];
        }
    }
    return out;
}

int64_t zb_shape_elems(const struct zb_shape *s)
{
    int64_t n = 1;

    for (int i = 0; i < s->n_dims; i++) {
        n *= s->dim[i];
    }
    return n;
}

int64_t zb_shape_rows(const struct zb_shape *s)
{
    int64_t n = 1;

    for (int i = 0; i + 1 < s->n_dims; i++) {
        n *= s->dim[i];
    }
    return n;
}

int64_t zb_shape_cols(const struct zb_shape *s)
{
    return s->n_dims > 0 ? s->dim[s->n_dims - 1] : 1;
}

void zb_shape_print(const struct zb_shape *s, char *buf, size_t n)
{
    static const char sym_name[ZB_N_SYMS] = {
        [ZB_SYM_BATCH] = 'B',
        [ZB_SYM_SEQ] = 'T',
        [ZB_SYM_PART] = 'P',
        [ZB_SYM_FULL] = 'S',
    };
    size_t at = 0;

    if (n == 0) {
        return;
    }
    at += (size_t)snprintf(buf, n, "[");
    for (int i = 0; i < s->n_dims && at < n; i++) {
        const char *comma = i > 0 ? "," : "";

        if (s->dim[i] < 0) {
            at += (size_t)snprintf(buf + at, n - at, "%s%c", comma,
                                   sym_name[-1 - s->dim[i]]);
        } else {
            at += (size_t)snprintf(buf + at, n - at, "%s%lld", comma,
                                   (long long)s->dim[i]);
        }
    }
    if (at < n) {
        snprintf(buf + at, n - at, "]");
    }
}

struct zb_view zb_view_dense(void *data, enum zb_dtype dtype,
                             const struct zb_shape *shape)
{
    struct zb_view v = {.data = data, .dtype = dtype, .shape = *shape};
    int64_t step = 1;

    for (int i = shape->n_dims - 1; i >= 0; i--) {
        v.stride[i] = step;
        step *= shape->dim[i];
    }
    return v;
}

int64_t zb_view_row_stride(const struct zb_view *v)
{
    int last_row = v->shape.n_dims - 2;

    if (last_row < 0) {
        return zb_shape_cols(&v->shape);
    }
    for (int i = 0; i < last_row; i++) {
        ZB_BUG_IF(v->shape.dim[i] > 1 &&
                      v->stride[i] != v->stride[i + 1] * v->shape.dim[i + 1],
                  "rows of a view are not equally spaced (dimension %d)", i);
    }
    return v->stride[last_row];
}

size_t zb_view_span_bytes(const struct zb_view *v)
{
    int64_t last = 0;

    for (int i = 0; i < v->shape.n_dims; i++) {
        if (v->shape.dim[i] == 0) {
            return 0;
        }
        last += (v->shape.dim[i] - 1) * v->stride[i];
    }
    return (size_t)(last + 1) * zb_dtype_bytes(v->dtype);
}
