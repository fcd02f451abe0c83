#!/bin/bash
# fits.sh WORK LAYERSWEEP REPOSITORIES VERSIONS STRANGERS KIB
# Pushes images of real files (`fits_images.py`) to a real registry, and pulls the first version of each repository into a
# graphroot below WORK. Then asks `LAYERSWEEP fits` about the manifests of the others, pulls them one by one, and prints
# the document of `fits` with the bytes that arrived: `arrived` in all, `arrivals` by image. `unnamed` is the document of
# the same manifests without names.
set -euo pipefail
work=${1:?usage: fits.sh WORK LAYERSWEEP REPOSITORIES VERSIONS STRANGERS KIB} program=${2:?}
# shellcheck source=tests/rigs/registry.sh
. "$(dirname "$0")/registry.sh"
rigs=$(cd "$(dirname "$0")" && pwd)
elsewhere=$(mktemp -d)
cd "$elsewhere"
serve_registry "$elsewhere"
configure_store node.conf "$work/root" "$elsewhere/run"
node() { CONTAINERS_STORAGE_CONF=$elsewhere/node.conf podman "$@"; }

python3 "$rigs/fits_images.py" "$elsewhere/layout" "${@:3}" >images.txt
while read -r image _; do
    skopeo copy --quiet --dest-tls-verify=false "oci:$elsewhere/layout:$image" "docker://$registry/by/$image"
done <images.txt
while read -r image state; do
    if [ "$state" = here ]; then node pull --quiet "$registry/by/$image" >/dev/null; continue; fi
    skopeo inspect --raw --tls-verify=false "docker://$registry/by/$image" |
        tee -a unnamed.json | jq -c --arg name "$registry/by/$image" '.name = $name' >>named.json
done <images.txt
ask() { "$program" --graphroot "$work/root" --state-dir "$elsewhere/state" fits --format json "$1" || code=$?; }
code=0
ask unnamed.json >unnamed-document.json
code=0
ask named.json >document.json
used() { sync -f "$work"; stat -f -c '%b %f %S' "$work" | { read -r blocks free size; echo $(((blocks - free) * size)); }; }
first=$(used) before=$first
while read -r image state; do
    [ "$state" = new ] || continue
    node pull --quiet "$registry/by/$image" >/dev/null
    now=$(used)
    echo $((now - before)) >>arrivals
    before=$now
done <images.txt
jq --argjson arrived $((before - first)) --argjson code "$code" --slurpfile arrivals arrivals --slurpfile unnamed unnamed-document.json \
    '. + {$arrived, $code, $arrivals, unnamed: $unnamed[0]}' document.json
umount "$work/root/overlay" 2>/dev/null || true
# For the scans of this disk below --sysroot: the tools' notes about their pulls.
mkdir -p "$work/var/lib/containers"
cp -a "$elsewhere/lib/cache" "$work/var/lib/containers/"
cd /
rm -rf "$elsewhere"
