#!/bin/sh
# SPDX-License-Identifier: MIT
# zbplan and PyTorch take each other's schedules. Skipped without PyTorch;
# PYTHON=... says which interpreter has it.
set -u
: "${builddir:=.}" "${srcdir:=.}"
exec "${PYTHON:-python3}" "$srcdir/tests/golden/torch_csv.py" check \
    "$builddir/zbplan"
