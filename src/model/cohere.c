/* SPDX-License-Identifier: MIT
 *
 * Cohere (Command): attention and a gated MLP beside each other behind one
 * layer norm without bias, interleaved rotary positions, scaled logits, and
 * where asked for norms of each head of queries and keys.
 */
#include "config.h"
#include "model/model_int.h"

#include <math.h>

static const struct zb_key_row keys[] = {
    {"vocab_size", NULL, ZB_KEY_INT, "256000", 1, ZB_KEY_MAX, 0},
    {"hidden_size", NULL, ZB_KEY_INT, "8192", 1, ZB_KEY_MAX, 0},
    {"intermediate_size", NULL, ZB_KEY_INT, "22528", 1, ZB_KEY_MAX, 0},
    {"logit_scale", NULL, ZB_KEY_REAL, "0.0625", -1e6, 1e6, 0},
    {"num_hidden_layers", NULL, ZB_KEY_INT, "40", 1, 10000, 0},
    {"num_attention_heads", NULL, ZB_KEY_INT, "64", 1, ZB_KEY_MAX, 0},
    {"num_key_value_heads", NULL, ZB_KEY_INT, "null", 1, ZB_KEY_MAX,
     ZB_KEY_NULLABLE},
    {"hidden_act", NULL, ZB_KEY_TEXT, "\"silu\"", 0, 0, 0},
    {"max_position_embeddings", NULL, ZB_KEY_INT, "8192", 1, ZB_KEY_MAX, 0},
    {"initializer_range", NULL, ZB_KEY_REAL, "0.02", 0, 1e3, 0},
    {"layer_norm_eps", NULL, ZB_KEY_REAL, "1e-5", 0, 1, 0},
    {"pad_token_id", NULL, ZB_KEY_INT, "0", -ZB_KEY_MAX, ZB_KEY_MAX,
     ZB_KEY_NULLABLE},
    {"rope_theta", NULL, ZB_KEY_REAL, "10000.0", 1e-3, 1e12, 0},
    {"rope_scaling", NULL, ZB_KEY_OBJECT, "null", 0, 0, ZB_KEY_NULLABLE},
    {"rope_parameters", NULL, ZB_KEY_OBJECT, "null", 0, 0, ZB_KEY_NULLABLE},
    {"attention_bias", NULL, ZB_KEY_BOOL, "false", 0, 0, 0},
    {"attention_dropout", NULL, ZB_KEY_REAL, "0.0", 0, 0.999, 0},
    {"use_qk_norm", NULL, ZB_KEY_BOOL, "false", 0, 0, 0},
    {"tie_word_embeddings", NULL, ZB_KEY_BOOL, "true", 0, 0, 0},
};

struct cohere {
    struct zb_builder *b;
    int64_t vocab, hidden, inner, n_layers, n_heads, n_kv, head_dim;
    int64_t padding_idx;
    double eps, dropout;
    enum zb_act act;
    int has_bias, has_qk_norm, key_mask;
    struct zb_rope_tables rope;
};

static enum zb_status read_heads(struct cohere *m, const struct zb_config *c)
{
    m->n_heads = zb_config_int(c, "num_attention_heads");
    m->n_kv = zb_config_int_or(c, "num_key_value_heads", m->n_heads);
    if (m->n_heads % m->n_kv != 0) {
        return zb_config_fail(c, "num_key_value_heads",
                              "%lld does not divide num_attention_heads %lld",
                              (long long)m->n_kv, (long long)m->n_heads);
    }
    m->head_dim = m->hidden / m->n_heads;
    if (m->hidden % m->n_heads != 0 || m->head_dim % 2 != 0) {
        return zb_config_fail(c, "num_attention_heads",
                              "%lld does not divide hidden_size %lld into "
                              "heads of even size",
                              (long long)m->n_heads, (long long)m->hidden);
    }
    ZB_TRY(zb_build_check_split(m->b, "num_attention_heads", m->n_heads, 0));
    return zb_build_check_split(m->b, "num_key_value_heads", m->n_kv, 1);
}

static enum zb_status read_config(struct cohere *m, const struct zb_config *c)
{
    m->vocab = zb_config_int(c, "vocab_size");
    m->hidden = zb_config_int(c, "hidden_size");
    m->inner = zb_config_int(c, "intermediate_size");
    m->n_layers = zb_config_int(c, "num_hidden_layers");
    m->eps = zb_config_real(c, "layer_norm_eps");
    m->dropout = zb_config_real(c, "attention_dropout");
    m->has_bias = zb_config_bool(c, "attention_bias");
    m->has_qk_norm = zb_config_bool(c, "use_qk_norm");
    ZB_TRY(read_heads(m, c));
    ZB_TRY(zb_build_check_split(m->b, "intermediate_size", m->inner, 0));
    ZB_TRY(zb_config_padding(c, m->vocab, &m->padding_idx));
    return zb_config_act(c, "hidden_act", &m->act);
}

static int linear(const struct cohere *m, int64_t i, const char *name, int x,
                  struct zb_linear l)
{
    l.std = m->b->std;
    return zb_build_linear(m->b, x, &l, "model.layers.%lld.%s", (long long)i,
                           name);
}

