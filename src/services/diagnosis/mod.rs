//! Diagnosis of a disk: the parts that use its bytes, the causes of the usage, and the remedies.
//!
//! [`divide()`] splits the used bytes of a filesystem into parts whose sum is exact. [`causes()`] names the objects to
//! look at first, for example a large log or a leak, and [`rank()`] orders them into one list of deletions. [`summary()`]
//! and [`advice()`] put both into words. All functions are pure: the caller has read the disk.

mod advice;
mod causes;
mod context;
mod holders;
mod outside_causes;
mod parts;
mod ranking;
mod summary;
#[cfg(test)]
mod tests;

pub use advice::{Advice, AdvisedStep, advice};
pub use causes::{causes, remedy_out_of_reach};
pub use context::Context;
pub use holders::{DeletedBy, HeldImage, RemovableContainer, StoppedHolders, StoppedRemoval, removal_of};
pub use outside_causes::hidden;
pub use parts::{Divided, divide, large, of_use, outside};
pub use ranking::rank;
pub(crate) use summary::has_room;
pub use summary::summary;

use serde::Serialize;

use crate::model::documents::urgency::FULL;
use crate::model::space::{BytesAndInodes, Space};
use crate::model::text::display::two_decimals;
use crate::model::text::names::{names, string_schema};
use crate::model::{Filesystem, FilesystemIx, PrintedCommand};
use crate::policy::thresholds::{Counted, DiskThreshold, ThresholdName};

/// Part of the used bytes of a filesystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "PartDoc"))]
pub struct Part {
    /// `images` (in use), `images-pinned`, `images-out-of-reach` (unused, and not deletable here), `images-unused`,
    /// `containers`, `build-cache`, `leaks`, `unknown` (records or a layout could not be read), `metadata`, `store-other`,
    /// `volumes` (of podman or Docker), `logs`, `journal`, `kubelet-volumes`, `var-tmp`, `layersweep`, `core-dumps`, `swap`,
    /// `deleted-open`, `other-store` (not read by the scan: of a user, or an old one), `directory` (another top-level
    /// directory of at least 1 %) or `other`.
    pub kind: PartKind,
    /// Name of the part for people.
    pub label: String,
    /// Path of the part, as the node itself names it.
    pub path: Option<String>,
    /// Share of the used bytes of the filesystem.
    pub bytes: u64,
    /// Measured allocated bytes. They exceed `bytes` only if the parts exceed the used bytes, because the filesystem
    /// compresses or was written to meanwhile; a warning reports that.
    pub measured_bytes: u64,
    /// Number of files and directories, hard links counted once; 0 for `other`.
    pub inodes: u64,
    /// Root of the store; null for a part outside the stores.
    pub store: Option<String>,
    /// Program that makes the volumes of the store, if that is not podman.
    #[serde(skip)]
    pub tool: Option<&'static str>,
}

/// Kind of a part, in the order in which parts are drawn. Kinds of the stores come first.
///
/// Data in a store that several objects reach counts with the first of their kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PartKind {
    Images,
    /// Data of images that a pin or another rule keeps, or that are in a read-only store.
    ImagesPinned,
    /// Data of unused images that layersweep cannot delete here.
    ImagesOutOfReach,
    ImagesUnused,
    /// Data that only containers reach.
    Containers,
    BuildCache,
    /// Data that only leaks reach.
    Leaks,
    Unknown,
    Metadata,
    /// All other data below the root of a store.
    StoreOther,
    /// Volumes in a store.
    Volumes,
    PodLogs,
    Logs,
    Journal,
    KubeletVolumes,
    /// Temporary files that survive a reboot.
    VarTmp,
    Layersweep,
    CoreDumps,
    Swap,
    /// Deleted files that a process keeps open.
    DeletedOpen,
    /// A store that the scan has not read: of a user, an old one, or one of another kind.
    OtherStore,
    /// Another top-level directory.
    Directory,
    /// The rest: small directories, unreadable data, and the filesystem's own metadata.
    Other,
}

