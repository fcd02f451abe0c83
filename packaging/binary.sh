#!/bin/sh
# Builds the program for the packages: target/<target>/release/layersweep, linked by zig against an old
# glibc, so that it runs on RHEL 8, Debian 10 and everything later. TARGET=aarch64-unknown-linux-gnu for
# another architecture, PROFILE=trial for a faster build. zig and cargo-zigbuild (from PyPI) are installed below target/.
set -eu
cd "$(dirname "$0")/.."
PATH="$PATH:$HOME/.cargo/bin"
target=${TARGET:-x86_64-unknown-linux-gnu}
glibc=${GLIBC:-2.28}
profile=${PROFILE:-release}
built=${CARGO_TARGET_DIR:-target}/$target/$profile/layersweep
fail() { echo "binary.sh: $1" >&2; echo "hint: $2" >&2; exit 1; }

command -v protoc >/dev/null || fail 'protoc is not there' 'apt-get install protobuf-compiler'
venv=$PWD/target/packaging-venv
if [ ! -x "$venv/bin/cargo-zigbuild" ] || ! cmp -s packaging/requirements.txt "$venv/made-from"; then
    command -v python3 >/dev/null || fail 'python3 is not there' 'apt-get install python3 python3-venv'
    rm -rf "$venv"
    python3 -m venv "$venv" >&2 || fail 'no virtual environment can be made' 'apt-get install python3-venv'
    "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r packaging/requirements.txt >&2 ||
        fail 'zig and cargo-zigbuild cannot be installed' 'see what pip says above'
    cp packaging/requirements.txt "$venv/made-from"
fi
if [ "$target" != "$(rustc -vV | sed -n 's/^host: //p')" ]; then
    rustup target add "$target" >&2 || fail "no standard library for $target" "rustup target add $target"
fi
# No path of this machine in the binary, so that builds are reproducible.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
rustc_home=$(rustc --print sysroot)
RUSTFLAGS="-C link-arg=-Wl,--build-id=sha1 -C strip=symbols --remap-path-prefix=$PWD=/layersweep \
--remap-path-prefix=$cargo_home=/cargo --remap-path-prefix=$rustc_home=/rustc" \
    CFLAGS="-ffile-prefix-map=$cargo_home=/cargo -ffile-prefix-map=$PWD=/layersweep" \
    PATH="$venv/bin:$PATH" \
    "$venv/bin/cargo-zigbuild" zigbuild --profile "$profile" --locked --target "$target.$glibc" >&2
packaging/prove.sh "$built" >&2
echo "$built"
