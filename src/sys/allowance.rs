//! A limit for the work on files that other users write.
//!
//! Root reads the stores of all users, since those may use root's images. A user must not be able to make that
//! reading expensive: ten million records take 100 MB of disk, and a hard link to a large file costs nothing. So
//! everything that is read of other users' stores is charged to one allowance: the bytes of files, and for each
//! object what its place in the inventory costs. What exceeds the allowance is not read, and the store counts as
//! damaged: what it may need of other stores stays.
//!
//! The weights are the memory that an object was measured to take, or more where the time grows faster than the
//! number of objects. `tests/stores/bounds.rs` shows that the whole of it stays far below `MemoryMax=` of the unit.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Allowance for all stores of other users together. A store of 1,000 images, 10,000 layers and 100 containers
/// takes about 35 MiB of it.
pub const OF_OTHER_USERS: u64 = 192 << 20;

/// Weight of an entry of a directory.
pub const ENTRY: u64 = 1 << 10;

/// Weight of the record of a layer, or of an entry of an artifact store's index.
pub const LAYER: u64 = 2 << 10;

/// Weight of the record of an image, without its texts.
pub const IMAGE: u64 = 8 << 10;

/// Weight of the record of a container: the node's images are compared with each.
pub const CONTAINER: u64 = 64 << 10;

/// Weight of a name, a digest or another text of a record.
pub const TEXT: u64 = 256;

/// Weight of each byte of a list of entries that may be very short.
pub const DENSE: u64 = 100;

/// Weight of a layer that an image or container reaches, or of a member of a list.
pub const REACHED: u64 = 64;

/// Why something was left out.
pub const SPENT: &str = "not read: the stores of other users hold more than is read of them";

/// Remaining allowance; unlimited by default. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Allowance(Option<Limited>);

#[derive(Clone, Debug)]
struct Limited {
    /// Left for all stores together.
    left: Arc<AtomicU64>,
    /// Spent by one store.
    spent: Arc<AtomicU64>,
    /// Something of the store was not read.
    is_exceeded: Arc<AtomicBool>,
}

impl Allowance {
    #[must_use]
    pub fn limited(weight: u64) -> Self {
        let left = Arc::new(AtomicU64::new(weight));
        Self(Some(Limited { left, spent: Arc::default(), is_exceeded: Arc::default() }))
    }

    /// The same allowance for one more store, which is charged on its own.
    #[must_use]
    pub fn for_store(&self) -> Self {
        let limited = |it: &Limited| Limited {
            left: it.left.clone(),
            spent: Arc::default(),
            is_exceeded: Arc::default(),
        };
        Self(self.0.as_ref().map(limited))
    }

    /// Charges `weight`.
    ///
    /// # Errors
    /// When less is left.
    pub fn charge(&self, weight: u64) -> io::Result<()> {
        let Some(Limited { left, spent, is_exceeded }) = &self.0 else { return Ok(()) };
        let less = |left: u64| left.checked_sub(weight);
        match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
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

    /// Charges what `weight` says, which is only asked where there is a limit.
    ///
    /// # Errors
    /// When less is left, or the weight is unknown.
    pub fn charge_with(&self, weight: impl FnOnce() -> io::Result<u64>) -> io::Result<()> {
        if self.0.is_some() { self.charge(weight()?) } else { Ok(()) }
    }

    /// True if something of the store was not read.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.0.as_ref().is_some_and(|limited| limited.is_exceeded.load(Ordering::Relaxed))
    }

    /// Gives back what the store has spent: it is about to be read again.
    pub fn give_back(&self) {
        if let Some(Limited { left, spent, is_exceeded }) = &self.0 {
            left.fetch_add(spent.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            is_exceeded.store(false, Ordering::Relaxed);
        }
    }
}

/// A limit is not part of what a place is.
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
    fn stores_share_an_allowance_and_give_back_their_own() {
        let all = Allowance::limited(10);
        let (first, second) = (all.for_store(), all.for_store());
        assert!(first.charge(6).is_ok() && second.clone().charge(3).is_ok());
        assert!(second.charge(2).is_err(), "a charge that is refused costs nothing");
        assert!(!first.is_exceeded() && second.is_exceeded());
        assert!(second.charge(1).is_ok() && first.charge(1).is_err());
        first.give_back();
        assert!(!first.is_exceeded());
        assert!(second.charge(7).is_err() && second.charge(6).is_ok());
        assert!(Allowance::default().charge(u64::MAX).is_ok());
    }
}
