//! Entries of one directory, each with everything below it.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::disk::Progress;
use crate::model::space::BytesAndInodes;
use crate::sys::quiet::{self, FileKind, InodeFacts, Step};
use crate::sys::sysroot::Sysroot;

/// Entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizedEntry {
    pub name: OsString,
    pub is_directory: bool,
    /// Allocated bytes and inodes of the entry and everything below it on the same filesystem. Hard links count once,
    /// with the first entry that has one.
    pub size: BytesAndInodes,
    /// Something in it could not be read: it is larger.
    pub is_partial: bool,
    /// Something is mounted on it, which is not entered; its size is 0.
    pub is_mount: bool,
}

impl SizedEntry {
    fn named(name: OsString) -> Self {
        let size = BytesAndInodes::default();
        Self { name, is_directory: false, size, is_partial: false, is_mount: false }
    }
}

/// Measures the entries of a directory, which is named as the node itself names it. Mounts are not entered,
/// except that of a directory on itself.
///
/// # Errors
/// If the directory cannot be opened without following a symlink, or the measurement is cancelled
/// ([`io::ErrorKind::Interrupted`]).
pub fn entries(
    sysroot: &Sysroot,
    directory: &Path,
    progress: &Progress,
    is_cancelled: &AtomicBool,
) -> io::Result<Vec<SizedEntry>> {
    // Opened with care: a user may have replaced a directory on the path by a symlink into a mount of his own.
    let opened = sysroot.open(directory)?.directory()?;
    let mut found: HashMap<OsString, SizedEntry> = HashMap::new();
    let mut links = HashSet::new();
    let walked = quiet::walk_until(&opened, &|_| false, &mut |step| {
        if is_cancelled.load(Ordering::Relaxed) {
            return ControlFlow::Break(io::ErrorKind::Interrupted);
        }
        add(step, &mut found, &mut links, progress);
        ControlFlow::Continue(())
    });
    match walked {
        ControlFlow::Break(cancelled) => Err(cancelled.into()),
        ControlFlow::Continue(()) => Ok(found.into_values().collect()),
    }
}

fn add(
    step: Step<'_>,
    found: &mut HashMap<OsString, SizedEntry>,
    links: &mut HashSet<(u64, u64)>,
    progress: &Progress,
) {
    let (path, bytes, is_directory) = match step {
        Step::Unread(path) => {
            let entry = path.iter().next().and_then(|first| found.get_mut(first));
            return entry.into_iter().for_each(|entry| entry.is_partial = true);
        }
        Step::Directory(path, bytes) => (path, bytes, true),
        Step::Entry(_, facts, _) if facts.links > 1 && !links.insert(facts.identity()) => return,
        Step::Entry(path, facts, bytes) => (path, bytes, facts.kind == FileKind::Directory),
        // One deeper down has its row in its own directory.
        Step::Mount(path) if path.iter().nth(1).is_none() => {
            let name = path.as_os_str().to_owned();
            let entry = SizedEntry { is_mount: true, ..SizedEntry::named(name.clone()) };
            found.insert(name, entry);
            return;
        }
        Step::Mount(_) | Step::End => return,
    };
    progress.inodes.fetch_add(1, Ordering::Relaxed);
    progress.bytes.fetch_add(bytes, Ordering::Relaxed);
    // The directory itself is no entry of it.
    let Some(first) = path.iter().next() else { return };
    let entry = found.entry(first.to_owned()).or_insert_with(|| SizedEntry {
        is_directory: is_directory || path.iter().nth(1).is_some(),
        ..SizedEntry::named(first.to_owned())
    });
    entry.size.bytes = entry.size.bytes.saturating_add(bytes);
    entry.size.inodes = entry.size.inodes.saturating_add(1);
}

/// File in a directory, as its inode describes it.
#[derive(Clone, Copy, Debug)]
pub struct FileInDirectory {
    pub facts: InodeFacts,
    /// Allocated bytes.
    pub bytes: u64,
    pub mode: u32,
}

/// Examines a file, which is named as the node itself names it, without opening it. A symlink is examined itself.
///
/// # Errors
/// If its directory cannot be opened, or does not contain it.
pub fn file(sysroot: &Sysroot, path: &Path) -> io::Result<FileInDirectory> {
    let (directory, name) = path.parent().zip(path.file_name()).ok_or(io::ErrorKind::NotFound)?;
    let directory = sysroot.open(directory)?;
    let (facts, bytes, mode) = quiet::facts_in(directory.fd(), name)?;
    Ok(FileInDirectory { facts, bytes, mode })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(path: &Path, is_cancelled: bool) -> io::Result<Vec<SizedEntry>> {
        entries(&Sysroot::live(), path, &Progress::default(), &is_cancelled.into())
    }

    #[test]
    fn links_count_with_one_entry() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/one"), vec![1; 3 << 20]).unwrap();
        std::fs::write(dir.path().join("two"), vec![1; 1 << 20]).unwrap();
        std::fs::create_dir(dir.path().join("c")).unwrap();
        std::fs::hard_link(dir.path().join("two"), dir.path().join("c/two")).unwrap();
        let found = measure(dir.path(), false).unwrap();
        let named = |name: &str| found.iter().find(|entry| entry.name == name).unwrap();
        assert_eq!(found.len(), 3);
        assert!(named("a").is_directory && named("a").size.bytes >= 3 << 20);
        assert_eq!(named("a").size.inodes, 3);
        assert!(!named("two").is_directory);
        let both = named("two").size.bytes + named("c").size.bytes;
        assert!((1 << 20..2 << 20).contains(&both), "{both}");
        assert!(measure(&dir.path().join("none"), false).is_err());
        let cancelled = measure(dir.path(), true).unwrap_err();
        assert_eq!(cancelled.kind(), io::ErrorKind::Interrupted);
    }
}
