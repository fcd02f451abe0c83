//! The model that every reader fills and everything else works on. Pure: no I/O, no clock.
//!
//! What costs bytes is a [`Node`]: a layer, an image's metadata, an inode that several
//! layers share. Nodes *need* other nodes (a layer needs its parent), which makes a
//! directed graph. What keeps nodes on the disk is a **root**: an image, a container, a
//! leak (an object that nothing uses, but that nobody has deleted either), the store
//! itself, or somebody outside the store. [`refs`] derives every figure from that.

pub mod evidence;
mod ids;
mod labels;
mod outcome;
pub mod picture;
pub mod refs;
pub mod rules;
mod store_key;
mod uses;
pub mod words;

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use evidence::{Evidence, EvidenceKind};
pub use ids::{ContainerIx, FilesystemIx, ImageIx, LeakIx, NodeIx, StoreIx};
pub use labels::{Labels, LabelsOf};
pub use outcome::Outcome;
pub use store_key::StoreKey;
pub use uses::Use;

/// Everything that one scan found.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// The filesystems that hold at least one store.
    pub filesystems: Vec<Filesystem>,
    /// The stores, in the order they were found.
    pub stores: Vec<Store>,
    /// Everything that costs bytes, each byte in exactly one node.
    pub nodes: Vec<Node>,
    /// Image records.
    pub images: Vec<Image>,
    /// Container records.
    pub containers: Vec<Container>,
    /// What nothing uses, or looks wrong.
    pub leaks: Vec<Leak>,
    /// Nodes that something other than an image, container or leak holds: the store's own
    /// bookkeeping, layers of read-only stores, inodes with links outside every store.
    /// No deletion of ours frees them.
    pub anchored: Vec<NodeIx>,
    /// Stores whose images may be used by another one, of whose containers not all are known.
    pub lent: Vec<Lent>,
    /// What uses images and layers from elsewhere: other stores, podman's database, mounts of images.
    pub uses: Vec<Use>,
    /// What could not be read or does not fit together; `scan` prints them as warnings.
    pub findings: Vec<Finding>,
}

/// A mounted filesystem, as `statvfs` and the mount table describe it.
#[derive(Clone, Debug, PartialEq)]
pub struct Filesystem {
    /// Where it is mounted, in the mount namespace of the scan.
    pub mount: PathBuf,
    /// The source column of the mount table, for example `/dev/vda4`.
    pub device: String,
    /// The type column of the mount table, for example `xfs`.
    pub fstype: String,
    /// Size in bytes (`f_blocks`).
    pub capacity_bytes: u64,
    /// Bytes that are not free, root's reserve counted as free (`f_blocks - f_bfree`).
    pub used_bytes: u64,
    /// Bytes that an unprivileged user can still write (`f_bavail`).
    pub available_bytes: u64,
    /// Inodes in all; 0 where the filesystem has no fixed number (btrfs).
    pub inodes: u64,
    /// Inodes that are free; 0 where the filesystem has no fixed number.
    pub inodes_free: u64,
}

impl Filesystem {
    /// Percent of the capacity that is not available to an unprivileged user: the
    /// kubelet's measure, so 85.0 here is where its image GC starts by default.
    /// `None` where the capacity is 0 or the numbers contradict each other.
    #[must_use]
    pub fn used_percent(&self) -> Option<f64> {
        if self.capacity_bytes == 0 || self.available_bytes > self.capacity_bytes {
            return None;
        }
        let taken = self.capacity_bytes - self.available_bytes;
        #[allow(clippy::cast_precision_loss)] // shown with two decimals
        Some(taken as f64 * 100.0 / self.capacity_bytes as f64)
    }
}

/// What kind of store a [`Store`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreKind {
    /// containers/storage: CRI-O, Podman, Buildah.
    ContainersStorage,
    /// containerd's content store and snapshots.
    Containerd,
}

/// One store: a graphroot with one driver, or a containerd root.
#[derive(Clone, Debug)]
pub struct Store {
    /// What kind it is.
    pub kind: StoreKind,
    /// Its root, as a path that can be opened here (below the sysroot, if one was given).
    pub root: PathBuf,
    /// Storage driver or snapshotter, for example `overlay`.
    pub driver: String,
    /// The filesystem that holds the root.
    pub filesystem: FilesystemIx,
    /// An additional image store: it may serve our images, but is never ours to delete from.
    pub read_only: bool,
    /// Who configured it, for example `/etc/crio/crio.conf` or `--graphroot`.
    pub origin: String,
    /// How far the records can be trusted to belong together.
    pub consistency: Consistency,
}

