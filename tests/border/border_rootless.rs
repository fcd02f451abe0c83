//! A user's own store: edited by that user in the namespace of `podman unshare`, and by no other user.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use crate::support;
use support::{alice, promises, require_program};

/// Two images of busybox, and a container of the first.
const STORE: &str = r#"
mkdir -p rootfs/bin
cp "$(command -v cat)" rootfs/bin/cat
echo hello >rootfs/hello
tar -C rootfs -cf rootfs.tar .
chmod 644 rootfs.tar
as_alice podman import rootfs.tar localhost/used:1 >/dev/null 2>&1
as_alice podman import --change LABEL=other=1 rootfs.tar localhost/unused:1 >/dev/null 2>&1
as_alice podman create --name web --network none localhost/used:1 /bin/cat /hello >/dev/null 2>&1
orphan=.local/share/containers/storage/overlay/$(printf '%064d' 7)
as_alice mkdir -p "$orphan/diff"
direct="--via direct --min-age 0s -y"
sleep 1.1
"#;

fn run(script: &str) -> Option<support::program::Run> {
    if !alice::require() || !require_program("podman") || !require_program("newuidmap") {
        return None;
    }
    Some(alice::run(&format!("{STORE}{script}")))
}

#[test]
fn podman_unshare_deletes_unused_images_of_user() {
    let Some(run) = run(r#"
as_alice podman unshare "$program" rm $direct localhost/unused:1
code=0
as_alice podman unshare "$program" rm $direct localhost/used:1 || code=$?
echo "in use: $code"
as_alice podman unshare "$program" sweep --delete --min-age 0s -y
as_alice podman images --format '{{.Repository}}' 2>/dev/null
as_alice podman unshare sh -c 'cat "$(podman mount web)/hello"' 2>/dev/null
[ ! -e "$orphan" ] && echo "no orphan"
as_alice podman commit -q web localhost/more:1 >/dev/null 2>&1
sleep 1.1
# The runtime of the node, which alice may not ask, does not use her store.
mkdir /run/crio
perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); bind(S, sockaddr_un("/run/crio/crio.sock")) or die'
chmod 600 /run/crio/crio.sock
as_alice podman unshare "$program" gc --max-age 1s --min-age 0s -y
as_alice podman unshare sh -c 'cat "$(podman mount web)/hello"' 2>/dev/null
as_alice podman images --format '{{.Repository}}' 2>/dev/null
ls /home/alice/.local/state/layersweep
ls /var/lib/layersweep 2>/dev/null || true
"#)
    else {
        return;
    };
    let text = &run.stdout;
    assert!(text.contains("localhost/unused:1"), "{run:?}");
    assert!(text.contains("in use: 5") && text.contains("no orphan"), "{run:?}");
    assert_eq!(text.matches("hello\n").count(), 2, "{run:?}");
    let images: Vec<_> = text.lines().filter(|line| *line == "localhost/used").collect();
    assert_eq!(images.len(), 2, "{run:?}");
    assert!(!text.lines().any(|line| line == "localhost/unused" || line == "localhost/more"), "{run:?}");
    assert!(text.contains("layersweep.db"), "the records are the user's: {run:?}");
    assert!(!run.stderr.contains("warning:"), "what is root's is no warning: {run:?}");
}

