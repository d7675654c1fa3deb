#!/bin/sh
# SPDX-License-Identifier: MIT
# Array data: an encoder and a decoder on .npy files, on any layout; and files that
# do not fit are refused by name.
. "${srcdir:-.}/tests/cli/lib.sh"
cd "$tmp" || exit 99

# npy SHAPE: the header of an array of bytes.
npy() {
    printf '\223NUMPY\001\000v\000%-117s\n' \
        "{'descr': '|i1', 'fortran_order': False, 'shape': ($1), }"
}

# rows N SEED WHAT: WHAT of N rows of 12 tokens that count up from 4 to 31, a fifth
# of them hidden behind a 3, the last two of every third row padding. As octal
# escapes for printf, which all awks can write.
rows() {
    awk -v n="$1" -v seed="$2" -v what="$3" 'BEGIN {
        x = seed
        for (r = 0; r < n; r++) {
            x = (x * 1103 + 12345) % 1048573
            first = x % 28
            if (what == "class") {
                printf "\\%03o", first < 9 ? 0 : first < 18 ? 1 : 2
                continue
            }
            if (what == "follows") {
                printf "\\%03o", first % 2
                continue
            }
            for (t = 0; t < 12; t++) {
                x = (x * 1103 + 12345) % 1048573
                id = (first + t) % 28 + 4
                hidden = x % 5 == 0
                pad = r % 3 == 0 && t > 9
                v = what == "ids" ? (pad ? 0 : hidden ? 3 : id) : \
                    what == "plain" ? id : \
                    what == "mask" ? !pad : \
                    what == "types" ? t > 5 : \
                    hidden && !pad ? id : 156
                printf "\\%03o", v
            }
        }
    }'
}

# array FILE SHAPE N SEED WHAT
array() {
    { npy "$2" && printf "$(rows "$3" "$4" "$5")"; } >"$1"
}

