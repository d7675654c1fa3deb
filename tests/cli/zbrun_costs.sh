#!/bin/sh
# SPDX-License-Identifier: MIT
# zbrun as a command: measured costs, where they are kept and what is shown of
# them; and that training does not notice.
. "${srcdir:=.}/tests/cli/lib.sh"
cd "$tmp" || exit 99
# shellcheck disable=SC2086 # two words
measured='-s schedule.costs=measured'

run 0 -b cpu -n $measured llama.ini
out '^costs of a microbatch: estimated, nominal rates$'
[ ! -e cache ] || fail '--dry-run writes a cache'

run 0 -b cpu $measured -s parallel.partition=uniform \
    -s parallel.pp_style=1f1b llama.ini
err '^costs of a microbatch: measured$'
err '^  chunk 1: F [0-9.]* ms, B [0-9.]* ms, W [0-9.]* ms$'
err '^  message: [0-9.]* us'
cp out/log.jsonl measured.jsonl
[ "$(ls cache/zbrun | wc -l)" -eq 1 ] || fail 'not one cache file'
grep -q '"key": "costs of layers of zbrun .*; cpu, .* 2 devices of 1 threads' \
    cache/zbrun/costs-*.json || fail 'the key names other things'

run 0 -q -b cpu -s parallel.partition=uniform -s parallel.pp_style=1f1b \
    llama.ini
same_bits measured.jsonl out/log.jsonl 'measured costs'

run 0 -b cpu -n $measured llama.ini
out '^costs of a microbatch: measured$'

# What is broken is measured again; what was kept is not.
for f in cache/zbrun/costs-*.json; do
    echo '{"key": "of something else"}' >"$f"
done
run 0 -v -b cpu $measured llama.ini
err 'not used: it is of something else'
err 'costs of layers measured in'
err '^nodes against the planned costs:$'
err '^  forward and backward: all nodes [0-9.]* ms ([+-][0-9.]* %)$'
run 0 -v -b cpu $measured llama.ini
err 'costs of layers of this model and machine are kept in'
! grep -q 'measured in' stderr || fail 'what is kept is measured'

# A folder of one's own, relative to the file; none.
run 0 -q -b cpu $measured -s schedule.cost_cache=here llama.ini
[ "$(ls here | wc -l)" -eq 1 ] || fail 'cost_cache is not used'
rm -rf cache
run 0 -q -b cpu $measured -s schedule.cost_cache=none llama.ini
[ ! -e cache ] || fail 'cost_cache = none keeps files'
run 0 -q -b cpu -s schedule.cost_cache=none llama.ini
[ ! -e cache ] || fail 'cost_cache = none keeps rates'

# Where nothing can be kept the run goes on.
run 0 -q -b cpu $measured -s schedule.cost_cache=text.txt llama.ini

# Times of devices that only wait are not measured.
run 0 -b sim $measured -s schedule.sim_unit_us=100 llama.ini
err '^costs of a microbatch: estimated, nominal rates$'
run 0 -b check $measured llama.ini
err '^costs of a microbatch: measured$'

"$zbrun" --print-config -s schedule.cost_cache=none llama.ini >printed.ini
rm -rf cache
run 0 -q -b cpu $measured printed.ini
[ ! -e cache ] || fail 'a printed cost_cache = none is another'

finish
