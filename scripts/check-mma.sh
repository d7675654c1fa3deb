#!/bin/sh
# SPDX-License-Identifier: MIT
# What nvcc makes of the kernels: in the PTX, every attention kernel of a 16-bit
# type has tensor-core products, fed by ldmatrix, in a loop. Needs no GPU; skipped
# where there is no nvcc. (check-ptxas.sh looks for spilled registers.)
set -eu
: "${srcdir:=$(dirname "$0")/..}"
: "${NVCC:=$(PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin command -v nvcc || :)}"
[ -n "$NVCC" ] || { echo "no nvcc"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
echo '#define HAVE_CUDA 1' >"$tmp/config.h"
compile() {
    "$NVCC" -std=c++17 -O2 -I"$tmp" -I"$srcdir/include" -I"$srcdir/src" "$@"
}
bad=0

# A loop is what lies between a label and a branch back to it.
cat >"$tmp/loops.awk" <<'AWK'
function finish() {
    if (name ~ /attention_(fwd|bwd).*(bf16|f16)/) {
        n++
        if (!loops) {
            print name ": no loop with mma.sync and ldmatrix"
            bad = 1
        }
    }
}
/\.entry/ {
    finish()
    name = $0
    sub(/.*\.entry[ \t]+/, "", name)
    sub(/\(.*/, "", name)
    mma = loads = loops = 0
    split("", mma_at)
    split("", loads_at)
}
/^\$L[^ :]*:/ {
    label = $1
    sub(/:.*/, "", label)
    mma_at[label] = mma
    loads_at[label] = loads
}
/mma\.sync\.aligned\.m16n8k16/ { mma++ }
/ldmatrix\.sync/ { loads++ }
/[ \t]bra/ {
    label = $NF
    sub(/;.*/, "", label)
    if (label in mma_at && mma > mma_at[label] && loads > loads_at[label]) {
        loops++
    }
}
END {
    finish()
    if (!n) {
        print "no attention kernel of a 16-bit type"
        bad = 1
    }
    exit bad
}
AWK
for file in cuda_attn_fwd cuda_attn_bwd; do
    compile -arch=compute_80 -ptx "$srcdir/src/backend/cuda/$file.cu" \
        -o "$tmp/$file.ptx"
    awk -f "$tmp/loops.awk" "$tmp/$file.ptx" || bad=1
done
exit $bad
