//! A user exchanges, links or mounts directories in a home: root's commands follow none of it, and still work.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use jiff::SignedDuration;
use layersweep::editor::{Editor, Options, ReserveFile};
use rustix::fs::{CWD, RenameFlags, inotify};

use crate::support;
use support::running::Running;
use support::store;
use support::{alice, edit, small, tree};

/// A store that alice made by hand: root's `sweep` would delete the files in its `tmp`.
const STORE: &str = r#"
storage=.local/share/containers/storage
make_store() {
    for what in layers images containers; do
        mkdir -p "$1/overlay-$what"
        echo '[]' >"$1/overlay-$what/$what.json"
        head -c 64 /dev/zero >"$1/overlay-$what/$what.lock"
    done
    mkdir -p "$1/overlay" "$1/tmp"
    echo x >"$1/tmp/precious"
    touch -d '3 days ago' "$1/tmp/precious" "$1/tmp"
}
make_store $storage
chown -R 5001:5001 .local
make_store /home/victim
find /home/victim -printf '%p %i %s %T@\n' | sort >/home/before
"#;

fn text(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

fn exchange(a: &Path, b: &Path) {
    rustix::fs::renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
}

/// A process of alice: after her store's `tmp` was opened `$EXCHANGES_AFTER` times, the store is a symlink to the
/// victim.
#[test]
#[ignore = "another test runs it in a separate process"]
fn exchanger() {
    let Ok(mut left) = text("EXCHANGES_AFTER").parse::<usize>() else { return };
    // Only the shell that started this process knows when it is no longer needed.
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).unwrap();
    let store = alice::home(".local/share/containers/storage");
    let link = alice::home(".local/share/containers/link");
    std::os::unix::fs::symlink("/home/victim", &link).unwrap();
    let looks = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&looks, store.join("tmp"), inotify::WatchFlags::OPEN).unwrap();
    std::fs::write(alice::home("watching"), "").unwrap();
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(&looks, &mut buffer);
    while left > 0 {
        events.next().unwrap();
        left -= 1;
    }
    exchange(&store, &link);
}

/// The exchange may happen at any moment of a sweep.
#[test]
fn exchanged_store_leads_to_no_victim() {
    if !alice::require() {
        return;
    }
    let run = alice::run_among_all(&format!(
        r#"{STORE}
for looks in 1 2 3 4 5 6 7 8 9 10; do
    rm -f watching
    as_alice EXCHANGES_AFTER=$looks "$test" --ignored --exact border::border_symlinks::exchanger >/dev/null 2>&1 &
    exchanger=$!
    while [ ! -e watching ]; do sleep 0.01; done
    "$program" --state-dir /home/state sweep --delete --class graphroot-tmp --min-age 0s -y >>/home/told 2>&1 || true
    kill $exchanger 2>/dev/null || true
    wait $exchanger 2>/dev/null || true
    [ ! -L $storage ] || {{ rm $storage; mv .local/share/containers/link $storage; }}
    rm -f .local/share/containers/link
    [ -e $storage/tmp/precious ] || as_alice touch -d '3 days ago' $storage/tmp/precious
done
find /home/victim -printf '%p %i %s %T@\n' | sort >/home/after
diff /home/before /home/after
"#
    ));
    assert_eq!(run.stdout, "", "the victim's files changed: {run:?}");
}

/// The exchange happens at the worst moment: after the store was found.
#[test]
fn symlink_in_place_of_store_is_not_followed() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("store");
    let store = small::still(&home);
    store.unmount();
    let victim = dir.path().join("victim");
    support::program::run(Command::new("cp").args(["-a"]).arg(store.root()).arg(&victim)).expect_code(0);
    for root in [store.root(), &victim] {
        std::fs::create_dir_all(root.join("tmp")).unwrap();
        std::fs::write(root.join("tmp/precious"), "x").unwrap();
    }
    let state = Path::new("/dev/shm/layersweep-none");
    let places = edit::places(&store);
    let reserve_files = ReserveFile::of_store(&places, state).unwrap();
    let options = Options { reserve_files: reserve_files.clone(), ..Options::default() };
    let editor = Editor::new(&places, options).unwrap();
    let image = store.images().into_iter().find(|image| image["names"][0] == small::name("other")).unwrap();
    let planned = layersweep::editor::PlannedImage {
        id: image["id"].as_str().unwrap().to_owned(),
        ..Default::default()
    };
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&victim, &link).unwrap();
    let before = tree::listing(&victim);
    exchange(store.root(), &link);
    let root: PathBuf = store.root().to_path_buf();
    assert!(root.is_symlink());
    let _ = editor.remove_temporary(&root.join("tmp/precious"), SignedDuration::ZERO);
    let error = editor.delete_image(&planned).unwrap_err();
    assert!(error.to_string().contains("its path now leads to another directory"), "{error}");
    for reserve_file in &reserve_files {
        let _ = reserve_file.prepare();
        let _ = reserve_file.release();
    }
    assert_eq!(tree::listing(&victim), before);
    exchange(store.root(), &link);
    editor.delete_image(&planned).unwrap();
}

