#!/bin/sh
# SPDX-License-Identifier: MIT
# Every public header must compile on its own as C11.
set -eu
: "${srcdir:=.}"
for h in "$srcdir"/include/zb/*.h; do
    printf '#include "zb/%s"\n' "$(basename "$h")" | ${CC:-cc} -std=c11 -Wall -Werror -I"$srcdir/include" -x c -fsyntax-only - || { echo "not self-contained: $h"; exit 1; }
done
