#!/bin/sh
# SPDX-License-Identifier: MIT
# Subjects of commits read "area: imperative summary": at most 72 characters, no
# full stop, an area that is a folder of the tree or a word from the list below.
# Takes a range as git log does; by default all commits since this script came.
set -eu
cd "$(dirname "$0")/.."
git rev-parse --git-dir >/dev/null 2>&1 || { echo "not a git tree"; exit 77; }

came=$(git log --diff-filter=A --format=%h -- scripts/check-commits.sh |
    tail -n 1)
areas=" build ci golden style tree $(git ls-tree -r -d --name-only HEAD |
    sed 's,.*/,,' | sort -u | tr '\n' ' ')"
git log --no-merges --format='%h %s' "${1:-$came..HEAD}" |
    LC_ALL=C awk -v areas="$areas" '
    function bad(why) {
        printf "%s: %s: %s\n", id, why, subject
        n_bad++
    }
    {
        id = $1
        subject = substr($0, length(id) + 2)
        area = subject
        sub(/: .*/, "", area)
        if (area == subject) {
            bad("no \"area: summary\"")
        } else if (index(areas, " " area " ") == 0) {
            bad("unknown area")
        }
        if (length(subject) > 72) {
            bad("longer than 72 characters")
        }
        if (subject ~ /\.$/) {
            bad("full stop")
        }
    }
    END { exit n_bad > 0 }'
