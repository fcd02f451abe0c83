#!/bin/bash
# Creates a real store with podman and buildah, plants a few leaks in a copy of it, and shows
# who holds which bytes. Then creates a full node with containerd and pods, runs gc there, and opens explore on it.
# Leaves nothing mounted and nothing running; `tests/demo.sh --clean` removes the store.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PATH:$HOME/.cargo/bin:/usr/sbin:/sbin"
work=${DEMO_DIR:-target/demo}

# Also stops and unmounts what a killed demo left.
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
    echo 'error: the demo creates a store with podman and needs root' >&2
    echo 'hint: sudo make demo' >&2
    exit 1
fi

cargo build --profile quick --locked
program=$PWD/target/quick/layersweep
clean
mkdir -p "$work"
work=$(cd "$work" && pwd -P)
node=$work/node
trap 'tests/rigs/full-node.sh down "$node"' EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM

echo 'Creating a store with podman and buildah (13 images, 3 containers) ...'
tests/rigs/mkstore.sh "$work/made" >/dev/null
echo 'Planting leaks as crashes and killed builds leave them ...'
tests/rigs/inject.sh "$work/made" "$work/store" \
    orphan-dir orphan-image-dir unref-old staging-dead tarsplit-orphan shared-top >/dev/null
rm -rf --one-file-system "$work/made"
store=(--graphroot "$work/store/root" --runroot "$work/store/run")

show() { # HEADLINE ARGUMENT...: the flags of the store are not printed
    printf '\n── %s\n$ layersweep %s\n\n' "$1" "${*:2}"
    "$program" "${@:2}" "${store[@]}"
}
# Prints the screen of explore after keys, as a terminal of 80 by 24 shows it.
explored() { # KEY...
    local directory key screen terminal
    # The path of a socket must be short.
    directory=$(mktemp -d)
    terminal=(env LC_ALL=C.UTF-8 tmux -S "$directory/tmux" -f /dev/null)
    # The last line is that of tmux.
    "${terminal[@]}" new-session -d -x 80 -y 25 "$program" explore "${store[@]}"
    for _ in $(seq 100); do
        screen=$("${terminal[@]}" capture-pane -p)
        [[ $screen != *'? help'* ]] || break
        sleep 0.1
    done
    for key in "$@"; do
        "${terminal[@]}" send-keys "$key"
    done
    sleep 1
    "${terminal[@]}" capture-pane -p
    "${terminal[@]}" kill-server
    rm -r "$directory"
}
show 'Who holds the disk?' usage
show 'What does each image hold, and what would its deletion free?' images
show 'Which layers are there, and who needs them?' layers --tree
show 'Why is this image worth so little?' explain localhost/mk/runtime:1
orphan=$(awk -F '\t' '$1 == "orphan-dir" { print $4 }' "$work/store/INJECTED.tsv" | cut -d ' ' -f 1)
show 'Whose bytes are these?' explain "$work/store/$orphan"

leaky=("${store[@]}")
printf '\nCreating a node: containerd, two pods, 14 images, on an XFS filesystem that is 77 %% full ...\n'
tests/rigs/full-node.sh up "$node" >/dev/null
store=(--containerd-root "$node/node/containerd" --cri-endpoint "$(tests/rigs/full-node.sh socket "$node")"
       --state-dir "$node/state")
# Thresholds for this node; its images are a minute old, which is too young by default.
policy=(--high 74 --low 69 --min-age 0s)
show 'This disk is running full. Who holds it?' usage
show 'What would be deleted?' gc --dry-run "${policy[@]}"
# Exit code 4: the disk does not reach its low threshold.
show 'And if the kubelet did it?' gc --dry-run --policy kubelet "${policy[@]}" || [ $? = 4 ]
show 'And now layersweep, for real.' gc --yes "${policy[@]}"
printf '\n$ df %s\n\n' "$node/node" && df -h "$node/node"
show 'What happened last night?' history
printf '\n── And what would more deletions free? Mark images in explore: its last lines say it.\n$ layersweep explore\n\n'
if [ -t 0 ] && [ -t 1 ]; then
    read -rsp 'Enter opens it; in it, ? shows the keys and q leaves it.'
    "$program" explore "${store[@]}"
else
    explored '/not in use' Enter Enter Space Space
fi

cat <<END

The sum below the list of images is what du reports: $(du -s --block-size=1 "$work/store/root" | cut -f 1 |
    numfmt --to=iec-i --suffix=B --format=%.1f --round=nearest).
The store is in $work/store (planted: INJECTED.tsv). To look further:
  target/quick/layersweep scan --no-record ${leaky[*]} --format json | jq .leaks
  tests/demo.sh --clean
END
