/* SPDX-License-Identifier: MIT
 *
 * Tensor parallelism, plain and with parts of sequences between regions: loss
 * and whole gradients of any number of ranks are those of one device, which
 * other tests compare with outside truth.
 */
#include "config.h"
#include "golden_rig.h"
#include "par_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/mem.h"

#ifdef ZB_REAL_IS_DOUBLE
#define TOL 1e-12
#else
#define TOL 5e-5 /* of post-norm models in float; the double build: 1e-12 */
#endif

#define ROWS 3
#define MAX_SEQ 8
#define HIDDEN 24 /* at most */

struct model_case {
    const char *name;
    struct zb_model_key keys[20];
    int has_mask, has_embeds, no_head;
    const char *adapters[4]; /* layers that have some */
    void (*criterion)(struct zb_graph *g, int x, void *arg);
};

static const int64_t batch_seq[] = {ZB_DIM(ZB_SYM_BATCH), ZB_DIM(ZB_SYM_SEQ)};

/* Of whole logits, whatever ranks have of them. */
static void scaled_loss(struct zb_graph *g, int x, void *arg)
{
    int labels = zb_g_data(g, "labels", ZB_DTYPE_I32, 2, batch_seq);

    (void)arg;
    zb_g_loss(g, zb_g_xent(g, zb_g_scale(g, x, 0.5), labels), labels);
}

/* With a weight of its own that every rank has. */
static void probe_loss(struct zb_graph *g, int x, void *arg)
{
    const struct zb_param_opts opts = {.init = ZB_INIT_NORMAL, .std = 0.1};
    const int64_t dim[] = {101, 16};
    int w = zb_g_param(g, "probe", 2, dim, &opts);

    scaled_loss(g, zb_g_linear(g, x, w, ZB_G_NONE, 0), arg);
}

