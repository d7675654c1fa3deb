/* SPDX-License-Identifier: MIT */
#include "config.h"
#include "run_util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/mem.h"
#include "zbt.h"

#define VOCAB 64

static struct zb_model *make(const struct zb_model_key *key, size_t n,
                             int has_key_mask, const struct zb_parallel *par,
                             enum zb_dtype storage)
{
    struct zb_model_opts o = {.max_seq = 2 * RU_SEQ,
                              .init_std = 0.1,
                              .has_key_mask = has_key_mask,
                              .par = par,
                              .storage = storage};
    struct zb_model *m = NULL;

    ZBT_OK(zb_model_from_keys(key, n, "test", &o, &m));
    return m;
}

static struct zb_model *llama(int has_key_mask, const struct zb_parallel *par,
                              enum zb_dtype storage)
{
    static const struct zb_model_key key[] = {
        {"model_type", "llama", 0},      {"vocab_size", "64", 0},
        {"hidden_size", "32", 0},        {"intermediate_size", "56", 0},
        {"num_hidden_layers", "6", 0},   {"num_attention_heads", "4", 0},
        {"num_key_value_heads", "2", 0}, {"max_position_embeddings", "64", 0},
    };

    return make(key, ZB_COUNT_OF(key), has_key_mask, par, storage);
}

struct zb_model *ru_llama(void)
{
    return llama(0, NULL, ZB_DTYPE_REAL);
}

struct zb_model *ru_llama_on(const struct zb_parallel *par)
{
    return llama(0, par, ZB_DTYPE_REAL);
}

struct zb_model *ru_llama_as(const struct zb_parallel *par,
                             enum zb_dtype storage)
{
    return llama(0, par, storage);
}

struct zb_model *ru_llama_masked(void)
{
    return llama(1, NULL, ZB_DTYPE_REAL);
}

int ru_param(struct zb_graph *g, const char *name, int layer, int64_t rows,
             int64_t cols, struct zb_split split)
{
    const struct zb_param_opts opts = {
        .init = ZB_INIT_NORMAL, .std = 0.2, .split = split};
    const int64_t dim[] = {rows, cols};
    char full[32];

    snprintf(full, sizeof(full), "%s.%d", name, layer);
    return zb_g_param(g, full, cols > 0 ? 2 : 1, dim, &opts);
}

static struct zb_model *gpt2(double dropout, const struct zb_parallel *par)
{
    char p[32];
    const struct zb_model_key key[] = {
        {"model_type", "gpt2", 0}, {"vocab_size", "64", 0},
        {"n_embd", "32", 0},       {"n_inner", "56", 0},
        {"n_layer", "6", 0},       {"n_head", "4", 0},
        {"n_positions", "64", 0},  {"resid_pdrop", p, 0},
        {"embd_pdrop", p, 0},      {"attn_pdrop", p, 0},
    };

    snprintf(p, sizeof(p), "%g", dropout);
    return make(key, ZB_COUNT_OF(key), 0, par, ZB_DTYPE_REAL);
}

struct zb_model *ru_gpt2(double dropout)
{
    return gpt2(dropout, NULL);
}

struct zb_model *ru_gpt2_on(const struct zb_parallel *par)
{
    return gpt2(0.1, par);
}

static void fill_input(struct ru_batch *b)
{
    b->field[0] = b->ids;
    b->field[1] = b->labels;
    b->in = (struct zb_step_input){.n_rows = b->n_rows,
                                   .seq_len = b->seq_len,
                                   .field = b->field,
                                   .sample = b->sample};
}

void ru_batch_init(struct ru_batch *b, int64_t n_rows, int64_t seq_len,
                   unsigned long long seed)
{
    struct zbt_rng rng = {seed};
    size_t n = (size_t)(n_rows * seq_len);

    memset(b, 0, sizeof(*b));
    b->n_rows = n_rows;
    b->seq_len = seq_len;
    b->ids = zb_alloc_array(n, sizeof(int32_t));
    b->labels = zb_alloc_array(n, sizeof(int32_t));
    b->sample = zb_alloc_array((size_t)n_rows, sizeof(int64_t));
    CU_ASSERT_FATAL(b->ids != NULL && b->labels != NULL && b->sample != NULL);
    for (int64_t r = 0; r < n_rows; r++) {
        b->sample[r] = 100 + r;
        for (int64_t t = 0; t < seq_len; t++) {
            b->ids[r * seq_len + t] = (int32_t)zbt_rand_in(&rng, 0, VOCAB - 1);
            b->labels[r * seq_len + t] =
                t >= seq_len - r % 4 ? -100
                                     : (int32_t)zbt_rand_in(&rng, 0, VOCAB - 1);
        }
    }
    fill_input(b);
}

void ru_batch_release(struct ru_batch *b)
{
    zb_free(b->ids);
    zb_free(b->labels);
    zb_free(b->sample);
}

void ru_rows(const struct ru_batch *b, int64_t first, int64_t n,
             struct ru_batch *part)
{
    *part = *b;
    part->n_rows = n;
    part->ids += first * b->seq_len;
    part->labels += first * b->seq_len;
    part->sample += first;
    fill_input(part);
}

