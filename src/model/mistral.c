/* SPDX-License-Identifier: MIT
 *
 * Mistral: Llama whose queries see the last sliding_window keys only.
 */
#include "config.h"
#include "model/model_int.h"

static const struct zb_key_row keys[] = {
    {"vocab_size", NULL, ZB_KEY_INT, "32000", 1, ZB_KEY_MAX, 0},
    {"hidden_size", NULL, ZB_KEY_INT, "4096", 1, ZB_KEY_MAX, 0},
    {"intermediate_size", NULL, ZB_KEY_INT, "14336", 1, ZB_KEY_MAX, 0},
    {"num_hidden_layers", NULL, ZB_KEY_INT, "32", 1, 10000, 0},
    {"num_attention_heads", NULL, ZB_KEY_INT, "32", 1, ZB_KEY_MAX, 0},
    {"num_key_value_heads", NULL, ZB_KEY_INT, "8", 1, ZB_KEY_MAX,
     ZB_KEY_NULLABLE},
    {"head_dim", NULL, ZB_KEY_INT, "null", 1, ZB_KEY_MAX, ZB_KEY_NULLABLE},
    {"hidden_act", NULL, ZB_KEY_TEXT, "\"silu\"", 0, 0, 0},
    {"max_position_embeddings", NULL, ZB_KEY_INT, "131072", 1, ZB_KEY_MAX, 0},
    {"initializer_range", NULL, ZB_KEY_REAL, "0.02", 0, 1e3, 0},
    {"rms_norm_eps", NULL, ZB_KEY_REAL, "1e-6", 0, 1, 0},
    {"pad_token_id", NULL, ZB_KEY_INT, "null", -ZB_KEY_MAX, ZB_KEY_MAX,
     ZB_KEY_NULLABLE},
    {"rope_theta", NULL, ZB_KEY_REAL, "10000.0", 1e-3, 1e12, 0},
    {"rope_scaling", NULL, ZB_KEY_OBJECT, "null", 0, 0, ZB_KEY_NULLABLE},
    {"rope_parameters", NULL, ZB_KEY_OBJECT, "null", 0, 0, ZB_KEY_NULLABLE},
    {"attention_dropout", NULL, ZB_KEY_REAL, "0.0", 0, 0.999, 0},
    {"tie_word_embeddings", NULL, ZB_KEY_BOOL, "false", 0, 0, 0},
    {"sliding_window", NULL, ZB_KEY_INT, "4096", 1, ZB_KEY_MAX,
     ZB_KEY_NULLABLE},
};

static int64_t window_of(const struct zb_config *c, int64_t layer)
{
    (void)layer;
    return zb_config_int_or(c, "sliding_window", 0);
}

static enum zb_status build(struct zb_builder *b)
{
    const struct zb_llama_kind kind = {.window = window_of};

    return zb_build_llama(b, &kind);
}

const struct zb_family zb_family_mistral = {
    .name = "mistral",
    .architecture = "MistralForCausalLM",
    .notes = "sliding windows; " ZB_NOTE_ROPE,
    .keys = keys,
    .n_keys = ZB_COUNT_OF(keys),
    .layers_key = "num_hidden_layers",
    .vocab_key = "vocab_size",
    .build = build,
};
