/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "golden_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zbt.h"

static int32_t *read_ints(const struct zb_st_file *f, const char *name)
{
    const struct zb_st_tensor *t = zb_st_find(f, name);
    int32_t *v;

    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    v = calloc((size_t)t->n_elems, sizeof(*v));
    ZBT_OK(zb_st_read_i32(f, t, v, t->n_elems));
    return v;
}

double *golden_doubles(const struct golden *d, const char *name)
{
    const struct zb_st_tensor *t = zb_st_find(d->file, name);
    double *v;

    if (t == NULL) {
        printf("\n%s has no %s\n", d->file->path, name);
    }
    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    v = calloc((size_t)t->n_elems, sizeof(*v));
    ZBT_OK(zb_st_read_f64(d->file, t, v, t->n_elems));
    return v;
}

/* Position t is scored against label t + 1; the last against nothing. */
static void shift(int32_t *labels, int rows, int seq)
{
    for (int r = 0; r < rows; r++) {
        memmove(labels + r * seq, labels + r * seq + 1,
                ((size_t)seq - 1) * sizeof(*labels));
        labels[r * seq + seq - 1] = -100;
    }
}

static void read_params(struct golden *d)
{
    int n = zb_graph_n_params(d->g);

    d->params = calloc((size_t)n, sizeof(*d->params));
    for (int p = 0; p < n; p++) {
        struct zb_param_info info = zb_graph_param(d->g, p);
        int64_t elems = zb_shape_elems(&info.whole);
        const struct zb_st_tensor *t;
        char name[256];

        snprintf(name, sizeof(name), "param.%s", info.name);
        t = zb_st_find(d->file, name);
        if (t == NULL) {
            printf("\n%s has no %s\n", d->file->path, name);
        }
        CU_ASSERT_PTR_NOT_NULL_FATAL(t);
        d->params[p] = calloc((size_t)elems, sizeof(zb_real));
        ZBT_OK(zb_st_read_real(d->file, t, d->params[p], elems));
    }
}

static void bind_fields(struct golden *d)
{
    const struct {
        const char *name;
        const int32_t *values;
    } field[GOLDEN_FIELDS] = {
        {"attention_mask", d->mask},         {"input_ids", d->ids},
        {"position_ids", d->positions},      {"token_type_ids", d->types},
        {"next_sentence_label", d->follows}, {"labels", d->labels}};

    for (int i = 0; i < zb_graph_n_data(d->g); i++) {
        const char *name = zb_graph_data(d->g, i).name;

        CU_ASSERT_FATAL(i < GOLDEN_FIELDS);
        for (int k = 0; k < GOLDEN_FIELDS; k++) {
            if (strcmp(name, field[k].name) == 0) {
                d->data[i] = field[k].values;
            }
        }
        CU_ASSERT_PTR_NOT_NULL_FATAL(d->data[i]);
    }
}

/* The adapters of a file that was made with some: where they are is in it. */
static void read_adapters(const struct zb_st_file *f,
                          struct zb_model_opts *opts, char *words, size_t size,
                          const char **word)
{
    const char *targets = zb_st_find_meta(f, "lora_targets");
    char *rest = NULL;

    if (targets == NULL) {
        return;
    }
    opts->lora_rank = 3;
    opts->lora_alpha = 6;
    opts->lora_targets = word;
    snprintf(words, size, "%s", targets);
    for (char *w = strtok_r(words, ",", &rest); w != NULL;
         w = strtok_r(NULL, ",", &rest)) {
        word[opts->n_lora_targets++] = w;
    }
}

static void open_with(struct golden *d, const char *name,
                      struct zb_model_opts opts)
{
    char rel[128], words[128];
    const char *word[8];
    const struct zb_st_tensor *t;
    size_t n;

    memset(d, 0, sizeof(*d));
    snprintf(rel, sizeof(rel), "tests/golden/%s.safetensors", name);
    ZBT_OK(zb_st_open(zbt_source_path(rel), &d->file));
    t = zb_st_find(d->file, "input_ids");
    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    d->rows = (int)t->dims[0];
    d->seq = (int)t->dims[1];
    n = (size_t)t->n_elems;
    read_adapters(d->file, &opts, words, sizeof(words), word);
    opts.has_key_mask = zb_st_find(d->file, "attention_mask") != NULL;
    ZBT_OK(zb_model_from_json(zb_st_find_meta(d->file, "config"), name, &opts,
                              &d->model));
    d->g = zb_model_graph(d->model);
    read_params(d);
    d->ids = read_ints(d->file, "input_ids");
    d->labels = read_ints(d->file, "labels");
    if (zb_model_is_causal(d->model)) {
        shift(d->labels, d->rows, d->seq);
    }
    d->types = zb_st_find(d->file, "token_type_ids") != NULL
                   ? read_ints(d->file, "token_type_ids")
                   : calloc(n, sizeof(*d->types));
    if (zb_st_find(d->file, "next_sentence_label") != NULL) {
        d->follows = read_ints(d->file, "next_sentence_label");
    }
    if (opts.has_key_mask) {
        d->mask = read_ints(d->file, "attention_mask");
        d->positions = calloc(n, sizeof(*d->positions));
        CU_ASSERT_PTR_NOT_NULL_FATAL(d->positions);
        zb_position_ids(d->mask, d->rows, d->seq, d->positions);
    }
    bind_fields(d);
}

void golden_open(struct golden *d, const char *name)
{
    golden_open_as(d, name, ZB_DTYPE_REAL);
}

void golden_open_as(struct golden *d, const char *name, enum zb_dtype storage)
{
    open_with(d, name, (struct zb_model_opts){.storage = storage});
}

void golden_open_on(struct golden *d, const char *name,
                    const struct zb_parallel *par)
{
    open_with(d, name, (struct zb_model_opts){.par = par});
}

void golden_close(struct golden *d)
{
    for (int p = 0; p < zb_graph_n_params(d->g); p++) {
        free(d->params[p]);
    }
    free(d->params);
    zb_model_free(d->model);
    zb_st_close(d->file);
    free(d->ids);
    free(d->labels);
    free(d->mask);
    free(d->positions);
    free(d->types);
    free(d->follows);
}

static double norm_of(const double *x, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++) {
        sum += x[i] * x[i];
    }
    return sqrt(sum);
}

double golden_total_norm(const struct golden *d)
{
    double sum = 0;

    for (size_t i = 0; i < d->file->n_tensors; i++) {
        const struct zb_st_tensor *t = &d->file->tensors[i];

        if (strncmp(t->name, "grad.", 5) == 0) {
            double *v = golden_doubles(d, t->name);

            sum += pow(norm_of(v, t->n_elems), 2);
            free(v);
        }
    }
    return sqrt(sum);
}

double golden_error(const double *a, const double *b, int64_t n, double floor)
{
    double sum = 0, norm = norm_of(b, n);

    for (int64_t i = 0; i < n; i++) {
        sum += (a[i] - b[i]) * (a[i] - b[i]);
    }
    return sqrt(sum) / (norm > floor ? norm : floor);
}
