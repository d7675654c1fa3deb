#!/bin/sh
# SPDX-License-Identifier: MIT
# Parts of a model that are not trained, and adapters: what is saved, going on from
# it on other layouts, and what is refused.
. "${srcdir:-.}/tests/cli/lib.sh"
cd "$tmp" || exit 99

run 0 -q -b cpu -s checkpoint.dir=base -s train.steps=20 -s output.log=base.jsonl \
    llama.ini
cat >tuned.ini <<'END'
[model]
path = base/step-20
init = pretrained

END
common_keys >>tuned.ini

# Frozen parameters have no gradients, and stay what they were.
run 0 -q -b cpu -s 'model.freeze=model.embed_tokens.*, *.mlp.?p_proj.weight' \
    --dump-grads grads -s checkpoint.dir=frozen -s output.log=none tuned.ini
for name in model.embed_tokens.weight model.layers.3.mlp.up_proj.weight; do
    ! grep -q "$name" grads/grads.safetensors || fail "$name has a gradient"
    grep -q "$name" frozen/step-2/model.safetensors || fail "$name is not saved"
done
grep -q model.layers.3.mlp.gate_proj.weight grads/grads.safetensors ||
    fail 'a parameter that is not frozen has no gradient'
run 0 -q -b cpu -s 'model.freeze=[!l]*' -s optimizer.lr=1 -s checkpoint.dir=most \
    -s output.log=none tuned.ini
# The tensors before the head, in the order of the model.
for f in base/step-20 most/step-2; do
    tail -c +"$((1 + 8 + $(od -A n -t u4 -N 4 "$f/model.safetensors")))" \
        "$f/model.safetensors" | head -c -16384 >"$f/weights"
done
cmp -s base/step-20/weights most/step-2/weights ||
    fail 'frozen parameters are changed'
! cmp -s base/step-20/model.safetensors most/step-2/model.safetensors ||
    fail 'the head is not trained'

# Adapters: only they are saved, and a run goes on from them on any layout.
lora='-q -b cpu -s model.lora_rank=3 -s train.steps=12'
# shellcheck disable=SC2086
{
    run 0 $lora -s output.log=whole.jsonl tuned.ini
    run 0 $lora -s checkpoint.dir=lora -s checkpoint.interval=6 \
        -s output.log=part.jsonl tuned.ini
    same_bits out/whole.jsonl out/part.jsonl 'saving adapters'
    for f in adapter_config.json adapter_model.safetensors state/state.json; do
        [ -f lora/step-6/$f ] || fail "a checkpoint of adapters has no $f"
    done
    [ ! -f lora/step-6/model.safetensors ] || fail 'the model is saved, too'
    grep -q '"r": 3' lora/step-6/adapter_config.json || fail 'no rank is saved'
    grep -q 'base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight' \
        lora/step-6/adapter_model.safetensors || fail 'names are not those of PEFT'
    for layout in pp_size=1 tp_size=2; do
        rm -rf again && mkdir again && cp -r lora/step-6 again
        run 0 $lora -s checkpoint.dir=again -s output.log=again.jsonl \
            -s parallel.$layout tuned.ini
        tail -n 6 out/whole.jsonl | sed 's/.*"loss":\([0-9.]*\),.*/\1/' >want
        sed 's/.*"loss":\([0-9.]*\),.*/\1/' out/again.jsonl >have
        paste want have | awk '{ d = $1 - $2; n++
            if (d > 1e-5 || d < -1e-5) bad = 1 } END { exit bad || n != 6 }' ||
            fail "going on with $layout: other losses"
        rm out/again.jsonl
    done
}
run 0 -q -b cpu -s model.lora_rank=3 -r -s checkpoint.dir=lora --generate 'the ' \
    --max-tokens 4 tuned.ini

# refuse MESSAGE ARGUMENTS...
refuse() {
    message=$1
    shift
    run 2 -n -b cpu "$@"
    err "$message"
}

refuse "model.freeze: no parameter is called 'model.embed'" \
    -s model.freeze=model.embed tuned.ini
refuse 'model.freeze leaves no parameter to train' -s 'model.freeze=*' tuned.ini
refuse 'model.lora_rank needs model.init = pretrained' -s model.lora_rank=2 \
    llama.ini
refuse "model.lora_targets: no linear layer of a block is called 'c_attn'" \
    -s model.lora_rank=2 -s model.lora_targets=c_attn tuned.ini
refuse 'adapter_model.safetensors\|the tensors do not fit the model' \
    -s checkpoint.dir=lora tuned.ini
finish
