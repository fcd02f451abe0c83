//! Builds an [`Inventory`] from records and measured bytes.

mod containers;
mod images;
mod leaks;
mod recorded;

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::PathBuf;

use super::inspect::mountpoints::Mounted;
use super::needs;
use super::records::{ImageRecord, LayerRecord};
use super::snapshot::Snapshot;
use super::units::{FilesOfLayer, StorageUnit, Unit};
use crate::disk::Tally;
use crate::model::reference::may_be;
use crate::model::{
    ContainerState, Finding, ImageIx, Inventory, LayerFacts, NodeIx, NodeKind, Orphan, PinReason, Size, Use,
};
use crate::stores::inventory_writer::InventoryWriter;
use crate::sys::processes::Processes;
use crate::sys::quiet::Within;

/// The drivers that keep a directory a layer where we look for it.
const MEASURED: [&str; 2] = ["overlay", "vfs"];

/// Ids of one store, for the stores that use it as an additional store.
#[derive(Clone, Debug, Default)]
pub struct Ids {
    layers: Vec<NodeIx>,
    /// Made when somebody asks, which few do.
    layers_by_id: OnceCell<HashMap<String, NodeIx>>,
    images: HashMap<String, ImageIx>,
    /// Directories of layers whose records are lost.
    strays: HashMap<String, NodeIx>,
}

impl Ids {
    /// What is there of the layer with this id.
    #[must_use]
    pub fn layer(&self, inventory: &Inventory, id: &str) -> Option<NodeIx> {
        self.recorded_layer(inventory, id).or_else(|| self.strays.get(id).copied())
    }

    fn recorded_layer(&self, inventory: &Inventory, id: &str) -> Option<NodeIx> {
        let by_id = || self.layers.iter().map(|node| (inventory[*node].id.clone(), *node)).collect();
        self.layers_by_id.get_or_init(by_id).get(id).copied()
    }

    /// The images that `reference` may mean.
    #[must_use]
    pub fn images(&self, inventory: &Inventory, reference: &str) -> Vec<ImageIx> {
        images_of(&self.images, inventory, reference)
    }
}

/// Those of `images`, by id, that `reference` may mean.
fn images_of(images: &HashMap<String, ImageIx>, inventory: &Inventory, reference: &str) -> Vec<ImageIx> {
    if let Some(image) = images.get(reference) {
        return vec![*image];
    }
    let is_it = |at: &ImageIx| {
        let image = &inventory[*at];
        may_be(reference, &image.id, &image.names, &image.digests)
    };
    images.values().copied().filter(is_it).collect()
}

/// Names and digests of an image in, what keeps it out: one text a reason.
pub type PinnedBy<'a> = dyn Fn(&[String], &[String]) -> Vec<PinReason> + 'a;

/// What [`fill`] made of a store.
#[derive(Clone, Debug, Default)]
pub(super) struct Filled {
    /// The node of each unit.
    pub nodes: Vec<NodeIx>,
    /// For stores that read from this one.
    pub ids: Ids,
}

/// Adds one store's nodes, images, containers, leaks and findings to the inventory.
/// `tallies` belong to `units` one by one, `files` to the layers of the records; `mounted` is what the
/// library says it has mounted, of the time of the writer's mounts. Layers and images may come from the
/// stores `additional`; `pinned_by` says which configuration keeps an image with these names and digests.
pub(super) fn fill(
    writer: InventoryWriter<'_>,
    (snapshot, units, files): (&Snapshot, Vec<Unit>, &[FilesOfLayer]),
    tallies: &[Tally],
    mounted: Option<Vec<Mounted>>,
    additional: &[&Ids],
    pinned_by: &PinnedBy<'_>,
) -> Filled {
    let mut filler = Filler {
        writer,
        additional,
        pinned_by,
        within: snapshot.places.within(),
        snapshot,
        nodes: Vec::with_capacity(units.len()),
        layers: vec![None; snapshot.layers.len()],
        images: vec![None; snapshot.images.len()],
        containers: vec![None; snapshot.containers.len()],
        contents: HashMap::new(),
        files,
        recorded_states: Vec::with_capacity(snapshot.containers.len()),
        mounted,
        orphans: Vec::new(),
        processes: OnceCell::new(),
    };
    filler.writer.inventory.nodes.reserve(units.len());
    // Each unit goes when its node comes: a large store is not in memory twice.
    for (unit, tally) in units.into_iter().zip(tallies) {
        let orphan =
            if let StorageUnit::Orphan(what) = unit.kind { Some((what, unit.clone())) } else { None };
        let node = filler.unit(unit, tally);
        filler.nodes.push(node);
        filler.orphans.extend(orphan.map(|(what, unit)| (what, unit, node)));
    }
    filler.layers_without_directory();
    filler.chain_layers();
    let images = filler.images();
    let read_only = filler.writer.inventory[filler.writer.store].read_only;
    filler.containers(&images);
    if read_only {
        let all = filler.nodes.iter().copied();
        filler.writer.inventory.anchored.extend(all);
    } else {
        if filler.writer.leaks {
            filler.orphans();
            filler.unused_layers();
            filler.recorded();
        }
        if !filler.is_measured() {
            filler.unmeasured_driver();
        }
    }
    let strays = filler.orphans.iter().filter(|(what, ..)| *what == Orphan::LayerDirectory);
    let strays = strays.map(|(_, unit, node)| (unit.id.clone(), *node)).collect();
    let layers = filler.layers.iter().copied().flatten().collect();
    let mut beside = needs::beside_records(snapshot);
    beside.extend(filler.mounted_images());
    let ids = Ids { layers, layers_by_id: OnceCell::new(), images, strays };
    let (nodes, inventory) = (filler.nodes, filler.writer.inventory);
    for need in beside {
        let has_top = |record: &&ImageRecord| record.tops().any(|top| need.tops.contains(top));
        let of_tops = snapshot.images.iter().filter(has_top).map(|record| ids.images[&record.id]);
        let images: Vec<_> = match need.any_image {
            true => ids.images.values().copied().collect(),
            false => need.images.iter().flat_map(|one| ids.images(inventory, one)).chain(of_tops).collect(),
        };
        let holds: Vec<_> = need.layers.iter().filter_map(|one| ids.layer(inventory, one)).collect();
        if !(images.is_empty() && holds.is_empty()) {
            inventory.uses.push(Use { by: need.by, container: None, images, holds, is_listed: false });
        }
    }
    inventory.findings.extend(snapshot.findings.iter().cloned());
    Filled { nodes, ids }
}

