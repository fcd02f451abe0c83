//! Free space of a filesystem at one moment.
//!
//! Used means *not available to an unprivileged user* (`f_blocks - f_bavail`), as the kubelet
//! counts, so that both thresholds mean the same.

use serde::{Deserialize, Serialize};

use super::{Size, display};

/// The numbers of one filesystem at one moment. [`Space::checked`] makes sure they can be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Size in bytes, never 0.
    pub capacity_bytes: u64,
    /// Bytes that an unprivileged user can still write, at most the capacity.
    pub available_bytes: u64,
    /// Bytes that have to be freed before any becomes available: what root has used of its reserve.
    pub owed_bytes: u64,
    /// Inodes in all; 0 where the filesystem has no fixed number.
    pub inodes: u64,
    pub inodes_free: u64,
}

/// Why a filesystem's numbers are invalid.
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
    /// More is to be kept free than the capacity, which no deletion can reach.
    #[error("{} are to be kept free (images.min_free, or --min-free), but the filesystem has only {}", display::bytes(*wanted_bytes), display::bytes(*capacity_bytes))]
    FloorAboveCapacity { wanted_bytes: u64, capacity_bytes: u64 },
    #[error("the filesystem's numbers cannot be read: {0}")]
    Failed(String),
}

super::names::names! {
    /// A number that a filesystem reports.
    Stat {
        Capacity = "capacity",
        Available = "available bytes",
        /// Any of them.
        All = "numbers",
    }
}

/// The result of a measurement.
pub type Measured = Result<Space, InvalidStats>;

impl Space {
    /// Numbers as a runtime or the kernel gives them, looked at before they are believed.
    ///
    /// # Errors
    /// When a number is missing or cannot be true. Inodes are optional.
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

    /// Percent of the capacity that is not available, for display only.
    #[must_use]
    pub fn used_percent(&self) -> f64 {
        share(self.capacity_bytes - self.available_bytes.min(self.capacity_bytes), self.capacity_bytes)
    }

    /// The same filesystem after this much was freed.
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
}

#[allow(clippy::cast_precision_loss)] // shown with two decimals
fn share(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole as f64
}

/// Which targets have started, and are to be carried to their end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// Percent of the bytes used.
    pub used: bool,
    /// Bytes available.
    pub free: bool,
    /// Percent of the inodes used.
    pub inodes: bool,
}

impl Started {
    #[must_use]
    pub fn any(self) -> bool {
        self.used || self.free || self.inodes
    }

    /// Those that either has.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self {
            used: self.used || other.used,
            free: self.free || other.free,
            inodes: self.inodes || other.inodes,
        }
    }

    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        let all = [(self.used, "used"), (self.free, "free"), (self.inodes, "inodes")];
        all.into_iter().filter(|(started, _)| *started).map(|(_, name)| name).collect()
    }
}

/// Free inodes that a deletion needs to begin. Record files are replaced one after another, and each frees the inode of the
/// old version: that is one at a time. The other is for whoever creates a file meanwhile.
pub const NEEDED_INODES: u64 = 2;

/// Whether a filesystem has a fixed number of inodes, and too few of them are free for a deletion to begin.
#[must_use]
pub fn lacks_inodes(inodes: u64, free: u64) -> bool {
    inodes > 0 && free < NEEDED_INODES
}

/// A number of bytes and a number of inodes: what is still to be freed, or what a deletion frees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BytesAndInodes {
    pub bytes: u64,
    pub inodes: u64,
}

/// What the filesystem frees.
impl From<Size> for BytesAndInodes {
    fn from(size: Size) -> Self {
        Self { bytes: size.frees_bytes, inodes: size.inodes }
    }
}

impl std::fmt::Display for BytesAndInodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = (self.bytes > 0 || self.inodes == 0).then(|| display::bytes(self.bytes));
        let inodes = (self.inodes > 0).then(|| format!("{} inodes", self.inodes));
        f.write_str(&bytes.into_iter().chain(inodes).collect::<Vec<_>>().join(" and "))
    }
}

impl BytesAndInodes {
    /// The larger of each.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { bytes: self.bytes.max(other.bytes), inodes: self.inodes.max(other.inodes) }
    }

    #[must_use]
    pub fn is_nothing(self) -> bool {
        self.bytes == 0 && self.inodes == 0
    }

    /// Whether it is as much as `wanted`, of both.
    #[must_use]
    pub fn covers(self, wanted: Self) -> bool {
        self.bytes >= wanted.bytes && self.inodes >= wanted.inodes
    }
}
