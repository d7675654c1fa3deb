/* SPDX-License-Identifier: MIT
 *
 * GPT-2: layer norms, learned positions, a tied head, weights stored [in,out].
 */
#include "config.h"
#include "model/model_int.h"

#include <math.h>

static const struct zb_key_row keys[] = {
    {"vocab_size", NULL, ZB_KEY_INT, "50257", 1, ZB_KEY_MAX, 0},
    {"n_positions", "max_position_embeddings", ZB_KEY_INT, "1024", 1,
     ZB_KEY_MAX, 0},
    {"n_embd", "hidden_size", ZB_KEY_INT, "768", 1, ZB_KEY_MAX / 4, 0},
    {"n_layer", "num_hidden_layers", ZB_KEY_INT, "12", 1, 10000, 0},
    {"n_head", "num_attention_heads", ZB_KEY_INT, "12", 1, ZB_KEY_MAX, 0},
    {"n_inner", NULL, ZB_KEY_INT, "null", 1, ZB_KEY_MAX, ZB_KEY_NULLABLE},
    {"activation_function", NULL, ZB_KEY_TEXT, "\"gelu_new\"", 0, 0, 0},
    {"resid_pdrop", NULL, ZB_KEY_REAL, "0.1", 0, 0.999, 0},
    {"embd_pdrop", NULL, ZB_KEY_REAL, "0.1", 0, 0.999, 0},
    {"attn_pdrop", NULL, ZB_KEY_REAL, "0.1", 0, 0.999, 0},
    {"layer_norm_epsilon", NULL, ZB_KEY_REAL, "1e-5", 0, 1, 0},
    {"initializer_range", NULL, ZB_KEY_REAL, "0.02", 0, 1e3, 0},
    {"scale_attn_weights", NULL, ZB_KEY_BOOL, "true", 0, 0, 0},
    {"scale_attn_by_inverse_layer_idx", NULL, ZB_KEY_BOOL, "false", 0, 0, 0},
    {"tie_word_embeddings", NULL, ZB_KEY_BOOL, "true", 0, 0, 0},
    {"add_cross_attention", NULL, ZB_KEY_BOOL, "false", 0, 0, ZB_KEY_ONLY},
    {"reorder_and_upcast_attn", NULL, ZB_KEY_BOOL, "false", 0, 0, ZB_KEY_ONLY},
    /* Another model's row in the same vocabulary: GPT-2 has no padding_idx. */
    {"pad_token_id", NULL, ZB_KEY_INT, "null", -ZB_KEY_MAX, ZB_KEY_MAX,
     ZB_KEY_NULLABLE},
};

struct gpt2 {
    struct zb_builder *b;
    int64_t vocab, hidden, inner, n_layers, n_heads, n_pos;
    double eps, resid_drop, embd_drop, attn_drop;
    enum zb_act act;
    int is_scaled, by_layer, key_mask;
};

static enum zb_status read_config(struct gpt2 *m, const struct zb_config *c)
{
    m->vocab = zb_config_int(c, "vocab_size");
    m->hidden = zb_config_int(c, "n_embd");
    m->inner = zb_config_int_or(c, "n_inner", 4 * m->hidden);
    m->n_layers = zb_config_int(c, "n_layer");
    m->n_heads = zb_config_int(c, "n_head");
    m->n_pos = zb_config_int(c, "n_positions");
    m->eps = zb_config_real(c, "layer_norm_epsilon");
    m->resid_drop = zb_config_real(c, "resid_pdrop");
    m->embd_drop = zb_config_real(c, "embd_pdrop");
    m->attn_drop = zb_config_real(c, "attn_pdrop");
    m->is_scaled = zb_config_bool(c, "scale_attn_weights");
    m->by_layer = zb_config_bool(c, "scale_attn_by_inverse_layer_idx");
    if (m->hidden % m->n_heads != 0) {
        return zb_config_fail(c, "n_head", "%lld does not divide n_embd %lld",
                              (long long)m->n_heads, (long long)m->hidden);
    }
    ZB_TRY(zb_build_check_split(m->b, "n_head", m->n_heads, 0));
    ZB_TRY(zb_build_check_split(m->b, "n_inner", m->inner, 0));
    ZB_TRY(zb_build_check_positions(m->b, "n_positions"));
    return zb_config_act(c, "activation_function", &m->act);
}

/* y = x W + b of block i, W [in,out]. */
static int conv1d(const struct gpt2 *m, int64_t i, const char *name, int x,
                  struct zb_linear l)
{
    l.has_bias = 1;
    l.in_by_out = 1;
    return zb_build_linear(m->b, x, &l, "transformer.h.%lld.%s", (long long)i,
                           name);
}

