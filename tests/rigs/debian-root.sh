#!/bin/sh
# debian-root.sh DIR [PACKAGE...]: a small Debian with systemd and these packages, from the mirror that this machine
# installs from.
set -eu
dir=$1
shift
command -v mmdebstrap >/dev/null || { echo 'mmdebstrap is missing' >&2; exit 1; }
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirror=$(apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' 2>/dev/null |
    awk -v suite="$suite" '$2 == suite && $3 == "main" { print $1; exit }')
rm -rf --one-file-system "$dir"
mmdebstrap --variant=minbase --include="systemd systemd-sysv dbus cron $*" "$suite" "$dir" \
    "${mirror:-http://deb.debian.org/debian}" >"$dir.log" 2>&1 || { tail -n 20 "$dir.log" >&2; exit 1; }
# Files that are not needed and take time to copy.
rm -rf "$dir"/var/cache/apt/* "$dir"/var/lib/apt/lists/* "$dir"/usr/share/locale \
    "$dir"/usr/share/doc/* "$dir"/usr/share/man/*
# Disable its own timers and services.
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer; do
    ln -sf /dev/null "$dir/etc/systemd/system/$unit"
done
