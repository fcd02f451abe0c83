//! Input and result of a walk.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use crate::disk::inode_chunks::{Holding, InodeChunks};
use crate::sys::quiet::Within;

/// What to walk, and which unit gets the bytes.
///
/// A *unit* is a number of the caller's choice, counted from 0: everything that is one
/// thing to the caller (a layer's directory, its tar-split and its data directory) carries
/// the same unit.
#[derive(Clone, Debug)]
pub struct Tree<'a> {
    /// Position in the `roots` given to [`measure`](super::measure).
    pub root: usize,
    /// Path below that root; empty for the root itself. May name any kind of file. No
    /// component may be a symlink or `..`, and a mount only if it shows the very directory
    /// that it covers: what another one hides is not counted. Trees must not overlap: what is in two of
    /// them is counted twice.
    pub path: Cow<'a, Path>,
    /// The unit that the bytes go to.
    pub unit: usize,
    /// How much of it.
    pub scope: TreeScope,
}

/// How much of a [`Tree`] is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TreeScope {
    /// It and all below it, mounts excepted.
    Whole,
    /// The same of what its directory says is a file.
    File,
    /// The entry alone, even if it is a directory.
    EntryOnly,
}

impl TreeScope {
    #[must_use]
    pub fn is_whole(self) -> bool {
        self != Self::EntryOnly
    }
}

/// Whether to look for extents that files share by reflink (`FS_IOC_FIEMAP`); each sees
/// what the one before it sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Extents {
    /// Never: the filesystem has no reflinks.
    Off,
    /// Look at the big files only; if one of them shares an extent, look at all files.
    #[default]
    Probe,
    /// Look at every file.
    All,
}

#[derive(Debug, Default)]
pub struct WalkOptions<'a> {
    /// Threads; 0 for the default, which suits a disk that is not in the page cache. Fewer
    /// run where the limit of open files asks for it.
    pub threads: usize,
    pub extents: Extents,
    /// Filesystems where the holders of inodes are recorded: [`Measured::inodes`].
    pub inode_chunks: Option<&'a InodeChunks>,
    /// Positions of roots that trees of their own count, in this walk or another: where one
    /// of these directories is below a tree, the tree leaves it and all below it out.
    pub apart: &'a [usize],
    /// The stores' open directories: roots in them are opened through these.
    pub within: Within,
    /// Counters that another thread may watch.
    pub progress: Option<&'a Progress>,
}

/// Counters that grow while a walk is in progress.
#[derive(Debug, Default)]
pub struct Progress {
    /// Inodes seen.
    pub inodes: AtomicU64,
    /// Allocated bytes seen.
    pub bytes: AtomicU64,
}

/// The size of one unit, or of one group of shared inodes. Hard links count once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Allocated bytes: 512 x `st_blocks`.
    pub bytes: u64,
    /// Sum of `st_size` of everything that is not a directory.
    pub apparent_bytes: u64,
    /// Inodes, directories included.
    pub inodes: u64,
    /// On btrfs: what they have in the metadata, once (other filesystems have no use for
    /// it).
    pub metadata_bytes: u64,
    /// On btrfs: of `bytes`, what is inside the metadata.
    pub inline_bytes: u64,
}

/// Inodes with hard links in several units, or in one unit and outside all of them. They
/// are in no unit's own [`Tally`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedInodes {
    /// The units that hold a link, ascending.
    pub units: Vec<usize>,
    /// More links exist than were seen: there is one outside the trees.
    pub outside: bool,
    /// Their total size.
    pub tally: Tally,
}

/// Extents that several files share by reflink, grouped by who shares them.
///
/// Lengths are those that `st_blocks` counts; on btrfs with compression these are the
/// uncompressed ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedExtents {
    /// Each sharing unit, ascending, with how often in all `st_blocks` of its files has
    /// counted bytes of this group (bytes, so 2 x `physical_bytes` for two copies).
    pub counted: Vec<(usize, u64)>,
    /// The filesystem says shared, but fewer than two references were seen: somebody
    /// outside the trees shares it. Also where one of [`Measured::shared_inodes`] has a
    /// reference, since that one is in no unit's own tally either.
    pub outside: bool,
    /// What the extents take on the disk, once.
    pub physical_bytes: u64,
}

/// Something that the walk could not read. Sizes are then lower bounds.
#[derive(Clone, Debug)]
pub struct WalkError {
    /// Unit concerned.
    pub unit: usize,
    /// What could not be read.
    pub path: PathBuf,
    /// Why; also what was tried ("opening", "reading", "examining").
    pub message: String,
    /// It was there when its directory was read and is gone now: somebody deleted it
    /// meanwhile.
    pub vanished: bool,
}

/// What a walk found.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// A tally for each unit, by unit number.
    pub units: Vec<Tally>,
    /// For each unit, by unit number, the latest `st_ctime` of what was counted, in seconds
    /// since 1970; `i64::MIN` where there was nothing.
    pub newest: Vec<i64>,
    /// Where files were looked at for shared extents in the end: a probe that hits becomes
    /// [`Extents::All`].
    pub extents: Extents,
    /// Inodes that belong to no unit alone.
    pub shared_inodes: Vec<SharedInodes>,
    /// Extents that belong to no file alone.
    pub shared_extents: Vec<SharedExtents>,
    /// The holders of inodes on XFS, if requested. For [`InodeChunks::add`].
    pub inodes: Vec<Holding>,
    /// What could not be read.
    pub errors: Vec<WalkError>,
    /// Mount points that were not entered, bind mounts included, each with its unit. What
    /// is below them, and the covered entry itself, is not counted. A directory that is
    /// bind-mounted over itself (as containers/storage does with `overlay`) is entered.
    pub mounts: Vec<(usize, PathBuf)>,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.apparent_bytes = self.apparent_bytes.saturating_add(other.apparent_bytes);
        self.inodes = self.inodes.saturating_add(other.inodes);
        self.metadata_bytes = self.metadata_bytes.saturating_add(other.metadata_bytes);
        self.inline_bytes = self.inline_bytes.saturating_add(other.inline_bytes);
    }
}