static int norm(const struct gpt2 *m, int64_t i, const char *name, int x)
{
    return zb_build_layernorm(m->b, x, m->hidden, m->eps,
                              "transformer.h.%lld.%s", (long long)i, name);
}

/* Part `k` of the packed queries, keys and values, as heads. */
static int heads(const struct gpt2 *m, int qkv, int k)
{
    return zb_build_heads(m->b,
                          zb_g_slice(m->b->g, qkv, k * m->hidden, m->hidden),
                          m->hidden / m->n_heads);
}

/* Projections into the residual stream start smaller, for depth. */
static double residual_std(const struct gpt2 *m)
{
    return m->b->std / sqrt(2.0 * (double)m->n_layers);
}

static int attention(const struct gpt2 *m, int64_t i, int x)
{
    double scale = m->is_scaled ? 1.0 / sqrt((double)(m->hidden / m->n_heads))
                                : 1.0;
    const struct zb_attn_opts opts = {
        .causal = 1,
        .scale = m->by_layer ? scale / (double)(i + 1) : scale,
        .dropout = m->attn_drop,
        .key_mask = m->key_mask,
    };
    const struct zb_linear in = {
        .n_in = m->hidden,
        .n_out = 3 * m->hidden,
        .std = m->b->std,
        .side = ZB_SIDE_OUT,
        .n_parts = 3,
        .n_heads = m->n_heads,
    };
    const struct zb_linear out = {
        .n_in = m->hidden,
        .n_out = m->hidden,
        .std = residual_std(m),
        .side = ZB_SIDE_IN,
        .n_heads = m->n_heads,
    };
    int a = norm(m, i, "ln_1", x);
    int qkv = conv1d(m, i, "attn.c_attn", a, in);
    int q = heads(m, qkv, 0), k = heads(m, qkv, 1), v = heads(m, qkv, 2);
    int y = zb_g_attention(m->b->g, q, k, v, &opts);

    y = conv1d(m, i, "attn.c_proj", y, out);
    return zb_g_dropout(m->b->g, y, m->resid_drop);
}

static int mlp(const struct gpt2 *m, int64_t i, int x)
{
    const struct zb_linear in = {
        .n_in = m->hidden,
        .n_out = m->inner,
        .std = m->b->std,
        .side = ZB_SIDE_OUT,
    };
    const struct zb_linear out = {
        .n_in = m->inner,
        .n_out = m->hidden,
        .std = residual_std(m),
        .side = ZB_SIDE_IN,
    };
    int a = norm(m, i, "ln_2", x);
    int y = conv1d(m, i, "mlp.c_fc", a, in);

    y = zb_g_act(m->b->g, y, m->act);
    y = conv1d(m, i, "mlp.c_proj", y, out);
    return zb_g_dropout(m->b->g, y, m->resid_drop);
}

static int embed(const struct gpt2 *m)
{
    struct zb_builder *b = m->b;
    int x = zb_build_input(b, "transformer.wte.weight", m->vocab, m->hidden,
                           -1);
    int wpe = zb_build_matrix(b, b->std, m->n_pos, m->hidden,
                              "transformer.wpe.weight");

    return zb_g_dropout(b->g, zb_g_position(b->g, x, wpe, 0), m->embd_drop);
}

static int head(const struct gpt2 *m, int x)
{
    struct zb_builder *b = m->b;

    x = zb_build_layernorm(b, x, m->hidden, m->eps, "transformer.ln_f");
    return zb_build_head(
        b, x, m->vocab, m->hidden,
        zb_build_head_table(b, "transformer.wte.weight"), NULL);
}

static enum zb_status build(struct zb_builder *b)
{
    struct gpt2 m = {.b = b};
    int x;

    ZB_TRY(read_config(&m, b->config));
    m.key_mask = zb_build_key_mask(b);
    zb_build_layer(b, "embed");
    x = embed(&m);
    for (int64_t i = 0; i < m.n_layers; i++) {
        zb_build_layer(b, "h.%lld", (long long)i);
        x = zb_g_add(b->g, x, attention(&m, i, x));
        x = zb_g_add(b->g, x, mlp(&m, i, x));
    }
    zb_build_layer(b, "head");
    zb_build_end(b, head(&m, x));
    return ZB_OK;
}

const struct zb_family zb_family_gpt2 = {
    .name = "gpt2",
    .architecture = "GPT2LMHeadModel",
    .notes = "learned positions; scale_attn_by_inverse_layer_idx",
    .keys = keys,
    .n_keys = ZB_COUNT_OF(keys),
    .layers_key = "n_layer",
    .vocab_key = "vocab_size",
    .is_in_by_out = 1,
    .lora_targets = "c_attn",
    .build = build,
};
