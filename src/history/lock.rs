//! Locks of the state directory: one writer at a time, and one garbage collection at a time.
//!
//! The locks are `flock`, which the kernel releases when the process exits. The content of a lock file only names the
//! holder, and is valid only while the lock is held.

use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fs2::FileExt as _;
use jiff::Timestamp;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

const WRITE_LOCK: &str = "write.lock";
const METRICS_LOCK: &str = "metrics.lock";
/// Name of the lock of a garbage collection, which is held for the whole run.
pub(super) const RUN_LOCK: &str = "run.lock";

/// Length of a lock file, which contains the name of the holder. The length is fixed, so that the file can be
/// overwritten on a full disk.
const HOLDER_BYTES: usize = 512;

/// Number of attempts, two milliseconds apart, while an unnamed process holds a lock. [`RunLock::is_free`] holds it
/// that short.
const MAX_ATTEMPTS: u32 = 10;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateLockHolder {
    /// Process id; `None` if unknown.
    pub pid: Option<u32>,
    /// Command line, truncated.
    pub command: String,
    /// Time at which the lock was taken, by the wall clock.
    pub since: Option<Timestamp>,
}

impl StateLockHolder {
    fn this_process() -> Self {
        let words: Vec<_> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        let command: String = words.join(" ").chars().filter(|c| !c.is_control()).take(100).collect();
        Self { pid: Some(std::process::id()), command, since: Some(Timestamp::now()) }
    }

    /// Checks whether the holder is unnamed, or named a process that has exited.
    fn is_unknown(&self) -> bool {
        self.pid.is_none_or(|pid| !Path::new("/proc").join(pid.to_string()).exists())
    }

    pub(super) fn of(file: &File) -> Self {
        let mut record = [0; HOLDER_BYTES];
        let length = file.read_at(&mut record, 0).unwrap_or(0);
        serde_json::from_slice(&record[..length]).unwrap_or_default()
    }
}

impl fmt::Display for StateLockHolder {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid, self.since) {
            (Some(pid), Some(since)) => write!(to, "process {pid} since {since:.0} (`{}`)", self.command),
            (Some(pid), None) => write!(to, "process {pid} (`{}`)", self.command),
            (None, _) => to.write_str("another process"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("{} is locked by {holder}", path.display())]
    Held { path: PathBuf, holder: StateLockHolder },
    #[error("locking {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// A lock file of the state directory, locked until it is dropped.
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

impl StateLock {
    /// Takes the lock for writing to the database. Waits for at most `patience`.
    ///
    /// # Errors
    /// If another process holds the lock for longer, or the file cannot be created.
    pub(super) fn for_writing(dir: &Path, patience: Duration) -> Result<Self, LockError> {
        acquire(&dir.join(WRITE_LOCK), patience).map(|file| Self { _file: file })
    }

    /// Takes the lock for writing metrics to a file for other programs. Each holder reads the records and writes the
    /// file, so the last writer has read last.
    ///
    /// The lock file is in the state directory, where other users cannot take it. Returns `None` if no lock file can
    /// be created there (no records, a full or read-only disk, records of another user): no other process can have the
    /// lock then either.
    pub fn for_metrics(state_dir: &Path, patience: Duration) -> Result<Option<Self>, LockError> {
        match acquire(&state_dir.join(METRICS_LOCK), patience) {
            Ok(file) => Ok(Some(Self { _file: file })),
            Err(LockError::Io { path, source }) => {
                tracing::debug!("going on without {}: {source}", path.display());
                Ok(None)
            }
            Err(held) => Err(held),
        }
    }
}

/// Lock of the garbage collection on this node, held until it is dropped.
#[derive(Debug)]
pub struct RunLock {
    // The directory is locked too, because that works when there is no space for a lock file.
    _directory: Option<File>,
    _file: Option<File>,
}

impl RunLock {
    /// Returns no lock, for the case that not even the directory can be created.
    #[must_use]
    pub fn none() -> Self {
        Self { _directory: None, _file: None }
    }

