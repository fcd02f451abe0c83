//! JSON documents printed by `--format json`: one type for each command, named `…Doc`.
//!
//! The field names are a public interface, published as JSON Schema in `docs/schema/`; a test compares the
//! types with these files, doc comments included. Every `*_bytes` field counts allocated bytes unless its
//! description says otherwise, every time is RFC 3339 in UTC, and `null` means unknown or not applicable,
//! never zero.

mod build;
mod config;
mod deletion;
mod diff;
mod doctor;
mod explain;
mod fits;
mod fleet;
mod gc;
mod growth;
mod history;
mod parts;
mod pins;
mod remembered;
mod replay;
mod report;
mod repull;
mod scan;
mod story;
mod sweep;
mod usage;
mod waste;

use serde::Serialize;

use crate::app::explain::{AgeLimits, VolumeExplanation};
use crate::model::deletion::plan::Reason;
use crate::model::rules::{Rule, Ruling};
use crate::model::text::names::names;
use crate::model::{ContainerState, Finding, PrintedCommand};
use crate::services::diagnosis::StoppedHolders;
use crate::stores::Effort;

pub use build::{container, fair, filesystem, image, layer, leak, store, totals, usage_store};
pub use config::{ConfigDoc, Override, config};
pub use deletion::{DeletionDoc, FreedDoc};
pub use diff::{ChangeDoc, DiffDoc, ImageDiffDoc, TakenDoc, diff};
pub use doctor::{DoctorDoc, DoctorSuggestDoc, doctor, doctor_suggest};
pub use explain::explain;
#[cfg(test)]
pub use fits::KeptByRuleDoc;
pub use fits::{ComingDoc, ComingState, FitsDoc, fits};
pub use fleet::{FleetDoc, fleet};
pub use gc::{ComparisonDoc, GcDoc, GcFilesystemDoc, InodeUseDoc, KeptDoc, gc};
pub use growth::{GrowthDoc, growth};
pub use history::{
    HistoryDoc, HistoryScansDoc, HistoryUsageDoc, KeptScanDoc, PointDoc, RunDoc, SeriesDoc, history,
    history_of_images, history_scans, history_usage,
};
pub use parts::{
    BytesDoc, ContainerDoc, DocumentKind, FilesystemDoc, ForecastDoc, Header, ImageDoc, LayerDoc, LeakDoc,
    OtherDoc, RowDoc, SnapshotterDoc, StoreDoc, TotalsDoc, UsageStoreDoc, UserDoc, UserKind,
};

pub use pins::{PinsDoc, pins};
pub use remembered::RememberedDoc;
pub use replay::{ReplayDoc, replay};
pub use report::{Extent, ReportDoc, ReportFilesystemDoc, TopObjectDoc, report};
pub use repull::{RepullDoc, RepullImageDoc, repull};
pub use scan::{explanation, images, known_images, layers, scan};
pub use story::{EndedBy, LifeDoc, StoryDoc};
pub use sweep::{SweepDoc, SweepLeakDoc, sweep, sweep_refused};
pub use usage::{GroupDoc, ShareKind, ShareRowDoc, UsageDoc, UsageFilesystemDoc, usage, usage_filesystems};
pub use waste::{WasteDoc, waste};

/// Document of `layersweep scan`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "ScanDoc"))]
pub struct ScanDoc<L = Vec<LayerDoc>> {
    /// Common fields of all documents; the kind is `scan`.
    #[serde(flatten)]
    pub header: Header,
    /// True if everything was read and the figures are exact. If false, they are lower bounds.
    pub complete: bool,
    /// Name of the node: `LAYERSWEEP_NODE_NAME` of the environment, or else the kernel's host name, or else that in
    /// `/etc/hostname`, which alone names a disk that is mounted elsewhere; null if it has none.
    pub node: Option<String>,
    /// Mounted root that was read, a prefix of all paths below; null for the running system.
    pub sysroot: Option<String>,
    /// Filesystems that contain a store.
    pub filesystems: Vec<FilesystemDoc>,
    /// Stores found on the node or named by options.
    pub stores: Vec<StoreDoc>,
    /// Images and OCI artifacts of all stores.
    pub images: Vec<ImageDoc>,
    /// Layers, snapshots and blobs of all stores.
    pub layers: L,
    /// Containers of all stores, running or not.
    pub containers: Vec<ContainerDoc>,
    /// Objects that nothing uses, and records that contradict each other.
    pub leaks: Vec<LeakDoc>,
    /// Sums over all stores.
    pub totals: TotalsDoc,
    /// Sum of all fair shares, by kind of owner.
    pub fair_bytes: BytesDoc,
    /// Cost of the scan: inodes examined, layers measured and taken from the cache.
    pub scan: Effort,
    /// Files that could not be read, and records that contradict each other.
    pub warnings: Vec<Finding>,
}

