/* SPDX-License-Identifier: MIT
 *
 * OPT: learned positions that count real tokens, norms before or behind each
 * half of a block, an embedding that may be narrower than the model.
 */
#include "config.h"
#include "model/model_int.h"

#include <math.h>

static const struct zb_key_row keys[] = {
    {"vocab_size", NULL, ZB_KEY_INT, "50272", 1, ZB_KEY_MAX, 0},
    {"hidden_size", NULL, ZB_KEY_INT, "768", 1, ZB_KEY_MAX, 0},
    {"num_hidden_layers", NULL, ZB_KEY_INT, "12", 1, 10000, 0},
    {"ffn_dim", NULL, ZB_KEY_INT, "3072", 1, ZB_KEY_MAX, 0},
    {"max_position_embeddings", NULL, ZB_KEY_INT, "2048", 1, 1e9, 0},
    {"do_layer_norm_before", NULL, ZB_KEY_BOOL, "true", 0, 0, 0},
    {"_remove_final_layer_norm", NULL, ZB_KEY_BOOL, "false", 0, 0, 0},
    {"word_embed_proj_dim", NULL, ZB_KEY_INT, "null", 1, ZB_KEY_MAX,
     ZB_KEY_NULLABLE},
    {"dropout", NULL, ZB_KEY_REAL, "0.1", 0, 0.999, 0},
    {"attention_dropout", NULL, ZB_KEY_REAL, "0.0", 0, 0.999, 0},
    {"num_attention_heads", NULL, ZB_KEY_INT, "12", 1, ZB_KEY_MAX, 0},
    {"activation_function", NULL, ZB_KEY_TEXT, "\"relu\"", 0, 0, 0},
    {"layerdrop", NULL, ZB_KEY_REAL, "0.0", 0, 1, ZB_KEY_ONLY},
    {"init_std", NULL, ZB_KEY_REAL, "0.02", 0, 1e3, 0},
    {"enable_bias", NULL, ZB_KEY_BOOL, "true", 0, 0, 0},
    {"layer_norm_elementwise_affine", NULL, ZB_KEY_BOOL, "true", 0, 0,
     ZB_KEY_ONLY},
    {"tie_word_embeddings", NULL, ZB_KEY_BOOL, "true", 0, 0, 0},
    {"pad_token_id", NULL, ZB_KEY_INT, "1", -ZB_KEY_MAX, ZB_KEY_MAX,
     ZB_KEY_NULLABLE},
    /* In files of old; nothing reads it. */
    {"activation_dropout", NULL, ZB_KEY_REAL, "0.0", 0, 1, 0},
};

/* The table of positions begins with rows that no token counts to: the second
 * is that of padding. */
#define FIRST_POSITION 2

#define EPS 1e-5

struct opt {
    struct zb_builder *b;
    int64_t vocab, hidden, width, inner, n_layers, n_heads, n_pos, padding;
    double drop, attn_drop;
    enum zb_act act;
    int is_pre, has_last_norm, has_bias, key_mask;
};

static enum zb_status read_config(struct opt *m, const struct zb_config *c)
{
    m->vocab = zb_config_int(c, "vocab_size");
    m->hidden = zb_config_int(c, "hidden_size");
    m->width = zb_config_int_or(c, "word_embed_proj_dim", m->hidden);
    m->inner = zb_config_int(c, "ffn_dim");
    m->n_layers = zb_config_int(c, "num_hidden_layers");
    m->n_heads = zb_config_int(c, "num_attention_heads");
    m->n_pos = zb_config_int(c, "max_position_embeddings");
    m->drop = zb_config_real(c, "dropout");
    m->attn_drop = zb_config_real(c, "attention_dropout");
    m->is_pre = zb_config_bool(c, "do_layer_norm_before");
    m->has_last_norm =
        m->is_pre && !zb_config_bool(c, "_remove_final_layer_norm");
    m->has_bias = zb_config_bool(c, "enable_bias");
    if (m->hidden % m->n_heads != 0) {
        return zb_config_fail(c, "num_attention_heads",
                              "%lld does not divide hidden_size %lld",
                              (long long)m->n_heads, (long long)m->hidden);
    }
    ZB_TRY(zb_build_check_split(m->b, "num_attention_heads", m->n_heads, 0));
    ZB_TRY(zb_build_check_split(m->b, "ffn_dim", m->inner, 0));
    ZB_TRY(zb_build_check_positions(m->b, "max_position_embeddings"));
    ZB_TRY(zb_config_padding(c, m->vocab, &m->padding));
    return zb_config_act(c, "activation_function", &m->act);
}

static int linear(const struct opt *m, int64_t i, const char *name, int x,
                  struct zb_linear l)
{
    l.std = m->b->std;
    l.has_bias = m->has_bias;
    return zb_build_linear(m->b, x, &l, "model.decoder.layers.%lld.%s",
                           (long long)i, name);
}

