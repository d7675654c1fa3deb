#!/bin/sh
# SPDX-License-Identifier: MIT
# zbrun as a command: what a training run, an evaluation and a dry run show and
# write, and how they end.
. "${srcdir:-.}/tests/cli/lib.sh"
cd "$tmp" || exit 99

# ---- log.jsonl ----

run 0 -b cpu -s data.valid=text.txt -s train.eval_interval=2 \
    -s train.steps=3 llama.ini
cp out/log.jsonl log.jsonl
[ "$(wc -l <log.jsonl)" -eq 3 ] || fail "not one line per step"
number='-\{0,1\}[0-9][0-9.e+-]*'
hex='"-\{0,1\}0x[01]\.\{0,1\}[0-9a-f]*p[+-][0-9]*"'
for key in loss grad_norm lr tokens_per_s step_ms bubble bubble_planned mfu \
    scale; do
    [ "$(grep -c "\"$key\":${number}[,}]" log.jsonl)" -eq 3 ] ||
        fail "log.jsonl: $key is no number"
done
for key in loss_hex grad_norm_hex; do
    [ "$(grep -c "\"$key\":${hex}[,}]" log.jsonl)" -eq 3 ] ||
        fail "log.jsonl: $key is no hexadecimal number"
done
[ "$(grep -c '"tokens":64,' log.jsonl)" -eq 3 ] || fail "not 64 tokens a step"
[ "$(grep -c '"skipped":false' log.jsonl)" -eq 3 ] || fail "skipped"
sed 's/^{"step":\([0-9]*\),.*}$/\1/' log.jsonl | tr '\n' ' ' >steps
[ "$(cat steps)" = "1 2 3 " ] || fail "steps are not 1 2 3"
# Evaluated are every second step and the last.
for key in eval_loss:"$number" eval_loss_hex:"$hex"; do
    grep "\"${key%%:*}\":${key#*:}[,}]" log.jsonl |
        sed 's/^{"step":\([0-9]*\),.*/\1/' | tr '\n' ' ' >steps
    [ "$(cat steps)" = "2 3 " ] || fail "${key%%:*} is not in lines 2 3"
done
if command -v python3 >/dev/null 2>&1; then
    python3 - log.jsonl <<'EOF' || fail "log.jsonl: see above"
import json, sys
want = {"step": int, "loss": float, "loss_hex": str, "grad_norm": float,
        "grad_norm_hex": str, "lr": float, "tokens": int,
        "tokens_per_s": float, "step_ms": float, "bubble": float,
        "bubble_planned": float, "mfu": float, "scale": float,
        "skipped": bool}
for line in open(sys.argv[1]):
    row = json.loads(line)
    for key, kind in want.items():
        value = row[key]
        assert type(value) is kind or (
            kind is float and type(value) is int), (key, value)
    for key in "loss", "grad_norm", "eval_loss":
        if key in row:
            exact = float.fromhex(row[key + "_hex"])
            assert "%.9g" % exact == "%.9g" % row[key], row
    assert 0 <= row["bubble"] <= 1 and 0 <= row["bubble_planned"] <= 1
EOF
fi
err '^zbrun: llama on 2 cpu devices, zbv'
[ "$(grep -c '^step [123]/3  loss ' stdout)" -eq 3 ] ||
    fail "not one progress line per step"

# ---- the same again, quiet and verbose ----

run 0 -q -b cpu -s data.valid=text.txt -s train.eval_interval=2 \
    -s train.steps=3 llama.ini
same_bits log.jsonl out/log.jsonl "the same run twice"
[ ! -s stdout ] || fail "-q writes to standard output"
[ ! -s stderr ] || fail "-q writes to standard error"
run 0 -b cpu llama.ini
run 0 -v -b cpu llama.ini
run 0 -q -b cpu -s train.seed=12 -s train.steps=3 llama.ini
bits out/log.jsonl >seed12
bits log.jsonl >seed11
cmp -s seed11 seed12 && fail "another seed gives the same bits"

