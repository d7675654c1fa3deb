/* SPDX-License-Identifier: MIT
 *
 * GPT-J: attention and MLP beside each other behind one norm, rotary positions
 * of neighbouring elements in the first rotary_dim of each head, a head with a
 * bias.
 */
#include "config.h"
#include "model/model_int.h"

#include <math.h>

static const struct zb_key_row keys[] = {
    {"vocab_size", NULL, ZB_KEY_INT, "50400", 1, ZB_KEY_MAX, 0},
    {"n_positions", "max_position_embeddings", ZB_KEY_INT, "2048", 1,
     ZB_KEY_MAX, 0},
    {"n_embd", "hidden_size", ZB_KEY_INT, "4096", 1, ZB_KEY_MAX / 4, 0},
    {"n_layer", "num_hidden_layers", ZB_KEY_INT, "28", 1, 10000, 0},
    {"n_head", "num_attention_heads", ZB_KEY_INT, "16", 1, ZB_KEY_MAX, 0},
    {"rotary_dim", NULL, ZB_KEY_INT, "64", 2, ZB_KEY_MAX, 0},
    {"n_inner", NULL, ZB_KEY_INT, "null", 1, ZB_KEY_MAX, ZB_KEY_NULLABLE},
    {"activation_function", NULL, ZB_KEY_TEXT, "\"gelu_new\"", 0, 0, 0},
    {"resid_pdrop", NULL, ZB_KEY_REAL, "0.0", 0, 0.999, 0},
    {"embd_pdrop", NULL, ZB_KEY_REAL, "0.0", 0, 0.999, 0},
    {"attn_pdrop", NULL, ZB_KEY_REAL, "0.0", 0, 0.999, 0},
    {"layer_norm_epsilon", NULL, ZB_KEY_REAL, "1e-5", 0, 1, 0},
    {"initializer_range", NULL, ZB_KEY_REAL, "0.02", 0, 1e3, 0},
    {"tie_word_embeddings", NULL, ZB_KEY_BOOL, "false", 0, 0, 0},
    {"rotary", NULL, ZB_KEY_BOOL, "true", 0, 0, ZB_KEY_ONLY},
    {"scale_attn_weights", NULL, ZB_KEY_BOOL, "true", 0, 0, ZB_KEY_ONLY},
    /* Without a meaning for training: the tables have no padding_idx. */
    {"pad_token_id", NULL, ZB_KEY_INT, "null", -ZB_KEY_MAX, ZB_KEY_MAX,
     ZB_KEY_NULLABLE},
};

struct gptj {
    struct zb_builder *b;
    int64_t vocab, hidden, inner, n_layers, n_heads;
    double eps, resid_drop, attn_drop;
    enum zb_act act;
    int key_mask;
    struct zb_rope_tables rope;
};

static enum zb_status check_rotary_dim(const struct gptj *m,
                                       const struct zb_config *c)
{
    int64_t n = zb_config_int(c, "rotary_dim"), head = m->hidden / m->n_heads;

    if (n % 2 != 0 || n > head) {
        return zb_config_fail(c, "rotary_dim",
                              "%lld must be even and not more than the size "
                              "of a head, %lld",
                              (long long)n, (long long)head);
    }
    return ZB_OK;
}

static enum zb_status read_config(struct gptj *m, const struct zb_config *c)
{
    m->vocab = zb_config_int(c, "vocab_size");
    m->hidden = zb_config_int(c, "n_embd");
    m->inner = zb_config_int_or(c, "n_inner", 4 * m->hidden);
    m->n_layers = zb_config_int(c, "n_layer");
    m->n_heads = zb_config_int(c, "n_head");
    m->eps = zb_config_real(c, "layer_norm_epsilon");
    m->resid_drop = zb_config_real(c, "resid_pdrop");
    m->attn_drop = zb_config_real(c, "attn_pdrop");
    if (m->hidden % m->n_heads != 0) {
        return zb_config_fail(c, "n_head", "%lld does not divide n_embd %lld",
                              (long long)m->n_heads, (long long)m->hidden);
    }
    ZB_TRY(zb_build_check_split(m->b, "n_head", m->n_heads, 0));
    ZB_TRY(zb_build_check_split(m->b, "n_inner", m->inner, 0));
    ZB_TRY(check_rotary_dim(m, c));
    return zb_config_act(c, "activation_function", &m->act);
}

