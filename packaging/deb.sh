#!/bin/sh
# deb.sh STAGE OUT: layersweep_<version>_<arch>.deb, layersweep-cron_<version>_all.deb and, if the symbols are staged,
# layersweep-dbgsym_<version>_<arch>.deb, from a staged tree.
# TARGET: the target of the binary. PACKAGE_VERSION: overrides that of debian/changelog.
set -eu
stage=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
cd "$(dirname "$0")/.."
umask 022
: "${SOURCE_DATE_EPOCH:?is set by build.sh}"
case ${TARGET:-x86_64-unknown-linux-gnu} in
x86_64-*) arch=amd64 ;;
aarch64-*) arch=arm64 ;;
powerpc64le-*) arch=ppc64el ;;
s390x-*) arch=s390x ;;
*) echo "deb.sh: no Debian architecture is known for $TARGET" >&2; exit 1 ;;
esac
first=$(head -n 1 packaging/debian/changelog | sed 's/.*(\(.*\)).*/\1/')
version=${PACKAGE_VERSION:+$PACKAGE_VERSION-1}
version=${version:-$first}
author='The layersweep authors <layersweep@example.org>'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

squeeze() { gzip -9n "$@"; }
# DIR PACKAGE: documents that every package has.
documents() {
    doc=$1/usr/share/doc/$2
    mkdir -p "$doc"
    sed "1s/(.*)/($version)/" packaging/debian/changelog | squeeze >"$doc/changelog.Debian.gz"
    cp packaging/debian/copyright "$doc/copyright"
}
# DIR PACKAGE ARCH DEPENDS SUMMARY: writes DEBIAN/control (description from stdin) and builds.
build() {
    mkdir -p "$1/DEBIAN"
    size=$(cd "$1" && find . -path ./DEBIAN -prune -o -type f -printf '%s\n' | awk '{ kib += int(($1 + 1023) / 1024) } END { print kib + 0 }')
    {
        printf 'Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: %s\n' "$2" "$version" "$3" "$author"
        printf 'Installed-Size: %s\nDepends: %s\nSection: admin\nPriority: optional\n' "$size" "$4"
        [ "$2" != layersweep ] || printf 'Suggests: layersweep-cron\n'
        printf 'Description: %s\n' "$5"
        sed -e 's/^$/./' -e 's/^/ /'
    } >"$1/DEBIAN/control"
    (cd "$1" && find etc -type f -printf '/%p\n' 2>/dev/null | LC_ALL=C sort) >"$1/DEBIAN/conffiles"
    (cd "$1" && find . -path ./DEBIAN -prune -o -type f ! -path './etc/*' -printf '%P\0' | LC_ALL=C sort -z | xargs -0 md5sum) >"$1/DEBIAN/md5sums"
    chmod -R u=rwX,go=rX "$1"
    find "$1" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz "-z${XZ_LEVEL:-6}" --build "$1" "$out/$2_${version}_$3.deb" >/dev/null
    echo "$out/$2_${version}_$3.deb"
}

main=$work/main
cp -a "$stage" "$main"
# Files of layersweep-cron.
cron=$work/cron
for file in etc/cron.d/layersweep-cron etc/logrotate.d/layersweep-cron usr/lib/layersweep/cron; do
    mkdir -p "$cron/$(dirname "$file")"
    mv "$main/$file" "$cron/$file"
done
rmdir "$main/etc/cron.d" "$main/etc/logrotate.d"
symbols=$work/symbols
if [ -d "$main/usr/lib/debug" ]; then
    mkdir -p "$symbols/usr/lib"
    mv "$main/usr/lib/debug" "$symbols/usr/lib/debug"
fi
documents "$main" layersweep
doc=$main/usr/share/doc/layersweep
mv "$doc/CHANGELOG.md" "$doc/changelog"
mv "$main/usr/share/licenses/layersweep/LICENSE.dependencies" "$main/usr/share/licenses/layersweep/NOTICE" "$doc/"
rm -r "$main/usr/share/licenses"
squeeze "$doc/changelog" "$doc/LICENSE.dependencies" "$main"/usr/share/man/man1/*.1 "$main"/usr/share/man/man5/*.5
mkdir -p "$main/usr/share/zsh/vendor-completions"
mv "$main/usr/share/zsh/site-functions/_layersweep" "$main/usr/share/zsh/vendor-completions/"
rmdir "$main/usr/share/zsh/site-functions"
install -D -m 644 packaging/debian/layersweep.lintian-overrides "$main/usr/share/lintian/overrides/layersweep"
for script in postinst prerm postrm; do
    install -D -m 755 "packaging/debian/$script" "$main/DEBIAN/$script"
done
build "$main" layersweep "$arch" 'libc6 (>= 2.28), init-system-helpers (>= 1.54~)' \
    'shows which images fill a container host, and frees space' <<'EOF'
Reads the image storage of CRI-O, Podman, Buildah and containerd directly
from disk and shows exactly how many bytes each image holds, what each
deletion would free, and what is unused. Deletes by policy before the disk
is full, and measures the disk after every deletion.

A timer scans every five minutes. The timer that deletes has to be enabled
by hand (systemctl enable --now layersweep-gc.timer).
EOF

install -D -m 755 packaging/debian/cron.postrm "$cron/DEBIAN/postrm"
install -D -m 644 packaging/debian/layersweep-cron.lintian-overrides "$cron/usr/share/lintian/overrides/layersweep-cron"
documents "$cron" layersweep-cron
build "$cron" layersweep-cron all "layersweep (>= ${version%-*}), cron | cron-daemon" \
    'cron jobs of layersweep, for hosts without systemd' <<'EOF'
Runs the scan of layersweep every five minutes by cron. Where the timer of
systemd is active, it does nothing.
EOF

[ -d "$symbols" ] || exit 0
documents "$symbols" layersweep-dbgsym
build "$symbols" layersweep-dbgsym "$arch" "layersweep (= $version)" 'debug symbols for layersweep' <<'EOF'
For backtraces with lines, and for debuggers.
EOF
