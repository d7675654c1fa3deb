#!/bin/sh
# SPDX-License-Identifier: MIT
# The manual pages are clean mdoc. Skipped where mandoc is not installed.
set -eu
: "${srcdir:=.}"
command -v mandoc >/dev/null || { echo "mandoc is not installed"; exit 77; }
mandoc -T lint -W warning "$srcdir"/man/*.[1-8]
