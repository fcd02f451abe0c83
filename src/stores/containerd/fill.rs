//! Builds an inventory from records and measured bytes.

mod containers;
mod docker;
pub(super) mod images;
mod origin;
mod snapshots;
pub(super) mod volumes;

use std::collections::HashMap;
use std::path::PathBuf;

use jiff::SignedDuration;

use super::gc::{Graph, Ref};
use super::metadata::{ContainerRecord, Namespace};
use super::places::META_DB;
use super::snapshot::Snapshot;
use super::units::{ContainerdUnit, RootUnit};
use crate::disk::Tally;
use crate::model::{Consistency, LayerFacts, NodeIx, NodeKind};
use crate::stores::inventory_writer::InventoryWriter;

/// The namespace of CRI, and so of the kubelet.
pub const KUBERNETES: &str = "k8s.io";

/// Adds the nodes, images, containers, leaks and findings of a root to the inventory; returns the node of each unit.
/// `tallies` are in the order of `units`. `platform` is that of the node, for example `linux/amd64`. Objects that
/// changed less than `in_flight` ago are work in progress.
pub fn fill(
    writer: InventoryWriter<'_>,
    snapshot: &Snapshot,
    units: &[RootUnit],
    tallies: &[Tally],
    (platform, in_flight): (&str, SignedDuration),
) -> Vec<NodeIx> {
    let namespaces = &snapshot.metadata.namespaces;
    // containerd 2.0, which has schema 4, was the first version in which images expire.
    let images_expire = snapshot.metadata.version >= Some(4);
    let graphs: Vec<_> =
        namespaces.iter().map(|namespace| (namespace, Graph::new(namespace, images_expire))).collect();
    let mut filler = Filler {
        writer,
        snapshot,
        platform,
        in_flight,
        graphs: &graphs,
        blobs: HashMap::new(),
        directories: HashMap::new(),
        cached: HashMap::new(),
        ingests: HashMap::new(),
        containers: HashMap::new(),
        snapshots: HashMap::new(),
        primary: snapshot.driver(),
    };
    let nodes: Vec<_> = units.iter().zip(tallies).map(|(unit, tally)| filler.unit(unit, tally)).collect();
    filler.blob_facts();
    filler.snapshots();
    filler.cached_layers();
    filler.content_elsewhere();
    filler.unmeasured_snapshots();
    let groups = filler.images();
    let volumes = filler.volumes(&groups);
    filler.containers(&groups, &volumes);
    filler.docker_containers(&groups);
    filler.build_caches();
    let is_damaged = snapshot.consistency == Consistency::Damaged;
    if filler.writer.leaks && !is_damaged {
        filler.orphan_volumes(&volumes);
        filler.expired_images(&groups);
        filler.leases();
        filler.labelled_roots();
        filler.ingests();
        filler.unmarked();
        filler.orphans(units, &nodes);
    }
    if filler.writer.leaks {
        filler.damage(&groups);
        filler.other_namespaces(&groups);
    }
    if is_damaged {
        filler.unknown_rest();
    }
    filler.writer.inventory.findings.extend(snapshot.findings.iter().cloned());
    nodes
}

pub(super) struct Filler<'a> {
    pub(super) writer: InventoryWriter<'a>,
    pub(super) snapshot: &'a Snapshot,
    /// `os/architecture` of the node.
    pub(super) platform: &'a str,
    /// Minimum age of an object that is not work in progress.
    pub(super) in_flight: SignedDuration,
    pub(super) graphs: &'a [(&'a Namespace, Graph<'a>)],
    pub(super) blobs: HashMap<&'a str, NodeIx>,
    /// Directories of snapshots, by positions of the snapshotter and of the snapshot in it.
    pub(super) directories: HashMap<(usize, usize), NodeIx>,
    /// Layers in caches, by diffID.
    pub(super) cached: HashMap<String, Vec<NodeIx>>,
    /// Downloads, by the content store's reference.
    pub(super) ingests: HashMap<&'a str, NodeIx>,
    /// Directories of CRI, by container id.
    pub(super) containers: HashMap<String, Vec<NodeIx>>,
    /// Snapshots by namespace, snapshotter and key.
    pub(super) snapshots: HashMap<(&'a str, &'a str, &'a str), NodeIx>,
    /// Snapshotter whose name is omitted in ids.
    pub(super) primary: &'a str,
}

