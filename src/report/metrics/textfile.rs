//! Writer of a metrics file for the textfile collector of node_exporter.
//!
//! The collector can read at any time, and several runs can end together. The file is therefore replaced as a
//! whole, and a writer collects its figures while it has the lock: of two writers, the later one also has the
//! later figures, so counters in the file never go back. The lock is in the state directory, not beside the
//! file: every user who can read the collector's directory could lock it there.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::history::{LockError, StateLock};
use crate::sys::new_file;

/// Name of the file in a named directory. The collector reads files that end with `.prom`.
pub const FILE_NAME: &str = "layersweep.prom";

/// Maximum time to wait for another writer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Mode of the file: readable for node_exporter under any user.
const MODE: u32 = 0o644;

#[derive(Debug, thiserror::Error)]
pub enum WriteError<E> {
    #[error("the metrics cannot be written to {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Content(E),
}

impl<E> WriteError<E> {
    fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), source }
    }
}

/// Returns the path of the file: `path` itself, or [`FILE_NAME`] in it if it is a directory.
pub fn file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(FILE_NAME) } else { path.to_path_buf() }
}

/// Writes the result of `content` to the [`file()`] of `path`, and returns its path. `content` is called with
/// the lock of `state_dir`. Only a regular file is replaced.
///
/// # Errors
/// If the lock or the metrics cannot be had, or the file cannot be written; then an existing file is
/// unchanged.
pub fn write<E>(
    path: &Path,
    state_dir: &Path,
    content: impl FnOnce() -> Result<String, E>,
) -> Result<PathBuf, WriteError<E>> {
    let path = file(path);
    let lock = StateLock::for_metrics(state_dir, PATIENCE);
    let _lock = lock.map_err(|error: LockError| {
        WriteError::io(&path, io::Error::new(io::ErrorKind::WouldBlock, error))
    })?;
    let content = content().map_err(WriteError::Content)?;
    new_file::replace(&path, content.as_bytes(), MODE, false)
        .map_err(|error| WriteError::io(&path, error))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn content(text: &str) -> impl FnOnce() -> Result<String, Infallible> {
        let text = text.to_owned();
        move || Ok(text)
    }

    /// Returns the collector's directory and the state directory.
    fn dirs() -> (tempfile::TempDir, tempfile::TempDir) {
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap())
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn file_is_replaced_and_readable_for_all() {
        let (dir, state) = dirs();
        let state = state.path();
        let path = dir.path().join("x.prom");
        assert_eq!(write(&path, state, content("one\n")).unwrap(), path);
        write(&path, state, content("two\n")).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\n");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o644);
        assert_eq!(names(dir.path()), ["x.prom"]);
        assert_eq!(write(dir.path(), state, content("three\n")).unwrap(), dir.path().join(FILE_NAME));
        assert_eq!(names(dir.path()), [FILE_NAME, "x.prom"]);
    }

    #[test]
    fn only_a_regular_file_is_replaced() {
        let (dir, state) = dirs();
        let state = state.path();
        let (path, other) = (dir.path().join("x.prom"), dir.path().join("other"));
        std::fs::write(&other, "mine").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        let error = write(&path, state, content("new")).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
        assert!(path.is_symlink());
        std::fs::remove_file(&path).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        write(&path, state, content("new")).unwrap_err();
        assert!(!path.symlink_metadata().unwrap().is_file());
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "mine");
        assert_eq!(names(dir.path()), ["other", "x.prom"]);
    }

    #[test]
    fn failed_write_keeps_the_old_file() {
        let (dir, state) = dirs();
        let state = state.path();
        let path = dir.path().join("x.prom");
        write(&path, state, content("one")).unwrap();
        let error = write(&path, state, || Err::<String, _>("no")).unwrap_err();
        assert!(matches!(error, WriteError::Content("no")));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one");
        let missing = dir.path().join("none/x.prom");
        let error = write(&missing, state, content("x")).unwrap_err().to_string();
        assert!(error.contains("none/x.prom: No such file"), "{error}");
    }

    /// Another process can lock the collector's directory without effect. The holder of layersweep's own lock
    /// is named.
    #[test]
    fn only_the_state_lock_delays_a_write() {
        let (dir, state) = dirs();
        let (path, state) = (dir.path().join("x.prom"), state.path());
        let foreign = std::fs::File::open(dir.path()).unwrap();
        fs2::FileExt::lock_exclusive(&foreign).unwrap();
        write(&path, state, content("one")).unwrap();
        let mode = state.join("metrics.lock").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        // Without records there is no lock to wait for.
        write(&path, &state.join("none"), content("two")).unwrap();
        assert!(!state.join("none").exists());
        let lock = StateLock::for_metrics(state, Duration::ZERO).unwrap();
        let error = StateLock::for_metrics(state, Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(lock);
        write(&path, state, content("three")).unwrap();
    }

    /// Each writer increments a counter in its content; the file must never go back.
    #[test]
    fn later_writer_has_later_figures() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let (dir, state) = dirs();
        let state = state.path();
        let path = dir.path().join("x.prom");
        let (next, highest) = (AtomicU32::new(1), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        let collect = || {
                            let number = next.fetch_add(1, Ordering::SeqCst);
                            // The current content was collected before this one.
                            let current = std::fs::read_to_string(&path).unwrap_or_else(|_| "0".into());
                            highest.fetch_max(current.parse().unwrap(), Ordering::SeqCst);
                            std::thread::yield_now();
                            Ok::<_, Infallible>(number.to_string())
                        };
                        write(&path, state, collect).unwrap();
                        let now: u32 = std::fs::read_to_string(&path).unwrap().parse().unwrap();
                        assert!(now >= highest.load(Ordering::SeqCst));
                    }
                });
            }
        });
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "40");
    }
}