/* Devices of a run may be more than the GPUs there are: they share them. */
static const int *gpus(void)
{
    static const int all_on_one[RU_DEVICES] = {0};
    static const int in_turn_on_four[RU_DEVICES] = {
        0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3,
        0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
    const char *n = getenv("ZB_TEST_GPUS");

    return n != NULL && strcmp(n, "4") == 0 ? in_turn_on_four : all_on_one;
}

/* How messages go, as the environment says. */
static enum zb_p2p p2p(void)
{
    const char *name = getenv("ZB_TEST_P2P");

    return name == NULL                ? ZB_P2P_AUTO
           : strcmp(name, "nccl") == 0 ? ZB_P2P_NCCL
           : strcmp(name, "host") == 0 ? ZB_P2P_HOST
                                       : ZB_P2P_COPY;
}

struct zb_session_opts ru_opts(int n_stages, int n_micro, int64_t max_rows)
{
    const char *backend = getenv("ZB_TEST_BACKEND");
    const char *seed = getenv("ZB_TEST_SEED");
    struct zb_session_opts o;

    zb_session_opts_init(&o);
    o.backend = backend != NULL ? backend : "cpu";
    o.n_stages = n_stages;
    o.n_micro = n_micro;
    o.max_rows = max_rows;
    o.max_seq = RU_SEQ;
    o.seed = 7;
    o.watchdog_s = 60;
    o.p2p = p2p();
    o.gpus = o.p2p == ZB_P2P_NCCL ? NULL : gpus(); /* a GPU for each */
    o.check_seed = seed != NULL ? strtoull(seed, NULL, 10) : 0;
    o.check_delay_us = 20;
    return o;
}

struct zb_session_opts ru_grid_opts(const struct ru_grid *g, int64_t n_rows)
{
    struct zb_session_opts o = ru_opts(g->pp, (int)n_rows / 2 / g->dp, n_rows);

    o.n_dp = g->dp;
    return o;
}

size_t ru_n_elems(const struct zb_model *m)
{
    const struct zb_graph *g = zb_model_graph(m);
    size_t n = 0;

    for (int i = 0; i < zb_graph_n_params(g); i++) {
        struct zb_param_info info = zb_graph_param(g, i);

        n += (size_t)zb_shape_elems(&info.whole);
    }
    return n;
}

typedef enum zb_status (*get_fn)(struct zb_session *s, int param, zb_real *out);

static void collect(struct zb_session *s, get_fn get, zb_real *out)
{
    const struct zb_graph *g = zb_model_graph(zb_session_model(s));

    for (int i = 0; i < zb_graph_n_params(g); i++) {
        struct zb_param_info info = zb_graph_param(g, i);

        ZBT_OK(get(s, i, out));
        out += zb_shape_elems(&info.whole);
    }
}

void ru_get_params(struct zb_session *s, zb_real *out)
{
    collect(s, zb_session_get_param, out);
}

void ru_get_grads(struct zb_session *s, zb_real *out)
{
    collect(s, zb_session_get_grad, out);
}

void ru_train_two_steps(const struct zb_model *m,
                        const struct zb_session_opts *o,
                        const struct ru_batch *b, struct ru_result *r)
{
    struct zb_session *s = NULL;
    struct zb_step_result res = {.loss = 0};

    r->n = ru_n_elems(m);
    r->grads = zb_alloc_array(r->n, sizeof(zb_real));
    r->params = zb_alloc_array(r->n, sizeof(zb_real));
    CU_ASSERT_FATAL(r->grads != NULL && r->params != NULL);
    ZBT_OK(zb_session_new(m, o, &s));
    ZBT_OK(zb_forward_backward_step(s, &b->in, ZB_RETURN_LOSS, &res));
    ru_get_grads(s, r->grads);
    ZBT_OK(zb_optimizer_step(s, 1e-2, &res));
    r->loss = res.loss;
    r->norm = res.grad_norm;
    ZBT_OK(zb_train_step(s, &b->in, 1e-2, &res));
    ru_get_params(s, r->params);
    zb_session_free(s);
}

void ru_result_release(struct ru_result *r)
{
    zb_free(r->grads);
    zb_free(r->params);
}

int ru_result_equal(const struct ru_result *a, const struct ru_result *b)
{
    return memcmp(&a->loss, &b->loss, sizeof(a->loss)) == 0 &&
           memcmp(&a->norm, &b->norm, sizeof(a->norm)) == 0 && a->n == b->n &&
           memcmp(a->grads, b->grads, a->n * sizeof(zb_real)) == 0 &&
           memcmp(a->params, b->params, a->n * sizeof(zb_real)) == 0;
}

double ru_error(const zb_real *a, const zb_real *b, size_t n)
{
    double diff = 0, norm = 0;

    for (size_t i = 0; i < n; i++) {
        diff += pow((double)a[i] - (double)b[i], 2);
        norm += pow((double)b[i], 2);
    }
    return sqrt(diff) / sqrt(norm);
}
