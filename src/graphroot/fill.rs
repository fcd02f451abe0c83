//! From records and measured bytes to an [`Inventory`].

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::leaks::{self, Circumstances, Judgement};
use super::locks::LockFile;
use super::owner;
use super::records::{ContainerRecord, ImageRecord, LayerRecord};
use super::snapshot::Snapshot;
use super::units::{Debris, Unit, What};
use crate::inventory::{
    Container, ContainerState, Evidence, EvidenceKind, FilesystemIx, Finding, Image, ImageIx, Inventory,
    LayerFacts, Leak, Node, NodeIx, NodeKind, Size, StoreIx, Verdict,
};
use crate::sys::quiet;
use crate::usage::Tally;
use crate::usage::filesystem::CostModel;

/// The drivers that keep a directory a layer where we look for it.
const MEASURED: [&str; 2] = ["overlay", "vfs"];

/// Ids of one store, for other stores that read from it.
#[derive(Clone, Debug, Default)]
pub struct Ids {
    layers: HashMap<String, NodeIx>,
    images: HashMap<String, ImageIx>,
}

/// Names and digests of an image in, what keeps it out: one text a reason.
pub type PinnedBy<'a> = dyn Fn(&[String], &[String]) -> Vec<String> + 'a;

/// What [`fill`] has to know besides the store itself.
pub struct Context<'a> {
    /// The store's entry in the inventory.
    pub store: StoreIx,
    /// Filesystem and cost model of each of [`Places::roots`](super::snapshot::Places::roots).
    pub areas: &'a [(FilesystemIx, CostModel)],
    /// Additional image stores that layers and images may come from.
    pub additional: &'a [&'a Ids],
    /// Says which configuration keeps an image with these names and digests.
    pub pinned_by: &'a PinnedBy<'a>,
    /// Mount points below the store that are in use now.
    pub mounts: &'a [PathBuf],
    /// The time that ages are counted to.
    pub now: Timestamp,
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Context").field("store", &self.store).finish_non_exhaustive()
    }
}

/// What [`fill`] made of a store.
#[derive(Clone, Debug, Default)]
pub struct Filled {
    /// The node that each unit became.
    pub nodes: Vec<NodeIx>,
    /// For stores that read from this one.
    pub ids: Ids,
}

/// Adds one store's nodes, images, containers, leaks and findings to `inventory`.
/// `tallies` belong to `units` one by one.
pub fn fill(
    inventory: &mut Inventory,
    snapshot: &Snapshot,
    units: &[Unit],
    tallies: &[Tally],
    context: &Context<'_>,
) -> Filled {
    let mut filler = Filler {
        inventory,
        snapshot,
        context,
        nodes: Vec::with_capacity(units.len()),
        layers: vec![None; snapshot.layers.len()],
        images: vec![None; snapshot.images.len()],
        containers: vec![None; snapshot.containers.len()],
        contents: HashMap::new(),
        missing: HashSet::new(),
        layer_at: snapshot.layers.iter().enumerate().map(|(at, layer)| (layer.id.as_str(), at)).collect(),
    };
    for (unit, tally) in units.iter().zip(tallies) {
        let node = filler.unit(unit, tally);
        filler.nodes.push(node);
    }
    filler.layers_without_directory();
    filler.chain_layers();
    let images = filler.images();
    let read_only = filler.inventory.stores[context.store.get()].read_only;
    filler.containers(&images);
    if read_only {
        let all = filler.nodes.iter().copied();
        filler.inventory.anchored.extend(all);
    } else if MEASURED.contains(&snapshot.places.driver.as_str()) {
        filler.debris(units);
        filler.unused_layers();
    } else {
        filler.debris(units);
        filler.unmeasured_driver();
    }
    let layers = snapshot.layers.iter().zip(&filler.layers);
    let layers = layers.filter_map(|(layer, node)| Some((layer.id.clone(), (*node)?)));
    let ids = Ids { layers: layers.collect(), images };
    let nodes = filler.nodes;
    inventory.findings.extend(snapshot.findings.iter().cloned());
    Filled { nodes, ids }
}

