#!/bin/sh
# debian-root.sh DIR [PACKAGE...]: a small Debian with systemd and these packages, from the mirror that this machine
# installs from. An archive of it is kept in the user's cache for a week: making it takes a minute, unpacking a second.
set -eu
dir=$1
shift
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/layersweep
archive=$cache/debian-$suite-$( (cat "$0" && echo "$*") | sha256sum | cut -c 1-16).tar
mkdir -p "$cache"
find "$cache" -name 'debian-*.tar' -mtime +7 -delete
if [ ! -e "$archive" ]; then
    command -v mmdebstrap >/dev/null || { echo 'mmdebstrap is missing' >&2; exit 1; }
    # shellcheck disable=SC2016 # apt-get expands it
    mirror=$(apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' 2>/dev/null |
        awk -v suite="$suite" '$2 == suite && $3 == "main" { print $1; exit }')
    new=$(mktemp "$archive.XXXXXX")
    # Without files that are not needed and take time to copy, and without timers and services of its own.
    # shellcheck disable=SC2016 # mmdebstrap's shell expands it
    mmdebstrap --variant=minbase --include="systemd systemd-sysv dbus cron $*" --format=tar \
        --customize-hook='cd "$1" && rm -rf var/cache/apt/* var/lib/apt/lists/* usr/share/locale usr/share/doc/* usr/share/man/*' \
        --customize-hook='cd "$1/etc/systemd/system" && for unit in apt-daily.timer apt-daily-upgrade.timer \
            dpkg-db-backup.timer e2scrub_all.timer fstrim.timer; do ln -sf /dev/null "$unit"; done' \
        "$suite" "$new" "${mirror:-http://deb.debian.org/debian}" >"$new.log" 2>&1 ||
        { tail -n 20 "$new.log" >&2; rm "$new" "$new.log"; exit 1; }
    rm "$new.log"
    mv "$new" "$archive"
fi
rm -rf --one-file-system "$dir"
mkdir -p "$dir"
tar --extract --file "$archive" --directory "$dir" --numeric-owner --same-permissions
