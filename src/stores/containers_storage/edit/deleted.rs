//! What an edit did.

use std::path::PathBuf;
use std::time::Duration;

use crate::sys::removal::{Failure, Removal};

/// What an edit did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Ids of images whose record is gone.
    pub images: Vec<String>,
    /// Ids of layers whose record is gone.
    pub layers: Vec<String>,
    /// Ids of containers whose record is gone.
    pub containers: Vec<String>,
    /// Things without a record that are gone.
    pub leftovers: Vec<PathBuf>,
    /// Names that were unlinked, directories included.
    pub removed: u64,
    /// What would not go, with the reason. A directory that is left over is an orphan now.
    pub failures: Vec<Failure>,
    /// Failures that are not listed.
    pub more_failures: u64,
    /// Directories were removed where they were, under the locks.
    pub in_place: bool,
    /// The ballast was given up for it.
    pub ballast_released: bool,
    /// A signal ended it: directories that were moved aside are not empty yet.
    pub interrupted: bool,
    /// How long others had to wait at most.
    pub locked_for: Duration,
}

impl Deleted {
    /// What would not go, in words.
    #[must_use]
    pub fn left_over(&self) -> Option<String> {
        let first = self.failures.first()?;
        let more = u64::try_from(self.failures.len() - 1).unwrap_or(0).saturating_add(self.more_failures);
        Some(match more {
            0 => format!("{first} stays"),
            more => format!("{first} stays, and {more} more"),
        })
    }

    /// Nothing was changed.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.is_unnamed() && self.removed == 0
    }

    /// Something was removed, and nothing of it has a name here: temporary files.
    #[must_use]
    pub fn is_unnamed(&self) -> bool {
        self.images.is_empty()
            && self.layers.is_empty()
            && self.containers.is_empty()
            && self.leftovers.is_empty()
    }

    pub(super) fn note(&mut self, removal: Removal) {
        self.removed += removal.removed;
        self.failures.extend(removal.failures);
        self.more_failures += removal.more_failures;
        self.interrupted |= removal.interrupted;
    }
}
