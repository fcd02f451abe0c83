//! Snapshots: from the key in `meta.db` via the snapshotter's own key to the directory.

use std::collections::{HashMap, HashSet};

use super::{Filler, qualified};
use crate::model::display::count as count_of;
use crate::model::{Finding, LayerFacts, NodeIx, NodeKind, Size};
use crate::stores::containerd::metadata::snapshotter::SnapshotKind;
use crate::stores::containerd::snapshot::FIRST_BACKEND_AREA;
use crate::sys::quiet::FileKind;

impl<'a> Filler<'a> {
    /// Makes a node of every snapshot record, and ties them together.
    pub(super) fn snapshots(&mut self) {
        let snapshot = self.snapshot;
        let entries: HashMap<(&str, &str), (usize, usize)> = snapshot
            .backends
            .iter()
            .enumerate()
            .flat_map(|(at, backend)| {
                let entries = backend.snapshots.iter().enumerate();
                entries.map(move |(entry, found)| ((backend.name.as_str(), found.key.as_str()), (at, entry)))
            })
            .collect();
        let mut recorded: HashMap<(usize, usize), NodeIx> = HashMap::new();
        for namespace in &snapshot.metadata.namespaces {
            for record in &namespace.snapshots {
                let snapshotter = record.snapshotter.as_str();
                let entry =
                    record.backend.as_deref().and_then(|key| entries.get(&(snapshotter, key))).copied();
                let node = match entry.and_then(|entry| self.directories.get(&entry).copied()) {
                    Some(node) => node,
                    None => self.without_directory(snapshotter, entry),
                };
                let kind = entry.and_then(|(at, entry)| snapshot.backends[at].snapshots[entry].kind);
                let id = |key: &str| match snapshotter == self.primary {
                    true => qualified(&namespace.name, key),
                    false => qualified(&namespace.name, &format!("{snapshotter}/{key}")),
                };
                let made = &mut self.writer.inventory[node];
                made.id = id(&record.key);
                made.layer = Some(Box::new(LayerFacts {
                    // As its node is called, if there is one.
                    parent: record.parent.as_deref().map(id),
                    created: record.created,
                    read_write: kind == Some(SnapshotKind::Active),
                    snapshotter: Some(record.snapshotter.clone()),
                    ..LayerFacts::default()
                }));
                self.snapshots.insert((namespace.name.as_str(), snapshotter, record.key.as_str()), node);
                recorded.extend(entry.map(|entry| (entry, node)));
            }
        }
        self.edges();
        self.entries_alone(&entries, &recorded);
    }

    /// Layers whose content is in a cache. It is not deleted with an image and stays whoever
    /// reaches it. What no layer names is the cache's owner's, to be told of; unless some layer's file
    /// is not known.
    pub(super) fn cached_layers(&mut self) {
        let mut used = HashSet::new();
        for ((at, id), diff_id) in &self.snapshot.cached_layers {
            let entry = self.snapshot.backends[*at].snapshots.iter().position(|found| found.id == *id);
            let holder = entry.and_then(|entry| self.directories.get(&(*at, entry)).copied());
            for node in self.cached.get(diff_id).into_iter().flatten().copied() {
                used.insert(node);
                // Behind its parent, which is what a snapshot needs first.
                holder.into_iter().for_each(|holder| self.writer.inventory[holder].needs.push(node));
            }
        }
        self.writer.inventory.anchored.extend(&used);
        for (diff_id, nodes) in std::mem::take(&mut self.cached) {
            for node in nodes.into_iter().filter(|node| !used.contains(node)) {
                match self.writer.leaks && !self.snapshot.more_cached_layers {
                    true => self.unused_cache_entry(&diff_id, node),
                    false => self.writer.inventory.anchored.push(node),
                }
            }
        }
    }

    /// Snapshots with a symlink in place of the directory `fs`: their content is elsewhere, in a layout that is not
    /// known here (planned for containerd: `<root>/cache`), and no byte of it is counted with them.
    pub(super) fn content_elsewhere(&mut self) {
        /// Inodes of a snapshot without content: its directory, `fs` and `work`.
        const BARE: u64 = 3;
        let mut counts = vec![0_usize; self.snapshot.backends.len()];
        for ((at, _), node) in &self.directories {
            let node = &self.writer.inventory[*node];
            let is_bare = (1..=BARE).contains(&node.size.inodes);
            let fs = || self.snapshot.within.facts(&node.path.join("fs"));
            if is_bare && fs().is_ok_and(|facts| facts.kind == FileKind::Symlink) {
                counts[*at] += 1;
            }
        }
        for (backend, count) in self.snapshot.backends.iter().zip(counts).filter(|(_, count)| *count > 0) {
            let message = format!(
                "{} a symlink in place of `fs`: a layout that layersweep does not know; their content is not counted",
                count_of(count, "snapshot has", "snapshots have")
            );
            self.writer.inventory.findings.push(Finding::incomplete(&backend.directory, message));
        }
    }

    /// A record without a directory still has a place in the chains.
    fn without_directory(&mut self, snapshotter: &str, entry: Option<(usize, usize)>) -> NodeIx {
        let backends = &self.snapshot.backends;
        let at = backends.iter().position(|backend| backend.name == snapshotter);
        let path = match (at, entry) {
            (Some(at), Some((_, entry))) => {
                let id = backends[at].snapshots[entry].id.to_string();
                backends[at].data.join("snapshots").join(id)
            }
            (Some(at), None) => backends[at].directory.clone(),
            (None, _) => self.snapshot.places.root.clone(),
        };
        let area = at.map_or(0, |at| FIRST_BACKEND_AREA + at);
        self.writer.add(NodeKind::Snapshot, "", area, &path, Size::default())
    }

    fn edges(&mut self) {
        for (namespace, graph) in self.graphs {
            for record in &namespace.snapshots {
                let key = (namespace.name.as_str(), record.snapshotter.as_str(), record.key.as_str());
                let needs = self.nodes(namespace, &graph.needs(record.into()));
                if let Some(node) = self.snapshots.get(&key) {
                    self.writer.inventory[*node].needs = needs;
                }
            }
        }
    }

    /// Entries that no namespace knows: their snapshotter does not remove a parent before
    /// its children, so they keep their chain.
    fn entries_alone(
        &mut self,
        entries: &HashMap<(&str, &str), (usize, usize)>,
        recorded: &HashMap<(usize, usize), NodeIx>,
    ) {
        let snapshot = self.snapshot;
        for ((at, entry), node) in self.directories.clone() {
            if recorded.contains_key(&(at, entry)) {
                continue;
            }
            let backend = &snapshot.backends[at];
            let found = &backend.snapshots[entry];
            let parent = found.parent.as_deref().and_then(|key| entries.get(&(backend.name.as_str(), key)));
            let parent = parent.and_then(|entry| self.directories.get(entry)).copied();
            let name = parent.map(|parent| self.writer.inventory[parent].id.clone());
            let made = &mut self.writer.inventory[node];
            made.needs.extend(parent);
            made.layer = Some(Box::new(LayerFacts {
                parent: name.or_else(|| found.parent.clone()),
                created: found.created,
                read_write: found.kind == Some(SnapshotKind::Active),
                snapshotter: Some(backend.name.clone()),
                ..LayerFacts::default()
            }));
            self.unknown_entry(at, entry, node);
        }
    }
}
