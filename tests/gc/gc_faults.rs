//! `gc` on a faulty disk: full to the last byte with the state directory on it, read-only, or without a place for
//! records. Nothing is lost, and everything is reported.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::support;
use crate::support::cri_server;
use cri_server::gc_node::{GcNode, assert_recorded, deleted, name, rule};

use support::loopfs::{Fs, LoopFs, MIB};
use support::node;
use support::program::{Run, list, text};

const GC: [&str; 5] = ["gc", "--high", "75", "--low", "74"];

fn json(node: &GcNode, words: &[&str]) -> Run {
    node.run(&[words, &["--format", "json"]].concat())
}

fn available(node: &GcNode) -> u64 {
    let sizes = rustix::fs::statvfs(node.loopfs.path()).unwrap();
    sizes.f_bavail * sizes.f_frsize
}

#[track_caller]
fn assert_warned(run: &Run, parts: &[&str]) {
    let warnings: Vec<_> = run.stderr.lines().filter(|line| line.starts_with("warning: ")).collect();
    for part in parts {
        assert!(warnings.iter().any(|line| line.contains(part)), "{part:?}: {run:?}");
    }
}

/// 0 bytes free, and the database on that disk. Whether the runtime can still delete depends on the runtime;
/// layersweep must lose nothing, report it, and free the disk as soon as possible.
///
/// On ext4, podman (in place of CRI-O) cannot write even its small record files, and deletes nothing; on XFS they
/// still fit where no larger file can be created, and the run succeeds.
///
/// btrfs is not tested: once all of a small btrfs is allocated to data, no file could be created in our trials, however
/// much was deleted.
#[test]
fn disk_full_to_last_byte_loses_nothing() {
    for (fs, code) in [(Fs::Ext4, 1), (Fs::Xfs, 0)] {
        let Some(node) = GcNode::loaded(fs, 8).map(GcNode::state_beside_store) else { return };
        node.age();
        // Enough images for deletions to matter: 60 MiB of 400.
        node.fill_to_the_last_byte();
        assert!(available(&node) < 8 * MIB, "{fs:?}: {}", available(&node));
        let low = "94";
        let words = ["gc", "--high", "99", "--low", low];
        let run = json(&node, &words).expect_code(code);
        let document = node::document(run.clone());
        let gone = deleted(&document);
        assert_eq!(node.names().len() + gone.len(), 8, "{fs:?}: {document:#}");
        let errors = list(&document, "/errors");
        if code == 0 {
            assert_eq!(document["outcome"], "reached", "{fs:?}");
            assert!(errors.is_empty() && !gone.is_empty(), "{fs:?}: {document:#}");
            assert!(node.used_percent() <= low.parse::<f64>().unwrap(), "{fs:?}");
        } else {
            // A full disk is not a failure of the image: the run ends at the first failure and names the reason.
            assert_eq!(document["outcome"], "failed", "{fs:?}");
            assert_eq!((gone.len(), errors.len()), (0, 1), "{fs:?}: {document:#}");
            assert!(text(&errors[0], "/message").contains("no space left on device"), "{fs:?}: {document:#}");
            // The command that works without the runtime is named first.
            let hint = text(&errors[0], "/hint");
            assert!(
                hint.starts_with("run `layersweep ")
                    && hint.contains(" gc --via direct --while-runtime-runs -y`, which edits"),
                "{fs:?}: {hint}"
            );
        }
        assert!(run.took < Duration::from_secs(30), "{fs:?}: no waiting for what has failed: {:?}", run.took);
        // With free space again, every waiting record is saved, once.
        node.make_room();
        let scan = node.run(&["scan", "-q"]).expect_code(0);
        assert!(!scan.stderr.contains("not recorded"), "{fs:?}: {scan:?}");
        let history = node.history();
        assert_eq!(history.len(), 1, "{fs:?}: {history:#?}");
        assert_eq!(history[0]["unsaved"], false);
        assert_recorded(&history[0], &document);
        node.run(&["scan", "-q"]).expect_code(0);
        assert_eq!(node.history(), history, "{fs:?}: none is saved twice");
        let unsaved = node.state.join("unsaved-runs");
        let waits = std::fs::read_dir(unsaved).map_or(0, Iterator::count);
        assert_eq!(waits, 0, "{fs:?}");
    }
}

/// First detection of each image, which does not change while the records cannot be written.
fn ages(node: &GcNode) -> Vec<(String, String)> {
    let images = node.json(0, &["images"]);
    let images = list(&images, "/images").iter();
    let mut ages: Vec<_> = images
        .map(|image| (text(image, "/id").to_owned(), text(image, "/first_detected").to_owned()))
        .collect();
    ages.sort();
    ages
}