# The printed configuration is the run itself.
run 0 --print-config -s train.steps=3 llama.ini
mv stdout printed.ini
run 0 -q -b cpu printed.ini
same_bits log.jsonl out/log.jsonl "--print-config"
run 0 --print-config printed.ini
cmp -s printed.ini stdout || fail "--print-config changes what it printed"
run 0 --print-config
mv stdout defaults.ini
run 0 --print-config defaults.ini
grep -v -e '^dir =' -e '^log =' defaults.ini >first
grep -v -e '^dir =' -e '^log =' stdout >second
cmp -s first second || fail "--print-config changes the defaults"

# The last --set of a key counts.
run 0 -b cpu -s train.steps=5 --set train.steps=1 llama.ini
[ "$(wc -l <out/log.jsonl)" -eq 1 ] || fail "-s train.steps=1 is not obeyed"
run 0 -q -b cpu -s train.steps=0 llama.ini
[ ! -s out/log.jsonl ] || fail "steps = 0 logs a step"

# A folder of its own for the output, with a blank; an INI file of another
# editor: CR LF, byte order mark.
mkdir "a folder"
sed 's/$/\r/' llama.ini | awk 'NR == 1 { printf "\357\273\277" } { print }' \
    >"a folder/c r.ini"
cp text.txt "a folder"
run 0 -q -b cpu -s train.steps=3 -s output.dir="out put/deeper" \
    "a folder/c r.ini"
same_bits log.jsonl "a folder/out put/deeper/log.jsonl" "CR LF and blanks"
[ ! -e "a folder/out" ] || fail "output.dir is not overridden"

# ---- learning ----

run 0 -q -b cpu -s train.steps=60 -s parallel.microbatch_size=2 llama.ini
awk -F'[:,]' 'NR == 1 { first = $4 } { last = $4 }
    END { exit !(first > 5 && first < 6.1 && last < 0.6 * first) }' \
    out/log.jsonl || fail "the loss does not fall: $(tail -n 1 out/log.jsonl)"
run 0 -q -b cpu -s train.steps=60 -s parallel.microbatch_size=2 gpt2.ini
awk -F'[:,]' 'NR == 1 { first = $4 } { last = $4 }
    END { exit !(first > 5 && first < 6.1 && last < 0.6 * first) }' \
    out/log.jsonl || fail "the loss does not fall: $(tail -n 1 out/log.jsonl)"

# ---- trace ----

run 0 -q -b cpu --trace trace.json llama.ini
if command -v python3 >/dev/null 2>&1; then
    python3 - trace.json <<'EOF' || fail "trace.json: see above"
import collections, json, sys
spans = collections.Counter()
for event in json.load(open(sys.argv[1]))["traceEvents"]:
    if event["ph"] == "X":
        assert event["dur"] >= 0, event
        spans[event["pid"], event["tid"], event["name"]] += 1
want = {(pid, stage, "%s%d mb %d" % (kind, chunk, mb)): 2
        for pid in (0, 1) for stage in (0, 1) for kind in "FBW"
        for chunk in (0, 1) for mb in range(4)}
# Forth and back between the two stages, in both legs of the V; sent and
# received.
messages = {key: n for key, n in spans.items() if key[1] >= 2}
spans = {key: n for key, n in spans.items() if key[1] < 2}
assert len(messages) == 2 * 2 * 4 * 4, messages
assert set(messages.values()) == {2}, messages
assert ((0, 2, "SEND_FORWARD0 mb 3") in messages
        and (1, 3, "RECV_FORWARD0 mb 3") in messages), messages
assert spans == want, (set(spans) ^ set(want))
EOF
else
    grep -q '"name":"W1 mb 3"' trace.json || fail "no W in the trace"
fi

# ---- evaluation and dry run ----

rm -rf out
ls -R . >before
ls -R . >before
run 0 -b cpu -e -s data.valid=text.txt llama.ini
ls -R . >after
grep -v after after | cmp -s - before || fail "--eval writes files"
out '^eval loss [0-9.]* (0x1\.[0-9a-f]*p+2) over [0-9]* targets$'
cp stdout evaluated
# However the stages are cut, it is the same loss.
for pp in 1 4; do
    for style in zbv 1f1b; do
        run 0 -q -b cpu --eval -s parallel.pp_size=$pp \
            -s parallel.pp_style=$style -s data.valid=text.txt llama.ini
        cmp -s evaluated stdout || fail "--eval with pp $pp $style differs"
    done
