//! Implements the store interface for OCI artifacts: those of a graphroot, and CRI-O's additional stores.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::disk::Tally;
use crate::disk::filesystem::CostModel;
use crate::model::{FilesystemIx, NodeIx, StoreIx, StoreKind};
use crate::stores::containers_storage::artifacts;
use crate::stores::containers_storage::artifacts::read::Layout;
use crate::stores::containers_storage::config::{Pin, pinned_by};
use crate::stores::containers_storage::places::StorePlaces;
use crate::stores::containers_storage::snapshot::WriterPatience;
use crate::stores::inventory_writer::InventoryWriter;
use crate::stores::request::ScanRequest;
use crate::stores::store::{Filling, Store, UnitView};
use crate::stores::unit::views;
use crate::sys::quiet::Within;

#[derive(Clone, Debug)]
pub struct Artifacts {
    layout: Layout,
    origin: String,
    /// The store is one of CRI-O's additional stores. CRI-O reports its artifacts as pinned (cri-o
    /// `internal/ociartifact`).
    is_additional: bool,
    /// CRI-O's pins.
    pins: Arc<[Pin]>,
}

impl Artifacts {
    /// Reads the artifact store at `places`, or returns `None` if it does not exist.
    ///
    /// # Errors
    /// When the store cannot be listed.
    pub(crate) fn find(places: &StorePlaces, origin: &str, pins: Arc<[Pin]>) -> io::Result<Option<Self>> {
        if !artifacts::exists(places) {
            return Ok(None);
        }
        let layout = artifacts::read(places, WriterPatience::default())?;
        Ok(Some(Self { layout, origin: origin.to_owned(), is_additional: false, pins }))
    }

    /// Marks the store as one of CRI-O's additional stores.
    pub(crate) fn into_additional(self) -> Self {
        Self { is_additional: true, ..self }
    }

    pub(crate) fn places(&self) -> &StorePlaces {
        &self.layout.places
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.layout.directory()
    }
}

impl Store for Artifacts {
    fn entry(&self, filesystem: FilesystemIx) -> crate::model::Store {
        let places = &self.layout.places;
        crate::model::Store {
            kind: StoreKind::ContainersStorage,
            root: places.graphroot.to_path_buf(),
            driver: places.driver.clone(),
            filesystem,
            read_only: places.read_only,
            origin: self.origin.clone(),
            consistency: self.layout.consistency,
        }
    }

    fn roots(&self) -> Vec<PathBuf> {
        vec![self.layout.directory()]
    }

    fn units(&self) -> Vec<UnitView<'_>> {
        views(&self.layout.units)
    }

    fn own_roots(&self) -> Vec<PathBuf> {
        self.layout.places.own_roots()
    }

    fn within(&self) -> Option<Within> {
        Some(self.layout.places.within())
    }

    fn moved(&self) -> bool {
        artifacts::moved(&self.layout)
    }

    fn read_again(&mut self, _: &ScanRequest) -> io::Result<()> {
        self.layout.places.allowance.give_back();
        self.layout = artifacts::read(&self.layout.places, WriterPatience::default())?;
        Ok(())
    }

    fn fill(
        &mut self,
        filling: &mut Filling<'_>,
        store: StoreIx,
        root_costs: &[(FilesystemIx, CostModel)],
        tallies: &[Tally],
    ) -> Vec<NodeIx> {
        let by_store = self.is_additional.then(|| format!("additional_artifact_stores in {}", self.origin));
        let writer = InventoryWriter::of(filling, store, root_costs, &[]);
        artifacts::fill(writer, &self.layout, tallies, &|names, digests| {
            let mut reasons = pinned_by(&self.pins, names, digests);
            reasons.extend(by_store.clone().map(Into::into));
            reasons
        })
    }
}