static const struct model_case cases[] = {
    {"llama, 2 kv heads of 8, biases",
     {{"model_type", "llama", 0},
      {"vocab_size", "101", 0},
      {"hidden_size", "16", 0},
      {"intermediate_size", "24", 0},
      {"num_hidden_layers", "2", 0},
      {"num_attention_heads", "8", 0},
      {"num_key_value_heads", "2", 0},
      {"max_position_embeddings", "8", 0},
      {"attention_bias", "true", 0},
      {"mlp_bias", "true", 0},
      {"attention_dropout", "0.1", 0},
      {"pad_token_id", "3", 0},
      {"tie_word_embeddings", "false", 0}},
     .has_mask = 1},
    {"llama, tied, 4 kv heads",
     {{"model_type", "llama", 0},
      {"vocab_size", "64", 0},
      {"hidden_size", "24", 0},
      {"intermediate_size", "20", 0},
      {"num_hidden_layers", "2", 0},
      {"num_attention_heads", "4", 0},
      {"head_dim", "4", 0},
      {"max_position_embeddings", "8", 0},
      {"tie_word_embeddings", "true", 0}},
     .has_mask = 0},
    {"gpt2",
     {{"model_type", "gpt2", 0},
      {"vocab_size", "53", 0},
      {"n_positions", "8", 0},
      {"n_embd", "16", 0},
      {"n_layer", "2", 0},
      {"n_head", "4", 0},
      {"resid_pdrop", "0.1", 0},
      {"embd_pdrop", "0.1", 0},
      {"attn_pdrop", "0.1", 0}},
     .has_mask = 1},
    {"qwen2, 4 kv heads, windows in the second layer",
     {{"model_type", "qwen2", 0},
      {"vocab_size", "64", 0},
      {"hidden_size", "16", 0},
      {"intermediate_size", "24", 0},
      {"num_hidden_layers", "2", 0},
      {"num_attention_heads", "4", 0},
      {"num_key_value_heads", "4", 0},
      {"use_sliding_window", "true", 0},
      {"sliding_window", "3", 0},
      {"max_window_layers", "1", 0},
      {"tie_word_embeddings", "true", 0}},
     .has_mask = 0},
    {"mistral, masked",
     {{"model_type", "mistral", 0},
      {"vocab_size", "61", 0},
      {"hidden_size", "16", 0},
      {"intermediate_size", "24", 0},
      {"num_hidden_layers", "2", 0},
      {"num_attention_heads", "8", 0},
      {"num_key_value_heads", "2", 0},
      {"sliding_window", "4", 0}},
     .has_mask = 1},
    {"gptj",
     {{"model_type", "gptj", 0},
      {"vocab_size", "61", 0},
      {"n_embd", "16", 0},
      {"n_layer", "2", 0},
      {"n_head", "4", 0},
      {"rotary_dim", "2", 0},
      {"resid_pdrop", "0.1", 0},
      {"embd_pdrop", "0.1", 0},
      {"attn_pdrop", "0.1", 0}},
     .has_mask = 1},
    {"cohere, 2 kv heads of 4, norms of heads",
     {{"model_type", "cohere", 0},
      {"vocab_size", "61", 0},
      {"hidden_size", "24", 0},
      {"intermediate_size", "24", 0},
      {"num_hidden_layers", "2", 0},
      {"num_attention_heads", "4", 0},
      {"num_key_value_heads", "2", 0},
      {"max_position_embeddings", "8", 0},
      {"use_qk_norm", "true", 0},
      {"attention_bias", "true", 0}},
     .has_mask = 1},
    {"falcon, one key head",
     {{"model_type", "falcon", 0},
      {"vocab_size", "61", 0},
      {"hidden_size", "16", 0},
      {"num_hidden_layers", "2", 0},
      {"num_attention_heads", "4", 0},
      {"hidden_dropout", "0.1", 0}},
     .has_mask = 1},
    {"falcon, groups of heads, two norms",
     {{"model_type", "falcon", 0},
      {"vocab_size", "61", 0},
      {"hidden_size", "16", 0},
      {"num_hidden_layers", "2", 0},
      {"num_attention_heads", "8", 0},
      {"num_kv_heads", "4", 0},
      {"new_decoder_architecture", "true", 0}},
     .has_mask = 0},
    {"falcon, slopes",
     {{"model_type", "falcon", 0},
      {"vocab_size", "61", 0},
      {"hidden_size", "24", 0},
      {"num_hidden_layers", "2", 0},
      {"num_attention_heads", "12", 0},
      {"multi_query", "false", 0},
      {"parallel_attn", "false", 0},
      {"alibi", "true", 0},
      {"bias", "true", 0},
      {"hidden_dropout", "0.1", 0},
      {"attention_dropout", "0.1", 0}},
     .has_mask = 1},
    {"bloom",
     {{"model_type", "bloom", 0},
      {"vocab_size", "61", 0},
      {"hidden_size", "24", 0},
      {"n_layer", "2", 0},
      {"n_head", "12", 0},
      {"hidden_dropout", "0.1", 0},
      {"attention_dropout", "0.1", 0}},
     .has_mask = 1},
    {"chatglm, 2 kv heads of 4",
     {{"model_type", "chatglm", 0},
      {"padded_vocab_size", "61", 0},
      {"hidden_size", "16", 0},
      {"ffn_hidden_size", "24", 0},
      {"num_layers", "2", 0},
      {"num_attention_heads", "4", 0},
      {"kv_channels", "8", 0},
      {"multi_query_attention", "true", 0},
      {"multi_query_group_num", "2", 0},
      {"add_qkv_bias", "true", 0},
      {"seq_length", "8", 0},
      {"hidden_dropout", "0.1", 0},
      {"attention_dropout", "0.1", 0}},
     .has_mask = 1},
    {"opt, narrow embedding",
     {{"model_type", "opt", 0},
      {"vocab_size", "61", 0},
      {"hidden_size", "16", 0},
      {"ffn_dim", "24", 0},
      {"num_hidden_layers", "2", 0},
      {"num_attention_heads", "4", 0},
      {"max_position_embeddings", "8", 0},
      {"word_embed_proj_dim", "12", 0},
      {"dropout", "0.1", 0},
      {"attention_dropout", "0.1", 0}},
     .has_mask = 1},
    {"bert",
     {{"model_type", "bert", 0},
      {"vocab_size", "61", 0},
      {"hidden_size", "16", 0},
      {"intermediate_size", "24", 0},
      {"num_hidden_layers", "2", 0},
      {"num_attention_heads", "4", 0},
      {"max_position_embeddings", "8", 0},
      {"type_vocab_size", "3", 0}},
     .has_mask = 1},
    {"bert, 3 classes of rows",
     {{"model_type", "bert", 0},
      {"architectures", "BertForSequenceClassification", 0},
      {"num_labels", "3", 0},
      {"vocab_size", "61", 0},
      {"hidden_size", "16", 0},
      {"intermediate_size", "24", 0},
      {"num_hidden_layers", "2", 0},
      {"num_attention_heads", "4", 0},
      {"max_position_embeddings", "8", 0}},
     .has_mask = 1},
    {"bert, pre-training",
     {{"model_type", "bert", 0},
      {"architectures", "BertForPreTraining", 0},
      {"vocab_size", "61", 0},
      {"hidden_size", "16", 0},
      {"intermediate_size", "24", 0},
      {"num_hidden_layers", "2", 0},
      {"num_attention_heads", "4", 0},
      {"max_position_embeddings", "8", 0}},
     .has_mask = 1},
    {"llama with adapters, 2 kv heads of 8",
     {{"model_type", "llama", 0},
      {"vocab_size", "61", 0},
      {"hidden_size", "16", 0},
      {"intermediate_size", "24", 0},
      {"num_hidden_layers", "2", 0},
      {"num_attention_heads", "8", 0},
      {"num_key_value_heads", "2", 0},
      {"max_position_embeddings", "8", 0}},
     .adapters = {"q_proj", "k_proj", "o_proj", "down_proj"}},
    {"falcon with adapters, packed heads",
     {{"model_type", "falcon", 0},
      {"vocab_size", "61", 0},
      {"hidden_size", "16", 0},
      {"num_hidden_layers", "2", 0},
      {"num_attention_heads", "4", 0}},
     .has_mask = 1,
     .adapters = {"query_key_value", "dense"}},
    {"llama, embeddings given, own criterion",
     {{"model_type", "llama", 0},
      {"vocab_size", "101", 0},
      {"hidden_size", "16", 0},
      {"intermediate_size", "24", 0},
      {"num_hidden_layers", "1", 0},
      {"num_attention_heads", "4", 0},
      {"num_key_value_heads", "1", 0},
      {"max_position_embeddings", "8", 0}},
     .has_embeds = 1,
     .criterion = scaled_loss},
    {"gpt2, no head",
     {{"model_type", "gpt2", 0},
      {"vocab_size", "101", 0},
      {"n_positions", "8", 0},
      {"n_embd", "16", 0},
      {"n_layer", "1", 0},
      {"n_head", "4", 0}},
     .no_head = 1,
     .criterion = probe_loss},
};

