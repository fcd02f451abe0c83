#!/bin/bash
# origin-of-configuration.sh WORK LAYERSWEEP
# Pulls a base into a graphroot below WORK, and loads an archive with the same compressed layers and another
# configuration. Prints what LAYERSWEEP's `images --format json` says of them: at once, without the base, and without the
# tools' cache.
set -euo pipefail
work=${1:?usage: origin-of-configuration.sh WORK LAYERSWEEP} program=${2:?}
# shellcheck source=tests/rigs/registry.sh
. "$(dirname "$0")/registry.sh"
mkdir -p "$work/context"
cd "$work"
serve_registry "$work"
configure_store storage.conf "$work/root" "$work/run"
export CONTAINERS_STORAGE_CONF=$work/storage.conf
maker() { podman --root "$work/maker" --runroot "$work/maker-run" --storage-driver overlay "$@"; }

# make NAME FROM: builds and pushes an image with one layer on top.
make() {
    echo "$1" >context/data
    printf 'FROM %s\nCOPY data /%s\n' "$2" "$1" >context/Containerfile
    maker build --quiet --tag "$registry/by/$1:1" context >/dev/null
    maker push --quiet "$registry/by/$1:1"
}
make base scratch
make child "$registry/by/base:1"
# configured DIRECTORY NAME: an archive of the base with another environment.
configured() {
    skopeo copy --quiet --src-tls-verify=false "docker://$registry/by/base:1" "oci:$1:$2"
    python3 - "$1" "$2" <<'END'
import hashlib, json, sys
top, name = sys.argv[1:]
def read(digest): return json.load(open(f"{top}/blobs/sha256/{digest[7:]}"))
def put(to, value):
    data = json.dumps(value).encode()
    to["digest"], to["size"] = "sha256:" + hashlib.sha256(data).hexdigest(), len(data)
    open(f"{top}/blobs/sha256/{to['digest'][7:]}", "wb").write(data)
index = json.load(open(f"{top}/index.json"))
manifest = read(index["manifests"][0]["digest"])
config = read(manifest["config"]["digest"])
config.setdefault("config", {})["Env"] = ["NAME=" + name]
put(manifest["config"], config)
put(index["manifests"][0], manifest)
json.dump(index, open(f"{top}/index.json", "w"))
END
}
configured other quay.io/by/other:1
configured namesake "$registry/by/base:custom"
forget_origins "$work"

images() { "$program" --graphroot "$work/root" --state-dir "$work/state" images --format json; }
podman pull --quiet "$registry/by/base:1" >/dev/null
podman pull --quiet "$registry/by/child:1" >/dev/null
for name in other namesake; do
    tar --create --file "$name.tar" --directory "$name" .
    podman load --quiet --input "$name.tar" >/dev/null
done
images >at-once.json
# Another image has its tag now.
podman tag "$registry/by/child:1" "$registry/by/moved:1"
podman untag "$registry/by/child:1" "$registry/by/child:1"
podman untag "$registry/by/base:1"
images >untagged.json
rm -rf lib/cache
images >without-cache.json
printf '{"at_once": %s, "untagged": %s, "without_cache": %s}\n' \
    "$(cat at-once.json)" "$(cat untagged.json)" "$(cat without-cache.json)"
