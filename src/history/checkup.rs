//! A look at the state of the records, for who is asked whether all is well. Changes nothing, not
//! even a lock.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::files::{DATABASE, SIDECARS, beside};
use super::lock::{RUN_LOCK, StateLockHolder};
use super::state_directory::StateDirectory;
use crate::sys::quiet;

pub use super::schema::version as schema;

/// Damaged databases in quarantine, the oldest first.
pub fn quarantined(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let start = beside(Path::new(DATABASE), ".corrupt-");
    let start = start.to_string_lossy();
    let mut found: Vec<_> = names(dir)?
        .into_iter()
        // Each may have files of SQLite's beside it.
        .filter(|name| name.starts_with(&*start) && !SIDECARS.iter().any(|end| name.ends_with(end)))
        .map(|name| dir.join(name))
        .collect();
    found.sort();
    Ok(found)
}

/// Length of the database and its log; `None` where there is none, or it cannot be looked at.
#[must_use]
pub fn bytes(directory: &StateDirectory) -> Option<u64> {
    let path = directory.dir.join(DATABASE);
    let length = |path: &Path| quiet::facts(path).ok().map(|facts| facts.length);
    let log = length(&beside(&path, "-wal")).unwrap_or(0);
    length(&path).map(|length| length.saturating_add(log))
}

/// Number of files that wait to be saved.
pub fn waiting(directory: &StateDirectory) -> io::Result<usize> {
    let Some(dir) = &directory.pending else { return Ok(0) };
    Ok(names(dir)?.iter().filter(|name| *name != RUN_LOCK).count())
}

/// The running garbage collection: the process that locks the state directory, as the kernel lists locks (on
/// btrfs it lists them under another device than `stat` gives, and none is found). It
/// is not tried, since another run may want it at that moment.
pub fn run_under_way(directory: &StateDirectory) -> io::Result<Option<StateLockHolder>> {
    let Ok(facts) = std::fs::metadata(&directory.dir) else { return Ok(None) };
    let text = std::fs::read_to_string("/proc/locks")?;
    let Some(pid) = locked_by(&text, facts.dev(), facts.ino()) else { return Ok(None) };
    let signed =
        File::open(directory.dir.join(RUN_LOCK)).map(|file| StateLockHolder::of(&file)).unwrap_or_default();
    // The name in the file may be that of an earlier run.
    Ok(Some(match signed.pid == pid {
        true => signed,
        false => StateLockHolder { pid, ..StateLockHolder::default() },
    }))
}

/// The process with a `flock` on an inode, by `/proc/locks` (`proc_locks(5)`): `Some(None)` where
/// it is in another namespace of processes.
fn locked_by(text: &str, device: u64, inode: u64) -> Option<Option<u32>> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let place = format!("{major:02x}:{minor:02x}:{inode}");
    text.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        // `1: -> FLOCK …` only waits.
        let is_it = words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&place.as_str());
        is_it.then(|| words[4].parse().ok().filter(|pid| *pid > 0))
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
    fn locks_as_the_kernel_lists_them() {
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
    fn a_run_is_seen_and_not_disturbed() {
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
