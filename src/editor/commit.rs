//! Synchronises a filesystem while the store's locks are held.

use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::sys::sync::Syncing;

/// Maximum time for which a session waits, with the locks held, until freed bytes can be used: they may become usable
/// only after the filesystem's next commit, or by work in the background.
pub(super) const FREED_WITHIN: Duration = Duration::from_secs(15);

/// Synchronises the filesystem of `directory`, in another process. Returns false if that did not end before `until` or
/// a signal: a disk that hangs must not keep the store's locks.
pub(super) fn commit(directory: BorrowedFd<'_>, until: Instant) -> bool {
    match Syncing::start(directory).and_then(|mut syncing| syncing.wait(until)) {
        Ok(()) => true,
        Err(error) => {
            tracing::debug!(%error, "synchronising the store's filesystem");
            !matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Interrupted)
        }
    }
}
