#!/bin/sh
# SPDX-License-Identifier: MIT
# The model checker's view of schedules: workers as processes, channels that
# hold nothing, every order of progress. No planner's schedule may come to a
# stop; where a node is moved, zbplan --check and the model checker must agree. Skipped where spin or a C compiler is missing.
set -u
: "${builddir:=.}" "${srcdir:=.}"
LC_ALL=C
export LC_ALL
zbplan=$(cd "$builddir" && pwd)/zbplan
to_promela=$(cd "$srcdir" && pwd)/tests/spin/promela.awk
command -v spin >/dev/null 2>&1 || { echo "no spin here"; exit 77; }
for cc in cc gcc clang; do
    command -v $cc >/dev/null 2>&1 && break
done
command -v $cc >/dev/null 2>&1 || { echo "no C compiler here"; exit 77; }
tmp=$(mktemp -d "${TMPDIR:-/tmp}/zbspin.XXXXXX") || exit 99
trap 'rm -rf "$tmp"' EXIT
trap 'exit 99' HUP INT TERM
cd "$tmp" || exit 99
max_stages=6
n_bad=0 n_models=0 n_stuck=0 n_legal=0 n_broken=0 n_variants=0 n_processes=0

fail() {
    echo "FAIL: $*"
    n_bad=$((n_bad + 1))
}

# ---- one model for many schedules ----

begin_model() {
    n_variants=0 n_processes=0
    {
        echo 'c_decl { \#include <stdlib.h>'
        echo '    static int chosen; }'
        awk -v n_stage=$max_stages -v variant=-1 -f "$to_promela" </dev/null
    } >model.pml
    printf 'init {\n%s\n    if\n' \
        '    c_code { chosen = atoi(getenv("VARIANT")); };' >inits
    : >wants
}

# add_variant WANT WHAT: the schedule in nodes.txt; spin must say WANT.
add_variant() {
    rm -f init
    awk -v placement="$placement" -v variant=$n_variants -f "$to_promela" \
        nodes.txt >>model.pml && cat init >>inits || {
        echo "no model of $*"
        exit 99
    }
    echo "$*" >>wants
    n_variants=$((n_variants + 1))
    n_processes=$((n_processes + p))
    # The model checker numbers kinds of processes in one byte.
    [ $((n_processes + max_stages)) -lt 200 ] || {
        check_model
        begin_model
    }
}

# One search through all states of a schedule; sets $got.
search() {
    VARIANT=$1 ./pan -m100000 -w20 -n >pan.log 2>&1
    if grep -q 'max search depth too small' pan.log; then
        got=failed
    elif grep -q 'errors: 0$' pan.log; then
        got=ok
    elif grep -q '^pan:.*invalid end state' pan.log; then
        got=stuck
    elif grep -q '^pan:.*assertion violated' pan.log; then
        got=broken
    else
        got=failed
    fi
}

check_model() {
    [ $n_variants -gt 0 ] || return
    { cat inits; printf '    fi\n}\n'; } >>model.pml
    spin -a model.pml >spin.log 2>&1 &&
        $cc -O0 -w -DSAFETY -o pan pan.c >>spin.log 2>&1 || {
        fail "no model checker made"
        cat spin.log
        return
    }
    k=0
    while read -r want what; do
        search $k
        # A node that is moved may also bring all to a stop.
        [ $got = "$want" ] || [ "$got $want" = "stuck broken" ] || {
            fail "$what: spin says $got instead of $want"
            [ $got != failed ] || cat pan.log
        }
        k=$((k + 1))
    done <wants
        n_models=$((n_models + k))
}

# ---- schedules ----

# make PLANNER P M ARGUMENTS...: sets nodes.txt, $placement and $what.
make() {
    what="$*" planner=$1 p=$2 m=$3
    shift 3
    "$zbplan" --planner "$planner" -p "$p" -m "$m" "$@" -f json >plan.json \
        2>err.txt && "$zbplan" --planner "$planner" -p "$p" -m "$m" "$@" \
        -f nodes >nodes.txt 2>>err.txt || {
        fail "zbplan --planner $what: $(cat err.txt)"
        return 1
    }
    placement=$(sed -n 's/.*"placement":"\([a-z]*\)".*/\1/p' plan.json)
}

must_run() {
    make "$@" && add_variant ok "$what"
}

# Move line $1 of plan.txt behind the next $2 lines of its stage, if there are
# so many.
move() {
    awk -v from="$1" -v by="$2" '
        { line[NR] = $0; stage[NR] = $1 }
        END {
            if (stage[from + by] != stage[from]) by = 0
            for (i = 1; i <= NR; i++) {
                if (i != from) print line[i]
                if (i == from + by) print line[from]
            }
        }' plan.txt >nodes.txt
}

# What zbplan --check says of nodes.txt, in the words of search().
check_says() {
    if "$zbplan" --check nodes.txt >out.txt 2>err.txt; then
        want=ok n_legal=$((n_legal + 1))
    elif grep -q 'waits for ever' err.txt; then
        want=stuck n_stuck=$((n_stuck + 1))
    elif grep -q 'out of order' err.txt; then
        want=other
    else
        want=broken n_broken=$((n_broken + 1))
    fi
}

# must_agree STEP BY PLANNER P M ARGUMENTS...: every STEP-th node moved behind
# the next BY ones. The model has no rule that microbatches come in order.
must_agree() {
    step=$1 by=$2 line=1
    shift 2
    make "$@" || return
    cp nodes.txt plan.txt
    n=$(wc -l <plan.txt)
    while [ $line -le "$n" ]; do
        move $line "$by"
        check_says
        [ $want = other ] ||
            add_variant $want "$what, line $line moved ($(cat err.txt))"
        line=$((line + step))
    done
}

planners() {
    "$zbplan" --planner none -p 1 -m 1 2>&1 |
        sed -n 's/.*known are //; s/ and file.*//; s/,//gp'
}

names=$(planners)
[ -n "$names" ] || { echo "no names of planners"; exit 1; }
sizes="2,3 3,2 4,4"
step=4
[ -z "${ZBT_LONG:-}" ] || {
    sizes="1,1 1,4 2,1 2,2 2,5 3,1 3,3 3,5 4,2 4,4 4,6 5,5 6,3"
    step=1
}
begin_model
for name in $names; do
    for size in $sizes; do
        must_run "$name" "${size%,*}" "${size#*,}" --max-mem none
    done
done
must_run zbv 4 4 --max-mem 0.5x
must_run zbv 3 4 --max-mem 0.75x --cost 10,12,9,5
must_agree $step 1 zbv 2 2
must_agree $step 3 zbv 2 3
must_agree $step 2 1f1b 3 3
check_model
echo "$n_models schedules; of those with a node moved $n_legal legal," \
    "$n_stuck stuck, $n_broken use what is not there"
[ $n_stuck -gt 0 ] && [ $n_legal -gt 0 ] && [ $n_broken -gt 0 ] ||
    fail "all verdicts must have been tried"
[ $n_bad -eq 0 ]
