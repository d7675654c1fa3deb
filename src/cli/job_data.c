/* SPDX-License-Identifier: MIT
 *
 * The data of a job: texts, tokens or arrays, and the fields of a batch. */
#include "config.h"
#include "cli/job_int.h"

#include <string.h>
#include <sys/stat.h>

#include "zb/mem.h"

/* ---- array data ---------------------------------------------------------- */

static int is_folder(const struct zb_conf_strings *files)
{
    struct stat info;

    return files->n > 0 && stat(files->item[0], &info) == 0 &&
           S_ISDIR(info.st_mode);
}

/* The files that keys name. */
static void named_files(const struct zb_conf_data *cd,
                        const char *path[ZB_N_FIELDS])
{
    path[ZB_FIELD_INPUT_IDS] = cd->input_ids;
    path[ZB_FIELD_ATTENTION_MASK] = cd->attention_mask;
    path[ZB_FIELD_TOKEN_TYPE_IDS] = cd->token_type_ids;
    path[ZB_FIELD_LABELS] = cd->labels;
    path[ZB_FIELD_NEXT_SENTENCE_LABEL] = cd->next_sentence_label;
}

static int has_named_files(const struct zb_conf_data *cd)
{
    const char *path[ZB_N_FIELDS];
    int n = 0;

    named_files(cd, path);
    for (int i = 0; i < ZB_N_FIELDS; i++) {
        n += path[i] != NULL;
    }
    return n > 0;
}

static enum zb_status take_named_files(struct zbrun_job *job)
{
    const struct zb_conf_data *cd = &job->conf->data;
    const char *path[ZB_N_FIELDS];

    if (cd->train.n > 0) {
        return zb_fail(ZB_ECONFIG,
                       "%s: data.train is one way to name array data, a key "
                       "for each of its fields another; only one is possible",
                       zb_conf_where(job->conf, "data.train"));
    }
    named_files(cd, path);
    for (int i = 0; i < ZB_N_FIELDS; i++) {
        if (path[i] != NULL) {
            job->train_files.path[i] = zb_strdup(path[i]);
            if (job->train_files.path[i] == NULL) {
                return ZB_ENOMEM;
            }
        }
    }
    return ZB_OK;
}

static enum zb_status take_folder(const struct zbrun_job *job, const char *key,
                                  const struct zb_conf_strings *files,
                                  struct zb_field_files *out)
{
    if (files->n == 0) {
        return ZB_OK;
    }
    if (files->n > 1 || !is_folder(files)) {
        return zb_fail(ZB_ECONFIG,
                       "%s: %s: array data is one folder with input_ids.npy "
                       "and files of other fields",
                       zb_conf_where(job->conf, key), key);
    }
    ZB_TRY(zb_field_files_in(files->item[0], out));
    return out->path[ZB_FIELD_INPUT_IDS] != NULL
               ? ZB_OK
               : zb_fail(ZB_ECONFIG,
                         "%s: %s: %s is a directory without input_ids.npy",
                         zb_conf_where(job->conf, key), key, files->item[0]);
}

/* Rows are as long as they are: data.seq_len may say so, too. */
static enum zb_status take_seq_len(struct zbrun_job *job,
                                   const struct zb_field_files *files,
                                   const char *key)
{
    struct zb_conf_data *cd = &job->conf->data;
    int64_t n;
    enum zb_status st = zb_field_files_seq_len(files, &n);

    if (st != ZB_OK) {
        return zb_fail_in(st, "%s", key);
    }
    if (n < 1 || n > 1 << 24) {
        return zb_fail(ZB_ECONFIG, "%s: rows of %lld tokens", key,
                       (long long)n);
    }
    if (zb_conf_is_set(job->conf, "data.seq_len") && cd->seq_len != n) {
        return zb_fail(ZB_ECONFIG,
                       "%s: data.seq_len is %d, but %s has rows of %lld tokens",
                       zb_conf_where(job->conf, "data.seq_len"), cd->seq_len,
                       key, (long long)n);
    }
    cd->seq_len = (int)n;
    return ZB_OK;
}

/* Both sets, of one length. */
static enum zb_status take_lengths(struct zbrun_job *job)
{
    int first = 0;

