#!/bin/bash
# Stop what 10-start.sh started: containers and shims of this root only, then containerd, then mounts.
# With --wipe the whole $RC directory goes as well.
set -uo pipefail
. "$(dirname "$0")/env.sh"
if [ -f "$PIDFILE" ] && kill -0 "$(cat "$PIDFILE")" 2>/dev/null; then
  if [ "${1:-}" != --keep-pods ]; then
    for n in $(ctr -a "$SOCK" ns ls -q 2>/dev/null); do
      for t in $(CN "$n" task ls -q 2>/dev/null); do CN "$n" task kill -s KILL "$t" >/dev/null 2>&1; done
      sleep 0.3
      for t in $(CN "$n" task ls -q 2>/dev/null); do CN "$n" task rm -f "$t" >/dev/null 2>&1; done
    done
  fi
  p=$(cat "$PIDFILE"); kill "$p" 2>/dev/null; for i in $(seq 50); do kill -0 "$p" 2>/dev/null || break; sleep 0.1; done
  kill -0 "$p" 2>/dev/null && kill -9 "$p"
fi
rm -f "$PIDFILE"
if [ "${1:-}" != --keep-pods ]; then
  # shims have this socket on their command line; each is ended by its pid
  for d in /proc/[0-9]*; do
    { mapfile -d '' -t words <"$d/cmdline"; } 2>/dev/null || continue
    case ${words[*]} in *containerd-shim*"-address $SOCK"*) kill -9 "${d#/proc/}" 2>/dev/null;; esac
  done
  sleep 0.2
  # only the mounts of this root, deepest first
  awk -v p="$RC/" -v r="$ROOT/" 'index($2,p)==1||index($2,r)==1{print $2}' /proc/self/mounts | sort -r | while read -r m; do umount -l "$m" 2>/dev/null; done
fi
# processes left in the pods' cgroup (for example if containerd was down) are ended by pid, then the directories are removed
if [ "${1:-}" != --keep-pods ]; then
  for d in /sys/fs/cgroup/"$CG" /sys/fs/cgroup/*/"$CG"; do
    [ -d "$d" ] || continue
    for p in $(find "$d" -name cgroup.procs -exec cat {} + 2>/dev/null); do kill -9 "$p" 2>/dev/null; done
  done
  sleep 0.3
  for d in /sys/fs/cgroup/"$CG" /sys/fs/cgroup/*/"$CG"; do [ ! -d "$d" ] || find "$d" -depth -type d -exec rmdir {} \; 2>/dev/null; done
fi
[ "${1:-}" = --wipe ] && rm -rf "$RC"
exit 0
