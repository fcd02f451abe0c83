//! The sum over everything in a store is what `du` says of its graphroot, to the byte.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

mod support;

use std::process::Command;

use support::containers::Containers;
use support::loopfs::{Fs, LoopFs, MIB};
use support::program::{self, list, number};
use support::store::{self, Store};
use support::tree;

/// The parts of a store's bytes; with `total` they are all of `stores[].bytes`.
const PARTS: [&str; 5] = ["images", "containers", "leaks", "metadata", "other"];

fn check(graphroot: &std::path::Path, runroot: &std::path::Path, what: &str) {
    let run = program::store_run("scan", graphroot, runroot).expect_no_crash();
    assert!(matches!(run.code, 0 | 3), "{what}: {run:?}");
    let scan = run.json();
    let stores = list(&scan, "/stores");
    assert_eq!(stores.len(), 1, "{what}: {stores:#?}");
    let bytes = &stores[0]["bytes"];
    let sum: u64 = PARTS.iter().map(|part| number(bytes, &format!("/{part}"))).sum();
    let du = tree::du(graphroot);
    assert_eq!(sum, number(bytes, "/total"), "{what}: {bytes:#}");
    assert_eq!(sum, du, "{what}: du says {du}: {bytes:#}");
}

/// An imagestore may lie inside the graphroot: its bytes count once.
#[test]
fn an_imagestore_inside_the_graphroot() {
    for place in ["imgs", "deep/down/imgs"] {
        let dir = tempfile::tempdir().unwrap();
        let graphroot = dir.path().join("g");
        let imagestore = graphroot.join(place);
        for area in [&graphroot, &imagestore] {
            let layer = area.join("overlay").join("a".repeat(64)).join("diff");
            std::fs::create_dir_all(&layer).unwrap();
            std::fs::write(layer.join("file"), vec![1; 300_000]).unwrap();
            std::fs::create_dir(area.join("overlay-layers")).unwrap();
            std::fs::write(area.join("overlay-layers/layers.json"), "[]").unwrap();
        }
        std::fs::write(imagestore.parent().unwrap().join("beside"), vec![1; 50_000]).unwrap();
        std::fs::create_dir_all(dir.path().join("etc/containers")).unwrap();
        let config = format!(
            "[storage]\ndriver = \"overlay\"\ngraphroot = \"/g\"\nrunroot = \"/run\"\n\
             imagestore = \"/g/{place}\"\n"
        );
        std::fs::write(dir.path().join("etc/containers/storage.conf"), config).unwrap();
        let args = ["scan", "--format", "json", "--sysroot", dir.path().to_str().unwrap()];
        let scan = program::layersweep(args).expect_no_crash().json();
        let bytes = &scan["stores"][0]["bytes"];
        assert_eq!(number(bytes, "/total"), tree::du(&graphroot), "{place}: {bytes:#}");
        assert!(number(bytes, "/other") < 100_000, "{place}: {bytes:#}");
    }
}

fn rig(fs: Fs, driver: &str) {
    if !store::require_tools() || !fs.require() {
        return;
    }
    let loopfs = LoopFs::new(fs, 2048 * MIB);
    let home = loopfs.path().join("store");
    std::fs::create_dir(&home).unwrap();
    let store = Store::rig(&home.join("root"), driver);
    loopfs.sync();
    check(store.root(), &store.runroot(), "the rig");
    if driver != "overlay" {
        return;
    }
    let injected = loopfs.path().join("injected");
    store::succeed(Command::new(store::rig("inject.sh")).args([&home, &injected]));
    loopfs.sync();
    check(&injected.join("root"), &injected.join("run"), "with everything injected");
}

/// Containers that run and write, are paused, have ended, and a mounted image: what is mounted below
/// the graphroot belongs to nobody there, and the sum stays `du -x`'s, to the byte.
fn with_containers(fs: Fs) {
    if !store::require_tools() || !support::require_program("runc") || !fs.require() {
        return;
    }
    let loopfs = LoopFs::new(fs, 1024 * MIB);
    let store = Store::at(&loopfs.path().join("root"), "overlay");
    let pod = Containers::new(&store);
    let before = container_bytes(&store);
    for at in 0..13 {
        pod.run(
            &format!("r{at}"),
            "echo x >/file; busybox dd if=/dev/zero of=/big bs=1k count=600 2>/dev/null; sleep 900",
        );
    }
    for at in 0..5 {
        pod.run(&format!("e{at}"), "busybox dd if=/dev/zero of=/big bs=1k count=300 2>/dev/null");
    }
    (0..3).for_each(|at| pod.podman(["pause", &format!("r{at}")]));
    pod.podman(["image", "mount", Containers::IMAGE]);
    pod.wait_for_files();
    loopfs.sync();
    check(store.root(), &store.runroot(), "with containers at work");
    let at_work = container_bytes(&store);
    // Each holds what it wrote, and not its image.
    assert!(at_work - before >= 13 * 600 * 1024 + 5 * 300 * 1024, "{before} {at_work}");
    assert!(at_work - before < 18 * 1024 * 1024, "{before} {at_work}");
    (0..3).for_each(|at| pod.podman(["unpause", &format!("r{at}")]));
    pod.podman(["stop", "--all", "--time", "0"]);
    pod.podman(["image", "unmount", Containers::IMAGE]);
    loopfs.sync();
    check(store.root(), &store.runroot(), "after they were stopped");
    assert_eq!(container_bytes(&store) / MIB, at_work / MIB, "stopping deletes nothing");
}

fn container_bytes(store: &Store) -> u64 {
    let scan = program::store_run("scan", store.root(), &store.runroot()).expect_no_crash().json();
    number(&scan, "/stores/0/bytes/containers")
}

#[test]
fn containers_at_work_on_ext4() {
    with_containers(Fs::Ext4);
}

#[test]
fn containers_at_work_on_xfs() {
    with_containers(Fs::Xfs);
}

#[test]
fn containers_at_work_on_btrfs() {
    with_containers(Fs::Btrfs);
}

#[test]
fn overlay_on_ext4() {
    rig(Fs::Ext4, "overlay");
}

#[test]
fn overlay_on_xfs() {
    rig(Fs::Xfs, "overlay");
}

#[test]
fn overlay_on_btrfs() {
    rig(Fs::Btrfs, "overlay");
}

#[test]
fn vfs_on_ext4() {
    rig(Fs::Ext4, "vfs");
}

#[test]
fn vfs_on_xfs() {
    rig(Fs::Xfs, "vfs");
}

#[test]
fn vfs_on_btrfs() {
    rig(Fs::Btrfs, "vfs");
}
