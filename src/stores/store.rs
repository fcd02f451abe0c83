//! Interface between a kind of store and everything above it.
//!
//! A scan knows nothing of a kind but this trait; after the scan, only the [`Inventory`] remains. A kind of store
//! provides:
//!
//! * **Find**: `discovery/` has a function that takes the [`ScanRequest`] and returns the stores that are named or
//!   configured, read, as [`ReadStores`](super::discovery::found::ReadStores). Facts of the node that other kinds
//!   need as well (environment, programs that run, earlier readings) are in the request.
//! * **Read**: [`Store::entry`] (kind, root, driver, consistency), [`Store::moved`] and [`Store::read_again`]. Reading
//!   never waits long for a writer, never writes, and never follows a link out of the store.
//! * **Name nodes and bytes**: [`Store::units`] divides all files below [`Store::roots`] into units, each counted
//!   once. The measurement walks them; [`Store::fill`] makes each a node. [`Store::fingerprints`] and
//!   [`Store::stamps`] allow the use of sizes from an earlier scan.
//! * **Who uses what**: [`Store::fill`] adds images, containers, uses, leaks and findings to the inventory, through an
//!   [`InventoryWriter`](super::inventory_writer::InventoryWriter). What cannot be read is a finding, and protects
//!   everything that it may use. Images that a store takes from another are [`Borrower::needs`], and those that others
//!   may take from it are [`LentObjects`].
//! * **How its images are deleted, and by whom**: a row of [`KindFacts`](crate::model::KindFacts). A kind that
//!   layersweep edits itself has an editor in `crate::editor`, which gets the directories that were opened when the
//!   store was found ([`Scan::editable`](super::Scan::editable)). Of other kinds, the daemon deletes, and a runtime
//!   that answers on CRI names the store as [`RuntimeStore`](super::RuntimeStore).
//! * **A last look**: `has_image` in `discovery/`, which reads only what proves that an image is still there.
//!
//! `docs/adding-a-store.md` has the steps in their order.

use std::fmt::Debug;
use std::io;
use std::path::PathBuf;

use hashbrown::HashMap;

use super::lending::{Borrower, LentObjects};
use super::request::ScanRequest;
pub(super) use super::unit::UnitView;
use crate::disk::filesystem::CostModel;
use crate::disk::{Fingerprint, Tally};
use crate::model::{FilesystemIx, Inventory, NodeIx, StoreId, StoreIx};
use crate::sys::clock::Present;
use crate::sys::quiet::Within;

/// An inode in the tree of one unit that is deleted with another unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reassigned {
    pub(super) device: u64,
    pub(super) inode: u64,
    /// Position of the unit with which it is deleted.
    pub(super) unit: usize,
}

/// A store whose records have been read.
pub(super) trait Store: Debug + Send {
    fn entry(&self, filesystem: FilesystemIx) -> crate::model::Store;

    /// Returns the directories that the paths of parts are relative to. Each may be a mount; no other mount is
    /// entered. The first is the store's root.
    fn roots(&self) -> Vec<PathBuf>;

    /// Returns the images and layers that it takes from other stores, if its kind of store can. `position` is its
    /// position among the stores shown.
    fn borrower(&self, position: usize) -> Option<Borrower> {
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

    /// Returns the roots without directories in which other programs leave temporary files.
    fn own_roots(&self) -> Vec<PathBuf> {
        self.roots()
    }

    /// Returns a reader for the directories that were opened when the store was found; `None` if it is read by path.
    fn within(&self) -> Option<Within> {
        None
    }

    /// Returns snapshotters beside a containerd whose files do not belong to the store: name and directory.
    fn snapshotters(&self) -> Vec<(String, PathBuf)> {
        Vec::new()
    }

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

/// Target of filling an inventory, and facts that the stores look up for it.
pub(super) struct Filling<'a> {
    pub(super) inventory: &'a mut Inventory,
    pub(super) request: &'a ScanRequest,
    /// Objects of the stores filled so far that others may use. A store is filled after those that it takes images
    /// from.
    pub(super) lent: HashMap<StoreId, LentObjects>,
    pub(super) present: &'a Present,
}
