//! The objects that documents are made of.

use crate::history::ages::Basis;
use crate::model::refs::RowKind;
use crate::model::{Consistency, ContainerId, Filesystem, ImageId, LayerId, LeakClass};
use crate::policy::forecast::Forecast;
use jiff::Timestamp;
use serde::Serialize;

/// Version of the documents' shape; a field is never renamed or removed within one.
pub const SCHEMA_VERSION: u32 = 1;

/// What every document begins with.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Header {
    /// Version of this document's shape.
    pub schema_version: u32,
    /// What kind of document this is: the name of its command, or a part of that.
    pub kind: &'static str,
    /// When the document was made, RFC 3339 UTC.
    pub generated_at: Timestamp,
}

impl Header {
    pub(super) fn new(kind: &'static str, generated_at: Timestamp) -> Self {
        Self { schema_version: SCHEMA_VERSION, kind, generated_at }
    }
}

/// A filesystem.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FilesystemDoc {
    /// Where it is mounted.
    pub mount: String,
    /// Its device.
    pub device: String,
    /// Its type.
    pub fstype: String,
    /// Size.
    pub capacity_bytes: u64,
    /// Bytes that are not free.
    pub used_bytes: u64,
    /// Bytes that an unprivileged user can still write.
    pub available_bytes: u64,
    /// Bytes that are neither used nor available: reserved for root, as a rule.
    pub reserved_bytes: u64,
    /// Percent of `capacity_bytes` that is not available (the kubelet's measure), two decimals:
    /// `used_bytes` and `reserved_bytes` together. `df` leaves the reserve out. Null where the filesystem's
    /// numbers contradict each other.
    pub used_percent: Option<f64>,
    /// Inodes in all; 0 where there is no fixed number.
    pub inodes: u64,
    /// Free inodes; 0 where there is no fixed number.
    pub inodes_free: u64,
}

/// When a filesystem is full if it goes on filling: `docs/records.md`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ForecastDoc {
    /// Where it is mounted.
    pub filesystem: String,
    /// For people.
    pub text: String,
    /// The rate is that of the last so many seconds.
    pub window_seconds: i64,
    /// Growth in an hour, our own deletions aside.
    pub bytes_per_hour: u64,
    /// Seconds until no byte is available to an unprivileged user.
    pub full_in_seconds: i64,
    /// The earlier end of its 95 % interval.
    pub earliest_in_seconds: i64,
    /// The later end of it.
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

/// A store.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StoreDoc {
    /// `containers-storage` or `containerd`.
    pub kind: &'static str,
    /// Its root.
    pub root: String,
    /// Storage driver or snapshotter.
    pub driver: String,
    /// Mount point of its filesystem.
    pub filesystem: String,
    /// Number of images.
    pub images: usize,
    /// Number of layers (snapshots, blobs).
    pub layers: usize,
    /// Number of containers.
    pub containers: usize,
    /// Its bytes by what uses them, each byte once.
    pub bytes: BytesDoc,
    /// containerd's snapshotters that have snapshots, with all that lies in these; part of the bytes
    /// above. More than one: layers are there several times.
    pub snapshotters: Vec<SnapshotterDoc>,
    /// The part of `bytes.other` by name.
    pub other: Vec<OtherDoc>,
    /// Bytes freed if all unused images and reclaimable leaks were deleted together.
    pub reclaimable_bytes: u64,
    /// An additional image store: never deleted from.
    pub read_only: bool,
    /// What made us look here.
    pub origin: String,
    /// `consistent`, `writer-active` or `damaged`.
    pub consistency: Consistency,
}

/// Bytes by what uses them: the parts add up to the total, which is what `du` says of the stores.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BytesDoc {
    /// What images reach; of fair shares, those of all images.
    pub images: u64,
    /// What only containers reach; of fair shares, those of all containers.
    pub containers: u64,
    /// Of the rest, what builders keep in their cache (Docker, BuildKit).
    pub build_cache: u64,
    /// Of the rest, what leaks reach.
    pub leaks: u64,
    /// The stores' own bookkeeping.
    pub metadata: u64,
    /// Everything else below the roots.
    pub other: u64,
    /// The sum.
    pub total: u64,
}

