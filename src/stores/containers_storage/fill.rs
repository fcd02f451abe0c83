//! Builds an [`Inventory`](crate::model::Inventory) from records and measured bytes.
//!
//! Each step of `fill` uses the results of the previous ones. Units become nodes. Recorded layers without files get
//! empty nodes, so that every layer has a node. Layers are linked to their parents, which can be in an additional store.
//! Images and containers then refer to these nodes. Leaks are last, because a layer is unused only if no image and no
//! container reaches it.

mod containers;
mod images;
mod leaks;
mod recorded;

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::inspect::mountpoints::Mounted;
use super::needs;
use super::records::LayerRecord;
use super::snapshot::Snapshot;
use super::units::{GraphrootUnit, StorageUnit};
use crate::disk::Tally;
use crate::model::{ContainerState, Finding, LayerFacts, NodeIx, NodeKind, Orphan, PinReason, Size, Use};
use crate::stores::inventory_writer::InventoryWriter;
use crate::stores::lending::LentObjects;
use crate::sys::processes::Processes;
use crate::sys::quiet::{FileKind, Within};

/// Drivers with a directory for each layer in a known place.
const MEASURED: [&str; 3] = ["overlay", "vfs", "btrfs"];

/// Function from an image's names and digests to the reasons why it is pinned.
pub type PinnedBy<'a> = dyn Fn(&[String], &[String]) -> Vec<PinReason> + 'a;

#[derive(Clone, Debug, Default)]
pub(super) struct Filled {
    pub nodes: Vec<NodeIx>,
    /// Objects for stores that use this one as an additional store.
    pub lent: LentObjects,
}

/// Adds the nodes, images, containers, leaks and findings of a store to the inventory.
///
/// * `tallies` has an element for each unit, `has_directory` an element for each recorded layer.
/// * `mounted` contains the mounts that the library has recorded, read at the same time as the mounts of `writer`.
/// * `additional` are the stores whose layers and images this store can use.
/// * `pinned_by` returns the reasons why an image with these names and digests is pinned.
pub(super) fn fill(
    writer: InventoryWriter<'_>,
    (snapshot, units, has_directory): (&Snapshot, Vec<GraphrootUnit>, &[bool]),
    tallies: &[Tally],
    mounted: Option<Vec<Mounted>>,
    additional: &[&LentObjects],
    pinned_by: &PinnedBy<'_>,
) -> Filled {
    let first_container = writer.inventory.containers.len();
    let mut filler = GraphrootFiller {
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
        has_directory,
        recorded_states: Vec::with_capacity(snapshot.containers.len()),
        first_container,
        mounted,
        orphans: Vec::new(),
        processes: OnceCell::new(),
    };
    filler.writer.inventory.nodes.reserve(units.len());
    // Each unit is dropped when its node is created, so that a large store is not in memory twice.
    for (unit, tally) in units.into_iter().zip(tallies) {
        let orphan = match unit.kind {
            StorageUnit::Orphan(orphan) => Some((orphan, unit.clone())),
            _ => None,
        };
        let node = filler.unit(unit, tally);
        filler.nodes.push(node);
        filler.orphans.extend(orphan.map(|(orphan, unit)| (orphan, unit, node)));
    }
    filler.layers_elsewhere();
    filler.layers_without_directory();
    filler.chain_layers();
    let images = filler.images();
    let read_only = filler.writer.inventory[filler.writer.store].read_only;
    filler.containers(&images);
    filler.lost_containers();
    if read_only {
        filler.writer.inventory.anchored.extend(&filler.nodes);
    } else {
        filler.lost_directories();
        if filler.writer.leaks {
            filler.orphans();
            filler.unused_layers();
            filler.recorded();
            filler.silent_processes();
        }
        if !filler.is_measured() {
            filler.unmeasured_driver();
        }
    }
    let strays = filler
        .orphans
        .iter()
        .filter(|(orphan, ..)| *orphan == Orphan::LayerDirectory)
        .map(|(_, unit, node)| (unit.id.clone(), *node))
        .collect();
    let layers = filler.layers.iter().copied().flatten().collect();
    let mut needs = needs::beside_records(snapshot);
    needs.extend(filler.mounted_images());
    let lent = LentObjects::new(layers, images, strays);
    let (nodes, inventory) = (filler.nodes, filler.writer.inventory);
    for need in needs {
        let images: Vec<_> = if need.any_image {
            lent.images().values().copied().collect()
        } else {
            let mut images: Vec<_> =
                need.images.iter().flat_map(|reference| lent.images_of(inventory, reference)).collect();
            for record in &snapshot.images {
                if record.tops().any(|top| need.tops.contains(top)) {
                    images.push(lent.images()[&record.id]);
                }
            }
            images
        };
        let holds: Vec<_> = need.layers.iter().filter_map(|id| lent.layer(inventory, id)).collect();
        if !(images.is_empty() && holds.is_empty()) {
            inventory.uses.push(Use { by: need.by, container: None, images, holds, is_listed: false });
        }
    }
    inventory.findings.extend(snapshot.findings.iter().cloned());
    Filled { nodes, lent }
}

