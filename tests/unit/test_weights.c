/* SPDX-License-Identifier: MIT
 *
 * Weights in one file and in several, and what is said of those that do not fit
 * a model. */
#include "config.h"
#include "zb/weights.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "zbt.h"
#include "zb/mem.h"

static const float value[] = {1, 2, 3, 4, 5, 6};

static struct zb_st_out tensor(const char *name, int64_t rows, int64_t cols)
{
    return (struct zb_st_out){.name = name,
                              .dtype = ZB_ST_F32,
                              .n_dims = 2,
                              .dims = {rows, cols},
                              .data = value};
}

/* The folder of the tests, empty but for what they put in it. */
static const char *dir(void)
{
    static char path[PATH_MAX];

    if (path[0] == '\0') {
        snprintf(path, sizeof(path), "%s", zbt_scratch_path("hf"));
        CU_ASSERT_FATAL(mkdir(path, 0777) == 0);
    }
    return path;
}

static const char *in_dir(const char *name)
{
    static char path[2 * PATH_MAX];

    snprintf(path, sizeof(path), "%s/%s", dir(), name);
    return path;
}

static void put(const char *file, const struct zb_st_out *t, size_t n)
{
    ZBT_OK(zb_st_write(in_dir(file), t, n, NULL, 0));
}

