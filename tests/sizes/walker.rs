//! The walker compared with GNU `du`, on real filesystems and with hostile trees.

#![allow(clippy::unwrap_used)] // the helpers belong to the tests

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support;
use layersweep::disk::{Measured, Progress, SharedInodes, Tally, TreeScope, WalkOptions, measure};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use support::du::{self, measure_one, measure_trees, total, tree};
use support::loopfs::{BindMount, Fs, LoopFs, MIB};

fn on_each(check: impl Fn(&LoopFs)) {
    if support::require_root() {
        for fs in Fs::ALL.into_iter().filter(|fs| fs.require()) {
            check(&LoopFs::new(fs, 128 * MIB));
        }
    }
}

fn write(path: &Path, length: usize) {
    fs::write(path, vec![b'x'; length]).unwrap();
}

/// Fills `dir` with every kind of file.
fn populate(dir: &Path) {
    fs::create_dir_all(dir.join("empty/emptier")).unwrap();
    for (number, length) in [0, 1, 59, 61, 4095, 4096, 4097, 30_000, 1 << 20].into_iter().enumerate() {
        write(&dir.join(format!("file{number}")), length);
    }
    let sparse = File::create(dir.join("sparse")).unwrap();
    sparse.write_all_at(b"end", 10 << 20).unwrap();
    fs::hard_link(dir.join("file3"), dir.join("again")).unwrap();
    fs::hard_link(dir.join("file3"), dir.join("empty/and-again")).unwrap();
    symlink("short", dir.join("symlink")).unwrap();
    symlink("long/".repeat(150), dir.join("long-symlink")).unwrap();
    symlink("/", dir.join("link-to-root")).unwrap();
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(CWD, dir.join("fifo"), FileType::Fifo, mode, 0).unwrap();
    rustix::fs::mknodat(CWD, dir.join("socket"), FileType::Socket, mode, 0).unwrap();
    let whiteout = rustix::fs::makedev(0, 0);
    rustix::fs::mknodat(CWD, dir.join("whiteout"), FileType::CharacterDevice, mode, whiteout).unwrap();
    let loop0 = rustix::fs::makedev(7, 0);
    rustix::fs::mknodat(CWD, dir.join("disk"), FileType::BlockDevice, mode, loop0).unwrap();
    for name in [
        b"new\nline".as_slice(),
        b"\xff\xfe invalid",
        b" ",
        b"-rf",
        b"...",
        b"\x1b[31mred",
        "\u{202e}txt".as_bytes(),
        &[b'n'; 255],
    ] {
        write(&dir.join(OsStr::from_bytes(name)), 100);
        let mut directory = name.to_vec();
        directory.truncate(253);
        directory.extend(b".d");
        fs::create_dir(dir.join(OsStr::from_bytes(&directory))).unwrap();
        write(&dir.join(OsStr::from_bytes(&directory)).join("inside"), 5000);
    }
    let many = dir.join("many");
    fs::create_dir(&many).unwrap();
    (0..2000).for_each(|number| write(&many.join(format!("a file with quite a long name {number}")), 0));
}

#[track_caller]
fn assert_clean(measured: &Measured) {
    assert!(measured.errors.is_empty(), "{:?}", measured.errors);
    assert!(measured.mounts.is_empty(), "{:?}", measured.mounts);
}

#[test]
fn counts_as_du_does() {
    on_each(|loopfs| {
        populate(loopfs.path());
        loopfs.sync();
        let measured = measure_one(loopfs.path());
        assert_clean(&measured);
        assert!(measured.shared_inodes.is_empty());
        assert_eq!(measured.shared_extents(), []);
        let expected = (du::bytes(&[loopfs.path()]), du::inodes(&[loopfs.path()]));
        assert_eq!(total(&measured), expected, "{:?}", loopfs.fs());

        let apparent: u64 = walkdir::WalkDir::new(loopfs.path())
            .into_iter()
            .map(|entry| entry.unwrap())
            .filter(|entry| !entry.file_type().is_dir())
            .filter(|entry| !["again", "and-again"].iter().any(|name| entry.file_name() == *name))
            .map(|entry| entry.metadata().unwrap().len())
            .sum();
        assert_eq!(measured.units[0].apparent_bytes, apparent);
    });
}

