/* SPDX-License-Identifier: MIT
 *
 * The formats of token files, written here byte by byte from their
 * descriptions. */
#include "config.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zb/mem.h"
#include "zb/tokens.h"
#include "zbt.h"

/* A file under construction: numbers are written least byte first. */
struct bytes {
    unsigned char at[4096];
    size_t n;
};

static void put(struct bytes *b, int width, long long value)
{
    for (int i = 0; i < width; i++) {
        b->at[b->n++] = (unsigned char)((unsigned long long)value >> (8 * i));
    }
}

static void put_text(struct bytes *b, const char *text, size_t n)
{
    memcpy(b->at + b->n, text, n);
    b->n += n;
}

static const char *save(const struct bytes *b, const char *name)
{
    const char *path = zbt_scratch_path(name);
    FILE *f = fopen(path, "wb");

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    CU_ASSERT_EQUAL(fwrite(b->at, 1, b->n, f), b->n);
    fclose(f);
    return path;
}

static void put_llmc(struct bytes *b, int magic, int version, long long n)
{
    b->n = 0;
    put(b, 4, magic);
    put(b, 4, version);
    put(b, 4, n);
    memset(b->at + b->n, 0, 1024 - b->n);
    b->n = 1024;
}

static void put_npy(struct bytes *b, int version, const char *dict)
{
    b->n = 0;
    put_text(b, "\x93NUMPY", 6);
    put(b, 1, version);
    put(b, 1, 0);
    put(b, version == 1 ? 2 : 4, (long long)strlen(dict));
    put_text(b, dict, strlen(dict));
}

/* Opens, and holds the tokens 5, 300, 70000 as far as they fit. */
static int reads_three(const char *path, const char *format, const char *type)
{
    static const int32_t want[] = {5, 300, 70000};
    struct zb_tokens *t = NULL;
    struct zb_tokens_info info;
    int32_t ids[3];
    int is_good, n;

    ZBT_OK(zb_tokens_open(path, ZB_DATA_AUTO, &t));
    info = zb_tokens_info(t);
    n = (int)info.n_tokens;
    ZBT_OK(zb_tokens_read(t, 0, n, 70001, ids));
    is_good = strcmp(info.format, format) == 0 &&
              strcmp(info.type, type) == 0 && !info.is_text && n >= 1 &&
              n <= 3 && memcmp(ids, want, (size_t)n * sizeof(*ids)) == 0;
    if (n > 1) {
        ZBT_OK(zb_tokens_read(t, 1, 1, 70001, ids));
        is_good = is_good && ids[0] == 300;
        CU_ASSERT_EQUAL(zb_tokens_read(t, 0, n, 300, ids), ZB_ECONFIG);
    }
    zb_tokens_close(t);
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
    return is_good;
}

static int fails(const char *path, enum zb_data_format format,
                 const char *word1, const char *word2)
{
    struct zb_tokens *t = NULL;
    enum zb_status st = zb_tokens_open(path, format, &t);
    int is_good = st == ZB_ECONFIG && t == NULL && zb_mem_live() == 0 &&
                  strstr(zb_error_text(), word1) != NULL &&
                  strstr(zb_error_text(), word2) != NULL;

    if (!is_good) {
        printf("\n%s: %d '%s'\n", path, st, zb_error_text());
    }
    return is_good;
}

static void llmc_files_of_both_versions_are_read(void)
{
    struct bytes b;

    put_llmc(&b, 20240520, 1, 2);
    put(&b, 2, 5);
    put(&b, 2, 300);
    CU_ASSERT(reads_three(save(&b, "gpt2.bin"), "llm.c version 1", "uint16"));
    put_llmc(&b, 20240801, 7, 3);
    put(&b, 4, 5);
    put(&b, 4, 300);
    put(&b, 4, 70000);
    CU_ASSERT(reads_three(save(&b, "llama"), "llm.c version 7", "uint32"));
    /* What follows the tokens that are announced is none. */
    put(&b, 4, 1);
    CU_ASSERT(reads_three(save(&b, "llama"), "llm.c version 7", "uint32"));
}

