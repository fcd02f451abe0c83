//! A consistent reading of the files of a containerd root.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

use super::metadata::Metadata;
use super::metadata::snapshotter::{BackendSnapshot, SnapshotKind};
use super::places::{CONTENT, ContainerdPlaces, PLAIN};
use crate::model::{Consistency, ContainerState, Finding};
use crate::stores::dockerd::DockerRecord;
use crate::stores::oci::Document;
use crate::stores::unit::DirectoryListing;
use crate::sys::quiet::{DirectoryEntry, Within};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobFile {
    pub length: u64,
    pub modified: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngestDirectory {
    /// Name: a digest of the reference.
    pub name: String,
    /// Text in its file `ref`.
    pub backend_ref: Option<String>,
    /// Time at which its data last grew.
    pub modified: Option<Timestamp>,
}

/// A snapshotter: its directory and the content of its database.
#[derive(Clone, Debug, Default)]
pub struct Backend {
    /// Its name, for example `overlayfs`.
    pub name: String,
    pub directory: PathBuf,
    /// Directory in it that contains the database and the directory `snapshots`.
    pub data: PathBuf,
    /// True if it runs beside containerd, with files of its own in its directory.
    pub is_proxy: bool,
    /// Its snapshots; empty if its database cannot be read.
    pub snapshots: Vec<BackendSnapshot>,
    pub known: bool,
}

impl Backend {
    /// Returns the path of a snapshot. btrfs has each writable snapshot in `active` until it is committed
    /// (`plugins/snapshots/btrfs/btrfs.go`).
    #[must_use]
    pub fn place(&self, snapshot: &BackendSnapshot) -> PathBuf {
        let directory = match (self.name.as_str(), snapshot.kind) {
            ("btrfs", Some(SnapshotKind::Active)) => "active",
            ("btrfs", Some(SnapshotKind::View)) => "view",
            _ => "snapshots",
        };
        self.data.join(directory).join(snapshot.id.to_string())
    }

    /// Returns true if the bytes of its snapshots are in [`Self::place`]. Those of devmapper, zfs and unknown
    /// snapshotters are in a thin pool, a dataset or an unknown layout.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.is_proxy || PLAIN.contains(&self.name.as_str())
    }
}

#[derive(Clone, Debug)]
pub struct Snapshot {
    pub places: ContainerdPlaces,
    pub(super) within: Within,
    pub metadata: Metadata,
    pub backends: Vec<Backend>,
    /// Entries of the listed directories.
    pub listing: DirectoryListing,
    /// Files of blobs by digest; `None` if the file exists but was not examined.
    pub blobs: BTreeMap<String, Option<BlobFile>>,
    pub ingests: Vec<IngestDirectory>,
    /// Manifests and indexes by digest, as far as image names lead to them.
    pub documents: HashMap<String, Arc<Document>>,
    /// diffIDs of layers whose content is in a cache, by the position of the snapshotter and the id of the snapshot.
    pub cached_layers: HashMap<(usize, u64), String>,
    /// True if more snapshots have their content in a cache, but its path cannot be read.
    pub more_cached_layers: bool,
    /// States of containers by the ids of the inventory: of CRI's by their status files, of others by their tasks.
    pub states: HashMap<String, ContainerState>,
    /// Docker's records of its containers, by container id.
    pub docker: HashMap<String, DockerRecord>,
    /// Time of the last change of each object without a record. Objects that are missing here were found by only one
    /// of two readings.
    pub unknown_since: HashMap<PathBuf, Option<Timestamp>>,
    pub consistency: Consistency,
    pub findings: Vec<Finding>,
    /// Databases that were read: path, bytes in use, length of the file in bytes.
    pub databases: Vec<(PathBuf, u64, u64)>,
    /// Newest transactions of all databases, to detect writes by other processes.
    pub(super) transactions: Transactions,
}

/// Number of the newest transaction of each database.
pub(super) type Transactions = Vec<(Option<u64>, PathBuf)>;

impl Snapshot {
    /// Returns the snapshotter that corresponds to the driver of other stores: overlayfs if it is used, otherwise the
    /// first one that is used. The ids of its snapshots are their keys, without the snapshotter's name.
    #[must_use]
    pub fn driver(&self) -> &str {
        let all = self.metadata.namespaces.iter().flat_map(|namespace| &namespace.snapshots);
        let names = all.map(|snapshot| snapshot.snapshotter.as_str());
        names.min_by_key(|name| (*name != "overlayfs", *name)).unwrap_or("overlayfs")
    }

    /// Returns the entries of a directory; empty if it was not listed.
    #[must_use]
    pub fn entries(&self, directory: &Path) -> &[DirectoryEntry] {
        self.listing.get(directory).map_or(&[], Vec::as_slice)
    }

    /// Returns the directories that the parts of units are relative to: the root, the content store, each
    /// snapshotter's directory, and the caches of layers. Each may be on a filesystem of its own.
    #[must_use]
    pub fn areas(&self) -> Vec<PathBuf> {
        let fixed = [self.places.root.clone(), self.places.root.join(CONTENT)];
        let backends = self.backends.iter().map(|backend| backend.directory.clone());
        fixed.into_iter().chain(backends).chain(self.places.layer_caches.iter().cloned()).collect()
    }
}

/// Position of the root in [`Snapshot::areas`].
pub const ROOT_AREA: usize = 0;
/// Position of the content store in [`Snapshot::areas`].
pub const CONTENT_AREA: usize = 1;
/// Position of the first snapshotter in [`Snapshot::areas`].
pub const FIRST_BACKEND_AREA: usize = 2;