static struct zb_model *make(const struct model_case *c,
                             const struct zb_parallel *par)
{
    struct zb_model_opts opts = {.has_key_mask = c->has_mask, .par = par};
    struct zb_model *m;
    size_t n = 0;

    while (opts.n_lora_targets < ZB_COUNT_OF(c->adapters) &&
           c->adapters[opts.n_lora_targets] != NULL) {
        opts.n_lora_targets++;
        opts.lora_targets = c->adapters;
        opts.lora_rank = 3;
        opts.lora_alpha = 4;
    }

    while (c->keys[n].name != NULL) {
        n++;
    }
    ZBT_OK(zb_model_from_keys(c->keys, n, c->name, &opts, &m));
    return m;
}

/* Fields of the batch in the graph's order. */
struct fields {
    int32_t value[6][ROWS * MAX_SEQ];
    zb_real embeds[ROWS * MAX_SEQ * HIDDEN];
    const void *data[6];
    struct rig_batch batch;
};

static void make_fields(const struct zb_graph *g, int seq, struct fields *f)
{
    int64_t vocab = 0;

    rig_random(9, f->embeds, ROWS * MAX_SEQ * HIDDEN, 1);
    for (int d = 0; d < zb_graph_n_data(g); d++) {
        int64_t n = zb_graph_data_range(g, d);

        vocab = n > vocab ? n : vocab;
    }
    vocab = vocab == 0 ? 101 : vocab;
    for (int d = 0; d < zb_graph_n_data(g); d++) {
        const char *name = zb_graph_data(g, d).name;
        struct zbt_rng rng = {(unsigned long long)name[0]};

        for (int i = 0; i < ROWS * seq; i++) {
            int32_t v = (int32_t)zbt_rand_in(&rng, 0, (long)vocab - 1);

            if (strcmp(name, "attention_mask") == 0) {
                v = !(i / seq == 1 && i % seq < 2);
            } else if (strcmp(name, "position_ids") == 0) {
                v = i % seq - (i / seq == 1);
            } else if (strcmp(name, "token_type_ids") == 0) {
                v %= 2;
            } else if (zb_graph_data(g, d).shape.n_dims == 1) {
                v %= strcmp(name, "labels") == 0 ? 3 : 2;
            } else if (strcmp(name, "labels") == 0) {
                v = i % 5 == 1 ? -100 : v;
            }
            f->value[d][i] = v;
        }
        f->data[d] = zb_graph_data(g, d).dtype == ZB_DTYPE_REAL
                         ? (const void *)f->embeds
                         : f->value[d];
    }
    f->batch = (struct rig_batch){ROWS, seq, f->data};
}

static double worst_error(const struct zb_graph *g,
                          const struct par_result *want,
                          const struct par_result *got)
{
    double total = 0, worst = 0;

    for (int pass = 0; pass < 2; pass++) {
        for (int p = 0; p < want->n_params; p++) {
            struct zb_param_info info = zb_graph_param(g, p);
            int64_t n = zb_shape_elems(&info.whole);
            double e;

            for (int64_t i = 0; pass == 0 && i < n; i++) {
                total += want->grad[p][i] * want->grad[p][i];
            }
            if (pass == 0) {
                continue;
            }
            e = golden_error(got->grad[p], want->grad[p], n,
                             1e-3 * sqrt(total));
            if (!(e <= TOL)) {
                printf("\n%s: error %.3g", info.name, e);
            }
            worst = e <= worst ? worst : e;
        }
    }
    return worst;
}

/* One chunk per layer when n is 0. */
static int cut_layers(const struct zb_graph *g, int n, int *first)
{
    int n_layers = zb_graph_n_layers(g);

    n = n == 0 ? n_layers : n;
    for (int c = 0; c <= n; c++) {
        first[c] = c * n_layers / n;
    }
    return n;
}

static void run(const struct zb_graph *g, zb_real *const *params, int seq,
                struct par_opts *o, int n_chunks, struct par_result *r)
{
    struct fields f;
    int first[16];

    o->n_chunks = cut_layers(g, n_chunks, first);
    o->first = first;
    o->seed = 11;
    o->step = 3;
    o->delay_seed = 1;
    make_fields(g, seq, &f);
    par_run(g, params, &f.batch, o, r);
}

static void compare(const struct zb_graph *g, const struct par_result *want,
                    const struct par_result *got, const char *what)
{
    double e = worst_error(g, want, got);

    printf("\n  %s: loss off by %.2g, gradients within %.2g", what,
           got->loss - want->loss, e);
    CU_ASSERT(e <= TOL);
    CU_ASSERT(fabs(got->loss - want->loss) <= TOL * fabs(want->loss));
    CU_ASSERT_EQUAL_FATAL(got->n_output, want->n_output);
    CU_ASSERT(golden_error(got->output, want->output, want->n_output, 0) <=
              TOL);
}

static int same_bits(const struct zb_graph *g, const struct par_result *a,
                     const struct par_result *b)
{
    int same = memcmp(&a->loss, &b->loss, sizeof(a->loss)) == 0;

    for (int p = 0; p < a->n_params; p++) {
        struct zb_param_info info = zb_graph_param(g, p);

        same &=
            memcmp(a->grad[p], b->grad[p],
                   (size_t)zb_shape_elems(&info.whole) * sizeof(double)) == 0;
    }
    return same;
}