static void damaged_llmc_files_are_refused(void)
{
    struct bytes b;

    put_llmc(&b, 20240520, 1, 3);
    put(&b, 2, 5);
    put(&b, 2, 300);
    CU_ASSERT(fails(save(&b, "a.bin"), ZB_DATA_AUTO, "1028 bytes",
                    "3 tokens of uint16"));
    put_llmc(&b, 20240801, 1, 0);
    CU_ASSERT(fails(save(&b, "a.bin"), ZB_DATA_AUTO, "byte 4", "version 1 "));
    b.n = 1000;
    CU_ASSERT(fails(save(&b, "a.bin"), ZB_DATA_TOKENS, "1000 bytes", "1024"));
    put_llmc(&b, 20240520, 1, -1); /* 2^32 - 1 */
    CU_ASSERT(fails(save(&b, "a.bin"), ZB_DATA_AUTO, "too few", "4294967295"));
    put_llmc(&b, 20240522, 1, 1);
    CU_ASSERT(fails(save(&b, "a"), ZB_DATA_AUTO, "evaluations", "a: "));
}

static void npy_files_of_every_integer_are_read(void)
{
    static const struct {
        const char *descr, *type;
        int width, n;
    } rows[] = {{"|u1", "uint8", 1, 1},  {"|i1", "int8", 1, 1},
                {"<u2", "uint16", 2, 2}, {"<i2", "int16", 2, 2},
                {"<u4", "uint32", 4, 3}, {"<i4", "int32", 4, 3},
                {"<u8", "uint64", 8, 3}, {"<i8", "int64", 8, 3}};
    static const int values[] = {5, 300, 70000};
    struct bytes b;

    for (size_t i = 0; i < ZB_COUNT_OF(rows); i++) {
        for (int version = 1; version <= 3; version++) {
            char dict[128];

            snprintf(dict, sizeof(dict),
                     "{'descr': '%s', 'fortran_order': False, "
                     "'shape': (%d,), }          \n",
                     rows[i].descr, rows[i].n);
            put_npy(&b, version, dict);
            for (int k = 0; k < rows[i].n; k++) {
                put(&b, rows[i].width, values[k]);
            }
            CU_ASSERT(reads_three(save(&b, "x.npy"), "npy", rows[i].type));
        }
    }
}

