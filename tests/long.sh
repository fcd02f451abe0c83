#!/bin/bash
# long.sh [MINUTES]: a node under mixed load, maintained by the units of the package. `make test` does not run it.
# A Debian with systemd boots in a container. It has podman, containerd, a registry of its own and two small disks, and all
# units of the DEB are enabled. tests/rigs/long/load.py says what happens in it, and what must hold meanwhile.
#   DEB=FILE     instead of building the package
#   EVERY='...'  systemd's calendar of both timers, instead of the packaged five minutes (default: every minute)
# The results are in target/long: summary.json, events.jsonl, samples.jsonl and journal.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PATH:/usr/sbin:/sbin"
minutes=${1:-60}
if [ "${OWN_NAMESPACE:-}" != yes ]; then
    [ "$(id -u)" = 0 ] || { echo 'long.sh: needs root' >&2; exit 2; }
    exec env OWN_NAMESPACE=yes unshare --mount --propagation private "$0" "$@"
fi
work=$PWD/target/long
made=$PWD/target/long-root
if [ -z "${DEB:-}" ]; then
    rm -rf target/long-packages
    OUT=$PWD/target/long-packages packaging/build.sh deb >&2
    DEB=$(echo target/long-packages/layersweep_*_amd64.deb)
fi
if [ ! -e "$made.complete" ]; then
    tests/rigs/debian-root.sh "$made" podman crun containerd runc docker-registry curl python3 busybox-static faketime
    touch "$made.complete"
fi
root=$work/root
rm -rf --one-file-system "$work"
mkdir -p "$work/disk" "$work/containerd"
cp -a --reflink=auto "$made" "$root"

# One disk has podman's store and layersweep's records, as /var has on most nodes, the other containerd's.
# All images of the registry are 900 MB, and containerd keeps what it downloads too: neither disk holds them all.
truncate -s 1200M "$work/disk.img"
truncate -s 2G "$work/containerd.img"
mkfs.xfs -q "$work/disk.img"
mkfs.ext4 -q "$work/containerd.img"
mount -o loop "$work/disk.img" "$work/disk"
mount -o loop "$work/containerd.img" "$work/containerd"
mkdir "$work/disk/containers" "$work/disk/layersweep"

mkdir -p "$root/rig" "$root/var/lib/prometheus/node-exporter"
cp tests/rigs/long/*.py tests/rigs/long/images.sh "$root/rig/"
cp "$DEB" "$root/rig/layersweep.deb"
cp tests/rigs/long/layersweep.toml "$root/rig/"
install -D -m 644 /dev/stdin "$root/etc/containers/registries.conf.d/rig.conf" <<'END'
[[registry]]
location = "127.0.0.1:5000"
insecure = true
END
# systemd in a container does not manage the controllers of version 1.
install -D -m 644 /dev/stdin "$root/etc/containers/containers.conf" <<'END'
[engine]
cgroup_manager = "cgroupfs"
END
install -D -m 644 /dev/stdin "$root/etc/docker/registry/config.yml" <<'END'
version: 0.1
storage: { filesystem: { rootdirectory: /var/lib/docker-registry } }
http: { addr: "127.0.0.1:5000" }
END
# With the pause image of the rig; the network of the host, since there is no network plugin.
install -D -m 644 /dev/stdin "$root/etc/containerd/config.toml" <<'END'
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "127.0.0.1:5000/kept/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
END
for timer in scan gc; do
    install -D -m 644 /dev/stdin "$root/etc/systemd/system/layersweep-$timer.timer.d/rig.conf" <<END
[Timer]
OnCalendar=
OnCalendar=${EVERY:-*:*:00}
RandomizedDelaySec=0
AccuracySec=1s
END
done
# The clock as the program sees it: the load writes this file.
for service in scan gc uses; do
    install -D -m 644 /dev/stdin "$root/etc/systemd/system/layersweep-$service.service.d/rig.conf" <<'END'
[Service]
EnvironmentFile=-/run/rig-clock
END
done
# One run deletes in one way: containerd's images through it, and then those of podman beside it, in the store itself.
cat >>"$root/etc/systemd/system/layersweep-gc.service.d/rig.conf" <<'END'
ExecStart=-/usr/bin/layersweep gc --yes --quiet --graphroot /var/lib/containers/storage
END

systemd-nspawn --boot --register=no --keep-unit --console=pipe --quiet --machine=layersweep-long --private-network \
    --system-call-filter='@keyring bpf' --capability=all --directory="$root" \
    --bind="$work/disk/containers:/var/lib/containers" --bind="$work/disk/layersweep:/var/lib/layersweep" \
    --bind="$work/containerd:/var/lib/containerd" </dev/null >"$work/console.txt" 2>&1 &
nspawn=$!
# shellcheck disable=SC2317 # the trap calls it
ends() {
    trap - EXIT
    kill "$nspawn" 2>/dev/null || true
    for _ in $(seq 300); do kill -0 "$nspawn" 2>/dev/null || break; sleep 0.1; done
    kill -9 "$nspawn" ${init:+"$init"} 2>/dev/null || true
    wait "$nspawn" 2>/dev/null || true
    umount "$work/disk" "$work/containerd" || umount --lazy "$work/disk" "$work/containerd"
}
trap ends EXIT
init=
for _ in $(seq 600); do
    # shellcheck disable=SC2013 # words
    for child in $(cat "/proc/$nspawn/task/$nspawn/children"); do
        ! grep -q '^NSpid:.*[[:space:]]1$' "/proc/$child/status" 2>/dev/null || init=$child
    done
    [ -z "$init" ] || break
    sleep 0.1
done
[ -n "$init" ] || { cat "$work/console.txt" >&2; exit 1; }
# inside COMMAND: runs it in the node.
inside() {
    nsenter --target "$init" --mount --uts --ipc --net --pid --cgroup -- \
        env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C /bin/sh -c "$1" </dev/null
}
for _ in $(seq 600); do
    ! inside 'systemctl is-system-running' 2>/dev/null | grep -qE 'running|degraded' || break
    sleep 0.1
done
# systemd-nspawn mounts the controllers of version 1 read-only.
# shellcheck disable=SC2016 # the inner shell expands it
inside 'for controller in /sys/fs/cgroup/*/; do mount -o remount,bind,rw "$controller" 2>/dev/null; done; sh /rig/images.sh'
inside 'mkdir -p /etc/layersweep/layersweep.toml.d && cp /rig/layersweep.toml /etc/layersweep/layersweep.toml.d/
        dpkg --install /rig/layersweep.deb && systemctl enable --now layersweep-gc.timer layersweep-uses.path'
code=0
inside "systemd-run --quiet --wait --pipe --property=KillMode=process python3 -B /rig/load.py $minutes /rig/out" || code=$?
inside 'journalctl --no-pager --output=short-iso' >"$work/journal.txt"
cp "$root"/rig/out/* "$work/"
exit "$code"
