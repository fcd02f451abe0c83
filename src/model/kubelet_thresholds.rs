//! Thresholds at which the kubelet collects images and dead containers and evicts pods.

use std::collections::BTreeMap;
use std::fmt;

use jiff::SignedDuration;

/// Signal for the bytes available on the images' filesystem.
pub const IMAGEFS: &str = "imagefs.available";
/// Signal for the bytes available on the kubelet's own filesystem.
pub const NODEFS: &str = "nodefs.available";
/// Signal for the free inodes of the images' filesystem.
pub const IMAGEFS_INODES: &str = "imagefs.inodesFree";
/// Signal for the free inodes of the kubelet's own filesystem.
pub const NODEFS_INODES: &str = "nodefs.inodesFree";

#[derive(Clone, Debug, PartialEq)]
pub struct Sourced<T> {
    pub value: T,
    /// Key or flag, and its file; `None` for the kubelet's own default.
    pub by: Option<String>,
}

impl<T> Sourced<T> {
    pub fn default(value: T) -> Self {
        Self { value, by: None }
    }

    #[must_use]
    pub fn source(&self) -> &str {
        self.by.as_deref().unwrap_or("the kubelet's default")
    }
}

/// Minimum that must stay available.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Percentage of the capacity, or of all inodes.
    Percent(f64),
    /// Number of bytes or inodes.
    Number(u64),
}

impl Amount {
    /// Returns the percentage in use above which less than this amount is left; `None` for a number if `whole` is 0.
    #[must_use]
    pub fn used_percent(self, whole: u64) -> Option<f64> {
        match self {
            Self::Percent(percent) => Some(100.0 - percent),
            Self::Number(_) if whole == 0 => None,
            #[allow(clippy::cast_precision_loss)] // compared in percent
            Self::Number(number) => Some(100.0 - number as f64 * 100.0 / whole as f64),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Number(number) => {
                let units = [(1_u64 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")];
                match units.iter().find(|(unit, _)| *number > 0 && number % unit == 0) {
                    Some((unit, name)) => write!(f, "{}{name}", number / unit),
                    None => write!(f, "{number}"),
                }
            }
        }
    }
}

/// Hard eviction thresholds by signal.
pub type Signals = BTreeMap<String, Amount>;

#[derive(Clone, Debug, PartialEq)]
pub struct KubeletThresholds {
    /// Percentage of usage at which image collection starts; 100 disables it.
    pub image_high: Sourced<i64>,
    /// Percentage of usage at which image collection stops.
    pub image_low: Sourced<i64>,
    /// Minimum age of an image that is deleted.
    pub min_age: Sourced<SignedDuration>,
    /// Age from which unused images are deleted; 0 disables it.
    pub max_age: Sourced<SignedDuration>,
    pub hard: Sourced<Signals>,
    pub soft: Sourced<Signals>,
    /// Signals whose default hard thresholds are disabled because the configuration sets another one.
    pub dropped: Vec<String>,
    /// Minimum age of a dead container that is deleted.
    pub container_ttl: Sourced<SignedDuration>,
    /// Maximum number of dead containers kept for each container of a pod; negative: no limit.
    pub dead_per_container: Sourced<i64>,
    /// Maximum number of dead containers kept on the node; negative: no limit.
    pub dead_in_all: Sourced<i64>,
}