    if (job->has_train_files) {
        ZB_TRY(take_seq_len(job, &job->train_files, "data.train"));
        first = job->conf->data.seq_len;
    }
    if (job->conf->data.valid.n > 0) {
        ZB_TRY(take_seq_len(job, &job->valid_files, "data.valid"));
    }
    if (first > 0 && job->conf->data.seq_len != first) {
        return zb_fail(ZB_ECONFIG,
                       "data.valid has rows of %d tokens, data.train of %d",
                       job->conf->data.seq_len, first);
    }
    return ZB_OK;
}

enum zb_status zbrun_data_find(struct zbrun_job *job)
{
    const struct zb_conf_data *cd = &job->conf->data;
    int is_named = has_named_files(cd);

    job->is_arrays = is_named || cd->format == ZB_CONF_FORMAT_NPY ||
                     is_folder(&cd->train) || is_folder(&cd->valid);
    if (!job->is_arrays) {
        return ZB_OK;
    }
    if (cd->format != ZB_CONF_FORMAT_AUTO && cd->format != ZB_CONF_FORMAT_NPY) {
        return zb_fail(ZB_ECONFIG,
                       "%s: data.format is for files of text or tokens, but "
                       "there is array data",
                       zb_conf_where(job->conf, "data.format"));
    }
    job->has_train_files = is_named || cd->train.n > 0;
    if (is_named) {
        ZB_TRY(take_named_files(job));
    } else {
        ZB_TRY(take_folder(job, "data.train", &cd->train, &job->train_files));
    }
    ZB_TRY(take_folder(job, "data.valid", &cd->valid, &job->valid_files));
    return take_lengths(job);
}

int zbrun_data_has_mask(const struct zbrun_job *job)
{
    return job->train_files.path[ZB_FIELD_ATTENTION_MASK] != NULL ||
           job->valid_files.path[ZB_FIELD_ATTENTION_MASK] != NULL;
}

/* ---- data sets ----------------------------------------------------------- */

/* How many values an int field of the batch may have; 0: not known. */
static int64_t range_of(const struct zb_graph *g, const char *name)
{
    for (int i = 0; i < zb_graph_n_data(g); i++) {
        if (strcmp(zb_graph_data(g, i).name, name) == 0) {
            return zb_graph_data_range(g, i);
        }
    }
    return 0;
}

static int has_labels_per_row(const struct zb_graph *g)
{
    int labels = zb_graph_loss_labels(g, 0);

    return labels >= 0 && zb_graph_data(g, labels).shape.n_dims == 1;
}

/* Classes are the columns of the logits, which every rank has all of. */
static int64_t n_classes(const struct zb_graph *g)
{
    struct zb_data_info logits = zb_graph_output(g, 0);

    return logits.shape.dim[logits.shape.n_dims - 1];
}

static enum zb_status open_arrays(const struct zbrun_job *job,
                                  const struct zb_field_files *files,
                                  struct zb_dataset_opts *o,
                                  struct zb_dataset **ds_out)
{
    const struct zb_graph *g = zb_model_graph(job->model);

    o->sees_all = !zb_model_is_causal(job->model);
    o->labels_per_row = has_labels_per_row(g);
    o->n_labels = o->labels_per_row ? n_classes(g) : o->vocab_size;
    o->n_token_types = range_of(g, "token_type_ids");
    o->has_next_sentence = zb_graph_n_losses(g) > 1;
    return zb_dataset_open_arrays(files, o, ds_out);
}

static enum zb_status open_tokens(const struct zbrun_job *job,
                                  const struct zb_conf_strings *files,
                                  struct zb_dataset_opts *o,
                                  struct zb_dataset **ds_out)
{
    static const enum zb_data_format format[] = {
        [ZB_CONF_FORMAT_AUTO] = ZB_DATA_AUTO,
        [ZB_CONF_FORMAT_TEXT] = ZB_DATA_TEXT,
        [ZB_CONF_FORMAT_TOKENS] = ZB_DATA_TOKENS,
    };

