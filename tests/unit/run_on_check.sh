#!/bin/sh
# SPDX-License-Identifier: MIT
# The tests of the runtime once more, on the check backend: any access that no
# event orders fails them. Of three seeds one has messages copied and one has them
# go through the host. With ZBT_LONG also the long programs, for 20 seeds of
# delays.
set -eu
dir=${builddir:-.}/tests/unit
programs="test_run_eval test_run_loss test_run_graph test_run_schedule
    test_run_golden test_run_memory test_run_packed test_run_padding
    test_run_precision test_profile"
seeds="1 2 3"
if [ -n "${ZBT_LONG:-}" ]; then
    programs="$programs test_run_fault test_run_bits test_run_recompute"
    seeds=$(seq 20)
fi
unset ZBT_LONG

status=0
for seed in $seeds; do
    unset ZB_TEST_P2P
    case $((seed % 3)) in
    2) export ZB_TEST_P2P=copy ;;
    0) export ZB_TEST_P2P=host ;;
    esac
    for program in $programs; do
        echo "== $program, seed $seed"
        ZB_TEST_BACKEND=check ZB_TEST_SEED=$seed "$dir/$program" || status=1
    done
done
exit "$status"