/// Document of `layersweep images`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ImagesDoc {
    /// Common fields of all documents; the kind is `images`.
    #[serde(flatten)]
    pub header: Header,
    /// True if everything was read.
    pub complete: bool,
    /// Images in the requested order.
    pub images: Vec<ImageDoc>,
    /// Sum of all fair shares, including those of images that are not listed.
    pub fair_bytes: BytesDoc,
    /// Files that could not be read, and records that contradict each other.
    pub warnings: Vec<Finding>,
}

/// Document of `layersweep layers`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LayersDoc {
    /// Common fields of all documents; the kind is `layers`.
    #[serde(flatten)]
    pub header: Header,
    /// True if everything was read.
    pub complete: bool,
    /// Layers, the largest first.
    pub layers: Vec<LayerDoc>,
    /// Files that could not be read, and records that contradict each other.
    pub warnings: Vec<Finding>,
}

names! {
    /// Kind of object that `explain` describes.
    SubjectKind {
        Image = "image",
        Layer = "layer",
        Container = "container",
        Leak = "leak",
        Metadata = "metadata",
        Other = "other",
        Directory = "directory",
        File = "file",
        /// An image that the records know and no store has.
        AbsentImage = "absent-image",
    }
}

/// Document of `layersweep explain`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExplainDoc {
    /// Common fields of all documents; the kind is `explain`.
    #[serde(flatten)]
    pub header: Header,
    /// True if everything was read.
    pub complete: bool,
    /// `image`, `layer`, `container`, `leak`, `metadata` or `other`; `directory` or `file` for a path that is
    /// not an object (a store, or a path outside the stores); `absent-image` if no store has an image of that name,
    /// but the records know one.
    pub subject: SubjectKind,
    /// Id or name of the object; the path of a directory or file.
    pub id: String,
    /// Path of the object on the disk.
    pub path: String,
    /// The image; null for other subjects.
    pub image: Option<ImageDoc>,
    /// Facts about the image from the records; null without records.
    pub records: Option<RememberedDoc>,
    /// Ages that the configuration sets for the image; null for other subjects.
    pub age_limits: Option<AgeLimits>,
    /// Other images that the reference named earlier, the latest first; only for an image or `absent-image`.
    pub earlier_images: Vec<StoryDoc>,
    /// Layers from the top down to the base. For an image, its other content follows: blobs, mapped layers,
    /// copies in a second snapshotter.
    pub chain: Vec<LayerDoc>,
    /// The container; null for other subjects.
    pub container: Option<ContainerDoc>,
    /// The container, if only podman's database knows it; null otherwise.
    pub lost_container: Option<LostContainerDoc>,
    /// The volume of podman that contains the path; null for other subjects.
    pub volume: Option<VolumeExplanation>,
    /// Command for a container that does not run: `{"deletes": COMMAND}` removes it with its own layer, and fails while
    /// it is used; `{"shows": COMMAND}` if its program has no such command. Null for other subjects.
    pub command: Option<PrintedCommand>,
    /// Stopped containers that use the image, or the container itself if it is stopped, with the images that only they
    /// keep. Empty for other subjects, and for an image that a container which is not stopped uses too.
    pub stopped: StoppedHolders,
    /// Usage at and below a path, by owner; null if the reference is not a path.
    pub below: Option<BelowDoc>,
    /// Leaks that concern the object.
    pub leaks: Vec<LeakDoc>,
    /// Images, containers and caches that keep these bytes on the disk.
    pub used_by: Vec<UserDoc>,
    /// Allocated bytes of the object itself.
    pub bytes: u64,
    /// Bytes that the filesystem would free if only this object were deleted now; null if some of its layers are not
    /// measured, or if its owner is unknown.
    pub frees_bytes: Option<u64>,
    /// Reasons why `frees_bytes` is not `bytes`, for an image, container or leak. The parts add up to the
    /// difference.
    pub frees_differs: Vec<DifferenceDoc>,
    /// Bytes of its layers that a build cache keeps as well, with the command that deletes the cache.
    #[serde(skip)]
    pub kept_by_cache: Option<(u64, &'static str)>,
    /// Copies of the image in other snapshotters of containerd than the usual one.
    pub copies: Vec<CopiesDoc>,
    /// Manifests in the image's index whose content is here; empty without an index.
    pub manifests: Vec<IndexedManifestDoc>,
    /// Bytes of the content of other platforms and of attestations, part of the image's total; null without an index.
    pub other_platforms_bytes: Option<u64>,
    /// Ruling of every rule, in order; the first that keeps the image decides.
    pub rules: Vec<Ruling>,
    /// Decision that `gc` would make about the image or container now, as far as the disk and the records
    /// show; null for other subjects.
    pub decision: Option<GcDecisionDoc>,
    /// Files that could not be read, and records that contradict each other.
    pub warnings: Vec<Finding>,
}

