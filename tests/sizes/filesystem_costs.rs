//! The bytes that a deletion really frees, compared with the cost model and the shared extents.

#![allow(clippy::unwrap_used)] // the helpers belong to the tests

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support;
use layersweep::disk::Measured;
use layersweep::disk::filesystem::{self, CostModel};
use layersweep::disk::sharing::SharedExtents;
use support::du::{self, measure_one, measure_trees, tree};
use support::loopfs::{BindMount, Fs, LoopFs, MIB};

/// Writes random bytes, which no filesystem can compress or deduplicate.
fn write_random(path: &Path, length: u64) {
    use std::io::Read;
    let mut source = fs::File::open("/dev/urandom").unwrap().take(length);
    std::io::copy(&mut source, &mut fs::File::create(path).unwrap()).unwrap();
}

fn reflink(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("--reflink=always").args([from, to]).status().unwrap();
    assert!(status.success(), "cp --reflink=always failed");
}

/// Returns the used bytes after they stop changing: XFS frees space in the background.
fn settled(loopfs: &LoopFs) -> u64 {
    let mut last = loopfs.used_bytes();
    let mut still = 0;
    while still < 3 {
        std::thread::sleep(Duration::from_millis(100));
        let now = loopfs.used_bytes();
        still = if now == last { still + 1 } else { 0 };
        last = now;
    }
    last
}

#[track_caller]
fn assert_close(what: &str, predicted: u64, measured: u64) {
    let allowed = (measured / 100).max(64 * 1024);
    let off = predicted.abs_diff(measured);
    assert!(off <= allowed, "{what}: predicted {predicted}, measured {measured}, off by {off}");
}

/// Returns the bytes of the inode chunks that only `unit` holds.
fn alone(loopfs: &LoopFs, measured: &Measured, unit: usize) -> u64 {
    let chunks = du::chunks(loopfs.path(), [measured]).groups(&Some);
    chunks.iter().filter(|group| group.holders == [unit] && !group.outside).map(|group| group.bytes).sum()
}

fn shared(counted: &[(usize, u64)], outside: bool, physical_bytes: u64) -> SharedExtents {
    SharedExtents { counted: counted.to_vec(), outside, physical_bytes }
}

#[test]
fn filesystem_is_known_from_its_mounts() {
    if !support::require_root() {
        return;
    }
    for fs in Fs::ALL.into_iter().filter(|fs| fs.require()) {
        let expected = match fs {
            Fs::Ext4 => CostModel::default(),
            Fs::Xfs => CostModel { inode_chunks: true, reflinks: true, ..CostModel::default() },
            Fs::Btrfs => CostModel { metadata_percent: 100, reflinks: true, ..CostModel::default() },
        };
        let loopfs = LoopFs::new(fs, 128 * MIB);
        let file = loopfs.path().join("a file");
        fs::write(&file, "x").unwrap();
        settled(&loopfs);
        for path in [loopfs.path(), &file] {
            let (facts, cost) = filesystem::of(path).unwrap();
            assert_eq!((facts.fstype.as_str(), cost), (fs.name(), expected));
            assert_eq!(facts.mount, loopfs.path());
            assert!(facts.device.starts_with("/dev/loop"), "{}", facts.device);
            assert_eq!(facts.used_bytes, loopfs.used_bytes());
            assert_eq!(facts.inodes > 0, fs != Fs::Btrfs);
        }
        // A mount below, with a name that the table escapes, above a longer path.
        let below = loopfs.path().join("a\tmount \\ here");
        fs::create_dir_all(loopfs.path().join("source/deep")).unwrap();
        fs::create_dir(&below).unwrap();
        let bind = BindMount::new(&loopfs.path().join("source"), &below);
        assert_eq!(filesystem::of(&below.join("deep")).unwrap().0.mount, below);

        drop(bind);
    }
}

