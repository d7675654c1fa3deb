/* SPDX-License-Identifier: MIT
 *
 * Configs: what is read, what is refused and with which words, and what a model
 * says about itself.
 */
#include "config.h"
#include "graph_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "zb/ckpt.h"
#include "zb/mem.h"
#include "zb/model.h"

#define LLAMA                                                                  \
    "{\"model_type\": \"llama\",\n \"vocab_size\": 32,\n"                     \
    " \"hidden_size\": 16,\n \"intermediate_size\": 24,\n"                     \
    " \"num_hidden_layers\": 2,\n \"num_attention_heads\": 4,\n" \
    " \"max_position_embeddings\": 64"
#define GPT2                                                                   \
    "{\"model_type\": \"gpt2\",\n \"vocab_size\": 32,\n"                      \
    " \"n_positions\": 16,\n \"n_embd\": 16,\n \"n_layer\": 2,\n \"n_head\": 4"

static const struct zb_model_opts plain;

static struct zb_model *model_of(const char *text)
{
    struct zb_model *m;

    ZBT_OK(zb_model_from_json(text, "config.json", &plain, &m));
    return m;
}

static void expect_words(const char *const *words)
{
    for (; *words != NULL; words++) {
        if (strstr(zb_error_text(), *words) == NULL) {
            printf("\n\"%s\" does not say \"%s\"\n", zb_error_text(), *words);
            CU_FAIL("message");
        }
    }
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void refused(const char *text, const char *const *words)
{
    struct zb_model *m;

    CU_ASSERT_EQUAL(zb_model_from_json(text, "config.json", &plain, &m),
                    ZB_ECONFIG);
    expect_words(words);
}

/* ---- files --------------------------------------------------------------- */

static void broken_json_names_line(void)
{
    refused("{\"model_type\": \"llama\",\n\n oops", WORDS("config.json:3"));
    refused("[1, 2]", WORDS("config.json", "object"));
    refused("", WORDS("config.json"));
    refused("{\"a\": 1, \"a\": 2}", WORDS("config.json", "duplicate"));
}

static void unknown_family_lists_families(void)
{
    refused("{\"vocab_size\": 3}", WORDS("config.json", "model_type"));
    refused("{\"model_type\": \"lama\"}",
            WORDS("lama", "did you mean 'llama'", "gpt2"));
    refused("{\"model_type\": 3}", WORDS("config.json", "model_type"));
}

#define QWEN2                                                                  \
    "{\"model_type\": \"qwen2\", \"vocab_size\": 32, \"hidden_size\": 16,"     \
    " \"intermediate_size\": 24, \"num_hidden_layers\": 2,"                    \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"                 \
    " \"max_position_embeddings\": 64"

static void layer_types_of_qwen2_are_checked(void)
{
    refused(QWEN2 ", \"layer_types\": [\"full_attention\"]}",
            WORDS("'layer_types'", "1 entries", "2"));
    refused(QWEN2 ", \"layer_types\": [\"full_attention\", \"linear\"]}",
            WORDS("'layer_types'", "'linear' of layer 1"));
    refused(QWEN2 ", \"layer_types\": {}}",
            WORDS("'layer_types'", "a list in brackets"));
    zb_model_free(model_of(QWEN2 ", \"layer_types\": [\"full_attention\","
                                 " \"sliding_attention\"]}"));
    refused("{\"model_type\": \"mistral\", \"sliding_window\": 0}",
            WORDS("'sliding_window'", "0 is not between 1"));
}

static void rotary_dim_of_gptj_is_checked(void)
{
    refused("{\"model_type\": \"gptj\", \"n_embd\": 32, \"n_head\": 4,"
            " \"rotary_dim\": 10}",
            WORDS("'rotary_dim'", "10", "8"));
    refused("{\"model_type\": \"gptj\", \"rotary_dim\": null}",
            WORDS("'rotary_dim'", "null"));
    refused("{\"model_type\": \"gptj\", \"rotary\": false}", WORDS("'rotary'"));
}

static void forms_of_falcon_are_checked(void)
{
    refused("{\"model_type\": \"falcon\", \"parallel_attn\": false,"
            " \"new_decoder_architecture\": true}",
            WORDS("'parallel_attn'", "new_decoder_architecture"));
    refused("{\"model_type\": \"falcon\", \"n_head\": 71,"
            " \"n_head_kv\": 8, \"new_decoder_architecture\": true}",
            WORDS("'n_head_kv'", "8", "71"));
}

/* The slopes of 6 and 12 heads, of the paper. */
static void alibi_slopes_are_those_of_the_paper(void)
{
    static const double want[2][12] = {
        {.25, .0625, .015625, .00390625, .5, .125},
        {.5, .25, .125, .0625, .03125, .015625, .0078125, .00390625, .70710678,
         .35355339, .1767767, .08838835},
    };
    static const char *const text[] = {
        "{\"model_type\": \"falcon\", \"alibi\": true, \"n_head\": 6,"
        " \"hidden_size\": 6, \"n_layer\": 1}",
        "{\"model_type\": \"falcon\", \"alibi\": true, \"n_head\": 12,"
        " \"hidden_size\": 12, \"n_layer\": 1}",
    };

    for (int k = 0; k < 2; k++) {
        struct zb_model *m = model_of(text[k]);
        const struct zb_graph *g = zb_model_graph(m);

        CU_ASSERT_STRING_EQUAL(zb_graph_const(g, 0).name, "alibi");
        for (int h = 0; h < 6 * (k + 1); h++) {
            /* rounded to 8 bits */
            CU_ASSERT_DOUBLE_EQUAL(zb_graph_const_value(g, 0)[h], want[k][h],
                                   want[k][h] / 500);
        }
        zb_model_free(m);
    }
}

static void forms_of_chatglm_are_checked(void)
{
    refused("{\"model_type\": \"chatglm\", \"add_bias_linear\": true}",
            WORDS("'add_bias_linear'"));
    refused("{\"model_type\": \"chatglm\", \"pre_seq_len\": 128}",
            WORDS("'pre_seq_len'"));
    refused("{\"model_type\": \"chatglm\", \"kv_channels\": 6}",
            WORDS("'kv_channels'", "6"));
    refused("{\"model_type\": \"chatglm\", \"multi_query_attention\": true,"
            " \"multi_query_group_num\": 3}",
            WORDS("'multi_query_group_num'", "3", "32"));
}

static void forms_of_opt_are_checked(void)
{
    refused("{\"model_type\": \"opt\", \"layerdrop\": 0.1}",
            WORDS("'layerdrop'"));
    refused("{\"model_type\": \"opt\","
            " \"layer_norm_elementwise_affine\": false}",
            WORDS("'layer_norm_elementwise_affine'"));
    refused("{\"model_type\": \"opt\", \"num_attention_heads\": 7}",
            WORDS("'num_attention_heads'", "7", "768"));
    refused("{\"model_type\": \"opt\", \"word_embed_proj_dim\": 0}",
            WORDS("'word_embed_proj_dim'", "0"));
}

#define BERT "{\"model_type\": \"bert\""
#define CLASSES BERT ", \"architectures\": [\"BertForSequenceClassification\"]"

static void forms_of_bert_are_checked(void)
{
    refused(BERT ", \"architectures\": [\"BertModel\"]}",
            WORDS("'architectures'", "'BertModel'", "BertForMaskedLM"));
    refused(BERT ", \"architectures\": 3}", WORDS("'architectures'"));
    refused(BERT ", \"position_embedding_type\": \"relative_key\"}",
            WORDS("'position_embedding_type'", "absolute"));
    refused(BERT ", \"is_decoder\": true}", WORDS("'is_decoder'"));
    refused(BERT ", \"num_attention_heads\": 7}",
            WORDS("'num_attention_heads'", "7", "768"));
    refused(CLASSES ", \"num_labels\": 3, \"id2label\": {\"0\": \"a\"}}",
            WORDS("'num_labels'", "3", "id2label has 1"));
    refused(CLASSES ", \"id2label\": {\"0\": \"a\"}}",
            WORDS("'id2label'", "at least two"));
    refused(CLASSES ", \"problem_type\": \"regression\"}",
            WORDS("'problem_type'", "'regression'"));
}

static void class_is_what_architectures_names(void)
{
    static const struct {
        const char *json, *param;
    } cases[] = {
        {BERT "}", "cls.predictions.bias"},
        {BERT ", \"architectures\": [\"BertForMaskedLM\"]}",
         "cls.predictions.bias"},
        {CLASSES "}", "classifier.bias"},
        {BERT ", \"architectures\": [\"BertForPreTraining\"]}",
         "cls.seq_relationship.bias"},
    };

    for (size_t i = 0; i < ZB_COUNT_OF(cases); i++) {
        struct zb_model *m = model_of(cases[i].json);

        CU_ASSERT(zb_graph_find_param(zb_model_graph(m), cases[i].param) >= 0);
        CU_ASSERT(!zb_model_is_causal(m));
        zb_model_free(m);
    }
}

static void positions_count_what_the_mask_shows(void)
{
    static const int32_t mask[] = {1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 1, 0};
    static const int32_t want[] = {0, 1, 2, 3, -1, -1, 0, 1, 0, -1, 1, -1};
    int32_t ids[ZB_COUNT_OF(mask)];

    zb_position_ids(mask, 3, 4, ids);
    CU_ASSERT_EQUAL(memcmp(ids, want, sizeof(want)), 0);
}

static void wrong_values_name_file_line_and_key(void)
{
    refused(LLAMA ",\n \"rms_norm_eps\": \"small\"}",
            WORDS("config.json:8", "'rms_norm_eps'", "a number", "small"));
    refused(LLAMA ",\n \"tie_word_embeddings\": 1}",
            WORDS("config.json:8", "true or false"));
    refused(LLAMA ",\n \"head_dim\": 0}", WORDS("config.json:8", "0", "1"));
    refused(LLAMA ",\n \"head_dim\": 3}", WORDS("'head_dim'", "odd"));
    refused(LLAMA ",\n \"num_key_value_heads\": 3}",
            WORDS("config.json:8", "3", "does not divide", "4"));
    refused(LLAMA ",\n \"num_hidden_layers\": 1.5}", WORDS("config.json"));
    refused(LLAMA ",\n \"pad_token_id\": 32}", WORDS("'pad_token_id'", "32"));
    refused(LLAMA ",\n \"attention_dropout\": 1.0}",
            WORDS("'attention_dropout'"));
    refused(LLAMA ",\n \"hidden_act\": \"mish\"}",
            WORDS("config.json:8", "'mish'", "silu"));
    refused(GPT2 ",\n \"n_head\": 3}", WORDS("config.json"));
}

static void unsupported_features_are_refused_by_name(void)
{
    refused(GPT2 ",\n \"add_cross_attention\": true}",
            WORDS("config.json:7", "'add_cross_attention'", "false"));
    refused(GPT2 ",\n \"reorder_and_upcast_attn\": true}",
            WORDS("'reorder_and_upcast_attn'"));
    refused(LLAMA ",\n \"quantization_config\": {\"bits\": 4}}",
            WORDS("'quantization_config'"));
    refused(LLAMA ",\n \"sliding_window\": 128}", WORDS("'sliding_window'"));
    refused(LLAMA ",\n \"rope_scaling\": {\"type\": \"dynamic\","
                  " \"factor\": 2}}",
            WORDS("config.json:8", "'rope_scaling'", "'dynamic'", "llama3"));
    refused(LLAMA ",\n \"rope_scaling\": {\"rope_type\": \"llama3\","
                  " \"factor\": 2}}",
            WORDS("'low_freq_factor' is missing"));
    refused(LLAMA ",\n \"rope_scaling\": {\"rope_type\": \"linear\","
                  " \"factor\": -2}}",
            WORDS("'factor'", "positive"));
    refused(LLAMA ",\n \"rope_parameters\": {\"rope_type\": \"default\","
                  " \"partial_rotary_factor\": 0.5}}",
            WORDS("'rope_parameters'", "'partial_rotary_factor'"));
}

static void harmless_keys_are_ignored(void)
{
    struct zb_model *m = model_of(
        LLAMA ", \"architectures\": [\"LlamaForCausalLM\"], \"_name\": 3,"
              " \"torch_dtype\": \"bfloat16\", \"use_cache\": true,"
              " \"bos_token_id\": 1, \"quantization_config\": null,"
              " \"sliding_window\": null, \"use_mup\": false}");

    CU_ASSERT_PTR_NOT_NULL(
        strstr(zb_model_config_json(m), "\"bos_token_id\": 1"));
    zb_model_free(m);
}

static void config_json_reads_back_the_same(void)
{
    static const char *const texts[] = {
        LLAMA ", \"rope_scaling\": {\"rope_type\": \"linear\","
              " \"factor\": 4.0}, \"rms_norm_eps\": 3e-5}",
        GPT2 ", \"attn_pdrop\": 0.25}",
        ("{\"model_type\": \"gpt2\", \"hidden_size\": 24,"
         " \"num_attention_heads\": 4}"),
        CLASSES ", \"id2label\": {\"0\": \"a\", \"1\": \"b\","
                " \"2\": \"c\"}}",
    };

    for (size_t i = 0; i < ZB_COUNT_OF(texts); i++) {
        struct zb_model *a = model_of(texts[i]);
        struct zb_model *b = model_of(zb_model_config_json(a));

        CU_ASSERT_STRING_EQUAL(zb_model_config_json(a),
                               zb_model_config_json(b));
        CU_ASSERT_EQUAL(zb_graph_n_params(zb_model_graph(a)),
                        zb_graph_n_params(zb_model_graph(b)));
        zb_model_free(a);
        zb_model_free(b);
    }
}

static enum zb_status read_with(const char *json,
                                const struct zb_model_key *keys, size_t n,
                                struct zb_model **m_out)
{
    const struct zb_model_opts opts = {
        .keys = keys, .n_keys = n, .keys_where = "run.ini"};

    return zb_model_from_json(json, "config.json", &opts, m_out);
}

/* n_embd has an alias, hidden_size; the text has the other name. */
static void keys_by_hand_count_instead_of_the_files(void)
{
    static const struct zb_model_key keys[] = {{"attn_pdrop", "0.5", 4},
                                               {"n_embd", "16", 5},
                                               {"hidden_act", "relu", 6}};
    struct zb_model *m = NULL;
    const char *json;

    ZBT_OK(read_with("{\"model_type\": \"gpt2\", \"hidden_size\": 24,"
                     " \"num_attention_heads\": 4, \"attn_pdrop\": 0.25}",
                     keys, 2, &m));
    json = zb_model_config_json(m);
    CU_ASSERT_PTR_NOT_NULL(strstr(json, "\"attn_pdrop\": 0.5"));
    CU_ASSERT_PTR_NOT_NULL(strstr(json, "\"n_embd\": 16"));
    CU_ASSERT_PTR_NULL(strstr(json, "hidden_size"));
    zb_model_free(m);
    CU_ASSERT_EQUAL(read_with("{\"model_type\": \"gpt2\"}", keys, 3, &m),
                    ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "run.ini:6: "));
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "'hidden_act'"));
    CU_ASSERT_EQUAL(
        read_with("{\"model_type\": \"gpt2\",\n\"n_head\": 5}", keys, 2, &m),
        ZB_ECONFIG);
    CU_ASSERT_PTR_NOT_NULL(strstr(zb_error_text(), "config.json:2: "));
}

