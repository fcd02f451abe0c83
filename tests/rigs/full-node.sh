#!/bin/bash
# A full node: a real containerd with pods, its root on a separate XFS filesystem in a file, 77 % used.
#   full-node.sh up DIR      makes it below DIR: node/ is the filesystem, node/containerd the root
#   full-node.sh socket DIR  prints the CRI endpoint
#   full-node.sh down DIR    stops what runs, unmounts, and removes DIR
# The runtime's other files (sockets, logs) are in a directory below /tmp, since a socket's path must be short.
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin"
here=$(cd "$(dirname "$0")/containerd" && pwd)
what=${1:?up, socket or down}
dir=${2:?a directory}

down() {
    [ -d "$dir" ] || return 0
    if [ -s "$dir/rc" ]; then
        RC=$(cat "$dir/rc") ROOT=$dir/node/containerd "$here/90-stop.sh" --wipe
    fi
    # A shim may still be closing its last file.
    for _ in $(seq 50); do
        mountpoint -q "$dir/node" || break
        umount "$dir/node" 2>/dev/null || sleep 0.1
    done
    if mountpoint -q "$dir/node"; then
        echo "full-node: $dir/node is still in use, and stays" >&2
        return 1
    fi
    rm -rf --one-file-system "$dir"
}

# fill PERCENT: fills the filesystem up to this usage, as the kubelet counts
fill() {
    local blocks available size
    sync -f "$dir/node"
    read -r blocks available size < <(stat -f -c '%b %a %S' "$dir/node")
    fallocate -l $(((available - blocks * (100 - $1) / 100) * size)) "$dir/node/logs-of-another-program"
    sync -f "$dir/node"
}

up() {
    mkdir -p "$dir/node"
    truncate -s 384M "$dir/disk"
    mkfs.xfs -q -f "$dir/disk"
    mount -t xfs -o loop "$dir/disk" "$dir/node"
    mktemp -d /tmp/layersweep-node-XXXXXX >"$dir/rc"
    RC=$(cat "$dir/rc") ROOT=$dir/node/containerd
    export RC ROOT LEVEL=warn
    "$here/10-start.sh"
    "$here/25-tree.sh"
    # CRI learns of an import by events.
    for _ in $(seq 100); do
        seen=$(bash -c '. "$1"; cri ImageService/ListImages' - "$here/env.sh" | grep -ao 'reg.local/[a-z]*:[0-9]*' | sort -u | wc -l)
        [ "$seen" -lt 14 ] || break
        sleep 0.1
    done
    "$here/30-pods.sh" --run shop-cart reg.local/cart:4
    "$here/30-pods.sh" --run shop-mail reg.local/mail:4
    fill 77
}

case $what in
    up | down) "$what" ;;
    socket) echo "unix://$(cat "$dir/rc")/containerd.sock" ;;
    *) echo "full-node: $what? up, socket or down" >&2; exit 2 ;;
esac
