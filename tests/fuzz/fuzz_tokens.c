/* SPDX-License-Identifier: MIT
 *
 * Token files and arrays. The first byte says the name, the next two (least
 * byte first) how much of the rest is the Megatron index beside it. */
#include "config.h"
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zb/data.h"
#include "zb/mem.h"
#include "zb/npy.h"
#include "zb/tokens.h"

/* ---- good inputs --------------------------------------------------------- */

static struct {
    uint8_t byte[2048];
    size_t n;
} seed;

static void put(uint64_t x, int width)
{
    for (int i = 0; i < width; i++) {
        seed.byte[seed.n++] = (uint8_t)(x >> 8 * i);
    }
}

static void put_text(const char *text, size_t n)
{
    memcpy(seed.byte + seed.n, text, n);
    seed.n += n;
}

/* llm.c's header of 256 numbers. */
static void put_llmc(uint64_t magic, uint64_t version, uint64_t n)
{
    put(0, 3);
    put(magic, 4);
    put(version, 4);
    put(n, 4);
    memset(seed.byte + seed.n, 0, 1012);
    seed.n += 1012;
}

static void seed_llmc(void)
{
    put_llmc(20240520, 1, 3);
    put_text("abcdef", 6);
}

static void seed_llmc7(void)
{
    put_llmc(20240801, 7, 1);
    put(5, 4);
}

static void put_npy(const char *dict)
{
    char header[119];

    snprintf(header, sizeof(header), "%-117s\n", dict);
    put(1, 3);
    put_text("\223NUMPY\001\000\166\000", 10);
    put_text(header, 118);
}

static void seed_npy(void)
{
    put_npy("{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }");
    put(70001, 8);
}

/* Rows of a field of array data. */
static void seed_rows(void)
{
    put_npy("{'descr': '|i1', 'fortran_order': False, 'shape': (2, 3), }");
    put_text("\001\000\001\001\234\000", 6);
}

/* Two sequences of 1 and 3 tokens in one document. */
static void seed_megatron(void)
{
    static const struct {
        uint64_t x;
        int width;
    } index[] = {{1, 8}, {8, 1}, {2, 8}, {2, 8}, {1, 4},
                 {3, 4}, {0, 8}, {2, 8}, {0, 8}, {2, 8}};

    put(0, 1);
    put(74, 2);
    put_text("MMIDIDX\0\0", 9);
    for (size_t i = 0; i < ZB_COUNT_OF(index); i++) {
        put(index[i].x, index[i].width);
    }
    put_text("abcdefgh", 8);
}

static void seed_raw(void)
{
    put(2, 3);
    put_text("abcdefghijklmnop", 16);
}

size_t fuzz_seed(size_t i, const uint8_t **data_out)
{
    static void (*const make[])(void) = {seed_llmc, seed_llmc7, seed_npy,
                                         seed_rows, seed_megatron, seed_raw};

    seed.n = 0;
    if (i < ZB_COUNT_OF(make)) {
        make[i]();
    }
    *data_out = seed.byte;
    return seed.n;
}

/* ---- the target ---------------------------------------------------------- */

static char folder[64];

static void remove_folder(void)
{
    static const char *const names[] = {"x.bin", "x.idx", "x.npy", "x.u32",
                                        "x.txt"};
    char path[128];

    for (size_t i = 0; i < ZB_COUNT_OF(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        remove(path);
    }
    rmdir(folder);
}

static void write_file(const char *name, const uint8_t *data, size_t n,
                       char path[128])
{
    FILE *f;

    if (folder[0] == '\0') {
        strcpy(folder, "/tmp/zbfuzz.XXXXXX");
        if (mkdtemp(folder) == NULL) {
            abort();
        }
        atexit(remove_folder);
    }
    snprintf(path, 128, "%s/%s", folder, name);
    f = fopen(path, "wb");
    if (f == NULL || fwrite(data, 1, n, f) != n || fclose(f) != 0) {
        abort();
    }
}

static void read_tokens(const char *path)
{
    struct zb_tokens *t = NULL;
    int32_t ids[64];

    if (zb_tokens_open(path, ZB_DATA_AUTO, &t) != ZB_OK) {
        return;
    }
    for (int64_t at = 0, n = zb_tokens_info(t).n_tokens; at < n; at += 64) {
        if (zb_tokens_read(t, at, n - at < 64 ? n - at : 64, 70000, ids) !=
            ZB_OK) {
            break;
        }
    }
    zb_tokens_close(t);
}

static void read_dataset(const char *path)
{
    const struct zb_dataset_opts o = {
        .name = "data.train", .seq_len = 3, .shuffle = 1, .vocab_size = 70000};
    struct zb_dataset *ds = NULL;
    struct zb_batch batch;

    if (zb_dataset_open(&path, 1, &o, &ds) != ZB_OK) {
        return;
    }
    if (zb_batch_init(&batch, 2, 3) != ZB_OK) {
        abort();
    }
    for (int64_t step = 1; step < 4; step++) {
        if (zb_dataset_train_batch(ds, step, 2, 0, 2, &batch) != ZB_OK) {
            break;
        }
    }
    zb_batch_release(&batch);
    zb_dataset_close(ds);
}

/* The file as every field. */
static void read_fields(char *path)
{
    const struct zb_field_files files = {{path, path, path, path, NULL}};
    struct zb_dataset_opts o = {.name = "data.train", .vocab_size = 70000};
    struct zb_dataset *ds = NULL;
    struct zb_batch batch;

    if (zb_field_files_seq_len(&files, &o.seq_len) != ZB_OK ||
        o.seq_len > 64 || zb_dataset_open_arrays(&files, &o, &ds) != ZB_OK) {
        return;
    }
    if (zb_batch_init(&batch, 2, o.seq_len) != ZB_OK) {
        abort();
    }
    for (int64_t i = 0; i < zb_dataset_n_eval_batches(ds, 2); i++) {
        if (zb_dataset_eval_batch(ds, i, 2, &batch) != ZB_OK) {
            break;
        }
    }
    zb_batch_release(&batch);
    zb_dataset_close(ds);
}

static void read_array(const char *path)
{
    struct zb_npy *a = NULL;
    int64_t n;
    int32_t i[8];
    float f[8];

    if (zb_npy_open(path, &a) != ZB_OK) {
        return;
    }
    n = zb_npy_info(a)->n_elems < 8 ? zb_npy_info(a)->n_elems : 8;
    /* One of both, by the array's type; the last elements too. */
    if (zb_npy_read_i32(a, zb_npy_info(a)->n_elems - n, n, i) != ZB_OK &&
        zb_npy_read_f32(a, zb_npy_info(a)->n_elems - n, n, f) != ZB_OK &&
        zb_error_text()[0] == '\0') {
        abort();
    }
    zb_npy_close(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const names[] = {"x.bin", "x.npy", "x.u32", "x.txt"};
    int64_t before = zb_mem_live();
    char path[128], index[128];
    size_t n_index;

    if (n < 3) {
        return 0;
    }
    n_index = (size_t)data[1] | (size_t)data[2] << 8;
    n_index = n_index < n - 3 ? n_index : n - 3;
    if (n_index > 0) {
        write_file("x.idx", data + 3, n_index, index);
    }
    write_file(names[data[0] % ZB_COUNT_OF(names)], data + 3 + n_index,
               n - 3 - n_index, path);
    read_tokens(path);
    read_dataset(path);
    read_array(path);
    read_fields(path);
    if (n_index > 0) {
        read_tokens(index);
        remove(index);
    }
    fuzz_check_live(before);
    return 0;
}