static void both_rope_dialects_are_the_same(void)
{
    struct zb_model *a = model_of(
        LLAMA ", \"rope_theta\": 500.0, \"rope_scaling\": {\"rope_type\":"
              " \"linear\", \"factor\": 4.0}}");
    struct zb_model *b = model_of(
        LLAMA ", \"rope_parameters\": {\"rope_theta\": 500.0, \"rope_type\":"
              " \"linear\", \"factor\": 4.0}}");
    const struct zb_graph *ga = zb_model_graph(a), *gb = zb_model_graph(b);

    for (int i = 0; i < 2; i++) {
        struct zb_data_info info = zb_graph_const(ga, i);

        CU_ASSERT_EQUAL(memcmp(zb_graph_const_value(ga, i),
                               zb_graph_const_value(gb, i),
                               (size_t)zb_shape_elems(&info.shape) *
                                   sizeof(zb_real)),
                        0);
    }
    zb_model_free(a);
    zb_model_free(b);
}

/* The step of llama3's angles from the formula's published example values. */
static void llama3_scaling_has_published_values(void)
{
    static const double theta[] = {1, 0.042751179, 0.00125, 0.000125};
    struct zb_model *m = model_of(
        LLAMA ", \"head_dim\": 8, \"rope_scaling\": {\"rope_type\":"
              " \"llama3\", \"factor\": 8, \"low_freq_factor\": 1,"
              " \"high_freq_factor\": 4,"
              " \"original_max_position_embeddings\": 128}}");
    const zb_real *sin_table = zb_graph_const_value(zb_model_graph(m), 1);

    for (int k = 0; k < 4; k++) {
        CU_ASSERT_DOUBLE_EQUAL((double)sin_table[4 + k], sin(theta[k]), 1e-7);
    }
    zb_model_free(m);
}

