#!/bin/bash
# repull.sh WORK LAYERSWEEP
# Deletes the images that origins.sh has brought into WORK by a list, and pulls again what LAYERSWEEP's `history
# --repull` prints and the registry of origins.sh has. Prints a JSON object.
set -euo pipefail
work=${1:?usage: repull.sh WORK LAYERSWEEP} program=${2:?}
# shellcheck source=tests/rigs/registry.sh
. "$(dirname "$0")/registry.sh"
cd "$work"
serve_registry "$work"
export CONTAINERS_STORAGE_CONF=$work/storage.conf
layersweep() { "$program" --graphroot "$work/root" --runroot "$work/run" --state-dir "$work/state" "$@"; }
layersweep images --format json | jq -r '.images[].id' >list
echo quay.io/by/elsewhere:1 >>list
layersweep rm -y --min-age 0s --via direct --format json --file - <list >rm.json
code=0
layersweep history --repull last >references 2>notes || code=$?
grep "^$registry/" references | xargs -r -n1 podman --cgroup-manager cgroupfs pull --quiet >/dev/null
layersweep images --format json | jq --rawfile references references --rawfile notes notes --argjson code "$code" \
    --slurpfile rm rm.json '{code: $code, references: $references, notes: $notes, rm: $rm[0], images: .images}'