/// A snapshotter of containerd.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SnapshotterDoc {
    /// Its name.
    pub name: String,
    /// It is not the store's usual one, which is its `driver`.
    pub second: bool,
    /// How many snapshots it has.
    pub snapshots: usize,
    /// Allocated bytes.
    pub bytes: u64,
}

/// Something below a store's root that belongs to no image and no container.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OtherDoc {
    /// Its path below the root.
    pub name: String,
    /// Allocated bytes.
    pub bytes: u64,
}

/// An image.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ImageDoc {
    /// Image id; of an artifact its manifest's digest.
    pub id: String,
    /// `image`, or `artifact` for an OCI artifact of CRI-O or Podman.
    pub kind: &'static str,
    /// All names; empty for a dangling image.
    pub names: Vec<String>,
    /// Manifest digests.
    pub digests: Vec<String>,
    /// Root of its store.
    pub store: String,
    /// A manifest list: names other images, has no layers.
    pub manifest_list: bool,
    /// As its record says: in containerd when the record was made here, in containers/storage the
    /// date of its build, for an image that was pulled or loaded.
    pub created_at: Option<Timestamp>,
    /// Since when it is here, as far as that is proven; null without records.
    pub first_detected: Option<Timestamp>,
    /// `records`: our records have it; `disk`: they do not, and the disk says so now; null
    /// without records.
    pub first_detected_from: Option<Basis>,
    /// When a container last used it; null without records.
    pub last_used: Option<Timestamp>,
    /// How often it was found newly in use; null without records.
    pub use_count: Option<u64>,
    /// How often it was first detected: 1, plus one for each time it was deleted and detected again;
    /// null without records.
    pub lives: Option<u32>,
    /// A container was made from it.
    pub in_use: bool,
    /// These containers.
    pub used_by: Vec<UserDoc>,
    /// Configuration keeps it.
    pub pinned: bool,
    /// This configuration.
    pub pinned_by: Vec<String>,
    /// Layer ids from the top down to the base.
    pub layers: Vec<LayerId>,
    /// All that it reaches.
    pub total_bytes: u64,
    /// Of that, what others reach too.
    pub shared_bytes: u64,
    /// Of that, what only it reaches.
    pub exclusive_bytes: u64,
    /// Its fair share: the bytes of everything that it reaches, each divided equally among the images and
    /// containers that reach it.
    pub fair_bytes: u64,
    /// What the filesystem is expected to free if it alone is deleted now.
    pub frees_bytes: u64,
    /// The size that the runtime's own tools print; null where they cannot know it.
    pub listed_bytes: Option<u64>,
    /// Why layersweep cannot delete it here, whatever the policy says; null where it can. `scan` does not ask
    /// the runtime, and knows only what the disk tells.
    pub out_of_reach: Option<String>,
}

/// Who uses or holds something.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UserDoc {
    /// `image`, `container`, `leak` or `build-cache`; `elsewhere` for what is none of this document: a container of
    /// another store, one that only podman's database knows, a mount of the image.
    pub kind: &'static str,
    /// Its id; empty for what is elsewhere.
    pub id: String,
    /// Its name; in words for what is elsewhere.
    pub name: String,
    /// A container's owner; null for the rest.
    pub owner: Option<&'static str>,
}

