#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Make the reference files of this folder with PyTorch and transformers.

    python3 make_models.py [DIR [CASE ...]]

DIR is the folder of this script by default; with names of language models only
those are made.

Made with Python 3.11.7, torch 2.15.0, transformers 4.51.3, safetensors 0.8.0,
numpy 2.4.6, on the CPU with one thread; the cases of opt, bert and
lora with torch 2.6.0, those of lora with peft 0.15.2.
Every random number comes from numpy's PCG64, seeded with SEED and the name of
what is drawn, so a file does not change when a case is added. README.md says
what the files hold.

The reference runs in double. transformers computes norms, rope tables, softmax
and the loss in float32 whatever the dtype of the model, so exact() makes
"float32" mean double while a model is built and run. check_exact() proves by
central differences that nothing was rounded to float on the way.
"""
import contextlib
import json
import os
import sys
import zlib

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from transformers import BertConfig, BertForMaskedLM
from transformers import BertForPreTraining, BertForSequenceClassification
from transformers import BloomConfig, BloomForCausalLM
from transformers import CohereConfig, CohereForCausalLM
from transformers import FalconConfig, FalconForCausalLM
from transformers import GlmConfig, GlmForCausalLM
from transformers import GPT2Config, GPT2LMHeadModel
from transformers import GPTJConfig, GPTJForCausalLM
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel
from transformers import MistralConfig, MistralForCausalLM
from transformers import OPTConfig, OPTForCausalLM
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.activations import NewGELUActivation
from transformers.models.llama import modeling_llama

SEED = 20250101
B, S, IGNORE = 4, 16, -100
FLOAT32 = torch.float32


@contextlib.contextmanager
def exact():
    """Run what is inside with float64 in every place of float32."""
    saved = torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32 = FLOAT32
        torch.float, torch.Tensor.float = saved
        torch.set_default_dtype(FLOAT32)


def rng_of(*names):
    return np.random.default_rng([SEED] + [zlib.crc32(n.encode())
                                           for n in names])


def normal(shape, std, *names):
    """float32-representable numbers, so that every build starts from them."""
    x = rng_of(*names).standard_normal(shape) * std
    return x.astype(np.float32)


def is_norm(name):
    return any(k in name.lower() for k in ("norm", "ln_"))


def draw(case, name, shape):
    """No tensor keeps its default: a bias of 0 would hide a missing branch."""
    if is_norm(name) and name.endswith("weight"):
        return (1 + normal(shape, 0.1, case, name)).astype(np.float32)
    if len(shape) < 2:
        return normal(shape, 0.1, case, name)
    if any(k in name for k in ("embed", "wte", "lm_head")):
        return normal(shape, 0.3, case, name)
    return normal(shape, 0.05 if "wpe" in name else 0.15, case, name)


def overwrite(model, params):
    with torch.no_grad():
        for name, p in named(model).items():
            p.copy_(torch.from_numpy(params[name]))


def draw_params(case, model):
    return {name: draw(case, name, tuple(p.shape))
            for name, p in named(model).items()}


def build(cls, config_cls, config, **more):
    cfg = config_cls(**config, **more)
    # Falcon's own code adds its slopes twice.
    cfg._attn_implementation = "sdpa" if config.get("alibi") else "eager"
    model = cls(cfg)
    model.train()
    return model


def adapt(case, model):
    """PEFT's adapters in the layers of a case; only they are trained."""
    if case not in LORA_TARGETS:
        return model
    from peft import LoraConfig, inject_adapter_in_model
    return inject_adapter_in_model(
        LoraConfig(target_modules=LORA_TARGETS[case], **LORA), model)


def name_of(name):
    """A parameter's name without adapters, and as PEFT writes an adapter's."""
    return name.replace(".base_layer", "").replace(".default", "")


def named(model):
    return {name_of(n): p for n, p in model.named_parameters()}


def trained(model):
    return {n: p for n, p in named(model).items() if p.requires_grad}


def save(out_dir, name, tensors, meta=None):
    path = f"{out_dir}/{name}.safetensors"
    save_file(tensors, path, meta)
    os.chmod(path, 0o644)


def to_f64(t):
    return t.detach().numpy().astype(np.float64)


# Language models -----------------------------------------------------------