impl PartKind {
    /// Kinds of parts in the stores.
    const OF_STORES: [Self; 10] = [
        Self::Images,
        Self::ImagesPinned,
        Self::ImagesOutOfReach,
        Self::ImagesUnused,
        Self::Containers,
        Self::BuildCache,
        Self::Leaks,
        Self::Unknown,
        Self::Metadata,
        Self::StoreOther,
    ];

    /// Returns the name in documents, the label, and the group in the summary.
    fn words(self) -> [&'static str; 3] {
        match self {
            Self::Images => ["images", "images in use", "images in use"],
            Self::ImagesPinned => {
                ["images-pinned", "images kept by a rule, not in use", "images kept by rules"]
            }
            Self::ImagesOutOfReach => ["images-out-of-reach", "images out of reach", "images out of reach"],
            Self::ImagesUnused => ["images-unused", "images not in use", "unused images"],
            Self::Containers => ["containers", "containers", "containers' own layers"],
            Self::BuildCache => ["build-cache", "build cache", "build cache"],
            Self::Leaks => ["leaks", "leaks", "leaks"],
            Self::Unknown => ["unknown", "unknown, see the warnings", "unknown files in stores"],
            Self::Metadata => ["metadata", "stores' own files", "stores' own files"],
            Self::StoreOther => ["store-other", "other files in stores", "volumes and other files in stores"],
            Self::Volumes => ["volumes", "volumes", "volumes and other files in stores"],
            // The path distinguishes the two kinds of logs in documents.
            Self::PodLogs => ["logs", "logs of pods", "logs and volumes of pods"],
            Self::Logs => ["logs", "other logs", "other logs"],
            Self::Journal => ["journal", "journal", "the journal"],
            Self::KubeletVolumes => ["kubelet-volumes", "volumes of pods", "logs and volumes of pods"],
            Self::VarTmp => ["var-tmp", "temporary files", "temporary files"],
            Self::Layersweep => {
                ["layersweep", "layersweep's records and reserve", "layersweep's records and reserve"]
            }
            Self::CoreDumps => ["core-dumps", "core dumps", "core dumps"],
            Self::Swap => ["swap", "swap", "swap"],
            Self::DeletedOpen => ["deleted-open", "deleted, but held open", "deleted files held open"],
            Self::OtherStore => ["other-store", "another store", "other files"],
            Self::Directory => ["directory", "another directory", "other files"],
            Self::Other => ["other", "everything else, and filesystem overhead", "other files"],
        }
    }
}

impl PartKind {
    pub fn as_str(self) -> &'static str {
        self.words()[0]
    }
}

