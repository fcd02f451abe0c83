//! The records of a namespace, as plain data.

use std::collections::HashSet;

use jiff::Timestamp;

use super::cri::CriContainer;
use super::fields::Labels;

/// One namespace: its own names, snapshots and leases; blobs are stored for all together.
#[derive(Clone, Debug, Default)]
pub struct Namespace {
    /// `k8s.io`, `moby`, `default`, …
    pub name: String,
    pub images: Vec<ImageRecord>,
    /// Blobs that the namespace knows.
    pub blobs: Vec<BlobRecord>,
    /// Downloads in progress.
    pub ingests: Vec<IngestRecord>,
    /// Snapshots of all snapshotters.
    pub snapshots: Vec<SnapshotRecord>,
    /// Containers, CRI's sandboxes included where containerd itself makes them.
    pub containers: Vec<ContainerRecord>,
    pub leases: Vec<LeaseRecord>,
    /// Sandboxes of containerd 2's own store: all of CRI's. Those of another sandboxer than
    /// `podsandbox` (the shim, say) have no record among the containers.
    pub sandboxes: Vec<ContainerRecord>,
}

/// A name and what it stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageRecord {
    /// The name, for example `docker.io/library/busybox:1`.
    pub name: String,
    /// Digest of the manifest or index.
    pub target: String,
    /// Its length in bytes, as recorded.
    pub target_size: Option<u64>,
    /// When the name was first made here.
    pub created: Option<Timestamp>,
    pub labels: Labels,
}

/// A blob as one namespace knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlobRecord {
    /// Its digest, with the algorithm.
    pub digest: String,
    /// Its length in bytes, as recorded.
    pub size: Option<u64>,
    pub created: Option<Timestamp>,
    /// Labels: the edges that the garbage collection follows, among others.
    pub labels: Labels,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IngestRecord {
    /// Its reference inside the namespace.
    pub key: String,
    /// The content store's reference: the text in the file `ref`.
    pub backend_ref: Option<String>,
    /// It holds itself until then; absent where a lease holds it.
    pub expires: Option<Timestamp>,
    /// The blob that it is about to be.
    pub expected: Option<String>,
}

/// A snapshot as one namespace knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotRecord {
    /// The snapshotter, for example `overlayfs`.
    pub snapshotter: String,
    /// A chain id for a layer, a container id for a writable one.
    pub key: String,
    /// Its key in the snapshotter's own database.
    pub backend: Option<String>,
    /// Key of its parent, same snapshotter and namespace.
    pub parent: Option<String>,
    pub created: Option<Timestamp>,
    pub labels: Labels,
}

/// A container, or a sandbox of containerd 2's sandbox store, which has neither image nor snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerRecord {
    pub id: String,
    /// The name of its image, as it was then.
    pub image: Option<String>,
    /// Snapshotter of its writable snapshot.
    pub snapshotter: Option<String>,
    /// Key of its writable snapshot.
    pub snapshot_key: Option<String>,
    pub created: Option<Timestamp>,
    pub labels: Labels,
    /// What CRI has written of it.
    pub cri: Option<CriContainer>,
}

/// A lease: holds what it lists until it expires or is deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseRecord {
    pub id: String,
    pub created: Option<Timestamp>,
    /// Labels; `containerd.io/gc.expire` ends it.
    pub labels: Labels,
    /// Digests of blobs.
    pub content: Vec<String>,
    /// Snapshots: snapshotter and key.
    pub snapshots: Vec<(String, String)>,
    /// References of downloads.
    pub ingests: Vec<String>,
    /// Image names (2.0 and later).
    pub images: Vec<String>,
}

impl Namespace {
    /// Whether a sandbox of that id is recorded, by CRI or by containerd's own sandbox store.
    pub fn has_pod(&self, id: &str) -> bool {
        self.containers.iter().any(|one| one.id == id) || self.sandboxes.iter().any(|one| one.id == id)
    }

    /// Sandboxes that are not among the containers.
    pub fn bare_sandboxes(&self) -> impl Iterator<Item = &ContainerRecord> {
        let containers: HashSet<_> = self.containers.iter().map(|one| one.id.as_str()).collect();
        self.sandboxes.iter().filter(move |sandbox| !containers.contains(sandbox.id.as_str()))
    }
}
