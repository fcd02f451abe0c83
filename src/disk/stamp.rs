//! What shows that a committed layer was not touched, without walking it: which directory each
//! of its trees starts at, when that and its inode last changed, its type, size and links; the
//! same of the directories in it that change with the layer's files and with its mounts.
//!
//! For the overlay driver that is the layer's directory, its `diff` and its `work`. What changes further
//! down does not show; that is what samples are for.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use hashbrown::HashMap;
use rayon::prelude::*;
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::{Errno, Result};

use super::top::Top;
use super::{Fingerprint, Fingerprinter, Tree, TreeScope};
use crate::sys::beneath::{AS_IT_IS, HANDLE, Opener};
use crate::sys::quiet::Within;

/// What a stamp is of, in its fingerprint.
const STAMP: &str = "layer on the disk, 3";

/// Threads where the caller has no wish: as for a walk, a cold disk is waited for.
const DEFAULT_THREADS: usize = 32;

/// Where a layer's files lie, with overlay and with containerd's snapshotters, and where each mount of it
/// leaves a directory, or is. The usual ones first.
const INSIDE: [&str; 4] = ["diff", "work", "fs", "merged"];

/// The stamps of the units of `trees`, in which each unit's trees stand together. Units that
/// cannot be examined are missing from the result.
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
    let one = |trees: &&[Tree<'_>]| match of_unit(opener, &roots, trees) {
        Ok(stamp) => Some((trees.first()?.unit, stamp)),
        Err(error) => {
            tracing::debug!(%error, path = ?trees.first().map(|tree| &tree.path), "no stamp");
            None
        }
    };
    let threads = if threads == 0 { DEFAULT_THREADS } else { threads };
    // Each has several to wait for, or is not worth its start.
    let threads = threads.clamp(1, 128).min(units.len().div_ceil(4));
    let stamps: Vec<_> = match rayon::ThreadPoolBuilder::new().num_threads(threads).build() {
        Ok(pool) => pool.install(|| units.par_iter().filter_map(one).collect()),
        Err(error) => {
            tracing::debug!(%error, threads, "cannot start that many threads");
            units.iter().filter_map(one).collect()
        }
    };
    stamps.into_iter().collect()
}

fn of_unit(opener: Opener, roots: &[Result<Top>], trees: &[Tree<'_>]) -> Result<Fingerprint> {
    let mut all = Fingerprinter::new(STAMP);
    for tree in trees {
        let root = match roots.get(tree.root) {
            Some(Ok(root)) => root,
            Some(Err(error)) => return Err(*error),
            None => return Err(Errno::INVAL),
        };
        // Which root and path it is shows in the device and inode number.
        let directory = match tree.scope {
            TreeScope::EntryOnly | TreeScope::File => Err(Errno::NOTDIR),
            TreeScope::Whole => root.open(opener, &tree.path, HANDLE | OFlags::DIRECTORY),
        };
        let directory = match directory {
            Ok(directory) => directory,
            // A file, written once with the layer's record.
            Err(Errno::NOTDIR) => continue,
            Err(error) => return Err(error),
        };
        take_directory(&mut all, directory.as_fd())?;
    }
    Ok(all.finish())
}

/// The stamp of a unit of which this directory is all that is walked as a whole.
///
/// # Errors
/// When it cannot be examined.
pub fn of_directory(directory: BorrowedFd<'_>) -> Result<Fingerprint> {
    let mut all = Fingerprinter::new(STAMP);
    take_directory(&mut all, directory)?;
    Ok(all.finish())
}

fn take_directory(all: &mut Fingerprinter, directory: BorrowedFd<'_>) -> Result<()> {
    let whole = rustix::fs::fstat(directory)?;
    take(all, &whole);
    // A directory has two links and one more for each directory in it (on btrfs always one): once all
    // are found the other names need not be looked up.
    #[allow(clippy::unnecessary_cast)] // another type elsewhere
    let (mut links, all_links) = (2, whole.st_nlink as u64);
    for name in INSIDE {
        match rustix::fs::statat(directory, name, AS_IT_IS) {
            Ok(stat) => {
                take(all, &stat);
                links += u64::from(FileType::from_raw_mode(stat.st_mode).is_dir());
                if links > 2 && links == all_links {
                    break;
                }
            }
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[allow(clippy::unnecessary_cast, clippy::cast_sign_loss)] // other types elsewhere; any bits will do
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
        let trees = parts.iter().map(|(path, scope)| Tree {
            root: 0,
            path: Path::new(path).into(),
            unit: 7,
            scope: *scope,
        });
        let trees: Vec<_> = trees.collect();
        gather(&[root.to_path_buf()], &Within::default(), &trees, 2).remove(&7)
    }

    #[test]
    fn each_change_at_the_top_shows_and_nothing_else() {
        use TreeScope::{EntryOnly, Whole};
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        fs::create_dir_all(at("layer/diff/etc/deep")).unwrap();
        fs::write(at("layer/link"), "X").unwrap();
        fs::write(at("layer/diff/etc/deep/file"), "1").unwrap();
        fs::write(at("split"), "tar").unwrap();
        let parts = [("layer", Whole), ("split", Whole)];
        let look = || of(dir.path(), &parts);
        let first = look().unwrap();
        assert_eq!(look(), Some(first), "looking changes nothing");
        fs::write(at("layer/diff/etc/deep/file"), "2").unwrap();
        fs::write(at("layer/diff/etc/new"), "2").unwrap();
        assert_eq!(look(), Some(first), "further down nothing shows");

        type Change = fn(&dyn Fn(&str) -> PathBuf);
        let changes: [(&str, Change); 6] = [
            ("a file in diff", |at| fs::write(at("layer/diff/file"), "").unwrap()),
            ("a new entry", |at| fs::create_dir(at("layer/work")).unwrap()),
            ("a mount", |at| fs::create_dir(at("layer/work").join("mounted")).unwrap()),
            ("an entry gone", |at| fs::rename(at("layer/work"), at("work")).unwrap()),
            ("another directory", |at| {
                fs::rename(at("layer"), at("old")).unwrap();
                fs::create_dir_all(at("layer/diff")).unwrap();
                fs::copy(at("old/link"), at("layer/link")).unwrap();
            }),
            ("permissions", |at| {
                use std::os::unix::fs::PermissionsExt;
                fs::set_permissions(at("layer/diff"), fs::Permissions::from_mode(0o711)).unwrap();
            }),
        ];
        let mut before = first;
        for (what, change) in changes {
            // The kernel's clock for file times moves in steps of up to 10 ms.
            std::thread::sleep(std::time::Duration::from_millis(12));
            change(&at);
            let now = look().unwrap();
            assert_ne!(now, before, "{what}");
            before = now;
        }
        assert_ne!(of(dir.path(), &[("layer", Whole)]), of(dir.path(), &[("layer", EntryOnly)]));
        assert_eq!(of(dir.path(), &[("layer", Whole), ("none", Whole)]), None, "a missing part");
        std::os::unix::fs::symlink("layer", at("way")).unwrap();
        assert_eq!(of(dir.path(), &[("way/diff", Whole)]), None, "through a symlink");
        assert!(of(dir.path(), &[("way", Whole)]).is_some(), "a symlink itself");
    }
}
