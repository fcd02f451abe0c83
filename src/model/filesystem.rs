//! Filesystems that hold stores.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::space::{INODES_HIGH_PERCENT, Measured, Space, limiting_inodes};

/// A mounted filesystem, as `statvfs` and the mount table describe it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filesystem {
    /// Mount point, in the mount namespace of the scan.
    #[serde(with = "crate::model::text::path_text")]
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

    /// Returns the number of used inodes; `None` if the filesystem does not report its inodes, or the numbers
    /// contradict each other.
    #[must_use]
    pub fn used_inodes(&self) -> Option<u64> {
        self.inodes.checked_sub(self.inodes_free).filter(|_| self.inodes > 0)
    }

    /// Returns whether so many of its inodes are used that `gc` starts by default.
    #[must_use]
    pub fn is_short_of_inodes(&self) -> bool {
        let high = u128::from(self.inodes) * u128::from(INODES_HIGH_PERCENT);
        let (inodes, free) = self.limiting_inodes();
        let used = inodes.checked_sub(free).filter(|_| inodes > 0);
        used.is_some_and(|used| u128::from(used) * 100 >= high)
    }

    /// Returns the free space at the time of the scan.
    ///
    /// # Errors
    /// If the numbers cannot be true.
    pub fn space(&self) -> Measured {
        let inodes = Some(self.limiting_inodes());
        Space::checked(Some(self.capacity_bytes), Some(self.available_bytes), inodes)
    }

    fn limiting_inodes(&self) -> (u64, u64) {
        let free_bytes = self.capacity_bytes.saturating_sub(self.used_bytes);
        limiting_inodes(&self.fstype, self.inodes, self.inodes_free, free_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::display::thousands;

    #[test]
    fn nine_tenths_of_the_inodes_are_a_shortage() {
        for (inodes, free, used, is_short) in [
            (196_608, 203, Some(196_405), true),
            (100, 10, Some(90), true),
            (100, 11, Some(89), false),
            (0, 0, None, false),
            (5, 6, None, false),
        ] {
            let filesystem = Filesystem {
                mount: "/var".into(),
                device: String::new(),
                fstype: String::new(),
                capacity_bytes: 1,
                used_bytes: 0,
                available_bytes: 1,
                inodes,
                inodes_free: free,
            };
            assert_eq!(
                (filesystem.used_inodes(), filesystem.is_short_of_inodes()),
                (used, is_short),
                "{free}"
            );
        }
        let numbers = [7, 999, 1000, 195_946, 1_000_000].map(thousands);
        assert_eq!(numbers, ["7", "999", "1,000", "195,946", "1,000,000"]);
    }
}
