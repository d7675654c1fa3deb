#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Make generate.safetensors: what transformers generates with the models of
this folder, and what its warpers make of logits.

    python3 make_generate.py [DIR]

Made with Python 3.11.7, torch 2.6.0, transformers 4.51.3. The models run in double, and
without a cache, so that each token comes from the whole prefix; no choice is
closer than MARGIN.
"""
import json
import os
import sys

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from transformers.generation.logits_process import (
    TemperatureLogitsWarper, TopPLogitsWarper)

import make_models as mm

MARGIN = 1e-4
PROMPT, N_NEW = 5, 11
CASES = ["llama_base", "llama_variant", "gpt2_base", "mistral_base",
         "bloom_base", "qwen2_base", "cohere_base", "gptj_base", "falcon_7b"]
ENDS = "llama_base"  # is also stopped by an end of text
OPTIONS = [(1.0, 1.0), (0.7, 1.0), (1.0, 0.9), (1.3, 0.5), (0.2, 0.95),
           (1.0, 0.01)]


def load(folder, case):
    with safe_open(f"{folder}/{case}.safetensors", "np") as f:
        config = json.loads(f.metadata()["config"])
        params = {k[len("param."):]: f.get_tensor(k) for k in f.keys()
                  if k.startswith("param.")}
        ids = f.get_tensor("input_ids")
    cls, config_cls = mm.CLASSES[config["model_type"]]
    model = mm.build(cls, config_cls, config)
    mm.overwrite(model, params)
    return model.double().eval(), ids[0, :PROMPT]


def greedy(model, prompt, end):
    ids = torch.from_numpy(prompt.astype(np.int64))[None]
    # Without a mask every 0 of the prompt would be taken for padding.
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False,
        max_new_tokens=N_NEW, use_cache=False, eos_token_id=end,
        pad_token_id=0, return_dict_in_generate=True, output_logits=True)
    for step in out.logits:
        best = torch.topk(step[0], 2).values
        assert best[0] - best[1] > MARGIN, (best, len(out.logits))
    return out.sequences[0].numpy().astype(np.int32)


def main():
    folder = os.path.dirname(os.path.abspath(__file__))
    out_dir = sys.argv[1] if len(sys.argv) > 1 else folder
    tensors = {}
    with torch.no_grad(), mm.exact():
        for case in CASES:
            model, prompt = load(folder, case)
            ids = greedy(model, prompt, None)
            tensors[f"{case}.prompt"] = prompt.astype(np.int32)
            tensors[f"{case}.ids"] = ids
            if case == ENDS:
                # The first token that did not occur before.
                new = list(ids[PROMPT:])
                at = next(i for i in range(2, len(new))
                          if new[i] not in new[:i])
                tensors["end.token"] = np.array([new[at]], np.int32)
                tensors["end.ids"] = greedy(model, prompt, int(new[at]))
        logits = mm.normal((48,), 3, "generate", "logits")
        probs = []
        for temperature, top_p in OPTIONS:
            x = torch.from_numpy(logits.astype(np.float64))[None]
            x = TemperatureLogitsWarper(temperature)(None, x)
            if top_p < 1:
                x = TopPLogitsWarper(top_p)(None, x)
            probs.append(torch.softmax(x, -1)[0].numpy())
    tensors["sample.logits"] = logits
    tensors["sample.options"] = np.array(OPTIONS, np.float64)
    tensors["sample.probs"] = np.array(probs, np.float64)
    mm.save(out_dir, "generate", tensors)


if __name__ == "__main__":
    main()