#[test]
fn xfs_features_come_from_filesystem() {
    if !support::require_root() || !Fs::Xfs.require() {
        return;
    }
    let loopfs = LoopFs::with(Fs::Xfs, 0, &["-m", "reflink=0", "-i", "size=1024"], &[]);
    let (_, cost) = filesystem::of(loopfs.path()).unwrap();
    assert_eq!(cost, CostModel { inode_chunks: true, ..CostModel::default() });
}

#[test]
fn small_files_free_predicted_bytes() {
    if !support::require_root() {
        return;
    }
    for fs in [Fs::Ext4, Fs::Xfs].into_iter().filter(|fs| fs.require()) {
        let loopfs = LoopFs::new(fs, 512 * MIB);
        let layer = loopfs.path().join("layer");
        for number in 0..5000 {
            let dir = layer.join(format!("{}/{}", number % 10, number % 50));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(format!("file{number}")), vec![b'x'; number % 3000]).unwrap();
        }
        let before = settled(&loopfs);
        let (_, cost) = filesystem::of(loopfs.path()).unwrap();
        let measured = measure_one(&layer);
        let chunks: u64 = alone(&loopfs, &measured, 0);
        let predicted = cost.frees(&measured.units[0]) + chunks;
        let status = Command::new("rm").arg("-r").arg(&layer).status().unwrap();
        assert!(status.success());
        let given_back = before - settled(&loopfs);
        assert_close(fs.name(), predicted, given_back);
    }
}

/// Makes `a/file` with copies: a complete one in `b`, a partly rewritten one in `c`.
fn reflinked(fs: Fs) -> LoopFs {
    let loopfs = LoopFs::new(fs, 512 * MIB);
    let path = |name: &str| loopfs.path().join(name);
    for unit in ["a", "b", "c"] {
        fs::create_dir(path(unit)).unwrap();
    }
    write_random(&path("a/file"), 16 * MIB);
    write_random(&path("c/unique"), 4 * MIB);
    write_random(&path("a/small"), 64 * 1024);
    loopfs.sync();
    reflink(&path("a/file"), &path("b/file"));
    reflink(&path("a/small"), &path("c/small"));
    reflink(&path("a/file"), &path("c/part"));
    let part = fs::OpenOptions::new().write(true).open(path("c/part")).unwrap();
    part.write_all_at(&vec![b'x'; 4 << 20], 0).unwrap();
    drop(part);
    // The extents were shared before the writes reached the disk.
    loopfs.sync();
    loopfs
}

fn measure_abc(loopfs: &LoopFs) -> Measured {
    let trees = [tree("a", 0), tree("b", 1), tree("c", 2)];
    let measured = measure_trees(loopfs.path(), &trees, true);
    assert!(measured.errors.is_empty(), "{:?}", measured.errors);
    measured
}

#[test]
fn single_reflinked_copy_frees_nothing() {
    if !support::require_root() {
        return;
    }
    for fs in [Fs::Xfs, Fs::Btrfs].into_iter().filter(|fs| fs.require()) {
        let loopfs = reflinked(fs);
        let measured = measure_abc(&loopfs);
        let expected = measured.shared_extents();
        let physical: u64 = expected.iter().map(|group| group.physical_bytes).sum();
        assert_eq!(physical, (16 << 20) + (64 << 10), "{fs:?}: {expected:?}");
        if fs == Fs::Xfs {
            let blocks = [
                shared(&[(0, 4 * MIB), (1, 4 * MIB)], false, 4 * MIB),
                shared(&[(0, 12 * MIB), (1, 12 * MIB), (2, 12 * MIB)], false, 12 * MIB),
                shared(&[(0, 64 << 10), (2, 64 << 10)], false, 64 << 10),
            ];
            assert_eq!(expected, blocks);
        }
        let unasked = measure_trees(loopfs.path(), &[tree("a", 0), tree("b", 1), tree("c", 2)], false);
        assert!(unasked.shared_extents().is_empty());
        fn bytes(measured: &Measured) -> Vec<u64> {
            measured.units.iter().map(|unit| unit.bytes).collect()
        }
        assert_eq!(bytes(&unasked), bytes(&measured));

        // A file outside of the trees shares extents.
        let lonely = measure_trees(loopfs.path(), &[tree("b", 0)], true).shared_extents();
        assert_eq!(lonely, [shared(&[(0, 16 * MIB)], true, 16 * MIB)]);

        let (_, cost) = filesystem::of(loopfs.path()).unwrap();
        let frees = |unit: usize| {
            let counted: u64 = expected
                .iter()
                .flat_map(|group| &group.counted)
                .filter(|(of, _)| *of == unit)
                .map(|(_, bytes)| bytes)
                .sum();
            cost.frees(&measured.units[unit]) + alone(&loopfs, &measured, unit) - counted
        };
        // b shares everything, c its small file and three quarters of the other; a is left.
        fn gone(loopfs: &LoopFs, unit: &str) -> u64 {
            let before = settled(loopfs);
            let removed = Command::new("rm").arg("-r").arg(loopfs.path().join(unit)).status();
            assert!(removed.unwrap().success());
            before.saturating_sub(settled(loopfs))
        }
        assert_close("b", frees(1), gone(&loopfs, "b"));
        assert_close("c", frees(2), gone(&loopfs, "c"));
        let rest = measure_trees(loopfs.path(), &[tree("a", 0)], true);
        assert_eq!(rest.shared_extents(), []);
        assert_close("a", cost.frees(&rest.units[0]) + alone(&loopfs, &rest, 0), gone(&loopfs, "a"));
    }
}

