//! Implements the store interface for a graphroot.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rayon::prelude::*;

use super::config::{Pin, pinned_by};
use super::fill;
use super::inspect::inspect;
use super::inspect::mountpoints::{self, MountTables};
use super::inspection::Inspection;
use super::needs;
use super::outside::WatchedFiles;
use super::places::StorePlaces;
use super::records::LayerRecord;
use super::snapshot::{self, Snapshot, WriterPatience};
use super::units::{self, GraphrootUnit, StorageUnit};
use crate::disk::filesystem::CostModel;
use crate::disk::{Fingerprint, Fingerprinter, Tally, TreeScope};
use crate::model::{Consistency, FilesystemIx, Finding, NodeIx, StoreId, StoreIx, StoreKind};
use crate::stores::inventory_writer::{InventoryWriter, mounts_below};
use crate::stores::lending::Borrower;
use crate::stores::request::ScanRequest;
use crate::stores::store::{Filling, Reassigned, Store, UnitView};
use crate::stores::unit::views;
use crate::sys::allowance;
use crate::sys::quiet::Within;

/// A graphroot, read with one driver.
#[derive(Clone, Debug)]
pub struct Graphroot {
    /// The records. The listing is cleared once the units have been built from it.
    pub(crate) snapshot: Snapshot,
    units: Vec<GraphrootUnit>,
    /// For each layer, by its position, true if its directory is listed.
    has_directory: Vec<bool>,
    pub(crate) origin: String,
    /// Graphroots of the additional image stores that this store uses.
    pub(crate) additional: Vec<PathBuf>,
    /// State of the files before they were read.
    pub(crate) watch: WatchedFiles,
    /// CRI-O's pins.
    pins: Arc<[Pin]>,
}

impl Graphroot {
    pub(in crate::stores) fn new(
        snapshot: Snapshot,
        origin: String,
        watch: WatchedFiles,
        pins: Arc<[Pin]>,
    ) -> Self {
        let (units, has_directory, additional) = (Vec::new(), Vec::new(), Vec::new());
        let mut new = Self { snapshot, units, has_directory, origin, additional, watch, pins };
        new.sort();
        new
    }

    fn sort(&mut self) {
        (self.units, self.has_directory) = units::sort(&self.snapshot);
        // The listing of a large store takes as much memory as its records.
        self.snapshot.listing.clear();
    }