LLAMA = {
    "model_type": "llama", "vocab_size": 128, "hidden_size": 32,
    "intermediate_size": 56, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 256, "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
                     "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 128},
    "tie_word_embeddings": False, "pad_token_id": None,
}
# The variants are smaller, for the size of the files.
SMALL = dict(LLAMA, vocab_size=48, hidden_size=24, intermediate_size=28)
GPT2 = {
    "model_type": "gpt2", "vocab_size": 128, "n_positions": 32, "n_embd": 32,
    "n_layer": 4, "n_head": 4, "n_inner": 56, "bos_token_id": 0,
    "eos_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
GPT2_SMALL = dict(GPT2, vocab_size=48, n_embd=24, n_inner=28)
QWEN2 = {
    "model_type": "qwen2", "vocab_size": 128, "hidden_size": 32,
    "intermediate_size": 56, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2,
    "tie_word_embeddings": True, "use_sliding_window": False,
}
MISTRAL = {
    "model_type": "mistral", "vocab_size": 128, "hidden_size": 32,
    "intermediate_size": 56, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "sliding_window": 6,
}
GPTJ = {
    "model_type": "gptj", "vocab_size": 128, "n_positions": 32, "n_embd": 32,
    "n_layer": 4, "n_head": 2, "rotary_dim": 8, "bos_token_id": 0,
    "eos_token_id": 0,
}
COHERE = {
    "model_type": "cohere", "vocab_size": 128, "hidden_size": 32,
    "intermediate_size": 56, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "use_qk_norm": True,
    "logit_scale": 0.25, "layer_norm_eps": 1e-5, "rope_theta": 10000.0,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}
FALCON = {
    "model_type": "falcon", "vocab_size": 128, "hidden_size": 32,
    "num_hidden_layers": 4, "num_attention_heads": 4,
}
FALCON_SMALL = dict(FALCON, vocab_size=48, ffn_hidden_size=40)
FALCON_NEW = dict(FALCON_SMALL, num_attention_heads=8, num_kv_heads=2,
                  new_decoder_architecture=True)
BLOOM = {
    "model_type": "bloom", "vocab_size": 128, "hidden_size": 48, "n_layer": 4,
    "n_head": 6,
}
CHATGLM = {
    "model_type": "chatglm", "num_layers": 4, "padded_vocab_size": 128,
    "hidden_size": 32, "ffn_hidden_size": 56, "kv_channels": 16,
    "num_attention_heads": 4, "multi_query_attention": True,
    "multi_query_group_num": 2, "add_qkv_bias": True, "seq_length": 64,
}
OPT = {
    "model_type": "opt", "vocab_size": 128, "hidden_size": 32, "ffn_dim": 56,
    "num_hidden_layers": 4, "num_attention_heads": 4,
    "max_position_embeddings": 32, "word_embed_proj_dim": 32, "dropout": 0.0,
    "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 2,
}
OPT_SMALL = dict(OPT, vocab_size=48, hidden_size=24, ffn_dim=28)
BERT = {
    "model_type": "bert", "vocab_size": 128, "hidden_size": 32,
    "intermediate_size": 56, "num_hidden_layers": 4,
    "num_attention_heads": 4, "max_position_embeddings": 32,
    "type_vocab_size": 3, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0, "architectures": ["BertForMaskedLM"],
}
BERT_SMALL = dict(BERT, vocab_size=48, hidden_size=24, intermediate_size=28,
                  num_hidden_layers=2)
# Adapters beside frozen weights.
LORA = {"r": 3, "lora_alpha": 6}
BERT_LABELS = {"0": "low", "1": "middle", "2": "high"}

CLASSES = {
    "chatglm": (GlmForCausalLM, GlmConfig),
    "bloom": (BloomForCausalLM, BloomConfig),
    "falcon": (FalconForCausalLM, FalconConfig),
    "cohere": (CohereForCausalLM, CohereConfig),
    "llama": (LlamaForCausalLM, LlamaConfig),
    "gpt2": (GPT2LMHeadModel, GPT2Config),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config),
    "gptj": (GPTJForCausalLM, GPTJConfig),
    "opt": (OPTForCausalLM, OPTConfig),
    "mistral": (MistralForCausalLM, MistralConfig),
    "BertForMaskedLM": (BertForMaskedLM, BertConfig),
    "BertForPreTraining": (BertForPreTraining, BertConfig),
    "BertForSequenceClassification": (BertForSequenceClassification,
                                      BertConfig),
}

