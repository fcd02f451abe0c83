//! Free space of a filesystem at one moment.
//!
//! Used means *not available to an unprivileged user* (`f_blocks - f_bavail`), as the kubelet
//! counts, so that both thresholds mean the same.

use serde::{Deserialize, Serialize};

use super::node::Size;
use crate::model::text::display;

/// Numbers of a filesystem at one moment. [`Space::checked`] makes sure that they can be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Size in bytes, never 0.
    pub capacity_bytes: u64,
    /// Bytes that an unprivileged user can still write, at most the capacity.
    pub available_bytes: u64,
    /// Bytes that must be freed before any becomes available: the part of its reserve that root has used.
    pub owed_bytes: u64,
    /// Number of inodes; 0 if the filesystem has no fixed number.
    pub inodes: u64,
    pub inodes_free: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum InvalidStats {
    #[error("the filesystem does not report its {0}")]
    Missing(Stat),
    #[error("the filesystem reports a capacity of 0 bytes")]
    NoCapacity,
    #[error("the filesystem reports that {available_bytes} of its {capacity_bytes} bytes are available")]
    TooMuchAvailable { available_bytes: u64, capacity_bytes: u64 },
    #[error("the filesystem reports that {free} of its {inodes} inodes are free")]
    TooManyInodesFree { free: u64, inodes: u64 },
    /// The configured minimum of free bytes exceeds the capacity, so that no deletion can reach it.
    #[error("{} are to be kept free (images.min_free, or --min-free), but the filesystem has only {}: this target is ignored here", display::bytes(*wanted_bytes), display::bytes(*capacity_bytes))]
    FloorAboveCapacity { wanted_bytes: u64, capacity_bytes: u64 },
    #[error("the filesystem's numbers cannot be read: {0}")]
    Failed(String),
}

crate::model::text::names::names! {
    Stat {
        Capacity = "capacity",
        Available = "available bytes",
        /// Any of the numbers.
        All = "numbers",
    }
}

pub type Measured = Result<Space, InvalidStats>;

impl Space {
    /// Checks the numbers of a runtime or the kernel.
    ///
    /// # Errors
    /// If a number is missing or cannot be true. Inodes are optional.
    pub fn checked(
        capacity_bytes: Option<u64>,
        available_bytes: Option<u64>,
        inodes: Option<(u64, u64)>,
    ) -> Measured {
        let capacity_bytes = capacity_bytes.ok_or(InvalidStats::Missing(Stat::Capacity))?;
        let available_bytes = available_bytes.ok_or(InvalidStats::Missing(Stat::Available))?;
        if capacity_bytes == 0 {
            return Err(InvalidStats::NoCapacity);
        }
        if available_bytes > capacity_bytes {
            return Err(InvalidStats::TooMuchAvailable { available_bytes, capacity_bytes });
        }
        let (inodes, inodes_free) = inodes.unwrap_or_default();
        Ok(Self { capacity_bytes, available_bytes, owed_bytes: 0, inodes, inodes_free })
    }

    /// Returns the percentage of the capacity that is not available; for display only.
    #[must_use]
    pub fn used_percent(&self) -> f64 {
        share(self.capacity_bytes - self.available_bytes.min(self.capacity_bytes), self.capacity_bytes)
    }

    /// Returns the percentage of the capacity that is used or owed: above 100 if more is needed than there is.
    #[must_use]
    pub fn needed_percent(&self) -> f64 {
        let used = self.capacity_bytes - self.available_bytes.min(self.capacity_bytes);
        share(used.saturating_add(self.owed_bytes), self.capacity_bytes)
    }

    /// Returns the numbers after this much was freed.
    #[must_use]
    pub fn gained(self, bytes: u64, inodes: u64) -> Self {
        let gained = bytes.saturating_sub(self.owed_bytes);
        Self {
            available_bytes: self.available_bytes.saturating_add(gained).min(self.capacity_bytes),
            owed_bytes: self.owed_bytes.saturating_sub(bytes),
            inodes_free: self.inodes_free.saturating_add(inodes).min(self.inodes),
            ..self
        }
    }

    /// Returns the numbers after this much was written. What exceeds the available bytes is owed.
    #[must_use]
    pub fn lost(self, bytes: u64) -> Self {
        Self {
            available_bytes: self.available_bytes.saturating_sub(bytes),
            owed_bytes: self.owed_bytes.saturating_add(bytes.saturating_sub(self.available_bytes)),
            ..self
        }
    }
}

#[allow(clippy::cast_precision_loss)] // shown with two decimals
fn share(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole as f64
}

