#!/bin/sh
# SPDX-License-Identifier: MIT
# The tests of kernels and of the runtime once more, on the cuda backend over
# emulated GPUs: what no event orders, and every other misuse of CUDA, fails
# them. A program's messages go one way (copied, through the host, over NCCL with
# a GPU for each device, as collectives then do), which the next seed of delays
# changes. Of the runtime's, a seed has every third case; ZBT_SEED is the seed (1).
# With ZBT_LONG there are 20 with all cases, and the long programs too.
set -eu
dir=${builddir:-.}/tests/fakecuda
kernels="ops_ew ops_rows ops16 ops_golden attention gemm gemm16 backend"
# Not over NCCL: these are about devices that share GPUs.
sharing="run_memory run_padding profile"
runs="run_loss run_eval run_graph run_schedule run_golden run_packed"
# Cases of the longest program: one of them, by seed.
precision="stages_shards ranks_agree masters_keep skipped_step scale_falls"
seeds=${ZBT_SEED:-1}
parts=3
if [ -n "${ZBT_LONG:-}" ]; then
    runs="$runs run_precision run_recompute run_bits run_layouts run_grid
        run_fault"
    precision=
    seeds=$(seq 20)
    parts=1
fi
unset ZBT_LONG ZB_TEST_P2P ZB_TEST_GPUS

status=0

# run PROGRAM [VARIABLE=VALUE...]
run() {
    name=$1
    shift
    echo "== $name, seed $seed" "$@"
    env ZB_TEST_BACKEND=cuda FAKE_CUDA_SEED="$seed" FAKE_CUDA_DELAY_US=20 \
        "$@" "$dir/cuda_$name" || status=1
}

# pick N WORD...: the N-th word, counted round and from 0.
pick() {
    n=$(($1 % ($# - 1) + 2))
    eval "echo \"\${$n}\""
}

# each "WAYS" PROGRAM...: a part of the cases of each.
each() {
    ways=$1 i=$seed
    shift
    part=ZBT_PART=$seed/$parts
    for program; do
        i=$((i + 1))
        case $(pick $i $ways) in
        auto) run "$program" ZB_TEST_GPUS=4 "$part" ;;
        copy) run "$program" ZB_TEST_GPUS=4 ZB_TEST_P2P=copy "$part" ;;
        host) run "$program" ZB_TEST_GPUS=4 ZB_TEST_P2P=host "$part" ;;
        nccl) run "$program" FAKE_CUDA_GPUS=32 ZB_TEST_P2P=nccl "$part" ;;
        esac
    done
}

for seed in $seeds; do
    for program in $kernels; do
        run "$program" ZB_TEST_GPUS=4
    done
    run coll FAKE_CUDA_GPUS=32 ZB_TEST_P2P=nccl ZBT_ONLY=drawn_collectives_give
    each "auto nccl copy host" $runs
    each "auto copy host" $sharing
    [ -z "$precision" ] ||
        run run_precision ZB_TEST_GPUS=4 ZBT_ONLY="$(pick "$seed" $precision)"
done
exit "$status"
