#!/bin/sh
# tar.sh STAGE OUT: layersweep-<version>-<arch>.tar.gz from a staged tree with a static program. Unpacked in /, it is what
# the packages install, without cron jobs and maintainer scripts. TARGET, PACKAGE_VERSION: as in deb.sh.
set -eu
stage=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
cd "$(dirname "$0")/.."
: "${SOURCE_DATE_EPOCH:?is set by build.sh}"
target=${TARGET:-x86_64-unknown-linux-gnu}
version=${PACKAGE_VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)}
name=layersweep-$version-${target%%-*}
tar --create --directory "$stage" --exclude './usr/lib/debug' --exclude '*cron*' --transform "s,^\.,$name," \
    --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$SOURCE_DATE_EPOCH" . |
    gzip -9n >"$out/$name.tar.gz"
echo "$out/$name.tar.gz"
