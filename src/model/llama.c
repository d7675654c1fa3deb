/* SPDX-License-Identifier: MIT
 *
 * Llama: RMS norms, rotary positions, grouped keys and values, SwiGLU. Families
 * that are the same but for biases and windows are built here, too.
 */
#include "config.h"
#include "model/model_int.h"

#include <math.h>

static const struct zb_key_row keys[] = {
    ZB_LLAMA_KEYS("32000", "11008", "null", "2048"),
    {"attention_bias", NULL, ZB_KEY_BOOL, "false", 0, 0, 0},
    {"mlp_bias", NULL, ZB_KEY_BOOL, "false", 0, 0, 0},
};

struct llama {
    struct zb_builder *b;
    int64_t vocab, hidden, inner, n_layers, n_heads, n_kv, head_dim;
    int64_t padding_idx;
    double eps, dropout;
    enum zb_act act;
    int key_mask;
    struct zb_llama_kind kind;
    struct zb_rope_tables rope;
};

static enum zb_status read_sizes(struct llama *m, const struct zb_config *c)
{
    m->vocab = zb_config_int(c, "vocab_size");
    m->hidden = zb_config_int(c, "hidden_size");
    m->inner = zb_config_int(c, "intermediate_size");
    m->n_layers = zb_config_int(c, "num_hidden_layers");
    m->n_heads = zb_config_int(c, "num_attention_heads");
    m->n_kv = zb_config_int_or(c, "num_key_value_heads", m->n_heads);
    if (m->n_heads % m->n_kv != 0) {
        return zb_config_fail(c, "num_key_value_heads",
                              "%lld does not divide num_attention_heads %lld",
                              (long long)m->n_kv, (long long)m->n_heads);
    }
    if (zb_config_is_null(c, "head_dim") && m->hidden % m->n_heads != 0) {
        return zb_config_fail(c, "num_attention_heads",
                              "%lld does not divide hidden_size %lld",
                              (long long)m->n_heads, (long long)m->hidden);
    }
    ZB_TRY(zb_build_check_split(m->b, "num_attention_heads", m->n_heads, 0));
    ZB_TRY(zb_build_check_split(m->b, "num_key_value_heads", m->n_kv, 1));
    ZB_TRY(zb_build_check_split(m->b, "intermediate_size", m->inner, 0));
    m->head_dim = zb_config_int_or(c, "head_dim", m->hidden / m->n_heads);
    if (m->head_dim % 2 != 0) {
        return zb_config_fail(c, "head_dim",
                              "heads of odd size %lld can not be rotated",
                              (long long)m->head_dim);
    }
    return ZB_OK;
}

static enum zb_status read_rest(struct llama *m, const struct zb_config *c)
{
    ZB_TRY(zb_config_padding(c, m->vocab, &m->padding_idx));
    m->eps = zb_config_real(c, "rms_norm_eps");
    m->dropout = zb_config_real(c, "attention_dropout");
    return zb_config_act(c, "hidden_act", &m->act);
}

/* A linear layer of the attention of block i, between the hidden state and
 * n_heads heads. */
static int attn_linear(const struct llama *m, int64_t i, const char *name,
                       int x, enum zb_side side, int64_t n_heads)
{
    int64_t n = n_heads * m->head_dim;
    const struct zb_linear l = {
        .n_in = side == ZB_SIDE_OUT ? m->hidden : n,
        .n_out = side == ZB_SIDE_OUT ? n : m->hidden,
        .has_bias = side == ZB_SIDE_OUT ? m->kind.qkv_bias : m->kind.out_bias,
        .std = m->b->std,
        .side = side,
        .n_heads = n_heads,
    };

    return zb_build_linear(m->b, x, &l, "model.layers.%lld.self_attn.%s",
                           (long long)i, name);
}

/* One of the MLP of block i, between the hidden state and the inner one. */
static int mlp_linear(const struct llama *m, int64_t i, const char *name, int x,
                      enum zb_side side)
{
    const struct zb_linear l = {
        .n_in = side == ZB_SIDE_OUT ? m->hidden : m->inner,
        .n_out = side == ZB_SIDE_OUT ? m->inner : m->hidden,
        .has_bias = m->kind.mlp_bias,
        .std = m->b->std,
        .side = side,
    };

    return zb_build_linear(m->b, x, &l, "model.layers.%lld.mlp.%s",
                           (long long)i, name);
}

