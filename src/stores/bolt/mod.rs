//! A reader of bolt files (bbolt's format version 2), as containerd and podman write them.
//!
//! Strictly read-only: no lock is taken, nothing is mapped, no page is trusted. The
//! pages of one transaction are copied (`copy.rs`), its whole tree is checked (`check.rs`),
//! and only then is there a [`Database`] to read from. The list of free pages is not
//! needed for reading; containerd 1.7 and later do not write one.
//!
//! Source of the format: bbolt 1.4 (`page.go`, `meta.go`, `bucket.go`) and
//! files of containerd 1.6, 1.7 and 2.3.

mod bucket;
mod check;
mod copy;
mod meta;
mod number;
mod page;
#[cfg(test)]
pub(crate) mod tests;

use std::fs::File;
use std::sync::Arc;

pub use bucket::{Bucket, BucketEntry, Entries};
pub use copy::{BoltError, Limits, PageSource};
pub use page::Damage;

use copy::Copy;
use meta::Meta;
use page::{Pages, Root};

/// One transaction of a bolt file, in memory, with its tree proven.
#[derive(Debug)]
pub struct Database {
    bytes: Vec<u8>,
    meta: Meta,
    used_pages: u64,
}

impl Database {
    /// Reads the newest transaction of `file`, even while another process writes it. The caller opens it
    /// read-only.
    ///
    /// # Errors
    /// When it cannot be read, is not a bolt file, is damaged, or changes all the time.
    pub fn read(file: &File, limits: &Limits) -> Result<Self, BoltError> {
        Self::read_from(file, limits)
    }

    /// As [`Self::read`], from anything.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_from(source: &impl PageSource, limits: &Limits) -> Result<Self, BoltError> {
        Self::read_into(Vec::new(), source, limits)
    }

    /// As [`Self::read`], in place of `earlier`, a reading of the same file: that stays where nothing was
    /// written since, and leaves its memory where something was.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_again(
        earlier: Arc<Self>,
        source: &impl PageSource,
        limits: &Limits,
    ) -> Result<Arc<Self>, BoltError> {
        // A transaction's pages are not written as long as it is the newest.
        if copy::newest(source).is_ok_and(|newest| newest == earlier.meta) {
            return Ok(earlier);
        }
        let memory = Arc::into_inner(earlier).map(|earlier| earlier.bytes).unwrap_or_default();
        Self::read_into(memory, source, limits).map(Arc::new)
    }

    /// Memory that it takes, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    fn read_into(memory: Vec<u8>, source: &impl PageSource, limits: &Limits) -> Result<Self, BoltError> {
        let first = copy::take(memory, source, limits)?;
        let newest = first.newest;
        match Self::prove(first) {
            // The copy is one transaction's, so the file is damaged, or whoever writes it
            // does not keep bolt's rules. A second look costs little.
            Err(damage) => {
                let again = copy::take(Vec::new(), source, limits)?;
                if again.newest == newest { Err(damage) } else { Self::prove(again) }
            }
            whole => whole,
        }
    }

    /// Takes the tree if it is whole: the one of an older transaction would be a stale listing.
    fn prove(Copy { bytes, newest: meta }: Copy) -> Result<Self, BoltError> {
        let used_pages = check::check(&Pages::of(&bytes, &meta), meta.root)?;
        Ok(Self { bytes, meta, used_pages })
    }

    /// The bucket that holds all others.
    #[must_use]
    pub fn root(&self) -> Bucket<'_> {
        Bucket::new(Pages::of(&self.bytes, &self.meta), Root::Tree(self.meta.root))
    }

    /// One of its two meta pages is not valid: after a crash the newest transaction may be the one before the last.
    #[must_use]
    pub fn has_one_meta(&self) -> bool {
        self.meta.is_alone
    }

    /// The number of the transaction.
    #[must_use]
    pub fn txid(&self) -> u64 {
        self.meta.txid
    }

    /// Bytes of the pages in use, the two meta pages included. The file is usually longer.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        (self.used_pages + 2).saturating_mul(self.meta.page_size as u64)
    }
}

/// The number of the newest transaction of `file`, without reading its tree.
///
/// # Errors
/// When it cannot be read or is not a bolt file.
pub fn newest_txid(file: &File) -> Result<u64, BoltError> {
    copy::newest(file).map(|meta| meta.txid)
}
