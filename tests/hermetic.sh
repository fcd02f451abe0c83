#!/bin/sh
# Runs a command (`cargo nextest run border::`) on a node with misleading configuration:
# runtimes with other roots, pinned images of every name, files that are no TOML, a kubelet, pods and
# sockets. A test that fails here depends on the machine that it runs on.
# They exist only in this command's mount namespace; the machine's own files are not changed.
set -eu
[ $# -gt 0 ] || { echo "usage: $0 COMMAND [ARGUMENT]..." >&2; exit 2; }
if [ "${LAYERSWEEP_HOSTILE_NODE:-}" != ready ]; then
    [ "$(id -u)" = 0 ] || { echo "$0: needs root, for mounts" >&2; exit 2; }
    exec env LAYERSWEEP_HOSTILE_NODE=ready unshare --mount --propagation private "$0" "$@"
fi
unset LAYERSWEEP_HOSTILE_NODE

# Files below these are in memory, and disappear with the namespace.
layers=$(mktemp -d)
mount -t tmpfs hostile "$layers"
# A copy, not an overlay: the tests put theirs onto /etc if the machine has a CRI-O, in this script and around it, and the
# kernel stacks only two.
cp -a /etc "$layers/etc"
mount --bind "$layers/etc" /etc
for directory in run var; do
    mkdir -p "$layers/$directory/upper" "$layers/$directory/work"
    mount -t overlay hostile "/$directory" \
        -o "lowerdir=/$directory,upperdir=$layers/$directory/upper,workdir=$layers/$directory/work"
done
umount --lazy "$layers"
rmdir "$layers"

write() {
    mkdir -p "$(dirname "$1")"
    cat >"$1"
}

for name in crio containers containerd; do
    rm -rf "/etc/$name"
done

# CRI-O: another store, and every image pinned.
write /etc/crio/crio.conf <<'END'
[crio]
root = "/var/lib/hostile/storage"
runroot = "/run/hostile/storage"
storage_driver = "vfs"
imagestore = "/var/lib/hostile/images"
[crio.image]
pause_image = "localhost/*"
pinned_images = ["*", "localhost/*", "docker.io/*", "reg.local/*", "registry.k8s.io/*"]
END
write /etc/crio/crio.conf.d/99-broken.conf <<'END'
[crio.image
pinned_images = "no list
END

# containers/storage, podman and buildah.
write /etc/containers/storage.conf <<'END'
[storage]
driver = "vfs"
graphroot = "/var/lib/hostile/storage"
runroot = "/run/hostile/storage"
imagestore = "/var/lib/hostile/images"
[storage.options]
additionalimagestores = ["/var/lib/hostile/images", "/nowhere"]
END
write /etc/containers/containers.conf <<'END'
[engine]
runtime = "nobody"
volume_path = "/var/lib/hostile/volumes"
END
write /etc/containers/containers.conf.d/99-broken.conf <<'END'
[engine
END
write /etc/containers/policy.json <<'END'
{"default": [{"type": "reject"}]}
END
write /etc/containers/registries.conf <<'END'
unqualified-search-registries = ["nowhere.invalid"
END
write /etc/containers/systemd/hostile.container <<'END'
[Container]
Image=localhost/small/other:1
END

# containerd, and a node of Kubernetes.
write /etc/containerd/config.toml <<'END'
version = 3
root = "/var/lib/hostile/containerd"
state = "/run/hostile/containerd"
imports = ["/etc/containerd/broken.toml"]
END
write /etc/containerd/broken.toml <<'END'
root = [
END
write /var/lib/kubelet/config.yaml <<'END'
kind: KubeletConfiguration
imageGCHighThresholdPercent: 2
imageGCLowThresholdPercent: 1
staticPodPath: /etc/kubernetes/manifests
END
write /etc/kubernetes/manifests/pod.yaml <<'END'
apiVersion: v1
kind: Pod
metadata: {name: hostile}
spec:
  containers:
  - {name: a, image: "localhost/small/other:1"}
  - {name: b, image: "localhost/mk/svc-a:1"}
END
mkdir -p /var/log/pods/default_hostile_0000/a /var/log/containers
echo hostile >/var/log/pods/default_hostile_0000/a/0.log
ln -s /var/log/pods/gone/0.log /var/log/containers/gone.log

# Stores at the usual places and the configured ones, with records that cannot be read.
for root in /var/lib/containers/storage /var/lib/hostile/storage /var/lib/hostile/images; do
    for driver in overlay vfs; do
        for kind in layers images containers; do
            echo '[{' | write "$root/$driver-$kind/$kind.json"
        done
    done
done
write /var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db <<'END'
no database
END
# Remains of interrupted pulls and builds.
for name in storage123456789 oci1234567890 buildah1234567890; do
    head -c 4096 /dev/zero | write "/var/tmp/$name/file"
    touch -d '3 days ago' "/var/tmp/$name/file" "/var/tmp/$name"
done
# Settings of layersweep.
write /etc/layersweep/layersweep.toml <<'END'
[images]
min_age = "99d"
END
# Sockets without a listener.
mkdir -p /run/crio /run/containerd
python3 -c 'import socket, sys
for path in sys.argv[1:]:
    socket.socket(socket.AF_UNIX).bind(path)' /run/crio/crio.sock /run/containerd/hostile.sock

exec "$@"