struct Filler<'a> {
    writer: InventoryWriter<'a>,
    snapshot: &'a Snapshot,
    /// Reading in the store.
    within: Within,
    additional: &'a [&'a Ids],
    pinned_by: &'a PinnedBy<'a>,
    nodes: Vec<NodeIx>,
    layers: Vec<Option<NodeIx>>,
    images: Vec<Option<NodeIx>>,
    containers: Vec<Option<NodeIx>>,
    /// Apparent bytes of containers' layers.
    contents: HashMap<usize, u64>,
    /// By position of the layer.
    files: &'a [FilesOfLayer],
    /// By position of the container: what its engine noted, whatever is mounted.
    recorded_states: Vec<ContainerState>,
    mounted: Option<Vec<Mounted>>,
    orphans: Vec<(Orphan, Unit, NodeIx)>,
    /// Read when somebody asks; `None` where they cannot be read.
    processes: OnceCell<Option<Processes>>,
}

impl Filler<'_> {
    /// `id` is that of the layer.
    fn layer_node(&mut self, at: usize, id: String, area: usize, path: PathBuf, size: Size) -> NodeIx {
        if let Some(node) = self.layers[at] {
            self.writer.inventory[node].size += size;
            return node;
        }
        let record: &LayerRecord = &self.snapshot.layers[at];
        let node = self.writer.add(NodeKind::Layer, id, area, path, size);
        self.writer.inventory[node].layer = Some(Box::new(LayerFacts {
            parent: record.parent.clone(),
            diff_id: record.diff_id.clone(),
            created: record.created,
            read_write: record.volatile,
            snapshotter: None,
            listed_bytes: record.diff_size,
        }));
        self.layers[at] = Some(node);
        node
    }

    fn unit(&mut self, unit: Unit, tally: &Tally) -> NodeIx {
        let area = unit.parts.first().map_or(0, |part| part.0);
        let size = self.writer.size(area, tally);
        let kind = match unit.kind {
            StorageUnit::Layer(at) => return self.layer_node(at, unit.id, area, unit.path, size),
            StorageUnit::LayerContent(at) => {
                self.contents.insert(at, tally.apparent_bytes);
                return self.layer_node(at, unit.id, area, unit.path, size);
            }
            StorageUnit::Image(_) => NodeKind::ImageMetadata,
            StorageUnit::Container(_) => NodeKind::ContainerMetadata,
            StorageUnit::Orphan(Orphan::VarTmp) => NodeKind::TemporaryFile,
            StorageUnit::Orphan(_) => NodeKind::Orphan,
            StorageUnit::Metadata | StorageUnit::ShortNames | StorageUnit::ReserveFile => {
                NodeKind::StoreMetadata
            }
            StorageUnit::Records => NodeKind::StoreRecords,
            StorageUnit::Other(_) => NodeKind::Other,
        };
        let id = if let StorageUnit::Other(name) = &unit.kind { name.clone() } else { unit.id };
        let node = self.writer.add(kind, id, area, unit.path, size);
        match unit.kind {
            StorageUnit::Image(at) => self.images[at] = Some(node),
            StorageUnit::Container(at) => self.containers[at] = Some(node),
            StorageUnit::Orphan(_) => {}
            _ => self.writer.inventory.anchored.push(node),
        }
        node
    }

    fn is_measured(&self) -> bool {
        MEASURED.contains(&self.snapshot.places.driver.as_str())
    }

    fn find_layer(&self, id: &str) -> Option<NodeIx> {
        let own = self.snapshot.layer_at(OsStr::new(id)).and_then(|at| self.layers[at]);
        own.or_else(|| {
            self.additional.iter().find_map(|store| store.recorded_layer(self.writer.inventory, id))
        })
    }

    /// Of another driver we know the records, but not where the bytes of each layer are.
    fn unmeasured_driver(&mut self) {
        let places = &self.snapshot.places;
        let message = format!(
            "layers of the {} driver are not measured individually; their bytes are counted as other files",
            places.driver
        );
        let path = places.graphroot.join(&places.driver);
        self.writer.inventory.findings.push(Finding::incomplete(path, message));
    }
}
