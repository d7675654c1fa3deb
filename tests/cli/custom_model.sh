#!/bin/sh
# SPDX-License-Identifier: MIT
# The example with a model and a criterion of its own learns its function: the
# loss on new points ends below a tenth of the first one.
set -eu
out=$("${builddir:-.}/examples/custom_model" 100)
echo "$out"
echo "$out" | LC_ALL=C awk '
    /^step 1 / { first = $4 }
    /^loss on new points/ { last = $5 }
    END { exit !(first > 0 && last > 0 && last < 0.1 * first) }'