static int linear(const struct gptj *m, int64_t i, const char *name, int x,
                  struct zb_linear l)
{
    l.std = m->b->std;
    return zb_build_linear(m->b, x, &l, "transformer.h.%lld.%s", (long long)i,
                           name);
}

static int heads(const struct gptj *m, int64_t i, const char *name, int x)
{
    const struct zb_linear l = {.n_in = m->hidden,
                                .n_out = m->hidden,
                                .side = ZB_SIDE_OUT,
                                .n_heads = m->n_heads};

    return zb_build_heads(m->b, linear(m, i, name, x, l),
                          m->hidden / m->n_heads);
}

static int attention(const struct gptj *m, int64_t i, int a)
{
    struct zb_graph *g = m->b->g;
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
    int q = heads(m, i, "attn.q_proj", a), k = heads(m, i, "attn.k_proj", a);
    int v = heads(m, i, "attn.v_proj", a), y;

    q = zb_g_rope(g, q, m->rope.cos, m->rope.sin, 1);
    k = zb_g_rope(g, k, m->rope.cos, m->rope.sin, 1);
    y = linear(m, i, "attn.out_proj", zb_g_attention(g, q, k, v, &opts), out);
    return zb_g_dropout(g, y, m->resid_drop);
}

static int mlp(const struct gptj *m, int64_t i, int a)
{
    const struct zb_linear in = {.n_in = m->hidden,
                                 .n_out = m->inner,
                                 .has_bias = 1,
                                 .side = ZB_SIDE_OUT};
    const struct zb_linear out = {.n_in = m->inner,
                                  .n_out = m->hidden,
                                  .has_bias = 1,
                                  .side = ZB_SIDE_IN};
    int y = zb_g_act(m->b->g, linear(m, i, "mlp.fc_in", a, in), m->act);

    return zb_g_dropout(m->b->g, linear(m, i, "mlp.fc_out", y, out),
                        m->resid_drop);
}

static int block(const struct gptj *m, int64_t i, int x)
{
    int a = zb_build_layernorm(m->b, x, m->hidden, m->eps,
                               "transformer.h.%lld.ln_1", (long long)i);

    x = zb_g_add(m->b->g, x, attention(m, i, a));
    return zb_g_add(m->b->g, x, mlp(m, i, a));
}

static int head(const struct gptj *m, int x)
{
    struct zb_builder *b = m->b;

    x = zb_build_layernorm(b, x, m->hidden, m->eps, "transformer.ln_f");
    return zb_build_head(
        b, x, m->vocab, m->hidden,
        zb_build_head_table(b, "transformer.wte.weight"), "lm_head.bias");
}

static enum zb_status build(struct zb_builder *b)
{
    const struct zb_config *c = b->config;
    struct gptj m = {.b = b};
    int64_t n_pos = b->opts->max_seq > 0 ? b->opts->max_seq
                                         : zb_config_int(c, "n_positions");
    int x;

    ZB_TRY(read_config(&m, c));
    ZB_TRY(zb_build_check_positions(b, "n_positions"));
    ZB_TRY(zb_build_rope_of(b, 10000, zb_config_int(c, "rotary_dim"), n_pos,
                            &m.rope));
    m.key_mask = zb_build_key_mask(b);
    zb_build_layer(b, "embed");
    x = zb_build_input(b, "transformer.wte.weight", m.vocab, m.hidden, -1);
    x = zb_g_dropout(b->g, x, zb_config_real(c, "embd_pdrop"));
    for (int64_t i = 0; i < m.n_layers; i++) {
        zb_build_layer(b, "h.%lld", (long long)i);
        x = block(&m, i, x);
    }
    zb_build_layer(b, "head");
    zb_build_end(b, head(&m, x));
    return ZB_OK;
}

const struct zb_family zb_family_gptj = {
    .name = "gptj",
    .architecture = "GPTJForCausalLM",
    .notes = "parallel blocks; interleaved rope of rotary_dim",
    .keys = keys,
    .n_keys = ZB_COUNT_OF(keys),
    .layers_key = "n_layer",
    .vocab_key = "vocab_size",
    .lora_targets = "q_proj,v_proj",
    .build = build,
};
