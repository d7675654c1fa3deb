/* SPDX-License-Identifier: MIT
 *
 * Array data: a field of the batch is a .npy file with a row for each sample.
 */
#include "config.h"
#include "data/data_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "zb/mem.h"

struct zb_arrays {
    struct zb_npy *field[ZB_N_FIELDS]; /* NULL: not there */
    char *path[ZB_N_FIELDS];
    int64_t limit[ZB_N_FIELDS]; /* values are below it */
    int64_t n_rows, seq_len;
    int is_causal, labels_per_row, has_next_sentence;
};

const char *zb_field_name(enum zb_field field)
{
    static const char *const name[] = {
        [ZB_FIELD_INPUT_IDS] = "input_ids",
        [ZB_FIELD_ATTENTION_MASK] = "attention_mask",
        [ZB_FIELD_TOKEN_TYPE_IDS] = "token_type_ids",
        [ZB_FIELD_LABELS] = "labels",
        [ZB_FIELD_NEXT_SENTENCE_LABEL] = "next_sentence_label",
    };

    return name[field];
}

/* ---- files --------------------------------------------------------------- */

enum zb_status zb_field_files_in(const char *dir, struct zb_field_files *out)
{
    memset(out, 0, sizeof(*out));
    for (int i = 0; i < ZB_N_FIELDS; i++) {
        char *path =
            zb_format("%s/%s.npy", dir, zb_field_name((enum zb_field)i));

        if (path == NULL) {
            zb_field_files_release(out);
            return ZB_ENOMEM;
        }
        if (access(path, F_OK) == 0) {
            out->path[i] = path;
        } else {
            zb_free(path);
        }
    }
    return ZB_OK;
}

void zb_field_files_release(struct zb_field_files *files)
{
    for (int i = 0; i < ZB_N_FIELDS; i++) {
        zb_free(files->path[i]);
        files->path[i] = NULL;
    }
}

/* Dimensions of a field of rows of `seq` tokens. */
static enum zb_status check_shape(const char *path,
                                  const struct zb_npy_info *info, int per_row)
{
    if (info->kind == 'f') {
        return zb_fail(ZB_ECONFIG,
                       "%s: has floating point numbers, not whole ones", path);
    }
    if (info->n_dims != (per_row ? 1 : 2)) {
        return zb_fail(ZB_ECONFIG, "%s: has %d dimensions, not %s", path,
                       info->n_dims,
                       per_row ? "1: [rows]" : "2: [rows, tokens]");
    }
    if (info->is_fortran && info->n_dims > 1) {
        return zb_fail(ZB_ECONFIG,
                       "%s: its first dimension is the fastest "
                       "(fortran_order), which is not supported",
                       path);
    }
    return ZB_OK;
}

enum zb_status zb_field_files_seq_len(const struct zb_field_files *files,
                                      int64_t *seq_len_out)
{
    const char *path = files->path[ZB_FIELD_INPUT_IDS];
    struct zb_npy *a;
    enum zb_status st;

    if (path == NULL) {
        return zb_fail(ZB_ECONFIG, "array data needs input_ids");
    }
    ZB_TRY(zb_npy_open(path, &a));
    st = check_shape(path, zb_npy_info(a), 0);
    if (st == ZB_OK) {
        *seq_len_out = zb_npy_info(a)->dim[1];
    }
    zb_npy_close(a);
    return st;
}

/* ---- opening ------------------------------------------------------------- */

/* Whether a field has one number for each row. */
static int is_per_row(const struct zb_arrays *a, int i)
{
    return (i == ZB_FIELD_LABELS && a->labels_per_row) ||
           i == ZB_FIELD_NEXT_SENTENCE_LABEL;
}

static enum zb_status open_field(struct zb_arrays *a, int i, const char *path)
{
    const struct zb_npy_info *info;
    int per_row = is_per_row(a, i);

    a->path[i] = zb_strdup(path);
    if (a->path[i] == NULL) {
        return ZB_ENOMEM;
    }
    ZB_TRY(zb_npy_open(path, &a->field[i]));
    info = zb_npy_info(a->field[i]);
    ZB_TRY(check_shape(path, info, per_row));
    if (i == ZB_FIELD_INPUT_IDS) {
        a->n_rows = info->dim[0];
    }
    if (info->dim[0] != a->n_rows) {
        return zb_fail(ZB_ECONFIG,
                       "%s: has %" PRId64 " rows, but input_ids has %" PRId64,
                       path, info->dim[0], a->n_rows);
    }
    if (!per_row && info->dim[1] != a->seq_len) {
        return zb_fail(ZB_ECONFIG,
                       "%s: has rows of %" PRId64 " tokens, not %" PRId64, path,
                       info->dim[1], a->seq_len);
    }
    return ZB_OK;
}

static enum zb_status open_fields(struct zb_arrays *a,
                                  const struct zb_field_files *files)
{
    const int is_needed[ZB_N_FIELDS] = {
        [ZB_FIELD_INPUT_IDS] = 1,
        [ZB_FIELD_LABELS] = !a->is_causal || a->labels_per_row,
        [ZB_FIELD_NEXT_SENTENCE_LABEL] = a->has_next_sentence,
    };

    for (int i = 0; i < ZB_N_FIELDS; i++) {
        if (files->path[i] != NULL) {
            ZB_TRY(open_field(a, i, files->path[i]));
        } else if (is_needed[i]) {
            return zb_fail(ZB_ECONFIG, "array data of this model needs %s",
                           zb_field_name((enum zb_field)i));
        }
    }
    return a->n_rows > 0 ? ZB_OK
                         : zb_fail(ZB_ECONFIG, "%s: has no rows",
                                   files->path[ZB_FIELD_INPUT_IDS]);
}

