#!/bin/sh
# Installs what release.sh needs beside the packages of tests/setup.sh: a compiler and a standard library for aarch64, and
# an emulator that runs what they make. Debian's rustc-web is a compiler whose other architectures are packaged too.
set -eu
need='rustc-web cargo-web libstd-rust-web-dev:amd64 libstd-rust-web-dev:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross
      binutils cpio qemu-user-static'
missing=
for package in $need; do
    status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
    [ "$status" = 'install ok installed' ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
echo "installing:$missing" >&2
dpkg --add-architecture arm64
apt-get update -qq </dev/null >&2
# shellcheck disable=SC2086 # a list
DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing </dev/null >&2
