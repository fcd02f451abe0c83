//! The story of a disk: who holds its bytes, what filled it, what can be done. Pure: whoever
//! calls has read the disk.

mod causes;
mod parts;
#[cfg(test)]
mod tests;
mod verdict;

pub use causes::{Context, causes};
pub use parts::{Divided, divide};
pub use verdict::verdict;

use crate::model::{FilesystemIx, Size};

/// A part of what is used on a filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is; a word that stays the same.
    pub kind: PartKind,
    /// For people.
    pub label: String,
    /// Where it lies for us, where it is in one place.
    pub path: Option<std::path::PathBuf>,
    /// Bytes of the filesystem's used ones.
    pub bytes: u64,
    /// The same as measured, before it was made to fit.
    pub measured_bytes: u64,
    /// Position of its store.
    pub store: Option<usize>,
}

macro_rules! kinds {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $value:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$doc])* $value,)+
        }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$value),+];

            /// As the documents have it.
            #[must_use]
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)+
                }
            }
        }
    };
}

kinds! {
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
        /// Logs of pods; the documents do not tell them from others.
        PodLogs = "logs",
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

kinds! {
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
    /// What it holds, or gives back where that is less.
    pub bytes: u64,
    /// Its id, where it has one.
    pub id: Option<String>,
    /// Where it lies, as the node itself names it.
    pub path: Option<String>,
    /// Who takes it away.
    pub hands: Hands,
}

/// Who can take something away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hands {
    /// `layersweep gc` or `layersweep sweep --delete`, without asking anybody.
    Ours,
    /// The operator, who has to decide.
    Operator,
    /// It is in use: nobody.
    Nobody,
}

/// A share in use at which something happens.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// What happens: `image GC high` (deletes from here on), `image GC low` (and down to here),
    /// `hard eviction (imagefs.available)`.
    pub name: String,
    /// Percent of what [`Self::of`] says that is not available.
    pub percent: f64,
    /// `layersweep`, `kubelet` or `eviction`.
    pub source: &'static str,
    /// What it counts.
    pub of: Counted,
}

/// What a mark counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counted {
    /// Bytes.
    #[default]
    Bytes,
    /// Inodes.
    Inodes,
}

impl Counted {
    /// As the documents have it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Inodes => "inodes",
        }
    }
}

impl Mark {
    /// Something happens when it is passed on the way up; collections only end at their low marks.
    #[must_use]
    pub fn acts(&self) -> bool {
        !self.name.ends_with(" low")
    }

    /// For people: `the kubelet's image GC at 85%`.
    #[must_use]
    pub fn words(&self) -> String {
        let what = match (self.source, self.name.strip_suffix(" high").unwrap_or(&self.name)) {
            ("layersweep", name) => format!("layersweep's {name}"),
            ("kubelet", name) => format!("the kubelet's {name}"),
            (_, name) => name.to_owned(),
        };
        format!("{what} at {:.0}%", self.percent)
    }
}

/// A filesystem of the story.
#[derive(Clone, Debug, PartialEq)]
pub struct Disk {
    /// Where it is mounted, as the documents have it.
    pub mount: String,
    /// Size.
    pub capacity_bytes: u64,
    /// Bytes that are not free.
    pub used_bytes: u64,
    /// Bytes that an unprivileged user can still write.
    pub available_bytes: u64,
    /// Percent of the capacity that is not available; `None`: the numbers contradict each other.
    pub used_percent: Option<f64>,
    /// Inodes in all; 0 where the filesystem has no fixed number.
    pub inodes: u64,
    /// Inodes that are free.
    pub inodes_free: u64,
    /// Its parts: their sum is `used_bytes`.
    pub parts: Vec<Part>,
    /// What happens when.
    pub marks: Vec<Mark>,
    /// What would go now.
    pub planned: Planned,
}

/// What is expected to come back.
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

/// What our commands would give back on a filesystem now, by the policy as it is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// What deletes images here: `layersweep gc`, with a flag where no runtime can.
    pub command: &'static str,
    /// What it gives back, of images.
    pub gc: Back,
    /// Where that is nothing: why, as a clause.
    pub none: &'static str,
    /// `layersweep sweep --delete`.
    pub sweep: Back,
}

impl Disk {
    /// Percent of the inodes that are taken; `None` without a fixed number, or where the numbers
    /// contradict each other.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // shown with one decimal
    pub fn inodes_percent(&self) -> Option<f64> {
        let taken = self.inodes.checked_sub(self.inodes_free)?;
        (self.inodes > 0).then(|| taken as f64 * 100.0 / self.inodes as f64)
    }

    /// Percent of what a mark counts that are taken.
    #[must_use]
    pub fn percent_of(&self, counted: Counted) -> Option<f64> {
        match counted {
            Counted::Bytes => self.used_percent,
            Counted::Inodes => self.inodes_percent(),
        }
    }

    /// The marks at which something happens and that are passed (or not).
    fn acting(&self, passed: bool) -> impl Iterator<Item = &Mark> {
        self.marks.iter().filter(move |mark| {
            mark.acts() && self.percent_of(mark.of).is_some_and(|percent| (mark.percent <= percent) == passed)
        })
    }
}
