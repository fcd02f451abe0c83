//! Filesystems that hold stores.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::space::{Measured, Space};

/// A mounted filesystem, as `statvfs` and the mount table describe it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filesystem {
    /// Where it is mounted, in the mount namespace of the scan.
    #[serde(with = "super::path_text")]
    pub mount: PathBuf,
    /// The source column of the mount table, for example `/dev/vda4`.
    pub device: String,
    /// The type column of the mount table, for example `xfs`.
    pub fstype: String,
    /// Size in bytes (`f_blocks`).
    pub capacity_bytes: u64,
    /// Bytes that are not free, root's reserve counted as free (`f_blocks - f_bfree`).
    pub used_bytes: u64,
    /// Bytes that an unprivileged user can still write (`f_bavail`).
    pub available_bytes: u64,
    /// Inodes in all; 0 where the filesystem has no fixed number (btrfs).
    pub inodes: u64,
    /// Inodes that are free; 0 where the filesystem has no fixed number.
    pub inodes_free: u64,
}

impl Filesystem {
    /// Bytes that are neither used nor available: reserved for root, as a rule.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.used_bytes).saturating_sub(self.available_bytes)
    }

    /// Percent of the capacity that is not available to an unprivileged user: the
    /// kubelet's measure, so 85.0 here is where its image GC starts by default.
    /// `None` where the capacity is 0 or the numbers contradict each other.
    #[must_use]
    pub fn used_percent(&self) -> Option<f64> {
        self.space().ok().map(|space| space.used_percent())
    }

    /// What the scan saw of it.
    ///
    /// # Errors
    /// When the numbers cannot be true.
    pub fn space(&self) -> Measured {
        let inodes = Some((self.inodes, self.inodes_free));
        Space::checked(Some(self.capacity_bytes), Some(self.available_bytes), inodes)
    }
}
