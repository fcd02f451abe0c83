//! Without measuring, a scan reports the same uses and reasons to keep, and `scan --uses` records them.

#![allow(clippy::unwrap_used)] // the helpers belong to the tests

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use crate::support;
use layersweep::disk::Progress;
use layersweep::model::refs::standing;
use layersweep::stores::Environment;
use layersweep::stores::{self, Measure, Scan, ScanRequest};
use layersweep::sys::sysroot::Sysroot;
use nix::fcntl::{Flock, FlockArg};
use serde_json::Value;
use support::program::{self, Run};
use support::small;
use support::store::{self, Store};

fn scan(graphroot: &Path, runroot: &Path, measure: Measure) -> Scan {
    let sysroot = Sysroot::live();
    let request = ScanRequest {
        environment: Environment::of_process(&sysroot),
        graphroots: vec![graphroot.to_path_buf()],
        runroots: vec![runroot.to_path_buf()],
        measure,
        ..ScanRequest::of(sysroot)
    };
    stores::run(&request, &Progress::default()).unwrap()
}

/// Returns all values that decide if an image may be deleted.
fn decisive(scan: &Scan) -> Vec<String> {
    let inventory = &scan.inventory;
    let images = inventory.images.iter().enumerate().map(|(image_ix, image)| {
        let standing = standing(inventory, &scan.refs, image_ix.into());
        format!("{} {:?} {:?} {:?} {standing:?}", image.id, image.names, image.layers, image.pinned_by)
    });
    let containers = inventory.containers.iter().map(|container| {
        let image = container.image.map(|image_ix| inventory.images[image_ix.get()].id.clone());
        format!("{} {:?} {:?} {image:?}", container.id, container.owner, container.state)
    });
    images.chain(containers).collect()
}

#[test]
fn same_images_containers_and_standings() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = Store::rig(dir.path(), "overlay");
    // A layer without a record.
    std::fs::create_dir_all(store.root().join("overlay").join("ab".repeat(32)).join("diff")).unwrap();
    let measured = scan(store.root(), &store.runroot(), Measure::Everything);
    let listed = scan(store.root(), &store.runroot(), Measure::RecordsAndMounts);
    assert!(measured.inventory.containers.len() >= 3, "the rig has containers");
    assert_eq!(decisive(&listed), decisive(&measured));
    assert_eq!(listed.effort.inodes, 0, "nothing was walked");
    assert_eq!((measured.inventory.leaks.len(), listed.inventory.leaks.len()), (1, 0));
    assert!(measured.effort.inodes > 100);
}

/// A container between two scans is recorded, also if another process writes the records at that time. What the last
/// scan measured stays as it was.
#[test]
fn uses_are_recorded_without_a_run() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::still(&dir.path().join("root"));
    let state = dir.path().join("state");
    let run = |words: &str| {
        let mut command = program::command();
        command.args(words.split(' ')).arg("--state-dir").arg(&state);
        command.arg("--graphroot").arg(store.root()).arg("--runroot").arg(store.runroot());
        program::run(&mut command)
    };
    let json = |words: &str| run(&format!("{words} --format json")).expect_code(0).json();
    fn find(document: &Value, image: &str) -> Value {
        let images = document["images"].as_array().unwrap();
        images.iter().find(|found| found["names"][0] == small::name(image)).unwrap().clone()
    }
    fn assert_silent(run: Run) {
        let run = run.expect_code(0);
        assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("", ""));
    }
    let metrics = || {
        let mut command = program::command();
        command.arg("metrics").arg("--state-dir").arg(&state);
        program::run(&mut command).expect_code(0).stdout
    };
    run("scan --quiet").expect_code(0);
    let (history, measured) = (json("history --all")["runs"].clone(), metrics());
    assert!(find(&json("images"), "b")["last_used"].is_null());

    store.podman(["create", "--name", "brief", "--network", "none", &small::name("b"), "/x"]);
    let lock = File::options().write(true).open(state.join("write.lock")).unwrap();
    let lock = Flock::lock(OwnedFd::from(lock), FlockArg::LockExclusive).map_err(|(_, error)| error).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(700));
            drop(lock);
        });
        assert_silent(run("scan --uses"));
    });
    store.podman(["rm", "brief"]);
    let used = find(&json("images"), "b");
    assert!(used["last_used"].is_string() && used["use_count"] == 1, "{used:#}");
    // Repeated, it changes nothing more.
    for _ in 0..2 {
        assert_silent(run("scan --uses --quiet"));
    }
    let after = find(&json("images"), "b");
    assert_eq!((&after["last_used"], &after["use_count"]), (&used["last_used"], &used["use_count"]));
    assert_eq!(json("history --all")["runs"], history);
    fn bytes(metrics: &str) -> Vec<&str> {
        metrics.lines().filter(|line| line.starts_with("layersweep_storage_")).collect()
    }
    assert_eq!(bytes(&metrics()), bytes(&measured));
    for words in ["scan --uses --no-record", "scan --uses --reserve"] {
        run(words).expect_code(2);
    }
}

