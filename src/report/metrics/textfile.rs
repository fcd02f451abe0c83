//! Writing metrics where node_exporter's textfile collector reads them: the file is whole or not
//! there, and never older than what it replaces.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::history::{LockError, StateLock};
use crate::sys::new_file;

/// Name of the file where only a directory is named. The collector reads what ends in `.prom`.
pub const FILE_NAME: &str = "layersweep.prom";

/// How long another run that writes is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Readable for node_exporter, whoever it runs as.
const MODE: u32 = 0o644;

/// Why the metrics were not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError<E> {
    /// The file or its directory cannot be written.
    #[error("the metrics cannot be written to {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// There is nothing to be written.
    #[error(transparent)]
    Content(E),
}

/// The file that `path` names: itself, or [`FILE_NAME`] in it if it is a directory.
pub fn file(path: &Path) -> PathBuf {
    match path.is_dir() {
        true => path.join(FILE_NAME),
        false => path.to_path_buf(),
    }
}

/// Writes what `content` says to [`file()`] of `path`, and returns that. Nothing is written over but a
/// regular file.
///
/// `content` is asked while the records in `state_dir` are locked for it, so that of two runs that end
/// together the one that writes last has asked last: counters in the file never go back. The lock is not
/// in the file's directory: whoever may read that could keep it.
///
/// # Errors
/// Why it was not written; then what was there before is there still.
pub fn write<E>(
    path: &Path,
    state_dir: &Path,
    content: impl FnOnce() -> Result<String, E>,
) -> Result<PathBuf, WriteError<E>> {
    let path = file(path);
    let failed = |source: io::Error| WriteError::Io { path: path.clone(), source };
    let held = |error: LockError| failed(io::Error::new(io::ErrorKind::WouldBlock, error));
    let _lock = StateLock::for_metrics(state_dir, PATIENCE).map_err(held)?;
    let content = content().map_err(WriteError::Content)?;
    new_file::replace(&path, content.as_bytes(), MODE, false).map_err(failed)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn say(text: &str) -> impl FnOnce() -> Result<String, Infallible> {
        let text = text.to_owned();
        move || Ok(text)
    }

    /// The collector's, and that of the records.
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
    fn the_file_is_replaced_whole_and_readable_for_all() {
        let (dir, state) = dirs();
        let state = state.path();
        let path = dir.path().join("x.prom");
        assert_eq!(write(&path, state, say("one\n")).unwrap(), path);
        write(&path, state, say("two\n")).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\n");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o644);
        assert_eq!(names(dir.path()), ["x.prom"]);
        assert_eq!(write(dir.path(), state, say("three\n")).unwrap(), dir.path().join(FILE_NAME));
        assert_eq!(names(dir.path()), [FILE_NAME, "x.prom"]);
    }

    #[test]
    fn nothing_but_a_file_is_replaced() {
        let (dir, state) = dirs();
        let state = state.path();
        let (path, other) = (dir.path().join("x.prom"), dir.path().join("other"));
        std::fs::write(&other, "mine").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        let error = write(&path, state, say("new")).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
        assert!(path.is_symlink());
        std::fs::remove_file(&path).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        write(&path, state, say("new")).unwrap_err();
        assert!(!path.symlink_metadata().unwrap().is_file());
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "mine");
        assert_eq!(names(dir.path()), ["other", "x.prom"]);
    }

    #[test]
    fn what_fails_leaves_what_was_there() {
        let (dir, state) = dirs();
        let state = state.path();
        let path = dir.path().join("x.prom");
        write(&path, state, say("one")).unwrap();
        let error = write(&path, state, || Err::<String, _>("no")).unwrap_err();
        assert!(matches!(error, WriteError::Content("no")));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one");
        let missing = dir.path().join("none/x.prom");
        let error = write(&missing, state, say("x")).unwrap_err().to_string();
        assert!(error.contains("none/x.prom: No such file"), "{error}");
    }

    /// Whoever may read the collector's directory can lock it, and that is nothing to us; who has our
    /// own lock is named.
    #[test]
    fn only_our_own_lock_counts() {
        let (dir, state) = dirs();
        let (path, state) = (dir.path().join("x.prom"), state.path());
        let theirs = std::fs::File::open(dir.path()).unwrap();
        fs2::FileExt::lock_exclusive(&theirs).unwrap();
        write(&path, state, say("one")).unwrap();
        let mode = state.join("metrics.lock").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        // Where there are no records there is nobody to wait for.
        write(&path, &state.join("none"), say("two")).unwrap();
        assert!(!state.join("none").exists());
        let lock = StateLock::for_metrics(state, Duration::ZERO).unwrap();
        let error = StateLock::for_metrics(state, Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(lock);
        write(&path, state, say("three")).unwrap();
    }

    /// Each writer takes a number when it is asked for its content; in the file they only go up.
    #[test]
    fn the_last_to_write_has_asked_last() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let (dir, state) = dirs();
        let state = state.path();
        let path = dir.path().join("x.prom");
        let (next, highest) = (AtomicU32::new(1), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        let content = || {
                            let number = next.fetch_add(1, Ordering::SeqCst);
                            // What stands in the file now was asked for before.
                            let there = std::fs::read_to_string(&path).unwrap_or_else(|_| "0".into());
                            highest.fetch_max(there.parse().unwrap(), Ordering::SeqCst);
                            std::thread::yield_now();
                            Ok::<_, Infallible>(number.to_string())
                        };
                        write(&path, state, content).unwrap();
                        let now: u32 = std::fs::read_to_string(&path).unwrap().parse().unwrap();
                        assert!(now >= highest.load(Ordering::SeqCst));
                    }
                });
            }
        });
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "40");
    }
}
