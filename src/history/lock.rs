//! Locks: one writer at a time, and one garbage collection at a time.
//!
//! The locks are `flock`, which the kernel releases when the process ends. The files' content only names
//! the holder and is valid only while the lock is held.

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

/// Held while the database is written to.
const WRITE_LOCK: &str = "write.lock";
/// Held while the metrics are written.
const METRICS_LOCK: &str = "metrics.lock";
/// Held for a whole garbage collection.
pub(super) const RUN_LOCK: &str = "run.lock";

/// Bytes that name the holder. The file is always as long, so that it can be written anew
/// on a full disk.
const RECORD: usize = 512;

/// For how many times two milliseconds a lock may be held in passing.
const GLANCES: u32 = 10;

/// Who holds a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateLockHolder {
    /// Process id; `None`: not known.
    pub pid: Option<u32>,
    /// Its command line, cut short.
    pub command: String,
    /// Since when, by the wall clock.
    pub since: Option<Timestamp>,
}

impl StateLockHolder {
    fn ourselves() -> Self {
        let words: Vec<_> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        let command: String = words.join(" ").chars().filter(|c| !c.is_control()).take(100).collect();
        Self { pid: Some(std::process::id()), command, since: Some(Timestamp::now()) }
    }

    /// The holder left no name, or that of a process that has ended.
    fn is_nobody(&self) -> bool {
        self.pid.is_none_or(|pid| !Path::new("/proc").join(pid.to_string()).exists())
    }

