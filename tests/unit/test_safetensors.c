/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "zb/ckpt.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "zbt.h"
#include "zb/mem.h"

#define GOLDEN "tests/golden/dtypes.safetensors"

static void put_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");

    CU_ASSERT_FATAL(f != NULL);
    CU_ASSERT_FATAL(n == 0 || fwrite(data, 1, n, f) == n);
    CU_ASSERT_FATAL(fclose(f) == 0);
}

/* A file of this header text and this many bytes 0, 1, 2, ... of data. */
static const char *put_header(const char *header, size_t data_bytes)
{
    const char *path = zbt_scratch_path("made.safetensors");
    uint64_t n = strlen(header);
    size_t size = sizeof(n) + n + data_bytes;
    unsigned char *all = malloc(size);

    CU_ASSERT_FATAL(all != NULL);
    memcpy(all, &n, sizeof(n));
    memcpy(all + sizeof(n), header, n);
    for (size_t i = 0; i < data_bytes; i++) {
        all[sizeof(n) + n + i] = (unsigned char)i;
    }
    put_file(path, all, size);
    free(all);
    return path;
}

static size_t read_file(const char *path, unsigned char *buf, size_t cap)
{
    FILE *f = fopen(path, "rb");
    size_t n;

    CU_ASSERT_FATAL(f != NULL);
    n = fread(buf, 1, cap, f);
    CU_ASSERT_FATAL(n < cap);
    fclose(f);
    return n;
}

static struct zb_st_file *open_golden(void)
{
    struct zb_st_file *f = NULL;

    ZBT_OK(zb_st_open(zbt_source_path(GOLDEN), &f));
    return f;
}

static const struct zb_st_tensor *need(const struct zb_st_file *f,
                                       const char *name)
{
    const struct zb_st_tensor *t = zb_st_find(f, name);

    CU_ASSERT_FATAL(t != NULL);
    return t;
}

static void python_file_open_lists_every_tensor(void)
{
    struct zb_st_file *f = open_golden();

    CU_ASSERT(f->n_tensors == 13 && f->n_meta == 1);
    for (size_t i = 1; i < f->n_tensors; i++) {
        CU_ASSERT(strcmp(f->tensors[i - 1].name, f->tensors[i].name) < 0);
    }
    CU_ASSERT(need(f, "scalar")->n_dims == 0 &&
              need(f, "scalar")->n_elems == 1);
    CU_ASSERT(need(f, "empty")->n_dims == 3 && need(f, "empty")->dims[1] == 0 &&
              need(f, "empty")->bytes == 0);
    CU_ASSERT(need(f, "i32")->dims[0] == 2 && need(f, "i32")->dims[1] == 2);
    CU_ASSERT(need(f, "bool")->dtype == ZB_ST_OTHER);
    CU_ASSERT_STRING_EQUAL(need(f, "bool")->dtype_text, "BOOL");
    CU_ASSERT(zb_st_find(f, "a \"quoted\" \xc3\xbc \n name") != NULL);
    CU_ASSERT(zb_st_find(f, "absent") == NULL);
    CU_ASSERT_STRING_EQUAL(zb_st_find_meta(f, "note"), "\xc3\xa9\n\"x\"");
    CU_ASSERT(zb_st_find_meta(f, "absent") == NULL);
    zb_st_close(f);
    zb_st_close(NULL);
}

static int same(double a, double b)
{
    return (isnan(a) && isnan(b)) ||
           (a == b && !signbit(a) == !signbit(b));
}

static void check_half(const char *name)
{
    struct zb_st_file *f = open_golden();
    char other[32];
    double want[12], got[12];
    zb_real real[12];

    snprintf(other, sizeof(other), "%s.as_f64", name);
    ZBT_OK(zb_st_read_f64(f, need(f, other), want, 12));
    ZBT_OK(zb_st_read_f64(f, need(f, name), got, 12));
    ZBT_OK(zb_st_read_real(f, need(f, name), real, 12));
    for (int i = 0; i < 12; i++) {
        CU_ASSERT(same(got[i], want[i]));
        CU_ASSERT(same(real[i], want[i]));
    }
    zb_st_close(f);
}