impl<'a> Filler<'a> {
    fn unit(&mut self, unit: &RootUnit, tally: &Tally) -> NodeIx {
        let area = unit.parts.first().map_or(0, |part| part.0);
        let kind = match unit.kind {
            ContainerdUnit::Blob => NodeKind::Blob,
            ContainerdUnit::Snapshot(..) => NodeKind::Snapshot,
            ContainerdUnit::Container => NodeKind::ContainerMetadata,
            ContainerdUnit::CachedLayer => NodeKind::CachedLayer,
            ContainerdUnit::Ingest(_) | ContainerdUnit::Orphan(_) => NodeKind::Orphan,
            ContainerdUnit::Unmeasured => NodeKind::Unknown,
            ContainerdUnit::Metadata => NodeKind::StoreMetadata,
            ContainerdUnit::Other => NodeKind::Other,
        };
        let size = self.writer.size(area, tally);
        let node = self.writer.add(kind, &unit.id, area, &unit.path, size);
        match unit.kind {
            ContainerdUnit::Blob => {
                if let Some((digest, _)) = self.snapshot.blobs.get_key_value(&unit.id) {
                    self.blobs.insert(digest, node);
                }
            }
            ContainerdUnit::Snapshot(backend, entry) => {
                self.directories.insert((backend, entry), node);
            }
            ContainerdUnit::Ingest(ingest) => {
                if let Some(backend_ref) = &self.snapshot.ingests[ingest].backend_ref {
                    self.ingests.insert(backend_ref, node);
                }
            }
            ContainerdUnit::CachedLayer => self.cached.entry(unit.id.clone()).or_default().push(node),
            ContainerdUnit::Container => self.containers.entry(unit.id.clone()).or_default().push(node),
            ContainerdUnit::Orphan(_) => {}
            ContainerdUnit::Metadata | ContainerdUnit::Other | ContainerdUnit::Unmeasured => {
                self.writer.inventory.anchored.push(node)
            }
        }
        node
    }

    /// Adds facts from the records of blobs. Only the creation time differs between namespaces.
    fn blob_facts(&mut self) {
        for namespace in &self.snapshot.metadata.namespaces {
            for blob in &namespace.blobs {
                let Some(node) = self.blobs.get(blob.digest.as_str()) else { continue };
                let facts = self.writer.inventory[*node].layer.get_or_insert_default();
                let LayerFacts { created, diff_id, .. } = &mut **facts;
                *created = created.iter().copied().chain(blob.created).min();
                if let Some(digest) = blob.labels.get("containerd.io/uncompressed") {
                    *diff_id = Some(digest.clone());
                }
            }
        }
    }

    pub(super) fn node(&self, namespace: &'a Namespace, object: Ref<'a>) -> Option<NodeIx> {
        match object {
            Ref::Content(digest) => self.blobs.get(digest).copied(),
            Ref::Snapshot(snapshotter, key) => {
                self.snapshots.get(&(namespace.name.as_str(), snapshotter, key)).copied()
            }
            Ref::Ingest(key) => {
                let record = namespace.ingests.iter().find(|ingest| ingest.key == key)?;
                self.ingests.get(record.backend_ref.as_deref()?).copied()
            }
            Ref::Image(_) | Ref::Container(_) => None,
        }
    }

    /// Returns the nodes of objects of `namespace`, each once, in their order.
    pub(super) fn nodes(&self, namespace: &'a Namespace, refs: &[Ref<'a>]) -> Vec<NodeIx> {
        let mut seen = std::collections::HashSet::new();
        let nodes = refs.iter().filter_map(|object| self.node(namespace, *object));
        nodes.filter(|node| seen.insert(*node)).collect()
    }

    pub(super) fn meta_db(&self) -> PathBuf {
        self.snapshot.places.root.join(META_DB)
    }
}

/// Returns `name` in CRI's namespace, `namespace/name` in any other.
pub(super) fn qualified(namespace: &str, name: &str) -> String {
    if namespace == KUBERNETES { name.to_owned() } else { format!("{namespace}/{name}") }
}

/// Returns the id of a container: alone for one of CRI, otherwise with its namespace, also in CRI's own.
pub(super) fn id_of_container(namespace: &str, record: &ContainerRecord) -> String {
    match record.cri {
        None => format!("{namespace}/{}", record.id),
        Some(_) => qualified(namespace, &record.id),
    }
}

/// Returns the namespace and the hexadecimal digest in an image's id, as created by [`qualified`].
pub(in crate::stores) fn unqualified(id: &str) -> (&str, &str) {
    id.split_once('/').unwrap_or((KUBERNETES, id))
}

#[cfg(test)]
mod tests;
