//! Snapshots: from the key in `meta.db` via the snapshotter's own key to the directory.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Filler, qualified};
use crate::model::text::display::count as count_of;
use crate::model::{Consistency, Finding, LayerFacts, NodeIx, NodeKind, Size};
use crate::stores::containerd::metadata::snapshotter::SnapshotKind;
use crate::stores::containerd::snapshot::{Backend, FIRST_BACKEND_AREA};
use crate::sys::quiet::FileKind;

impl<'a> Filler<'a> {
    pub(super) fn snapshots(&mut self) {
        let snapshot = self.snapshot;
        let entries: HashMap<(&str, &str), (usize, usize)> = snapshot
            .backends
            .iter()
            .enumerate()
            .flat_map(|(backend_ix, backend)| {
                let entries = backend.snapshots.iter().enumerate();
                entries.map(move |(entry, found)| {
                    ((backend.name.as_str(), found.key.as_str()), (backend_ix, entry))
                })
            })
            .collect();
        let mut recorded: HashMap<(usize, usize), NodeIx> = HashMap::new();
        let measured: HashSet<&str> = snapshot
            .backends
            .iter()
            .filter(|backend| backend.known && backend.is_measured())
            .map(|backend| backend.name.as_str())
            .collect();
        for namespace in &snapshot.metadata.namespaces {
            for record in &namespace.snapshots {
                let snapshotter = record.snapshotter.as_str();
                let entry =
                    record.backend.as_deref().and_then(|key| entries.get(&(snapshotter, key))).copied();
                let node = match entry.and_then(|entry| self.directories.get(&entry).copied()) {
                    Some(node) => node,
                    None => self.without_directory(snapshotter, entry),
                };
                let kind =
                    entry.and_then(|(backend_ix, entry)| snapshot.backends[backend_ix].snapshots[entry].kind);
                let (name, primary) = (namespace.name.as_str(), self.primary);
                let made = &mut self.writer.inventory[node];
                made.id = id_of(name, snapshotter, &record.key, primary);
                made.layer = Some(Box::new(LayerFacts {
                    // The same id as that of the parent's node, if there is one.
                    parent: record.parent.as_deref().map(|key| id_of(name, snapshotter, key, primary)),
                    created: record.created,
                    read_write: kind == Some(SnapshotKind::Active),
                    snapshotter: Some(record.snapshotter.clone()),
                    is_unmeasured: !measured.contains(snapshotter),
                    elsewhere: None,
                    ..LayerFacts::default()
                }));
                self.snapshots.insert((namespace.name.as_str(), snapshotter, record.key.as_str()), node);
                recorded.extend(entry.map(|entry| (entry, node)));
            }
        }
        self.edges();
        self.entries_alone(&entries, &recorded);
    }

    /// Connects layers with their content in a cache. The content is not deleted with an image, whichever image uses
    /// it. Content that no layer uses is reported, because it belongs to the owner of the cache; unless the file of
    /// some layer is unknown.
    pub(super) fn cached_layers(&mut self) {
        let mut used = HashSet::new();
        for ((backend_ix, id), diff_id) in &self.snapshot.cached_layers {
            let entry =
                self.snapshot.backends[*backend_ix].snapshots.iter().position(|found| found.id == *id);
            let holder = entry.and_then(|entry| self.directories.get(&(*backend_ix, entry)).copied());
            for node in self.cached.get(diff_id).into_iter().flatten().copied() {
                used.insert(node);
                // Added after its parent, which must be the first need of a snapshot.
                holder.into_iter().for_each(|holder| self.writer.inventory[holder].needs.push(node));
            }
        }
        self.writer.inventory.anchored.extend(&used);
        for (diff_id, nodes) in std::mem::take(&mut self.cached) {
            for node in nodes.into_iter().filter(|node| !used.contains(node)) {
                let all_users_are_known =
                    !self.snapshot.more_cached_layers && self.snapshot.consistency != Consistency::Damaged;
                if self.writer.leaks && all_users_are_known {
                    self.unused_cache_entry(&diff_id, node);
                } else {
                    self.writer.inventory.anchored.push(node);
                }
            }
        }
    }

