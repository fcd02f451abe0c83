//! Layers in their chains, and images.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::Filler;
use crate::model::{
    Consistency, Evidence, EvidenceKind, Finding, Image, ImageIx, LayerId, LeakClass, ManifestList, Node,
    NodeIx, NodeKind, Size,
};
use crate::stores::containers_storage::chains::DEEPEST;
use crate::stores::containers_storage::places::RecordKind;
use crate::stores::containers_storage::records::ImageRecord;
use crate::stores::containers_storage::{labels, lists};
use crate::stores::leaks::Judgement;
use crate::sys::allowance;
use crate::sys::quiet::Within;

/// What the way down from an image needs of a node: it goes through 60 layers, which lie far apart.
struct Link {
    parent: Option<NodeIx>,
    listed_bytes: Option<u64>,
}

impl Link {
    fn of(node: &Node) -> Self {
        // What a layer needs first is its parent, and nothing else yet.
        let parent = node.needs.first().copied();
        Self { parent, listed_bytes: node.layer.as_ref().and_then(|layer| layer.listed_bytes) }
    }
}

impl Filler<'_> {
    /// A record without any file still has a place in the chains.
    pub(super) fn layers_without_directory(&mut self) {
        let snapshot = self.snapshot;
        let driver = snapshot.places.graphroot.join(&snapshot.places.driver);
        for (at, record) in snapshot.layers.iter().enumerate() {
            if self.layers[at].is_none() {
                self.layer_node(at, record.id.clone(), 0, driver.join(&record.id), Size::default());
            }
        }
    }

    pub(super) fn chain_layers(&mut self) {
        for at in 0..self.snapshot.layers.len() {
            let record = &self.snapshot.layers[at];
            let (Some(parent), Some(node)) = (&record.parent, self.layers[at]) else { continue };
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
        let links: Vec<_> = self.writer.inventory.nodes.iter().map(Link::of).collect();
        let snapshot = self.snapshot;
        let mut labels = labels::of_images(snapshot, self.writer.labels).into_iter();
        let in_graphroot = snapshot.places.records_dir(&snapshot.places.graphroot, RecordKind::Images);
        // With an imagestore a directory is in one of several places.
        let directory_of = |(record, node): (&ImageRecord, &Option<NodeIx>)| {
            node.map_or_else(
                || in_graphroot.join(&record.id),
                |node| self.writer.inventory[node].path.clone(),
            )
        };
        let directories: Vec<_> = snapshot.images.iter().zip(&self.images).map(directory_of).collect();
        let within = &self.within;
        let born = |directory: &PathBuf| birth_of(within, directory);
        let mut births = directories.par_iter().map(born).collect::<Vec<_>>().into_iter();
        let top = |record: &ImageRecord| record.layer.as_deref().and_then(|id| self.find_layer(id));
        let tops: Vec<_> = snapshot.images.iter().map(top).collect();
        let chains: Vec<_> = tops.into_par_iter().map(|top| chain(&links, top)).collect();
        let mut chains = chains.into_iter();
        for (at, record) in snapshot.images.iter().enumerate() {
            let directory = &directories[at];
            let metadata = match self.images[at] {
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
            // Many images have the same layers: each id is held once.
            let layers = chain.iter().map(|node| {
                let id = || self.writer.inventory[*node].id.as_str().into();
                layer_ids[node.get()].get_or_insert_with(id).clone()
            });
            let layers = layers.collect();
            let mut names = record.names.clone();
            // The first one is shown. A pull by digest adds a name in front of the tag (container-libs, `storage/store.go`).
            names.sort_by_key(|name| name.contains('@'));
            ids.insert(record.id.clone(), ImageIx::from(self.writer.inventory.images.len()));
            self.writer.inventory.images.push(Image {
                id: record.id.as_str().into(),
                store: self.writer.store,
                names,
                digests: record.digests.clone(),
                created: record.created,
                evidence: births.next().unwrap_or_default(),
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

    /// Which images the manifest lists are made of.
    fn lists(&mut self, images: &HashMap<String, ImageIx>) {
        let snapshot = self.snapshot;
        let mut by_digest: HashMap<&str, Vec<ImageIx>> = HashMap::new();
        if snapshot.images.iter().any(lists::is_list) {
            for image in &snapshot.images {
                let ix = images[&image.id];
                image.digests.iter().for_each(|digest| by_digest.entry(digest).or_default().push(ix));
            }
        }
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
    }

    /// What podman prints as the image's size: the lengths of all layers' tars (mapped
    /// mapped layers included) and of all big data, as recorded (container-libs,
    /// `storage/store.go`, `ImageSize`). `layers` are those of its own chain.
    fn listed(&self, links: &[Link], record: &ImageRecord, mut layers: Vec<NodeIx>) -> Option<u64> {
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

/// Layers from `top` down to the base; a chain that bites its tail ends there, and so does one
/// that goes through more stores than it can.
fn chain(links: &[Link], top: Option<NodeIx>) -> Vec<NodeIx> {
    let mut chain: Vec<NodeIx> = Vec::new();
    let mut next = top;
    // A chain is short: looking through it costs less than a set beside it.
    while let Some(node) = next.filter(|node| chain.len() < 2 * DEEPEST && !chain.contains(node)) {
        chain.push(node);
        next = links[node.get()].parent;
    }
    chain
}

/// When the image's directory was created here; the record has the date of the build.
fn birth_of(within: &Within, directory: &Path) -> Vec<Evidence> {
    let born = within.born(directory).ok().flatten();
    born.map(|at| Evidence { kind: EvidenceKind::MetadataDirectory, at }).into_iter().collect()
}
