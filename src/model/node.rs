//! Nodes: the objects that cost bytes.

use std::path::PathBuf;

use jiff::Timestamp;

use super::ids::{FilesystemIx, NodeIx, StoreIx};
use crate::model::text::names::names;

names! {
    /// Kind of a node. Documents contain only layers, snapshots and blobs.
    NodeKind {
        /// A layer of containers/storage: its directory, tar-split and layer data.
        Layer = "layer",
        Snapshot = "snapshot",
        Blob = "blob",
        /// A layer in a cache beside containerd's root, which is not deleted with an image.
        CachedLayer = "cached-layer",
        /// An image's own files: manifest, configuration, signatures.
        ImageMetadata = "image-metadata",
        /// A container's own files (`userdata` and the like), without its writable layer.
        ContainerMetadata = "container-metadata",
        /// Inodes with hard links in several other nodes. They are freed when all those nodes are deleted.
        SharedInodes = "shared-inodes",
        /// Extents that several other nodes share by reflink. They are freed when all those nodes are deleted. `bytes`
        /// is 0, since `st_blocks` has counted them in each of the nodes.
        SharedExtents = "shared-extents",
        /// Inode chunks of an XFS in which several other nodes have inodes. The filesystem frees them when all those
        /// nodes are deleted. Only `frees_bytes` is not 0.
        SharedInodeChunks = "shared-inode-chunks",
        /// Files without a record: an orphaned directory, an abandoned staging area, a temporary file.
        Orphan = "orphan",
        /// Temporary files of the store's tools outside the store. They do not count in its bytes.
        TemporaryFile = "temporary-file",
        /// The store's own bookkeeping: record files, locks, link directories.
        StoreMetadata = "store-metadata",
        /// Record files of the store. Every deletion replaces them by new inodes.
        StoreRecords = "store-records",
        /// Something else below the store's root, named by the node's id.
        Other = "other",
        /// Files in the store whose owner is unknown: the records that would name it, or the layout of a snapshotter or
        /// driver, cannot be read.
        Unknown = "unknown",
    }
}

impl NodeKind {
    /// Returns true if an image consists of nodes of this kind: its layers, snapshots and blobs.
    #[must_use]
    pub fn is_layer(self) -> bool {
        matches!(self, Self::Layer | Self::Snapshot | Self::Blob)
    }

    /// Returns the kind of a layer in documents: a cached layer is a layer.
    #[must_use]
    pub fn of_layer(self) -> Self {
        match self {
            Self::Snapshot | Self::Blob => self,
            _ => Self::Layer,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Node {
    pub kind: NodeKind,
    /// Id in its store (layer id, blob digest), or a name if the object has no id.
    pub id: String,
    pub store: StoreIx,
    /// Filesystem that contains its bytes. A split imagestore may be on another filesystem than the graphroot.
    pub filesystem: FilesystemIx,
    pub path: PathBuf,
    pub size: Size,
    /// Nodes that it depends on; the parent layer first.
    pub needs: Vec<NodeIx>,
    /// Facts of a layer, snapshot or blob; `None` for other kinds.
    pub layer: Option<Box<LayerFacts>>,
}

/// Facts of a layer, snapshot or blob, from its records.
#[derive(Clone, Debug, Default)]
pub struct LayerFacts {
    /// Parent as recorded, even if no such layer exists.
    pub parent: Option<String>,
    /// Digest of the uncompressed tar.
    pub diff_id: Option<String>,
    /// Time when the layer was made on this node; `None` if the record contains Go's zero time.
    pub created: Option<Timestamp>,
    /// It is a container's writable layer.
    pub read_write: bool,
    pub snapshotter: Option<String>,
    /// Its content is not in the node's size: it is outside the filesystem (thin pool, dataset) or was not found.
    pub is_unmeasured: bool,
    /// Directory that contains its files, if that is in an additional layer store: its size is then unknown.
    pub elsewhere: Option<PathBuf>,
    /// Length of the uncompressed tar in bytes, as the runtime recorded it. The image sizes that the runtimes print
    /// are sums of these.
    pub listed_bytes: Option<u64>,
}

/// Cost of a node. Hard links count once; directories count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Size {
    /// Allocated bytes: 512 × `st_blocks`, as `du` counts.
    pub bytes: u64,
    /// Sum of the file lengths (`st_size`) of everything that is not a directory.
    pub apparent_bytes: u64,
    /// Number of inodes, including directories.
    pub inodes: u64,
    /// Bytes that the filesystem is expected to free when the node is deleted: `bytes`, plus the space for inodes
    /// outside `st_blocks`, minus extents shared with other nodes.
    pub frees_bytes: u64,
}

impl std::ops::AddAssign for Size {
    fn add_assign(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.apparent_bytes = self.apparent_bytes.saturating_add(other.apparent_bytes);
        self.inodes = self.inodes.saturating_add(other.inodes);
        self.frees_bytes = self.frees_bytes.saturating_add(other.frees_bytes);
    }
}

impl std::iter::Sum for Size {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::default(), |mut sum, size| {
            sum += size;
            sum
        })
    }
}