#[test]
fn filesystem_without_file_types_is_walked() {
    if !support::require_root() || !Fs::Ext4.require() {
        return;
    }
    let loopfs = LoopFs::with(Fs::Ext4, 128 * MIB, &["-O", "^filetype"], &[]);
    populate(loopfs.path());
    let measured = measure_one(loopfs.path());
    assert_clean(&measured);
    let expected = (du::bytes(&[loopfs.path()]), du::inodes(&[loopfs.path()]));
    assert_eq!(total(&measured), expected);
}

#[test]
fn every_number_of_threads_counts_the_same() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..300 {
        let sub = dir.path().join(format!("{}/{}/{number}", number % 7, number % 5));
        fs::create_dir_all(&sub).unwrap();
        write(&sub.join("file"), number * 100);
        if number > 0 {
            fs::hard_link(sub.join("file"), dir.path().join(format!("0/0/link{number}"))).unwrap();
        }
    }
    let expected = (du::bytes(&[dir.path()]), du::inodes(&[dir.path()]));
    for threads in [1, 2, 3, 32, 1000] {
        let progress = Progress::default();
        let options =
            WalkOptions { threads, extents: None, progress: Some(&progress), ..WalkOptions::default() };
        let measured = measure(&[dir.path().to_path_buf()], &[tree("", 0)], &options);
        assert_clean(&measured);
        assert_eq!(total(&measured), expected, "{threads} threads");
        assert_eq!(progress.bytes.into_inner(), expected.0);
        assert_eq!(progress.inodes.into_inner(), expected.1);
    }
}

#[test]
fn hard_links_count_for_their_common_owner() {
    on_each(|loopfs| {
        let path = |name: &str| loopfs.path().join(name);
        for unit in ["a", "b", "c", "outside"] {
            fs::create_dir(path(unit)).unwrap();
        }
        for (file, links) in [
            ("a/own", vec!["a/own2", "a/own3"]),
            ("a/ab", vec!["b/ab"]),
            ("b/ab2", vec!["a/ab2", "a/ab3"]),
            ("c/out", vec!["outside/out"]),
            ("a/all", vec!["b/all", "c/all", "outside/all"]),
        ] {
            write(&path(file), 10_000);
            links.iter().for_each(|link| fs::hard_link(path(file), path(link)).unwrap());
        }
        loopfs.sync();
        let trees = [tree("c", 2), tree("b", 1), tree("a", 0)];
        let measured = measure_trees(loopfs.path(), &trees, false);
        assert_clean(&measured);

        let facts = fs::metadata(path("a/own")).unwrap();
        let weigh = |count| Tally {
            bytes: facts.blocks() * 512 * count,
            apparent_bytes: 10_000 * count,
            inodes: count,
            metadata_bytes: (630 + facts.blocks() / 2) * count,
            inline_bytes: 0,
        };
        let shared = |units: &[usize], outside, count| SharedInodes {
            units: units.to_vec(),
            outside,
            tally: weigh(count),
        };
        let expected = [shared(&[0, 1], false, 2), shared(&[0, 1, 2], true, 1), shared(&[2], true, 1)];
        assert_eq!(measured.shared_inodes, expected);
        let directory = fs::metadata(path("a")).unwrap().blocks() * 512;
        assert_eq!(measured.units[0].bytes, weigh(1).bytes + directory);
        assert_eq!(measured.units.iter().map(|unit| unit.inodes).collect::<Vec<_>>(), [2, 1, 1]);
        let (a, b, c) = (path("a"), path("b"), path("c"));
        assert_eq!(total(&measured).0, du::bytes(&[&a, &b, &c]));
    });
}

