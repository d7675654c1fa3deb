/* SPDX-License-Identifier: MIT
 *
 * Falcon, in three forms: attention and MLP beside each other behind one norm
 * (7B) or two (40B, 180B: new_decoder_architecture), or one behind the other
 * (RW); positions by rotation or ALiBi; queries, keys and values packed.
 */
#include "config.h"
#include "model/model_int.h"

#include <math.h>

static const struct zb_key_row keys[] = {
    {"vocab_size", NULL, ZB_KEY_INT, "65024", 1, ZB_KEY_MAX, 0},
    {"hidden_size", "n_embed", ZB_KEY_INT, "4544", 1, ZB_KEY_MAX / 4, 0},
    {"num_hidden_layers", "n_layer", ZB_KEY_INT, "32", 1, 10000, 0},
    {"num_attention_heads", "n_head", ZB_KEY_INT, "71", 1, ZB_KEY_MAX, 0},
    {"num_kv_heads", "n_head_kv", ZB_KEY_INT, "null", 1, ZB_KEY_MAX,
     ZB_KEY_NULLABLE},
    {"multi_query", NULL, ZB_KEY_BOOL, "true", 0, 0, 0},
    {"new_decoder_architecture", NULL, ZB_KEY_BOOL, "false", 0, 0, 0},
    {"parallel_attn", NULL, ZB_KEY_BOOL, "true", 0, 0, 0},
    {"num_ln_in_parallel_attn", NULL, ZB_KEY_INT, "null", 1, 2,
     ZB_KEY_NULLABLE},
    {"alibi", NULL, ZB_KEY_BOOL, "false", 0, 0, 0},
    {"bias", NULL, ZB_KEY_BOOL, "false", 0, 0, 0},
    {"activation", NULL, ZB_KEY_TEXT, "\"gelu\"", 0, 0, 0},
    {"ffn_hidden_size", NULL, ZB_KEY_INT, "null", 1, ZB_KEY_MAX,
     ZB_KEY_NULLABLE},
    {"layer_norm_epsilon", NULL, ZB_KEY_REAL, "1e-5", 0, 1, 0},
    {"hidden_dropout", NULL, ZB_KEY_REAL, "0.0", 0, 0.999, 0},
    {"attention_dropout", NULL, ZB_KEY_REAL, "0.0", 0, 0.999, 0},
    {"initializer_range", NULL, ZB_KEY_REAL, "0.02", 0, 1e3, 0},
    {"max_position_embeddings", NULL, ZB_KEY_INT, "2048", 1, ZB_KEY_MAX, 0},
    {"rope_theta", NULL, ZB_KEY_REAL, "10000.0", 1e-3, 1e12, 0},
    {"rope_scaling", NULL, ZB_KEY_OBJECT, "null", 0, 0, ZB_KEY_NULLABLE},
    {"rope_parameters", NULL, ZB_KEY_OBJECT, "null", 0, 0, ZB_KEY_NULLABLE},
    {"tie_word_embeddings", NULL, ZB_KEY_BOOL, "true", 0, 0, 0},
    {"apply_residual_connection_post_layernorm", NULL, ZB_KEY_BOOL, "false", 0,
     0, ZB_KEY_ONLY},
    /* Without a meaning for training: the table has no padding_idx. */
    {"pad_token_id", NULL, ZB_KEY_INT, "null", -ZB_KEY_MAX, ZB_KEY_MAX,
     ZB_KEY_NULLABLE},
};

enum packing {
    PACK_BLOCKS, /* all queries, then one key and one value */
    PACK_GROUPS, /* the queries of a key head, its key, its value */
};

struct falcon {
    struct zb_builder *b;
    int64_t vocab, hidden, inner, n_layers, n_heads, n_kv, head_dim;
    double eps, drop, attn_drop;
    enum zb_act act;
    enum packing packing;
    int has_bias, is_new, is_parallel, n_norms, has_alibi, key_mask, slopes;
    struct zb_rope_tables rope;
};