static void put_text(const char *file, const char *text)
{
    FILE *f = fopen(in_dir(file), "w");

    CU_ASSERT_FATAL(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void clear_dir(void)
{
    static const char *const files[] = {ZB_WEIGHTS_FILE, ZB_WEIGHTS_INDEX,
                                        "a.safetensors", "b.safetensors"};

    for (size_t i = 0; i < ZB_COUNT_OF(files); i++) {
        remove(in_dir(files[i]));
    }
}

static struct zb_weights *open_dir(void)
{
    struct zb_weights *w = NULL;

    ZBT_OK(zb_weights_open(dir(), &w));
    return w;
}

static int open_fails(const char *why)
{
    struct zb_weights *w = NULL;
    enum zb_status st = zb_weights_open(dir(), &w);
    int is_right = st == ZB_ECONFIG && strstr(zb_error_text(), why) != NULL;

    if (!is_right) {
        printf("\n%d: %s", st, zb_error_text());
        zb_weights_close(w);
    }
    return is_right;
}

/* Two files and an index. */
static void put_two(const char *index)
{
    const struct zb_st_out a[] = {tensor("x", 2, 3), tensor("z", 1, 1)};
    const struct zb_st_out b[] = {tensor("y", 3, 2)};

    clear_dir();
    put("a.safetensors", a, 2);
    put("b.safetensors", b, 1);
    put_text(ZB_WEIGHTS_INDEX, index);
}

static void index_open_finds_tensors_of_all_files(void)
{
    struct zb_weights *w;

    put_two("{\"metadata\": {\"total_size\": 52}, \"weight_map\": {"
            "\"x\": \"a.safetensors\", \"y\": \"b.safetensors\", "
            "\"z\": \"a.safetensors\"}}");
    w = open_dir();
    CU_ASSERT_PTR_NOT_NULL_FATAL(zb_weights_get(w, "y").tensor);
    CU_ASSERT_EQUAL(zb_weights_get(w, "y").tensor->dims[0], 3);
    CU_ASSERT_PTR_NOT_NULL(
        strstr(zb_weights_get(w, "y").file->path, "b.safetensors"));
    CU_ASSERT_PTR_NOT_NULL(zb_weights_get(w, "x").tensor);
    CU_ASSERT_PTR_NULL(zb_weights_get(w, "q").tensor);
    zb_weights_close(w);
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

static void wrong_index_is_refused_by_name(void)
{
    clear_dir();
    CU_ASSERT(open_fails("neither model.safetensors nor"));
    put_two("{\"weight_map\": {\"x\": \"a.safetensors\"");
    CU_ASSERT(open_fails("index.json:1"));
    put_two("{\"weights\": {}}");
    CU_ASSERT(open_fails("no weight_map"));
    put_two("{\"weight_map\": {}}");
    CU_ASSERT(open_fails("no weight_map"));
    put_two("[]");
    CU_ASSERT(open_fails("no weight_map"));
    put_two("{\"weight_map\": {\"x\": \"../hf/a.safetensors\"}}");
    CU_ASSERT(open_fails("tensor 'x' is in no file of the directory"));
    put_two("{\"weight_map\": {\"x\": 5}}");
    CU_ASSERT(open_fails("tensor 'x' is in no file of the directory"));
    put_two("{\"weight_map\": {\"x\": \"..\"}}");
    CU_ASSERT(open_fails("tensor 'x'"));
    put_two("{\"weight_map\": {\"y\": \"a.safetensors\"}}");
    CU_ASSERT(open_fails("a.safetensors has no tensor 'y'"));
    put_two("{\"weight_map\": {\"x\": \"b.safetensors\", "
            "\"z\": \"a.safetensors\"}}");
    CU_ASSERT(open_fails("b.safetensors has no tensor 'x'"));
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

static void tensor_in_two_files_is_refused(void)
{
    const struct zb_st_out b[] = {tensor("y", 3, 2), tensor("x", 1, 1)};

    put_two("{\"weight_map\": {\"x\": \"a.safetensors\", "
            "\"y\": \"b.safetensors\"}}");
    put("b.safetensors", b, 2);
    CU_ASSERT(open_fails("both have tensor 'x'"));
}

static void missing_file_of_an_index_is_named(void)
{
    struct zb_weights *w = NULL;

    put_two("{\"weight_map\": {\"x\": \"c.safetensors\"}}");
    CU_ASSERT_EQUAL(zb_weights_open(dir(), &w), ZB_EIO);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "c.safetensors"));
}

static void names_are_found_with_and_without_prefix(void)
{
    static const struct {
        const char *asked, *stored;
    } cases[] = {
        {"transformer.wte.weight", "wte.weight"},
        {"wpe.weight", "transformer.wpe.weight"},
        {"layers.0.x", "model.layers.0.x"},
        {"bert.e.LayerNorm.weight", "e.LayerNorm.gamma"},
        {"bert.e.LayerNorm.bias", "bert.e.LayerNorm.beta"},
        {"model.norm.weight", "model.norm.weight"},
    };
    struct zb_st_out t[ZB_COUNT_OF(cases)];
    struct zb_weights *w;

    clear_dir();
    for (size_t i = 0; i < ZB_COUNT_OF(cases); i++) {
        t[i] = tensor(cases[i].stored, 1, 1);
    }
    put(ZB_WEIGHTS_FILE, t, ZB_COUNT_OF(t));
    w = open_dir();
    for (size_t i = 0; i < ZB_COUNT_OF(cases); i++) {
        struct zb_weight found = zb_weights_find(w, cases[i].asked);

        CU_ASSERT_PTR_NOT_NULL_FATAL(found.tensor);
        CU_ASSERT_STRING_EQUAL(found.tensor->name, cases[i].stored);
    }
    CU_ASSERT_PTR_NULL(zb_weights_find(w, "norm").tensor);
    CU_ASSERT_PTR_NULL(zb_weights_get(w, "norm.weight").tensor);
    zb_weights_close(w);
}

static int check_says(const struct zb_st_out *t, size_t n,
                      const struct zb_weight_want *want, size_t n_want,
                      const char *text)
{
    struct zb_weights *w;
    enum zb_status st;
    int is_right;

    clear_dir();
    put(ZB_WEIGHTS_FILE, t, n);
    w = open_dir();
    st = zb_weights_check(w, want, n_want);
    zb_weights_close(w);
    is_right = text == NULL
                   ? st == ZB_OK
                   : st == ZB_ECONFIG && strstr(zb_error_text(), text) != NULL;
    if (!is_right) {
        printf("\n%d: %s", st, zb_error_text());
    }
    return is_right;
}

static void tensors_that_do_not_fit_are_named(void)
{
    const struct zb_st_out t[] = {
        tensor("a", 2, 3), tensor("b", 3, 2), tensor("more", 1, 1),
        tensor("h.0.attn.bias", 1, 1), tensor("lm_head.weight", 1, 1)};
    const struct zb_st_out whole = {.name = "a",
                                    .dtype = ZB_ST_I32,
                                    .n_dims = 2,
                                    .dims = {2, 3},
                                    .data = value};
    const struct zb_weight_want want[] = {
        {"a", 2, {2, 3}, 0}, {"b", 2, {3, 2}, 0}, {"more", 2, {1, 1}, 0}};
    const struct zb_weight_want other[] = {{"a", 2, {2, 3}, 0},
                                           {"b", 2, {2, 3}, 0}};
    const struct zb_weight_want drawn[] = {{"a", 2, {2, 3}, 0},
                                           {"new", 2, {3, 2}, 1}};

    CU_ASSERT(check_says(t, 5, want, 3, NULL));
    CU_ASSERT(check_says(t, 5, want, 2, "1 not in the model: more"));
    CU_ASSERT(check_says(t, 1, want, 3, "2 missing: b, more"));
    CU_ASSERT(check_says(t, 1, drawn, 2, NULL));
    CU_ASSERT(check_says(t, 2, other, 2, "b is [3,2], not [2,3]"));
    CU_ASSERT(check_says(t, 3, other, 2, "; 1 not in the model: more"));
    CU_ASSERT(check_says(&whole, 1, want, 1, "a is of type I32"));
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

static void parts_are_read_with_any_alignment(void)
{
    static const uint16_t half[] = {0x3c00, 0xbc00, 0x0001, 0x7c00, 0x03ff};
    static const unsigned char byte[] = {7};
    const struct zb_st_out t[] = {
        {.name = "byte",
         .dtype = ZB_ST_U8,
         .n_dims = 1,
         .dims = {1},
         .data = byte},
        {.name = "half",
         .dtype = ZB_ST_F16,
         .n_dims = 1,
         .dims = {5},
         .data = half},
    };
    struct zb_weights *w;
    struct zb_weight x;
    zb_real out[3];

    clear_dir();
    put(ZB_WEIGHTS_FILE, t, 2);
    w = open_dir();
    x = zb_weights_get(w, "half");
    CU_ASSERT_PTR_NOT_NULL_FATAL(x.tensor);
    ZBT_OK(zb_st_read_part(x.file, x.tensor, 1, 3, out));
    CU_ASSERT_EQUAL(out[0], -1);
    CU_ASSERT_EQUAL(out[1], (zb_real)0x1p-24);
    CU_ASSERT(out[2] > (zb_real)1e30);
    ZBT_OK(zb_st_read_part(x.file, x.tensor, 4, 1, out));
    CU_ASSERT_EQUAL(out[0], (zb_real)(1023 * 0x1p-24));
    ZBT_OK(zb_st_read_part(x.file, x.tensor, 5, 0, out));
    CU_ASSERT_EQUAL(zb_st_read_part(x.file, x.tensor, 3, 3, out), ZB_EINVAL);
    CU_ASSERT_EQUAL(zb_st_read_part(x.file, x.tensor, -1, 1, out), ZB_EINVAL);
    zb_weights_close(w);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(index_open_finds_tensors_of_all_files),
        ZBT_CASE(wrong_index_is_refused_by_name),
        ZBT_CASE(tensor_in_two_files_is_refused),
        ZBT_CASE(missing_file_of_an_index_is_named),
        ZBT_CASE(names_are_found_with_and_without_prefix),
        ZBT_CASE(tensors_that_do_not_fit_are_named),
        ZBT_CASE(parts_are_read_with_any_alignment),
    };

    return zbt_run("weights", cases, ZB_COUNT_OF(cases));
}
