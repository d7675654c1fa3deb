/* SPDX-License-Identifier: MIT */
#include "config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "zb/data.h"
#include "zb/mem.h"
#include "zb/tokenizer.h"
#include "zbt.h"

static const char *write_bytes(const char *name, const void *bytes, size_t n)
{
    const char *path = zbt_scratch_path(name);
    FILE *f = fopen(path, "w");

    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    CU_ASSERT_EQUAL(fwrite(bytes, 1, n, f), n);
    fclose(f);
    return path;
}

/* A file of n bytes whose byte at place i is (i + start) * 7 % 251. */
static const char *write_ramp(const char *name, size_t n, size_t start)
{
    unsigned char *bytes = malloc(n + 1);
    const char *path;

    for (size_t i = 0; i < n; i++) {
        bytes[i] = (unsigned char)((i + start) * 7 % 251);
    }
    path = write_bytes(name, bytes, n);
    free(bytes);
    return path;
}

static int32_t ramp(int64_t i)
{
    return (int32_t)(i * 7 % 251);
}

static struct zb_dataset *open_ok(const char *path, int64_t seq_len,
                                  int shuffle)
{
    struct zb_dataset_opts opts = {.name = "data.train",
                                   .seq_len = seq_len,
                                   .seed = 7,
                                   .shuffle = shuffle};
    struct zb_dataset *ds = NULL;

    ZBT_OK(zb_dataset_open(&path, 1, &opts, &ds));
    return ds;
}

static int open_fails(const char *path, int64_t seq_len, const char *word1,
                      const char *word2)
{
    struct zb_dataset_opts opts = {.name = "data.train", .seq_len = seq_len};
    struct zb_dataset *ds = NULL;
    int64_t before = zb_mem_live();
    enum zb_status st = zb_dataset_open(&path, 1, &opts, &ds);
    int is_good = st == ZB_ECONFIG && ds == NULL && zb_mem_live() == before &&
                  strstr(zb_error_text(), "data.train") != NULL &&
                  strstr(zb_error_text(), word1) != NULL &&
                  strstr(zb_error_text(), word2) != NULL;

    if (!is_good) {
        printf("\n%s: %d '%s'\n", path, st, zb_error_text());
    }
    return is_good;
}

/* A .npy file of bytes with that shape. */
static char *write_npy(const char *name, const char *shape, const void *values,
                       size_t n)
{
    unsigned char bytes[1024];
    int at = snprintf((char *)bytes, sizeof(bytes),
                      "\x93NUMPY\x01%cv%c{'descr': '|i1', "
                      "'fortran_order': False, 'shape': (%s), }",
                      0, 0, shape);

    memset(bytes + at, ' ', (size_t)(127 - at));
    bytes[127] = '\n';
    memcpy(bytes + 128, values, n);
    return strdup(write_bytes(name, bytes, 128 + n));
}

static void free_files(struct zb_field_files *files)
{
    for (int i = 0; i < ZB_N_FIELDS; i++) {
        free(files->path[i]);
    }
}

/* What transformers makes of labels and of a missing attention_mask; 156 is
 * -100 as int8. */
