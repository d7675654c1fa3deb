/* SPDX-License-Identifier: MIT
 *
 * Mistral: Llama whose queries see the last sliding_window keys only.
 */
#include "config.h"
#include "model/model_int.h"

static const struct zb_key_row keys[] = {
    ZB_LLAMA_KEYS("32000", "14336", "8", "131072"),
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
    .lora_targets = "q_proj,v_proj",
    .build = build,
};
