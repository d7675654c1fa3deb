/* SPDX-License-Identifier: MIT
 *
 * Whole models against tests/golden/: loss, logits and every gradient, for
 * several cuts and numbers of microbatches.
 */
#include "config.h"
#include "graph_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/ckpt.h"
#include "zb/model.h"

#ifdef ZB_REAL_IS_DOUBLE
#define TOL 1e-9
#else
#define TOL 1e-5
#endif

struct golden {
    struct zb_st_file *file;
    struct zb_model *model;
    const struct zb_graph *g;
    zb_real **params;
    int rows, seq;
    const void *data[3];
    int32_t *ids, *labels, *mask;
};

static int32_t *read_ints(const struct zb_st_file *f, const char *name)
{
    const struct zb_st_tensor *t = zb_st_find(f, name);
    int32_t *v;

    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    v = calloc((size_t)t->n_elems, sizeof(*v));
    ZBT_OK(zb_st_read_i32(f, t, v, t->n_elems));
    return v;
}

static double *read_doubles(const struct zb_st_file *f, const char *name)
{
    const struct zb_st_tensor *t = zb_st_find(f, name);
    double *v;

    if (t == NULL) {
        printf("\n%s has no %s\n", f->path, name);
    }
    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    v = calloc((size_t)t->n_elems, sizeof(*v));
    ZBT_OK(zb_st_read_f64(f, t, v, t->n_elems));
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
        int64_t elems = zb_shape_elems(&info.shape);
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

static void open_golden(struct golden *d, const char *name)
{
    char rel[128];
    struct zb_model_opts opts = {.max_seq = 0};
    const struct zb_st_tensor *t;
    int at = 0;

    memset(d, 0, sizeof(*d));
    snprintf(rel, sizeof(rel), "tests/golden/%s.safetensors", name);
    ZBT_OK(zb_st_open(zbt_source_path(rel), &d->file));
    t = zb_st_find(d->file, "input_ids");
    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    d->rows = (int)t->dims[0];
    d->seq = (int)t->dims[1];
    opts.has_key_mask = zb_st_find(d->file, "attention_mask") != NULL;
    ZBT_OK(zb_model_from_json(zb_st_find_meta(d->file, "config"), name, &opts,
                              &d->model));
    d->g = zb_model_graph(d->model);
    read_params(d);
    d->ids = read_ints(d->file, "input_ids");
    d->labels = read_ints(d->file, "labels");
    shift(d->labels, d->rows, d->seq);
    if (opts.has_key_mask) {
        d->mask = read_ints(d->file, "attention_mask");
        CU_ASSERT_STRING_EQUAL(zb_graph_data(d->g, at).name,
                               "attention_mask");
        d->data[at++] = d->mask;
    }
    CU_ASSERT_STRING_EQUAL(zb_graph_data(d->g, at).name, "input_ids");
    d->data[at++] = d->ids;
    CU_ASSERT_STRING_EQUAL(zb_graph_data(d->g, at).name, "labels");
    d->data[at++] = d->labels;
}

static void close_golden(struct golden *d)
{
    rig_params_free(d->g, d->params);
    zb_model_free(d->model);
    zb_st_close(d->file);
    free(d->ids);
    free(d->labels);
    free(d->mask);
}

static double norm_of(const double *x, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++) {
        sum += x[i] * x[i];
    }
    return sqrt(sum);
}

static double total_norm(const struct golden *d)
{
    double sum = 0;

    for (size_t i = 0; i < d->file->n_tensors; i++) {
        const struct zb_st_tensor *t = &d->file->tensors[i];

        if (strncmp(t->name, "grad.", 5) == 0) {
            double *v = read_doubles(d->file, t->name);

            sum += pow(norm_of(v, t->n_elems), 2);
            free(v);
        }
    }
    return sqrt(sum);
}

/* || a - b || / max(|| b ||, floor) */
static double error_of(const double *a, const double *b, int64_t n,
                       double floor)
{
    double sum = 0, norm = norm_of(b, n);

    for (int64_t i = 0; i < n; i++) {
        sum += (a[i] - b[i]) * (a[i] - b[i]);
    }
    return sqrt(sum) / (norm > floor ? norm : floor);
}