/* ---- by hand ------------------------------------------------------------- */

static void keys_by_hand_build_the_same_model(void)
{
    static const struct zb_model_key keys[] = {
        {"model_type", "llama", 3},        {"vocab_size", "32", 4},
        {"hidden_size", "16", 5},          {"intermediate_size", "24", 6},
        {"num_hidden_layers", "2", 7},     {"num_attention_heads", "4", 8},
        {"max_position_embeddings", "64", 9},
    };
    struct zb_model *a, *b = model_of(LLAMA "}");

    ZBT_OK(zb_model_from_keys(keys, ZB_COUNT_OF(keys), "run.ini", &plain, &a));
    CU_ASSERT_STRING_EQUAL(zb_model_config_json(a), zb_model_config_json(b));
    CU_ASSERT_STRING_EQUAL(zb_model_type(a), "llama");
    CU_ASSERT_EQUAL(zb_model_n_before(a), 1);
    CU_ASSERT_EQUAL(zb_model_n_blocks(a), 2);
    CU_ASSERT_EQUAL(zb_graph_n_layers(zb_model_graph(a)), 4);
    CU_ASSERT_EQUAL(zb_model_vocab_size(a), 32);
    zb_model_free(a);
    zb_model_free(b);
}

static void refused_keys(const char *name, const char *value,
                         const char *const *words)
{
    const struct zb_model_key keys[] = {{"model_type", "gpt2", 3},
                                        {name, value, 17}};
    struct zb_model *m;

    CU_ASSERT_EQUAL(zb_model_from_keys(keys, 2, "run.ini", &plain, &m),
                    ZB_ECONFIG);
    expect_words(words);
}

