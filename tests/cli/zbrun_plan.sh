#!/bin/sh
# SPDX-License-Identifier: MIT
# Cut and schedule as users see them: zbrun --dry-run and -v, zbplan with a
# configuration file.
. "${srcdir:-.}/tests/cli/lib.sh"
cd "$tmp" || exit 99

# A head of 4096 rows beside blocks of width 16 is most of the work.
sed -e 's/^vocab_size.*/vocab_size = 4096/' -e 's/^seq_len.*/seq_len = 64/' \
    -e 's/^max_position.*/max_position_embeddings = 64/' \
    -e 's/^num_hidden_layers.*/num_hidden_layers = 12/' \
    -e 's/^pp_size.*/pp_size = 3/' llama.ini >head.ini

# Layers of the chunks of a stage, from a dry run in ./stdout.
layers_of() {
    awk -v stage="stage $1:" 'index($0, stage) {
        if (match($0, /\([0-9]+ layers\)/)) {
            n += substr($0, RSTART + 1) + 0
        }
    } END { print n + 0 }' stdout
}

# ---- the cut ----

for style in zbv 1f1b; do
    run 0 --dry-run -s parallel.pp_style=$style head.ini
    last=0
    [ $style = 1f1b ] && last=2
    with_head=$(layers_of $last)
    others=$((14 - with_head))
    [ "$with_head" -lt $((others / 2)) ] ||
        fail "$style: $with_head layers on the stage of the head"
    cp stdout first
    run 0 --dry-run -s parallel.pp_style=$style head.ini
    sed '/planned in/d' first >a
    sed '/planned in/d' stdout >b
    cmp -s a b || fail "$style: two dry runs differ"
done
out 'planned in [0-9.]* ms (schedules tried: [0-9]*, '
run 0 --dry-run -s parallel.pp_style=zbv -s parallel.partition=uniform head.ini
out 'tried: 1, '
out 'chunk 0 on stage 0: embed .. layers.1 (3 layers)'

# ---- effort ----

run 0 --dry-run -s schedule.budget=0 head.ini
out 'moves: 0)'
run 0 --dry-run -s schedule.budget=1234 -s schedule.objective=steady head.ini
out 'moves: 1234)'
run 0 --dry-run -s schedule.time_limit_ms=5 head.ini
run 0 -v -b cpu -s train.steps=1 llama.ini
err 'planned in [0-9.]* ms'
err '^zbrun: debug:   chunk 0 on stage 0'
run 0 -b cpu -s train.steps=1 llama.ini
grep -q 'planned in' stderr && fail "the plan is logged without -v"

# ---- the choice of a schedule ----

run 0 --dry-run -s parallel.pp_style=auto head.ini
[ "$(grep -c ' taken$' stdout)" -eq 1 ] || fail "not one planner is taken"
awk '/^planner / { on = 1; next }
    /^layout/ { on = 0 }
    on && $2 ~ /^[0-9.e+]+$/ {
        if (least == "" || $2 + 0 < least) { least = $2 + 0 }
        if ($NF == "taken") { taken = $2 + 0 }
    }
    END { exit !(taken > 0 && taken <= least * 1.00001) }' stdout ||
    fail "another planner is faster than the one taken"
name=$(sed -n 's/ .*taken$//p' stdout)
out "^layout: 3 stages .*, $name$"
run 0 --dry-run -s parallel.pp_style=auto -s schedule.max_mem=0.7x head.ini
out '^gpipe .*too small'
run 2 --dry-run -s parallel.pp_style=auto -s schedule.max_mem=100 head.ini
err 'needs'
run 0 -q -b cpu -s parallel.pp_style=auto llama.ini

# ---- limits of memory ----

run 2 --dry-run -s schedule.device_mem=1000 head.ini
least=$(sed -n 's/.*needs \([0-9]*\) bytes at least.*/\1/p' stderr)
[ -n "$least" ] || fail "no least limit is named"
run 0 --dry-run -s schedule.device_mem="$least" head.ini
awk -v least="$least" '$1 == "total" {
    for (i = 2; i <= NF; i++) { bad += $i > least + 0 }
    n++
} END { exit bad > 0 || n != 1 }' stdout || fail "a stage is over device_mem"
run 2 --dry-run -s schedule.max_mem=100 head.ini
need=$(sed -n 's/.* needs \([0-9]*\).*/\1/p' stderr)
[ -n "$need" ] || fail "no least max_mem is named"
run 0 --dry-run -s schedule.max_mem="$need" head.ini

# ---- zbplan with a configuration ----

run 0 --dry-run head.ini
sed '/planned in/d' stdout >dry
plan 0 head.ini
sed '/planned in/d' stdout >planned
head -n "$(wc -l <dry)" planned >a
cmp -s a dry || fail "zbplan plans otherwise than zbrun --dry-run"
out 'makespan .* lower bound'
for format in json nodes; do
    plan 0 -f $format -o schedule head.ini
    plan 0 --check schedule head.ini
    out 'legal: 3 stages, 4 microbatches, placement v'
    # It is the one that runs.
    run 0 --dry-run -s parallel.pp_style=file \
        -s parallel.scheduler_nodes="$tmp/schedule" head.ini
done
plan 1 --check schedule --max-mem 1000 head.ini
plan 0 -p 2 -m 6 --planner 1f1b -f nodes head.ini
[ "$(awk '$2 == "F"' stdout | wc -l)" -eq 12 ] || fail "-p 2 -m 6 is not taken"
plan 0 --cost 2,3,1,0 -f json head.ini
out '"type":"F","chunk":0,"mb":0,"start":0,"end":2}'
plan 0 --planner 1f1b --mem 3,-1,-2 -f json head.ini
out '"peak_mem":\[9,6,3\]'
plan 0 --compare head.ini
for planner in zbv 1f1b gpipe; do
    out "^$planner  *[0-9]"
done
plan 1 --max-mem 1000 head.ini
err 'needs [0-9]'
sed 's/^pp_size.*/pp_size = 3\npp_style = auto/' head.ini >auto.ini
plan 0 auto.ini
out '^planner .*bubble'
plan 2 missing.ini
err 'missing.ini'
plan 2 head.ini auto.ini
err 'more than one'
sed 's/^hidden_size/hiden_size/' head.ini >typo.ini
plan 2 typo.ini
err 'typo.ini:[0-9]'
finish