static void f16_read_equals_pytorch(void)
{
    check_half("f16");
}

static void bf16_read_equals_pytorch(void)
{
    check_half("bf16");
}

static void wide_floats_read_with_nearest_rounding(void)
{
    struct zb_st_file *f = open_golden();
    double f64[12], f32[12];
    zb_real real[12];

    ZBT_OK(zb_st_read_f64(f, need(f, "f64"), f64, 12));
    ZBT_OK(zb_st_read_f64(f, need(f, "f32"), f32, 12));
    CU_ASSERT(f64[3] == -2.5 && fabs(f64[10] - 1.0 / 3) < 1e-7);
    ZBT_OK(zb_st_read_real(f, need(f, "f64"), real, 12));
    for (int i = 0; i < 12; i++) {
        CU_ASSERT(same(real[i], (zb_real)f64[i]));
        CU_ASSERT(same(f32[i], (float)f64[i]));
    }
    ZBT_OK(zb_st_read_real(f, need(f, "f32"), real, 12));
    for (int i = 0; i < 12; i++) {
        CU_ASSERT(same(real[i], f32[i]));
    }
    ZBT_OK(zb_st_read_real(f, need(f, "empty"), real, 0));
    zb_st_close(f);
}

static void integers_read_gives_values(void)
{
    struct zb_st_file *f = open_golden();
    int32_t x[4] = {0};

    ZBT_OK(zb_st_read_i32(f, need(f, "i32"), x, 4));
    CU_ASSERT(x[0] == 1 && x[1] == -2 && x[2] == INT32_MAX &&
              x[3] == INT32_MIN);
    ZBT_OK(zb_st_read_i32(f, need(f, "u8"), x, 3));
    CU_ASSERT(x[0] == 0 && x[1] == 127 && x[2] == 255);
    CU_ASSERT(zb_st_read_i32(f, need(f, "i64"), x, 3) == ZB_ECONFIG);
    CU_ASSERT(x[0] == 1 && x[1] == -2);
    CU_ASSERT(strstr(zb_error_text(), "element 2, 1099511627776") != NULL);
    zb_st_close(f);
}

static void wrong_count_or_dtype_read_fails_by_name(void)
{
    struct zb_st_file *f = open_golden();
    zb_real real[12];
    double f64[12];
    int32_t i32[12];

    CU_ASSERT(zb_st_read_real(f, need(f, "f32"), real, 11) == ZB_EINVAL);
    CU_ASSERT(strstr(zb_error_text(), "dtypes.safetensors") != NULL);
    CU_ASSERT(strstr(zb_error_text(), "'f32': 12 elements") != NULL);
    CU_ASSERT(zb_st_read_f64(f, need(f, "i64"), f64, 3) == ZB_EUNSUPPORTED);
    CU_ASSERT(strstr(zb_error_text(), "'i64': dtype I64") != NULL);
    CU_ASSERT(zb_st_read_i32(f, need(f, "f32"), i32, 12) == ZB_EUNSUPPORTED);
    CU_ASSERT(zb_st_read_i32(f, need(f, "bool"), i32, 3) == ZB_EUNSUPPORTED);
    zb_st_close(f);
}

/* Every file of the folder was written by the Python package. */
static void golden_files_open_without_error(void)
{
    static const char *const name[] = {
        "llama_base",    "llama_default_rope", "llama_linear_rope",
        "llama_variant", "llama_padded",       "gpt2_base",
        "gpt2_padded",   "gpt2_inverse_layer", "walkthrough",
        "ops",
    };

    for (size_t i = 0; i < ZB_COUNT_OF(name); i++) {
        struct zb_st_file *f = NULL;
        char path[64];

        snprintf(path, sizeof(path), "tests/golden/%s.safetensors", name[i]);
        ZBT_OK(zb_st_open(zbt_source_path(path), &f));
        CU_ASSERT(f->n_tensors > 40);
        zb_st_close(f);
    }
}

