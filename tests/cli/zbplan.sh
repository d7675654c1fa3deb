#!/bin/sh
# SPDX-License-Identifier: MIT
# zbplan as a command: exit statuses, formats, checking, refusals.
. "${srcdir:-.}/tests/cli/lib.sh"
srcdir=$(cd "$srcdir" && pwd)
cd "$tmp" || exit 99

# run STATUS ARGUMENTS...: run zbplan; a message exactly if it fails.
run() {
    plan "$@"
    if [ "$1" -eq 0 ]; then
        [ ! -s stderr ] || fail "zbplan $* writes to standard error"
    else
        grep -q '^zbplan: .' stderr || fail "zbplan $* gives no message"
    fi
}

# Plans.
run 0 -p 4 -m 8
out 'makespan 51, span 48, lower bound 51 (gap 0.00 %)'
out 'objective step (makespan)'
[ "$(grep -c '^[0-3] |' "$tmp/stdout")" -eq 4 ] || fail "not one row per stage"
run 0 -p 4 -m 8 -f json
out '"planner":"zbv","n_stage":4,"n_micro":8,"placement":"v","objective":"step"'
out '"makespan":51,"span":48,"lower_bound":51'
out '"peak_mem":\[2424832,2424832,2424832,2424832\]'
out '{"type":"F","chunk":0,"mb":0,"start":0,"end":1}'
run 0 -p 2 -m 2 --planner get_v_schedule -f nodes
[ "$(wc -l <"$tmp/stdout")" -eq 44 ] || fail "not 44 nodes"
out '^0 F 0 0 0 1 0$'
out '^1 SEND_POST_VALIDATION 0 0 '
run 0 -p 3 -m 5 --planner 1f1b -f json
out '"placement":"linear"'
out '"makespan":21,'
run 0 -p 3 -m 5 --planner gpipe -f json
out '"type":"BW"'
run 0 -p 2 -m 4 --cost 10,12.5,9,1 -f json
out '"end":10}'
run 0 -p 2 -m 4 --f-cost 1,2,1,1 --b-cost 2 --c-cost 0.5 -f json
out '"lower_bound":37.5'
run 0 -p 1 -m 3
run 0 -p 5 -m 2
run 0 --planner zbv --objective step --seed 0 --budget 0 --time-limit 0 -p 2 -m 2
run 0 -p 3 -m 4 --objective steady --seed 18446744073709551615 --budget 10 \
    --time-limit 0.5 -f json
out '"objective":"steady"'

# Memory: a limit is kept, or the least one is named.
run 0 -p 4 -m 8 --max-mem 0.5x -f json
for x in $(sed -n 's/.*"peak_mem":\[\(.*\)\],*/\1/p' "$tmp/stdout" | tr , ' '); do
    [ "$x" -le 1212416 ] || fail "peak $x above the limit"
done
run 1 -p 4 -m 8 --max-mem 600000
err 'stage 0 .*needs 606208'
run 0 -p 4 -m 8 --max-mem 606208
run 0 -p 4 -m 8 --max-mem 2424832,2424832,2424832,606208
run 0 -p 4 -m 8 --max-mem none
run 1 -p 4 -m 8 --planner gpipe --max-mem 0.5x
err 'planner gpipe needs 2424832'
run 0 -p 4 -m 32 --planner gpipe

# Files: write, check, plan from them.
run 0 -p 3 -m 6 --budget 0 --compare
planners=$(awk 'NR > 2 { print $1 }' stdout)
for planner in zbv get_v_schedule 1f1b interleaved gpipe zb-h1 zb-h2 v-half \
    v-min pytorch-zbv dualpipev; do
    out "^$planner "
done
for planner in $planners; do
    for format in json nodes torch; do
        run 0 -p 3 -m 6 --planner "$planner" --cost 3,4,2,1 --budget 0 \
            -f $format -o "$tmp/s"
        [ ! -s "$tmp/stdout" ] || fail "-o also writes to standard output"
        run 0 --check "$tmp/s"
        out "legal: 3 stages, 6 microbatches"
        run 0 --planner "file:$tmp/s" --cost 3,4,2,1 -f json
        out '"planner":"file"'
    done