/* How a test makes its graph for a layout. */
typedef struct zb_model *(*make_fn)(const void *arg,
                                    const struct zb_parallel *par);

static struct zb_model *make_case(const void *arg,
                                  const struct zb_parallel *par)
{
    return make(arg, par);
}

/* Of the layout: against one device, and other cuts against the first. */
static void check_layout(make_fn fn, const void *arg, const char *backend,
                         const struct zb_parallel *par, int seq,
                         zb_real *const *params, const struct par_result *want)
{
    struct zb_model *m = fn(arg, par);
    const struct zb_graph *g = zb_model_graph(m);
    struct par_opts o = {.backend = backend};
    struct par_result r, other;
    char what[64];

    snprintf(what, sizeof(what), "tp %d%s", par->tp,
             par->mode == ZB_SEQ_SPLIT_GATHER ? " split_gather" : "");
    run(g, params, seq, &o, 1, &r);
    compare(g, want, &r, what);
    for (int n = 0; n < 3; n += 2) {
        run(g, params, seq, &o, n, &other);
        CU_ASSERT(same_bits(g, &r, &other));
        par_result_free(&other);
    }
    for (int again = ZB_RECOMPUTE_SELECTIVE; again <= ZB_RECOMPUTE_FULL;
         again++) {
        o.recompute = (enum zb_recompute)again;
        run(g, params, seq, &o, 2, &other);
        CU_ASSERT(same_bits(g, &r, &other));
        par_result_free(&other);
    }
    par_result_free(&r);
    zb_model_free(m);
}

static void check_all(make_fn fn, const void *arg, const char *backend, int seq)
{
    static const struct zb_parallel one = {1, 1, ZB_SEQ_WHOLE, 1};
    struct zb_model *m = fn(arg, &one);
    const struct zb_graph *g = zb_model_graph(m);
    zb_real **params = rig_params(g, 3);
    struct par_opts o = {.backend = backend};
    struct par_result want;

    run(g, params, seq, &o, 1, &want);
    for (int tp = 2; tp <= 4; tp += 2) {
        for (int mode = 0; mode < 2; mode++) {
            struct zb_parallel par = {tp, 1,
                                      mode ? ZB_SEQ_SPLIT_GATHER : ZB_SEQ_WHOLE,
                                      tp == 2 ? 64 : 3};

            check_layout(fn, arg, backend, &par, seq, params, &want);
        }
    }
    par_result_free(&want);
    rig_params_free(g, params);
    zb_model_free(m);
}

static void check_case(const struct model_case *c, const char *backend, int seq)
{
    printf("\n  %s:", c->name);
    check_all(make_case, c, backend, seq);
}

static void models_of_any_tp_agree_with_one_device(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(cases); i++) {
        check_case(&cases[i], "cpu", MAX_SEQ);
    }
}

static void models_on_check_backend_are_reported_nothing(void)
{
    for (size_t i = 0; i < ZB_COUNT_OF(cases); i++) {
        check_case(&cases[i], "check", MAX_SEQ);
    }
}

/* Sequences of 7, padded to 8. */
static void padded_sequences_agree_with_one_device(void)
{
    for (size_t i = 0; i < 3; i++) {
        check_case(&cases[i], "cpu", 7);
    }
}

/* ---- graphs by hand ------------------------------------------------------ */

#define H 12
#define INNER 24
#define HEAD 3 /* elements of one */

static int norm_weight(struct zb_graph *g, const char *name, int64_t n)
{
    const struct zb_param_opts opts = {.init = ZB_INIT_ONES};

    return zb_g_param(g, name, 1, &n, &opts);
}

static int matrix(struct zb_graph *g, const char *name, int64_t rows,
                  int64_t cols, struct zb_split split)
{
    const struct zb_param_opts opts = {
        .init = ZB_INIT_NORMAL, .std = 0.1, .split = split};
    const int64_t dim[] = {rows, cols};

    return zb_g_param(g, name, 2, dim, &opts);
}

static int vector(struct zb_graph *g, const char *name, int64_t n,
                  struct zb_split split)
{
    const struct zb_param_opts opts = {.init = ZB_INIT_ZEROS, .split = split};

    return zb_g_param(g, name, 1, &n, &opts);
}

/* Heads with a norm of their own, whose weight all heads share. */
static int normed_heads(struct zb_graph *g, int x)
{
    const int64_t heads[] = {batch_seq[0], batch_seq[1], ZB_DIM_REST, HEAD};
    const int64_t flat[] = {batch_seq[0], batch_seq[1], ZB_DIM_REST};

    x = zb_g_reshape(g, x, 4, heads);
    x = zb_g_rmsnorm(g, x, norm_weight(g, "head norm", HEAD), 1e-5);
    return zb_g_reshape(g, x, 3, flat);
}

/* Ends a model of two layers: a head that every rank has, and the loss. */
static struct zb_model *with_head(struct zb_graph *g, int x, int labels)
{
    const struct zb_split none = {0};
    struct zb_model *m;

    zb_g_layer(g, "head");
    x = zb_g_linear(g, x, matrix(g, "head", 31, H, none), ZB_G_NONE, 0);
    zb_g_output(g, "logits", x);
    zb_g_loss(g, zb_g_xent(g, x, labels), labels);
    ZBT_OK(zb_graph_finish(g));
    ZBT_OK(zb_model_from_graph(g, 1, 2, &m));
    return m;
}

