#!/bin/sh
# build.sh [deb] [rpm] [tar]: packages into target/packages (or $OUT), DEB and RPM if none is named. The tarball is
# only of use with a static program (LINK=static).
#   TARGET=aarch64-unknown-linux-gnu   for another machine (see binary.sh)
#   BINARY=FILE                        this program instead of building one; FILE.debug, if it is there, its symbols
#   PROFILE=quick                      another profile of Cargo.toml than release
#   XZ_LEVEL=0                         compression level
#   PACKAGE_VERSION=1.2.3              instead of the one in Cargo.toml
set -eu
cd "$(dirname "$0")/.."
PATH="$PATH:$HOME/.cargo/bin"
export TARGET="${TARGET:-x86_64-unknown-linux-gnu}"
out=${OUT:-target/packages}
kinds=${*:-deb rpm}
fail() { echo "build.sh: $1" >&2; echo "hint: $2" >&2; exit 1; }

for kind in $kinds; do
    case $kind in
    deb) command -v dpkg-deb >/dev/null || fail 'dpkg-deb is not there' 'apt-get install dpkg' ;;
    rpm) command -v rpmbuild >/dev/null || fail 'rpmbuild is not there' 'apt-get install rpm, or dnf install rpm-build' ;;
    tar) ;;
    *) fail "$kind is no kind of package" 'build.sh [deb] [rpm] [tar]' ;;
    esac
done
# Reproducible packages: their time is that of the last commit, or of the changelog.
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null) ||
        SOURCE_DATE_EPOCH=$(date -d "$(sed -n 's/^ -- .*>  //p' packaging/debian/changelog | head -n 1)" +%s)
fi
export SOURCE_DATE_EPOCH
binary=${BINARY:-$(packaging/binary.sh)}
mkdir -p target
work=$(mktemp -d -p "$PWD/target" packaging-XXXXXX)
trap 'rm -rf "$work"' EXIT
# The program itself prints man pages and completions, so it has to run here.
if [ -z "${GENERATOR:-}" ] && ! "$binary" --version >/dev/null 2>&1; then
    cargo build --locked >&2
    export GENERATOR=target/debug/layersweep
fi
packaging/stage.sh "$binary" "$work/stage"
if [ -e "$binary.debug" ]; then
    # Where debuggers look, by the build id.
    id=$(LC_ALL=C readelf --notes "$binary" 2>/dev/null | sed -n 's/.*Build ID: //p')
    install -D -m 644 "$binary.debug" "$work/stage/usr/lib/debug/.build-id/$(echo "$id" | cut -c 1-2)/$(echo "$id" | cut -c 3-).debug"
fi
for kind in $kinds; do
    "packaging/$kind.sh" "$work/stage" "$out"
done