#[test]
fn hard_links_to_reflinks_are_queried_once() {
    if !support::require_root() || !Fs::Xfs.require() {
        return;
    }
    let loopfs = LoopFs::new(Fs::Xfs, 0);
    let path = |name: &str| loopfs.path().join(name);
    for unit in ["a", "b", "c"] {
        fs::create_dir(path(unit)).unwrap();
    }
    write_random(&path("a/file"), 2 * MIB);
    fs::hard_link(path("a/file"), path("a/again")).unwrap();
    loopfs.sync();
    reflink(&path("a/file"), &path("b/file"));
    loopfs.sync();
    let measured = measure_abc(&loopfs);
    let expected = [shared(&[(0, 2 * MIB), (1, 2 * MIB)], false, 2 * MIB)];
    assert_eq!(measured.shared_extents(), expected);
    assert_eq!(measured.units[0].inodes, 2);

    // With links in several units, the inode belongs to no unit, and keeps the bytes that b shares with it.
    fs::hard_link(path("a/file"), path("c/file")).unwrap();
    let measured = measure_abc(&loopfs);
    assert_eq!(measured.shared_extents(), [shared(&[(1, 2 * MIB)], true, 2 * MIB)]);
    assert_eq!(measured.shared_inodes.len(), 1);
    assert_eq!(measured.shared_inodes[0].units, [0, 2]);
}

#[test]
fn btrfs_subvolumes_share_extents_too() {
    if !support::require_root() || !Fs::Btrfs.require() || !support::require_program("btrfs") {
        return;
    }
    let loopfs = LoopFs::new(Fs::Btrfs, 0);
    let path = |name: &str| loopfs.path().join(name);
    fn btrfs(arguments: &[&std::ffi::OsStr]) {
        let output = Command::new("btrfs").arg("subvolume").args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    btrfs(&["create".as_ref(), path("a").as_os_str()]);
    write_random(&path("a/file"), 2 * MIB);
    loopfs.sync();
    btrfs(&["snapshot".as_ref(), path("a").as_os_str(), path("b").as_os_str()]);
    fs::create_dir(path("c")).unwrap();
    loopfs.sync();
    let measured = measure_abc(&loopfs);
    let expected = [shared(&[(0, 2 * MIB), (1, 2 * MIB)], false, 2 * MIB)];
    assert_eq!(measured.shared_extents(), expected);
    assert!(measured.mounts.is_empty());
    // From above, subvolumes are not mounts: all of it is one tree.
    let whole = measure_one(loopfs.path());
    assert_eq!(whole.units[0].bytes, support::du::bytes(&[loopfs.path()]));
}
