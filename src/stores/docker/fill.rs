//! Builds an inventory from records and measured bytes: units become nodes, layers are linked to their parents, images
//! and containers refer to these nodes, and leaks are what nothing reaches.

use std::collections::{BTreeMap, HashMap};

use super::read::Snapshot;
use super::records::{ImageRecord, hex};
use super::units::{DataRootUnit, DockerUnit, ROOT_AREA};
use crate::disk::Tally;
use crate::model::text::reference;
use crate::model::{
    BuildCache, Container, ContainerLog, ContainerState, Evidence, EvidenceKind, Finding, Image, ImageIx,
    Labels, LayerFacts, LayerId, NodeIx, NodeKind, Origin, OriginKind, Owner, Size, Volume,
};
use crate::stores::inventory_writer::InventoryWriter;
use crate::sys::quiet::FileKind;

/// Namespace of Docker's builder, as in containerd.
const BUILDER: &str = "moby";

/// Adds everything in a data root to the inventory; returns the node of each unit.
pub(super) fn fill(
    writer: InventoryWriter<'_>,
    snapshot: &Snapshot,
    units: &[DataRootUnit],
    tallies: &[Tally],
    knows_mounts: bool,
) -> Vec<NodeIx> {
    let mut filler = DataRootFiller {
        writer,
        snapshot,
        knows_mounts,
        nodes: Vec::with_capacity(units.len()),
        layers: vec![None; snapshot.layers.len()],
        images: HashMap::new(),
        containers: HashMap::new(),
        cache: Vec::new(),
    };
    for (unit, tally) in units.iter().zip(tallies) {
        let node = filler.unit(unit, tally);
        filler.nodes.push(node);
    }
    filler.chain_layers();
    filler.add_images();
    filler.add_containers();
    filler.add_build_cache();
    filler.add_volumes();
    filler.note_other_drivers();
    filler.note_change_of_store();
    if let Some(why) = &snapshot.places.out_of_tool {
        filler.writer.inventory.out_of_tool.insert(filler.writer.store, why.clone());
    }
    filler.add_leaks(units);
    filler.writer.inventory.findings.extend(snapshot.findings.iter().cloned());
    filler.nodes
}

pub(super) struct DataRootFiller<'a> {
    pub(super) writer: InventoryWriter<'a>,
    pub(super) snapshot: &'a Snapshot,
    /// The mounts of this system were read, and are those of the store.
    knows_mounts: bool,
    /// Nodes of the units, in their order.
    pub(super) nodes: Vec<NodeIx>,
    /// Nodes of the layers, by position.
    pub(super) layers: Vec<Option<NodeIx>>,
    /// Nodes of the images' own files, by id.
    images: HashMap<String, NodeIx>,
    /// Nodes of the containers' own directories, by id.
    containers: HashMap<String, NodeIx>,
    /// Nodes of BuildKit's own files.
    cache: Vec<NodeIx>,
}

