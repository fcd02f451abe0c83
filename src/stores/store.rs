//! Interface of a store that has been read, for all kinds of stores.

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

/// An inode in the tree of one unit that is deleted with another unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reassigned {
    /// `st_dev`.
    pub(super) device: u64,
    /// `st_ino`.
    pub(super) inode: u64,
    /// Position of the unit with which it is deleted.
    pub(super) unit: usize,
}

/// A store whose records have been read.
pub(super) trait Store: Debug {
    /// Returns the store's entry in the inventory.
    fn entry(&self, filesystem: FilesystemIx) -> crate::model::Store;

    /// Returns the directories that the paths of parts are relative to. Each may be a mount; no other mount is
    /// entered. The first is the store's root.
    fn roots(&self) -> Vec<PathBuf>;

    /// Returns the images and layers that it takes from other stores, if its kind of store can. `position` is its
    /// position among the stores shown.
    fn borrower(&self, position: usize) -> Option<Borrower<'_>> {
        let _ = position;
        None
    }

    /// Returns all units, in an order that changes only when the records are read again.
    fn units(&self) -> Vec<UnitView<'_>>;

    /// Returns for each unit a fingerprint of its record, if its files cannot change without a change of its stamp:
    /// its size may then come from an earlier scan. The list may be shorter than the units; the rest have none.
    fn fingerprints(&self) -> Vec<Option<Fingerprint>> {
        Vec::new()
    }

    /// Returns for each unit the stamp that `disk::stamp` would gather, if it was taken when the records were read.
    /// The list may be shorter than the units; the rest have none.
    fn stamps(&self) -> Vec<Option<Fingerprint>> {
        Vec::new()
    }

    /// Returns the locations of a graphroot's parts, for its editor; `None` for other kinds of stores.
    fn places(&self) -> Option<&StorePlaces> {
        None
    }

    /// Returns snapshotters beside a containerd whose files do not belong to the store: name and directory.
    fn snapshotters(&self) -> Vec<(String, PathBuf)> {
        Vec::new()
    }

    /// Returns true if small files are likely to share extents too.
    fn copies_by_reflink(&self) -> bool;

    /// Returns inodes without blocks of their own that are deleted with another unit than the one that counts them.
    /// Looks them up on the disk.
    fn reassigned(&self) -> Vec<Reassigned> {
        Vec::new()
    }

    /// Returns true if another process may have written to the store since it was read.
    fn moved(&self) -> bool;

    /// Reads the records again.
    ///
    /// # Errors
    /// If the store can no longer be read; the earlier reading is kept.
    fn read_again(&mut self, request: &ScanRequest) -> io::Result<()>;

    /// Adds nodes, images, containers, leaks and findings; returns the node of each unit. `root_costs` are in the
    /// order of the roots, `tallies` in that of the units. May drop the units and the listings, so that a large store
    /// is not in memory twice.
    fn fill(
        &mut self,
        filling: &mut Filling<'_>,
        store: StoreIx,
        root_costs: &[(FilesystemIx, CostModel)],
        tallies: &[Tally],
    ) -> Vec<NodeIx>;
}

/// A store that has been read and may take images from others.
pub(crate) struct Borrower<'a> {
    /// Position among the stores shown; `None` if the store was not requested.
    pub(super) position: Option<usize>,
    pub(super) root: PathBuf,
    /// Storage driver; `None` if the store could not be read, so that it may have any.
    pub(super) driver: Option<&'a str>,
    pub(super) is_damaged: bool,
    pub(super) borrows_from: Vec<PathBuf>,
    pub(super) needs: Vec<Need>,
}

/// Target of filling an inventory, and facts that the stores look up for it.
pub(super) struct Filling<'a> {
    pub(super) inventory: &'a mut Inventory,
    pub(super) request: &'a ScanRequest,
    /// CRI-O's pins.
    pub(super) pins: &'a [Pin],
    /// Ids of the graphroots filled so far, by path and driver. Stores look up those of their additional image
    /// stores.
    pub(super) ids: HashMap<(PathBuf, String), Ids>,
    /// Time that ages refer to.
    pub(super) present: &'a Present,
}
