//! Objects that several documents share.

use crate::history::ages::Basis;
use crate::model::deletion::plan::TargetKind;
use crate::model::refs::RowKind;
use crate::model::text::names::names;
use crate::model::{
    Consistency, ContainerId, ContainerState, Filesystem, ImageId, LayerId, LeakClass, NodeKind, Origin,
    Owner, SCHEMA_VERSION, StoreKind, Verdict,
};
use crate::policy::forecast::Forecast;
use jiff::Timestamp;
use serde::Serialize;

names! {
    /// Command, and form of its output, that a document is from.
    DocumentKind {
        Config = "config",
        Diff = "diff",
        Doctor = "doctor",
        DoctorSuggest = "doctor-suggest",
        Explain = "explain",
        Fits = "fits",
        Waste = "waste",
        Gc = "gc",
        History = "history",
        HistoryRepull = "history-repull",
        HistoryScans = "history-scans",
        HistoryUsage = "history-usage",
        Images = "images",
        Layers = "layers",
        Pins = "pins",
        Replay = "replay",
        Report = "report",
        ReportMerge = "report-merge",
        Rm = "rm",
        Scan = "scan",
        Sweep = "sweep",
        Usage = "usage",
        UsageGrowth = "usage-growth",
    }
}

/// Common fields of all documents.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Header {
    /// Version of the document format.
    pub schema_version: u32,
    /// Kind of document: the name of the command, with a suffix if the command has several documents.
    pub kind: DocumentKind,
    /// Time at which the document was made, RFC 3339 UTC.
    pub generated_at: Timestamp,
}

impl Header {
    pub(super) fn new(kind: DocumentKind, generated_at: Timestamp) -> Self {
        Self { schema_version: SCHEMA_VERSION, kind, generated_at }
    }
}

/// Filesystem that contains a store or is under observation.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FilesystemDoc {
    /// Mount point.
    pub mount: String,
    /// Device node, or the source of the mount.
    pub device: String,
    /// Filesystem type as in `/proc/mounts`, for example `xfs`.
    pub fstype: String,
    /// Size of the filesystem.
    pub capacity_bytes: u64,
    /// Bytes that are not free.
    pub used_bytes: u64,
    /// Bytes that an unprivileged user can still write.
    pub available_bytes: u64,
    /// Bytes that are neither used nor available, usually reserved for root.
    pub reserved_bytes: u64,
    /// Percentage of `capacity_bytes` that is not available (the kubelet's measure), two decimals:
    /// `used_bytes` and `reserved_bytes` together. `df` does not count the reserve. Null if the filesystem's
    /// numbers contradict each other.
    pub used_percent: Option<f64>,
    /// Total number of inodes; 0 if the filesystem has no fixed number.
    pub inodes: u64,
    /// Free inodes; 0 if the filesystem has no fixed number.
    pub inodes_free: u64,
}

/// Time until a filesystem is full at its current rate of growth: see `docs/records.md`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ForecastDoc {
    /// Mount point of the filesystem.
    pub filesystem: String,
    /// Forecast in words.
    pub text: String,
    /// Length of the period from which the rate is computed, in seconds.
    pub window_seconds: i64,
    /// Growth in an hour, without the effect of layersweep's deletions.
    pub bytes_per_hour: u64,
    /// Seconds until no byte is available to an unprivileged user.
    pub full_in_seconds: i64,
    /// Lower end of the 95 % interval.
    pub earliest_in_seconds: i64,
    /// Upper end of the 95 % interval.
    pub latest_in_seconds: i64,
}

impl ForecastDoc {
    pub(super) fn new(filesystem: &Filesystem, forecast: &Forecast) -> Self {
        let full = forecast.until_full();
        Self {
            filesystem: filesystem.mount.to_string_lossy().into_owned(),
            text: forecast.to_string(),
            window_seconds: forecast.window.as_secs(),
            bytes_per_hour: forecast.bytes_per_hour(),
            full_in_seconds: full.after.as_secs(),
            earliest_in_seconds: full.earliest.as_secs(),
            latest_in_seconds: full.latest.as_secs(),
        }
    }
}

/// Store of images and containers.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StoreDoc {
    /// `containers-storage`, `containerd` or `docker`.
    pub kind: StoreKind,
    /// Root directory: a graphroot, an additional image store, or the root of containerd.
    pub root: String,
    /// Storage driver or snapshotter.
    pub driver: String,
    /// Mount point of its filesystem.
    pub filesystem: String,
    /// Number of images, artifacts included.
    pub images: usize,
    /// Number of layers, snapshots and blobs.
    pub layers: usize,
    /// Number of containers, running or not.
    pub containers: usize,
    /// Bytes of the store by user, each byte once.
    pub bytes: BytesDoc,
    /// Snapshotters of containerd that have snapshots, with everything in them; part of `bytes`. With more
    /// than one, the same layers are on the disk several times.
    pub snapshotters: Vec<SnapshotterDoc>,
    /// Parts of `bytes.other` by name.
    pub other: Vec<OtherDoc>,
    /// Bytes freed if all unused images and reclaimable leaks were deleted together.
    pub reclaimable_bytes: u64,
    /// True for an additional image store, from which layersweep never deletes.
    pub read_only: bool,
    /// Configuration file, option or default that names the store.
    pub origin: String,
    /// `consistent`, `writer-active` or `damaged`.
    pub consistency: Consistency,
}