/// The driver of a store of OCI artifacts.
pub const ARTIFACTS: &str = "artifacts";

impl Store {
    /// Whether its images are OCI artifacts.
    #[must_use]
    pub fn is_of_artifacts(&self) -> bool {
        self.kind == StoreKind::ContainersStorage && self.driver == ARTIFACTS
    }
}

impl Inventory {
    /// Whether an image is an OCI artifact.
    #[must_use]
    pub fn is_artifact(&self, image: ImageIx) -> bool {
        self.stores[self.images[image.get()].store.get()].is_of_artifacts()
    }
}

/// A store whose images another one may use that could not be read, or not in full: an
/// additional image store of that one, or its imagestore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lent {
    /// The store that has the images.
    pub store: StoreIx,
    /// Root of the one whose containers are not all known.
    pub to: PathBuf,
}

/// How far the records of a store are known to belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consistency {
    /// Read while nobody wrote: one moment in time.
    Consistent,
    /// A writer was active all the time. Each file is whole, but two files may show
    /// two moments, so nothing that is missing from one of them proves a leak.
    WriterActive,
    /// At least one record file could not be read in full. Nothing that is missing from
    /// it proves anything.
    Damaged,
}

/// What a [`Node`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NodeKind {
    /// A layer of containers/storage: its directory, tar-split and layer data.
    Layer,
    /// A snapshot directory of containerd.
    Snapshot,
    /// A blob in containerd's content store.
    Blob,
    /// A layer in a cache beside containerd's root, which nobody deletes with an image.
    CachedLayer,
    /// An image's own files: manifest, configuration, signatures.
    ImageMetadata,
    /// A container's own files (`userdata` and the like), without its writable layer.
    ContainerMetadata,
    /// Inodes with hard links in several other nodes: they go when all of those go.
    SharedInodes,
    /// Extents that several other nodes share by reflink: they go when all of those go.
    /// `bytes` is 0, since `st_blocks` has counted them in each of those nodes.
    SharedExtents,
    /// Chunks of inodes of an XFS that several other nodes have inodes in: the filesystem
    /// gives them back when all of those go. Only `frees_bytes` is not 0.
    SharedInodeChunks,
    /// Files that no record knows: an orphaned directory, a dead staging area, a temporary file.
    Debris,
    /// Temporary files of the store's tools outside of the store: no part of its bytes.
    Leftover,
    /// The store's own bookkeeping: record files, locks, link directories.
    StoreMetadata,
    /// Record files of the store. Every deletion writes them anew, as other inodes.
    StoreRecords,
    /// Something else below the store's root, named by the node's id.
    Other,
}

/// Something that costs bytes.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it is.
    pub kind: NodeKind,
    /// Its id in the store (layer id, blob digest), or a name for what has no id.
    pub id: String,
    /// The store it belongs to.
    pub store: StoreIx,
    /// The filesystem that its bytes lie on (a split imagestore may be elsewhere).
    pub filesystem: FilesystemIx,
    /// Where it lies.
    pub path: PathBuf,
    /// What it costs.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Allocated bytes: 512 x `st_blocks`, as `du` counts.
    pub bytes: u64,
    /// Sum of the file lengths (`st_size`) of everything that is not a directory.
    pub apparent_bytes: u64,
    /// Inodes, directories included.
    pub inodes: u64,
    /// What the filesystem is expected to give back when the node goes: `bytes`, plus what
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

