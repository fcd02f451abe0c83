#!/bin/bash
# Regenerates docs/pictures: the report on the disk of a full node, as a browser shows it in light and dark, and the screen
# of explore on it. A real store with leaks on an XFS filesystem, with logs and a journal beside it; scans
# while it fills, and a run of gc, on a clock on which the next three days pass in a minute: the records correct the wall
# clock by the time since boot, so both leap (Debian's faketime, and a time namespace).
# Everything is in a private mount namespace, in memory: nothing is left.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PATH:$HOME/.cargo/bin:/usr/sbin:/sbin"
if [ "$(id -u)" != 0 ]; then
    echo 'error: the pictures need root, to mount a disk' >&2
    echo 'hint: sudo make pictures' >&2
    exit 1
fi
command -v faketime >/dev/null || {
    echo 'error: faketime is missing' >&2
    echo 'hint: apt-get install faketime' >&2
    exit 1
}
if [ "${1:-}" != inside ]; then
    cargo build --locked
    cargo test --locked --test main --no-run
    page=$(mktemp --suffix .html)
    trap 'rm -f "$page"' EXIT
    unshare --mount --propagation private "$0" inside "$page"
    ls -l docs/pictures
    exit 0
fi

program=$PWD/target/debug/layersweep
mount -t tmpfs tmpfs /srv
truncate -s 420M /srv/disk
mkfs.xfs -q -f /srv/disk
mount -t xfs -o loop /srv/disk /mnt
tests/rigs/mkstore.sh /srv/made >/dev/null
tests/rigs/inject.sh /srv/made /srv/store orphan-dir orphan-image-dir unref-old staging-dead shared-top >/dev/null
containers=/mnt/var/lib/containers
mkdir -p "$containers" /mnt/etc /mnt/var/log/journal /mnt/var/lib/kubelet/pods
cp -a /srv/store/root "$containers/storage"
echo node-7.example.org >/mnt/etc/hostname
logs=/mnt/var/log/pods/shop_cart-0_11111111-2222-4333-8444-555555555555/cart
mkdir -p "$logs"
# The node sees its disk as /, so that its records have the paths of a node.
mkdir -p /mnt/{usr,proc,sys,dev,tmp,run,srv,opt}
ln -s usr/{bin,lib,lib64,sbin} /mnt
for system in usr proc sys dev; do
    mount --rbind "/$system" "/mnt/$system"
done
mount --bind "${program%/*}" /mnt/opt

hours=0 # from now
at() { unshare --time --fork --boottime $((hours * 3600)) faketime -f "+${hours}h" "$@"; }
node() { at chroot /mnt /opt/layersweep "$@"; }
import() { # REFERENCE MiB
    head -c "$2M" /dev/urandom >/srv/data
    tar -C /srv -c data | CONTAINERS_CONF=/srv/made/containers.conf TMPDIR=/srv podman --root "$containers/storage" \
        --runroot /srv/run --storage-driver overlay import -q - "registry.example.org/$1" >/dev/null
}
scan() { # FILE BYTES HOURS: one scan per hour, while the file grows by BYTES per hour
    for _ in $(seq "$3"); do
        head -c "$2" /dev/urandom >>"$1"
        touch -d "+$hours hours" "$1"
        sync -f /mnt
        node scan -q || [ $? = 3 ]
        hours=$((hours + 1))
    done
}
collect() { # Exit code 4: the disk does not reach its low threshold.
    node gc --yes --via direct --while-runtime-runs --high 75 --low 60 --min-age 0s || [ $? = 4 ]
}
for release in 1 2 3; do
    import "ml/train:2026-0$release" 20
    scan "$logs/0.log" 1M 6
    import "ml/train:2026-0$release-gpu" 30
    scan "$logs/0.log" 1500K 6
    import "web/shop:7.$release" 14
    scan /mnt/var/log/journal/system.journal 400K 6
    [ "$release" = 3 ] || collect
    scan "$logs/0.log" 500K 5
done
import web/shop:8.0 55
scan "$logs/0.log" 500K 2
umount -R /mnt
mount -t xfs -o loop,ro,norecovery /srv/disk /mnt
# Exit code 3: with --sysroot not everything can be read.
at "$program" report --sysroot /mnt --html "$2" || [ $? = 3 ]
LAYERSWEEP_PICTURE_OF=$2 LAYERSWEEP_PICTURE_FLAGS='--sysroot /mnt' \
    at cargo test --locked --quiet --test main report::pictures -- --ignored
umount /mnt
