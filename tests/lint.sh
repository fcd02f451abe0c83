#!/bin/sh
# Format, lints and documentation, warnings denied.
set -eu
cd "$(dirname "$0")/.."
PATH="$PATH:$HOME/.cargo/bin"
cargo fmt --all --check
cargo clippy --locked --all-targets -- -D warnings
# There are no examples. Asked for them too, cargo takes the features that clippy took, with what tests need; else it
# would check a third of the dependencies once more, with fewer.
RUSTDOCFLAGS='-D warnings' cargo doc --locked --no-deps --document-private-items --quiet --lib --examples
