//! `scan` with unusable records: it continues, reports the problem and the remedy, and loses nothing.

#![allow(clippy::unwrap_used)] // a test talks to its reader

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support;
use layersweep::history::PATIENCE;
use rusqlite::Connection;
use serde_json::{Value, json};
use support::loopfs::{Fs, LoopFs, MIB};
use support::node::{self, Node, image};
use support::program::{self, Run, list, number, text};
use support::{scan_records, small, store, tree};

const IMAGES: [&str; 5] = ["base", "a", "a2", "b", "other"];

fn of<'a>(document: &'a Value, name: &str) -> &'a Value {
    image(document, &small::name(name))
}

/// Checks that a scan completed and reported, on stderr and in its document, the problem with its records and the
/// remedy.
#[track_caller]
fn assert_warned(node: &Node, run: Run, parts: &[&str]) -> Value {
    let run = run.expect_code(0);
    let database = node.state.join("layersweep.db").to_string_lossy().into_owned();
    let told = run.stderr.lines().find(|line| line.starts_with(&format!("warning: {database}: ")));
    let told = told.unwrap_or_else(|| panic!("no warning of {database}: {run:?}")).to_owned();
    let scan = node::document(run);
    let warning = list(&scan, "/warnings").iter().find(|warning| warning["path"] == *database);
    let warning = text(warning.unwrap_or_else(|| panic!("{:#}", scan["warnings"])), "/message");
    for part in parts {
        assert!(told.contains(part), "{part:?} in {told:?}");
        assert!(warning.contains(part), "{part:?} in {warning:?}");
    }
    scan
}

/// Checks that all images are as old as before, whether their age is from the records or from the disk again: a
/// correction of the clock may then have made them a little younger.
#[track_caller]
fn assert_same_ages(what: &str, before: &Value, after: &Value) {
    for name in IMAGES {
        let [before, after] =
            [before, after].map(|document| node::time(of(document, name), "/first_detected"));
        let younger = after.duration_since(before);
        assert!(!younger.is_negative() && younger.as_millis() < 10, "{what}: {name}: {before}, then {after}");
    }
}

fn json_scan(node: &Node) -> Run {
    node.run(&["scan", "--format", "json"])
}

/// Writes until not one more byte fits.
fn fill(filesystem: &Path) -> PathBuf {
    let path = filesystem.join("filler");
    let mut file = File::create(&path).unwrap();
    for size in [1 << 20, 4096, 1] {
        let block = vec![0x5a; size];
        while file.write_all(&block).is_ok() {}
        let _ = file.sync_all();
    }
    path
}

#[test]
fn full_or_read_only_disk_loses_nothing() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut disk = LoopFs::new(Fs::Ext4, 16 * MIB);
    let node = Node::of(small::still(dir.path())).with_state(&disk.path().join("state"));
    fn create(node: &Node, name: &str, image: &str) {
        node.store.podman(["create", "--name", name, "--network", "none", &small::name(image), "/x"]);
    }
    let first = node.scan();

    let filler = fill(disk.path());
    create(&node, "brief", "b");
    let full = assert_warned(
        &node,
        json_scan(&node),
        &["this scan was not recorded: no space left on", "make room"],
    );
    node.store.podman(["rm", "brief"]);
    for name in IMAGES {
        assert_eq!(of(&full, name)["first_detected"], of(&first, name)["first_detected"], "{name}");
    }
    assert_eq!(number(of(&full, "b"), "/use_count"), 1, "the scan's own document counts the use");
    assert_eq!(list(&node.json(&["history", "--all"]), "/runs").len(), 1, "it is not recorded");

    std::fs::remove_file(filler).unwrap();
    disk.remount_with("ro");
    create(&node, "briefer", "base");
    let unwritable = assert_warned(
        &node,
        json_scan(&node),
        &["this scan was not recorded: ", "read-only", "writable again"],
    );
    node.store.podman(["rm", "briefer"]);
    assert_eq!(number(of(&unwritable, "base"), "/use_count"), 1);
    // A quiet scan reports it too, because a timer needs it. A quiet `images` does not.
    let quiet = node.run(&["scan", "-q", "--format", "json"]).expect_code(0);
    assert!(quiet.stderr.contains("this scan was not recorded: "), "{quiet:?}");
    assert_eq!(node.run(&["images", "-q"]).expect_code(0).stderr, "");
    assert!(!list(&quiet.json(), "/warnings").is_empty());

    disk.remount_with("rw");
    let last = node.scan();
    for (name, uses) in [("a", 1), ("b", 0), ("base", 0), ("other", 0)] {
        assert_eq!(number(of(&last, name), "/use_count"), uses, "{name}");
        assert_eq!(of(&last, name)["first_detected"], of(&first, name)["first_detected"], "{name}");
        assert_eq!(number(of(&last, name), "/lives"), 1, "{name}");
    }
    let all = node.json(&["history", "--all"]);
    assert_eq!(list(&all, "/runs").len(), 2, "{all:#}");
    let points = node.json(&["history", "usage"]);
    let readings = list(&points, "/filesystems").iter().flat_map(|filesystem| list(filesystem, "/points"));
    assert!(readings.map(|point| number(point, "/readings")).sum::<u64>() >= 2, "{points:#}");
    node.scan();
    assert_eq!(list(&node.json(&["history", "--all"]), "/runs").len(), 3);
}

