//! Adds an artifact store to the inventory.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::layout::BLOBS;
use super::leaks::{self, ArtifactFacts};
use super::read::{Artifact, ArtifactUnit, Layout, LayoutUnit};
use super::{layout, users};
use crate::disk::Tally;
use crate::model::Orphan;
use crate::model::{
    Consistency, Evidence, EvidenceKind, Image, ImageIx, Labels, LayerFacts, NodeIx, NodeKind, Origin, Use,
};
use crate::stores::containers_storage::fill::PinnedBy;
use crate::stores::containers_storage::since;
use crate::stores::inventory_writer::InventoryWriter;
use crate::stores::leaks::age;
use crate::sys::namespaces::Mounts;
use crate::sys::quiet::Within;

/// Adds the nodes, artifacts, users, leaks and findings of a store to the inventory. Returns the node of each unit.
/// `tallies` has an element for each unit of `layout`.
pub fn fill(
    writer: InventoryWriter<'_>,
    layout: &Layout,
    tallies: &[Tally],
    pinned_by: &PinnedBy<'_>,
) -> Vec<NodeIx> {
    let (within, blobs, mounted) = (layout.places.within(), BTreeMap::new(), BTreeMap::new());
    let mut filler = ArtifactFiller { writer, layout, within, pinned_by, blobs, mounted };
    let units = layout.units.iter().zip(tallies);
    let nodes: Vec<_> = units.map(|(unit, tally)| filler.unit(unit, tally)).collect();
    if !layout.places.foreign && !layout.blobs.is_empty() {
        filler.read_mounts();
    }
    let first = filler.writer.inventory.images.len();
    filler.artifacts();
    filler.users(first);
    if filler.writer.leaks && !layout.places.read_only {
        filler.leaks(&nodes);
    }
    filler.writer.inventory.findings.extend(layout.findings.iter().cloned());
    nodes
}

struct ArtifactFiller<'a> {
    writer: InventoryWriter<'a>,
    layout: &'a Layout,
    within: Within,
    pinned_by: &'a PinnedBy<'a>,
    blobs: BTreeMap<&'a str, NodeIx>,
    /// Mount point of each mounted blob, by digest.
    mounted: BTreeMap<String, PathBuf>,
}

impl<'a> ArtifactFiller<'a> {
    fn unit(&mut self, unit: &'a LayoutUnit, tally: &Tally) -> NodeIx {
        let kind = match &unit.kind {
            ArtifactUnit::Blob(_) => NodeKind::Blob,
            ArtifactUnit::Temporary => NodeKind::Orphan,
            ArtifactUnit::Metadata => NodeKind::StoreMetadata,
            ArtifactUnit::Index => NodeKind::StoreRecords,
            ArtifactUnit::Other => NodeKind::Other,
        };
        let size = self.writer.size(0, tally);
        let node = self.writer.add(kind, &unit.id, 0, &unit.path, size);
        if kind == NodeKind::Blob {
            let facts = Box::new(self.facts(&unit.path, tally));
            self.writer.inventory[node].layer = Some(facts);
        }
        if let ArtifactUnit::Blob(digest) = &unit.kind {
            self.blobs.insert(digest, node);
        }
        let is_deletable = matches!(kind, NodeKind::Blob | NodeKind::Orphan);
        if self.layout.places.read_only || !is_deletable {
            self.writer.inventory.anchored.push(node);
        }
        node
    }

    fn facts(&self, path: &Path, tally: &Tally) -> LayerFacts {
        LayerFacts {
            created: self.since(path),
            listed_bytes: Some(tally.apparent_bytes),
            ..LayerFacts::default()
        }
    }

    /// Returns the creation time of a blob, or its modification time if that is later.
    fn since(&self, path: &Path) -> Option<Timestamp> {
        since::of_orphan(&self.within, Orphan::TempDirectory, path)
    }

    fn read_mounts(&mut self) {
        // A process without the permission to inspect all other processes cannot see their mounts. That is not an error
        // here: before a deletion they are read again, and then it is an error.
        let mounts = match Mounts::read(&[self.layout.directory().join(BLOBS)]) {
            Ok(mounts) => mounts,
            Err(error) => return tracing::debug!("mounts of artifacts cannot be seen: {error}"),
        };
        for digest in self.layout.blobs.keys() {
            let path = self.layout.path_of(digest);
            if let Some(user) = path.and_then(|path| mounts.user(&path, &[])) {
                self.mounted.insert(digest.clone(), user.mount.mount_point.clone());
            }
        }
    }

