#!/bin/sh
# stage.sh BINARY [DESTDIR]: installs every file of a package below DESTDIR. PREFIX (/usr) is for the program
# and its files, SYSCONFDIR (/etc) for the configuration. It can be run again.
# GENERATOR: a layersweep that runs here, for man pages and completions, if BINARY is for another machine.
set -eu
binary=$(realpath "$1")
dest=$(realpath --canonicalize-missing "${2:-/}")
prefix=${PREFIX:-/usr}
etc=${SYSCONFDIR:-/etc}
generator=${GENERATOR:-$binary}
cd "$(dirname "$0")/.."
umask 022
root=${dest%/}
usr=$root$prefix

put() { # MODE FROM TO
    install -D -m "$1" "$2" "$3"
}
# The units have the path below /usr; PREFIX replaces it.
units() { sed "s,/usr/bin/layersweep,$prefix/bin/layersweep,g; s,/usr/share/doc/,$prefix/share/doc/,g" "$1"; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
put 755 "$binary" "$usr/bin/layersweep"
put 644 packaging/etc/vendor.toml "$usr/lib/layersweep/layersweep.toml"
# Never overwrite the administrator's files.
[ -e "$root$etc/layersweep/layersweep.toml" ] ||
    put 644 packaging/etc/layersweep.toml "$root$etc/layersweep/layersweep.toml"
install -d -m 755 "$root$etc/layersweep/layersweep.toml.d"
for unit in packaging/systemd/*.service packaging/systemd/*.timer packaging/systemd/*.path; do
    units "$unit" >"$work/unit"
    put 644 "$work/unit" "$usr/lib/systemd/system/$(basename "$unit")"
done
for unit in packaging/systemd/user/*; do
    units "$unit" >"$work/unit"
    put 644 "$work/unit" "$usr/lib/systemd/user/$(basename "$unit")"
done
put 644 packaging/systemd/90-layersweep.preset "$usr/lib/systemd/system-preset/90-layersweep.preset"
put 644 packaging/systemd/layersweep.tmpfiles "$usr/lib/tmpfiles.d/layersweep.conf"

"$generator" man "$work/man"
for page in "$work"/man/*.1; do
    put 644 "$page" "$usr/share/man/man1/$(basename "$page")"
done
put 644 "$work/man/layersweep.toml.5" "$usr/share/man/man5/layersweep.toml.5"
"$generator" completions bash >"$work/bash"
"$generator" completions zsh >"$work/zsh"
"$generator" completions fish >"$work/fish"
put 644 "$work/bash" "$usr/share/bash-completion/completions/layersweep"
put 644 "$work/zsh" "$usr/share/zsh/site-functions/_layersweep"
put 644 "$work/fish" "$usr/share/fish/vendor_completions.d/layersweep.fish"

put 644 LICENSE "$usr/share/licenses/layersweep/LICENSE"
put 644 NOTICE "$usr/share/licenses/layersweep/NOTICE"
packaging/licences.sh >"$work/licences"
put 644 "$work/licences" "$usr/share/licenses/layersweep/LICENSE.dependencies"
packaging/licences.sh --cyclonedx >"$work/bom"
put 644 "$work/bom" "$usr/share/doc/layersweep/layersweep.cdx.json"
doc=$usr/share/doc/layersweep
put 644 README.md "$doc/README.md"
put 644 CHANGELOG.md "$doc/CHANGELOG.md"
# In a directory of their own, as in the links between them and in messages of the program.
for page in docs/*.md docs/schema/*.json docs/pictures/*.png; do
    put 644 "$page" "$doc/$page"
done
(cd packaging && find openshift kubernetes kubelet prometheus grafana sos -type f) >"$work/examples"
while read -r example; do
    put 644 "packaging/$example" "$doc/examples/$example"
done <"$work/examples"

# The package layersweep-cron, for nodes without systemd.
put 644 packaging/cron/layersweep.cron "$root$etc/cron.d/layersweep-cron"
put 644 packaging/cron/layersweep.logrotate "$root$etc/logrotate.d/layersweep-cron"
put 755 packaging/cron/cron.sh "$usr/lib/layersweep/cron"
