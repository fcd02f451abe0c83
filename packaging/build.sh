#!/bin/sh
# build.sh [deb] [rpm]: packages into target/packages (or $OUT), both kinds if none is named.
#   TARGET=aarch64-unknown-linux-gnu   for another machine (rustup has its standard library)
#   BINARY=FILE                        this program instead of building one
#   PROFILE=trial                      another profile of Cargo.toml than release
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
    *) fail "$kind is no kind of package" 'build.sh [deb] [rpm]' ;;
    esac
done
# Reproducible packages: their time is that of the last commit, or of the changelog.
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null) ||
        SOURCE_DATE_EPOCH=$(date -d "$(sed -n 's/^ -- .*>  //p' packaging/debian/changelog | head -n 1)" +%s)
fi
export SOURCE_DATE_EPOCH
binary=${BINARY:-$(packaging/binary.sh)}
packaging/prove.sh "$binary" >&2
mkdir -p target
work=$(mktemp -d -p "$PWD/target" packaging-XXXXXX)
trap 'rm -rf "$work"' EXIT
# The program itself prints man pages and completions, so it has to run here.
if [ -z "${GENERATOR:-}" ] && ! "$binary" --version >/dev/null 2>&1; then
    cargo build --locked >&2
    export GENERATOR=target/debug/layersweep
fi
packaging/stage.sh "$binary" "$work/stage"
for kind in $kinds; do
    "packaging/$kind.sh" "$work/stage" "$out"
done
