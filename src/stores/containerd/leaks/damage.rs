//! Records without files, truncated files, and redundant copies.

use std::collections::{BTreeMap, HashSet};

use crate::model::text::display;
use crate::model::text::display::shell_word;
use crate::model::{LeakClass, NodeKind, Verdict, is_for_ctr, is_of_docker};
use crate::stores::containerd::fill::images::{ImageGroup, ImageGroups};
use crate::stores::containerd::fill::{Filler, KUBERNETES, qualified};
use crate::stores::containerd::gc::Ref;
use crate::stores::containerd::places::PLAIN;
use crate::stores::leaks::Judgement;
use crate::sys::quiet;

/// Returns true for a database that is much longer than its content, and long enough to matter.
fn is_oversized(used: u64, length: u64) -> bool {
    length >= 32 << 20 && used <= length / 4
}

impl<'a> Filler<'a> {
    fn report(&mut self, class: LeakClass, id: &str, evidence: String) {
        let verdict = if self.records_are_whole() { Verdict::Report } else { Verdict::Keep };
        self.writer.leak(Judgement { class, verdict, evidence }, id, &self.meta_db(), None, Vec::new());
    }

    /// Adds images without some of their blobs, truncated blobs, snapshots without a directory, and containers that
    /// CRI does not know.
    pub(crate) fn damage(&mut self, groups: &ImageGroups<'a>) {
        for group in &groups.all {
            self.image_damage(group);
        }
        self.short_blobs();
        self.snapshots_without_directory();
        self.containers_without_cri();
        self.oversized_databases();
    }

    /// Adds databases that are mostly empty: bolt never returns pages to the filesystem.
    fn oversized_databases(&mut self) {
        for (path, used, length) in &self.snapshot.databases {
            if !is_oversized(*used, *length) {
                continue;
            }
            let evidence = format!(
                "{used} of its {length} bytes are in use; the file never shrinks by itself: stop containerd \
                 and run `bbolt compact`"
            );
            let name = path.strip_prefix(&self.snapshot.places.root).unwrap_or(path).display().to_string();
            let judged = Judgement::of(LeakClass::OversizedDatabase, evidence).with(Verdict::Report);
            self.writer.leak(judged, &name, path, None, Vec::new());
        }
    }

    fn image_damage(&mut self, group: &ImageGroup<'a>) {
        let names = group.names.iter().map(|name| name.name.as_str()).collect::<Vec<_>>().join(", ");
        if let Some(digest) = group.resolved.missing.first() {
            let namespace = group.namespace.name.as_str();
            let remove = if is_for_ctr(namespace) {
                let names: Vec<_> = group.names.iter().map(|name| shell_word(&name.name)).collect();
                format!("`ctr -n {namespace} images rm {}` removes it", names.join(" "))
            } else {
                "remove it with the program that made it".to_owned()
            };
            let evidence = format!(
                "{names}: the blob {digest} is missing: CRI can neither show nor remove the image, and \
                 containerd keeps the rest of it; {remove}"
            );
            return self.report(LeakClass::BrokenImage, &group.id, evidence);
        }
        let mut graphs = self.graphs.iter();
        let found = graphs.find(|(namespace, _)| namespace.name == group.namespace.name);
        let Some((_, graph)) = found else { return };
        // A layer without a record was never fetched, or deleted on purpose.
        let lost: Vec<_> = group
            .resolved
            .layers
            .iter()
            .filter(|layer| {
                graph.blob(&layer.digest).is_some() && !self.snapshot.blobs.contains_key(&layer.digest)
            })
            .map(|layer| layer.digest.clone())
            .collect();
        let unpacked =
            group.tops.iter().any(|(snapshotter, key)| graph.exists(Ref::Snapshot(snapshotter, key)));
        if !lost.is_empty() {
            let effect = if unpacked {
                "its snapshots exist, so containers can run on it; it cannot be pushed or unpacked again"
            } else {
                "it is not unpacked: pulling or starting it fails until the record is removed"
            };
            let evidence = format!("{names}: the record of layer {} has no file; {effect}", lost.join(", "));
            self.report(LeakClass::BrokenImage, &group.id, evidence);
        }
        if !unpacked && !group.tops.is_empty() {
            let evidence = format!("{names}: it was unpacked, but its top snapshot has no record");
            self.report(LeakClass::BrokenImage, &group.id, evidence);
        }
    }

    fn short_blobs(&mut self) {
        let mut seen = HashSet::new();
        for blob in self.snapshot.metadata.namespaces.iter().flat_map(|namespace| &namespace.blobs) {
            let (Some(Some(file)), Some(size)) = (self.snapshot.blobs.get(&blob.digest), blob.size) else {
                continue;
            };
            if file.length == size || !seen.insert(&blob.digest) {
                continue;
            }
            let node = self.blobs.get(blob.digest.as_str());
            let path = node.map_or_else(|| self.meta_db(), |node| self.writer.inventory[*node].path.clone());
            let evidence = format!(
                "{} bytes, but its record says {size}: unpacking it fails until its images are removed and pulled again",
                file.length
            );
            let judged = Judgement::of(LeakClass::Inconsistent, evidence).with(Verdict::Report);
            self.writer.leak(judged, &blob.digest, &path, file.modified, Vec::new());
        }
    }