    /// Describes the store as a user of other stores' images. `position` is its position among the stores shown.
    pub(in crate::stores) fn borrower(&self, position: Option<usize>) -> Borrower {
        Borrower {
            position,
            root: self.snapshot.places.graphroot.to_path_buf(),
            driver: Some(self.snapshot.places.driver.clone()),
            is_damaged: !needs::knows_all(&self.snapshot),
            borrows_from: self.additional.clone(),
            needs: if self.additional.is_empty() { Vec::new() } else { needs::elsewhere(&self.snapshot) },
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

    fn borrower(&self, position: usize) -> Option<Borrower> {
        Some(self.borrower(Some(position)))
    }

    fn units(&self) -> Vec<UnitView<'_>> {
        views(&self.units)
    }

    fn fingerprints(&self) -> Vec<Option<Fingerprint>> {
        fingerprints(&self.snapshot, &self.units)
    }

    fn stamps(&self) -> Vec<Option<Fingerprint>> {
        let stamps = self.units.iter().map(|unit| {
            let StorageUnit::Layer(layer) = unit.kind else { return None };
            // The inspection read the stamp of the layer's directory in the driver's directory. A layer with a second
            // directory has no stamp that covers both.
            let directories = unit.parts.iter().filter(|part| part.2 == TreeScope::Whole).count();
            let is_covered = self.has_directory[layer] && directories == 1;
            let stamp = self.snapshot.inspection.stamps.get(layer).filter(|_| is_covered)?.as_ref()?;
            Some(stamp.0)
        });
        stamps.collect()
    }

    fn own_roots(&self) -> Vec<PathBuf> {
        self.snapshot.places.own_roots()
    }

    fn within(&self) -> Option<Within> {
        Some(self.snapshot.places.within())
    }

    /// Assigns the symlinks in the overlay driver's directory `l` to their layers. They are counted as bookkeeping, but
    /// each is created and deleted with its layer.
    fn reassigned(&self) -> Vec<Reassigned> {
        let layers: HashMap<usize, usize> = self
            .units
            .iter()
            .enumerate()
            .filter_map(|(position, unit)| match unit.kind {
                StorageUnit::Layer(layer) => Some((layer, position)),
                _ => None,
            })
            .collect();
        let reassigned = self.snapshot.inspection.short_names.iter().filter_map(|name| {
            let unit = *layers.get(&name.layer)?;
            Some(Reassigned { device: name.device, inode: name.inode, unit })
        });
        reassigned.collect()
    }

    fn moved(&self) -> bool {
        snapshot::moved(&self.snapshot).unwrap_or(true)
    }

    fn read_again(&mut self, request: &ScanRequest) -> io::Result<()> {
        self.snapshot.places.allowance.give_back();
        self.snapshot = read(&self.snapshot.places, request)?;
        self.sort();
        Ok(())
    }

    fn fill(
        &mut self,
        filling: &mut Filling<'_>,
        store: StoreIx,
        root_costs: &[(FilesystemIx, CostModel)],
        tallies: &[Tally],
    ) -> Vec<NodeIx> {
        if self.snapshot.places.allowance.is_limited() {
            filling.inventory.of_other_users.insert(store);
        }
        let driver = &self.snapshot.places.driver;
        let mut lent = std::mem::take(&mut filling.lent);
        let store_at =
            |path: &PathBuf| StoreId::new(StoreKind::ContainersStorage, path.clone(), driver.clone());
        let additional: Vec<_> =
            self.additional.iter().filter_map(|path| lent.get(&store_at(path))).collect();
        let areas_of_store: Vec<_> = self.snapshot.places.areas().map(|root| root.to_path_buf()).collect();
        let leaks = filling.request.measure.finds_leaks();
        // Mounts matter only for containers and leaks.
        let has_containers = !self.snapshot.containers.is_empty();
        let tables = if leaks {
            mountpoints::read(&self.snapshot.places, &mut filling.inventory.findings)
        } else {
            None
        };
        let MountTables { recorded, mounts } = tables.unwrap_or_else(|| {
            let mounts = if filling.request.measure.reads_mounts() && (leaks || has_containers) {
                mounts_below((&areas_of_store, &areas_of_store), &mut filling.inventory.findings, || {
                    self.units.iter().map(|unit| unit.path.clone()).collect()
                })
            } else {
                Vec::new()
            };
            MountTables { recorded: None, mounts }
        });
        let writer = InventoryWriter::of(filling, store, root_costs, &mounts);
        let units = std::mem::take(&mut self.units);
        let filled = fill::fill(
            writer,
            (&self.snapshot, units, &self.has_directory),
            tallies,
            recorded,
            &additional,
            &|names, digests| pinned_by(&self.pins, names, digests),
        );
        lent.insert(StoreId::of(&filling.inventory[store]), filled.lent);
        filling.lent = lent;
        if self.snapshot.places.allowance.is_exceeded() && self.snapshot.consistency != Consistency::Damaged {
            self.snapshot.consistency = Consistency::Damaged;
            filling.inventory[store].consistency = Consistency::Damaged;
            filling.inventory.findings.push(not_read(&self.snapshot.places));
        }
        filled.nodes
    }
}

/// Reads the records. Marks them as damaged if they exceed the allowance.
pub(crate) fn read(places: &StorePlaces, request: &ScanRequest) -> io::Result<Snapshot> {
    let mut snapshot = snapshot::read(places, patience(request, places))?;
    request.read_cache.note_busy(&places.graphroot, snapshot.consistency == Consistency::WriterActive);
    snapshot::validate(&mut snapshot);
    inspect(&mut snapshot, request.measure);
    if places.allowance.is_exceeded() {
        snapshot.consistency = Consistency::Damaged;
        snapshot.inspection = Inspection { engine: snapshot.inspection.engine, ..Inspection::default() };
        snapshot.findings.push(not_read(places));
    }
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

/// Returns true if the store contains an image; `None` if it is not found and the records of images are damaged.
pub(crate) fn has_image(places: &StorePlaces, request: &ScanRequest, id: &str) -> io::Result<Option<bool>> {
    let mut snapshot = snapshot::read_images(places, patience(request, places))?;
    request.read_cache.note_busy(&places.graphroot, snapshot.consistency == Consistency::WriterActive);
    snapshot::validate(&mut snapshot);
    let is_damaged = snapshot.consistency == Consistency::Damaged || places.allowance.is_exceeded();
    let has = snapshot.images.iter().any(|image| image.id == id);
    Ok((has || !is_damaged).then_some(has))
}

pub(super) fn patience(request: &ScanRequest, places: &StorePlaces) -> WriterPatience {
    if request.read_cache.is_busy(&places.graphroot) {
        WriterPatience::SHORT
    } else {
        WriterPatience::default()
    }
}

fn not_read(places: &StorePlaces) -> Finding {
    let message = format!("records or directories of this store were {}", allowance::SPENT);
    Finding::incomplete(&*places.graphroot, message)
}

/// Returns a fingerprint of its record for each unit whose size cannot change while its stamp stays the same.
///
/// That includes layers that are no longer written to. Such a layer has a digest or a length of its tar, which the
/// library writes when the layer's content is complete; layers of containers have neither (container-libs,
/// `storage/layers.go`). It also includes the directory of short names, since changing a symlink changes the directory.
fn fingerprints(snapshot: &Snapshot, units: &[GraphrootUnit]) -> Vec<Option<Fingerprint>> {
    let writable: HashSet<&str> =
        snapshot.containers.iter().filter_map(|container| container.layer.as_deref()).collect();
    let fingerprints = units.par_iter().map(|unit| match unit.kind {
        StorageUnit::Layer(layer) => {
            let layer = snapshot.layers.get(layer)?;
            (is_finished(layer) && !writable.contains(layer.id.as_str())).then(|| fingerprint(layer))
        }
        StorageUnit::ShortNames => Some(Fingerprinter::new("short names, 1").finish()),
        _ => None,
    });
    fingerprints.collect()
}

fn is_finished(layer: &LayerRecord) -> bool {
    !layer.incomplete && !layer.volatile && (layer.diff_id.is_some() || layer.diff_size.is_some())
}

fn fingerprint(layer: &LayerRecord) -> Fingerprint {
    let created = layer.created.map(|time| time.to_string());
    let size = layer.diff_size.map(|size| size.to_le_bytes());
    let mut fingerprinter = Fingerprinter::new("containers/storage layer, 1");
    fingerprinter.bytes(layer.id.as_bytes());
    fingerprinter.maybe(layer.parent.as_deref().map(str::as_bytes));
    fingerprinter.maybe(created.as_deref().map(str::as_bytes));
    fingerprinter.maybe(layer.diff_id.as_deref().map(str::as_bytes));
    fingerprinter.maybe(size.as_ref().map(<[u8; 8]>::as_slice));
    fingerprinter.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_finished_layers_have_fingerprints() {
        let base = LayerRecord { id: "a".into(), diff_id: Some("sha256:1".into()), ..LayerRecord::default() };
        let cases = [
            ("committed", base.clone(), true),
            ("a partial pull", LayerRecord { diff_id: None, diff_size: Some(0), ..base.clone() }, true),
            ("a container's", LayerRecord { diff_id: None, ..base.clone() }, false),
            ("being made or deleted", LayerRecord { incomplete: true, ..base.clone() }, false),
            ("volatile", LayerRecord { volatile: true, ..base.clone() }, false),
        ];
        for (case, layer, expected) in cases {
            assert_eq!(is_finished(&layer), expected, "{case}");
        }
        let others = [
            LayerRecord { id: "b".into(), ..base.clone() },
            LayerRecord { parent: Some("sha256:1".into()), diff_id: None, ..base.clone() },
            LayerRecord { diff_size: Some(5), ..base.clone() },
            LayerRecord { created: "2026-01-01T00:00:00Z".parse().ok(), ..base.clone() },
        ];
        assert_eq!(fingerprint(&base), fingerprint(&base.clone()));
        assert!(others.iter().all(|other| fingerprint(other) != fingerprint(&base)));
    }
}
