#!/bin/sh
# SPDX-License-Identifier: MIT
# zbprep: what it writes, that zbrun trains on it as on the text itself, and what
# it refuses.
. "${srcdir:-.}/tests/cli/lib.sh"
cd "$tmp" || exit 99

# prep STATUS ARGUMENTS...
prep() {
    want=$1
    shift
    "$bin/zbprep" "$@" >stdout 2>stderr
    got=$?
    [ $got -eq "$want" ] || {
        fail "zbprep $* exits $got instead of $want"
        cat stderr
    }
}

# numbers WIDTH SKIP FILE: the numbers of a file, on one line.
numbers() {
    tail -c +$(($2 + 1)) "$3" | od -An -v -t "u$1" | tr -s ' \n' '  ' |
        sed 's/^ *//; s/ *$//'
}

# is WHAT WANTED GOT
is() {
    [ "$2" = "$3" ] || fail "$1: '$3' instead of '$2'"
}

make_tokenizer >tok.json

# ---- text ----

printf 'the cat sat.' >a.txt
printf 'on the mat\n' >b.txt
prep 0 text -t tok.json -o ab.bin a.txt b.txt
is 'summary' 'ab.bin: 13 tokens of 2 bytes from 2 documents (23 bytes)' \
    "$(cat stdout)"
is 'head' '20240520 1 13 0' "$(numbers 4 0 ab.bin | cut -d ' ' -f 1-4)"
is 'ids' '17 14 1 19 22 13 8 7 18 14 6 19 15' \
    "$(numbers 2 1024 ab.bin)"
prep 0 text -q -t tok.json -a '<end>' -o ab.u32 a.txt b.txt
is 'quiet' '' "$(cat stdout)"
is 'ids with an end' '17 14 1 19 22 13 70 8 7 18 14 6 19 15 70' \
    "$(numbers 4 0 ab.u32)"
prep 0 text -q -t tok.json -b 23 -a '<end>' -o ab.u32 a.txt b.txt
is 'ids with both' '23 17 14 1 19 22 13 70 23 8 7 18 14 6 19 15 70' \
    "$(numbers 4 0 ab.u32)"
prep 0 text -q -t tok.json -a '<end>' -o ab.u32 a.txt b.txt
prep 0 text -t tok.json -a 69999 -o ab.bin a.txt
is 'wide head' '20240801 7 7 0' "$(numbers 4 0 ab.bin | cut -d ' ' -f 1-4)"
is 'wide ids' '17 14 1 19 22 13 69999' "$(numbers 4 1024 ab.bin)"
prep 0 text -o bytes.u16 a.txt
is 'bytes' '116 104 101 32 99 97 116 32 115 97 116 46' \
    "$(numbers 2 0 bytes.u16)"

printf '%s\n' '{"text": "the", "n": 1}' '' '{"text": "a\ncat"}' >lines.jsonl
prep 0 text -t tok.json -j text -a '<end>' -o lines.u16 lines.jsonl
is 'lines' '17 70 0 15 1 19 70' "$(numbers 2 0 lines.u16)"

# ---- rows ----

: >empty.txt

prep 0 rows -t tok.json -a '<end>' -l 6 -p 9 -o rows a.txt b.txt
is 'summary of rows' 'rows: 4 rows of 6 tokens from 2 documents (23 bytes)' \
    "$(cat stdout)"
is 'rows' "{'descr': '<u2', 'fortran_order': False, 'shape': (4, 6), }" \
    "$(head -c 127 rows/input_ids.npy | tail -c +11 | sed 's/ *$//')"
is 'ids of rows' \
    '17 14 1 19 22 13 70 9 9 9 9 9 8 7 18 14 6 19 15 70 9 9 9 9' \
    "$(numbers 2 128 rows/input_ids.npy)"
is 'masks of rows' '1 1 1 1 1 1 1 0 0 0 0 0 1 1 1 1 1 1 1 1 0 0 0 0' \
    "$(numbers 2 128 rows/attention_mask.npy)"

# ---- tokens ----

prep 0 tokens -o all.npy ab.u32 lines.u16 ab.bin
is 'joined' \
    '17 14 1 19 22 13 70 8 7 18 14 6 19 15 70 17 70 0 15 1 19 70 17 14 1 19 22 13 69999' \
    "$(numbers 4 128 all.npy)"
is 'npy' "{'descr': '<u4', 'fortran_order': False, 'shape': (29,), }" \
    "$(head -c 127 all.npy | tail -c +11 | sed 's/ *$//')"
prep 0 tokens -o back.bin lines.u16
is 'back' '17 70 0 15 1 19 70' "$(numbers 2 1024 back.bin)"

# ---- arrays ----

prep 0 tokens -o ids.npy lines.u16
prep 0 arrays -o two.npy ids.npy ids.npy
is 'arrays' '17 70 0 15 1 19 70 17 70 0 15 1 19 70' "$(numbers 4 128 two.npy)"
is 'arrays says' 'two.npy: int32 [14]' "$(cat stdout)"
{
    printf "\223NUMPY\001\000\166\000{'descr': '<f2', 'fortran_order': False, "
    printf "'shape': (1, 3), }%58s\n" ''
    printf '\000\074\001\000\000\374' # 1, 2^-24, -infinity
} >half.npy
prep 0 arrays -o float.npy half.npy half.npy
is 'floats' '1065353216 864026624 4286578688 1065353216 864026624 4286578688' \
    "$(numbers 4 128 float.npy)"
