#!/bin/sh
# SPDX-License-Identifier: MIT
# zbrun on simulated devices: the runtime with more stages than cores, and no
# values anywhere.
. "${srcdir:-.}/tests/cli/lib.sh"
cd "$tmp" || exit 99

sim="-b sim -s schedule.sim_unit_us=20"

# shellcheck disable=SC2086
run 0 $sim -s train.steps=3 -s data.valid=text.txt \
    -s train.eval_interval=1 llama.ini
err 'llama on 2 sim devices, zbv'
err 'sim devices compute nothing'
[ "$(grep -c '"loss":0,.*"grad_norm":0,.*"mfu":0,' out/log.jsonl)" -eq 3 ] ||
    fail "not three steps of zeros: $(cat out/log.jsonl)"
grep -q eval_loss out/log.jsonl && fail "sim prints a loss of an evaluation"
grep -q -i nan out/log.jsonl stdout && fail "sim prints a NaN"

# Many stages, and memory that no machine has.
for style in zbv get_v_schedule 1f1b gpipe; do
    # shellcheck disable=SC2086
    run 0 -q $sim -s train.steps=2 -s parallel.pp_size=32 \
        -s parallel.pp_style=$style -s parallel.num_microbatches=32 llama.ini
done
# shellcheck disable=SC2086
run 0 -q $sim -s train.steps=1 -s model.hidden_size=16384 \
    -s model.intermediate_size=65536 -s model.num_hidden_layers=10 llama.ini

# What needs values is refused before anything is written.
rm -rf out
run 2 -b sim -e -s data.valid=text.txt llama.ini
err '--eval is of no use with the backend sim'
run 2 -b sim --dump-grads grads llama.ini
err '--dump-grads is of no use with the backend sim'
run 2 -b sim -s schedule.sim_unit_us=0 llama.ini
err 'sim_unit_us'
[ ! -e out ] && [ ! -e grads ] || fail "a refused run writes"
run 0 -b sim -n llama.ini
out 'planned bubble'

[ $n_bad -eq 0 ]
