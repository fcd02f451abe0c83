//! What costs bytes.

use std::path::PathBuf;

use jiff::Timestamp;

use super::ids::{FilesystemIx, NodeIx, StoreIx};

/// What a [`Node`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NodeKind {
    /// A layer of containers/storage: its directory, tar-split and layer data.
    Layer,
    /// A snapshot directory of containerd.
    Snapshot,
    /// A blob in containerd's content store.
    Blob,
    /// A layer in a cache beside containerd's root, which is not deleted with an image.
    CachedLayer,
    /// An image's own files: manifest, configuration, signatures.
    ImageMetadata,
    /// A container's own files (`userdata` and the like), without its writable layer.
    ContainerMetadata,
    /// Inodes with hard links in several other nodes: freed when all of those are deleted.
    SharedInodes,
    /// Extents that several other nodes share by reflink: freed when all of those are deleted.
    /// `bytes` is 0, since `st_blocks` has counted them in each of those nodes.
    SharedExtents,
    /// Chunks of inodes of an XFS that several other nodes have inodes in: the filesystem frees them
    /// when all of those are deleted. Only `frees_bytes` is not 0.
    SharedInodeChunks,
    /// Files that no record knows: an orphaned directory, a dead staging area, a temporary file.
    Orphan,
    /// Temporary files of the store's tools outside of the store: no part of its bytes.
    TemporaryFile,
    /// The store's own bookkeeping: record files, locks, link directories.
    StoreMetadata,
    /// Record files of the store. Every deletion writes them anew, as other inodes.
    StoreRecords,
    /// Something else below the store's root, named by the node's id.
    Other,
}

impl NodeKind {
    /// What a layer is called in documents.
    #[must_use]
    pub fn layer_name(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::Blob => "blob",
            _ => "layer",
        }
    }
}

/// Something that costs bytes.
#[derive(Clone, Debug)]
pub struct Node {
    pub kind: NodeKind,
    /// Its id in the store (layer id, blob digest), or a name for what has no id.
    pub id: String,
    /// The store it belongs to.
    pub store: StoreIx,
    /// The filesystem that its bytes lie on (a split imagestore may be elsewhere).
    pub filesystem: FilesystemIx,
    pub path: PathBuf,
    pub size: Size,
    /// Nodes that it cannot do without; the parent layer first.
    pub needs: Vec<NodeIx>,
    /// Facts of a layer, snapshot or blob; `None` for the rest.
    pub layer: Option<Box<LayerFacts>>,
}

/// What the records say of a layer, snapshot or blob.
#[derive(Clone, Debug, Default)]
pub struct LayerFacts {
    /// The parent as recorded, even where no such layer exists.
    pub parent: Option<String>,
    /// Digest of the uncompressed tar.
    pub diff_id: Option<String>,
    /// When the layer was made here; `None` where the record has Go's zero time.
    pub created: Option<Timestamp>,
    /// A container's writable layer.
    pub read_write: bool,
    /// The snapshotter that has it, of a snapshot of containerd.
    pub snapshotter: Option<String>,
    /// Length of the uncompressed tar as the runtime recorded it, in bytes; the runtimes'
    /// own image sizes are sums of these.
    pub listed_bytes: Option<u64>,
}

/// What a node costs. Hard links count once; directories count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Size {
    /// Allocated bytes: 512 x `st_blocks`, as `du` counts.
    pub bytes: u64,
    /// Sum of the file lengths (`st_size`) of everything that is not a directory.
    pub apparent_bytes: u64,
    /// Inodes, directories included.
    pub inodes: u64,
    /// What the filesystem is expected to free when the node is deleted: `bytes`, plus what
    /// it keeps for inodes outside `st_blocks`, minus extents shared with other nodes.
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
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |mut sum, one| {
            sum += one;
            sum
        })
    }
}
