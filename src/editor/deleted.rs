//! Result of an edit.

use std::path::PathBuf;
use std::time::Duration;

use crate::sys::removal::{Removal, RemovalFailure};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// The store was changed: if the edit fails, it was stopped halfway. Nothing else decides that. Half-written record
    /// files of dead processes do not count.
    pub has_changed: bool,
    pub images: Vec<String>,
    pub layers: Vec<String>,
    /// Paths of deleted objects without a record.
    pub orphans: Vec<PathBuf>,
    /// Number of unlinked names, directories included.
    pub removed: u64,
    /// Files that could not be deleted, with the reason. A remaining directory is now an orphan.
    pub failures: Vec<RemovalFailure>,
    /// Number of failures that are not listed.
    pub more_failures: u64,
    /// Directories were deleted in place, under the locks.
    pub in_place: bool,
    pub reserve_file_released: bool,
    /// Interrupted by a signal: directories in the trash are not empty yet.
    pub interrupted: bool,
    /// The longest time for which the locks were held.
    pub locked_for: Duration,
}

impl Deleted {
    pub(super) fn add(&mut self, later: Self) {
        self.has_changed |= later.has_changed;
        self.images.extend(later.images);
        self.layers.extend(later.layers);
        self.orphans.extend(later.orphans);
        self.removed += later.removed;
        self.failures.extend(later.failures);
        self.more_failures += later.more_failures;
        self.in_place |= later.in_place;
        self.reserve_file_released |= later.reserve_file_released;
        self.interrupted |= later.interrupted;
        self.locked_for = self.locked_for.max(later.locked_for);
    }

    /// Text about the files that could not be deleted.
    #[must_use]
    pub fn left_over(&self) -> Option<String> {
        let first = self.failures.first()?;
        let more = u64::try_from(self.failures.len() - 1).unwrap_or(0).saturating_add(self.more_failures);
        Some(match more {
            0 => format!("{first} stays"),
            more => format!("{first} stays, and {more} more"),
        })
    }

    /// Logs the edit of `id`. The rest of an object whose record was removed is an orphan, which `sweep` finds.
    pub fn log(&self, id: &str) {
        for failure in &self.failures {
            tracing::warn!(id, "left behind: {failure}");
        }
        if self.more_failures > 0 {
            tracing::warn!(id, "{} more are left behind", self.more_failures);
        }
        tracing::debug!(
            id,
            layers = self.layers.len(),
            removed = self.removed,
            in_place = self.in_place,
            reserve_file = self.reserve_file_released,
            locked_for = ?self.locked_for,
            "deleted"
        );
    }

    pub(super) fn note(&mut self, removal: Removal) {
        self.has_changed |= removal.removed > 0;
        self.removed += removal.removed;
        self.failures.extend(removal.failures);
        self.more_failures += removal.more_failures;
        self.interrupted |= removal.interrupted;
    }
}
