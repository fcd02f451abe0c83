//! Objects that containerd's garbage collection keeps, and their roots. Pure.
//!
//! containerd marks objects from roots (images, leases, containers, ingests, labels) along edges, most of which are
//! labels, and never leaves the namespace. A blob is shared by all namespaces, but each namespace has its own edges
//! for it. A blob can therefore not *need* other nodes: everything that a root reaches through blobs, down to the
//! first snapshot, is listed for the root itself. Example: an image holds its index, its manifest, its configuration,
//! its layer blobs and its top snapshot. Only snapshots, each of which belongs to one namespace, have needs of their
//! own: their parents. Rules: containerd's `metadata/gc.go`, 1.6 to 2.4.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};

use jiff::Timestamp;

use super::metadata::{
    BlobRecord, ContainerRecord, ImageRecord, IngestRecord, LeaseRecord, Namespace, RecordLabels,
    SnapshotRecord,
};

pub(super) const ROOT: &str = "containerd.io/gc.root";
const EXPIRE: &str = "containerd.io/gc.expire";
pub(super) const FLAT: &str = "containerd.io/gc.flat";
const CONTENT_REF: &str = "containerd.io/gc.ref.content";
const IMAGE_REF: &str = "containerd.io/gc.ref.image";
const SNAPSHOT_REF: &str = "containerd.io/gc.ref.snapshot.";
/// containerd 2.3: `<condition>|<key>`. The edge counts although its condition may be false.
const SNAPSHOT_IF: &str = "containerd.io/gc.cond.snapshot.";
/// containerd 2.2: label on an object; its value names another object, which keeps this one.
const BACK: &str = "containerd.io/gc.bref.";

