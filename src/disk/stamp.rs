//! Stamps: fingerprints that show, without a walk, that a committed layer has not been changed.
//!
//! A stamp covers, for the top directory of each tree of the layer, the device and inode number, type, size, number
//! of links and the times of the last change. It covers the same of those directories inside it that change with the
//! layer's files or with its mounts: for the overlay driver the layer's directory, its `diff` and its `work`. Changes
//! further down do not change the stamp; measuring random layers again detects those.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use hashbrown::HashMap;
use rayon::prelude::*;
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::{Errno, Result};

use super::fingerprint::{Fingerprint, Fingerprinter};
use super::top::{self, Top};
use super::walk::{Tree, TreeScope};
use crate::sys::beneath::{AS_IT_IS, HANDLE, Opener};
use crate::sys::quiet::Within;

/// Kind and version of the fingerprint.
const STAMP: &str = "layer on the disk, 3";

/// Directories that contain a layer's files (overlay driver, containerd's snapshotters), and those that exist or
/// change while the layer is mounted. The most common come first.
const INSIDE: [&str; 4] = ["diff", "work", "fs", "merged"];

/// Returns the stamps of the units of `trees`, in which the trees of one unit must be adjacent. Units that cannot be
/// examined are missing from the result.
#[must_use]
pub fn gather(
    roots: &[PathBuf],
    within: &Within,
    trees: &[Tree<'_>],
    threads: usize,
) -> HashMap<usize, Fingerprint> {
    if trees.is_empty() {
        return HashMap::new();
    }
    let roots = Top::all(roots, within);
    let opener = Top::opener(&roots);
    let units: Vec<&[Tree<'_>]> = trees.chunk_by(|a, b| a.unit == b.unit).collect();
    let stamps: Vec<_> = top::in_pool(threads, units.len(), || {
        units.par_iter().filter_map(|trees| stamp_of(opener, &roots, trees)).collect()
    });
    stamps.into_iter().collect()
}

/// Returns the unit of `trees` and its stamp; logs the error if it cannot be examined.
fn stamp_of(opener: Opener, roots: &[Result<Top>], trees: &[Tree<'_>]) -> Option<(usize, Fingerprint)> {
    let first = trees.first()?;
    match of_unit(opener, roots, trees) {
        Ok(stamp) => Some((first.unit, stamp)),
        Err(error) => {
            tracing::debug!(%error, path = ?first.path, "no stamp");
            None
        }
    }
}
fn of_unit(opener: Opener, roots: &[Result<Top>], trees: &[Tree<'_>]) -> Result<Fingerprint> {
    let mut all = Fingerprinter::new(STAMP);
    for tree in trees {
        let root = match roots.get(tree.root) {
            Some(Ok(root)) => root,
            Some(Err(error)) => return Err(*error),
            None => return Err(Errno::INVAL),
        };
        // The device and inode number identify the root and the path.
        let directory = match tree.scope {
            TreeScope::EntryOnly | TreeScope::File => Err(Errno::NOTDIR),
            TreeScope::Whole => root.open(opener, &tree.path, HANDLE | OFlags::DIRECTORY),
        };
        let directory = match directory {
            Ok(directory) => directory,
            // A file, which is written once, together with the layer's record.
            Err(Errno::NOTDIR) => continue,
            Err(error) => return Err(error),
        };
        take_directory(&mut all, directory.as_fd())?;
    }
    Ok(all.finish())
}

/// Returns the stamp of a unit whose only tree walked as a whole is this directory, and true if the directory contains a
/// directory `diff`.
///
/// # Errors
/// If the directory cannot be examined.
pub fn of_directory(directory: BorrowedFd<'_>) -> Result<(Fingerprint, bool)> {
    let mut all = Fingerprinter::new(STAMP);
    let has_diff = take_directory(&mut all, directory)?;
    Ok((all.finish(), has_diff))
}

/// Returns true if the directory contains a directory `diff`.
fn take_directory(all: &mut Fingerprinter, directory: BorrowedFd<'_>) -> Result<bool> {
    let whole = rustix::fs::fstat(directory)?;
    take(all, &whole);
    // A directory has two links plus one for each subdirectory (on btrfs always one): once all subdirectories are
    // found, the remaining names need not be looked up.
    #[allow(clippy::unnecessary_cast)] // another type on other architectures
    let (mut links, all_links) = (2, whole.st_nlink as u64);
    let mut has_diff = false;
    for name in INSIDE {
        match rustix::fs::statat(directory, name, AS_IT_IS) {
            Ok(stat) => {
                take(all, &stat);
                let is_directory = FileType::from_raw_mode(stat.st_mode).is_dir();
                has_diff |= is_directory && name == "diff";
                links += u64::from(is_directory);
                if links > 2 && links == all_links {
                    break;
                }
            }
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(has_diff)
}

#[allow(clippy::unnecessary_cast, clippy::cast_sign_loss)] // other types elsewhere; only equality matters
fn take(all: &mut Fingerprinter, stat: &Stat) {
    let facts = [
        stat.st_dev as u64,
        stat.st_ino as u64,
        stat.st_mode as u64,
        stat.st_nlink as u64,
        stat.st_size as u64,
        stat.st_ctime as u64,
        stat.st_ctime_nsec as u64,
        stat.st_mtime as u64,
        stat.st_mtime_nsec as u64,
    ];
    for fact in facts {
        all.number(fact);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn of(root: &Path, parts: &[(&str, TreeScope)]) -> Option<Fingerprint> {
        let trees: Vec<_> = parts
            .iter()
            .map(|(path, scope)| Tree { root: 0, path: Path::new(path).into(), unit: 7, scope: *scope })
            .collect();
        gather(&[root.to_path_buf()], &Within::default(), &trees, 2).remove(&7)
    }

    #[test]
    fn stamp_changes_with_the_top_directories_only() {
        use TreeScope::{EntryOnly, Whole};
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        fs::create_dir_all(dir.join("layer/diff/etc/deep")).unwrap();
        fs::write(dir.join("layer/link"), "X").unwrap();
        fs::write(dir.join("layer/diff/etc/deep/file"), "1").unwrap();
        fs::write(dir.join("split"), "tar").unwrap();
        let parts = [("layer", Whole), ("split", Whole)];
        let first = of(dir, &parts).unwrap();
        assert_eq!(of(dir, &parts), Some(first), "reading changes nothing");
        fs::write(dir.join("layer/diff/etc/deep/file"), "2").unwrap();
        fs::write(dir.join("layer/diff/etc/new"), "2").unwrap();
        assert_eq!(of(dir, &parts), Some(first), "changes further down are not covered");

        type Change = fn(&Path);
        let changes: [(&str, Change); 6] = [
            ("a file in diff", |dir| fs::write(dir.join("layer/diff/file"), "").unwrap()),
            ("a new entry", |dir| fs::create_dir(dir.join("layer/work")).unwrap()),
            ("a mount", |dir| fs::create_dir(dir.join("layer").join("work").join("mounted")).unwrap()),
            ("a removed entry", |dir| fs::rename(dir.join("layer/work"), dir.join("work")).unwrap()),
            ("another directory", |dir| {
                fs::rename(dir.join("layer"), dir.join("old")).unwrap();
                fs::create_dir_all(dir.join("layer/diff")).unwrap();
                fs::copy(dir.join("old/link"), dir.join("layer/link")).unwrap();
            }),
            ("permissions", |dir| {
                use std::os::unix::fs::PermissionsExt;
                fs::set_permissions(dir.join("layer/diff"), fs::Permissions::from_mode(0o711)).unwrap();
            }),
        ];
        let mut before = first;
        for (name, change) in changes {
            // The kernel's clock for file times advances in steps of up to 10 ms.
            std::thread::sleep(std::time::Duration::from_millis(12));
            change(dir);
            let now = of(dir, &parts).unwrap();
            assert_ne!(now, before, "{name}");
            before = now;
        }
        assert_ne!(of(dir, &[("layer", Whole)]), of(dir, &[("layer", EntryOnly)]));
        assert_eq!(of(dir, &[("layer", Whole), ("none", Whole)]), None, "a missing part");
        std::os::unix::fs::symlink("layer", dir.join("link")).unwrap();
        assert_eq!(of(dir, &[("link/diff", Whole)]), None, "through a symlink");
        assert!(of(dir, &[("link", Whole)]).is_some(), "a symlink itself");
    }
}