prep 0 info float.npy
is 'info of an array' \
    'float.npy: npy, an array of type f4 [2, 3], from byte 128 on' \
    "$(cat stdout)"

# ---- info ----

prep 0 info ab.bin all.npy a.txt
is 'info' 'ab.bin: llm.c version 7, 7 tokens of uint32, from byte 1024 on, greatest id 69999
all.npy: npy, 29 tokens of uint32, from byte 128 on, greatest id 69999
a.txt: text, 12 bytes' "$(cat stdout)"

# ---- training on all of them is the same ----

sed 's/vocab_size = 256/vocab_size = 71/' llama.ini >tok.ini
run 0 -q -s data.tokenizer=tok.json tok.ini
mv out/log.jsonl text.jsonl
prep 0 text -q -t tok.json -o text.bin text.txt
prep 0 tokens -q -o text.npy text.bin
prep 0 tokens -q -o text.u32 text.npy
for f in text.bin text.npy text.u32; do
    run 0 -q -s data.train=$f tok.ini
    same_bits text.jsonl out/log.jsonl "training on $f"
done
run 0 -q llama.ini
mv out/log.jsonl bytes.jsonl
prep 0 text -q -o text.u16 text.txt
run 0 -q -s data.train=text.u16 llama.ini
same_bits bytes.jsonl out/log.jsonl 'training on bytes as uint16'
cmp -s text.jsonl bytes.jsonl && fail 'a tokenizer changes nothing'

# Whatever rows are filled with, nothing is learned of it.
for pad in 0 7; do
    head -n 16 text.txt | awk '{ print "{\"text\": \"" $0 "\"}" }' >lines.jsonl
    prep 0 rows -q -j text -t tok.json -l 16 -p $pad -o padded$pad lines.jsonl
    run 0 -q -b cpu -s data.train=padded$pad -s data.seq_len=16 \
        -s output.log=padded$pad.jsonl -s data.shuffle=false tok.ini
done
! cmp -s padded0/input_ids.npy padded7/input_ids.npy || fail 'rows are not padded'
same_bits out/padded0.jsonl out/padded7.jsonl 'padding'

# ---- refusals ----

# refuse PATTERN ARGUMENTS...
refuse() {
    pattern=$1
    shift
    prep 2 "$@"
    grep -q -e "^zbprep: .*$pattern" stderr || {
        fail "zbprep $* does not say: $pattern"
        cat stderr
    }
    [ ! -e new.bin ] || fail "zbprep $* leaves a file"
}
refuse 'no command'
refuse "unknown command 'nonsense'" nonsense a.txt
refuse 'images: this version does not have it yet' images a.png
refuse 'no file is given' info
refuse '-o OUTPUT' text a.txt
refuse 'new.txt: the name says no format' text -o new.txt a.txt
refuse "option '-t' needs a value" text -t
refuse "unknown or ambiguous option '--nonsense'" text --nonsense
refuse '-t, -b, -a and -j are for text and rows' tokens -t tok.json -o new.bin ab.bin
refuse '-l and -p are for rows' text -l 4 -o new.bin a.txt
refuse 'rows needs their length' rows -o new a.txt
refuse 'length 0: no whole number from 1' rows -l 0 -o new a.txt
refuse '--pad <nonsense>: no such token' rows -l 4 -p '<nonsense>' -t tok.json \
    -o new a.txt
refuse 'the documents have no tokens' rows -l 4 -o new empty.txt
refuse 'leave out -o' info -o new.bin ab.bin
refuse 'absent.txt: No such file' text -o new.bin absent.txt
refuse 'absent.json: No such file' text -t absent.json -o new.bin a.txt
refuse 'no such token' text -t tok.json -a '<nonsense>' -o new.bin a.txt
refuse 'a.txt: .*not a tokenizer.json\|a.txt: line 1' \
    text -t a.txt -o new.bin a.txt
printf 'abc\377' >bad.txt
refuse 'bad.txt: byte 3: 0xff is not UTF-8' text -t tok.json -o new.bin bad.txt
printf '{"text": 5}\n' >bad.jsonl
refuse "bad.jsonl: line 1: no text 'text'" \
    text -j text -o new.bin bad.jsonl
refuse 'a.txt: is no file of tokens' tokens -o new.bin a.txt
refuse 'do not fit into 16 bits' tokens -o new.u16 all.npy
refuse 'are written to .npy files' arrays -o new.bin all.npy
refuse 'another kind of numbers' arrays -o new.npy ids.npy half.npy
run 2 -q -s data.tokenizer=absent.json tok.ini
err 'data.tokenizer: .*absent.json: No such file'
run 2 -q -s data.tokenizer=tok.json -s model.vocab_size=20 tok.ini
err "tokens up to 22, but the model's vocab_size is 20"
prep 0 tokens -q -o bad.npy ab.bin all.npy
run 2 -q -s data.train=bad.npy tok.ini
err 'bad.npy: byte 152: token 69999 is not in 0 to 70'
run 2 -q -s data.format=tokens tok.ini
err 'text.txt: is no file of tokens'
if [ "$(id -u)" -ne 0 ] && mkdir closed && chmod a-w closed; then
    prep 1 text -o closed/new.bin a.txt
fi

finish
