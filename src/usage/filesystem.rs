//! statvfs, mount facts, and what a filesystem gives back beyond `st_blocks`. (Types
//! fixed; the bodies are under construction.)

use std::path::Path;

use crate::inventory::Filesystem;
use crate::usage::Tally;

/// What a filesystem gives back when inodes go: see `docs/how-it-measures.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CostModel {
    /// Bytes per inode that the filesystem keeps outside `st_blocks` (XFS: the inode size;
    /// ext4: 0, its inode tables never shrink; btrfs: the average of its metadata).
    pub bytes_per_inode: u64,
    /// Files may share extents.
    pub reflinks: bool,
}

impl CostModel {
    /// Bytes that `statvfs` is expected to show when what `tally` counts is deleted.
    #[must_use]
    pub fn frees(&self, tally: &Tally) -> u64 {
        tally.bytes.saturating_add(tally.inodes.saturating_mul(self.bytes_per_inode))
    }
}

/// The filesystem that holds `path`, and its cost model.
///
/// # Errors
/// When `path` cannot be examined.
pub fn of(_path: &Path) -> std::io::Result<(Filesystem, CostModel)> {
    Err(std::io::ErrorKind::Unsupported.into())
}
