#!/bin/sh
# SPDX-License-Identifier: MIT
# Loss and every gradient have the same bits in every layout: stages, schedule
# and metadata cache are no part of the result.
. "${srcdir:-.}/tests/cli/lib.sh"

# first_step FAMILY MB PP STYLE CACHE: gradients and log of two steps.
first_step() {
    rm -rf "$tmp/grads" "$tmp/out"
    run 0 -q -b cpu --dump-grads "$tmp/grads" \
        -s parallel.num_microbatches="$2" -s parallel.pp_size="$3" \
        -s parallel.pp_style="$4" -s parallel.enable_metadata_cache="$5" \
        "$tmp/$1.ini"
}

cases() {
    for pp in 1 2 4; do
        for style in zbv get_v_schedule 1f1b gpipe interleaved zb-h1 zb-h2 \
            v-half v-min pytorch-zbv dualpipev; do
            for cache in true false; do
                echo "$pp $style $cache"
            done
        done
    done
}

# A fifth of the cases by default, others for each M and family.
sample() {
    if [ -n "${ZBT_LONG:-}" ]; then
        cat
    else
        awk -v k="$1" 'NR % 5 == k'
    fi
}

compare_all() {
    rm -rf "$tmp/ref"
    first_step "$1" "$2" 1 gpipe true
    mkdir "$tmp/ref"
    mv "$tmp/grads" "$tmp/out/log.jsonl" "$tmp/ref"
    cases | sample "$3" >"$tmp/cases"
    while read -r pp style cache; do
        what="$1 M $2 pp $pp $style cache $cache"
        first_step "$1" "$2" "$pp" "$style" "$cache"
        cmp "$tmp/ref/grads/grads.safetensors" \
            "$tmp/grads/grads.safetensors" || fail "$what: gradients"
        same_bits "$tmp/ref/log.jsonl" "$tmp/out/log.jsonl" "$what"
    done <"$tmp/cases"
}

counts=${ZBT_LONG:+1 2 3 5 8 16}
for m in ${counts:-1 5}; do
    compare_all llama "$m" $((m % 5))
    compare_all gpt2 "$m" $(((m + 2) % 5))
done

# The gradients are those of a step with --dump-grads or without.
first_step llama 4 2 zbv true
mv "$tmp/out/log.jsonl" "$tmp/dumped.jsonl"
run 0 -q -b cpu "$tmp/llama.ini"
same_bits "$tmp/dumped.jsonl" "$tmp/out/log.jsonl" "--dump-grads"

# A cut by hand is a layout like another, empty chunks included.
for list in 7,0,0,0 0,3,0,4 1,2,2,2; do
    run 0 -q -b cpu -s parallel.num_layers_per_stage=$list "$tmp/llama.ini"
    same_bits "$tmp/dumped.jsonl" "$tmp/out/log.jsonl" "layers $list"
done
run 0 -q -b cpu -s parallel.partition=uniform "$tmp/llama.ini"
same_bits "$tmp/dumped.jsonl" "$tmp/out/log.jsonl" "partition = uniform"

# More chunks, for the schedule that takes them.
for pp in 1 2 3; do
    run 0 -q -b cpu -s parallel.pp_style=interleaved -s parallel.pp_size=$pp \
        -s parallel.num_model_chunks=4 "$tmp/llama.ini"
    same_bits "$tmp/dumped.jsonl" "$tmp/out/log.jsonl" "4 chunks, pp $pp"
done
run 2 -q -b cpu -s parallel.pp_style=interleaved \
    -s parallel.num_model_chunks=1 "$tmp/llama.ini"

# More stages than layers.
run 0 -q -b cpu -s parallel.pp_size=12 "$tmp/llama.ini"
same_bits "$tmp/dumped.jsonl" "$tmp/out/log.jsonl" "12 stages"

# Device and threads are no part of it either.
run 0 -q -b check "$tmp/llama.ini"
same_bits "$tmp/dumped.jsonl" "$tmp/out/log.jsonl" "backend check"
run 0 -q -b cpu -s train.threads_per_device=2 "$tmp/llama.ini"
same_bits "$tmp/dumped.jsonl" "$tmp/out/log.jsonl" "two threads"
run 0 -q -b cpu -g 2 "$tmp/llama.ini"
same_bits "$tmp/dumped.jsonl" "$tmp/out/log.jsonl" "-g 2"
run 0 -q -b cpu -g 3,5 -s parallel.overlap_p2p=false "$tmp/llama.ini"
same_bits "$tmp/dumped.jsonl" "$tmp/out/log.jsonl" "-g 3,5, no overlap"

# A schedule from a file.
for planner in zbv get_v_schedule 1f1b gpipe interleaved dualpipev; do
    for format in nodes json; do
        plan 0 -p 2 -m 4 --planner $planner -f $format -o "$tmp/schedule"
        run 0 -q -b cpu -s parallel.pp_style=file \
            -s parallel.scheduler_nodes="$tmp/schedule" "$tmp/llama.ini"
        same_bits "$tmp/dumped.jsonl" "$tmp/out/log.jsonl" \
            "$planner as $format"
    done
done
finish
