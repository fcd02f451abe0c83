//! A store whose parts are mount points: each byte counts once, and belongs to the store.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test fails by panicking, and prints its table

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support;
use serde_json::Value;
use support::loopfs::{Fs, LoopFs, MIB};
use support::program::{self, list, number, text};
use support::store::succeed;
use support::{containerd, fixture, tree};

const GRAPHROOT: &str = "var/lib/containers/storage";
const IMAGESTORE: &str = "srv/images";
const CONTAINERD: &str = "var/lib/containerd";

/// Directories of stores that may be mount points.
const PARTS: [(&str, Way, &[Kind]); 15] = [
    (GRAPHROOT, Way::Sysroot, &[Kind::Directory]),
    (GRAPHROOT, Way::Sysroot, &MOUNTS),
    (GRAPHROOT, Way::Named, &MOUNTS),
    ("var/lib/containers/storage/overlay", Way::Sysroot, &MOUNTS),
    ("var/lib/containers/storage/overlay", Way::Named, &[Kind::Bind]),
    ("var/lib/containers/storage/overlay-layers", Way::Named, &RARE),
    (IMAGESTORE, Way::Sysroot, &MOUNTS),
    ("srv/images/overlay", Way::Sysroot, &[Kind::Disk(Fs::Ext4), Kind::Bind]),
    ("srv/images/overlay-images", Way::Sysroot, &RARE),
    (CONTAINERD, Way::Sysroot, &MOUNTS),
    (CONTAINERD, Way::Named, &[Kind::Disk(Fs::Ext4), Kind::Bind]),
    ("var/lib/containerd/io.containerd.content.v1.content", Way::Sysroot, &MOUNTS),
    ("var/lib/containerd/io.containerd.snapshotter.v1.overlayfs", Way::Sysroot, &MOUNTS),
    (
        "var/lib/containerd/io.containerd.snapshotter.v1.overlayfs",
        Way::Named,
        &[Kind::Disk(Fs::Xfs), Kind::Bind],
    ),
    ("var/lib/containerd/io.containerd.metadata.v1.bolt", Way::Named, &RARE),
];

/// The way to find the stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Sysroot,
    Named,
}

/// Files that make parts of the stores large, each of [`LARGE`] bytes.
const FILES: [&str; 5] = [
    "var/lib/containers/storage/overlay/LAYER/diff/large",
    "srv/images/overlay/LAYER/diff/large",
    "srv/images/overlay-images/large",
    "var/lib/containerd/io.containerd.content.v1.content/blobs/sha256/BLOB",
    "var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/1/fs/large",
];

const LARGE: u64 = 2 * MIB;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// No mount: the reference for the other kinds.
    Directory,
    Disk(Fs),
    /// A subvolume of a btrfs.
    Subvolume,
    Tmpfs,
    /// Another directory of the same filesystem.
    Bind,
    OnItself,
}

const MOUNTS: [Kind; 6] =
    [Kind::Disk(Fs::Ext4), Kind::Disk(Fs::Xfs), Kind::Subvolume, Kind::Tmpfs, Kind::Bind, Kind::OnItself];

/// The mounts for directories that are rarely mount points.
const RARE: [Kind; 3] = [Kind::Disk(Fs::Ext4), Kind::Bind, Kind::OnItself];

/// A node's disk, and the filesystems that are mounted below it.
struct Scene {
    disk: LoopFs,
    disks: Vec<(Kind, LoopFs)>,
    template: PathBuf,
    _dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let template = fixture::place("imagestore", dir.path());
        std::fs::rename(containerd::rebuild("2.3.4", dir.path()), template.join(CONTAINERD)).unwrap();
        for file in FILES {
            let path = template.join(file);
            let (name, parent) = (path.file_name().unwrap(), path.parent().unwrap());
            let path = if name == "BLOB" {
                first(parent)
            } else {
                let parts = parent.iter().fold(PathBuf::new(), |path, part| {
                    if part == "LAYER" { first(&path) } else { path.join(part) }
                });
                parts.join(name)
            };
            std::fs::write(path, vec![1; LARGE as usize]).unwrap();
        }
        let disks = MOUNTS.into_iter().filter_map(|kind| match kind {
            Kind::Disk(fs) => Some((kind, LoopFs::new(fs, 64 * MIB))),
            Kind::Subvolume => Some((kind, LoopFs::new(Fs::Btrfs, 0))),
            _ => None,
        });
        Self { disk: LoopFs::new(Fs::Ext4, 128 * MIB), disks: disks.collect(), template, _dir: dir }
    }

    /// Makes the node's files with a part mounted, and returns the directory that is mounted on it.
    fn make(&self, part: &str, kind: Kind) -> PathBuf {
        let target = self.disk.path().join(part);
        std::fs::create_dir_all(&target).unwrap();
        let disk = self.disks.iter().find(|(of, _)| *of == kind).map(|(_, disk)| disk.path().to_path_buf());
        let source = match kind {
            Kind::Bind => self.disk.path().join("data/elsewhere"),
            Kind::Subvolume => disk.unwrap().join("store"),
            _ => disk.unwrap_or_else(|| target.clone()),
        };
        match kind {
            Kind::Subvolume => {
                succeed(Command::new("btrfs").args(["-q", "subvolume", "create"]).arg(&source));
            }
            Kind::Bind => std::fs::create_dir_all(&source).unwrap(),
            _ => {}
        }
        let mut mount = Command::new("mount");
        match kind {
            Kind::Directory => {}
            Kind::Tmpfs => drop(succeed(mount.args(["-t", "tmpfs", "none"]).arg(&target))),
            _ => drop(succeed(mount.arg("--bind").args([&source, &target]))),
        }
        succeed(Command::new("cp").arg("-a").arg(self.template.join(".")).arg(self.disk.path()));
        self.sync();
        source
    }

    fn sync(&self) {
        self.disk.sync();
        self.disks.iter().for_each(|(_, disk)| disk.sync());
    }

    fn clear(&self, part: &str, kind: Kind) {
        let target = self.disk.path().join(part);
        if kind != Kind::Directory {
            tree::remove(&self.disk.path().join("data"));
            succeed(Command::new("umount").arg(&target));
        }
        if let Some((_, disk)) = self.disks.iter().find(|(of, _)| *of == kind) {
            empty(disk.path());
        }
        empty(self.disk.path());
    }
}

