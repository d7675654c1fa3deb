#!/bin/sh
# SPDX-License-Identifier: MIT
# Checkpoints: runs that are interrupted, by their end, a signal, or kill -9, and
# go on as if they had not been; folders that are refused; a full disk.
. "${srcdir:-.}/tests/cli/lib.sh"
cd "$tmp" || exit 99

# train NAME ARGUMENTS...: a run that saves to NAME and logs to NAME.jsonl.
train() {
    name=$1
    shift
    run 0 -q -b cpu -s checkpoint.dir="$name" -s output.log="$name.jsonl" "$@"
}

# same_step STEP NAME NAME: the two have the same weights and moments.
same_step() {
    for file in config.json model.safetensors state/optim.safetensors; do
        cmp -s "$2/step-$1/$file" "$3/step-$1/$file" ||
            fail "step $1 of $2 and $3: other $file"
    done
}

steps_of() {
    ls "$1" | tr '\n' ' '
}

# ---- stop and go ----

train whole -s train.steps=8 -s checkpoint.interval=3 llama.ini
[ "$(steps_of whole)" = 'step-3 step-6 step-8 ' ] ||
    fail "saved: $(steps_of whole)"
train parts -s train.steps=5 llama.ini
train parts -s train.steps=8 -s checkpoint.keep=1 llama.ini
[ "$(steps_of parts)" = 'step-8 ' ] || fail "kept: $(steps_of parts)"
same_step 8 whole parts
same_bits out/whole.jsonl out/parts.jsonl 'stop and go'
# Nothing is left to do.
train parts -s train.steps=8 llama.ini
same_bits out/whole.jsonl out/parts.jsonl 'a finished run again'
# From a checkpoint by name; what the log has behind it is done again.
mkdir copy
cp -r whole/step-3 copy
cp out/whole.jsonl out/copy.jsonl
train copy -s train.steps=8 --resume=copy/step-3 llama.ini
same_step 8 whole copy
same_bits out/whole.jsonl out/copy.jsonl 'from step 3'
run 0 -q -b cpu -e -s data.valid=text.txt -s checkpoint.dir=whole llama.ini
mv "$tmp/stdout" eval.whole
run 0 -q -b cpu -e -s data.valid=text.txt -r -s checkpoint.dir=parts llama.ini
cmp -s eval.whole "$tmp/stdout" || fail 'evaluation of a checkpoint'
run 0 -q -b cpu -e -s data.valid=text.txt llama.ini
cmp -s eval.whole "$tmp/stdout" && fail 'evaluation without a checkpoint'

# ---- layouts, other sizes of steps ----

train other -s train.steps=4 llama.ini
train other -g 4 -s parallel.pp_size=1 -s parallel.tp_size=2 \
    -s parallel.num_microbatches=2 -s train.steps=6 llama.ini
train other -s train.steps=8 llama.ini

sed -n 's/.*"loss":\([0-9.e+-]*\),.*/\1/p' out/whole.jsonl >whole.num
sed -n 's/.*"loss":\([0-9.e+-]*\),.*/\1/p' out/other.jsonl >other.num
paste whole.num other.num | awk '{ d = $1 - $2; if (d < 0) { d = -d }
    if (d > 1e-5 * $1) { print; bad = 1 } } END { exit bad || NR != 8 }' ||
    fail 'losses of three layouts'
# The data goes on where it was, also with steps of another size.
train sizes -s train.steps=4 llama.ini
train sizes -s train.steps=6 -s parallel.num_microbatches=6 llama.ini
grep -q '"samples": 28' sizes/step-6/state/state.json ||
    fail 'the place in the data'

# ---- load and save ----

mkdir hf
run 0 -q -b cpu -s checkpoint.dir=hf0 -s train.steps=0 \
    -s checkpoint.max_file_bytes=20k gpt2.ini