impl Serialize for PartKind {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

string_schema!(PartKind);

/// Inverse of the minimum share of the used bytes: a cause below 1/200 of them is left out. For leaks, build caches
/// and unused images that are not pinned, only [`LEAST`] applies.
const SMALL: u64 = 200;
/// Minimum bytes of any cause.
const LEAST: u64 = 1 << 20;

/// Returns the minimum bytes of a cause on a filesystem.
fn least(filesystem: &Filesystem) -> u64 {
    (filesystem.used_bytes / SMALL).max(LEAST)
}

names! {
    CauseKind {
        /// Data in a store that nothing uses.
        Leak = "leak",
        /// An unused image that is pinned or protected.
        PinnedImage = "pinned-image",
        /// Writable layers of containers that do not run, which one command removes.
        DeadContainer = "dead-container",
        /// Writable layer of a container that runs or may run.
        Container = "container",
        /// Data that a builder keeps for its next builds.
        BuildCache = "build-cache",
        Log = "log",
        /// Unused images that layersweep cannot delete here, for one reason.
        ImagesOutOfReach = "images-out-of-reach",
        UnusedImages = "unused-images",
        Journal = "journal",
        /// Volumes of a pod on this disk.
        KubeletVolume = "kubelet-volume",
        VarTmp = "var-tmp",
        /// Dumps of programs and of the kernel.
        CoreDumps = "core-dumps",
        /// A deleted file that a process keeps open.
        DeletedOpen = "deleted-open",
        /// A volume of podman or containerd.
        Volume = "volume",
        File = "file",
        /// Data that does not belong to containers.
        Other = "other",
    }
}

/// Cause of the usage of a disk.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "CauseDoc"))]
pub struct Cause {
    /// `leak`, `pinned-image`, `dead-container`, `container`, `build-cache`, `log`, `images-out-of-reach`,
    /// `unused-images`, `journal`, `kubelet-volume`, `var-tmp`, `core-dumps`, `deleted-open`, `volume`, `file` or `other`.
    pub kind: CauseKind,
    /// Short name of the cause.
    pub title: String,
    /// Description of the cause.
    pub text: String,
    /// Description of the remedy, in addition to the command; empty if nothing has to be done.
    pub remedy: String,
    /// Command as it is typed on the node: `{"deletes": COMMAND}` in the groups `layersweep`, `can-be-made-again` and
    /// `stopped-container`, `{"shows": COMMAND}` in all others; null if there is none.
    pub command: Option<PrintedCommand>,
    /// Bytes that deleting it is expected to free now; 0 if nothing can be freed now.
    pub frees_bytes: u64,
    /// Inodes that it is expected to free.
    pub frees_inodes: u64,
    /// Bytes of images that only stopped containers keep, these among them: they can be freed once the containers are
    /// removed. 0 for other causes.
    pub keeps_bytes: u64,
    /// Used percentage after this and all earlier deletions of the same filesystem in the list: of the inodes if these
    /// are short, otherwise of the bytes. Null if nothing is freed, or if earlier deletions reach the low threshold.
    pub used_after_percent: Option<f64>,
    /// True if this deletion alone reaches the low threshold.
    pub reaches_low: bool,
    /// Bytes that the filesystem is expected to free if the object is deleted; outside the stores, its allocated
    /// bytes.
    pub bytes: u64,
    /// Mount point of the filesystem.
    pub filesystem: String,
    /// Id of the object in the store, or name of the pod; null for other causes.
    pub id: Option<String>,
    /// Path of the object, as the node itself names it; null if it has several.
    pub path: Option<String>,
    /// Risk of its deletion: `layersweep` (layersweep deletes it under its policy), `can-be-made-again` (its owner's
    /// tool deletes it), `stopped-container`, `only-you-can-judge` (no command deletes it) or `kept` (it is in use, a
    /// rule keeps it, or it was not examined).
    pub group: CauseGroup,
    #[serde(skip)]
    pub filesystem_ix: FilesystemIx,
}

impl Cause {
    /// Returns what its deletion frees of a resource; 0 if that is too little to list.
    pub fn gain(&self, counted: Counted) -> u64 {
        /// Minimum number of inodes: thousands are missing if inodes are short, and a large file is a single one.
        const MIN_INODES: u64 = 10;
        match counted {
            Counted::Bytes => self.frees_bytes,
            Counted::Inodes if self.frees_inodes < MIN_INODES => 0,
            Counted::Inodes => self.frees_inodes,
        }
    }

