//! The diagnosis of a disk: who holds its bytes, what filled it, what can be done. Pure: the caller has
//! read the disk.

mod advice;
mod causes;
mod parts;
mod summary;
#[cfg(test)]
mod tests;

pub use advice::{Advice, AdvisedStep, Urgency, advice};
pub use causes::{Context, causes, hidden};
pub use parts::{Divided, divide, large, of_use, outside};
pub use summary::summary;

use serde::Serialize;

use crate::model::display::two_decimals;
use crate::model::names::{names, string_schema};
use crate::model::space::BytesAndInodes;
use crate::model::{Filesystem, FilesystemIx};
use crate::policy::thresholds::{Counted, DiskThreshold};

/// A part of what is used on a filesystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "PartDoc"))]
pub struct Part {
    /// `images` (in use), `images-pinned`, `images-out-of-reach` (unused, and not to be deleted here), `images-unused`, `containers`, `build-cache`, `leaks`, `metadata`,
    /// `store-other`, `logs`, `journal`, `kubelet-volumes`, `var-tmp`, `layersweep`, `core-dumps`,
    /// `swap`, `deleted-open`, `directory` (another top-level directory of at least 1 %) or `other`.
    pub kind: PartKind,
    /// For people.
    pub label: String,
    /// Its path, as the node itself names it.
    pub path: Option<String>,
    /// Its share of the filesystem's used bytes.
    pub bytes: u64,
    /// Allocated bytes as measured; more than `bytes` only where the parts exceed what is used (a
    /// filesystem that compresses, or that was written to meanwhile), which a warning then says.
    pub measured_bytes: u64,
    /// Root of its store; null for what lies in none.
    pub store: Option<String>,
}

/// Kinds of parts, in the order in which they are drawn; those of the stores first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PartKind {
    /// What images reach that a container uses, or that cannot go.
    Images,
    /// Of the rest, what images reach that are pinned.
    ImagesPinned,
    /// Of the rest, what unused images reach that layersweep cannot delete here.
    ImagesOutOfReach,
    /// Of the rest, what unused images reach.
    ImagesUnused,
    /// What only containers reach.
    Containers,
    /// Of the rest, what build caches hold.
    BuildCache,
    /// What only leaks reach.
    Leaks,
    /// The stores' own bookkeeping.
    Metadata,
    /// Everything else below a store's root.
    StoreOther,
    PodLogs,
    Logs,
    Journal,
    KubeletVolumes,
    /// Temporary files that outlive a reboot.
    VarTmp,
    Layersweep,
    /// Dumps of programs and of the kernel.
    CoreDumps,
    Swap,
    /// Files without a name that a process holds open.
    DeletedOpen,
    /// Another top-level directory.
    Directory,
    /// The rest: small directories, what could not be read, the filesystem's own.
    Other,
}

impl PartKind {
    /// Those of the stores.
    const OF_STORES: [Self; 9] = [
        Self::Images,
        Self::ImagesPinned,
        Self::ImagesOutOfReach,
        Self::ImagesUnused,
        Self::Containers,
        Self::BuildCache,
        Self::Leaks,
        Self::Metadata,
        Self::StoreOther,
    ];

    /// Its name in documents, its label, and the group that it counts with in the summary.
    fn words(self) -> [&'static str; 3] {
        match self {
            Self::Images => ["images", "images in use", "images in use"],
            Self::ImagesPinned => ["images-pinned", "images pinned, not in use", "pinned images"],
            Self::ImagesOutOfReach => ["images-out-of-reach", "images out of reach", "images out of reach"],
            Self::ImagesUnused => ["images-unused", "images not in use", "unused images"],
            Self::Containers => ["containers", "containers", "containers' own layers"],
            Self::BuildCache => ["build-cache", "build cache", "build cache"],
            Self::Leaks => ["leaks", "leaks", "leaks"],
            Self::Metadata => ["metadata", "stores' own files", "stores' own files"],
            Self::StoreOther => ["store-other", "other files in stores", "volumes and other files in stores"],
            // Where the logs lie, the path says.
            Self::PodLogs => ["logs", "logs of pods", "logs and volumes of pods"],
            Self::Logs => ["logs", "other logs", "other logs"],
            Self::Journal => ["journal", "journal", "the journal"],
            Self::KubeletVolumes => ["kubelet-volumes", "volumes of pods", "logs and volumes of pods"],
            Self::VarTmp => ["var-tmp", "temporary files", "temporary files"],
            Self::Layersweep => {
                ["layersweep", "layersweep's records and reserve file", "layersweep's records and reserve"]
            }
            Self::CoreDumps => ["core-dumps", "core dumps", "core dumps"],
            Self::Swap => ["swap", "swap", "swap"],
            Self::DeletedOpen => ["deleted-open", "deleted, but held open", "deleted files held open"],
            Self::Directory => ["directory", "another directory", "other files"],
            Self::Other => ["other", "everything else, and filesystem overhead", "other files"],
        }
    }
}