# name: (config, padded, with weights after two steps)
CASES = {
    "llama_base": (LLAMA, False, True),
    "llama_default_rope": (
        dict(SMALL, head_dim=6, num_key_value_heads=4, rope_scaling=None),
        False, False),
    "llama_linear_rope": (
        dict(SMALL, vocab_size=32, num_hidden_layers=2, head_dim=6,
             rope_theta=500.0,
             rope_scaling={"rope_type": "linear", "factor": 4.0}),
        False, False),
    "llama_variant": (
        dict(SMALL, attention_bias=True, mlp_bias=True, head_dim=12,
             tie_word_embeddings=True, pad_token_id=5, rms_norm_eps=1e-3),
        False, False),
    "llama_padded": (dict(SMALL, head_dim=6, pad_token_id=0), True, False),
    "gpt2_base": (GPT2, False, True),
    "gpt2_inverse_layer": (
        dict(GPT2_SMALL, scale_attn_by_inverse_layer_idx=True,
             layer_norm_epsilon=1e-3), False, False),
    "gpt2_padded": (GPT2_SMALL, True, False),
    "qwen2_base": (QWEN2, False, True),
    "qwen2_padded": (
        dict(QWEN2, vocab_size=48, hidden_size=24, intermediate_size=28,
             tie_word_embeddings=False, rope_theta=500.0), True, False),
    "mistral_base": (MISTRAL, False, True),
    "mistral_padded": (
        dict(MISTRAL, vocab_size=48, hidden_size=24, intermediate_size=28,
             head_dim=12, sliding_window=3), True, False),
    "gptj_base": (GPTJ, False, True),
    "gptj_padded": (
        dict(GPTJ, vocab_size=48, n_embd=24, n_inner=28, n_head=4,
             rotary_dim=6, tie_word_embeddings=True,
             layer_norm_epsilon=1e-3), True, False),
    "cohere_base": (COHERE, False, True),
    "cohere_padded": (
        dict(COHERE, vocab_size=48, hidden_size=24, intermediate_size=28,
             num_hidden_layers=2, use_qk_norm=False, attention_bias=True,
             tie_word_embeddings=False, rope_theta=500.0), True, False),
    "falcon_7b": (FALCON, False, True),
    "falcon_40b": (FALCON_NEW, False, False),
    "falcon_one_norm": (
        dict(FALCON_NEW, num_ln_in_parallel_attn=1, num_hidden_layers=2),
        True, False),
    "falcon_rw": (
        dict(FALCON_SMALL, multi_query=False, parallel_attn=False, alibi=True,
             bias=True, num_attention_heads=6, hidden_size=24,
             num_hidden_layers=2), True, False),
    "bloom_base": (BLOOM, False, True),
    "bloom_padded": (
        dict(BLOOM, vocab_size=48, hidden_size=24, n_head=4, n_layer=2,
             apply_residual_connection_post_layernorm=True), True, False),
    "chatglm_base": (CHATGLM, False, True),
    "chatglm_padded": (
        dict(CHATGLM, padded_vocab_size=48, hidden_size=24, kv_channels=8,
             ffn_hidden_size=28, multi_query_attention=False,
             add_qkv_bias=False), True, False),
    "opt_base": (OPT, False, True),
    "opt_padded": (
        dict(OPT_SMALL, word_embed_proj_dim=24, enable_bias=False,
             num_hidden_layers=2), True, False),
    "opt_post_norm": (
        dict(OPT_SMALL, word_embed_proj_dim=16, do_layer_norm_before=False,
             activation_function="gelu", num_hidden_layers=2), False, False),
    "bert_base": (BERT, False, True),
    "bert_padded": (
        dict(BERT_SMALL, tie_word_embeddings=False, hidden_act="relu",
             layer_norm_eps=1e-3, pad_token_id=3), True, False),
    "bert_classifier": (
        dict(BERT_SMALL, architectures=["BertForSequenceClassification"],
             id2label=BERT_LABELS), True, False),
    "bert_pre_training": (
        dict(BERT_SMALL, architectures=["BertForPreTraining"]), True, False),
    "llama_lora": (dict(SMALL, head_dim=6), False, True),
    "gpt2_lora": (dict(GPT2_SMALL, n_layer=2), True, False),
}

# Of those with adapters: the layers that have them.
LORA_TARGETS = {
    "llama_lora": ["q_proj", "v_proj", "o_proj", "down_proj"],
    "gpt2_lora": ["c_attn", "mlp.c_proj"],
}

