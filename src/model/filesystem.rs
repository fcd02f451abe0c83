//! Filesystems that hold stores.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::space::{Measured, Space};

/// A mounted filesystem, as `statvfs` and the mount table describe it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filesystem {
    /// Mount point, in the mount namespace of the scan.
    #[serde(with = "super::path_text")]
    pub mount: PathBuf,
    /// Source column of the mount table, for example `/dev/vda4`.
    pub device: String,
    /// Type column of the mount table, for example `xfs`.
    pub fstype: String,
    /// Size in bytes (`f_blocks`).
    pub capacity_bytes: u64,
    /// Bytes that are not free (`f_blocks - f_bfree`). The reserve of root counts as free.
    pub used_bytes: u64,
    /// Bytes that an unprivileged user can still write (`f_bavail`).
    pub available_bytes: u64,
    /// Number of inodes; 0 if the filesystem has no fixed number (btrfs).
    pub inodes: u64,
    /// Number of free inodes; 0 if the filesystem has no fixed number.
    pub inodes_free: u64,
}

impl Filesystem {
    /// Returns the bytes that are neither used nor available: usually the reserve of root.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.used_bytes).saturating_sub(self.available_bytes)
    }

    /// Returns the percentage of the capacity that is not available to an unprivileged user, as the kubelet
    /// measures it: at 85.0 its image GC starts by default. `None` if the capacity is 0 or the numbers contradict
    /// each other.
    #[must_use]
    pub fn used_percent(&self) -> Option<f64> {
        self.space().ok().map(|space| space.used_percent())
    }

    /// Returns the free space at the time of the scan.
    ///
    /// # Errors
    /// If the numbers cannot be true.
    pub fn space(&self) -> Measured {
        let inodes = Some((self.inodes, self.inodes_free));
        Space::checked(Some(self.capacity_bytes), Some(self.available_bytes), inodes)
    }
}
