#!/bin/bash
# origin-of-configuration.sh WORK LAYERSWEEP
# Pulls a base into a graphroot below WORK, and loads an archive with the same compressed layers and another
# configuration. Prints what LAYERSWEEP's `images --format json` says of them: at once, without the base, and without the
# tools' cache.
#
# The cache of the tools is /var/lib/containers/cache: it is replaced in a mount namespace of this script.
set -euo pipefail
work=${1:?usage: origin-of-configuration.sh WORK LAYERSWEEP} program=${2:?}
if [ "${OWN_NAMESPACE:-}" != yes ]; then
    exec env OWN_NAMESPACE=yes unshare --mount --propagation private "$0" "$@"
fi
mkdir -p "$work/lib" "$work/blobs" "$work/context" /var/lib/containers
cd "$work"
mount --bind lib /var/lib/containers
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
registry=127.0.0.1:$port
printf 'version: 0.1\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: "%s"}\n' "$work/blobs" "$registry" >registry.yml
docker-registry serve registry.yml >registry.log 2>&1 &
trap 'kill %1; umount /var/lib/containers || umount --lazy /var/lib/containers' EXIT
printf '[[registry]]\nlocation = "%s"\ninsecure = true\n' "$registry" >registries.conf
printf '[storage]\ndriver = "overlay"\ngraphroot = "%s"\nrunroot = "%s"\n' "$work/root" "$work/run" >storage.conf
export CONTAINERS_REGISTRIES_CONF=$work/registries.conf CONTAINERS_STORAGE_CONF=$work/storage.conf
maker() { podman --root "$work/maker" --runroot "$work/maker-run" --storage-driver overlay "$@"; }
for _ in $(seq 100); do curl -fs "http://$registry/v2/" >/dev/null && break; sleep 0.1; done

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
# The cache of another machine knows nothing here.
umount /var/lib/containers
rm -rf lib && mkdir lib
mount --bind lib /var/lib/containers

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