# ChatGLM2's code is not in transformers, but the same model as GLM-4 is, whose
# queries, keys and values are not packed.
GLM_NAMES = {
    "model.embed_tokens": "transformer.embedding.word_embeddings",
    "model.layers": "transformer.encoder.layers",
    "model.norm": "transformer.encoder.final_layernorm",
    "lm_head": "transformer.output_layer",
    "self_attn.o_proj": "self_attention.dense",
    "self_attn.q_proj": "self_attention.query_key_value",
    "mlp.gate_up_proj": "mlp.dense_h_to_4h",
    "mlp.down_proj": "mlp.dense_4h_to_h",
}


def classes_of(config):
    return CLASSES[config.get("architectures", [config["model_type"]])[0]]


def reference_config(c):
    """The config as the reference's class takes it."""
    if c["model_type"] != "chatglm":
        return c
    few = c["multi_query_attention"]
    return {
        "vocab_size": c["padded_vocab_size"], "hidden_size": c["hidden_size"],
        "intermediate_size": c["ffn_hidden_size"],
        "num_hidden_layers": c["num_layers"],
        "num_attention_heads": c["num_attention_heads"],
        "num_key_value_heads": c["multi_query_group_num"] if few
        else c["num_attention_heads"],
        "head_dim": c["kv_channels"], "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5, "attention_bias": c["add_qkv_bias"],
        "max_position_embeddings": c["seq_length"], "pad_token_id": None,
    }


def pack(c, parts):
    """[q | k | v], or with as many key heads as heads, head by head."""
    if c["multi_query_attention"]:
        return np.concatenate(parts)
    heads = [p.reshape(c["num_attention_heads"], 1, c["kv_channels"], -1)
             for p in parts]
    return np.concatenate(heads, 1).reshape(-1, *parts[0].shape[1:])


def file_tensors(c, tensors):
    """The tensors of the reference under the names of the family's files."""
    if c["model_type"] != "chatglm":
        return tensors
    out = {}
    for name, t in tensors.items():
        if "k_proj" in name or "v_proj" in name:
            continue
        if "q_proj" in name:
            t = pack(c, [tensors[name.replace("q_proj", f"{x}_proj")]
                         for x in "qkv"])
        for old, new in GLM_NAMES.items():
            name = name.replace(old, new)
        out[name] = t
    return out


def bert_fields(case, config, labels, mask):
    """Labels of three tokens in ten, or one for each row; the padded masked
    words have no token types."""
    classes = config.get("id2label")
    few = rng_of(case, "few").random((B, S)) < 0.3
    types = rng_of(case, "types").integers(0, config["type_vocab_size"],
                                           (B, S))
    if classes is not None:
        labels = rng_of(case, "classes").integers(0, len(classes), B)
    else:
        labels = np.where(few, labels, IGNORE)
    is_pair = config["architectures"][0] == "BertForPreTraining"
    with_types = classes is not None or is_pair or mask.all()
    follows = rng_of(case, "follows").integers(0, 2, B)
    return {"labels": labels,
            **({"next_sentence_label": follows} if is_pair else {}),
            **({"token_type_ids": types} if with_types else {})}


def make_batch(case, config, padded):
    """Padded: row 1 has labels for its second half only, row 3 ends with 5
    pads. The pad id occurs as a real token as well."""
    vocab = reference_config(config)["vocab_size"]
    ids = rng_of(case, "ids").integers(0, vocab, (B, S))
    pad = config.get("pad_token_id") or 0
    ids[0, 3] = ids[2, 7] = pad
    labels, mask = ids.copy(), np.ones((B, S), int)
    if padded:
        ids[3, -5:] = pad
        mask[3, -5:] = 0
        labels[3, -5:] = IGNORE
        labels[1, :8] = IGNORE
    if padded and config["model_type"] == "opt":
        ids[2, :4] = pad
        mask[2, :4] = 0
        labels[2, :5] = IGNORE
    more = (bert_fields(case, config, labels, mask)
            if config["model_type"] == "bert" else {})
    return {"input_ids": ids, "labels": labels, **more,
            **({"attention_mask": mask} if padded else {})}


def run_model(model, batch):
    model.zero_grad()
    more = {} if model.config.model_type == "bert" else {"use_cache": False}
    out = model(**{k: torch.from_numpy(v) for k, v in batch.items()}, **more)
    out.loss.backward()
    return out


