//! Inodes of a unit. Pure.

use crate::sys::xfs::inumbers::INODES_PER_CHUNK;

/// Inodes of one window that belong to one unit. A window is 64 inodes that start at a multiple of 64; on most
/// filesystems it is the same as a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holding {
    /// `st_dev` of the filesystem.
    pub device: u64,
    /// Number of the first inode, divided by 64.
    pub window: u64,
    /// Unit with the inodes; `None` for a link outside the trees.
    pub unit: Option<u32>,
    /// Bit n is set for inode n of the window.
    pub inodes: u64,
}

impl Holding {
    #[inline]
    #[must_use]
    pub fn of(device: u64, inode: u64, unit: Option<usize>) -> Self {
        // Units from 2^32 on count as outside, which promises too little.
        let unit = unit.and_then(|unit| u32::try_from(unit).ok());
        Self { device, window: inode / INODES_PER_CHUNK, unit, inodes: 1 << (inode % INODES_PER_CHUNK) }
    }

    pub(super) fn is_same_but_inodes(&self, other: &Self) -> bool {
        (self.device, self.window, self.unit) == (other.device, other.window, other.unit)
    }
}
