#!/bin/sh
# SPDX-License-Identifier: MIT
# The tests of the runtime once more, on the check backend: any access that no
# event orders fails them. A program's messages go as the backend prefers, copied,
# or through the host, which the next seed of delays changes. A seed has every
# second case; ZBT_SEED is the seed (1 and 2). With ZBT_LONG there are 20 with all
# cases, and the long programs too.
set -eu
dir=${builddir:-.}/tests/unit
programs="test_run_eval test_run_loss test_run_graph test_run_schedule
    test_run_golden test_run_memory test_run_packed test_run_padding
    test_run_precision test_profile"
seeds=${ZBT_SEED:-1 2}
parts=2
if [ -n "${ZBT_LONG:-}" ]; then
    programs="$programs test_run_fault test_run_bits test_run_recompute"
    seeds=$(seq 20)
    parts=1
fi
unset ZBT_LONG

status=0
for seed in $seeds; do
    way=$seed
    for program in $programs; do
        way=$((way + 1))
        unset ZB_TEST_P2P
        case $((way % 3)) in
        0) export ZB_TEST_P2P=copy ;;
        1) export ZB_TEST_P2P=host ;;
        esac
        echo "== $program, seed $seed ${ZB_TEST_P2P:-}"
        ZB_TEST_BACKEND=check ZB_TEST_SEED=$seed ZBT_PART=$seed/$parts \
            "$dir/$program" || status=1
    done
done
exit "$status"
