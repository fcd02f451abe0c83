//! Input and result of a walk.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use crate::disk::inode_chunks::{Holding, InodeChunks};
use crate::disk::runs::EncodedRuns;
use crate::sys::quiet::Within;

/// A tree to walk, and the unit to which its bytes are attributed.
///
/// A *unit* is a number chosen by the caller, counted from 0. All trees that are one thing to the caller (a layer's
/// directory, its tar-split and its data directory) have the same unit.
#[derive(Clone, Debug)]
pub struct Tree<'a> {
    /// Position in the `roots` given to [`measure`](super::measure).
    pub root: usize,
    /// Path below that root; empty for the root itself. May name a file of any type.
    ///
    /// No component may be a symlink or `..`. A component may be a mount only if it shows the same directory that it
    /// covers: the content of another mount is not counted. Trees must not overlap: files in two of them are counted
    /// twice.
    pub path: Cow<'a, Path>,
    /// Unit to which the bytes are attributed.
    pub unit: usize,
    pub scope: TreeScope,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TreeScope {
    /// The entry and everything below it, except mounts.
    Whole,
    /// Same as `Whole`, for an entry that is a file according to its directory.
    File,
    /// Only the entry, even if it is a directory.
    EntryOnly,
}

impl TreeScope {
    #[must_use]
    pub fn is_whole(self) -> bool {
        self != Self::EntryOnly
    }
}

/// Files that are asked for their extents, on filesystems where files can share them.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExtentOptions {
    /// Minimum allocated bytes of such a file. On btrfs every file is asked: it may be compressed.
    pub from_bytes: u64,
    pub seed: u64,
}

/// Extents of a unit, and some of its files to see later whether they still hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitExtents {
    pub runs: Vec<EncodedRuns>,
    /// As encoded by [`samples::encode`](crate::disk::samples::encode).
    pub samples: Box<[u8]>,
}

#[derive(Debug, Default)]
pub struct WalkOptions<'a> {
    /// Number of threads; 0 for the default, which suits a disk that is not in the page cache. Fewer are used if the
    /// limit of open files requires it.
    pub threads: usize,
    /// `None`: no file is asked.
    pub extents: Option<ExtentOptions>,
    /// Filesystems on which the units with each inode are recorded: [`Measured::inodes`].
    pub inode_chunks: Option<&'a InodeChunks>,
    /// Positions of roots that are counted by trees of their own, in this walk or another. If such a directory is
    /// below another tree, that tree skips it and everything below it.
    pub apart: &'a [usize],
    /// Open directories of the stores; roots inside them are opened through these.
    pub within: Within,
    pub progress: Option<&'a Progress>,
}

#[derive(Debug, Default)]
pub struct Progress {
    pub inodes: AtomicU64,
    pub bytes: AtomicU64,
}

/// Size of a unit, or of a group of shared inodes. Hard links count once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Allocated bytes: 512 × `st_blocks`.
    pub bytes: u64,
    /// Sum of `st_size` of everything except directories.
    pub apparent_bytes: u64,
    /// Number of inodes, including directories.
    pub inodes: u64,
    /// On btrfs: bytes of one copy of the metadata. Other filesystems do not use it.
    pub metadata_bytes: u64,
    /// On btrfs: the part of `bytes` that is inside the metadata.
    pub inline_bytes: u64,
}

/// Inodes with hard links in several units, or in a unit and outside all of them. They are not part of any unit's
/// [`Tally`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedInodes {
    /// Units with a link, ascending.
    pub units: Vec<usize>,
    /// True if more links exist than the walk saw: at least one is outside the trees.
    pub outside: bool,
    pub tally: Tally,
}

/// Error of a walk at one path. The sizes are then lower bounds.
#[derive(Clone, Debug)]
pub struct WalkError {
    pub unit: usize,
    pub path: PathBuf,
    /// Failed action ("opening", "reading", "examining") and reason.
    pub message: String,
    /// True if the entry was deleted after its directory was read.
    pub vanished: bool,
}

/// Result of a walk.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Tally of each unit, by unit number.
    pub units: Vec<Tally>,
    /// Latest `st_ctime` in each unit, by unit number, in seconds since 1970; `i64::MIN` for an empty unit.
    pub newest: Vec<i64>,
    /// Inodes that do not belong to a single unit.
    pub shared_inodes: Vec<SharedInodes>,
    /// Extents of each unit, if requested; `None` for inodes of several units.
    pub extents: HashMap<Option<usize>, UnitExtents>,
    /// Files are compressed, and their size on the disk is not permitted to be read: it is estimated.
    pub has_estimates: bool,
    /// Units with inodes on XFS, if requested. For [`InodeChunks::add`].
    pub inodes: Vec<Holding>,
    pub errors: Vec<WalkError>,
    /// Mount points that were not entered, including bind mounts, each with its unit. Neither the covered entry nor
    /// anything below it is counted. A directory that is bind-mounted over itself (as containers/storage does with
    /// `overlay`) is entered.
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
