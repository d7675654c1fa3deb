#!/bin/sh
# SPDX-License-Identifier: MIT
# Enforce who may include whom: one line per src/ folder, "folder: allowed".
# A public header zb/NAME.h belongs to folder NAME, except the base headers.
set -eu
: "${srcdir:=.}"
rules='base:
kern:
trace: base
conf: base
plan: base
tensor: base kern
data: base tensor
backend: base tensor kern
graph: base tensor backend
comm: base trace tensor backend
model: base conf tensor graph
optim: base tensor backend comm
ckpt: base tensor
run: base trace conf plan tensor data backend graph comm model optim ckpt
cli: base trace conf plan data backend graph model ckpt run'
base_headers=' status log mem hash thread file machine '
bad=0
for f in $(find "$srcdir/src" \( -name '*.[ch]' -o -name '*.cu' \)); do
    mod=${f#"$srcdir"/src/}; mod=${mod%%/*}
    allowed=$(printf '%s\n' "$rules" | sed -n "s/^$mod://p")
    for inc in $(sed -n 's/^[[:space:]]*#[[:space:]]*include "\([^"]*\)".*/\1/p' "$f"); do
        case $inc in
        config.h) continue ;;
        zb/*.h) name=${inc#zb/}; name=${name%.h}
                case $base_headers in *" $name "*) owner=base ;; *) owner=$name ;; esac
                case $name in kernel|check|coll) owner=backend ;; compare|generate) owner=run ;;
                tokens|tokenizer|npy) owner=data ;;
                    weights|checkpoint) owner=ckpt ;; esac ;;
        */*) owner=${inc%%/*}
             # another folder's private header is off limits, kern/ excepted
             [ "$owner" = "$mod" ] || [ "$owner" = kern ] || {
                 echo "$f: private header $inc"; bad=1; continue; } ;;
        *) echo "$f: write the folder in $inc"; bad=1; continue ;;
        esac
        case " $mod $allowed " in *" $owner "*) ;; *) echo "$f: $mod/ may not use $inc"; bad=1 ;; esac
    done
    case $f in *.cu)
        if grep -n 'include "zb/' "$f"; then echo "$f: .cu may not include zb/ headers"; bad=1; fi ;;
    esac
done
exit $bad
