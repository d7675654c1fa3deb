/* SPDX-License-Identifier: MIT
 *
 * Data sets and batches.
 *
 * A data set is a row of tokens: those of one or more files (zb/tokens.h), one
 * after the other, mapped and never copied as a whole; of text, its bytes or a
 * tokenizer's ids. Sample i is the seq_len + 1 tokens from i * seq_len on:
 * seq_len inputs and, one further, seq_len targets. Neighbours share one token,
 * which is the last target of one and the first input of the other, so that
 * every token but the first is a target once; up to seq_len - 1 tokens at the
 * end are left over.
 *
 *     struct zb_dataset_opts opts = { .name = "data.train", .seq_len = 256,
 *                                     .seed = 1, .shuffle = 1 };
 *     ZB_TRY(zb_dataset_open(paths, n_paths, &opts, &ds));
 *     ZB_TRY(zb_batch_init(&batch, 8, 256));
 *     for (step = 1; step <= n_steps; step++) {
 *         ZB_TRY(zb_dataset_train_batch(ds, step, 8, 0, 8, &batch));
 *     }
 *
 * Array data instead has files with a row for each sample (zb_field_files): its
 * fields are those that Hugging Face's models take, of the same names. Labels
 * are given unshifted.
 *
 * Order. All epochs in a row are one endless list of samples: place g holds
 * sample zb_data_order(seed, g / n, n, g % n) of the n there are, or g % n
 * without shuffling. Step t (from 1) of B samples takes places (t-1)B .. tB-1;
 * which device computes which of them changes nothing.
 *
 * Threads: an open data set is read-only; any thread may use it. A batch
 * belongs to who fills it.
 */
#ifndef ZB_DATA_H
#define ZB_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "zb/status.h"
#include "zb/tokens.h"

/* A label that is no target. */
#define ZB_LABEL_IGNORE (-100)

/* Tokens of the byte tokenizer. */
#define ZB_BYTE_VOCAB 256

struct zb_tokenizer; /* zb/tokenizer.h */

struct zb_dataset_opts {
    const char *name; /* for messages: "data.train" */
    enum zb_data_format format;
    int64_t seq_len; /* >= 1 */
    uint64_t seed;
    int shuffle; /* 0: train batches in file order */
    /* Ids of token files must be below it, which is checked when they are read;
     * 0: any id is good. */
    int64_t vocab_size;
    /* Text becomes its ids, in memory; NULL: its bytes. Borrowed for the call.
     */
    const struct zb_tokenizer *tokenizer;
    /* Array data only: */
    int sees_all;       /* 1: labels belong to the tokens themselves; 0: to the
                           ones before them */
    int labels_per_row; /* 1: labels [rows], one for each sample */
    int has_next_sentence; /* 1: next_sentence_label is needed: 0 or 1 */
    int64_t n_labels, n_token_types; /* values must be below; 0: any is good */
};

struct zb_dataset;

/* ---- array data ---------------------------------------------------------- */

enum zb_field {
    ZB_FIELD_INPUT_IDS,
    ZB_FIELD_ATTENTION_MASK, /* not there: all tokens are shown */
    ZB_FIELD_TOKEN_TYPE_IDS, /* not there: all are 0 */
    ZB_FIELD_LABELS, /* not there: a model that predicts the next token has
                        those tokens as labels that the mask shows */
    ZB_FIELD_NEXT_SENTENCE_LABEL, /* [rows] */
    ZB_N_FIELDS
};

/* "input_ids", ... */
const char *zb_field_name(enum zb_field field);

/* The .npy files of a data set, of whole numbers [rows, seq_len]; NULL: there
 * is none. Owns the paths. */
struct zb_field_files {
    char *path[ZB_N_FIELDS];
};

/* Those of the name FIELD.npy in a folder. */
enum zb_status zb_field_files_in(const char *dir,
                                 struct zb_field_files *out) ZB_CHECKED;
void zb_field_files_release(struct zb_field_files *files);
/* How long the rows of input_ids are. ZB_ECONFIG as below. */
enum zb_status zb_field_files_seq_len(const struct zb_field_files *files,
                                      int64_t *seq_len_out) ZB_CHECKED;

/* As zb_dataset_open(). ZB_ECONFIG, naming the file, for one that is missing,
 * no array of whole numbers, or not of the shape of the others. */
enum zb_status zb_dataset_open_arrays(const struct zb_field_files *files,
                                      const struct zb_dataset_opts *opts,
                                      struct zb_dataset **ds_out) ZB_CHECKED;

/* ---- all data ------------------------------------------------------------ */

