#!/bin/sh
# check.sh [DIR]: checks the files that release.sh made: checksums, architectures, needed libraries, the same contents in
# each, symbols that belong to their program, installation and removal of each package in roots of their own, and a scan
# by each static program. Needs root. ROOT: a directory of tests/rigs/debian-root.sh, which is copied.
set -eu
cd "$(dirname "$0")/.."
set_=$(realpath "${1:-target/release-set}")
mkdir -p target
work=$(mktemp -d -p "$PWD/target" check-XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
fail() { echo "check.sh: $1" >&2; exit 1; }
one() { # PATTERN: the one file of the set that matches
    # shellcheck disable=SC2086 # a pattern
    set -- "$set_"/$1
    if [ $# != 1 ] || [ ! -e "$1" ]; then fail "not one file: $*"; fi
    echo "$1"
}
build_id() { LC_ALL=C readelf --notes "$1" 2>/dev/null | sed -n 's/.*Build ID: //p'; }

(cd "$set_" && sha256sum --check --quiet --strict SHA256SUMS) || fail 'a checksum is wrong'
made=${ROOT:-$work/debian}
[ -e "$made" ] || tests/rigs/debian-root.sh "$made"

# DIR NAME MACHINE LINK: the program below DIR.
program() {
    binary=$1/usr/bin/layersweep
    LC_ALL=C readelf --file-header "$binary" | grep -q "Machine: *$3" || fail "$2: not for $3"
    echo "$2: $(packaging/prove.sh "$binary")"
    dynamic=$(LC_ALL=C readelf --wide --program-headers "$binary" | grep -c INTERP || true)
    [ "$dynamic" = "$([ "$4" = static ] && echo 0 || echo 1)" ] || fail "$2: not $4"
    jq -e '.components | length > 100' "$1/usr/share/doc/layersweep/layersweep.cdx.json" >/dev/null || fail "$2: no bill of materials"
    (cd "$1" && find . ! -type d -printf '%P\n' | LC_ALL=C sort) >"$work/$2.files"
}
# DIR BINARY: the symbols below DIR belong to BINARY.
symbols() {
    id=$(build_id "$2")
    file=$1/usr/lib/debug/.build-id/$(echo "$id" | cut -c 1-2)/$(echo "$id" | cut -c 3-).debug
    [ "$(build_id "$file")" = "$id" ] || fail "$1: not the symbols of $2"
}
# ROOT COMMAND: runs it in a root.
inside() {
    # shellcheck disable=SC2016 # the inner shell expands them
    unshare --mount sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" /bin/sh -c "$1"' "$1" "$2"
}
nothing_left() { # ROOT NAME
    left=$(find "$1" -xdev -name '*layersweep*' ! -path "$1/root/*" ! -path "$1/var/lib/dpkg/*" ! -path "$1/var/lib/rpm/*" ! -path "$1/var/log/*")
    [ -z "$left" ] || fail "$2: left behind: $left"
    echo "$2: installed, enabled, gone without a trace"
}

for arch in x86_64 aarch64; do
    case $arch in
    x86_64) debian=amd64 machine='Advanced Micro Devices X86-64' runs='' ;;
    aarch64) debian=arm64 machine=AArch64 runs=qemu-aarch64-static ;;
    esac
    deb=$(one "layersweep_*_$debian.deb") rpm=$(one "layersweep-[0-9]*.$arch.rpm") tar=$(one "layersweep-*-$arch.tar.gz")
    mkdir -p "$work/deb-$arch" "$work/rpm-$arch" "$work/tar-$arch"
    dpkg-deb --extract "$deb" "$work/deb-$arch"
    (cd "$work/rpm-$arch" && rpm2cpio "$rpm" | cpio --extract --make-directories --quiet)
    tar --extract --file "$tar" --strip-components=1 --directory "$work/tar-$arch"
    for kind in deb rpm; do program "$work/$kind-$arch" "$kind-$arch" "$machine" dynamic; done
    program "$work/tar-$arch" "tar-$arch" "$machine" static

    mkdir -p "$work/debug-deb-$arch" "$work/debug-rpm-$arch"
    dpkg-deb --extract "$(one "layersweep-dbgsym_*_$debian.deb")" "$work/debug-deb-$arch"
    (cd "$work/debug-rpm-$arch" && rpm2cpio "$(one "layersweep-debuginfo-*.$arch.rpm")" | cpio --extract --make-directories --quiet)
    for kind in deb rpm; do symbols "$work/debug-$kind-$arch" "$work/$kind-$arch/usr/bin/layersweep"; done

    root=$work/root-$arch
    cp -a --reflink=auto "$made" "$root"
    cp "$deb" "$root/root/"
    # Of another architecture only the C library is missing, which the scripts of the package do not need.
    [ "$debian" = "$(dpkg --print-architecture)" ] || inside "$root" "dpkg --add-architecture $debian"
    inside "$root" "dpkg --install --force-depends /root/$(basename "$deb")" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "$deb"; }
    [ -L "$root/etc/systemd/system/timers.target.wants/layersweep-scan.timer" ] || fail "$deb: its timer is not enabled"
    inside "$root" 'dpkg --purge --force-depends layersweep' >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "$deb: purge"; }
    nothing_left "$root" "$(basename "$deb")"

    # Its program needs the C library alone.
    needs=$(rpm --query --package --requires --nosignature "$rpm")
    case $needs in *libgcc_s*) fail "$rpm: needs $needs" ;; *libc.so.6*) ;; *) fail "$rpm: needs $needs" ;; esac
    in_root="rpm --root $root --dbpath /var/lib/rpm"
    $in_root --initdb
    $in_root --install --nodeps --ignorearch --nosignature "$rpm"
    [ -L "$root/etc/systemd/system/timers.target.wants/layersweep-scan.timer" ] || fail "$rpm: its timer is not enabled"
    $in_root --verify --nodeps layersweep || fail "$rpm: not as packaged"
    $in_root --erase layersweep
    nothing_left "$root" "$(basename "$rpm")"

    # The same stores for both.
    store=$work/store
    if [ ! -d "$store" ]; then
        mkdir -p "$store/var/lib/containers"
        cp -a fixtures/containerd/2.3.4/root "$store/var/lib/containerd"
        cp -a fixtures/graphroot/toc-digest "$store/var/lib/containers/storage"
    fi
    code=0
    $runs "$work/tar-$arch/usr/bin/layersweep" --sysroot "$store" --no-progress images --format json >"$work/images-$arch" 2>"$work/log" || code=$?
    [ "$code" = 0 ] || [ "$code" = 3 ] || { cat "$work/log" >&2; fail "tar-$arch: exit code $code"; }
    jq -S '[.images[] | {id, store, names, total_bytes, origin}] | sort_by(.id, .names)' "$work/images-$arch" >"$work/same-$arch"
    jq -e 'length > 0' "$work/same-$arch" >/dev/null || fail "tar-$arch: it sees no image"
    echo "tar-$arch: sees $(jq length "$work/same-$arch") images of a store"
done
diff "$work/same-x86_64" "$work/same-aarch64" >&2 || fail 'the architectures see different images'
for kind in deb rpm tar; do
    diff "$work/$kind-x86_64.files" "$work/$kind-aarch64.files" >&2 || fail "$kind: the architectures have different files"
done
echo 'All checks passed.'