#[test]
fn trees_may_be_files_links_or_entries_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    write(&dir.path().join("sub/file"), 5000);
    symlink("sub", dir.path().join("link")).unwrap();
    fn entry(path: &str, unit: usize) -> layersweep::disk::Tree<'_> {
        layersweep::disk::Tree { scope: TreeScope::EntryOnly, ..tree(path, unit) }
    }
    let trees = [
        tree("sub/file", 0),
        tree("link", 1),
        entry("sub", 2),
        entry("", 3),
        tree("sub", 4),
        entry("link", 5),
    ];
    let measured = measure_trees(dir.path(), &trees, false);
    assert_clean(&measured);
    let bytes = |path: &str| fs::symlink_metadata(dir.path().join(path)).unwrap().blocks() * 512;
    let expected = [
        (bytes("sub/file"), 5000, 1),
        (bytes("link"), 3, 1),
        (bytes("sub"), 0, 1),
        (bytes("."), 0, 1),
        (bytes("sub") + bytes("sub/file"), 5000, 2),
        (bytes("link"), 3, 1),
    ];
    let seen: Vec<_> =
        measured.units.iter().map(|unit| (unit.bytes, unit.apparent_bytes, unit.inodes)).collect();
    assert_eq!(seen, expected);

    // The root may be a file, and its path may contain a symlink.
    let file = measure_one(&dir.path().join("link/file"));
    assert_eq!(total(&file), (bytes("sub/file"), 1));
}

#[test]
fn missing_paths_vanish_and_symlinks_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    symlink("sub", dir.path().join("link")).unwrap();
    let trees = [tree("none", 0), tree("sub/none/x", 1), tree("link/x", 2), tree("../x", 3)];
    let measured = measure_trees(dir.path(), &trees, false);
    let seen: Vec<_> = measured
        .errors
        .iter()
        .map(|error| (error.unit, error.path.strip_prefix(dir.path()).unwrap(), error.vanished))
        .collect();
    let expected = [(0, "none", true), (1, "sub/none/x", true), (2, "link/x", false), (3, "../x", false)];
    assert_eq!(seen, expected.map(|(unit, path, gone)| (unit, Path::new(path), gone)));
    assert!(measured.errors[0].message.starts_with("opening: No such file"), "{measured:?}");

    let nowhere = measure_one(&dir.path().join("nowhere"));
    assert_eq!(nowhere.errors.len(), 1);
    assert!(nowhere.errors[0].vanished);
    assert_eq!(nowhere.errors[0].path, dir.path().join("nowhere"));
}