done
run 0 -p 3 -m 6 -f nodes -o "$tmp/s"
cp "$tmp/s" "$tmp/kept"
run 0 --check "$tmp/s" -p 3 -m 6 --max-mem 1.0x
run 1 --check "$tmp/s" --max-mem 0.5x
err 'stage 0, node .*F chunk 0 mb .*the limit is 909312'
run 1 --check "$tmp/s" -m 7
grep -v '^1 W 0 2 ' "$tmp/s" >"$tmp/bad"
run 1 --check "$tmp/bad"
err 'stage 1, node [0-9]* (W chunk 0 mb 3) is out of order: mb 2'
run 2 --planner "file:$tmp/bad"
err "$tmp/bad: stage 1"
grep -v '^2 SEND_FORWARD 1 5 ' "$tmp/s" >"$tmp/bad"
run 1 --check "$tmp/bad"
err 'stage 2: SEND_FORWARD chunk 1 mb 5 is missing'
awk '$1 == 0 && $2 == "RECV_FORWARD" && $4 == 0 { late = $0; next }
     { print }
     $1 == 0 && $2 == "SEND_FORWARD" && $4 == 5 && late { print late }' \
    "$tmp/s" >"$tmp/bad"
run 1 --check "$tmp/bad"
err 'stage 0, node'
echo garbage >"$tmp/bad"
run 1 --check "$tmp/bad"
err "$tmp/bad: line 1: stage 'garbage'"
echo '{"stages": 1}' >"$tmp/bad"
run 1 --check "$tmp/bad"
err 'stages'
run 2 --check "$tmp/none"
err "$tmp/none"
run 2 --planner "file:$tmp/none"
run 1 -p 2 -m 2 -o "$tmp/no/such/folder"
if [ -w /dev/full ]; then
    run 1 -p 2 -m 2 -o /dev/full
fi
cmp -s "$tmp/s" "$tmp/kept" || fail "a schedule file changed"
[ -z "$(find "$tmp" -name '*.tmp*')" ] || fail "temporary files stay"

# What PyTorch reads, and a file without its last row's first F.
run 0 -p 2 -m 2 --planner 1f1b -f torch
out '^0F0,0F1,0B0,0B1$'
out '^1F0,1B0,1F1,1B1$'
printf '0F0,0B0\n1B0,1F0\n' >"$tmp/bad"
run 1 --check "$tmp/bad"
err 'stage 1, node 0 (BW chunk 0 mb 0) comes before its F'
printf '0F0,0B0\n1F0,1Z0\n' >"$tmp/bad"
run 1 --check "$tmp/bad"
err "$tmp/bad: line 2: action '1Z0'"

# Drawings.
run 0 -p 8 -m 32 -f svg
out '^<?xml version'
out '>lighter: \|>dark: chunk 0, light: chunk 1; number: microbatch<'
out 'peak 4849664, limit 4849664'
out '^</svg>$'
cp stdout svg1
run 0 -p 8 -m 32 -f svg -o svg2
cmp -s svg1 svg2 || fail "the same drawing has other bytes"
if command -v xmllint >/dev/null; then
    xmllint --noout --nonet svg1 || fail "the drawing is no XML"
fi
run 0 -p 3 -m 4 -f svg --messages
out '<line class="m"'
run 0 -p 3 -m 4 -f trace
out '"name":"stage 2"'
out '"name":"B1.3"'

# Colours and a fitting width on a terminal, neither in files.
esc=$(printf '\033')
run 0 -p 4 -m 8
! grep -q "$esc" stdout || fail "colours in a pipe"
on_terminal() {
    script -qec "$*" /dev/null </dev/null >stdout 2>&1 || fail "$* on a terminal"
}
if script -qec 'test -t 1' /dev/null </dev/null >/dev/null 2>&1; then
    on_terminal "stty cols 60; TERM=xterm NO_COLOR= '$zbplan' -p 4 -m 32"
    grep -q "$esc\\[38;5;" stdout || fail "no colours on a terminal"
    on_terminal "stty cols 60; TERM=xterm NO_COLOR=1 '$zbplan' -p 4 -m 32"
    ! grep -q "$esc" stdout || fail "colours in spite of NO_COLOR"
    [ "$(grep '^[0-3] |' stdout | tr -d '\r' | awk 'length > 60' | wc -l)" \
        -eq 0 ] || fail "rows wider than the terminal"
    [ "$(grep -c '^[0-3] |' stdout)" -eq 4 ] || fail "not one row per stage"
    on_terminal "TERM=dumb NO_COLOR= '$zbplan' -p 4 -m 32"
    ! grep -q "$esc" stdout || fail "colours in spite of TERM=dumb"
fi

# All planners in one table.
run 0 -p 4 -m 8 --compare --cost 12,14,9,1
out '^4 stages, 8 microbatches, objective step; peak: '
out '^planner  *makespan  *bubble %  *gap %  *span  *peak memory  *peak  *plan ms'
for planner in $planners; do
    out "^$planner .*x  *[0-9.]*\$"
