#!/bin/bash
# capture.sh GRAPHROOT DEST
# Copies the metadata of a graphroot (records, locks, links, image metadata) without the
# contents of layers: small enough to commit. Git does not keep empty directories;
# the tests create them again (tests/support/fixture.rs).
set -euo pipefail
FROM=${1:?usage: capture.sh GRAPHROOT DEST} TO=${2:?usage: capture.sh GRAPHROOT DEST}
[ ! -e "$TO" ] || { echo "$TO exists" >&2; exit 1; }
mkdir -p "$TO"; TO=$(cd "$TO" && pwd); cd "$FROM"
{
    find . -maxdepth 1 -name '*.lock'
    find . -maxdepth 1 -name defaultNetworkBackend
    find ./*-layers ./*-images ./*-containers -maxdepth 1 \( -name '*.json' -o -name '*.lock' \)
    find ./*-images -mindepth 2 -type f
    find ./*-containers -name buildah.json
    find ./overlay -mindepth 2 -maxdepth 2 \( -name link -o -name lower -o -type l \) 2>/dev/null || true
} | tar -c --no-recursion -T - | tar -x -C "$TO"
chmod -R u=rwX,go=rX "$TO"
