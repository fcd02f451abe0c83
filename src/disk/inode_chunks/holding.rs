//! Who holds which inodes. Pure.

use crate::sys::xfs::inumbers::INODES_PER_CHUNK;

/// Inodes of one window that one unit holds. A window is 64 inodes from a multiple of 64 on:
/// on most filesystems the same as a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holding {
    /// `st_dev` of the filesystem.
    pub device: u64,
    /// Number of the first inode, divided by 64.
    pub window: u64,
    /// `None` for somebody outside the trees.
    pub unit: Option<u32>,
    /// Bit n: the n-th inode.
    pub inodes: u64,
}

impl Holding {
    /// One inode of `unit`.
    #[inline]
    #[must_use]
    pub fn of(device: u64, inode: u64, unit: Option<usize>) -> Self {
        // More than 2^32 units: they count as somebody else, which promises too little.
        let unit = unit.and_then(|unit| u32::try_from(unit).ok());
        Self { device, window: inode / INODES_PER_CHUNK, unit, inodes: 1 << (inode % INODES_PER_CHUNK) }
    }

    pub(super) fn is_same_but_inodes(&self, other: &Self) -> bool {
        (self.device, self.window, self.unit) == (other.device, other.window, other.unit)
    }
}
