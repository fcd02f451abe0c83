//! A user's own store: edited by that user in the namespace of `podman unshare`, and by nobody else.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod support;

use support::{alice, require_program};

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
fn podman_unshare_deletes_what_its_user_does_not_use() {
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
as_alice podman unshare "$program" gc --max-age 1s $direct
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
fn outside_of_the_namespace_and_as_root_it_is_refused_with_the_command_that_works() {
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
    assert!(
        run.stderr.contains("hint: run as the user whose store it is: podman unshare layersweep"),
        "{run:?}"
    );
}
