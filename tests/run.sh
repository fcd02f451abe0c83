#!/bin/sh
# All tests: nextest where it is installed (its groups keep tests that mount apart), else
# cargo's own runner. Further arguments go to the runner.
set -eu
cd "$(dirname "$0")/.."
PATH="$PATH:$HOME/.cargo/bin"
if [ "$(id -u)" != 0 ]; then
    echo 'not root: tests that mount filesystems or run podman will be skipped' >&2
fi
if cargo nextest --version >/dev/null 2>&1; then
    cargo test --locked --doc --quiet
    profile=default
    [ -z "${CI:-}" ] || profile=ci
    if [ "$(id -u)" = 0 ] && [ $# = 0 ]; then
        # All of them do not depend on the machine; that is shown with a few that ask it most.
        tests/hermetic.sh cargo nextest run --locked --profile "$profile" \
            -E 'test(/^(diff_command|fixtures_read|protection)::/)'
    fi
    exec cargo nextest run --locked --profile "$profile" "$@"
fi
exec cargo test --locked "$@"
