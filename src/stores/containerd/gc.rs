//! What containerd's garbage collection would keep, and for which root. Pure.
//!
//! containerd marks from roots (images, leases, containers, ingests, labels) along edges,
//! most of which are labels, and never leaves the namespace. Blobs are shared between
//! namespaces but each namespace has its own edges for them, so a blob cannot simply
//! *need* other nodes: here everything that a root reaches through blobs is listed for the
//! root itself, down to the snapshots. Only snapshots, which belong to one namespace each,
//! have needs of their own. Rules: containerd's `metadata/gc.go`, 1.6 to 2.3.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;

use super::metadata::{
    BlobRecord, ContainerRecord, ImageRecord, IngestRecord, Labels, LeaseRecord, Namespace, SandboxRecord,
    SnapshotRecord,
};

const ROOT: &str = "containerd.io/gc.root";
const EXPIRE: &str = "containerd.io/gc.expire";
const FLAT: &str = "containerd.io/gc.flat";
const CONTENT_REF: &str = "containerd.io/gc.ref.content";
const IMAGE_REF: &str = "containerd.io/gc.ref.image";
const SNAPSHOT_REF: &str = "containerd.io/gc.ref.snapshot.";
/// 2.3: `<condition>|<key>`. What may be held counts as held.
const SNAPSHOT_IF: &str = "containerd.io/gc.cond.snapshot.";
/// 2.2: on a child, naming who holds it.
const BACK: &str = "containerd.io/gc.bref.";