    if (!zb_model_is_causal(job->model)) {
        return zb_fail(ZB_ECONFIG,
                       "%s: %s does not predict the next token of a text: it "
                       "needs array data with labels (data.input_ids, "
                       "data.labels)",
                       o->name, zb_model_type(job->model));
    }
    o->format = format[job->conf->data.format];
    o->tokenizer = job->tokenizer;
    ZB_TRY(
        zb_dataset_open((const char *const *)files->item, files->n, o, ds_out));
    if (zb_dataset_vocab_size(*ds_out) > o->vocab_size) {
        return zb_fail(ZB_ECONFIG,
                       "%s has tokens up to %lld, but the model's vocab_size "
                       "is %lld",
                       o->name, (long long)zb_dataset_vocab_size(*ds_out) - 1,
                       (long long)o->vocab_size);
    }
    return ZB_OK;
}

static enum zb_status open_set(const struct zbrun_job *job, const char *name,
                               const struct zb_conf_strings *files,
                               const struct zb_field_files *fields,
                               struct zb_dataset **ds_out)
{
    const struct zb_conf_data *cd = &job->conf->data;
    struct zb_dataset_opts o = {
        .name = name,
        .seq_len = cd->seq_len,
        .seed = job->conf->train.seed,
        .shuffle = cd->shuffle,
        .vocab_size = zb_model_vocab_size(job->model),
    };

    return job->is_arrays ? open_arrays(job, fields, &o, ds_out)
                          : open_tokens(job, files, &o, ds_out);
}

static enum zb_status open_tokenizer(struct zbrun_job *job)
{
    const char *path = job->conf->data.tokenizer;
    enum zb_status st;

    if (path == NULL || strcmp(path, "byte") == 0) {
        return ZB_OK;
    }
    st = zb_tokenizer_load(path, &job->tokenizer);
    return st == ZB_OK ? st : zb_fail_in(st, "data.tokenizer");
}

enum zb_status zbrun_data_open(struct zbrun_job *job)
{
    const struct zb_conf_data *cd = &job->conf->data;

    ZB_TRY(open_tokenizer(job));
    if (job->opts->action == ZBRUN_GENERATE) {
        return ZB_OK;
    }
    if (cd->train.n > 0 || job->has_train_files) {
        ZB_TRY(open_set(job, "data.train", &cd->train, &job->train_files,
                        &job->train));
    } else if (job->opts->action == ZBRUN_TRAIN) {
        return zb_fail(ZB_ECONFIG, "%s: training needs data.train",
                       job->conf->file);
    }
    if (cd->valid.n > 0) {
        ZB_TRY(open_set(job, "data.valid", &cd->valid, &job->valid_files,
                        &job->valid));
    } else if (job->opts->action == ZBRUN_EVAL) {
        return zb_fail(ZB_ECONFIG, "%s: evaluation needs data.valid",
                       job->conf->file);
    }
    return ZB_OK;
}

/* ---- batches ------------------------------------------------------------- */

static const void *field_of(const struct zb_batch *batch, const char *name)
{
    const struct {
        const char *name;
        const int32_t *values;
    } field[] = {
        {"input_ids", batch->input_ids},
        {"attention_mask", batch->attention_mask},
        {"token_type_ids", batch->token_type_ids},
        {"position_ids", batch->position_ids},
        {"labels", batch->labels},
        {"next_sentence_label", batch->next_sentence_label},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(field); i++) {
        if (strcmp(field[i].name, name) == 0) {
            return field[i].values;
        }
    }
    return NULL;
}

enum zb_status zbrun_job_fields(const struct zbrun_job *job,
                                const struct zb_batch *batch,
                                const void **field)
{
    const struct zb_graph *g = zb_model_graph(job->model);

    for (int i = 0; i < zb_graph_n_data(g); i++) {
        struct zb_data_info info = zb_graph_data(g, i);

        field[i] = field_of(batch, info.name);
        if (field[i] == NULL) {
            return zb_fail(ZB_ECONFIG, "the data has no field %s", info.name);
        }
        if (field[i] == batch->position_ids) {
            zb_position_ids(batch->attention_mask, batch->n_rows,
                            batch->seq_len, batch->position_ids);
        }
    }
    return ZB_OK;
}