impl DataRootFiller<'_> {
    fn unit(&mut self, unit: &DataRootUnit, tally: &Tally) -> NodeIx {
        let area = unit.parts.first().map_or(ROOT_AREA, |part| part.0);
        let size = self.writer.size(area, tally);
        let kind = match unit.kind {
            DockerUnit::Layer(_) => NodeKind::Layer,
            DockerUnit::Image => NodeKind::ImageMetadata,
            DockerUnit::Container => NodeKind::ContainerMetadata,
            DockerUnit::Orphan(_) => NodeKind::Orphan,
            DockerUnit::Metadata => NodeKind::StoreMetadata,
            DockerUnit::Unknown => NodeKind::Unknown,
            DockerUnit::BuildCache | DockerUnit::Other => NodeKind::Other,
        };
        let node = self.writer.add(kind, &unit.id, area, &unit.path, size);
        match unit.kind {
            DockerUnit::Layer(layer) => self.layers[layer] = Some(node),
            DockerUnit::Image => _ = self.images.insert(unit.id.clone(), node),
            DockerUnit::Container => _ = self.containers.insert(unit.id.clone(), node),
            DockerUnit::BuildCache => self.cache.push(node),
            DockerUnit::Orphan(_) => {}
            DockerUnit::Metadata | DockerUnit::Unknown | DockerUnit::Other => {
                self.writer.inventory.anchored.push(node);
            }
        }
        node
    }

    /// Links each layer to its parent. A layer without a directory is still part of its chain.
    fn chain_layers(&mut self) {
        let snapshot = self.snapshot;
        for (position, layer) in snapshot.layers.iter().enumerate() {
            let path = snapshot.places.layers().join(&layer.id);
            let node = match self.layers[position] {
                Some(node) => node,
                None => self.writer.add(NodeKind::Layer, &layer.id, ROOT_AREA, &path, Size::default()),
            };
            self.layers[position] = Some(node);
            let made = &mut self.writer.inventory[node];
            // The first part of the unit may be its record.
            made.path = path;
            made.layer = Some(Box::new(LayerFacts {
                parent: layer.parent.clone(),
                diff_id: layer.diff_id.clone(),
                read_write: layer.is_writable,
                listed_bytes: layer.listed_bytes,
                ..LayerFacts::default()
            }));
        }
        for (position, layer) in snapshot.layers.iter().enumerate() {
            let parent = layer.parent.as_deref().and_then(|parent| self.layer(parent));
            let node = self.layers[position];
            node.into_iter().for_each(|node| self.writer.inventory[node].needs.extend(parent));
        }
    }

    /// Returns the node of the layer in a directory.
    pub(super) fn layer(&self, id: &str) -> Option<NodeIx> {
        self.layers[*self.snapshot.by_id.get(id)?]
    }

    /// Returns the node of a layer of an image by its chain id, as hex.
    pub(super) fn layer_of_chain(&self, chain: &str) -> Option<NodeIx> {
        self.layer(self.snapshot.by_chain.get(chain)?)
    }

    fn add_images(&mut self) {
        let snapshot = self.snapshot;
        for record in &snapshot.images {
            let path = snapshot.places.image_records().join("content/sha256").join(&record.id);
            let metadata = match self.images.get(&record.id) {
                Some(node) => *node,
                None => {
                    self.writer.add(NodeKind::ImageMetadata, &record.id, ROOT_AREA, &path, Size::default())
                }
            };
            let top = record.chains.last().and_then(|chain| self.layer_of_chain(chain));
            let (layers, listed_bytes) = self.chain(top);
            let is_whole = layers.len() == record.chains.len();
            let mut holds = vec![metadata];
            if is_whole {
                holds.extend(top);
            } else {
                holds.extend(record.chains.iter().filter_map(|chain| self.layer_of_chain(chain)));
            }
            let born = snapshot.within.born(&path).ok().flatten();
            let evidence = born.map(|at| Evidence { kind: EvidenceKind::MetadataDirectory, at });
            // Docker lists the digest only for an image without a tag.
            let names = if record.names.is_empty() { &record.digested } else { &record.names };
            let mut digests: Vec<_> =
                record.digested.iter().filter_map(|name| Some(name.split_once('@')?.1.to_owned())).collect();
            digests.sort();
            digests.dedup();
            self.writer.inventory.images.push(Image {
                id: record.id.as_str().into(),
                store: self.writer.store,
                names: names.clone(),
                digests,
                created: record.created,
                evidence: evidence.into_iter().collect(),
                origin: self.origin(record),
                is_list: false,
                pinned_by: Vec::new(),
                labels: if self.writer.reads_labels_of(&record.id) {
                    Labels::of_configuration(&record.bytes)
                } else {
                    Labels::NotRead
                },
                layers,
                listed_bytes: listed_bytes.filter(|_| is_whole),
                blobs: Vec::new(),
                holds,
            });
        }
    }

    /// Returns the ids of a layer and all layers below it, and the sum of the lengths of their tars.
    fn chain(&self, top: Option<NodeIx>) -> (Vec<LayerId>, Option<u64>) {
        let (mut chain, mut sum, mut next) = (Vec::new(), Some(0_u64), top);
        while let Some(node) = next.filter(|_| chain.len() < self.snapshot.layers.len()) {
            let node = &self.writer.inventory[node];
            chain.push(node.id.as_str().into());
            let listed = node.layer.as_ref().and_then(|layer| layer.listed_bytes);
            sum = sum.zip(listed).and_then(|(sum, listed)| sum.checked_add(listed));
            next = node.needs.first().copied();
        }
        (chain, sum)
    }

    fn origin(&self, record: &ImageRecord) -> Origin {
        if !self.writer.origins {
            return Origin::default();
        }
        if let Some(name) = record.digested.first() {
            let evidence =
                "repositories.json has the digest of its manifest: it was pulled, or pushed from here";
            let registry = Some(reference::repository(&reference::normalized(name)).to_owned());
            return Origin { registry, ..Origin::new(OriginKind::Pulled, evidence) };
        }
        let metadata = self.snapshot.places.image_records().join("metadata/sha256");
        if self.snapshot.entries(&metadata).iter().any(|entry| entry.name == record.id.as_str()) {
            return Origin::new(OriginKind::Built, "Docker has recorded when it was built here");
        }
        Origin::doubtful(
            "Docker has recorded neither a digest of its manifest nor a build: it may have been loaded",
        )
    }

    fn add_containers(&mut self) {
        let snapshot = self.snapshot;
        let store = self.writer.store;
        let images: HashMap<String, ImageIx> = self
            .writer
            .inventory
            .images
            .iter()
            .enumerate()
            .filter(|(_, image)| image.store == store)
            .map(|(position, image)| (image.id.to_string(), position.into()))
            .collect();
        for (id, record) in snapshot.own_containers() {
            let directory = snapshot.places.root.join("containers").join(id);
            let metadata = match self.containers.get(id) {
                Some(node) => *node,
                None => {
                    self.writer.add(NodeKind::ContainerMetadata, id, ROOT_AREA, &directory, Size::default())
                }
            };
            let mount = snapshot.mounts.get(id);
            let layer = mount.and_then(|mount| self.layer(&mount.mount_id));
            let init = mount.and_then(|mount| self.layer(mount.init_id.as_deref()?));
            let is_mounted =
                layer.is_some_and(|layer| self.writer.is_mounted(&self.writer.inventory[layer].path));
            let digests = record.map_or(&[][..], |record| &record.digests);
            let image = digests.iter().find_map(|digest| images.get(hex(digest))).copied();
            let recorded = record.map(|record| record.state).unwrap_or_default();
            let logs = [directory.join(format!("{id}-json.log")), directory.join("local-logs/container.log")];
            let log = logs.into_iter().find_map(|path| {
                let facts = snapshot.within.facts(&path).ok().filter(|facts| facts.kind == FileKind::File)?;
                Some(ContainerLog { path, bytes: facts.length })
            });
            let name = record.and_then(|record| record.name.clone());
            let by_id = image.map(|image| self.writer.inventory[image].id.clone());
            let by_name = record.and_then(|record| record.image_name.clone());
            self.writer.inventory.containers.push(Container {
                id: id.as_str().into(),
                store,
                name: name.unwrap_or_else(|| id.clone()),
                owner: Owner::Docker,
                image_id: by_id.or_else(|| by_name.map(Into::into)),
                image,
                volumes: Vec::new(),
                created: record.and_then(|record| record.created),
                state: match recorded {
                    _ if is_mounted => ContainerState::Running,
                    // The node was switched off while it ran, or Docker was killed.
                    ContainerState::Running if self.knows_mounts => ContainerState::Unknown,
                    ContainerState::Running if snapshot.places.foreign => ContainerState::Unknown,
                    state => state,
                },
                sandbox: false,
                sandbox_id: None,
                namespace: None,
                listed_bytes: None,
                log,
                holds: [metadata].into_iter().chain(layer).chain(init).collect(),
            });
        }
    }

    /// Adds BuildKit's cache: the directories that its snapshots name, and its own files.
    fn add_build_cache(&mut self) {
        let snapshot = self.snapshot;
        let cached = snapshot.layers.iter().filter(|layer| snapshot.cached.contains(&layer.id));
        let mut holds: Vec<_> = cached.filter_map(|layer| self.layer(&layer.id)).collect();
        holds.append(&mut self.cache);
        self.writer.inventory.anchored.extend(&holds);
        if snapshot.cache_records > 0 {
            let (store, namespace) = (self.writer.store, BUILDER.to_owned());
            let records = snapshot.cache_records;
            self.writer.inventory.build_caches.push(BuildCache { store, namespace, records, holds });
        }
    }

    /// Adds the volumes with the containers that use them, also those whose layers are in containerd.
    fn add_volumes(&mut self) {
        let snapshot = self.snapshot;
        let directories = snapshot.entries(&snapshot.places.root.join("volumes")).iter();
        let names = directories.filter(|entry| entry.kind == FileKind::Directory);
        let mut volumes: BTreeMap<String, Vec<String>> =
            names.filter_map(|entry| Some((entry.name.to_str()?.to_owned(), Vec::new()))).collect();
        for (id, record) in &snapshot.containers {
            // A container whose record cannot be read may use any volume.
            let Some(record) = record else { return };
            for volume in &record.volumes {
                let name = record.name.clone().unwrap_or_else(|| id.clone());
                volumes.get_mut(volume).into_iter().for_each(|users| users.push(name.clone()));
            }
        }
        let volumes =
            volumes.into_iter().map(|(name, containers)| Volume { name, containers, kept_by: None });
        self.writer.inventory.volumes.insert(self.writer.store, volumes.collect());
    }

    /// Reports that Docker may have changed to containerd: its commands then ignore this store.
    fn note_change_of_store(&mut self) {
        let snapshot = self.snapshot;
        let mut records = snapshot.containers.values().flatten();
        if records.any(|record| !record.driver.is_empty() && record.driver != snapshot.places.driver()) {
            let message = "Docker has containers outside this store: if it has changed to containerd, its commands \
                           neither list nor delete what is here (docs/docker.md)";
            self.writer.inventory.findings.push(Finding::new(&snapshot.places.root, message));
            let why =
                "Docker has containers outside this store, and may neither list nor delete what is here";
            self.writer.inventory.out_of_tool.insert(self.writer.store, why.to_owned());
        }
    }

    fn note_other_drivers(&mut self) {
        let places = &self.snapshot.places;
        for driver in &places.other_drivers {
            let message = format!(
                "layersweep does not know Docker's driver {driver}: what its images and containers use is unknown"
            );
            self.writer.inventory.findings.push(Finding::incomplete(places.root.join(driver), message));
        }
    }
}