/// Bytes by user. The parts add up to the total, which is what `du` prints for the stores.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BytesDoc {
    /// Bytes that images reach; of fair shares, the sum over all images.
    pub images: u64,
    /// Bytes that only containers reach; of fair shares, the sum over all containers.
    pub containers: u64,
    /// Of the rest, bytes in the cache of a builder (Docker, BuildKit).
    pub build_cache: u64,
    /// Of the rest, bytes that leaks reach.
    pub leaks: u64,
    /// Bookkeeping of the stores: record files, locks, link directories.
    pub metadata: u64,
    /// All other files below the roots, and those whose owner is unknown.
    pub other: u64,
    /// Sum of the above.
    pub total: u64,
}

/// Snapshotter of containerd.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SnapshotterDoc {
    /// Name as in containerd's configuration, for example `overlayfs`.
    pub name: String,
    /// True if it is not the usual snapshotter of the store, named by `driver`.
    pub second: bool,
    /// Number of snapshots.
    pub snapshots: usize,
    /// Allocated bytes.
    pub bytes: u64,
}

/// Directory entry below a store's root that belongs to no image and no container.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OtherDoc {
    /// Path relative to the root.
    pub name: String,
    /// Allocated bytes.
    pub bytes: u64,
}

/// Image or OCI artifact.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ImageDoc {
    /// Image id; for an artifact, the digest of its manifest.
    pub id: String,
    /// `image`, or `artifact` for an OCI artifact of CRI-O or Podman.
    pub kind: TargetKind,
    /// All names; empty for a dangling image.
    pub names: Vec<String>,
    /// Digests of its manifests.
    pub digests: Vec<String>,
    /// Root of its store.
    pub store: String,
    /// Way in which it came to this node, with the evidence.
    pub origin: Origin,
    /// True for a manifest list, which names other images and has no layers.
    pub manifest_list: bool,
    /// Creation time from the image's record: in containerd, when the record was made on this node; in
    /// containers/storage, for an image that was pulled or loaded, when it was built.
    pub created_at: Option<Timestamp>,
    /// Earliest proven time at which the image was here; null without records.
    pub first_detected: Option<Timestamp>,
    /// Source of `first_detected`: `records` (stored by an earlier run) or `disk` (not in the records,
    /// derived from the disk now); null without records.
    pub first_detected_from: Option<Basis>,
    /// Last known use by a container; null without records.
    pub last_used: Option<Timestamp>,
    /// Number of times that a scan found a new use; null without records.
    pub use_count: Option<u64>,
    /// Number of times it was first detected: 1, plus one for each detection after a deletion; null without
    /// records.
    pub lives: Option<u32>,
    /// True if something in `used_by` uses it.
    pub in_use: bool,
    /// Containers made from the image, and other uses of it.
    pub used_by: Vec<UserDoc>,
    /// True if configuration keeps it.
    pub pinned: bool,
    /// Configuration that keeps it.
    pub pinned_by: Vec<String>,
    /// Layer ids from the top down to the base.
    pub layers: Vec<LayerId>,
    /// Bytes of everything that the image reaches.
    pub total_bytes: u64,
    /// Of these, bytes that other images or containers reach too.
    pub shared_bytes: u64,
    /// Of these, bytes that only this image reaches.
    pub exclusive_bytes: u64,
    /// Fair share: the bytes of each object that the image reaches, divided equally among all images and
    /// containers that reach it.
    pub fair_bytes: u64,
    /// Bytes that the filesystem is expected to free if only this image is deleted now; null if some of its layers
    /// are not measured.
    pub frees_bytes: Option<u64>,
    /// Size that the runtime's own tools print; null if they cannot know it.
    pub listed_bytes: Option<u64>,
    /// Reason why layersweep cannot delete it here under any policy; null if it can. `scan` reads only the
    /// disk and does not ask the runtime.
    pub out_of_reach: Option<String>,
}

names! {
    /// Kind of a user of an image or layer.
    UserKind {
        Image = "image",
        Container = "container",
        Leak = "leak",
        BuildCache = "build-cache",
        /// A user that the document does not list.
        External = "external",
    }
}

/// User of an image or layer.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UserDoc {
    /// `image`, `container`, `leak` or `build-cache`; `external` for a user that this document does not
    /// list: a container of another store, a container known only to Podman's database, a mount of the image.
    pub kind: UserKind,
    /// Id of the user; empty for `external`.
    pub id: String,
    /// Name of the user; a description for `external`.
    pub name: String,
    /// Owner of a container; null for other kinds.
    pub owner: Option<Owner>,
}

