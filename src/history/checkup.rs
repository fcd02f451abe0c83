//! State of the records, for `doctor`. Nothing is changed, and no lock is taken.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::files::{DATABASE, SIDECARS, beside};
use super::lock::{RUN_LOCK, StateLockHolder};
use super::state_directory::StateDirectory;
use crate::sys::quiet;

pub use super::schema::version as schema;

/// Returns the damaged databases in quarantine, the oldest first.
pub fn quarantined(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let start = beside(Path::new(DATABASE), ".corrupt-");
    let start = start.to_string_lossy();
    let mut found: Vec<_> = names(dir)?
        .into_iter()
        // A database may have SQLite's sidecar files beside it.
        .filter(|name| name.starts_with(&*start) && !SIDECARS.iter().any(|end| name.ends_with(end)))
        .map(|name| dir.join(name))
        .collect();
    found.sort();
    Ok(found)
}

/// Returns the length of the database and its log, or `None` if there is no database or it cannot be examined.
#[must_use]
pub fn bytes(directory: &StateDirectory) -> Option<u64> {
    let path = directory.dir.join(DATABASE);
    let database = quiet::facts(&path).ok()?.length;
    let log = quiet::facts(&beside(&path, "-wal")).map_or(0, |facts| facts.length);
    Some(database.saturating_add(log))
}

pub fn waiting(directory: &StateDirectory) -> io::Result<usize> {
    let Some(dir) = &directory.pending else { return Ok(0) };
    Ok(names(dir)?.iter().filter(|name| *name != RUN_LOCK).count())
}

/// Returns the process that runs a garbage collection, which is the one that locks the state directory.
///
/// The kernel's list of locks is read, because trying the lock could make another run fail that wants it at that
/// moment. On btrfs the list has another device number than `stat`, so no process is found there.
pub fn run_under_way(directory: &StateDirectory) -> io::Result<Option<StateLockHolder>> {
    let Ok(facts) = std::fs::metadata(&directory.dir) else { return Ok(None) };
    let text = std::fs::read_to_string("/proc/locks")?;
    let Some(pid) = locked_by(&text, facts.dev(), facts.ino()) else { return Ok(None) };
    let named =
        File::open(directory.dir.join(RUN_LOCK)).map(|file| StateLockHolder::of(&file)).unwrap_or_default();
    // The file may still name an earlier run.
    Ok(Some(if named.pid == pid { named } else { StateLockHolder { pid, ..StateLockHolder::default() } }))
}

/// Returns the process with a `flock` on an inode, from the text of `/proc/locks` (`proc_locks(5)`). `Some(None)` is a
/// process in another PID namespace.
fn locked_by(text: &str, device: u64, inode: u64) -> Option<Option<u32>> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let inode = format!("{major:02x}:{minor:02x}:{inode}");
    text.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        // A line `1: -> FLOCK …` is a process that waits.
        let is_holder = words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&inode.as_str());
        is_holder.then(|| words[4].parse().ok().filter(|pid| *pid > 0))
    })
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    match quiet::list(dir) {
        Ok(entries) => Ok(entries.into_iter().filter_map(|entry| entry.name.into_string().ok()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::RunLock;

    #[test]
    fn holder_is_found_in_the_kernels_list() {
        let text = "1: POSIX  ADVISORY  WRITE 12 00:19:77 0 EOF\n\
                    2: FLOCK  ADVISORY  WRITE 4711 fe:01:77 0 EOF\n\
                    2: -> FLOCK  ADVISORY  WRITE 4712 fe:01:78 0 EOF\n\
                    3: FLOCK  ADVISORY  WRITE 0 fe:01:79 0 EOF\n";
        let device = rustix::fs::makedev(0xfe, 1);
        assert_eq!(locked_by(text, device, 77), Some(Some(4711)));
        assert_eq!(locked_by(text, device, 78), None);
        assert_eq!(locked_by(text, device, 79), Some(None));
        assert_eq!(locked_by("", device, 77), None);
    }

    #[test]
    fn running_collection_is_found_and_not_disturbed() {
        let dir = tempfile::tempdir().unwrap();
        let directory = StateDirectory::local(&dir.path().join("state"));
        assert!(run_under_way(&directory).unwrap().is_none());
        let lock = RunLock::acquire(&directory.dir).unwrap();
        assert_eq!(run_under_way(&directory).unwrap().unwrap().pid, Some(std::process::id()));
        drop(lock);
        assert!(run_under_way(&directory).unwrap().is_none());
        assert_eq!(waiting(&directory).unwrap(), 0);
        assert!(quarantined(&directory.dir).unwrap().is_empty());
    }
}
