#!/bin/sh
# Fills the registry of the node with images that share layers: each can check its own files by its list of digests.
#   shop/NAME:VERSION   4 bases of 30 MB, on each 3 middles of 20 MB, on each 3 images with 15 MB
#   kept/pause:1, kept/agent:1   protected by their names
set -eu
registry=127.0.0.1:5000
systemctl enable --now docker-registry
for _ in $(seq 100); do curl -fs "http://$registry/v2/" >/dev/null && break; sleep 0.1; done
store='--root /rig/maker --runroot /run/rig-maker --storage-driver overlay'
context=/rig/context
mkdir -p "$context"
cp /bin/busybox "$context/"
# image TAG FROM FILE MEGABYTES: one more layer, with FILE and with the digests of all files so far.
image() {
    head -c "$4M" /dev/urandom >"$context/$3"
    (cd "$context" && sha256sum "$3") | sed 's#  #  /#' >>"$context/sums"
    printf 'FROM %s\nCOPY busybox /bin/\nCOPY %s sums /\nCMD ["/bin/busybox", "sleep", "1000000"]\n' "$2" "$3" >"$context/Containerfile"
    # shellcheck disable=SC2086 # options
    podman $store build --quiet --tag "$1" "$context" >/dev/null
    rm "$context/$3"
}
push() {
    # shellcheck disable=SC2086 # options
    podman $store push --quiet "$1"
}
for base in a b c d; do
    : >"$context/sums"
    image "localhost/base-$base" scratch "base-$base" 30
    cp "$context/sums" "$context/base-sums"
    for middle in 1 2 3; do
        cp "$context/base-sums" "$context/sums"
        image "localhost/middle-$base$middle" "localhost/base-$base" "middle-$middle" 20
        cp "$context/sums" "$context/middle-sums"
        for version in 1 2 3; do
            cp "$context/middle-sums" "$context/sums"
            image "$registry/shop/$base$middle:$version" "localhost/middle-$base$middle" "top-$version" 15
            push "$registry/shop/$base$middle:$version"
        done
    done
done
for kept in pause agent; do
    : >"$context/sums"
    image "$registry/kept/$kept:1" scratch "$kept" 5
    push "$registry/kept/$kept:1"
done
rm -rf "$context" /rig/maker