static enum zb_status read_heads(struct falcon *m, const struct zb_config *c)
{
    m->packing = PACK_GROUPS;
    m->n_heads = zb_config_int(c, "num_attention_heads");
    m->n_kv = m->n_heads;
    if (m->is_new) {
        m->n_kv = zb_config_int_or(c, "num_kv_heads", m->n_heads);
    } else if (zb_config_bool(c, "multi_query")) {
        m->packing = PACK_BLOCKS;
        m->n_kv = 1;
    }
    m->head_dim = m->hidden / m->n_heads;
    if (m->hidden % m->n_heads != 0 || (!m->has_alibi && m->head_dim % 2)) {
        return zb_config_fail(c, "num_attention_heads",
                              "%lld does not divide hidden_size %lld into "
                              "heads%s",
                              (long long)m->n_heads, (long long)m->hidden,
                              m->has_alibi ? "" : " of even size");
    }
    if (m->n_heads % m->n_kv != 0) {
        return zb_config_fail(c, "num_kv_heads",
                              "%lld does not divide num_attention_heads %lld",
                              (long long)m->n_kv, (long long)m->n_heads);
    }
    ZB_TRY(zb_build_check_split(m->b, "num_attention_heads", m->n_heads, 0));
    /* A group is split with its queries, so none may be repeated. */
    return zb_build_check_split(m->b,
                                m->is_new ? "num_kv_heads" : "multi_query",
                                m->n_kv, m->packing == PACK_BLOCKS);
}

static enum zb_status read_config(struct falcon *m, const struct zb_config *c)
{
    m->vocab = zb_config_int(c, "vocab_size");
    m->hidden = zb_config_int(c, "hidden_size");
    m->inner = zb_config_int_or(c, "ffn_hidden_size", 4 * m->hidden);
    m->n_layers = zb_config_int(c, "num_hidden_layers");
    m->eps = zb_config_real(c, "layer_norm_epsilon");
    m->drop = zb_config_real(c, "hidden_dropout");
    m->attn_drop = zb_config_real(c, "attention_dropout");
    m->has_bias = zb_config_bool(c, "bias");
    m->is_new = zb_config_bool(c, "new_decoder_architecture");
    m->is_parallel = zb_config_bool(c, "parallel_attn");
    m->has_alibi = zb_config_bool(c, "alibi");
    m->n_norms =
        m->is_new ? (int)zb_config_int_or(c, "num_ln_in_parallel_attn", 2) : 1;
    if (m->is_new && !m->is_parallel) {
        return zb_config_fail(c, "parallel_attn",
                              "false is not supported with "
                              "new_decoder_architecture");
    }
    ZB_TRY(read_heads(m, c));
    ZB_TRY(zb_build_check_split(m->b, "ffn_hidden_size", m->inner, 0));
    return zb_config_act(c, "activation", &m->act);
}

static int linear(const struct falcon *m, int64_t i, const char *name, int x,
                  struct zb_linear l)
{
    l.std = m->b->std;
    l.has_bias = m->has_bias;
    return zb_build_linear(m->b, x, &l, "transformer.h.%lld.%s", (long long)i,
                           name);
}

static int norm(const struct falcon *m, int64_t i, const char *name, int x)
{
    return zb_build_layernorm(m->b, x, m->hidden, m->eps,
                              "transformer.h.%lld.%s", (long long)i, name);
}

/* Heads of queries, keys and values. */
static void unpack(const struct falcon *m, int qkv, int out[3])
{
    int64_t d = m->head_dim, group = m->n_heads / m->n_kv;
    const int64_t n[] = {m->packing == PACK_GROUPS ? group : m->n_heads, 1, 1};
    int64_t at = 0;

    if (m->packing == PACK_GROUPS) {
        qkv = zb_build_heads(m->b, qkv, (group + 2) * d);
    }
    for (int i = 0; i < 3; i++) {
        int x = zb_g_slice(m->b->g, qkv, at, n[i] * d);

        if (m->packing == PACK_GROUPS && n[i] > 1) {
            x = zb_g_dense(m->b->g, x);
        }
        out[i] = m->packing == PACK_GROUPS && n[i] == 1
                     ? x
                     : zb_build_heads(m->b, x, d);
        at += n[i] * d;
    }
}

