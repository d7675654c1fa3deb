/* SPDX-License-Identifier: MIT
 *
 * ChatGLM2 and 3: RMS norms, interleaved rotation of the first half of each
 * head, few key heads, SwiGLU of one packed matrix.
 */
#include "config.h"
#include "model/model_int.h"

#include <math.h>

static const struct zb_key_row keys[] = {
    {"padded_vocab_size", "vocab_size", ZB_KEY_INT, "65024", 1, ZB_KEY_MAX, 0},
    {"hidden_size", NULL, ZB_KEY_INT, "4096", 1, ZB_KEY_MAX, 0},
    {"ffn_hidden_size", NULL, ZB_KEY_INT, "13696", 1, ZB_KEY_MAX / 2, 0},
    {"num_layers", "num_hidden_layers", ZB_KEY_INT, "28", 1, 10000, 0},
    {"num_attention_heads", NULL, ZB_KEY_INT, "32", 1, 1e6, 0},
    {"kv_channels", NULL, ZB_KEY_INT, "128", 4, 1e6, 0},
    {"multi_query_attention", NULL, ZB_KEY_BOOL, "false", 0, 0, 0},
    {"multi_query_group_num", NULL, ZB_KEY_INT, "1", 1, 1e6, 0},
    {"seq_length", NULL, ZB_KEY_INT, "2048", 1, ZB_KEY_MAX, 0},
    {"rope_ratio", NULL, ZB_KEY_REAL, "1.0", 1e-3, 1e6, 0},
    {"hidden_dropout", NULL, ZB_KEY_REAL, "0.0", 0, 0.999, 0},
    {"attention_dropout", NULL, ZB_KEY_REAL, "0.0", 0, 0.999, 0},
    {"layernorm_epsilon", NULL, ZB_KEY_REAL, "1e-5", 0, 1, 0},
    {"add_qkv_bias", NULL, ZB_KEY_BOOL, "false", 0, 0, 0},
    {"initializer_range", NULL, ZB_KEY_REAL, "0.02", 0, 1e3, 0},
    {"tie_word_embeddings", NULL, ZB_KEY_BOOL, "false", 0, 0, ZB_KEY_ONLY},
    {"rmsnorm", NULL, ZB_KEY_BOOL, "true", 0, 0, ZB_KEY_ONLY},
    {"post_layer_norm", NULL, ZB_KEY_BOOL, "true", 0, 0, ZB_KEY_ONLY},
    {"apply_residual_connection_post_layernorm", NULL, ZB_KEY_BOOL, "false", 0,
     0, ZB_KEY_ONLY},
    {"add_bias_linear", NULL, ZB_KEY_BOOL, "false", 0, 0, ZB_KEY_ONLY},
    {"original_rope", NULL, ZB_KEY_BOOL, "true", 0, 0, ZB_KEY_ONLY},
    {"interleaved_qkv", NULL, ZB_KEY_BOOL, "false", 0, 0, ZB_KEY_ONLY},
    {"pre_seq_len", NULL, ZB_KEY_INT, "null", 0, ZB_KEY_MAX,
     ZB_KEY_NULLABLE | ZB_KEY_ONLY},
    {"prefix_projection", NULL, ZB_KEY_BOOL, "false", 0, 0, ZB_KEY_ONLY},
    {"quantization_bit", NULL, ZB_KEY_INT, "0", 0, ZB_KEY_MAX, ZB_KEY_ONLY},
    /* How others compute the same. */
    {"fp32_residual_connection", NULL, ZB_KEY_BOOL, "false", 0, 0, 0},
    {"apply_query_key_layer_scaling", NULL, ZB_KEY_BOOL, "true", 0, 0, 0},
    {"attention_softmax_in_fp32", NULL, ZB_KEY_BOOL, "true", 0, 0, 0},
    {"bias_dropout_fusion", NULL, ZB_KEY_BOOL, "true", 0, 0, 0},
    {"pad_token_id", NULL, ZB_KEY_INT, "null", -ZB_KEY_MAX, ZB_KEY_MAX,
     ZB_KEY_NULLABLE},
};