/* Tables and a head that every rank has, before and after a split layer. */
static struct zb_model *make_mixed(const void *arg,
                                   const struct zb_parallel *par)
{
    const struct zb_split none = {0};
    const struct zb_split cols = {0, 1, {INNER}, {INNER / HEAD}, 0};
    const struct zb_split rows = {1, 1, {INNER}, {INNER / HEAD}, 0};
    const int64_t seen[] = {batch_seq[0], batch_seq[1], H};
    struct zb_graph *g;
    int ids, labels, x, y;

    (void)arg;
    ZBT_OK(zb_graph_new_parallel(par, &g));
    ids = zb_g_data(g, "ids", ZB_DTYPE_I32, 2, batch_seq);
    labels = zb_g_data(g, "labels", ZB_DTYPE_I32, 2, batch_seq);
    zb_g_layer(g, "embed");
    x = zb_g_embedding(g, ids, matrix(g, "table", 31, H, none), -1);
    x = zb_g_position(g, x, matrix(g, "places", 8, H, none), 0);
    x = zb_g_layernorm(g, x, norm_weight(g, "first norm", H), ZB_G_NONE, 1e-5);
    for (int i = 0; i < 2; i++) {
        zb_g_layer(g, i == 0 ? "one" : "two");
        y = zb_g_linear(g, x, matrix(g, i ? "a2" : "a", INNER, H, cols),
                        vector(g, i ? "ab2" : "ab", INNER, cols), 0);
        y = normed_heads(g, y);
        y = zb_g_linear(g, zb_g_act(g, y, ZB_ACT_SILU),
                        matrix(g, i ? "b2" : "b", H, INNER, rows),
                        vector(g, i ? "bb2" : "bb", H, none), 0);
        x = zb_g_add(g, x, zb_g_dropout(g, y, 0.2));
        x = zb_g_reshape(g, x, 3, seen);
    }
    return with_head(g, x, labels);
}

static void layers_all_ranks_have_mix_with_split_ones(void)
{
    check_all(make_mixed, NULL, "cpu", MAX_SEQ);
    check_all(make_mixed, NULL, "cpu", 5);
}

static void partial_gradients_are_those_of_split_tokens_and_heads(void)
{
    static const char *const names[] = {"table", "first norm", "head norm",
                                        "ab",    "bb",         "head"};
    static const int want[2][6] = {{0, 0, 1, 0, 0, 0}, {0, 0, 1, 0, 1, 1}};

    for (int mode = 0; mode < 2; mode++) {
        struct zb_parallel par = {2, 1,
                                  mode ? ZB_SEQ_SPLIT_GATHER : ZB_SEQ_WHOLE, 1};
        struct zb_model *m = make_mixed(NULL, &par);
        const struct zb_graph *g = zb_model_graph(m);

        for (int i = 0; i < 6; i++) {
            struct zb_param_info info =
                zb_graph_param(g, zb_graph_find_param(g, names[i]));

            CU_ASSERT_EQUAL(info.is_partial, want[mode][i]);
            CU_ASSERT_EQUAL(info.n_copies, i == 3 ? 1 : 2);
        }
        zb_model_free(m);
    }
}

/* One matrix and bias with 4 heads of queries, and `arg` of keys and values,
 * of 3 elements each. */
static struct zb_model *make_packed(const void *arg,
                                    const struct zb_parallel *par)
{
    const int64_t n_kv = *(const int *)arg, q = 4 * HEAD, kv = n_kv * HEAD;
    const struct zb_split none = {0}, rows = {1, 1, {q}, {4}, 0};
    const struct zb_split packed = {0, 3, {q, kv, kv}, {4, n_kv, n_kv}, 0};
    const int64_t heads[] = {batch_seq[0], batch_seq[1], ZB_DIM_REST, HEAD};
    const int64_t size[] = {q, kv, kv}, first[] = {0, q, q + kv};
    const struct zb_attn_opts o = {
        .causal = 1, .scale = 0.9, .dropout = 0.2, .key_mask = ZB_G_NONE};
    struct zb_graph *g;
    int ids, labels, x, y, part[3];

    ZBT_OK(zb_graph_new_parallel(par, &g));
    ids = zb_g_data(g, "ids", ZB_DTYPE_I32, 2, batch_seq);
    labels = zb_g_data(g, "labels", ZB_DTYPE_I32, 2, batch_seq);
    zb_g_layer(g, "embed");
    x = zb_g_embedding(g, ids, matrix(g, "table", 31, H, none), -1);
    for (int i = 0; i < 2; i++) {
        zb_g_layer(g, i == 0 ? "one" : "two");
        y = zb_g_linear(g, x,
                        matrix(g, i ? "qkv2" : "qkv", q + 2 * kv, H, packed),
                        vector(g, i ? "qkvb2" : "qkvb", q + 2 * kv, packed), 0);
        for (int k = 0; k < 3; k++) {
            part[k] = zb_g_reshape(g, zb_g_slice(g, y, first[k], size[k]), 4,
                                   heads);
        }
        y = zb_g_attention(g, part[0], part[1], part[2], &o);
        x = zb_g_add(g, x,
                     zb_g_linear(g, y, matrix(g, i ? "o2" : "o", H, q, rows),
                                 ZB_G_NONE, 0));
    }
    return with_head(g, x, labels);
}

static void packed_heads_fewer_than_ranks_agree_with_one_device(void)
{
    static const int n_kv[] = {1, 2, 4};

    for (size_t i = 0; i < ZB_COUNT_OF(n_kv); i++) {
        check_all(make_packed, &n_kv[i], "cpu", MAX_SEQ);
        check_all(make_packed, &n_kv[i], "cpu", 7);
    }
    check_all(make_packed, &n_kv[0], "check", MAX_SEQ);
}