static void unknown_key_by_hand_names_the_nearest(void)
{
    refused_keys("n_layr", "2",
                 WORDS("run.ini:17", "'n_layr'", "did you mean 'n_layer'"));
    refused_keys("colour", "red", WORDS("run.ini:17", "'colour'", "gpt2"));
    refused_keys("n_head", "many", WORDS("run.ini:17", "'n_head'", "many"));
    refused_keys("model_type", "gpt2", WORDS("run.ini", "twice"));
    refused_keys("n_layer", "\xff\xfe", WORDS("run.ini"));
}

static void alias_given_twice_is_refused(void)
{
    refused(GPT2 ",\n \"hidden_size\": 16}", WORDS("twice", "hidden_size"));
}

/* ---- options ------------------------------------------------------------- */

static struct zb_param_info param_of(const struct zb_model *m,
                                     const char *name)
{
    int p = zb_graph_find_param(zb_model_graph(m), name);

    if (p < 0) {
        printf("\nno parameter %s\n", name);
    }
    CU_ASSERT_FATAL(p >= 0);
    return zb_graph_param(zb_model_graph(m), p);
}

static void initialisation_is_that_of_the_reference(void)
{
    struct zb_model *m = model_of(GPT2 "}");
    struct zb_param_info w = param_of(m, "transformer.h.1.mlp.c_proj.weight");

    CU_ASSERT_EQUAL(w.opts.init, ZB_INIT_NORMAL);
    CU_ASSERT_DOUBLE_EQUAL(w.opts.std, 0.02 / 2, 1e-15);
    CU_ASSERT(!w.opts.no_decay);
    w = param_of(m, "transformer.h.0.attn.c_attn.weight");
    CU_ASSERT_DOUBLE_EQUAL(w.opts.std, 0.02, 1e-15);
    CU_ASSERT_EQUAL(w.shape.dim[0], 16);
    CU_ASSERT_EQUAL(w.shape.dim[1], 48);
    w = param_of(m, "transformer.h.0.attn.c_attn.bias");
    CU_ASSERT_EQUAL(w.opts.init, ZB_INIT_ZEROS);
    CU_ASSERT(w.opts.no_decay);
    w = param_of(m, "transformer.ln_f.weight");
    CU_ASSERT_EQUAL(w.opts.init, ZB_INIT_ONES);
    CU_ASSERT(w.opts.no_decay);
    CU_ASSERT_EQUAL(param_of(m, "transformer.wte.weight").n_uses, 2);
    zb_model_free(m);
}

