/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "graph/graph_int.h"

#include <string.h>

struct zb_prod zb_prod_dim(int64_t dim)
{
    struct zb_prod p = {.coef = dim};

    if (dim < 0) {
        p.coef = 1;
        p.pow[-1 - dim] = 1;
    }
    return p;
}

struct zb_prod zb_prod_mul(struct zb_prod a, struct zb_prod b)
{
    a.coef *= b.coef;
    for (int i = 0; i < ZB_N_SYMS; i++) {
        a.pow[i] += b.pow[i];
    }
    return a;
}

int zb_prod_equal(struct zb_prod a, struct zb_prod b)
{
    return a.coef == b.coef && memcmp(a.pow, b.pow, sizeof(a.pow)) == 0;
}

struct zb_prod zb_shape_prod(const struct zb_shape *s)
{
    struct zb_prod p = zb_prod_dim(1);

    for (int i = 0; i < s->n_dims; i++) {
        p = zb_prod_mul(p, zb_prod_dim(s->dim[i]));
    }
    return p;
}

/* A size that orders products as typical microbatches would. */
static double probe(struct zb_prod p)
{
    static const double typical[ZB_N_SYMS] = {
        [ZB_SYM_BATCH] = 1000003.0,
        [ZB_SYM_SEQ] = 10007.0,
        [ZB_SYM_PART] = 5003.0,
        [ZB_SYM_FULL] = 20011.0,
    };
    double x = (double)p.coef;

    for (int i = 0; i < ZB_N_SYMS; i++) {
        for (int k = 0; k < p.pow[i]; k++) {
            x *= typical[i];
        }
    }
    return x;
}

struct zb_layout zb_layout_dense(const struct zb_shape *shape)
{
    struct zb_layout l = {.shape = *shape};
    struct zb_prod step = zb_prod_dim(1);

    for (int i = shape->n_dims - 1; i >= 0; i--) {
        l.stride[i] = step;
        step = zb_prod_mul(step, zb_prod_dim(shape->dim[i]));
    }
    return l;
}

struct zb_layout zb_layout_slice(const struct zb_layout *l, int64_t first,
                                 int64_t n)
{
    struct zb_layout out = *l;

    out.offset += first;
    out.shape.dim[out.shape.n_dims - 1] = n;
    return out;
}

/* Whether dimensions i and i + 1 can be walked as one. */
static int joins_next(const struct zb_layout *l, int i)
{
    struct zb_prod next =
        zb_prod_mul(l->stride[i + 1], zb_prod_dim(l->shape.dim[i + 1]));

    return l->shape.dim[i] == 1 || zb_prod_equal(l->stride[i], next);
}

/* Match the smallest groups of trailing dimensions, old and new, that have
 * equal products; *o and *n are the innermost of each and end as the
 * outermost. -1 when the old ones of a group do not join. */
static int match_group(const struct zb_layout *l, const struct zb_shape *s,
                       int *o, int *n)
{
    struct zb_prod old_size = zb_prod_dim(l->shape.dim[*o]);
    struct zb_prod new_size = zb_prod_dim(s->dim[*n]);

    while (!zb_prod_equal(old_size, new_size)) {
        if (probe(old_size) < probe(new_size)) {
            if (*o == 0 || !joins_next(l, *o - 1)) {
                return -1;
            }
            (*o)--;
            old_size = zb_prod_mul(old_size, zb_prod_dim(l->shape.dim[*o]));
        } else {
            if (*n == 0) {
                return -1;
            }
            (*n)--;
            new_size = zb_prod_mul(new_size, zb_prod_dim(s->dim[*n]));
        }
    }
    return 0;
}

int zb_layout_reshape(const struct zb_layout *l, const struct zb_shape *shape,
                      struct zb_layout *out)
{
    struct zb_layout r = zb_layout_dense(shape);
    int o = l->shape.n_dims - 1, n = shape->n_dims - 1;

    r.offset = l->offset;
    while (o >= 0 && n >= 0) {
        int inner_n = n;
        struct zb_prod step = l->stride[o];

        if (match_group(l, shape, &o, &n) != 0) {
            return -1;
        }
        for (int i = inner_n; i >= n; i--) {
            r.stride[i] = step;
            step = zb_prod_mul(step, zb_prod_dim(shape->dim[i]));
        }
        o--;
        n--;
    }
    for (; o >= 0; o--) {
        if (l->shape.dim[o] != 1) {
            return -1;
        }
    }
    for (; n >= 0; n--) {
        if (shape->dim[n] != 1) {
            return -1;
        }
    }
    *out = r;
    return 0;
}

int zb_layout_is_dense(const struct zb_layout *l)
{
    struct zb_layout d = zb_layout_dense(&l->shape);

    for (int i = 0; i < l->shape.n_dims; i++) {
        if (l->shape.dim[i] != 1 &&
            !zb_prod_equal(l->stride[i], d.stride[i])) {
            return 0;
        }
    }
    return 1;
}

int zb_layout_has_even_rows(const struct zb_layout *l)
{
    for (int i = 0; i + 2 < l->shape.n_dims; i++) {
        if (!joins_next(l, i)) {
            return 0;
        }
    }
    return 1;
}

int zb_layout_fits(const struct zb_layout *l, enum zb_need need)
{
    switch (need) {
    case ZB_NEED_ROWS:
        return zb_layout_has_even_rows(l);
    case ZB_NEED_HEADS:
        return l->shape.n_dims == 4 && joins_next(l, 0);
    case ZB_NEED_ANY:
        return 1;
    default:
        return zb_layout_is_dense(l);
    }
}

int zb_layout_as_rows(const struct zb_layout *l, struct zb_layout *out)
{
    struct zb_layout r = *l;

    while (!zb_layout_has_even_rows(&r)) {
        int last = r.shape.n_dims - 1;

        if (last < 2 || r.shape.dim[last] < 0 || r.shape.dim[last - 1] < 0 ||
            !joins_next(&r, last - 1)) {
            return -1;
        }
        r.shape.dim[last - 1] *= r.shape.dim[last];
        r.stride[last - 1] = r.stride[last];
        r.shape.n_dims = last;
    }
    *out = r;
    return 0;
}

static int64_t bind_prod(struct zb_prod p, const struct zb_bind *bind)
{
    int64_t x = p.coef;

    for (int i = 0; i < ZB_N_SYMS; i++) {
        for (int k = 0; k < p.pow[i]; k++) {
            x *= bind->value[i];
        }
    }
    return x;
}

struct zb_view zb_layout_bind(const struct zb_layout *l, void *base,
                              enum zb_dtype dtype,
                              const struct zb_bind *bind)
{
    struct zb_view v = {.dtype = dtype};

    v.data = (char *)base + (size_t)l->offset * zb_dtype_bytes(dtype);
    v.shape = zb_shape_bind(&l->shape, bind);
    for (int i = 0; i < l->shape.n_dims; i++) {
        v.stride[i] = bind_prod(l->stride[i], bind);
    }
    return v;
}