/// An object that the garbage collection marks, inside one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ref<'a> {
    Content(&'a str),
    Snapshot(&'a str, &'a str),
    /// A download, by its key.
    Ingest(&'a str),
    Image(&'a str),
    /// A container, by id. It is a root; no edge points to it.
    Container(&'a str),
}

/// Lifetime of a lease or an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// Until it is deleted.
    Unlimited,
    Until(Timestamp),
    /// Expired, but its record still exists.
    Expired(Timestamp),
}

#[derive(Debug)]
pub struct Graph<'a> {
    namespace: &'a Namespace,
    blobs: HashMap<&'a str, &'a BlobRecord>,
    /// Targets of the edges of each object with a record. The targets need not exist.
    edges: HashMap<Ref<'a>, Vec<Ref<'a>>>,
    /// True if an expired image is not a root (containerd 2.0 and later).
    images_expire: bool,
    marked: OnceCell<HashSet<Ref<'a>>>,
}

impl<'a> Graph<'a> {
    #[must_use]
    pub fn new(namespace: &'a Namespace, images_expire: bool) -> Self {
        let mut edges: HashMap<Ref<'a>, Vec<Ref<'a>>> = HashMap::new();
        let mut labelled = Vec::new();
        for blob in &namespace.blobs {
            let this = Ref::Content(&blob.digest);
            edges.insert(this, label_edges(&blob.labels).collect());
            labelled.push((this, &blob.labels));
        }
        for snapshot in &namespace.snapshots {
            let parent = snapshot.parent.iter().map(|parent| Ref::Snapshot(&snapshot.snapshotter, parent));
            edges.insert(snapshot.into(), parent.chain(label_edges(&snapshot.labels)).collect());
            labelled.push((snapshot.into(), &snapshot.labels));
        }
        for image in &namespace.images {
            let this = Ref::Image(&image.name);
            let target = std::iter::once(Ref::Content(&image.target));
            edges.insert(this, target.chain(label_edges(&image.labels)).collect());
            labelled.push((this, &image.labels));
        }
        for ingest in &namespace.ingests {
            let expected = ingest.expected.iter().map(|digest| Ref::Content(digest));
            edges.insert(Ref::Ingest(&ingest.key), expected.collect());
        }
        // A pod's sandbox may be recorded as a container and as a sandbox, with the same id.
        for container in namespace.containers.iter().chain(&namespace.sandboxes) {
            let snapshot = container
                .snapshotter
                .as_deref()
                .zip(container.snapshot_key.as_deref())
                .map(|(snapshotter, key)| Ref::Snapshot(snapshotter, key));
            let of_container = edges.entry(Ref::Container(&container.id)).or_default();
            of_container.extend(label_edges(&container.labels).chain(snapshot));
        }
        for (child, labels) in labelled {
            for holder in labels.iter().filter_map(|(label, value)| back_edge(label, value)) {
                if let Some(edges) = edges.get_mut(&holder) {
                    edges.push(child);
                }
            }
        }
        let blobs = namespace.blobs.iter().map(|blob| (blob.digest.as_str(), blob)).collect();
        Self { namespace, blobs, edges, images_expire, marked: OnceCell::new() }
    }

    /// Returns the time at which an image expired; its record exists until the next collection. `None` if the image has
    /// not expired, or if something else keeps it: a lease, or another image by a back reference (as for the additional
    /// names that containerd 2.3 creates with `--index-name`).
    #[must_use]
    pub fn expired(&self, image: &'a ImageRecord, now: Timestamp) -> Option<Timestamp> {
        self.past(image, now).filter(|_| !self.marked(now).contains(&Ref::Image(&image.name)))
    }

    /// Returns the time at which an image expired. From that time on the image is not a root.
    fn past(&self, image: &ImageRecord, now: Timestamp) -> Option<Timestamp> {
        match term(&image.labels, now) {
            Term::Expired(end) if self.images_expire => Some(end),
            _ => None,
        }
    }

    #[must_use]
    pub fn blob(&self, digest: &str) -> Option<&'a BlobRecord> {
        self.blobs.get(digest).copied()
    }

    #[must_use]
    pub fn image(&self, image: &'a ImageRecord) -> Vec<Ref<'a>> {
        self.reach(self.edges(Ref::Image(&image.name)))
    }

    /// Returns the objects that a container or sandbox keeps: its writable snapshot and the targets of its labels.
    #[must_use]
    pub fn container(&self, container: &'a ContainerRecord) -> Vec<Ref<'a>> {
        self.reach(self.edges(Ref::Container(&container.id)))
    }

    /// Returns the objects that labels alone keep.
    #[must_use]
    pub fn labelled(&self, labels: &'a RecordLabels) -> Vec<Ref<'a>> {
        self.reach(label_edges(labels))
    }

    /// Returns the objects that a lease keeps. A flat lease keeps only those that it lists; snapshots keep their
    /// parents in any case.
    #[must_use]
    pub fn lease(&self, lease: &'a LeaseRecord) -> Vec<Ref<'a>> {
        let content = lease.content.iter().map(|digest| Ref::Content(digest));
        let snapshots = lease.snapshots.iter().map(|(snapshotter, key)| Ref::Snapshot(snapshotter, key));
        let ingests = lease.ingests.iter().map(|key| Ref::Ingest(key));
        let images = lease.images.iter().map(|name| Ref::Image(name));
        let start: Vec<_> = content.chain(snapshots).chain(ingests).chain(images).collect();
        if lease.labels.contains_key(FLAT) {
            start.into_iter().filter(|listed| self.exists(*listed)).collect()
        } else {
            self.reach(start)
        }
    }

    /// Returns the objects that a blob or snapshot (`this`) keeps as a root by its label, including itself; empty if
    /// it has no such label.
    #[must_use]
    pub fn rooted(&self, this: Ref<'a>, labels: &RecordLabels) -> Vec<Ref<'a>> {
        // Any value counts. containerd before 2.2 uses only the exact label, later versions also labels that start
        // with it.
        if labels.keys().any(|label| label.starts_with(ROOT)) { self.reach([this]) } else { Vec::new() }
    }

    /// Returns the objects that a download keeps until it expires; empty if it has expired or has no expiry.
    #[must_use]
    pub fn ingest(&self, ingest: &'a IngestRecord, now: Timestamp) -> Vec<Ref<'a>> {
        match ingest.expires {
            Some(expires) if expires > now => self.reach([Ref::Ingest(&ingest.key)]),
            _ => Vec::new(),
        }
    }

    /// Returns the needs of a snapshot: its parent first, then the targets of its labels.
    #[must_use]
    pub fn needs(&self, snapshot: Ref<'a>) -> Vec<Ref<'a>> {
        let mut needs = self.reach(self.edges(snapshot));
        needs.retain(|need| *need != snapshot);
        needs
    }

    /// Returns everything that a root of the namespace marks, including parents of snapshots. Expired leases are not
    /// roots, nor expired images if images expire. The result of the first call is kept, whatever `now` is later.
    pub fn marked(&self, now: Timestamp) -> &HashSet<Ref<'a>> {
        self.marked.get_or_init(|| self.mark(now))
    }

    fn mark(&self, now: Timestamp) -> HashSet<Ref<'a>> {
        let Namespace { images, containers, sandboxes, blobs, snapshots, ingests, leases, .. } =
            self.namespace;
        let mut roots: Vec<Ref<'a>> = Vec::new();
        let alive = images.iter().filter(|image| self.past(image, now).is_none());
        roots.extend(alive.flat_map(|image| self.image(image)));
        roots.extend(containers.iter().chain(sandboxes).flat_map(|container| self.container(container)));
        roots.extend(blobs.iter().flat_map(|blob| self.rooted(Ref::Content(&blob.digest), &blob.labels)));
        roots.extend(snapshots.iter().flat_map(|snapshot| self.rooted(snapshot.into(), &snapshot.labels)));
        roots.extend(ingests.iter().flat_map(|ingest| self.ingest(ingest, now)));
        let alive = leases.iter().filter(|lease| !matches!(term(&lease.labels, now), Term::Expired(_)));
        roots.extend(alive.flat_map(|lease| self.lease(lease)));
        let mut marked = HashSet::new();
        while let Some(next) = roots.pop() {
            if marked.insert(next) && matches!(next, Ref::Snapshot(..)) {
                roots.extend(self.needs(next));
            }
        }
        marked
    }

    /// Returns true if the object has a record. Labels may name content that was never fetched.
    #[must_use]
    pub fn exists(&self, object: Ref<'_>) -> bool {
        self.edges.contains_key(&object)
    }

    /// Returns every existing object that is reached from `start`, up to and including the first snapshot on each
    /// path, in the order found.
    fn reach(&self, start: impl IntoIterator<Item = Ref<'a>>) -> Vec<Ref<'a>> {
        let mut seen = HashSet::new();
        let mut reached = Vec::new();
        let mut waiting: Vec<_> = start.into_iter().collect();
        waiting.reverse();
        while let Some(next) = waiting.pop() {
            if !self.exists(next) || !seen.insert(next) {
                continue;
            }
            reached.push(next);
            if !matches!(next, Ref::Snapshot(..)) {
                let first = waiting.len();
                waiting.extend(self.edges(next));
                waiting[first..].reverse();
            }
        }
        reached
    }

    /// Returns the targets of an object's edges.
    fn edges(&self, from: Ref<'a>) -> impl Iterator<Item = Ref<'a>> {
        self.edges.get(&from).into_iter().flatten().copied()
    }
}

impl<'a> From<&'a SnapshotRecord> for Ref<'a> {
    fn from(snapshot: &'a SnapshotRecord) -> Self {
        Self::Snapshot(&snapshot.snapshotter, &snapshot.key)
    }
}

fn before_slash(text: &str) -> &str {
    text.split('/').next().unwrap_or(text)
}

/// Returns the targets of labels: digests and snapshots in their values.
fn label_edges(labels: &RecordLabels) -> impl Iterator<Item = Ref<'_>> {
    labels.iter().filter_map(|(label, value)| label_edge(label, value))
}

fn label_edge<'a>(label: &'a str, value: &'a str) -> Option<Ref<'a>> {
    if is_ref(label, CONTENT_REF) {
        return Some(Ref::Content(value));
    }
    if is_ref(label, IMAGE_REF) {
        return Some(Ref::Image(value));
    }
    if let Some(snapshotter) = label.strip_prefix(SNAPSHOT_REF) {
        return Some(Ref::Snapshot(before_slash(snapshotter), value));
    }
    let snapshotter = label.strip_prefix(SNAPSHOT_IF)?;
    let key = value.rsplit_once('|').map_or(value, |(_, key)| key);
    Some(Ref::Snapshot(before_slash(snapshotter), key))
}

/// Returns true for `gc.ref.content`, `gc.ref.content.l.0` and `gc.ref.content/x`, but not for `gc.ref.contents`.
fn is_ref(label: &str, prefix: &str) -> bool {
    label.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '/']))
}

/// Returns the object that keeps the one with this label.
fn back_edge<'a>(label: &'a str, value: &'a str) -> Option<Ref<'a>> {
    let rest = label.strip_prefix(BACK)?;
    let (kind, detail) = rest.split_once('.').unwrap_or((rest, ""));
    Some(match before_slash(kind) {
        "content" => Ref::Content(value),
        "image" => Ref::Image(value),
        "container" => Ref::Container(value),
        "snapshot" => Ref::Snapshot(before_slash(detail), value),
        _ => return None,
    })
}

#[must_use]
pub fn is_unlimited(labels: &RecordLabels) -> bool {
    expiry(labels).is_none()
}

fn expiry(labels: &RecordLabels) -> Option<Timestamp> {
    labels.get(EXPIRE)?.parse().ok()
}

/// Returns the lifetime of a lease or an image by its labels. containerd ignores an expiry that is not a time.
#[must_use]
pub fn term(labels: &RecordLabels, now: Timestamp) -> Term {
    match expiry(labels) {
        None => Term::Unlimited,
        Some(expires) if expires > now => Term::Until(expires),
        Some(expires) => Term::Expired(expires),
    }
}

#[cfg(test)]
mod tests;