    fn snapshots_without_directory(&mut self) {
        for (namespace, _) in self.graphs {
            for record in &namespace.snapshots {
                // While an unpacked snapshot is committed, its entry already has the new name and its record still
                // the old one.
                if self.in_flight(record.created) {
                    continue;
                }
                let known = self.snapshot.backends.iter().find(|backend| backend.name == record.snapshotter);
                // If the snapshotter's database cannot be read, nothing is known about the snapshot.
                let Some(backend) = known.filter(|backend| backend.known) else { continue };
                let node = self.node(namespace, record.into());
                let Some(node) = node.map(|node| &self.writer.inventory[node]) else { continue };
                let is_plain = PLAIN.contains(&backend.name.as_str());
                if node.kind != NodeKind::Snapshot || node.size.inodes > 0 || !is_plain {
                    continue;
                }
                let missing = if node.path == backend.directory {
                    "no entry in its snapshotter"
                } else if quiet::facts(&node.path).is_ok() {
                    continue;
                } else {
                    "no directory"
                };
                let evidence = format!(
                    "the snapshot is recorded but has {missing}: containers on it do not start until its image \
                     is removed and pulled again"
                );
                self.report(LeakClass::Inconsistent, &node.id.clone(), evidence);
            }
        }
    }

    /// Adds containers in CRI's namespace that CRI does not know; another program left them there.
    fn containers_without_cri(&mut self) {
        let Some(namespace) = self.snapshot.metadata.namespace(KUBERNETES) else { return };
        for record in namespace.containers.iter().filter(|record| record.cri.is_none()) {
            if !self.is_mounted(namespace, &record.id) {
                let id = shell_word(&record.id);
                let evidence = format!(
                    "a container in CRI's namespace that CRI does not know; nothing of it is mounted: `ctr -n k8s.io \
                     containers rm {id}`"
                );
                let judged = self.judged(LeakClass::ForgottenContainer, record.created, evidence);
                self.writer.leak(judged, &record.id, &self.meta_db(), record.created, Vec::new());
            }
        }
    }

    /// Adds namespaces and snapshotters whose images and snapshots CRI does not see.
    pub(crate) fn other_namespaces(&mut self, groups: &ImageGroups<'a>) {
        let cri_is_used = self
            .snapshot
            .metadata
            .namespace(KUBERNETES)
            .is_some_and(|namespace| !namespace.images.is_empty());
        if !cri_is_used {
            return;
        }
        for namespace in
            self.snapshot.metadata.namespaces.iter().filter(|namespace| namespace.name != KUBERNETES)
        {
            let images = groups.all.iter().filter(|group| group.namespace.name == namespace.name).count();
            let snapshots = namespace.snapshots.len();
            if images + snapshots > 0 {
                let owner = match namespace.name.as_str() {
                    name if is_of_docker(name) => " of Docker",
                    name if name.starts_with("buildkit") => " of BuildKit",
                    _ => "",
                };
                let evidence = format!(
                    "{} and {}{owner} that neither CRI nor the kubelet sees",
                    display::count(images, "image", "images"),
                    display::count(snapshots, "snapshot", "snapshots")
                );
                self.report(LeakClass::ForeignNamespace, &namespace.name, evidence);
            }
        }
        for namespace in &self.snapshot.metadata.namespaces {
            // Number and bytes of the snapshots; the bytes are unknown if one was not measured.
            let mut by_snapshotter: BTreeMap<&str, (usize, Option<u64>)> = BTreeMap::new();
            for record in &namespace.snapshots {
                let node = self.node(namespace, record.into()).map(|node| &self.writer.inventory[node]);
                let is_unmeasured =
                    node.and_then(|node| node.layer.as_ref()).is_some_and(|layer| layer.is_unmeasured);
                let bytes = (!is_unmeasured).then(|| node.map_or(0, |node| node.size.bytes));
                let of_this = by_snapshotter.entry(&record.snapshotter).or_insert((0, Some(0_u64)));
                *of_this =
                    (of_this.0 + 1, of_this.1.zip(bytes).map(|(sum, bytes)| sum.saturating_add(bytes)));
            }
            let used: HashSet<_> = namespace
                .containers
                .iter()
                .filter_map(|container| container.snapshotter.as_deref())
                .collect();
            for (snapshotter, (count, bytes)) in by_snapshotter {
                if snapshotter != self.primary && !used.contains(snapshotter) {
                    let evidence = format!(
                        "{}{} that no container uses: copies of the same layers; their bytes are counted with \
                         the images that they belong to and are freed with them",
                        display::count(count, "snapshot", "snapshots"),
                        bytes.map_or_else(String::new, |bytes| format!(" of {}", display::bytes(bytes)))
                    );
                    let id = qualified(&namespace.name, snapshotter);
                    self.report(LeakClass::ForeignNamespace, &id, evidence);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_oversized;

    #[test]
    fn only_long_and_empty_databases_are_oversized() {
        for (used, length, expected) in [
            (1, 1 << 20, false),
            (17 << 20, 68 << 20, true),
            (18 << 20, 68 << 20, false),
            (0, 32 << 20, true),
        ] {
            assert_eq!(is_oversized(used, length), expected, "{used} of {length}");
        }
    }
}