struct chatglm {
    struct zb_builder *b;
    int64_t vocab, hidden, inner, n_layers, n_heads, n_kv, head_dim;
    double eps, drop, attn_drop;
    int is_multi_query, has_bias, key_mask;
    struct zb_rope_tables rope;
};

static enum zb_status read_heads(struct chatglm *m, const struct zb_config *c)
{
    m->n_heads = zb_config_int(c, "num_attention_heads");
    m->head_dim = zb_config_int(c, "kv_channels");
    m->is_multi_query = zb_config_bool(c, "multi_query_attention");
    m->n_kv = m->is_multi_query ? zb_config_int(c, "multi_query_group_num")
                                : m->n_heads;
    if (m->n_heads % m->n_kv != 0) {
        return zb_config_fail(c, "multi_query_group_num",
                              "%lld does not divide num_attention_heads %lld",
                              (long long)m->n_kv, (long long)m->n_heads);
    }
    if (m->head_dim % 4 != 0) {
        return zb_config_fail(c, "kv_channels",
                              "half of %lld has no pairs to rotate",
                              (long long)m->head_dim);
    }
    ZB_TRY(zb_build_check_split(m->b, "num_attention_heads", m->n_heads, 0));
    return zb_build_check_split(m->b, "multi_query_group_num", m->n_kv, 1);
}

static enum zb_status read_config(struct chatglm *m, const struct zb_config *c)
{
    m->vocab = zb_config_int(c, "padded_vocab_size");
    m->hidden = zb_config_int(c, "hidden_size");
    m->inner = zb_config_int(c, "ffn_hidden_size");
    m->n_layers = zb_config_int(c, "num_layers");
    m->eps = zb_config_real(c, "layernorm_epsilon");
    m->drop = zb_config_real(c, "hidden_dropout");
    m->attn_drop = zb_config_real(c, "attention_dropout");
    m->has_bias = zb_config_bool(c, "add_qkv_bias");
    ZB_TRY(read_heads(m, c));
    return zb_build_check_split(m->b, "ffn_hidden_size", m->inner, 0);
}

static int linear(const struct chatglm *m, int64_t i, const char *name, int x,
                  struct zb_linear l)
{
    l.std = m->b->std;
    return zb_build_linear(m->b, x, &l, "transformer.encoder.layers.%lld.%s",
                           (long long)i, name);
}

static int norm(const struct chatglm *m, int x, int64_t i, const char *name)
{
    return zb_g_rmsnorm(m->b->g, x,
                        zb_build_ones(m->b, m->hidden,
                                      "transformer.encoder.layers.%lld.%s."
                                      "weight",
                                      (long long)i, name),
                        m->eps);
}

/* Heads of queries, keys and values: blocks of rows with few key heads, else
 * head after head. */
static void unpack(const struct chatglm *m, int qkv, int out[3])
{
    const int64_t n[] = {m->n_heads, m->n_kv, m->n_kv};
    int64_t d = m->head_dim, at = 0;

    if (!m->is_multi_query) {
        qkv = zb_build_heads(m->b, qkv, 3 * d);
    }
    for (int i = 0; i < 3; i++) {
        int64_t width = m->is_multi_query ? n[i] * d : d;

        out[i] = zb_g_slice(m->b->g, qkv, at, width);
        if (m->is_multi_query) {
            out[i] = zb_build_heads(m->b, out[i], d);
        }
        at += width;
    }
}

