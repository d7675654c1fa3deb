#!/bin/sh
# SPDX-License-Identifier: MIT
# Text that a model writes: from a checkpoint and without one, on any layout, and
# what is refused.
. "${srcdir:-.}/tests/cli/lib.sh"
cd "$tmp" || exit 99

run 0 -q -b cpu -s checkpoint.dir=ckpt -s train.steps=60 -s output.log=none \
    -s optimizer.lr=1e-2 llama.ini

# generate ARGUMENTS...: behind the prompt "the ", without a word about it.
generate() {
    run 0 -q -b cpu -s checkpoint.dir=ckpt --generate 'the ' "$@" llama.ini
    [ ! -s stderr ] || fail "zbrun --generate $* writes to standard error"
}

ls -R . >before
ls -R . >before
generate --temperature 0 --max-tokens 8
ls -R . >after
grep -v after after | cmp -s - before || fail "--generate writes files"
[ "$(wc -c <stdout)" -eq 13 ] || fail "not 8 bytes behind 4, and a newline"
out '^the [a-z ]*$'
cp stdout likeliest
for layout in 'pp_size=1' 'pp_size=4' 'tp_size=2'; do
    generate --temperature 0 --max-tokens 8 -s parallel.$layout
    cmp -s stdout likeliest || fail "other text with $layout"
done

# Drawn by the seed.
generate --top-p 0.9
cp stdout drawn
generate --top-p 0.9 -s parallel.pp_size=1
cmp -s stdout drawn || fail 'the same seed draws another text'
run 0 -q -b cpu -r -s checkpoint.dir=ckpt -s train.seed=9 --generate 'the ' \
    --top-p 0.9 llama.ini
! cmp -s stdout drawn || fail 'another seed draws the same text'

# Through a tokenizer.
make_tokenizer >tok.json
sed 's/vocab_size = 256/vocab_size = 71/' llama.ini >tok.ini
run 0 -q -b cpu -s checkpoint.dir=tok -s data.tokenizer=tok.json \
    -s train.steps=60 -s output.log=none tok.ini
cmp -s tok.json tok/step-60/tokenizer.json ||
    fail 'the checkpoint has no tokenizer.json'
run 0 -v -b cpu -s checkpoint.dir=tok -s data.tokenizer=tok.json \
    --temperature 0 --max-tokens 6 --generate 'the cat' tok.ini
out '^the cat[a-z .]*$'
err ': 6 tokens behind 4 of the prompt: [0-9 ]*$'
run 2 -b cpu -s checkpoint.dir=tok --generate 'the cat' tok.ini
err 'token 0 of the prompt is 116, but the model.s vocabulary is 71'

# Without a checkpoint it is noise, and said to be.
run 0 -b cpu --generate 'the ' --max-tokens 2 llama.ini
err 'warning: the weights are drawn'

# No data is read.
mv text.txt away.txt
generate --max-tokens 2
mv away.txt text.txt

refuse() {
    text=$1
    shift
    run 2 -b cpu "$@" llama.ini
    err "$text"
}
refuse 'the prompt has no token' --generate ''
refuse 'do not fit data.seq_len' --generate 'the ' --max-tokens 1000
refuse 'the backend sim' -b sim --generate 'the '
refuse 'only one of' -e --generate 'the '
refuse 'for --generate only' --top-p 0.5

finish