#[test]
fn rootless_store_is_refused_with_working_command() {
    let Some(run) = run(r#"
find .local/share/containers/storage -path '*/overlay/l' -prune -o -printf '%p %i %s %m %U\n' | sort >/home/before
for who in as_alice root; do
    [ $who = as_alice ] && state=/home/alice/state || state=/home/state
    [ $who = as_alice ] || who=
    for words in "rm $direct localhost/unused:1" "gc --max-age 1s $direct" "sweep --delete --min-age 0s -y"; do
        code=0
        $who "$program" --state-dir $state $words || code=$?
        echo "$who ${words%% *}: $code"
    done
    $who "$program" --state-dir $state sweep --min-age 0s --format json
done
find .local/share/containers/storage -path '*/overlay/l' -prune -o -printf '%p %i %s %m %U\n' | sort >/home/after
cmp /home/before /home/after
"#)
    else {
        return;
    };
    for line in ["as_alice rm: 5", "as_alice gc: 5", " rm: 5", " gc: 5"] {
        assert!(run.stdout.contains(line), "{line}: {run:?}");
    }
    assert!(run.stdout.contains("belongs to alice;"), "the orphan stays: {run:?}");
    assert!(run.stderr.contains("belongs to alice; run as that user: podman unshare layersweep"), "{run:?}");
    // A command other than the given one would delete other images.
    let hint = "hint: run this command as the user whose store it is, behind `podman unshare`\n";
    assert_eq!(run.stderr.matches(hint).count(), 4, "{run:?}");
}

/// alice makes `volumes` a symlink to `/srv`: a podman of root would follow it and delete root's directory.
#[test]
fn commands_for_users_store_are_the_users() {
    let Some(run) = run(r#"
as_alice podman volume create etcd >/dev/null 2>&1
store=/home/alice/.local/share/containers/storage
as_alice dd if=/dev/urandom of=$store/volumes/etcd/_data/wal bs=1M count=20 status=none
as_alice dd if=/dev/urandom of=$store/overlay/$(printf '%064d' 7)/diff/x bs=1M count=3 status=none
"$program" --state-dir /home/state report || true
"$program" --state-dir /home/state report --format json || true
"$program" --state-dir /home/state gc --dry-run --high 2 --low 1 || true
for object in web etcd $store/volumes/etcd localhost/used:1; do
    "$program" --state-dir /home/state explain $object || true
done
"$program" --state-dir /home/state rm --via direct -y localhost/used:1 2>&1 || true
"#)
    else {
        return;
    };
    let shown = &run.stdout;
    assert!(shown.contains("  remove  as alice: podman rm web\n"), "{run:?}");
    assert!(shown.contains("  show    as alice: podman volume inspect etcd\n"), "{run:?}");
    assert!(!shown.contains("podman --root"), "no command is root's: {run:?}");
    let removals =
        shown.lines().filter(|line| line.contains("podman rm ") || line.contains("volume inspect"));
    assert!(removals.clone().count() >= 4, "{run:?}");
    assert!(removals.clone().all(|line| line.contains("as alice: podman")), "{run:?}");
    assert_eq!(promises::destroying_commands(shown), [] as [String; 0]);
}

/// Root has `lent` in a store that every user can read, and `kept` in one that only root can read. alice names both,
/// has a container of `lent/i1`, and breaks her own records: that keeps the images that she could be using, and no
/// others. Once her records can be read again, only the image that she uses is kept.
#[test]
fn broken_user_configuration_keeps_images_of_user() {
    let Some(run) = run(r#"
lent=/var/lib/containers/storage
kept=/root/.local/share/containers/storage
conf() { printf '[storage]\ndriver = "overlay"\ngraphroot = "%s"\nrunroot = "%s"\n' "$1" "$2"; }
mkdir -p $kept .config/containers
conf $lent /run/lent >/home/lent.conf
conf $kept /run/kept >/home/kept.conf
cp /home/lent.conf /etc/containers/storage.conf
as_lent() { CONTAINERS_STORAGE_CONF=/home/lent.conf podman "$@"; }
as_kept() { CONTAINERS_STORAGE_CONF=/home/kept.conf podman "$@"; }
for at in 1 2; do
    as_lent import --change LABEL=lent=$at rootfs.tar localhost/lent/i$at:1 >/dev/null 2>&1
    as_kept import --change LABEL=kept=$at rootfs.tar localhost/kept/i$at:1 >/dev/null 2>&1
done
umount $lent/overlay $kept/overlay 2>/dev/null || true
chmod -R a+rX $lent
own=.local/share/containers/storage
name() { printf '[storage]\ndriver = "overlay"\n[storage.options]\nadditionalimagestores = [%s]\n' "$1"; }
name "\"$lent\"" >.config/containers/storage.conf
chown -R alice:alice .config
as_alice podman create --name of-lent --network none localhost/lent/i1:1 /bin/cat /hello >/dev/null
# podman itself fails where it may not look.
name "\"$lent\", \"$kept\"" >.config/containers/storage.conf
cp -p $own/overlay-containers/containers.json /home/whole.json
printf '[{' >$own/overlay-containers/containers.json
collect() {
    code=0
    "$program" --state-dir /home/state gc --max-age 1s $direct --high 99 --low 98 >/home/told || code=$?
    echo "$1: $code"
    as_lent images --format '{{.Repository}}' | sort | sed "s|^|$1: |"
    as_kept images --format '{{.Repository}}' | sort | sed "s|^|$1: |"
    umount $lent/overlay $kept/overlay 2>/dev/null || true
}
sleep 1.1
collect broken
cp -p /home/whole.json $own/overlay-containers/containers.json
name "\"$lent\"" >.config/containers/storage.conf
sleep 1.1
collect mended
as_alice podman images --format '{{.Repository}}' | grep lent
as_alice podman unshare sh -c 'cat "$(podman mount of-lent)/hello"'
as_alice podman commit -q of-lent localhost/more:1 >/dev/null 2>&1
"#)
    else {
        return;
    };
    let lines: Vec<_> = run.stdout.lines().collect();
    let expected = [
        "broken: 3",
        "broken: localhost/lent/i1",
        "broken: localhost/lent/i2",
        "mended: 0",
        "mended: localhost/lent/i1",
        "localhost/lent/i1",
        "hello",
    ];
    assert_eq!(lines, expected, "{run:?}");
}