/// Targets that have started and must be reached. Documents list their names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Started {
    /// Percentage of the bytes used.
    pub used: bool,
    /// Bytes available.
    pub free: bool,
    /// Percentage of the inodes used.
    pub inodes: bool,
}

impl Started {
    #[must_use]
    pub fn any(self) -> bool {
        self.used || self.free || self.inodes
    }

    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self {
            used: self.used || other.used,
            free: self.free || other.free,
            inodes: self.inodes || other.inodes,
        }
    }
}

impl Serialize for Started {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let all = [(self.used, "used"), (self.free, "free"), (self.inodes, "inodes")];
        serializer.collect_seq(all.into_iter().filter(|(started, _)| *started).map(|(_, name)| name))
    }
}

impl<'de> Deserialize<'de> for Started {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        let has = |name: &str| names.iter().any(|other| other == name);
        Ok(Self { used: has("used"), free: has("free"), inodes: has("inodes") })
    }
}

/// Default of `images.inodes_high_percent`: a filesystem with this percentage of its inodes used is short of them.
pub const INODES_HIGH_PERCENT: u8 = 90;

/// Number of free inodes that a deletion needs to begin. Record files are replaced one after another, and each
/// replacement frees the inode of the old version: this needs one inode. The other one is for processes that create
/// files meanwhile.
pub const NEEDED_INODES: u64 = 2;

/// Returns whether a filesystem has a fixed number of inodes and too few of them are free for a deletion to begin.
#[must_use]
pub fn lacks_inodes(inodes: u64, free: u64) -> bool {
    inodes > 0 && free < NEEDED_INODES
}

/// Returns the number of inodes and of free inodes, or 0 for both if free bytes are what limits them, or if deleting
/// files may not free any: an overlay.
///
/// XFS and ZFS make inodes out of free blocks, and report as free what still fits. On such a filesystem without free
/// bytes no inode is free, but that is a shortage of bytes. Inodes are the shortage if there are free bytes and the
/// maximum number of inodes (XFS: `imaxpct`) is reached.
#[must_use]
pub fn limiting_inodes(fstype: &str, inodes: u64, free: u64, free_bytes: u64) -> (u64, u64) {
    /// Maximum size of an inode.
    const INODE_BYTES: u64 = 2048;
    let is_made_on_demand = matches!(fstype, "xfs" | "zfs");
    let is_by_bytes = is_made_on_demand && free.saturating_mul(INODE_BYTES) >= free_bytes;
    if is_by_bytes || fstype == "overlay" { (0, 0) } else { (inodes, free) }
}

/// Number of bytes and of inodes that must still be freed, or that a deletion frees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BytesAndInodes {
    pub bytes: u64,
    pub inodes: u64,
}

impl From<Size> for BytesAndInodes {
    fn from(size: Size) -> Self {
        Self { bytes: size.frees_bytes, inodes: size.inodes }
    }
}

impl std::fmt::Display for BytesAndInodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = (self.bytes > 0 || self.inodes == 0).then(|| display::bytes(self.bytes));
        let inodes = (self.inodes > 0).then(|| format!("{} inodes", display::thousands(self.inodes)));
        f.write_str(&bytes.into_iter().chain(inodes).collect::<Vec<_>>().join(" and "))
    }
}

impl BytesAndInodes {
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { bytes: self.bytes.max(other.bytes), inodes: self.inodes.max(other.inodes) }
    }

    #[must_use]
    pub fn is_nothing(self) -> bool {
        self.bytes == 0 && self.inodes == 0
    }

    /// Returns whether both numbers are at least those of `wanted`.
    #[must_use]
    pub fn covers(self, wanted: Self) -> bool {
        self.bytes >= wanted.bytes && self.inodes >= wanted.inodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inodes_made_from_free_bytes_do_not_limit() {
        const MIB: u64 = 1 << 20;
        for (fstype, inodes, free, free_bytes, expected) in [
            ("ext4", 1000, 3, MIB, (1000, 3)),
            ("ext4", 1000, 3, 0, (1000, 3)),
            ("xfs", 5000, 2048, MIB, (0, 0)),
            ("xfs", 5000, 0, 0, (0, 0)),
            ("xfs", 5000, 3, 100 * MIB, (5000, 3)),
            ("zfs", 5000, 4096, MIB, (0, 0)),
            ("btrfs", 0, 0, MIB, (0, 0)),
        ] {
            assert_eq!(limiting_inodes(fstype, inodes, free, free_bytes), expected, "{fstype} {free}");
        }
    }
}