/// A layer, snapshot or blob.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LayerDoc {
    /// Its id.
    pub id: String,
    /// Root of its store.
    pub store: String,
    /// `layer`, `snapshot` or `blob`.
    pub kind: &'static str,
    /// The parent as recorded.
    pub parent: Option<String>,
    /// Digest of the uncompressed tar.
    pub diff_id: Option<String>,
    /// When it was made here.
    pub created_at: Option<Timestamp>,
    /// A container's writable layer.
    pub read_write: bool,
    /// How many images and containers reach it.
    pub refcount: u32,
    /// A build cache holds it.
    pub build_cache: bool,
    /// Ids of these images.
    pub images: Vec<ImageId>,
    /// Ids of these containers.
    pub containers: Vec<ContainerId>,
    /// Allocated bytes, files shared with other layers by hard links included.
    pub bytes: u64,
    /// Sum of the file lengths.
    pub apparent_bytes: u64,
    /// Inodes.
    pub inodes: u64,
    /// Its path.
    pub path: String,
}

/// A container.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ContainerDoc {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Root of its store.
    pub store: String,
    /// Its image by name, or by id where the image has none; null if it was made from scratch.
    pub image: Option<String>,
    /// Its image's id as recorded.
    pub image_id: Option<String>,
    /// `cri-o`, `podman`, `buildah`, `containerd`, `docker` or `unknown`.
    pub owner: &'static str,
    /// `created`, `running`, `exited`, or `unknown` where the disk does not record it.
    pub state: &'static str,
    /// A pod sandbox.
    pub sandbox: bool,
    /// When it was made.
    pub created_at: Option<Timestamp>,
    /// Its writable layer and its own files.
    pub bytes: u64,
    /// Its fair share: these, and its part of the layers of its image.
    pub fair_bytes: u64,
    /// The size that podman prints: apparent bytes of the writable layer's content.
    pub listed_bytes: Option<u64>,
}

/// Something that nothing uses, or that does not fit together.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LeakDoc {
    /// Class.
    pub class: LeakClass,
    /// Root of its store.
    pub store: String,
    /// Its path.
    pub path: String,
    /// The object's id or name.
    pub id: String,
    /// Allocated bytes of the object itself; 0 where only a record is wrong.
    pub bytes: u64,
    /// Age in seconds; null where the disk has no evidence of it.
    pub age_seconds: Option<u64>,
    /// `reclaim`, `repair`, `keep` or `report`.
    pub verdict: &'static str,
    /// What proves it.
    pub evidence: String,
}

/// A row of the summary.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RowDoc {
    /// `images_in_use`, `images_pinned`, `images_out_of_reach`, `images_unused`, `snapshotter` (what images have in a
    /// snapshotter of containerd beside the usual one), `containers`, `leaks`, `leaks_kept`,
    /// `build_cache`, `metadata` or `other`.
    pub kind: RowKind,
    /// The snapshotter's name; null for other kinds.
    pub name: Option<String>,
    /// Number of objects.
    pub count: usize,
    /// What they reach together, each byte once; of images without what they have in a second
    /// snapshotter.
    pub bytes: u64,
    /// Of that, what nothing outside the row reaches.
    pub exclusive_bytes: u64,
    /// Bytes freed if only the whole row were deleted; what images have in a second
    /// snapshotter goes with these.
    pub reclaimable_bytes: u64,
    /// Inodes that they reach together.
    pub inodes: u64,
}

/// A store with the rows of its summary.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UsageStoreDoc {
    /// The store.
    #[serde(flatten)]
    pub store: StoreDoc,
    /// The summary.
    pub rows: Vec<RowDoc>,
}

/// Sums over all stores.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TotalsDoc {
    /// Number of images.
    pub images: usize,
    /// Number of images that no container uses and no configuration keeps.
    pub images_unused: usize,
    /// Number of layers.
    pub layers: usize,
    /// Number of containers.
    pub containers: usize,
    /// Number of leaks.
    pub leaks: usize,
    /// Allocated bytes of all stores.
    pub bytes: u64,
    /// Inodes of all stores.
    pub inodes: u64,
    /// Bytes freed if all unused images and reclaimable leaks were deleted together.
    pub reclaimable_bytes: u64,
}
