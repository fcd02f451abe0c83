#!/bin/sh
# cron.sh scan|gc: does for cron what the systemd timers do. Prints nothing, so that cron sends no mail;
# output and failures are written to /var/log/layersweep.log (or $LAYERSWEEP_CRON_LOG).
set -u
command=${1:-}
log=${LAYERSWEEP_CRON_LOG:-/var/log/layersweep.log}
run=/run/layersweep
umask 077

case $command in
scan) set -- --quiet --reserve ;;
gc) set -- --yes --quiet ;;
*) echo "usage: $0 scan|gc" >&2; exit 2 ;;
esac
# Do nothing if the systemd timer is active.
if [ -d /run/systemd/system ] && systemctl is-active --quiet "layersweep-$command.timer" 2>/dev/null; then
    exit 0
fi
if [ "$command" = gc ] && { [ -e $run/hold ] || [ -e /etc/layersweep/hold ]; }; then
    exit 0
fi
mkdir -p $run || exit 1
# The previous run is still active: skip this one.
exec 9>>"$run/cron-$command.lock" || exit 1
flock -n 9 || exit 0
# Spreads the nodes of a fleet over four minutes, each with a fixed offset from its name.
if [ -z "${LAYERSWEEP_CRON_NOW:-}" ]; then
    sleep $(($(uname -n | cksum | cut -d ' ' -f 1) % 240))
fi
exec >>"$log" 2>&1
# The program and its children must not hold the lock longer than this script.
nice -n 19 ionice -c 3 layersweep "$command" "$@" 9>&-
code=$?
# These exit codes are not logged every five minutes: see layersweep-scan.service.
case $command$code in
scan0 | scan3 | scan10 | gc0 | gc3 | gc4 | gc10) exit 0 ;;
esac
echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) layersweep $command ended with exit code $code"
exit 0