static void init_std_replaces_the_configs(void)
{
    const struct zb_model_opts opts = {.init_std = 0.5};
    struct zb_model *m;

    ZBT_OK(zb_model_from_json(LLAMA "}", "c", &opts, &m));
    CU_ASSERT_EQUAL(param_of(m, "lm_head.weight").opts.std, 0.5);
    zb_model_free(m);
}

static void longest_sequence_is_checked(void)
{
    struct zb_model_opts opts = {.max_seq = 100};
    struct zb_model *m;

    CU_ASSERT_EQUAL(zb_model_from_json(GPT2 "}", "c.json", &opts, &m),
                    ZB_ECONFIG);
    expect_words(WORDS("c.json:3", "'n_positions'", "100", "16"));
    /* Rotary positions go on past the config's limit. */
    ZBT_OK(zb_model_from_json(LLAMA "}", "c.json", &opts, &m));
    CU_ASSERT_EQUAL(zb_graph_const(zb_model_graph(m), 0).shape.dim[0], 100);
    zb_model_free(m);
}

static void model_without_head_needs_criterion(void)
{
    const struct zb_model_opts opts = {.no_head = 1};
    struct zb_model *m;

    CU_ASSERT_EQUAL(zb_model_from_json(LLAMA "}", "c", &opts, &m), ZB_EINVAL);
    expect_words(WORDS("criterion"));
}

