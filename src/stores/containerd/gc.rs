//! What containerd's garbage collection would keep, and for which root. Pure.
//!
//! containerd marks from roots (images, leases, containers, ingests, labels) along edges,
//! most of which are labels, and never leaves the namespace. Blobs are shared between
//! namespaces but each namespace has its own edges for them, so a blob cannot simply
//! *need* other nodes: here everything that a root reaches through blobs is listed for the
//! root itself, down to the snapshots. Only snapshots, which belong to one namespace each,
//! have needs of their own. Rules: containerd's `metadata/gc.go`, 1.6 to 2.4.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};

use jiff::Timestamp;

use super::metadata::{
    BlobRecord, ContainerRecord, ImageRecord, IngestRecord, Labels, LeaseRecord, Namespace, SnapshotRecord,
};

pub(super) const ROOT: &str = "containerd.io/gc.root";
const EXPIRE: &str = "containerd.io/gc.expire";
pub(super) const FLAT: &str = "containerd.io/gc.flat";
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
    blobs: HashMap<&'a str, &'a BlobRecord>,
    /// Where the edges of each thing lead that has a record, whether or not anything is there.
    edges: HashMap<Ref<'a>, Vec<Ref<'a>>>,
    /// An image whose time is over is not a root (containerd 2.0 and later).
    images_expire: bool,
    marked: OnceCell<HashSet<Ref<'a>>>,
}

impl<'a> Graph<'a> {
    /// The edges of `namespace`.
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
        // A pod's sandbox is recorded in both places, under one id.
        for container in namespace.containers.iter().chain(&namespace.sandboxes) {
            let snapshot = container.snapshotter.as_deref().zip(container.snapshot_key.as_deref());
            let snapshot = snapshot.map(|(snapshotter, key)| Ref::Snapshot(snapshotter, key));
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

    /// When an image expired, if it has: its record waits for the next collection. One that another image keeps by a
    /// back reference stays (the extra names that containerd 2.3 makes with `--index-name`).
    #[must_use]
    pub fn expired(&self, image: &'a ImageRecord, now: Timestamp) -> Option<Timestamp> {
        self.past(image, now).filter(|_| !self.marked(now).contains(&Ref::Image(&image.name)))
    }

    /// When an image's time was over, if it is: it is not a root.
    fn past(&self, image: &ImageRecord, now: Timestamp) -> Option<Timestamp> {
        match term(&image.labels, now) {
            Term::Expired(end) if self.images_expire => Some(end),
            _ => None,
        }
    }

    /// The record of a blob.
    #[must_use]
    pub fn blob(&self, digest: &str) -> Option<&'a BlobRecord> {
        self.blobs.get(digest).copied()
    }

    /// What an image holds.
    #[must_use]
    pub fn image(&self, image: &'a ImageRecord) -> Vec<Ref<'a>> {
        self.reach(self.edges(Ref::Image(&image.name)))
    }

    /// What a container or sandbox holds: its writable snapshot, and what its labels name.
    #[must_use]
    pub fn container(&self, container: &'a ContainerRecord) -> Vec<Ref<'a>> {
        self.reach(self.edges(Ref::Container(&container.id)))
    }

    /// Where labels alone lead.
    #[must_use]
    pub fn labelled(&self, labels: &'a Labels) -> Vec<Ref<'a>> {
        self.reach(label_edges(labels))
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

    /// What a blob or snapshot (`this`) holds that is a root by its label, itself included; empty if it
    /// is none.
    #[must_use]
    pub fn rooted(&self, this: Ref<'a>, labels: &Labels) -> Vec<Ref<'a>> {
        // Any value counts. containerd before 2.2 knows the exact name alone, later ones all that begin with it.
        if labels.keys().any(|label| label.starts_with(ROOT)) { self.reach([this]) } else { Vec::new() }
    }

    /// What a download holds that keeps itself until a time to come; empty if it does not.
    #[must_use]
    pub fn ingest(&self, ingest: &'a IngestRecord, now: Timestamp) -> Vec<Ref<'a>> {
        match ingest.expires {
            Some(expires) if expires > now => self.reach([Ref::Ingest(&ingest.key)]),
            _ => Vec::new(),
        }
    }

    /// What a snapshot cannot do without: its parent first, then what its labels name.
    #[must_use]
    pub fn needs(&self, snapshot: Ref<'a>) -> Vec<Ref<'a>> {
        let mut needs = self.reach(self.edges(snapshot));
        needs.retain(|need| *need != snapshot);
        needs
    }

    /// Everything that some root of the namespace marks, snapshots' parents included.
    /// Expired leases are no roots, and expired images are none where images expire. The first `now` counts.
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
        roots.extend(snapshots.iter().flat_map(|one| self.rooted(one.into(), &one.labels)));
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

    /// Whether it has a record. Labels may name what was never fetched.
    #[must_use]
    pub fn exists(&self, one: Ref<'_>) -> bool {
        self.edges.contains_key(&one)
    }

    /// Everything that exists and is reached from `start`, up to and including the first
    /// snapshot on each way, in the order found.
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
                let at = waiting.len();
                waiting.extend(self.edges(next));
                waiting[at..].reverse();
            }
        }
        reached
    }

    /// Where the edges of one thing lead.
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

/// Where labels lead: digests and snapshots in their values.
fn label_edges(labels: &Labels) -> impl Iterator<Item = Ref<'_>> {
    labels.iter().filter_map(|(label, value)| label_edge(label, value))
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

/// What holds the thing that has this label.
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

/// Returns whether a lease has no expiry.
#[must_use]
pub fn is_unlimited(labels: &Labels) -> bool {
    expiry(labels).is_none()
}

fn expiry(labels: &Labels) -> Option<Timestamp> {
    labels.get(EXPIRE)?.parse().ok()
}

/// How long a lease, or an image, holds by its labels. An expiry that is not a time counts as none, as
/// containerd has it.
#[must_use]
pub fn term(labels: &Labels, now: Timestamp) -> Term {
    match expiry(labels) {
        None => Term::Unlimited,
        Some(expires) if expires > now => Term::Until(expires),
        Some(expires) => Term::Expired(expires),
    }
}

#[cfg(test)]
mod tests;
