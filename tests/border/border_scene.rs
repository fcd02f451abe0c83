//! A node with 20 users who have their own stores: five use images of root's store, two are hostile. Root collects; the
//! users are not affected.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::time::{Duration, Instant};

use crate::support;
use support::archive::{self, ImageSpec, LayerSpec};
use support::{alice, store};

/// Root's podman has `lent` in a store that every user can read, and `kept-home` in one that only root can read.
/// Users 1 to 5 have an image of the first in their own store, as `podman tag` leaves it, and 6 to 20 have stores
/// that borrow nothing. User 19 has broken containers and names the store that she cannot reach; user 20 keeps
/// exchanging his store with a symlink to a victim.
const SCENE: &str = r#"
lent=/var/lib/containers/storage
home=/root/.local/share/containers/storage
conf() { printf '[storage]\ndriver = "overlay"\ngraphroot = "%s"\nrunroot = "%s"\n' "$1" "$2"; }
mkdir -p $home
conf $lent /run/lent >/home/lent.conf
conf $home /run/home >/home/home.conf
cp /home/lent.conf /etc/containers/storage.conf
as_lent() { CONTAINERS_STORAGE_CONF=/home/lent.conf podman "$@"; }
as_home() { CONTAINERS_STORAGE_CONF=/home/home.conf podman "$@"; }
as_lent load -qi $ARCHIVE >/dev/null
as_home load -qi $ARCHIVE >/dev/null
umount $lent/overlay $home/overlay 2>/dev/null || true
chmod 755 $lent $lent/overlay $lent/overlay-layers $lent/overlay-images $lent/overlay-containers
store_of() { echo /home/u$1/.local/share/containers/storage; }
for at in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    uid=$((6000 + at))
    echo "u$at:x:$uid:$uid::/home/u$at:/bin/sh" >>/home/etc/passwd
    s=$(store_of $at)
    for what in layers images containers; do
        mkdir -p $s/overlay-$what
        echo '[]' >$s/overlay-$what/$what.json
        head -c 64 /dev/zero >$s/overlay-$what/$what.lock
    done
    mkdir -p $s/overlay/l $s/tmp /home/u$at/.config/containers
    echo x >$s/tmp/precious
    names=
    case $at in
        1|2|3|4|5)
            names=$lent
            jq "[.[] | select(.names[0] == \"localhost/scene/i$at:1\") | .names = [\"localhost/own:$at\"]]" \
                $lent/overlay-images/images.json >$s/overlay-images/images.json
            ;;
        19)
            names=$home
            printf '[{' >$s/overlay-containers/containers.json
            ;;
    esac
    { conf $s /run/user/$uid; printf '[storage.options]\nadditionalimagestores = ["%s"]\n' "$names"; } \
        >/home/u$at/.config/containers/storage.conf
    chown -R $uid:$uid /home/u$at
done
cp -a $(store_of 18) /home/victim
find /home/victim $(store_of 6) -printf '%p %i %s %T@\n' | sort >/home/before
(
    cd /home/u20/.local/share/containers
    ln -s /home/victim link
    chown -h 6020:6020 link
    exec python3 -c '
import os, time
while not os.path.exists("/home/over"):
    for old, new in ("storage", "real"), ("link", "storage"), ("storage", "link"), ("real", "storage"):
        os.rename(old, new)
        time.sleep(0.0003)
'
) 2>/dev/null &
hostile=$!
# All are older than --max-age, however quick the machine is.
sleep 1.1
began=$(date +%s%N)
"$program" --state-dir /home/state gc --via direct --min-age 0s --max-age 1s --high 99 --low 98 -y \
    >/home/told 2>/home/errors || [ $? = 3 ] || echo "exit $?"
echo "took $((($(date +%s%N) - began) / 1000000))"
"$program" --state-dir /home/state sweep --delete --min-age 0s -y >>/home/told 2>>/home/errors || true
touch /home/over
wait $hostile || true
find /home/victim $(store_of 6) -printf '%p %i %s %T@\n' | sort >/home/after
diff /home/before /home/after
as_lent images --format '{{.Repository}}' | sort | sed 's/^/lent /'
as_home images --format '{{.Repository}}' | sort | sed 's/^/home /'
umount $lent/overlay $home/overlay 2>/dev/null || true
for at in 1 2 3 4 5; do
    # What it is built on is there to the last layer.
    jq -r '.[].layer' $(store_of $at)/overlay-images/images.json | while read layer; do
        while [ "$layer" != null ] && [ -n "$layer" ]; do
            [ -d $lent/overlay/$layer/diff ] || echo "u$at has lost $layer"
            layer=$(jq -r ".[] | select(.id == \"$layer\") | .parent" $lent/overlay-layers/layers.json)
        done
    done
done
cat /home/told /home/errors >&2
"#;

#[test]
fn twenty_users_two_of_them_hostile_five_borrowing() {
    if !store::require_tools() || !alice::require() || !support::require_program("jq") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("images.tar");
    let images: Vec<_> = (1..=10)
        .map(|number| ImageSpec {
            names: vec![format!("localhost/scene/i{number}:1")],
            layers: ["base".to_owned(), format!("own-{number}")]
                .map(|name| LayerSpec { small_files: 4, ..LayerSpec::new(&name) })
                .into(),
            label: format!("i{number}"),
        })
        .collect();
    archive::write(&path, &images).unwrap();
    let began = Instant::now();
    let run = alice::run_among_all(&format!("ARCHIVE={}\n{SCENE}", path.display()));
    assert!(began.elapsed() < Duration::from_secs(240));
    let lines: Vec<_> = run.stdout.lines().collect();
    let took = lines.iter().find_map(|line| line.strip_prefix("took ")).expect(&run.stderr);
    assert!(took.parse::<u64>().unwrap() < 120_000, "{run:?}");
    let rest: Vec<_> = lines.iter().filter(|line| !line.starts_with("took ")).collect();
    let lent: Vec<_> = (1..=5).map(|number| format!("lent localhost/scene/i{number}")).collect();
    assert_eq!(rest, lent.iter().collect::<Vec<_>>(), "{run:?}");
}
