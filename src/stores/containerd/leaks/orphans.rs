//! Files without a record, and incomplete downloads.

use std::collections::HashSet;

use jiff::Timestamp;

use crate::model::{LeakClass, NodeIx, Verdict};
use crate::stores::containerd::fill::{Filler, qualified};
use crate::stores::containerd::metadata::Namespace;
use crate::stores::containerd::units::{ContainerdOrphan, ContainerdUnit, RootUnit};
use crate::stores::leaks::Judgement;

/// Returns the class and the evidence of an object without a record.
fn class_of(orphan: ContainerdOrphan) -> (LeakClass, &'static str) {
    match orphan {
        ContainerdOrphan::Blob => (
            LeakClass::Garbage,
            "no namespace has a record of this blob; containerd deletes it with the next blob",
        ),
        ContainerdOrphan::BlobName => (
            LeakClass::StrayBlobName,
            "this name is not a digest: containerd's deletion of blobs stops here, so blobs that sort after \
             it stay on the disk although every removal reports success; move it out of the directory",
        ),
        ContainerdOrphan::Ingest => (
            LeakClass::Garbage,
            "no namespace has a record of this download; containerd deletes it with the next content",
        ),
        ContainerdOrphan::IngestWithoutRef => (
            LeakClass::NeverCollected,
            "a download without its file `ref`, left by a crash or a full disk; containerd never deletes it: remove \
             its directory while containerd is stopped",
        ),
        ContainerdOrphan::SnapshotDirectory => (
            LeakClass::Garbage,
            "the snapshotter's database does not have this snapshot; it is deleted with the next snapshot",
        ),
        ContainerdOrphan::SnapshotterDirectory => (
            LeakClass::NeverCollected,
            "a snapshotter's directory, but no namespace has a snapshot of it: remove it if that snapshotter is not \
             used any more",
        ),
        ContainerdOrphan::TmpMount => (
            LeakClass::NeverCollected,
            "a mount point for unpacking that holds files but has nothing mounted: remove the files while nothing is \
             mounted there",
        ),
        ContainerdOrphan::Container => (
            LeakClass::ContainerDir,
            "no record of this container; containerd deletes the directory when it starts",
        ),
    }
}

impl<'a> Filler<'a> {
    pub(crate) fn orphans(&mut self, units: &[RootUnit], nodes: &[NodeIx]) {
        for (unit, node) in units.iter().zip(nodes) {
            let ContainerdUnit::Orphan(orphan) = unit.kind else { continue };
            if orphan == ContainerdOrphan::TmpMount && self.writer.inventory[*node].size.inodes <= 1 {
                // Empty mount points are normal.
                self.writer.inventory.anchored.push(*node);
                continue;
            }
            let seen = self.snapshot.unknown_since.get(&unit.path).copied();
            let since = seen.flatten();
            let mounted = self.writer.is_mounted(&unit.path);
            let confirmed = seen.is_some() || self.snapshot.places.foreign;
            let verdict = if confirmed && !mounted { self.verdict(since) } else { Verdict::Keep };
            let (class, evidence) = class_of(orphan);
            let evidence = match (mounted, verdict) {
                (true, _) => "in use: something is mounted on it".to_owned(),
                (false, Verdict::Keep) => format!("{evidence}; it may be work in progress: look again later"),
                _ => evidence.to_owned(),
            };
            let judged = Judgement { class, verdict, evidence };
            self.writer.leak(judged, &unit.id, &unit.path, since, vec![*node]);
        }
    }

    /// Adds a snapshot that is recorded only in its snapshotter's database.
    pub(crate) fn unknown_entry(&mut self, backend: usize, entry: usize, node: NodeIx) {
        let found = &self.snapshot.backends[backend].snapshots[entry];
        let name = &self.snapshot.backends[backend].name;
        let evidence = "the snapshotter knows it, but no namespace of meta.db does; it is deleted with the \
                        next snapshot, unless its parent is missing";
        let judged = self.judged(LeakClass::Garbage, found.created, evidence);
        let path = self.writer.inventory[node].path.clone();
        self.writer.leak(judged, &format!("{name}/{}", found.key), &path, found.created, vec![node]);
    }

    pub(crate) fn unused_cache_entry(&mut self, diff_id: &str, node: NodeIx) {
        let path = self.writer.inventory[node].path.clone();
        let since = self.snapshot.within.facts(&path).ok().and_then(|facts| facts.modified);
        let evidence = "no snapshot of this containerd uses this file of a layer cache; containerd never \
                        deletes from the cache, and another machine or program may use the file: remove it if \
                        nothing else uses the cache";
        let judged = self.judged(LeakClass::NeverCollected, since, evidence);
        self.writer.leak(judged, diff_id, &path, since, vec![node]);
    }

    /// Returns the time at which a download last grew.
    pub(crate) fn ingest_modified(&self, namespace: &Namespace, key: &str) -> Option<Timestamp> {
        let record = namespace.ingests.iter().find(|ingest| ingest.key == key)?;
        let mut directories = self.snapshot.ingests.iter();
        directories
            .find(|directory| directory.backend_ref.is_some() && directory.backend_ref == record.backend_ref)?
            .modified
    }

    /// Adds downloads with a record: in progress, or abandoned by their writer. One that a listed lease holds is part of
    /// that lease, and counts once.
    pub(crate) fn ingests(&mut self) {
        let listed: HashSet<_> =
            self.writer.inventory.leaks.iter().flat_map(|leak| &leak.holds).copied().collect();
        for namespace in &self.snapshot.metadata.namespaces {
            for record in &namespace.ingests {
                let node =
                    record.backend_ref.as_deref().and_then(|backend_ref| self.ingests.get(backend_ref));
                let Some(node) = node.copied().filter(|node| !listed.contains(node)) else {
                    continue;
                };
                let modified = self.ingest_modified(namespace, &record.key);
                let judged = if self.in_flight(modified) {
                    self.judged(LeakClass::UnfinishedPull, modified, "a download that is still growing")
                } else {
                    let until = match record.expires {
                        Some(end) if end > self.writer.present.now() => {
                            format!("containerd keeps it until {end}")
                        }
                        Some(end) => format!("it expired at {end}"),
                        None => "only a lease holds it".to_owned(),
                    };
                    let evidence = format!("a download that has stopped growing; {until}");
                    self.judged(LeakClass::UnfinishedPull, modified, evidence)
                };
                let path = self.writer.inventory[node].path.clone();
                let id = qualified(&namespace.name, &record.key);
                self.writer.leak(judged, &id, &path, modified, vec![node]);
            }
        }
    }
}
