//! Records of a namespace as plain data.

use std::collections::HashSet;

use jiff::Timestamp;

use super::cri::CriContainer;
use super::fields::RecordLabels;

/// A namespace with its own names, snapshots and leases. Blobs are stored once for all namespaces.
#[derive(Clone, Debug, Default)]
pub struct Namespace {
    /// `k8s.io`, `moby`, `default`, …
    pub name: String,
    pub images: Vec<ImageRecord>,
    pub blobs: Vec<BlobRecord>,
    /// Downloads in progress.
    pub ingests: Vec<IngestRecord>,
    pub snapshots: Vec<SnapshotRecord>,
    /// Containers, including CRI's sandboxes if containerd itself created them.
    pub containers: Vec<ContainerRecord>,
    pub leases: Vec<LeaseRecord>,
    /// Sandboxes of containerd 2's own store, which include all of CRI's. A sandbox has a record among the
    /// containers only if the sandboxer `podsandbox` created it, not for example the shim.
    pub sandboxes: Vec<ContainerRecord>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageRecord {
    /// The name, for example `docker.io/library/busybox:1`.
    pub name: String,
    /// Digest of the manifest or index.
    pub target: String,
    /// Length of the target in bytes, as recorded.
    pub target_size: Option<u64>,
    pub created: Option<Timestamp>,
    pub labels: RecordLabels,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlobRecord {
    /// Digest with the algorithm.
    pub digest: String,
    /// Length in bytes, as recorded.
    pub size: Option<u64>,
    pub created: Option<Timestamp>,
    /// Labels, including the edges that the garbage collection follows.
    pub labels: RecordLabels,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IngestRecord {
    /// Reference inside the namespace.
    pub key: String,
    /// The content store's reference: the text in the file `ref`.
    pub backend_ref: Option<String>,
    /// Time until which it is kept without a lease; absent if a lease keeps it.
    pub expires: Option<Timestamp>,
    pub expected: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotRecord {
    /// The snapshotter, for example `overlayfs`.
    pub snapshotter: String,
    /// Chain ID of a layer, or container id of a writable snapshot.
    pub key: String,
    /// Key in the snapshotter's own database.
    pub backend: Option<String>,
    /// Key of the parent, in the same snapshotter and namespace.
    pub parent: Option<String>,
    pub created: Option<Timestamp>,
    pub labels: RecordLabels,
}

/// A container, or a sandbox of containerd 2's sandbox store, which has neither image nor snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerRecord {
    pub id: String,
    /// Name of its image when it was created.
    pub image: Option<String>,
    pub snapshotter: Option<String>,
    pub snapshot_key: Option<String>,
    pub created: Option<Timestamp>,
    pub labels: RecordLabels,
    pub cri: Option<CriContainer>,
}

/// A lease, which keeps the listed objects until it expires or is deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseRecord {
    pub id: String,
    pub created: Option<Timestamp>,
    /// Labels; `containerd.io/gc.expire` is the expiry.
    pub labels: RecordLabels,
    pub content: Vec<String>,
    pub snapshots: Vec<(String, String)>,
    /// References of downloads.
    pub ingests: Vec<String>,
    /// Image names (2.0 and later).
    pub images: Vec<String>,
}

impl Namespace {
    /// Returns true if a container or a sandbox of this namespace has this id. Only ids of sandboxes are asked for.
    pub fn has_pod(&self, id: &str) -> bool {
        self.containers.iter().chain(&self.sandboxes).any(|record| record.id == id)
    }

    /// Returns sandboxes that have no record among the containers.
    pub fn bare_sandboxes(&self) -> impl Iterator<Item = &ContainerRecord> {
        let containers: HashSet<_> = self.containers.iter().map(|container| container.id.as_str()).collect();
        self.sandboxes.iter().filter(move |sandbox| !containers.contains(sandbox.id.as_str()))
    }
}