enum zb_status zb_arrays_open(const struct zb_field_files *files,
                              const struct zb_dataset_opts *opts,
                              struct zb_arrays **a_out)
{
    struct zb_arrays *a = zb_alloc(sizeof(*a));
    enum zb_status st;

    if (a == NULL) {
        return ZB_ENOMEM;
    }
    a->seq_len = opts->seq_len;
    a->is_causal = !opts->sees_all;
    a->labels_per_row = opts->labels_per_row;
    a->has_next_sentence = opts->has_next_sentence;
    a->limit[ZB_FIELD_INPUT_IDS] = opts->vocab_size;
    a->limit[ZB_FIELD_TOKEN_TYPE_IDS] = opts->n_token_types;
    a->limit[ZB_FIELD_LABELS] = opts->n_labels;
    a->limit[ZB_FIELD_NEXT_SENTENCE_LABEL] = 2;
    st = open_fields(a, files);
    if (st != ZB_OK) {
        zb_arrays_close(a);
        return zb_fail_in(st, "%s", opts->name);
    }
    *a_out = a;
    return ZB_OK;
}

void zb_arrays_close(struct zb_arrays *a)
{
    if (a == NULL) {
        return;
    }
    for (int i = 0; i < ZB_N_FIELDS; i++) {
        zb_npy_close(a->field[i]);
        zb_free(a->path[i]);
    }
    zb_free(a);
}

int64_t zb_arrays_n_rows(const struct zb_arrays *a)
{
    return a->n_rows;
}

/* ---- reading ------------------------------------------------------------- */

static enum zb_status check_value(const struct zb_arrays *a, int i,
                                  int64_t sample, int64_t at, int32_t v)
{
    if ((v >= 0 && (a->limit[i] == 0 || v < a->limit[i])) ||
        (i >= ZB_FIELD_LABELS && v == ZB_LABEL_IGNORE)) {
        return ZB_OK;
    }
    if (a->limit[i] == 0) {
        return zb_fail(ZB_ECONFIG,
                       "%s: row %" PRId64 ", %" PRId64 ": %d is negative",
                       a->path[i], sample, at, v);
    }
    return zb_fail(ZB_ECONFIG,
                   "%s: row %" PRId64 ", %" PRId64 ": %d is not below %" PRId64
                   ", which the model has",
                   a->path[i], sample, at, v, a->limit[i]);
}

/* A row of a field, or `missing` where there is no such field. */
static enum zb_status read_row(const struct zb_arrays *a, enum zb_field i,
                               int64_t sample, int64_t len, int32_t missing,
                               int32_t *out)
{
    if (a->field[i] == NULL) {
        for (int64_t t = 0; t < len; t++) {
            out[t] = missing;
        }
        return ZB_OK;
    }
    ZB_TRY(zb_npy_read_i32(a->field[i], sample * len, len, out));
    for (int64_t t = 0; t < len; t++) {
        ZB_TRY(check_value(a, (int)i, sample, t, out[t]));
    }
    return ZB_OK;
}

/* Without labels a model that predicts the next token has those of its input
 * that the mask shows. */
static void own_labels(const int32_t *ids, const int32_t *mask, int64_t n,
                       int32_t *labels)
{
    for (int64_t t = 0; t < n; t++) {
        labels[t] = mask[t] != 0 ? ids[t] : ZB_LABEL_IGNORE;
    }
}

/* As in the reference: position t is scored against label t + 1. */
static void shift(int32_t *labels, int64_t n)
{
    memmove(labels, labels + 1, (size_t)(n - 1) * sizeof(*labels));
    labels[n - 1] = ZB_LABEL_IGNORE;
}

enum zb_status zb_arrays_row(const struct zb_arrays *a, int64_t sample,
                             int64_t row, struct zb_batch *batch)
{
    int64_t n = a->seq_len;
    int64_t n_labels = a->labels_per_row ? 1 : n;
    int32_t *ids = batch->input_ids + row * n;
    int32_t *mask = batch->attention_mask + row * n;
    int32_t *labels = batch->labels + row * n_labels;

    batch->label_len = n_labels;
    ZB_TRY(read_row(a, ZB_FIELD_INPUT_IDS, sample, n, 0, ids));
    ZB_TRY(read_row(a, ZB_FIELD_ATTENTION_MASK, sample, n, 1, mask));
    ZB_TRY(read_row(a, ZB_FIELD_TOKEN_TYPE_IDS, sample, n, 0,
                    batch->token_type_ids + row * n));
    ZB_TRY(read_row(a, ZB_FIELD_NEXT_SENTENCE_LABEL, sample, 1, 0,
                    batch->next_sentence_label + row));
    ZB_TRY(read_row(a, ZB_FIELD_LABELS, sample, n_labels, 0, labels));
    if (a->field[ZB_FIELD_LABELS] == NULL) {
        own_labels(ids, mask, n, labels);
    }
    if (a->is_causal && !a->labels_per_row) {
        shift(labels, n);
    }
    return ZB_OK;
}