/// Container that only podman's database knows: the store has neither a record nor a layer of it.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LostContainerDoc {
    /// Name of the container.
    pub name: String,
    /// State in the database.
    pub state: ContainerState,
    /// Name or id of the image that it keeps in use; null if it was made without one.
    pub image: Option<String>,
}

/// Usage at and below a path, on the path's filesystem.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BelowDoc {
    /// Path as the node itself names it.
    pub path: String,
    /// Allocated bytes, each hard link once, as `du -x` counts them.
    pub bytes: u64,
    /// Files and directories, each hard link once.
    pub inodes: u64,
    /// Owners of the bytes, each byte in one row: the rows add up to `bytes`.
    pub rows: Vec<ShareRowDoc>,
    /// Mount points of other filesystems below the path, which are not counted.
    pub other_filesystems: Vec<String>,
}

names! {
    /// Reason why a deletion frees another number of bytes than the size of the object.
    DifferenceCause {
        SharedExtents = "shared-extents",
        Compression = "compression",
        FilesystemMetadata = "filesystem-metadata",
    }
}

/// Part of the difference between exclusive bytes and the bytes that a deletion frees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DifferenceDoc {
    /// `shared-extents` (reflinks: other files keep the blocks), `compression` (the files take less than their
    /// content), or `filesystem-metadata` (blocks that the filesystem uses for a file besides its content).
    pub cause: DifferenceCause,
    /// Bytes freed in addition; negative if fewer are freed.
    pub bytes: i64,
}

/// Manifest in the index of an image, with its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct IndexedManifestDoc {
    /// Digest of the manifest.
    pub digest: String,
    /// `os/architecture`, as the index says; `unknown/unknown` for an attestation; null if the index does not say it.
    pub platform: Option<String>,
    /// True for the manifest that this node uses.
    pub used: bool,
    /// Allocated bytes of the manifest, its configuration and its layers in the content store.
    pub bytes: u64,
}

/// Snapshots of an image in a snapshotter that is not the usual one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CopiesDoc {
    /// Name of the snapshotter.
    pub snapshotter: String,
    /// Number of snapshots.
    pub snapshots: usize,
    /// Allocated bytes of the snapshots, part of the image's total.
    pub bytes: u64,
    /// Bytes of these that only this image uses: they are deleted with the image.
    pub exclusive_bytes: u64,
    /// Bytes freed by deleting the exclusive part.
    pub frees_bytes: u64,
}

/// Decision of `gc` about an image or container.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GcDecisionDoc {
    /// True if it would be deleted.
    pub would_delete: bool,
    /// Reason for the deletion: `age`, `space` or `limit`; null if it is kept.
    pub reason: Option<Reason>,
    /// Rule that keeps the object; null if it would be deleted.
    pub rule: Option<Rule>,
    /// Explanation by the rule; null for an image that would be deleted.
    pub detail: Option<String>,
    /// Position in the order of deletions, from 1; null if it is kept.
    pub position: Option<usize>,
    /// Bytes that its deletion would free at that position; null if it is kept.
    pub predicted_bytes: Option<u64>,
    /// Command that deletes images here; null for a container.
    pub command: Option<String>,
    /// Reason why that command would be refused now; null if it would not.
    pub refused: Option<String>,
}

#[cfg(test)]
mod tests;
