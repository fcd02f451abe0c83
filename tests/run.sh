#!/bin/sh
# Runs all tests, each in a separate process: with nextest if it is installed (arguments are passed on),
# else with a loop (arguments are then parts of names).
set -eu
cd "$(dirname "$0")/.."
PATH="$PATH:$HOME/.cargo/bin"
if [ "$(id -u)" != 0 ]; then
    echo 'not root: tests that mount filesystems or run podman are skipped' >&2
elif [ "${LAYERSWEEP_TESTS:-}" != alone ]; then
    exec env LAYERSWEEP_TESTS=alone unshare --mount --propagation private tests/run.sh "$@"
else
    # Some tests mount over these directories, run the program as another user, or write paths into scripts: the
    # tests use a bind mount of the clone at a path where all of that works. Cargo does not rebuild when the path of a clone
    # changes, although the programs contain the path, so the target directory is a separate one too.
    cd -P .
    case $PWD in
    /home/* | /mnt/* | /root/* | /run/* | /srv/* | /var/* | *[!A-Za-z0-9/._-]*)
        unset CARGO_TARGET_DIR
        mkdir -p /media target/media
        mount --rbind "$PWD" /media
        mount --bind target/media /media/target
        cd /media
        ;;
    esac
    # usage and report read everything on a store's filesystem, so the tests use a separate one. It is sparse, and
    # is removed with this process.
    mkdir -p target
    image=$(mktemp -p target tests-XXXXXX)
    # podman accepts no runroot of more than 50 characters.
    TMPDIR=$(mktemp -d /tmp/XXXX)
    trap 'umount --lazy "$TMPDIR"; rmdir "$TMPDIR"' EXIT
    truncate -s 32G "$image"
    # With a journal, although the tests do not need it: without one, ext4 does not reuse an inode that was freed in
    # the last minutes, and the search for another one takes most of the kernel's time here.
    mkfs.ext4 -q -F -m 0 "$image"
    mount -o loop,noatime,nobarrier,discard "$image" "$TMPDIR"
    rm "$image"
    chmod 1777 "$TMPDIR"
    export TMPDIR
fi
# Each test that is skipped writes its name and the reason.
LAYERSWEEP_SKIPPED=$(mktemp)
export LAYERSWEEP_SKIPPED
failed=0
if cargo nextest --version >/dev/null 2>&1; then
    # nextest does not run doc tests. A block of text is not a doc test.
    if find src -name '*.rs' -exec cat {} + |
        awk '/^ *\/\/[\/!] *```/ { inside = !inside; if (inside && !/```text/) found = 1 } END { exit !found }'; then
        cargo test --locked --doc --quiet || failed=1
    fi
    profile=default
    [ -z "${CI:-}" ] || profile=ci
    # See .config/nextest.toml.
    export NEXTEST_TEST_THREADS="${NEXTEST_TEST_THREADS:-$(($(nproc) * 5))}"
    cargo nextest run --locked --profile "$profile" "$@" || failed=1
else
    programs=$(cargo test --locked --no-run --message-format json |
        jq -r 'select(.executable != null and .profile.test) | .executable')
    for program in $programs; do
        "$program" --list --format terse "$@" | sed -n 's/: test$//p' |
            xargs -r -P "$(nproc)" -n 1 sh -c \
                'said=$("$0" --exact "$1" 2>&1) && echo "ok      $1" || { echo "$said"; echo "FAILED  $1"; exit 1; }' \
                "$program" || failed=1
    done
fi
if [ -s "$LAYERSWEEP_SKIPPED" ]; then
    echo "error: not everything was tested; with CI set, these tests fail:" >&2
    sort -u "$LAYERSWEEP_SKIPPED" >&2
    failed=1
fi
rm -f "$LAYERSWEEP_SKIPPED"
exit $failed