def check_exact(case, model, batch):
    """The gradient along a random direction, against central differences. The
    pad row stays: what a lookup gives to its gradient is left out by design."""
    h = 2e-6
    params = list(trained(model).values())
    rng = rng_of(case, "direction")
    dirs = [torch.from_numpy(rng.standard_normal(tuple(p.shape)))
            for p in params]
    table = model.get_input_embeddings()
    if table.padding_idx is not None and table.weight.requires_grad:
        at = next(i for i, p in enumerate(params) if p is table.weight)
        dirs[at][table.padding_idx] = 0
    run_model(model, batch)
    slope = sum(float((p.grad * d).sum()) for p, d in zip(params, dirs))
    loss = []
    for sign in (1, -2, 1):
        with torch.no_grad():
            for p, d in zip(params, dirs):
                p.add_(d, alpha=sign * h)
        loss.append(float(run_model(model, batch).loss.detach()))
    wrong = abs((loss[0] - loss[1]) / (2 * h) - slope) / abs(slope)
    print(f"{case}: central difference off by {wrong:.1e}")
    assert wrong < 1e-7, case


def check_plain(case, cls, config_cls, config, params, batch, exact_run):
    """The same in plain float32: what a float build can be expected to meet."""
    model = adapt(case, build(cls, config_cls, config))
    overwrite(model, params)
    loss = float(run_model(model, batch).loss.detach())
    exact_loss, grads = exact_run
    total = np.sqrt(sum((g ** 2).sum() for g in grads.values()))
    worst = max(np.linalg.norm(to_f64(p.grad) - grads[n]) /
                max(np.linalg.norm(grads[n]), 1e-3 * total)
                for n, p in trained(model).items())
    print(f"{case}: float32 loss off by {abs(loss - exact_loss):.1e}, "
          f"gradients by {worst:.1e}, loss {exact_loss:.6f}")
    assert abs(loss - exact_loss) < 1e-5 and worst < 1e-5, case


def two_steps(model, batch):
    """AdamW twice on the same batch; decay on matrices and tables only."""
    decays = {n: p.dim() >= 2 and not is_norm(n)
              for n, p in trained(model).items()}
    groups = [{"params": [p for n, p in trained(model).items()
                          if decays[n] == has_decay],
               "weight_decay": 0.1 if has_decay else 0.0}
              for has_decay in (True, False)]
    opt = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-4)
    for _ in range(2):
        run_model(model, batch)
        opt.step()
    return {n: to_f64(p) for n, p in trained(model).items()}


def make_case(out_dir, case):
    config, padded, with_steps = CASES[case]
    cls, config_cls = classes_of(config)
    batch = make_batch(case, config, padded)
    with exact():
        model = adapt(case, build(cls, config_cls,
                                  reference_config(config)).double()).double()
        params = draw_params(case, model)
        overwrite(model, params)
        out = run_model(model, batch)
        loss = float(out.loss.detach())
        logits = (out.prediction_logits if "next_sentence_label" in batch
                  else out.logits)
        grads = {n: to_f64(p.grad) for n, p in trained(model).items()}
        after = two_steps(model, batch) if with_steps else {}
        overwrite(model, params)
        check_exact(case, model, batch)
    check_plain(case, cls, config_cls, reference_config(config), params, batch,
                (loss, grads))
    targets = batch["labels"]
    if config["model_type"] != "bert":
        targets = targets[:, 1:]
    valid = (targets != IGNORE).sum()
    tensors = {k: v.astype(np.int32) for k, v in batch.items()}
    tensors.update({
        "loss": np.array(loss), "n_valid": np.array(valid, np.int32),
        "logits": to_f64(logits).astype(np.float32)})
    tensors.update({f"param.{n}": p for n, p in
                    file_tensors(config, params).items()})
    tensors.update({f"grad.{n}": g for n, g in
                    file_tensors(config, grads).items()})
    tensors.update({f"after2.{n}": w.astype(np.float32)
                    for n, w in file_tensors(config, after).items()})
    meta = {"config": json.dumps(config)}
    if case in LORA_TARGETS:
        meta["lora_targets"] = ",".join(LORA_TARGETS[case])
    save(out_dir, case, tensors, meta)


# The example program that follows a Llama without head -----------------------

WALK = {"model_type": "llama", "vocab_size": 8, "hidden_size": 16,
        "intermediate_size": 32, "num_hidden_layers": 8,
        "num_attention_heads": 4, "num_key_value_heads": 4}