/// Layer, snapshot or blob.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LayerDoc {
    /// Id of the layer, key of the snapshot, or digest of the blob.
    pub id: String,
    /// Root of its store.
    pub store: String,
    /// `layer`, `snapshot` or `blob`.
    pub kind: NodeKind,
    /// Id of the parent as recorded; null for a base.
    pub parent: Option<String>,
    /// Digest of the uncompressed tar.
    pub diff_id: Option<String>,
    /// Creation time on this node.
    pub created_at: Option<Timestamp>,
    /// True for the writable layer of a container.
    pub read_write: bool,
    /// Number of images and containers that reach it.
    pub refcount: u32,
    /// True if a build cache contains it.
    pub build_cache: bool,
    /// Ids of the images that reach it.
    pub images: Vec<ImageId>,
    /// Ids of the containers that reach it.
    pub containers: Vec<ContainerId>,
    /// Allocated bytes, including files shared with other layers by hard links.
    pub bytes: u64,
    /// Sum of the file lengths.
    pub apparent_bytes: u64,
    /// Number of inodes.
    pub inodes: u64,
    /// Path on the disk.
    pub path: String,
    /// Directory in an additional layer store that contains its files. `bytes` and `inodes` do not include these. Null
    /// for other layers.
    pub content_path: Option<String>,
    /// True if its content is not in `bytes` and `inodes`: it is in a thin pool, a dataset or an additional layer store,
    /// or was not found.
    pub unmeasured: bool,
}

/// Container of any owner and state.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ContainerDoc {
    /// Container id.
    pub id: String,
    /// Name given by its owner.
    pub name: String,
    /// Root of its store.
    pub store: String,
    /// Name of its image, or the id of an image without names; null for a container made without an image.
    pub image: Option<String>,
    /// Id of its image as recorded.
    pub image_id: Option<String>,
    /// `cri-o`, `podman`, `buildah`, `containerd`, `docker` or `unknown`.
    pub owner: Owner,
    /// `created`, `running`, `exited`, or `unknown` if the disk does not record it.
    pub state: ContainerState,
    /// True for a pod sandbox.
    pub sandbox: bool,
    /// Creation time.
    pub created_at: Option<Timestamp>,
    /// Bytes of its writable layer and its own files.
    pub bytes: u64,
    /// Fair share: `bytes` and its part of the layers of its image.
    pub fair_bytes: u64,
    /// Size that Podman prints: apparent bytes of the writable layer's content.
    pub listed_bytes: Option<u64>,
}

/// Object that nothing uses, or a record that contradicts another.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LeakDoc {
    /// Class of leak: see `docs/leaks.md`.
    pub class: LeakClass,
    /// Root of its store.
    pub store: String,
    /// Path on the disk.
    pub path: String,
    /// Id or name of the object.
    pub id: String,
    /// Allocated bytes of the object itself; 0 if only a record is wrong.
    pub bytes: u64,
    /// Age in seconds; null if the disk has no evidence of it.
    pub age_seconds: Option<u64>,
    /// `reclaim`, `repair`, `keep` or `report`.
    pub verdict: Verdict,
    /// Evidence in words.
    pub evidence: String,
}

/// Row in the summary of a store.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RowDoc {
    /// `images_in_use`, `images_pinned`, `images_out_of_reach`, `images_unused`, `snapshotter` (copies of
    /// images in another snapshotter of containerd than the usual one), `containers`, `leaks`, `leaks_kept`,
    /// `build_cache`, `metadata` or `other`.
    pub kind: RowKind,
    /// Name of the snapshotter; null for other kinds.
    pub name: Option<String>,
    /// Number of objects.
    pub count: usize,
    /// Bytes that the objects reach together, each byte once; for images, without their copies in a second
    /// snapshotter.
    pub bytes: u64,
    /// Of these, bytes that no object outside the row reaches.
    pub exclusive_bytes: u64,
    /// Bytes freed if exactly this row were deleted. The copies of images in a second snapshotter are deleted
    /// with the images.
    pub reclaimable_bytes: u64,
    /// Inodes that the objects reach together.
    pub inodes: u64,
}

/// Store with the rows of its summary.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UsageStoreDoc {
    /// Facts about the store.
    #[serde(flatten)]
    pub store: StoreDoc,
    /// Rows of the summary, which may overlap.
    pub rows: Vec<RowDoc>,
}

/// Sums over all stores.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TotalsDoc {
    /// Number of images, artifacts included.
    pub images: usize,
    /// Number of images that no container uses and no configuration keeps.
    pub images_unused: usize,
    /// Number of layers, snapshots and blobs.
    pub layers: usize,
    /// Number of containers, running or not.
    pub containers: usize,
    /// Number of leaks of all classes.
    pub leaks: usize,
    /// Allocated bytes of all stores.
    pub bytes: u64,
    /// Inodes of all stores.
    pub inodes: u64,
    /// Bytes freed if all unused images and reclaimable leaks were deleted together.
    pub reclaimable_bytes: u64,
}
