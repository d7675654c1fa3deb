#!/bin/sh
# SPDX-License-Identifier: MIT
# Run the fuzzers: some thousand inputs from a fixed seed, or with an argument for
# so many seconds each, on all that follows it or all there are:
#
#     tests/fuzz/run.sh [SECONDS [FUZZER...]]
#
# The inputs to start from are made here. An input that fails stays in the current
# folder as crash-*, timeout-* or oom-*.
set -eu
: "${builddir:=.}" "${srcdir:=.}"
fuzz=$builddir/tests/fuzz
seconds=${1:-0}
[ $# -eq 0 ] || shift
tmp=$(mktemp -d "${TMPDIR:-/tmp}/zbfuzz.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 99' HUP INT TERM

# bytes N WIDTH: a number, least byte first.
bytes() {
    n=$1
    for _ in $(seq "$2"); do
        # shellcheck disable=SC2059
        printf "\\$(printf %o $((n % 256)))"
        n=$((n / 256))
    done
}

tokens_corpus() {
    {
        bytes 0 3
        bytes 20240520 4 && bytes 1 4 && bytes 3 4 && head -c 1012 /dev/zero
        printf 'abcdef'
    } >"$1/llmc"
    {
        bytes 0 3
        bytes 20240801 4 && bytes 7 4 && bytes 1 4 && head -c 1012 /dev/zero
        bytes 5 4
    } >"$1/llmc7"
    {
        bytes 1 3
        printf '\223NUMPY\001\000\166\000'
        printf '%-117s\n' "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }"
        bytes 70001 8
    } >"$1/npy"
    {
        bytes 0 1 && bytes 74 2
        printf 'MMIDIDX\000\000' && bytes 1 8 && bytes 8 1 && bytes 2 8 &&
            bytes 2 8 && bytes 1 4 && bytes 3 4 && bytes 0 8 && bytes 2 8 &&
            bytes 0 8 && bytes 2 8
        printf 'abcdefgh'
    } >"$1/megatron"
    {
        bytes 2 3
        printf 'abcdefghijklmnop'
    } >"$1/raw"
}

model='"model":{"type":"BPE","unk_token":"b","fuse_unk":true,"byte_fallback":true,
"ignore_merges":false,"dropout":null,"vocab":{"a":0,"b":1,"ab":2,"abab":3,"Ġ":4,
"▁":5,"▁a":6,"<0x41>":7,"Ċ":8},"merges":["a b",["ab","ab"],"▁ a"]}'

# tokenizer NAME PARTS TEXT
tokenizer() {
    printf '{"added_tokens":[{"id":9,"content":"<e>","special":true,"lstrip":true,
"rstrip":true,"single_word":false,"normalized":false},{"id":10,"content":"é",
"single_word":true}],%s,%s}\000%s' "$2" "$model" "$3" >"$corpus/$1"
}

tokenizer_corpus() {
    corpus=$1
    tokenizer gpt2 '"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":true},
"decoder":{"type":"ByteLevel"}' "aab ab don't <e> abababab"
    tokenizer split '"normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"Sequence",
"pretokenizers":[{"type":"Split","pattern":{"Regex":"[^\\s\\p{L}]+|\\s+(?!\\S)|a{1,3}"},
"behavior":"MergedWithPrevious","invert":true},{"type":"Digits","individual_digits":
true},{"type":"ByteLevel","use_regex":false},{"type":"Punctuation","behavior":
"Contiguous"}]}' 'ab 12 é 가 .,! ab'
    tokenizer llama '"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend",
"prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]},"decoder":
{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":
" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,
"stop":0}]}' 'a ab A <e> aab x'
    tokenizer metaspace '"pre_tokenizer":{"type":"Metaspace","replacement":"▁",
"prepend_scheme":"first","split":true},"decoder":{"type":"Metaspace","replacement":
"▁","prepend_scheme":"first"}' ' ab  a é'
    tokenizer white '"pre_tokenizer":{"type":"WhitespaceSplit"}' 'a b ab'
}

# run NAME MAXIMUM-LENGTH RUNS
run() {
    mkdir "$tmp/$1"
    "${1}_corpus" "$tmp/$1"
    if [ "$seconds" -gt 0 ]; then
        limit=-max_total_time=$seconds
    else
        limit=-runs=$3
    fi
    "$fuzz/fuzz_$1" -seed=1 "$limit" -max_len="$2" -timeout=60 \
        -rss_limit_mb=1024 -print_final_stats=1 "$tmp/$1" >"$tmp/log" 2>&1 || {
        cat "$tmp/log"
        echo "FAIL: fuzz_$1"
        exit 1
    }
    sed -n "s/^stat::\(number_of_executed_units\|peak_rss_mb\)/fuzz_$1 \1/p" \
        "$tmp/log"
}

[ $# -gt 0 ] || set -- tokens tokenizer
for name; do
    case $name in
    tokens) run tokens 4096 4000 ;;
    tokenizer) run tokenizer 4096 8000 ;;
    *) echo "no fuzzer $name" && exit 99 ;;
    esac
done
