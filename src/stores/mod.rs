//! A scan: finds the stores, reads their records, measures them, and fills the inventory.

mod additional;
pub mod bolt;
pub mod containerd;
pub mod containers_storage;
mod discovery;
mod docker;
mod dockerd;
mod environment;
mod filesystems;
pub mod inventory_writer;
pub mod layer_reader;
pub(crate) mod leaks;
mod lending;
pub mod lookup;
mod measurement;
pub mod oci;
pub mod other_usage;
mod pulled;
mod read_cache;
mod request;
mod running;
mod store;
pub mod unit;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use hashbrown::{HashMap, HashSet};
use jiff::Timestamp;

use crate::disk::Progress;
use crate::disk::filesystem::{self, CostModel};
use crate::disk::size_cache::{SizeCache, StoreSizes};
use crate::model::refs::{self, Refs};
use crate::model::{FilesystemIx, Finding, Image, Inventory, Node, NodeIx, StoreId, StoreIx, StoreKind};
use crate::stores::containers_storage::places::StorePlaces;
use crate::sys::clock::Present;
use crate::sys::quiet;
use crate::sys::sysroot::Sysroot;

pub use discovery::found::ReadStores;
pub use discovery::graphroots::outside;
use discovery::{containerds, dockers, graphroots};
pub use discovery::{data_dirs, directories, sandbox_images};
pub use environment::Environment;
use filesystems::Filesystems;
use measurement::{Measurement, MeasurementNeeds};
pub use pulled::note_pulls;
pub use read_cache::ReadCache;
pub use request::{Effort, Measure, ScanError, ScanRequest};
pub use running::{RunningPrograms, RuntimeStore};
use store::{Filling, Store};
use unit::{StoreTrees, UnitTree};

#[derive(Clone, Debug)]
pub struct Scan {
    /// Inventory: everything that uses bytes, and the objects that need it.
    pub inventory: Inventory,
    pub refs: Refs,
    pub effort: Effort,
    /// Time that ages refer to.
    pub taken_at: Timestamp,
    pub sysroot: Sysroot,
    /// Sizes to store for later scans, by store (`None`: unchanged). Present only if [`measure`] was given sizes, and
    /// never for another system's disk.
    pub sizes: Option<Vec<(StoreId, Option<StoreSizes>)>>,
    /// Directories of each store that can be edited, for its editor.
    pub editable: Vec<Option<StorePlaces>>,
    /// Directories that belong to each store, its root first.
    pub areas: Vec<Vec<PathBuf>>,
    /// Snapshotters that run beside containerd and whose records cannot be read: name and directory.
    pub snapshotters: Vec<(String, PathBuf)>,
    /// Additional layer stores, as configured.
    pub layer_stores: Vec<PathBuf>,
    /// Clock that dates on the disk were compared with.
    pub present: Present,
    /// Trees of all units, if [`ScanRequest::keep_trees`] was set; otherwise empty.
    pub trees: StoreTrees,
    pub request: ScanRequest,
}

/// Returns true if the store of `image`, an image of `scan`, still contains it; `None` if it is not found and the
/// records are damaged. Reads no other store and does not search for stores.
///
/// # Errors
/// If the records cannot be read at all.
pub fn has_image(request: &ScanRequest, scan: &Scan, image: &Image) -> io::Result<Option<bool>> {
    let store = &scan.inventory[image.store];
    match store.kind {
        StoreKind::ContainersStorage => {
            let places = scan.editable[image.store.get()].as_ref();
            graphroots::has_image(request, places.ok_or(io::ErrorKind::NotFound)?, &image.id)
        }
        StoreKind::Containerd => containerds::has_image(request, &store.root, image),
        StoreKind::Docker => dockers::has_image(&store.root, image),
    }
}

impl Scan {
    /// Creates the scan of a document. None of its paths can be opened.
    #[must_use]
    pub fn saved(inventory: Inventory, taken_at: Timestamp) -> Self {
        let refs = Refs::new(&inventory);
        let sysroot = Sysroot::live();
        Self {
            refs,
            effort: Effort::default(),
            taken_at,
            request: ScanRequest::of(sysroot.clone()),
            sysroot,
            sizes: None,
            editable: vec![None; inventory.stores.len()],
            areas: vec![Vec::new(); inventory.stores.len()],
            snapshotters: Vec::new(),
            layer_stores: Vec::new(),
            present: Present::at(taken_at, Vec::new()),
            trees: StoreTrees::default(),
            inventory,
        }
    }