static int norm(const struct opt *m, int64_t i, const char *name, int x)
{
    return zb_build_layernorm(m->b, x, m->hidden, EPS,
                              "model.decoder.layers.%lld.%s", (long long)i,
                              name);
}

static int heads(const struct opt *m, int64_t i, const char *name, int x)
{
    const struct zb_linear in = {.n_in = m->hidden,
                                 .n_out = m->hidden,
                                 .side = ZB_SIDE_OUT,
                                 .n_heads = m->n_heads};

    return zb_build_heads(m->b, linear(m, i, name, x, in),
                          m->hidden / m->n_heads);
}

static int attention(const struct opt *m, int64_t i, int x)
{
    const struct zb_attn_opts opts = {
        .causal = 1,
        .scale = 1.0 / sqrt((double)(m->hidden / m->n_heads)),
        .dropout = m->attn_drop,
        .key_mask = m->key_mask,
    };
    const struct zb_linear out = {.n_in = m->hidden,
                                  .n_out = m->hidden,
                                  .side = ZB_SIDE_IN,
                                  .n_heads = m->n_heads};
    int q = heads(m, i, "self_attn.q_proj", x);
    int k = heads(m, i, "self_attn.k_proj", x);
    int v = heads(m, i, "self_attn.v_proj", x);
    int y = zb_g_attention(m->b->g, q, k, v, &opts);

    return linear(m, i, "self_attn.out_proj", y, out);
}

static int mlp(const struct opt *m, int64_t i, int x)
{
    const struct zb_linear in = {
        .n_in = m->hidden, .n_out = m->inner, .side = ZB_SIDE_OUT};
    const struct zb_linear out = {
        .n_in = m->inner, .n_out = m->hidden, .side = ZB_SIDE_IN};
    int y = zb_g_act(m->b->g, linear(m, i, "fc1", x, in), m->act);

    return linear(m, i, "fc2", y, out);
}

typedef int (*half_fn)(const struct opt *m, int64_t i, int x);

/* x + half(norm(x)), or norm(x + half(x)). */
static int half(const struct opt *m, int64_t i, const char *name, half_fn fn,
                int x)
{
    struct zb_graph *g = m->b->g;
    int a = m->is_pre ? norm(m, i, name, x) : x;

    x = zb_g_add(g, x, zb_g_dropout(g, fn(m, i, a), m->drop));
    return m->is_pre ? x : norm(m, i, name, x);
}

/* Between the widths of the embedding and of the model. */
static int project(const struct opt *m, const char *name, int x, int64_t n_in,
                   int64_t n_out)
{
    const struct zb_linear l = {.n_in = n_in, .n_out = n_out, .std = m->b->std};

    return n_in == n_out
               ? x
               : zb_build_linear(m->b, x, &l, "model.decoder.%s", name);
}

static int embed(const struct opt *m)
{
    struct zb_builder *b = m->b;
    int x = zb_build_input(b, "model.decoder.embed_tokens.weight", m->vocab,
                           m->width, (int)m->padding);
    int table, ids = zb_build_position_ids(b);

    x = project(m, "project_in", x, m->width, m->hidden);
    table = zb_build_matrix(b, b->std, m->n_pos + FIRST_POSITION, m->hidden,
                            "model.decoder.embed_positions.weight");
    return ids == ZB_G_NONE
               ? zb_g_position(b->g, x, table, FIRST_POSITION)
               : zb_g_position_at(b->g, x, ids, table, FIRST_POSITION);
}

static int head(const struct opt *m, int x)
{
    struct zb_builder *b = m->b;

    if (m->has_last_norm) {
        x = zb_build_layernorm(b, x, m->hidden, EPS,
                               "model.decoder.final_layer_norm");
    }
    x = project(m, "project_out", x, m->hidden, m->width);
    return zb_build_head(
        b, x, m->vocab, m->width,
        zb_build_head_table(b, "model.decoder.embed_tokens.weight"), NULL);
}

static enum zb_status build(struct zb_builder *b)
{
    struct opt m = {.b = b};
    int x;

    ZB_TRY(read_config(&m, b->config));
    m.key_mask = zb_build_key_mask(b);
    zb_build_layer(b, "embed");
    x = embed(&m);
    for (int64_t i = 0; i < m.n_layers; i++) {
        zb_build_layer(b, "h.%lld", (long long)i);
        x = half(&m, i, "self_attn_layer_norm", attention, x);
        x = half(&m, i, "final_layer_norm", mlp, x);
    }
    zb_build_layer(b, "head");
    zb_build_end(b, head(&m, x));
    return ZB_OK;
}

const struct zb_family zb_family_opt = {
    .name = "opt",
    .architecture = "OPTForCausalLM",
    .notes = "norms before or behind; word_embed_proj_dim; positions by "
             "attention_mask",
    .keys = keys,
    .n_keys = ZB_COUNT_OF(keys),
    .layers_key = "num_hidden_layers",
    .vocab_key = "vocab_size",
    .std_key = "init_std",
    .lora_targets = "q_proj,v_proj",
    .build = build,
};
