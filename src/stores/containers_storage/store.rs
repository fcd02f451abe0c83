//! A graphroot as a store.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;

use super::config::pinned_by;
use super::edit::Watch;
use super::fill::FilesOfLayer;
use super::inspect::{Closeness, inspect};
use super::needs;
use super::places::Places;
use super::snapshot::{self, Snapshot};
use super::units::{self, Unit, What};
use super::{committed, fill};
use crate::disk::filesystem::CostModel;
use crate::disk::{Fingerprint, Tally};
use crate::model::{FilesystemIx, NodeIx, StoreIx, StoreKind};
use crate::stores::inventory_writer::{InventoryWriter, mounts_below};
use crate::stores::request::{Measure, Request};
use crate::stores::store::{Borrower, Filling, Reassigned, Store, UnitView};
use crate::stores::unit::views;

/// A graphroot, read with one driver.
#[derive(Clone, Debug)]
pub struct Graphroot {
    /// Without its listing, which is what the units are sorted from.
    pub(in crate::stores) snapshot: Snapshot,
    units: Vec<Unit>,
    /// By position of the layer.
    files: Vec<FilesOfLayer>,
    pub(in crate::stores) origin: String,
    /// Graphroots of the additional image stores that it reads from.
    pub(in crate::stores) additional: Vec<PathBuf>,
    /// There may be more of these.
    pub(in crate::stores) has_more_lenders: bool,
    /// From before it was read.
    pub(in crate::stores) watch: Watch,
}

impl Graphroot {
    pub(in crate::stores) fn new(
        snapshot: Snapshot,
        origin: String,
        has_more_lenders: bool,
        watch: Watch,
    ) -> Self {
        let (units, files, additional) = (Vec::new(), Vec::new(), Vec::new());
        let mut new = Self { snapshot, units, files, origin, additional, has_more_lenders, watch };
        new.sort();
        new
    }

    fn sort(&mut self) {
        self.units = units::sort(&self.snapshot);
        self.files = fill::files_of_layers(&self.snapshot);
        // Of a large store it takes as much memory as the records.
        self.snapshot.listing.clear();
    }

    /// As one that takes images from others; `at` is its place among those that are shown.
    pub(in crate::stores) fn borrower(&self, at: Option<usize>) -> Borrower<'_> {
        Borrower {
            at,
            root: self.snapshot.places.graphroot.to_path_buf(),
            driver: &self.snapshot.places.driver,
            is_damaged: self.has_more_lenders || !needs::knows_all(&self.snapshot),
            borrows_from: self.additional.clone(),
            borrows_from_any: self.has_more_lenders,
            needs: match self.additional.is_empty() && !self.has_more_lenders {
                true => Vec::new(),
                false => needs::elsewhere(&self.snapshot),
            },
        }
    }
}

impl Store for Graphroot {
    fn entry(&self, filesystem: FilesystemIx) -> crate::model::Store {
        crate::model::Store {
            kind: StoreKind::ContainersStorage,
            root: self.snapshot.places.graphroot.to_path_buf(),
            driver: self.snapshot.places.driver.clone(),
            filesystem,
            read_only: self.snapshot.places.read_only,
            origin: self.origin.clone(),
            consistency: self.snapshot.consistency,
        }
    }

    fn roots(&self) -> Vec<PathBuf> {
        self.snapshot.places.roots()
    }

    fn borrower(&self, at: usize) -> Option<Borrower<'_>> {
        Some(self.borrower(Some(at)))
    }

    fn units(&self) -> Vec<UnitView<'_>> {
        views(&self.units)
    }

    fn fingerprints(&self) -> Vec<Option<Fingerprint>> {
        committed::fingerprints(&self.snapshot, &self.units)
    }

    fn places(&self) -> Option<&Places> {
        Some(&self.snapshot.places)
    }

    /// The vfs driver copies a whole root filesystem for each layer, by reflink where it can.
    fn copies_by_reflink(&self) -> bool {
        self.snapshot.places.driver == "vfs"
    }

    /// The symlinks in the overlay driver's directory `l` are bookkeeping, but each goes
    /// with its layer, and was made with it, among the layer's inodes.
    fn reassigned(&self) -> Vec<Reassigned> {
        let layers = self.units.iter().enumerate().filter_map(|(at, unit)| match unit.what {
            What::Layer(layer) => Some((layer, at)),
            _ => None,
        });
        let layers: HashMap<usize, usize> = layers.collect();
        let reassigned = self.snapshot.inspection.short_names.iter().filter_map(|name| {
            let unit = *layers.get(&name.layer)?;
            Some(Reassigned { device: name.device, inode: name.inode, unit })
        });
        reassigned.collect()
    }

    fn moved(&self) -> bool {
        snapshot::moved(&self.snapshot).unwrap_or(true)
    }

    fn read_again(&mut self, request: &Request) -> io::Result<()> {
        self.snapshot = read(&self.snapshot.places, request)?;
        self.sort();
        Ok(())
    }

    fn fill(
        &mut self,
        filling: &mut Filling<'_>,
        store: StoreIx,
        areas: &[(FilesystemIx, CostModel)],
        tallies: &[Tally],
    ) -> Vec<NodeIx> {
        let graphroot = self.snapshot.places.graphroot.to_path_buf();
        let driver = self.snapshot.places.driver.clone();
        let additional: Vec<_> = self
            .additional
            .iter()
            .filter_map(|path| filling.ids.get(&(path.clone(), driver.clone())))
            .collect();
        let areas_of_store: Vec<_> = self.snapshot.places.areas().map(|root| root.to_path_buf()).collect();
        let leaks = filling.request.measure.finds_leaks();
        // Only containers and leaks are ever in use by a mount.
        let mounts = match leaks || !self.snapshot.containers.is_empty() {
            true => mounts_below(&areas_of_store, &mut filling.inventory.findings, || {
                self.units.iter().map(|unit| unit.path.clone()).collect()
            }),
            false => Vec::new(),
        };
        let writer = InventoryWriter {
            inventory: filling.inventory,
            store,
            areas,
            mounts: &mounts,
            labels: &filling.request.labels,
            present: filling.present,
            leaks,
        };
        let pinned_by = |names: &[String], digests: &[String]| pinned_by(filling.pins, names, digests);
        let units = std::mem::take(&mut self.units);
        let filled =
            fill::fill(writer, (&self.snapshot, units, &self.files), tallies, &additional, &pinned_by);
        filling.ids.insert((graphroot, driver), filled.ids);
        filled.nodes
    }
}

/// Reads the records, and marks them as damaged where they cannot be all.
pub(in crate::stores) fn read(places: &Places, request: &Request) -> io::Result<Snapshot> {
    let mut snapshot = snapshot::read(places, request.patience)?;
    snapshot::validate(&mut snapshot);
    let closeness = match request.measure {
        Measure::Everything => Closeness::Everything,
        Measure::Nothing => Closeness::Engine,
    };
    inspect(&mut snapshot, closeness);
    tracing::info!(
        "{}: {} images, {} layers, {} containers ({}, {:?})",
        places.graphroot.display(),
        snapshot.images.len(),
        snapshot.layers.len(),
        snapshot.containers.len(),
        places.driver,
        snapshot.consistency,
    );
    Ok(snapshot)
}