    /// Returns true if everything was read: sizes are exact, not lower bounds.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self.inventory.findings.iter().any(|finding| finding.incomplete)
    }

    /// Returns true if a filesystem is mounted read-only and all its stores are read-only: images that are shipped with
    /// the system in a squashfs, for example. It is always full, and nothing can be written to it or deleted from it.
    #[must_use]
    pub fn is_full_by_design(&self, ix: FilesystemIx) -> bool {
        let mut here = self.inventory.nodes.iter().filter(|node| node.filesystem == ix);
        here.all(|node| self.inventory[node.store].read_only)
            && filesystem::is_mounted_read_only(&self.inventory[ix].mount)
    }

    /// Returns the directories of the stores: roots, runroots and imagestores.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        let opened = self
            .editable
            .iter()
            .flatten()
            .flat_map(|places| places.runroots.iter().chain(&places.imagestores));
        let roots = self.inventory.stores.iter().map(|store| store.root.as_path());
        roots.chain(opened.map(|root| -> &Path { root }))
    }
}

/// Message about a store on an overlay filesystem ([`CostModel::is_unknown`]).
const ON_OVERLAY: &str = "a store is on this overlay filesystem: deleting files of its lower layers frees nothing, and \
                          which files these are is unknown, so no freed bytes are predicted";

/// Reads the records of all stores of the request: the first half of [`run`].
///
/// # Errors
/// If a named store cannot be read at all.
pub fn read(request: &ScanRequest) -> Result<ReadStores, ScanError> {
    let request = &ScanRequest { sysroot: request.sysroot.at_once(), ..request.clone() };
    let (graphroots, containerds) = rayon::join(|| graphroots::find(request), || containerds::find(request));
    let found = graphroots?.with(containerds?);
    // A root of containerd may be in a data root of Docker.
    let dockers = dockers::find(request, &found.roots())?;
    Ok(found.with(dockers))
}

/// Scans all stores of the request. Files of a store that cannot be read become findings of the inventory.
///
/// # Errors
/// If there is no store, or a named store cannot be read at all.
pub fn run(request: &ScanRequest, progress: &Progress) -> Result<Scan, ScanError> {
    measure(request, read(request)?, None, progress)
}

/// Measures the stores that were read: the second half of [`run`]. `sizes` are those measured by earlier scans.
/// `None` measures everything and stores nothing for later scans; an empty cache measures everything too, but returns
/// sizes for later scans.
///
/// # Errors
/// If there is no store.
pub fn measure(
    request: &ScanRequest,
    records: ReadStores,
    sizes: Option<SizeCache>,
    progress: &Progress,
) -> Result<Scan, ScanError> {
    let ReadStores {
        readings,
        editable,
        findings,
        looked,
        unreadable,
        borrowers,
        unread_configs,
        layer_stores,
        started,
    } = records;
    if readings.is_empty() {
        let sysroot = request.sysroot.is_foreign().then(|| request.sysroot.root().to_path_buf());
        return Err(unreadable.unwrap_or(ScanError::NoneFound { sysroot, looked, findings }));
    }
    let mut inventory = Inventory { findings, ..Inventory::default() };
    inventory.findings.extend(empty_places(request, &looked));

    let mut filesystems = Filesystems::default();
    let root_filesystems = readings
        .iter()
        .map(|reading| filesystems.of_roots(reading.as_ref(), &mut inventory))
        .collect::<Result<Vec<_>, _>>()?;
    let overlays: Vec<_> = inventory
        .filesystems
        .iter()
        .filter(|filesystem| filesystem.fstype == "overlay")
        .map(|filesystem| Finding::incomplete(&filesystem.mount, ON_OVERLAY))
        .collect();
    inventory.findings.extend(overlays);
    let needs = needs_of(&root_filesystems);
    let mut measurement = Measurement::new(readings, sizes);
    measurement.run(request, needs, progress, &mut inventory.findings);
    let from_cache = measurement.taken();
    let sizes = measurement.leave().filter(|_| !request.sysroot.is_foreign());

    let leaps = if request.sysroot.is_foreign() { Vec::new() } else { request.leaps.clone() };
    let present = Present::at(request.now, leaps);
    let mut filling = Filling { inventory: &mut inventory, request, lent: HashMap::new(), present: &present };
    let mut readings = measurement.take_readings();
    let (nodes, trees) = fill(&mut filling, &mut readings, &root_filesystems, &measurement);
    let lent = filling.lent;
    let shown = readings.iter().enumerate().filter_map(|(position, reading)| reading.borrower(position));
    let borrowers: Vec<_> = shown.chain(borrowers).collect();
    additional::note(&mut inventory, &request.sysroot, &readings, &lent, &borrowers, &unread_configs);
    filesystems.add_places(&request.places, &request.sysroot, &mut inventory);
    measurement.share(&mut inventory, &nodes, &filesystems.costs);
    let from_cache: HashSet<_> =
        nodes.iter().filter(|(slot, _)| from_cache.contains(*slot)).map(|(_, node)| node.get()).collect();
    let areas = readings.iter().map(|reading| reading.own_roots()).collect();
    let snapshotters = readings.iter().flat_map(|reading| reading.snapshotters()).collect();
    // Free the records: they are no longer needed.
    drop(readings);
    drop((measurement, nodes));
    tracing::info!("{} nodes, {} findings", inventory.nodes.len(), inventory.findings.len());
    inventory.gather_evidence();
    let refs = Refs::new(&inventory);
    refs::keep_reached_leaks(&mut inventory, &refs);
    let effort = effort_of(started, progress, &inventory.nodes, &from_cache);
    let (taken_at, sysroot) = (request.now, request.sysroot.clone());
    let request = request.clone();
    Ok(Scan {
        inventory,
        refs,
        effort,
        taken_at,
        sysroot,
        sizes,
        editable,
        areas,
        snapshotters,
        layer_stores,
        present,
        trees,
        request,
    })
}

