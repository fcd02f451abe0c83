#!/bin/sh
# release.sh: all files of a release in target/release-set (or $OUT): for each architecture a DEB, an RPM, the debug symbols
# of both, and a static tarball; and SHA256SUMS. PROFILE=quick: a faster build. setup.sh installs what it needs.
set -eu
cd "$(dirname "$0")/.."
out=${OUT:-target/release-set}
rm -rf "$out"
mkdir -p "$out"
again=$(mktemp -d)
trap 'rm -rf "$again"' EXIT
for arch in x86_64 aarch64; do
    export TARGET=$arch-unknown-linux-gnu OUT="$out"
    BINARY=$(packaging/binary.sh)
    # The first one runs here, and prints the man pages of the other.
    export BINARY GENERATOR="${GENERATOR:-$BINARY}"
    packaging/build.sh deb rpm
    # Packages are reproducible, in every time zone.
    TZ=Asia/Tokyo OUT=$again packaging/build.sh deb rpm >/dev/null
    for package in "$again"/*; do
        cmp "$package" "$out/$(basename "$package")"
        rm "$package"
    done
    export LINK=static
    BINARY=$(packaging/binary.sh)
    packaging/build.sh tar
    unset BINARY LINK
done
# Both architectures make the same packages of cron jobs.
(cd "$out" && LC_ALL=C sha256sum -- * >../SHA256SUMS && mv ../SHA256SUMS .)
