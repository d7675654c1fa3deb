/* SPDX-License-Identifier: MIT
 *
 * Bloom: ALiBi, a norm behind the embedding, queries, keys and values of each
 * head packed.
 */
#include "config.h"
#include "model/model_int.h"

#include <math.h>

static const struct zb_key_row keys[] = {
    {"vocab_size", NULL, ZB_KEY_INT, "250880", 1, ZB_KEY_MAX, 0},
    {"hidden_size", "n_embed", ZB_KEY_INT, "64", 1, ZB_KEY_MAX / 4, 0},
    {"n_layer", "num_hidden_layers", ZB_KEY_INT, "2", 1, 10000, 0},
    {"n_head", "num_attention_heads", ZB_KEY_INT, "8", 1, ZB_KEY_MAX, 0},
    {"layer_norm_epsilon", NULL, ZB_KEY_REAL, "1e-5", 0, 1, 0},
    {"initializer_range", NULL, ZB_KEY_REAL, "0.02", 0, 1e3, 0},
    {"apply_residual_connection_post_layernorm", NULL, ZB_KEY_BOOL, "false", 0,
     0, 0},
    {"hidden_dropout", NULL, ZB_KEY_REAL, "0.0", 0, 0.999, 0},
    {"attention_dropout", NULL, ZB_KEY_REAL, "0.0", 0, 0.999, 0},
    {"tie_word_embeddings", NULL, ZB_KEY_BOOL, "true", 0, 0, 0},
    {"n_inner", NULL, ZB_KEY_INT, "null", 1, ZB_KEY_MAX,
     ZB_KEY_NULLABLE | ZB_KEY_ONLY},
    /* How others compute the same. */
    {"slow_but_exact", NULL, ZB_KEY_BOOL, "false", 0, 0, 0},
    {"attention_softmax_in_fp32", NULL, ZB_KEY_BOOL, "true", 0, 0, 0},
    {"bias_dropout_fusion", NULL, ZB_KEY_BOOL, "true", 0, 0, 0},
    {"masked_softmax_fusion", NULL, ZB_KEY_BOOL, "true", 0, 0, 0},
    {"offset_alibi", NULL, ZB_KEY_INT, "100", 0, ZB_KEY_MAX, 0},
    {"seq_length", NULL, ZB_KEY_INT, "2048", 1, ZB_KEY_MAX, 0},
    {"skip_bias_add", NULL, ZB_KEY_BOOL, "true", 0, 0, 0},
    {"skip_bias_add_qkv", NULL, ZB_KEY_BOOL, "false", 0, 0, 0},
    {"unk_token_id", NULL, ZB_KEY_INT, "0", 0, ZB_KEY_MAX, 0},
    {"pad_token_id", NULL, ZB_KEY_INT, "null", -ZB_KEY_MAX, ZB_KEY_MAX,
     ZB_KEY_NULLABLE},
};

struct bloom {
    struct zb_builder *b;
    int64_t vocab, hidden, n_layers, n_heads, head_dim;
    double eps, drop, attn_drop;
    int adds_normed, key_mask, slopes;
};

static enum zb_status read_config(struct bloom *m, const struct zb_config *c)
{
    m->vocab = zb_config_int(c, "vocab_size");
    m->hidden = zb_config_int(c, "hidden_size");
    m->n_layers = zb_config_int(c, "n_layer");
    m->n_heads = zb_config_int(c, "n_head");
    m->eps = zb_config_real(c, "layer_norm_epsilon");
    m->drop = zb_config_real(c, "hidden_dropout");
    m->attn_drop = zb_config_real(c, "attention_dropout");
    m->adds_normed =
        zb_config_bool(c, "apply_residual_connection_post_layernorm");
    if (m->hidden % m->n_heads != 0) {
        return zb_config_fail(c, "n_head",
                              "%lld does not divide hidden_size %lld",
                              (long long)m->n_heads, (long long)m->hidden);
    }
    m->head_dim = m->hidden / m->n_heads;
    return zb_build_check_split(m->b, "n_head", m->n_heads, 0);
}

static int linear(const struct bloom *m, int64_t i, const char *name, int x,
                  struct zb_linear l)
{
    l.std = m->b->std;
    l.has_bias = 1;
    return zb_build_linear(m->b, x, &l, "transformer.h.%lld.%s", (long long)i,
                           name);
}

