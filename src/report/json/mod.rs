//! The documents that `--format json` prints: one a command, with fixed field names
//! (`docs/schema/`). Every `*_bytes` is allocated bytes unless its name says otherwise.

mod build;
mod diff;
mod doctor;
mod explain;
mod gc;
mod history;
mod omitted;
mod parts;
mod pins;
mod remembered;
mod report;
mod scan;
mod scan_file;
mod sweep;
mod usage;

use serde::Serialize;

use crate::model::Finding;
use crate::stores::Effort;

pub use build::{container, fair, filesystem, image, layer, leak, store, totals, usage_store};
pub use diff::{ChangeDoc, DiffDoc, ImageDiffDoc, SumDoc, TakenDoc, diff};
pub use doctor::{DoctorDoc, doctor};
pub use explain::explain;
pub use gc::{ComparisonDoc, DeletedDoc, FreedDoc, GcDoc, GcFilesystemDoc, KeptDoc, gc};
pub use history::{
    DeletionDoc, HistoryDoc, HistoryScansDoc, HistoryUsageDoc, KeptScanDoc, PointDoc, RunDoc, SeriesDoc,
    history, history_scans, history_usage,
};
pub use omitted::OmittedDoc;
pub use parts::{
    BytesDoc, ContainerDoc, FilesystemDoc, ForecastDoc, Header, ImageDoc, LayerDoc, LeakDoc, OtherDoc,
    RowDoc, SCHEMA_VERSION, SnapshotterDoc, StoreDoc, TotalsDoc, UsageStoreDoc, UserDoc,
};

pub use pins::{PinsDoc, pins};
pub use remembered::{EvidenceDoc, LifeDoc, RememberedDoc};
pub use report::{Extent, ReportDoc, ReportFilesystemDoc, UsagePointDoc, UsageSeriesDoc, report};
pub use scan::{explanation, images, known_images, layers, scan};
pub use scan_file::scan_of;
pub use sweep::{SweepDoc, SweepLeakDoc, SweptDoc, sweep, sweep_refused};
pub use usage::{GroupDoc, ShareRowDoc, UsageDoc, UsageFilesystemDoc, usage};

/// `layersweep scan`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "ScanDoc"))]
pub struct ScanDoc<L = Vec<LayerDoc>> {
    /// What every document begins with; its kind is `scan`.
    #[serde(flatten)]
    pub header: Header,
    /// Everything was read: figures are exact. If false, they are lower bounds.
    pub complete: bool,
    /// The mounted root that was looked in, in front of all its paths; null for the running system.
    pub sysroot: Option<String>,
    /// Filesystems that hold a store.
    pub filesystems: Vec<FilesystemDoc>,
    /// Stores.
    pub stores: Vec<StoreDoc>,
    /// Images.
    pub images: Vec<ImageDoc>,
    /// Layers.
    pub layers: L,
    /// Containers.
    pub containers: Vec<ContainerDoc>,
    /// What nothing uses, or does not fit together.
    pub leaks: Vec<LeakDoc>,
    /// Sums over all stores.
    pub totals: TotalsDoc,
    /// The whole column of fair shares.
    pub fair_bytes: BytesDoc,
    /// How it was measured.
    pub scan: Effort,
    /// What could not be read or contradicts itself.
    pub warnings: Vec<Finding>,
}

/// `layersweep images`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ImagesDoc {
    /// What every document begins with; its kind is `images`.
    #[serde(flatten)]
    pub header: Header,
    /// Everything was read.
    pub complete: bool,
    /// Images, in the order asked for.
    pub images: Vec<ImageDoc>,
    /// The whole column of fair shares, of images that are not shown too.
    pub fair_bytes: BytesDoc,
    /// What could not be read or contradicts itself.
    pub warnings: Vec<Finding>,
}

/// `layersweep layers`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LayersDoc {
    /// What every document begins with; its kind is `layers`.
    #[serde(flatten)]
    pub header: Header,
    /// Everything was read.
    pub complete: bool,
    /// Layers, the largest first.
    pub layers: Vec<LayerDoc>,
    /// What could not be read or contradicts itself.
    pub warnings: Vec<Finding>,
}