cp hf0/step-0/*.json hf0/step-0/*.safetensors hf
ls hf/model-00002-of-*.safetensors >/dev/null 2>&1 || fail 'one file only'
sed -e '/^\[model\]/,/^$/d' gpt2.ini >hf.ini
printf '[model]\npath = hf\ninit = pretrained\n' >>hf.ini
run 0 -q -b cpu -s checkpoint.dir=hf1 -s train.steps=0 -s train.seed=99 \
    -s checkpoint.max_file_bytes=20k hf.ini
for file in hf/*; do
    cmp -s "$file" "hf1/step-0/${file#hf/}" || fail "load and save: $file"
done
for type in bf16 fp16; do
    run 0 -q -b cpu -s checkpoint.dir=$type -s train.steps=0 \
        -s precision.precision=$type llama.ini
    sed -e '/^\[model\]/,/^$/d' llama.ini >$type.ini
    printf '[model]\npath = %s/step-0\ninit = pretrained\n' $type >>$type.ini
    run 0 -q -b cpu -s checkpoint.dir=again.$type -s train.steps=0 \
        -s precision.precision=$type -s train.seed=99 -s parallel.tp_size=2 \
        $type.ini
    cmp -s $type/step-0/model.safetensors again.$type/step-0/model.safetensors ||
        fail "load and save: $type"
done

# ---- what is refused ----

refuse() {
    pattern=$1
    shift
    run 2 -b cpu "$@"
    err "$pattern"
}
refuse '--resume needs checkpoint.dir' -r llama.ini
refuse '--resume: nowhere has no checkpoint' --resume=nowhere llama.ini
refuse '--resume: .*nowhere has no checkpoint' -r -s checkpoint.dir=nowhere llama.ini
refuse 'whole has step-3, but this run begins behind step 0' \
    -s checkpoint.dir=whole -s checkpoint.resume=never llama.ini
refuse 'whole has step-6, but this run begins behind step 3' \
    -s checkpoint.dir=whole --resume=whole/step-3 llama.ini
refuse 'step-8: the tensors do not fit the model: ' \
    -s checkpoint.dir=whole gpt2.ini
refuse 'moments of adamw' -s checkpoint.dir=whole -s optimizer.name=sgd llama.ini
refuse 'checkpoint.interval needs checkpoint.dir' -s checkpoint.interval=5 \
    llama.ini
[ "$(steps_of whole)" = 'step-3 step-6 step-8 ' ] ||
    fail "a refused run writes: $(steps_of whole)"

# ---- damage ----

cp -r whole hurt
cp out/whole.jsonl out/hurt.jsonl
printf 'x' | dd of=hurt/step-8/model.safetensors bs=1 seek=9000 conv=notrunc \
    2>/dev/null
train hurt -s train.steps=8 llama.ini
err 'checkpoint .*hurt/step-8 is damaged: .*model.safetensors: checksum differs'
[ "$(steps_of hurt)" = 'step-3 step-6 step-8 step-8.damaged ' ] ||
    fail "after damage: $(steps_of hurt)"
same_step 8 whole hurt
same_bits out/whole.jsonl out/hurt.jsonl 'after damage'

# ---- a full disk ----

# Files of more than 32 blocks of 512 bytes can not be written: the log can.
limited() {
    want=$1
    shift
    (
        trap '' XFSZ
        ulimit -f 32
        "$zbrun" -b cpu "$@" >"$tmp/stdout" 2>"$tmp/stderr"
    )
    got=$?
    [ $got -eq "$want" ] || {
        fail "zbrun $* on a full disk exits $got instead of $want"
        cat "$tmp/stderr"
    }
}
cp -r parts full
limited 1 -s checkpoint.dir=full -s checkpoint.interval=1 -s train.steps=10 \
    llama.ini
err 'error: step 9 is not saved: .*File too large; training goes on'
err 'error: step 10 is not saved: .*File too large$'
[ "$(steps_of full)" = 'step-8 ' ] || fail "full disk: $(steps_of full)"
limited 1 -q -s checkpoint.dir=full -s checkpoint.interval=1 \
    -s train.steps=20 -s checkpoint.on_error=stop llama.ini
err 'error: step 9 is not saved: .*File too large$'
train full -s train.steps=10 llama.ini
[ "$(steps_of full)" = 'step-10 step-8 ' ] || fail "then: $(steps_of full)"

# ---- signals ----

for signal in INT TERM; do
    rm -rf stop
    begin out/stop.jsonl -s checkpoint.dir=stop -s output.log=stop.jsonl \
        -s train.steps=1000000 llama.ini
    end_by $signal
    step=$(sed -n 's/.*after step \([0-9]*\), which is saved.*/\1/p' \
        "$tmp/stderr")
    [ "$(steps_of stop)" = "step-$step " ] || {
        fail "SIG$signal: saved $(steps_of stop)"
        cat "$tmp/stderr"
    }
    [ "$(wc -l <out/stop.jsonl)" -eq "${step:-0}" ] ||
        fail "SIG$signal: $(wc -l <out/stop.jsonl) lines for step $step"
    rm -f out/stop.jsonl
done

# Two runs can not save to one folder.
begin out/first.jsonl -s checkpoint.dir=both -s train.steps=1000000 \
    -s output.log=first.jsonl llama.ini
run 1 -b cpu -s checkpoint.dir=both -s output.log=second.jsonl llama.ini
err 'another run saves to it'
end_by TERM

# ---- kill -9 ----

# Saves at every step; killed at any moment, also while it writes or removes.
n_kills=4
[ -z "${ZBT_LONG:-}" ] || n_kills=200
n_steps=$((n_kills * 100))
train calm -s train.steps=$n_steps llama.ini
n=0
n_hit=0
while [ $n -lt $n_kills ]; do
    "$zbrun" -q -b cpu -s checkpoint.dir=killed -s checkpoint.keep=2 \
        -s checkpoint.interval=1 -s output.log=killed.jsonl \
        -s train.steps=$n_steps llama.ini >/dev/null 2>"$tmp/stderr" &
    pid=$!
    sleep "$(awk -v n=$n 'BEGIN { srand(n + 1); printf "%.3f", 0.05 + 0.3 * rand() }')"
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
    got=$?
    [ $got -ne 137 ] || n_hit=$((n_hit + 1))
    [ $got -eq 137 ] || [ $got -eq 0 ] || {
        fail "after $n kills: exit status $got"
        cat "$tmp/stderr"
    }
    grep damaged "$tmp/stderr" && fail "kill $n leaves a damaged checkpoint"
    n=$((n + 1))
done
[ $((2 * n_hit)) -ge $n_kills ] || fail "only $n_hit kills hit a run"
ls killed >/dev/null 2>&1 || fail 'no run came far enough to save'
train killed -s train.steps=$n_steps -s checkpoint.keep=2 llama.ini
same_step $n_steps calm killed
same_bits out/calm.jsonl out/killed.jsonl 'killed'
finish