    /// Returns its group in a list of deletions: `kept` if its deletion frees too little to list.
    pub fn listed_group(&self, counted: Counted) -> CauseGroup {
        let has_gain = self.gain(counted) > 0 || self.keeps_bytes > 0;
        if has_gain { self.group } else { CauseGroup::Kept }
    }
}

names! {
    /// Risk of the deletion of a cause, the least first. The variants are in the order in which screens list them.
    CauseGroup {
        /// layersweep deletes it under its policy, because nothing uses it.
        Layersweep = "layersweep",
        /// It can be made again: a build cache, the journal. The command is that of its owner, without force.
        CanBeMadeAgain = "can-be-made-again",
        /// Containers that do not run, with what their own layers hold.
        StoppedContainer = "stopped-container",
        /// Only a person can judge whether the data is needed. The command shows it, and no command deletes it.
        OnlyYouCanJudge = "only-you-can-judge",
        /// It is not deleted now: it is in use, a rule keeps it, or it was not examined.
        Kept = "kept",
    }
}

impl CauseGroup {
    /// Returns true if a command of this group deletes its object; otherwise it shows the object.
    pub fn deletes(self) -> bool {
        match self {
            Self::Layersweep | Self::CanBeMadeAgain | Self::StoppedContainer => true,
            Self::OnlyYouCanJudge | Self::Kept => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Disk {
    pub ix: FilesystemIx,
    pub filesystem: Filesystem,
    /// Parts of the filesystem. The sum of their bytes is `used_bytes`.
    pub parts: Vec<Part>,
    pub thresholds: Vec<DiskThreshold>,
    pub planned: Planned,
    /// Places, containers and volumes with at least a tenth of the inodes, the largest first.
    pub inode_users: Vec<Part>,
    /// It is mounted read-only, so it cannot fill up: see [`crate::stores::Scan::is_full_by_design`].
    pub is_full_by_design: bool,
}

/// Bytes that layersweep would free on a filesystem now under the configured policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Command that deletes images on this node: `layersweep gc`, with `--via direct` where no runtime can delete.
    pub command: &'static str,
    /// Bytes and inodes of images that this command frees.
    pub gc: BytesAndInodes,
    /// Reason, as a clause, if the command frees nothing.
    pub none: String,
    /// Number of images that it deletes for their age; `None` if it also deletes for space, or nothing.
    pub by_age: Option<usize>,
    /// Bytes and inodes that `layersweep sweep --delete` frees.
    pub sweep: BytesAndInodes,
    /// Bytes that must be freed before any becomes available: the part of its reserve that root has used.
    pub owed_bytes: u64,
}

impl Disk {
    /// Returns the percentage of the capacity that is not available, with two decimals; `None` if the numbers
    /// contradict each other.
    pub fn used_percent(&self) -> Option<f64> {
        self.filesystem.used_percent().map(two_decimals)
    }

    /// Returns the percentage of the inodes that are used; `None` if the filesystem has no fixed number of inodes or
    /// the numbers contradict each other.
    pub fn inodes_percent(&self) -> Option<f64> {
        self.percent_after(Counted::Inodes, BytesAndInodes::default())
    }

    pub fn percent_of(&self, counted: Counted) -> Option<f64> {
        match counted {
            Counted::Bytes => self.used_percent(),
            Counted::Inodes => self.inodes_percent(),
        }
    }

    #[allow(clippy::cast_precision_loss)] // shown with two decimals
    pub fn percent_after(&self, counted: Counted, freed: BytesAndInodes) -> Option<f64> {
        let space = self.filesystem.space().ok()?;
        let after = Space { owed_bytes: self.planned.owed_bytes, ..space }.gained(freed.bytes, freed.inodes);
        match counted {
            Counted::Bytes => Some(after.used_percent()),
            Counted::Inodes => {
                let used = after.inodes.checked_sub(after.inodes_free)?;
                (after.inodes > 0).then(|| used as f64 * 100.0 / after.inodes as f64)
            }
        }
    }

    pub fn scarce(&self) -> Counted {
        let inodes_are_short = self.inodes_percent().is_some_and(|percent| percent >= FULL)
            || self.acting(true).any(|threshold| threshold.of == Counted::Inodes);
        if inodes_are_short { Counted::Inodes } else { Counted::Bytes }
    }

    /// Returns the percentage at which `gc` stops to delete.
    pub(super) fn low(&self, counted: Counted) -> Option<f64> {
        let name = match counted {
            Counted::Bytes => ThresholdName::GcLow,
            Counted::Inodes => ThresholdName::GcInodesLow,
        };
        self.thresholds.iter().find(|threshold| threshold.name == name).map(|threshold| threshold.percent)
    }

    /// Returns the thresholds at which a program acts: those that are passed, or those that are not.
    fn acting(&self, passed: bool) -> impl Iterator<Item = &DiskThreshold> {
        self.thresholds.iter().filter(move |threshold| {
            let used = self.percent_of(threshold.of);
            threshold.acts() && used.is_some_and(|used| (threshold.percent <= used) == passed)
        })
    }
}