fn first(directory: &Path) -> PathBuf {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let long = entries.filter(|entry| entry.file_name().len() == 64).map(|entry| entry.path());
    long.min().unwrap_or_else(|| panic!("{}", directory.display()))
}

fn empty(directory: &Path) {
    std::fs::read_dir(directory).unwrap().for_each(|entry| tree::remove(&entry.unwrap().path()));
}

/// Returns the bytes in stores, the bytes outside, and the paths outside that belong to a store. Checks that the sum on
/// each filesystem is its used bytes.
fn in_and_outside(report: &Value, of_store: &dyn Fn(&Path) -> bool) -> (u64, u64, Vec<String>) {
    let (mut inside, mut outside, mut wrong) = (0, 0, Vec::new());
    for filesystem in list(report, "/filesystems") {
        let parts = list(filesystem, "/parts");
        let sum: u64 = parts.iter().map(|part| number(part, "/bytes")).sum();
        assert_eq!(sum, number(filesystem, "/used_bytes"), "{filesystem:#}");
        for part in parts {
            *if part["store"].is_string() { &mut inside } else { &mut outside } += number(part, "/bytes");
            let path = part["path"].as_str().filter(|path| of_store(Path::new(path)));
            wrong.extend(path.filter(|_| part["store"].is_null()).map(|path| format!("part {path}")));
        }
    }
    for cause in list(report, "/verdict/causes") {
        let path = cause["path"].as_str().filter(|path| of_store(Path::new(path)));
        wrong.extend(path.filter(|_| text(cause, "/kind") == "other").map(|path| format!("cause {path}")));
    }
    (inside, outside, wrong)
}

/// For each directory of a store that may be a mount, and each kind of mount.
#[test]
fn store_bytes_are_never_outside_store() {
    let is_possible = support::require_root() && Fs::ALL.iter().all(|fs| fs.require());
    if !is_possible {
        return;
    }
    let scene = Scene::new();
    let mut faults = Vec::new();
    let mut expected = 0;
    for (part, way, kinds) in PARTS {
        for kind in kinds.iter().copied() {
            let source = scene.make(part, kind);
            let root = scene.disk.path();
            let [graphroot, imagestore, containerd] =
                [GRAPHROOT, IMAGESTORE, CONTAINERD].map(|path| root.join(path));
            let (flags, stores) = match way {
                Way::Sysroot => (vec![("--sysroot", root)], vec![&graphroot, &imagestore, &containerd]),
                // Without its configuration, the graphroot has no imagestore.
                Way::Named => {
                    let flags = vec![("--graphroot", &*graphroot), ("--containerd-root", &*containerd)];
                    (flags, vec![&graphroot, &containerd])
                }
            };
            // The paths in the report are those of the node.
            let mut command = program::command();
            command.args(["report", "--format", "json"]);
            command.args(flags.iter().flat_map(|(flag, path)| [OsStr::new(flag), path.as_os_str()]));
            let report = program::run(&mut command).expect_no_crash().json();
            let (inside, outside, wrong) = in_and_outside(&report, &|path: &Path| {
                let here = match way {
                    Way::Sysroot => root.join(path.strip_prefix("/").unwrap_or(path)),
                    Way::Named => path.to_path_buf(),
                };
                here.starts_with(&source) || stores.iter().any(|store| here.starts_with(store))
            });
            println!(
                "{part:60} {:12} {:8} {inside:>9} {outside:>9} {}",
                format!("{kind:?}"),
                format!("{way:?}"),
                wrong.join(", ")
            );
            faults.extend(wrong.into_iter().map(|wrong| format!("{part} {kind:?} {way:?}: {wrong}")));
            // Directories and small files have other block counts on another filesystem.
            if kind == Kind::Directory {
                expected = inside;
            } else if way == Way::Sysroot
                && kinds.len() == MOUNTS.len()
                && inside.abs_diff(expected) > 256 << 10
            {
                faults.push(format!("{part} {kind:?} {way:?}: {inside} bytes in stores, not {expected}"));
            }
            scene.clear(part, kind);
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