for set in train valid; do
    mkdir $set
    n=90
    [ $set = train ] || n=31
    array $set/input_ids.npy "$n, 12" $n ${#set} ids
    array $set/attention_mask.npy "$n, 12" $n ${#set} mask
    array $set/labels.npy "$n, 12" $n ${#set} labels
done
array types.npy '90, 12' 90 5 types
array classes.npy '90,' 90 5 class
array plain.npy '90, 12' 90 5 plain
cat >bert.ini <<'END'
[model]
model_type = bert
vocab_size = 32
hidden_size = 16
intermediate_size = 24
num_hidden_layers = 3
num_attention_heads = 4
max_position_embeddings = 12
hidden_dropout_prob = 0

[data]
train = train
valid = valid

[parallel]
num_microbatches = 4
microbatch_size = 4

[optimizer]
lr = 3e-3

[train]
steps = 150
threads_per_device = 1
END

loss() {
    sed -n 's/.*"loss":\([0-9.]*\),.*/\1/p' "$1" | sed -n "$2p"
}

# near FILE FILE WHAT: the losses of all steps are within 1e-5 of each other.
near() {
    for f in "$1" "$2"; do
        sed -n 's/.*"loss":\([0-9.]*\),.*/\1/p' "$f" >"$f.loss"
    done
    paste "$1.loss" "$2.loss" | awk '
        { d = $1 - $2; if (d > 1e-5 || d < -1e-5) { bad = 1; print } }
        END { exit bad || NR == 0 }' || fail "$3: other losses"
}

run 0 -q -b cpu -s train.steps=400 -s output.log=one.jsonl bert.ini
awk -v first="$(loss one.jsonl 1)" -v last="$(loss one.jsonl 400)" \
    'BEGIN { exit !(first > 3 && last < 2.6) }' ||
    fail "bert learns nothing: $(loss one.jsonl 1), $(loss one.jsonl 400)"
few='-q -b cpu -s train.steps=4'
# shellcheck disable=SC2086
{
    run 0 $few -s output.log=a.jsonl bert.ini
    run 0 $few -s output.log=b.jsonl -s parallel.pp_size=2 bert.ini
    same_bits a.jsonl b.jsonl 'two stages'
    run 0 $few -s output.log=c.jsonl -s parallel.tp_size=2 bert.ini
    near a.jsonl c.jsonl 'two tensor-parallel ranks'
    run 0 $few -g 2 -s parallel.num_microbatches=2 -s output.log=d.jsonl bert.ini
    near a.jsonl d.jsonl 'two replicas'
    run 0 $few -s parallel.sp_size=2 -s output.log=e.jsonl \
        -s parallel.sequence_parallelism_mode=ring_attn bert.ini
    near a.jsonl e.jsonl 'two parts of sequences'
}

# The files named one by one, the second kind of head, and checkpoints.
fields='-s data.train= -s data.valid= -s data.input_ids=train/input_ids.npy
    -s data.attention_mask=train/attention_mask.npy'
# shellcheck disable=SC2086
{
    run 0 $few $fields -s data.labels=train/labels.npy -s output.log=f.jsonl \
        bert.ini
    same_bits a.jsonl f.jsonl 'files named one by one'
    run 0 -q -b cpu -s data.train= -s data.valid= -s data.input_ids=plain.npy \
        -s data.labels=classes.npy -s data.token_type_ids=types.npy \
        -s model.architectures=BertForSequenceClassification \
        -s model.num_labels=3 -s train.steps=300 -s checkpoint.dir=ckpt -s output.log=g.jsonl \
        bert.ini
}
awk -v first="$(loss g.jsonl 1)" -v last="$(loss g.jsonl 300)" \
    'BEGIN { exit !(first > 0.9 && last < 0.7) }' ||
    fail "classes are not learned: $(loss g.jsonl 1), $(loss g.jsonl 300)"
grep -q BertForSequenceClassification ckpt/step-300/config.json ||
    fail 'the checkpoint names another class'

# Words and whole sequences at once.
array follows.npy '90,' 90 7 follows
pairs='-q -b cpu -s data.train= -s data.valid= -s data.input_ids=train/input_ids.npy
    -s data.labels=train/labels.npy -s data.next_sentence_label=follows.npy
    -s model.architectures=BertForPreTraining -s train.steps=4'
# shellcheck disable=SC2086
{
    run 0 $pairs -s output.log=p.jsonl bert.ini
    run 0 $pairs -s output.log=q.jsonl -s parallel.pp_size=3 bert.ini
    same_bits p.jsonl q.jsonl 'two losses on three stages'
    run 0 $pairs -g 2 -s parallel.num_microbatches=2 -s output.log=r.jsonl bert.ini
    near p.jsonl r.jsonl 'two losses on two replicas'
    run 2 $pairs -s data.next_sentence_label= bert.ini
    err 'array data of this model needs next_sentence_label'
    run 2 $pairs -s data.next_sentence_label=classes.npy -s output.log=s.jsonl \
        bert.ini
    err 'classes.npy: row [0-9]*, 0: 2 is not below 2'
}
awk -v both="$(loss p.jsonl 1)" -v words="$(loss a.jsonl 1)" \
    'BEGIN { exit !(both > words + 0.5 && both < words + 1) }' ||
    fail "two losses are $(loss p.jsonl 1), one is $(loss a.jsonl 1)"

# A classifier of the encoder that learned words: its head is drawn.
run 0 -q -b cpu -s checkpoint.dir=words -s output.log=none -s train.steps=4 bert.ini
{
    printf '[model]\npath = words/step-4\ninit = pretrained\n'
    printf 'architectures = BertForSequenceClassification\nnum_labels = 3\n'
    sed -n '/^\[parallel/,$p' bert.ini
    printf '[data]\ninput_ids = plain.npy\nlabels = classes.npy\n'
} >tuned.ini
run 0 -b cpu -s output.log=tuned.jsonl -s parallel.pp_size=2 tuned.ini
err 'words/step-4 has no classifier.weight: it is drawn'
awk -v first="$(loss tuned.jsonl 1)" -v last="$(loss tuned.jsonl 150)" \
    'BEGIN { exit !(first > 0.9 && last < first) }' ||
    fail "a tuned model learns nothing: $(loss tuned.jsonl 150)"

# A decoder: without labels the tokens that the mask shows, shifted.
mkdir own
cp train/input_ids.npy train/attention_mask.npy own
run 0 -q -b cpu -s data.train=own -s data.seq_len=12 \
    -s output.log=h.jsonl llama.ini

# refuse MESSAGE ARGUMENTS...
refuse() {
    message=$1
    shift
    run 2 -n -b cpu "$@"
    err "$message"
}

refuse 'data.seq_len is 8, but data.train has rows of 12' -s data.seq_len=8 \
    bert.ini
refuse 'data.format is for files of text or tokens' -s data.format=text bert.ini
refuse 'data.train is one way to name array data' \
    -s data.labels=train/labels.npy bert.ini
refuse 'array data is one folder' -s data.train=train/input_ids.npy bert.ini
refuse 'array data of this model needs labels' -s data.train=own bert.ini
refuse 'classes.npy: has 1 dimensions, not 2' -s data.train= \
    -s data.valid= -s data.input_ids=plain.npy -s data.labels=classes.npy bert.ini
refuse 'has 90 rows, but input_ids has 31' -s data.train= -s data.valid= \
    -s data.input_ids=valid/input_ids.npy -s data.labels=train/labels.npy bert.ini
refuse 'bert does not predict the next token of a text' -s data.train=text.txt \
    -s data.valid= -s data.seq_len=12 bert.ini
run 2 -b cpu --generate 'the ' bert.ini
err 'bert does not predict the next token'
run 2 -b cpu -s data.train= -s data.valid= -s data.input_ids=plain.npy \
    -s data.labels=plain.npy -s model.vocab_size=31 -s output.log=none bert.ini
err 'plain.npy: row [0-9]*, [0-9]*: 31 is not below 31'
finish