static double worst_gradient(const struct golden *d,
                             const struct rig_result *r)
{
    double floor = 1e-3 * total_norm(d), worst = 0;

    for (int p = 0; p < zb_graph_n_params(d->g); p++) {
        struct zb_param_info info = zb_graph_param(d->g, p);
        char name[256];
        double *want, *got = rig_param_grad(d->g, r, p), e;

        snprintf(name, sizeof(name), "grad.%s", info.name);
        want = read_doubles(d->file, name);
        e = error_of(got, want, zb_shape_elems(&info.shape), floor);
        if (!(e <= TOL)) {
            printf("\n%s: error %.3g", name, e);
        }
        worst = e <= worst ? worst : e;
        free(got);
        free(want);
    }
    return worst;
}

static void compare(const struct golden *d, const struct rig_result *r)
{
    double *loss = read_doubles(d->file, "loss");
    double *logits = read_doubles(d->file, "logits");
    double e = worst_gradient(d, r);

    printf("\n  loss %.9f (off by %.2g), gradients within %.2g ", r->loss,
           r->loss - loss[0], e);
    CU_ASSERT(e <= TOL);
    CU_ASSERT(fabs(r->loss - loss[0]) <= TOL * fabs(loss[0]));
    /* logits are stored in float */
    CU_ASSERT(error_of(r->output, logits, r->n_output, 0) <= 1e-5);
    free(loss);
    free(logits);
}

/* One cut and number of microbatches. */
static void check_case(const char *name, int n_chunks, int n_micro, int w_last)
{
    struct golden d;
    struct rig_result r;
    int first[17];

    open_golden(&d, name);
    {
        struct rig_batch batch = {d.rows, d.seq, d.data};
        struct rig_opts o = {
            .n_chunks = n_chunks,
            .first = first,
            .n_micro = n_micro,
            .w_last = w_last,
        };

        zb_cut_uniform(zb_model_n_before(d.model), zb_model_n_blocks(d.model),
                       1, n_chunks, first);
        rig_run(d.g, d.params, &batch, &o, &r);
        compare(&d, &r);
    }
    rig_result_free(&r);
    close_golden(&d);
}

static void check_model(const char *name)
{
    check_case(name, 1, 1, 0);
    check_case(name, 2, 2, 1);
    check_case(name, 4, 4, 0);
    check_case(name, 8, 2, 1); /* empty chunks */
}

#define MODEL_TEST(model)                                                      \
    static void model##_equals_reference(void)                                 \
    {                                                                          \
        check_model(#model);                                                   \
    }

MODEL_TEST(llama_base)
MODEL_TEST(llama_default_rope)
MODEL_TEST(llama_linear_rope)
MODEL_TEST(llama_variant)
MODEL_TEST(llama_padded)
MODEL_TEST(gpt2_base)
MODEL_TEST(gpt2_inverse_layer)
MODEL_TEST(gpt2_padded)

/* Microbatches of different sizes, in one program compiled for the largest. */
static void ragged_microbatches_equal_reference(void)
{
    static const int rows[] = {1, 3};
    struct golden d;
    struct rig_result r;
    int first[] = {0, 2, 3, 6};

    open_golden(&d, "gpt2_padded");
    {
        struct rig_batch batch = {d.rows, d.seq, d.data};
        struct rig_opts o = {
            .n_chunks = 3,
            .first = first,
            .n_micro = 2,
            .rows = rows,
            .n_threads = 2,
        };

        rig_run(d.g, d.params, &batch, &o, &r);
        compare(&d, &r);
    }
    rig_result_free(&r);
    close_golden(&d);
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(llama_base_equals_reference),
        ZBT_CASE(llama_default_rope_equals_reference),
        ZBT_CASE(llama_linear_rope_equals_reference),
        ZBT_CASE(llama_variant_equals_reference),
        ZBT_CASE(llama_padded_equals_reference),
        ZBT_CASE(gpt2_base_equals_reference),
        ZBT_CASE(gpt2_inverse_layer_equals_reference),
        ZBT_CASE(gpt2_padded_equals_reference),
        ZBT_CASE(ragged_microbatches_equal_reference),
    };

    return zbt_run("model_golden", cases, ZB_COUNT_OF(cases));
}