impl PartKind {
    /// Its name in documents.
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

names! {
    /// What fills a disk.
    CauseKind {
        /// Something in a store that nothing uses.
        Leak = "leak",
        /// An image that no container uses and that may not go.
        PinnedImage = "pinned-image",
        /// What a container left that runs no more.
        DeadContainer = "dead-container",
        /// What a container has written that runs, or of which that is not known.
        Container = "container",
        /// Data that a builder keeps for its next builds.
        BuildCache = "build-cache",
        /// A log file.
        Log = "log",
        /// Unused images that layersweep cannot delete here, by reason.
        ImagesOutOfReach = "images-out-of-reach",
        /// All images that nothing keeps.
        UnusedImages = "unused-images",
        /// The journal of systemd.
        Journal = "journal",
        /// What a pod keeps in volumes on this disk.
        KubeletVolume = "kubelet-volume",
        /// Temporary files.
        VarTmp = "var-tmp",
        /// Dumps of programs and of the kernel.
        CoreDumps = "core-dumps",
        /// A file without a name that a process holds open.
        DeletedOpen = "deleted-open",
        /// Something that is no container's.
        Other = "other",
    }
}

/// Something that fills a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "CauseDoc"))]
pub struct Cause {
    /// `leak`, `pinned-image`, `dead-container`, `container`, `build-cache`, `log`, `images-out-of-reach`, `unused-images`, `journal`,
    /// `kubelet-volume`, `var-tmp`, `core-dumps`, `deleted-open` or `other`.
    pub kind: CauseKind,
    /// A name for it, in a few words.
    pub title: String,
    /// What it is, in words.
    pub text: String,
    /// What to do about it, in words; empty where there is nothing to do.
    pub remedy: String,
    /// What the filesystem is expected to free if it goes; for what lies in no store, its
    /// allocated bytes.
    pub bytes: u64,
    /// Mount point of its filesystem.
    pub filesystem: String,
    /// Id of the object in the store, or the pod; null for the rest.
    pub id: Option<String>,
    /// Its path, as the node itself names it; null where it is in many places.
    pub path: Option<String>,
    /// Who takes it away: `layersweep` (as its policy says), `operator` (a person has to decide) or
    /// `nobody` (it is in use, or no container's and not looked into).
    pub taken_by: Action,
    /// Its filesystem.
    #[serde(skip)]
    pub at: FilesystemIx,
}

names! {
    /// Who can free it.
    Action {
        /// `layersweep gc` or `layersweep sweep --delete`, without asking anybody.
        Layersweep = "layersweep",
        /// The operator, who has to decide.
        Operator = "operator",
        /// It is in use: nobody.
        Nobody = "nobody",
    }
}

/// A filesystem that is diagnosed.
#[derive(Clone, Debug, PartialEq)]
pub struct Disk {
    /// Its numbers.
    pub filesystem: Filesystem,
    /// Its parts: their sum is `used_bytes`.
    pub parts: Vec<Part>,
    /// What happens when.
    pub thresholds: Vec<DiskThreshold>,
    /// What would be deleted now.
    pub planned: Planned,
}

/// What layersweep would free on a filesystem now under the configured policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// What deletes images here: `layersweep gc`, with a flag where no runtime can.
    pub command: &'static str,
    /// What it frees, of images.
    pub gc: BytesAndInodes,
    /// Where that is nothing: why, as a clause.
    pub none: String,
    /// What `layersweep sweep --delete` frees.
    pub sweep: BytesAndInodes,
}

impl Disk {
    /// Percent of the capacity that is not available, two decimals; `None`: the numbers contradict each
    /// other.
    pub fn used_percent(&self) -> Option<f64> {
        self.filesystem.used_percent().map(two_decimals)
    }

    /// Percent of the inodes that are taken; `None` without a fixed number, or where the numbers
    /// contradict each other.
    #[allow(clippy::cast_precision_loss)] // shown with one decimal
    pub fn inodes_percent(&self) -> Option<f64> {
        let Filesystem { inodes, inodes_free, .. } = self.filesystem;
        let taken = inodes.checked_sub(inodes_free)?;
        (inodes > 0).then(|| taken as f64 * 100.0 / inodes as f64)
    }

    /// Percent of what a threshold counts that are taken.
    pub fn percent_of(&self, counted: Counted) -> Option<f64> {
        match counted {
            Counted::Bytes => self.used_percent(),
            Counted::Inodes => self.inodes_percent(),
        }
    }

    /// The thresholds at which something happens and that are passed (or not).
    fn acting(&self, passed: bool) -> impl Iterator<Item = &DiskThreshold> {
        self.thresholds.iter().filter(move |one| {
            one.acts() && self.percent_of(one.of).is_some_and(|percent| (one.percent <= percent) == passed)
        })
    }
}
