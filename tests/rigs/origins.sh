#!/bin/bash
# origins.sh WORK LAYERSWEEP
# Brings images into a graphroot below WORK in every way that there is, with a real registry on the loopback device, and
# prints what LAYERSWEEP's `images --format json` says of them. The name of each image says how it came.
set -euo pipefail
work=${1:?usage: origins.sh WORK LAYERSWEEP} program=${2:?}
# shellcheck source=tests/rigs/registry.sh
. "$(dirname "$0")/registry.sh"
mkdir -p "$work/context"
cd "$work"
serve_registry "$work"
configure_store storage.conf "$work/root" "$work/run"
export CONTAINERS_STORAGE_CONF=$work/storage.conf
podman() { command podman --cgroup-manager cgroupfs "$@"; }
# A store of its own makes what is pulled and loaded later.
maker() { command podman --root "$work/maker" --runroot "$work/maker-run" --storage-driver overlay "$@"; }

cp "$(command -v busybox)" context/
printf 'FROM scratch\nCOPY busybox /bin/busybox\nCOPY data /data\n' >context/Containerfile
# make NAME: builds an image that no other image shares its top layer with.
make() {
    echo "$1" >context/data
    maker build --quiet --tag "$1" context >/dev/null
}
for name in pull skopeo pushed-archive; do
    make "$registry/by/$name:1"
    maker push --quiet "$registry/by/$name:1"
done
for name in docker-archive oci-archive; do make "localhost/$name:1"; done
maker save --quiet --output docker.tar localhost/docker-archive:1
maker push --quiet localhost/oci-archive:1 oci-archive:oci.tar:quay.io/by/oci-archive:1
forget_origins "$work"

podman pull --quiet "$registry/by/pull:1" >/dev/null
skopeo copy --quiet --src-tls-verify=false "docker://$registry/by/skopeo:1" "containers-storage:$registry/by/skopeo:1"
# From a registry into an archive here, and from there into the store: the cache knows the registry.
skopeo copy --quiet --src-tls-verify=false "docker://$registry/by/pushed-archive:1" oci-archive:pushed.tar:quay.io/by/pushed-archive:1
podman load --quiet --input pushed.tar >/dev/null
podman load --quiet --input docker.tar >/dev/null
podman load --quiet --input oci.tar >/dev/null
tar --create --file import.tar registry.yml
podman import --quiet import.tar quay.io/by/import:1 >/dev/null
echo built >context/data
podman build --quiet --tag quay.io/by/build:1 context >/dev/null
printf 'FROM %s/by/pull:1\nCOPY data /more\n' "$registry" >context/on-pulled
podman build --quiet --tag localhost/by/build-on-pulled:1 --file context/on-pulled context >/dev/null
printf 'FROM %s/by/pull:1\nLABEL a=b\n' "$registry" >context/labelled
podman build --quiet --tag localhost/by/label-on-pulled:1 --file context/labelled context >/dev/null
podman build --quiet --tag "$registry/by/build-and-push:1" --label c=d context >/dev/null
podman push --quiet "$registry/by/build-and-push:1"
podman create --quiet --name container "$registry/by/pull:1" /bin/busybox >/dev/null
podman commit --quiet container localhost/by/commit:1 >/dev/null
podman rm container >/dev/null
"$program" --graphroot "$work/root" --state-dir "$work/state" images --format json