    fn artifacts(&mut self) {
        let layout = self.layout;
        for artifact in &layout.artifacts {
            let documents = artifact.reach.documents.iter();
            let rest = artifact.reach.blobs.iter().filter(|blob| !artifact.reach.documents.contains(blob));
            let holds: Vec<_> =
                documents.chain(rest).filter_map(|digest| self.blobs.get(digest.as_str()).copied()).collect();
            let layers = artifact
                .reach
                .layers
                .iter()
                .map(|layer| &layer.0)
                .filter(|digest| self.blobs.contains_key(digest.as_str()))
                .cloned();
            let digests = vec![artifact.digest.clone()];
            let born = layout.path_of(&artifact.digest).and_then(|path| self.since(&path));
            self.writer.inventory.images.push(Image {
                id: artifact.id().into(),
                store: self.writer.store,
                names: artifact.names.clone(),
                created: None,
                evidence: born
                    .map(|time| Evidence { kind: EvidenceKind::MetadataDirectory, at: time })
                    .into_iter()
                    .collect(),
                blobs: Vec::new(),
                origin: Origin::unknown("the origin of artifacts is not recorded"),
                is_list: false,
                pinned_by: (self.pinned_by)(&artifact.names, &digests),
                digests,
                labels: self.labels(artifact),
                listed_bytes: artifact.reach.listed_bytes(),
                layers: layers.map(Into::into).collect(),
                holds,
            });
        }
    }

    fn labels(&self, artifact: &Artifact) -> Labels {
        if !self.writer.reads_labels_of(artifact.id()) {
            return Labels::NotRead;
        }
        if artifact.reach.unread.contains(&artifact.digest) {
            Labels::Unknown("its manifest cannot be read".into())
        } else {
            Labels::Known(artifact.reach.annotations.clone())
        }
    }

    /// Adds the users of artifacts: containers by their records, then mounts of artifacts that no container uses.
    /// `first` is the position of the store's first artifact among the images of the inventory.
    fn users(&mut self, first: usize) {
        if self.layout.artifacts.is_empty() {
            return;
        }
        let mut used = HashSet::new();
        for user in users::of(&self.layout.places) {
            let positions = self.positions(|artifact| user.means(artifact));
            used.extend(positions.iter().copied());
            self.add_use(user.by, user.container, first, &positions);
        }
        for (digest, mount_point) in std::mem::take(&mut self.mounted) {
            let positions = self.positions(|artifact| artifact.reach.blobs.contains(&digest));
            if !positions.iter().any(|position| used.contains(position)) {
                self.add_use(format!("the mount at {}", mount_point.display()), None, first, &positions);
            }
            self.mounted.insert(digest, mount_point);
        }
    }

    fn positions(&self, test: impl Fn(&Artifact) -> bool) -> Vec<usize> {
        let artifacts = self.layout.artifacts.iter().enumerate();
        artifacts.filter(|(_, artifact)| test(artifact)).map(|(position, _)| position).collect()
    }

    fn add_use(&mut self, by: String, container: Option<String>, first: usize, artifacts: &[usize]) {
        let images: Vec<_> = artifacts.iter().map(|artifact| ImageIx::from(first + artifact)).collect();
        if !images.is_empty() {
            self.writer.inventory.uses.push(Use {
                by,
                container,
                images,
                holds: Vec::new(),
                is_listed: true,
            });
        }
    }

    fn leaks(&mut self, nodes: &[NodeIx]) {
        let layout = self.layout;
        let needed: HashSet<&str> =
            layout.artifacts.iter().flat_map(|artifact| &artifact.reach.blobs).map(String::as_str).collect();
        for (unit, node) in layout.units.iter().zip(nodes) {
            let digest = match &unit.kind {
                ArtifactUnit::Blob(digest) if !needed.contains(digest.as_str()) => Some(digest),
                ArtifactUnit::Temporary => None,
                _ => continue,
            };
            // The modification time is enough: no tool sets it back, and processes change the file only under the lock.
            let since = since::changed(&self.within, &unit.path);
            let known = ArtifactFacts {
                consistency: layout.consistency,
                is_locked: layout.is_locked,
                is_mounted: digest.is_some_and(|digest| self.mounted.contains_key(digest)),
                age: age(since, self.writer.present),
            };
            let judged = if digest.is_some() { leaks::orphan(known) } else { leaks::temporary(known) };
            self.writer.leak(judged, &unit.id, &unit.path, since, vec![*node]);
        }
        for artifact in &layout.artifacts {
            let missing = missing(artifact, layout);
            if !missing.is_empty() {
                let is_certain = layout.consistency == Consistency::Consistent && !layout.is_locked;
                let path = layout.path_of(&artifact.digest).unwrap_or_else(|| layout.directory());
                self.writer.leak(leaks::broken(&missing, is_certain), artifact.id(), &path, None, Vec::new());
            }
        }
    }
}

/// Returns the blobs of an artifact that are missing, or have another length than in the manifest.
///
/// An index may name platforms that were never pulled. Their manifests are not missing if at least one manifest is
/// there.
fn missing(artifact: &Artifact, layout: &Layout) -> Vec<String> {
    let unread = &artifact.reach.unread;
    let complete = artifact.reach.documents.iter().filter(|digest| !unread.contains(digest)).count();
    let has_manifest = !artifact.reach.layers.is_empty() || complete > 1;
    let mut missing = unread.clone();
    if has_manifest {
        missing.retain(|digest| *digest == artifact.digest);
    }
    for (digest, size) in &artifact.reach.layers {
        let is_missing = match layout.blobs.get(digest) {
            Some(length) => size.is_some_and(|size| size != *length),
            None => layout::split(digest).is_some(),
        };
        if is_missing {
            missing.push(digest.clone());
        }
    }
    missing
}
