#!/bin/sh
# SPDX-License-Identifier: MIT
# The report of a run: a page of its own, well-formed, with the numbers of the
# log, however the run ended.
. "${srcdir:-.}/tests/cli/lib.sh"
cd "$tmp" || exit 99

# page FILE: nothing from outside, every element closed, ids and text escaped.
page() {
    [ -s "$1" ] || {
        fail "$1 is missing"
        return
    }
    grep -q -i -e 'src=' -e 'href=' -e 'url(' -e '<script' -e '@import' "$1" &&
        fail "$1 refers to something else"
    grep -q '^</html>$' "$1" || fail "$1 is cut off"
    grep -q -w -i nan "$1" && fail "$1 shows a NaN"
    command -v python3 >/dev/null 2>&1 || return 0
    python3 - "$1" <<'EOF' || fail "$1: see above"
import html.parser, sys
class Balance(html.parser.HTMLParser):
    void = {"meta", "br", "hr", "link", "img", "input"}
    def __init__(self):
        super().__init__()
        self.open = []
    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), (tag, attrs)
        if tag not in self.void:
            self.open.append(tag)
    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.getpos())
        self.open.pop()
p = Balance()
p.feed(open(sys.argv[1], encoding="utf-8").read())
p.close()
assert not p.open, p.open
EOF
}

# numbers LOG FILE: what the log says of each step is in the page.
numbers() {
    for key in loss grad_norm lr tokens_per_s step_ms eval_loss; do
        sed -n "s/.*\"$key\":\\([^,}]*\\).*/\\1/p" "$1" >values
        [ -s values ] || fail "$1 has no $key"
        while read -r value; do
            grep -q -F ">$value<" "$2" || fail "$2 lacks $key $value"
        done <values
    done
}

# ---- a short run ----

run 0 -q -b cpu --report r.html -s train.steps=10 -s data.valid=text.txt \
    -s train.eval_interval=4 llama.ini
page r.html
numbers out/log.jsonl r.html
for text in '<p>Done.</p>' 'loss on data.valid' 'Timeline of the last step' \
    'Where delay arose' 'stage 1' 'late input' 'allocated' 'num_microbatches' \
    'MFU' 'bubble, planned' 'prefers-color-scheme'; do
    grep -q -F "$text" r.html || fail "the report lacks: $text"
done
[ "$(grep -c '^<rect class="[fbw][" ]' r.html)" -eq 96 ] ||
    fail "not every node is drawn, planned and run"
ls -- *.tmp* >/dev/null 2>&1 && fail "a temporary file is left"

# In output.dir, with a name that means something in HTML.
run 0 -q -b cpu -s output.report='a<b>&"c.html' llama.ini
page 'out/a<b>&"c.html'
grep -q 'a&#60;b&#62;&#38;' 'out/a<b>&"c.html' || fail "text is not escaped"

# Times of simulated devices, no values.
run 0 -q -b sim -s schedule.sim_unit_us=10 -s parallel.pp_size=16 \
    --report sim.html llama.ini
page sim.html
grep -q 'nothing was computed' sim.html || fail "sim.html does not say sim"
grep -q '>gradient norm</text>' sim.html && fail "sim.html draws values"

# One stage, one microbatch, one step; none.
run 0 -q -b cpu -s parallel.pp_size=1 -s parallel.num_microbatches=1 \
    -s train.steps=1 --report one.html llama.ini
page one.html
numbers_of_one=$(sed -n 's/.*"loss":\([^,]*\).*/\1/p' out/log.jsonl)
grep -q -F ">$numbers_of_one<" one.html || fail "one.html lacks its loss"
run 0 -q -b cpu -s train.steps=0 --report none.html llama.ini
page none.html

# ---- runs that end early ----

run 1 -q -b cpu -s output.log=/dev/full --report failed.html llama.ini
page failed.html
grep -q 'Failed: .*/dev/full' failed.html || fail "the failure is not told"

"$zbrun" -q -b sim -s schedule.sim_unit_us=100 -s train.steps=1000000 \
    --report stopped.html llama.ini >stdout 2>stderr &
pid=$!
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    [ "$(wc -l <out/log.jsonl)" -gt 100 ] && break
    sleep 1
done
kill -INT $pid
wait $pid
[ $? -eq 75 ] || fail "SIGINT does not end with 75"
page stopped.html
grep -q 'Stopped: stopped by a signal after step' stopped.html ||
    fail "the signal is not told"
last=$(sed -n '$s/^{"step":\([0-9]*\),.*/\1/p' out/log.jsonl)
grep -q ">$last of 1000000<" stopped.html || fail "not all steps are told"
[ "$(wc -c <stopped.html)" -lt 400000 ] || fail "the report of a long run is long"

# ---- what can not be ----

echo old >old.html
run 2 -q -b cpu -s schedule.device_mem=1000 --report old.html llama.ini
[ "$(cat old.html)" = old ] || fail "a refused run writes over a report"
run 1 -q -b cpu --report nowhere/r.html llama.ini
err 'nowhere/r.html'
run 2 -q -n --report r2.html llama.ini
err '--report is for training runs only'

[ $n_bad -eq 0 ]