/// Mounts a filesystem of alice at `$FUSE_AT` that does not answer.
#[test]
#[ignore = "another test runs it in a separate process"]
fn silent_filesystem() {
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;
    let target = text("FUSE_AT");
    if target.is_empty() {
        return;
    }
    let device = std::fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let mode = if std::fs::metadata(&target).unwrap().is_dir() { 40_000 } else { 100_000 };
    let options = format!(
        "fd={},rootmode={mode},user_id={uid},group_id={uid},allow_other",
        device.as_raw_fd(),
        uid = alice::UID
    );
    let flags = rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV;
    let options = CString::new(std::ffi::OsStr::new(&options).as_bytes()).unwrap();
    rustix::mount::mount("silent", &*target, "fuse", flags, Some(&*options)).unwrap();
    std::fs::write("/home/ready", "").unwrap();
    std::thread::sleep(Duration::from_secs(120));
}

#[test]
fn silent_filesystem_in_home_does_not_block() {
    if !alice::require() || !(Path::new("/dev/fuse").exists() || support::skip("there is no /dev/fuse")) {
        return;
    }
    // In her store also in place of a layer, and beside the leftovers of root's tools in `/var/tmp`.
    let layer = format!("/home/alice/.local/share/containers/storage/overlay/{}", "a".repeat(64));
    let link = format!("{layer}/link");
    for target in [
        "/home/alice",
        "/home/alice/.config",
        "/home/alice/.local",
        "/home/alice/.local/share/containers/storage",
        "/home/alice/.local/share/containers/storage/overlay",
        &layer,
        &link,
        "/var/tmp/oci1234567",
    ] {
        let script = format!(
            r#"{STORE}
mkdir -p .config && chown 5001:5001 .config
as_alice mkdir -p {layer} /var/tmp/oci1234567
as_alice touch {link}
FUSE_AT={target} "$test" --ignored --exact border::border_symlinks::silent_filesystem >/dev/null 2>&1 &
while [ ! -e /home/ready ]; do sleep 0.01; done
cd /
make_store /var/lib/containers/storage
for words in scan usage images report "sweep --delete --min-age 0s -y" doctor; do
    code=0
    "$program" --state-dir /home/state $words >/dev/null 2>/home/errors || code=$?
    echo "${{words%% *}}: $code"
done
if [ {target} = /var/tmp/oci1234567 ]; then
    "$program" --state-dir /home/state sweep --format json 2>/dev/null | grep -A12 oci1234567 >&2
fi
"#
        );
        let began = Instant::now();
        let mut running = Running::start(&mut alice::command(&script));
        while running.is_running() {
            assert!(began.elapsed() < Duration::from_secs(60), "{target}: it waits");
            std::thread::sleep(Duration::from_millis(20));
        }
        let run = running.end().expect_code(0);
        for word in ["scan", "usage", "images", "report", "sweep", "doctor"] {
            assert!(run.stdout.contains(&format!("{word}: ")), "{target}: {run:?}");
        }
        if target.starts_with("/var/tmp") {
            assert!(run.stderr.contains("report") && run.stderr.contains("another filesystem"), "{run:?}");
        }
    }
}

#[test]
fn symlink_in_home_is_not_followed() {
    if !alice::require() {
        return;
    }
    let run = alice::run(&format!(
        r#"{STORE}
chmod 700 /home/victim
mv $storage old
ln -s /home/victim $storage
"$program" --state-dir /home/state scan --format json || true
"#
    ));
    assert!(!run.stdout.contains("/home/victim"), "{run:?}");
}