struct Filler<'a> {
    inventory: &'a mut Inventory,
    snapshot: &'a Snapshot,
    context: &'a Context<'a>,
    nodes: Vec<NodeIx>,
    layers: Vec<Option<NodeIx>>,
    images: Vec<Option<NodeIx>>,
    containers: Vec<Option<NodeIx>>,
    /// Apparent bytes of containers' layers.
    contents: HashMap<usize, u64>,
    /// Layers whose directory does not exist.
    missing: HashSet<usize>,
    layer_at: HashMap<&'a str, usize>,
}

impl Filler<'_> {
    fn area(&self, area: usize) -> (FilesystemIx, CostModel) {
        self.context.areas.get(area).copied().unwrap_or((FilesystemIx::from(0), CostModel::default()))
    }

    fn size(&self, area: usize, tally: &Tally) -> Size {
        let frees_bytes = self.area(area).1.frees(tally);
        Size { bytes: tally.bytes, apparent_bytes: tally.apparent_bytes, inodes: tally.inodes, frees_bytes }
    }

    fn add(&mut self, kind: NodeKind, id: &str, area: usize, path: &Path, size: Size) -> NodeIx {
        let node = NodeIx::from(self.inventory.nodes.len());
        self.inventory.nodes.push(Node {
            kind,
            id: id.to_owned(),
            store: self.context.store,
            filesystem: self.area(area).0,
            path: path.to_path_buf(),
            size,
            needs: Vec::new(),
            layer: None,
        });
        node
    }

    fn layer_node(&mut self, at: usize, area: usize, path: &Path, size: Size) -> NodeIx {
        if let Some(node) = self.layers[at] {
            self.inventory.nodes[node.get()].size += size;
            return node;
        }
        let record: &LayerRecord = &self.snapshot.layers[at];
        let node = self.add(NodeKind::Layer, &record.id, area, path, size);
        self.inventory.nodes[node.get()].layer = Some(Box::new(LayerFacts {
            parent: record.parent.clone(),
            diff_id: record.diff_id.clone(),
            created: record.created,
            read_write: record.volatile,
            listed_bytes: record.diff_size,
        }));
        self.layers[at] = Some(node);
        node
    }

    fn unit(&mut self, unit: &Unit, tally: &Tally) -> NodeIx {
        let area = unit.parts.first().map_or(0, |part| part.0);
        let size = self.size(area, tally);
        match &unit.what {
            What::Layer(at) => self.layer_node(*at, area, &unit.path, size),
            What::LayerContent(at) => {
                self.contents.insert(*at, tally.apparent_bytes);
                self.layer_node(*at, area, &unit.path, size)
            }
            What::Image(at) => {
                let node = self.add(NodeKind::ImageMetadata, &unit.id, area, &unit.path, size);
                self.images[*at] = Some(node);
                node
            }
            What::Container(at) => {
                let node = self.add(NodeKind::ContainerMetadata, &unit.id, area, &unit.path, size);
                self.containers[*at] = Some(node);
                node
            }
            What::Debris(_) => self.add(NodeKind::Debris, &unit.id, area, &unit.path, size),
            What::Metadata => {
                let node = self.add(NodeKind::StoreMetadata, &unit.id, area, &unit.path, size);
                self.inventory.anchored.push(node);
                node
            }
            What::Records => {
                let node = self.add(NodeKind::StoreRecords, &unit.id, area, &unit.path, size);
                self.inventory.anchored.push(node);
                node
            }
            What::Other(name) => {
                let node = self.add(NodeKind::Other, name, area, &unit.path, size);
                self.inventory.anchored.push(node);
                node
            }
        }
    }

    /// A record without any file still has a place in the chains.
    fn layers_without_directory(&mut self) {
        let snapshot = self.snapshot;
        let driver = snapshot.places.graphroot.join(&snapshot.places.driver);
        let directories: HashSet<&OsStr> = snapshot
            .places
            .areas()
            .flat_map(|area| snapshot.entries(&snapshot.places.layer_directories(area)))
            .map(|entry| entry.name.as_os_str())
            .collect();
        for (at, record) in snapshot.layers.iter().enumerate() {
            if !directories.contains(OsStr::new(&record.id)) {
                self.missing.insert(at);
            }
            if self.layers[at].is_none() {
                self.layer_node(at, 0, &driver.join(&record.id), Size::default());
            }
        }
    }

    fn find_layer(&self, id: &str) -> Option<NodeIx> {
        let own = self.layer_at.get(id).and_then(|at| self.layers[*at]);
        own.or_else(|| self.context.additional.iter().find_map(|store| store.layers.get(id).copied()))
    }

    fn chain_layers(&mut self) {
        for at in 0..self.snapshot.layers.len() {
            let record = &self.snapshot.layers[at];
            let (Some(parent), Some(node)) = (&record.parent, self.layers[at]) else { continue };
            if let Some(parent) = self.find_layer(parent) {
                self.inventory.nodes[node.get()].needs.push(parent);
            } else {
                let evidence = format!("its parent layer {parent} is in no store that was read");
                self.broken("parent-missing", &record.id, Verdict::Repair, evidence, node);
            }
        }
    }

    /// Something is recorded that does not exist, or leads nowhere.
    fn broken(&mut self, class: &'static str, id: &str, verdict: Verdict, evidence: String, at: NodeIx) {
        let path = self.inventory.nodes[at.get()].path.clone();
        self.broken_at(class, id, verdict, evidence, path);
    }

    fn broken_at(
        &mut self,
        class: &'static str,
        id: &str,
        verdict: Verdict,
        evidence: String,
        path: PathBuf,
    ) {
        let proven = self.snapshot.consistency == crate::inventory::Consistency::Consistent;
        self.inventory.leaks.push(Leak {
            class,
            store: self.context.store,
            path,
            id: id.to_owned(),
            since: None,
            verdict: if proven { verdict } else { Verdict::Report },
            evidence,
            holds: Vec::new(),
        });
    }

    fn images(&mut self) -> HashMap<String, ImageIx> {
        let mut ids = HashMap::new();
        let snapshot = self.snapshot;
        for (at, record) in snapshot.images.iter().enumerate() {
            let directory =
                snapshot.places.records_dir(&snapshot.places.graphroot, "images").join(&record.id);
            let metadata = match self.images[at] {
                Some(node) => node,
                None => self.add(NodeKind::ImageMetadata, &record.id, 0, &directory, Size::default()),
            };
            let mut holds = vec![metadata];
            for layer in record.layer.iter().chain(&record.mapped_layers) {
                if let Some(node) = self.find_layer(layer) {
                    holds.push(node);
                } else {
                    let evidence = format!("its layer {layer} is in no store that was read");
                    self.broken("image-layer-missing", &record.id, Verdict::Repair, evidence, metadata);
                }
            }
            let layers = self.chain(record.layer.as_deref());
            ids.insert(record.id.clone(), ImageIx::from(self.inventory.images.len()));
            self.inventory.images.push(Image {
                id: record.id.clone(),
                store: self.context.store,
                names: record.names.clone(),
                digests: record.digests.clone(),
                created: record.created,
                evidence: birth_of(&directory),
                is_list: record.layer.is_none() && is_list(record),
                pinned_by: (self.context.pinned_by)(&record.names, &record.digests),
                listed_bytes: self.listed(record),
                layers,
                holds,
            });
        }
        ids
    }

    /// Layer ids from `top` down to the base; a chain that bites its tail ends there.
    fn chain(&self, top: Option<&str>) -> Vec<String> {
        let mut chain: Vec<String> = Vec::new();
        let mut seen = HashSet::new();
        let mut next = top.and_then(|id| self.find_layer(id));
        while let Some(node) = next.filter(|node| seen.insert(*node)) {
            let node = &self.inventory.nodes[node.get()];
            chain.push(node.id.clone());
            let parent = node.layer.as_ref().and_then(|layer| layer.parent.as_deref());
            next = parent.and_then(|id| self.find_layer(id));
        }
        chain
    }

    /// What podman prints as the image's size: the lengths of all layers' tars (mapped
    /// twins included) and of all big data, as recorded (container-libs,
    /// `storage/store.go`, `ImageSize`).
    fn listed(&self, record: &ImageRecord) -> Option<u64> {
        let mut seen = HashSet::new();
        let mut sum = 0_u64;
        for top in record.layer.iter().chain(&record.mapped_layers) {
            self.find_layer(top)?;
            for id in self.chain(Some(top)) {
                let node = self.find_layer(&id)?;
                if seen.insert(node) {
                    let layer = self.inventory.nodes[node.get()].layer.as_ref()?;
                    sum = sum.checked_add(layer.listed_bytes?)?;
                }
            }
        }
        for (_, size) in &record.big_data {
            sum = sum.checked_add((*size)?)?;
        }
        Some(sum)
    }

    fn containers(&mut self, images: &HashMap<String, ImageIx>) {
        let snapshot = self.snapshot;
        for (at, record) in snapshot.containers.iter().enumerate() {
            let records = snapshot.places.records_dir(&snapshot.places.graphroot, "containers");
            let directory = records.join(&record.id);
            let metadata = match self.containers[at] {
                Some(node) => node,
                None => self.add(NodeKind::ContainerMetadata, &record.id, 0, &directory, Size::default()),
            };
            let mut holds = vec![metadata];
            let mut listed_bytes = None;
            let mut mounted = false;
            if let Some(id) = &record.layer {
                if let Some(node) = self.find_layer(id) {
                    holds.push(node);
                    if let Some(facts) = &mut self.inventory.nodes[node.get()].layer {
                        facts.read_write = true;
                    }
                    listed_bytes =
                        self.layer_at.get(id.as_str()).and_then(|at| self.contents.get(at)).copied();
                    mounted = self.is_mounted(&self.inventory.nodes[node.get()].path);
                } else {
                    let evidence = format!("its layer {id} is in no store that was read");
                    self.broken("ctr-layer-missing", &record.id, Verdict::Repair, evidence, metadata);
                }
            }
            let image = record.image.as_deref().and_then(|id| {
                let elsewhere = || self.context.additional.iter().find_map(|store| store.images.get(id));
                images.get(id).or_else(elsewhere).copied()
            });
            if let (Some(id), None) = (&record.image, image) {
                let evidence = format!("its image {id} is in no store that was read");
                self.broken("ctr-image-missing", &record.id, Verdict::Report, evidence, metadata);
            }
            self.container(record, &directory, image, listed_bytes, mounted, holds);
        }
    }

    fn container(
        &mut self,
        record: &ContainerRecord,
        directory: &Path,
        image: Option<ImageIx>,
        listed_bytes: Option<u64>,
        mounted: bool,
        holds: Vec<NodeIx>,
    ) {
        let origin = owner::origin(record, directory);
        self.inventory.containers.push(Container {
            id: record.id.clone(),
            store: self.context.store,
            name: origin.name,
            owner: origin.owner,
            image_id: record.image.clone(),
            image,
            created: record.created,
            state: if mounted { ContainerState::Running } else { origin.state },
            sandbox: origin.sandbox,
            listed_bytes,
            holds,
        });
    }

    fn is_mounted(&self, path: &Path) -> bool {
        self.context.mounts.iter().any(|mount| mount.starts_with(path))
    }

    fn circumstances(&self, path: &Path, since: Option<Timestamp>) -> Circumstances {
        Circumstances {
            consistency: self.snapshot.consistency,
            mounted: self.is_mounted(path),
            lock_held: None,
            has_link: true,
            age: leaks::age(since, self.context.now),
        }
    }

    fn leak(
        &mut self,
        judged: Judgement,
        id: &str,
        path: &Path,
        since: Option<Timestamp>,
        holds: Vec<NodeIx>,
    ) {
        let (class, verdict, evidence) = judged;
        self.inventory.leaks.push(Leak {
            class,
            store: self.context.store,
            path: path.to_path_buf(),
            id: id.to_owned(),
            since,
            verdict,
            evidence,
            holds,
        });
    }

    fn debris(&mut self, units: &[Unit]) {
        for (unit, node) in units.iter().zip(self.nodes.clone()) {
            let What::Debris(what) = unit.what else { continue };
            let since = quiet::facts(&unit.path).ok().and_then(|facts| facts.modified);
            let mut known = self.circumstances(&unit.path, since);
            known.has_link = quiet::facts(&unit.path.join("link")).is_ok();
            known.lock_held = self.lock_held(what, unit);
            self.leak(leaks::debris(what, known), &unit.id, &unit.path, since, vec![node]);
        }
    }

    /// Whether anybody holds the lock file of a staging area or temporary directory.
    fn lock_held(&self, what: Debris, unit: &Unit) -> Option<bool> {
        let lock = match what {
            Debris::Staging => unit.path.join("staging.lock"),
            Debris::TempDirectory => unit.path.parent()?.join(format!("lock-{}", unit.id)),
            _ => return None,
        };
        // A lock that cannot be opened or asked counts as held. Asking writes nothing, so a
        // sysroot is asked, too: it may be a running node's.
        match LockFile::open(&lock) {
            Ok(file) => Some(file?.is_held().unwrap_or(true)),
            Err(_) => Some(true),
        }
    }

    /// Of another driver we know the records, but not where the bytes of each layer are.
    fn unmeasured_driver(&mut self) {
        let places = &self.snapshot.places;
        self.inventory.findings.push(Finding {
            path: places.graphroot.join(&places.driver),
            message: format!(
                "layers of the {} driver are not measured one by one; their bytes are counted as other files",
                places.driver
            ),
            incomplete: true,
        });
    }

    /// Layers that no image and no container reaches, and layers flagged incomplete.
    fn unused_layers(&mut self) {
        let snapshot = self.snapshot;
        let mut used = HashSet::new();
        let tops = snapshot.images.iter().flat_map(|image| image.layer.iter().chain(&image.mapped_layers));
        for top in tops.chain(snapshot.containers.iter().filter_map(|container| container.layer.as_ref())) {
            let mut next = self.layer_at.get(top.as_str()).copied();
            while let Some(at) = next.filter(|at| used.insert(*at)) {
                let parent = snapshot.layers[at].parent.as_deref();
                next = parent.and_then(|id| self.layer_at.get(id).copied());
            }
        }
        for (at, record) in snapshot.layers.iter().enumerate() {
            let Some(node) = self.layers[at] else { continue };
            let path = self.inventory.nodes[node.get()].path.clone();
            let missing = self.missing.contains(&at);
            if record.incomplete {
                let known = self.circumstances(&path, record.created);
                let judged = leaks::incomplete(!missing, known);
                self.leak(judged, &record.id, &path, record.created, vec![node]);
            } else if !used.contains(&at) {
                let known = self.circumstances(&path, record.created);
                let judged = leaks::unreferenced(record.volatile, known);
                self.leak(judged, &record.id, &path, record.created, vec![node]);
            } else if missing {
                let evidence = "the layer is recorded and in use, but its directory does not exist".into();
                self.broken_at("layer-no-dir", &record.id, Verdict::Repair, evidence, path);
            }
        }
    }
}

/// When the image's directory was made here; the record has the date of the build.
fn birth_of(directory: &Path) -> Vec<Evidence> {
    let born = quiet::born(directory).ok().flatten();
    born.map(|at| Evidence { what: EvidenceKind::MetadataDirectory, at }).into_iter().collect()
}

/// A manifest list keeps its members in the big data `instances.json`; what has neither
/// that nor a layer is an image without layers.
fn is_list(record: &ImageRecord) -> bool {
    record.big_data.iter().any(|(name, _)| name == "instances.json")
}
