//! Without measuring, a scan reports the same uses and reasons to keep, and `scan --uses` records them.

#![allow(clippy::unwrap_used)] // the helpers belong to the tests

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use crate::support;
use layersweep::disk::Progress;
use layersweep::model::refs::standing;
use layersweep::stores::containers_storage::config::Environment;
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
        runroot: Some(runroot.to_path_buf()),
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
