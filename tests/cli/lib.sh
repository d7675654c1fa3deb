# SPDX-License-Identifier: MIT
# What the tests of zbrun share: a scratch folder with a text and the
# configurations of two tiny models, and checks that name what they saw.
# Read with '.'; POSIX sh.
# shellcheck shell=sh
set -u
: "${builddir:=.}" "${srcdir:=.}"
LC_ALL=C
export LC_ALL
bin=$(cd "$builddir" && pwd) || exit 99
zbrun=$bin/zbrun
zbplan=$bin/zbplan
tmp=$(mktemp -d "${TMPDIR:-/tmp}/zbrun.XXXXXX") || exit 99
XDG_CACHE_HOME=$tmp/cache
export XDG_CACHE_HOME
trap 'chmod -R u+w "$tmp"; rm -rf "$tmp"' EXIT
trap 'exit 99' HUP INT TERM
n_bad=0

fail() {
    echo "FAIL: $*"
    n_bad=$((n_bad + 1))
}

# run STATUS ARGUMENTS...: run zbrun, compare its exit status.
run() {
    want=$1
    shift
    "$zbrun" "$@" >"$tmp/stdout" 2>"$tmp/stderr"
    got=$?
    [ $got -eq "$want" ] || {
        fail "zbrun $* exits $got instead of $want"
        cat "$tmp/stderr"
    }
    if [ "$want" -eq 1 ] || [ "$want" -eq 2 ]; then
        grep -q '^zbrun: error: .' "$tmp/stderr" ||
            fail "zbrun $* gives no message"
    fi
}

# begin LOG ARGUMENTS...: run zbrun behind this script, until its log has a step.
# A shell's background command ignores SIGINT; zbrun listens anyway.
begin() {
    log=$1
    shift
    "$zbrun" -q -b cpu "$@" >"$tmp/stdout" 2>"$tmp/stderr" &
    pid=$!
    n=0
    until [ -s "$log" ] || [ $n -ge 600 ]; do
        sleep 0.05
        n=$((n + 1))
    done
}

# end_by SIGNAL: end that run, which exits 75 then.
end_by() {
    kill "-$1" $pid
    wait $pid
    got=$?
    [ $got -eq 75 ] || fail "SIG$1: exit status $got instead of 75"
}

# plan STATUS ARGUMENTS...: the same of zbplan.
plan() {
    want=$1
    shift
    "$zbplan" "$@" >"$tmp/stdout" 2>"$tmp/stderr"
    got=$?
    [ $got -eq "$want" ] || {
        fail "zbplan $* exits $got instead of $want"
        cat "$tmp/stderr"
    }
}

out() {
    grep -q -e "$1" "$tmp/stdout" || {
        fail "output lacks: $1"
        cat "$tmp/stdout"
    }
}

err() {
    grep -q -e "$1" "$tmp/stderr" || {
        fail "message lacks: $1"
        cat "$tmp/stderr"
    }
}

# What two runs must have in common to be equal.
bits() {
    sed -n 's/.*"loss_hex":"\([^"]*\)".*"grad_norm_hex":"\([^"]*\)".*/\1 \2/p' \
        "$1"
}

# same_bits FILE FILE WHAT
same_bits() {
    bits "$1" >"$tmp/bits1"
    bits "$2" >"$tmp/bits2"
    [ -s "$tmp/bits1" ] || fail "$3: no steps in $1"
    cmp -s "$tmp/bits1" "$tmp/bits2" || {
        fail "$3: other bits"
        cat "$tmp/bits1" "$tmp/bits2"
    }
}

# A text of $1 words drawn from $2, the same everywhere.
make_text() {
    awk -v n="$1" -v seed="$2" 'BEGIN {
        n_words = split("the cat sat on a mat and saw one more dog", word, " ")
        x = seed
        for (i = 0; i < n; i++) {
            x = (x * 1103 + 12345) % 1048573
            printf "%s%s", word[x % n_words + 1], i % 12 == 11 ? ".\n" : " "
        }
    }'
}

# A byte-level tokenizer for that text: single characters and a few merges.
make_tokenizer() {
    cat <<'END'
{"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
 "decoder": {"type": "ByteLevel"},
 "added_tokens": [{"id": 70, "content": "<end>", "special": true}],
 "model": {"type": "BPE", "vocab": {
  "a": 0, "c": 1, "d": 2, "e": 3, "g": 4, "h": 5, "m": 6, "n": 7, "o": 8,
  "r": 9, "s": 10, "t": 11, "w": 12, ".": 13, "\u0120": 14, "\u010a": 15,
  "th": 16, "the": 17, "\u0120the": 18, "at": 19, "an": 20, "\u0120s": 21,
  "\u0120sat": 22},
  "merges": ["t h", "th e", "\u0120 the", "a t", "a n", "\u0120 s",
             ["\u0120s", "at"]]}}
END
}

# The parts of a configuration that both families share.
common_keys() {
    cat <<EOF
[data]
train = text.txt
seq_len = 16

[parallel]
pp_size = 2
num_microbatches = 4

[optimizer]
lr = 1e-2
lr_schedule = constant

[train]
steps = 2
seed = 11
threads_per_device = 1

[output]
dir = out
EOF
}

make_text 1200 7 >"$tmp/text.txt"
{
    cat <<EOF
[model]
model_type = llama
vocab_size = 256
hidden_size = 16
intermediate_size = 24
num_hidden_layers = 7
num_attention_heads = 4
num_key_value_heads = 2
max_position_embeddings = 16
tie_word_embeddings = false

EOF
    common_keys
} >"$tmp/llama.ini"
{
    cat <<EOF
[model]
model_type = gpt2
vocab_size = 256
n_positions = 16
n_embd = 16
n_layer = 6
n_head = 2
resid_pdrop = 0
embd_pdrop = 0
attn_pdrop = 0

EOF
    common_keys
} >"$tmp/gpt2.ini"

finish() {
    [ $n_bad -eq 0 ] || exit 1
    exit 0
}