#[test]
fn disk_full_from_start_is_scanned() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = LoopFs::new(Fs::Ext4, 16 * MIB);
    let node = Node::of(small::still(dir.path())).with_state(&disk.path().join("state"));
    std::fs::create_dir(&node.state).unwrap();
    let disk_says = node.json(&["images"]);
    let filler = fill(disk.path());
    let scan = assert_warned(&node, json_scan(&node), &["no space left on", "make room"]);
    for name in IMAGES {
        assert_eq!(of(&scan, name)["first_detected"], of(&disk_says, name)["first_detected"], "{name}");
    }
    std::fs::remove_file(filler).unwrap();
    node.scan();
    assert_eq!(list(&node.json(&["history", "--all"]), "/runs").len(), 1);
}

/// Damages the first page of the table `name`.
fn damage(database: &Path, name: &str) {
    let connection = Connection::open(database).unwrap();
    let page: i64 = connection
        .query_row("SELECT rootpage FROM sqlite_schema WHERE name = ?1", [name], |row| row.get(0))
        .unwrap();
    let size: i64 = connection.query_row("PRAGMA page_size", [], |row| row.get(0)).unwrap();
    drop(connection);
    let file = File::options().write(true).open(database).unwrap();
    file.write_all_at(&vec![0xa5; usize::try_from(size).unwrap()], u64::try_from((page - 1) * size).unwrap())
        .unwrap();
}

/// Makes a node with a history: its records contain the age of its images and the use of `b`, which is nowhere else,
/// and
/// `other` is pinned.
fn with_past(dir: &Path) -> (Node, Value) {
    let node = Node::of(small::still(dir));
    node.store.podman(["create", "--name", "brief", "--network", "none", &small::name("b"), "/x"]);
    node.scan();
    node.store.podman(["rm", "brief"]);
    node.run(&["pin", "add", "localhost/small/other"]).expect_code(0);
    let scan = node.scan();
    assert_eq!(number(of(&scan, "b"), "/use_count"), 1);
    (node, scan)
}

/// Returns the databases that were set aside, without their logs.
fn asides(node: &Node) -> Vec<String> {
    let names = node.state_names().into_iter().filter(|name| name.contains(".corrupt-"));
    names.filter(|name| !name.ends_with("-wal") && !name.ends_with("-shm")).collect()
}

/// A damaged part, a function that damages it, and whether the pins can be saved from the rest.
type Damage<'a> = (&'a str, &'a dyn Fn(&Path), bool);

