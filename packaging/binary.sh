#!/bin/sh
# Builds the program for the packages, linked by zig against an old glibc, so that it runs on RHEL 8, Debian 10 and
# everything later; or, with LINK=static, with this machine's glibc in it, so that it runs on any Linux. Prints its path;
# its debug symbols are beside it, in FILE.debug.
#   TARGET=aarch64-unknown-linux-gnu   another architecture
#   PROFILE=quick                      a faster build
# zig and cargo-zigbuild (from PyPI) are installed below target/.
set -eu
cd "$(dirname "$0")/.."
PATH="$PATH:$HOME/.cargo/bin"
target=${TARGET:-x86_64-unknown-linux-gnu}
glibc=${GLIBC:-2.28}
profile=${PROFILE:-release}
link=${LINK:-dynamic}
fail() { echo "binary.sh: $1" >&2; echo "hint: $2" >&2; exit 1; }

command -v protoc >/dev/null || fail 'protoc is not there' 'apt-get install protobuf-compiler'
if [ "$target" != "$(rustc -vV | sed -n 's/^host: //p')" ]; then
    if [ -d "/usr/lib/rustlib/$target" ]; then
        # Debian's compiler: its packages have the standard libraries of other architectures.
        PATH="/usr/bin:$PATH"
    else
        rustup target add "$target" >&2 || fail "no standard library for $target" "rustup target add $target, or packaging/setup.sh"
    fi
fi
# The GNU tools of an architecture are named aarch64-linux-gnu-gcc and the like.
tools=$(echo "$target" | sed 's/-unknown//')
command -v "$tools-objcopy" >/dev/null || fail "$tools-objcopy is not there" 'packaging/setup.sh'
# No path of this machine in the binary, so that builds are reproducible.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
rustc_home=$(rustc --print sysroot)
flags="-C link-arg=-Wl,--build-id=sha1 -C strip=none --remap-path-prefix=$PWD=/layersweep \
--remap-path-prefix=$cargo_home=/cargo --remap-path-prefix=$rustc_home=/rustc"
CFLAGS="-ffile-prefix-map=$cargo_home=/cargo -ffile-prefix-map=$PWD=/layersweep"
export CFLAGS
case $link in
dynamic)
    venv=$PWD/target/packaging-venv
    if [ ! -x "$venv/bin/cargo-zigbuild" ] || ! cmp -s packaging/requirements.txt "$venv/made-from"; then
        command -v python3 >/dev/null || fail 'python3 is not there' 'apt-get install python3 python3-venv'
        rm -rf "$venv"
        python3 -m venv "$venv" >&2 || fail 'no virtual environment can be made' 'apt-get install python3-venv'
        "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r packaging/requirements.txt >&2 ||
            fail 'zig and cargo-zigbuild cannot be installed' 'see what pip says above'
        cp packaging/requirements.txt "$venv/made-from"
    fi
    dir=${CARGO_TARGET_DIR:-target}
    RUSTFLAGS=$flags PATH="$venv/bin:$PATH" \
        "$venv/bin/cargo-zigbuild" zigbuild --profile "$profile" --locked --target "$target.$glibc" --target-dir "$dir" >&2
    ;;
static)
    command -v "$tools-gcc" >/dev/null || fail "$tools-gcc is not there" 'packaging/setup.sh'
    dir=${CARGO_TARGET_DIR:-target}/static
    name=$(echo "$target" | tr - _)
    env "CC_$name=$tools-gcc" "CARGO_TARGET_$(echo "$name" | tr '[:lower:]' '[:upper:]')_LINKER=$tools-gcc" \
        RUSTFLAGS="$flags -C target-feature=+crt-static" \
        cargo build --profile "$profile" --locked --target "$target" --target-dir "$dir" >&2
    ;;
*) fail "LINK=$link is neither dynamic nor static" 'LINK=static packaging/binary.sh' ;;
esac
built=$dir/$target/$profile
mkdir -p "$built/shipped"
"$tools-objcopy" --only-keep-debug --compress-debug-sections "$built/layersweep" "$built/shipped/layersweep.debug"
"$tools-objcopy" --strip-all "$built/layersweep" "$built/shipped/layersweep"
packaging/prove.sh "$built/shipped/layersweep" >&2
echo "$built/shipped/layersweep"