/// Returns a finding for each directory on the disk of another node where a store could be, and that is empty: the
/// mount point of a disk that is not mounted looks like this. On a running node, an unused directory is no problem.
fn empty_places(request: &ScanRequest, looked: &[PathBuf]) -> Vec<Finding> {
    if !request.sysroot.is_foreign() || request.names_stores() {
        return Vec::new();
    }
    let mut places: Vec<_> = looked.iter().filter_map(|path| request.sysroot.resolve(path).ok()).collect();
    places.sort();
    places.dedup();
    places.retain(|place| quiet::list(place).is_ok_and(|entries| entries.is_empty()));
    let message = "a store could be here, and the directory is empty: if the store is on a disk of its own, mount that disk here";
    places.into_iter().map(|place| Finding::incomplete(place, message)).collect()
}

/// Fills the inventory with the content of each store. Returns the node of each measured slot, and the trees of the
/// nodes if they are kept.
fn fill(
    filling: &mut Filling<'_>,
    readings: &mut [Box<dyn Store>],
    root_filesystems: &[Vec<(FilesystemIx, CostModel)>],
    measurement: &Measurement,
) -> (HashMap<usize, NodeIx>, StoreTrees) {
    let mut nodes = HashMap::new();
    let mut trees = StoreTrees::default();
    for (position, (reading, filesystems)) in readings.iter_mut().zip(root_filesystems).enumerate() {
        let store = StoreIx::from(filling.inventory.stores.len());
        filling.inventory.stores.push(reading.entry(filesystems[0].0));
        let units = filling.request.keep_trees.then(|| parts_of(reading.as_ref()));
        let (leaks, findings) = (filling.inventory.leaks.len(), filling.inventory.findings.len());
        let filled = reading.fill(filling, store, filesystems, &measurement.tallies(position));
        inventory_writer::count_rest(filling.inventory, store, leaks, findings);
        units.into_iter().for_each(|units| trees.add(reading.roots(), units, &filled));
        nodes.extend(measurement.slots(position).iter().copied().zip(filled));
    }
    (nodes, trees)
}

fn effort_of(started: Instant, progress: &Progress, nodes: &[Node], from_cache: &HashSet<usize>) -> Effort {
    let layers = nodes.iter().enumerate().filter(|(_, node)| node.layer.is_some());
    let (cached, measured): (Vec<_>, Vec<_>) = layers.partition(|(node, _)| from_cache.contains(node));
    Effort {
        seconds: (started.elapsed().as_secs_f64() * 1000.0).round() / 1000.0,
        inodes: progress.inodes.load(std::sync::atomic::Ordering::Relaxed),
        measured_layers: measured.len(),
        cached_layers: cached.len(),
    }
}

fn needs_of(root_filesystems: &[Vec<(FilesystemIx, CostModel)>]) -> MeasurementNeeds {
    let costs: Vec<_> = root_filesystems.iter().flatten().map(|(_, cost)| cost).collect();
    MeasurementNeeds {
        extents: costs.iter().any(|cost| cost.reflinks),
        inode_chunks: costs.iter().any(|cost| cost.inode_chunks),
    }
}

fn parts_of(reading: &dyn Store) -> Vec<Vec<UnitTree>> {
    reading.units().into_iter().map(|unit| unit.parts.to_vec()).collect()
}
