/* SPDX-License-Identifier: MIT
 *
 * config.json of any family, up to the finished graph of a model. */
#include "config.h"
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "zb/mem.h"
#include "zb/model.h"

#define MAX_TEXT (1 << 16)

static const char *const configs[] = {
    "{\"model_type\": \"llama\", \"vocab_size\": 64, \"hidden_size\": 8,\n"
    " \"intermediate_size\": 12, \"num_hidden_layers\": 2,\n"
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1,\n"
    " \"head_dim\": 4, \"rms_norm_eps\": 1e-05, \"rope_theta\": 500.0,\n"
    " \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0,\n"
    "  \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0,\n"
    "  \"original_max_position_embeddings\": 128},\n"
    " \"tie_word_embeddings\": true, \"pad_token_id\": 3}\n",
    "{\"model_type\": \"llama\", \"vocab_size\": 64, \"hidden_size\": 8,\n"
    " \"intermediate_size\": 12, \"num_hidden_layers\": 2,\n"
    " \"num_attention_heads\": 2, \"torch_dtype\": \"bfloat16\",\n"
    " \"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2}}\n",
    "{\"model_type\": \"gpt2\", \"vocab_size\": 64, \"n_positions\": 32,\n"
    " \"n_embd\": 8, \"n_layer\": 2, \"n_head\": 2, \"n_inner\": null,\n"
    " \"activation_function\": \"gelu_new\", \"resid_pdrop\": 0.1,\n"
    " \"layer_norm_epsilon\": 1e-05, \"scale_attn_weights\": true}\n",
    "{\"model_type\": \"qwen2\", \"vocab_size\": 64, \"hidden_size\": 8,\n"
    " \"intermediate_size\": 12, \"num_hidden_layers\": 2, \"num_attention_heads\": 2,\n"
    " \"num_key_value_heads\": 1, \"use_sliding_window\": true, \"sliding_window\": 4,\n"
    " \"max_window_layers\": 1}\n",
    "{\"model_type\": \"mistral\", \"vocab_size\": 64, \"hidden_size\": 8,\n"
    " \"intermediate_size\": 12, \"num_hidden_layers\": 2, \"num_attention_heads\": 2,\n"
    " \"num_key_value_heads\": 1, \"sliding_window\": 4}\n",
    "{\"model_type\": \"gptj\", \"vocab_size\": 64, \"n_embd\": 8, \"n_layer\": 2,\n"
    " \"n_head\": 2, \"rotary_dim\": 2, \"n_positions\": 32}\n",
    "{\"model_type\": \"cohere\", \"vocab_size\": 64, \"hidden_size\": 8,\n"
    " \"intermediate_size\": 12, \"num_hidden_layers\": 2, \"num_attention_heads\": 2,\n"
    " \"num_key_value_heads\": 1, \"use_qk_norm\": true, \"logit_scale\": 0.25}\n",
    "{\"model_type\": \"falcon\", \"vocab_size\": 64, \"hidden_size\": 16,\n"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_kv_heads\": 2,\n"
    " \"new_decoder_architecture\": true}\n",
    "{\"model_type\": \"bloom\", \"vocab_size\": 64, \"hidden_size\": 12, \"n_layer\": 2,\n"
    " \"n_head\": 6}\n",
    "{\"model_type\": \"chatglm\", \"padded_vocab_size\": 64, \"hidden_size\": 8,\n"
    " \"ffn_hidden_size\": 12, \"num_layers\": 2, \"num_attention_heads\": 2,\n"
    " \"kv_channels\": 4, \"multi_query_attention\": true,\n"
    " \"multi_query_group_num\": 1, \"seq_length\": 32}\n",
    "{\"model_type\": \"opt\", \"vocab_size\": 64, \"hidden_size\": 8, \"ffn_dim\": 12,\n"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 2,\n"
    " \"max_position_embeddings\": 32, \"word_embed_proj_dim\": 6}\n",
    "{\"model_type\": \"bert\", \"vocab_size\": 64, \"hidden_size\": 8,\n"
    " \"intermediate_size\": 12, \"num_hidden_layers\": 2, \"num_attention_heads\": 2,\n"
    " \"max_position_embeddings\": 32, \"type_vocab_size\": 2,\n"
    " \"architectures\": [\"BertForSequenceClassification\"],\n"
    " \"id2label\": {\"0\": \"a\", \"1\": \"b\"}}\n",
};

size_t fuzz_seed(size_t i, const uint8_t **data_out)
{
    if (i >= sizeof(configs) / sizeof(configs[0])) {
        return 0;
    }
    *data_out = (const uint8_t *)configs[i];
    return strlen(configs[i]);
}

static void build(const char *text, const struct zb_model_opts *o)
{
    struct zb_model *m;

    if (zb_model_from_json(text, "config.json", o, &m) == ZB_OK) {
        if (zb_graph_n_params(zb_model_graph(m)) <= 0) {
            abort();
        }
        zb_model_free(m);
    } else if (zb_error_text()[0] == '\0') {
        abort();
    }
}

/* The model, and with adapters. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static char text[MAX_TEXT + 1];
    struct zb_model_opts o = {.max_seq = 16};
    int64_t before = zb_mem_live();

    if (n > MAX_TEXT) {
        return 0;
    }
    memcpy(text, data, n);
    text[n] = '\0';
    build(text, &o);
    o.lora_rank = 2;
    o.lora_alpha = 3;
    build(text, &o);
    fuzz_check_live(before);
    return 0;
}