    /// Reports snapshotters whose snapshots are recorded, but have no directory that could be measured. A database
    /// that cannot be read is reported already.
    pub(super) fn unmeasured_snapshots(&mut self) {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let namespaces = self.snapshot.metadata.namespaces.iter();
        for record in namespaces.flat_map(|namespace| &namespace.snapshots) {
            *counts.entry(&record.snapshotter).or_default() += 1;
        }
        for (name, count) in counts {
            let backend = self.snapshot.backends.iter().find(|backend| backend.name == name);
            if backend.is_some_and(Backend::is_measured) {
                continue;
            }
            let message = format!(
                "{} of the snapshotter {name} not measured: their bytes are outside this directory or in a layout that \
                 layersweep does not know, and what deleting an image frees is unknown",
                count_of(count, "snapshot is", "snapshots are"),
            );
            let path = backend.map_or(&self.snapshot.places.root, |backend| &backend.directory);
            self.writer.inventory.findings.push(Finding::incomplete(path, message));
        }
    }

    /// Reports snapshots with a symlink in place of the directory `fs`. Their content is elsewhere, in a layout that
    /// is not supported here (planned for containerd: `<root>/cache`), and none of its bytes are counted with them.
    pub(super) fn content_elsewhere(&mut self) {
        /// Inodes of a snapshot without content: its directory, `fs` and `work`.
        const BARE: u64 = 3;
        let mut counts = vec![0_usize; self.snapshot.backends.len()];
        for ((backend_ix, _), node) in &self.directories {
            let node = &self.writer.inventory[*node];
            let is_bare = (1..=BARE).contains(&node.size.inodes);
            if is_bare {
                let fs = self.snapshot.within.facts(&node.path.join("fs"));
                if !fs.is_ok_and(|facts| facts.kind == FileKind::Symlink) {
                    continue;
                }
                counts[*backend_ix] += 1;
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

    /// Creates a node for a record without a directory, which is still part of its chain.
    fn without_directory(&mut self, snapshotter: &str, entry: Option<(usize, usize)>) -> NodeIx {
        let backends = &self.snapshot.backends;
        let backend_ix = backends.iter().position(|backend| backend.name == snapshotter);
        let path = match (backend_ix, entry) {
            (Some(backend_ix), Some((_, entry))) => {
                backends[backend_ix].place(&backends[backend_ix].snapshots[entry])
            }
            (Some(backend_ix), None) => backends[backend_ix].directory.clone(),
            (None, _) => self.snapshot.places.root.clone(),
        };
        let area = backend_ix.map_or(0, |backend_ix| FIRST_BACKEND_AREA + backend_ix);
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

    /// Adds snapshots without a record in any namespace. They keep their chain, because their snapshotter does not
    /// delete a parent before its children.
    fn entries_alone(
        &mut self,
        entries: &HashMap<(&str, &str), (usize, usize)>,
        recorded: &HashMap<(usize, usize), NodeIx>,
    ) {
        let snapshot = self.snapshot;
        for ((backend_ix, entry), node) in self.directories.clone() {
            if recorded.contains_key(&(backend_ix, entry)) {
                continue;
            }
            let backend = &snapshot.backends[backend_ix];
            let found = &backend.snapshots[entry];
            let parent = found
                .parent
                .as_deref()
                .and_then(|key| entries.get(&(backend.name.as_str(), key)))
                .and_then(|entry| self.directories.get(entry))
                .copied();
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
            if snapshot.consistency != Consistency::Damaged {
                self.unknown_entry(backend_ix, entry, node);
            }
        }
    }
}

/// Returns the id of a snapshot's node: its key, with the snapshotter's name unless it is the `primary` one.
fn id_of(namespace: &str, snapshotter: &str, key: &str, primary: &str) -> String {
    if snapshotter == primary {
        qualified(namespace, key)
    } else {
        qualified(namespace, &format!("{snapshotter}/{key}"))
    }
}
