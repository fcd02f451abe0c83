#!/bin/bash
# Makes a real store with podman and buildah, plants a few leaks in a copy of it, and shows
# who holds which bytes. Then makes a node with containerd and pods that runs full, and collects.
# Leaves nothing mounted and nothing running; `tests/demo.sh --clean` takes the store away.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PATH:$HOME/.cargo/bin:/usr/sbin:/sbin"
work=${DEMO_DIR:-target/demo}

# Also what a demo that was killed has left running and mounted.
clean() {
    [ -d "$work" ] || return 0
    tests/rigs/full-node.sh down "$(cd "$work" && pwd -P)/node"
    rm -rf --one-file-system "$work"
}
if [ "${1:-}" = --clean ]; then
    clean
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    echo 'error: the demo makes a store with podman as root, and you are not root' >&2
    echo 'hint: sudo make demo' >&2
    exit 1
fi

cargo build --release --locked
program=$PWD/target/release/layersweep
clean
mkdir -p "$work"
work=$(cd "$work" && pwd -P)
node=$work/node
trap 'tests/rigs/full-node.sh down "$node"' EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM

echo 'Making a store with podman and buildah (13 images, 3 containers) ...'
tests/rigs/mkstore.sh "$work/made" >/dev/null
echo 'Planting what crashes and killed builds leave behind ...'
tests/rigs/inject.sh "$work/made" "$work/store" \
    orphan-dir orphan-image-dir unref-old staging-dead tarsplit-orphan shared-top >/dev/null
rm -rf --one-file-system "$work/made"
store=(--graphroot "$work/store/root" --runroot "$work/store/run")

show() { # headline, arguments; the flags of the store are left out of what is printed
    printf '\n── %s\n$ layersweep %s\n\n' "$1" "${*:2}"
    "$program" "${@:2}" "${store[@]}"
}
show 'Who holds the disk?' usage
show 'What does each image hold, and what would its deletion free?' images
show 'Which layers are there, and who needs them?' layers --tree
show 'Why is this image worth so little?' explain localhost/mk/runtime:1
orphan=$(awk -F '\t' '$1 == "orphan-dir" { print $4 }' "$work/store/INJECTED.tsv" | cut -d ' ' -f 1)
show 'Whose bytes are these?' explain "$work/store/$orphan"

leaky=("${store[@]}")
printf '\nMaking a node: containerd, two pods, 14 images, on an XFS filesystem that is 77 %% full ...\n'
tests/rigs/full-node.sh up "$node" >/dev/null
store=(--containerd-root "$node/node/containerd" --cri-endpoint "$(tests/rigs/full-node.sh socket "$node")"
       --state-dir "$node/state")
# Marks of the node that this was made for; its images are a minute old, which is too young by default.
policy=(--high 74 --low 69 --min-age 0s)
show 'This disk is running full. Who holds it?' usage
show 'What would go?' gc --dry-run "${policy[@]}"
# Exit code 4: what is asked for does not get the disk to its low mark.
show 'And if the kubelet did it?' gc --dry-run --policy kubelet "${policy[@]}" || [ $? = 4 ]
show 'Then ours, for real.' gc --yes "${policy[@]}"
printf '\n$ df %s\n\n' "$node/node" && df -h "$node/node"
show 'What happened last night?' history

cat <<END

The sum in the first picture is what du says: $(du -s --block-size=1 "$work/store/root" | cut -f 1) bytes.
The store is in $work/store (planted: INJECTED.tsv). To look further:
  target/release/layersweep scan --no-record ${leaky[*]} --format json | jq .leaks
  tests/demo.sh --clean
END