/// `layersweep explain`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExplainDoc {
    /// What every document begins with; its kind is `explain`.
    #[serde(flatten)]
    pub header: Header,
    /// Everything was read.
    pub complete: bool,
    /// `image`, `layer`, `container`, `leak`, `metadata` or `other`; of a path that is no object (a store,
    /// or in no store) `directory` or `file`.
    pub subject: &'static str,
    /// The object's id or name; the path of a directory or file.
    pub id: String,
    /// Its path.
    pub path: String,
    /// The image, if it is one.
    pub image: Option<ImageDoc>,
    /// What the records know of the image; null without records.
    pub remembered: Option<RememberedDoc>,
    /// Its chain, from the top down to the base; for an image, then what it holds beside
    /// that: blobs, mapped layers, copies of a second snapshotter.
    pub chain: Vec<LayerDoc>,
    /// The container, if it is one.
    pub container: Option<ContainerDoc>,
    /// Of a path: what is at and below it, by owner; null where the reference was no path.
    pub below: Option<BelowDoc>,
    /// Leaks that concern it.
    pub leaks: Vec<LeakDoc>,
    /// Who keeps these bytes on the disk.
    pub held_by: Vec<UserDoc>,
    /// Allocated bytes of the object itself.
    pub bytes: u64,
    /// What the filesystem would free if it alone were deleted now.
    pub frees_bytes: u64,
    /// Why `frees_bytes` is not `bytes`: the parts add up to the difference. Of an image, a container
    /// or a leak.
    pub frees_differs: Vec<DifferenceDoc>,
    /// What an image has in containerd's other snapshotters, beside the usual one.
    pub copies: Vec<CopiesDoc>,
    /// The verdict of every rule, in order; the first that says stay decides.
    pub rules: Vec<RuleDoc>,
    /// What `gc` would do with the image now, as far as the disk and the records show; null for
    /// what is no image.
    pub fate: Option<GcDecisionDoc>,
    /// What could not be read or contradicts itself.
    pub warnings: Vec<Finding>,
}

/// What is at and below a path, on its filesystem.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BelowDoc {
    /// The path, as the node itself names it.
    pub path: String,
    /// Allocated bytes, hard links once, as `du -x` counts them.
    pub bytes: u64,
    /// Each byte in one row: their `bytes` add up to `bytes`.
    pub rows: Vec<ShareRowDoc>,
    /// Where other filesystems are mounted below it, which are not counted.
    pub other_filesystems: Vec<String>,
}

/// A part of the difference between exclusive bytes and what a deletion frees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DifferenceDoc {
    /// `shared_extents` (reflinks: other files keep them), or `filesystem_metadata` (what the
    /// filesystem keeps beside a file's blocks).
    pub cause: &'static str,
    /// How much more (or, below 0, less) is freed.
    pub bytes: i64,
}

/// What an image has in a snapshotter beside the usual one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CopiesDoc {
    /// The snapshotter's name.
    pub snapshotter: String,
    /// How many snapshots.
    pub snapshots: usize,
    /// Their allocated bytes, part of the image's total.
    pub bytes: u64,
    /// Of that, what only this image has: it is deleted with the image.
    pub exclusive_bytes: u64,
    /// What that frees.
    pub frees_bytes: u64,
}

/// What one rule says of an image.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RuleDoc {
    /// The rule's name.
    pub rule: &'static str,
    /// `stay` or `pass`.
    pub verdict: &'static str,
    /// Why, in words.
    pub detail: String,
}

/// What `gc` would do with an image.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GcDecisionDoc {
    /// It would be deleted.
    pub goes: bool,
    /// Why: the reason of the deletion (`age`, `space`), or the rule that keeps it.
    pub rule: &'static str,
    /// What the rule says; null if it goes.
    pub detail: Option<String>,
    /// Its place in the order of deletions, from 1.
    pub place: Option<usize>,
    /// What its deletion would free at that place.
    pub predicted_bytes: Option<u64>,
    /// The command that deletes images here; null for a container.
    pub command: Option<String>,
    /// Why that command would be refused now; null where it would not.
    pub refused: Option<String>,
}

#[cfg(test)]
mod tests;
