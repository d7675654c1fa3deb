/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "data/data_int.h"

#include <inttypes.h>
#include <string.h>

#include "zb/hash.h"
#include "zb/mem.h"

/* One file. */
struct part {
    struct zb_tokens *file;
    struct zb_encoded text; /* instead of the file's own tokens */
    int64_t n_tokens;
};

struct zb_dataset {
    struct zb_arrays *arrays; /* NULL: tokens of files */
    size_t n_files;
    struct part *files;
    int64_t id_limit; /* ids read are below this */
    int64_t n_tokens;
    int64_t n_samples;
    int64_t seq_len;
    uint64_t seed;
    int shuffle;
};

/* The limit of the ids of one file. Numbers in files are checked against the
 * vocabulary when they are read; text is known beforehand. */
static int64_t part_limit(const struct part *p,
                          const struct zb_dataset_opts *opts)
{
    struct zb_tokens_info info = zb_tokens_info(p->file);

    if (p->text.ids != NULL) {
        return p->text.id_limit;
    }
    return !info.is_text && opts->vocab_size > 0 &&
                   opts->vocab_size < info.id_limit
               ? opts->vocab_size
               : info.id_limit;
}

static enum zb_status file_add(struct zb_dataset *ds, const char *path,
                               const struct zb_dataset_opts *opts)
{
    struct part *p = &ds->files[ds->n_files];
    int64_t limit;

    ZB_TRY(zb_tokens_open(path, opts->format, &p->file));
    ds->n_files++;
    p->n_tokens = zb_tokens_info(p->file).n_tokens;
    if (zb_tokens_info(p->file).is_text && opts->tokenizer != NULL) {
        ZB_TRY(zb_encoded_read(p->file, opts->tokenizer, &p->text));
        p->n_tokens = p->text.n;
    }
    if (p->n_tokens > INT64_MAX - ds->n_tokens) {
        return zb_fail(ZB_ECONFIG, "%s: too many tokens", path);
    }
    ds->n_tokens += p->n_tokens;
    limit = part_limit(p, opts);
    if (limit > ds->id_limit) {
        ds->id_limit = limit;
    }
    return ZB_OK;
}

static enum zb_status files_open(struct zb_dataset *ds,
                                 const char *const *paths, size_t n_paths,
                                 const struct zb_dataset_opts *opts)
{
    ds->files = zb_alloc_array(n_paths, sizeof(*ds->files));
    if (ds->files == NULL) {
        return ZB_ENOMEM;
    }
    for (size_t i = 0; i < n_paths; i++) {
        enum zb_status st = file_add(ds, paths[i], opts);

        if (st != ZB_OK) {
            return zb_fail_in(st, "%s", opts->name);
        }
    }
    return ZB_OK;
}

static enum zb_status dataset_init(struct zb_dataset *ds,
                                   const char *const *paths, size_t n_paths,
                                   const struct zb_dataset_opts *opts)
{
    ZB_TRY(files_open(ds, paths, n_paths, opts));
    ds->n_samples = ds->n_tokens > 0 ? (ds->n_tokens - 1) / ds->seq_len : 0;
    if (ds->n_samples == 0) {
        return zb_fail(ZB_ECONFIG,
                       "%s: %s%s: %" PRId64 " tokens are fewer than one sample "
                       "of data.seq_len + 1 = %" PRId64,
                       opts->name, paths[0], n_paths > 1 ? " and more" : "",
                       ds->n_tokens, ds->seq_len + 1);
    }
    return ZB_OK;
}

static enum zb_status dataset_new(const struct zb_dataset_opts *opts,
                                  struct zb_dataset **ds_out)
{
    struct zb_dataset *ds;

    if (opts->seq_len < 1 || opts->seq_len >= INT32_MAX) {
        return zb_fail(ZB_EINVAL, "%s: seq_len = %" PRId64, opts->name,
                       opts->seq_len);
    }
    ds = zb_alloc(sizeof(*ds));
    if (ds == NULL) {
        return ZB_ENOMEM;
    }
    ds->seq_len = opts->seq_len;
    ds->seed = opts->seed;
    ds->shuffle = opts->shuffle;
    *ds_out = ds;
    return ZB_OK;
}