#[test]
fn damaged_database_is_set_aside_by_scan() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (node, before) = with_past(dir.path());
    let database = node.state.join("layersweep.db");
    let sound = std::fs::read(&database).unwrap();
    // If the keep-list cannot be read, every image is pinned.
    let cases: [Damage<'_>; 6] = [
        ("all of it", &|path| std::fs::write(path, vec![0x5a; 70_000]).unwrap(), false),
        ("its end", &|path| File::options().write(true).open(path).unwrap().set_len(5000).unwrap(), false),
        ("the images", &|path| damage(path, "images"), true),
        ("an index", &|path| damage(path, "images_present"), true),
        ("the pins", &|path| damage(path, "pins"), false),
        ("the sizes", &|path| damage(path, "layer_sizes"), true),
    ];
    for (what, damage, pins) in cases {
        std::fs::write(&database, &sound).unwrap();
        damage(&database);
        let damaged = std::fs::read(&database).unwrap();
        // A reader continues too, and leaves the file to writers.
        let images = node.run(&["images", "--format", "json"]).expect_code(0);
        let images = node::document(images);
        assert!(std::fs::read(&database).unwrap() == damaged && asides(&node).is_empty(), "{what}");

        let scan = assert_warned(&node, json_scan(&node), &["damaged", ".corrupt-"]);
        let aside = asides(&node);
        assert_eq!(aside.len(), 1, "{what}: {aside:?}");
        assert!(std::fs::read(node.state.join(&aside[0])).unwrap() == damaged, "{what}: as it was");
        assert_same_ages(what, &before, &images);
        assert_same_ages(what, &before, &scan);
        assert_eq!(of(&scan, "b")["use_count"], json!(0), "{what}: uses are forgotten");
        let kept = node.json(&["images"]);
        assert_eq!(of(&kept, "other")["pinned"], true, "{what}");
        assert_eq!(of(&kept, "b")["pinned"], !pins, "{what}");
        // The next scan works as usual.
        let after = node.scan();
        assert_eq!(of(&after, "b")["use_count"], of(&scan, "b")["use_count"], "{what}");
        for name in node.state_names().iter().filter(|name| name.contains(".corrupt-")) {
            std::fs::remove_file(node.state.join(name)).unwrap();
        }
    }
}

/// Two faults at the same time: damage that cannot be set aside.
#[test]
fn unreadable_records_keep_everything() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (node, _) = with_past(dir.path());
    damage(&node.state.join("layersweep.db"), "pins");
    let images = node.json(&["images"]);
    for image in list(&images, "/images") {
        assert_eq!(image["pinned"], true, "{image:#}");
    }
    let usage = node.json(&["usage"]);
    assert_eq!(number(&usage, "/totals/reclaimable_bytes"), 0);
    let explained = node.run(&["explain", &small::name("b")]).expect_code(0);
    assert!(
        explained.stdout.contains("cannot be read") && !explained.stdout.contains("would delete it"),
        "{explained:?}"
    );
    for words in [&["pin", "list"][..], &["history"], &["history", "usage"]] {
        let document = node.run(&[words, &["--format", "json"]].concat()).expect_code(3).json();
        assert_eq!(document["complete"], false, "{words:?}");
        // The screen does not suggest that there are no images.
        let said = node.run(words).expect_code(3).stdout;
        assert!(said.contains("cannot be read"), "{words:?}: {said}");
    }
    // After the next scan the pins are known again.
    let run = node.run(&["scan", "--quiet"]).expect_code(0);
    assert!(run.stdout.is_empty() && run.stderr.contains("pin remove"), "{run:?}");
    let document = node.json(&["pin", "list"]);
    assert_eq!(document["complete"], true);
}

#[test]
fn quiet_scan_prints_nothing() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let node = Node::of(small::still(dir.path()));
    let run = node.run(&["scan", "--quiet"]).expect_code(0);
    assert!(run.stdout.is_empty() && run.stderr.is_empty(), "{run:?}");
    assert_eq!(list(&node.json(&["history", "--all"]), "/runs").len(), 1);
    // Times are in the zone of the environment.
    let mut command = node.command(&["history", "--all"]);
    command.env("TZ", "Asia/Kolkata");
    let there = support::program::run(&mut command).expect_code(0).stdout;
    let here = node.run(&["history", "--all"]).expect_code(0).stdout;
    assert_ne!(here, there, "half an hour and five off");
}