/* ---- shards -------------------------------------------------------------- */

static struct zb_graph *with_param(int tp, int64_t rows, int64_t cols,
                                   struct zb_split split)
{
    const struct zb_parallel par = {tp, 1, ZB_SEQ_WHOLE, 8};
    struct zb_graph *g;

    ZBT_OK(zb_graph_new_parallel(&par, &g));
    zb_g_layer(g, "l");
    matrix(g, "w", rows, cols, split);
    zb_g_loss(g, zb_g_data(g, "x", ZB_DTYPE_REAL, 2, batch_seq), ZB_G_NONE);
    ZBT_OK(zb_graph_finish(g));
    return g;
}

static void expect_piece(const struct zb_piece *p, int64_t rows, int64_t cols,
                         int64_t shard_first, int64_t shard_ld,
                         int64_t whole_first, int64_t whole_ld)
{
    CU_ASSERT_EQUAL(p->rows, rows);
    CU_ASSERT_EQUAL(p->cols, cols);
    CU_ASSERT_EQUAL(p->shard_first, shard_first);
    CU_ASSERT_EQUAL(p->whole_first, whole_first);
    CU_ASSERT(rows == 1 || p->shard_ld == shard_ld);
    CU_ASSERT(rows == 1 || p->whole_ld == whole_ld);
}

static void shard_of_packed_columns_has_a_piece_of_each_part(void)
{
    const struct zb_split qkv = {1, 3, {8, 8, 8}, {4, 4, 4}, 0};
    struct zb_graph *g = with_param(2, 5, 24, qkv);
    struct zb_param_info info = zb_graph_param(g, 0);
    struct zb_piece p[ZB_SPLIT_MAX];

    CU_ASSERT_EQUAL(info.shape.dim[1], 12);
    CU_ASSERT_EQUAL(info.whole.dim[1], 24);
    CU_ASSERT_EQUAL(info.n_copies, 1);
    CU_ASSERT_EQUAL_FATAL(zb_graph_param_pieces(g, 0, 1, p), 3);
    for (int i = 0; i < 3; i++) {
        expect_piece(&p[i], 5, 4, 4 * i, 12, 8 * i + 4, 24);
    }
    zb_graph_free(g);
}

static void shard_of_fewer_heads_than_ranks_is_repeated(void)
{
    const struct zb_split kv = {0, 1, {6}, {2}, 0};
    struct zb_graph *g = with_param(4, 6, 5, kv);
    struct zb_piece p[ZB_SPLIT_MAX];

    CU_ASSERT_EQUAL(zb_graph_param(g, 0).n_copies, 2);
    CU_ASSERT_EQUAL(zb_graph_param(g, 0).shape.dim[0], 3);
    for (int r = 0; r < 4; r++) {
        CU_ASSERT_EQUAL(zb_graph_param_pieces(g, 0, r, p), 1);
        expect_piece(p, 1, 15, 0, 0, r / 2 * 15, 0);
    }
    zb_graph_free(g);
}

/* Of [q heads | key heads | value heads] the last two. */
static void shard_of_packed_rows_repeats_some_of_its_parts(void)
{
    const struct zb_split qkv = {0, 3, {8, 4, 4}, {4, 2, 2}, 0};
    struct zb_graph *g = with_param(4, 16, 5, qkv);
    struct zb_copies c[ZB_SPLIT_MAX];
    struct zb_piece p[ZB_SPLIT_MAX];

    CU_ASSERT_EQUAL(zb_graph_param(g, 0).shape.dim[0], 6);
    CU_ASSERT_EQUAL(zb_graph_param(g, 0).n_copies, 1);
    CU_ASSERT_EQUAL_FATAL(zb_graph_param_copies(g, 0, c), 2);
    CU_ASSERT(c[0].first == 0 && c[0].n == 2 * 5 && c[0].n_copies == 1);
    CU_ASSERT(c[1].first == 10 && c[1].n == 4 * 5 && c[1].n_copies == 2);
    for (int r = 0; r < 4; r++) {
        CU_ASSERT_EQUAL_FATAL(zb_graph_param_pieces(g, 0, r, p), 3);
        expect_piece(&p[0], 1, 10, 0, 0, 10 * r, 0);
        expect_piece(&p[1], 1, 10, 10, 0, 40 + r / 2 * 10, 0);
        expect_piece(&p[2], 1, 10, 20, 0, 60 + r / 2 * 10, 0);
    }
    zb_graph_free(g);
}

static void shard_of_other_parameters_is_one_run_of_copies(void)
{
    const struct zb_split none = {0}, cols = {1, 3, {8, 8, 8}, {2, 2, 2}, 0};
    const struct zb_split splits[] = {none, cols};
    static const int want[] = {4, 2};

    for (int i = 0; i < 2; i++) {
        struct zb_graph *g = with_param(4, 5, 24, splits[i]);
        struct zb_copies c[ZB_SPLIT_MAX];
        struct zb_param_info info = zb_graph_param(g, 0);

        CU_ASSERT_EQUAL_FATAL(zb_graph_param_copies(g, 0, c), 1);
        CU_ASSERT(c[0].first == 0 && c[0].n == zb_shape_elems(&info.shape));
        CU_ASSERT_EQUAL(c[0].n_copies, want[i]);
        CU_ASSERT_EQUAL(info.n_copies, want[i]);
        zb_graph_free(g);
    }
}

