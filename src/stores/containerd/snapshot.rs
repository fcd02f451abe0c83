//! A consistent reading of the files of a containerd root.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

use super::docker::DockerRecord;
use super::metadata::Metadata;
use super::metadata::snapshotter::BackendSnapshot;
use super::places::{CONTENT, ContainerdPlaces};
use crate::model::{Consistency, ContainerState, Finding};
use crate::stores::oci::Document;
use crate::sys::quiet::{DirectoryEntry, Within};

/// Entries of each directory that was listed, by its path.
pub type Listing = BTreeMap<PathBuf, Vec<DirectoryEntry>>;

/// A blob's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobFile {
    pub length: u64,
    /// When it was last written.
    pub modified: Option<Timestamp>,
}

/// A download's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngestDirectory {
    /// Its name: a digest of the reference.
    pub name: String,
    /// The text in its file `ref`.
    pub backend_ref: Option<String>,
    /// When its data last grew.
    pub modified: Option<Timestamp>,
}

/// A snapshotter: its directory and what its database says.
#[derive(Clone, Debug, Default)]
pub struct Backend {
    /// Its name, for example `overlayfs`.
    pub name: String,
    pub directory: PathBuf,
    /// What of that has its database and the directory `snapshots`.
    pub data: PathBuf,
    /// It runs beside containerd, and keeps files of its own in its directory.
    pub is_proxy: bool,
    /// Its snapshots; empty where there is no database that we can read.
    pub snapshots: Vec<BackendSnapshot>,
    /// It has a database, and it was read.
    pub known: bool,
}

/// Everything that the files of a root say.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Where it was read.
    pub places: ContainerdPlaces,
    /// Its directories, held open.
    pub(super) within: Within,
    /// The records of `meta.db`.
    pub metadata: Metadata,
    pub backends: Vec<Backend>,
    /// The directories.
    pub listing: Listing,
    /// Blobs' files by digest; `None`: it is there, and was not examined.
    pub blobs: BTreeMap<String, Option<BlobFile>>,
    /// Directories of downloads.
    pub ingests: Vec<IngestDirectory>,
    /// Manifests and indexes by digest, as far as names lead to them.
    pub documents: HashMap<String, Arc<Document>>,
    /// diffIDs of layers in a cache, by the position of the snapshotter and the id of the snapshot that
    /// has its content there.
    pub cached_layers: HashMap<(usize, u64), String>,
    /// There are more of them, of which it cannot be read where they lead.
    pub more_cached_layers: bool,
    /// What CRI's status files say, by container id.
    pub states: HashMap<String, ContainerState>,
    /// Docker's records of its containers, by container id.
    pub docker: HashMap<String, DockerRecord>,
    /// When a thing without a record last changed. Those that are missing here were seen
    /// in one of two readings only.
    pub unknown_since: HashMap<PathBuf, Option<Timestamp>>,
    /// How consistent the reading is.
    pub consistency: Consistency,
    /// What could not be read.
    pub findings: Vec<Finding>,
    /// Databases that were read: path, bytes in use, bytes of the file.
    pub databases: Vec<(PathBuf, u64, u64)>,
    /// Transactions of all databases, to notice that another process wrote.
    pub(super) transactions: Transactions,
}

/// The newest transaction of each database.
pub(super) type Transactions = Vec<(Option<u64>, PathBuf)>;

impl Snapshot {
    /// What other stores call the driver: overlayfs where it is used, else the first
    /// snapshotter that is. Its snapshots go by their key alone.
    #[must_use]
    pub fn driver(&self) -> &str {
        let all = self.metadata.namespaces.iter().flat_map(|namespace| &namespace.snapshots);
        let names = all.map(|snapshot| snapshot.snapshotter.as_str());
        names.min_by_key(|name| (*name != "overlayfs", *name)).unwrap_or("overlayfs")
    }

    /// The entries of a directory; none if it was not listed.
    #[must_use]
    pub fn entries(&self, directory: &Path) -> &[DirectoryEntry] {
        self.listing.get(directory).map_or(&[], Vec::as_slice)
    }

    /// The directories that the parts of units are relative to: the root, the content
    /// store, each snapshotter's directory, and the caches of layers. Each may be a filesystem of its own.
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