/// An image record.
#[derive(Clone, Debug)]
pub struct Image {
    /// Image id: for almost every image the hex digest of its configuration.
    pub id: String,
    /// The store that records it.
    pub store: StoreIx,
    /// All its names; empty for a dangling image.
    pub names: Vec<String>,
    /// Digests of its manifests, as `sha256:…`.
    pub digests: Vec<String>,
    /// As its record says. containerd writes down when the record was made here;
    /// containers/storage takes over the build date of an image that was pulled or loaded,
    /// so there this says nothing of how long it has been here (seen with podman 4.3.1).
    pub created: Option<Timestamp>,
    /// What on the disk says since when it can be here at all.
    pub evidence: Vec<Evidence>,
    /// A manifest list or index: names other images, has no layer of its own.
    pub is_list: bool,
    /// What keeps it from deletion by configuration, one text a reason.
    pub pinned_by: Vec<String>,
    /// Labels of its configuration and, in containerd, of its records.
    pub labels: Labels,
    /// Layer ids from the top layer down to the base, as far as they exist.
    pub layers: Vec<String>,
    /// The size that the runtime's own tools print; `None` where they cannot know it.
    pub listed_bytes: Option<u64>,
    /// The nodes that it holds directly: metadata, top layer, mapped layers.
    pub holds: Vec<NodeIx>,
}

/// Who made a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Owner {
    /// CRI-O: the kubelet's.
    CriO,
    /// Podman.
    Podman,
    /// A buildah working container.
    Buildah,
    /// containerd, any namespace.
    Containerd,
    /// The records do not tell.
    Unknown,
}

/// A container record.
#[derive(Clone, Debug)]
pub struct Container {
    /// Container id.
    pub id: String,
    /// The store that records it.
    pub store: StoreIx,
    /// Its name; the id where it has none.
    pub name: String,
    /// Who made it.
    pub owner: Owner,
    /// The image it was made from, as recorded; may be unknown to the store.
    pub image_id: Option<String>,
    /// The same as a position, where the image exists.
    pub image: Option<ImageIx>,
    /// Images that are mounted into it as volumes.
    pub volumes: Vec<ImageIx>,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// `running`, `exited`, `created` where the disk proves it, else `unknown`.
    pub state: ContainerState,
    /// Pod sandbox (the pause container).
    pub sandbox: bool,
    /// Id of the pod sandbox that it is in, by its own record; a sandbox may name itself.
    pub sandbox_id: Option<String>,
    /// Apparent bytes of the writable layer's content, the size that `podman ps -s` prints.
    pub listed_bytes: Option<u64>,
    /// The nodes that it holds directly: metadata, writable layer.
    pub holds: Vec<NodeIx>,
}

impl Container {
    /// The images that it uses: the one that it was made from, then its volumes; each once.
    pub fn images(&self) -> impl Iterator<Item = ImageIx> + '_ {
        let volumes = self.volumes.iter().copied().filter(|volume| self.image != Some(*volume));
        self.image.into_iter().chain(volumes)
    }

    /// Whether it was made from an image, or has it mounted as a volume.
    #[must_use]
    pub fn uses(&self, image: ImageIx) -> bool {
        self.images().any(|one| one == image)
    }
}

/// What the disk proves about a container's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ContainerState {
    /// A record of the runtime says created, not yet started.
    Created,
    /// A record of the runtime says running, or its root filesystem is mounted now.
    Running,
    /// A record of the runtime says it has ended.
    Exited,
    /// The disk does not tell.
    #[default]
    Unknown,
}

/// What should happen to a leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Nothing uses it and its proof is complete: its bytes can be taken back.
    Reclaim,
    /// The records are wrong: an edit mends them.
    Repair,
    /// It looks like a leak but is not, or may be work in progress.
    Keep,
    /// A person has to look at it.
    Report,
}

/// Something that nothing uses, or that does not fit together.
#[derive(Clone, Debug)]
pub struct Leak {
    /// Class name in kebab case, listed in `docs/leaks.md`.
    pub class: &'static str,
    /// The store it was found in.
    pub store: StoreIx,
    /// Where it lies.
    pub path: PathBuf,
    /// The object's id or name.
    pub id: String,
    /// Newest evidence of its making; `None` where the disk has none.
    pub since: Option<Timestamp>,
    /// What should happen to it.
    pub verdict: Verdict,
    /// What proves it, in words.
    pub evidence: String,
    /// The nodes that it holds directly.
    pub holds: Vec<NodeIx>,
}

impl Leak {
    /// A name for people, who know its class and not its id.
    #[must_use]
    pub fn title(&self) -> String {
        let id: String = self.id.chars().take(12).collect();
        format!("{} {id}", self.class)
    }
}

/// Something that could not be read in full, or that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file or object concerned.
    pub path: PathBuf,
    /// What is wrong with it, and what that means for the figures.
    pub message: String,
    /// The figures are lower bounds because of this: exit code 3.
    pub incomplete: bool,
}