WALK_STEPS, WALK_ROWS, WALK_TOKENS, WALK_MB = 10, 8, 4, 4


def walk(model, inputs):
    """Losses and outputs of the steps; the embedding table is not used."""
    opt = torch.optim.Adam([p for n, p in model.named_parameters()
                            if "embed_tokens" not in n], lr=1e-3)
    losses, outputs = [], []
    for step in inputs:
        opt.zero_grad()
        loss, out = 0.0, []
        for mb in torch.from_numpy(step).chunk(WALK_MB):
            h = model(inputs_embeds=mb.to(model.norm.weight.dtype),
                      use_cache=False).last_hidden_state
            (h.mean() / WALK_MB).backward()
            loss += float(h.mean().detach()) / WALK_MB
            out.append(h.detach())
        losses.append(loss)
        outputs.append(torch.cat(out))
        opt.step()
    return losses, outputs


def make_walkthrough(out_dir):
    shape = (WALK_STEPS, WALK_ROWS, WALK_TOKENS, WALK["hidden_size"])
    inputs = rng_of("walkthrough", "inputs").random(shape, np.float32)
    with exact():
        model = build(LlamaModel, LlamaConfig, WALK).double()
        params = draw_params("walkthrough", model)
        overwrite(model, params)
        losses, outputs = walk(model, inputs)
    plain = build(LlamaModel, LlamaConfig, WALK)
    overwrite(plain, params)
    plain_losses, plain_outputs = walk(plain, inputs)
    apart = max(abs(a - b) for a, b in zip(losses, plain_losses))
    out_apart = float((outputs[-1] - plain_outputs[-1]).abs().max())
    print(f"walkthrough: float32 losses off by {apart:.1e}, last outputs by "
          f"{out_apart:.1e}; losses {losses[0]:.6f} to {losses[-1]:.6f}")
    assert apart < 1e-6
    tensors = {f"param.model.{n}": p for n, p in params.items()
               if "embed_tokens" not in n}
    tensors.update({
        "inputs_embeds": inputs, "losses": np.array(losses),
        "losses_fp32": np.array(plain_losses, np.float32),
        "last_hidden_state.first": to_f64(outputs[0]),
        "last_hidden_state.last": to_f64(outputs[-1])})
    save(out_dir, "walkthrough", tensors, {"config": json.dumps(WALK)})


# Single operations -----------------------------------------------------------

class Op:
    """Collects the tensors of one operation under its name."""

    def __init__(self, name, tensors):
        self.name, self.tensors, self.inputs = name, tensors, {}

    def put(self, name, array):
        self.tensors[f"{self.name}.{name}"] = np.ascontiguousarray(array)

    def real(self, name, shape, std=1.0, around=0.0, needs_grad=True):
        x = around + normal(shape, std, self.name, name).astype(np.float64)
        self.put(name, x)
        t = torch.from_numpy(x.copy()).requires_grad_(needs_grad)
        if needs_grad:
            self.inputs[name] = t
        return t

    def fixed(self, name, array):
        self.put(name, array)
        return torch.from_numpy(array)

    def finish(self, **outputs):
        """Outputs, random gradients of them, and what they do to inputs."""
        total = 0
        for name, y in outputs.items():
            self.put(name, y.detach().numpy())
            dy = normal(tuple(y.shape), 1.0, self.name, "d" + name)
            self.put("d" + name, dy.astype(np.float64))
            total = total + (y * torch.from_numpy(dy.astype(np.float64))).sum()
        total.backward()
        for name, t in self.inputs.items():
            self.put("d" + name, t.grad.numpy())


def op_norms(tensors):
    op = Op("layernorm", tensors)
    x = op.real("x", (5, 24), 2.0, 0.5)
    w = op.real("weight", (24,), 0.2, 1.0)
    b = op.real("bias", (24,), 0.2)
    op.finish(y=torch.nn.functional.layer_norm(x, (24,), w, b, 1e-5))

    op = Op("rmsnorm", tensors)
    x = op.real("x", (5, 24), 2.0, 0.5)
    w = op.real("weight", (24,), 0.2, 1.0)
    norm = modeling_llama.LlamaRMSNorm(24, 1e-6)
    del norm.weight
    norm.weight = w
    op.finish(y=norm(x))