done
run 0 -p 4 -m 8 --compare --max-mem 0.8x
out '^gpipe  *memory limit .* planner gpipe needs '
run 2 -p 4 -m 8 --compare --cost 1,-1,1,0
err 'B cost of virtual stage 0 is -'
run 0 -p 4 -m 8 --compare --cost 12,14,9,1
out '^1f1b  *786 '

# A planner whose order is fixed is held to a limit that is given, no other.
run 0 -p 4 -m 16 --planner dualpipev
run 1 -p 4 -m 16 --planner dualpipev --max-mem 1.0x
err 'planner dualpipev needs 2727936 there'
run 0 -p 4 -m 16 --planner v-half --max-mem 0.75x

# Usage.
run 0 --help
out '--max-mem'
run 0 -h
run 0 --version
out '^zbplan [0-9]'
run 0 -V
run 2
err 'give the sizes'
run 2 -p 4
run 2 -p 0 -m 4
err "'0' is not a whole number >= 1"
run 2 -p 4 -m x
run 2 -p 4x -m 4
run 2 -p 99999999999 -m 4
run 2 -p 65536 -m 99999999
err 'more than this program plans'
run 2 -p 4 -m 4 --planner nonsense
err "unknown planner 'nonsense'"
run 2 -p 4 -m 4 -f nonsense
err "unknown format 'nonsense': text, json, nodes, torch, svg or trace"
run 2 -p 4 -m 4 --cost 1,1,1
err "has 3 values: must be F,B,W,C"
run 2 -p 4 -m 4 --cost 1,1,,1
run 2 -p 4 -m 4 --cost 1,-1,1,0
err 'B cost of virtual stage 0 is -1'
run 2 -p 4 -m 4 --f-cost 1,2,3
err '--f-cost has 3 values: must be 1 or 8'
run 2 -p 4 -m 4 --mem 3,-1,-1
err 'the sum 0'
run 2 -p 4 -m 4 --max-mem 1x,2
run 2 -p 4 -m 4 --max-mem 1,2
run 2 -p 4 -m 4 --max-mem lots
run 2 -p 4 -m 4 --nonsense
err 'unknown option --nonsense'
run 2 -p
err '-p needs a value'

for option in --seed --budget; do
    for value in -1 x 1.5 '' 99999999999999999999; do
        run 2 -p 4 -m 8 $option "$value"
        err "$option '.*' is not a whole number"
    done
done
run 2 -p 4 -m 8 --budget 18446744073709551615
run 2 -p 4 -m 8 --time-limit -1
err "'-1' is not a number >= 0"
run 2 -p 4 -m 8 --objective fast
err "unknown objective 'fast': step or steady"

# A configuration file that is not there.
run 2 config.ini
err 'config.ini: No such file'

# The manual names every option, and its examples run.
man=$srcdir/man/zbplan.1
"$zbplan" --help | sed -n 's/^ .*--\([a-z-]*\) .*/\1/p' >options
[ "$(wc -l <options)" -gt 20 ] || fail "--help lists too few options"
while read -r option; do
    grep -q "Fl Fl $option" "$man" || fail "the manual lacks --$option"
done <options
grep '^\.Dl \$ zbplan' "$man" | sed 's/^\.Dl \$ zbplan//' >lines
mkdir -p examples/data
cp "$srcdir/examples/quickstart.ini" examples
for name in train valid; do
    make_text 5000 3 >examples/data/devil-$name.txt
done
[ "$(wc -l <lines)" -ge 4 ] || fail "the manual has no examples"
while read -r arguments; do
    # shellcheck disable=SC2086
    "$zbplan" $arguments >/dev/null 2>&1 ||
        fail "example of the manual: zbplan $arguments"
done <lines

# The command line goes before the configuration, also with what is the default.
cp examples/quickstart.ini examples/steady.ini
printf '\n[schedule]\nobjective = steady\n' >>examples/steady.ini
run 0 --budget 0 -f json examples/steady.ini
out '"objective":"steady"'
run 0 --budget 0 -f json --objective step examples/steady.ini
out '"objective":"step"'
cp examples/quickstart.ini examples/limit.ini
printf '\n[schedule]\ntime_limit_ms = 1\n' >>examples/limit.ini
run 0 -f nodes -o unlimited examples/quickstart.ini
run 0 -f nodes -o limit-0 --time-limit 0 examples/limit.ini
cmp unlimited limit-0 || fail "--time-limit 0 leaves the limit of a file"

finish
