//! Limit for the work on files that other users write.
//!
//! Root reads the stores of all users, since they may use root's images. A user must not be able to make this
//! expensive: ten million records take only 100 MB of disk, and a hard link to a large file is free. Everything
//! that is read from other users' stores is therefore charged to one allowance: the bytes of files, and for each
//! object the cost of its place in the inventory. Data that exceeds the allowance is not read, and the store counts
//! as damaged: everything that it may need from other stores is kept.
//!
//! The weights are the measured memory of an object, or more if the time grows faster than the number of objects.
//! `tests/stores/bounds.rs` shows that the total stays far below `MemoryMax=` of the unit.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Allowance for the stores of all other users together. A store of 1,000 images, 10,000 layers and 100 containers
/// takes about 35 MiB of it.
pub const OF_OTHER_USERS: u64 = 192 << 20;

/// Weight of a directory entry.
pub const ENTRY: u64 = 1 << 10;

/// Weight of the record of a layer, or of an entry of an artifact store's index.
pub const LAYER: u64 = 2 << 10;

/// Weight of the record of an image, without its texts.
pub const IMAGE: u64 = 8 << 10;

/// Weight of the record of a container: it is compared with all images of the node.
pub const CONTAINER: u64 = 64 << 10;

/// Weight of a name, digest or other text of a record.
pub const TEXT: u64 = 256;

/// Weight of each byte of a list whose entries may be very short.
pub const DENSE: u64 = 100;

/// Weight of a layer that an image or container reaches, or of a member of a list.
pub const REACHED: u64 = 64;

/// Reason for leaving something out.
pub const SPENT: &str = "not read: the stores of other users hold more than is read of them";

/// Remaining allowance; unlimited by default. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Allowance(Option<Limited>);

#[derive(Clone, Debug)]
struct Limited {
    /// Weight that is left for all stores together.
    left: Arc<AtomicU64>,
    /// Weight that this store has spent.
    spent: Arc<AtomicU64>,
    is_exceeded: Arc<AtomicBool>,
}

impl Allowance {
    #[must_use]
    pub fn limited(weight: u64) -> Self {
        let left = Arc::new(AtomicU64::new(weight));
        Self(Some(Limited { left, spent: Arc::default(), is_exceeded: Arc::default() }))
    }

    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the same allowance for another store, with its own account.
    #[must_use]
    pub fn for_store(&self) -> Self {
        let limited = self.0.as_ref().map(|limited| Limited {
            left: limited.left.clone(),
            spent: Arc::default(),
            is_exceeded: Arc::default(),
        });
        Self(limited)
    }

    /// Charges `weight`.
    ///
    /// # Errors
    /// If less is left.
    pub fn charge(&self, weight: u64) -> io::Result<()> {
        let Some(Limited { left, spent, is_exceeded }) = &self.0 else { return Ok(()) };
        let result = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(weight));
        match result {
            Ok(_) => {
                spent.fetch_add(weight, Ordering::Relaxed);
                Ok(())
            }
            Err(_) => {
                is_exceeded.store(true, Ordering::Relaxed);
                Err(io::Error::new(io::ErrorKind::QuotaExceeded, SPENT))
            }
        }
    }

    /// Charges the result of `weight`, which is only called if there is a limit.
    ///
    /// # Errors
    /// If less is left, or the weight is unknown.
    pub fn charge_with(&self, weight: impl FnOnce() -> io::Result<u64>) -> io::Result<()> {
        if self.0.is_some() { self.charge(weight()?) } else { Ok(()) }
    }

    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.0.as_ref().is_some_and(|limited| limited.is_exceeded.load(Ordering::Relaxed))
    }

    /// Returns the weight that the store has spent, before it is read again.
    pub fn give_back(&self) {
        if let Some(Limited { left, spent, is_exceeded }) = &self.0 {
            left.fetch_add(spent.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            is_exceeded.store(false, Ordering::Relaxed);
        }
    }
}

/// All allowances are equal: a limit is not part of the identity of a location.
impl PartialEq for Allowance {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Allowance {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_share_an_allowance_but_not_accounts() {
        let all = Allowance::limited(10);
        let (first, second) = (all.for_store(), all.for_store());
        assert!(first.charge(6).is_ok() && second.clone().charge(3).is_ok());
        assert!(second.charge(2).is_err(), "a refused charge costs nothing");
        assert!(!first.is_exceeded() && second.is_exceeded());
        assert!(second.charge(1).is_ok() && first.charge(1).is_err());
        first.give_back();
        assert!(!first.is_exceeded());
        assert!(second.charge(7).is_err() && second.charge(6).is_ok());
        assert!(Allowance::default().charge(u64::MAX).is_ok());
    }
}