static void shard_of_vocabulary_ends_with_padding(void)
{
    const struct zb_split vocab = {0, 1, {20}, {0}, 1};
    struct zb_graph *g = with_param(4, 20, 3, vocab); /* 32 rows, 8 each */
    struct zb_piece p[ZB_SPLIT_MAX];

    CU_ASSERT_EQUAL(zb_graph_param(g, 0).shape.dim[0], 8);
    CU_ASSERT_EQUAL(zb_graph_param_pieces(g, 0, 1, p), 1);
    expect_piece(p, 1, 24, 0, 0, 24, 0);
    CU_ASSERT_EQUAL(zb_graph_param_pieces(g, 0, 2, p), 1);
    expect_piece(p, 1, 12, 0, 0, 48, 0);
    CU_ASSERT_EQUAL(zb_graph_param_pieces(g, 0, 3, p), 0);
    zb_graph_free(g);
}

/* ---- mistakes ------------------------------------------------------------ */

typedef void (*build_fn)(struct zb_graph *g, int x);

static const struct zb_split no_split;
static const struct zb_split split_out = {0, 1, {8}, {8}, 0};
static const struct zb_split split_in = {1, 1, {8}, {8}, 0};

static void odd_heads(struct zb_graph *g, int x)
{
    const struct zb_split three = {0, 1, {6}, {3}, 0};

    zb_g_linear(g, x, matrix(g, "w", 6, 8, three), ZB_G_NONE, 0);
}

static void norm_of_columns(struct zb_graph *g, int x)
{
    x = zb_g_linear(g, x, matrix(g, "w", 8, 8, split_out), ZB_G_NONE, 0);
    zb_g_rmsnorm(g, x, norm_weight(g, "n", 4), 1e-5);
}

static void rows_of_whole(struct zb_graph *g, int x)
{
    zb_g_linear(g, zb_g_slice(g, x, 0, 4), matrix(g, "w", 8, 8, split_in),
                ZB_G_NONE, 0);
}

static void whole_weight_of_columns(struct zb_graph *g, int x)
{
    x = zb_g_linear(g, x, matrix(g, "w", 8, 8, split_out), ZB_G_NONE, 0);
    zb_g_linear(g, x, matrix(g, "v", 8, 4, no_split), ZB_G_NONE, 0);
}

static void sum_of_both(struct zb_graph *g, int x)
{
    int y = zb_g_linear(g, x, matrix(g, "w", 8, 8, split_out), ZB_G_NONE, 0);

    zb_g_add(g, y, zb_g_slice(g, x, 0, 4));
}

static void dropout_of_columns(struct zb_graph *g, int x)
{
    x = zb_g_linear(g, x, matrix(g, "w", 8, 8, split_out), ZB_G_NONE, 0);
    zb_g_dropout(g, x, 0.1);
}

static void half_a_part(struct zb_graph *g, int x)
{
    x = zb_g_linear(g, x, matrix(g, "w", 8, 8, split_out), ZB_G_NONE, 0);
    zb_g_slice(g, x, 0, 2);
}

static void repeated_columns(struct zb_graph *g, int x)
{
    const struct zb_split packed = {1, 2, {8, 2}, {4, 1}, 0};

    zb_g_linear(g, x, matrix(g, "w", 8, 10, packed), ZB_G_NONE, 1);
}

static void parts_not_taken_apart(struct zb_graph *g, int x)
{
    const struct zb_split packed = {0, 2, {8, 2}, {4, 1}, 0};
    const struct zb_split in = {1, 1, {12}, {6}, 0};

    x = zb_g_linear(g, x, matrix(g, "w", 10, 8, packed), ZB_G_NONE, 0);
    zb_g_linear(g, x, matrix(g, "v", 8, 12, in), ZB_G_NONE, 0);
}

static void used_in_both_ways(struct zb_graph *g, int x)
{
    const int64_t heads[] = {batch_seq[0], batch_seq[1], ZB_DIM_REST, 2};
    int n = norm_weight(g, "n", 2);
    int y = zb_g_linear(g, x, matrix(g, "w", 8, 8, split_out), ZB_G_NONE, 0);

    zb_g_rmsnorm(g, zb_g_reshape(g, x, 4, heads), n, 1e-5);
    zb_g_rmsnorm(g, zb_g_reshape(g, y, 4, heads), n, 1e-5);
}

