/* SPDX-License-Identifier: MIT
 *
 * Numbers of .npy arrays of every type; damaged headers are in test_tokens. */
#include "config.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "zb/mem.h"
#include "zb/npy.h"
#include "zbt.h"

static const char *save(const char *descr, const char *shape, int is_fortran,
                        const void *data, size_t n)
{
    const char *path = zbt_scratch_path("x.npy");
    FILE *f = fopen(path, "wb");
    char dict[200];
    int len = snprintf(dict, sizeof(dict),
                       "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }\n",
                       descr, is_fortran ? "True" : "False", shape);

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    fwrite("\x93NUMPY\1\0", 1, 8, f);
    fputc(len, f);
    fputc(0, f);
    fwrite(dict, 1, (size_t)len, f);
    fwrite(data, 1, n, f);
    fclose(f);
    return path;
}

static void floats_of_every_width_are_read(void)
{
    static const double x8[] = {1, -0.1, 1e300, 0};
    static const float x4[] = {1, -0.1f, HUGE_VALF, 0};
    /* By IEEE 754: 1, -2, the greatest, the least normal and subnormal ones,
     * -infinity, -0. */
    static const uint16_t x2[] = {0x3c00, 0xc000, 0x7bff, 0x0400,
                                  0x0001, 0xfc00, 0x8000};
    static const float want2[] = {1,        -2,         65504, 0x1p-14f,
                                  0x1p-24f, -HUGE_VALF, -0.0f};
    struct zb_npy *a = NULL;
    float y[7];
    int32_t i[7];

    ZBT_OK(zb_npy_open(save("<f8", "(2, 2)", 0, x8, sizeof(x8)), &a));
    ZBT_OK(zb_npy_read_f32(a, 0, 4, y));
    CU_ASSERT_EQUAL(memcmp(y, x4, sizeof(x4)), 0);
    CU_ASSERT_EQUAL(zb_npy_info(a)->n_dims, 2);
    CU_ASSERT_EQUAL(zb_npy_read_i32(a, 0, 4, i), ZB_EINVAL);
    zb_npy_close(a);
    ZBT_OK(zb_npy_open(save("<f4", "(4,)", 0, x4, sizeof(x4)), &a));
    ZBT_OK(zb_npy_read_f32(a, 1, 3, y));
    CU_ASSERT_EQUAL(memcmp(y, x4 + 1, 12), 0);
    zb_npy_close(a);
    ZBT_OK(zb_npy_open(save("<f2", "(7,)", 0, x2, sizeof(x2)), &a));
    ZBT_OK(zb_npy_read_f32(a, 0, 7, y));
    CU_ASSERT_EQUAL(memcmp(y, want2, sizeof(want2)), 0);
    zb_npy_close(a);
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

static void integers_of_every_width_are_read(void)
{
    static const struct {
        const char *descr;
        int width;
        int32_t first; /* of the bytes 0xfe 0xff 0xff ... */
    } rows[] = {{"|b1", 1, 254},    {"|u1", 1, 254}, {"|i1", 1, -2},
                {"<u2", 2, 0xfffe}, {"<i2", 2, -2},  {"<i4", 4, -2},
                {"<i8", 8, -2}};
    unsigned char bytes[16] = {0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

    for (size_t r = 0; r < ZB_COUNT_OF(rows); r++) {
        struct zb_npy *a = NULL;
        int32_t v[2];
        float y;

        memset(bytes + rows[r].width, 0, 8);
        bytes[rows[r].width] = 7;
        ZBT_OK(zb_npy_open(
            save(rows[r].descr, "(2,)", 0, bytes, 2 * (size_t)rows[r].width),
            &a));
        ZBT_OK(zb_npy_read_i32(a, 0, 2, v));
        CU_ASSERT_EQUAL(v[0], rows[r].first);
        CU_ASSERT_EQUAL(v[1], 7);
        CU_ASSERT_EQUAL(zb_npy_read_f32(a, 0, 1, &y), ZB_EINVAL);
        zb_npy_close(a);
        memset(bytes, 0xff, sizeof(bytes));
        bytes[0] = 0xfe;
    }
}

static void numbers_that_do_not_fit_name_their_byte(void)
{
    static const uint32_t u4[] = {0x7fffffff, 0x80000000};
    static const int64_t i8[] = {INT32_MIN, INT64_C(-2147483649)};
    static const uint64_t u8[] = {1, UINT64_MAX};
    static const struct {
        const char *descr;
        const void *data;
        size_t n;
    } rows[] = {{"<u4", u4, 8}, {"<i8", i8, 16}, {"<u8", u8, 16}};

    for (size_t r = 0; r < ZB_COUNT_OF(rows); r++) {
        struct zb_npy *a = NULL;
        char want[64];
        int32_t v[2];

        ZBT_OK(zb_npy_open(
            save(rows[r].descr, "(2,)", 0, rows[r].data, rows[r].n), &a));
        ZBT_OK(zb_npy_read_i32(a, 0, 1, v));
        CU_ASSERT_EQUAL(zb_npy_read_i32(a, 0, 2, v), ZB_ECONFIG);
        snprintf(want, sizeof(want),
                 "byte %d:", (int)zb_npy_info(a)->offset + (int)rows[r].n / 2);
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), want));
        zb_npy_close(a);
    }
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