enum zb_status zb_dataset_open(const char *const *paths, size_t n_paths,
                               const struct zb_dataset_opts *opts,
                               struct zb_dataset **ds_out)
{
    struct zb_dataset *ds = NULL;
    enum zb_status st;

    if (n_paths == 0) {
        return zb_fail(ZB_ECONFIG, "%s names no file", opts->name);
    }
    ZB_TRY(dataset_new(opts, &ds));
    st = dataset_init(ds, paths, n_paths, opts);
    if (st != ZB_OK) {
        zb_dataset_close(ds);
        return st;
    }
    *ds_out = ds;
    return ZB_OK;
}

enum zb_status zb_dataset_open_arrays(const struct zb_field_files *files,
                                      const struct zb_dataset_opts *opts,
                                      struct zb_dataset **ds_out)
{
    struct zb_dataset *ds = NULL;
    enum zb_status st;

    ZB_TRY(dataset_new(opts, &ds));
    st = zb_arrays_open(files, opts, &ds->arrays);
    if (st != ZB_OK) {
        zb_dataset_close(ds);
        return st;
    }
    ds->n_samples = zb_arrays_n_rows(ds->arrays);
    ds->n_tokens = ds->n_samples * ds->seq_len;
    ds->id_limit = opts->vocab_size;
    *ds_out = ds;
    return ZB_OK;
}

void zb_dataset_close(struct zb_dataset *ds)
{
    if (ds == NULL) {
        return;
    }
    for (size_t i = 0; i < ds->n_files; i++) {
        zb_tokens_close(ds->files[i].file);
        zb_free(ds->files[i].text.ids);
    }
    zb_arrays_close(ds->arrays);
    zb_free(ds->files);
    zb_free(ds);
}

int64_t zb_dataset_n_tokens(const struct zb_dataset *ds)
{
    return ds->n_tokens;
}

int64_t zb_dataset_n_samples(const struct zb_dataset *ds)
{
    return ds->n_samples;
}

int64_t zb_dataset_seq_len(const struct zb_dataset *ds)
{
    return ds->seq_len;
}

int64_t zb_dataset_vocab_size(const struct zb_dataset *ds)
{
    return ds->id_limit;
}

static enum zb_status files_check(const struct zb_dataset *ds)
{
    for (size_t i = 0; i < ds->n_files; i++) {
        if (ds->files[i].text.ids == NULL) {
            ZB_TRY(zb_tokens_check(ds->files[i].file));
        }
    }
    return ZB_OK;
}

static enum zb_status part_get(const struct part *p, int64_t first, int64_t n,
                               int64_t limit, int32_t *tokens_out)
{
    if (p->text.ids == NULL) {
        return zb_tokens_read(p->file, first, n, limit, tokens_out);
    }
    memcpy(tokens_out, p->text.ids + first, (size_t)n * sizeof(*tokens_out));
    return ZB_OK;
}

/* Tokens first .. first + n - 1 of all files together. */
static enum zb_status tokens_get(const struct zb_dataset *ds, int64_t first,
                                 int64_t n, int32_t *tokens_out)
{
    for (size_t i = 0; i < ds->n_files && n > 0; i++) {
        const struct part *p = &ds->files[i];

        if (first < p->n_tokens) {
            int64_t n_part = n < p->n_tokens - first ? n : p->n_tokens - first;

            ZB_TRY(part_get(p, first, n_part, ds->id_limit, tokens_out));
            tokens_out += n_part;
            n -= n_part;
            first += n_part;
        }
        first -= p->n_tokens;
    }
    return ZB_OK;
}