static int attention(const struct falcon *m, int64_t i, int a)
{
    struct zb_graph *g = m->b->g;
    const struct zb_attn_opts opts = {
        .causal = 1,
        .scale = 1.0 / sqrt((double)m->head_dim),
        .dropout = m->has_alibi ? m->attn_drop : 0, /* as in transformers */
        .key_mask = m->key_mask,
        .slopes = m->slopes,
        .has_slopes = m->has_alibi,
    };
    int is_groups = m->packing == PACK_GROUPS;
    const struct zb_linear in = {
        .n_in = m->hidden,
        .n_out = (m->n_heads + 2 * m->n_kv) * m->head_dim,
        .side = ZB_SIDE_OUT,
        .n_parts = is_groups ? 1 : 3,
        .n_heads = m->n_kv,
        .part_heads = {is_groups ? 0 : m->n_heads, 1, 1},
    };
    const struct zb_linear out = {.n_in = m->hidden,
                                  .n_out = m->hidden,
                                  .side = ZB_SIDE_IN,
                                  .n_heads = m->n_heads};
    int qkv[3];

    unpack(m, linear(m, i, "self_attention.query_key_value", a, in), qkv);
    for (int k = 0; k < 2 && !m->has_alibi; k++) {
        qkv[k] = zb_g_rope(g, qkv[k], m->rope.cos, m->rope.sin, 0);
    }
    return linear(m, i, "self_attention.dense",
                  zb_g_attention(g, qkv[0], qkv[1], qkv[2], &opts), out);
}

static int mlp(const struct falcon *m, int64_t i, int a)
{
    const struct zb_linear in = {
        .n_in = m->hidden, .n_out = m->inner, .side = ZB_SIDE_OUT};
    const struct zb_linear out = {
        .n_in = m->inner, .n_out = m->hidden, .side = ZB_SIDE_IN};
    int y = linear(m, i, "mlp.dense_h_to_4h", a, in);

    return linear(m, i, "mlp.dense_4h_to_h", zb_g_act(m->b->g, y, m->act), out);
}

static int block(const struct falcon *m, int64_t i, int x)
{
    struct zb_graph *g = m->b->g;
    int is_two = m->n_norms == 2;
    int a = norm(m, i, is_two ? "ln_attn" : "input_layernorm", x), y;

    y = attention(m, i, a);
    if (!m->is_parallel) {
        x = zb_g_add(g, x, zb_g_dropout(g, y, m->attn_drop));
        y = mlp(m, i, norm(m, i, "post_attention_layernorm", x));
    } else {
        y = zb_g_add(g, y, mlp(m, i, is_two ? norm(m, i, "ln_mlp", x) : a));
    }
    return zb_g_add(g, x, zb_g_dropout(g, y, m->drop));
}

static int head(const struct falcon *m, int x)
{
    struct zb_builder *b = m->b;

    x = zb_build_layernorm(b, x, m->hidden, m->eps, "transformer.ln_f");
    return zb_build_head(
        b, x, m->vocab, m->hidden,
        zb_build_head_table(b, "transformer.word_embeddings.weight"), NULL);
}

static enum zb_status build(struct zb_builder *b)
{
    const struct zb_config *c = b->config;
    struct falcon m = {.b = b};
    int64_t n_pos = b->opts->max_seq > 0
                        ? b->opts->max_seq
                        : zb_config_int(c, "max_position_embeddings");
    int x;

    ZB_TRY(read_config(&m, c));
    if (m.has_alibi) {
        ZB_TRY(zb_build_alibi(b, m.n_heads, 1.0 / sqrt((double)m.head_dim), 1,
                              &m.slopes));
    } else {
        ZB_TRY(zb_build_rope(b, m.head_dim, n_pos, &m.rope));
    }
    m.key_mask = zb_build_key_mask(b);
    zb_build_layer(b, "embed");
    x = zb_build_input(b, "transformer.word_embeddings.weight", m.vocab,
                       m.hidden, -1);
    for (int64_t i = 0; i < m.n_layers; i++) {
        zb_build_layer(b, "h.%lld", (long long)i);
        x = block(&m, i, x);
    }
    zb_build_layer(b, "head");
    zb_build_end(b, head(&m, x));
    return ZB_OK;
}

const struct zb_family zb_family_falcon = {
    .name = "falcon",
    .architecture = "FalconForCausalLM",
    .notes = "7B, 40B and RW forms; ALiBi, or " ZB_NOTE_ROPE,
    .keys = keys,
    .n_keys = ZB_COUNT_OF(keys),
    .layers_key = "num_hidden_layers",
    .vocab_key = "vocab_size",
    .lora_targets = "query_key_value",
    .build = build,
};