static void mean_criterion(struct zb_graph *g, int hidden, void *arg)
{
    *(int *)arg += 1;
    zb_g_loss(g, hidden, ZB_G_NONE);
}

/* A base model on embeddings given as data, the mean of its output as loss:
 * the first and the last step of the reference's walk through. */
static void base_model_on_embeddings_equals_reference(void)
{
    int n_calls = 0, first[] = {0, 3, 5, 10};
    const struct zb_model_opts opts = {.has_embeds = 1,
                                       .no_head = 1,
                                       .criterion = mean_criterion,
                                       .criterion_arg = &n_calls};
    struct zb_st_file *f;
    struct zb_model *m;
    const struct zb_graph *g;
    const struct zb_st_tensor *x;
    zb_real **params, *embeds;
    double losses[10];
    struct rig_result r;

    ZBT_OK(zb_st_open(zbt_source_path("tests/golden/walkthrough.safetensors"),
                      &f));
    ZBT_OK(zb_model_from_json(zb_st_find_meta(f, "config"), "walkthrough",
                              &opts, &m));
    CU_ASSERT_EQUAL(n_calls, 1);
    g = zb_model_graph(m);
    params = rig_params(g, 1);
    for (int p = 0; p < zb_graph_n_params(g); p++) {
        struct zb_param_info info = zb_graph_param(g, p);
        char name[128];

        snprintf(name, sizeof(name), "param.%s", info.name);
        CU_ASSERT_PTR_NOT_NULL_FATAL(zb_st_find(f, name));
        ZBT_OK(zb_st_read_real(f, zb_st_find(f, name), params[p],
                               zb_shape_elems(&info.shape)));
    }
    x = zb_st_find(f, "inputs_embeds");
    embeds = calloc((size_t)x->n_elems, sizeof(*embeds));
    ZBT_OK(zb_st_read_real(f, x, embeds, x->n_elems));
    ZBT_OK(zb_st_read_f64(f, zb_st_find(f, "losses"), losses, 10));
    {
        const void *data[] = {embeds};
        struct rig_batch batch = {8, 4, data};
        struct rig_opts o = {.n_chunks = 3, .first = first, .n_micro = 4};

        rig_run(g, params, &batch, &o, &r);
    }
    CU_ASSERT_DOUBLE_EQUAL(r.loss, losses[0], 1e-6);
    CU_ASSERT_STRING_EQUAL(zb_graph_output(g, 0).name, "last_hidden_state");
    CU_ASSERT_EQUAL(r.n_output, 8 * 4 * 16);
    rig_result_free(&r);
    rig_params_free(g, params);
    free(embeds);
    zb_model_free(m);
    zb_st_close(f);
}