static int norm(const struct llama *m, int64_t i, const char *name, int x)
{
    return zb_g_rmsnorm(m->b->g, x,
                        zb_build_ones(m->b, m->hidden,
                                      "model.layers.%lld.%s.weight",
                                      (long long)i, name),
                        m->eps);
}

/* A projection cut into heads. */
static int heads(const struct llama *m, int64_t i, const char *name, int x,
                 int64_t n)
{
    return zb_build_heads(m->b, attn_linear(m, i, name, x, ZB_SIDE_OUT, n),
                          m->head_dim);
}

static int attention(const struct llama *m, int64_t i, int x)
{
    struct zb_graph *g = m->b->g;
    const struct zb_attn_opts opts = {
        .causal = 1,
        .scale = 1.0 / sqrt((double)m->head_dim),
        .dropout = m->dropout,
        .window = m->kind.window != NULL ? m->kind.window(m->b->config, i) : 0,
        .key_mask = m->key_mask,
    };
    int a = norm(m, i, "input_layernorm", x);
    int q = heads(m, i, "q_proj", a, m->n_heads);
    int k = heads(m, i, "k_proj", a, m->n_kv);
    int v = heads(m, i, "v_proj", a, m->n_kv);

    q = zb_g_rope(g, q, m->rope.cos, m->rope.sin, 0);
    k = zb_g_rope(g, k, m->rope.cos, m->rope.sin, 0);
    return attn_linear(m, i, "o_proj", zb_g_attention(g, q, k, v, &opts),
                       ZB_SIDE_IN, m->n_heads);
}

static int mlp(const struct llama *m, int64_t i, int x)
{
    int a = norm(m, i, "post_attention_layernorm", x);
    int gate = mlp_linear(m, i, "gate_proj", a, ZB_SIDE_OUT);
    int up = mlp_linear(m, i, "up_proj", a, ZB_SIDE_OUT);

    return mlp_linear(m, i, "down_proj", zb_g_gated(m->b->g, gate, up, m->act),
                      ZB_SIDE_IN);
}

static int head(const struct llama *m, int x)
{
    struct zb_builder *b = m->b;

    x = zb_g_rmsnorm(b->g, x, zb_build_ones(b, m->hidden, "model.norm.weight"),
                     m->eps);
    return zb_build_head(b, x, m->vocab, m->hidden,
                         zb_build_head_table(b, "model.embed_tokens.weight"),
                         NULL);
}

enum zb_status zb_build_llama(struct zb_builder *b,
                              const struct zb_llama_kind *kind)
{
    const struct zb_config *c = b->config;
    struct llama m = {.b = b, .kind = *kind};
    int64_t n_pos = b->opts->max_seq > 0
                        ? b->opts->max_seq
                        : zb_config_int(c, "max_position_embeddings");
    int x;

    ZB_TRY(read_sizes(&m, c));
    ZB_TRY(read_rest(&m, c));
    ZB_TRY(zb_build_rope(b, m.head_dim, n_pos, &m.rope));
    m.key_mask = zb_build_key_mask(b);
    zb_build_layer(b, "embed");
    x = zb_build_input(b, "model.embed_tokens.weight", m.vocab, m.hidden,
                       (int)m.padding_idx);
    for (int64_t i = 0; i < m.n_layers; i++) {
        zb_build_layer(b, "layers.%lld", (long long)i);
        x = zb_g_add(b->g, x, attention(&m, i, x));
        x = zb_g_add(b->g, x, mlp(&m, i, x));
    }
    zb_build_layer(b, "head");
    zb_build_end(b, head(&m, x));
    return ZB_OK;
}

static enum zb_status build(struct zb_builder *b)
{
    int has_bias = zb_config_bool(b->config, "attention_bias");
    const struct zb_llama_kind kind = {
        .qkv_bias = has_bias,
        .out_bias = has_bias,
        .mlp_bias = zb_config_bool(b->config, "mlp_bias"),
    };

    return zb_build_llama(b, &kind);
}

const struct zb_family zb_family_llama = {
    .name = "llama",
    .architecture = "LlamaForCausalLM",
    .notes = "Llama 1 to 3; " ZB_NOTE_ROPE "; biases",
    .keys = keys,
    .n_keys = ZB_COUNT_OF(keys),
    .layers_key = "num_hidden_layers",
    .vocab_key = "vocab_size",
    .lora_targets = "q_proj,v_proj",
    .build = build,
};