struct GraphrootFiller<'a> {
    writer: InventoryWriter<'a>,
    snapshot: &'a Snapshot,
    within: Within,
    additional: &'a [&'a LentObjects],
    pinned_by: &'a PinnedBy<'a>,
    nodes: Vec<NodeIx>,
    /// Node of each recorded layer, by position.
    layers: Vec<Option<NodeIx>>,
    /// Node of each image's directory, by position of the record.
    images: Vec<Option<NodeIx>>,
    /// Node of each container's directory, by position of the record.
    containers: Vec<Option<NodeIx>>,
    /// Apparent bytes of the content of containers' layers, by position of the layer.
    contents: HashMap<usize, u64>,
    /// For each layer, by its position, true if its directory is listed.
    has_directory: &'a [bool],
    /// State of each container according to its engine, by position of the container. Mounts are not considered.
    recorded_states: Vec<ContainerState>,
    /// Position of the first container in the inventory. The containers with a record are first, in their order.
    first_container: usize,
    mounted: Option<Vec<Mounted>>,
    orphans: Vec<(Orphan, GraphrootUnit, NodeIx)>,
    /// Read at the first use; `None` if they cannot be read.
    processes: OnceCell<Option<Processes>>,
}

impl GraphrootFiller<'_> {
    /// Returns the node of the layer at `position`. Adds `size` to an existing node, or creates it.
    fn layer_node(&mut self, position: usize, id: String, area: usize, path: PathBuf, size: Size) -> NodeIx {
        if let Some(node) = self.layers[position] {
            self.writer.inventory[node].size += size;
            return node;
        }
        let record: &LayerRecord = &self.snapshot.layers[position];
        let node = self.writer.add(NodeKind::Layer, id, area, path, size);
        self.writer.inventory[node].layer = Some(Box::new(LayerFacts {
            parent: record.parent.clone(),
            diff_id: record.diff_id.clone(),
            created: record.created,
            read_write: record.volatile,
            snapshotter: None,
            is_unmeasured: !self.is_measured(),
            elsewhere: None,
            listed_bytes: record.diff_size,
        }));
        self.layers[position] = Some(node);
        node
    }

    fn unit(&mut self, unit: GraphrootUnit, tally: &Tally) -> NodeIx {
        let area = unit.parts.first().map_or(0, |part| part.0);
        let size = self.writer.size(area, tally);
        let kind = match unit.kind {
            StorageUnit::Layer(layer) => return self.layer_node(layer, unit.id, area, unit.path, size),
            StorageUnit::LayerContent(layer) => {
                self.contents.insert(layer, tally.apparent_bytes);
                return self.layer_node(layer, unit.id, area, unit.path, size);
            }
            StorageUnit::Image(_) => NodeKind::ImageMetadata,
            StorageUnit::Container(_) => NodeKind::ContainerMetadata,
            StorageUnit::Orphan(Orphan::VarTmp) => NodeKind::TemporaryFile,
            StorageUnit::Orphan(_) => NodeKind::Orphan,
            StorageUnit::Metadata | StorageUnit::ShortNames | StorageUnit::ReserveFile => {
                NodeKind::StoreMetadata
            }
            StorageUnit::Records => NodeKind::StoreRecords,
            StorageUnit::Other(_) if !self.is_measured() && self.is_of_driver(&unit.path) => {
                NodeKind::Unknown
            }
            StorageUnit::Other(_) => NodeKind::Other,
        };
        let id = if let StorageUnit::Other(name) = &unit.kind { name.clone() } else { unit.id };
        let node = self.writer.add(kind, id, area, unit.path, size);
        match unit.kind {
            StorageUnit::Image(image) => self.images[image] = Some(node),
            StorageUnit::Container(container) => self.containers[container] = Some(node),
            StorageUnit::Orphan(_) => {}
            _ => self.writer.inventory.anchored.push(node),
        }
        node
    }

    /// Finds the layers whose files are in an additional layer store: their `diff` is a symlink, or a file that
    /// contains a path. The size of such a layer is unknown: the files are on another filesystem, which may fetch them
    /// only when they are read, or several stores use them. Not searched for one image, whose size is not asked.
    fn layers_elsewhere(&mut self) {
        /// Maximum number of inodes of such a layer in this store: its directory, tar-split and a few small files.
        const FEW: u64 = 12;
        /// Maximum length of a path.
        const PATH_MAX: u64 = 4096;
        if self.snapshot.places.driver != "overlay" || self.writer.image.is_some() {
            return;
        }
        let (inventory, within) = (&*self.writer.inventory, &self.within);
        // The inspection has seen the `diff` of nearly all layers. With several areas, it may be that of another one.
        let is_single = self.snapshot.places.areas().nth(1).is_none();
        let stamps = if is_single { &self.snapshot.inspection.stamps[..] } else { &[] };
        let layers = self.layers.par_iter().enumerate().filter_map(|(layer, node)| {
            let has_diff = stamps.get(layer).copied().flatten().is_some_and(|(_, has_diff)| has_diff);
            node.as_ref().filter(|node| !has_diff && inventory[**node].size.inodes <= FEW)
        });
        let found: Vec<_> = layers
            .filter_map(|node| {
                let directory = &inventory[*node].path;
                let diff = directory.join("diff");
                let file = match within.facts(&diff).ok()?.kind {
                    FileKind::File => diff,
                    FileKind::Symlink => directory.join("additionallayer"),
                    FileKind::Directory | FileKind::Special => return None,
                };
                let path = within.read(&file, PATH_MAX).unwrap_or_default();
                Some((*node, PathBuf::from(OsStr::from_bytes(path.trim_ascii()))))
            })
            .collect();
        let Some((first, _)) = found.first() else { return };
        let message = format!(
            "{}: not measured, so the sizes of their images are lower bounds",
            match found.len() {
                1 => "the files of this layer are in an additional layer store".to_owned(),
                more =>
                    format!("the files of this and {} more layers are in an additional layer store", more - 1),
            }
        );
        let finding = Finding::incomplete(&self.writer.inventory[*first].path, message);
        self.writer.inventory.findings.push(finding);
        for (node, path) in found {
            if let Some(layer) = &mut self.writer.inventory[node].layer {
                layer.elsewhere = Some(path);
                layer.is_unmeasured = true;
            }
        }
    }

    fn is_measured(&self) -> bool {
        MEASURED.contains(&self.snapshot.places.driver.as_str())
    }

    fn is_of_driver(&self, path: &Path) -> bool {
        let places = &self.snapshot.places;
        places.areas().any(|area| path.starts_with(area.join(&places.driver)))
    }

    fn find_layer(&self, id: &str) -> Option<NodeIx> {
        let layer = self.snapshot.layer_at(OsStr::new(id)).and_then(|position| self.layers[position]);
        layer.or_else(|| {
            self.additional.iter().find_map(|store| store.recorded_layer(self.writer.inventory, id))
        })
    }

    /// Reports that the store has a driver whose records are known, but not the files of each layer.
    fn unmeasured_driver(&mut self) {
        let places = &self.snapshot.places;
        let message = format!(
            "layers of the driver {} are not measured: what deleting an image frees is unknown, and their bytes may be \
             outside this directory",
            places.driver
        );
        let path = places.graphroot.join(&places.driver);
        self.writer.inventory.findings.push(Finding::incomplete(path, message));
    }
}