/* Map the files. ZB_ECONFIG, naming the file or the two numbers that do not
 * fit, when there is none, zb_tokens_open() refuses one, or all together hold
 * fewer than seq_len + 1 tokens. Nothing of the arguments is kept. Close with
 * zb_dataset_close(). */
enum zb_status zb_dataset_open(const char *const *paths, size_t n_paths,
                               const struct zb_dataset_opts *opts,
                               struct zb_dataset **ds_out) ZB_CHECKED;

/* Unmap and release; NULL is legal. */
void zb_dataset_close(struct zb_dataset *ds);

int64_t zb_dataset_n_tokens(const struct zb_dataset *ds);
int64_t zb_dataset_n_samples(const struct zb_dataset *ds);
int64_t zb_dataset_seq_len(const struct zb_dataset *ds);
/* All ids that are read are below this. */
int64_t zb_dataset_vocab_size(const struct zb_dataset *ds);

/* Sample `index` of the file order: tokens_out [seq_len + 1]. ZB_EINVAL when
 * there is no such sample, or no such data set of tokens; ZB_EIO when a file
 * became shorter since it was mapped; ZB_ECONFIG, naming file and byte, for an
 * id outside the vocabulary.
 */
enum zb_status zb_dataset_sample(const struct zb_dataset *ds, int64_t index,
                                 int32_t *tokens_out) ZB_CHECKED;

/* The i-th sample of an epoch, 0 <= i < n: a permutation of 0..n-1 for each
 * (seed, epoch), computed in place without memory. n >= 1.
 *
 * It is a Feistel network of 8 rounds on the least even number of bits that
 * holds n - 1 (at least 2), its round function splitmix64 keyed by seed, epoch
 * and round; a result >= n goes through again (cycle walking). */
int64_t zb_data_order(uint64_t seed, uint64_t epoch, int64_t n, int64_t i);

/* Rows of tokens with their targets. Rows are dense, in order. */
struct zb_batch {
    int64_t n_rows; /* rows in use */
    int64_t seq_len;
    int32_t *input_ids; /* [n_rows, seq_len] */
    /* [n_rows, seq_len]; labels[r][t] is the target at position t itself (not
     * to be shifted any more), or ZB_LABEL_IGNORE. All valid for text. */
    int32_t *labels;
    int64_t label_len; /* of a row of labels: seq_len, or 1 */
    /* [n_rows, seq_len]; without such fields ones, and zeros. */
    int32_t *attention_mask, *token_type_ids;
    int32_t *next_sentence_label; /* [n_rows] */
    int32_t *position_ids; /* room for what the caller makes of the mask */
    /* [n_rows]; the place g of the row in the endless list above, for random
     * numbers that do not depend on the layout: unique over a run. */
    int64_t *sample_index;
    int64_t max_rows; /* room in the arrays; 0: a view, which owns nothing */
};

/* Room for max_rows rows; the batch is empty. Owns its arrays. */
enum zb_status zb_batch_init(struct zb_batch *batch, int64_t max_rows,
                             int64_t seq_len) ZB_CHECKED;

/* Release the arrays (of a view: nothing) and clear the struct. */
void zb_batch_release(struct zb_batch *batch);

/* Rows first .. first + n_rows - 1 of `batch` as a batch that owns nothing and
 * must not outlive it: a microbatch, or one device's part. */
struct zb_batch zb_batch_view(const struct zb_batch *batch, int64_t first,
                              int64_t n_rows);

/* How many labels are targets. */
int64_t zb_batch_n_targets(const struct zb_batch *batch);

/* Fill `batch` with n_rows rows of step `step` (from 1), from its row
 * first_row on, of a step of `step_rows` rows in all. ZB_EINVAL for numbers out
 * of range or a batch that is too small or of another seq_len; ZB_EIO and
 * ZB_ECONFIG as zb_dataset_sample(). Allocates nothing. */
enum zb_status zb_dataset_train_batch(const struct zb_dataset *ds, int64_t step,
                                      int64_t step_rows, int64_t first_row,
                                      int64_t n_rows,
                                      struct zb_batch *batch) ZB_CHECKED;

/* The same for the n_rows places from `place` on, whatever a step's size. */
enum zb_status zb_dataset_batch_at(const struct zb_dataset *ds, int64_t place,
                                   int64_t n_rows,
                                   struct zb_batch *batch) ZB_CHECKED;

/* Evaluation: all samples in file order, `rows` at a time; the last batch has
 * what is left. Errors as above. */
int64_t zb_dataset_n_eval_batches(const struct zb_dataset *ds, int64_t rows);
enum zb_status zb_dataset_eval_batch(const struct zb_dataset *ds, int64_t index,
                                     int64_t rows,
                                     struct zb_batch *batch) ZB_CHECKED;

#endif
