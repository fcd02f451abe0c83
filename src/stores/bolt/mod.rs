//! Reader of bolt databases (bbolt, format version 2), as containerd and podman write them.
//!
//! The reader never takes a lock, maps no memory and trusts no page. It works in three steps:
//!
//! 1. `copy.rs` copies the pages of one transaction, although another process may be writing.
//! 2. `check.rs` checks the whole tree of that transaction.
//! 3. Only then is there a [`BoltDatabase`] to read from. Reading it cannot fail.
//!
//! The list of free pages is not needed for reading; containerd 1.7 and later do not write it.
//!
//! Source of the format: bbolt 1.4 (`page.go`, `meta.go`, `bucket.go`) and files of containerd 1.6, 1.7 and 2.3.

mod bucket;
mod check;
mod copy;
mod meta;
mod number;
mod page;
#[cfg(test)]
pub(crate) mod tests;
mod time;

use std::fs::File;
use std::sync::Arc;

pub use bucket::{Bucket, BucketEntry, Entries};
pub use copy::{BoltError, Limits, PageSource};
pub use page::Damage;
pub use time::go_time;

use copy::Copy;
use meta::Meta;
use page::{BucketRoot, Pages};

/// In-memory copy of one transaction of a bolt file whose tree has been checked.
#[derive(Debug)]
pub struct BoltDatabase {
    bytes: Vec<u8>,
    meta: Meta,
    used_pages: u64,
}

impl BoltDatabase {
    /// Reads the newest transaction of `file`, even while another process writes the file. The caller opens it
    /// read-only.
    ///
    /// # Errors
    /// If the file cannot be read, is not a bolt file, is damaged, or changes during every attempt.
    pub fn read(file: &File, limits: &Limits) -> Result<Self, BoltError> {
        Self::read_from(file, limits)
    }

    /// Same as [`Self::read`], for any source of pages.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_from(source: &impl PageSource, limits: &Limits) -> Result<Self, BoltError> {
        Self::read_into(Vec::new(), source, limits)
    }

    /// Same as [`Self::read`], but reuses `earlier`, a reading of the same file: returns it unchanged if no
    /// transaction was committed since, and otherwise reads into its memory.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_again(
        earlier: Arc<Self>,
        source: &impl PageSource,
        limits: &Limits,
    ) -> Result<Arc<Self>, BoltError> {
        // bolt does not overwrite the pages of the newest transaction.
        if copy::newest(source).is_ok_and(|newest| newest == earlier.meta) {
            return Ok(earlier);
        }
        let memory = Arc::into_inner(earlier).map(|earlier| earlier.bytes).unwrap_or_default();
        Self::read_into(memory, source, limits).map(Arc::new)
    }

    /// Memory that the database uses, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    fn read_into(memory: Vec<u8>, source: &impl PageSource, limits: &Limits) -> Result<Self, BoltError> {
        let first = copy::take(memory, source, limits)?;
        let newest = first.newest;
        match Self::prove(first) {
            // The copy is a single transaction, so either the file is damaged or its writer breaks bolt's rules.
            // A second attempt costs little.
            Err(damage) => {
                let again = copy::take(Vec::new(), source, limits)?;
                if again.newest == newest { Err(damage) } else { Self::prove(again) }
            }
            whole => whole,
        }
    }

    /// Checks the tree. A damaged tree is an error: the tree of the previous transaction would be a stale listing.
    fn prove(Copy { bytes, newest: meta }: Copy) -> Result<Self, BoltError> {
        let used_pages = check::check(&Pages::of(&bytes, &meta), meta.root)?;
        Ok(Self { bytes, meta, used_pages })
    }

    /// The bucket that contains all others.
    #[must_use]
    pub fn root(&self) -> Bucket<'_> {
        Bucket::new(Pages::of(&self.bytes, &self.meta), BucketRoot::Tree(self.meta.root))
    }

    /// Returns true if one of the two meta pages is invalid. After a crash the transaction may then be the one
    /// before the last.
    #[must_use]
    pub fn has_one_meta(&self) -> bool {
        self.meta.is_alone
    }

    #[must_use]
    pub fn txid(&self) -> u64 {
        self.meta.txid
    }

    /// Bytes of the pages in use, including the two meta pages. The file is usually longer.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        (self.used_pages + 2).saturating_mul(self.meta.page_size as u64)
    }
}

/// Returns the number of the newest transaction of `file` without reading its tree.
///
/// # Errors
/// If the file cannot be read or is not a bolt file.
pub fn newest_txid(file: &File) -> Result<u64, BoltError> {
    copy::newest(file).map(|meta| meta.txid)
}