static void shapes_are_as_the_header_says(void)
{
    static const char data[6] = {0};
    struct zb_npy *a = NULL;
    const struct zb_npy_info *info;

    ZBT_OK(zb_npy_open(save("|u1", "(1, 2, 3)", 1, data, 6), &a));
    info = zb_npy_info(a);
    CU_ASSERT(info->n_dims == 3 && info->dim[0] == 1 && info->dim[1] == 2 &&
              info->dim[2] == 3 && info->n_elems == 6 && info->is_fortran &&
              info->kind == 'u' && info->width == 1);
    zb_npy_close(a);
    ZBT_OK(zb_npy_open(save("|u1", "(0, 5)", 0, data, 0), &a));
    CU_ASSERT_EQUAL(zb_npy_info(a)->n_elems, 0);
    zb_npy_close(a);
    ZBT_OK(zb_npy_open(save("|u1", "()", 0, data, 1), &a));
    CU_ASSERT_EQUAL(zb_npy_info(a)->n_elems, 1);
    zb_npy_close(a);
}

static void what_is_no_array_is_refused(void)
{
    struct zb_npy *a = NULL;
    int32_t v;
    const char *path = save("<f1", "(1,)", 0, "", 1);

    CU_ASSERT_EQUAL(zb_npy_open(path, &a), ZB_ECONFIG);
    CU_ASSERT_EQUAL(zb_npy_open("/nonexistent.npy", &a), ZB_ECONFIG);
    CU_ASSERT_EQUAL(truncate(path, 4), 0);
    CU_ASSERT_EQUAL(zb_npy_open(path, &a), ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "no .npy"));
    path = save("|u1", "(5000,)", 0, "", 0);
    CU_ASSERT_EQUAL(truncate(path, 9000), 0);
    ZBT_OK(zb_npy_open(path, &a));
    CU_ASSERT_EQUAL(truncate(path, 100), 0);
    CU_ASSERT_EQUAL(zb_npy_read_i32(a, 4999, 1, &v), ZB_EIO);
    zb_npy_close(a);
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(floats_of_every_width_are_read),
        ZBT_CASE(integers_of_every_width_are_read),
        ZBT_CASE(numbers_that_do_not_fit_name_their_byte),
        ZBT_CASE(shapes_are_as_the_header_says),
        ZBT_CASE(what_is_no_array_is_refused),
    };

    return zbt_run("npy", cases, ZB_COUNT_OF(cases));
}