static void damaged_npy_files_are_refused(void)
{
#define HEAD "{'descr': '<i4', 'fortran_order': False, "
    static const struct {
        const char *dict, *word;
    } rows[] = {
        {HEAD "'shape': (4,)}", "too few for 4 elements"},
        {HEAD "'shape': (1, 2)}", "2 dimensions; tokens have one"},
        {HEAD "'shape': ()}", "0 dimensions; tokens have one"},
        {HEAD "'shape': (99999999999999999999,)}", "out of range"},
        {HEAD "'shape': (9999999999, 9999999999)}", "out of range"},
        {HEAD "'shape': (1,1,1,1,1,1,1,1,1)}", "8 dimensions"},
        {HEAD "'shape': (-1,)}", "no size"},
        {HEAD "'shape': (1,", "no size"},
        {HEAD "'shape'", "':'"},
        {HEAD "'shape", "ends in a word"},
        {HEAD "'shapes': (1,)}", "unknown key"},
        {HEAD "}", "lacks"},
        {"['descr']", "no dictionary"},
        {"{'descr': '>i4', 'fortran_order': False, 'shape': (1,)}", "'>i4'"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", "f4"},
        {"{'descr': '<i16', 'fortran_order': False, 'shape': (1,)}", "'<i16'"},
        {"{'descr': [('a', '<i4')], 'shape': (1,)}", "records"},
        {"{'descr': '<i4', 'fortran_order': 0, 'shape': (1,)}", "True"},
        {"{'a very long word in it': 1}", "too long"},
    };
    struct bytes b;

    for (size_t i = 0; i < ZB_COUNT_OF(rows); i++) {
        put_npy(&b, 1, rows[i].dict);
        put(&b, 4, 5);
        put(&b, 4, 6);
        CU_ASSERT(
            fails(save(&b, "x.npy"), ZB_DATA_AUTO, "x.npy", rows[i].word));
    }
    put_npy(&b, 4, rows[0].dict);
    CU_ASSERT(fails(save(&b, "x.npy"), ZB_DATA_AUTO, "byte 6", "version"));
    put_npy(&b, 1, rows[0].dict);
    b.n = 30;
    CU_ASSERT(fails(save(&b, "x.npy"), ZB_DATA_AUTO, "byte 10", "cut off"));
}

/* Two sequences, one document; sizes and places of the sequences as given. */
static void put_index(struct bytes *b, int code, int size1, int size2,
                      int place2)
{
    b->n = 0;
    put_text(b, "MMIDIDX\0\0", 9);
    put(b, 8, 1);
    put(b, 1, code);
    put(b, 8, 2);
    put(b, 8, 2);
    put(b, 4, size1);
    put(b, 4, size2);
    put(b, 8, 0);
    put(b, 8, place2);
    put(b, 8, 0);
    put(b, 8, 2);
}

static void megatron_pairs_are_read_by_either_name(void)
{
    struct bytes b = {.n = 0};
    struct zb_tokens *t = NULL;
    const char *data, *index;

    put(&b, 4, 5);
    put(&b, 4, 300);
    put(&b, 4, 70000);
    data = save(&b, "m.bin");
    put_index(&b, 4, 1, 2, 4);
    index = save(&b, "m.idx");
    CU_ASSERT(reads_three(data, "Megatron", "int32"));
    CU_ASSERT(reads_three(index, "Megatron", "int32"));
    ZBT_OK(zb_tokens_open(index, ZB_DATA_TOKENS, &t));
    CU_ASSERT_EQUAL(zb_tokens_info(t).n_sequences, 2);
    CU_ASSERT_EQUAL(zb_tokens_info(t).n_documents, 1);
    CU_ASSERT_STRING_EQUAL(zb_tokens_path(t), data);
    zb_tokens_close(t);
    b.n = 0;
    put(&b, 2, 5);
    put(&b, 2, 300);
    save(&b, "m.bin");
    put_index(&b, 8, 2, 0, 4);
    CU_ASSERT(reads_three(save(&b, "m.idx"), "Megatron", "uint16"));
    CU_ASSERT_EQUAL(unlink(index), 0);
}

static void damaged_megatron_pairs_are_refused(void)
{
    static const struct {
        int code, size1, size2, place2;
        const char *word1, *word2;
    } rows[] = {
        {4, 1, 3, 4, "m.bin", "too few for 4 tokens"},
        {4, 1, 2, 8, "m.idx: byte 50", "does not follow"},
        {4, -1, 2, 8, "m.idx: byte 34", "out of range"},
        {7, 1, 2, 8, "m.idx: byte 17", "type"},
        {9, 1, 2, 8, "m.idx: byte 17", "type"},
    };
    struct bytes b = {.n = 0};
    char data[128];

    put(&b, 8, 5);
    put(&b, 4, 5);
    strcpy(data, save(&b, "m.bin"));
    for (size_t i = 0; i < ZB_COUNT_OF(rows); i++) {
        put_index(&b, rows[i].code, rows[i].size1, rows[i].size2,
                  rows[i].place2);
        save(&b, "m.idx");
        CU_ASSERT(fails(data, ZB_DATA_AUTO, rows[i].word1, rows[i].word2));
    }
    put_index(&b, 4, 1, 2, 4);
    b.n -= 9;
    save(&b, "m.idx");
    CU_ASSERT(fails(data, ZB_DATA_AUTO, "m.idx: byte 18", "too short"));
    b.at[9] = 2;
    save(&b, "m.idx");
    CU_ASSERT(fails(data, ZB_DATA_AUTO, "m.idx: byte 9", "version"));
    b.at[0] = 'X';
    save(&b, "m.idx");
    CU_ASSERT(fails(data, ZB_DATA_AUTO, "m.idx", "no Megatron index"));
    put_index(&b, 4, 1, 2, 4);
    CU_ASSERT(fails(save(&b, "m.other"), ZB_DATA_AUTO, "m.other", ".idx"));
    save(&b, "alone.idx");
    CU_ASSERT(fails(zbt_scratch_path("alone.idx"), ZB_DATA_AUTO, "alone.bin",
                    "No such file"));
    CU_ASSERT_EQUAL(unlink(zbt_scratch_path("m.idx")), 0);
}

static void raw_files_are_told_by_their_names(void)
{
    struct bytes b = {.n = 0};

    put(&b, 2, 5);
    put(&b, 2, 300);
    CU_ASSERT(reads_three(save(&b, "x.bin"), "raw", "uint16"));
    CU_ASSERT(reads_three(save(&b, "x.u16"), "raw", "uint16"));
    CU_ASSERT(reads_three(save(&b, "x.uint16"), "raw", "uint16"));
    put(&b, 1, 0);
    CU_ASSERT(fails(save(&b, "x.u16"), ZB_DATA_AUTO, "5 bytes", "uint16"));
    b.n = 0;
    put(&b, 4, 5);
    put(&b, 4, 300);
    CU_ASSERT(reads_three(save(&b, "x.u32"), "raw", "uint32"));
    CU_ASSERT(reads_three(save(&b, "x.uint32"), "raw", "uint32"));
    CU_ASSERT(fails(save(&b, "x.txt"), ZB_DATA_TOKENS, "x.txt", "no file of"));
}

static void ids_outside_the_limit_name_their_byte(void)
{
    struct bytes b;
    struct zb_tokens *t = NULL;
    int32_t ids[3];

    put_npy(&b, 1, "{'descr': '<i2', 'fortran_order': False, 'shape': (3,)}\n");
    CU_ASSERT_EQUAL_FATAL(b.n, 66);
    put(&b, 2, 7);
    put(&b, 2, -2);
    put(&b, 2, 9);
    ZBT_OK(zb_tokens_open(save(&b, "x.npy"), ZB_DATA_AUTO, &t));
    CU_ASSERT_EQUAL(zb_tokens_read(t, 0, 3, 100, ids), ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(
        strstr(zb_error_text(), "x.npy: byte 68: token -2 is not in 0 to 99"));
    ZBT_OK(zb_tokens_read(t, 2, 1, 10, ids));
    CU_ASSERT_EQUAL(ids[0], 9);
    CU_ASSERT_EQUAL(zb_tokens_read(t, 2, 1, 9, ids), ZB_ECONFIG);
    zb_tokens_close(t);
}

static void text_is_its_bytes(void)
{
    struct bytes b = {.n = 0};
    struct zb_tokens *t = NULL;
    int32_t ids[2];

    put_text(&b, "z\xff", 2);
    ZBT_OK(zb_tokens_open(save(&b, "x.txt"), ZB_DATA_AUTO, &t));
    CU_ASSERT(zb_tokens_info(t).is_text);
    CU_ASSERT_EQUAL(memcmp(zb_tokens_text(t), "z\xff", 2), 0);
    ZBT_OK(zb_tokens_read(t, 0, 2, 256, ids));
    CU_ASSERT(ids[0] == 'z' && ids[1] == 255);
    zb_tokens_close(t);
    put_llmc(&b, 20240520, 1, 0);
    ZBT_OK(zb_tokens_open(save(&b, "x.bin"), ZB_DATA_TEXT, &t));
    CU_ASSERT_EQUAL(zb_tokens_info(t).n_tokens, 1024);
    zb_tokens_close(t);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(llmc_files_of_both_versions_are_read),
        ZBT_CASE(damaged_llmc_files_are_refused),
        ZBT_CASE(npy_files_of_every_integer_are_read),
        ZBT_CASE(damaged_npy_files_are_refused),
        ZBT_CASE(megatron_pairs_are_read_by_either_name),
        ZBT_CASE(damaged_megatron_pairs_are_refused),
        ZBT_CASE(raw_files_are_told_by_their_names),
        ZBT_CASE(ids_outside_the_limit_name_their_byte),
        ZBT_CASE(text_is_its_bytes),
    };

    return zbt_run("tokens", cases, ZB_COUNT_OF(cases));
}