static void own_graph_is_wrapped(void)
{
    const int64_t dim[] = {ZB_DIM(ZB_SYM_BATCH), 4}, w[] = {4, 4};
    const struct zb_param_opts opts = {.init = ZB_INIT_NORMAL};
    struct zb_graph *g;
    struct zb_model *m;
    int x;

    ZBT_OK(zb_graph_new(&g));
    x = zb_g_data(g, "x", ZB_DTYPE_REAL, 2, dim);
    zb_g_layer(g, "one");
    x = zb_g_linear(g, x, zb_g_param(g, "w", 2, w, &opts), ZB_G_NONE, 0);
    zb_g_loss(g, x, ZB_G_NONE);
    ZBT_OK(zb_graph_finish(g));
    CU_ASSERT_EQUAL(zb_model_from_graph(g, 1, 1, &m), ZB_EINVAL);
    ZBT_OK(zb_model_from_graph(g, 0, 1, &m));
    CU_ASSERT_PTR_EQUAL(zb_model_graph(m), g);
    zb_model_free(m);
}

/* Dropout changes what training computes and nothing else; a cut changes
 * neither. */
static void dropout_is_for_training_only(void)
{
    struct zb_model *m = model_of(GPT2 "}"), *none = model_of(
        GPT2 ", \"attn_pdrop\": 0.0, \"resid_pdrop\": 0, \"embd_pdrop\": 0}");
    zb_real **params = rig_params(zb_model_graph(m), 2);
    int32_t ids[24], labels[24];
    const void *data[] = {ids, labels};
    struct rig_batch batch = {3, 8, data};
    int one[] = {0, 4}, four[] = {0, 1, 2, 3, 4};
    struct rig_opts o = {.n_chunks = 1, .first = one, .seed = 1, .step = 2};
    struct rig_result train, cut, eval, plain_train;

    for (int i = 0; i < 24; i++) {
        ids[i] = i * 7 % 32;
        labels[i] = i * 5 % 32;
    }
    rig_run(zb_model_graph(m), params, &batch, &o, &train);
    o.n_chunks = 4;
    o.first = four;
    o.n_micro = 1;
    rig_run(zb_model_graph(m), params, &batch, &o, &cut);
    CU_ASSERT(rig_same_bits(&train, &cut));
    o.is_eval = 1;
    o.no_backward = 1;
    rig_run(zb_model_graph(m), params, &batch, &o, &eval);
    o.is_eval = 0;
    rig_run(zb_model_graph(none), params, &batch, &o, &plain_train);
    CU_ASSERT_EQUAL(eval.loss, plain_train.loss);
    CU_ASSERT_NOT_EQUAL(eval.loss, train.loss);
    rig_result_free(&train);
    rig_result_free(&cut);
    rig_result_free(&eval);
    rig_result_free(&plain_train);
    rig_params_free(zb_model_graph(m), params);
    zb_model_free(m);
    zb_model_free(none);
}