    /// The holder named in `file`.
    pub(super) fn of(file: &File) -> Self {
        let mut record = [0; RECORD];
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

/// Why a lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("{} is locked by {holder}", path.display())]
    Held {
        path: PathBuf,
        /// Who has it, as far as known.
        holder: StateLockHolder,
    },
    /// The file cannot be made or locked.
    #[error("locking {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// A lock file of the state directory, until it is dropped.
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

impl StateLock {
    /// The right to write to the database. Waits for at most `patience`.
    ///
    /// # Errors
    /// When somebody else keeps it for longer, or the file cannot be made.
    pub(super) fn for_writing(dir: &Path, patience: Duration) -> Result<Self, LockError> {
        acquire(&dir.join(WRITE_LOCK), patience).map(|file| Self { _file: file })
    }

    /// The right to write what these records say to a file for others: who has it reads last and writes last.
    /// It lies with the records, where nobody else can take it. `None`: no lock file can be made there (no
    /// records, a disk that is full or only read, somebody else's records), so no others have one to wait for.
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

/// The right to collect garbage on this node, until it is dropped.
#[derive(Debug)]
pub struct RunLock {
    // The directory too: it can be locked where there is no room left for a lock file.
    _directory: Option<File>,
    _file: Option<File>,
}

impl RunLock {
    /// No lock, where not even a directory for one can be made.
    #[must_use]
    pub fn none() -> Self {
        Self { _directory: None, _file: None }
    }

    /// Takes the lock of the state directory at once; makes the directory where there is none.
    ///
    /// Works on a full disk and on a read-only one, where a lock file cannot be made: then
    /// the directory itself is the lock, and the holder has no name.
    ///
    /// # Errors
    /// When another run has it, or the directory cannot be made or opened.
    pub fn acquire(state_dir: &Path) -> Result<Self, LockError> {
        for _ in 0..GLANCES {
            match Self::acquire_once(state_dir) {
                // Somebody without a name may be just looking whether it is held.
                Err(LockError::Held { holder, .. }) if holder.is_nobody() => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                taken => return taken,
            }
        }
        Self::acquire_once(state_dir)
    }

    /// Whether no other process's run is under way: it is also true where this process holds the lock. Takes it for a
    /// moment, without leaving a name.
    #[must_use]
    pub fn is_free(state_dir: &Path) -> bool {
        let Ok(directory) = File::open(state_dir) else { return false };
        let path = state_dir.join(RUN_LOCK);
        let file = File::open(&path).ok();
        let ours =
            || file.as_ref().is_some_and(|file| StateLockHolder::of(file).pid == Some(std::process::id()));
        let free = |file: &File| file.try_lock_shared().is_ok();
        (free(&directory) && file.as_ref().is_none_or(free)) || ours()
    }

    fn acquire_once(state_dir: &Path) -> Result<Self, LockError> {
        let failed = |source| LockError::Io { path: state_dir.to_path_buf(), source };
        super::state_directory::make_private(state_dir).map_err(failed)?;
        let directory = File::open(state_dir).map_err(failed)?;
        let path = state_dir.join(RUN_LOCK);
        if let Err(error) = directory.try_lock_exclusive() {
            if !is_held(&error) {
                return Err(failed(error));
            }
            let holder = File::open(&path).map(|file| StateLockHolder::of(&file)).unwrap_or_default();
            return Err(LockError::Held { path, holder });
        }
        // Somebody may have removed the directory meanwhile, and others lock a new one.
        if !is_same(&directory, std::fs::metadata(state_dir)) {
            return Err(failed(io::ErrorKind::NotFound.into()));
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
    let failed = |source| LockError::Io { path: path.to_path_buf(), source };
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
            .map_err(failed)?;
        match file.try_lock_exclusive() {
            // Somebody may have removed the file meanwhile, and others lock a new one.
            Ok(()) if !is_same(&file, std::fs::symlink_metadata(path)) => continue,
            Ok(()) => {
                sign(&file);
                return Ok(file);
            }
            Err(error) if !is_held(&error) => return Err(failed(error)),
            Err(_) => {}
        }
        let left = patience.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(LockError::Held { path: path.to_path_buf(), holder: StateLockHolder::of(&file) });
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

fn is_held(error: &io::Error) -> bool {
    error.raw_os_error() == fs2::lock_contended_error().raw_os_error()
}

fn is_same(file: &File, theirs: io::Result<Metadata>) -> bool {
    let of = |metadata: Metadata| (metadata.dev(), metadata.ino());
    matches!((file.metadata().map(of), theirs.map(of)), (Ok(ours), Ok(theirs)) if ours == theirs)
}

/// Writes our name into the file. The lock holds without it, so a full disk does not matter.
fn sign(file: &File) {
    let mut record = serde_json::to_vec(&StateLockHolder::ourselves()).unwrap_or_default();
    if record.len() >= RECORD {
        record.clear();
    }
    record.resize(RECORD - 1, b' ');
    record.push(b'\n');
    if let Err(error) = file.write_all_at(&record, 0) {
        tracing::debug!("the lock file does not name its holder: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_the_holder_is_named() {
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
        assert!(waiting.join().unwrap(), "the second one gets it as soon as it is free");
        let mode = std::fs::metadata(dir.path().join(WRITE_LOCK)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o600);
    }

    #[test]
    fn a_second_run_fails_at_once_whichever_lock_the_first_could_take() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("new");
        let first = RunLock::acquire(&state).unwrap();
        let error = RunLock::acquire(&state).unwrap_err();
        assert!(matches!(&error, LockError::Held { holder, .. } if holder.pid.is_some()), "{error}");
        drop(first);
        // As if the first had found no room for the file.
        let directory = File::open(&state).unwrap();
        directory.try_lock_exclusive().unwrap();
        std::fs::remove_file(state.join(RUN_LOCK)).unwrap();
        let error = RunLock::acquire(&state).unwrap_err();
        assert!(error.to_string().contains("another process"), "{error}");
        drop(directory);
        // As if a tool of the node's own had taken the file alone.
        let file = acquire(&state.join(RUN_LOCK), Duration::ZERO).unwrap();
        assert!(matches!(RunLock::acquire(&state), Err(LockError::Held { .. })));
        drop(file);
        RunLock::acquire(&state).unwrap();
    }

    #[test]
    fn the_directory_may_be_a_link() {
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
    fn what_a_dead_holder_wrote_is_not_believed_and_rubbish_is_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(RUN_LOCK);
        std::fs::write(&path, "{\"pid\": 1").unwrap();
        let file = File::open(&path).unwrap();
        assert_eq!(StateLockHolder::of(&file), StateLockHolder::default());
        RunLock::acquire(dir.path()).unwrap();
    }
}