    /// Takes the lock of the state directory without waiting. Creates a missing directory.
    ///
    /// It works on a full and on a read-only disk, where a lock file cannot be created: the directory itself is locked
    /// then, and the holder has no name.
    ///
    /// # Errors
    /// If another run holds the lock, or the directory cannot be created or opened.
    pub fn acquire(state_dir: &Path) -> Result<Self, LockError> {
        for _ in 0..MAX_ATTEMPTS {
            match Self::acquire_once(state_dir) {
                // An unnamed holder may be a process that only tests the lock.
                Err(LockError::Held { holder, .. }) if holder.is_unknown() => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                taken => return taken,
            }
        }
        Self::acquire_once(state_dir)
    }

    /// Checks that no other process runs a garbage collection. Also true if this process holds the lock. Takes the
    /// lock for a moment, without leaving a name.
    #[must_use]
    pub fn is_free(state_dir: &Path) -> bool {
        let Ok(directory) = File::open(state_dir) else { return false };
        let path = state_dir.join(RUN_LOCK);
        let file = File::open(&path).ok();
        let is_free = directory.try_lock_shared().is_ok()
            && file.as_ref().is_none_or(|file| file.try_lock_shared().is_ok());
        is_free || file.as_ref().is_some_and(|file| StateLockHolder::of(file).pid == Some(std::process::id()))
    }

