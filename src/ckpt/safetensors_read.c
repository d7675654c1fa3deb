/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zb/ckpt.h"

#include "ckpt/safetensors_int.h"

#include <string.h>

/* IEEE binary16: 1 sign, 5 exponent (bias 15), 10 fraction bits. Shifted into a
 * float's place the exponent is short by the difference of the biases, which a
 * product corrects, exactly and also for subnormal numbers. */
static float float_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t bits = (uint32_t)(h & 0x7fff) << 13;
    float value;

    memcpy(&value, &bits, sizeof(value));
    value *= 0x1p112f;
    memcpy(&bits, &value, sizeof(value));
    if ((h & 0x7c00) == 0x7c00) {
        bits |= 0x7f800000; /* infinity, NaN */
    }
    bits |= sign;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* bfloat16 is the upper half of a float. */
static float float_of_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Element i of a tensor of a float type. The data need not be aligned. */
static double float_elem(const struct zb_st_tensor *t, int64_t i)
{
    const char *at = (const char *)t->data +
                     (size_t)i * zb_st_dtype_bytes(t->dtype);
    double f64;
    float f32;
    uint16_t half;

    switch (t->dtype) {
    case ZB_ST_F64:
        memcpy(&f64, at, sizeof(f64));
        return f64;
    case ZB_ST_F32:
        memcpy(&f32, at, sizeof(f32));
        return f32;
    default:
        memcpy(&half, at, sizeof(half));
        return t->dtype == ZB_ST_F16 ? float_of_f16(half) : float_of_bf16(half);
    }
}

static int64_t int_elem(const struct zb_st_tensor *t, int64_t i)
{
    const char *at = (const char *)t->data +
                     (size_t)i * zb_st_dtype_bytes(t->dtype);
    int64_t i64;
    int32_t i32;

    switch (t->dtype) {
    case ZB_ST_I64:
        memcpy(&i64, at, sizeof(i64));
        return i64;
    case ZB_ST_I32:
        memcpy(&i32, at, sizeof(i32));
        return i32;
    default:
        return *(const unsigned char *)at;
    }
}

static enum zb_status check_count(const struct zb_st_file *file,
                                  const struct zb_st_tensor *t, int64_t n)
{
    if (t->n_elems != n) {
        return zb_fail(ZB_EINVAL,
                       "%s: tensor '" ZB_ST_NAME_FMT
                       "': %lld elements, %lld are wanted",
                       file->path, t->name, (long long)t->n_elems,
                       (long long)n);
    }
    return ZB_OK;
}

static enum zb_status wrong_dtype(const struct zb_st_file *file,
                                  const struct zb_st_tensor *t,
                                  const char *wanted)
{
    return zb_fail(ZB_EUNSUPPORTED,
                   "%s: tensor '" ZB_ST_NAME_FMT
                   "': dtype %.20s cannot be read as %s",
                   file->path, t->name, t->dtype_text, wanted);
}

static enum zb_status check_float(const struct zb_st_file *file,
                                  const struct zb_st_tensor *t, int64_t n)
{
    ZB_TRY(check_count(file, t, n));
    switch (t->dtype) {
    case ZB_ST_F64:
    case ZB_ST_F32:
    case ZB_ST_F16:
    case ZB_ST_BF16:
        return ZB_OK;
    default:
        return wrong_dtype(file, t, "real numbers");
    }
}

/* n elements of a type from `at`, which need not be aligned: a loop for each
 * type, so that none has a decision in it. */
#define READ_LOOP(type, value_of)                                              \
    for (int64_t i = 0; i < n; i++) {                                          \
        type x;                                                                \
                                                                               \
        memcpy(&x, at + (size_t)i * sizeof(x), sizeof(x));                     \
        out[i] = (zb_real)value_of(x);                                         \
    }

static void read_reals(enum zb_st_dtype dtype, const char *at, int64_t n,
                       zb_real *out)
{
    switch (dtype) {
    case ZB_ST_F64:
        READ_LOOP(double, );
        break;
    case ZB_ST_F32:
        READ_LOOP(float, );
        break;
    case ZB_ST_F16:
        READ_LOOP(uint16_t, float_of_f16);
        break;
    default:
        READ_LOOP(uint16_t, float_of_bf16);
        break;
    }
}

enum zb_status zb_st_read_part(const struct zb_st_file *file,
                               const struct zb_st_tensor *t, int64_t first,
                               int64_t n, zb_real *out)
{
    const char *at;

    ZB_TRY(check_float(file, t, t->n_elems));
    if (first < 0 || n < 0 || first > t->n_elems || n > t->n_elems - first) {
        return zb_fail(ZB_EINVAL,
                       "%s: tensor '" ZB_ST_NAME_FMT
                       "': elements %lld + %lld of %lld are wanted",
                       file->path, t->name, (long long)first, (long long)n,
                       (long long)t->n_elems);
    }
    at = (const char *)t->data + (size_t)first * zb_st_dtype_bytes(t->dtype);
    if (t->dtype != ZB_ST_REAL) {
        read_reals(t->dtype, at, n, out);
    } else if (n > 0) {
        memcpy(out, at, (size_t)n * sizeof(*out));
    }
    return ZB_OK;
}

enum zb_status zb_st_read_real(const struct zb_st_file *file,
                               const struct zb_st_tensor *t, zb_real *out,
                               int64_t n)
{
    ZB_TRY(check_float(file, t, n));
    return zb_st_read_part(file, t, 0, n, out);
}

enum zb_status zb_st_read_f64(const struct zb_st_file *file,
                              const struct zb_st_tensor *t, double *out,
                              int64_t n)
{
    ZB_TRY(check_float(file, t, n));
    for (int64_t i = 0; i < n; i++) {
        out[i] = float_elem(t, i);
    }
    return ZB_OK;
}

enum zb_status zb_st_read_i32(const struct zb_st_file *file,
                              const struct zb_st_tensor *t, int32_t *out,
                              int64_t n)
{
    ZB_TRY(check_count(file, t, n));
    if (t->dtype != ZB_ST_I32 && t->dtype != ZB_ST_I64 &&
        t->dtype != ZB_ST_U8) {
        return wrong_dtype(file, t, "whole numbers");
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t value = int_elem(t, i);

        if (value < INT32_MIN || value > INT32_MAX) {
            return zb_fail(ZB_ECONFIG,
                           "%s: tensor '" ZB_ST_NAME_FMT
                           "': element %lld, %lld, does not fit in 32 bits",
                           file->path, t->name, (long long)i,
                           (long long)value);
        }
        out[i] = (int32_t)value;
    }
    return ZB_OK;
}
