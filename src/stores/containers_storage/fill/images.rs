//! Adds images and chains of layers to the inventory.

use std::collections::HashMap;
use std::path::PathBuf;

use jiff::Timestamp;
use rayon::prelude::*;

use super::GraphrootFiller;
use crate::model::{
    Consistency, Evidence, EvidenceKind, Finding, Image, ImageIx, LayerId, LeakClass, ManifestList, Node,
    NodeIx, NodeKind, Size,
};
use crate::stores::containers_storage::chains::DEEPEST;
use crate::stores::containers_storage::places::RecordKind;
use crate::stores::containers_storage::records::ImageRecord;
use crate::stores::containers_storage::{labels, lists, origin};
use crate::stores::leaks::Judgement;
use crate::sys::allowance;

/// Parent and size of a node, for a table of its own. The walk from an image down to its base visits some 60 nodes. The
/// nodes are far apart in memory, the elements of this table are not.
struct LayerLink {
    parent: Option<NodeIx>,
    listed_bytes: Option<u64>,
}

impl LayerLink {
    fn of(node: &Node) -> Self {
        // The first need of a layer is its parent. No other needs have been added yet.
        let parent = node.needs.first().copied();
        Self { parent, listed_bytes: node.layer.as_ref().and_then(|layer| layer.listed_bytes) }
    }
}

