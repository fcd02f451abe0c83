//! The sum over everything in a store is what `du` says of its graphroot, to the byte.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // a test talks to its reader

mod support;

use std::process::Command;

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