static void rows_of_arrays_have_shifted_labels_of_decoders(void)
{
    static const unsigned char ids[] = {5, 6, 7, 8, 9, 10};
    static const unsigned char labels[] = {1, 156, 3, 4, 5, 6};
    static const unsigned char mask[] = {1, 1, 0, 1, 1, 1};
    static const int32_t shifted[] = {-100, 3, -100, 5, 6, -100};
    static const int32_t plain[] = {1, -100, 3, 4, 5, 6};
    static const int32_t own[] = {6, -100, -100, 9, 10, -100};
    static const struct {
        int has_labels, sees_all;
        const int32_t *want;
    } cases[] = {{1, 0, shifted}, {1, 1, plain}, {0, 0, own}};

    for (size_t i = 0; i < ZB_COUNT_OF(cases); i++) {
        struct zb_dataset_opts opts = {
            .name = "data.train", .seq_len = 3, .sees_all = cases[i].sees_all};
        struct zb_field_files files = {{NULL}};
        struct zb_dataset *ds = NULL;
        struct zb_batch batch;

        files.path[ZB_FIELD_INPUT_IDS] = write_npy("ids.npy", "2, 3", ids, 6);
        if (cases[i].has_labels) {
            files.path[ZB_FIELD_LABELS] =
                write_npy("labels.npy", "2, 3", labels, 6);
        } else {
            files.path[ZB_FIELD_ATTENTION_MASK] =
                write_npy("mask.npy", "2, 3", mask, 6);
        }
        ZBT_OK(zb_dataset_open_arrays(&files, &opts, &ds));
        CU_ASSERT_EQUAL(zb_dataset_n_samples(ds), 2);
        ZBT_OK(zb_batch_init(&batch, 2, 3));
        ZBT_OK(zb_dataset_eval_batch(ds, 0, 2, &batch));
        for (int k = 0; k < 6; k++) {
            CU_ASSERT_EQUAL(batch.input_ids[k], ids[k]);
            CU_ASSERT_EQUAL(batch.labels[k], cases[i].want[k]);
            CU_ASSERT_EQUAL(batch.attention_mask[k],
                            cases[i].has_labels ? 1 : mask[k]);
            CU_ASSERT_EQUAL(batch.token_type_ids[k], 0);
        }
        zb_batch_release(&batch);
        zb_dataset_close(ds);
        free_files(&files);
    }
}

static void arrays_that_do_not_fit_are_refused_by_name(void)
{
    static const unsigned char six[] = {5, 6, 7, 8, 9, 10};
    static const struct {
        const char *labels, *word;
        int per_row;
    } cases[] = {
        {"3, 2", "has 3 rows, but input_ids has 2", 0},
        {"2, 2", "rows of 2 tokens, not 3", 0},
        {"6,", "has 1 dimensions, not 2", 0},
        {"2, 3", "has 2 dimensions, not 1", 1},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(cases); i++) {
        struct zb_dataset_opts opts = {.name = "data.train",
                                       .seq_len = 3,
                                       .labels_per_row = cases[i].per_row};
        struct zb_field_files files = {{NULL}};
        struct zb_dataset *ds = NULL;
        int64_t before = zb_mem_live();

        files.path[ZB_FIELD_INPUT_IDS] = write_npy("ids.npy", "2, 3", six, 6);
        files.path[ZB_FIELD_LABELS] =
            write_npy("labels.npy", cases[i].labels, six, 6);
        CU_ASSERT_EQUAL(zb_dataset_open_arrays(&files, &opts, &ds), ZB_ECONFIG);
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "data.train: "));
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "labels.npy"));
        CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), cases[i].word));
        CU_ASSERT_EQUAL(zb_mem_live(), before);
        free_files(&files);
    }
}

static void order_is_permutation_of_each_epoch(void)
{
    static unsigned char seen[5000];

    for (int64_t n = 1; n < 5000; n = n < 70 ? n + 1 : n * 3 / 2) {
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            memset(seen, 0, sizeof(seen));
            for (int64_t i = 0; i < n; i++) {
                int64_t k = zb_data_order(11, epoch, n, i);

                CU_ASSERT_FATAL(k >= 0 && k < n);
                CU_ASSERT_EQUAL(seen[k]++, 0);
            }
        }
    }
}

static void order_of_huge_set_stays_in_range(void)
{
    int64_t n = (int64_t)1 << 40;

    for (int64_t i = 0; i < 1000; i++) {
        int64_t k = zb_data_order(1, 2, n + i, n - 1 - i);

        CU_ASSERT(k >= 0 && k < n + i);
    }
}

/* Chi-square of where sample 0 goes over many seeds and epochs; 4 standard
 * deviations of the statistic's normal approximation are allowed. */
static void order_spreads_evenly_over_seeds_and_epochs(void)
{
    static const int64_t sizes[] = {2, 3, 5, 16, 50};

    for (size_t s = 0; s < ZB_COUNT_OF(sizes); s++) {
        int64_t n = sizes[s];
        double count[50] = {0}, chi2 = 0, per = 20000.0 / (double)n;

        for (uint64_t t = 0; t < 20000; t++) {
            count[zb_data_order(t % 200, t / 200, n, n / 2)] += 1;
        }
        for (int64_t k = 0; k < n; k++) {
            chi2 += (count[k] - per) * (count[k] - per) / per;
        }
        CU_ASSERT((chi2 - (double)(n - 1)) * (chi2 - (double)(n - 1)) <
                  16 * 2 * (double)(n - 1));
    }
}