enum zb_status zb_dataset_sample(const struct zb_dataset *ds, int64_t index,
                                 int32_t *tokens_out)
{
    if (ds->arrays != NULL) {
        return zb_fail(ZB_EINVAL, "array data has no sample of tokens");
    }
    if (index < 0 || index >= ds->n_samples) {
        return zb_fail(ZB_EINVAL, "sample %" PRId64 " of %" PRId64, index,
                       ds->n_samples);
    }
    ZB_TRY(files_check(ds));
    return tokens_get(ds, index * ds->seq_len, ds->seq_len + 1, tokens_out);
}

int64_t zb_data_order(uint64_t seed, uint64_t epoch, int64_t n, int64_t i)
{
    uint64_t key = zb_mix(zb_mix(seed) ^ epoch);
    uint64_t x = (uint64_t)i, mask;
    int half_bits = 1;

    while (((uint64_t)(n - 1) >> half_bits) >> half_bits != 0) {
        half_bits++;
    }
    mask = ((uint64_t)1 << half_bits) - 1;
    do {
        uint64_t left = x >> half_bits, right = x & mask;

        for (uint64_t round = 0; round < 8; round++) {
            uint64_t next =
                left ^ (zb_mix(key ^ zb_mix(round << 56 | right)) & mask);

            left = right;
            right = next;
        }
        x = left << half_bits | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

enum zb_status zb_batch_init(struct zb_batch *batch, int64_t max_rows,
                             int64_t seq_len)
{
    size_t n = (size_t)max_rows, per_row = (size_t)seq_len * sizeof(int32_t);

    memset(batch, 0, sizeof(*batch));
    if (max_rows < 1 || seq_len < 1 || seq_len > INT32_MAX) {
        return zb_fail(ZB_EINVAL, "a batch of %" PRId64 " x %" PRId64, max_rows,
                       seq_len);
    }
    batch->input_ids = zb_alloc_array(n, per_row);
    batch->labels = zb_alloc_array(n, per_row);
    batch->attention_mask = zb_alloc_array(n, per_row);
    batch->token_type_ids = zb_alloc_array(n, per_row);
    batch->position_ids = zb_alloc_array(n, per_row);
    batch->next_sentence_label =
        zb_alloc_array(n, sizeof(*batch->next_sentence_label));
    batch->sample_index = zb_alloc_array(n, sizeof(*batch->sample_index));
    batch->seq_len = seq_len;
    batch->label_len = seq_len;
    batch->max_rows = max_rows;
    if (batch->input_ids == NULL || batch->labels == NULL ||
        batch->attention_mask == NULL || batch->token_type_ids == NULL ||
        batch->position_ids == NULL || batch->next_sentence_label == NULL ||
        batch->sample_index == NULL) {
        zb_batch_release(batch);
        return ZB_ENOMEM;
    }
    for (int64_t i = 0; i < max_rows * seq_len; i++) {
        batch->attention_mask[i] = 1;
    }
    return ZB_OK;
}

void zb_batch_release(struct zb_batch *batch)
{
    if (batch->max_rows > 0) {
        zb_free(batch->input_ids);
        zb_free(batch->labels);
        zb_free(batch->attention_mask);
        zb_free(batch->token_type_ids);
        zb_free(batch->position_ids);
        zb_free(batch->next_sentence_label);
        zb_free(batch->sample_index);
    }
    memset(batch, 0, sizeof(*batch));
}

struct zb_batch zb_batch_view(const struct zb_batch *batch, int64_t first,
                              int64_t n_rows)
{
    struct zb_batch view = *batch;

    ZB_BUG_IF(first < 0 || n_rows < 0 || first + n_rows > batch->n_rows,
              "rows %" PRId64 " + %" PRId64 " of %" PRId64, first, n_rows,
              batch->n_rows);
    view.n_rows = n_rows;
    view.input_ids += first * batch->seq_len;
    view.labels += first * batch->label_len;
    view.attention_mask += first * batch->seq_len;
    view.token_type_ids += first * batch->seq_len;
    view.position_ids += first * batch->seq_len;
    view.next_sentence_label += first;
    view.sample_index += first;
    view.max_rows = 0;
    return view;
}

int64_t zb_batch_n_targets(const struct zb_batch *batch)
{
    int64_t n = 0;

    for (int64_t i = 0; i < batch->n_rows * batch->label_len; i++) {
        n += batch->labels[i] != ZB_LABEL_IGNORE;
    }
    return n;
}

static enum zb_status batch_check(const struct zb_dataset *ds, int64_t n_rows,
                                  const struct zb_batch *batch)
{
    if (batch->max_rows < n_rows || batch->seq_len != ds->seq_len) {
        return zb_fail(ZB_EINVAL,
                       "a batch of %" PRId64 " x %" PRId64
                       " does not hold %" PRId64 " x %" PRId64,
                       batch->max_rows, batch->seq_len, n_rows, ds->seq_len);
    }
    return files_check(ds);
}

static enum zb_status row_fill(const struct zb_dataset *ds, int64_t sample,
                               int64_t place, int64_t row,
                               struct zb_batch *batch)
{
    int64_t first = sample * ds->seq_len;

    batch->sample_index[row] = place;
    if (ds->arrays != NULL) {
        return zb_arrays_row(ds->arrays, sample, row, batch);
    }
    ZB_TRY(tokens_get(ds, first, ds->seq_len,
                      batch->input_ids + row * ds->seq_len));
    return tokens_get(ds, first + 1, ds->seq_len,
                      batch->labels + row * ds->seq_len);
}

enum zb_status zb_dataset_train_batch(const struct zb_dataset *ds, int64_t step,
                                      int64_t step_rows, int64_t first_row,
                                      int64_t n_rows, struct zb_batch *batch)
{
    int64_t place;

    if (step < 1 || step_rows < 1 || first_row < 0 || n_rows < 0 ||
        first_row > step_rows || n_rows > step_rows - first_row ||
        __builtin_mul_overflow(step, step_rows, &place)) {
        return zb_fail(ZB_EINVAL,
                       "rows %" PRId64 " + %" PRId64 " of %" PRId64
                       " in step %" PRId64,
                       first_row, n_rows, step_rows, step);
    }
    return zb_dataset_batch_at(ds, place - (step_rows - first_row), n_rows,
                               batch);
}

enum zb_status zb_dataset_batch_at(const struct zb_dataset *ds, int64_t place,
                                   int64_t n_rows, struct zb_batch *batch)
{
    if (place < 0 || n_rows < 0 || n_rows > INT64_MAX - place) {
        return zb_fail(ZB_EINVAL, "%" PRId64 " rows from place %" PRId64,
                       n_rows, place);
    }
    ZB_TRY(batch_check(ds, n_rows, batch));
    for (int64_t row = 0; row < n_rows; row++, place++) {
        int64_t i = place % ds->n_samples;
        uint64_t epoch = (uint64_t)(place / ds->n_samples);

        if (ds->shuffle) {
            i = zb_data_order(ds->seed, epoch, ds->n_samples, i);
        }
        ZB_TRY(row_fill(ds, i, place, row, batch));
    }
    batch->n_rows = n_rows;
    return ZB_OK;
}

int64_t zb_dataset_n_eval_batches(const struct zb_dataset *ds, int64_t rows)
{
    return rows < 1 ? 0 : (ds->n_samples - 1) / rows + 1;
}

enum zb_status zb_dataset_eval_batch(const struct zb_dataset *ds, int64_t index,
                                     int64_t rows, struct zb_batch *batch)
{
    int64_t first, n;

    if (index < 0 || index >= zb_dataset_n_eval_batches(ds, rows)) {
        return zb_fail(ZB_EINVAL, "batch %" PRId64 " of %" PRId64, index,
                       zb_dataset_n_eval_batches(ds, rows));
    }
    first = index * rows;
    n = ds->n_samples - first < rows ? ds->n_samples - first : rows;
    ZB_TRY(batch_check(ds, n, batch));
    for (int64_t row = 0; row < n; row++) {
        ZB_TRY(row_fill(ds, first + row, first + row, row, batch));
    }
    batch->n_rows = n;
    return ZB_OK;
}