/// An object that the garbage collection marks, inside one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ref<'a> {
    /// A blob, by digest.
    Content(&'a str),
    /// A snapshot, by snapshotter and key.
    Snapshot(&'a str, &'a str),
    /// A download, by its key.
    Ingest(&'a str),
    /// An image, by name.
    Image(&'a str),
    /// A container, by id. It is a root, and never marked by others.
    Container(&'a str),
}

/// How long a lease holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// Until it is deleted.
    Unlimited,
    /// Until then.
    Until(Timestamp),
    /// Expired, but its record still exists.
    Expired(Timestamp),
}

/// The edges of one namespace.
#[derive(Debug)]
pub struct Graph<'a> {
    namespace: &'a Namespace,
    images: HashMap<&'a str, &'a ImageRecord>,
    blobs: HashMap<&'a str, &'a BlobRecord>,
    ingests: HashMap<&'a str, &'a IngestRecord>,
    snapshots: HashMap<(&'a str, &'a str), &'a SnapshotRecord>,
    /// An image whose time is over is not a root (containerd 2.0 and later).
    images_expire: bool,
    /// Edges that stand at their target.
    back: HashMap<Ref<'a>, Vec<Ref<'a>>>,
}

impl<'a> Graph<'a> {
    /// The edges of `namespace`.
    #[must_use]
    pub fn new(namespace: &'a Namespace, images_expire: bool) -> Self {
        let mut graph = Self {
            namespace,
            images: namespace.images.iter().map(|image| (image.name.as_str(), image)).collect(),
            blobs: namespace.blobs.iter().map(|blob| (blob.digest.as_str(), blob)).collect(),
            ingests: namespace.ingests.iter().map(|ingest| (ingest.key.as_str(), ingest)).collect(),
            snapshots: namespace.snapshots.iter().map(|one| (key_of(one), one)).collect(),
            images_expire,
            back: HashMap::new(),
        };
        for blob in &namespace.blobs {
            graph.back_edges(Ref::Content(&blob.digest), &blob.labels);
        }
        for snapshot in &namespace.snapshots {
            let (snapshotter, key) = key_of(snapshot);
            graph.back_edges(Ref::Snapshot(snapshotter, key), &snapshot.labels);
        }
        for image in &namespace.images {
            graph.back_edges(Ref::Image(&image.name), &image.labels);
        }
        graph
    }

    /// When an image expired, if it has: its record waits for the next
    /// collection.
    #[must_use]
    pub fn expired(&self, image: &ImageRecord, now: Timestamp) -> Option<Timestamp> {
        match term_of(&image.labels, now) {
            Term::Expired(end) if self.images_expire => Some(end),
            _ => None,
        }
    }

    fn back_edges(&mut self, child: Ref<'a>, labels: &'a Labels) {
        for (label, value) in labels {
            let Some(rest) = label.strip_prefix(BACK) else { continue };
            let (kind, detail) = rest.split_once('.').unwrap_or((rest, ""));
            let kind = kind.split('/').next().unwrap_or(kind);
            let holder = match kind {
                "content" => Ref::Content(value),
                "image" => Ref::Image(value),
                "container" => Ref::Container(value),
                "snapshot" => Ref::Snapshot(before_slash(detail), value),
                _ => continue,
            };
            self.back.entry(holder).or_default().push(child);
        }
    }

    /// The record of a blob.
    #[must_use]
    pub fn blob(&self, digest: &str) -> Option<&'a BlobRecord> {
        self.blobs.get(digest).copied()
    }

    /// The record of a snapshot.
    #[must_use]
    pub fn snapshot(&self, snapshotter: &str, key: &str) -> Option<&'a SnapshotRecord> {
        self.snapshots.get(&(snapshotter, key)).copied()
    }

    /// What an image holds.
    #[must_use]
    pub fn image(&self, image: &'a ImageRecord) -> Vec<Ref<'a>> {
        self.reach(self.edges(Ref::Image(&image.name)))
    }

    /// What a container holds: its writable snapshot, and what its labels name.
    #[must_use]
    pub fn container(&self, container: &'a ContainerRecord) -> Vec<Ref<'a>> {
        let mut start = label_edges(&container.labels);
        if let (Some(snapshotter), Some(key)) = (&container.snapshotter, &container.snapshot_key) {
            start.push(Ref::Snapshot(snapshotter, key));
        }
        start.extend(self.back.get(&Ref::Container(&container.id)).into_iter().flatten());
        self.reach(start)
    }

    /// What a sandbox of containerd's own sandbox store holds.
    #[must_use]
    pub fn sandbox(&self, sandbox: &'a SandboxRecord) -> Vec<Ref<'a>> {
        self.reach(label_edges(&sandbox.labels))
    }

    /// What a lease holds. A flat lease holds what it lists and no more; snapshots bring
    /// their parents in any case.
    #[must_use]
    pub fn lease(&self, lease: &'a LeaseRecord) -> Vec<Ref<'a>> {
        let content = lease.content.iter().map(|digest| Ref::Content(digest));
        let snapshots = lease.snapshots.iter().map(|(snapshotter, key)| Ref::Snapshot(snapshotter, key));
        let ingests = lease.ingests.iter().map(|key| Ref::Ingest(key));
        let images = lease.images.iter().map(|name| Ref::Image(name));
        let start: Vec<_> = content.chain(snapshots).chain(ingests).chain(images).collect();
        if lease.labels.contains_key(FLAT) {
            start.into_iter().filter(|one| self.exists(*one)).collect()
        } else {
            self.reach(start)
        }
    }

    /// What a blob holds that is a root by its label, itself included; empty if it is none.
    #[must_use]
    pub fn rooted_blob(&self, blob: &'a BlobRecord) -> Vec<Ref<'a>> {
        if is_root(&blob.labels) { self.reach(vec![Ref::Content(&blob.digest)]) } else { Vec::new() }
    }

    /// What a snapshot holds that is a root by its label; empty if it is none.
    #[must_use]
    pub fn rooted_snapshot(&self, snapshot: &'a SnapshotRecord) -> Vec<Ref<'a>> {
        let (snapshotter, key) = key_of(snapshot);
        if is_root(&snapshot.labels) { self.reach(vec![Ref::Snapshot(snapshotter, key)]) } else { Vec::new() }
    }

    /// What a download holds that keeps itself until a time to come; empty if it does not.
    #[must_use]
    pub fn ingest(&self, ingest: &'a IngestRecord, now: Timestamp) -> Vec<Ref<'a>> {
        match ingest.expires {
            Some(expires) if expires > now => self.reach(vec![Ref::Ingest(&ingest.key)]),
            _ => Vec::new(),
        }
    }

    /// What a snapshot cannot do without: its parent first, then what its labels name.
    #[must_use]
    pub fn needs(&self, snapshot: &'a SnapshotRecord) -> Vec<Ref<'a>> {
        let (snapshotter, key) = key_of(snapshot);
        let mut needs = self.reach(self.edges(Ref::Snapshot(snapshotter, key)));
        needs.retain(|need| *need != Ref::Snapshot(snapshotter, key));
        needs
    }

    /// Everything that some root of the namespace marks, snapshots' parents included.
    /// Expired leases are no roots, and expired images are none where images expire.
    #[must_use]
    pub fn marked(&self, now: Timestamp) -> HashSet<Ref<'a>> {
        let namespace = self.namespace;
        let mut roots: Vec<Ref<'a>> = Vec::new();
        let images = namespace.images.iter().filter(|image| self.expired(image, now).is_none());
        roots.extend(images.flat_map(|image| self.image(image)));
        roots.extend(namespace.containers.iter().flat_map(|container| self.container(container)));
        roots.extend(namespace.sandboxes.iter().flat_map(|sandbox| self.sandbox(sandbox)));
        roots.extend(namespace.blobs.iter().flat_map(|blob| self.rooted_blob(blob)));
        roots.extend(namespace.snapshots.iter().flat_map(|snapshot| self.rooted_snapshot(snapshot)));
        roots.extend(namespace.ingests.iter().flat_map(|ingest| self.ingest(ingest, now)));
        let alive = namespace.leases.iter().filter(|lease| !matches!(term(lease, now), Term::Expired(_)));
        roots.extend(alive.flat_map(|lease| self.lease(lease)));
        let mut marked = HashSet::new();
        while let Some(next) = roots.pop() {
            if marked.insert(next)
                && let Ref::Snapshot(snapshotter, key) = next
                && let Some(snapshot) = self.snapshot(snapshotter, key)
            {
                roots.extend(self.needs(snapshot));
            }
        }
        marked
    }

    fn exists(&self, one: Ref<'_>) -> bool {
        match one {
            Ref::Content(digest) => self.blobs.contains_key(digest),
            Ref::Snapshot(snapshotter, key) => self.snapshots.contains_key(&(snapshotter, key)),
            Ref::Ingest(key) => self.ingests.contains_key(key),
            Ref::Image(name) => self.images.contains_key(name),
            Ref::Container(_) => false,
        }
    }

    /// Everything that exists and is reached from `start`, up to and including the first
    /// snapshot on each way, in the order found.
    fn reach(&self, start: Vec<Ref<'a>>) -> Vec<Ref<'a>> {
        let mut seen = HashSet::new();
        let mut reached = Vec::new();
        let mut waiting: Vec<_> = start.into_iter().rev().collect();
        while let Some(next) = waiting.pop() {
            // Labels may name what was never fetched: an edge into nothing is normal.
            if !self.exists(next) || !seen.insert(next) {
                continue;
            }
            reached.push(next);
            if !matches!(next, Ref::Snapshot(..)) {
                waiting.extend(self.edges(next).into_iter().rev());
            }
        }
        reached
    }

    /// Where the edges of one thing lead.
    fn edges(&self, from: Ref<'a>) -> Vec<Ref<'a>> {
        let mut edges = Vec::new();
        match from {
            Ref::Content(digest) => {
                edges.extend(self.blobs.get(digest).map(|blob| label_edges(&blob.labels)));
            }
            Ref::Snapshot(snapshotter, key) => {
                if let Some(snapshot) = self.snapshots.get(&(snapshotter, key)) {
                    let parent = snapshot.parent.iter().map(|parent| Ref::Snapshot(snapshotter, parent));
                    edges.push(parent.collect());
                    edges.push(label_edges(&snapshot.labels));
                }
            }
            Ref::Ingest(key) => {
                let expected = self.ingests.get(key).and_then(|ingest| ingest.expected.as_ref());
                edges.push(expected.into_iter().map(|digest| Ref::Content(digest)).collect());
            }
            Ref::Image(name) => {
                if let Some(image) = self.images.get(name) {
                    edges.push(vec![Ref::Content(&image.target)]);
                    edges.push(label_edges(&image.labels));
                }
            }
            Ref::Container(_) => {}
        }
        edges.extend(self.back.get(&from).cloned());
        edges.into_iter().flatten().collect()
    }
}

fn key_of(snapshot: &SnapshotRecord) -> (&str, &str) {
    (&snapshot.snapshotter, &snapshot.key)
}

fn before_slash(text: &str) -> &str {
    text.split('/').next().unwrap_or(text)
}

/// Where labels lead: digests and snapshots in their values.
fn label_edges(labels: &Labels) -> Vec<Ref<'_>> {
    labels.iter().filter_map(|(label, value)| label_edge(label, value)).collect()
}

fn label_edge<'a>(label: &'a str, value: &'a str) -> Option<Ref<'a>> {
    // `gc.ref.content`, `gc.ref.content.l.0`, `gc.ref.content/x`, but not `gc.ref.contents`.
    let is = |prefix: &str| {
        label.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '/']))
    };
    if is(CONTENT_REF) {
        return Some(Ref::Content(value));
    }
    if is(IMAGE_REF) {
        return Some(Ref::Image(value));
    }
    if let Some(snapshotter) = label.strip_prefix(SNAPSHOT_REF) {
        return Some(Ref::Snapshot(before_slash(snapshotter), value));
    }
    let snapshotter = label.strip_prefix(SNAPSHOT_IF)?;
    let key = value.rsplit_once('|').map_or(value, |(_, key)| key);
    Some(Ref::Snapshot(before_slash(snapshotter), key))
}

/// The label by its exact name, whatever its value: containerd looks no further.
fn is_root(labels: &Labels) -> bool {
    labels.contains_key(ROOT)
}

/// How long a lease holds. An expiry that is not a time counts as none, as containerd has it.
#[must_use]
pub fn term(lease: &LeaseRecord, now: Timestamp) -> Term {
    term_of(&lease.labels, now)
}

fn term_of(labels: &Labels, now: Timestamp) -> Term {
    match labels.get(EXPIRE).and_then(|text| text.parse::<Timestamp>().ok()) {
        None => Term::Unlimited,
        Some(expires) if expires > now => Term::Until(expires),
        Some(expires) => Term::Expired(expires),
    }
}

#[cfg(test)]
mod tests;