struct broken {
    const char *header;
    size_t data_bytes;
    const char *text; /* must be in the message */
};

#define T(dtype, shape, offsets)                                               \
    "{\"w\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":"        \
    offsets "}}"
#define TWO(a, b)                                                              \
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" a               \
    "},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" b "}}"

static const struct broken broken_files[] = {
    {"", 0, "'{'"},
    {" {}", 0, "'{'"},
    {"[]", 0, "'{'"},
    {"{", 0, "header, byte"},
    {"{} x", 0, "header, byte"},
    {"{\"w\":1}", 0, "'w': no dtype"},
    {"{\"w\":{}}", 0, "'w': no dtype"},
    {T("7", "[1]", "[0,4]"), 4, "'w': no dtype"},
    {T("\"F32\"", "1", "[0,4]"), 4, "'w': no shape"},
    {T("\"F32\"", "[1.0]", "[0,4]"), 4, "'w': a dimension"},
    {T("\"F32\"", "[-1]", "[0,4]"), 4, "'w': a dimension"},
    {T("\"F32\"", "[-1,-1]", "[0,4]"), 4, "'w': a dimension"},
    {T("\"F32\"", "[true]", "[0,4]"), 4, "'w': a dimension"},
    {T("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "'w': 9 dimensions"},
    {T("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0, "'w': the shape"},
    {T("\"F32\"", "[4611686018427387905]", "[0,4]"), 4, "'w': 46116860184"},
    {T("\"F32\"", "[9223372036854775808]", "[0,4]"), 4, "header, byte"},
    {T("\"F32\"", "[2]", "[0,4]"), 4, "'w': 2 elements of F32 are not 4"},
    {T("\"F64\"", "[]", "[0,4]"), 4, "'w': 1 elements of F64 are not 4"},
    {T("\"BOOL\"", "[3]", "[0,4]"), 4, "'w': 3 elements of BOOL are not 4"},
    {T("\"F32\"", "[1]", "4"), 4, "'w': data_offsets"},
    {T("\"F32\"", "[1]", "[0]"), 4, "'w': data_offsets"},
    {T("\"F32\"", "[1]", "[0,4,8]"), 4, "'w': data_offsets"},
    {T("\"F32\"", "[1]", "[0,\"4\"]"), 4, "'w': data_offsets"},
    {T("\"F32\"", "[1]", "[0,8]"), 4, "'w': bytes 0 to 8, the file has 4"},
    {T("\"F32\"", "[1]", "[-4,0]"), 4, "'w': bytes -4 to 0"},
    {T("\"F32\"", "[1]", "[4,0]"), 4, "'w': bytes 4 to 0"},
    {T("\"F32\"", "[1]", "[4,8]"), 8, "'w': unused bytes before"},
    {T("\"F32\"", "[1]", "[0,4]"), 5, "unused bytes after"},
    {T("\"X9\"", "[1]", "[0,4]"), 5, "unused bytes after"},
    {"{}", 1, "unused bytes after"},
    {TWO("[0,4]", "[0,4]"), 8, "overlaps"},
    {TWO("[0,4]", "[2,6]"), 8, "'b': overlaps"},
    {TWO("[4,8]", "[0,4]"), 9, "unused bytes after"},
    {TWO("[0,4]", "[5,9]"), 9, "'b': unused bytes before"},
    {"{\"w\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
     "\"w\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
     0, "duplicate object key"},
    {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":{\"k\":1}}", 0, "__metadata__ 'k' is not a string"},
    {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"1\"}}", 0, "duplicate"},
    {"{\"\xff\":1}", 0, "header, byte"},
    {"{\"a\\u0000b\":1}", 0, "header, byte"},
};

static void broken_file_open_fails_by_name(void)
{
    int64_t before = zb_mem_live();

    for (size_t i = 0; i < ZB_COUNT_OF(broken_files); i++) {
        const struct broken *b = &broken_files[i];
        const char *path = put_header(b->header, b->data_bytes);
        struct zb_st_file *f = NULL;

        CU_ASSERT(zb_st_open(path, &f) == ZB_ECONFIG && f == NULL);
        if (strstr(zb_error_text(), path) == NULL ||
            strstr(zb_error_text(), b->text) == NULL) {
            printf("\n%s: %s\n", b->header, zb_error_text());
            CU_FAIL("the message does not say what is wrong");
        }
    }
    CU_ASSERT(zb_mem_live() == before);
}

static void deep_header_open_fails(void)
{
    enum { DEPTH = 1000000 };
    char *deep = malloc(DEPTH + 8);
    struct zb_st_file *f = NULL;

    CU_ASSERT_FATAL(deep != NULL);
    strcpy(deep, "{\"w\":");
    memset(deep + 5, '[', DEPTH);
    deep[5 + DEPTH] = '\0';
    CU_ASSERT(zb_st_open(put_header(deep, 0), &f) == ZB_ECONFIG);
    free(deep);
}

static void check_raw(const void *data, size_t n, enum zb_status want,
                      const char *text)
{
    const char *path = zbt_scratch_path("raw.safetensors");
    struct zb_st_file *f = NULL;

    put_file(path, data, n);
    CU_ASSERT(zb_st_open(path, &f) == want);
    CU_ASSERT(strstr(zb_error_text(), path) != NULL);
    CU_ASSERT(strstr(zb_error_text(), text) != NULL);
}

static void cut_header_open_fails(void)
{
    check_raw("", 0, ZB_ECONFIG, "too short");
    check_raw("\2\0\0\0\0\0\0", 7, ZB_ECONFIG, "too short");
    check_raw("\0\0\0\0\0\0\0\0", 8, ZB_ECONFIG, "'{'");
    check_raw("\2\0\0\0\0\0\0\0{", 9, ZB_ECONFIG, "ends within its header");
    check_raw("\1\341\365\5\0\0\0\0{}", 10, ZB_ECONFIG,
              "longer than 100000000");
    check_raw("\377\377\377\377\377\377\377\377{}", 10, ZB_ECONFIG, "longer");
    check_raw("\0\341\365\5\0\0\0\0{}", 10, ZB_ECONFIG, "ends within");
}

static void unreadable_path_open_fails(void)
{
    const char *fifo = zbt_scratch_path("fifo");
    const char *folder = zbt_scratch_path("folder");
    struct zb_st_file *f = NULL;

    CU_ASSERT_FATAL(mkfifo(fifo, 0600) == 0 && mkdir(folder, 0700) == 0);
    CU_ASSERT(zb_st_open(fifo, &f) == ZB_EIO);
    CU_ASSERT(strstr(zb_error_text(), "not a regular file") != NULL);
    CU_ASSERT(zb_st_open(folder, &f) == ZB_EIO);
    CU_ASSERT(zb_st_open(zbt_scratch_path("absent"), &f) == ZB_EIO);
    CU_ASSERT(strstr(zb_error_text(), "absent: cannot open: ") != NULL);
    rmdir(folder);
    unlink(fifo);
}

static void unusual_files_open_succeeds(void)
{
    static const struct broken good[] = {
        {"{}", 0, NULL},
        {"{}    ", 0, NULL},
        {"{\"__metadata__\":{}}", 0, NULL},
        {T("\"X9\"", "[3]", "[0,4]"), 4, NULL},
        {T("\"F32\"", "[0,9223372036854775807]", "[0,0]"), 0, NULL},
        {TWO("[4,8]", "[0,4]"), 8, NULL},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]},"
         "\"c\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
         4, NULL},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(good); i++) {
        struct zb_st_file *f = NULL;

        ZBT_OK(zb_st_open(put_header(good[i].header, good[i].data_bytes), &f));
        zb_st_close(f);
    }
}

static void unaligned_data_read_gives_values(void)
{
    const char *header =
        "{\"u\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
        "\"i\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[1,5]}}";
    struct zb_st_file *f = NULL;
    int32_t x;

    ZBT_OK(zb_st_open(put_header(header, 5), &f));
    ZBT_OK(zb_st_read_i32(f, need(f, "i"), &x, 1));
    CU_ASSERT(x == 0x04030201);
    zb_st_close(f);
}

static const zb_real some_real[6] = {1, -2, (zb_real)0.1, 4, 5, 6};
static const int32_t some_i32[2] = {7, -8};

static const struct zb_st_out some_tensors[] = {
    {"b.weight", ZB_ST_REAL, 2, {2, 3}, some_real},
    {"a\n\"\xc3\xa9", ZB_ST_I32, 1, {2}, some_i32},
    {"empty", ZB_ST_F64, 2, {4, 0}, NULL},
    {"scalar", ZB_ST_REAL, 0, {0}, some_real + 2},
};
static const struct zb_st_meta some_meta[] = {
    {"format", "zb"},
    {"config", "{\"a\": \"\\n\"}\n"},
};

static enum zb_status write_some(const char *path)
{
    return zb_st_write(path, some_tensors, ZB_COUNT_OF(some_tensors),
                       some_meta, ZB_COUNT_OF(some_meta));
}

static void written_file_open_gives_it_back(void)
{
    const char *path = zbt_scratch_path("out.safetensors");
    struct zb_st_file *f = NULL;
    zb_real real[6];
    int32_t i32[2];

    ZBT_OK(write_some(path));
    ZBT_OK(zb_st_open(path, &f));
    CU_ASSERT(f->n_tensors == 4 && f->n_meta == 2);
    ZBT_OK(zb_st_read_real(f, need(f, "b.weight"), real, 6));
    CU_ASSERT(memcmp(real, some_real, sizeof(real)) == 0);
    CU_ASSERT(need(f, "b.weight")->dtype == ZB_ST_REAL);
    ZBT_OK(zb_st_read_i32(f, need(f, "a\n\"\xc3\xa9"), i32, 2));
    CU_ASSERT(i32[0] == 7 && i32[1] == -8);
    CU_ASSERT(need(f, "empty")->dims[0] == 4 && need(f, "empty")->bytes == 0);
    ZBT_OK(zb_st_read_real(f, need(f, "scalar"), real, 1));
    CU_ASSERT(real[0] == some_real[2]);
    CU_ASSERT_STRING_EQUAL(zb_st_find_meta(f, "config"), some_meta[1].value);
    zb_st_close(f);
}

static void written_file_has_aligned_padded_header(void)
{
    const char *path = zbt_scratch_path("out.safetensors");
    unsigned char buf[2048];
    uint64_t n_header;
    size_t n;

    ZBT_OK(write_some(path));
    n = read_file(path, buf, sizeof(buf));
    memcpy(&n_header, buf, sizeof(n_header));
    CU_ASSERT_FATAL(n_header % 8 == 0 && n_header + 8 <= n);
    CU_ASSERT(buf[8] == '{');
    CU_ASSERT(n == 8 + n_header + 7 * sizeof(zb_real) + sizeof(some_i32));
    /* The data stands in the order of the list. */
    CU_ASSERT(memcmp(buf + 8 + n_header, some_real, sizeof(some_real)) == 0);
}

/* How many entries the scratch folder has. */
static int count_entries(const char *path)
{
    char folder[256];
    struct dirent *entry;
    DIR *d;
    int n = 0;

    snprintf(folder, sizeof(folder), "%s", path);
    *strrchr(folder, '/') = '\0';
    d = opendir(folder);
    CU_ASSERT_FATAL(d != NULL);
    while ((entry = readdir(d)) != NULL) {
        n++;
    }
    closedir(d);
    return n;
}

static void full_disk_write_keeps_old_file(void)
{
    static double big[4096];
    const struct zb_st_out tensor = {"w", ZB_ST_F64, 1, {4096}, big};
    const char *path = zbt_scratch_path("kept.safetensors");
    struct rlimit old, small;
    struct zb_st_file *f = NULL;
    enum zb_status st;
    int before;

    ZBT_OK(write_some(path));
    before = count_entries(path);
    signal(SIGXFSZ, SIG_IGN);
    CU_ASSERT_FATAL(getrlimit(RLIMIT_FSIZE, &old) == 0);
    small = old;
    small.rlim_cur = 8192;
    CU_ASSERT_FATAL(setrlimit(RLIMIT_FSIZE, &small) == 0);
    st = zb_st_write(path, &tensor, 1, NULL, 0);
    CU_ASSERT_FATAL(setrlimit(RLIMIT_FSIZE, &old) == 0);
    CU_ASSERT(st == ZB_EIO);
    CU_ASSERT(strstr(zb_error_text(), path) != NULL);
    CU_ASSERT(strstr(zb_error_text(), "cannot write: ") != NULL);
    CU_ASSERT(count_entries(path) == before);
    ZBT_OK(zb_st_open(path, &f));
    CU_ASSERT(f->n_tensors == 4);
    zb_st_close(f);
}

static void unwritable_path_write_fails(void)
{
    const char *folder = zbt_scratch_path("a_folder");
    const char *fifo = zbt_scratch_path("a_fifo");
    struct stat sb;
    int before;

    CU_ASSERT_FATAL(mkdir(folder, 0700) == 0 && mkfifo(fifo, 0600) == 0);
    before = count_entries(folder);
    CU_ASSERT(write_some(folder) == ZB_EIO);
    CU_ASSERT(write_some(fifo) == ZB_EIO);
    CU_ASSERT(strstr(zb_error_text(), "not a regular file") != NULL);
    CU_ASSERT(stat(fifo, &sb) == 0 && S_ISFIFO(sb.st_mode));
    CU_ASSERT(write_some(zbt_scratch_path("no/such/folder")) == ZB_EIO);
    CU_ASSERT(strstr(zb_error_text(), "no/such/folder: cannot create") != NULL);
    CU_ASSERT(count_entries(folder) == before);
    rmdir(folder);
    unlink(fifo);
}

static void check_refused(struct zb_st_out a, struct zb_st_out b,
                          const char *text)
{
    const struct zb_st_out both[] = {a, b};
    const char *path = zbt_scratch_path("refused.safetensors");

    CU_ASSERT(zb_st_write(path, both, 2, NULL, 0) == ZB_EINVAL);
    CU_ASSERT(strstr(zb_error_text(), path) != NULL);
    CU_ASSERT(strstr(zb_error_text(), text) != NULL);
    CU_ASSERT(access(path, F_OK) != 0);
}

static void impossible_tensor_write_fails_by_name(void)
{
    const struct zb_st_out good = {"w", ZB_ST_REAL, 1, {6}, some_real};
    struct zb_st_out bad = good;

    check_refused(good, good, "'w': the name is taken");
    bad.name = "__metadata__";
    check_refused(good, bad, "'__metadata__': the name is taken");
    bad.name = "\xff";
    check_refused(good, bad, "not UTF-8");
    bad = good;
    bad.name = "v";
    bad.n_dims = 9;
    check_refused(good, bad, "'v': no such dtype or number");
    bad.n_dims = 1;
    bad.dtype = ZB_ST_OTHER;
    check_refused(good, bad, "'v': no such dtype");
    bad.dtype = ZB_ST_F64;
    bad.dims[0] = -1;
    check_refused(good, bad, "'v': a dimension");
    bad.dims[0] = INT64_MAX;
    check_refused(good, bad, "'v': a dimension");
    bad.dims[0] = INT64_MAX / 8;
    check_refused(good, bad, "'v': the file is too large");
    bad.dims[0] = 1;
    bad.data = NULL;
    check_refused(good, bad, "'v': no data");
}

static void impossible_metadata_write_fails_by_name(void)
{
    static const struct zb_st_meta twice[] = {{"k", "1"}, {"k", "2"}};
    static const struct zb_st_meta bytes[] = {{"k", "\xff"}};
    const char *path = zbt_scratch_path("refused.safetensors");

    CU_ASSERT(zb_st_write(path, NULL, 0, twice, 2) == ZB_EINVAL);
    CU_ASSERT(strstr(zb_error_text(), "'k': the metadata key") != NULL);
    CU_ASSERT(zb_st_write(path, NULL, 0, bytes, 1) == ZB_EINVAL);
    CU_ASSERT(access(path, F_OK) != 0);
}

static void failing_allocation_open_unwinds(void)
{
    const char *path = zbt_source_path(GOLDEN);
    int64_t before = zb_mem_live();

    for (uint64_t k = 1;; k++) {
        struct zb_st_file *f = NULL;
        enum zb_status st;
        int failed;

        zb_mem_fail_at(k);
        st = zb_st_open(path, &f);
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        CU_ASSERT((st == ZB_OK) == !failed && (f != NULL) == !failed);
        zb_st_close(f);
        CU_ASSERT_FATAL(zb_mem_live() == before);
        if (!failed) {
            break;
        }
        CU_ASSERT(st == ZB_ENOMEM);
    }
}

static void failing_allocation_write_leaves_nothing(void)
{
    const char *path = zbt_scratch_path("alloc.safetensors");
    int64_t before = zb_mem_live();

    for (uint64_t k = 1;; k++) {
        enum zb_status st;
        int failed;

        zb_mem_fail_at(k);
        st = write_some(path);
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        CU_ASSERT_FATAL(zb_mem_live() == before);
        CU_ASSERT((access(path, F_OK) == 0) == !failed);
        if (!failed) {
            CU_ASSERT(st == ZB_OK);
            break;
        }
        CU_ASSERT(st == ZB_ENOMEM);
    }
}

/* Read every byte that an accepted file offers. */
static void use_file(const struct zb_st_file *f)
{
    static double values[4096];
    static int32_t whole[4096];
    volatile unsigned char sum = 0;

    for (size_t i = 0; i < f->n_tensors; i++) {
        const struct zb_st_tensor *t = &f->tensors[i];

        CU_ASSERT(zb_st_find(f, t->name) == t);
        for (size_t j = 0; j < t->bytes; j++) {
            sum = (unsigned char)(sum + ((const unsigned char *)t->data)[j]);
        }
        if (t->n_elems <= 4096) {
            enum zb_status st = zb_st_read_f64(f, t, values, t->n_elems);
            enum zb_status st2 = zb_st_read_i32(f, t, whole, t->n_elems);

            CU_ASSERT(t->dtype == ZB_ST_OTHER || st == ZB_OK || st2 == ZB_OK ||
                      st2 == ZB_ECONFIG);
        }
    }
}

static void try_file(const char *path, const unsigned char *data, size_t n)
{
    struct zb_st_file *f = NULL;

    put_file(path, data, n);
    if (zb_st_open(path, &f) == ZB_OK) {
        use_file(f);
        zb_st_close(f);
    } else {
        CU_ASSERT(f == NULL && strstr(zb_error_text(), path) != NULL);
    }
}

/* Change a few bytes, mostly to what means something in a header. */
static size_t mutate(struct zbt_rng *rng, unsigned char *data, size_t n)
{
    static const char telling[] = "{}[]\",:0123456789-e.\\u";
    long n_changes = zbt_rand_in(rng, 1, 6);

    for (long i = 0; i < n_changes; i++) {
        size_t at = (size_t)zbt_rand_in(rng, 0, (long)n - 1);

        if (zbt_rand_in(rng, 0, 2) == 0) {
            data[at] = (unsigned char)zbt_rand(rng);
        } else {
            data[at] = (unsigned char)
                telling[zbt_rand_in(rng, 0, (long)sizeof(telling) - 2)];
        }
    }
    return zbt_rand_in(rng, 0, 3) == 0 ? (size_t)zbt_rand_in(rng, 1, (long)n)
                                       : n;
}

static void mutated_and_random_files_open_never_crashes(void)
{
    const size_t budget = zbt_is_long() ? (size_t)20 << 20 : (size_t)1 << 20;
    const char *path = zbt_scratch_path("fuzz.safetensors");
    struct zbt_rng rng = {.state = 11};
    unsigned char good[2048], data[2048];
    size_t n_good = read_file(zbt_source_path(GOLDEN), good, sizeof(good));
    size_t used = 0;
    int64_t before = zb_mem_live();

    while (used < budget) {
        size_t n = n_good;

        memcpy(data, good, n);
        if (zbt_rand_in(&rng, 0, 7) == 0) {
            n = (size_t)zbt_rand_in(&rng, 9, 400);
            for (size_t i = 0; i < n; i++) {
                data[i] = (unsigned char)zbt_rand(&rng);
            }
            memset(data + 1, 0, 7);
            data[8] = '{';
        } else {
            n = mutate(&rng, data, n);
        }
        try_file(path, data, n);
        used += n;
    }
    CU_ASSERT(zb_mem_live() == before);
}

/* Well-formed headers with random numbers get behind the JSON parser. */
static void random_ranges_open_never_crashes(void)
{
    static const char *const dtype[] = {"F32", "U8", "BF16", "Q", "F64"};
    static const char *const number[] = {"0",  "1",   "2",    "4",
                                         "8",  "12",  "-1",   "1e3",
                                         "16", "4e9", "4294967296",
                                         "9223372036854775807"};
    const int n_files = zbt_is_long() ? 40000 : 2000;
    const long n_numbers = (long)ZB_COUNT_OF(number) - 1;
    struct zbt_rng rng = {.state = 12};
    int n_good = 0;

    for (int i = 0; i < n_files; i++) {
        struct zb_st_file *f = NULL;
        char header[512];
        const char *pick[8];

        for (int j = 0; j < 8; j++) {
            long top = zbt_rand_in(&rng, 0, 19) != 0 ? 1 : n_numbers;

            pick[j] = number[zbt_rand_in(&rng, 0, top)];
        }
        snprintf(header, sizeof(header),
                 "{\"a\":{\"dtype\":\"%s\",\"shape\":[%s,%s],"
                 "\"data_offsets\":[%s,%s]},\"b\":{\"dtype\":\"%s\","
                 "\"shape\":[%s,%s],\"data_offsets\":[%s,%s]}}",
                 dtype[zbt_rand_in(&rng, 0, 4)], pick[0], pick[1], pick[2],
                 pick[3], dtype[zbt_rand_in(&rng, 0, 4)], pick[4], pick[5],
                 pick[6], pick[7]);
        if (zb_st_open(put_header(header, (size_t)zbt_rand_in(&rng, 0, 1)),
                       &f) == ZB_OK) {
            use_file(f);
            zb_st_close(f);
            n_good++;
        }
    }
    CU_ASSERT(n_good > 0 && n_good < n_files);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(python_file_open_lists_every_tensor),
        ZBT_CASE(f16_read_equals_pytorch),
        ZBT_CASE(bf16_read_equals_pytorch),
        ZBT_CASE(wide_floats_read_with_nearest_rounding),
        ZBT_CASE(integers_read_gives_values),
        ZBT_CASE(wrong_count_or_dtype_read_fails_by_name),
        ZBT_CASE(golden_files_open_without_error),
        ZBT_CASE(broken_file_open_fails_by_name),
        ZBT_CASE(deep_header_open_fails),
        ZBT_CASE(cut_header_open_fails),
        ZBT_CASE(unreadable_path_open_fails),
        ZBT_CASE(unusual_files_open_succeeds),
        ZBT_CASE(unaligned_data_read_gives_values),
        ZBT_CASE(written_file_open_gives_it_back),
        ZBT_CASE(written_file_has_aligned_padded_header),
        ZBT_CASE(full_disk_write_keeps_old_file),
        ZBT_CASE(unwritable_path_write_fails),
        ZBT_CASE(impossible_tensor_write_fails_by_name),
        ZBT_CASE(impossible_metadata_write_fails_by_name),
        ZBT_CASE(failing_allocation_open_unwinds),
        ZBT_CASE(failing_allocation_write_leaves_nothing),
        ZBT_CASE(mutated_and_random_files_open_never_crashes),
        ZBT_CASE(random_ranges_open_never_crashes),
    };

    return zbt_run("safetensors", cases, ZB_COUNT_OF(cases));
}