def op_activations(tensors):
    op = Op("gelu_new", tensors)
    op.finish(y=NewGELUActivation()(op.real("x", (6, 20), 2.0)))
    op = Op("silu_mul", tensors)
    gate, up = op.real("gate", (6, 20), 2.0), op.real("up", (6, 20))
    op.finish(y=torch.nn.functional.silu(gate) * up)


def op_rope(tensors):
    """q and k are [B,T,heads,D]; cos and sin [T,D], halves equal."""
    op = Op("rope_half", tensors)
    q, k = op.real("q", (2, 7, 4, 8)), op.real("k", (2, 7, 2, 8))
    angle = np.outer(np.arange(7), 10000.0 ** (-np.arange(4) / 4))
    angle = np.concatenate([angle, angle], axis=1)
    cos, sin = op.fixed("cos", np.cos(angle)), op.fixed("sin", np.sin(angle))
    q2, k2 = modeling_llama.apply_rotary_pos_emb(
        q.transpose(1, 2), k.transpose(1, 2), cos[None], sin[None])
    op.finish(q_out=q2.transpose(1, 2), k_out=k2.transpose(1, 2))


def op_attention(tensors, name, mask):
    """q, k, v and y are [B,T,heads,D]; mask [B,T] is 1 for a real key. No
    query is without a real key."""
    op = Op(name, tensors)
    b, t, nq, nkv, d = 2, 13, 4, 2, 8
    q, k = op.real("q", (b, t, nq, d)), op.real("k", (b, t, nkv, d))
    v = op.real("v", (b, t, nkv, d))
    allowed = torch.tril(torch.ones(t, t, dtype=torch.bool))[None, None]
    if mask is not None:
        allowed = allowed & (op.fixed("mask", mask) != 0)[:, None, None, :]
    qh = q.transpose(1, 2)
    kh = modeling_llama.repeat_kv(k.transpose(1, 2), nq // nkv)
    vh = modeling_llama.repeat_kv(v.transpose(1, 2), nq // nkv)
    scores = qh @ kh.transpose(2, 3) * d ** -0.5
    p = scores.masked_fill(~allowed, -np.inf).softmax(-1)
    op.finish(y=(p @ vh).transpose(1, 2))


def op_loss_and_embedding(tensors):
    op = Op("xent", tensors)
    logits = op.real("logits", (6, 11), 2.0)
    labels = np.array([3, IGNORE, 10, 0, IGNORE, 7], np.int32)
    labels = op.fixed("labels", labels).long()
    loss = torch.nn.functional.cross_entropy(logits, labels)
    op.put("loss", loss.detach().numpy())
    loss.backward()
    op.put("dlogits", logits.grad.numpy())

    op = Op("embedding", tensors)
    ids = np.array([[1, 3, 0, 6, 1, 3], [3, 3, 2, 1, 5, 6]], np.int32)
    table = op.real("table", (7, 5))
    op.put("ids", ids)
    op.put("padding_idx", np.array(3, np.int32))
    op.finish(y=torch.nn.functional.embedding(
        torch.from_numpy(ids).long(), table, padding_idx=3))


def make_ops(out_dir):
    tensors = {}
    mask = np.ones((2, 13), np.int32)
    mask[0, [2, 3, 8]] = 0
    mask[1, 9:] = 0
    with exact():
        op_norms(tensors)
        op_activations(tensors)
        op_rope(tensors)
        op_attention(tensors, "attention", None)
        op_attention(tensors, "attention_mask", mask)
        op_loss_and_embedding(tensors)
    assert all(t.dtype in (np.float64, np.int32) for t in tensors.values())
    save(out_dir, "ops", tensors)


# Optimizers and learning rates ---------------------------------------------

OPTIMIZERS = {
    "adamw": dict(lr=0.01, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1),
    "adamw_eps": dict(lr=0.01, beta1=0.9, beta2=0.95, eps=1e-4,
                      weight_decay=0.1),
    "adam": dict(lr=0.001, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0),
    "sgd": dict(lr=0.1, momentum=0.0, weight_decay=0.0),
    "sgd_momentum": dict(lr=0.1, momentum=0.9, weight_decay=0.0),
}


def numbers(values):
    return " ".join(f"{float(v):.17g}" for v in values)


def optimizer_lines(name, given):
    if "beta1" in given:
        opt_of = lambda w: torch.optim.AdamW(
            [w], lr=given["lr"], betas=(given["beta1"], given["beta2"]),
            eps=given["eps"], weight_decay=given["weight_decay"])
    else:
        opt_of = lambda w: torch.optim.SGD([w], lr=given["lr"],
                                           momentum=given["momentum"])
    w = torch.from_numpy(normal((8,), 1.0, name, "w").astype(np.float64))
    w.requires_grad_(True)
    opt = opt_of(w)
    yield (f"optimizer {name} " +
           " ".join(f"{k} {v:.17g}" for k, v in given.items()))
    yield "w 0 " + numbers(w.detach())
    for step in range(1, 6):
        grad = normal((8,), 0.5, name, f"grad{step}").astype(np.float64)
        grad[7] *= 1e-4
        w.grad = torch.from_numpy(grad.copy())
        opt.step()
        yield f"grad {step} " + numbers(grad)
        yield f"w {step} " + numbers(w.detach())


def schedule_lines():
    """factor[k] multiplies lr in the update k = 0, 1, ...; the first update
    of a warm-up has the factor 0."""
    t = transformers.optimization
    warm, total, decay, least = 3, 12, 4, 0.1
    made = {
        "constant": lambda o: t.get_constant_schedule_with_warmup(o, warm),
        "linear": lambda o: t.get_linear_schedule_with_warmup(o, warm, total),
        "cosine": lambda o: t.get_cosine_schedule_with_warmup(o, warm, total),
        "cosine_min": lambda o: t.get_cosine_with_min_lr_schedule_with_warmup(
            o, warm, total, min_lr_rate=least),
        "wsd": lambda o: t.get_wsd_schedule(o, warm, decay, total,
                                            decay_type="linear"),
        "wsd_cosine": lambda o: t.get_wsd_schedule(o, warm, decay, total),
        "wsd_min": lambda o: t.get_wsd_schedule(
            o, warm, decay, total, decay_type="linear", min_lr_ratio=least),
    }
    for name, make in made.items():
        opt = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        schedule = make(opt)
        values = []
        for _ in range(total + 2):
            values.append(schedule.get_last_lr()[0])
            opt.step()
            schedule.step()
        more = f" decay {decay}" if name.startswith("wsd") else ""
        rate = f" min {least}" if name.endswith("min") else ""
        yield f"schedule {name} warmup {warm} steps {total}{more}{rate}"
        yield "factor " + numbers(values)


def make_optim(out_dir):
    with open(f"{out_dir}/optim.txt", "w") as f:
        f.write("# SPDX-License-Identifier: MIT\n"
                "# Made by make_models.py; see README.md.\n")
        with exact():
            for name, given in OPTIMIZERS.items():
                f.writelines(x + "\n" for x in optimizer_lines(name, given))
        f.writelines(x + "\n" for x in schedule_lines())


# A file of every dtype, for the test of the reader ---------------------------

def make_dtypes(out_dir):
    from safetensors.torch import save_file as save_torch
    values = torch.tensor([0.0, -0.0, 1.0, -2.5, 65504.0, 2.0 ** -24, 3.1e-5,
                           float("inf"), float("-inf"), float("nan"), 1 / 3,
                           1e-7])
    tensors = {name: values.to(dtype) for name, dtype in (
        ("f64", torch.float64), ("f32", torch.float32),
        ("f16", torch.float16), ("bf16", torch.bfloat16))}
    tensors.update({f"{n}.as_f64": tensors[n].double()
                    for n in ("f16", "bf16")})
    tensors.update({
        "i64": torch.tensor([[1, -2, 2 ** 40]]),
        "i32": torch.tensor([[1, -2], [2 ** 31 - 1, -2 ** 31]]).int(),
        "u8": torch.tensor([0, 127, 255], dtype=torch.uint8),
        "bool": torch.tensor([True, False, True]),
        "scalar": torch.tensor(7.5),
        "empty": torch.zeros(3, 0, 2),
        "a \"quoted\" \u00fc \n name": torch.tensor([1.0])})
    path = f"{out_dir}/dtypes.safetensors"
    save_torch(tensors, path, {"note": "\u00e9\n\"x\""})
    os.chmod(path, 0o644)


def main():
    out_dir = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(
        os.path.abspath(__file__))
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for case in sys.argv[2:] or CASES:
        make_case(out_dir, case)
    if len(sys.argv) > 2:
        return
    make_walkthrough(out_dir)
    make_ops(out_dir)
    make_optim(out_dir)
    make_dtypes(out_dir)


if __name__ == "__main__":
    main()