/// Mounts a filesystem in memory, and makes it writable or read-only again.
fn mount_memory(dir: &Path, options: &str) {
    let mut mount = std::process::Command::new("mount");
    store::succeed(mount.args(["-t", "tmpfs", "-o", options, "layersweep-test"]).arg(dir));
}

/// On a read-only disk the uses wait, readers count them, and the next scan saves them. Where they cannot wait either,
/// the command fails.
#[test]
fn uses_wait_until_the_database_is_writable() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = small::still(&dir.path().join("root"));
    let state = dir.path().join("state");
    std::fs::create_dir(&state).unwrap();
    mount_memory(&state, "mode=0700");
    let run = |words: &str| {
        let mut command = program::command();
        command.args(words.split(' ')).arg("--state-dir").arg(&state);
        command.arg("--graphroot").arg(store.root()).arg("--runroot").arg(store.runroot());
        program::run(&mut command)
    };
    let used = || {
        let document = run("images --format json").expect_code(0).json();
        let images = document["images"].as_array().unwrap();
        let image = images.iter().find(|image| image["names"][0] == small::name("b")).unwrap();
        (image["last_used"].as_str().map(str::to_owned), image["use_count"].as_u64().unwrap())
    };
    let queued = || {
        let queues = std::fs::read_dir("/run/layersweep/pending").unwrap();
        let files = queues.flat_map(|queue| std::fs::read_dir(queue.unwrap().path()).unwrap());
        files.count()
    };
    run("scan --quiet").expect_code(0);
    assert_eq!(used(), (None, 0));
    mount_memory(&state, "remount,ro");
    for container in ["brief", "briefer"] {
        store.podman(["create", "--name", container, "--network", "none", &small::name("b"), "/x"]);
        let said = run("scan --uses").expect_code(0);
        assert!(said.stderr.contains("wait in /run/layersweep/pending/"), "{said:?}");
        assert_eq!(run("scan --uses --quiet").expect_code(0).stderr, "");
        store.podman(["rm", container]);
    }
    assert_eq!(queued(), 1, "a new file takes over the content of the earlier ones");
    let waiting = used();
    assert!(waiting.0.is_some() && waiting.1 == 2, "{waiting:?}");

    let (pending, aside) = (Path::new("/run/layersweep/pending"), "/run/layersweep/aside");
    std::fs::rename(pending, aside).unwrap();
    std::fs::write(pending, "").unwrap();
    let said = run("scan --uses --quiet").expect_code(1);
    assert!(said.stderr.starts_with("error: the images in use now were not recorded: "), "{said:?}");
    std::fs::remove_file(pending).unwrap();
    std::fs::rename(aside, pending).unwrap();

    mount_memory(&state, "remount,rw");
    assert_eq!(run("scan --uses").expect_code(0).stderr, "");
    assert_eq!((queued(), used()), (0, waiting));
    nix::mount::umount(&state).unwrap();
}