#[test]
fn records_on_full_or_read_only_disk() {
    let Some(mut node) = GcNode::new(Fs::Ext4, 10) else { return };
    let mut disk = LoopFs::new(Fs::Ext4, 16 * MIB);
    node.state = disk.path().join("state");
    node.age();
    let before = ages(&node);
    node.fill(80.0);
    disk.remount_with("ro");
    let run = json(&node, &GC).expect_code(0);
    assert_warned(&run, &["read-only"]);
    let first = node::document(run);
    assert_eq!(first["outcome"], "reached");
    assert!(!deleted(&first).is_empty());
    // The waiting run is in the history, marked as unsaved.
    let history = node.history();
    assert_eq!(history[0]["unsaved"], true, "{history:#?}");
    assert_recorded(&history[0], &first);

    disk.remount_with("rw");
    let filler = disk.path().join("filler");
    std::fs::write(&filler, vec![1; 15 << 20]).unwrap_err();
    node.fill(80.0);
    let run = json(&node, &GC);
    let second = node::document(run.clone().expect_code(0));
    assert_eq!(second["outcome"], "reached");
    std::fs::remove_file(&filler).unwrap();

    node.run(&["scan", "-q"]).expect_code(0);
    let history = node.history();
    assert_eq!(history.len(), 2, "{history:#?}");
    assert_recorded(&history[0], &second);
    assert_recorded(&history[1], &first);
    assert!(history.iter().all(|run| run["unsaved"] == false), "{history:#?}");
    let after = ages(&node);
    assert!(after.iter().all(|age| before.contains(age)), "ages moved: {before:?} {after:?}");
    assert!(after.len() < before.len());
    node.state = node.store.scratch().join("elsewhere");
}

#[test]
fn ages_come_from_disk_without_records() {
    let Some(mut node) = GcNode::new(Fs::Ext4, 6) else { return };
    // A state directory below directories that do not exist.
    node.state = node.store.scratch().join("a/b/state");
    let all = ["gc", "--high", "1", "--low", "0"];
    let young = node.json(4, &all);
    assert!(deleted(&young).is_empty());
    assert_eq!(rule(&young, &name(0)), "min-age", "just detected");
    assert!(node.state.join("layersweep.db").exists());
    assert_eq!(node.history().len(), 1);
    // A file where the state directory should be.
    let blocked = node.store.scratch().join("file");
    std::fs::write(&blocked, "").unwrap();
    node.state.clone_from(&blocked);
    let run = json(&node, &all);
    // The file may be anything, even a keep-list.
    assert_eq!(run.code, 5, "{run:?}");
    assert!(run.stderr.contains(&blocked.display().to_string()), "{run:?}");
    assert_eq!(node.names().len(), 6);
    assert_eq!(std::fs::read(&blocked).unwrap(), b"");
}

#[test]
fn locked_database_delays_no_run() {
    let Some(node) = GcNode::new(Fs::Ext4, 8) else { return };
    node.age();
    node.fill(80.0);
    let database = node.database();
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    let run = json(&node, &GC);
    let document = node::document(run.clone().expect_code(0));
    assert_eq!(document["outcome"], "reached");
    assert!(node.used_percent() <= 74.0);
    assert_warned(&run, &["layersweep.db"]);
    database.execute_batch("ROLLBACK").unwrap();
    drop(database);
    node.run(&["scan", "-q"]).expect_code(0);
    let history = node.history();
    assert_eq!(history.len(), 1, "{history:#?}");
    assert_recorded(&history[0], &document);
}

/// The node is full, and layersweep runs on it for the first time.
#[test]
fn first_run_without_records_deletes() {
    let Some(mut node) = GcNode::new(Fs::Ext4, 10) else { return };
    let mut disk = LoopFs::new(Fs::Ext4, 16 * MIB);
    let there = disk.path().join("there");
    std::fs::create_dir(&there).unwrap();
    support::reserve_file::fill_to_the_last_byte(&disk);
    let words = [&GC[..], &["--min-age", "0s"]].concat();
    let mut left = 10;
    for (state, read_only) in [(&there, false), (&disk.path().join("none"), false), (&there, true)] {
        if read_only {
            disk.remount_with("ro");
        }
        node.state.clone_from(state);
        node.fill(78.0);
        let run = json(&node, &words).expect_code(0);
        assert_warned(&run, &[if read_only { "read-only" } else { "no space left on the disk" }]);
        let document = node::document(run);
        assert_eq!(document["outcome"], "reached", "{document:#}");
        left -= deleted(&document).len();
        assert_eq!(node.names().len(), left);
        assert_recorded(&node.history()[0], &document);
        assert_eq!(node.history()[0]["unsaved"], true);
    }
    node.state = node.store.scratch().join("elsewhere");
}