static void mistakes_of_layouts_name_what_does_not_fit(void)
{
    static const struct {
        build_fn build;
        const char *text;
    } wrong[] = {
        {odd_heads, "parameter 'w' [6,8]: 3 parts of dimension 0 do not "
                    "divide evenly over tp = 2"},
        {norm_of_columns, "layer 'l', rmsnorm: with tp = 2 input 'x' is split "
                          "by columns or heads: it needs whole rows"},
        {rows_of_whole, "layer 'l', linear: with tp = 2 input 'x' is whole on "
                        "every rank: the weight wants columns"},
        {whole_weight_of_columns, "layer 'l', linear: with tp = 2 input 'x' "
                                  "is split by columns or heads: the weight "
                                  "is not split"},
        {sum_of_both, "layer 'l', add: with tp = 2 input 'a' is split by "
                      "columns or heads and 'b' is whole on every rank"},
        {dropout_of_columns, "layer 'l', dropout: with tp = 2 input 'x' is "
                             "split by columns or heads: dropout"},
        {half_a_part, "layer 'l', slice: with tp = 2 columns [0, 2) are no "
                      "whole part of 'w'"},
        {repeated_columns, "parameter 'w' [8,10] packs parts of which only "
                           "some are repeated over tp = 2: its rows may"},
        {parts_not_taken_apart, "layer 'l', linear: with tp = 2 input 'x' is "
                                "split by columns or heads: the weight wants "
                                "columns, each of one rank"},
        {used_in_both_ways, "layer 'l', rmsnorm: with tp = 2 parameter 'n' is "
                            "used on whole and on split activations"},
    };
    static const int64_t dim[] = {ZB_DIM(ZB_SYM_BATCH), ZB_DIM(ZB_SYM_SEQ), 8};
    const struct zb_parallel par = {2, 1, ZB_SEQ_WHOLE, 1};

    for (size_t i = 0; i < ZB_COUNT_OF(wrong); i++) {
        struct zb_graph *g;
        int x;

        ZBT_OK(zb_graph_new_parallel(&par, &g));
        x = zb_g_data(g, "x", ZB_DTYPE_REAL, 3, dim);
        zb_g_layer(g, "l");
        wrong[i].build(g, x);
        zb_g_loss(g, x, ZB_G_NONE);
        CU_ASSERT_EQUAL(zb_graph_finish(g), ZB_EINVAL);
        if (strstr(zb_error_text(), wrong[i].text) == NULL) {
            printf("\n%s\n", zb_error_text());
            CU_FAIL("another message");
        }
        zb_graph_free(g);
    }
}

static void model_that_tp_does_not_divide_is_refused_by_key(void)
{
    static const char *const key[] = {
        "num_attention_heads", "num_key_value_heads", "intermediate_size"};
    static const char *const value[] = {"6", "3", "18"};
    const struct zb_parallel par = {4, 1, ZB_SEQ_WHOLE, 1};
    const struct zb_model_opts opts = {.par = &par};

    for (size_t i = 0; i < ZB_COUNT_OF(key); i++) {
        struct zb_model_key keys[] = {
            {"model_type", "llama", 0},       {"hidden_size", "24", 0},
            {"num_attention_heads", "12", 0}, {"num_key_value_heads", "12", 0},
            {"intermediate_size", "16", 0},
        };
        struct zb_model *m;

        for (size_t k = 0; k < ZB_COUNT_OF(keys); k++) {
            if (strcmp(keys[k].name, key[i]) == 0) {
                keys[k].value = value[i];
                keys[3].value = i == 0 ? "6" : keys[3].value;
            }
        }
        CU_ASSERT_EQUAL(
            zb_model_from_keys(keys, ZB_COUNT_OF(keys), "config", &opts, &m),
            ZB_ECONFIG);
        CU_ASSERT(strstr(zb_error_text(), key[i]) != NULL);
        CU_ASSERT(strstr(zb_error_text(), "tp_size 4") != NULL);
    }
}

/* The k-th allocation fails, for every k. */
static void shards_without_memory_fail_clean(void)
{
    const struct zb_parallel par = {2, 1, ZB_SEQ_SPLIT_GATHER, 64};

    for (int64_t k = 1;; k++) {
        int64_t before = zb_mem_live();
        const struct zb_model_opts opts = {.par = &par};
        struct zb_bind max = zb_parallel_bind(&par, 2, 8);
        struct zb_model *m = NULL;
        struct zb_chunk *c = NULL;
        enum zb_status st;
        int failed;

        zb_mem_fail_at((unsigned long long)k);
        st = zb_model_from_keys(cases[2].keys, 9, "config", &opts, &m);
        if (st == ZB_OK) {
            const struct zb_graph *g = zb_model_graph(m);

            st = zb_chunk_new(g, 0, zb_graph_n_layers(g), &max,
                              ZB_RECOMPUTE_NONE, &c);
        }
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        zb_chunk_free(c);
        zb_model_free(m);
        CU_ASSERT_EQUAL(zb_mem_live(), before);
        if (!failed) {
            CU_ASSERT_EQUAL(st, ZB_OK);
            break;
        }
        CU_ASSERT_EQUAL(st, ZB_ENOMEM);
    }
}

int main(void)
{
    static const struct zbt_case list[] = {
        ZBT_CASE(models_of_any_tp_agree_with_one_device),
        ZBT_CASE(models_on_check_backend_are_reported_nothing),
        ZBT_CASE(padded_sequences_agree_with_one_device),
        ZBT_CASE(layers_all_ranks_have_mix_with_split_ones),
        ZBT_CASE(partial_gradients_are_those_of_split_tokens_and_heads),
        ZBT_CASE(packed_heads_fewer_than_ranks_agree_with_one_device),
        ZBT_CASE(shard_of_packed_columns_has_a_piece_of_each_part),
        ZBT_CASE(shard_of_fewer_heads_than_ranks_is_repeated),
        ZBT_CASE(shard_of_packed_rows_repeats_some_of_its_parts),
        ZBT_CASE(shard_of_other_parameters_is_one_run_of_copies),
        ZBT_CASE(shard_of_vocabulary_ends_with_padding),
        ZBT_CASE(mistakes_of_layouts_name_what_does_not_fit),
        ZBT_CASE(model_that_tp_does_not_divide_is_refused_by_key),
        ZBT_CASE(shards_without_memory_fail_clean),
    };

    return zbt_run("tp", list, ZB_COUNT_OF(list));
}
