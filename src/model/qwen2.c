/* SPDX-License-Identifier: MIT
 *
 * Qwen2: Llama with biases of queries, keys and values. With use_sliding_window
 * some layers see the last sliding_window keys only: those that layer_types
 * names, or those from max_window_layers on.
 */
#include "config.h"
#include "model/model_int.h"

#include <string.h>

static const struct zb_key_row keys[] = {
    ZB_LLAMA_KEYS("151936", "22016", "32", "32768"),
    {"use_sliding_window", NULL, ZB_KEY_BOOL, "false", 0, 0, 0},
    {"sliding_window", NULL, ZB_KEY_INT, "4096", 1, ZB_KEY_MAX,
     ZB_KEY_NULLABLE},
    {"max_window_layers", NULL, ZB_KEY_INT, "28", 0, ZB_KEY_MAX, 0},
    {"layer_types", NULL, ZB_KEY_LIST, "null", 0, 0, ZB_KEY_NULLABLE},
};

static const char *type_of(const json_t *types, int64_t layer)
{
    const char *type = json_string_value(json_array_get(types, (size_t)layer));

    return type != NULL ? type : "";
}

static enum zb_status check_types(const struct zb_config *c)
{
    const json_t *types = zb_config_object(c, "layer_types");
    int64_t n = zb_config_int(c, "num_hidden_layers");

    if (types != NULL && (int64_t)json_array_size(types) != n) {
        return zb_config_fail(c, "layer_types",
                              "has %zu entries, not num_hidden_layers %lld",
                              json_array_size(types), (long long)n);
    }
    for (int64_t i = 0; types != NULL && i < n; i++) {
        if (strcmp(type_of(types, i), "full_attention") != 0 &&
            strcmp(type_of(types, i), "sliding_attention") != 0) {
            return zb_config_fail(c, "layer_types",
                                  "'%s' of layer %lld is not supported "
                                  "(full_attention, sliding_attention)",
                                  type_of(types, i), (long long)i);
        }
    }
    return ZB_OK;
}

static int64_t window_of(const struct zb_config *c, int64_t layer)
{
    const json_t *types = zb_config_object(c, "layer_types");
    int is_sliding =
        types != NULL ? strcmp(type_of(types, layer), "sliding_attention") == 0
                      : layer >= zb_config_int(c, "max_window_layers");

    return is_sliding && zb_config_bool(c, "use_sliding_window")
               ? zb_config_int_or(c, "sliding_window", 0)
               : 0;
}

static enum zb_status build(struct zb_builder *b)
{
    const struct zb_llama_kind kind = {.qkv_bias = 1, .window = window_of};

    ZB_TRY(check_types(b->config));
    return zb_build_llama(b, &kind);
}

const struct zb_family zb_family_qwen2 = {
    .name = "qwen2",
    .architecture = "Qwen2ForCausalLM",
    .notes = "Qwen2, Qwen2.5; sliding windows by layer; " ZB_NOTE_ROPE,
    .keys = keys,
    .n_keys = ZB_COUNT_OF(keys),
    .layers_key = "num_hidden_layers",
    .vocab_key = "vocab_size",
    .lora_targets = "q_proj,v_proj",
    .build = build,
};