static void orders_of_seeds_and_epochs_differ(void)
{
    int n_same_seed = 0, n_same_epoch = 0;

    for (int64_t i = 0; i < 1000; i++) {
        n_same_seed +=
            zb_data_order(1, 0, 1000, i) == zb_data_order(2, 0, 1000, i);
        n_same_epoch +=
            zb_data_order(1, 0, 1000, i) == zb_data_order(1, 1, 1000, i);
    }
    CU_ASSERT(n_same_seed < 10);
    CU_ASSERT(n_same_epoch < 10);
}

/* The order is part of what makes runs repeatable: it must never change. */
static void order_is_the_documented_one(void)
{
    static const int64_t want[] = {8, 3, 7, 9, 0, 5, 1, 4, 6, 2};

    for (int64_t i = 0; i < 10; i++) {
        CU_ASSERT_EQUAL(zb_data_order(42, 3, 10, i), want[i]);
    }
}

static void samples_follow_with_one_token_shared(void)
{
    struct zb_dataset *ds = open_ok(write_ramp("a", 100, 0), 8, 0);
    int32_t tokens[9];

    CU_ASSERT_EQUAL(zb_dataset_n_tokens(ds), 100);
    CU_ASSERT_EQUAL(zb_dataset_n_samples(ds), 12);
    CU_ASSERT_EQUAL(zb_dataset_seq_len(ds), 8);
    CU_ASSERT_EQUAL(zb_dataset_vocab_size(ds), 256);
    for (int64_t i = 0; i < 12; i++) {
        ZBT_OK(zb_dataset_sample(ds, i, tokens));
        for (int64_t t = 0; t < 9; t++) {
            CU_ASSERT_EQUAL(tokens[t], ramp(8 * i + t));
        }
    }
    CU_ASSERT_EQUAL(zb_dataset_sample(ds, 12, tokens), ZB_EINVAL);
    CU_ASSERT_EQUAL(zb_dataset_sample(ds, -1, tokens), ZB_EINVAL);
    zb_dataset_close(ds);
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

static void files_are_read_one_after_the_other(void)
{
    struct zb_dataset_opts opts = {.name = "data.train", .seq_len = 8};
    char paths[4][128];
    const char *list[4] = {paths[0], paths[1], paths[2], paths[3]};
    struct zb_dataset *ds = NULL;
    int32_t tokens[9];

    strcpy(paths[0], write_ramp("a", 3, 0));
    strcpy(paths[1], write_ramp("b", 0, 0));
    strcpy(paths[2], write_ramp("c", 10, 3));
    strcpy(paths[3], write_ramp("d", 20, 13));
    ZBT_OK(zb_dataset_open(list, 4, &opts, &ds));
    CU_ASSERT_EQUAL(zb_dataset_n_samples(ds), 4);
    for (int64_t i = 0; i < 4; i++) {
        ZBT_OK(zb_dataset_sample(ds, i, tokens));
        for (int64_t t = 0; t < 9; t++) {
            CU_ASSERT_EQUAL(tokens[t], ramp(8 * i + t));
        }
    }
    zb_dataset_close(ds);
}

static void epoch_takes_every_sample_once(void)
{
    struct zb_dataset *ds = open_ok(write_ramp("a", 25, 0), 2, 1);
    struct zb_batch batch;
    int n_seen[3][12] = {{0}};

    ZBT_OK(zb_batch_init(&batch, 9, 2));
    CU_ASSERT_EQUAL_FATAL(zb_dataset_n_samples(ds), 12);
    for (int64_t step = 1; step <= 4; step++) { /* 36 rows: 3 epochs */
        ZBT_OK(zb_dataset_train_batch(ds, step, 9, 0, 9, &batch));
        CU_ASSERT_EQUAL(batch.n_rows, 9);
        for (int64_t r = 0; r < 9; r++) {
            int64_t place = (step - 1) * 9 + r, k;

            CU_ASSERT_EQUAL(batch.sample_index[r], place);
            k = zb_data_order(7, (uint64_t)(place / 12), 12, place % 12);
            CU_ASSERT_EQUAL(batch.input_ids[2 * r], ramp(2 * k));
            CU_ASSERT_EQUAL(batch.input_ids[2 * r + 1], ramp(2 * k + 1));
            CU_ASSERT_EQUAL(batch.labels[2 * r], ramp(2 * k + 1));
            CU_ASSERT_EQUAL(batch.labels[2 * r + 1], ramp(2 * k + 2));
            n_seen[place / 12][k]++;
        }
    }
    for (int i = 0; i < 36; i++) {
        CU_ASSERT_EQUAL(n_seen[i / 12][i % 12], 1);
    }
    CU_ASSERT_EQUAL(zb_batch_n_targets(&batch), 18);
    zb_batch_release(&batch);
    zb_dataset_close(ds);
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

static int is_same_rows(const struct zb_batch *a, const struct zb_batch *b)
{
    size_t n = (size_t)(a->n_rows * a->seq_len) * sizeof(int32_t);

    return a->n_rows == b->n_rows && a->seq_len == b->seq_len &&
           memcmp(a->input_ids, b->input_ids, n) == 0 &&
           memcmp(a->labels, b->labels, n) == 0 &&
           memcmp(a->sample_index, b->sample_index,
                  (size_t)a->n_rows * sizeof(int64_t)) == 0;
}

static void step_is_the_same_however_it_is_cut(void)
{
    struct zb_dataset *ds = open_ok(write_ramp("a", 5000, 0), 16, 1);
    struct zb_batch whole, part;

    ZBT_OK(zb_batch_init(&whole, 12, 16));
    ZBT_OK(zb_batch_init(&part, 12, 16));
    for (int64_t step = 1; step < 40; step++) {
        ZBT_OK(zb_dataset_train_batch(ds, step, 12, 0, 12, &whole));
        for (int64_t n_parts = 1; n_parts <= 12; n_parts++) {
            int64_t rows = 12 / n_parts;

            for (int64_t first = 0; first + rows <= 12; first += rows) {
                struct zb_batch view = zb_batch_view(&whole, first, rows);

                ZBT_OK(
                    zb_dataset_train_batch(ds, step, 12, first, rows, &part));
                CU_ASSERT(is_same_rows(&view, &part));
                zb_batch_release(&view);
            }
        }
    }
    zb_batch_release(&part);
    zb_batch_release(&whole);
    zb_dataset_close(ds);
}

static void filling_a_batch_allocates_nothing(void)
{
    struct zb_dataset *ds = open_ok(write_ramp("a", 5000, 0), 16, 1);
    struct zb_batch batch;
    uint64_t before;

    ZBT_OK(zb_batch_init(&batch, 4, 16));
    before = zb_mem_count();
    ZBT_OK(zb_dataset_train_batch(ds, 3, 4, 0, 4, &batch));
    ZBT_OK(zb_dataset_eval_batch(ds, 0, 4, &batch));
    CU_ASSERT_EQUAL(zb_mem_count(), before);
    zb_batch_release(&batch);
    zb_dataset_close(ds);
}

static void evaluation_is_in_file_order_with_ragged_end(void)
{
    struct zb_dataset *ds = open_ok(write_ramp("a", 45, 0), 4, 1);
    struct zb_batch batch;
    int64_t next = 0;

    ZBT_OK(zb_batch_init(&batch, 4, 4));
    CU_ASSERT_EQUAL(zb_dataset_n_samples(ds), 11);
    CU_ASSERT_EQUAL(zb_dataset_n_eval_batches(ds, 4), 3);
    for (int64_t i = 0; i < 3; i++) {
        ZBT_OK(zb_dataset_eval_batch(ds, i, 4, &batch));
        CU_ASSERT_EQUAL(batch.n_rows, i < 2 ? 4 : 3);
        for (int64_t r = 0; r < batch.n_rows; r++, next++) {
            CU_ASSERT_EQUAL(batch.input_ids[4 * r], ramp(4 * next));
            CU_ASSERT_EQUAL(batch.labels[4 * r + 3], ramp(4 * next + 4));
            CU_ASSERT_EQUAL(batch.sample_index[r], next);
        }
    }
    CU_ASSERT_EQUAL(next, 11);
    CU_ASSERT_EQUAL(zb_dataset_eval_batch(ds, 3, 4, &batch), ZB_EINVAL);
    CU_ASSERT_EQUAL(zb_dataset_n_eval_batches(ds, 11), 1);
    CU_ASSERT_EQUAL(zb_dataset_n_eval_batches(ds, 100), 1);
    zb_batch_release(&batch);
    zb_dataset_close(ds);
}

static void numbers_out_of_range_are_refused(void)
{
    struct zb_dataset *ds = open_ok(write_ramp("a", 45, 0), 4, 1);
    struct zb_batch batch, other;

    ZBT_OK(zb_batch_init(&batch, 4, 4));
    ZBT_OK(zb_batch_init(&other, 4, 5));
    CU_ASSERT_EQUAL(zb_dataset_train_batch(ds, 0, 4, 0, 4, &batch), ZB_EINVAL);
    CU_ASSERT_EQUAL(zb_dataset_train_batch(ds, 1, 4, 2, 3, &batch), ZB_EINVAL);
    CU_ASSERT_EQUAL(zb_dataset_train_batch(ds, 1, 4, -1, 3, &batch), ZB_EINVAL);
    CU_ASSERT_EQUAL(zb_dataset_train_batch(ds, 1, 9, 0, 5, &batch), ZB_EINVAL);
    CU_ASSERT_EQUAL(zb_dataset_train_batch(ds, 1, 4, 0, 4, &other), ZB_EINVAL);
    CU_ASSERT_EQUAL(zb_dataset_train_batch(ds, INT64_MAX, 4, 0, 4, &batch),
                    ZB_EINVAL);
    zb_batch_release(&other);
    CU_ASSERT_EQUAL(zb_batch_init(&other, 0, 4), ZB_EINVAL);
    zb_batch_release(&batch);
    zb_dataset_close(ds);
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

static void too_small_set_names_both_numbers(void)
{
    struct zb_dataset *ds;

    CU_ASSERT(open_fails(write_ramp("tiny", 8, 0), 8, "8 tokens", "+ 1 = 9"));
    CU_ASSERT(open_fails(write_ramp("empty", 0, 0), 8, "0 tokens", "+ 1 = 9"));
    ds = open_ok(write_ramp("tiny", 9, 0), 8, 1);
    CU_ASSERT_EQUAL(zb_dataset_n_samples(ds), 1);
    zb_dataset_close(ds);
}

static void files_that_are_no_text_are_refused_by_name(void)
{
    struct zb_dataset_opts opts = {
        .name = "data.train", .seq_len = 2, .format = ZB_DATA_TEXT};
    struct zb_dataset *ds = NULL;
    const char *path = zbt_scratch_path("fifo");

    CU_ASSERT(open_fails("/nonexistent/t.txt", 8, "/nonexistent/t.txt", ""));
    CU_ASSERT(open_fails(zbt_scratch_path("."), 8, "directory", ""));
    CU_ASSERT_EQUAL(mkfifo(path, 0600), 0);
    CU_ASSERT(open_fails(path, 8, "not a regular file", ""));
    path = write_bytes("x.npy", "\x93NUMPY\1\0..", 10);
    CU_ASSERT(open_fails(path, 2, "x.npy", "cut off"));
    ZBT_OK(zb_dataset_open(&path, 1, &opts, &ds));
    zb_dataset_close(ds);
    path = write_bytes("x.gz", "\x1f\x8b\x08\0....", 8);
    CU_ASSERT(open_fails(path, 2, "gzip", "data.format = text"));
    /* llm.c: a header of int32, first 20240520, least byte first. */
    path = write_bytes("x.bin", "\x88\xd8\x34\x01\1\0\0\0", 8);
    CU_ASSERT(open_fails(path, 2, "8 bytes", "x.bin"));
    CU_ASSERT_EQUAL(zb_dataset_open(NULL, 0, &opts, &ds), ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "data.train names no file"));
}

static void ids_of_token_files_are_held_against_the_vocabulary(void)
{
    struct zb_dataset_opts opts = {
        .name = "data.train", .seq_len = 2, .vocab_size = 301};
    const uint16_t ids[] = {300, 5, 0, 7, 301, 2, 3};
    const char *path = write_bytes("x.u16", ids, sizeof(ids));
    struct zb_dataset *ds = NULL;
    int32_t tokens[3];

    ZBT_OK(zb_dataset_open(&path, 1, &opts, &ds));
    CU_ASSERT_EQUAL(zb_dataset_vocab_size(ds), 301);
    CU_ASSERT_EQUAL(zb_dataset_n_samples(ds), 3);
    ZBT_OK(zb_dataset_sample(ds, 0, tokens));
    CU_ASSERT(tokens[0] == 300 && tokens[1] == 5 && tokens[2] == 0);
    CU_ASSERT_EQUAL(zb_dataset_sample(ds, 1, tokens), ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(
        strstr(zb_error_text(), "x.u16: byte 8: token 301 is not in 0 to 300"));
    zb_dataset_close(ds);
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

static void text_and_token_files_are_read_one_after_the_other(void)
{
    struct zb_dataset_opts opts = {
        .name = "data.train", .seq_len = 4, .vocab_size = 1000};
    const uint32_t ids[] = {999, 1, 2};
    char paths[2][128];
    const char *list[2] = {paths[0], paths[1]};
    struct zb_dataset *ds = NULL;
    int32_t tokens[5];

    strcpy(paths[0], write_bytes("a.txt", "AB", 2));
    strcpy(paths[1], write_bytes("a.u32", ids, sizeof(ids)));
    ZBT_OK(zb_dataset_open(list, 2, &opts, &ds));
    CU_ASSERT_EQUAL(zb_dataset_vocab_size(ds), 1000);
    CU_ASSERT_EQUAL(zb_dataset_n_tokens(ds), 5);
    ZBT_OK(zb_dataset_sample(ds, 0, tokens));
    CU_ASSERT(tokens[0] == 'A' && tokens[1] == 'B' && tokens[2] == 999 &&
              tokens[3] == 1 && tokens[4] == 2);
    zb_dataset_close(ds);
}

/* Each file is encoded as a whole: "ab" across two files stays two tokens. */
static void text_becomes_ids_of_a_tokenizer(void)
{
    static const char json[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,"
        "\"ab\":2,\"c\":900},\"merges\":[\"a b\"]}}";
    struct zb_dataset_opts opts = {.name = "data.train", .seq_len = 4};
    struct zb_tokenizer *tok = NULL;
    struct zb_dataset *ds = NULL;
    char paths[3][128];
    const char *list[3] = {paths[0], paths[1], paths[2]};
    int32_t t[5];

    strcpy(paths[0], write_bytes("a.txt", "aba", 3));
    strcpy(paths[1], write_bytes("b.txt", "", 0));
    strcpy(paths[2], write_bytes("c.txt", "bbab", 4));
    ZBT_OK(zb_tokenizer_parse(json, strlen(json), "t.json", &tok));
    opts.tokenizer = tok;
    ZBT_OK(zb_dataset_open(list, 3, &opts, &ds));
    zb_tokenizer_free(tok);
    CU_ASSERT_EQUAL(zb_dataset_n_tokens(ds), 5);
    CU_ASSERT_EQUAL(zb_dataset_vocab_size(ds), 3); /* 900 does not occur */
    ZBT_OK(zb_dataset_sample(ds, 0, t));
    CU_ASSERT(t[0] == 2 && t[1] == 0 && t[2] == 1 && t[3] == 1 && t[4] == 2);
    zb_dataset_close(ds);
    CU_ASSERT_EQUAL(zb_mem_live(), 0);
}

/* Together the replicas of a step take each of its samples once. */
static void replicas_take_parts_without_overlap(void)
{
    struct zb_dataset *ds = open_ok(write_ramp("a", 1000, 0), 3, 1);
    int64_t n = zb_dataset_n_samples(ds);
    struct zb_batch batch;
    int *n_seen = calloc((size_t)n, sizeof(*n_seen));

    ZBT_OK(zb_batch_init(&batch, 9, 3));
    CU_ASSERT_EQUAL_FATAL(n, 333);
    for (int64_t step = 1; step <= 37; step++) { /* 37 * 9 = 333 */
        for (int64_t rank = 0; rank < 3; rank++) {
            ZBT_OK(zb_dataset_train_batch(ds, step, 9, 3 * rank, 3, &batch));
            for (int64_t r = 0; r < 3; r++) {
                n_seen[zb_data_order(7, 0, n, batch.sample_index[r])]++;
            }
        }
    }
    for (int64_t i = 0; i < n; i++) {
        CU_ASSERT_EQUAL(n_seen[i], 1);
    }
    free(n_seen);
    zb_batch_release(&batch);
    zb_dataset_close(ds);
}

static void file_that_became_shorter_is_error_not_crash(void)
{
    const char *path = write_ramp("a", 100000, 0);
    struct zb_dataset *ds = open_ok(path, 8, 1);
    struct zb_batch batch;
    int32_t tokens[9];

    ZBT_OK(zb_batch_init(&batch, 4, 8));
    CU_ASSERT_EQUAL(truncate(path, 50), 0);
    CU_ASSERT_EQUAL(zb_dataset_sample(ds, 12000, tokens), ZB_EIO);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "50 bytes now, 100000"));
    CU_ASSERT_EQUAL(zb_dataset_train_batch(ds, 1, 4, 0, 4, &batch), ZB_EIO);
    CU_ASSERT_EQUAL(zb_dataset_eval_batch(ds, 0, 4, &batch), ZB_EIO);
    zb_batch_release(&batch);
    zb_dataset_close(ds);
}

static void failing_allocation_leaves_nothing(void)
{
    const char *path = write_ramp("a", 100, 0);
    struct zb_dataset_opts opts = {.name = "data.train", .seq_len = 2};
    int64_t before = zb_mem_live();
    uint64_t k;

    for (k = 1;; k++) {
        struct zb_dataset *ds = NULL;
        struct zb_batch batch = {0};
        enum zb_status st;
        int failed;

        zb_mem_fail_at(k);
        st = zb_dataset_open(&path, 1, &opts, &ds);
        if (st == ZB_OK) {
            st = zb_batch_init(&batch, 3, 2);
        }
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        CU_ASSERT_EQUAL(st, failed ? ZB_ENOMEM : ZB_OK);
        zb_batch_release(&batch);
        zb_dataset_close(ds);
        CU_ASSERT_EQUAL(zb_mem_live(), before);
        if (!failed) {
            break;
        }
    }
    CU_ASSERT_EQUAL(k, 12); /* set, files, file, path, seven arrays */
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(rows_of_arrays_have_shifted_labels_of_decoders),
        ZBT_CASE(arrays_that_do_not_fit_are_refused_by_name),
        ZBT_CASE(order_is_permutation_of_each_epoch),
        ZBT_CASE(order_of_huge_set_stays_in_range),
        ZBT_CASE(order_spreads_evenly_over_seeds_and_epochs),
        ZBT_CASE(orders_of_seeds_and_epochs_differ),
        ZBT_CASE(order_is_the_documented_one),
        ZBT_CASE(samples_follow_with_one_token_shared),
        ZBT_CASE(files_are_read_one_after_the_other),
        ZBT_CASE(epoch_takes_every_sample_once),
        ZBT_CASE(step_is_the_same_however_it_is_cut),
        ZBT_CASE(filling_a_batch_allocates_nothing),
        ZBT_CASE(evaluation_is_in_file_order_with_ragged_end),
        ZBT_CASE(numbers_out_of_range_are_refused),
        ZBT_CASE(too_small_set_names_both_numbers),
        ZBT_CASE(files_that_are_no_text_are_refused_by_name),
        ZBT_CASE(ids_of_token_files_are_held_against_the_vocabulary),
        ZBT_CASE(text_and_token_files_are_read_one_after_the_other),
        ZBT_CASE(text_becomes_ids_of_a_tokenizer),
        ZBT_CASE(replicas_take_parts_without_overlap),
        ZBT_CASE(file_that_became_shorter_is_error_not_crash),
        ZBT_CASE(failing_allocation_leaves_nothing),
    };

    return zbt_run("data", cases, ZB_COUNT_OF(cases));
}
