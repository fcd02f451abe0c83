#!/bin/sh
# rpm.sh STAGE OUT: layersweep-<version>-1.<arch>.rpm, layersweep-cron-<version>-1.noarch.rpm and, if the symbols are
# staged, layersweep-debuginfo-<version>-1.<arch>.rpm, from a staged tree. TARGET, PACKAGE_VERSION: as in deb.sh.
set -eu
stage=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
cd "$(dirname "$0")/.."
: "${SOURCE_DATE_EPOCH:?is set by build.sh}"
target=${TARGET:-x86_64-unknown-linux-gnu}
arch=${target%%-*}
[ "$arch" != powerpc64le ] || arch=ppc64le
version=${PACKAGE_VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)}
symbols=0
[ ! -d "$stage/usr/lib/debug" ] || symbols=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
find "$stage" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
rpmbuild -bb --quiet --target "$arch-linux" --with prebuilt \
    --define "_topdir $work" --define "_dbpath $work/db" --define "stage $stage" --define "has_symbols $symbols" \
    --define "version_of $version" --define "xz_level ${XZ_LEVEL:-6}" --define "spdx $(packaging/licences.sh --spdx)" \
    packaging/layersweep.spec >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
for package in "$work"/RPMS/*/*.rpm; do
    cp "$package" "$out/"
    echo "$out/$(basename "$package")"
done
