#!/bin/sh
# SPDX-License-Identifier: MIT
# The tests of kernels and of the runtime once more, on the cuda backend over
# emulated GPUs: what no event orders, and every other misuse of CUDA, fails
# them. Training runs again with messages over NCCL, each device on a GPU of its
# own. With ZBT_LONG also the long programs, with 20 seeds of delays.
set -eu
dir=${builddir:-.}/tests/fakecuda
programs="ops_ew ops_rows ops16 ops_golden attention gemm gemm16 backend
    run_loss run_eval run_graph run_schedule run_golden run_memory run_packed
    run_padding run_precision profile"
linked="run_loss run_eval run_graph run_schedule run_golden run_packed"
seeds=1
if [ -n "${ZBT_LONG:-}" ]; then
    programs="$programs run_recompute run_bits run_layouts run_grid run_fault"
    linked="$linked run_precision run_recompute run_bits run_layouts run_grid
        run_fault"
    seeds=$(seq 20)
fi
unset ZBT_LONG

status=0
for seed in $seeds; do
    for program in $programs; do
        echo "== $program, seed $seed"
        ZB_TEST_BACKEND=cuda ZB_TEST_GPUS=4 FAKE_CUDA_SEED=$seed \
            FAKE_CUDA_DELAY_US=20 "$dir/cuda_$program" || status=1
    done
    for program in $linked; do
        echo "== $program over NCCL, seed $seed"
        ZB_TEST_BACKEND=cuda ZB_TEST_P2P=nccl FAKE_CUDA_GPUS=32 \
            FAKE_CUDA_SEED=$seed FAKE_CUDA_DELAY_US=20 "$dir/cuda_$program" ||
            status=1
    done
done
exit "$status"
