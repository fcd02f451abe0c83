//! The interface of a store that was read, for every kind of store.

use std::fmt::Debug;
use std::io;
use std::path::PathBuf;

use hashbrown::HashMap;

use super::request::ScanRequest;
pub(super) use super::unit::UnitView;
use crate::disk::filesystem::CostModel;
use crate::disk::{Fingerprint, Tally};
use crate::model::{FilesystemIx, Inventory, NodeIx, StoreIx};
use crate::stores::containers_storage::config::Pin;
use crate::stores::containers_storage::fill::Ids;
use crate::stores::containers_storage::needs::Need;
use crate::stores::containers_storage::places::StorePlaces;
use crate::sys::clock::Present;

/// An inode that is in one unit's tree and goes with another unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reassigned {
    /// `st_dev`.
    pub(super) device: u64,
    /// `st_ino`.
    pub(super) inode: u64,
    /// Position of the unit that it goes with.
    pub(super) unit: usize,
}

/// A store whose records have been read.
pub(super) trait Store: Debug {
    /// The store's entry in the inventory.
    fn entry(&self, filesystem: FilesystemIx) -> crate::model::Store;

    /// The directories that parts are given below. Each may be a mount of its own; no other
    /// mount is crossed. The first is the store's root.
    fn roots(&self) -> Vec<PathBuf>;

    /// Returns the images and layers that it takes from other stores, if its kind of store can. `position` is its
    /// position among the stores shown.
    fn borrower(&self, position: usize) -> Option<Borrower<'_>> {
        let _ = position;
        None
    }

    /// All units, in an order that only a new reading changes.
    fn units(&self) -> Vec<UnitView<'_>>;

    /// For each unit a fingerprint of its record, if its files stay as they are while its stamp does:
    /// its size may then come from an earlier scan. Units behind the end have none.
    fn fingerprints(&self) -> Vec<Option<Fingerprint>> {
        Vec::new()
    }

    /// For each unit the stamp that `disk::stamp` would gather, where it was taken when the records were
    /// read. Units behind the end have none.
    fn stamps(&self) -> Vec<Option<Fingerprint>> {
        Vec::new()
    }

    /// Where a graphroot's parts lie, for its editor; `None` for stores of another kind.
    fn places(&self) -> Option<&StorePlaces> {
        None
    }

    /// Snapshotters beside a containerd whose files are none of the store's: name and directory.
    fn snapshotters(&self) -> Vec<(String, PathBuf)> {
        Vec::new()
    }

    /// Small files, too, are likely to share extents.
    fn copies_by_reflink(&self) -> bool;

    /// Inodes without blocks of their own that go with another unit than the one they are
    /// counted in. Looks them up on the disk.
    fn reassigned(&self) -> Vec<Reassigned> {
        Vec::new()
    }

    /// Another process may have written since the reading.
    fn moved(&self) -> bool;

    /// Reads the records again.
    ///
    /// # Errors
    /// When the store can no longer be read; the earlier reading stays.
    fn read_again(&mut self, request: &ScanRequest) -> io::Result<()>;

    /// Adds nodes, images, containers, leaks and findings; returns the node of each
    /// unit. `root_costs` belong to the roots, `tallies` to the units, one by one. Units and
    /// listings may be gone afterwards: a large store is not to be in memory twice.
    fn fill(
        &mut self,
        filling: &mut Filling<'_>,
        store: StoreIx,
        root_costs: &[(FilesystemIx, CostModel)],
        tallies: &[Tally],
    ) -> Vec<NodeIx>;
}

/// One store that was read, and may take images from others.
pub(crate) struct Borrower<'a> {
    /// Position among the stores shown; `None` if the store was not requested.
    pub(super) position: Option<usize>,
    pub(super) root: PathBuf,
    /// `None`: it could not be read at all, and may have any.
    pub(super) driver: Option<&'a str>,
    pub(super) is_damaged: bool,
    pub(super) borrows_from: Vec<PathBuf>,
    pub(super) needs: Vec<Need>,
}

/// What stores are filled into, and what they may look up.
pub(super) struct Filling<'a> {
    pub(super) inventory: &'a mut Inventory,
    pub(super) request: &'a ScanRequest,
    /// CRI-O's pins.
    pub(super) pins: &'a [Pin],
    /// Ids of the graphroots filled so far, by path and driver: additional image stores.
    pub(super) ids: HashMap<(PathBuf, String), Ids>,
    /// The time that ages are counted to.
    pub(super) present: &'a Present,
}
