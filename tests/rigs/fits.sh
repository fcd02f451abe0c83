#!/bin/bash
# fits.sh WORK LAYERSWEEP
# Builds 15 images with shared layers, pushes them to a real registry, and pulls five into a graphroot below WORK. Then
# asks `LAYERSWEEP fits` about the manifests of the other ten, pulls them, and prints the document of `fits`, with
# the bytes that arrived on the filesystem.
set -euo pipefail
work=${1:?usage: fits.sh WORK LAYERSWEEP} program=${2:?}
# shellcheck source=tests/rigs/registry.sh
. "$(dirname "$0")/registry.sh"
elsewhere=$(mktemp -d)
cd "$elsewhere"
serve_registry "$elsewhere"
configure_store maker.conf "$elsewhere/maker" "$elsewhere/maker-run"
configure_store node.conf "$work/root" "$elsewhere/run"
maker() { CONTAINERS_STORAGE_CONF=$elsewhere/maker.conf buildah "$@"; }
node() { CONTAINERS_STORAGE_CONF=$elsewhere/node.conf podman "$@"; }

# Text that gzip halves.
text() { head -c 1000000 /dev/urandom | od -An -v -tx1 | tr -d ' '; }
# layer PARENT NAME: commits an image with one more layer.
layer() {
    local container
    container=$(maker from --quiet --pull-never "$1")
    text >data
    maker copy --quiet "$container" data "/$2" >/dev/null
    maker commit --quiet --rm "$container" "$registry/by/$2:1" >/dev/null
    maker push --quiet "$registry/by/$2:1"
}
layer scratch base-a
layer scratch base-b
for number in $(seq 1 13); do
    base=$([ $((number % 2)) = 0 ] && echo base-a || echo base-b)
    [ $((number % 5)) != 0 ] || base=image-$((number - 1))
    layer "$registry/by/$base:1" "image-$number"
done
for name in base-a image-1 image-2 image-3 image-7; do node pull --quiet "$registry/by/$name:1" >/dev/null; done
for name in base-b image-{4,5,6} image-{8..13}; do
    curl -fs -H 'accept: application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json' \
        "http://$registry/v2/by/$name/manifests/1" >"manifest-$name.json"
done
set +e
"$program" --graphroot "$work/root" --state-dir "$elsewhere/state" fits --format json manifest-*.json >document.json
code=$?
set -e
used() { sync -f "$work"; stat -f -c '%b %f %S' "$work" | { read -r blocks free size; echo $(((blocks - free) * size)); }; }
before=$(used)
for name in base-b image-{4,5,6} image-{8..13}; do node pull --quiet "$registry/by/$name:1" >/dev/null; done
jq --argjson arrived $(($(used) - before)) --argjson code $code '. + {$arrived, $code}' document.json
umount "$work/root/overlay" 2>/dev/null || true
cd /
rm -rf "$elsewhere"
