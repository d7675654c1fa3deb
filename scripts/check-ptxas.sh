#!/bin/sh
# SPDX-License-Identifier: MIT
# Compile kernels for every architecture and read what the assembler says: no
# warning, and no register may spill to memory.
#
#     scripts/check-ptxas.sh [FILE.cu...]    default: all of the cuda backend
#
# NVCC, and PTXAS_ARCHS ("80 90 100 120"), may be set. Prints a line per file.
set -eu
: "${srcdir:=$(dirname "$0")/..}"
: "${PTXAS_ARCHS:=80 90 100 120}"
: "${NVCC:=$(PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin command -v nvcc || :)}"
[ -n "$NVCC" ] || { echo "no nvcc"; exit 77; }
[ $# -gt 0 ] || set -- "$srcdir"/src/backend/cuda/*.cu
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
log=$tmp/log
echo '#define HAVE_CUDA 1' >"$tmp/config.h"
gencode=
for a in $PTXAS_ARCHS; do
    gencode="$gencode -gencode arch=compute_$a,code=sm_$a"
done
bad=0
for f; do
    # shellcheck disable=SC2086
    "$NVCC" $gencode -std=c++17 -O2 -I"$tmp" -I"$srcdir/include" -I"$srcdir/src" \
        -Xcompiler -Wall,-Wextra -Xptxas -v -c "$f" -o "$log.o" >"$log" 2>&1 ||
        { cat "$log"; exit 1; }
    # The names of kernels stand above what they use.
    awk -v file="$f" '
        /Compiling entry function|Function properties for/ { name = $0; next }
        /spill stores/ {
            n++
            if ($0 !~ / 0 bytes spill stores, 0 bytes spill loads/) {
                print file ": " name; print $0; bad = 1
            }
            next
        }
        /Used [0-9]+ registers/ {
            for (i = 1; i < NF; i++)
                if ($i == "Used" && $(i + 1) + 0 > most) most = $(i + 1) + 0
            next
        }
        /ptxas info/ || /^$/ { next }
        { print file ": " $0; bad = 1 }
        END {
            print file ": " n " kernels, at most " most " registers"
            exit bad || n == 0
        }' "$log" || bad=1
done
exit $bad
