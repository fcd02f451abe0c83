#!/bin/sh
# prove.sh BINARY: checks that it needs no newer glibc than the packages promise (or, if it is static, nothing at all),
# and contains no build paths.
set -eu
binary=$1
floor=${GLIBC:-2.28}
fail() { echo "prove.sh: $binary: $1" >&2; exit 1; }

command -v readelf >/dev/null || { echo 'prove.sh: readelf is missing' >&2; echo 'hint: apt-get install binutils' >&2; exit 1; }
if LC_ALL=C readelf --wide --program-headers "$binary" | grep -q INTERP; then
    highest=$(LC_ALL=C readelf --wide --version-info "$binary" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
    [ -n "$highest" ] || fail 'no versions of symbols in it'
    [ "$(printf '%s\n%s\n' "$highest" "$floor" | sort -V | tail -n 1)" = "$floor" ] ||
        fail "it needs glibc $highest, and $floor is promised"
    needs="glibc $highest"
else
    needs='no libraries'
fi
needed=$(LC_ALL=C readelf --wide --dynamic "$binary" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
for library in $needed; do
    case $library in
    libc.so.6 | libm.so.6 | libpthread.so.0 | libdl.so.2 | librt.so.1 | ld-linux-*)
        [ "$needs" != 'no libraries' ] || fail "it has no interpreter, and needs $library"
        ;;
    *) fail "it needs $library, which is no part of glibc" ;;
    esac
done
LC_ALL=C readelf --notes "$binary" 2>/dev/null | grep -q 'Build ID' || fail 'no build id'
for place in "${HOME:-/root}/" "$PWD/"; do
    [ "$place" = // ] || ! grep -qaF "$place" "$binary" || fail "it holds the path $place"
done
echo "$needs, build id $(LC_ALL=C readelf --notes "$binary" 2>/dev/null | sed -n 's/.*Build ID: //p')"