/* Queries or keys, with a norm of their own and rotated, or values. */
static int heads(const struct cohere *m, int64_t i, char what, int x,
                 int64_t n_heads)
{
    const struct zb_linear l = {.n_in = m->hidden,
                                .n_out = n_heads * m->head_dim,
                                .has_bias = m->has_bias,
                                .side = ZB_SIDE_OUT,
                                .n_heads = n_heads};
    char name[] = "self_attn.q_proj";

    name[sizeof("self_attn.") - 1] = what;
    x = zb_build_heads(m->b, linear(m, i, name, x, l), m->head_dim);
    if (what == 'v') {
        return x;
    }
    if (m->has_qk_norm) {
        x = zb_g_layernorm(m->b->g, x,
                           zb_build_head_ones(m->b, n_heads, m->head_dim,
                                              "model.layers.%lld.self_attn."
                                              "%c_norm.weight",
                                              (long long)i, what),
                           ZB_G_NONE, m->eps);
    }
    return zb_g_rope(m->b->g, x, m->rope.cos, m->rope.sin, 1);
}

static int attention(const struct cohere *m, int64_t i, int a)
{
    const struct zb_attn_opts opts = {
        .causal = 1,
        .scale = 1.0 / sqrt((double)m->head_dim),
        .dropout = m->dropout,
        .key_mask = m->key_mask,
    };
    const struct zb_linear out = {.n_in = m->hidden,
                                  .n_out = m->hidden,
                                  .has_bias = m->has_bias,
                                  .side = ZB_SIDE_IN,
                                  .n_heads = m->n_heads};
    int q = heads(m, i, 'q', a, m->n_heads);
    int k = heads(m, i, 'k', a, m->n_kv), v = heads(m, i, 'v', a, m->n_kv);

    return linear(m, i, "self_attn.o_proj",
                  zb_g_attention(m->b->g, q, k, v, &opts), out);
}

static int mlp(const struct cohere *m, int64_t i, int a)
{
    const struct zb_linear in = {
        .n_in = m->hidden, .n_out = m->inner, .side = ZB_SIDE_OUT};
    const struct zb_linear out = {
        .n_in = m->inner, .n_out = m->hidden, .side = ZB_SIDE_IN};
    int gate = linear(m, i, "mlp.gate_proj", a, in);
    int up = linear(m, i, "mlp.up_proj", a, in);

    return linear(m, i, "mlp.down_proj", zb_g_gated(m->b->g, gate, up, m->act),
                  out);
}

static int block(const struct cohere *m, int64_t i, int x)
{
    int gamma =
        zb_build_ones(m->b, m->hidden,
                      "model.layers.%lld.input_layernorm.weight", (long long)i);
    int a = zb_g_layernorm(m->b->g, x, gamma, ZB_G_NONE, m->eps);

    x = zb_g_add(m->b->g, x, attention(m, i, a));
    return zb_g_add(m->b->g, x, mlp(m, i, a));
}

static int head(const struct cohere *m, int x)
{
    struct zb_builder *b = m->b;

    x = zb_g_layernorm(b->g, x,
                       zb_build_ones(b, m->hidden, "model.norm.weight"),
                       ZB_G_NONE, m->eps);
    /* As scaled logits, on fewer numbers. */
    if (!b->opts->no_head) {
        x = zb_g_scale(b->g, x, zb_config_real(b->config, "logit_scale"));
    }
    return zb_build_head(b, x, m->vocab, m->hidden,
                         zb_build_head_table(b, "model.embed_tokens.weight"),
                         NULL);
}

static enum zb_status build(struct zb_builder *b)
{
    const struct zb_config *c = b->config;
    struct cohere m = {.b = b};
    int64_t n_pos = b->opts->max_seq > 0
                        ? b->opts->max_seq
                        : zb_config_int(c, "max_position_embeddings");
    int x;

    ZB_TRY(read_config(&m, c));
    ZB_TRY(zb_build_rope(b, m.head_dim, n_pos, &m.rope));
    m.key_mask = zb_build_key_mask(b);
    zb_build_layer(b, "embed");
    x = zb_build_input(b, "model.embed_tokens.weight", m.vocab, m.hidden,
                       (int)m.padding_idx);
    for (int64_t i = 0; i < m.n_layers; i++) {
        zb_build_layer(b, "layers.%lld", (long long)i);
        x = block(&m, i, x);
    }
    zb_build_layer(b, "head");
    zb_build_end(b, head(&m, x));
    return ZB_OK;
}

const struct zb_family zb_family_cohere = {
    .name = "cohere",
    .architecture = "CohereForCausalLM",
    .notes =
        "Command R; parallel blocks; use_qk_norm; interleaved " ZB_NOTE_ROPE,
    .keys = keys,
    .n_keys = ZB_COUNT_OF(keys),
    .layers_key = "num_hidden_layers",
    .vocab_key = "vocab_size",
    .lora_targets = "q_proj,v_proj",
    .build = build,
};
