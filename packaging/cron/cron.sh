#!/bin/sh
# cron.sh scan|gc: what the timers of systemd do, for cron. Says nothing to cron, so that nothing is
# mailed; what a run says goes to /var/log/layersweep.log (or $LAYERSWEEP_CRON_LOG), its bad end too.
set -u
command=${1:-}
log=${LAYERSWEEP_CRON_LOG:-/var/log/layersweep.log}
run=/run/layersweep
umask 077

case $command in
scan) set -- --quiet ;;
gc) set -- --yes --quiet ;;
*) echo "usage: $0 scan|gc" >&2; exit 2 ;;
esac
# One of the two is enough.
if [ -d /run/systemd/system ] && systemctl is-active --quiet "layersweep-$command.timer" 2>/dev/null; then
    exit 0
fi
if [ "$command" = gc ] && { [ -e $run/hold ] || [ -e /etc/layersweep/hold ]; }; then
    exit 0
fi
mkdir -p $run || exit 1
# The run before is still at work: the next one comes soon enough.
exec 9>>"$run/cron-$command.lock" || exit 1
flock -n 9 || exit 0
# The nodes of a fleet spread over four minutes; each has a time of its own, by its name.
if [ -z "${LAYERSWEEP_CRON_NOW:-}" ]; then
    sleep $(($(uname -n | cksum | cut -d ' ' -f 1) % 240))
fi
exec >>"$log" 2>&1
# Neither the program nor what it starts holds the lock any longer than this script.
nice -n 19 ionice -c 3 layersweep "$command" "$@" 9>&-
code=$?
# What is not mended by being told of it every five minutes: see layersweep-scan.service.
case $command$code in
scan0 | scan3 | scan10 | gc0 | gc3 | gc4 | gc10) exit 0 ;;
esac
echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) layersweep $command ended with exit code $code"
exit 0
