/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zb/ckpt.h"

#include "ckpt/safetensors_int.h"

#include <math.h>
#include <string.h>

/* IEEE binary16: 1 sign, 5 exponent (bias 15), 10 fraction bits. */
static float float_of_f16(uint16_t h)
{
    int exponent = (h >> 10) & 31, fraction = h & 1023;
    float magnitude;

    if (exponent == 31) {
        magnitude = fraction == 0 ? INFINITY : NAN;
    } else if (exponent == 0) {
        magnitude = ldexpf((float)fraction, -24);
    } else {
        magnitude = ldexpf((float)(1024 + fraction), exponent - 25);
    }
    return (h & 0x8000) != 0 ? -magnitude : magnitude;
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

enum zb_status zb_st_read_real(const struct zb_st_file *file,
                               const struct zb_st_tensor *t, zb_real *out,
                               int64_t n)
{
    ZB_TRY(check_float(file, t, n));
    if (t->dtype == ZB_ST_REAL) {
        if (n > 0) {
            memcpy(out, t->data, t->bytes);
        }
        return ZB_OK;
    }
    for (int64_t i = 0; i < n; i++) {
        out[i] = (zb_real)float_elem(t, i);
    }
    return ZB_OK;
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