impl GraphrootFiller<'_> {
    /// Adds a node for each recorded layer without files, since it can still be part of a chain.
    pub(super) fn layers_without_directory(&mut self) {
        let snapshot = self.snapshot;
        let driver = snapshot.places.graphroot.join(&snapshot.places.driver);
        for (position, record) in snapshot.layers.iter().enumerate() {
            if self.layers[position].is_none() {
                self.layer_node(position, record.id.clone(), 0, driver.join(&record.id), Size::default());
            }
        }
    }

    /// Adds the parent of each layer to its needs, and reports missing parents.
    pub(super) fn chain_layers(&mut self) {
        let snapshot = self.snapshot;
        for (position, record) in snapshot.layers.iter().enumerate() {
            let (Some(parent), Some(node)) = (&record.parent, self.layers[position]) else { continue };
            if let Some(parent) = self.find_layer(parent) {
                self.writer.inventory[node].needs.push(parent);
            } else {
                let evidence = format!(
                    "its parent layer {parent} is neither in this store nor in one that it is configured to use: remove \
                     its images and pull them again"
                );
                let judged = Judgement::of(LeakClass::Inconsistent, evidence);
                self.broken(judged, &record.id, node, record.created);
            }
        }
    }

    pub(super) fn images(&mut self) -> HashMap<String, ImageIx> {
        let mut ids = HashMap::new();
        let mut layer_ids: Vec<Option<LayerId>> = vec![None; self.writer.inventory.nodes.len()];
        let links: Vec<_> = self.writer.inventory.nodes.iter().map(LayerLink::of).collect();
        let snapshot = self.snapshot;
        let only = self.writer.image;
        let labels = if self.writer.labels { labels::of_images(snapshot, only) } else { Vec::new() };
        let mut labels = labels.into_iter();
        let in_graphroot = snapshot.places.records_dir(&snapshot.places.graphroot, RecordKind::Images);
        let directories = snapshot.images.iter().zip(&self.images);
        let directories: Vec<PathBuf> = directories
            .map(|(record, node)| match node {
                // With an imagestore, the directory can be in any area.
                Some(node) => self.writer.inventory[*node].path.clone(),
                None => in_graphroot.join(&record.id),
            })
            .collect();
        let within = &self.within;
        // A list that is too young keeps its members.
        let births: Vec<_> = snapshot
            .images
            .par_iter()
            .zip(&directories)
            .map(|(record, directory)| {
                let is_needed = only.is_none_or(|only| only == record.id) || lists::is_list(record);
                is_needed.then(|| within.born(directory).ok().flatten()).flatten()
            })
            .collect();
        let origins = if self.writer.origins {
            origin::of_images(snapshot, &births, self.writer.blobs)
        } else {
            Vec::new()
        };
        let mut births = births.into_iter();
        let mut origins = origins.into_iter();
        let tops: Vec<_> =
            snapshot.images.iter().map(|record| self.find_layer(record.layer.as_deref()?)).collect();
        let chains: Vec<_> = tops.into_par_iter().map(|top| chain(&links, top)).collect();
        let mut chains = chains.into_iter();
        for (position, record) in snapshot.images.iter().enumerate() {
            let directory = &directories[position];
            let metadata = match self.images[position] {
                Some(node) => node,
                None => self.writer.add(NodeKind::ImageMetadata, &record.id, 0, directory, Size::default()),
            };
            let mut holds = vec![metadata];
            for layer in record.tops() {
                if let Some(node) = self.find_layer(layer) {
                    holds.push(node);
                } else {
                    let evidence = format!(
                        "its layer {layer} is neither in this store nor in one that it is configured to use"
                    );
                    let since = self.changed(directory);
                    let judged = Judgement::of(LeakClass::BrokenImage, evidence);
                    self.broken(judged, &record.id, metadata, since);
                }
            }
            let chain = chains.next().unwrap_or_default();
            // Many images have the same layers. They share the memory of the ids.
            let layers = chain
                .iter()
                .map(|node| {
                    layer_ids[node.get()]
                        .get_or_insert_with(|| self.writer.inventory[*node].id.as_str().into())
                        .clone()
                })
                .collect();
            let (origin, blobs) = origins.next().unwrap_or_default();
            let mut names = record.names.clone();
            // The first name is shown, so tags come first. A pull by digest inserts its name before the tag
            // (container-libs, `storage/store.go`).
            names.sort_by_key(|name| name.contains('@'));
            ids.insert(record.id.clone(), ImageIx::from(self.writer.inventory.images.len()));
            self.writer.inventory.images.push(Image {
                id: record.id.as_str().into(),
                store: self.writer.store,
                names,
                digests: record.digests.clone(),
                created: record.created,
                evidence: births.next().flatten().map(of_birth).into_iter().collect(),
                origin,
                blobs,
                is_list: lists::is_list(record),
                pinned_by: (self.pinned_by)(&record.names, &record.digests),
                labels: labels.next().unwrap_or_default(),
                listed_bytes: self.listed(&links, record, chain),
                layers,
                holds,
            });
        }
        self.lists(&ids);
        ids
    }

    fn lists(&mut self, images: &HashMap<String, ImageIx>) {
        let snapshot = self.snapshot;
        let mut by_digest: HashMap<&str, Vec<ImageIx>> = HashMap::new();
        if snapshot.images.iter().any(lists::is_list) {
            for image in &snapshot.images {
                let ix = images[&image.id];
                image.digests.iter().for_each(|digest| by_digest.entry(digest).or_default().push(ix));
            }
        }
        let first = self.writer.inventory.lists.len();
        for list in snapshot.images.iter().filter(|record| lists::is_list(record)) {
            let members = lists::digests(&snapshot.places, list).and_then(|digests| {
                let members = digests.iter().filter_map(|digest| by_digest.get(digest.as_str()));
                let count: usize = members.clone().map(Vec::len).sum();
                snapshot.places.allowance.charge(allowance::REACHED * count as u64)?;
                let mut members: Vec<_> = members.flatten().copied().collect();
                members.sort_unstable();
                members.dedup();
                Ok(members)
            });
            match members {
                Ok(members) => {
                    self.writer.inventory.lists.push(ManifestList { image: images[&list.id], members });
                }
                // Any image may be a member.
                Err(error) => {
                    let message = format!("{error}; the members of this manifest list are unknown");
                    let path = lists::manifest(&snapshot.places, list);
                    self.writer.inventory.findings.push(Finding::incomplete(path, message));
                    let store = self.writer.store;
                    self.writer.inventory[store].consistency = Consistency::Damaged;
                }
            }
        }
        let lists = &mut self.writer.inventory.lists[first..];
        if let Err(error) = lists::add_members_of_members(lists, &snapshot.places.allowance) {
            let message = format!("{error}; the members of its manifest lists are unknown");
            let finding = Finding::incomplete(&*snapshot.places.graphroot, message);
            self.writer.inventory.findings.push(finding);
            let store = self.writer.store;
            self.writer.inventory[store].consistency = Consistency::Damaged;
        }
    }

    /// Returns the size that podman prints for an image: the recorded lengths of the tars of all layers, including mapped
    /// layers, and of all big data (container-libs, `storage/store.go`, `ImageSize`). `layers` is the image's chain.
    fn listed(&self, links: &[LayerLink], record: &ImageRecord, mut layers: Vec<NodeIx>) -> Option<u64> {
        record.layer.iter().try_for_each(|top| self.find_layer(top).map(drop))?;
        for top in &record.mapped_layers {
            layers.extend(chain(links, Some(self.find_layer(top)?)));
            layers.sort_unstable();
            layers.dedup();
        }
        let mut sum = 0_u64;
        for node in layers {
            sum = sum.checked_add(links[node.get()].listed_bytes?)?;
        }
        for (_, size) in &record.big_data {
            sum = sum.checked_add((*size)?)?;
        }
        Some(sum)
    }
}

/// Returns the layers from `top` down to the base. A cyclic chain ends before its first repetition. The limit of
/// twice [`DEEPEST`] ends a chain through additional stores, which are not limited in sum.
fn chain(links: &[LayerLink], top: Option<NodeIx>) -> Vec<NodeIx> {
    let mut chain: Vec<NodeIx> = Vec::new();
    let mut next = top;
    // A chain is short, so searching it is faster than a hash set.
    while let Some(node) = next.filter(|node| chain.len() < 2 * DEEPEST && !chain.contains(node)) {
        chain.push(node);
        next = links[node.get()].parent;
    }
    chain
}

/// Returns the creation time of the image's directory, as evidence of the pull. The record contains the build time.
fn of_birth(at: Timestamp) -> Evidence {
    Evidence { kind: EvidenceKind::MetadataDirectory, at }
}
