#!/bin/sh
# Installs the packages that the tests and the demo need. Reads the package lists only if
# something is missing, so a second run costs nothing.
set -eu

need='podman buildah crun containers-storage xfsprogs btrfs-progs e2fsprogs
      busybox-static openssl jq strace util-linux mount python3-minimal
      containerd runc curl protobuf-compiler prometheus
      skopeo docker-registry
      chromium-headless-shell fonts-dejavu-core faketime tmux
      sosreport python3-venv binutils rpm rpmlint lintian shellcheck mmdebstrap systemd systemd-container zsh fish'

fail() { echo "tests/setup.sh: $1" >&2; echo "hint: $2" >&2; exit 1; }

PATH="$PATH:$HOME/.cargo/bin"
command -v cargo >/dev/null ||
    fail 'cargo is not there' 'install Rust 1.89 or newer, for example from https://rustup.rs'
command -v cc >/dev/null || need="$need gcc libc6-dev"
command -v dpkg-query >/dev/null ||
    fail 'this is not Debian, and only Debian packages are known here' \
         "install the equivalents of: $(echo $need)"

missing=
for package in $need; do
    status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
    [ "$status" = 'install ok installed' ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

as_root=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || fail "missing packages:$missing" 'run this as root once'
    as_root=sudo
fi
echo "installing:$missing" >&2
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -qq </dev/null >&2 ||
    fail 'the package lists cannot be read' 'see the output of apt-get update above'
$as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qq -y --no-install-recommends $missing </dev/null >&2 ||
    fail "cannot install:$missing" 'see the output of apt-get above'