done

mkdir dry
cp llama.ini text.txt dry
chmod a-w dry
for style in zbv get_v_schedule 1f1b gpipe; do
    (cd dry && "$zbrun" -n -s parallel.pp_size=4 \
        -s parallel.pp_style=$style llama.ini) >stdout 2>stderr ||
        fail "--dry-run of $style fails"
    out "^layout: 4 stages .* 4 microbatches"
    out 'chunk [0-7] on stage [0-3]: embed'
    out '^memory .*stage 3'
    out '^  total  *[0-9]*  *[0-9]*  *[0-9]*  *[0-9]*$'
    out '^planned bubble [0-9.]* %'
done
[ "$(ls dry | tr '\n' ' ')" = "llama.ini text.txt " ] ||
    fail "--dry-run writes files"

# ---- ends ----

# A signal ends the run after a step; what is logged is whole.
for sig in INT TERM; do
    rm -rf out
    begin out/log.jsonl -s train.steps=1000000 llama.ini
    end_by $sig
    err 'stopped by a signal after step [0-9]'
    tail -n 1 out/log.jsonl | grep -q '^{"step":.*}$' ||
        fail "SIG$sig leaves half a line"
done

# Who reads the progress may leave: the run is over, quietly or by SIGPIPE.
"$zbrun" -b cpu -s train.steps=400 llama.ini 2>stderr | head -n 1 >stdout
out '^step 1/400 '
if [ -w /dev/full ]; then
    run 1 -q -b cpu -s output.log=/dev/full llama.ini
    err '/dev/full: cannot write'
    run 1 -q -b cpu --trace /dev/full llama.ini
    err '/dev/full: cannot write'
    for option in --help --version --print-config --dry-run; do
        "$zbrun" $option llama.ini >/dev/full 2>stderr
        [ $? -eq 1 ] || fail "$option >/dev/full does not fail"
        [ -s stderr ] || fail "$option >/dev/full gives no message"
    done
    "$zbrun" -b cpu llama.ini >/dev/full 2>stderr
    [ $? -eq 1 ] || fail "training >/dev/full does not fail"
    err 'standard output: cannot write'
fi
run 1 -q -b cpu -s output.dir=text.txt/x llama.ini
err 'text.txt/x: cannot create'
run 1 -q -b cpu -s output.log=. llama.ini
run 1 -q -b cpu --trace no/such/folder llama.ini
err 'no/such/folder'
run 1 -q -b cpu --dump-grads text.txt llama.ini
err 'text.txt'
# Two runs do not share a log.
"$zbrun" -q -b cpu -s train.steps=1000000 llama.ini 2>other &
pid=$!
n=0
until [ -s out/log.jsonl ] || [ $n -gt 600 ]; do
    sleep 0.1
    n=$((n + 1))
done
run 1 -q -b cpu llama.ini
err 'out/log.jsonl: another run writes to it'
run 0 -q -b cpu -s output.dir=out2 llama.ini
kill -INT $pid
wait $pid
[ $? -eq 75 ] || fail "the first of two runs does not go on"

# A run that can not begin leaves the log of the last one.
cp out/log.jsonl kept
run 2 -q -b cpu -s schedule.device_mem=1000 llama.ini
err 'more than the 1000 of device_mem'
cmp -s kept out/log.jsonl || fail "a run that fails at once empties the log"
run 2 -b cpu --dry-run -s schedule.device_mem=1000 llama.ini
out '^  total'
err 'more than the 1000 of device_mem'

# What is no number is said and logged, and JSON stays JSON.
run 0 -q -b cpu -s optimizer.lr=1e6 -s optimizer.max_norm=0 -s train.steps=4 \
    llama.ini
err 'warning: step [234]: the run has diverged'
[ "$(grep -c diverged stderr)" -eq 1 ] || fail "diverged is said twice"
tail -n 1 out/log.jsonl | grep -q '"loss":null,"loss_hex":"-\{0,1\}nan"' ||
    fail "no null in $(tail -n 1 out/log.jsonl)"
finish
