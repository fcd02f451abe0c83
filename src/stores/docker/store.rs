//! A data root of Docker as a store.

use std::io;
use std::path::PathBuf;

use super::read::{self, Snapshot};
use super::records::DriverLayer;
use super::units::{self, DataRootUnit, DockerUnit};
use super::{fill, places::DockerPlaces};
use crate::disk::filesystem::CostModel;
use crate::disk::{Fingerprint, Fingerprinter, Tally};
use crate::model::{FilesystemIx, NodeIx, StoreIx, StoreKind};
use crate::stores::inventory_writer::{InventoryWriter, mounts_of};
use crate::stores::request::ScanRequest;
use crate::stores::store::{Filling, Store, UnitView};
use crate::stores::unit::views;

#[derive(Clone, Debug)]
pub(in crate::stores) struct Docker {
    snapshot: Snapshot,
    units: Vec<DataRootUnit>,
    origin: String,
}

impl Docker {
    /// Reads the data root.
    ///
    /// # Errors
    /// If it cannot be listed.
    pub(in crate::stores) fn read(
        places: &DockerPlaces,
        origin: String,
        request: &ScanRequest,
    ) -> io::Result<Self> {
        let snapshot = read::read(places, request.measure.finds_leaks(), &request.read_cache)?;
        Ok(Self { units: units::sort(&snapshot), snapshot, origin })
    }
}

impl Store for Docker {
    fn entry(&self, filesystem: FilesystemIx) -> crate::model::Store {
        crate::model::Store {
            kind: StoreKind::Docker,
            root: self.snapshot.places.root.clone(),
            driver: self.snapshot.places.driver().to_owned(),
            filesystem,
            read_only: false,
            origin: self.origin.clone(),
            consistency: self.snapshot.consistency,
        }
    }

    fn roots(&self) -> Vec<PathBuf> {
        self.snapshot.places.roots()
    }

    fn units(&self) -> Vec<UnitView<'_>> {
        views(&self.units)
    }

    fn fingerprints(&self) -> Vec<Option<Fingerprint>> {
        let fingerprints = self.units.iter().map(|unit| match unit.kind {
            DockerUnit::Layer(layer) => fingerprint(&self.snapshot.layers[layer]),
            _ => None,
        });
        fingerprints.collect()
    }

    fn moved(&self) -> bool {
        read::moved(&self.snapshot)
    }

    fn read_again(&mut self, request: &ScanRequest) -> io::Result<()> {
        *self = Self::read(&self.snapshot.places, self.origin.clone(), request)?;
        Ok(())
    }

    fn fill(
        &mut self,
        filling: &mut Filling<'_>,
        store: StoreIx,
        root_costs: &[(FilesystemIx, CostModel)],
        tallies: &[Tally],
    ) -> Vec<NodeIx> {
        let knows_mounts = filling.request.measure.reads_mounts() && !filling.request.sysroot.is_foreign();
        let mounts = if knows_mounts {
            let layers = [self.snapshot.places.layers()];
            let all = || self.units.iter().map(|unit| unit.path.clone());
            match mounts_of((&layers, &layers), &mut filling.inventory.findings) {
                // A container's mount names the short names of the layers below it.
                Some(mounts) => {
                    let orphans = all().filter(|path| {
                        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                        let link = self.snapshot.unnamed.get(name);
                        link.is_some_and(|link| {
                            let words: Vec<_> = link.iter().map(String::as_str).chain([name]).collect();
                            mounts.user(path, &words).is_some()
                        })
                    });
                    mounts.points_below().into_iter().chain(orphans).collect()
                }
                None => all().collect(),
            }
        } else {
            Vec::new()
        };
        let writer = InventoryWriter::of(filling, store, root_costs, &mounts);
        fill::fill(writer, &self.snapshot, &self.units, tallies, knows_mounts)
    }
}

/// Returns a fingerprint of the record of a layer that never changes: one of an image.
fn fingerprint(layer: &DriverLayer) -> Option<Fingerprint> {
    let chain = layer.chain.as_deref()?;
    let mut all = Fingerprinter::new("docker layer, 1");
    all.bytes(layer.id.as_bytes());
    all.bytes(chain.as_bytes());
    all.maybe(layer.diff_id.as_deref().map(str::as_bytes));
    Some(all.finish())
}
