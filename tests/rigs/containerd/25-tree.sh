#!/bin/bash
# The image tree of a node in a small shop, oldest first: one base, two runtimes on it, and four
# versions each of three applications on those. Shared layers are big, the others are small.
#   pause:1                         busybox (the sandbox image)
#   base:12                         pause + 24 MB
#   cart:1 to 4, stock:1 to 4       base + a runtime of 10 MB + their own 2 to 3 MB
#   mail:1 to 4                     base + a runtime of 8 MB + their own 2 to 3 MB
set -euo pipefail
. "$(dirname "$0")/env.sh"
. "$(dirname "$0")/layout.sh"
# filled NAME SEED BYTES: a layer with one file
filled() { mkdir "$L/w/$1"; noise "$2" "$3" >"$L/w/$1/$1.bin"; layer "$1" "$L/w/$1"; rm -r "$L/w/$1"; }

mkdir -p "$L/w/box/bin"; cp "$BB" "$L/w/box/bin/busybox"; ln -s busybox "$L/w/box/bin/sh"
layer box "$L/w/box"
filled base 1 24000000
filled jre 2 10000000
filled python 3 8000000

# image NAME LAYER... : tags it; its label distinguishes it from images with the same layers
image() {
  local name=$1; shift
  EXTRA=",\"Labels\":{\"name\":\"$name\"}"
  tag "$name" "$(manifest "$(config amd64 '["/bin/busybox","sleep","100000000"]' "$@")" "$@")" $MT
}
image pause:1 box
image base:12 box base
seed=10
for version in 1 2 3 4; do
  for app in cart stock mail; do
    runtime=jre; [ $app != mail ] || runtime=python
    seed=$((seed + 1))
    filled "$app$version" $seed $((2000000 + seed * 7919 % 11 * 100000))
    image "$app:$version" box base $runtime "$app$version"
  done
done
pack
C images import "$RC/images.tar" >/dev/null
as_pulled
C images ls -q
