#!/bin/sh
# SPDX-License-Identifier: MIT
# Usage, configuration and input files that zbrun refuses, and what it says.
. "${srcdir:-.}/tests/cli/lib.sh"
doc=$(cd "$srcdir/doc" && pwd) || exit 99
cd "$tmp" || exit 99

# refuse PATTERN ARGUMENTS...: exit status 2 and a message; nothing is written.
refuse() {
    pattern=$1
    shift
    run 2 -b cpu "$@"
    err "$pattern"
    [ ! -e out ] || {
        fail "zbrun $* writes"
        rm -rf out
    }
}

# refuse_line PATTERN SED-SCRIPT: the same of an edited llama.ini.
refuse_line() {
    sed "$2" llama.ini >edited.ini
    refuse "$1" edited.ini
}

# ---- usage ----

run 0 --help
out '--dump-grads DIR'
run 0 --version
out '^zbrun [0-9]'
out '^cuda: '
run 0 --list-models
sed '1,/^<!-- list-models/d; /^<!-- end/,$d' "$doc/models.md" >table
cmp -s table stdout || fail "doc/models.md is not what --list-models prints"
run 2
err 'no configuration file'
run 2 --nonsense llama.ini
err "unknown or ambiguous option '--nonsense'"
refuse "not also 'gpt2.ini'" llama.ini gpt2.ini
for g in 0 -1 2x 1,,1 ',' 99999999999 ''; do
    refuse '--gpus' -g "$g" llama.ini
done
refuse 'only one of' -e -n llama.ini
refuse 'contradict' -q -v llama.ini
refuse '--resume needs checkpoint.dir' -r llama.ini
refuse '--set steps=1' -s steps=1 llama.ini

# ---- what is not built ----

built=$("$zbrun" --version | sed -n 's/^backends: *//p')
for name in cuda sim; do
    case " $built " in
    *" $name "*) continue ;;
    esac
    for option in -q -n -e; do
        run 2 -b $name $option -s data.valid=text.txt llama.ini
        err "backend '$name' is not built into this zbrun"
    done
done
run 2 -b nonsense -n llama.ini
err "unknown backend 'nonsense'"
refuse 'must divide the number of devices, 3' -g 3 llama.ini
refuse 'must divide the number of devices, 1' -g 1 llama.ini

# ---- config.ini ----

refuse 'none.ini: No such file' none.ini
refuse 'is a directory' .
: >empty.ini
refuse 'empty.ini: .*model_type' empty.ini
refuse_line "edited.ini:25: unknown key in \[train\]: 'stepz', .*'steps'" \
    's/^steps/stepz/'
refuse_line "edited.ini:24: unknown section 'trian'" 's/^\[train\]/[trian]/'
refuse_line 'edited.ini:25: train.steps = many: must be a whole number' \
    's/^steps.*/steps = many/'
refuse_line "edited.ini:2: key 'model_type': 'lama'" 's/= llama/= lama/'
refuse_line "edited.ini:4: .*hidden_sizee.*'hidden_size'" \
    's/^hidden_size/hidden_sizee/'
refuse_line "edited.ini:8: key 'num_key_value_heads': 2 does not divide" \
    's/^num_attention_heads.*/num_attention_heads = 3/'
refuse_line 'edited.ini:27:' 's/^seed.*/seed = 1\nseed = 2/'
refuse_line "edited.ini:1: .*expected" 's/^\[model\]/model/'
refuse_line 'edited.ini:27: .*expected' 's/^threads_per.*/what/'
refuse '--set parallel.pp_style=zbw: .*did you mean' \
    -s parallel.pp_style=zbw llama.ini
for value in 0 -1 1e3 1.5 nan 99999999999999999999 ''; do
    refuse '--set data.seq_len=' -s data.seq_len="$value" llama.ini
done
refuse 'data.seq_len=1000000000' -s data.seq_len=1000000000 llama.ini
refuse 'num_microbatches=1000000' -s parallel.num_microbatches=1000000 llama.ini
refuse '--set.*num_hidden_layers.*: 0 is not' \
    -s model.num_hidden_layers=0 llama.ini
refuse "--set: key 'rope_scaling': rope type 'yarn' is not supported" \
    -s 'model.rope_scaling={"rope_type":"yarn","factor":2}' llama.ini
refuse '--set.*num_layers_per_stage sums up to 10, but the model has 7' \
    -s parallel.num_layers_per_stage=1,2,3,4 llama.ini