#[test]
fn trees_of_thousands_of_levels_are_counted() {
    on_each(|loopfs| {
        // At each level a sibling waits while the walker is far below, so directories must be closed and reopened by a
        // path that is longer than PATH_MAX.
        let name = "a-directory-name-of-forty-characters-or-so";
        let mut here: OwnedFd = File::open(loopfs.path()).unwrap().into();
        let mode = Mode::from_raw_mode(0o700);
        for _ in 0..3000 {
            rustix::fs::mkdirat(&here, name, mode).unwrap();
            for sibling in ["a", "z"] {
                rustix::fs::mkdirat(&here, sibling, mode).unwrap();
                rustix::fs::mkdirat(&here, Path::new(sibling).join("x"), mode).unwrap();
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            here = rustix::fs::openat(&here, name, flags, Mode::empty()).unwrap();
        }
        let measured = measure_one(loopfs.path());
        assert_clean(&measured);
        assert_eq!(total(&measured).0, du::bytes(&[loopfs.path()]), "{:?}", loopfs.fs());
        assert!(total(&measured).1 >= 15_001);
    });
}

#[test]
fn unreadable_paths_are_named_and_counted() {
    if !support::require_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (name, mode) in [("closed", 0o700), ("names-only", 0o744), ("open", 0o755)] {
        fs::create_dir(path(name)).unwrap();
        write(&path(name).join("file"), 5000);
        fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    // Credentials belong to threads; the walker's threads and du inherit them.
    let (measured, closed, expected) = std::thread::scope(|scope| {
        let walk = scope.spawn(|| {
            let user = rustix::thread::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            let closed = measure_one(&path("closed"));
            (measure_one(dir.path()), closed, du::bytes(&[dir.path()]))
        });
        walk.join().unwrap()
    });
    assert_eq!(total(&measured).0, expected);
    let failed: Vec<_> = measured.errors.iter().map(|error| error.path.clone()).collect();
    assert_eq!(failed, [path("closed"), path("names-only/file")]);
    assert!(measured.errors.iter().all(|error| !error.vanished));
    assert!(measured.errors[0].message.contains("Permission denied"));
    assert_eq!((closed.units[0].inodes, closed.errors.len()), (1, 1));
}

#[test]
fn bind_mounts_are_not_entered() {
    on_each(|loopfs| {
        let path = |name: &str| loopfs.path().join(name);
        for dir in ["source/deep", "layer/merged", "layer/diff", "itself/sub"] {
            fs::create_dir_all(path(dir)).unwrap();
        }
        for file in ["source/big", "layer/diff/file", "layer/resolv.conf", "itself/sub/file"] {
            write(&path(file), 50_000);
        }
        write(&path("source/other"), 70_000);
        loopfs.sync();
        let trees = [tree("layer", 0), tree("itself", 1)];
        let before = measure_trees(loopfs.path(), &trees, false);
        assert_clean(&before);
        let covered = [path("layer/merged"), path("layer/resolv.conf")]
            .map(|path| fs::metadata(path).unwrap().blocks() * 512)
            .iter()
            .sum::<u64>();

        let _dir = BindMount::new(&path("source"), &path("layer/merged"));
        let _file = BindMount::new(&path("source/other"), &path("layer/resolv.conf"));
        let _itself = BindMount::new(&path("itself/sub"), &path("itself/sub"));
        let after = measure_trees(loopfs.path(), &trees, false);
        assert!(after.errors.is_empty(), "{:?}", after.errors);
        let expected = [(0, path("layer/merged")), (0, path("layer/resolv.conf"))];
        assert_eq!(after.mounts, expected);
        assert_eq!(after.units[0].bytes, before.units[0].bytes - covered);
        assert_eq!(after.units[0].inodes, before.units[0].inodes - 2);
        // A directory that is mounted on itself is the same tree.
        assert_eq!(after.units[1], before.units[1]);
        // A mount on the path to a tree is not entered either: its content counts at its source.
        let named = measure_trees(&path("layer"), &[tree("merged/deep", 0)], false);
        assert!(named.errors.is_empty(), "{:?}", named.errors);
        assert_eq!(named.mounts, [(0, path("layer/merged/deep"))]);
        assert_eq!(named.units[0].inodes, 0);
    });
}

#[test]
fn concurrent_deletion_is_not_failure() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (stop, root) = (&stop, &root);
        for thread in 0..2 {
            scope.spawn(move || {
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    number += 1;
                    churn(&root.join(format!("{thread}-{}", number % 20)));
                }
            });
        }
        let mut vanished = 0;
        for round in 0.. {
            let measured = measure_one(root);
            for error in &measured.errors {
                assert!(error.vanished, "{error:?}");
            }
            vanished += measured.errors.len();
            if round >= 300 && (vanished > 0 || round > 5000) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(vanished > 0, "the race was never met");
    });
}

/// Makes a small tree, or removes it if it exists.
fn churn(dir: &Path) {
    let names: Vec<PathBuf> = (0..30).map(|number| dir.join(format!("sub/file{number}"))).collect();
    if fs::create_dir(dir).is_ok() {
        fs::create_dir(dir.join("sub")).unwrap();
        names.iter().for_each(|name| write(name, 10));
    } else {
        names.iter().for_each(|name| fs::remove_file(name).unwrap());
        fs::remove_dir(dir.join("sub")).unwrap();
        fs::remove_dir(dir).unwrap();
    }
}

#[test]
fn no_access_time_changes() {
    if !support::require_root() {
        return;
    }
    for fs in Fs::ALL.into_iter().filter(|fs| fs.require()) {
        let loopfs = LoopFs::with(fs, 128 * MIB, &[], &["strictatime"]);
        populate(loopfs.path());
        loopfs.sync();
        let paths: Vec<PathBuf> = walkdir::WalkDir::new(loopfs.path())
            .into_iter()
            .map(|entry| entry.unwrap().into_path())
            .collect();
        fn atimes(paths: &[PathBuf]) -> Vec<(i64, i64)> {
            let facts = paths.iter().map(|path| fs::symlink_metadata(path).unwrap());
            facts.map(|facts| (facts.atime(), facts.atime_nsec())).collect()
        }
        let before = atimes(&paths);
        std::thread::sleep(std::time::Duration::from_millis(20));
        for extents in [false, true] {
            assert_clean(&measure_trees(loopfs.path(), &[tree("", 0)], extents));
            assert_eq!(before, atimes(&paths), "{fs:?}, {extents:?}");
        }
        // The check can fail: reading changes access times here.
        fs::read_dir(loopfs.path()).unwrap().for_each(drop);
        assert_ne!(before, atimes(&paths));
    }
}
