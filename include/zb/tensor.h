/* SPDX-License-Identifier: MIT
 *
 * Element types, shapes and views. A view owns nothing.
 *
 * A shape may contain symbols (batch rows, sequence length) that get their
 * value per microbatch; zb_shape_bind() turns it into plain numbers.
 * Layout is dense and row-major, slowest dimension first.
 */
#ifndef ZB_TENSOR_H
#define ZB_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "zb/status.h"

/* The type the library computes in: float, and double in the build that the
 * tests compare with central differences. */
#ifdef ZB_REAL_IS_DOUBLE
typedef double zb_real;
#else
typedef float zb_real;
#endif

#define ZB_DTYPE_MAP(X)                                                        \
    X(REAL, "real", sizeof(zb_real)) /* zb_real: fp32 in every product build */\
    X(BF16, "bf16", 2)                                                         \
    X(F16, "f16", 2)                                                           \
    X(F64, "f64", 8)                                                           \
    X(I32, "i32", 4)                                                           \
    X(U8, "u8", 1)

enum zb_dtype {
#define ZB_X(name, text, bytes) ZB_DTYPE_##name,
    ZB_DTYPE_MAP(ZB_X)
#undef ZB_X
};

/* Types that activations and parameters can be stored in come first: zb_real,
 * bf16 and fp16. Kernels compute in zb_real whatever is stored. */
#define ZB_N_STORAGE 3

/* Whether this build can store in t: the one in double stores zb_real only. */
int zb_dtype_is_storage(enum zb_dtype t);

/* n numbers of host memory as elements of type t, rounded, and back. */
void zb_dtype_store(enum zb_dtype t, int64_t n, const zb_real *x, void *y);
void zb_dtype_load(enum zb_dtype t, int64_t n, const void *x, zb_real *y);

size_t zb_dtype_bytes(enum zb_dtype t);
const char *zb_dtype_str(enum zb_dtype t);

#define ZB_MAX_DIMS 4

/* Symbols stand for sizes that differ from microbatch to microbatch. As a
 * dimension, symbol s is written ZB_DIM(s), a negative number. On one device
 * the three lengths are the same; see struct zb_parallel in zb/graph.h. */
enum zb_sym {
    ZB_SYM_BATCH,
    ZB_SYM_SEQ,  /* sequence length a device computes on */
    ZB_SYM_PART, /* the same between tensor-parallel regions */
    ZB_SYM_FULL, /* of whole sequences */
    ZB_N_SYMS
};
#define ZB_DIM(sym) (-1 - (int64_t)(sym))

struct zb_shape {
    int n_dims;
    int64_t dim[ZB_MAX_DIMS]; /* > 0: a size; < 0: a symbol */
};

/* The values of the symbols for one microbatch. */
struct zb_bind {
    int64_t value[ZB_N_SYMS];
};

struct zb_shape zb_shape_make(int n_dims, const int64_t *dim);
int zb_shape_equal(const struct zb_shape *a, const struct zb_shape *b);

/* The shape with every symbol replaced by its value. */
struct zb_shape zb_shape_bind(const struct zb_shape *s,
                              const struct zb_bind *bind);

/* Number of elements of a bound shape; 1 for a shape without dimensions. */
int64_t zb_shape_elems(const struct zb_shape *s);

/* The product of all dimensions but the last, and the last, of a bound shape:
 * "rows" and "columns" of a row kernel. */
int64_t zb_shape_rows(const struct zb_shape *s);
int64_t zb_shape_cols(const struct zb_shape *s);

/* "[4,16,32]", symbols as B and T; truncated to `n` bytes. */
void zb_shape_print(const struct zb_shape *s, char *buf, size_t n);

/* One tensor of a message: where it begins, and what it is once bound. */
struct zb_part {
    size_t offset;
    enum zb_dtype dtype;
    struct zb_shape shape;
};

/* A tensor in memory: a bound shape, where its first element is, and how many
 * elements lie between neighbours of each dimension. The last dimension is
 * always contiguous; a view into packed storage (q of a qkv row, one head) has
 * larger strides in the others. */
struct zb_view {
    void *data;
    enum zb_dtype dtype;
    struct zb_shape shape;
    int64_t stride[ZB_MAX_DIMS];
};

/* A dense view of `data`. */
struct zb_view zb_view_dense(void *data, enum zb_dtype dtype,
                             const struct zb_shape *shape);

/* Elements between consecutive rows (all dimensions but the last taken as one);
 * a bug when the rows are not equally spaced. */
int64_t zb_view_row_stride(const struct zb_view *v);

/* Bytes from the first to the end of the last element. */
size_t zb_view_span_bytes(const struct zb_view *v);

#endif
