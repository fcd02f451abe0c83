//! One run at a time.

use super::error::Error;
use crate::history::{LockError, Place, RunLock};

/// The lock of the state directory, or where there can be none, of its stand-in.
pub(super) fn acquire(place: &Place) -> Result<RunLock, Error> {
    let refused = |error: LockError| {
        Error::refused(error.to_string()).hint(match &error {
            LockError::Held { .. } => "wait until it ends",
            LockError::Io { .. } => "name another state directory with --state-dir DIR",
        })
    };
    match RunLock::acquire(&place.dir) {
        Err(LockError::Io { path, source }) => {
            // On a full or read-only disk that has no state directory yet.
            let stand_in = place.pending.last().filter(|dir| !dir.starts_with(&place.dir));
            let Some(stand_in) = stand_in else { return Err(refused(LockError::Io { path, source })) };
            tracing::warn!("locking {}: {source}; taking the lock of {}", path.display(), stand_in.display());
            RunLock::acquire(stand_in).map_err(refused)
        }
        other => other.map_err(refused),
    }
}