static int norm(const struct bloom *m, int64_t i, const char *name, int x)
{
    return zb_build_layernorm(m->b, x, m->hidden, m->eps,
                              "transformer.h.%lld.%s", (long long)i, name);
}

static int attention(const struct bloom *m, int64_t i, int a)
{
    struct zb_graph *g = m->b->g;
    int64_t d = m->head_dim;
    const struct zb_attn_opts opts = {
        .causal = 1,
        .scale = 1.0 / sqrt((double)d),
        .dropout = m->attn_drop,
        .key_mask = m->key_mask,
        .slopes = m->slopes,
        .has_slopes = 1,
    };
    const struct zb_linear in = {.n_in = m->hidden,
                                 .n_out = 3 * m->hidden,
                                 .side = ZB_SIDE_OUT,
                                 .n_heads = m->n_heads};
    const struct zb_linear out = {.n_in = m->hidden,
                                  .n_out = m->hidden,
                                  .side = ZB_SIDE_IN,
                                  .n_heads = m->n_heads};
    int qkv = linear(m, i, "self_attention.query_key_value", a, in), y;

    qkv = zb_build_heads(m->b, qkv, 3 * d);
    y = zb_g_attention(g, zb_g_slice(g, qkv, 0, d), zb_g_slice(g, qkv, d, d),
                       zb_g_slice(g, qkv, 2 * d, d), &opts);
    return linear(m, i, "self_attention.dense", y, out);
}

static int mlp(const struct bloom *m, int64_t i, int a)
{
    int64_t inner = 4 * m->hidden;
    const struct zb_linear in = {
        .n_in = m->hidden, .n_out = inner, .side = ZB_SIDE_OUT};
    const struct zb_linear out = {
        .n_in = inner, .n_out = m->hidden, .side = ZB_SIDE_IN};
    int y = linear(m, i, "mlp.dense_h_to_4h", a, in);

    y = zb_g_act(m->b->g, y, ZB_ACT_GELU_TANH);
    return linear(m, i, "mlp.dense_4h_to_h", y, out);
}

static int block(const struct bloom *m, int64_t i, int x)
{
    struct zb_graph *g = m->b->g;
    int a = norm(m, i, "input_layernorm", x);
    int y = zb_g_dropout(g, attention(m, i, a), m->drop);

    x = zb_g_add(g, m->adds_normed ? a : x, y);
    a = norm(m, i, "post_attention_layernorm", x);
    y = zb_g_dropout(g, mlp(m, i, a), m->drop);
    return zb_g_add(g, m->adds_normed ? a : x, y);
}

static int head(const struct bloom *m, int x)
{
    struct zb_builder *b = m->b;

    x = zb_build_layernorm(b, x, m->hidden, m->eps, "transformer.ln_f");
    return zb_build_head(
        b, x, m->vocab, m->hidden,
        zb_build_head_table(b, "transformer.word_embeddings.weight"), NULL);
}

static enum zb_status build(struct zb_builder *b)
{
    struct bloom m = {.b = b};
    int x;

    ZB_TRY(read_config(&m, b->config));
    ZB_TRY(zb_build_alibi(b, m.n_heads, 1, 0, &m.slopes));
    m.key_mask = zb_build_key_mask(b);
    zb_build_layer(b, "embed");
    x = zb_build_input(b, "transformer.word_embeddings.weight", m.vocab,
                       m.hidden, -1);
    x = zb_build_layernorm(b, x, m.hidden, m.eps,
                           "transformer.word_embeddings_layernorm");
    for (int64_t i = 0; i < m.n_layers; i++) {
        zb_build_layer(b, "h.%lld", (long long)i);
        x = block(&m, i, x);
    }
    zb_build_layer(b, "head");
    zb_build_end(b, head(&m, x));
    return ZB_OK;
}

const struct zb_family zb_family_bloom = {
    .name = "bloom",
    .architecture = "BloomForCausalLM",
    .notes = "ALiBi; apply_residual_connection_post_layernorm",
    .keys = keys,
    .n_keys = ZB_COUNT_OF(keys),
    .layers_key = "n_layer",
    .vocab_key = "vocab_size",
    .lora_targets = "query_key_value",
    .build = build,
};