static void failing_allocation_unwinds(void)
{
    for (uint64_t k = 1;; k++) {
        int64_t before = zb_mem_live();
        struct zb_model *m = NULL;
        enum zb_status st;
        int failed;

        zb_mem_fail_at(k);
        st = zb_model_from_json(LLAMA "}", "c", &plain, &m);
        failed = zb_mem_failed();
        zb_mem_fail_at(0);
        if (st == ZB_OK) {
            zb_model_free(m);
        }
        CU_ASSERT_EQUAL(zb_mem_live(), before);
        if (!failed) {
            CU_ASSERT_EQUAL(st, ZB_OK);
            break;
        }
        CU_ASSERT_EQUAL(st, ZB_ENOMEM);
    }
}

/* Any change of a byte gives a model or a message. */
static void mutated_configs_do_not_crash(void)
{
    static const char *const texts[] = {
        LLAMA ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8,"
              " \"low_freq_factor\": 1, \"high_freq_factor\": 4,"
              " \"original_max_position_embeddings\": 128}, \"head_dim\": 6}",
        GPT2 ", \"n_inner\": null, \"activation_function\": \"gelu\"}",
    };
    struct zbt_rng rng = {11};
    int n = zbt_is_long() ? 200000 : 4000;

    for (int i = 0; i < n; i++) {
        char text[1024];
        struct zb_model *m;
        size_t len;

        snprintf(text, sizeof(text), "%s", texts[i % 2]);
        len = strlen(text);
        for (int k = 0; k <= i % 3; k++) {
            static const char chars[] = "0123456789-+.eE\"{}[],:ntf \\x";
            size_t at = (size_t)zbt_rand_in(&rng, 0, (long)len - 1);

            /* Digits grow no longer: sizes stay small enough to build. */
            text[at] = chars[zbt_rand_in(&rng, 0, sizeof(chars) - 2)];
        }
        if (zb_model_from_json(text, "mutated", &plain, &m) == ZB_OK) {
            zb_model_free(m);
        } else {
            CU_ASSERT(zb_error_text()[0] != '\0');
        }
    }
}

int main(void)
{
    static const struct zbt_case cases[] = {
        ZBT_CASE(broken_json_names_line),
        ZBT_CASE(unknown_family_lists_families),
        ZBT_CASE(layer_types_of_qwen2_are_checked),
        ZBT_CASE(rotary_dim_of_gptj_is_checked),
        ZBT_CASE(forms_of_falcon_are_checked),
        ZBT_CASE(alibi_slopes_are_those_of_the_paper),
        ZBT_CASE(forms_of_chatglm_are_checked),
        ZBT_CASE(forms_of_opt_are_checked),
        ZBT_CASE(forms_of_bert_are_checked),
        ZBT_CASE(class_is_what_architectures_names),
        ZBT_CASE(positions_count_what_the_mask_shows),
        ZBT_CASE(wrong_values_name_file_line_and_key),
        ZBT_CASE(unsupported_features_are_refused_by_name),
        ZBT_CASE(harmless_keys_are_ignored),
        ZBT_CASE(config_json_reads_back_the_same),
        ZBT_CASE(keys_by_hand_count_instead_of_the_files),
        ZBT_CASE(both_rope_dialects_are_the_same),
        ZBT_CASE(llama3_scaling_has_published_values),
        ZBT_CASE(keys_by_hand_build_the_same_model),
        ZBT_CASE(unknown_key_by_hand_names_the_nearest),
        ZBT_CASE(alias_given_twice_is_refused),
        ZBT_CASE(initialisation_is_that_of_the_reference),
        ZBT_CASE(init_std_replaces_the_configs),
        ZBT_CASE(longest_sequence_is_checked),
        ZBT_CASE(model_without_head_needs_criterion),
        ZBT_CASE(base_model_on_embeddings_equals_reference),
        ZBT_CASE(own_graph_is_wrapped),
        ZBT_CASE(dropout_is_for_training_only),
        ZBT_CASE(failing_allocation_unwinds),
        ZBT_CASE(mutated_configs_do_not_crash),
    };

    return zbt_run("model", cases, ZB_COUNT_OF(cases));
}