refuse 'num_layers_per_stage has 2 values' \
    -s parallel.num_layers_per_stage=3,4 llama.ini
refuse 'memory limit 10 of stage 0 is too small' -s schedule.max_mem=10 llama.ini
refuse 'p2p = nccl: the cpu backend of this zbrun has no' \
    -s parallel.p2p=nccl llama.ini
refuse 'p2p = nccl: the cpu backend' -s parallel.p2p=nccl --dry-run llama.ini
refuse 'pp_style = file needs' -s parallel.pp_style=file llama.ini
refuse 'warmup_steps' -s optimizer.warmup_steps=3 llama.ini

# ---- data ----

refuse 'training needs data.train' -s data.train= llama.ini
refuse 'evaluation needs data.valid' -e llama.ini
refuse 'data.train: .*none.txt: No such file' -s data.train=none.txt llama.ini
refuse 'data.train: .*is a directory' -s data.train=. llama.ini
: >empty.txt
refuse 'empty.txt: 0 tokens .* 17$' -s data.train=empty.txt llama.ini
printf 'sixteen letters.' >short.txt
refuse 'short.txt: 16 tokens are fewer than .* 17$' \
    -s data.train=short.txt llama.ini
refuse 'data.valid: .*short.txt: 16 tokens' -s data.valid=short.txt llama.ini
# One sample is enough: the epochs begin again.
printf 'seventeen letters' >short.txt
run 0 -q -b cpu -s data.train=short.txt llama.ini
rm -rf out
refuse 'tokens up to 255, .*vocab_size is 128' -s model.vocab_size=128 llama.ini

# ---- Hugging Face directories ----

sed -e '/^\[model\]/,/^$/d' llama.ini >path.ini
printf '[model]\npath = hf\n' >>path.ini
refuse 'hf/config.json: No such file' path.ini
mkdir hf
cat >hf/config.json <<'EOF'
{
  "model_type": "llama", "vocab_size": 256, "hidden_size": 16,
  "intermediate_size": 24, "num_hidden_layers": 7,
  "num_attention_heads": 4, "num_key_value_heads": 2,
  "max_position_embeddings": 16, "tie_word_embeddings": false
}
EOF
run 0 -q -b cpu path.ini
mv out ref
run 0 -q -b cpu llama.ini
same_bits ref/log.jsonl out/log.jsonl "config.json"
rm -rf out
refuse 'hf: neither model.safetensors nor model.safetensors.index' -s model.init=pretrained path.ini
mv hf/config.json whole.json
head -c 60 whole.json >hf/config.json
refuse 'hf/config.json:[0-9]*: ' path.ini
sed 's/"llama"/"roberta"/' whole.json >hf/config.json
refuse "hf/config.json:2: key 'model_type': 'roberta' is not supported" path.ini
sed 's/"tie_word_embeddings": false/"rope_scaling": {"type": "ntk"}/' \
    whole.json >hf/config.json
refuse "hf/config.json:5: key 'rope_scaling': rope type 'ntk'" path.ini
echo '[]' >hf/config.json
refuse 'hf/config.json' path.ini
: >hf/config.json
refuse 'hf/config.json' path.ini
refuse 'can not stand beside model.path' -s model.model_type=llama path.ini

# ---- schedules ----

# schedule PATTERN FILE
schedule() {
    refuse "$1" -s parallel.pp_style=file -s parallel.scheduler_nodes="$2" \
        llama.ini
}
schedule 'set: .*nothing: cannot open: No such file' nothing
schedule 'text.txt: line 1' text.txt
schedule 'set: .*hf: cannot read: Is a directory' hf
: >empty
schedule 'empty' empty
plan 0 -p 3 -m 4 -f nodes -o three
schedule 'three: .*3 stages' three
plan 0 -p 2 -m 5 -f json -o five
schedule 'five: .*5 microbatches' five
plan 0 -p 2 -m 4 -f nodes -o good
grep -v '^1 W 0 2 ' good >bad
schedule 'bad: stage 1, node [0-9]* (W chunk 0 mb 3) is out of order' bad
plan 1 --check bad
err 'bad: stage 1, node [0-9]* (W chunk 0 mb 3)'
awk '{ print } /^0 B 1 3 / { print }' good >bad
schedule 'bad: stage 0, node [0-9]* (B chunk 1 mb 3)' bad
plan 0 --check good
out 'legal: 2 stages, 4 microbatches'
plan 0 -p 2 -m 4 --compare
out '^get_v_schedule '
finish
