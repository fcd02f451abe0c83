//! Listings of a tree to compare, and its size by GNU du.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Facts of a path that a reader must not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Type and permissions.
    pub mode: u32,
    /// Inode number.
    pub inode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Allocated bytes.
    pub blocks: u64,
    /// Seconds and nanoseconds of the last read.
    pub atime: (i64, i64),
    /// Seconds and nanoseconds of the last change of content.
    pub mtime: (i64, i64),
    /// Seconds and nanoseconds of the last change of anything.
    pub ctime: (i64, i64),
}

/// Lists every path below `top`, including `top`. Changes nothing, not even access times: directories are opened with
/// `O_NOATIME`.
pub fn listing(top: &Path) -> BTreeMap<PathBuf, Facts> {
    let mut all = BTreeMap::new();
    visit(top, &mut all);
    all
}

fn visit(path: &Path, all: &mut BTreeMap<PathBuf, Facts>) {
    use nix::dir::Dir;
    use nix::fcntl::OFlag;
    use nix::sys::stat::Mode;

    let facts = std::fs::symlink_metadata(path).expect("reading a path's facts");
    all.insert(
        path.to_path_buf(),
        Facts {
            mode: facts.mode(),
            inode: facts.ino(),
            size: facts.size(),
            blocks: facts.blocks() * 512,
            atime: (facts.atime(), facts.atime_nsec()),
            mtime: (facts.mtime(), facts.mtime_nsec()),
            ctime: (facts.ctime(), facts.ctime_nsec()),
        },
    );
    if !facts.is_dir() {
        return;
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOATIME | OFlag::O_NOFOLLOW;
    let mut dir = Dir::open(path, flags, Mode::empty()).expect("opening a directory");
    let names: Vec<_> =
        dir.iter().map(|entry| entry.expect("reading a directory").file_name().to_owned()).collect();
    drop(dir);
    for name in names {
        use std::os::unix::ffi::OsStrExt;
        if name.to_bytes() != b"." && name.to_bytes() != b".." {
            visit(&path.join(std::ffi::OsStr::from_bytes(name.to_bytes())), all);
        }
    }
}

/// Differences of two listings, one line a path; empty if they are equal.
pub fn differences(before: &BTreeMap<PathBuf, Facts>, after: &BTreeMap<PathBuf, Facts>) -> Vec<String> {
    let mut lines = Vec::new();
    for (path, facts) in before {
        match after.get(path) {
            None => lines.push(format!("gone: {}", path.display())),
            Some(now) if now != facts => {
                lines.push(format!("{}: {facts:?} -> {now:?}", path.display()));
            }
            Some(_) => {}
        }
    }
    for path in after.keys().filter(|path| !before.contains_key(*path)) {
        lines.push(format!("new: {}", path.display()));
    }
    lines
}

/// `du -s --block-size=1` of `top`, without crossing into other filesystems.
pub fn du(top: &Path) -> u64 {
    let output =
        Command::new("du").args(["-s", "-x", "--block-size=1"]).arg(top).output().expect("running du");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("du's output");
    let number = text.split_whitespace().next().expect("du's output");
    number.parse().expect("du's output")
}

/// Copies a tree with all attributes and without sharing blocks.
pub fn copy(from: &Path, to: &Path) {
    let status =
        Command::new("cp").args(["-a", "--reflink=never"]).args([from, to]).status().expect("running cp");
    assert!(status.success(), "copying {} to {}", from.display(), to.display());
}

/// Removes a tree that a test made, without following links or mounts out of it.
pub fn remove(top: &Path) {
    let status = Command::new("rm").args(["-rf", "--one-file-system"]).arg(top).status().expect("running rm");
    assert!(status.success(), "removing {}", top.display());
}
