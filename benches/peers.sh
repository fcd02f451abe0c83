#!/bin/sh
# Installs the programs that the benchmark compares with: gdu from the distribution, the
# others with cargo into target/peers. A program that cannot be installed is named, and the benchmark runs
# without it. Versions are fixed, so that results of different days can be compared.
set -eu
cd "$(dirname "$0")/.."
missing=""

if ! command -v gdu >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get install -y --no-install-recommends gdu || missing="$missing gdu"
    else
        missing="$missing gdu"
    fi
fi

# install PROGRAM CRATE VERSION [FLAG...]
install() {
    program=$1 crate=$2 version=$3
    shift 3
    if [ -x "target/peers/bin/$program" ] || command -v "$program" >/dev/null; then
        return
    fi
    cargo install --locked --root target/peers --version "$version" "$@" "$crate" ||
        missing="$missing $program"
}
install diskus diskus 0.9.0
install dust du-dust 1.2.7
install pdu parallel-disk-usage 0.24.0
# Without its terminal interface, which is not measured.
install dua dua-cli 2.46.0 --no-default-features

for program in $missing; do
    echo "peers: $program cannot be had here; the benchmark will name it as missing" >&2
done
