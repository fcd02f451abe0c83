//! The diagnosis of a disk: who holds its bytes, what filled it, what can be done. Pure: the caller has
//! read the disk.

mod causes;
mod parts;
mod summary;
#[cfg(test)]
mod tests;

pub use causes::{Context, causes};
pub use parts::{Divided, divide, outside};
pub use summary::summary;

use crate::model::display::two_decimals;
use crate::model::names::names;
use crate::model::{Filesystem, FilesystemIx, Size};
use crate::policy::thresholds::{Counted, DiskThreshold};

/// A part of what is used on a filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is; a word that stays the same.
    pub kind: PartKind,
    /// For people.
    pub label: String,
    /// Its path for us, where it is in one place.
    pub path: Option<std::path::PathBuf>,
    /// Bytes of the filesystem's used ones.
    pub bytes: u64,
    /// The same as measured, before it was made to fit.
    pub measured_bytes: u64,
    /// Position of its store.
    pub store: Option<usize>,
}

names! {
    /// Kinds of parts, in the order in which they are drawn.
    PartKind {
        /// What images reach that a container uses, or that cannot go.
        Images = "images",
        /// Of the rest, what images reach that are pinned.
        ImagesPinned = "images-pinned",
        /// Of the rest, what unused images reach.
        ImagesUnused = "images-unused",
        /// What only containers reach.
        Containers = "containers",
        /// What only leaks reach.
        Leaks = "leaks",
        /// The stores' own bookkeeping.
        Metadata = "metadata",
        /// Everything else below a store's root.
        StoreOther = "store-other",
        /// Logs of pods.
        PodLogs = "pod-logs",
        /// Other logs.
        Logs = "logs",
        /// The journal.
        Journal = "journal",
        /// Volumes of pods.
        KubeletVolumes = "kubelet-volumes",
        /// Temporary files that outlive a reboot.
        VarTmp = "var-tmp",
        /// Our own records.
        Layersweep = "layersweep",
        /// Dumps of programs and of the kernel.
        CoreDumps = "core-dumps",
        /// Swap files.
        Swap = "swap",
        /// Files without a name that a process holds open.
        DeletedOpen = "deleted-open",
        /// Another top-level directory.
        Directory = "directory",
        /// The rest: small directories, what could not be read, the filesystem's own.
        Other = "other",
    }
}

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
        /// A log file.
        Log = "log",
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// What kind.
    pub kind: CauseKind,
    /// The filesystem.
    pub filesystem: FilesystemIx,
    /// A name for it, in a few words.
    pub title: String,
    /// What it is, in words, without its bytes.
    pub text: String,
    /// What to do about it; empty where there is nothing.
    pub remedy: String,
    /// What it holds, or frees where that is less.
    pub bytes: u64,
    /// Its id, where it has one.
    pub id: Option<String>,
    /// Its path, as the node itself names it.
    pub path: Option<String>,
    /// Who can free it.
    pub action: Action,
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

/// Bytes expected to be freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Back {
    /// Bytes.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}

impl Back {
    /// More of it.
    pub fn add(&mut self, size: Size) {
        self.bytes = self.bytes.saturating_add(size.frees_bytes);
        self.inodes = self.inodes.saturating_add(size.inodes);
    }

    fn is_nothing(self) -> bool {
        self.bytes == 0 && self.inodes == 0
    }
}

/// Bytes that layersweep would free on a filesystem now under the configured policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// What deletes images here: `layersweep gc`, with a flag where no runtime can.
    pub command: &'static str,
    /// What it frees, of images.
    pub gc: Back,
    /// Where that is nothing: why, as a clause.
    pub none: &'static str,
    /// `layersweep sweep --delete`.
    pub sweep: Back,
}

impl Disk {
    /// Percent of the capacity that is not available, two decimals; `None`: the numbers contradict each
    /// other.
    #[must_use]
    pub fn used_percent(&self) -> Option<f64> {
        self.filesystem.used_percent().map(two_decimals)
    }

    /// Percent of the inodes that are taken; `None` without a fixed number, or where the numbers
    /// contradict each other.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // shown with one decimal
    pub fn inodes_percent(&self) -> Option<f64> {
        let Filesystem { inodes, inodes_free, .. } = self.filesystem;
        let taken = inodes.checked_sub(inodes_free)?;
        (inodes > 0).then(|| taken as f64 * 100.0 / inodes as f64)
    }

    /// Percent of what a threshold counts that are taken.
    #[must_use]
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