#[test]
fn damaged_database_on_read_only_disk_is_reported() {
    if !store::require_tools() || !Fs::Ext4.require() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for table in ["images", "clock", "sqlite_schema"] {
        let mut disk = LoopFs::new(Fs::Ext4, 16 * MIB);
        let node = Node::of(small::still(&dir.path().join(table))).with_state(&disk.path().join("state"));
        let before = node.scan();
        match table {
            "sqlite_schema" => std::fs::write(node.state.join("layersweep.db"), [0x5a; 9000]).unwrap(),
            table => damage(&node.state.join("layersweep.db"), table),
        }
        disk.remount_with("ro");
        let run = json_scan(&node);
        assert!(run.stderr.contains("damaged") && run.stderr.contains("read-only"), "{run:?}");
        assert_same_ages(table, &before, &assert_warned(&node, run, &[]));
        disk.remount_with("rw");
        assert_warned(&node, json_scan(&node), &["damaged", ".corrupt-"]);
        let runs = node.json(&["history", "--all"]);
        assert_eq!(list(&runs, "/runs").len(), 1, "{table}: of the new database");
    }
}

#[test]
fn newer_database_is_refused_and_unchanged() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (node, _) = with_past(dir.path());
    let connection = Connection::open(node.state.join("layersweep.db")).unwrap();
    connection.pragma_update(None, "user_version", 9999).unwrap();
    connection.close().unwrap();
    let (bytes, listing) = (node::bytes(&node.state), tree::listing(&node.state));
    let commands: [&[&str]; 9] = [
        &["scan"],
        &["scan", "--no-record"],
        &["images"],
        &["usage"],
        &["explain", "localhost/small/a:1"],
        &["history"],
        &["pin", "list"],
        &["pin", "add", "quay.io/*"],
        &["pin", "remove", "localhost/small/other"],
    ];
    for words in commands {
        let run = node.run(words).expect_code(2);
        let lines: Vec<_> = run.stderr.lines().collect();
        assert!(run.stdout.is_empty() && lines.len() == 2, "{run:?}");
        assert!(lines[0].starts_with("error: ") && lines[0].contains("layersweep.db"), "{run:?}");
        assert!(lines[0].contains("9999") && lines[1].starts_with("hint: "), "{run:?}");
        let changed = tree::differences(&listing, &tree::listing(&node.state));
        assert!(changed.is_empty(), "{words:?}: {changed:#?}");
    }
    assert!(node::bytes(&node.state) == bytes);
}

#[test]
fn locked_database_blocks_no_scan() {
    if !store::require_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (node, before) = with_past(dir.path());
    let lock = scan_records::open(&node.state);
    let holder = format!("process {}", std::process::id());
    std::thread::scope(|scope| {
        let scan = scope.spawn(|| json_scan(&node));
        let pin = scope.spawn(|| node.run(&["pin", "add", "quay.io/*"]));
        let removal = scope.spawn(|| node.run(&["pin", "remove", "localhost/small/other"]));
        let started = Instant::now();
        let reading: [&[&str]; 4] =
            [&["images"], &["history", "--all"], &["pin", "list"], &["scan", "--no-record"]];
        for words in reading {
            let run = node.run(&[words, &["--format", "json"]].concat()).expect_code(0);
            assert_eq!(run.stderr, "", "{words:?}");
        }
        assert!(started.elapsed() < PATIENCE - Duration::from_secs(2), "{:?}", started.elapsed());
        let run = scan.join().unwrap();
        assert!(run.took >= PATIENCE, "{run:?}");
        let locked = assert_warned(&node, run, &["this scan was not recorded: ", "locked by", &holder]);
        for name in IMAGES {
            assert_eq!(of(&locked, name)["first_detected"], of(&before, name)["first_detected"], "{name}");
        }
        for refused in [pin.join().unwrap(), removal.join().unwrap()] {
            let refused = refused.expect_code(1);
            let lines: Vec<_> = refused.stderr.lines().collect();
            assert!(lines[0].starts_with("error: ") && lines[0].contains(&holder), "{refused:?}");
            assert!(refused.stdout.is_empty() && refused.took >= PATIENCE, "{refused:?}");
        }
    });
    drop(lock);
    let pins = node.json(&["pin", "list"]);
    assert_eq!(list(&pins, "/pins").len(), 1, "neither lost nor half done");
    assert_eq!(pins["pins"][0]["pattern"], "localhost/small/other");
    node.scan();
    assert_eq!(
        list(&node.json(&["history", "--all"]), "/runs").len(),
        3,
        "the scan beside the lock is not recorded"
    );
    let run = program::run(&mut node.command(&["pin", "add", "quay.io/*"]));
    run.expect_code(0);
}