static int attention(const struct chatglm *m, int64_t i, int a)
{
    struct zb_graph *g = m->b->g;
    const struct zb_attn_opts opts = {
        .causal = 1,
        .scale = 1.0 / sqrt((double)m->head_dim),
        .dropout = m->attn_drop,
        .key_mask = m->key_mask,
    };
    const struct zb_linear in = {
        .n_in = m->hidden,
        .n_out = (m->n_heads + 2 * m->n_kv) * m->head_dim,
        .has_bias = m->has_bias,
        .side = ZB_SIDE_OUT,
        .n_parts = m->is_multi_query ? 3 : 1,
        .part_heads = {m->is_multi_query ? m->n_heads : 0, m->n_kv, m->n_kv},
        .n_heads = m->n_heads,
    };
    const struct zb_linear out = {.n_in = m->n_heads * m->head_dim,
                                  .n_out = m->hidden,
                                  .side = ZB_SIDE_IN,
                                  .n_heads = m->n_heads};
    int qkv[3], y;

    unpack(m, linear(m, i, "self_attention.query_key_value", a, in), qkv);
    for (int k = 0; k < 2; k++) {
        qkv[k] = zb_g_rope(g, qkv[k], m->rope.cos, m->rope.sin, 1);
    }
    y = zb_g_attention(g, qkv[0], qkv[1], qkv[2], &opts);
    return zb_g_dropout(g, linear(m, i, "self_attention.dense", y, out),
                        m->drop);
}

static int mlp(const struct chatglm *m, int64_t i, int a)
{
    struct zb_graph *g = m->b->g;
    const struct zb_linear in = {.n_in = m->hidden,
                                 .n_out = 2 * m->inner,
                                 .side = ZB_SIDE_OUT,
                                 .n_parts = 2};
    const struct zb_linear out = {
        .n_in = m->inner, .n_out = m->hidden, .side = ZB_SIDE_IN};
    int both = linear(m, i, "mlp.dense_h_to_4h", a, in);
    int y = zb_g_gated(g, zb_g_slice(g, both, 0, m->inner),
                       zb_g_slice(g, both, m->inner, m->inner), ZB_ACT_SILU);

    return zb_g_dropout(g, linear(m, i, "mlp.dense_4h_to_h", y, out), m->drop);
}

static int head(const struct chatglm *m, int x)
{
    struct zb_builder *b = m->b;

    x = zb_g_rmsnorm(
        b->g, x,
        zb_build_ones(b, m->hidden,
                      "transformer.encoder.final_layernorm.weight"),
        m->eps);
    return zb_build_head(b, x, m->vocab, m->hidden,
                         "transformer.output_layer.weight", NULL);
}

static enum zb_status build(struct zb_builder *b)
{
    const struct zb_config *c = b->config;
    struct chatglm m = {.b = b};
    int64_t n_pos = b->opts->max_seq > 0 ? b->opts->max_seq
                                         : zb_config_int(c, "seq_length");
    int x;

    ZB_TRY(read_config(&m, c));
    ZB_TRY(zb_build_rope_of(b, 10000 * zb_config_real(c, "rope_ratio"),
                            m.head_dim / 2, n_pos, &m.rope));
    m.key_mask = zb_build_key_mask(b);
    zb_build_layer(b, "embed");
    x = zb_build_input(b, "transformer.embedding.word_embeddings.weight",
                       m.vocab, m.hidden, -1);
    for (int64_t i = 0; i < m.n_layers; i++) {
        zb_build_layer(b, "layers.%lld", (long long)i);
        x = zb_g_add(b->g, x,
                     attention(&m, i, norm(&m, x, i, "input_layernorm")));
        x = zb_g_add(b->g, x,
                     mlp(&m, i, norm(&m, x, i, "post_attention_layernorm")));
    }
    zb_build_layer(b, "head");
    zb_build_end(b, head(&m, x));
    return ZB_OK;
}

const struct zb_family zb_family_chatglm = {
    .name = "chatglm",
    .architecture = "ChatGLMForConditionalGeneration",
    .notes = "ChatGLM2, ChatGLM3; multi_query_attention; rope of half heads",
    .keys = keys,
    .n_keys = ZB_COUNT_OF(keys),
    .layers_key = "num_layers",
    .vocab_key = "padded_vocab_size",
    .lora_targets = "query_key_value",
    .build = build,
};