    fn acquire_once(state_dir: &Path) -> Result<Self, LockError> {
        super::state_directory::make_private(state_dir).map_err(|error| lock_error(state_dir, error))?;
        let directory = File::open(state_dir).map_err(|error| lock_error(state_dir, error))?;
        let path = state_dir.join(RUN_LOCK);
        if let Err(error) = directory.try_lock_exclusive() {
            if !is_held(&error) {
                return Err(lock_error(state_dir, error));
            }
            let holder = File::open(&path).map(|file| StateLockHolder::of(&file)).unwrap_or_default();
            return Err(LockError::Held { path, holder });
        }
        // The directory may have been replaced meanwhile, and other processes lock the new one.
        if !is_same(&directory, std::fs::metadata(state_dir)) {
            return Err(lock_error(state_dir, io::ErrorKind::NotFound.into()));
        }
        let file = match acquire(&path, Duration::ZERO) {
            Ok(file) => Some(file),
            Err(held @ LockError::Held { .. }) => return Err(held),
            Err(LockError::Io { .. }) => None,
        };
        Ok(Self { _directory: Some(directory), _file: file })
    }
}

fn acquire(path: &Path, patience: Duration) -> Result<File, LockError> {
    acquire_if(path, patience, |file| is_same(file, std::fs::symlink_metadata(path)))
}

/// Acquires the lock on the file at `path`. `is_current` returns false if another file has replaced it meanwhile, which
/// other processes lock.
fn acquire_if(
    path: &Path,
    patience: Duration,
    is_current: impl Fn(&File) -> bool,
) -> Result<File, LockError> {
    /// Maximum number of attempts to lock a file that is replaced. Some filesystems number a file anew each time.
    const REPLACED: u32 = 20;
    let mut replaced = 0;
    let start = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or(0);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(flags)
            .open(path)
            .map_err(|error| lock_error(path, error))?;
        match file.try_lock_exclusive() {
            Ok(()) if is_current(&file) => {
                sign(&file);
                return Ok(file);
            }
            Ok(()) if replaced < REPLACED => {
                replaced += 1;
                std::thread::sleep(pause);
                continue;
            }
            Ok(()) => {
                return Err(lock_error(path, io::Error::other("another file replaces it again and again")));
            }
            Err(error) if !is_held(&error) => return Err(lock_error(path, error)),
            Err(_) => {}
        }
        let remaining = patience.saturating_sub(start.elapsed());
        if remaining.is_zero() {
            return Err(LockError::Held { path: path.to_path_buf(), holder: StateLockHolder::of(&file) });
        }
        std::thread::sleep(pause.min(remaining));
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

fn lock_error(path: &Path, source: io::Error) -> LockError {
    LockError::Io { path: path.to_path_buf(), source }
}

fn is_held(error: &io::Error) -> bool {
    error.raw_os_error() == fs2::lock_contended_error().raw_os_error()
}

/// Checks whether an open file is still the one at its path, whose metadata are `present`.
fn is_same(file: &File, present: io::Result<Metadata>) -> bool {
    matches!((file.metadata(), present), (Ok(opened), Ok(present))
        if (opened.dev(), opened.ino()) == (present.dev(), present.ino()))
}

/// Writes the name of this process into the lock file. The lock works without the name, so a full disk does not matter.
fn sign(file: &File) {
    let mut record = serde_json::to_vec(&StateLockHolder::this_process()).unwrap_or_default();
    if record.len() >= HOLDER_BYTES {
        record.clear();
    }
    record.resize(HOLDER_BYTES - 1, b' ');
    record.push(b'\n');
    if let Err(error) = file.write_all_at(&record, 0) {
        tracing::debug!("the lock file does not name its holder: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_is_always_another_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let start = Instant::now();
        let error = acquire_if(&dir.path().join("lock"), Duration::ZERO, |_| false).unwrap_err();
        assert!(matches!(error, LockError::Io { .. }), "{error}");
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn writers_take_turns_and_holder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateLock::for_writing(dir.path(), Duration::ZERO).unwrap();
        let start = Instant::now();
        let error = StateLock::for_writing(dir.path(), Duration::from_millis(60)).unwrap_err();
        assert!(start.elapsed() >= Duration::from_millis(60));
        let LockError::Held { holder, .. } = &error else { panic!("{error}") };
        assert_eq!(holder.pid, Some(std::process::id()));
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        let path = dir.path().to_path_buf();
        let waiting =
            std::thread::spawn(move || StateLock::for_writing(&path, Duration::from_secs(20)).is_ok());
        std::thread::sleep(Duration::from_millis(30));
        drop(first);
        assert!(waiting.join().unwrap(), "the second writer gets the lock once it is free");
        let mode = std::fs::metadata(dir.path().join(WRITE_LOCK)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o600);
    }

    #[test]
    fn second_run_fails_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("new");
        let first = RunLock::acquire(&state).unwrap();
        let error = RunLock::acquire(&state).unwrap_err();
        assert!(matches!(&error, LockError::Held { holder, .. } if holder.pid.is_some()), "{error}");
        drop(first);
        // The state of a first run that had no space for the lock file.
        let directory = File::open(&state).unwrap();
        directory.try_lock_exclusive().unwrap();
        std::fs::remove_file(state.join(RUN_LOCK)).unwrap();
        let error = RunLock::acquire(&state).unwrap_err();
        assert!(error.to_string().contains("another process"), "{error}");
        drop(directory);
        // The state of another program that locked only the file.
        let file = acquire(&state.join(RUN_LOCK), Duration::ZERO).unwrap();
        assert!(matches!(RunLock::acquire(&state), Err(LockError::Held { .. })));
        drop(file);
        RunLock::acquire(&state).unwrap();
    }

    #[test]
    fn state_directory_may_be_a_symlink() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::fs::create_dir(dir.path().join("state")).unwrap();
        std::os::unix::fs::symlink("state", &link).unwrap();
        let first = RunLock::acquire(&link).unwrap();
        assert!(matches!(RunLock::acquire(&dir.path().join("state")), Err(LockError::Held { .. })));
        drop(first);
        RunLock::acquire(&dir.path().join("state")).unwrap();
    }

    #[test]
    fn damaged_lock_file_names_no_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(RUN_LOCK);
        std::fs::write(&path, "{\"pid\": 1").unwrap();
        let file = File::open(&path).unwrap();
        assert_eq!(StateLockHolder::of(&file), StateLockHolder::default());
        RunLock::acquire(dir.path()).unwrap();
    }
}
