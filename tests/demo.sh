#!/bin/bash
# Makes a real store with podman and buildah, plants a few leaks in a copy of it, and shows
# who holds which bytes. Leaves nothing mounted; `tests/demo.sh --clean` takes it away.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PATH:$HOME/.cargo/bin:/usr/sbin:/sbin"
work=${DEMO_DIR:-target/demo}

if [ "${1:-}" = --clean ]; then
    [ ! -d "$work" ] || rm -rf --one-file-system "$work"
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    echo 'error: the demo makes a store with podman as root, and you are not root' >&2
    echo 'hint: sudo make demo' >&2
    exit 1
fi

cargo build --release --locked
program=$PWD/target/release/layersweep
[ ! -d "$work" ] || rm -rf --one-file-system "$work"
mkdir -p "$work"
work=$(cd "$work" && pwd)

echo 'Making a store with podman and buildah (13 images, 3 containers) ...'
tests/rigs/mkstore.sh "$work/made" >/dev/null
echo 'Planting what crashes and killed builds leave behind ...'
tests/rigs/inject.sh "$work/made" "$work/store" \
    orphan-dir orphan-image-dir unref-old staging-dead tarsplit-orphan shared-top >/dev/null
rm -rf --one-file-system "$work/made"
store=(--graphroot "$work/store/root" --runroot "$work/store/run")

show() { # headline, arguments
    printf '\n── %s\n$ layersweep %s\n\n' "$1" "${*:2}"
    "$program" "${@:2}" "${store[@]}"
}
show 'Who holds the disk?' usage
show 'What does each image hold, and what would its deletion free?' images
show 'Which layers are there, and who needs them?' layers --tree
show 'Why is this image worth so little?' explain localhost/mk/runtime:1
orphan=$(awk -F '\t' '$1 == "orphan-dir" { print $4 }' "$work/store/INJECTED.tsv" | cut -d ' ' -f 1)
show 'Whose bytes are these?' explain "$work/store/$orphan"

cat <<END

The sum above is what du says: $(du -s --block-size=1 "$work/store/root" | cut -f 1) bytes.
The store is in $work/store (planted: INJECTED.tsv). To look further:
  target/release/layersweep scan --no-record ${store[*]} --format json | jq .leaks
  tests/demo.sh --clean
END
