#!/bin/sh
# Compares a scan with a bare walk and with other programs, on a synthetic graphroot on a
# separate loop filesystem; see benches/scan/main.rs for the settings.
set -eu
cd "$(dirname "$0")/.."
PATH="$PATH:$HOME/.cargo/bin:/usr/sbin:/sbin"
if [ "$(id -u)" != 0 ]; then
    echo 'error: the benchmark mounts loop filesystems and drops caches, and you are not root' >&2
    echo 'hint: sudo make bench' >&2
    exit 1
fi
benches/peers.sh
cargo bench --locked --bench scan
cargo bench --locked --bench removal
# 10,000 nodes take some minutes: cargo bench --bench replay -- 10000
exec cargo bench --locked --bench replay
