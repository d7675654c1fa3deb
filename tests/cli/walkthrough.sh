#!/bin/sh
# SPDX-License-Identifier: MIT
# The walkthrough example trains with PyTorch's losses (it fails by itself when
# one differs by more than 1e-5) and leaves no file behind.
set -eu
dir=$(mktemp -d "${TMPDIR:-/tmp}/walkthrough-XXXXXX")
trap 'rm -rf "$dir"' EXIT

"${builddir:-.}/examples/walkthrough" \
    "${srcdir:-.}/tests/golden/walkthrough.safetensors" "$dir/schedule" \
    >"$dir/out"
cat "$dir/out"
test "$(grep -c '^step .* loss ' "$dir/out")" -eq 10
test ! -e "$dir/schedule"

# A file that is not there is named, with status 1.
status=0
"${builddir:-.}/examples/walkthrough" "$dir/none" "$dir/schedule" \
    2>"$dir/err" || status=$?
cat "$dir/err"
test "$status" -eq 1
grep -q "$dir/none" "$dir/err"
